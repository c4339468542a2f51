//! The GPUs that `--gpu 0,1` selects.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use partita_ledger::GPUS_MAX;

use crate::error::Error;
use crate::facts::recent::{self, Recent};
use crate::facts::{Inventory, Reading, UnreadableGpu};
pub use crate::gpu::variables;
use crate::gpu::{self, Gpu, Selector, Tell};
use crate::install::Install;
use crate::simenv::SimEnvironment;

/// The value of `--gpu` where a tenant may have several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selectors {
    /// These, in this order. Never empty.
    List(Vec<Selector>),
    /// Every GPU of the machine, or of a simulated machine with this kind of GPU.
    All(Option<String>),
    /// The GPU of these on which the program fits best; only `partita run` chooses.
    Any(Option<String>),
}

impl FromStr for Selectors {
    type Err = Error;

    /// Selectors with commas between them. In a list that begins with `sim:NAME`, an index means a
    /// GPU of that simulated machine.
    fn from_str(text: &str) -> Result<Self, Error> {
        for (word, of) in [("all", Self::All as fn(Option<String>) -> Self), ("any", Self::Any)] {
            let machine = text.strip_suffix(word);
            if machine == Some("") {
                return Ok(of(None));
            }
            if let Some(Ok(Selector::Sim(device, 0))) =
                machine.and_then(|machine| machine.strip_suffix(':')).map(str::parse)
            {
                return Ok(of(Some(device)));
            }
        }
        let is_all = |one: &&str| matches!(one.rsplit(':').next(), Some("all" | "any"));
        if let Some(one) = text.split(',').find(is_all).filter(|one| *one != text) {
            return Err(Error::NotOffered {
                option: format!("--gpu {text}"),
                reason: format!("`{one}` stands alone; write it alone, or list GPUs as 0,1"),
            });
        }
        let mut list = text.split(',').map(str::parse).collect::<Result<Vec<Selector>, Error>>()?;
        if let Some(Selector::Sim(device, _)) = list.first().cloned() {
            for selector in &mut list {
                if let Selector::Index(index) = selector {
                    *selector = Selector::Sim(device.clone(), *index);
                }
            }
        }
        Ok(Self::List(list))
    }
}

impl fmt::Display for Selectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(None) => f.write_str("all"),
            Self::All(Some(device)) => write!(f, "sim:{device}:all"),
            Self::Any(None) => f.write_str("any"),
            Self::Any(Some(device)) => write!(f, "sim:{device}:any"),
            Self::List(list) => {
                let list: Vec<String> = list.iter().map(Selector::to_string).collect();
                f.write_str(&list.join(","))
            }
        }
    }
}

/// The result of a selection.
#[derive(Debug, Clone)]
pub struct SelectedGpus {
    /// The GPUs, in the order asked. Never empty.
    pub gpus: Vec<Gpu>,
    /// Why one is simulated although none was requested; for stderr.
    pub notice: Option<String>,
}

/// Finds the GPUs that `selectors` name; without selectors the one that [`gpu::select`] finds.
///
/// # Errors
/// As [`gpu::select`]; [`Error::GpuTwice`]; [`Error::NotOffered`] for GPUs that cannot be one
/// program's, and for a choice.
pub fn select(install: &Install, selectors: Option<&Selectors>) -> Result<SelectedGpus, Error> {
    selectors.map_or(Ok(()), check_no_choice)?;
    select_of(install, selectors, &|| gpu::real(install))
}

/// Refuses `--gpu any` where no program is placed.
///
/// # Errors
/// [`Error::NotOffered`].
pub(crate) fn check_no_choice(selectors: &Selectors) -> Result<(), Error> {
    if !matches!(selectors, Selectors::Any(_)) {
        return Ok(());
    }
    Err(Error::NotOffered {
        option: format!("--gpu {selectors}"),
        reason: "only `partita run` chooses a GPU; name one as `partita devices` lists them".to_owned(),
    })
}

/// The GPUs that are offered to several tenants, each for itself. They may be of different kinds.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// The GPUs, each once.
    pub gpus: Vec<Gpu>,
    /// Those of the selectors that cannot be used.
    pub left_out: Vec<LeftOut>,
}

/// A GPU that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its UUID, if it is known.
    pub uuid: Option<String>,
    /// Which one it is, and why it cannot be used.
    pub reason: String,
}

