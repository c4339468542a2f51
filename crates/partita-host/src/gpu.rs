//! The GPU that `--gpu` selects.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use partita_core::kept::fnv1a;
use partita_core::visible::Entry;

use crate::child::{Job, JobError};
use crate::error::Error;
use crate::facts::recent::{self, Recent};
use crate::facts::{self, GpuFacts, Inventory, Reading};
use crate::install::Install;
use crate::simenv::{self, SimEnvironment};

/// The first contact with a driver after boot, or after its last user has
/// left, takes seconds per GPU.
const NVML_LIMIT: Duration = Duration::from_secs(60);

/// The prefix of names of MIG instances.
pub(crate) const INSTANCE: &str = "MIG-";

/// The value of `--gpu` or `PARTITA_GPU`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The GPU with this NVML index.
    Index(u32),
    /// The GPU with this UUID, or the only one whose UUID has this prefix. The name of a MIG
    /// instance (`MIG-…`) is recognised, to explain that tenants are not made there.
    Uuid(String),
    /// A simulated device of the catalogue, and which of the simulated machine's GPUs.
    Sim(String, u32),
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = || Error::GpuSelector { text: text.to_owned(), known: simenv::known() };
        let index = |text: &str| {
            // `parse` would take a sign.
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| digits).ok_or_else(refuse)
        };
        if let Some(sim) = text.strip_prefix("sim:") {
            let (name, which) = sim.split_once(':').unwrap_or((sim, "0"));
            if !simenv::DEVICES.contains(&name) {
                return Err(refuse());
            }
            return Ok(Self::Sim(name.to_owned(), index(which)?));
        }
        if text == "sim" {
            return Ok(Self::Sim(simenv::DEFAULT_DEVICE.to_owned(), 0));
        }
        if text.len() > 4 && text.is_char_boundary(4) && text[..4].eq_ignore_ascii_case("gpu-") {
            let digits = &text[4..];
            let valid = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
            return if valid {
                Ok(Self::Uuid(format!("GPU-{}", digits.to_ascii_lowercase())))
            } else {
                Err(refuse())
            };
        }
        match Entry::parse(text) {
            Some(Entry::Instance(_) | Entry::InstanceOf { .. }) if text.trim() == text => {
                let (_, name) = text.split_at(INSTANCE.len());
                Ok(Self::Uuid(format!("{INSTANCE}{name}")))
            }
            _ => index(text).map(Self::Index),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::Sim(device, 0) => write!(f, "sim:{device}"),
            Self::Sim(device, index) => write!(f, "sim:{device}:{index}"),
        }
    }
}

/// A GPU of this machine, real or simulated.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// NVML's report.
    pub facts: GpuFacts,
    /// The driver's build.
    pub driver_version: String,
    /// The newest CUDA that the driver serves, thousands for the major.
    pub cuda_version: u32,
    sim: Option<SimEnvironment>,
}

impl Gpu {
    /// A real GPU with this report of NVML.
    pub fn of(facts: GpuFacts, driver_version: &str, cuda_version: u32) -> Self {
        Self { facts, driver_version: driver_version.to_owned(), cuda_version, sim: None }
    }

    /// The form for `--gpu` that names it again.
    pub fn selector(&self) -> Selector {
        match &self.sim {
            Some(sim) => Selector::Sim(sim.device().to_owned(), self.facts.index),
            None => Selector::Uuid(self.facts.uuid.clone()),
        }
    }

    /// A short name for people: `GPU 0 (NVIDIA H200)` or `sim:h200`.
    pub fn label(&self) -> String {
        match &self.sim {
            Some(_) => self.selector().to_string(),
            None => format!("GPU {} ({})", self.facts.index, self.facts.name),
        }
    }

    /// The newest CUDA that the driver serves, as people write it: `13.0`.
    pub fn cuda_version_text(&self) -> String {
        format!("{}.{}", self.cuda_version / 1000, self.cuda_version % 1000 / 10)
    }

    /// Its compute capability, as people write it: `9.0`.
    pub fn compute_capability_text(&self) -> String {
        let (major, minor) = self.facts.compute_capability;
        format!("{major}.{minor}")
    }

