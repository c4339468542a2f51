//! The GPU's clock, by which events are measured, on the host's.

use core::ffi::c_void;

use partita_abi::CuResult;

use crate::time::calls::TimeCalls;
use crate::time::units::{Pool, Unit};

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
    /// When the mark was, on the host's clock; 0 while the first one is not complete.
    marked_ns: u64,
    /// When it was made the mark.
    renewed_ns: u64,
}

impl Clock {
    /// Makes it the clock of the pool's context. Returns whether times of events are available.
    pub fn keep(&mut self, calls: &TimeCalls, pool: &Pool, context: usize) -> bool {
        let recorded_ns = pool.marked_ns.load(core::sync::atomic::Ordering::Relaxed);
        if self.context != context {
            *self = Self { context, marked_ns: 0, renewed_ns: recorded_ns };
        }
        // SAFETY: an event of a context that lives while it is inspected.
        if self.marked_ns == 0 && unsafe { (calls.query_event)(pool.mark()) } == CuResult::SUCCESS {
            self.marked_ns = recorded_ns;
        }
        self.marked_ns != 0
    }

    /// Makes the end of a unit that has ended the mark, if the present one is old. Nothing is
    /// recorded for it: that might wait for room in a channel.
    pub fn renew(&mut self, calls: &TimeCalls, pool: &Pool, unit: &Unit, now_ns: u64) {
        if now_ns.saturating_sub(self.renewed_ns) > MARK_NS {
            let passed_ns = elapsed_ns(calls, pool.mark(), unit.end());
            self.marked_ns = self.marked_ns.saturating_add_signed(passed_ns).max(1);
            self.renewed_ns = now_ns;
            pool.mark_at_end_of(unit, self.marked_ns);
        }
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
        let passed_ns = elapsed_ns(calls, pool.mark(), event);
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
