//! Programs that were started without Partita, where the policy of the site limits them
//! (`programs = "limit"`). Such a program joins a tenant, or gets a new one: this module says which
//! tenant it joins, and what is asked for a new one.
//!
//! The library in the program asks `partitad` when the program first uses the GPU, and
//! [`mod@crate::answer`] answers. `docs/design/outside.md` has the reasons.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use partita_core::visible::{self, Entry};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus::{self, Selectors};
use crate::install::Install;
use crate::kill;
use crate::limits::{LimitSet, parse_uuid};
use crate::process::{ProcessId, Stat};
use crate::registry::{Isolation, Origin, Tenant};
use crate::request::RunRequest;
use crate::run;

/// The most generations that are looked at.
const GENERATIONS_MAX: usize = 64;
/// The most that is kept of a command line, in bytes.
const COMMAND_BYTES_MAX: usize = 4 << 10;
/// The names of the programs of MPS begin so.
const MPS_PROGRAMS: &str = "nvidia-cuda-mps-";

/// A program that uses the GPU and for which nobody has made a tenant.
pub(crate) struct Newcomer {
    /// The process that asks.
    pub process: ProcessId,
    /// It and its ancestors, itself first.
    line: Vec<ProcessId>,
    /// Its process group.
    group: i32,
}

impl Newcomer {
    /// The process of this number, if it is one of the user and no program of Partita's or of MPS.
    pub fn find(install: &Install, pid: u32, user: u32) -> Option<Self> {
        let process = ProcessId::living(pid).filter(|process| process.user() == Some(user))?;
        if is_partitas(install, pid) {
            return None;
        }
        let line = std::iter::successors(Some(process), |process| process.parent());
        let group = group_of(process)?;
        Some(Self { process, line: line.take(GENERATIONS_MAX).collect(), group })
    }

    /// The tenant that it belongs to, if it sees these GPUs: that of its nearest ancestor, or else
    /// one that the policy has made for its process group, which is what a shell calls a job.
    pub fn tenant<'t>(&self, gpus: &[Gpu], tenants: &'t [Tenant]) -> Option<&'t Tenant> {
        let keys: Vec<String> = gpus.iter().map(Gpu::key).collect();
        let members: Vec<Members> = tenants.iter().map(Members::of).collect();
        tenants.get(home(&self.line, self.group, &keys, &members)?)
    }

    /// The names that a tenant for it may get: that of the program with its job's number, also with
    /// the first of its GPUs, and with its own number. Processes of the job that ask at the same
    /// moment ask for the same ones, and so only one of them makes the tenant.
    pub fn names(&self, gpus: &[Gpu]) -> [String; 3] {
        let program = run::program_name(&exe(self.process.pid).unwrap_or_default());
        let (job, own) = (self.group, self.process.pid);
        let gpu = gpus.first().map_or(0, |gpu| gpu.facts.index);
        [format!("{program}-{job}"), format!("{program}-{job}-gpu{gpu}"), format!("{program}-{own}")]
    }

    /// What it asks for, without an option, on GPUs that it sees.
    ///
    /// A service of MPS has one set of GPUs. A program that sees several would keep all others away
    /// from each of them, so it takes turns instead.
    pub fn request(&self, gpus: &[Gpu]) -> RunRequest {
        let isolation = if gpus.len() > 1 { Isolation::Own } else { Isolation::Shared };
        RunRequest {
            gpus: Some(Selectors::List(gpus.iter().map(Gpu::selector).collect())),
            limits: LimitSet { isolation: Some(isolation), ..LimitSet::default() },
            command: command_of(self.process.pid),
            is_outside: true,
            ..RunRequest::default()
        }
    }
}

/// What of a tenant says who belongs to it.
struct Members {
    /// The policy has made it.
    is_outside: bool,
    /// The keys of its GPUs.
    gpus: Vec<String>,
    /// Processes with their groups.
    processes: Vec<(ProcessId, Option<i32>)>,
}

impl Members {
    fn of(tenant: &Tenant) -> Self {
        let meta = tenant.meta.as_ref().ok();
        let mut processes = kill::own_processes(tenant);
        processes.extend(meta.map(|meta| meta.run).filter(|run| run.lives()));
        Self {
            is_outside: meta.is_some_and(|meta| meta.origin == Origin::Policy),
            gpus: meta
                .map_or_else(Vec::new, |meta| meta.all_gpus().iter().map(|gpu| gpu.key.clone()).collect()),
            processes: processes.into_iter().map(|process| (process, group_of(process))).collect(),
        }
    }
}

