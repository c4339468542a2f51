//! Waits inside long graphs of low priority.
//!
//! A graph is one launch, however long it is. So where a tenant of low priority makes an executable
//! of a graph, nodes that wait for the lanes are put into it first, as far apart as waits in a
//! stream are, and taken out again right after: the executable keeps them, and the program's graph
//! is what it was. Handles of nodes stay good for every call on the executable, and a later
//! `cuGraphExecUpdate`, for which the same is done with the other graph, finds the same shape.
//!
//! # How
//! A new node comes behind all that the one that is to wait follows, and that one behind the new
//! node. Where the two are joined by a single edge, and nothing else follows the first, the wait
//! takes the edge's place, and the edge comes back before the wait goes: no node has another edge
//! at that end, so every list of edges is in its order again. Elsewhere the wait is only added
//! beside the edges. The driver gives a node that is made late and stands beside an edge another of
//! its internal streams than that edge's two ends, and nodes in one such stream wait for each
//! other. So waits are made level by level too, not one branch after the other: on an H200, before
//! every eighth kernel of 20 µs, four branches lose 4 % so, and 47 % with waits beside the edges,
//! branch by branch (`research/bench/results/hardware/graph_waits.txt`).
//!
//! # Where
//! In front of a kernel on every path on which [`Plan::every`] kernels have passed since the last
//! wait or the beginning: the launch itself waits in front of those. That depends on nothing but
//! the shape, so graphs of one shape get the same places. A graph inside counts with all of its
//! kernels, and a conditional node as one; neither is changed. A kernel that begins before what it
//! follows has ended (a programmatic dependency) is passed over for the next one.
//!
//! # Graphs without such waits
//! Graphs that allocate or free memory, because CUDA cannot remove a node from them. Graphs that
//! are instantiated while the tenant does not have low priority: their launches wait only before
//! the graph. Graphs for which the driver refuses the nodes; the hook reports that once.

use alloc::vec::Vec;
use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use partita_abi::CuResult;
use partita_abi::types::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEM_FREE, CUDA_BATCH_MEM_OP_NODE_PARAMS, CUcontext,
};
use partita_core::time::{GraphShape, Pacer, Priority};

use crate::account::gpu::Gpu;
use crate::account::locate;
use crate::account::tenant::Tenant;
use crate::driver::calls::{GraphCalls, calls};
use crate::driver::edges::edges;
use crate::gate::lanes::Gate;
use crate::gate::low;
use crate::sys::fork::in_child;
use crate::sys::report;

calls! {
    /// Entry points that put nodes into graphs and take them out, complete from CUDA 11.7 on.
    struct NodeCalls;
    add = cuGraphAddBatchMemOpNode;
    connect = cuGraphAddDependencies;
    disconnect = cuGraphRemoveDependencies;
    destroy = cuGraphDestroyNode;
}

/// Lanes that nodes always wait for. Streams claim the lowest free lane, so lanes that are claimed
/// later are among these while few are claimed. Each costs the GPU 1 µs a node, whether it is
/// claimed or not. The launch waits for all lanes.
const LANES: u64 = 0b1111;
/// The most that they wait for, those that are claimed when the executable is made included.
const LANES_MAX: u32 = 8;
/// Kernels between two waits while no length is known: 200 µs of kernels of 25 µs, a little below
/// the mean of a network's training.
const EVERY_UNKNOWN: u32 = 8;
/// How deep graphs may lie in one another.
const DEPTH_MAX: u32 = 64;

/// Which waits an executable has inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Kernels between two of them on a path.
    every: u32,
    /// The lanes that each waits for, a bit for each.
    lanes: u64,
}

/// Executables of this process with waits inside.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// The waits inside an executable, for as long as it lives.
#[derive(Debug)]
pub struct Waits(Plan);

impl Waits {
    /// Where they are.
    pub fn plan(&self) -> Plan {
        self.0
    }
}

