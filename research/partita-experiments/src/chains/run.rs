//! A chain that runs on the model of a GPU.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use partita_core::TpcSet;
use partita_sim::{DeviceSpec, Engine, EventKind, GroupKind, KernelWork, StreamId, Time, WorkId};
use partita_steering::{Actuator, Allocation, Objective, Stop, place};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainOptions {
    /// A process's time for a frame beside its kernel, in nanoseconds: from the kernel's end until
    /// the next component can launch, and this one can again.
    pub hand_over_ns: Time,
    /// The number of frames: at most this many are on their way, and the first component waits for
    /// one that has come back.
    pub frames: u32,
    /// The time over which throughput is measured, in nanoseconds.
    pub period_ns: Time,
}

impl ChainOptions {
    /// Hand-over in 5 µs, two frames a component, periods of 100 ms.
    pub fn new(components: usize) -> Self {
        Self { hand_over_ns: 5_000, frames: 2 * components as u32, period_ns: 100_000_000 }
    }
}

/// A component.
#[derive(Debug, Clone)]
struct Stage {
    stream: StreamId,
    kernel: KernelWork,
    /// Frames that wait for it.
    waiting: u32,
    state: State,
    /// Nanoseconds during which its kernels were at the GPU.
    busy_ns: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// Its kernel is at the GPU since then.
    Kernel(WorkId, Time),
    /// Its process hands the frame over.
    HandsOver,
}

/// A chain on a separate device. Its components are clients of one MPS service, a process each,
/// with one kernel at a time; frames are ready as fast as the first component takes them. Equal
/// arguments give equal runs.
#[derive(Debug, Clone)]
pub struct ModelChain {
    gpu: Engine,
    within: TpcSet,
    options: ChainOptions,
    stages: Vec<Stage>,
    /// When processes finish the hand-over: `(time, component)`.
    timers: BinaryHeap<Reverse<(Time, usize)>>,
    done: u64,
    /// When the last frame was finished.
    last_done_ns: Time,
    applied: Option<Allocation>,
    periods: u64,
    events: Vec<partita_sim::Event>,
}

impl ModelChain {
    /// A chain whose components launch these kernels, on the kernels' own TPCs before the first
    /// allocation. `within` are the TPCs for allocations.
    pub fn new(
        spec: &DeviceSpec,
        within: TpcSet,
        kernels: Vec<KernelWork>,
        options: ChainOptions,
        seed: u64,
    ) -> Self {
        let mut gpu = Engine::new(spec, seed);
        let group = gpu.add_group(GroupKind::Mps);
        let mut stages: Vec<Stage> = kernels
            .into_iter()
            .map(|kernel| Stage {
                stream: gpu.add_stream(group, 0).expect("a group that was just made"),
                kernel,
                waiting: 0,
                state: State::Idle,
                busy_ns: 0,
            })
            .collect();
        if let Some(first) = stages.first_mut() {
            first.waiting = options.frames.max(1);
        }
        Self {
            gpu,
            within,
            options,
            stages,
            timers: BinaryHeap::new(),
            done: 0,
            last_done_ns: 0,
            applied: None,
            periods: 0,
            events: Vec::new(),
        }
    }

    /// The number of components.
    pub fn components(&self) -> usize {
        self.stages.len()
    }

    /// The allocation in force, if any was applied yet.
    pub fn applied(&self) -> Option<&Allocation> {
        self.applied.as_ref()
    }

    /// The number of measured periods.
    pub fn periods(&self) -> u64 {
        self.periods
    }

    /// A component's next launches have another length: its input has changed.
    ///
    /// # Panics
    /// There is no such component.
    pub fn set_block_ns(&mut self, component: usize, block_ns: Time) {
        self.stages[component].kernel.block_ns = block_ns;
    }

    /// For how long each component had a kernel at the GPU, in nanoseconds.
    pub fn busy_ns(&self) -> Vec<Time> {
        self.stages.iter().map(|stage| stage.busy_ns).collect()
    }

