//! Launches stand in queues, so that no more run at once than the process has slots.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use partita_abi::CuResult;
use partita_abi::types::CUstreamBatchMemOpParams;
use partita_core::task_slots::{Entered, Launch};

use crate::account::gpu::Gpu;
use crate::account::tenant::Tenant;
use crate::driver::memory_ops;
use crate::driver::stream::key_of;
use crate::slots::pools::{self, At, Pool, SlotCalls};
use crate::slots::streams::{self, Stream};
use crate::slots::{seen, share, watch};
use crate::sys::fork::in_child;
use crate::sys::report;

/// `CU_STREAM_WAIT_VALUE_GEQ`: of the difference, so that counts may wrap around.
const WAIT_GEQ: c_uint = 0;
/// The most queues that one launch stands in.
const QUEUES_MAX: usize = 64;

/// Whether the driver has refused a call that the queues need: then no launch waits any more.
static FAILED: AtomicBool = AtomicBool::new(false);

// Lets a child try again.
in_child! {
    FAILED.store(false, Ordering::Relaxed);
}

/// Makes a launch on `gpu` that runs up to `width` kernels at once. It waits on the GPU for earlier
/// launches of this process if the process has no slot for it.
#[inline]
pub fn through(
    tenant: &Tenant,
    gpu: &Gpu,
    stream: *mut c_void,
    width: u32,
    launch: impl Fn() -> CuResult,
) -> CuResult {
    if !seen::counts() {
        return launch();
    }
    counted(tenant, gpu, stream, width, &launch)
}

/// Not generic, as in [`pass`](crate::gate::pass).
fn counted(
    tenant: &Tenant,
    gpu: &Gpu,
    stream: *mut c_void,
    width: u32,
    launch: &dyn Fn() -> CuResult,
) -> CuResult {
    let (slots, version) = share::slots(gpu);
    if FAILED.load(Ordering::Relaxed) || tenant.is_captured(stream) {
        return launch();
    }
    if slots == share::NONE {
        seen::note_free(version, stream.addr());
        return launch();
    }
    let Some(calls) = pools::calls() else {
        failed(CuResult::NOT_SUPPORTED);
        return launch();
    };
    let current = || tenant.driver().current_context();
    let key = key_of(stream.addr(), current);
    let Some((number, known)) = find(gpu, calls, stream, key, current) else {
        report::once!(
            "this program uses more streams or contexts than Partita counts: some of its kernels do not \
             wait for the others, and neighbours may wait for them; use fewer streams"
        );
        return launch();
    };
    let Some(pool) = known.pool().and_then(pools::get) else { return launch() };
    let slots = slots / pools::count(gpu);
    {
        let mut queues = pool.queues();
        let was_counting = queues.counts();
        if queues.is_free(number as u32, width, slots) {
            seen::note_free(version, stream.addr());
            drop(queues);
            return launch();
        }
        if !was_counting {
            // Streams that skipped the queues are counted from their next launches on.
            seen::forget();
        }
    }
    let waiting = Waiting { calls, pool, stream, number, known, slots };
    waiting.run(width, launch)
}

/// The stream with a key, and its number.
fn find(
    gpu: &Gpu,
    calls: &SlotCalls,
    stream: *mut c_void,
    key: usize,
    current: impl Fn() -> usize,
) -> Option<(usize, &'static Stream)> {
    let pool = || {
        let context = if key == stream.addr() { calls.context_of(stream) } else { None };
        pools::of_context(gpu, context.unwrap_or_else(current))
    };
    let is_over = |number: usize, stream: &Stream| {
        stream.pool().and_then(pools::get).is_none_or(|pool| pool.is_over(number, stream))
    };
    let begin = |pool: usize, number: usize, stream: &Stream| {
        if let Some(pool) = pools::get(pool) {
            pool.begin(number, stream);
        }
    };
    streams::made().find_or_add(key, pool, is_over, begin)
}

/// A launch that is to stand in queues.
struct Waiting<'a> {
    calls: &'a SlotCalls,
    pool: &'a Pool,
    stream: *mut c_void,
    number: usize,
    known: &'a Stream,
    /// The process's slots in this context.
    slots: u32,
}

