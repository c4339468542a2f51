//! Executables that are made again after a change of the limits.
//!
//! A kernel of an executable that was armed one by one takes 0.45 µs more at every later launch
//! (H200, `docs/hardware.md`): 12 % of a network of 282 kernels. So when the limits have stood for
//! some launches, the hook makes another executable of the same graph and launches that in place of
//! the program's, whose handle stays valid.
//!
//! The new one is the same if the program has changed neither the graph nor the executable since
//! it was made, and if every change of its kinds of nodes goes through the hook. The program's
//! later changes go to the new one. Launches of one executable run one after the other; so that
//! this holds for the old and the new one too, both are launched in the same stream.

use core::ffi::c_void;

use crate::account::tenant::Tenant;
use crate::driver::calls::{GraphCalls, Kept, calls};
use crate::graph::edits;

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

/// Whether an executable can be made again, and what has taken its place.
#[derive(Debug, Default)]
pub struct Again {
    /// What it was made from; `None` if it cannot be made again.
    origin: Option<Origin>,
    /// The executable that is launched in its place.
    stand_in: Option<usize>,
    /// The one before that, while it may still run.
    retired: Option<Retired>,
    /// Its launches since its kernels were armed one by one, until it is made again.
    in_place: Option<InPlace>,
}

/// What an executable was made from.
#[derive(Debug, Clone, Copy)]
struct Origin {
    /// Its nodes and their kinds ([`edits::fingerprint`]).
    nodes: u64,
    /// The changes of graphs until then.
    edits: u64,
    /// The flags of its instantiation.
    flags: u64,
}

/// The launches since an executable was armed one kernel at a time.
#[derive(Debug, Clone, Copy, Default)]
struct InPlace {
    launches: u32,
    /// The key of the last launch's stream; 0 before the first that counts.
    stream: usize,
}

/// An executable that was replaced, and the event behind its last launch.
#[derive(Debug)]
struct Retired {
    executable: usize,
    event: usize,
}

fn handle(address: usize) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(address)
}

fn events() -> Option<&'static EventCalls> {
    static CALLS: Kept<EventCalls> = Kept::new();
    CALLS.get(EventCalls::resolve)
}

impl Again {
    /// That of an executable of `graph`, made with `flags` when `edits` changes had been counted.
    pub fn of(tenant: &Tenant, graph: usize, flags: u64, edits: u64) -> Self {
        let origin = edits::fingerprint(tenant, graph);
        let origin = origin.map(|nodes| Origin { nodes, edits, flags: flags & !FLAG_UPLOAD });
        Self { origin, ..Self::default() }
    }

    /// What the driver launches and changes for the program's `executable`.
    pub fn real(&self, executable: *mut c_void) -> *mut c_void {
        self.stand_in.map_or(executable, handle)
    }

    /// Whether another executable is launched in its place.
    pub fn is_replaced(&self) -> bool {
        self.stand_in.is_some()
    }

    /// Whether each launch is counted, until it is made again.
    pub fn is_counting(&self) -> bool {
        self.in_place.is_some()
    }

    /// The program has changed the executable: made again, it would be as its graph is.
    pub fn changed(&mut self) {
        (self.origin, self.in_place) = (None, None);
    }

    /// Its kernels have been armed: `one_by_one`, or by the upload of a new executable.
    pub fn armed(&mut self, one_by_one: bool) {
        self.in_place = (one_by_one && self.origin.is_some()).then(InPlace::default);
    }

    /// Counts a launch. Whether the executable is to be made again before it.
    pub fn is_due(&mut self, stream: usize) -> bool {
        let Some(in_place) = &mut self.in_place else { return false };
        in_place.launches += 1;
        let is_due =
            in_place.launches > SETTLED && core::mem::replace(&mut in_place.stream, stream) == stream;
        if !is_due && in_place.launches >= GIVEN_UP {
            self.in_place = None;
        }
        is_due
    }

    /// Makes the executable of `graph` again, for a launch in `stream`. `destroyed` is the count of
    /// changes when the program destroyed the graph. Whether it was made; if so, nothing of it is
    /// uploaded yet.
    pub fn make(
        &mut self,
        tenant: &Tenant,
        driver: &GraphCalls,
        graph: usize,
        stream: *mut c_void,
        destroyed: Option<u64>,
    ) -> bool {
        if self.retired.as_ref().is_some_and(|retired| !retired.is_over()) {
            // Tried again at the next launch.
            return false;
        }
        if let Some(retired) = self.retired.take() {
            retired.destroy(driver);
        }
        let made = self.replaced(tenant, driver, graph, stream, destroyed).is_some();
        if !made {
            self.origin = None;
        }
        self.in_place = None;
        made
    }

    fn replaced(
        &mut self,
        tenant: &Tenant,
        driver: &GraphCalls,
        graph: usize,
        stream: *mut c_void,
        destroyed: Option<u64>,
    ) -> Option<()> {
        let origin = self.origin?;
        let stands = origin.edits == destroyed.unwrap_or_else(edits::count)
            && edits::fingerprint(tenant, graph) == Some(origin.nodes);
        let made = stands.then(|| driver.instantiate(graph, origin.flags).ok()).flatten()?;
        if let Some(before) = self.stand_in {
            self.retired = Retired::after_launches_in(stream, before);
            if self.retired.is_none() {
                driver.destroy_executable(made);
                return None;
            }
        }
        self.stand_in = Some(made.expose_provenance());
        Some(())
    }

    /// Destroys what stands in for an executable that the program has destroyed.
    pub fn destroy(self, driver: &GraphCalls) {
        if let Some(retired) = self.retired {
            retired.destroy(driver);
        }
        if let Some(stand_in) = self.stand_in {
            driver.destroy_executable(handle(stand_in));
        }
    }
}

impl Retired {
    /// Retires an executable whose last launch was in `stream`.
    fn after_launches_in(stream: *mut c_void, executable: usize) -> Option<Self> {
        let calls = events()?;
        let mut event = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        unsafe { (calls.create)(&mut event, DISABLE_TIMING) }.ok().ok()?;
        let retired = Self { executable, event: event.expose_provenance() };
        // SAFETY: an event of the hook and the program's stream; the driver checks that they are of
        // one context.
        if unsafe { (calls.record)(event, stream) }.is_err() {
            retired.forget_event();
            return None;
        }
        Some(retired)
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
