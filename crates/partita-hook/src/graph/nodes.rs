//! The kernels of a graph, embedded graphs and the bodies of conditional nodes
//! included.

use alloc::vec::Vec;
use core::ffi::c_void;

use hashbrown::HashMap;
use partita_abi::types::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CUDA_KERNEL_NODE_PARAMS_v2,
};
use partita_ledger::mutex::Mutex;

use crate::account::graph_gpus::{self, Gpus};
use crate::account::tenant::Tenant;
use crate::graph::edits::DEPTH_MAX;
use crate::graph::executables::KernelNode;
use crate::launch::misfit::{Shape, volume};
use crate::sys::fork::{in_child, renew};

/// Bodies of the conditional nodes that the program has made: the driver reports them only to the
/// call that adds the node.
static BODIES: Mutex<Option<HashMap<usize, Vec<usize>>>> = Mutex::new(None);

/// Records the bodies of a new conditional node.
pub fn note_bodies(node: usize, bodies: Vec<usize>) {
    BODIES.lock().get_or_insert_default().insert(node, bodies);
}

/// The bodies of a conditional node; `None` if the hook has not seen its creation.
pub fn bodies(node: usize) -> Option<Vec<usize>> {
    BODIES.lock().as_ref()?.get(&node).cloned()
}

// Forgets them in a child of `fork`.
in_child! {
    renew(&BODIES, None);
}

/// Every kernel node of a graph, or `None` if not all of them can be found: a
/// conditional node that came by another way (a clone), or an answer of the driver
/// that makes no sense.
pub fn kernels(tenant: &Tenant, graph: usize) -> Option<Vec<KernelNode>> {
    let mut found = Vec::new();
    collect(tenant, graph, DEPTH_MAX, &mut found)?;
    Some(found)
}

/// The GPUs of a graph's kernels, embedded graphs and bodies included, as far as they are noted.
pub fn gpus(tenant: &Tenant, graph: usize) -> Gpus {
    gpus_within(tenant, graph, DEPTH_MAX).unwrap_or(0)
}

fn gpus_within(tenant: &Tenant, graph: usize, depth: u32) -> Option<Gpus> {
    let driver = tenant.graph_calls()?;
    let mut gpus = graph_gpus::of(graph);
    for node in driver.nodes(graph as *mut c_void)? {
        let parts = match driver.node_type(node)? {
            CU_GRAPH_NODE_TYPE_GRAPH => alloc::vec![driver.child(node)? as usize],
            CU_GRAPH_NODE_TYPE_CONDITIONAL => bodies(node as usize)?,
            _ => continue,
        };
        let depth = depth.checked_sub(1)?;
        gpus |=
            parts.into_iter().filter_map(|part| gpus_within(tenant, part, depth)).fold(0, |all, of| all | of);
    }
    Some(gpus)
}

fn collect(tenant: &Tenant, graph: usize, depth: u32, found: &mut Vec<KernelNode>) -> Option<()> {
    if depth == 0 {
        return None;
    }
    let driver = tenant.graph_calls()?;
    for node in driver.nodes(graph as *mut c_void)? {
        match driver.node_type(node)? {
            CU_GRAPH_NODE_TYPE_KERNEL => found.push(kernel(tenant, node)?),
            CU_GRAPH_NODE_TYPE_GRAPH => {
                collect(tenant, driver.child(node)? as usize, depth - 1, found)?;
            }
            CU_GRAPH_NODE_TYPE_CONDITIONAL => {
                for body in bodies(node as usize)? {
                    collect(tenant, body, depth - 1, found)?;
                }
            }
            _ => {}
        }
    }
    Some(())
}

/// What a kernel node asks for, as it stands in its graph.
fn kernel(tenant: &Tenant, node: *mut c_void) -> Option<KernelNode> {
    let parameters = tenant.graph_calls()?.kernel_parameters(node)?;
    kernel_with(tenant, node, &parameters)
}

/// What a kernel node asks for with other parameters; its attributes stay.
pub fn kernel_with(
    tenant: &Tenant,
    node: *mut c_void,
    parameters: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> Option<KernelNode> {
    let driver = tenant.graph_calls()?;
    let attribute = |id| driver.kernel_attribute(node, id);
    let function = if parameters.func.0.is_null() { parameters.kern.0 } else { parameters.func.0 };
    let shape = Shape {
        function,
        grid_blocks: volume(parameters.grid_dim),
        block_threads: volume(parameters.block_dim),
        shared_bytes: parameters.shared_mem_bytes,
        cluster_blocks: attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            .map_or(0, |value| volume(value.as_dim3())),
        cooperative: attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).is_some_and(|value| value.as_i32() != 0),
    };
    Some(KernelNode { node: node as usize, needs: shape.needs(tenant), shape, misfit: false, owed: false })
}
