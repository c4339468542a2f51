//! All ways to divide a GPU: which can be had on this machine, what each keeps apart, and what was
//! measured.
//!
//! A figure is quoted from a committed result, with its file. A test looks each up there.

use std::ffi::OsStr;

use partita_mps::ControlBinary;
use serde::Serialize;

use crate::calibration::Cache;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::registry::Registry;
use crate::vf;

/// CUDA 12.4, with which green contexts came.
const CUDA_GREEN: u32 = 12_040;

/// One way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// How to use it.
    pub command: &'static str,
    /// Whether it can be had here.
    pub is_available: bool,
    /// Why, or why not and what helps.
    pub because: String,
    /// What it keeps apart of compute units.
    pub compute: &'static str,
    /// What it keeps apart of memory.
    pub memory: &'static str,
    /// Whom a fault reaches.
    pub faults: &'static str,
    /// What can change, and when.
    pub flexibility: &'static str,
    /// What was measured, of its cost or its effect; `None` if nothing was.
    pub measured: Option<Quote>,
    /// What was found on this machine; `None` if nothing is stored.
    pub here: Option<String>,
}

/// A figure of a committed result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quote {
    /// What it says.
    pub what: &'static str,
    /// The device, the driver and the date.
    pub on: &'static str,
    /// The file, below `research/bench/results`.
    pub file: &'static str,
    /// The words in the file from which it is.
    #[serde(skip)]
    pub words: &'static str,
}

const H200: &str = "H200, driver 580.159.04, 2026-11-21";
const SIMULATED: &str = "simulated H200, 2026-11-24";

/// What is known of a machine.
#[derive(Debug, Clone, Default)]
struct Machine {
    /// Compute capability.
    compute_capability: (u32, u32),
    /// CUDA's version of the driver, as 12040.
    cuda_version: u32,
    /// Whether MIG is on; `None` without MIG.
    is_mig_on: Option<bool>,
    /// What the stored calibration proved.
    proof: Option<String>,
    /// Why there is no control program of MPS.
    no_mps: Option<String>,
    /// The functions of plain SR-IOV, as `0000:1b:00.0: 4 of 8 functions`.
    functions: Vec<String>,
    /// The same of NVIDIA's vGPUs.
    vgpus: Vec<String>,
}

/// All ways on this GPU and its machine.
///
/// # Errors
/// Those of [`vf::list`].
pub fn compare(install: &Install, registry: &Registry, gpu: &Gpu) -> Result<Vec<Way>, Error> {
    let proof = Cache::open().kept(install, gpu).map(|measured| {
        format!("{} TPCs proved on this machine, driver {}", measured.tpcs.len(), gpu.driver_version)
    });
    let no_mps = match gpu.sim() {
        Some(_) => None,
        None => {
            let path = std::env::var_os("PATH");
            ControlBinary::find(path.as_deref().map(OsStr::new)).err().map(|error| error.to_string())
        }
    };
    let mut machine = Machine {
        compute_capability: gpu.facts.compute_capability,
        cuda_version: gpu.cuda_version,
        is_mig_on: gpu.facts.mig_enabled,
        proof,
        no_mps,
        ..Machine::default()
    };
    for report in vf::list(install, registry)? {
        let words = format!(
            "{}: {} of {} functions, {} vGPUs",
            report.device,
            report.functions.len(),
            report.functions_max,
            report.vgpus.len()
        );
        if report.is_nvidia { machine.vgpus.push(words) } else { machine.functions.push(words) }
    }
    Ok(ways(&machine))
}