    /// Runs until this many more frames are finished, and returns their rate, in frames per second,
    /// counted from the frame before the first of them.
    ///
    /// # Errors
    /// A chain that stands still.
    pub fn run_frames(&mut self, frames: u64) -> Result<f64, Stop> {
        let (first, first_ns) = (self.done, self.last_done_ns);
        while self.done < first + frames {
            self.step(Time::MAX)?;
        }
        Ok(rate(self.done - first, self.last_done_ns - first_ns))
    }

    /// Advances to the next event, at most to `until`.
    fn step(&mut self, until: Time) -> Result<(), Stop> {
        for component in 0..self.stages.len() {
            self.launch(component)?;
        }
        let handed = self.timers.peek().map(|&Reverse((time, _))| time);
        let next = handed.into_iter().chain(self.gpu.next_event()).min().unwrap_or(Time::MAX);
        if next == Time::MAX && until == Time::MAX {
            let reason = "the modelled chain stands still: a kernel has no TPC to run on".into();
            return Err(Stop::Failed { reason });
        }
        let mut events = std::mem::take(&mut self.events);
        self.gpu.advance_into(next.min(until), &mut events);
        for event in events.drain(..) {
            if let EventKind::WorkDone { work } = event.kind {
                self.kernel_done(work, event.time);
            }
        }
        self.events = events;
        while let Some(&Reverse((time, component))) = self.timers.peek() {
            if time > self.gpu.now() {
                break;
            }
            self.timers.pop();
            self.handed_over(component, time);
        }
        Ok(())
    }

    fn launch(&mut self, component: usize) -> Result<(), Stop> {
        let now = self.gpu.now();
        let stage = &mut self.stages[component];
        if stage.state != State::Idle || stage.waiting == 0 {
            return Ok(());
        }
        stage.waiting -= 1;
        let work = self.gpu.submit(stage.stream, stage.kernel.clone());
        let work = work.map_err(|error| Stop::Failed { reason: error.to_string() })?;
        stage.state = State::Kernel(work, now);
        Ok(())
    }

    fn kernel_done(&mut self, work: WorkId, now: Time) {
        let mine = |stage: &Stage| matches!(stage.state, State::Kernel(own, _) if own == work);
        let Some(component) = self.stages.iter().position(mine) else { return };
        let stage = &mut self.stages[component];
        if let State::Kernel(_, since) = stage.state {
            stage.busy_ns += now - since;
        }
        stage.state = State::HandsOver;
        self.timers.push(Reverse((now + self.options.hand_over_ns, component)));
    }

    fn handed_over(&mut self, component: usize, now: Time) {
        self.stages[component].state = State::Idle;
        let next = (component + 1) % self.stages.len();
        self.stages[next].waiting += 1;
        if next == 0 {
            self.done += 1;
            self.last_done_ns = now;
        }
    }
}

/// Frames per second.
fn rate(frames: u64, ns: Time) -> f64 {
    if ns == 0 { 0.0 } else { frames as f64 * 1e9 / ns as f64 }
}

impl Objective for ModelChain {
    /// The frames finished in the period, over the time from the last frame before it to the last
    /// one in it: so a long unfinished frame does not make the number coarse.
    fn throughput(&mut self) -> Result<f64, Stop> {
        let (first, first_ns) = (self.done, self.last_done_ns);
        let end = self.gpu.now() + self.options.period_ns;
        while self.gpu.now() < end {
            self.step(end)?;
        }
        self.periods += 1;
        Ok(rate(self.done - first, self.last_done_ns - first_ns))
    }
}

