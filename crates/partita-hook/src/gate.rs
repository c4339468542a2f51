//! The gate between tenants of a GPU: those of low priority wait while those of high priority have
//! work in flight.
//!
//! A stream of a process of high priority has a lane in the GPU's gate file ([`GateMap`]). Before
//! the first launch after a rest the hook closes it, by a store; behind the last, the GPU opens it,
//! by a write in the stream: after every graph, and before every call with which the program waits,
//! copies that it waits for among them, or asks whether it is done. So nobody synchronises, and no
//! process takes part between the last kernel's end and the next one's beginning. In front of
//! launches of low priority waits for all lanes go into the stream ([`low`]), so what is queued
//! already stops as well; how many launches pass between two follows from their measured lengths
//! ([`pace`]).
//!
//! A process of low priority that has met a lane starts the one thread that the hook ever has. It
//! sleeps, and every few milliseconds opens the lanes of those that have died and of those that
//! hold others for too long.

pub mod lanes;
mod low;
pub mod nodes;
mod pace;

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use partita_abi::CuResult;
use partita_core::time::Priority;

use self::lanes::Gate;
use crate::account::Gpu;
use crate::fork::in_child;
use crate::tenant::Tenant;
use crate::time::meter;

/// Whether launches of this process pass a gate, or are measured.
static ANY: AtomicBool = AtomicBool::new(false);

in_child!(reset_after_fork);

/// Leaves the parent's gates and meters to the parent.
///
/// # Safety
/// Called in the only thread of a forked child.
unsafe fn reset_after_fork() {
    ANY.store(false, Ordering::Relaxed);
}

/// Has [`through`] look for gates and meters: some are installed.
pub fn begin() {
    ANY.store(true, Ordering::Release);
}

/// Whether launches of this process pass a gate on any GPU, or are measured.
#[inline]
pub fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Runs a launch on `gpu` once its tenant's priority and share of time have been seen to.
/// `is_graph`: it is long enough to open the lane right behind it, and to be measured alone.
#[inline]
pub fn through(
    tenant: &'static Tenant,
    gpu: &'static Gpu,
    stream: *mut c_void,
    is_graph: bool,
    launch: impl FnOnce() -> CuResult,
) -> CuResult {
    if !is_any() {
        return launch();
    }
    let measured = || match meter::of(gpu) {
        None => launch(),
        Some(meter) => meter.run(tenant, gpu, stream, is_graph, launch),
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
    if priority == Priority::Normal || lanes::is_captured(tenant, stream) {
        return launch();
    }
    if priority == Priority::Low {
        return low::launch(gate, tenant, stream, is_graph, launch);
    }
    // They would wait for the lanes of this very process.
    if nodes::any_waits() {
        nodes::holds_nobody();
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