impl Waiting<'_> {
    fn run(&self, width: u32, launch: &dyn Fn() -> CuResult) -> CuResult {
        // Launches of other threads in the same stream come after this one, as they would in the
        // driver.
        let mut own = self.known.turn.lock();
        let mut entered = [Entered { queue: 0, behind: None }; QUEUES_MAX];
        let entered = self.enter(width, *own, &mut entered);
        let before = self.known.launches.load(Ordering::Relaxed);
        let count = before.wrapping_add(1);
        // The word that says how many have ended is written with `count` from here on, or never.
        self.known.launches.store(count, Ordering::Relaxed);
        let begun = self.begin(count, entered);
        let result = launch();
        let ended = begun.and_then(|()| self.end(count));
        let last = match ended {
            Ok(()) => count,
            Err(code) => {
                if result.is_ok() {
                    failed(code);
                }
                // A failed call has no effect; a launch in a failed context has none either.
                self.known.launches.store(before, Ordering::Relaxed);
                before
            }
        };
        let launch = Launch { stream: self.number as u32, count: last };
        let mut queues = self.pool.queues();
        entered.iter().for_each(|entered| queues.launched(entered.queue, launch));
        *own = entered.first().map(|entered| entered.queue);
        result
    }

    /// Takes queues for a launch.
    fn enter<'e>(
        &self,
        width: u32,
        own: Option<usize>,
        entered: &'e mut [Entered; QUEUES_MAX],
    ) -> &'e [Entered] {
        let wanted = (width.clamp(1, self.slots.max(1)) as usize).min(QUEUES_MAX);
        let has_ended = |launch: Launch| self.pool.has_ended(launch);
        let mut taken = 0;
        let mut queues = self.pool.queues();
        while taken < wanted {
            // If other threads are making a launch in each queue, this one does not wait.
            let Some(found) = queues.enter(self.number as u32, own, self.slots, has_ended) else { break };
            entered[taken] = found;
            taken += 1;
        }
        &entered[..taken]
    }

    /// Makes the stream wait for the launches before this one, and write for which stream it waits.
    fn begin(&self, count: u32, entered: &[Entered]) -> Result<(), CuResult> {
        let [at, _] = self.pool.addresses(self.calls, self.number)?;
        let mut operations = [CUstreamBatchMemOpParams::default(); 2 * QUEUES_MAX + 1];
        let mut used = 0;
        let mut put = |operation| {
            operations[used] = operation;
            used += 1;
        };
        for before in entered.iter().filter_map(|entered| entered.behind) {
            let other = before.stream as usize;
            let [_, ended] = self.pool.addresses(self.calls, other)?;
            put(memory_ops::write(at, At::Waits(other).word(count)));
            put(memory_ops::wait(ended, before.count, WAIT_GEQ));
        }
        let begun = At::Launch.word(count);
        if used == 0 {
            // SAFETY: the words stay mapped as long as the context.
            return unsafe { self.calls.memory.write(self.stream, at, begun) };
        }
        operations[used] = memory_ops::write(at, begun);
        watch::start()?;
        // SAFETY: as above.
        unsafe { self.calls.memory.put(self.stream, &mut operations[..=used]) }
    }

    /// Makes the stream write that the launch has ended.
    fn end(&self, count: u32) -> Result<(), CuResult> {
        let [_, ended] = self.pool.addresses(self.calls, self.number)?;
        // SAFETY: as in begin().
        unsafe { self.calls.memory.write(self.stream, ended, count) }
    }
}

/// Reports once that launches do not wait any more.
#[cold]
fn failed(code: CuResult) {
    FAILED.store(true, Ordering::Relaxed);
    report::once!(
        "the driver refused a wait or a write in a stream ({code}): this program's kernels do not wait \
         for each other, and neighbours may wait for them; use fewer streams"
    );
}

/// The program has synchronized a context: all of its uncounted work has ended.
pub fn synchronized(context: usize) {
    let Some(pool) = pools::of_open_context(context) else { return };
    let mut queues = pool.queues();
    if queues.reset_if_idle(|launch| pool.has_ended(launch)) {
        seen::forget();
    }
}

/// The program is about to destroy a stream. Its launches continue to run.
pub fn end_stream(stream: *mut c_void) {
    let Some((number, known)) = streams::table().and_then(|table| table.find(stream.addr())) else { return };
    let Some(pool) = known.pool().and_then(pools::get) else { return known.end() };
    let _turn = known.turn.lock();
    let is_uncounted = pool.queues().is_uncounted(number as u32);
    if is_uncounted && let Some(calls) = pools::calls() {
        let waiting = Waiting { calls, pool, stream, number, known, slots: 1 };
        let count = known.launches.load(Ordering::Relaxed).wrapping_add(1);
        // The GPU writes when the stream's uncounted launches have ended.
        if waiting.end(count).is_ok() {
            known.launches.store(count, Ordering::Relaxed);
        }
        let launch = Launch { stream: number as u32, count: known.launches.load(Ordering::Relaxed) };
        pool.queues().count(launch);
    }
    known.end();
}