    /// Its simulated environment, if it is simulated.
    pub fn sim(&self) -> Option<&SimEnvironment> {
        self.sim.as_ref()
    }

    /// A name for directories: unlike the UUID of a simulated device, it distinguishes two boards
    /// of the same device.
    pub fn key(&self) -> String {
        match &self.sim {
            Some(sim) => {
                let dir = fnv1a(sim.dir().as_os_str().as_encoded_bytes()) as u32;
                let index = self.facts.index;
                let which = if index == 0 { String::new() } else { format!(".{index}") };
                format!("sim-{}{which}-{dir:08x}", sim.device())
            }
            None => self.facts.uuid.clone(),
        }
    }

    /// The variables that put a program on this GPU and on no other.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        variables(std::slice::from_ref(self))
    }
}

/// The variables that put a program on these GPUs, in this order, and on no other.
pub fn variables(gpus: &[Gpu]) -> Vec<(&'static str, OsString)> {
    let mut variables = gpus.first().and_then(Gpu::sim).map(SimEnvironment::variables).unwrap_or_default();
    let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.facts.uuid.as_str()).collect();
    variables.push(("CUDA_VISIBLE_DEVICES", uuids.join(",").into()));
    variables
}

/// Starts the simulated ones of these GPUs as this process's user, unless they run.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn start_boards(gpus: &[Gpu]) -> Result<(), Error> {
    let boards = gpus.iter().filter_map(|gpu| Some((gpu.sim()?, gpu.facts.index)));
    boards.into_iter().try_for_each(|(board, index)| board.start_board(index))
}

/// The device of a simulated GPU's [`Gpu::key`].
pub(crate) fn simulated_device(key: &str) -> Option<&str> {
    let (device, _) = key.strip_prefix("sim-")?.rsplit_once('-')?;
    Some(device.split_once('.').map_or(device, |(device, _)| device))
}

/// The result of a selection.
#[derive(Debug, Clone)]
pub struct Selected {
    /// The GPU.
    pub gpu: Gpu,
    /// Why it is a simulated one although none was requested; for stderr.
    pub notice: Option<String>,
}

/// Finds the GPU that `selector` names. Without a selector it is the GPU of the
/// simulated environment that this process is in, else the machine's first
/// GPU, else a simulated one with a notice.
///
/// # Errors
/// [`Error::NoSuchGpu`], [`Error::Driver`], and what making a simulated environment ends with.
pub fn select(install: &Install, selector: Option<&Selector>) -> Result<Selected, Error> {
    select_of(install, selector, &|| real(install))
}

/// Reports the real GPUs.
pub(crate) type Tell<'t> = &'t dyn Fn() -> Result<Reading, Error>;

/// [`select`], with `tell` as the source of the real GPUs.
pub(crate) fn select_of(
    install: &Install,
    selector: Option<&Selector>,
    tell: Tell<'_>,
) -> Result<Selected, Error> {
    let selected = |gpu| Selected { gpu, notice: None };
    if let Some(Selector::Sim(device, index)) = selector {
        return simulated(install, device, *index).map(selected);
    }
    if selector.is_none()
        && let Some(device) = std::env::var("PARTITA_SIM_DEVICE").ok().filter(|device| !device.is_empty())
    {
        return simulated(install, &device, 0).map(selected);
    }
    let reason = match tell()? {
        Reading::Driver(inventory) if selector.is_some() || !inventory.gpus.is_empty() => {
            return choose(inventory, selector.unwrap_or(&Selector::Index(0))).map(selected);
        }
        Reading::Driver(_) => "the driver reports no GPU".to_owned(),
        Reading::NoDriver(reason) => reason,
    };
    match selector {
        Some(selector) => Err(Error::NoSuchGpu {
            wanted: selector.to_string(),
            present: format!("{reason}; a simulated one is --gpu sim:{}", simenv::DEFAULT_DEVICE),
        }),
        None => {
            let gpu = simulated(install, simenv::DEFAULT_DEVICE, 0)?;
            let notice = format!("no GPU here ({reason}): using the simulated {}", gpu.label());
            Ok(Selected { gpu, notice: Some(notice) })
        }
    }
}

