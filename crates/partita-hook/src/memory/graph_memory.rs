//! Memory of graphs: nodes that allocate, and allocations that a capture records.
//!
//! The driver obtains the memory of an executable graph at some launch and keeps it until the graph
//! is gone, and longer, for other graphs of the device, until it is trimmed (`pools`). It is
//! charged when the node is made, where there is a call that can be refused, and until the graph
//! ends: a graph that allocates has one executable at a time, cannot be cloned and cannot lose
//! nodes, and the hook keeps it as long as its executable (`executables`). Over the quota the call
//! returns `CUDA_ERROR_OUT_OF_MEMORY`.

use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use partita_abi::CuResult;
use partita_ledger::mutex::{Guard, Mutex};

use crate::account::gpu::{Charge, Gpu};
use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::memory::allocations::Kind;
use crate::memory::holdings;
use crate::memory::pools::{self, Source};
use crate::sys::fork::{in_child, renew};

/// The addresses of the memory of a graph's nodes, and the charge of each.
type Held = Vec<(u64, Charge)>;

static GRAPHS: Mutex<Option<HashMap<usize, Held>>> = Mutex::new(None);
/// Held while a graph that allocates is made or ended, with its executable.
static ORDER: Mutex<()> = Mutex::new(());
/// Whether a graph of this process has ever allocated: the driver keeps a graph's memory for other
/// graphs.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether the driver's allocations at a graph's launch may be those that nodes are charged for.
#[inline]
pub fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// The right to make and destroy graphs with their executables, if graphs of this process allocate:
/// two threads could otherwise destroy what one of them still needs.
pub fn order() -> Option<Guard<'static, ()>> {
    is_any().then(|| ORDER.lock())
}

fn begin() -> Guard<'static, ()> {
    ANY.store(true, Ordering::Relaxed);
    ORDER.lock()
}

fn note(graph: usize, address: u64, charge: Charge) {
    pools::lock().hold(Source::Graphs(charge.gpu), charge.bytes);
    GRAPHS.lock().get_or_insert_default().entry(graph).or_default().push((address, charge));
}

// Forgets all in a child of `fork`.
in_child! {
    ORDER.reset_after_fork();
    renew(&GRAPHS, None);
}

/// Makes a node that allocates `bytes` on the device of an ordinal.
pub fn add_node(
    graph: *mut c_void,
    device: i32,
    bytes: u64,
    add: impl FnOnce() -> CuResult,
    address: impl FnOnce() -> u64,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { add() };
    };
    // Of a device that is not there the driver says so.
    let Ok(gpu) = locate::gpu_of_device(tenant, device) else { return add() };
    if !holdings::reserve(tenant, gpu, bytes) {
        return CuResult::OUT_OF_MEMORY;
    }
    let _order = begin();
    let result = add();
    if result.is_ok() {
        note(graph as usize, address(), Charge::own(gpu.index, bytes));
    } else {
        gpu.credit(bytes);
    }
    result
}

/// Makes an allocation that `stream` captures.
pub fn captured(
    tenant: &Tenant,
    gpu: &Gpu,
    bytes: u64,
    stream: *mut c_void,
    allocate: impl FnOnce() -> CuResult,
    address: impl FnOnce() -> u64,
) -> CuResult {
    if !holdings::reserve(tenant, gpu, bytes) {
        return CuResult::OUT_OF_MEMORY;
    }
    let _order = begin();
    let here = holdings::here(tenant);
    let result = allocate();
    if result.is_err() {
        gpu.credit(bytes);
        return result;
    }
    let charge = Charge::own(gpu.index, bytes);
    match tenant.driver().captured_into(stream) {
        Some(graph) => note(graph as usize, address(), charge),
        // Charged until it is freed, or for good.
        None => holdings::hold(tenant, Kind::Pointer, address(), charge, here),
    }
    result
}

/// Notes that a graph and its executable are gone.
pub fn ended(tenant: &Tenant, graph: usize) {
    let Some(held) = GRAPHS.lock().as_mut().and_then(|graphs| graphs.remove(&graph)) else { return };
    for (address, charge) in held {
        // If a launch allocates memory that no node frees, the program frees it as any other
        // memory. Recorded before the driver is called: another thread may be freeing it.
        holdings::hold(tenant, Kind::Pointer, address, charge, holdings::here(tenant));
        let is_gone = tenant.driver().range_of(address).is_none();
        match holdings::take_dead(tenant, Kind::Pointer, address, is_gone) {
            Some(_) => pools::lock().give_back(Source::Graphs(charge.gpu), charge.gpu, charge.bytes),
            None => pools::lock().let_go(Source::Graphs(charge.gpu), charge.bytes),
        }
    }
    pools::look_after(tenant);
}
