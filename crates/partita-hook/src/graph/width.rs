//! How many kernels of a graph run at once.

use alloc::vec::Vec;
use core::ffi::c_void;

use hashbrown::HashMap;
use partita_abi::types::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL,
};
use partita_core::task_slots;

use crate::account::tenant::Tenant;
use crate::driver::edges::edges;
use crate::graph::nodes;

/// How deep graphs may lie in one another before the hook gives up.
const DEPTH_MAX: u32 = 64;

/// A bound on the kernels of a graph that run at once, those of embedded graphs and of the bodies
/// of conditional nodes included. None where the driver does not tell all of its nodes.
pub fn of(tenant: &Tenant, graph: usize) -> Option<u32> {
    within(tenant, graph, DEPTH_MAX)
}

fn within(tenant: &Tenant, graph: usize, depth: u32) -> Option<u32> {
    let depth = depth.checked_sub(1)?;
    let driver = tenant.graph_calls()?;
    let graph = core::ptr::with_exposed_provenance_mut::<c_void>(graph);
    let nodes = driver.nodes(graph)?;
    let kernels = |&node: &*mut c_void| match driver.node_type(node)? {
        CU_GRAPH_NODE_TYPE_KERNEL => Some(1),
        CU_GRAPH_NODE_TYPE_GRAPH => within(tenant, driver.child(node)? as usize, depth),
        // One body runs at a time.
        CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            let bodies = nodes::bodies(node as usize)?;
            bodies
                .into_iter()
                .map(|body| within(tenant, body, depth))
                .try_fold(0, |most, of| Some(of?.max(most)))
        }
        _ => Some(0),
    };
    let kernels: Vec<u32> = nodes.iter().map(kernels).collect::<Option<_>>()?;
    if kernels.len() == 1 {
        return kernels.first().copied();
    }
    let number: HashMap<*mut c_void, usize> =
        nodes.iter().enumerate().map(|(at, &node)| (node, at)).collect();
    let ends = edges(graph)?.into_iter().map(|edge| Some((*number.get(&edge.from)?, *number.get(&edge.to)?)));
    task_slots::width(&kernels, &ends.collect::<Option<Vec<_>>>()?)
}