/// Every real GPU of this machine.
///
/// # Errors
/// [`Error::Driver`] if there is a driver that does not work.
pub fn all_real(install: &Install) -> Result<Result<Vec<Gpu>, String>, Error> {
    Ok(match real(install)? {
        Reading::NoDriver(reason) => Err(reason),
        Reading::Driver(inventory) => Ok(all_of(&inventory)),
    })
}

/// The GPU `index` of a simulated machine with GPUs of the kind `device`; its board runs.
///
/// # Errors
/// What making the environment ends with; [`Error::NoSuchGpu`]; [`Error::Driver`] if the simulated
/// driver does not work.
pub fn simulated(install: &Install, device: &str, index: u32) -> Result<Gpu, Error> {
    let mut gpus = simulated_all(install, device)?;
    let present = gpus.len();
    let found = gpus.iter().position(|gpu| gpu.facts.index == index);
    found.map(|at| gpus.swap_remove(at)).ok_or_else(|| Error::NoSuchGpu {
        wanted: Selector::Sim(device.to_owned(), index).to_string(),
        present: format!("the simulated machine has {present}; PARTITA_SIM_GPUS says how many"),
    })
}

/// Every GPU of a simulated machine.
///
/// # Errors
/// As [`simulated`].
pub(crate) fn simulated_all(install: &Install, device: &str) -> Result<Vec<Gpu>, Error> {
    let sim = SimEnvironment::create(install, device)?;
    match read(install, sim.variables())? {
        Reading::Driver(inventory) => {
            let gpus = all_of(&inventory).into_iter().map(|gpu| Gpu { sim: Some(sim.clone()), ..gpu });
            Ok(gpus.collect())
        }
        Reading::NoDriver(reason) => Err(Error::Driver { reason: format!("sim:{device}: {reason}") }),
    }
}

pub(crate) fn all_of(inventory: &Inventory) -> Vec<Gpu> {
    let gpu = |facts: &GpuFacts| Gpu::of(facts.clone(), &inventory.driver_version, inventory.cuda_version);
    inventory.gpus.iter().map(gpu).collect()
}

/// Asks which real GPUs there are.
///
/// # Errors
/// [`Error::Driver`] if there is a driver that does not work.
pub(crate) fn real(install: &Install) -> Result<Reading, Error> {
    Recent::here().ask(recent::now(), || read(install, Vec::new()))
}

