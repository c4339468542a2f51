//! A graph of counting kernels, instantiated once and updated for each mask.

use alloc::vec::Vec;
use core::ffi::c_void;

use partita_abi::types::{CUDA_KERNEL_NODE_PARAMS_v1, CUfunction};

use crate::cuda::Cuda;
use crate::error::Error;
use crate::stream::StreamRef;

/// One node: blocks, threads of a block, and the address of its counters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub blocks: u32,
    pub threads: u32,
    pub counters: u64,
    pub sms: u32,
}

/// An executable graph whose nodes run concurrently. The driver gets a node's mask when the node is
/// first uploaded, and again after the node was disabled and enabled (measured:
/// `docs/hardware.md`).
pub(super) struct CountGraph<'a> {
    cuda: &'a Cuda,
    graph: *mut c_void,
    exec: *mut c_void,
    nodes: Vec<*mut c_void>,
    is_uploaded: bool,
}

impl<'a> CountGraph<'a> {
    /// Creates the graph and its executable.
    ///
    /// # Errors
    /// Those of the driver; [`Error::MissingSymbol`] if it has no graphs, or cannot disable their
    /// nodes.
    ///
    /// # Safety
    /// `function` is `partita_count` as loaded in the current context; the counters stay allocated
    /// until the graph is dropped and its work done.
    pub unsafe fn new(cuda: &'a Cuda, function: *mut c_void, nodes: &[Node]) -> Result<Self, Error> {
        let none = core::ptr::null_mut();
        let mut made = Self { cuda, graph: none, exec: none, nodes: Vec::new(), is_uploaded: false };
        // SAFETY: valid pointers; the parameters are copied when a node is added.
        unsafe {
            cuda.graph_create(&mut made.graph, 0)?;
            for node in nodes {
                let (mut counters, mut sms, mut handle) = (node.counters, node.sms, none);
                let mut arguments = [(&raw mut counters).cast::<c_void>(), (&raw mut sms).cast()];
                let parameters = CUDA_KERNEL_NODE_PARAMS_v1 {
                    func: CUfunction(function),
                    grid_dim: [node.blocks, 1, 1],
                    block_dim: [node.threads, 1, 1],
                    shared_mem_bytes: 0,
                    kernel_params: arguments.as_mut_ptr(),
                    extra: none.cast(),
                };
                cuda.graph_add_kernel_node(&mut handle, made.graph, core::ptr::null(), 0, &parameters)?;
                made.nodes.push(handle);
            }
            cuda.graph_instantiate(&mut made.exec, made.graph, 0)?;
            // A driver that cannot do this would keep the first mask.
            made.arm()?;
        }
        Ok(made)
    }

    fn arm(&self) -> Result<(), Error> {
        for node in &self.nodes {
            // SAFETY: a live executable and a node of its graph, which lives as long.
            unsafe {
                self.cuda.graph_node_set_enabled(self.exec, *node, 0)?;
                self.cuda.graph_node_set_enabled(self.exec, *node, 1)?;
            }
        }
        Ok(())
    }

    /// Launches all nodes with the current mask.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn launch(&mut self, stream: StreamRef<'_>) -> Result<(), Error> {
        if self.is_uploaded {
            self.arm()?;
        }
        self.is_uploaded = true;
        // SAFETY: live handles.
        unsafe { self.cuda.graph_launch(self.exec, stream.handle()) }
    }
}

impl Drop for CountGraph<'_> {
    fn drop(&mut self) {
        // SAFETY: made by us and destroyed once; the driver lets launched work finish. Failure
        // means that the context is gone.
        unsafe {
            if !self.exec.is_null() {
                let _ = self.cuda.graph_exec_destroy(self.exec);
            }
            if !self.graph.is_null() {
                let _ = self.cuda.graph_destroy(self.graph);
            }
        }
    }
}