impl From<Plan> for Waits {
    fn from(plan: Plan) -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self(plan)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether executables of this process have waits inside.
#[inline]
pub fn any_waits() -> bool {
    WAITING.load(Ordering::Relaxed) != 0
}

// A forked child has none of its parent's.
in_child! {
    WAITING.store(0, Ordering::Relaxed);
}

/// Nodes in a graph of the program, until they are taken out or this is dropped.
pub struct Inserted {
    /// What they are.
    pub plan: Plan,
    calls: NodeCalls,
    graph: *mut c_void,
    nodes: Vec<Wait>,
    is_in: bool,
}

/// A node that waits, and the edge whose place it has.
struct Wait {
    node: *mut c_void,
    instead_of: Option<[*mut c_void; 2]>,
}

impl Inserted {
    /// Makes the graph the program's own again.
    pub fn take_out(&mut self) {
        if core::mem::take(&mut self.is_in) {
            for wait in self.nodes.iter().rev() {
                if let Some([from, to]) = wait.instead_of {
                    // SAFETY: nodes that the driver named, of the graph from which that edge was
                    // taken.
                    let code = unsafe { (self.calls.connect)(self.graph, &from, &to, 1) };
                    if code.ok().is_err() {
                        // With the wait left in its place the order still holds.
                        stays(code);
                        continue;
                    }
                }
                // SAFETY: the hook added this node, and no other code has its handle.
                let _ = unsafe { (self.calls.destroy)(wait.node) };
            }
        }
    }
}

impl Drop for Inserted {
    fn drop(&mut self) {
        self.take_out();
    }
}

/// A kernel that is to wait, and what it follows.
struct Place {
    node: *mut c_void,
    after: Vec<*mut c_void>,
    /// Whether it follows one node, which nothing else follows.
    is_in_row: bool,
}

/// Kernels between two waits, by the lengths that were measured.
fn every(lengths: Pacer) -> u32 {
    if lengths.mean_ns().is_some() { lengths.launches() } else { EVERY_UNKNOWN }
}

/// Puts waits into a graph of which an executable is about to be made; `None` if it is to stay
/// as it is.
pub fn insert(gate: &Gate, tenant: &Tenant, gpu: &Gpu, graph: *mut c_void) -> Option<Inserted> {
    if gate.priority(gpu) != Priority::Low {
        return None;
    }
    let claimed = gate.page.claimed() | LANES;
    let lanes = low::lanes_of(claimed).take(LANES_MAX as usize).fold(0, |all, lane| all | 1 << lane);
    insert_as(gate, tenant, gpu, graph, Plan { every: every(gate.paces.lengths()), lanes })
}

/// Puts waits into a graph, those of an executable that is about to be updated by it for one.
pub fn insert_as(
    gate: &Gate,
    tenant: &Tenant,
    gpu: &Gpu,
    graph: *mut c_void,
    plan: Plan,
) -> Option<Inserted> {
    // They run in the current context, which must be of the graph's GPU.
    let context = tenant.driver().current_context();
    if context == 0 || locate::gpu_now(tenant).ok()?.index != gpu.index {
        return None;
    }
    let calls = NodeCalls::resolve().inspect_err(|_| refused(CuResult::NOT_SUPPORTED)).ok()?;
    let places = places(tenant.graph_calls()?, graph, plan.every)?;
    if places.is_empty() {
        return None;
    }
    insert_at(gate, calls, context, graph, &places, plan).inspect_err(|code| refused(*code)).ok()
}

fn insert_at(
    gate: &Gate,
    calls: NodeCalls,
    context: usize,
    graph: *mut c_void,
    places: &[Place],
    plan: Plan,
) -> Result<Inserted, CuResult> {
    // A node may wait only if the thread opens lanes of dead processes. A lane may be claimed while
    // the graph runs, so the thread starts now.
    gate.watch()?;
    let (count, mut waits) = low::waits(plan.lanes, |lane| gate.word(lane))?;
    let parameters = CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: CUcontext(core::ptr::with_exposed_provenance_mut(context)),
        count: count as c_uint,
        param_array: waits.as_mut_ptr(),
        flags: 0,
    };
    let mut inserted = Inserted { plan, calls, graph, nodes: Vec::with_capacity(places.len()), is_in: true };
    for Place { node, after, is_in_row } in places {
        let mut wait = core::ptr::null_mut();
        // SAFETY: valid pointers, nodes that the driver named, and as many of them as said; the
        // driver copies the parameters.
        unsafe {
            (inserted.calls.add)(&mut wait, graph, after.as_ptr(), after.len(), &parameters).ok()?;
            inserted.nodes.push(Wait { node: wait, instead_of: None });
            (inserted.calls.connect)(graph, &wait, node, 1).ok()?;
        }
        if let (true, [before], Some(wait)) = (is_in_row, after.as_slice(), inserted.nodes.last_mut()) {
            // SAFETY: an edge that the driver named.
            unsafe { (inserted.calls.disconnect)(graph, before, node, 1).ok()? };
            wait.instead_of = Some([*before, *node]);
        }
    }
    Ok(inserted)
}
/// Reports once why a process of high priority cannot hold others.
#[cold]
pub fn cannot_hold() {
    report::once!(
        "executable graphs from when this tenant's priority was low wait inside for every lane, so this \
         process cannot hold others until they are destroyed; instantiate them again"
    );
}

