//! Running a scenario on the model.
//!
//! Threads of one process are streams of one group, which run at the same time; processes are
//! groups that take turns, or streams of one group if they share an MPS server. The model of the
//! hosts' threads has only their effects on the GPU: they sleep, launch and wait. Equal
//! configurations give equal records.

mod host;
mod law;

use std::collections::HashMap;

use partita_core::TpcSet;
use partita_sim::{DeviceSpec, Engine, Event, EventKind, GroupKind, SubmitError, Time, WorkId};
use thiserror::Error;

use crate::costs::Costs;
use crate::dialect::Config;
use crate::experiment::Scenario;
use crate::log::{BlockSpan, HostRecord, Record};
use crate::place::{self, PlaceError};
use crate::program::{NotRun, Program};
use host::{Host, Wait};
pub use law::{cpu_walk_ns, kernel, percentage_set};

/// Process numbers of the model.
const PID: u32 = 1_000;
/// A scenario that runs for longer counts as endless.
const LONGEST_NS: Time = 24 * 3_600 * 1_000_000_000;

/// Why a scenario cannot be run on the model.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ModelError {
    /// A benchmark has no place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A benchmark is invalid.
    #[error(transparent)]
    NotRun(#[from] NotRun),
    /// A launch that the device refuses.
    #[error("{title}: {reason}")]
    Refused {
        /// The benchmark.
        title: String,
        /// Why.
        reason: SubmitError,
    },
    /// A launch that would wait for ever.
    #[error("{title}: its kernel would never start: {reason}")]
    Stuck {
        /// The benchmark.
        title: String,
        /// Why.
        reason: String,
    },
    /// It does not end.
    #[error("after a day of the device's time it still runs")]
    Endless,
}

/// Runs a scenario of an experiment: on the device, or in its MIG instance.
///
/// # Errors
/// [`ModelError`].
pub fn run_scenario(scenario: &Scenario, device: &DeviceSpec, seed: u64) -> Result<Record, ModelError> {
    run_scenario_at(scenario, device, seed, &Costs::default())
}

/// As [`run_scenario`], at the costs of kernels on one GPU.
///
/// # Errors
/// [`ModelError`].
pub fn run_scenario_at(
    scenario: &Scenario,
    device: &DeviceSpec,
    seed: u64,
    costs: &Costs,
) -> Result<Record, ModelError> {
    match scenario.instance {
        Some(instance) => run(&scenario.config, &instance.of(device), seed, costs),
        None => run(&scenario.config, device, seed, costs),
    }
}

/// One running scenario.
pub(crate) struct Run<'a> {
    pub(crate) spec: &'a DeviceSpec,
    pub(crate) costs: &'a Costs,
    pub(crate) config: &'a Config,
    pub(crate) gpu: Engine,
    hosts: Vec<Host>,
    /// The owner of a work, and its kernel, if it is one.
    pub(crate) owners: HashMap<WorkId, (usize, Option<usize>)>,
    /// The others end after their iteration.
    stopped: bool,
}

/// Runs a scenario on a device.
///
/// # Errors
/// [`ModelError`].
pub fn run(config: &Config, spec: &DeviceSpec, seed: u64, costs: &Costs) -> Result<Record, ModelError> {
    let sets = place::sets(config, &spec.topology)?;
    let mut gpu = Engine::new(spec, seed);
    let shared = (!config.use_processes).then(|| gpu.add_group(GroupKind::Own));
    let mps = config.runs_under_mps().then(|| gpu.add_group(GroupKind::Mps));
    let mut hosts = Vec::new();
    for (index, (one, set)) in config.benchmarks.iter().zip(&sets).enumerate() {
        let group = shared.or(mps).unwrap_or_else(|| gpu.add_group(GroupKind::Own));
        // CUDA takes the nearest priority that the device has.
        let scheduler = &spec.scheduler;
        let priority =
            one.stream_priority.unwrap_or(0).clamp(scheduler.priority_greatest, scheduler.priority_least);
        let stream = gpu.add_stream(group, priority).expect("a group that was just made");
        let mut allowed = set.unwrap_or_else(|| spec.topology.all());
        if let Some(percentage) = one.mps_thread_percentage.filter(|&percentage| percentage < 100.0) {
            let part = percentage_set(spec, percentage, index);
            // If the two share nothing, only the mask holds: hardware does not know the
            // percentage's set.
            if !allowed.is_disjoint(&part) {
                allowed &= part;
            }
        }
        hosts.push(Host::new(index, stream, allowed, Program::of(one)?, config));
    }
    let mut run = Run { spec, costs, config, gpu, hosts, owners: HashMap::new(), stopped: false };
    run.finish()?;
    Ok(run.record(&sets))
}

