//! The work on MIG, in the child process that calls NVML.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use partita_core::mig::{GpuInstance, Layout, Profile, Refusal, Step, layout_of, plan, resolve, towards};
use partita_driver::mig::{MigDevice, MigError, MigFailure, MigGpu};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::journal::{self, Entry};
use super::report::{ComputeRow, InstanceRow, MigChange, MigReport, MigState, ProfileRow, StepRow};
use crate::gpu::Gpu;
use crate::journal::Journal;
use crate::registry::Registry;

/// The name of the job.
pub(crate) const JOB: &str = "mig";

/// How long to wait for another change. A process that was killed in a call ends with the call.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// The instances that a GPU is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Exactly one of each of these profiles, by name.
    Exactly(Vec<String>),
    /// The present ones without those of these GPU instances, by number or by `MIG-…`.
    Without(Vec<String>),
    /// Those from before a change that was interrupted.
    Before,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Show,
    Devices,
    Plan(Target),
    Apply(Target),
}

/// What the child is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    uuid: String,
    index: u32,
    label: String,
    run_dir: PathBuf,
    action: Action,
}

impl Request {
    pub(super) fn show(registry: &Registry, gpu: &Gpu) -> Self {
        Self::of(registry, gpu, Action::Show)
    }

    pub(super) fn devices(registry: &Registry, gpu: &Gpu) -> Self {
        Self::of(registry, gpu, Action::Devices)
    }

    pub(super) fn plan(registry: &Registry, gpu: &Gpu, target: &Target) -> Self {
        Self::of(registry, gpu, Action::Plan(target.clone()))
    }

    pub(super) fn apply(registry: &Registry, gpu: &Gpu, target: &Target) -> Self {
        Self::of(registry, gpu, Action::Apply(target.clone()))
    }

    fn of(registry: &Registry, gpu: &Gpu, action: Action) -> Self {
        Self {
            uuid: gpu.facts.uuid.clone(),
            index: gpu.facts.index,
            label: gpu.label(),
            run_dir: registry.root().to_owned(),
            action,
        }
    }

    /// Whether the child changes instances.
    pub(super) fn changes(&self) -> bool {
        matches!(self.action, Action::Apply(_))
    }
}

/// Does the work in this process, and returns the report.
///
/// # Errors
/// The reason, with the remedy.
pub(crate) fn work_here(request: &Request) -> Result<Value, String> {
    let registry = Registry::at(&request.run_dir).map_err(|error| error.to_string())?;
    let report = match &request.action {
        Action::Show => serde_json::to_value(show(request, &registry)?),
        Action::Devices => serde_json::to_value(processes(request)?),
        Action::Plan(target) => {
            let here = Here::read(request, &registry)?;
            serde_json::to_value(here.way(target)?.change(&here, false))
        }
        Action::Apply(target) => serde_json::to_value(apply(request, &registry, target)?),
    };
    report.map_err(|error| error.to_string())
}

fn show(request: &Request, registry: &Registry) -> Result<MigReport, String> {
    let gpu = MigGpu::open(&request.uuid).map_err(of_nvml)?;
    let state = state(&gpu)?;
    let profiles = match state {
        MigState::Unsupported => Vec::new(),
        _ => gpu.profiles().map_err(of_nvml)?,
    };
    let instances = match state {
        MigState::On | MigState::OffAfterReset => match gpu.instances(&profiles) {
            Err(error) if error.failure() == MigFailure::NoPermission => None,
            instances => Some(rows(&gpu, &profiles, &instances.map_err(of_nvml)?, registry)?),
        },
        _ => Some(Vec::new()),
    };
    let row = |profile: &Profile| ProfileRow {
        name: profile.name.clone(),
        id: profile.id,
        slices: profile.slices,
        sms: profile.sms,
        memory_bytes: profile.memory_mib << 20,
        count_max: profile.count_max,
        placements: profile.slots.iter().map(ToString::to_string).collect(),
    };
    Ok(MigReport {
        gpu: request.label.clone(),
        uuid: request.uuid.clone(),
        mode: state,
        remedy: remedy(state, request.index),
        profiles: profiles.iter().map(row).collect(),
        instances,
        is_interrupted: journal::of(registry.root(), &request.uuid).before()?.is_some(),
    })
}

