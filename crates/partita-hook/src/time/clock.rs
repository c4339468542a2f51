//! The GPU's clock, by which events are measured, on the host's.

use core::ffi::c_void;

use partita_abi::CuResult;

use crate::time::calls::TimeCalls;
use crate::time::units::Pool;

/// How often the mark is renewed, in nanoseconds: the driver returns differences in milliseconds as
/// an `f32`, which are exact to 0.1 µs up to a second.
const MARK_NS: u64 = 1_000_000_000;

/// Maps the events of a context to the host's clock.
///
/// Differences of events are the GPU's. Their offset is bounded: no event is before its work was
/// submitted, and none is after it was seen. So the clocks may drift apart.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    /// The context that it is of.
    context: usize,
    /// The mark that counts; the other one is being renewed if `renewed_ns` is later than
    /// `marked_ns`.
    mark: usize,
    /// When the mark was, on the host's clock; 0 while it is not known.
    marked_ns: u64,
    /// When the last mark was recorded.
    renewed_ns: u64,
    is_renewing: bool,
}

impl Clock {
    /// Makes it the clock of the pool's context at this time. Returns whether times of events are
    /// available.
    pub fn keep(&mut self, calls: &TimeCalls, pool: &Pool, context: usize, now_ns: u64) -> bool {
        if self.context != context {
            let recorded_ns = pool.marked_ns.load(core::sync::atomic::Ordering::Relaxed);
            *self = Self { context, mark: 1, marked_ns: 0, renewed_ns: recorded_ns, is_renewing: true };
        }
        let next = pool.mark(self.mark + 1);
        // SAFETY: events and the stream of the hook's own, of a context that lives while it is
        // inspected.
        if self.is_renewing && unsafe { (calls.query_event)(next) } == CuResult::SUCCESS {
            self.marked_ns = match self.marked_ns {
                0 => self.renewed_ns,
                marked_ns => marked_ns.saturating_add_signed(elapsed_ns(calls, pool.mark(self.mark), next)),
            };
            self.mark = (self.mark + 1) % 2;
            self.is_renewing = false;
        }
        if !self.is_renewing && now_ns.saturating_sub(self.renewed_ns) > MARK_NS {
            let own = pool.own.load(core::sync::atomic::Ordering::Relaxed);
            // SAFETY: as above.
            self.is_renewing = unsafe { (calls.record)(pool.mark(self.mark + 1), own) }.is_ok();
            self.renewed_ns = now_ns;
        }
        self.marked_ns != 0
    }

    /// When an event that is complete was, between when its work was submitted and now.
    pub fn time_of(
        &mut self,
        calls: &TimeCalls,
        pool: &Pool,
        event: *mut c_void,
        submitted_ns: u64,
        now_ns: u64,
    ) -> u64 {
        let passed_ns = elapsed_ns(calls, pool.mark(self.mark), event);
        let at_ns = self.marked_ns.saturating_add_signed(passed_ns);
        let within_ns = at_ns.clamp(submitted_ns.min(now_ns), now_ns);
        let correction_ns = within_ns.cast_signed().saturating_sub(at_ns.cast_signed());
        self.marked_ns = self.marked_ns.saturating_add_signed(correction_ns).max(1);
        within_ns
    }
}

fn elapsed_ns(calls: &TimeCalls, from: *mut c_void, to: *mut c_void) -> i64 {
    let mut milliseconds = 0.0f32;
    // SAFETY: a valid pointer, and events that are complete; the driver checks them.
    match unsafe { (calls.elapsed)(&mut milliseconds, from, to) } {
        CuResult::SUCCESS => (f64::from(milliseconds) * 1e6) as i64,
        _ => 0,
    }
}
