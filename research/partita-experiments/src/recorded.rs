//! Stored measurements: they run again without a GPU.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use partita_sim::DeviceSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::experiment::{Run, Scenario};
use crate::log::Record;
use crate::machine::{Machine, Model, Origin, Ran};

/// The name of an experiment's file.
pub const FILE: &str = "measured.json";

/// The measurements of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    origin: Origin,
    runs: Vec<KeptRun>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptRun {
    config: Value,
    record: Record,
}

/// The file's text.
pub(crate) fn text(origin: &Origin, runs: &[Run]) -> String {
    let runs =
        runs.iter().map(|run| KeptRun { config: run.scenario.config.to_json(), record: run.record.clone() });
    let kept = Kept { origin: origin.clone(), runs: runs.collect() };
    // A line for each run, so that a difference shows where it is.
    let line = |run: &KeptRun| serde_json::to_string(run).unwrap_or_default();
    let lines: Vec<String> = kept.runs.iter().map(line).collect();
    let origin = serde_json::to_string(&kept.origin).unwrap_or_default();
    format!("{{\"origin\": {origin},\n\"runs\": [\n{}\n]}}\n", lines.join(",\n"))
}

/// Stored measurements as a machine for scenarios.
#[derive(Debug, Clone)]
pub struct Recorded {
    origin: Origin,
    spec: DeviceSpec,
    /// Configuration and record by the scenario's name.
    runs: BTreeMap<String, (Value, Record)>,
}

impl Recorded {
    /// The measurements of an experiment that `partita bench --out DIR` left in `DIR`; `None` if
    /// `DIR` has none.
    ///
    /// # Errors
    /// A changed or damaged file, with its path.
    pub fn open(dir: &Path, experiment: &str) -> Result<Option<Self>, String> {
        let path = dir.join(experiment).join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| told(&error))?;
        let kept: Kept = serde_json::from_str(&text).map_err(|error| told(&error))?;
        let spec = kept.origin.spec().map_err(|error| told(&error))?;
        let runs = kept.runs.into_iter().map(|run| (run.record.scenario.clone(), (run.config, run.record)));
        Ok(Some(Self { origin: kept.origin, spec, runs: runs.collect() }))
    }
}

impl Recorded {
    /// The model that predicts them.
    pub fn model_machine(&self) -> Model {
        Model::of(self.spec.clone(), 0).at(self.origin.costs)
    }
}

impl Machine for Recorded {
    fn label(&self) -> String {
        self.origin.label.clone()
    }

    fn model(&self) -> &DeviceSpec {
        &self.spec
    }

    fn is_measured(&self) -> bool {
        true
    }

    fn origin(&self) -> Option<Origin> {
        Some(self.origin.clone())
    }

    fn run(&mut self, scenario: &Scenario) -> Result<Ran, String> {
        let name = &scenario.config.name;
        let (config, record) =
            self.runs.get(name).ok_or("it was not measured: measure the experiment again")?;
        if *config != scenario.config.to_json() {
            return Err("it was measured with another configuration: measure the experiment again".to_owned());
        }
        let predicted = self.model_machine().run(scenario)?.record;
        Ok(Ran { record: record.clone(), predicted: Some(predicted) })
    }
}
