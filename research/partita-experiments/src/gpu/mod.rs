//! A GPU, or the simulated driver, for running scenarios.
//!
//! A scenario runs in child processes of its own lifetime: one for the threads of a process, or one
//! for each benchmark if the configuration demands processes, as clients of a separate MPS service
//! if it demands that. A wrong mask hangs its kernel for ever, so they have a time limit, far above
//! the model's prediction. This process only sends the start and the stop.

mod costs;
mod date;
mod job;
mod meeting;
mod steps;
mod thread;
mod wire;

use std::time::Duration;

use partita::calibration::{Cache, Measured, without_mps};
use partita::child::{Job, JobError, MARK, Outcome, RunningJob};
use partita::gpu::Gpu;
use partita::install::Install;
use partita::sandbox::Sandbox;
use partita_driver::now_ns;
use partita_sim::{DeviceSpec, catalogue, connections};

use crate::costs::Costs;
use crate::dialect::Config;
use crate::experiment::Scenario;
use crate::log::{HostRecord, Iteration, Record};
use crate::machine::{Machine, Origin, Ran};
use crate::model;
use crate::place;
pub use job::{JOB, work};
use wire::{AT_BARRIER, Order, READY, Told, Word};

/// A child process's time limit, as a multiple of the model's time for the scenario, beside the
/// time for its start.
const LIMIT_FACTOR: u32 = 10;
const LIMIT_LEAST: Duration = Duration::from_secs(90);
/// From the last child's readiness to the start.
const BEGIN_AFTER_NS: u64 = 20_000_000;
/// The limit on children's output: the records of tens of millions of blocks.
const OUTPUT_BYTES_MAX: u64 = 4 << 30;
/// How long to read from one child before the next.
const LISTEN: Duration = Duration::from_millis(2);

/// A GPU.
#[derive(Debug, Clone)]
pub struct Device {
    install: Install,
    gpu: Gpu,
    measured: Measured,
    spec: DeviceSpec,
    costs: Costs,
    /// When it was opened, `YYYY-MM-DD`.
    date: String,
}

impl Device {
    /// A GPU with proved masks, on which the kernels' costs have been measured.
    ///
    /// A GPU without masks, without a model in the catalogue, or on which a kernel fails.
    pub fn open(install: &Install, gpu: &Gpu) -> Result<Self, String> {
        let measured = Cache::open().get(install, gpu).map_err(|error| error.to_string())?;
        let spec = model_of(gpu, &measured)?;
        let mut device = Self {
            install: install.clone(),
            gpu: gpu.clone(),
            measured,
            spec,
            costs: Costs::default(),
            date: date::today(),
        };
        let mut costs = Costs::default();
        for scenario in costs::scenarios() {
            let record = device.launch(&scenario.config, LIMIT_LEAST)?;
            costs.learn(&scenario, &record, &device.spec)?;
        }
        device.costs = costs;
        Ok(device)
    }

    /// A job's process on the bare device, or as a client of the sandbox's MPS service.
    fn job(&self, sandbox: Option<&mut Sandbox<'_>>, limit: Duration) -> Result<Job, String> {
        let told = |error: partita::Error| error.to_string();
        let job = match sandbox {
            // With the hardware queues of MPS: four clients with 32 each exceeded those of an H200
            // (CUDA_ERROR_OUT_OF_MEMORY).
            Some(sandbox) => sandbox.client_job(JOB, &()).map_err(told)?,
            None => Job::new(&self.install, JOB, &())
                .map_err(told)?
                .envs(self.gpu.variables())
                .envs(without_mps())
                .envs([(connections::VARIABLE, self.spec.scheduler.queues_max.to_string())]),
        };
        // Code that is loaded at its first launch would wait for the kernels of others.
        let variables = [("CUDA_MODULE_LOADING", "EAGER")];
        Ok(job.envs(variables).limit(limit).with_orders().output_bytes_max(OUTPUT_BYTES_MAX))
    }

