//! One benchmark's host thread on the model.

use partita_core::TpcSet;
use partita_sim::{CopyDirection, CopyWork, StreamId, Time, Work};

use super::{ModelError, Run, cpu_walk_ns, kernel};
use crate::dialect::{Config, CopyRoute};
use crate::log::{Iteration, KernelRecord};
use crate::place;
use crate::program::{KernelStep, Program, Step, ns_of};

/// The host's time for a launch: measured on an H200, 3.3 µs for a kernel without work.
const LAUNCH_CALL_NS: Time = 3_300;
/// The host's time for a wait that is over at once (assumption).
const SYNCHRONIZE_CALL_NS: Time = 1_000;

/// What a host waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Until(Time),
    /// All its queued work.
    Works,
    /// The others, for the next iteration.
    Barrier,
    /// Nothing: it has ended.
    Ended,
}

/// The phase of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before its release.
    Release,
    /// At the start of an iteration.
    Begin,
    /// In part 0, 1 or 2 of an iteration, before the step of that number.
    Part(usize, usize),
}

/// A host thread.
pub(super) struct Host {
    index: usize,
    stream: StreamId,
    allowed: TpcSet,
    parts: [Vec<Step>; 3],
    phase: Phase,
    pub(super) wait: Wait,
    /// Queued works that have not ended.
    outstanding: usize,
    /// Whether the present iteration is the warm-up.
    warming: bool,
    has_waited: bool,
    begun: u64,
    started_ns: Time,
    iterations_max: u64,
    time_max_ns: Time,
    current: Iteration,
    pub(super) iterations: Vec<Iteration>,
}

impl Host {
    pub(super) fn new(
        index: usize,
        stream: StreamId,
        allowed: TpcSet,
        program: Program,
        config: &Config,
    ) -> Self {
        let one = &config.benchmarks[index];
        Self {
            index,
            stream,
            allowed,
            parts: [program.copy_in, program.execute, program.copy_out],
            phase: if config.do_warmup { Phase::Part(0, 0) } else { Phase::Release },
            wait: Wait::Until(0),
            outstanding: 0,
            warming: config.do_warmup,
            has_waited: false,
            begun: 0,
            started_ns: 0,
            iterations_max: one.max_iterations.unwrap_or(config.max_iterations),
            time_max_ns: ns_of(one.max_time_s.unwrap_or(config.max_time_s)),
            current: Iteration::default(),
            iterations: Vec::new(),
        }
    }

    /// The placeholder for a host during its step.
    pub(super) fn away() -> Self {
        Self {
            index: 0,
            stream: StreamId::from_u64(u64::MAX),
            allowed: TpcSet::EMPTY,
            parts: Default::default(),
            phase: Phase::Release,
            wait: Wait::Ended,
            outstanding: 0,
            warming: false,
            has_waited: false,
            begun: 0,
            started_ns: 0,
            iterations_max: 0,
            time_max_ns: 0,
            current: Iteration::default(),
            iterations: Vec::new(),
        }
    }

    /// A kernel of the present iteration.
    pub(super) fn kernel(&mut self, number: usize) -> &mut KernelRecord {
        &mut self.current.kernels[number]
    }

    /// One of its works has ended.
    pub(super) fn ended_one(&mut self, now: Time) {
        self.outstanding -= 1;
        if self.outstanding == 0 && self.wait == Wait::Works {
            self.wait = Wait::Until(now);
        }
    }

    /// Continues to its next wait.
    pub(super) fn step(&mut self, run: &mut Run<'_>) -> Result<(), ModelError> {
        let now = run.gpu.now();
        match self.phase {
            Phase::Release => {
                self.phase = Phase::Begin;
                self.started_ns = now;
                let release = run.config.benchmarks[self.index].release_time_s.unwrap_or(0.0);
                self.started_ns += ns_of(release);
                self.wait = Wait::Until(self.started_ns);
            }
            Phase::Begin => self.begin(run),
            Phase::Part(part, step) => return self.part(part, step, run),
        }
        Ok(())
    }

    fn begin(&mut self, run: &Run<'_>) {
        let now = run.gpu.now();
        let late = self.time_max_ns > 0 && now - self.started_ns >= self.time_max_ns;
        let done = self.iterations_max > 0 && self.begun >= self.iterations_max;
        // A thread that stops with the terminator has run at least once.
        if done || late || (run.is_stopped() && self.begun > 0) {
            self.wait = Wait::Ended;
        } else if run.config.sync_every_iteration && !self.has_waited {
            self.has_waited = true;
            self.wait = Wait::Barrier;
        } else {
            self.has_waited = false;
            self.begun += 1;
            self.current = Iteration::default();
            self.phase = Phase::Part(0, 0);
        }
    }

