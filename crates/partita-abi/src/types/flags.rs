//! Flags and small enumerations of calls.

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {$(
        $(#[$doc])*
        pub const $name: u32 = $value;
    )*};
}

constants! {
    /// The host picks how it waits for the context.
    CU_CTX_SCHED_AUTO = 0x00;
    /// The host spins while it waits.
    CU_CTX_SCHED_SPIN = 0x01;
    /// The host yields while it waits.
    CU_CTX_SCHED_YIELD = 0x02;
    /// The host sleeps while it waits.
    CU_CTX_SCHED_BLOCKING_SYNC = 0x04;
    /// The bits of the four above.
    CU_CTX_SCHED_MASK = 0x07;
    /// Without effect since CUDA 3.2: host memory can always be mapped.
    CU_CTX_MAP_HOST = 0x08;
    /// Local memory keeps its size after a launch.
    CU_CTX_LMEM_RESIZE_TO_MAX = 0x10;
    /// An exception writes a core dump.
    CU_CTX_COREDUMP_ENABLE = 0x20;
    /// A user can ask for a core dump.
    CU_CTX_USER_COREDUMP_ENABLE = 0x40;
    /// Synchronous memory operations synchronise.
    CU_CTX_SYNC_MEMOPS = 0x80;
    /// Every flag of a context.
    CU_CTX_FLAGS_MASK = 0xff;

    /// The stream waits for the legacy default stream, and it for the stream.
    CU_STREAM_DEFAULT = 0;
    /// The stream does not wait for the legacy default stream.
    CU_STREAM_NON_BLOCKING = 1;

    /// An ordinary event.
    CU_EVENT_DEFAULT = 0;
    /// The host sleeps while it waits for the event.
    CU_EVENT_BLOCKING_SYNC = 1;
    /// The event keeps no time.
    CU_EVENT_DISABLE_TIMING = 2;
    /// The event may be handed to another process; needs the flag before.
    CU_EVENT_INTERPROCESS = 4;
    /// In a capture, the record becomes a node and not a dependency.
    CU_EVENT_RECORD_EXTERNAL = 1;
    /// In a capture, the wait becomes a node and not a dependency.
    CU_EVENT_WAIT_EXTERNAL = 1;

    /// Every stream may access the managed memory.
    CU_MEM_ATTACH_GLOBAL = 1;
    /// No stream may access the managed memory.
    CU_MEM_ATTACH_HOST = 2;
    /// One stream may access the managed memory.
    CU_MEM_ATTACH_SINGLE = 4;

    /// Every context sees the host memory as pinned.
    CU_MEMHOSTALLOC_PORTABLE = 1;
    /// The host memory is mapped into the device's address space.
    CU_MEMHOSTALLOC_DEVICEMAP = 2;
    /// The host memory is write-combined.
    CU_MEMHOSTALLOC_WRITECOMBINED = 4;
    /// Every context sees the registered memory as pinned.
    CU_MEMHOSTREGISTER_PORTABLE = 1;
    /// The registered memory is mapped into the device's address space.
    CU_MEMHOSTREGISTER_DEVICEMAP = 2;
    /// The registered memory is a device's registers.
    CU_MEMHOSTREGISTER_IOMEMORY = 4;
    /// The registered memory is only read.
    CU_MEMHOSTREGISTER_READ_ONLY = 8;

    /// Peer access is switched on as it is needed.
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

    /// The least granularity of `cuMemCreate`.
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;
    /// The granularity of best performance.
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1;

    /// Any process may use the device.
    CU_COMPUTEMODE_DEFAULT = 0;
    /// No process may use the device.
    CU_COMPUTEMODE_PROHIBITED = 2;
    /// One process at a time may use the device.
    CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3;

    /// Stack of a thread, in bytes.
    CU_LIMIT_STACK_SIZE = 0;
    /// Buffer of `printf`, in bytes.
    CU_LIMIT_PRINTF_FIFO_SIZE = 1;
    /// Heap of device-side `malloc`, in bytes.
    CU_LIMIT_MALLOC_HEAP_SIZE = 2;
    /// Depth of device-side synchronisation.
    CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3;
    /// Device-side launches that may be pending.
    CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4;
    /// Hint for the L2 fetch granularity, in bytes.
    CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5;
    /// L2 set aside for persisting accesses, in bytes.
    CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6;
    /// Shared memory of a CUDA-in-graphics context, in bytes.
    CU_LIMIT_SHMEM_SIZE = 7;
    /// Whether the context is a CUDA-in-graphics one.
    CU_LIMIT_CIG_ENABLED = 8;
    /// Whether such a context may fall back on less shared memory.
    CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED = 9;

    /// The stream is not capturing.
    CU_STREAM_CAPTURE_STATUS_NONE = 0;
    /// The stream is capturing.
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
    /// The stream's capture failed and was not ended yet.
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
    /// Unsafe calls of any thread end the capture.
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
    /// Unsafe calls of the capturing thread end the capture.
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
    /// No call ends the capture.
    CU_STREAM_CAPTURE_MODE_RELAXED = 2;

    /// `cuGetProcAddress`: the flavour that the program was built for.
    CU_GET_PROC_ADDRESS_DEFAULT = 0;
    /// `cuGetProcAddress`: the legacy default stream.
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;
    /// `cuGetProcAddress`: the per-thread default stream.
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2;
    /// `cuGetProcAddress_v2`: found.
    CU_GET_PROC_ADDRESS_SUCCESS = 0;
    /// `cuGetProcAddress_v2`: no such name.
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1;
    /// `cuGetProcAddress_v2`: the name is newer than the requested version.
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2;

    /// How well two devices reach each other.
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1;
    /// Whether two devices reach each other.
    CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2;
    /// Whether two devices support each other's atomics.
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3;
    /// Whether one device may access the other's CUDA arrays.
    CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED = 4;

    /// Green contexts need this flag, and have a default stream with it.
    CU_GREEN_CTX_DEFAULT_STREAM = 1;
    /// SM splits need not keep co-scheduling guarantees.
    CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING = 1;
    /// SM splits keep the greatest cluster size.
    CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE = 2;

    /// Input of the just-in-time compiler: a cubin.
    CU_JIT_INPUT_CUBIN = 0;
    /// Input of the just-in-time compiler: PTX.
    CU_JIT_INPUT_PTX = 1;
    /// Input of the just-in-time compiler: a fat binary.
    CU_JIT_INPUT_FATBINARY = 2;
    /// Input of the just-in-time compiler: a host object.
    CU_JIT_INPUT_OBJECT = 3;
    /// Input of the just-in-time compiler: a host archive.
    CU_JIT_INPUT_LIBRARY = 4;
}

/// `CU_DEVICE_CPU`: the host as a device, for hints.
pub const CU_DEVICE_CPU: i32 = -1;
/// `CU_DEVICE_INVALID`: no device.
pub const CU_DEVICE_INVALID: i32 = -2;
