//! NVIDIA's vGPU driver through NVML, in a child process: types, several sizes, the scheduler.

use std::cell::RefCell;
use std::time::Duration;

use partita_core::vf::{Averaging, Policy, SchedulerState, VgpuType};
use partita_driver::mig::{MigError, VgpuHost};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::child::{Job, JobError};
use crate::gpu::Gpu;
use crate::install::Install;

/// The name of the job.
pub(crate) const JOB: &str = "vgpu";

const LIMIT: Duration = Duration::from_secs(60);

/// A scheduler as the child and the journal have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scheduler {
    policy: String,
    slice_ns: u32,
    averaging: Option<(u32, u32)>,
}

impl From<SchedulerState> for Scheduler {
    fn from(state: SchedulerState) -> Self {
        let averaging = state.averaging.map(|one| (one.factor, one.frequency_hz));
        Self { policy: state.policy.word().to_owned(), slice_ns: state.slice_ns, averaging }
    }
}

impl Scheduler {
    /// `None` for a policy that does not exist.
    pub fn state(&self) -> Option<SchedulerState> {
        let averaging = |(factor, frequency_hz)| Averaging { factor, frequency_hz };
        Some(SchedulerState {
            policy: self.policy.parse::<Policy>().ok()?,
            slice_ns: self.slice_ns,
            averaging: self.averaging.map(averaging),
        })
    }
}

/// What the driver knows of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Every type, whether there is room for it or not. Empty if that is unknown.
    pub types: Vec<VgpuType>,
    /// Whether several sizes may be together; `None` without such a mode.
    pub is_mixed: Option<bool>,
    /// How time is divided; `None` if that cannot be set.
    pub scheduler: Option<SchedulerState>,
}

/// The vGPU driver.
pub(super) trait Host {
    fn known(&self) -> Result<Known, String>;
    fn set_mixed(&self, is_on: bool) -> Result<(), String>;
    fn schedule(&self, state: &SchedulerState) -> Result<(), String>;
}

/// A device without that driver.
pub(super) struct Absent;

impl Host for Absent {
    fn known(&self) -> Result<Known, String> {
        Ok(Known::default())
    }

    fn set_mixed(&self, _: bool) -> Result<(), String> {
        Err("there is no vGPU driver".to_owned())
    }

    fn schedule(&self, _: &SchedulerState) -> Result<(), String> {
        Err("there is no vGPU driver".to_owned())
    }
}

/// The driver of a GPU.
pub(super) struct OfGpu<'a> {
    install: &'a Install,
    gpu: Gpu,
    /// What was read since the last change.
    read: RefCell<Option<Known>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Read,
    Mixed(bool),
    Schedule(Scheduler),
}

/// What the child is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    uuid: String,
    action: Action,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    types: Vec<(u32, String, u64)>,
    is_mixed: Option<bool>,
    scheduler: Option<Scheduler>,
}

impl<'a> OfGpu<'a> {
    pub fn new(install: &'a Install, gpu: Gpu) -> Self {
        Self { install, gpu, read: RefCell::new(None) }
    }

    fn ask(&self, action: Action) -> Result<Answer, String> {
        let request = Request { uuid: self.gpu.facts.uuid.clone(), action };
        let variables = self.gpu.sim().map(|sim| sim.variables()).unwrap_or_default();
        let job = Job::new(self.install, JOB, &request).map_err(|error| error.to_string())?;
        job.envs(variables).limit(LIMIT).run().map_err(|error| error.to_string())?.map_err(
            |error| match error {
                JobError::Failed { reason, .. } => reason,
                other => other.to_string(),
            },
        )
    }
}

impl Host for OfGpu<'_> {
    fn known(&self) -> Result<Known, String> {
        if let Some(known) = &*self.read.borrow() {
            return Ok(known.clone());
        }
        let answer = self.ask(Action::Read)?;
        let named = |(id, name, memory_mib)| VgpuType { id, name, memory_mib };
        let known = Known {
            types: answer.types.into_iter().map(named).collect(),
            is_mixed: answer.is_mixed,
            scheduler: answer.scheduler.as_ref().and_then(Scheduler::state),
        };
        *self.read.borrow_mut() = Some(known.clone());
        Ok(known)
    }

    fn set_mixed(&self, is_on: bool) -> Result<(), String> {
        self.read.take();
        self.ask(Action::Mixed(is_on)).map(drop)
    }

    fn schedule(&self, state: &SchedulerState) -> Result<(), String> {
        self.read.take();
        self.ask(Action::Schedule((*state).into())).map(drop)
    }
}

/// Does the work in this process.
///
/// # Errors
/// NVML's reason.
pub(crate) fn work_here(request: &Request) -> Result<Value, String> {
    let shown = |error: MigError| error.to_string();
    let host = VgpuHost::open(&request.uuid).map_err(shown)?;
    let mut answer = Answer::default();
    match &request.action {
        // A GPU without that driver has no types, and the rest is unknown.
        Action::Read => {
            let types = host.types().unwrap_or_default();
            answer.types = types.into_iter().map(|one| (one.id, one.name, one.memory_mib)).collect();
            if !answer.types.is_empty() {
                answer.is_mixed = host.is_mixed().map_err(shown)?;
                answer.scheduler = host.scheduler().map_err(shown)?.map(Scheduler::from);
            }
        }
        Action::Mixed(is_on) => host.set_mixed(*is_on).map_err(shown)?,
        Action::Schedule(scheduler) => {
            let state = scheduler.state().ok_or("there is no such policy")?;
            host.set_scheduler(&state).map_err(shown)?;
        }
    }
    serde_json::to_value(answer).map_err(|error| error.to_string())
}
