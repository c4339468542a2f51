//! Copy engines: each serves one transfer at a time, in order, beside computation.
//!
//! Transfers of one direction share one engine. They run whichever group the compute engine serves,
//! and contend for DRAM like blocks.

use std::collections::VecDeque;

use crate::Time;
use crate::bandwidth::{self, Pace, PacedClock};
use crate::group::Notice;
use crate::spec::CopySpec;
use crate::work::{CopyDirection, CopyWork};

/// A transfer and its needs.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    work: u64,
    length_ns: Time,
    /// Its demand of bandwidth, in bytes per millisecond.
    demand: u64,
}

#[derive(Clone, Debug, Default)]
struct CopyEngine {
    running: Option<(Transfer, Time)>,
    waiting: VecDeque<Transfer>,
}

/// All copy engines of the device.
#[derive(Clone, Debug)]
pub(crate) struct CopyEngines {
    spec: CopySpec,
    engines: Vec<CopyEngine>,
    clock: PacedClock,
    /// The running transfers' demand of bandwidth, in bytes per millisecond.
    pub(crate) demand: u64,
    running: u32,
}

impl CopyEngines {
    pub(crate) fn new(spec: CopySpec) -> Self {
        let engines = vec![CopyEngine::default(); spec.engines.max(1) as usize];
        Self { spec, engines, clock: PacedClock::default(), demand: 0, running: 0 }
    }

    /// Whether no transfer runs; then none waits either.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.running == 0
    }

    /// Queues a transfer at the engine for its direction; returns that engine.
    pub(crate) fn submit(&mut self, work: u64, copy: CopyWork, notices: &mut Vec<Notice>) -> usize {
        let local = self.spec.local_bytes_per_s;
        let (preferred, rate, traffic_per_byte) = match copy.direction {
            CopyDirection::ToDevice => (0, self.spec.link_bytes_per_s, 1),
            CopyDirection::ToHost => (1, self.spec.link_bytes_per_s, 1),
            CopyDirection::Within => (2, local, 2),
            // Writes only, so twice as fast as reading and writing.
            CopyDirection::Fill => (2, local.saturating_mul(2), 1),
        };
        let index = preferred % self.engines.len();
        let transfer_ns = u128::from(copy.bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let transfer_ns = Time::try_from(transfer_ns).unwrap_or(Time::MAX / 4).min(Time::MAX / 4);
        let length_ns = self.spec.latency_ns + transfer_ns;
        let demand = bandwidth::demand(copy.bytes.saturating_mul(traffic_per_byte), length_ns);
        self.engines[index].waiting.push_back(Transfer { work, length_ns, demand });
        self.start(index, notices);
        index
    }

    /// How long until a transfer ends.
    #[inline]
    pub(crate) fn until_next(&self, pace: Pace) -> Option<Time> {
        if self.is_idle() {
            return None;
        }
        self.engines.iter().filter_map(|engine| Some(self.clock.until(engine.running?.1, pace))).min()
    }

    /// Lets time pass; no end of a transfer may lie inside.
    #[inline]
    pub(crate) fn run(&mut self, dt: Time, pace: Pace) {
        // The clock stands still while there is nothing to time, so that it needs no updates then.
        if !self.is_idle() {
            self.clock.advance(dt, pace);
        }
    }

    /// Ends the transfers that are due and starts those behind them.
    pub(crate) fn settle(&mut self, notices: &mut Vec<Notice>) {
        if self.is_idle() {
            return;
        }
        for index in 0..self.engines.len() {
            while let Some((transfer, due)) = self.engines[index].running {
                if due > self.clock.now() {
                    break;
                }
                notices.push(Notice::Done { work: transfer.work, records: None });
                self.stop(index);
                self.start(index, notices);
            }
        }
    }

    /// Discards a transfer.
    pub(crate) fn kill(&mut self, work: u64, index: usize, notices: &mut Vec<Notice>) {
        let engine = &mut self.engines[index];
        engine.waiting.retain(|transfer| transfer.work != work);
        if engine.running.is_some_and(|(transfer, _)| transfer.work == work) {
            self.stop(index);
            self.start(index, notices);
        }
    }

    fn stop(&mut self, index: usize) {
        if let Some((transfer, _)) = self.engines[index].running.take() {
            self.demand -= transfer.demand;
            self.running -= 1;
        }
    }

    fn start(&mut self, index: usize, notices: &mut Vec<Notice>) {
        let engine = &mut self.engines[index];
        if engine.running.is_none()
            && let Some(transfer) = engine.waiting.pop_front()
        {
            engine.running = Some((transfer, self.clock.ceil() + transfer.length_ns));
            self.demand += transfer.demand;
            self.running += 1;
            notices.push(Notice::Started { work: transfer.work });
        }
    }
}