/// The ways of a machine.
fn ways(machine: &Machine) -> Vec<Way> {
    let is_divided = machine.is_mig_on == Some(true);
    // What was proved here works, whatever the generation.
    let is_old = machine.compute_capability < (7, 0) && machine.proof.is_none();
    // A reason against every way that works on a whole GPU.
    let whole = |so_far: Result<String, String>| match is_divided {
        true => Err("MIG is on; an administrator turns it off, or use `partita run --mig`".to_owned()),
        false => so_far,
    };
    let masked = |words: &str| match (&machine.proof, is_old) {
        (_, true) => Err("it takes a GPU from Volta on".to_owned()),
        (Some(_), _) => Ok(words.to_owned()),
        (None, _) => Err("the driver is not proved yet; `partita doctor` does that".to_owned()),
    };
    let way = |name, command, found: Result<String, String>| {
        let is_available = found.is_ok();
        let because = found.unwrap_or_else(|reason| reason);
        Way {
            name,
            command,
            is_available,
            because,
            compute: "",
            memory: "",
            faults: "",
            flexibility: "",
            measured: None,
            here: None,
        }
    };
    let shared = "all clients of the MPS service";
    let own = "the program itself";
    let quota = "quota; L2 and bandwidth are shared";
    vec![
        Way {
            compute: "disjoint TPCs",
            memory: quota,
            faults: shared,
            flexibility: "any TPCs, changed while it runs",
            measured: Some(Quote {
                what: "a launch costs 3.0 ns more (95 %: -1.6 to 5.8)",
                on: H200,
                file: "mask_overhead.md",
                words: "| callback, mask of half the TPCs | 2804.2 | 2659.9 | 2968.1 | +3.0 | -1.6 to +5.8 |",
            }),
            here: machine.proof.clone(),
            ..way("mask", "partita run --sm", whole(masked("launch descriptors are proved")))
        },
        Way {
            compute: "disjoint groups of SMs in one process",
            memory: "none",
            faults: own,
            flexibility: "fixed sets; another set is another context",
            measured: Some(Quote {
                what: "1468 us to make one, and a mask 1.7 us",
                on: H200,
                file: "mechanisms.md",
                words: "| green | 1 + 1, any | 1468.2 (1421.1 to 2027.1) |",
            }),
            ..way(
                "green",
                "the library partita",
                whole(match machine.cuda_version >= CUDA_GREEN {
                    true => Ok("the driver has CUDA 12.4 or later".to_owned()),
                    false => Err("it takes a driver with CUDA 12.4 or later; update the driver".to_owned()),
                }),
            )
        },
        Way {
            compute: "a percentage as a ceiling; SMs may be shared",
            memory: "a limit for each client; L2 and bandwidth are shared",
            faults: shared,
            flexibility: "for clients that start later",
            measured: Some(Quote {
                what: "p99 of a server beside training 6.91 times its solo p99; training keeps 94 %",
                on: "H200, driver 580.159.04, 2026-11-22",
                file: "main_job.md",
                words: "| MPS | train | 4.964 | 8.185 | 6.91 (6.87–6.94, of whole GPU) | 123 | 4127 | 0.941 |",
            }),
            ..way(
                "mps",
                "partita mps",
                whole(match &machine.no_mps {
                    None => Ok("the control program is there".to_owned()),
                    Some(reason) => Err(reason.clone()),
                }),
            )
        },
        Way {
            compute: "a share of the GPU's measured time",
            memory: quota,
            faults: "the program itself with --isolation own",
            flexibility: "any share, changed while it runs",
            measured: Some(Quote {
                what: "24.9 % of a promised 25 % (kernels of 1 ms)",
                on: H200,
                file: "time_share.md",
                words: "| kernels of 1 ms | 25 % | 24.9 % (24.9 to 25.1) |",
            }),
            ..way("time: budget", "partita run --time", whole(Ok("it needs launches alone".to_owned())))
        },
        Way {
            compute: "disjoint TPCs in place of a share of time",
            memory: quota,
            faults: shared,
            flexibility: "any share, changed while it runs",
            measured: Some(Quote {
                what: "24.3 % of a promised 25 % (kernels of 1 ms)",
                on: SIMULATED,
                file: "time_share.md",
                words: "| kernels of 1 ms | 25 % | 34.1 % | 25.3 % | 24.3 % |",
            }),
            ..way("time: mask", "partita run --sm", whole(masked("launch descriptors are proved")))
        },
        Way {
            compute: "blocks a second, as HAMi-core counts them",
            memory: quota,
            faults: "the program itself with --isolation own",
            flexibility: "any share, changed while it runs",
            measured: Some(Quote {
                what: "34.1 % of a promised 25 % (kernels of 1 ms)",
                on: SIMULATED,
                file: "time_share.md",
                words: "| kernels of 1 ms | 25 % | 34.1 % | 25.3 % | 24.3 % |",
            }),
            ..way(
                "time: tokens",
                "partita run --time --time-policy tokens",
                whole(Ok("it needs launches alone".to_owned())),
            )
        },
        Way {
            compute: "disjoint SMs, for kernels whose PTX can be rewritten",
            memory: quota,
            faults: shared,
            flexibility: "any SMs, changed while it runs",
            ..way(
                "persistent",
                "partita run --via persistent",
                whole(match is_old {
                    true => Err("it takes a GPU from Volta on".to_owned()),
                    false => Ok("programs need PTX for their kernels; any driver".to_owned()),
                }),
            )
        },
        Way {
            compute: "SMs of its own",
            memory: "memory, L2 and bandwidth of its own",
            faults: "the instance",
            flexibility: "few sizes; its programs must end before a change",
            ..way(
                "mig",
                "partita mig",
                match machine.is_mig_on {
                    Some(true) => Ok("MIG is on".to_owned()),
                    Some(false) => Err("MIG is off; `partita mig show` says what turns it on".to_owned()),
                    None => Err("this GPU has no MIG".to_owned()),
                },
            )
        },
        Way {
            compute: "the vendor's equal part",
            memory: "the vendor's equal part, and DMA of its own",
            faults: "the function, as far as the vendor isolates it",
            flexibility: "another number only when no function is used",
            ..way("vf (SR-IOV)", "partita vf", found(&machine.functions, "has SR-IOV without vGPUs"))
        },
        Way {
            compute: "slices of time by NVIDIA's scheduler",
            memory: "a fixed part",
            faults: "the virtual machine",
            flexibility: "for virtual machines, with a licence; types change without a machine alone",
            ..way(
                "vgpu",
                "partita vf",
                found(&machine.vgpus, "has NVIDIA's vGPUs; load the vGPU host driver"),
            )
        },
    ]
}

