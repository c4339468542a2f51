//! Launches pass the gate, and are measured.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use partita_abi::CuResult;
use partita_core::time::Priority;

use crate::account::gpu::Gpu;
use crate::account::tenant::Tenant;
use crate::gate::lanes::{self, Gate};
use crate::gate::{inside, low};
use crate::holder::fences;
use crate::slots::{bursts, finished, hold};
use crate::sys::fork::in_child;
use crate::time::meter;

/// Whether launches of this process pass a gate, or are measured.
static ANY: AtomicBool = AtomicBool::new(false);

// Leaves the parent's gates and meters to the parent.
in_child! {
    ANY.store(false, Ordering::Relaxed);
}

/// Has [`through`] look for gates and meters: some are installed.
pub fn begin() {
    fences::launches_are_counted();
    ANY.store(true, Ordering::Release);
}

/// Whether launches of this process pass a gate on any GPU, or are measured.
#[inline]
pub fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// What is launched.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// A kernel of so many blocks.
    Kernel(u64),
    /// A graph, which runs up to so many kernels at once. It is long enough to open the lane right
    /// behind it, and to be measured alone.
    Graph(u32),
}

/// Runs a launch on `gpu` once its tenant's priority and shares have been seen to. It begins a
/// burst if none runs.
#[inline]
pub fn through(
    tenant: &Tenant,
    gpu: &Gpu,
    stream: *mut c_void,
    what: What,
    launch: impl Fn() -> CuResult,
) -> CuResult {
    let width = match what {
        What::Kernel(_) => 1,
        What::Graph(width) => {
            finished::launches_uncounted(gpu);
            width
        }
    };
    let begun = bursts::begin(tenant, gpu, stream);
    let launch = || hold::through(tenant, gpu, stream, width, &launch);
    let result = if is_any() { seen_to(tenant, gpu, stream, what, &launch) } else { launch() };
    if let Some(begun) = begun
        && result.is_err()
    {
        bursts::cancel(&begun);
    }
    result
}

/// Not generic: there are many ways to launch, and each would bring all of this along.
fn seen_to(
    tenant: &Tenant,
    gpu: &Gpu,
    stream: *mut c_void,
    what: What,
    launch: &dyn Fn() -> CuResult,
) -> CuResult {
    let (is_graph, blocks) = match what {
        What::Kernel(blocks) => (false, blocks),
        // Its kernels' blocks are not added up: at the least one for each that may run at once.
        What::Graph(width) => (true, width.into()),
    };
    if gpu.mask.is_none() {
        // Where launches are masked, the driver's callback counts them.
        fences::count_other();
    }
    let measured = || match meter::of(gpu) {
        None => launch(),
        Some(meter) => meter.run(tenant, gpu, stream, is_graph, blocks, launch),
    };
    match lanes::of(gpu) {
        None => measured(),
        Some(gate) => gated(gate, tenant, gpu, stream, is_graph, measured),
    }
}

fn gated(
    gate: &'static Gate,
    tenant: &Tenant,
    gpu: &Gpu,
    stream: *mut c_void,
    is_graph: bool,
    launch: impl FnOnce() -> CuResult,
) -> CuResult {
    let priority = gate.priority(gpu);
    if priority == Priority::Normal || tenant.is_captured(stream) {
        return launch();
    }
    if priority == Priority::Low {
        return low::launch(gate, tenant, stream, is_graph, launch);
    }
    // They would wait for the lanes of this very process.
    if inside::any_waits() {
        inside::cannot_hold();
        return launch();
    }
    if let Err(code) = gate.hold_others(stream) {
        return gate.refuse(code);
    }
    let result = launch();
    if is_graph && let Some((holder, _)) = gate.holder(stream) {
        gate.open_behind(tenant, holder);
    }
    result
}