    /// Runs a configuration in its child processes.
    fn launch(&self, config: &Config, limit: Duration) -> Result<Record, String> {
        let told = |error: partita::Error| error.to_string();
        let mut sandbox = match config.runs_under_mps() {
            true => Some(Sandbox::new(&self.install, &self.gpu, &self.measured).map_err(told)?),
            false => None,
        };
        let count = config.benchmarks.len();
        let groups: Vec<Vec<usize>> = match config.use_processes {
            true => (0..count).map(|index| vec![index]).collect(),
            false => vec![(0..count).collect()],
        };
        let mut children = Vec::new();
        for members in groups {
            let mut job = self.job(sandbox.as_mut(), limit)?;
            let percentage = members.iter().find_map(|&index| config.benchmarks[index].mps_thread_percentage);
            if let Some(percentage) = percentage {
                job = job.envs([("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", format!("{percentage:.4}"))]);
            }
            let mut child = Child::start(job, config, &members)?;
            let order = Order {
                config: config.to_json(),
                members,
                measured: self.measured.clone(),
                is_one_of_several: config.use_processes,
            };
            child.order(&order)?;
            children.push(child);
        }
        let begin_ns = conduct(&mut children, config)?;
        self.record(config, children, begin_ns)
    }

    /// The children's records, on one clock that starts with the scenario.
    fn record(&self, config: &Config, children: Vec<Child>, begin_ns: u64) -> Result<Record, String> {
        let all: Vec<Told> = children.into_iter().filter_map(|child| child.told).collect();
        // Each child saw its kernels' ends a little late; the earliest view is nearest to the GPU's
        // clock, which all share.
        let offset_ns = all.iter().map(|told| told.clock_offset_ns).min().unwrap_or(0);
        let mut hosts: Vec<Option<HostRecord>> = config.benchmarks.iter().map(|_| None).collect();
        for told in all {
            for (index, mut host) in told.hosts {
                for iteration in &mut host.iterations {
                    shift(iteration, begin_ns, offset_ns);
                }
                if let Some(place) = hosts.get_mut(index) {
                    *place = Some(host);
                }
            }
        }
        let hosts: Option<Vec<HostRecord>> = hosts.into_iter().collect();
        let hosts = hosts.ok_or("a benchmark was not run")?;
        let sets = place::sets(config, &self.spec.topology).map_err(|error| error.to_string())?;
        Ok(Record::of(config, &self.spec, &sets, hosts))
    }
}

/// Host times from the start; times of the GPU's clock likewise.
fn shift(iteration: &mut Iteration, begin_ns: u64, offset_ns: i64) {
    let host = |time: &mut u64| *time = time.saturating_sub(begin_ns);
    let device = |time: &mut u64| *time = time.saturating_add_signed(offset_ns).saturating_sub(begin_ns);
    let Iteration { copy_in_ns, execute_ns, copy_out_ns, kernels, .. } = iteration;
    for pair in [copy_in_ns, execute_ns, copy_out_ns] {
        pair.iter_mut().for_each(host);
    }
    for kernel in kernels {
        kernel.launch_ns.iter_mut().for_each(host);
        if kernel.blocks.is_empty() {
            // Its blocks were not recorded: the host's view, from the launch to the end of all.
            kernel.span_ns = [kernel.launch_ns[0], kernel.launch_ns[2]];
        } else {
            kernel.span_ns.iter_mut().for_each(device);
        }
        for block in &mut kernel.blocks {
            device(&mut block.start_ns);
            device(&mut block.stop_ns);
        }
    }
}