/// The processes of each device, by its UUID.
fn processes(request: &Request) -> Result<Vec<(String, Vec<u32>)>, String> {
    let gpu = MigGpu::open(&request.uuid).map_err(of_nvml)?;
    let devices = gpu.devices().map_err(of_nvml)?;
    Ok(devices.into_iter().map(|device| (device.uuid, device.processes)).collect())
}

fn state(gpu: &MigGpu) -> Result<MigState, String> {
    let mode = gpu.mode().map_err(of_nvml)?;
    Ok(match mode.map(|mode| (mode.is_on, mode.will_be_on)) {
        None => MigState::Unsupported,
        Some((false, false)) => MigState::Off,
        Some((false, true)) => MigState::OnAfterReset,
        Some((true, true)) => MigState::On,
        Some((true, false)) => MigState::OffAfterReset,
    })
}

/// What an administrator must do before instances can be created.
fn remedy(state: MigState, index: u32) -> Option<String> {
    match state {
        MigState::On => None,
        MigState::Unsupported => Some("use a GPU with MIG, or partitions by `partita run --sm`".to_owned()),
        MigState::Off => Some(format!(
            "an administrator turns it on with `nvidia-smi -i {index} -mig 1` when no program uses the GPU"
        )),
        MigState::OnAfterReset | MigState::OffAfterReset => Some(format!(
            "an administrator resets the GPU with `nvidia-smi --gpu-reset -i {index}` when no program uses it"
        )),
    }
}

fn of_nvml(error: MigError) -> String {
    match error.failure() {
        MigFailure::NoPermission => format!("{error}; run the command as root"),
        _ => error.to_string(),
    }
}

fn rows(
    gpu: &MigGpu,
    profiles: &[Profile],
    instances: &[GpuInstance],
    registry: &Registry,
) -> Result<Vec<InstanceRow>, String> {
    let devices = gpu.devices().map_err(of_nvml)?;
    let compute = |instance: &GpuInstance, id: u32, slices: u32| {
        let is_meant =
            |device: &&MigDevice| (device.gpu_instance, device.compute_instance) == (instance.id, id);
        let device = devices.iter().find(is_meant).ok_or_else(|| {
            format!("NVML: compute instance {id} of {} has no device; try again", instance.id)
        })?;
        Ok(ComputeRow {
            compute_instance: id,
            slices,
            uuid: device.uuid.clone(),
            processes: device.processes.clone(),
            is_taken: registry.is_mig_locked(&device.uuid).map_err(|error| error.to_string())?,
        })
    };
    let row = |instance: &GpuInstance| {
        let computes = instance.computes.iter().map(|one| compute(instance, one.id, one.slices));
        Ok(InstanceRow {
            gpu_instance: instance.id,
            profile: name_of(profiles, instance.profile),
            placement: instance.slot.to_string(),
            compute_instances: computes.collect::<Result<_, String>>()?,
        })
    };
    instances.iter().map(row).collect()
}

fn name_of(profiles: &[Profile], id: u32) -> String {
    let profile = profiles.iter().find(|profile| profile.id == id);
    profile.map_or_else(|| format!("profile {id}"), |profile| profile.name.clone())
}

/// A GPU and its instances at this time.
struct Here<'a> {
    request: &'a Request,
    /// What an administrator must do before instances can be created.
    remedy: Option<String>,
    gpu: MigGpu,
    journal: Journal<Vec<Entry>>,
    profiles: Vec<Profile>,
    instances: Vec<GpuInstance>,
    rows: Vec<InstanceRow>,
    /// The instances from before an interrupted change.
    before: Option<Layout>,
}

impl<'a> Here<'a> {
    fn read(request: &'a Request, registry: &Registry) -> Result<Self, String> {
        let gpu = MigGpu::open(&request.uuid).map_err(of_nvml)?;
        let state = state(&gpu)?;
        let remedy = remedy(state, request.index);
        let is_on = matches!(state, MigState::On | MigState::OffAfterReset);
        // A plan for a GPU with MIG turned off is one for the time when it is on.
        if state == MigState::Unsupported || (!is_on && request.changes()) {
            return Err(format!("MIG is {state}; {}", remedy.unwrap_or_default()));
        }
        let profiles = gpu.profiles().map_err(of_nvml)?;
        if profiles.iter().all(|profile| profile.slots.is_empty()) {
            return Err("NVML does not say where instances can lie; run the command as root".to_owned());
        }
        let (instances, rows) = match is_on {
            false => (Vec::new(), Vec::new()),
            true => {
                let instances = gpu.instances(&profiles).map_err(of_nvml)?;
                let rows = rows(&gpu, &profiles, &instances, registry)?;
                (instances, rows)
            }
        };
        let journal = journal::of(registry.root(), &request.uuid);
        let before = journal.before()?.map(journal::layout);
        Ok(Self { request, remedy, gpu, journal, profiles, instances, rows, before })
    }

