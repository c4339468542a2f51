//! What is known of this process's unfinished work: of use when a fault of some client of an MPS
//! server has ended the work of all of them. A client whose work had finished is not the cause.
//!
//! The program's own waits tell. When it has waited for everything, the number of its launches so
//! far is written into its slot; while the number of launches is still that one, nothing is
//! unfinished. So a launch costs nothing. After a wait for a part (one of several streams), or a
//! launch that is not counted (a graph), it is not known until the next wait for everything.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use partita_abi::CuResult;
use partita_ledger::Waited;

use crate::account::gpu::Gpu;
use crate::account::tenant::{self, Tenant};
use crate::holder::fences;
use crate::slots::{bursts, rest, seen};
use crate::sys::clock::now_ns;
use crate::sys::fork::in_child;

/// Contexts that the program has made, and one for the primary context if it uses it.
static CONTEXTS: AtomicU32 = AtomicU32::new(0);
/// 1 once the program uses the primary context.
static PRIMARY: AtomicU32 = AtomicU32::new(0);
/// Launches that the slot does not count.
static UNCOUNTED: AtomicU32 = AtomicU32::new(0);

// The parent's contexts are the parent's.
in_child! {
    CONTEXTS.store(0, Ordering::Relaxed);
    PRIMARY.store(0, Ordering::Relaxed);
    UNCOUNTED.store(0, Ordering::Relaxed);
}

/// The program makes a context.
#[cold]
pub fn context_made() {
    CONTEXTS.fetch_add(1, Ordering::Relaxed);
}

/// The program uses the primary context.
#[cold]
pub fn primary_used() {
    PRIMARY.store(1, Ordering::Relaxed);
}

/// The process has attached, and has launched nothing.
pub fn begin(tenant: &Tenant) {
    if knows(tenant) {
        tenant.first().slot.show_waited(Waited::ForAll { launches: 0 }, now_ns());
    }
}

/// Whether every launch is counted in one slot, which is where launches are masked.
fn knows(tenant: &Tenant) -> bool {
    tenant.first().mask.is_some() && tenant.places().is_none()
}

/// The program launches something that the slot does not count.
pub fn launches_uncounted(gpu: &Gpu) {
    UNCOUNTED.fetch_add(1, Ordering::SeqCst);
    gpu.slot.show_waited(Waited::Unknown, 0);
    if let Some(presence) = &gpu.presence {
        presence.before_launch(&gpu.limits);
    }
}

/// What a wait covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covers {
    /// Everything in a context.
    Context,
    /// One stream: its handle, where it is known.
    Stream(Option<usize>),
    /// Not known.
    Part,
}

/// Runs a wait and reports what it says of this process's work.
pub fn reported(covers: Covers, wait: impl FnOnce() -> CuResult) -> CuResult {
    let Some(tenant) = tenant::current() else { return wait() };
    let gpu = tenant.first();
    let uncounted = UNCOUNTED.load(Ordering::SeqCst);
    let (launches, copies) = (gpu.slot.launches(), fences::copies());
    let result = wait();
    if result.is_sticky() {
        tenant.gpus().iter().for_each(|gpu| gpu.slot.show_error(result.0.unsigned_abs()));
        return result;
    }
    if !result.is_ok() {
        return result;
    }
    let is_all = match covers {
        Covers::Context => true,
        Covers::Stream(_) => !seen::counts() && !seen::were_made(),
        Covers::Part => false,
    };
    if is_all && has_one_context() {
        fences::copies_ended(copies, covers == Covers::Context);
    }
    if knows(tenant) {
        let waited = match (has_one_context(), is_all) {
            (false, _) => Waited::Unknown,
            (true, true) => Waited::ForAll { launches },
            (true, false) => Waited::ForSome { launches },
        };
        gpu.slot.show_waited(waited, if is_all { now_ns() } else { 0 });
        // Another thread may have launched meanwhile, or the graph may still run. That thread
        // counts first and then shows that nothing is known: the later word of the two stays.
        fence(Ordering::SeqCst);
        if UNCOUNTED.load(Ordering::SeqCst) != uncounted {
            gpu.slot.show_waited(Waited::Unknown, 0);
        }
    }
    let waited = match covers {
        _ if is_all => rest::Waited::ForAll,
        Covers::Stream(stream) => rest::Waited::ForStream(stream),
        _ => rest::Waited::ForStream(None),
    };
    look(tenant, waited, uncounted, launches);
    result
}

/// The program has asked whether some work is done, and it is: all of a stream, if it has a handle.
#[inline]
pub fn answered(stream: Option<usize>) {
    if let Some(tenant) = tenant::current()
        && rest::is_awaited(tenant.first())
    {
        let waited = rest::Waited::ForStream(stream);
        look(tenant, waited, UNCOUNTED.load(Ordering::SeqCst), tenant.first().slot.launches());
    }
}

/// Looks whether the process rests, with nothing launched since those numbers.
fn look(tenant: &Tenant, waited: rest::Waited, uncounted: u32, launches: u64) {
    if !has_one_context() || tenant.places().is_some() {
        // One wait tells of one context.
        return bursts::lose_sight();
    }
    let gpu = tenant.first();
    let is_still = || UNCOUNTED.load(Ordering::SeqCst) == uncounted && gpu.slot.launches() == launches;
    rest::look(gpu, waited, is_still);
}

fn has_one_context() -> bool {
    CONTEXTS.load(Ordering::Relaxed) + PRIMARY.load(Ordering::Relaxed) <= 1
}