/// All errors here are texts.
fn describe(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The model of a GPU: the catalogue's device of that name, with this board's own TPCs.
fn model_of(gpu: &Gpu, measured: &Measured) -> Result<DeviceSpec, String> {
    let mut spec = match gpu.sim() {
        Some(sim) => catalogue::device(sim.device()).map_err(|error| error.to_string())?,
        None => {
            let name = &gpu.facts.name;
            let found = catalogue::all().into_iter().find(|spec| spec.name == name);
            let known = || catalogue::NAMES.join(", ");
            found.ok_or_else(|| {
                format!(
                    "there is no model of {name}, which scales experiments and predicts; there are: {}",
                    known()
                )
            })?
        }
    };
    spec.topology = measured.topology()?;
    Ok(spec)
}

/// A child process and its output.
struct Child {
    job: Option<RunningJob>,
    title: String,
    is_terminator: bool,
    is_at_barrier: bool,
    told: Option<Told>,
}

impl Child {
    fn start(job: Job, config: &Config, members: &[usize]) -> Result<Self, String> {
        let of_all = |index: &usize| &config.benchmarks[*index];
        let title = match members {
            [one] => config.benchmarks[*one].title().to_owned(),
            _ => config.name.clone(),
        };
        let job = job.start().map_err(|error| error.to_string())?;
        let is_terminator = members.iter().map(of_all).any(|one| one.terminator);
        Ok(Self { job: Some(job), title, is_terminator, is_at_barrier: false, told: None })
    }

    fn fail(&self, error: &JobError) -> String {
        format!("{}: {error}", self.title)
    }

    fn order(&mut self, order: &impl serde::Serialize) -> Result<(), String> {
        let Some(job) = &mut self.job else { return Ok(()) };
        job.order(order).map_err(|error| self.fail(&error))
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let Some(job) = &mut self.job else { return Ok(()) };
        job.wait_for(READY).map(drop).map_err(|error| self.fail(&error))
    }

    /// Reads for a moment; returns whether it has just ended.
    fn listen(&mut self) -> Result<bool, String> {
        let Some(job) = &mut self.job else { return Ok(false) };
        let line = match job.line_within(LISTEN) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(false),
            Err(error) => return Err(self.fail(&error)),
        };
        if line == AT_BARRIER {
            self.is_at_barrier = true;
            return Ok(false);
        }
        let Some(json) = line.strip_prefix(MARK) else { return Ok(false) };
        match serde_json::from_str(json).map_err(|error| format!("{}: {error}", self.title))? {
            Outcome::Done(told) => self.told = Some(told),
            Outcome::Failed(reason) => return Err(format!("{}: {reason}", self.title)),
        }
        if let Some(job) = self.job.take() {
            job.leave();
        }
        Ok(true)
    }
}

/// Starts all together and reads until the last has ended. Returns the start time, on the monotonic
/// clock.
fn conduct(children: &mut [Child], config: &Config) -> Result<u64, String> {
    for child in children.iter_mut() {
        child.wait_until_ready()?;
    }
    let begin_ns = now_ns() + BEGIN_AFTER_NS;
    for child in children.iter_mut() {
        child.order(&Word::Begin { begin_ns })?;
    }
    while children.iter().any(|child| child.told.is_none()) {
        let mut is_over = false;
        for child in children.iter_mut() {
            is_over |= child.listen()? && child.is_terminator;
        }
        if is_over {
            for job in children.iter_mut().filter_map(|child| child.job.as_mut()) {
                job.no_more_orders();
            }
        }
        let mut running = children.iter().filter(|child| child.told.is_none()).peekable();
        if config.sync_every_iteration && running.peek().is_some() && running.all(|child| child.is_at_barrier)
        {
            for child in children.iter_mut().filter(|child| child.told.is_none()) {
                child.is_at_barrier = false;
                child.order(&Word::Go)?;
            }
        }
    }
    Ok(begin_ns)
}

impl Machine for Device {
    fn label(&self) -> String {
        match self.gpu.sim() {
            Some(_) => format!("simulated driver of {}", self.spec.name),
            None => format!("{}, driver {}, {}", self.gpu.facts.name, self.gpu.driver_version, self.date),
        }
    }

    fn origin(&self) -> Option<Origin> {
        Some(Origin {
            label: self.label(),
            device: self.spec.id.to_owned(),
            sms_per_tpc: self.measured.sms_per_tpc,
            tpcs: self.measured.tpcs.clone(),
            costs: self.costs,
        })
    }

    fn model(&self) -> &DeviceSpec {
        &self.spec
    }

    fn is_measured(&self) -> bool {
        true
    }

    fn run(&mut self, scenario: &Scenario) -> Result<Ran, String> {
        let predicted = model::run_scenario_at(scenario, &self.spec, 0, &self.costs);
        let predicted = predicted.map_err(|error| error.to_string())?;
        let longest = Duration::from_nanos(predicted.end_ns()) * LIMIT_FACTOR;
        let record = self.launch(&scenario.config, LIMIT_LEAST + longest)?;
        Ok(Ran { record, predicted: Some(predicted) })
    }
}