impl Run<'_> {
    fn finish(&mut self) -> Result<(), ModelError> {
        let mut events = Vec::new();
        loop {
            while self.step_hosts()? {}
            let asleep = self.hosts.iter().filter_map(|host| match host.wait {
                Wait::Until(time) => Some(time),
                _ => None,
            });
            let Some(next) = asleep.chain(self.gpu.next_event()).min() else {
                return self.ended();
            };
            if next > LONGEST_NS {
                return Err(ModelError::Endless);
            }
            events.clear();
            self.gpu.advance_into(next, &mut events);
            for event in &events {
                self.hear(event);
            }
        }
    }

    /// No progress any more: all have ended, or a launch is stuck.
    fn ended(&self) -> Result<(), ModelError> {
        if self.hosts.iter().all(|host| matches!(host.wait, Wait::Ended)) {
            return Ok(());
        }
        let stuck = self.gpu.stuck();
        let reason = stuck.first().map_or("nothing moves".to_owned(), |stuck| stuck.reason.to_string());
        let owner = stuck.first().and_then(|stuck| self.owners.get(&stuck.work));
        let index = owner.map_or(0, |(host, _)| *host);
        Err(ModelError::Stuck { title: self.config.benchmarks[index].title().to_owned(), reason })
    }

    /// Lets every host continue that can; returns whether one did.
    fn step_hosts(&mut self) -> Result<bool, ModelError> {
        let now = self.gpu.now();
        let mut moved = false;
        for index in 0..self.hosts.len() {
            while matches!(self.hosts[index].wait, Wait::Until(time) if time <= now) {
                moved = true;
                let mut host = std::mem::replace(&mut self.hosts[index], Host::away());
                let stepped = host.step(self);
                self.hosts[index] = host;
                stepped?;
                let one = &self.config.benchmarks[index];
                self.stopped |= one.terminator && matches!(self.hosts[index].wait, Wait::Ended);
            }
        }
        // All running threads are at the barrier.
        let mut running = self.hosts.iter().filter(|host| !matches!(host.wait, Wait::Ended)).peekable();
        if running.peek().is_some() && running.all(|host| matches!(host.wait, Wait::Barrier)) {
            for host in self.hosts.iter_mut().filter(|host| matches!(host.wait, Wait::Barrier)) {
                host.wait = Wait::Until(now);
            }
            moved = true;
        }
        Ok(moved)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn hear(&mut self, event: &Event) {
        match event.kind {
            EventKind::WorkStarted { work } => {
                if let Some(&(host, Some(kernel))) = self.owners.get(&work) {
                    self.hosts[host].kernel(kernel).span_ns[0] = event.time;
                }
            }
            EventKind::WorkDone { work } => {
                let Some((index, kernel)) = self.owners.remove(&work) else { return };
                let host = &mut self.hosts[index];
                if let Some(kernel) = kernel {
                    let blocks = self.gpu.take_blocks(work).unwrap_or_default();
                    let record = host.kernel(kernel);
                    record.span_ns[1] = event.time;
                    let span = |block: partita_sim::BlockRecord| BlockSpan {
                        sm: block.sm,
                        start_ns: block.start_ns,
                        stop_ns: block.stop_ns,
                    };
                    record.blocks = blocks.into_iter().map(span).collect();
                    if let Some(first) = record.blocks.iter().map(|block| block.start_ns).min() {
                        record.span_ns[0] = first;
                    }
                }
                host.ended_one(event.time);
            }
            EventKind::WorkKilled { .. }
            | EventKind::GroupSwitched { .. }
            | EventKind::BlockStarted { .. } => {}
        }
    }

    fn record(self, sets: &[Option<TpcSet>]) -> Record {
        let several = self.config.use_processes;
        let hosts = self.hosts.into_iter().zip(1u32..).map(|(host, number)| HostRecord {
            iterations: host.iterations,
            pid: if several { PID + number } else { PID },
            tid: (!several).then_some(PID + number),
        });
        Record::of(self.config, self.spec, sets, hosts.collect())
    }
}