    /// The way to a target.
    fn way(&self, target: &Target) -> Result<Way, String> {
        let layout = match target {
            Target::Exactly(names) => self.best(names)?,
            Target::Without(names) => self.without(names)?,
            Target::Before => self.before.clone().ok_or(
                "no change was interrupted, so there is nothing to restore; name what you want with --want",
            )?,
        };
        let steps = towards(&self.instances, &layout);
        let touched = touched(&steps);
        let busy = self.rows.iter().filter(|row| touched.contains(&row.gpu_instance) && row.has_clients());
        let busy: Vec<u32> = busy.map(|row| row.gpu_instance).collect();
        if busy.is_empty() { Ok(Way { layout, steps }) } else { Err(self.in_use(&busy)) }
    }

    /// Locks the instances that must go, so that no program is started in them.
    fn lock(&self, registry: &Registry, way: &Way) -> Result<Vec<File>, String> {
        let touched = touched(&way.steps);
        let mut locks = Vec::new();
        for row in self.rows.iter().filter(|row| touched.contains(&row.gpu_instance)) {
            for compute in &row.compute_instances {
                let lock = registry.try_lock_mig(&compute.uuid).map_err(|error| error.to_string())?;
                locks.push(lock.ok_or_else(|| self.in_use(&[row.gpu_instance]))?);
            }
        }
        Ok(locks)
    }

    fn best(&self, names: &[String]) -> Result<Layout, String> {
        let wanted: Vec<u32> = names
            .iter()
            .map(|name| resolve(&self.profiles, name).map(|profile| profile.id))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let in_use = self.rows.iter().filter(|row| row.has_clients()).map(|row| row.gpu_instance);
        let in_use: Vec<u32> = in_use.collect();
        let found = plan(&self.profiles, &self.instances, &wanted, &in_use);
        found.map(|plan| plan.layout).map_err(|refusal| match refusal {
            Refusal::Inconsistent(reason) => format!("NVML's report is not understood: {reason}"),
            Refusal::InUse { instances } => self.in_use(&instances),
            Refusal::NeverFits { fits } => {
                let fits: Vec<String> = fits.iter().map(|id| name_of(&self.profiles, *id)).collect();
                format!(
                    "{} do not fit on this GPU together, even if it is empty; {} would fit",
                    names.join(","),
                    fits.join(",")
                )
            }
        })
    }

    fn without(&self, names: &[String]) -> Result<Layout, String> {
        let mut stay = self.instances.clone();
        for name in names {
            let is_meant = |row: &&InstanceRow| {
                row.gpu_instance.to_string() == *name
                    || row.compute_instances.iter().any(|one| one.uuid.eq_ignore_ascii_case(name))
            };
            let row = self.rows.iter().find(is_meant).ok_or_else(|| {
                let known: Vec<String> = self.rows.iter().map(described).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                format!("there is no GPU instance {name}; there are {known}")
            })?;
            stay.retain(|instance| instance.id != row.gpu_instance);
        }
        Ok(layout_of(&stay))
    }

    fn in_use(&self, instances: &[u32]) -> String {
        let rows = self.rows.iter().filter(|row| instances.contains(&row.gpu_instance));
        let clients = |row: &InstanceRow| {
            let processes: Vec<String> = row
                .compute_instances
                .iter()
                .flat_map(|one| &one.processes)
                .map(|pid| {
                    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    format!("process {pid} {}", name.trim())
                })
                .collect();
            let by = match processes.is_empty() {
                true => "a `partita run --mig` that has not begun to use it".to_owned(),
                false => processes.join(", "),
            };
            format!("{}: {by}", described(row))
        };
        let busy: Vec<String> = rows.map(clients).collect();
        let kept = match &self.before {
            Some(_) => "; an earlier change is not complete, see `partita mig show`",
            None => "",
        };
        format!(
            "instances with clients would have to go: {}; end these, or ask for instances that leave them \
             in place{kept}",
            busy.join("; ")
        )
    }

