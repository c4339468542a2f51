//! One benchmark's thread: with the same phases as a host on the model.

use std::mem::{ManuallyDrop, forget};
use std::time::Duration;

use partita_abi::qmd::QmdLayout;
use partita_core::{Topology, TpcSet};
use partita_driver::{
    Copies, Cuda, Gpu, ProcessMasks, Scope, Stream, WorkShape, Workload, Workloads, now_ns,
};

use super::describe;
use super::meeting::Meeting;
use super::steps::{Maker, Ready};
use crate::dialect::{Benchmark, Config, CopyRoute, Task};
use crate::log::{HostRecord, Iteration, KernelRecord};
use crate::program::{Program, ns_of};

/// State that the threads of a process share.
pub(super) struct Scene {
    pub meeting: Meeting,
    pub config: Config,
    pub topology: Topology,
    /// The set of each benchmark, logical.
    pub sets: Vec<Option<TpcSet>>,
    pub layout: &'static QmdLayout,
    pub cuda: Cuda,
    /// The benchmark whose thread compares the clocks.
    pub keeps_clock: Option<usize>,
    /// Whether threads spin while they wait: where each has a core.
    pub waits_awake: bool,
}

/// The record of a thread.
pub(super) struct Done {
    pub host: HostRecord,
    pub clock_offset_ns: Option<i64>,
}

/// A waiting thread with less than this left stays awake.
const WAKE_NS: u64 = 200_000;
/// Kernels whose ends serve to compare the clocks.
const LOOKS: u32 = 32;

/// Runs a benchmark from its first allocation to its last iteration.
pub(super) fn run(scene: &Scene, index: usize) -> Result<Done, String> {
    let one = &scene.config.benchmarks[index];
    let program = Program::of(one).map_err(describe)?;
    if matches!(
        one.task,
        Task::TimerSpin { on_default_stream: true, .. } | Task::StreamAction { uses_null_stream: true, .. }
    ) {
        return Err(
            "default streams carry no mask of their own and are not run on a GPU here: use timer_spin, or \
                    use_null_stream false"
                .to_owned(),
        );
    }
    let cpu_core = pin(&scene.config, one, index)?;
    let cuda = &scene.cuda;
    // The process ends; a faulty driver would hang in its destructors.
    let gpu = ManuallyDrop::new(Gpu::open(cuda, 0).map_err(describe)?);
    let workloads = Workloads::load(&gpu).map_err(describe)?;
    let stream = Stream::with_priority(cuda, one.stream_priority.unwrap_or(0)).map_err(describe)?;
    let maker = Maker { gpu: &gpu, workloads: &workloads, topology: &scene.topology, one };
    let (parts, copies) = maker.program(program)?;
    let keeps_clock = scene.keeps_clock == Some(index);
    let clock_offset_ns = clock_offset_ns(&workloads, &stream, if keeps_clock { LOOKS } else { 1 })?;
    let is_masked = |set: &Option<TpcSet>| set.is_some();
    let has_masks = scene.sets.iter().any(is_masked) || scene.config.benchmarks.iter().any(has_kernel_masks);
    let masks = match has_masks {
        true => Some(ProcessMasks::install(cuda, &scene.topology, scene.layout).map_err(describe)?),
        false => None,
    };
    // A mask for this thread, which launches on one stream.
    let scope = match (masks, &scene.sets[index]) {
        (Some(masks), Some(set)) => Some(Scope::enter(masks, set).map_err(describe)?),
        _ => None,
    };
    let mut runner = Runner {
        stream: &stream,
        to_tell: None,
        masks,
        parts,
        copies,
        keeps: !one.is_discarded(),
        keeps_blocks: one.record_blocks && !one.is_discarded(),
        waits_awake: scene.waits_awake,
    };
    if scene.config.do_warmup {
        runner.iteration()?;
    }
    runner.to_tell = Some(&scene.meeting);
    let begin_ns = scene.meeting.ready();
    let started_ns = begin_ns + ns_of(one.release_time_s.unwrap_or(0.0));
    sleep_until(started_ns, scene.waits_awake);
    let iterations = iterate(scene, one, &mut runner, started_ns, cpu_core)?;
    if let Some(meeting) = runner.to_tell.take() {
        meeting.has_launched();
    }
    if one.terminator {
        scene.meeting.stop();
    }
    scene.meeting.leave();
    drop(scope);
    forget(runner);
    forget(stream);
    let pid = std::process::id();
    let tid = (!scene.config.use_processes).then(|| rustix::thread::gettid().as_raw_nonzero().get() as u32);
    let host = HostRecord { iterations, pid, tid };
    Ok(Done { host, clock_offset_ns: keeps_clock.then_some(clock_offset_ns) })
}

fn iterate(
    scene: &Scene,
    one: &Benchmark,
    runner: &mut Runner<'_, '_, '_>,
    started_ns: u64,
    cpu_core: u32,
) -> Result<Vec<Iteration>, String> {
    let iterations_max = one.max_iterations.unwrap_or(scene.config.max_iterations);
    let time_max_ns = ns_of(one.max_time_s.unwrap_or(scene.config.max_time_s));
    let mut iterations = Vec::new();
    let mut begun = 0;
    loop {
        let late = time_max_ns > 0 && now_ns().saturating_sub(started_ns) >= time_max_ns;
        let done = iterations_max > 0 && begun >= iterations_max;
        // A thread that stops with the terminator has run at least once.
        if done || late || (begun > 0 && scene.meeting.is_stopped()) {
            return Ok(iterations);
        }
        if scene.config.sync_every_iteration {
            scene.meeting.barrier();
        }
        begun += 1;
        let mut iteration = runner.iteration()?;
        iteration.cpu_core = cpu_core;
        if runner.keeps {
            iterations.push(iteration);
        }
    }
}

