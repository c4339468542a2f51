//! A running chain as the optimizers see it: a throughput to be read, and TPCs to be set.

use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partita_core::{Topology, TpcSet};
use partita_frames::ChainFile;
use partita_host::error::Error;
use partita_ledger::LimitsMap;
use partita_steering::{Actuator, Allocation, Objective, Stop, place};

use super::shared::Shared;
use super::state::of_file;
use super::steer::Orders;

/// Frames that a throughput is counted from, if need be by a longer period: one more or less is
/// then 5 %.
const FRAMES_MIN: u64 = 20;
/// The longest period, in periods: a slow chain is measured coarsely, one that stands still is
/// found to.
const PERIODS_MAX: u32 = 50;
/// The longest that nobody looks whether the chain is to stop.
const LOOK: Duration = Duration::from_millis(20);

/// What happens to the chain that its optimizer must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Interruption {
    /// The chain ends.
    Ending,
    /// Somebody wants it steered otherwise.
    Order,
    /// Its tenant has other TPCs now.
    Resized,
}

/// A running chain.
#[derive(Debug)]
pub(super) struct RunningChain {
    file: ChainFile,
    limits: LimitsMap,
    /// The epoch of the limits that were applied last.
    limits_epoch: u64,
    topology: Topology,
    set: TpcSet,
    ending: Arc<AtomicBool>,
    orders: Orders,
    period: Duration,
    /// Frames that had passed, and when, at the end of the last period; none if something was
    /// changed since.
    counted: Option<(u64, Instant)>,
    /// Why the last call stopped.
    pub(super) interruption: Option<Interruption>,
    /// What was applied last.
    pub(super) applied: Option<Allocation>,
    /// Told of each measurement and each division.
    shared: Arc<Shared>,
}

impl RunningChain {
    pub(super) fn new(
        file: ChainFile,
        limits_path: &CString,
        ending: Arc<AtomicBool>,
        orders: Orders,
        period: Duration,
        shared: Arc<Shared>,
    ) -> Result<Self, Error> {
        let damaged = |reason: String| Error::io("the tenant's limits")(io::Error::other(reason));
        let map = LimitsMap::open_ro(limits_path).map_err(|error| damaged(error.to_string()))?;
        let (epoch, now) = map.load().map_err(|error| damaged(error.to_string()))?;
        let topology = now.topology().map_err(|error| damaged(error.to_string()))?;
        Ok(Self {
            file,
            limits: map,
            limits_epoch: epoch,
            topology,
            set: TpcSet::from_words(now.set),
            ending,
            orders,
            period,
            counted: None,
            interruption: None,
            applied: None,
            shared,
        })
    }

    /// The chain's name.
    pub(super) fn name(&self) -> &str {
        &self.file.plan().name
    }

    /// How many components it has.
    pub(super) fn components(&self) -> usize {
        self.file.plan().roles.len()
    }

    /// TPCs that the chain has in all.
    pub(super) fn tpcs(&self) -> u32 {
        self.set.len()
    }

    pub(super) fn orders(&mut self) -> &mut Orders {
        &mut self.orders
    }

    /// Takes up what the tenant's limits say now. Whether the set has changed.
    fn look_at_limits(&mut self) -> bool {
        if self.limits.epoch() == self.limits_epoch {
            return false;
        }
        // One that is being written over and over is read at the next look.
        let Ok((epoch, now)) = self.limits.load() else { return false };
        self.limits_epoch = epoch;
        let set = TpcSet::from_words(now.set);
        std::mem::replace(&mut self.set, set) != set
    }

    /// What must be seen to before the optimizer goes on.
    fn interrupted(&mut self) -> Option<Interruption> {
        if self.ending.load(Ordering::Relaxed) {
            return Some(Interruption::Ending);
        }
        if self.orders.is_new() {
            return Some(Interruption::Order);
        }
        self.look_at_limits().then_some(Interruption::Resized)
    }

    fn stop_if_interrupted(&mut self) -> Result<(), Stop> {
        match self.interrupted() {
            None => Ok(()),
            some => {
                self.interruption = some;
                Err(Stop::Asked)
            }
        }
    }
}

impl RunningChain {
    /// Lets a period pass, as long as it takes to count so many frames but no longer than
    /// [`PERIODS_MAX`], and returns its throughput in frames per second.
    fn measure(&mut self, frames_min: u64) -> Result<f64, Stop> {
        // A period begins where the one before ended, or after a change or a pause now.
        let before = self.counted.take().filter(|(_, at)| at.elapsed() < LOOK);
        let (frames_before, begun) = before.unwrap_or_else(|| (self.file.frames_finished(), Instant::now()));
        loop {
            self.stop_if_interrupted()?;
            let passed = begun.elapsed();
            let is_counted = self.file.frames_finished().saturating_sub(frames_before) >= frames_min;
            let period = if is_counted { self.period } else { self.period * PERIODS_MAX };
            if passed >= period {
                break;
            }
            std::thread::sleep((self.period.saturating_sub(passed)).clamp(LOOK / 20, LOOK));
        }
        let (frames, now) = (self.file.frames_finished(), Instant::now());
        let passed_s = now.duration_since(begun).as_secs_f64();
        let throughput = frames.saturating_sub(frames_before) as f64 / passed_s.max(1e-9);
        self.counted = Some((frames, now));
        self.shared.measured(throughput, self.applied.as_ref());
        Ok(throughput)
    }

    /// Lets a period pass, whatever comes out of the chain in it.
    ///
    /// # Errors
    /// [`Stop::Asked`].
    pub(super) fn pass_period(&mut self) -> Result<f64, Stop> {
        self.measure(0)
    }
}

impl Objective for RunningChain {
    fn throughput(&mut self) -> Result<f64, Stop> {
        self.measure(FRAMES_MIN)
    }
}

impl Actuator for RunningChain {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.stop_if_interrupted()?;
        let sets = place(&self.topology, self.set, allocation);
        for (role, set) in (0..self.file.roles()).zip(&sets) {
            let suggested = self.file.suggest(role, &set.to_words());
            suggested.map_err(|error| Stop::Failed { reason: of_file(self.name(), &error).to_string() })?;
        }
        self.counted = None;
        // What they have, which is no more than there is.
        let applied = allocation.within(self.set.len());
        self.shared.applied(&applied);
        self.applied = Some(applied);
        Ok(())
    }
}