impl From<&UnreadableGpu> for LeftOut {
    fn from(gpu: &UnreadableGpu) -> Self {
        Self { uuid: gpu.uuid.clone(), reason: gpu.to_string() }
    }
}

/// Finds the GPUs that `selectors` name. A missing one is left out, and the others stay. A
/// simulated GPU never replaces a real one.
///
/// # Errors
/// [`Error::Driver`] if the GPUs cannot be listed; [`Error::NotOffered`] for a choice.
pub fn list(install: &Install, selectors: &Selectors) -> Result<Listed, Error> {
    list_of(install, selectors, &|| gpu::real(install))
}

/// [`list`], with `tell` as the source of the real GPUs.
fn list_of(install: &Install, selectors: &Selectors, tell: Tell<'_>) -> Result<Listed, Error> {
    check_no_choice(selectors)?;
    let selectors = match selectors {
        Selectors::List(list) => list,
        Selectors::All(Some(device)) | Selectors::Any(Some(device)) => {
            return Ok(Listed { gpus: gpu::simulated_all(install, device)?, left_out: Vec::new() });
        }
        Selectors::All(None) | Selectors::Any(None) => {
            return match tell()? {
                Reading::Driver(inventory) => Ok(Listed {
                    gpus: gpu::all_of(&inventory),
                    left_out: inventory.unreadable.iter().map(LeftOut::from).collect(),
                }),
                Reading::NoDriver(reason) => Err(Error::Driver { reason }),
            };
        }
    };
    let is_real = |selector: &Selector| !matches!(selector, Selector::Sim(..));
    let reading = if selectors.iter().any(is_real) { Some(tell()?) } else { None };
    let tell = || reading.clone().map_or_else(tell, Ok);
    let mut listed = Listed::default();
    for selector in selectors {
        match gpu::select_of(install, Some(selector), &tell) {
            Ok(gpu::Selected { gpu, .. }) => {
                if !listed.gpus.iter().any(|other| other.key() == gpu.key()) {
                    listed.gpus.push(gpu);
                }
            }
            Err(error) => listed.left_out.push(LeftOut {
                uuid: match selector {
                    Selector::Uuid(uuid) => Some(uuid.clone()),
                    Selector::Index(_) | Selector::Sim(..) => None,
                },
                reason: error.to_string(),
            }),
        }
    }
    Ok(listed)
}

/// As [`select`], for a program that is about to start: if the kernel reports no change, NVML's
/// last answer is used, which is much faster. Memory in use is then 0. NVML is queried if the
/// selection would be refused or a GPU is not `usable`.
///
/// # Errors
/// As [`select`].
pub(crate) fn select_to_start(
    install: &Install,
    selectors: Option<&Selectors>,
    usable: impl Fn(&Gpu) -> bool,
) -> Result<SelectedGpus, Error> {
    // The choice of one depends on how busy they are, which is not cached.
    let chooses = matches!(selectors, Some(Selectors::Any(_)));
    let recent = || Recent::here().inventory(recent::now()).filter(|_| !chooses);
    select_recent(install, selectors, usable, &recent, &|| gpu::real(install))
}

/// Every GPU of the machine; of the simulated machine, if there is no other.
///
/// # Errors
/// As [`select`].
pub(crate) fn select_all(install: &Install) -> Result<Vec<Gpu>, Error> {
    let recent = || Recent::here().inventory(recent::now());
    // One of any kinds, of which a program may see a part.
    let all = Selectors::Any(None);
    Ok(select_recent(install, Some(&all), |_| true, &recent, &|| gpu::real(install))?.gpus)
}

/// [`select_to_start`], with `recent` as the last answer, and `tell` for the query.
fn select_recent(
    install: &Install,
    selectors: Option<&Selectors>,
    usable: impl Fn(&Gpu) -> bool,
    recent: &dyn Fn() -> Option<Inventory>,
    tell: Tell<'_>,
) -> Result<SelectedGpus, Error> {
    let is_recent = Cell::new(false);
    let first = select_of(install, selectors, &|| match recent() {
        Some(inventory) => {
            is_recent.set(true);
            Ok(Reading::Driver(inventory))
        }
        None => tell(),
    });
    // A cached answer never leads to a refusal.
    let serves = first.as_ref().is_ok_and(|selected| selected.gpus.iter().all(usable));
    if is_recent.get() && !serves { select_of(install, selectors, tell) } else { first }
}