/// Says once that a wait stays in a graph of the program.
#[cold]
fn stays(code: CuResult) {
    report::once!(
        "the driver does not take back an edge of a graph that had been taken from it ({code}): a node that waits stays in its place"
    );
}

/// Says once that graphs go without waits inside.
#[cold]
pub fn refused(code: CuResult) {
    report::once!(
        "the driver puts no waits into graphs ({code}): those of this tenant of low priority wait at their beginning alone"
    );
}

/// What runs on the GPU in a node, in kernels; `None` in a graph that is to stay as it is.
fn weigh(driver: &GraphCalls, node: *mut c_void, depth: u32) -> Option<u32> {
    match driver.node_type(node)? {
        CU_GRAPH_NODE_TYPE_KERNEL | CU_GRAPH_NODE_TYPE_CONDITIONAL => Some(1),
        CU_GRAPH_NODE_TYPE_GRAPH => {
            let depth = depth.checked_sub(1)?;
            let nodes = driver.nodes(driver.child(node)?)?;
            nodes
                .into_iter()
                .try_fold(0u32, |all, node| Some(all.saturating_add(weigh(driver, node, depth)?)))
        }
        CU_GRAPH_NODE_TYPE_MEM_ALLOC | CU_GRAPH_NODE_TYPE_MEM_FREE => None,
        _ => Some(0),
    }
}

/// The kernels of a graph that are to wait.
fn places(driver: &GraphCalls, graph: *mut c_void, every: u32) -> Option<Vec<Place>> {
    let nodes = driver.nodes(graph)?;
    let weights: Vec<u32> =
        nodes.iter().map(|&node| weigh(driver, node, DEPTH_MAX)).collect::<Option<_>>()?;
    if weights.iter().fold(0u32, |all, weight| all.saturating_add(*weight)) <= every {
        return Some(Vec::new());
    }
    let number: HashMap<*mut c_void, usize> =
        nodes.iter().enumerate().map(|(at, &node)| (node, at)).collect();
    let mut shape = GraphShape::new(weights);
    let mut before: Vec<Vec<usize>> = alloc::vec![Vec::new(); nodes.len()];
    let mut behind = alloc::vec![0u32; nodes.len()];
    for edge in edges(graph)? {
        let (from, to) = (*number.get(&edge.from)?, *number.get(&edge.to)?);
        before.get_mut(to)?.push(from);
        *behind.get_mut(from)? += 1;
        shape.connect(from, to, edge.is_plain)?;
    }
    let place = |at: usize| {
        let before = before.get(at)?;
        Some(Place {
            node: *nodes.get(at)?,
            after: before.iter().map(|&from| nodes.get(from).copied()).collect::<Option<_>>()?,
            is_in_row: before.len() == 1 && before.iter().all(|&from| behind.get(from) == Some(&1)),
        })
    };
    shape.waits(every)?.into_iter().map(place).collect()
}
