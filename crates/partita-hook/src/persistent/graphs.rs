//! Graphs of rewritten kernels.
//!
//! A captured launch keeps the memory that its blocks count in. A graph's executable runs one
//! launch after the other, but two executables may run at the same time, and would count in the
//! same memory. So a graph is instantiated once, and neither copied nor used for an update. The
//! program does not know the additional parameter, so it cannot make or change kernel nodes.

use hashbrown::HashSet;
use partita_abi::CuResult;
use partita_ledger::mutex::Mutex;

use crate::account::tenant;
use crate::sys::fork::in_child;
use crate::sys::report;

/// Graphs that were instantiated.
static INSTANTIATED: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

// The graphs stay those of the parent.
in_child! {
    INSTANTIATED.reset_after_fork();
}

/// The code for what persistent blocks do not allow in graphs, and a line that names it; `None` for
/// other tenants.
pub fn refused(what: &str, remedy: &str) -> Option<CuResult> {
    tenant::persistent()?;
    report::line(format_args!(
        "{}: {what} was refused: the kernels of this tenant are persistent blocks; {remedy}, or use \
         --via mask",
        report::program()
    ));
    Some(CuResult::NOT_SUPPORTED)
}

/// A kernel node that the program makes or changes.
pub fn node_refused() -> Option<CuResult> {
    refused("a kernel node of a graph", "capture its launch from a stream")
}

/// A graph with kernels is instantiated.
///
/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` the second time.
pub fn instantiate(graph: usize) -> Result<(), CuResult> {
    if tenant::persistent().is_none() || INSTANTIATED.lock().get_or_insert_default().insert(graph) {
        return Ok(());
    }
    Err(refused("a second executable of a graph", "capture the work again")
        .unwrap_or(CuResult::NOT_SUPPORTED))
}

/// A graph is destroyed: another may be given its address.
pub fn destroyed(graph: usize) {
    if let Some(instantiated) = INSTANTIATED.lock().as_mut() {
        instantiated.remove(&graph);
    }
}