/// [`select`], with `tell` as the source of the real GPUs.
fn select_of(
    install: &Install,
    selectors: Option<&Selectors>,
    tell: Tell<'_>,
) -> Result<SelectedGpus, Error> {
    let one = |selector: Option<&Selector>| -> Result<SelectedGpus, Error> {
        let gpu::Selected { gpu, notice } = gpu::select_of(install, selector, tell)?;
        Ok(SelectedGpus { gpus: vec![gpu], notice })
    };
    let gpus = match selectors {
        None => return one(None),
        Some(Selectors::List(list)) => match list.as_slice() {
            [selector] => return one(Some(selector)),
            list => listed(install, list, tell)?,
        },
        Some(Selectors::All(Some(device)) | Selectors::Any(Some(device))) => {
            gpu::simulated_all(install, device)?
        }
        Some(Selectors::All(None) | Selectors::Any(None)) => match tell()? {
            Reading::Driver(inventory) if !inventory.gpus.is_empty() => {
                check_readable(&inventory, selectors)?;
                gpu::all_of(&inventory)
            }
            // The same kind of GPU, and the same notice, as without --gpu.
            _ => {
                let first = one(None)?;
                let device = first.gpus.first().and_then(Gpu::sim).map(SimEnvironment::device);
                return match device {
                    Some(device) => {
                        Ok(SelectedGpus { gpus: gpu::simulated_all(install, device)?, notice: first.notice })
                    }
                    None => Ok(first),
                };
            }
        },
    };
    match selectors {
        // The program gets one of them.
        None | Some(Selectors::Any(_)) => {}
        Some(selectors) => check(&gpus, selectors)?,
    }
    Ok(SelectedGpus { gpus, notice: None })
}

/// Refuses `--gpu all` while a GPU cannot be read: a program would get fewer than all.
fn check_readable(inventory: &Inventory, selectors: Option<&Selectors>) -> Result<(), Error> {
    match inventory.unreadable.first() {
        Some(gpu) if matches!(selectors, Some(Selectors::All(_))) => Err(Error::Driver {
            reason: format!("{gpu}; `partita devices` lists the others, which --gpu can name"),
        }),
        _ => Ok(()),
    }
}

fn listed(install: &Install, list: &[Selector], tell: Tell<'_>) -> Result<Vec<Gpu>, Error> {
    let mixed = |reason: &str| Error::NotOffered {
        option: format!("--gpu {}", Selectors::List(list.to_vec())),
        reason: reason.to_owned(),
    };
    if let Some(Selector::Sim(device, _)) = list.iter().find(|selector| matches!(selector, Selector::Sim(..)))
    {
        let here = gpu::simulated_all(install, device)?;
        return list
            .iter()
            .map(|selector| match selector {
                Selector::Sim(other, index) if other == device => here
                    .iter()
                    .find(|gpu| gpu.facts.index == *index)
                    .cloned()
                    // Says how many there are.
                    .map_or_else(|| gpu::simulated(install, device, *index), Ok),
                Selector::Sim(..) => Err(mixed("a simulated machine has GPUs of one kind; name one kind")),
                _ => Err(mixed("a program has one driver, so its GPUs are all real or all simulated")),
            })
            .collect();
    }
    match tell()? {
        Reading::Driver(inventory) => {
            list.iter().map(|selector| gpu::choose(inventory.clone(), selector)).collect()
        }
        // The same refusal as for one.
        Reading::NoDriver(_) => {
            list.iter().map(|one| Ok(gpu::select_of(install, Some(one), tell)?.gpu)).collect()
        }
    }
}

fn check(gpus: &[Gpu], selectors: &Selectors) -> Result<(), Error> {
    let refuse = |reason: String| Error::NotOffered { option: format!("--gpu {selectors}"), reason };
    if gpus.len() > GPUS_MAX {
        return Err(refuse(format!("a tenant has at most {GPUS_MAX} GPUs")));
    }
    for (at, gpu) in gpus.iter().enumerate() {
        if gpus[..at].iter().any(|other| other.key() == gpu.key()) {
            return Err(Error::GpuTwice { selectors: selectors.to_string(), gpu: gpu.label() });
        }
        let first = &gpus[0];
        if gpu.facts.compute_capability != first.facts.compute_capability {
            return Err(refuse(format!(
                "{} and {} are of different kinds, and launches of one program can be masked only on \
                 one kind; start a tenant on each kind",
                first.label(),
                gpu.label()
            )));
        }
    }
    Ok(())
}