/// The place in the list of the tenant that a process with this line of ancestors belongs to, which
/// sees these GPUs.
///
/// Somebody has asked for a tenant on its GPUs for all that its program starts. One that the policy
/// has made follows what programs see, and so is no place for one that sees others.
fn home(line: &[ProcessId], group: i32, gpus: &[String], tenants: &[Members]) -> Option<usize> {
    let fits = |tenant: &Members| gpus.iter().all(|gpu| tenant.gpus.contains(gpu));
    let has = |ancestor: &ProcessId| {
        tenants.iter().position(|tenant| {
            (!tenant.is_outside || fits(tenant))
                && tenant.processes.iter().any(|(process, _)| process == ancestor)
        })
    };
    let of_job = || {
        let is_of_job = |tenant: &Members| tenant.processes.iter().any(|(_, of)| *of == Some(group));
        // Group 0 is led from another PID namespace, whichever.
        tenants.iter().position(|tenant| group != 0 && tenant.is_outside && fits(tenant) && is_of_job(tenant))
    };
    line.iter().find_map(has).or_else(of_job)
}

fn group_of(process: ProcessId) -> Option<i32> {
    Stat::of(&process.pid.to_string()).map(|stat| stat.group)
}

/// The file that a process runs.
fn exe(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The command line of a process, as far as it is kept.
fn command_of(pid: u32) -> Vec<OsString> {
    let mut bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.truncate(COMMAND_BYTES_MAX);
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|&byte| byte == 0);
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Whether a process runs a program of this installation, or one of MPS that root has installed:
/// these use the GPU for tenants, not as one.
fn is_partitas(install: &Install, pid: u32) -> bool {
    let Some(path) = exe(pid) else { return false };
    let name = path.file_name().unwrap_or_default().as_bytes();
    let program = install.program().canonicalize();
    let is_beside = program.is_ok_and(|program| path.parent() == program.parent());
    let is_roots = || std::fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|file| file.uid() == 0);
    (is_beside && name.starts_with(b"partita")) || (name.starts_with(MPS_PROGRAMS.as_bytes()) && is_roots())
}

/// The GPUs that a program sees, by its `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`. Empty if it
/// sees none, or a MIG instance, which has limits of its own.
///
/// # Errors
/// [`Error::NotOffered`] if a number does not say which GPU is meant.
pub(crate) fn seen(install: &Install, list: Option<&str>, order: Option<&str>) -> Result<Vec<Gpu>, Error> {
    let here = gpus::select_all(install)?;
    let seen = shown(list, order, &here).map_err(|reason| Error::NotOffered {
        option: format!("CUDA_VISIBLE_DEVICES={}", list.unwrap_or_default()),
        reason,
    })?;
    Ok(seen.into_iter().map(|place| here[place].clone()).collect())
}