impl Actuator for ModelChain {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        if allocation.components() != self.stages.len() {
            let reason = format!(
                "an allocation for {} components, not {}",
                allocation.components(),
                self.stages.len()
            );
            return Err(Stop::Failed { reason });
        }
        let sets = place(&self.gpu.spec().topology, self.within, allocation);
        for (stage, set) in self.stages.iter_mut().zip(sets) {
            stage.kernel.enabled = set;
        }
        self.applied = Some(allocation.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_sim::catalogue;
    use partita_steering::{Controller, ControllerOptions, Happening, Room};

    /// Kernels that fill the SMs of this many TPCs once, with blocks of this length.
    fn chain(tpcs_and_us: &[(u32, Time)], options: ChainOptions) -> ModelChain {
        let spec = catalogue::device("h200").unwrap();
        let kernel = |&(tpcs, us): &(u32, Time)| KernelWork {
            sm_permille: 1_000,
            ..KernelWork::new((2 * tpcs).into(), 1024, us * 1_000, spec.topology.all())
        };
        let kernels = tpcs_and_us.iter().map(kernel).collect();
        ModelChain::new(&spec, spec.topology.all(), kernels, options, 0)
    }

    #[test]
    fn the_slowest_component_and_its_hand_over_decide() {
        let options = ChainOptions { hand_over_ns: 40_000, ..ChainOptions::new(3) };
        let mut chain = chain(&[(10, 100), (20, 300), (30, 50)], options);
        chain.run_frames(10).unwrap();
        let rate = chain.run_frames(50).unwrap();
        // 300 µs for its one wave, 2.2 µs from launch to first instruction, 40 µs for the process.
        assert!((rate / (1e9 / 342_200.0) - 1.0).abs() < 0.01, "{rate}");
        let busy = chain.busy_ns();
        assert!(busy[1] > busy[0] && busy[0] > busy[2], "{busy:?}");
    }

    #[test]
    fn one_frame_alone_goes_through_all_before_the_next_one() {
        let options = ChainOptions { hand_over_ns: 10_000, frames: 1, ..ChainOptions::new(2) };
        let mut chain = chain(&[(10, 100), (10, 100)], options);
        let rate = chain.run_frames(20).unwrap();
        assert!((rate / (1e9 / (2.0 * 112_200.0)) - 1.0).abs() < 0.01, "{rate}");
    }

    #[test]
    fn an_allocation_holds_from_the_next_launch_on() {
        let mut chain = chain(&[(60, 100), (60, 100)], ChainOptions::new(2));
        chain.apply(&Allocation::new([66, 20]).unwrap()).unwrap();
        chain.run_frames(10).unwrap();
        // 120 blocks on 40 SMs, three to each, and half the SMs shared with the other component's.
        let rate = chain.run_frames(50).unwrap();
        assert!(rate < 1e9 / 300_000.0 && rate > 1e9 / 450_000.0, "{rate}");
        let wrong = chain.apply(&Allocation::uniform(3, 5)).unwrap_err();
        assert!(wrong.to_string().contains("3 components, not 2"), "{wrong}");
        assert_eq!(chain.applied().unwrap().tpcs(), [66, 20]);
    }

    #[test]
    fn the_controller_sees_an_input_that_grows_and_measures_it_once() {
        let options = ChainOptions { period_ns: 10_000_000, ..ChainOptions::new(3) };
        let mut chain = chain(&[(20, 100), (66, 200), (20, 100)], options);
        let mut controller =
            Controller::new(Allocation::uniform(3, 66), Room::one(3, 66), ControllerOptions::default());
        while controller.periods() < 60 {
            controller.step(&mut chain).unwrap();
        }
        let before = controller.level_frames_per_s().unwrap();
        chain.set_block_ns(1, 400_000);
        while controller.periods() < 200 {
            controller.step(&mut chain).unwrap();
        }
        let after = controller.level_frames_per_s().unwrap();
        assert!(after < 0.75 * before, "{before} {after}");
        let shifts = controller.records().filter(|record| matches!(record.what, Happening::Shift { .. }));
        assert_eq!(shifts.count(), 1);
        assert_eq!(chain.applied().unwrap_or(&Allocation::uniform(3, 66)), controller.in_force());
    }
}