/// The short names of several GPUs, for messages.
pub fn labels(gpus: &[Gpu]) -> String {
    gpus.iter().map(Gpu::label).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::GpuFacts;

    #[test]
    fn lists_parse_and_show() {
        for (text, shown) in [
            ("0", "0"),
            ("0,1", "0,1"),
            ("1,GPU-aa", "1,GPU-aa"),
            ("sim:h200:1", "sim:h200:1"),
            ("sim:h200,1", "sim:h200,sim:h200:1"),
            ("sim:a100:3,sim:a100,2", "sim:a100:3,sim:a100,sim:a100:2"),
            ("all", "all"),
            ("sim:h200:all", "sim:h200:all"),
            ("any", "any"),
            ("sim:a100:any", "sim:a100:any"),
        ] {
            let parsed: Selectors = text.parse().unwrap();
            assert_eq!(parsed.to_string(), shown, "{text}");
            assert_eq!(shown.parse::<Selectors>().unwrap(), parsed);
        }
        for text in [
            "",
            ",",
            "0,",
            "0,,1",
            "0, 1",
            "all,0",
            "any,0",
            ":any",
            "0:any",
            "sim:h200:all,1",
            "sim:rtx:all",
            "sim:h200:1:all",
        ] {
            assert!(text.parse::<Selectors>().is_err(), "{text}");
        }
    }

    fn gpu(index: u32, uuid: &str, compute_capability: (u32, u32)) -> Gpu {
        let facts = GpuFacts { index, uuid: uuid.to_owned(), compute_capability, ..GpuFacts::example() };
        Gpu::of(facts, "1", 13000)
    }

    #[test]
    fn a_program_has_each_gpu_once_and_one_kind_of_them() {
        let selectors: Selectors = "0,GPU-a".parse().unwrap();
        let same = gpu(0, "GPU-a", (9, 0));
        let error = check(&[same.clone(), same.clone()], &selectors).unwrap_err().to_string();
        assert!(error.contains("GPU 0 (NVIDIA H200) is named twice"), "{error}");
        let error = check(&[same.clone(), gpu(1, "GPU-b", (8, 0))], &selectors).unwrap_err().to_string();
        assert!(error.contains("different kinds"), "{error}");
        let two = [gpu(1, "GPU-b", (9, 0)), same];
        check(&two, &selectors).unwrap();
        assert_eq!(variables(&two), [("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a".into())]);
        let many: Vec<Gpu> =
            (0..=GPUS_MAX as u32).map(|index| gpu(index, &format!("GPU-{index}"), (9, 0))).collect();
        assert!(check(&many, &selectors).unwrap_err().to_string().contains("at most 32"));
    }

    /// An inventory with unreadable GPUs of these indices.
    fn inventory(gpus: Vec<GpuFacts>, unreadable: &[u32]) -> Inventory {
        let lost = |&index: &u32| UnreadableGpu {
            index,
            uuid: Some(format!("GPU-dead-{index}")),
            reason: "NVML: the GPU is lost".to_owned(),
        };
        Inventory {
            driver_version: "1".to_owned(),
            cuda_version: 13000,
            gpus,
            unreadable: unreadable.iter().map(lost).collect(),
        }
    }

    #[test]
    fn a_gpu_that_cannot_be_read_hides_no_other() {
        let install = Install::of("/nowhere/partita".into(), None);
        let tell = || Ok(Reading::Driver(inventory(vec![gpu(0, "GPU-a", (9, 0)).facts], &[1])));
        let list = |selectors: &str| list_of(&install, &selectors.parse().unwrap(), &tell).unwrap();
        for selectors in ["all", "0,1", "GPU-dead-1,0"] {
            let Listed { gpus, left_out } = list(selectors);
            assert_eq!((gpus.len(), left_out.len()), (1, 1), "{selectors}");
            assert!(left_out[0].reason.contains("GPU 1 cannot be read: NVML"), "{left_out:?}");
        }
        assert_eq!(list("all").left_out[0].uuid.as_deref(), Some("GPU-dead-1"));
        // A program that was to have all of them does not get fewer.
        let select = |selectors: &str| select_of(&install, Some(&selectors.parse().unwrap()), &tell);
        let said = select("all").unwrap_err().to_string();
        assert!(said.contains("GPU 1 cannot be read") && said.contains("--gpu can name"), "{said}");
        assert!(select("0,1").is_err());
        assert_eq!(select("any").unwrap().gpus.len(), 1);
        assert_eq!(select("0").unwrap().gpus.len(), 1);
    }

    #[test]
    fn each_gpu_is_offered_for_itself_and_none_is_invented() {
        let install = Install::of("/nowhere/partita".into(), None);
        let list = |selectors: &str, reading: Reading| {
            list_of(&install, &selectors.parse().unwrap(), &|| Ok(reading.clone()))
        };
        let none = || Reading::NoDriver("the NVIDIA kernel module is not loaded".to_owned());
        let said = list("all", none()).unwrap_err().to_string();
        assert!(said.contains("module is not loaded"), "{said}");
        let listed = list("0,GPU-a", none()).unwrap();
        assert!(listed.gpus.is_empty() && listed.left_out.len() == 2, "{listed:?}");
        let two = || {
            let gpus = [gpu(0, "GPU-a", (9, 0)), gpu(1, "GPU-b", (8, 0))].map(|gpu| gpu.facts).to_vec();
            Reading::Driver(inventory(gpus, &[]))
        };
        let uuids = |listed: &Listed| {
            listed.gpus.iter().map(|gpu| gpu.facts.uuid.clone()).collect::<Vec<_>>().join(",")
        };
        assert_eq!(uuids(&list("all", two()).unwrap()), "GPU-a,GPU-b", "of different kinds");
        let listed = list("1,7,GPU-b,GPU-c,0", two()).unwrap();
        assert_eq!(uuids(&listed), "GPU-b,GPU-a");
        let [seven, c] = &listed.left_out[..] else { panic!("{listed:?}") };
        assert!(seven.reason.contains("no GPU 7") && seven.uuid.is_none(), "{seven:?}");
        assert_eq!(c.uuid.as_deref(), Some("GPU-c"));
        assert!(list("any", two()).is_err());
    }

    #[test]
    fn the_last_option_wins_and_refuses_no_request() {
        let install = Install::of("/nowhere/partita".into(), None);
        let told = |modes: &[&str]| {
            let gpus = modes.iter().zip(0..).map(|(mode, index)| {
                let facts = gpu(index, &format!("GPU-{index}"), (9, 0)).facts;
                GpuFacts { compute_mode: (*mode).to_owned(), ..facts }
            });
            inventory(gpus.collect(), &[])
        };
        let usable = |gpu: &Gpu| gpu.facts.compute_mode != "prohibited";
        // NVML's present answer, and whether it was queried.
        let select = |selectors: &str, recent: Option<&[&str]>, now: &[&str]| {
            let asked = Cell::new(false);
            let tell = || {
                asked.set(true);
                Ok(Reading::Driver(told(now)))
            };
            let selectors = selectors.parse().unwrap();
            let selected = select_recent(&install, Some(&selectors), usable, &|| recent.map(told), &tell);
            let modes = selected.map(|selected| {
                selected.gpus.into_iter().map(|gpu| gpu.facts.compute_mode).collect::<Vec<_>>()
            });
            (modes.ok(), asked.get())
        };
        let of = |modes: &[&str]| Some(modes.iter().map(|mode| (*mode).to_owned()).collect::<Vec<_>>());
        for selectors in ["1", "GPU-1"] {
            assert_eq!(select(selectors, Some(&["a", "b"]), &["c", "d"]), (of(&["b"]), false));
            assert_eq!(select(selectors, None, &["c", "d"]), (of(&["d"]), true));
        }
        assert_eq!(select("1,0", Some(&["a", "b"]), &["c", "d"]), (of(&["b", "a"]), false));
        assert_eq!(select("all", Some(&["a", "b"]), &["c", "d"]), (of(&["a", "b"]), false));
        // Some minutes ago the GPU was unusable, or missing, or there were none.
        assert_eq!(select("0", Some(&["prohibited"]), &["a"]), (of(&["a"]), true));
        assert_eq!(select("0,1", Some(&["a", "prohibited"]), &["b", "c"]), (of(&["b", "c"]), true));
        assert_eq!(select("2", Some(&["a", "b"]), &["a", "b", "c"]), (of(&["c"]), true));
        assert_eq!(select("0", Some(&[]), &["a"]), (of(&["a"]), true));
        // A refusal is based on the present answer.
        assert_eq!(select("2", Some(&["a"]), &["a"]), (None, true));
        assert_eq!(select("0", Some(&["prohibited"]), &["prohibited"]), (of(&["prohibited"]), true));
    }
}
