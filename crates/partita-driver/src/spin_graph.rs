//! An executable graph of kernels that spin, for measurements.

use alloc::format;
use alloc::vec::Vec;
use core::ffi::c_void;

use partita_abi::kernels;
use partita_abi::types::{CUDA_KERNEL_NODE_PARAMS_v1, CUfunction};

use crate::error::Error;
use crate::gpu::Gpu;

/// An executable graph of spinning kernels of one block and one warp. Launched on the GPU's own
/// stream.
pub struct SpinGraph<'g, 'a> {
    gpu: &'g Gpu<'a>,
    graph: *mut c_void,
    exec: *mut c_void,
}

impl<'g, 'a> SpinGraph<'g, 'a> {
    /// Creates a graph with as many kernels as `after` has entries, in that order: each follows the
    /// earlier kernel with that number, or none.
    ///
    /// # Errors
    /// [`Error::Refused`] for a kernel that would follow a later one; those of the driver.
    pub fn new(gpu: &'g Gpu<'a>, kernel_ns: u64, after: &[Option<usize>]) -> Result<Self, Error> {
        let (cuda, none) = (gpu.cuda(), core::ptr::null_mut());
        let mut function = none;
        // SAFETY: a valid pointer, module and name.
        unsafe {
            cuda.module_get_function(&mut function, gpu.place(gpu.stream()).module, kernels::SPIN.as_ptr())?
        };
        let mut made = Self { gpu, graph: none, exec: none };
        let mut nodes: Vec<*mut c_void> = Vec::with_capacity(after.len());
        let mut spin_ns = kernel_ns;
        let mut arguments = [(&raw mut spin_ns).cast::<c_void>()];
        let parameters = CUDA_KERNEL_NODE_PARAMS_v1 {
            func: CUfunction(function),
            grid_dim: [1; 3],
            block_dim: [32, 1, 1],
            shared_mem_bytes: 0,
            kernel_params: arguments.as_mut_ptr(),
            extra: none.cast(),
        };
        // SAFETY: valid pointers; the kernel takes a duration, which is copied when a node is
        // added.
        unsafe {
            cuda.graph_create(&mut made.graph, 0)?;
            for (number, after) in after.iter().enumerate() {
                let before = match after {
                    None => None,
                    Some(at) => Some(nodes.get(*at).ok_or_else(|| {
                        Error::Refused(format!(
                            "kernel {number} cannot follow kernel {at}, which comes later"
                        ))
                    })?),
                };
                let mut handle = none;
                let from = before.map_or(core::ptr::null(), core::ptr::from_ref);
                cuda.graph_add_kernel_node(
                    &mut handle,
                    made.graph,
                    from,
                    before.iter().count(),
                    &parameters,
                )?;
                nodes.push(handle);
            }
            cuda.graph_instantiate(&mut made.exec, made.graph, 0)?;
        }
        Ok(made)
    }

    /// Launches it, without waiting.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn launch(&self) -> Result<(), Error> {
        // SAFETY: live handles.
        unsafe { self.gpu.cuda().graph_launch(self.exec, self.gpu.stream().handle()) }
    }
}

impl Drop for SpinGraph<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: made by us and destroyed once; the driver lets launched work finish. Failure
        // means that the context is gone.
        unsafe {
            if !self.exec.is_null() {
                let _ = self.gpu.cuda().graph_exec_destroy(self.exec);
            }
            if !self.graph.is_null() {
                let _ = self.gpu.cuda().graph_destroy(self.graph);
            }
        }
    }
}
