//! Executables that are made again after a change of the limits.
//!
//! A kernel of an executable that was armed one by one takes 0.45 µs more at every later launch
//! (H200, `docs/hardware.md`): 12 % of a network of 282 kernels. So when the limits have stood for
//! some launches, the hook makes another executable of the same graph and launches that in place of
//! the program's, whose handle stays valid.
//!
//! The new one is the same if the program has changed neither the graph nor the executable since
//! it was made, and if every change of its kinds of nodes goes through the hook. The program's later
//! changes go to the new one. Launches of one executable run one after the other; so that this holds
//! for the old and the new one too, both are launched in the same stream.

use alloc::sync::Arc;
use core::ffi::c_void;

use partita_abi::CuResult;

use crate::account::tenant::Tenant;
use crate::driver::calls::{GraphCalls, calls};
use crate::graph::executables::{Armed, Executable};
use crate::graph::{edits, nodes};
use crate::launch::carried::Carried;

calls! {
    /// Entry points that say when the GPU has passed a launch.
    struct EventCalls;
    create = cuEventCreate;
    destroy = cuEventDestroy_v2;
    record = cuEventRecord;
    query = cuEventQuery;
}

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`, which needs a stream. The first launch uploads.
const FLAG_UPLOAD: u64 = 2;
/// Launches after which an executable is made again: making one takes as long as 12 of them lose
/// (5 µs for each kernel).
const SETTLED: u32 = 16;
/// Launches after which the hook gives up to wait for two in a row in one stream.
const GIVEN_UP: u32 = 256;

/// What an executable was made from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Its nodes and their kinds ([`nodes::fingerprint`]).
    nodes: u64,
    /// The changes of graphs until then.
    edits: u64,
    /// The flags of its instantiation.
    flags: u64,
}

impl Origin {
    /// That of an executable of `graph`; `None` for one that cannot be made again.
    pub fn of(tenant: &Tenant, graph: usize, flags: u64, edits: u64) -> Option<Self> {
        Some(Self { nodes: nodes::fingerprint(tenant, graph)?, edits, flags: flags & !FLAG_UPLOAD })
    }

    /// Whether the graph is as it was. `destroyed` is the count of changes when the program
    /// destroyed it.
    fn stands(&self, tenant: &Tenant, graph: usize, destroyed: Option<u64>) -> bool {
        self.edits == destroyed.unwrap_or_else(edits::count)
            && nodes::fingerprint(tenant, graph) == Some(self.nodes)
    }
}

/// The launches since an executable was armed one kernel at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct InPlace {
    launches: u32,
    /// The key of the last launch's stream; 0 before the first.
    stream: usize,
}

impl InPlace {
    /// Counts a launch. Whether the executable is to be made again before it.
    pub fn is_due(&mut self, stream: usize) -> bool {
        self.launches = self.launches.saturating_add(1);
        self.launches > SETTLED && core::mem::replace(&mut self.stream, stream) == stream
    }

    /// Whether the hook counts on.
    pub fn waits(&self) -> bool {
        self.launches < GIVEN_UP
    }
}

/// An executable that was replaced, and the event behind its last launch.
#[derive(Debug)]
pub struct Retired {
    executable: usize,
    event: usize,
}

fn handle(address: usize) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(address)
}

fn events() -> Option<&'static EventCalls> {
    static CALLS: crate::driver::calls::Kept<EventCalls> = crate::driver::calls::Kept::new();
    CALLS.get(EventCalls::resolve)
}

impl Retired {
    /// Retires an executable whose last launch was in `stream`.
    fn after_launches_in(stream: *mut c_void, executable: usize) -> Result<Self, CuResult> {
        let calls = events().ok_or(CuResult::NOT_SUPPORTED)?;
        let mut event = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        unsafe { (calls.create)(&mut event, DISABLE_TIMING) }.ok()?;
        let retired = Self { executable, event: event.expose_provenance() };
        // SAFETY: an event of the hook and the program's stream; the driver checks that they are of
        // one context.
        let recorded = unsafe { (calls.record)(event, stream) };
        if recorded.is_err() {
            retired.forget_event();
        }
        recorded.ok().map(|()| retired)
    }

    /// Whether the GPU has passed its last launch.
    fn is_over(&self) -> bool {
        // SAFETY: an event of the hook.
        events().is_some_and(|calls| unsafe { (calls.query)(handle(self.event)) }.is_ok())
    }

    fn forget_event(&self) {
        if let Some(calls) = events() {
            // SAFETY: an event of the hook, which is not used any more.
            let _ = unsafe { (calls.destroy)(handle(self.event)) };
        }
    }

    fn destroy(self, driver: &GraphCalls) {
        driver.destroy_executable(handle(self.executable));
        self.forget_event();
    }
}

/// Makes an executable again, for a launch in `stream`. `destroyed` is the count of changes when
/// the program destroyed its graph. Nothing is uploaded yet.
///
/// # Errors
/// `CUDA_ERROR_NOT_READY` if the one before it still runs; other codes if it cannot be made.
pub fn make(
    tenant: &Tenant,
    driver: &GraphCalls,
    executable: &mut Executable,
    stream: *mut c_void,
    destroyed: Option<u64>,
) -> Result<(), CuResult> {
    let origin = executable.origin.ok_or(CuResult::NOT_SUPPORTED)?;
    if executable.retired.as_ref().is_some_and(|retired| !retired.is_over()) {
        return Err(CuResult::NOT_READY);
    }
    if let Some(retired) = executable.retired.take() {
        retired.destroy(driver);
    }
    if !origin.stands(tenant, executable.graph(), destroyed) {
        return Err(CuResult::INVALID_VALUE);
    }
    let made = driver.instantiate(executable.graph(), origin.flags)?;
    if let Some(before) = executable.stand_in {
        match Retired::after_launches_in(stream, before) {
            Ok(retired) => executable.retired = Some(retired),
            Err(code) => {
                driver.destroy_executable(made);
                return Err(code);
            }
        }
    }
    executable.stand_in = Some(made.expose_provenance());
    executable.armed = Armed::Fresh;
    executable.carried = Arc::new(Carried::new());
    Ok(())
}

/// Destroys what stands in for an executable that the program has destroyed.
pub fn destroy(driver: &GraphCalls, executable: &mut Executable) {
    if let Some(retired) = executable.retired.take() {
        retired.destroy(driver);
    }
    if let Some(stand_in) = executable.stand_in.take() {
        driver.destroy_executable(handle(stand_in));
    }
}
