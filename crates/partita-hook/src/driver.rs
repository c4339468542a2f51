//! The driver calls that the hook makes on its own account.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::types::{
    CUDA_KERNEL_NODE_PARAMS_v2, CUgraphNodeType, CUlaunchAttributeID, CUlaunchAttributeValue, CUuuid,
};
use partita_driver::callback::GetExportTable;

use crate::real;

macro_rules! calls {
    ($(#[$about:meta])* struct $calls:ident;
     $($(#[$doc:meta])* $field:ident = $name:literal $(or $older:literal)?: fn($($type:ty),*);)*) => {
        $(#[$about])*
        pub struct $calls {
            $($(#[$doc])* $field: unsafe extern "C" fn($($type),*) -> CuResult,)*
        }

        impl $calls {
            /// Resolves them all.
            ///
            /// # Errors
            /// The name of the first one that this driver does not export.
            pub fn resolve() -> Result<Self, &'static core::ffi::CStr> {
                Ok(Self {
                    $($field: {
                        let address = $crate::real::symbol($name);
                        $(let address = if address.is_null() { $crate::real::symbol($older) } else { address };)?
                        if address.is_null() {
                            return Err($name);
                        }
                        // SAFETY: the prototype of that name in cuda.h.
                        unsafe {
                            core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn($($type),*) -> CuResult>(
                                address,
                            )
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
    device_count = c"cuDeviceGetCount": fn(*mut c_int);
    device_uuid = c"cuDeviceGetUuid_v2" or c"cuDeviceGetUuid": fn(*mut CUuuid, c_int);
    current_context = c"cuCtxGetCurrent": fn(*mut *mut c_void);
    retain_primary = c"cuDevicePrimaryCtxRetain": fn(*mut *mut c_void, c_int);
    release_primary = c"cuDevicePrimaryCtxRelease_v2": fn(c_int);
    primary_state = c"cuDevicePrimaryCtxGetState": fn(c_int, *mut c_uint, *mut c_int);
    free = c"cuMemFree_v2": fn(u64);
    function_attribute = c"cuFuncGetAttribute": fn(*mut c_int, c_int, *mut c_void);
    kernel_function = c"cuKernelGetFunction": fn(*mut *mut c_void, *mut c_void);
    blocks_per_sm = c"cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut c_int, *mut c_void, c_int, usize);
}

calls! {
    /// Entry points that look into graphs, complete from CUDA 11.6 on.
    struct GraphCalls;
    nodes = c"cuGraphGetNodes": fn(*mut c_void, *mut *mut c_void, *mut usize);
    node_type = c"cuGraphNodeGetType": fn(*mut c_void, *mut CUgraphNodeType);
    child = c"cuGraphChildGraphNodeGetGraph": fn(*mut c_void, *mut *mut c_void);
    // The structure of CUDA 10 and 11 is the first part of the later one.
    kernel_parameters = c"cuGraphKernelNodeGetParams_v2" or c"cuGraphKernelNodeGetParams": fn(*mut c_void, *mut CUDA_KERNEL_NODE_PARAMS_v2);
    kernel_attribute = c"cuGraphKernelNodeGetAttribute": fn(*mut c_void, CUlaunchAttributeID, *mut CUlaunchAttributeValue);
    set_enabled = c"cuGraphNodeSetEnabled": fn(*mut c_void, *mut c_void, c_uint);
    get_enabled = c"cuGraphNodeGetEnabled": fn(*mut c_void, *mut c_void, *mut c_uint);
    upload = c"cuGraphUpload": fn(*mut c_void, *mut c_void);
    destroy = c"cuGraphDestroy": fn(*mut c_void);
    destroy_executable = c"cuGraphExecDestroy": fn(*mut c_void);
}

calls! {
    /// Entry points that look into modules, complete from CUDA 11.0 on.
    struct ModuleCalls;
    of_function = c"cuFuncGetModule": fn(*mut *mut c_void, *mut c_void);
    global = c"cuModuleGetGlobal_v2": fn(*mut u64, *mut usize, *mut c_void, *const c_char);
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
        let mut nodes = vec![core::ptr::null_mut(); count];
        // SAFETY: room for as many nodes as said.
        unsafe { (self.nodes)(graph, nodes.as_mut_ptr(), &mut count) }.ok().ok()?;
        nodes.truncate(count);
        Some(nodes)
    }

    /// What a node does.
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
        // SAFETY: room for the structure of this version of the call, all of whose fields may be zero.
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

    /// Whether a kernel node of an executable runs, as far as the program is concerned.
    ///
    /// # Errors
    /// The driver's; CUDA_ERROR_INVALID_VALUE for a node that is not of the executable's graph any more.
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
    /// The driver's.
    pub fn upload(&self, executable: *mut c_void, stream: *mut c_void) -> Result<(), CuResult> {
        // SAFETY: the program's handles; the driver checks them.
        unsafe { (self.upload)(executable, stream) }.ok()
    }

    /// Destroys an executable that the program was never given.
    pub fn destroy_executable(&self, executable: *mut c_void) {
        // SAFETY: the driver has just made it, and nobody else knows it.
        let _ = unsafe { (self.destroy_executable)(executable) };
    }

    /// Destroys a graph that the program has destroyed.
    pub fn destroy(&self, graph: usize) {
        // SAFETY: the program gave the graph up, and the hook kept it until now.
        let _ = unsafe { (self.destroy)(graph as *mut c_void) };
    }
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
    /// The driver's.
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

    /// The calling thread's context as a number, 0 for none.
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

    /// Frees device memory that the program was never told of.
    pub fn free(&self, pointer: u64) {
        // SAFETY: the driver checks the pointer.
        let _ = unsafe { (self.free)(pointer) };
    }

    /// A function's attribute, by the numbers of `CUfunction_attribute`.
    ///
    /// `function` is a `CUfunction`, or a `CUkernel`, which launches accept too.
    pub fn function_attribute(&self, function: *mut c_void, attribute: c_int) -> Option<u32> {
        let mut value = 0;
        // SAFETY: a valid pointer; the driver checks the handle.
        if unsafe { (self.function_attribute)(&mut value, attribute, function) }.is_err() {
            let of_kernel = self.function_of_kernel(function)?;
            // SAFETY: as above.
            unsafe { (self.function_attribute)(&mut value, attribute, of_kernel) }.ok().ok()?;
        }
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
