//! The driver calls that the hook makes on its own account.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use partita_abi::CuResult;
use partita_abi::types::{
    CU_MEM_LOCATION_TYPE_DEVICE, CUDA_KERNEL_NODE_PARAMS_v2, CUfunction_attribute, CUgraphNodeType,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUmemAllocationProp, CUuuid,
};
use partita_driver::callback::GetExportTable;

use crate::driver::real;

/// A name as a C string.
macro_rules! c_name {
    ($name:ident) => {
        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    };
}
pub(crate) use c_name;

/// Defines a structure of pointers to the driver's calls, and how they are resolved.
macro_rules! calls {
    ($(#[$about:meta])* struct $calls:ident;
     $($(#[$doc:meta])* $field:ident = $name:ident $(or $older:ident)?;)*) => {
        $(#[$about])*
        pub struct $calls {
            $($(#[$doc])* pub(super) $field: partita_abi::prototypes::$name,)*
        }

        impl $calls {
            /// Resolves them all.
            ///
            /// # Errors
            /// The name of the first one that this driver does not export.
            pub fn resolve() -> Result<Self, &'static core::ffi::CStr> {
                Ok(Self {
                    $($field: {
                        let name = $crate::driver::calls::c_name!($name);
                        let address = $crate::driver::real::symbol(name);
                        $(let address = if address.is_null() {
                            $crate::driver::real::symbol($crate::driver::calls::c_name!($older))
                        } else {
                            address
                        };)?
                        if address.is_null() {
                            return Err(name);
                        }
                        // SAFETY: the prototype of that name in cuda.h.
                        unsafe {
                            core::mem::transmute::<*mut core::ffi::c_void, partita_abi::prototypes::$name>(address)
                        }
                    },)*
                })
            }
        }
    };
}

pub(crate) use calls;

calls! {
    /// Entry points of the driver, resolved once when the process attaches.
    struct DriverCalls;
    device_count = cuDeviceGetCount;
    device_uuid = cuDeviceGetUuid_v2 or cuDeviceGetUuid;
    current_context = cuCtxGetCurrent;
    retain_primary = cuDevicePrimaryCtxRetain;
    release_primary = cuDevicePrimaryCtxRelease_v2;
    primary_state = cuDevicePrimaryCtxGetState;
    free = cuMemFree_v2;
    range = cuMemGetAddressRange_v2;
    close = cuIpcCloseMemHandle;
    limit = cuCtxGetLimit;
    function_attribute = cuFuncGetAttribute;
    kernel_function = cuKernelGetFunction;
    blocks_per_sm = cuOccupancyMaxActiveBlocksPerMultiprocessor;
}

calls! {
    /// Entry points for captures and for memory behind handles, complete from CUDA 11.3 on.
    struct NewerCalls;
    is_capturing = cuStreamIsCapturing;
    capture_info = cuStreamGetCaptureInfo_v2;
    exchange_mode = cuThreadExchangeStreamCaptureMode;
    properties = cuMemGetAllocationPropertiesFromHandle;
    release_handle = cuMemRelease;
}

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const CAPTURE_NONE: c_uint = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURE_ACTIVE: c_uint = 1;

/// Entry points that are resolved when the first of them is needed, and then kept.
pub struct Kept<T: 'static>(AtomicPtr<T>);

impl<T: Send + Sync> Kept<T> {
    /// None yet.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// The entry points; `None` if the driver lacks one of them.
    pub fn get(&self, resolve: impl FnOnce() -> Result<T, &'static CStr>) -> Option<&'static T> {
        let known = self.0.load(Ordering::Acquire);
        if known.is_null() {
            // Two threads that resolve at the same time leave one copy behind.
            let made = Box::leak(Box::new(resolve().ok()?));
            self.0.store(made, Ordering::Release);
            return Some(made);
        }
        // SAFETY: stored above, and never freed.
        Some(unsafe { &*known })
    }
}

fn newer() -> Option<&'static NewerCalls> {
    static CALLS: Kept<NewerCalls> = Kept::new();
    CALLS.get(NewerCalls::resolve)
}

calls! {
    /// Entry points that look into graphs, complete from CUDA 11.6 on.
    struct GraphCalls;
    nodes = cuGraphGetNodes;
    node_type = cuGraphNodeGetType;
    child = cuGraphChildGraphNodeGetGraph;
    // The structure of CUDA 10 and 11 is the first part of the later one.
    kernel_parameters = cuGraphKernelNodeGetParams_v2 or cuGraphKernelNodeGetParams;
    kernel_attribute = cuGraphKernelNodeGetAttribute;
    set_enabled = cuGraphNodeSetEnabled;
    get_enabled = cuGraphNodeGetEnabled;
    upload = cuGraphUpload;
    destroy = cuGraphDestroy;
    instantiate = cuGraphInstantiateWithFlags;
    destroy_executable = cuGraphExecDestroy;
}

calls! {
    /// Entry points that look into modules, complete from CUDA 11.0 on.
    struct ModuleCalls;
    of_function = cuFuncGetModule;
    global = cuModuleGetGlobal_v2;
}

impl ModuleCalls {
    /// The module of a `CUfunction`.
    pub fn of_function(&self, function: *mut c_void) -> Option<*mut c_void> {
        let mut module = core::ptr::null_mut();
        // SAFETY: a valid pointer; the driver checks the handle.
        unsafe { (self.of_function)(&mut module, function) }.ok().ok()?;
        Some(module)
    }

    /// Whether the module has a variable of that name.
    pub fn has_global(&self, module: *mut c_void, name: &CStr) -> bool {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: valid pointers and a module that the driver gave.
        unsafe { (self.global)(&mut address, &mut bytes, module, name.as_ptr()) }.is_ok()
    }
}

impl GraphCalls {
    /// The nodes of a graph.
    pub fn nodes(&self, graph: *mut c_void) -> Option<Vec<*mut c_void>> {
        let mut count = 0;
        // SAFETY: a valid pointer; null asks for the number alone.
        unsafe { (self.nodes)(graph, core::ptr::null_mut(), &mut count) }.ok().ok()?;
        if count == 0 {
            // The driver refuses an empty array.
            return Some(Vec::new());
        }
        let mut nodes = vec![core::ptr::null_mut(); count];
        // SAFETY: room for as many nodes as said.
        unsafe { (self.nodes)(graph, nodes.as_mut_ptr(), &mut count) }.ok().ok()?;
        nodes.truncate(count);
        Some(nodes)
    }

    /// The kind of a node.
    pub fn node_type(&self, node: *mut c_void) -> Option<CUgraphNodeType> {
        let mut kind = 0;
        // SAFETY: a valid pointer and a node that the driver gave.
        unsafe { (self.node_type)(node, &mut kind) }.ok().ok()?;
        Some(kind)
    }

    /// The graph embedded in a child graph node.
    pub fn child(&self, node: *mut c_void) -> Option<*mut c_void> {
        let mut graph = core::ptr::null_mut();
        // SAFETY: as above.
        unsafe { (self.child)(node, &mut graph) }.ok().ok()?;
        Some(graph)
    }

    /// The parameters of a kernel node.
    pub fn kernel_parameters(&self, node: *mut c_void) -> Option<CUDA_KERNEL_NODE_PARAMS_v2> {
        let mut parameters = core::mem::MaybeUninit::zeroed();
        // SAFETY: room for the structure of this version of the call, all of whose fields may be
        // zero.
        unsafe {
            (self.kernel_parameters)(node, parameters.as_mut_ptr()).ok().ok()?;
            Some(parameters.assume_init())
        }
    }

    /// An attribute of a kernel node.
    pub fn kernel_attribute(
        &self,
        node: *mut c_void,
        id: CUlaunchAttributeID,
    ) -> Option<CUlaunchAttributeValue> {
        let mut value = CUlaunchAttributeValue::default();
        // SAFETY: room for the union.
        unsafe { (self.kernel_attribute)(node, id, &mut value) }.ok().ok()?;
        Some(value)
    }

    /// Whether a kernel node of an executable is enabled from the program's point of view.
    ///
    /// # Errors
    /// Those of the driver; CUDA_ERROR_INVALID_VALUE for a node that is not of the executable's
    /// graph any more.
    pub fn is_enabled(&self, executable: *mut c_void, node: *mut c_void) -> Result<bool, CuResult> {
        let mut enabled = 0;
        // SAFETY: a valid pointer; the driver checks the handles.
        unsafe { (self.get_enabled)(executable, node, &mut enabled) }.ok().map(|()| enabled != 0)
    }

    /// Enables or disables a node of an executable from its next launch on.
    ///
    /// # Errors
    /// As [`GraphCalls::is_enabled`].
    pub fn set_enabled(&self, executable: *mut c_void, node: *mut c_void, on: bool) -> Result<(), CuResult> {
        // SAFETY: the driver checks the handles.
        unsafe { (self.set_enabled)(executable, node, c_uint::from(on)) }.ok()
    }

    /// Uploads an executable.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn upload(&self, executable: *mut c_void, stream: *mut c_void) -> Result<(), CuResult> {
        // SAFETY: the program's handles; the driver checks them.
        unsafe { (self.upload)(executable, stream) }.ok()
    }

    /// Makes an executable that the program is never given.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn instantiate(&self, graph: usize, flags: u64) -> Result<*mut c_void, CuResult> {
        let mut executable = core::ptr::null_mut();
        // SAFETY: a valid pointer, and a graph that the hook keeps.
        unsafe { (self.instantiate)(&mut executable, graph as *mut c_void, flags) }.ok()?;
        Ok(executable)
    }

    /// Destroys an executable that the program was never given.
    pub fn destroy_executable(&self, executable: *mut c_void) {
        // SAFETY: the driver has just made it, and no other code has its handle.
        let _ = unsafe { (self.destroy_executable)(executable) };
    }

    /// Destroys a graph that the program has destroyed.
    pub fn destroy(&self, graph: usize) {
        // SAFETY: the program gave the graph up, and the hook kept it until now.
        let _ = unsafe { (self.destroy)(graph as *mut c_void) };
    }
}

/// Sets which calls a stream capture forbids to this thread; returns the previous mode.
pub fn exchange_capture_mode(mode: c_uint) -> Option<c_uint> {
    let mut mode = mode;
    // SAFETY: a valid pointer.
    unsafe { (newer()?.exchange_mode)(&mut mode) }.ok().ok()?;
    Some(mode)
}

/// `cuGetExportTable`, if the driver exports it.
pub fn export_table() -> Option<GetExportTable> {
    let address = real::symbol(c"cuGetExportTable");
    // SAFETY: the prototype of that name in cuda.h.
    (!address.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, GetExportTable>(address) })
}

impl DriverCalls {
    /// The UUIDs of the GPUs that the process sees, by ordinal.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn gpu_uuids(&self) -> Result<Vec<[u8; 16]>, CuResult> {
        let mut count = 0;
        // SAFETY: a valid pointer.
        unsafe { (self.device_count)(&mut count) }.ok()?;
        let uuid = |device| {
            let mut uuid = CUuuid { bytes: [0; 16] };
            // SAFETY: as above.
            unsafe { (self.device_uuid)(&mut uuid, device) }.ok().map(|()| uuid.bytes)
        };
        (0..count).map(uuid).collect()
    }

    /// The calling thread's context as a number, 0 without one.
    pub fn current_context(&self) -> usize {
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        if unsafe { (self.current_context)(&mut context) }.is_ok() { context as usize } else { 0 }
    }

    /// Whether the device's primary context exists.
    pub fn primary_context_is_active(&self, device: c_int) -> bool {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: valid pointers.
        unsafe { (self.primary_state)(device, &mut flags, &mut active) }.is_ok() && active != 0
    }

    /// A context of the process: the calling thread's, or else the primary one of its first device.
    pub fn active_context(&self) -> Option<usize> {
        match self.current_context() {
            0 if self.primary_context_is_active(0) => self.primary_context(0),
            0 => None,
            current => Some(current),
        }
    }

    /// The handle of a primary context that exists.
    pub fn primary_context(&self, device: c_int) -> Option<usize> {
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer; the reference is given back at once.
        unsafe {
            (self.retain_primary)(&mut context, device).ok().ok()?;
            let _ = (self.release_primary)(device);
        }
        Some(context as usize)
    }

    /// The allocation that holds an address: its start and the bytes that were asked for.
    pub fn range_of(&self, address: u64) -> Option<(u64, u64)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: valid pointers; the driver checks the address.
        unsafe { (self.range)(&mut base, &mut bytes, address) }.ok().ok()?;
        Some((base, bytes as u64))
    }

    /// Whether no allocation starts at an address. Only an answer about the address counts, not,
    /// for example, a missing context.
    pub fn is_gone(&self, address: u64) -> bool {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: valid pointers; the driver checks the address.
        match unsafe { (self.range)(&mut base, &mut bytes, address) } {
            CuResult::SUCCESS => base != address,
            code => matches!(code, CuResult::INVALID_VALUE | CuResult::NOT_FOUND),
        }
    }

    /// Whether the calling thread's context was destroyed.
    pub fn context_is_gone(&self) -> bool {
        /// `CU_LIMIT_STACK_SIZE`.
        const LIMIT_STACK: c_uint = 0;
        let mut value = 0;
        // SAFETY: a valid pointer.
        unsafe { (self.limit)(&mut value, LIMIT_STACK) == CuResult::CONTEXT_IS_DESTROYED }
    }

    /// Closes memory of another process that the program never got.
    pub fn close(&self, pointer: u64) {
        // SAFETY: the driver has just opened it.
        let _ = unsafe { (self.close)(pointer) };
    }

    /// A limit of the current context.
    pub fn context_limit(&self, limit: c_uint) -> Option<u64> {
        let mut value = 0;
        // SAFETY: a valid pointer.
        unsafe { (self.limit)(&mut value, limit) }.ok().ok()?;
        Some(value as u64)
    }

    /// Whether a stream is being captured, or still has a capture that is invalid: either way
    /// nothing that is launched runs. The legacy stream cannot be captured: asking it would spoil
    /// the captures of others.
    pub fn is_capturing(&self, stream: *mut c_void) -> bool {
        /// `CU_STREAM_LEGACY`.
        const LEGACY: usize = 1;
        if stream.addr() <= LEGACY {
            return false;
        }
        let mut status = 0;
        // SAFETY: a valid pointer; the driver checks the stream.
        newer().is_some_and(|calls| unsafe { (calls.is_capturing)(stream, &mut status) }.is_ok())
            && status != CAPTURE_NONE
    }

    /// The graph that a stream is captured into.
    pub fn captured_into(&self, stream: *mut c_void) -> Option<*mut c_void> {
        let (mut status, mut id, mut graph) = (0, 0, core::ptr::null_mut());
        let (mut nodes, mut count) = (core::ptr::null(), 0);
        let ask = newer()?.capture_info;
        // SAFETY: valid pointers, and a stream that the program has just used.
        unsafe { ask(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count) }.ok().ok()?;
        (status == CAPTURE_ACTIVE && !graph.is_null()).then_some(graph)
    }

    /// The device of the memory behind a handle; `None` for memory of the host.
    pub fn device_of_handle(&self, handle: u64) -> Option<c_int> {
        let mut found = core::mem::MaybeUninit::<CUmemAllocationProp>::zeroed();
        // SAFETY: room for the structure, all of whose fields may be zero; the driver checks the
        // handle.
        let found = unsafe {
            (newer()?.properties)(found.as_mut_ptr(), handle).ok().ok()?;
            found.assume_init()
        };
        (found.location.kind == CU_MEM_LOCATION_TYPE_DEVICE).then_some(found.location.id)
    }

    /// Releases a handle that the program never got.
    pub fn release_handle(&self, handle: u64) {
        if let Some(calls) = newer() {
            // SAFETY: the driver has just given it.
            let _ = unsafe { (calls.release_handle)(handle) };
        }
    }

    /// Frees device memory that the program never got.
    pub fn free(&self, pointer: u64) {
        // SAFETY: the driver checks the pointer.
        let _ = unsafe { (self.free)(pointer) };
    }

    /// An attribute of a `CUfunction`, by the numbers of `CUfunction_attribute`.
    pub fn function_attribute(&self, function: *mut c_void, attribute: CUfunction_attribute) -> Option<u32> {
        let mut value = 0;
        // SAFETY: a valid pointer; the driver checks the handle.
        unsafe { (self.function_attribute)(&mut value, attribute, function) }.ok().ok()?;
        u32::try_from(value).ok()
    }

    /// The current context's function of a `CUkernel`.
    pub fn function_of_kernel(&self, kernel: *mut c_void) -> Option<*mut c_void> {
        let mut function = core::ptr::null_mut();
        // SAFETY: a valid pointer; the driver checks the handle.
        unsafe { (self.kernel_function)(&mut function, kernel) }.ok().ok()?;
        Some(function)
    }

    /// Blocks of a launch that one SM holds at once.
    pub fn blocks_per_sm(&self, function: *mut c_void, threads: u32, shared_bytes: u32) -> Option<u32> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).ok()?;
        // SAFETY: a valid pointer; the driver checks the handle.
        unsafe { (self.blocks_per_sm)(&mut blocks, function, threads, shared_bytes as usize) }.ok().ok()?;
        u32::try_from(blocks).ok()
    }
}