/// The places in the list of those GPUs.
fn shown(list: Option<&str>, order: Option<&str>, here: &[Gpu]) -> Result<Vec<usize>, String> {
    let is_of_kind = |gpu: &Gpu| here.first().is_none_or(|first| gpu.facts.name == first.facts.name);
    let has_number =
        |list: &str| list.split(',').any(|it| matches!(Entry::parse(it), Some(Entry::Number(_))));
    if list.is_some_and(has_number) && order != Some("PCI_BUS_ID") && !here.iter().all(is_of_kind) {
        return Err(
            "the GPUs of this machine are of several kinds, which the driver numbers by their speed; set \
                    CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUIDs"
                .to_owned(),
        );
    }
    let of_core = |gpu: &Gpu| visible::Gpu {
        uuid: parse_uuid(&gpu.facts.uuid).unwrap_or_default(),
        // Which of them is meant does not matter here.
        instances: (gpu.facts.mig_enabled == Some(true))
            .then(|| vec![visible::Instance { uuid: [0; 16], gpu_instance: 0, compute_instance: 0 }]),
    };
    let is_instance =
        |entry: &str| matches!(Entry::parse(entry), Some(Entry::Instance(_) | Entry::InstanceOf { .. }));
    if list.is_some_and(|list| list.split(',').next().is_some_and(is_instance)) {
        return Ok(Vec::new());
    }
    let seen = visible::shown(list, &here.iter().map(of_core).collect::<Vec<_>>());
    Ok(seen.into_iter().filter(|device| device.instance.is_none()).map(|device| device.gpu).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::GpuFacts;

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, start_ticks: u64::from(pid) }
    }

    fn members(is_outside: bool, gpus: &[&str], processes: &[(u32, i32)]) -> Members {
        let processes = processes.iter().map(|&(pid, group)| (process(pid), Some(group))).collect();
        Members { is_outside, gpus: keys(gpus), processes }
    }

    fn keys(gpus: &[&str]) -> Vec<String> {
        gpus.iter().map(|gpu| (*gpu).to_owned()).collect()
    }

    fn line(pids: &[u32]) -> Vec<ProcessId> {
        pids.iter().map(|&pid| process(pid)).collect()
    }

    #[test]
    fn a_program_joins_its_ancestors_tenant_or_its_jobs() {
        let here = keys(&["a"]);
        let tenants = [
            members(false, &["a"], &[(10, 10), (11, 10)]),
            members(true, &["a"], &[(20, 20)]),
            members(true, &["a"], &[(30, 21)]),
        ];
        for (pids, group, expected) in [
            // A child, and a grandchild in a session of its own.
            (&[12, 11, 1][..], 10, Some(0)),
            (&[22, 21, 20, 1], 22, Some(1)),
            // The nearest ancestor counts.
            (&[33, 30, 20, 1], 33, Some(2)),
            // A worker beside the first one, of a parent that does not use the GPU.
            (&[31, 29, 1], 21, Some(2)),
            // `partita run` limits what it has started, and not the rest of the script.
            (&[13, 9, 1], 10, None),
            (&[40, 1], 40, None),
            (&[41, 1], 0, None),
        ] {
            assert_eq!(home(&line(pids), group, &here, &tenants), expected, "{pids:?} in group {group}");
        }
        let later = ProcessId { pid: 20, start_ticks: 99 };
        assert_eq!(home(&[later], 99, &here, &tenants), None, "another process of that number");
        let abroad = [members(true, &["a"], &[(50, 0)])];
        assert_eq!(home(&line(&[51]), 0, &here, &abroad), None, "two groups of another namespace");
    }

    #[test]
    fn a_program_that_sees_other_gpus_joins_no_tenant_that_the_policy_has_made() {
        let tenants = [members(true, &["a", "b"], &[(20, 20)]), members(false, &["a"], &[(10, 10)])];
        for (pids, group, gpus, expected) in [
            (&[21, 20][..], 20, &["b"][..], Some(0)),
            (&[21, 20], 20, &["b", "c"], None),
            (&[22], 20, &["a", "b"], Some(0)),
            (&[22], 20, &["c"], None),
            // Somebody has asked for these GPUs alone.
            (&[11, 10], 10, &["c"], Some(1)),
        ] {
            assert_eq!(home(&line(pids), group, &keys(gpus), &tenants), expected, "{pids:?} with {gpus:?}");
        }
    }

    fn gpu(index: u32, name: &str, mig_enabled: Option<bool>) -> Gpu {
        let uuid = format!("GPU-0000000{index}-0000-0000-0000-000000000000");
        let facts = GpuFacts { index, uuid, name: name.to_owned(), mig_enabled, ..GpuFacts::example() };
        Gpu::of(facts, "1", 13000)
    }

    #[test]
    fn a_program_sees_what_its_list_names() {
        let alike = [gpu(0, "a", None), gpu(1, "a", None)];
        for (list, expected) in [
            (None, &[0, 1][..]),
            (Some("1"), &[1]),
            (Some("1,0"), &[1, 0]),
            (Some("GPU-00000001"), &[1]),
            (Some(""), &[]),
            (Some("-1"), &[]),
            (Some("0,7,1"), &[0]),
            (Some("MIG-00000001-0000-0000-0000-000000000000"), &[]),
        ] {
            assert_eq!(shown(list, None, &alike).unwrap(), expected, "{list:?}");
        }
    }

    #[test]
    fn a_number_among_several_kinds_needs_an_order() {
        let mixed = [gpu(0, "a", None), gpu(1, "b", None)];
        let refusal = shown(Some("1"), None, &mixed).unwrap_err();
        assert!(refusal.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{refusal}");
        assert_eq!(shown(Some("1"), Some("PCI_BUS_ID"), &mixed).unwrap(), [1]);
        assert_eq!(shown(Some("GPU-00000001"), None, &mixed).unwrap(), [1]);
    }

    #[test]
    fn a_mig_instance_has_limits_of_its_own() {
        let cut = [gpu(0, "a", Some(true)), gpu(1, "a", Some(false))];
        assert_eq!(shown(None, None, &cut).unwrap(), [1]);
        assert_eq!(shown(Some("0"), None, &cut).unwrap(), [0; 0]);
        assert_eq!(shown(None, None, &cut[..1]).unwrap(), [0; 0]);
    }
}