    fn step_row(&self, instances: &[GpuInstance], step: &Step) -> StepRow {
        let of = |id: u32| {
            let instance = instances.iter().find(|instance| instance.id == id);
            instance.map_or_else(Default::default, |one| {
                (name_of(&self.profiles, one.profile), one.slot.to_string())
            })
        };
        match *step {
            Step::DestroyCompute { gpu_instance, compute_instance } => {
                let (profile, _) = of(gpu_instance);
                StepRow::DestroyComputeInstance { gpu_instance, compute_instance, profile }
            }
            Step::DestroyGpu { gpu_instance } => {
                let (profile, placement) = of(gpu_instance);
                StepRow::DestroyGpuInstance { gpu_instance, profile, placement }
            }
            Step::CreateGpu { profile, slot } => StepRow::CreateGpuInstance {
                profile: name_of(&self.profiles, profile),
                placement: slot.to_string(),
            },
            Step::CreateCompute { slot, slices } => {
                StepRow::CreateComputeInstance { placement: slot.to_string(), slices }
            }
        }
    }

    /// Does the steps from these instances, and then checks the result.
    fn go(&self, instances: &[GpuInstance], way: &Way) -> Result<(), String> {
        for step in &way.steps {
            let failed = |error: MigError| format!("{}: {}", self.step_row(instances, step), of_nvml(error));
            self.gpu.carry_out(&self.profiles, step).map_err(failed)?;
        }
        let now = self.gpu.instances(&self.profiles).map_err(of_nvml)?;
        if layout_of(&now) == way.layout {
            return Ok(());
        }
        Err("after all steps the instances are not those that were planned".to_owned())
    }

    /// Restores the instances from before.
    fn go_back(&self, before: &Layout) -> Result<(), String> {
        let now = self.gpu.instances(&self.profiles).map_err(of_nvml)?;
        self.go(&now, &Way { steps: towards(&now, before), layout: before.clone() })
    }
}

fn described(row: &InstanceRow) -> String {
    format!("{} ({} at {})", row.gpu_instance, row.profile, row.placement)
}

/// The GPU instances that steps destroy, or of which they destroy compute instances.
fn touched(steps: &[Step]) -> BTreeSet<u32> {
    let of = |step: &Step| match *step {
        Step::DestroyCompute { gpu_instance, .. } | Step::DestroyGpu { gpu_instance } => Some(gpu_instance),
        _ => None,
    };
    steps.iter().filter_map(of).collect()
}

/// The steps to a layout.
struct Way {
    layout: Layout,
    steps: Vec<Step>,
}

impl Way {
    fn change(&self, here: &Here<'_>, is_applied: bool) -> MigChange {
        let touched = touched(&self.steps);
        let stays = |row: &&InstanceRow| !touched.contains(&row.gpu_instance);
        MigChange {
            gpu: here.request.label.clone(),
            remedy: here.remedy.clone(),
            kept: here.rows.iter().filter(stays).cloned().collect(),
            steps: self.steps.iter().map(|step| here.step_row(&here.instances, step)).collect(),
            is_applied,
            is_continued: is_applied && here.before.is_some(),
        }
    }
}

fn apply(request: &Request, registry: &Registry, target: &Target) -> Result<MigChange, String> {
    let deadline = Instant::now() + LOCK_LIMIT;
    let _lock = loop {
        match registry.try_lock_mig(&request.uuid).map_err(|error| error.to_string())? {
            Some(lock) => break lock,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            None => return Err("another command changes the instances; try again later".to_owned()),
        }
    };
    let here = Here::read(request, registry)?;
    let way = here.way(target)?;
    let _instances = here.lock(registry, &way)?;
    if !way.steps.is_empty() {
        let now = layout_of(&here.instances);
        let before = here.before.as_ref().unwrap_or(&now);
        here.journal.begin(journal::entries(before))?;
        if let Err(reason) = here.go(&here.instances, &way) {
            return Err(match here.go_back(before) {
                Ok(()) => {
                    here.journal.end()?;
                    format!("{reason}; the instances are those from before again")
                }
                Err(failed) => format!(
                    "{reason}; the way back failed too: {failed}; `partita mig apply --restore` tries again"
                ),
            });
        }
    }
    here.journal.end()?;
    Ok(way.change(&here, true))
}
