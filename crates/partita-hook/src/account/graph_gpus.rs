//! On which of the tenant's GPUs the kernels of a graph run.
//!
//! The driver does not report it later, so it is recorded when a kernel enters a graph: captured,
//! or added ([`place`](crate::graph::place)). An executable has one GPU's mask; a graph with
//! kernels on several GPUs is refused when it is instantiated. A process that sees one GPU records
//! nothing.

use hashbrown::HashMap;
use partita_ledger::GPUS_MAX;
use partita_ledger::mutex::Mutex;

use crate::account::gpu::Gpu;
use crate::sys::fork::{in_child, renew};

/// GPUs, a bit for each [`Gpu::index`].
pub type Gpus = u32;

const _: () = assert!(GPUS_MAX <= Gpus::BITS as usize);

static GRAPHS: Mutex<Option<HashMap<usize, Gpus>>> = Mutex::new(None);

/// Notes that a graph has a kernel on a GPU.
pub fn note(graph: usize, gpu: &Gpu) {
    add(graph, 1 << gpu.index);
}

fn add(graph: usize, gpus: Gpus) {
    if gpus != 0 {
        *GRAPHS.lock().get_or_insert_default().entry(graph).or_default() |= gpus;
    }
}

/// Notes that a graph has a copy of all kernels of another.
pub fn join(graph: usize, other: usize) {
    add(graph, of(other));
}

/// The GPUs of a graph's kernels, as far as they are noted.
pub fn of(graph: usize) -> Gpus {
    GRAPHS.lock().as_ref().and_then(|graphs| graphs.get(&graph)).copied().unwrap_or(0)
}

/// Forgets a graph that ends.
pub fn forget(graph: usize) {
    if let Some(graphs) = GRAPHS.lock().as_mut() {
        graphs.remove(&graph);
    }
}

// Forgets all in a child of `fork`.
in_child! {
    renew(&GRAPHS, None);
}