fn read(install: &Install, variables: Vec<(&'static str, OsString)>) -> Result<Reading, Error> {
    let job = Job::new(install, facts::JOB, &())?.envs(variables).limit(NVML_LIMIT);
    job.run()?.map_err(|error| match error {
        // NVML returns a number, and the simulated one prints the reason.
        JobError::Failed { reason, complaint } => {
            Error::Driver { reason: complaint.strip_prefix("partita-sim: ").map_or(reason, str::to_owned) }
        }
        other => other.or(|reason| Error::Driver {
            reason: format!("the management library (libnvidia-ml.so.1): {reason}"),
        }),
    })
}

/// Why a tenant is not made in the MIG instance of that name, and the alternative.
fn of_instance(name: &str, gpus: &[GpuFacts]) -> Error {
    let all = || gpus.iter().flat_map(|gpu| gpu.mig_instances.iter().map(move |instance| (gpu, instance)));
    let is_meant = |instance: &facts::InstanceFacts| {
        instance.uuid.to_ascii_lowercase().starts_with(&name.to_ascii_lowercase())
    };
    // Drivers accept the old form and report the new one, so it is identified by its GPU alone.
    let of_gpu = match Entry::parse(name) {
        Some(Entry::InstanceOf { gpu, .. }) => Some(format!("gpu-{}", gpu.to_ascii_lowercase())),
        _ => None,
    };
    let found = all().find(|(gpu, instance)| {
        is_meant(instance) || of_gpu.as_ref().is_some_and(|uuid| gpu.uuid.to_ascii_lowercase() == *uuid)
    });
    match found {
        Some((gpu, instance)) => {
            let what = if is_meant(instance) { instance.profile() } else { "a part" };
            Error::NotOffered {
                option: format!("--gpu {name}"),
                reason: format!("it is {what} of GPU {} ({}); {}", gpu.index, gpu.name, INSTANCES_INSTEAD),
            }
        }
        None => {
            let present: Vec<String> =
                all().map(|(_, instance)| format!("{} is {}", instance.uuid, instance.name)).collect();
            let present = if present.is_empty() {
                "no GPU here is cut up by MIG".to_owned()
            } else {
                present.join(", ")
            };
            Error::NoSuchGpu { wanted: name.to_owned(), present }
        }
    }
}

/// The remedy where MIG is on.
pub const INSTANCES_INSTEAD: &str = "masks are not proved in MIG instances, and one is a partition itself: \
    give a program one with `partita run --mig 3g` or CUDA_VISIBLE_DEVICES=MIG-…, and a memory quota or a \
    share of time in it with libpartita.so and the variables of docs/migrating-from-hami.md";

pub(crate) fn choose(inventory: Inventory, selector: &Selector) -> Result<Gpu, Error> {
    let Inventory { driver_version, cuda_version, gpus, unreadable } = inventory;
    if let Selector::Uuid(name) = selector
        && name.starts_with(INSTANCE)
    {
        return Err(of_instance(name, &gpus));
    }
    let matching: Vec<&GpuFacts> = gpus
        .iter()
        .filter(|facts| match selector {
            Selector::Index(index) => facts.index == *index,
            Selector::Uuid(uuid) => facts.uuid.to_ascii_lowercase().starts_with(&uuid.to_ascii_lowercase()),
            Selector::Sim(..) => false,
        })
        .collect();
    let [facts] = matching[..] else {
        let list = gpus.iter().map(|facts| format!("{} is {} {}", facts.index, facts.name, facts.uuid));
        let list: Vec<String> = list.chain(unreadable.iter().map(ToString::to_string)).collect();
        let present = match (matching.len(), list.is_empty()) {
            (_, true) => {
                format!("the driver reports no GPU; a simulated one is --gpu sim:{}", simenv::DEFAULT_DEVICE)
            }
            (0, _) => list.join(", "),
            _ => format!("more than one matches ({})", list.join(", ")),
        };
        return Err(Error::NoSuchGpu { wanted: selector.to_string(), present });
    };
    Ok(Gpu::of(facts.clone(), &driver_version, cuda_version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_parse_and_show() {
        for (text, selector) in [
            ("0", Selector::Index(0)),
            ("17", Selector::Index(17)),
            ("sim:a100", Selector::Sim("a100".into(), 0)),
            ("sim:a100:3", Selector::Sim("a100".into(), 3)),
            ("sim", Selector::Sim("h200".into(), 0)),
            ("GPU-1A2b", Selector::Uuid("GPU-1a2b".into())),
            (
                "gpu-9b1b0b8e-0000-1111-2222-333344445555",
                Selector::Uuid("GPU-9b1b0b8e-0000-1111-2222-333344445555".into()),
            ),
        ] {
            assert_eq!(text.parse::<Selector>().unwrap(), selector);
            assert_eq!(selector.to_string().parse::<Selector>().unwrap(), selector);
        }
        for text in [
            "",
            "-1",
            "+1",
            "GPU-",
            "GPU-xyz",
            "sim:",
            "sim:rtx",
            "sim:h200:",
            "sim:h200:+1",
            "h200",
            "99999999999",
            "0 ",
            "äöü€",
        ] {
            let error = text.parse::<Selector>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("sim:h200"), "{error}");
        }
    }

    #[test]
    fn mig_instances_are_named_and_refused() {
        let uuid = "12345678-9abc-4def-8012-3456789abcde";
        for text in ["MIG-1234", "mig-12345678-9", &format!("MIG-GPU-{uuid}/7/0")] {
            let parsed: Selector = text.parse().unwrap();
            assert_eq!(parsed, Selector::Uuid(format!("MIG-{}", &text[4..])));
        }
        for text in ["MIG-", "MIG-xyz", "MIG-GPU-1/1/0", " MIG-1234"] {
            assert!(text.parse::<Selector>().is_err(), "{text:?}");
        }
        let mut gpu = Gpu::of(
            GpuFacts {
                index: 3,
                uuid: format!("GPU-{uuid}"),
                mig_enabled: Some(true),
                ..GpuFacts::example()
            },
            "1",
            13000,
        );
        let asked = |gpu: &Gpu, name: &str| {
            let gpus = vec![gpu.facts.clone()];
            let inventory = Inventory {
                driver_version: "1".to_owned(),
                cuda_version: 13000,
                gpus,
                unreadable: Vec::new(),
            };
            choose(inventory, &name.parse().unwrap()).unwrap_err().to_string()
        };
        let said = asked(&gpu, "MIG-1");
        assert!(said.contains("MIG-1") && said.contains("no GPU here is cut up"), "{said}");
        gpu.facts.mig_instances.push(facts::InstanceFacts {
            uuid: "MIG-abcd0000".to_owned(),
            name: "NVIDIA H200 MIG 3g.71gb".to_owned(),
            memory_total_bytes: 1,
            memory_used_bytes: 0,
        });
        let said = asked(&gpu, "mig-abcd");
        assert!(
            said.contains("3g.71gb of GPU 3 (NVIDIA H200)") && said.contains("CUDA_VISIBLE_DEVICES=MIG-"),
            "{said}"
        );
        let said = asked(&gpu, &format!("MIG-GPU-{uuid}/7/0"));
        assert!(said.contains("a part of GPU 3"), "{said}");
        let said = asked(&gpu, "MIG-ef");
        assert!(said.contains("MIG-abcd0000 is NVIDIA H200 MIG 3g.71gb"), "{said}");
    }

    #[test]
    fn keys_tell_simulated_devices() {
        assert_eq!(simulated_device("sim-gtx1060-3gb-00c0ffee"), Some("gtx1060-3gb"));
        assert_eq!(simulated_device("sim-a100.3-00c0ffee"), Some("a100"));
        assert_eq!(simulated_device("GPU-00c0ffee-1"), None);
    }

    fn inventory(uuids: &[&str]) -> Inventory {
        let gpus = uuids.iter().zip(0..).map(|(uuid, index)| GpuFacts {
            index,
            uuid: (*uuid).to_owned(),
            ..GpuFacts::example()
        });
        Inventory {
            driver_version: "1".to_owned(),
            cuda_version: 13000,
            gpus: gpus.collect(),
            unreadable: Vec::new(),
        }
    }

    #[test]
    fn a_uuid_prefix_must_be_unique() {
        let two = inventory(&["GPU-aa11", "GPU-aa22"]);
        let pick = |selector: &str| choose(two.clone(), &selector.parse().unwrap());
        assert_eq!(pick("GPU-aa2").unwrap().facts.index, 1);
        assert_eq!(pick("1").unwrap().facts.uuid, "GPU-aa22");
        assert!(pick("GPU-aa").unwrap_err().to_string().contains("more than one"));
        let error = pick("7").unwrap_err().to_string();
        assert!(error.contains("no GPU 7") && error.contains("0 is NVIDIA H200 GPU-aa11"), "{error}");
        let lost = facts::UnreadableGpu { index: 1, uuid: None, reason: "NVML: the GPU is lost".to_owned() };
        let one = Inventory { unreadable: vec![lost], ..inventory(&["GPU-aa11"]) };
        let said = choose(one, &Selector::Index(1)).unwrap_err().to_string();
        assert!(said.contains("0 is NVIDIA H200 GPU-aa11, GPU 1 cannot be read: NVML"), "{said}");
        let none = choose(inventory(&[]), &Selector::Index(0)).unwrap_err().to_string();
        assert!(none.contains("sim:h200"), "{none}");
    }
}
