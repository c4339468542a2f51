//! Right-sizing: trials on fewer TPCs, and now and then on more, by the mean time.

use alloc::vec::Vec;

use super::super::evidence::{Close, Mean, is_close};
use super::super::said::{Event, Reason};
use super::super::seen::Seen;
use super::{Around, One, Trial};

/// How many times as long the mean time may be on fewer TPCs as on all that it can have.
const SIZE_BOUND: f64 = 1.02;
/// From here on no trial on fewer begins: it could not be told from one that fails.
const SIZE_USED_UP: f64 = 1.01;
/// Bursts before and in a trial of a size: at least, and after which no more are waited for.
const SIZE_BURSTS: u64 = 50;
const SIZE_BURSTS_MAX: u64 = 4_000;
const SIZE_S_MAX: f64 = 600.0;
/// A mean time is known well enough for a trial when its relative error is half a percent.
const SIZE_ERROR: f64 = 0.005;

impl One {
    /// What a tenant for throughput wants: its cap is what counts.
    pub fn size(
        &mut self,
        seen: &Seen<'_>,
        around: &Around,
        events: &mut Vec<(u64, Event)>,
    ) -> (Option<u32>, Option<Reason>) {
        let (wanted, reason) = self.size_of(around, events);
        self.cap = self.cap.max(seen.least_tpcs);
        (wanted, reason)
    }

    /// Trials on fewer TPCs, and now and then on more, by the mean time.
    pub(super) fn size_of(
        &mut self,
        around: &Around,
        events: &mut Vec<(u64, Event)>,
    ) -> (Option<u32>, Option<Reason>) {
        let Around { time_s, most, .. } = *around;
        match self.trial {
            Some(Trial::Size { from, to, cap_before, base, is_up, began_s }) => {
                let here = Mean::of(&self.here).filter(|here| here.count >= SIZE_BURSTS);
                let close = here.map_or(Close::Open, |here| match is_up {
                    true => is_close(&base, &here, SIZE_BOUND),
                    // Many steps, each within the bound, must not add up to more.
                    false => is_close(&here, &base, SIZE_BOUND / self.slower),
                });
                let is_over = time_s - began_s >= SIZE_S_MAX
                    || here.is_some_and(|here| here.count >= 5 * SIZE_BURSTS_MAX);
                let is_elsewhere = self.tpcs != to && self.settle == 0;
                if close == Close::Open && !is_over && !is_elsewhere {
                    return (Some(to), None);
                }
                self.trial = None;
                let keeps = !is_elsewhere && close == if is_up { Close::No } else { Close::Yes };
                if keeps {
                    let ratio = here.map_or(1.0, |here| here.ns / base.ns);
                    self.slower = (self.slower * ratio).max(1.0);
                    self.failures = if is_up { 0 } else { self.failures.saturating_sub(1) };
                    self.next_trial_s = time_s + self.interval_s();
                    events.push((self.id, Event::Kept { tpcs: to }));
                    return (Some(to), None);
                }
                if let Some(here) = here.filter(|_| is_up && to >= most && !is_elsewhere) {
                    // Compared directly, so errors of single steps do not add up.
                    self.slower = (base.ns / here.ns).max(1.0);
                }
                self.cap = cap_before;
                self.up_next = self.step == 1 && !is_up;
                if !is_up && close == Close::No {
                    // It needs these; whether it needs more is tried later.
                    self.cap = self.cap.min(from);
                }
                self.failed(1, time_s);
                (Some(from), Some(if is_up { Reason::NoFaster } else { Reason::Slower }))
            }
            _ => {
                let is_known = |base: &Mean| {
                    base.count >= SIZE_BURSTS
                        && (base.count >= SIZE_BURSTS_MAX || base.error2 <= SIZE_ERROR * SIZE_ERROR)
                };
                let base = Mean::of(&self.here).filter(is_known);
                let Some(base) = base.filter(|_| time_s >= self.next_trial_s && self.settle == 0) else {
                    return (None, None);
                };
                let from = self.tpcs;
                if from >= most {
                    self.slower = 1.0;
                }
                let is_used_up = self.slower >= SIZE_USED_UP;
                let is_up = (self.up_next || is_used_up) && self.cap < most;
                let to = match is_up {
                    true if is_used_up => most,
                    true => most.min(from + (from / 4).max(1)),
                    false if around.gain && !is_used_up => from.saturating_sub(self.step).max(1),
                    false => from,
                };
                if to == from {
                    return (None, None);
                }
                self.up_next = false;
                let cap_before = self.cap;
                self.cap = to;
                self.trial = Some(Trial::Size { from, to, cap_before, base, is_up, began_s: time_s });
                (Some(to), Some(if is_up { Reason::More } else { Reason::Size }))
            }
        }
    }
}
