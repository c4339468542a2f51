//! The driver library of the machine, or of the simulator, opened at run time as programs do.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use partita_abi::types::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS_v1, CUgraphEdgeData, CUgraphExecUpdateResultInfo, CUgraphNodeParams, CUhostFn,
    CUlaunchAttributeValue, CUlaunchConfig,
};

/// A result code as the driver gives it.
pub type Code = u32;
/// A handle, or another pointer that only the driver follows.
pub type Handle = usize;

macro_rules! name {
    ($($part:literal),*) => {
        match CStr::from_bytes_with_nul(concat!($($part,)* "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    };
}

macro_rules! calls {
    ($(fn $call:ident = $name:literal($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// Addresses of the driver's calls.
        pub struct Driver { $($call: *mut c_void,)* }

        impl Driver {
            /// Opens `libcuda.so.1`. A call that this driver lacks answers with
            /// CUDA_ERROR_NOT_SUPPORTED. `per_thread`: the entry points to which the null stream is
            /// the thread's own, where there are such.
            pub fn open(per_thread: bool) -> Self {
                // SAFETY: a valid name; the constructors of the library are what the program wants.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                assert!(!library.is_null(), "libcuda.so.1 cannot be opened");
                let address = |name: &CStr, of_thread: &CStr| {
                    let [plain, of_thread] = [name, of_thread].map(|name| {
                        // SAFETY: an open library and a valid name.
                        unsafe { libc::dlsym(library, name.as_ptr()) }
                    });
                    if per_thread && !of_thread.is_null() { of_thread } else { plain }
                };
                Self { $($call: address(name!($name), name!($name, "_ptsz")),)* }
            }

            $(
                /// Calls the driver's entry point of that name.
                ///
                /// # Safety
                /// As the driver documents for it.
                #[allow(clippy::too_many_arguments, reason = "the driver's prototype")]
                pub unsafe fn $call(&self, $($argument: $type),*) -> Code {
                    const NOT_SUPPORTED: Code = 801;
                    if self.$call.is_null() {
                        return NOT_SUPPORTED;
                    }
                    // SAFETY: the address has that name, whose prototype in cuda.h this is; the
                    // rest is the caller's word.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Code>(self.$call)(
                            $($argument),*
                        )
                    }
                }
            )*
        }
    };
}

calls! {
    fn init = "cuInit"(flags: c_uint);
    fn context_retain = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: c_int);
    fn context_set = "cuCtxSetCurrent"(context: Handle);
    fn context_synchronize = "cuCtxSynchronize"();
    fn module_load = "cuModuleLoadData"(module: *mut Handle, image: *const c_void);
    fn module_function = "cuModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    fn function_load = "cuFuncLoad"(function: Handle);

    fn memory_alloc = "cuMemAlloc_v2"(address: *mut u64, bytes: usize);
    fn memory_free = "cuMemFree_v2"(address: u64);
    fn memory_alloc_host = "cuMemAllocHost_v2"(address: *mut Handle, bytes: usize);
    fn memory_alloc_async = "cuMemAllocAsync"(address: *mut u64, bytes: usize, stream: Handle);
    fn memory_free_async = "cuMemFreeAsync"(address: u64, stream: Handle);
    fn graph_memory_trim = "cuDeviceGraphMemTrim"(device: c_int);
    fn fill = "cuMemsetD32_v2"(address: u64, value: c_uint, count: usize);
    fn fill_async = "cuMemsetD32Async"(address: u64, value: c_uint, count: usize, stream: Handle);
    fn copy_async = "cuMemcpyAsync"(to: u64, from: u64, bytes: usize, stream: Handle);
    fn copy_to_host = "cuMemcpyDtoH_v2"(to: *mut c_void, from: u64, bytes: usize);
    fn copy_to_device = "cuMemcpyHtoD_v2"(to: u64, from: *const c_void, bytes: usize);

    fn stream_create = "cuStreamCreate"(stream: *mut Handle, flags: c_uint);
    fn stream_create_with_priority = "cuStreamCreateWithPriority"(stream: *mut Handle, flags: c_uint, priority: c_int);
    fn stream_destroy = "cuStreamDestroy_v2"(stream: Handle);
    fn stream_synchronize = "cuStreamSynchronize"(stream: Handle);
    fn stream_query = "cuStreamQuery"(stream: Handle);
    fn stream_wait_event = "cuStreamWaitEvent"(stream: Handle, event: Handle, flags: c_uint);
    fn stream_write_value = "cuStreamWriteValue32_v2"(stream: Handle, address: u64, value: c_uint, flags: c_uint);
    fn launch_kernel = "cuLaunchKernel"(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn launch_cooperative = "cuLaunchCooperativeKernel"(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, parameters: *mut *mut c_void,
    );
    fn launch_ex = "cuLaunchKernelEx"(
        config: *const CUlaunchConfig, function: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn launch_host = "cuLaunchHostFunc"(stream: Handle, function: CUhostFn, data: *mut c_void);
    fn event_create = "cuEventCreate"(event: *mut Handle, flags: c_uint);
    fn event_destroy = "cuEventDestroy_v2"(event: Handle);
    fn event_record = "cuEventRecord"(event: Handle, stream: Handle);
    fn event_record_with_flags = "cuEventRecordWithFlags"(event: Handle, stream: Handle, flags: c_uint);
    fn event_query = "cuEventQuery"(event: Handle);
    fn event_synchronize = "cuEventSynchronize"(event: Handle);

    fn capture_begin_v1 = "cuStreamBeginCapture"(stream: Handle);
    fn capture_begin = "cuStreamBeginCapture_v2"(stream: Handle, mode: c_uint);
    fn capture_begin_to_graph = "cuStreamBeginCaptureToGraph"(
        stream: Handle, graph: Handle, dependencies: *const Handle, edges: *const CUgraphEdgeData, count: usize,
        mode: c_uint,
    );
    fn capture_end = "cuStreamEndCapture"(stream: Handle, graph: *mut Handle);
    fn capture_status = "cuStreamIsCapturing"(stream: Handle, status: *mut c_uint);
    fn capture_info = "cuStreamGetCaptureInfo_v2"(
        stream: Handle, status: *mut c_uint, id: *mut u64, graph: *mut Handle, dependencies: *mut *const Handle,
        count: *mut usize,
    );
    fn capture_update_dependencies = "cuStreamUpdateCaptureDependencies"(
        stream: Handle, dependencies: *mut Handle, count: usize, flags: c_uint,
    );
    fn capture_exchange_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_uint);

    fn graph_create = "cuGraphCreate"(graph: *mut Handle, flags: c_uint);
    fn graph_destroy = "cuGraphDestroy"(graph: Handle);
    fn graph_clone = "cuGraphClone"(copy: *mut Handle, graph: Handle);
    fn graph_nodes = "cuGraphGetNodes"(graph: Handle, nodes: *mut Handle, count: *mut usize);
    fn graph_roots = "cuGraphGetRootNodes"(graph: Handle, nodes: *mut Handle, count: *mut usize);
    fn graph_edges = "cuGraphGetEdges"(graph: Handle, from: *mut Handle, to: *mut Handle, count: *mut usize);
    fn graph_edges_v2 = "cuGraphGetEdges_v2"(
        graph: Handle, from: *mut Handle, to: *mut Handle, edges: *mut CUgraphEdgeData, count: *mut usize,
    );
    fn graph_add_kernel_v1 = "cuGraphAddKernelNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    );
    fn graph_add_kernel = "cuGraphAddKernelNode_v2"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    fn graph_add_fill = "cuGraphAddMemsetNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
        parameters: *const CUDA_MEMSET_NODE_PARAMS_v1, context: Handle,
    );
    fn graph_add_copy = "cuGraphAddMemcpyNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize, parameters: *const CUDA_MEMCPY3D,
        context: Handle,
    );
    fn graph_add_host = "cuGraphAddHostNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
        parameters: *const CUDA_HOST_NODE_PARAMS,
    );
    fn graph_add_empty = "cuGraphAddEmptyNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
    );
    fn graph_add_child = "cuGraphAddChildGraphNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize, child: Handle,
    );
    fn graph_add_record = "cuGraphAddEventRecordNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize, event: Handle,
    );
    fn graph_add_wait = "cuGraphAddEventWaitNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize, event: Handle,
    );
    fn graph_add_alloc = "cuGraphAddMemAllocNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
        parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    );
    fn graph_add_free = "cuGraphAddMemFreeNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize, address: u64,
    );
    fn graph_add_batch = "cuGraphAddBatchMemOpNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
        parameters: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
    );
    fn graph_add_node = "cuGraphAddNode"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize,
        parameters: *mut CUgraphNodeParams,
    );
    fn graph_add_node_v2 = "cuGraphAddNode_v2"(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, edges: *const CUgraphEdgeData, count: usize,
        parameters: *mut CUgraphNodeParams,
    );
    fn conditional_create = "cuGraphConditionalHandleCreate"(
        handle: *mut u64, graph: Handle, context: Handle, value: c_uint, flags: c_uint,
    );
    fn graph_connect = "cuGraphAddDependencies"(
        graph: Handle, from: *const Handle, to: *const Handle, count: usize,
    );
    fn graph_disconnect = "cuGraphRemoveDependencies"(
        graph: Handle, from: *const Handle, to: *const Handle, count: usize,
    );

    fn node_destroy = "cuGraphDestroyNode"(node: Handle);
    fn node_type = "cuGraphNodeGetType"(node: Handle, kind: *mut c_uint);
    fn node_dependencies = "cuGraphNodeGetDependencies"(node: Handle, nodes: *mut Handle, count: *mut usize);
    fn node_dependents = "cuGraphNodeGetDependentNodes"(node: Handle, nodes: *mut Handle, count: *mut usize);
    fn node_find_in_clone = "cuGraphNodeFindInClone"(found: *mut Handle, node: Handle, copy: Handle);
    fn node_child = "cuGraphChildGraphNodeGetGraph"(node: Handle, graph: *mut Handle);
    fn node_kernel = "cuGraphKernelNodeGetParams_v2"(node: Handle, parameters: *mut CUDA_KERNEL_NODE_PARAMS_v2);
    fn node_set_kernel_v1 = "cuGraphKernelNodeSetParams"(
        node: Handle, parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    );
    fn node_set_kernel = "cuGraphKernelNodeSetParams_v2"(node: Handle, parameters: *const CUDA_KERNEL_NODE_PARAMS_v2);
    fn node_kernel_attribute = "cuGraphKernelNodeGetAttribute"(
        node: Handle, attribute: c_uint, value: *mut CUlaunchAttributeValue,
    );
    fn node_set_kernel_attribute = "cuGraphKernelNodeSetAttribute"(
        node: Handle, attribute: c_uint, value: *const CUlaunchAttributeValue,
    );
    fn node_fill = "cuGraphMemsetNodeGetParams"(node: Handle, parameters: *mut CUDA_MEMSET_NODE_PARAMS_v1);
    fn node_set_fill = "cuGraphMemsetNodeSetParams"(node: Handle, parameters: *const CUDA_MEMSET_NODE_PARAMS_v1);
    fn node_set = "cuGraphNodeSetParams"(node: Handle, parameters: *mut CUgraphNodeParams);

    fn instantiate_v1 = "cuGraphInstantiate"(
        executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, bytes: usize,
    );
    fn instantiate = "cuGraphInstantiate_v2"(
        executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, bytes: usize,
    );
    fn instantiate_with_flags = "cuGraphInstantiateWithFlags"(executable: *mut Handle, graph: Handle, flags: u64);
    fn instantiate_with_params = "cuGraphInstantiateWithParams"(
        executable: *mut Handle, graph: Handle, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    );
    fn exec_destroy = "cuGraphExecDestroy"(executable: Handle);
    fn exec_upload = "cuGraphUpload"(executable: Handle, stream: Handle);
    fn exec_launch = "cuGraphLaunch"(executable: Handle, stream: Handle);
    fn exec_flags = "cuGraphExecGetFlags"(executable: Handle, flags: *mut u64);
    fn exec_update = "cuGraphExecUpdate"(
        executable: Handle, graph: Handle, node: *mut Handle, result: *mut c_uint,
    );
    fn exec_update_v2 = "cuGraphExecUpdate_v2"(
        executable: Handle, graph: Handle, result: *mut CUgraphExecUpdateResultInfo,
    );
    fn exec_enable = "cuGraphNodeSetEnabled"(executable: Handle, node: Handle, enabled: c_uint);
    fn exec_enabled = "cuGraphNodeGetEnabled"(executable: Handle, node: Handle, enabled: *mut c_uint);
    fn exec_set_kernel_v1 = "cuGraphExecKernelNodeSetParams"(
        executable: Handle, node: Handle, parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    );
    fn exec_set_kernel = "cuGraphExecKernelNodeSetParams_v2"(
        executable: Handle, node: Handle, parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    fn exec_set_fill = "cuGraphExecMemsetNodeSetParams"(
        executable: Handle, node: Handle, parameters: *const CUDA_MEMSET_NODE_PARAMS_v1, context: Handle,
    );
    fn exec_set_copy = "cuGraphExecMemcpyNodeSetParams"(
        executable: Handle, node: Handle, parameters: *const CUDA_MEMCPY3D, context: Handle,
    );
    fn exec_set_host = "cuGraphExecHostNodeSetParams"(
        executable: Handle, node: Handle, parameters: *const CUDA_HOST_NODE_PARAMS,
    );
    fn exec_set_child = "cuGraphExecChildGraphNodeSetParams"(executable: Handle, node: Handle, child: Handle);
    fn exec_set_record = "cuGraphExecEventRecordNodeSetEvent"(executable: Handle, node: Handle, event: Handle);
    fn exec_set_wait = "cuGraphExecEventWaitNodeSetEvent"(executable: Handle, node: Handle, event: Handle);
    fn exec_set_node = "cuGraphExecNodeSetParams"(
        executable: Handle, node: Handle, parameters: *mut CUgraphNodeParams,
    );

    fn object_create = "cuUserObjectCreate"(
        object: *mut Handle, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint,
    );
    fn object_release = "cuUserObjectRelease"(object: Handle, count: c_uint);
    fn object_retain_in_graph = "cuGraphRetainUserObject"(graph: Handle, object: Handle, count: c_uint, flags: c_uint);
}

// SAFETY: addresses of functions that may be called from any thread.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}