    fn part(&mut self, part: usize, step: usize, run: &mut Run<'_>) -> Result<(), ModelError> {
        let now = run.gpu.now();
        if step == 0 {
            self.times(part)[0] = now;
        }
        let Some(next) = self.parts[part].get(step).cloned() else {
            if self.outstanding > 0 {
                self.wait = Wait::Works;
                return Ok(());
            }
            self.times(part)[1] = now;
            if part == 1 {
                for kernel in &mut self.current.kernels {
                    kernel.launch_ns[2] = now;
                }
            }
            self.phase = if part < 2 { Phase::Part(part + 1, 0) } else { self.iteration_ended(run) };
            return Ok(());
        };
        self.phase = Phase::Part(part, step + 1);
        let client = self.index as u64;
        match next {
            Step::Sleep(ns) => self.wait = Wait::Until(now + ns),
            Step::CpuWalk { is_random, accesses, .. } => {
                self.wait = Wait::Until(now + cpu_walk_ns(is_random, accesses));
            }
            Step::Synchronize => {
                let call = now + SYNCHRONIZE_CALL_NS;
                self.wait = if self.outstanding > 0 { Wait::Works } else { Wait::Until(call) };
            }
            Step::Copy { route, bytes } => {
                let direction = match route {
                    CopyRoute::DeviceToDevice => CopyDirection::Within,
                    CopyRoute::DeviceToHost => CopyDirection::ToHost,
                    CopyRoute::HostToDevice => CopyDirection::ToDevice,
                };
                self.submit(CopyWork { bytes, direction, client }.into(), None, run)?;
            }
            Step::Fill { bytes } => {
                self.submit(CopyWork { bytes, direction: CopyDirection::Fill, client }.into(), None, run)?;
            }
            Step::Kernel(step) => self.launch(&step, run)?,
        }
        Ok(())
    }

    fn launch(&mut self, step: &KernelStep, run: &mut Run<'_>) -> Result<(), ModelError> {
        let now = run.gpu.now();
        let one = &run.config.benchmarks[self.index];
        let enabled = match step.sm_mask {
            Some(mask) => place::enabled(one, mask, &run.spec.topology)?,
            None => self.allowed,
        };
        let keeps = one.record_blocks && !one.is_discarded() && !self.warming;
        let work = kernel(run.spec, run.costs, step, enabled, keeps);
        self.current.kernels.push(KernelRecord {
            name: step.name.clone(),
            block_count: work.grid_blocks,
            thread_count: work.threads_per_block,
            shared_bytes: step.shared_bytes,
            launch_ns: [now, now + LAUNCH_CALL_NS, 0],
            span_ns: [now, now],
            blocks: Vec::new(),
        });
        self.submit(work.into(), Some(self.current.kernels.len() - 1), run)?;
        self.wait = Wait::Until(now + LAUNCH_CALL_NS);
        Ok(())
    }

    fn submit(&mut self, work: Work, kernel: Option<usize>, run: &mut Run<'_>) -> Result<(), ModelError> {
        let title = || run.config.benchmarks[self.index].title().to_owned();
        let submitted = run.gpu.submit(self.stream, work);
        let work = submitted.map_err(|reason| ModelError::Refused { title: title(), reason })?;
        run.owners.insert(work, (self.index, kernel));
        self.outstanding += 1;
        Ok(())
    }

    fn times(&mut self, part: usize) -> &mut [Time; 2] {
        match part {
            0 => &mut self.current.copy_in_ns,
            1 => &mut self.current.execute_ns,
            _ => &mut self.current.copy_out_ns,
        }
    }

    fn iteration_ended(&mut self, run: &Run<'_>) -> Phase {
        let mut ended = std::mem::take(&mut self.current);
        if self.warming {
            self.warming = false;
            // All are warm before the first is released.
            self.wait = Wait::Barrier;
            return Phase::Release;
        }
        let one = &run.config.benchmarks[self.index];
        ended.cpu_core = one.cpu_core.unwrap_or(if run.config.pin_cpus { self.index as u32 + 1 } else { 0 });
        if !one.is_discarded() {
            self.iterations.push(ended);
        }
        Phase::Begin
    }
}
