//! What scenarios run on: the model here, a GPU elsewhere.

use partita_sim::DeviceSpec;

use crate::experiment::Scenario;
use crate::log::Record;
use crate::model;

/// Something that scenarios run on.
pub trait Machine {
    /// What reports call it.
    fn label(&self) -> String;

    /// The model of it, which scales experiments and predicts.
    fn model(&self) -> &DeviceSpec;

    /// Whether what runs here is a measurement, beside which a prediction is of interest.
    fn is_measured(&self) -> bool;

    /// Runs a scenario to its end.
    ///
    /// # Errors
    /// Why it could not be run, in one line.
    fn run(&mut self, scenario: &Scenario) -> Result<Ran, String>;
}

/// What came of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// What it recorded.
    pub record: Record,
    /// What the model had predicted, if this is a measurement.
    pub predicted: Option<Record>,
}

/// The model of a device.
#[derive(Debug, Clone)]
pub struct Model {
    spec: DeviceSpec,
    seed: u64,
}

impl Model {
    /// The model of `spec`; `seed` decides what the model leaves to chance.
    pub fn of(spec: DeviceSpec, seed: u64) -> Self {
        Self { spec, seed }
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
        let record =
            model::run_scenario(scenario, &self.spec, self.seed).map_err(|error| error.to_string())?;
        Ok(Ran { record, predicted: None })
    }
}