fn found(devices: &[String], what: &str) -> Result<String, String> {
    if devices.is_empty() { Err(format!("no accelerator here {what}")) } else { Ok(devices.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn able() -> Machine {
        Machine {
            compute_capability: (9, 0),
            cuda_version: 13_000,
            is_mig_on: Some(false),
            proof: Some("66 TPCs proved".to_owned()),
            ..Machine::default()
        }
    }

    fn available(machine: &Machine) -> Vec<&'static str> {
        ways(machine).into_iter().filter(|way| way.is_available).map(|way| way.name).collect()
    }

    #[test]
    fn each_condition_decides_on_its_ways_alone() {
        let whole = ["mask", "green", "mps", "time: budget", "time: mask", "time: tokens", "persistent"];
        assert_eq!(available(&able()), whole);
        let without = |names: &[&str]| -> Vec<&str> {
            whole.into_iter().filter(|name| !names.contains(name)).collect()
        };
        let unproved = Machine { proof: None, ..able() };
        assert_eq!(available(&unproved), without(&["mask", "time: mask"]));
        assert_eq!(available(&Machine { cuda_version: 12_030, ..able() }), without(&["green"]));
        assert_eq!(
            available(&Machine { no_mps: Some("it is not in PATH".to_owned()), ..able() }),
            without(&["mps"])
        );
        assert_eq!(available(&Machine { is_mig_on: Some(true), ..able() }), ["mig"]);
        let divided = Machine {
            is_mig_on: None,
            functions: vec!["a".to_owned()],
            vgpus: vec!["b".to_owned()],
            ..able()
        };
        assert_eq!(available(&divided)[7..], ["vf (SR-IOV)", "vgpu"]);
        let old = available(&Machine { compute_capability: (6, 1), proof: None, ..able() });
        assert_eq!(old, without(&["mask", "time: mask", "persistent"]));
    }

    #[test]
    fn every_row_says_everything_and_every_figure_is_in_its_file() {
        let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../research/bench/results/");
        for way in ways(&Machine::default()) {
            let texts = [way.compute, way.memory, way.faults, way.flexibility, way.command, &way.because];
            assert!(texts.iter().all(|text| !text.is_empty()), "{way:?}");
            if let Some(quote) = way.measured {
                let text = std::fs::read_to_string(format!("{results}{}", quote.file)).unwrap();
                assert!(text.contains(quote.words), "{quote:?}");
                // The figures that are quoted are those of the words.
                let first = quote.what.split(' ').find(|word| word.parse::<f64>().is_ok()).unwrap();
                let shown = first.to_owned();
                assert!(quote.words.contains(&shown), "{quote:?}: {shown}");
            }
        }
    }
}
