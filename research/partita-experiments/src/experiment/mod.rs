//! The experiments: each a file under `research/bench/experiments/`, with the paper's results and
//! the rules for judging it.
//!
//! A file is an object of `experiment` (title, source, device, notes) and `scenarios`, each a
//! configuration in the dialect. The experiment's module adds what a file cannot express: a sweep,
//! as many kernels as the device has task slots, a network's kernels.

mod figures;
mod finding;
mod fit;

use partita_sim::{DeviceSpec, catalogue};
use serde::{Deserialize, Serialize};

pub use finding::{Finding, Judgement, Verdict};
pub(crate) use fit::capacity;
pub use fit::fit;

use crate::dialect::{Config, DialectError};
use crate::log::Record;
use crate::plot::Picture;

pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    file: &'static str,
    expand: fn(Vec<Config>, &DeviceSpec, &DeviceSpec) -> Vec<Scenario>,
    judge: fn(&[Run], &DeviceSpec) -> Judgement,
    draw: fn(&[Run], &DeviceSpec) -> Vec<Picture>,
}

/// A file's header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Its claim.
    pub title: String,
    pub source: String,
    /// The paper's device, in the catalogue.
    pub device: String,
    /// Differences from the source.
    #[serde(default)]
    pub notes: String,
    /// Reasons for errors of predictions.
    #[serde(default)]
    pub off: Vec<Off>,
}

/// The reason for the model's error in some scenarios.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Off {
    /// The start of their names.
    pub scenarios: String,
    /// The reason.
    pub because: String,
}

/// One run of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The scenario.
    pub config: Config,
    /// The value of a sweep's point on its axis.
    pub x: f64,
    /// The MIG instance for all of it; only the model has them.
    pub instance: Option<Instance>,
}

/// A MIG instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    pub tpcs: u32,
    /// Its eighths of the memory bandwidth.
    pub memory_eighths: u32,
}

impl Instance {
    /// The device of a program in the instance: its TPCs and its part of the memory, and nothing of
    /// other instances.
    pub fn of(self, device: &DeviceSpec) -> DeviceSpec {
        let tpcs = self.tpcs.clamp(1, device.topology.tpc_count());
        let mut part = device.with_tpcs(tpcs).expect("some of a device's TPCs are a device");
        part.memory.bandwidth_bytes_per_s =
            device.memory.bandwidth_bytes_per_s / 8 * u64::from(self.memory_eighths);
        part
    }
}

impl Scenario {
    /// A scenario at a place.
    pub fn at(config: Config, x: f64) -> Self {
        Self { config, x, instance: None }
    }

    /// Whether a GPU can run it as well as the model.
    pub fn runs_on_gpu(&self) -> bool {
        self.instance.is_none()
    }
}

/// A scenario and its record.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub scenario: Scenario,
    pub record: Record,
}

/// An invalid experiment file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{name}: {error}")]
    Header {
        /// The experiment.
        name: &'static str,
        /// The fault.
        error: serde_json::Error,
    },
    #[error("{name}: {error}")]
    Scenario {
        /// The experiment.
        name: &'static str,
        /// The fault.
        error: DialectError,
    },
    #[error("{name}: {error}")]
    Device {
        /// The experiment.
        name: &'static str,
        /// The fault.
        error: catalogue::DeviceError,
    },
}

macro_rules! experiments {
    ($($name:literal, $module:ident;)*) => {
        /// All experiments, in the order of their tables.
        pub const ALL: &[Experiment] = &[$(Experiment {
            name: $name,
            file: include_str!(concat!("../../../bench/experiments/", $name, ".json")),
            expand: figures::$module::expand,
            judge: figures::$module::judge,
            draw: figures::$module::draw,
        }),*];
    };
}

experiments! {
    "figure-1", sharing;
    "figure-3", split;
    "figure-4-gtx1060", alternate;
    "figure-4-p100", alternate;
    "figure-10", letters;
    "figure-11", greedy;
    "figure-12", starve;
    "figure-13", placement;
    "figure-14", slide;
    "table-3", faulty;
    "ecrts25", mechanisms;
}

pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}

#[derive(Deserialize)]
struct File<'t> {
    experiment: Header,
    #[serde(borrow)]
    scenarios: Vec<&'t serde_json::value::RawValue>,
}

impl Experiment {
    fn file(&self) -> Result<File<'static>, FileError> {
        serde_json::from_str(self.file).map_err(|error| FileError::Header { name: self.name, error })
    }

    /// Its header.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn header(&self) -> Result<Header, FileError> {
        self.file().map(|file| file.experiment)
    }

    /// The paper's device.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn home(&self) -> Result<DeviceSpec, FileError> {
        let device = self.header()?.device;
        catalogue::device(&device).map_err(|error| FileError::Device { name: self.name, error })
    }

    /// The runs on a device: those of the file on the paper's own, scaled on another.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn scenarios(&self, device: &DeviceSpec) -> Result<Vec<Scenario>, FileError> {
        let home = self.home()?;
        let mut configs = Vec::new();
        for raw in self.file()?.scenarios {
            let config = Config::parse(raw.get());
            configs.push(config.map_err(|error| FileError::Scenario { name: self.name, error })?);
        }
        Ok((self.expand)(configs, &home, device))
    }

    /// The runs' verdict on the paper's claims.
    pub fn judge(&self, runs: &[Run], device: &DeviceSpec) -> Judgement {
        (self.judge)(runs, device)
    }

    /// Its pictures.
    pub fn draw(&self, runs: &[Run], device: &DeviceSpec) -> Vec<Picture> {
        (self.draw)(runs, device)
    }
}

/// The scenarios of a file, fitted to the device.
pub(crate) fn fitted(configs: Vec<Config>, home: &DeviceSpec, device: &DeviceSpec) -> Vec<Scenario> {
    let fitted = configs.iter().map(|config| fit(config, home, device));
    fitted.zip(0u32..).map(|(config, index)| Scenario::at(config, f64::from(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_an_experiment_on_every_large_device() {
        for experiment in ALL {
            let header = experiment.header().unwrap();
            assert!(!header.title.is_empty() && !header.source.is_empty(), "{}", experiment.name);
            for device in [header.device.as_str(), "h200", "a100"] {
                let spec = catalogue::device(device).unwrap();
                let scenarios = experiment.scenarios(&spec).unwrap();
                assert!(!scenarios.is_empty());
                for scenario in scenarios {
                    crate::place::sets(&scenario.config, &spec.topology).unwrap();
                    let text = scenario.config.to_json().to_string();
                    assert_eq!(Config::parse(&text).unwrap(), scenario.config, "{}", experiment.name);
                }
            }
        }
        assert!(find("figure-3").is_some() && find("figure-2").is_none());
    }
}