/// The resources of an iteration.
struct Runner<'r, 'g, 'a> {
    stream: &'r Stream<'a>,
    /// The receiver of the report of its first launch.
    to_tell: Option<&'r Meeting>,
    masks: Option<ProcessMasks>,
    parts: [Vec<Ready<'g, 'a>>; 3],
    copies: Option<Copies<'a>>,
    keeps: bool,
    keeps_blocks: bool,
    waits_awake: bool,
}

impl Runner<'_, '_, '_> {
    fn iteration(&mut self) -> Result<Iteration, String> {
        let mut kernels = Vec::new();
        let mut times = [[0; 2]; 3];
        for (part, times) in times.iter_mut().enumerate() {
            times[0] = now_ns();
            self.part(part, &mut kernels)?;
            times[1] = now_ns();
        }
        let [copy_in_ns, execute_ns, copy_out_ns] = times;
        let ready = self.parts.iter().flatten().filter_map(|step| match step {
            Ready::Kernel(kernel) => Some(kernel),
            _ => None,
        });
        for (kernel, record) in ready.zip(&mut kernels) {
            record.launch_ns[2] = execute_ns[1];
            // Reading takes time without launches: only recorded blocks are read.
            if self.keeps_blocks {
                kernel.read(record)?;
            }
        }
        Ok(Iteration { copy_in_ns, execute_ns, copy_out_ns, kernels, cpu_core: 0 })
    }

    /// A part of it, to the end of all queued work.
    fn part(&mut self, part: usize, kernels: &mut Vec<KernelRecord>) -> Result<(), String> {
        let stream = self.stream.as_ref();
        let mut is_queued = false;
        for step in &mut self.parts[part] {
            match step {
                Ready::Sleep(ns) => sleep_until(now_ns() + *ns, self.waits_awake),
                Ready::CpuWalk(walk) => walk.walk(),
                Ready::Synchronize => {
                    if let Some(meeting) = self.to_tell.take() {
                        meeting.launched();
                    }
                    self.stream.synchronize().map_err(describe)?;
                    is_queued = false;
                    continue;
                }
                Ready::Kernel(kernel) => kernels.push(kernel.launch(stream, self.masks)?),
                Ready::Copy { .. } | Ready::Fill { .. } => {
                    if let Some(copies) = &self.copies {
                        copy(copies, step, stream)?;
                    }
                }
            }
            is_queued = true;
        }
        if !is_queued {
            return Ok(());
        }
        if let Some(meeting) = self.to_tell.take() {
            meeting.launched();
        }
        self.stream.synchronize().map_err(describe)
    }
}

fn copy(
    copies: &Copies<'_>,
    step: &Ready<'_, '_>,
    stream: partita_driver::StreamRef<'_>,
) -> Result<(), String> {
    let size = |bytes: &u64| usize::try_from(*bytes).map_err(describe);
    let queued = match step {
        Ready::Copy { route: CopyRoute::HostToDevice, bytes } => copies.to_device(size(bytes)?, stream),
        Ready::Copy { route: CopyRoute::DeviceToHost, bytes } => copies.to_host(size(bytes)?, stream),
        Ready::Copy { route: CopyRoute::DeviceToDevice, bytes } => copies.within(size(bytes)?, stream),
        Ready::Fill { bytes } => copies.fill(size(bytes)?, stream),
        _ => Ok(()),
    };
    queued.map_err(describe)
}

fn has_kernel_masks(one: &Benchmark) -> bool {
    Program::of(one).is_ok_and(|program| program.kernels().any(|kernel| kernel.sm_mask.is_some()))
}

/// The offset of the clocks: the shortest delay from a kernel's end to the host's view of it.
fn clock_offset_ns(workloads: &Workloads<'_, '_>, stream: &Stream<'_>, looks: u32) -> Result<i64, String> {
    let shape = WorkShape { grid: [1, 1], block: [32, 1], shared_bytes: 0 };
    let mut kernel = workloads.prepare(Workload::Timer { ns: 1_000 }, shape).map_err(describe)?;
    let mut nearest_ns = i64::MAX;
    for _ in 0..looks {
        kernel.launch(stream.as_ref()).map_err(describe)?;
        stream.synchronize().map_err(describe)?;
        let seen_ns = now_ns();
        for record in kernel.records().map_err(describe)? {
            nearest_ns = nearest_ns.min(seen_ns.wrapping_sub(record.stop_ns).cast_signed());
        }
    }
    Ok(nearest_ns)
}

/// Puts this thread on its core, if it has one: the `n`-th that this process may use. Returns the
/// core.
fn pin(config: &Config, one: &Benchmark, index: usize) -> Result<u32, String> {
    let wanted = match one.cpu_core {
        _ if config.pin_cpus => Some(index as u32 + 1),
        core => core,
    };
    if let Some(wanted) = wanted {
        let allowed = rustix::thread::sched_getaffinity(None).map_err(describe)?;
        let cores: Vec<usize> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        let mut own = rustix::thread::CpuSet::new();
        own.set(cores[wanted as usize % cores.len().max(1)]);
        rustix::thread::sched_setaffinity(None, &own).map_err(describe)?;
    }
    Ok(rustix::thread::sched_getcpu() as u32)
}

/// Sleeps; a thread that stays awake wakes a little before the time.
fn sleep_until(time_ns: u64, waits_awake: bool) {
    loop {
        let left_ns = time_ns.saturating_sub(now_ns());
        if left_ns == 0 {
            return;
        }
        if !waits_awake {
            std::thread::sleep(Duration::from_nanos(left_ns));
        } else if left_ns > WAKE_NS {
            std::thread::sleep(Duration::from_nanos(left_ns - WAKE_NS));
        } else {
            std::hint::spin_loop();
        }
    }
}
