//! A running chain as the optimizers see it: a throughput to read, and TPCs to set.

use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partita_core::{Topology, TpcSet};
use partita_frames::{ChainError, ChainFile};
use partita_host::error::Error;
use partita_ledger::LimitsMap;
use partita_steering::{Actuator, Allocation, Objective, Room, Stop, place};

use super::shared::Shared;
use super::state::of_file;
use super::steer::SteeringRequests;

/// A throughput is counted from at least so many frames, if necessary over a longer period: one
/// frame more or less then changes it by 5 %.
pub(super) const FRAMES_MIN: u64 = 20;
/// The longest measurement, in periods. A slow chain gets a coarse result, and a chain that stands
/// still gets one at all.
const PERIODS_MAX: u32 = 50;
/// How long the thread sleeps between two checks for an interruption.
const POLL: Duration = Duration::from_millis(20);

/// Whether a measurement with so many frames is over. It needs `frames_min` of them, or the longest
/// time.
pub(super) fn is_over(period: Duration, passed: Duration, frames: u64, frames_min: u64) -> bool {
    passed >= if frames >= frames_min { period } else { period * PERIODS_MAX }
}

/// A reason for the optimizer to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Interruption {
    /// The chain ends.
    Ending,
    /// A request to steer the chain differently.
    Steering,
    /// The tenant's TPCs changed.
    Resized,
}

/// The actuator of one GPU: the chain's TPCs there, which its limits say.
#[derive(Debug)]
struct OnGpu {
    limits: LimitsMap,
    /// The epoch of the limits as last applied.
    epoch: u64,
    topology: Topology,
    set: TpcSet,
}

impl OnGpu {
    fn open(limits: &CString) -> Result<Self, Error> {
        let damaged = |reason: String| Error::io("the tenant's limits")(io::Error::other(reason));
        let limits = LimitsMap::open_ro(limits).map_err(|error| damaged(error.to_string()))?;
        let (epoch, now) = limits.load().map_err(|error| damaged(error.to_string()))?;
        let topology = now.topology().map_err(|error| damaged(error.to_string()))?;
        Ok(Self { limits, epoch, topology, set: TpcSet::from_words(now.set) })
    }

    /// Reads the limits. Returns whether the set of TPCs changed.
    fn look(&mut self) -> bool {
        if self.limits.epoch() == self.epoch {
            return false;
        }
        // If a writer is busy, the next check reads the limits.
        let Ok((epoch, now)) = self.limits.load() else { return false };
        self.epoch = epoch;
        let set = TpcSet::from_words(now.set);
        std::mem::replace(&mut self.set, set) != set
    }

    /// Suggests TPCs of this GPU to its components.
    fn apply(&self, file: &mut ChainFile, roles: &[usize], part: &Allocation) -> Result<(), ChainError> {
        let sets = place(&self.topology, self.set, part);
        roles
            .iter()
            .zip(&sets)
            .try_for_each(|(role, set)| file.suggest(*role as u8, &set.to_words()).map(drop))
    }
}

/// A running chain: one throughput, and an actuator for each of its GPUs.
#[derive(Debug)]
pub(super) struct RunningChain {
    file: ChainFile,
    gpus: Vec<OnGpu>,
    /// The GPU of each component.
    of: Vec<usize>,
    ending: Arc<AtomicBool>,
    requests: SteeringRequests,
    period: Duration,
    /// Frames that had passed at the end of the last period, and its time; `None` if something has
    /// changed since.
    counted: Option<(u64, Instant)>,
    /// Why the last call stopped.
    pub(super) interruption: Option<Interruption>,
    /// The last division.
    pub(super) applied: Option<Allocation>,
    /// Receives each measurement and each division.
    shared: Arc<Shared>,
}

impl RunningChain {
    pub(super) fn new(
        file: ChainFile,
        limits: &[CString],
        ending: Arc<AtomicBool>,
        requests: SteeringRequests,
        period: Duration,
        shared: Arc<Shared>,
    ) -> Result<Self, Error> {
        let of = (0..file.roles()).map(|role| file.plan().gpu_of(role).into()).collect();
        Ok(Self {
            file,
            gpus: limits.iter().map(OnGpu::open).collect::<Result<_, _>>()?,
            of,
            ending,
            requests,
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

    /// TPCs of the whole chain on each of its GPUs.
    pub(super) fn tpcs(&self) -> Vec<u32> {
        self.gpus.iter().map(|gpu| gpu.set.len()).collect()
    }

    /// The most TPCs that each component can have.
    pub(super) fn room(&self) -> Room {
        let everywhere = self.gpus.iter().map(|gpu| gpu.set.len()).max().unwrap_or_default();
        // Every component's GPU has limits.
        Room::new(self.tpcs(), self.of.as_slice()).unwrap_or_else(|| Room::one(self.of.len(), everywhere))
    }

    pub(super) fn requests(&mut self) -> &mut SteeringRequests {
        &mut self.requests
    }

    /// Reads the tenant's limits. Returns whether a set of TPCs changed.
    fn look_at_limits(&mut self) -> bool {
        let changed = self.gpus.iter_mut().map(OnGpu::look).filter(|changed| *changed).count();
        changed > 0
    }

    /// The interruption that the optimizer must handle first, if any.
    fn interrupted(&mut self) -> Option<Interruption> {
        if self.ending.load(Ordering::Relaxed) {
            return Some(Interruption::Ending);
        }
        if self.requests.is_new() {
            return Some(Interruption::Steering);
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
    /// Waits for a period that is long enough to count so many frames, but no longer than
    /// [`PERIODS_MAX`], and returns its throughput in frames per second.
    fn measure(&mut self, frames_min: u64) -> Result<f64, Stop> {
        // A period begins at the end of the last one, or now after a change or a pause.
        let before = self.counted.take().filter(|(_, at)| at.elapsed() < POLL);
        let (frames_before, begun) = before.unwrap_or_else(|| (self.file.frames_finished(), Instant::now()));
        loop {
            self.stop_if_interrupted()?;
            let passed = begun.elapsed();
            let frames = self.file.frames_finished().saturating_sub(frames_before);
            if is_over(self.period, passed, frames, frames_min) {
                break;
            }
            std::thread::sleep((self.period.saturating_sub(passed)).clamp(POLL / 20, POLL));
        }
        let (frames, now) = (self.file.frames_finished(), Instant::now());
        let passed_s = now.duration_since(begun).as_secs_f64();
        let throughput = frames.saturating_sub(frames_before) as f64 / passed_s.max(1e-9);
        self.counted = Some((frames, now));
        self.shared.measured(throughput, self.applied.as_ref());
        Ok(throughput)
    }

    /// Waits for a period, however many frames pass in it.
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
        let room = self.room();
        for (gpu, roles, part) in room.parts(allocation) {
            let suggested = self.gpus[gpu].apply(&mut self.file, &roles, &part);
            suggested.map_err(|error| Stop::Failed { reason: of_file(self.name(), &error).to_string() })?;
        }
        self.counted = None;
        // The division cannot exceed the chain's TPCs.
        let applied = room.within(allocation);
        self.shared.applied(&applied);
        self.applied = Some(applied);
        Ok(())
    }
}
