//! The machines for scenarios: the model here, a GPU elsewhere.

use partita_core::{Topology, Tpc};
use partita_sim::{DeviceSpec, catalogue};
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::experiment::Scenario;
use crate::log::Record;
use crate::model;

/// A machine for scenarios.
pub trait Machine {
    /// Its name in reports.
    fn label(&self) -> String;

    /// Its model, which scales experiments and predicts.
    fn model(&self) -> &DeviceSpec;

    /// Whether runs here are measurements, to compare with a prediction.
    fn is_measured(&self) -> bool;

    /// The data for replaying its runs, if they are measurements.
    fn origin(&self) -> Option<Origin> {
        None
    }

    /// Runs a scenario to its end.
    ///
    /// # Errors
    /// Why it could not be run, in one line.
    fn run(&mut self, scenario: &Scenario) -> Result<Ran, String>;
}

/// The origin of measurements: the data for the model of that GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The GPU's name in reports.
    pub label: String,
    /// The device in the catalogue.
    pub device: String,
    pub sms_per_tpc: u32,
    /// Each TPC of the board in logical order: its GPC and its bit in a mask.
    pub tpcs: Vec<(u8, u16)>,
    /// The kernels' costs there.
    pub costs: Costs,
}

impl Origin {
    /// The model of the GPU: the catalogue's device with this board's TPCs.
    ///
    /// # Errors
    /// A device that is not in the catalogue, or has no such TPCs.
    pub fn spec(&self) -> Result<DeviceSpec, String> {
        let mut spec = catalogue::device(&self.device).map_err(|error| error.to_string())?;
        let tpcs: Vec<Tpc> = self.tpcs.iter().map(|&(gpc, physical)| Tpc { gpc, physical }).collect();
        spec.topology = Topology::new(self.sms_per_tpc, tpcs).map_err(|error| error.to_string())?;
        Ok(spec)
    }
}

/// The result of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    pub record: Record,
    /// The model's prediction, if this is a measurement.
    pub predicted: Option<Record>,
}

/// The model of a device.
#[derive(Debug, Clone)]
pub struct Model {
    spec: DeviceSpec,
    seed: u64,
    costs: Costs,
}

impl Model {
    /// The model of `spec`; `seed` determines the model's random choices.
    pub fn of(spec: DeviceSpec, seed: u64) -> Self {
        Self { spec, seed, costs: Costs::default() }
    }

    /// The same with the costs of kernels on one GPU.
    pub fn at(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }
}

impl Machine for Model {
    fn label(&self) -> String {
        format!("model of {}", self.spec.name)
    }

    fn model(&self) -> &DeviceSpec {
        &self.spec
    }

    fn is_measured(&self) -> bool {
        false
    }

    fn run(&mut self, scenario: &Scenario) -> Result<Ran, String> {
        let record = model::run_scenario_at(scenario, &self.spec, self.seed, &self.costs);
        Ok(Ran { record: record.map_err(|error| error.to_string())?, predicted: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Config;

    #[test]
    fn a_model_runs_with_the_costs_that_it_was_given() {
        let text = r#"{"name": "x", "max_iterations": 1, "max_time": 0, "cuda_device": 0, "benchmarks": [
            {"filename": "counter_spin.so", "thread_count": 32, "block_count": 1, "data_size": 0, "additional_info": 1000000}]}"#;
        let scenario = Scenario::at(Config::parse(text).unwrap(), 0.0);
        let spec = catalogue::device("h200").unwrap();
        let end_ns = |costs: Costs| {
            Model::of(spec.clone(), 0).at(costs).run(&scenario).unwrap().record.end_ns() as f64
        };
        let usual = Costs::default();
        let twice = Costs { counter_cycles: 2.0 * usual.counter_cycles, ..usual };
        assert!((1.9..2.1).contains(&(end_ns(twice) / end_ns(usual))));
    }
}
