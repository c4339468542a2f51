//! The costs of kernels on this GPU, each from a run of its kernel.

use partita_sim::DeviceSpec;

use crate::costs::Costs;
use crate::dialect::Config;
use crate::experiment::Scenario;
use crate::log::Record;
use crate::model;
use crate::program::Program;

/// The kernels that measure them, a configuration each, named after the cost.
const FILE: &str = include_str!("../../../bench/experiments/costs.json");

/// The runs, alone on the idle GPU.
///
/// # Panics
/// If the file is invalid; a test reads it.
pub(super) fn scenarios() -> Vec<Scenario> {
    let configs = Config::parse_all(FILE).expect("a file of this repository");
    configs.into_iter().map(|config| Scenario::at(config, 0.0)).collect()
}

impl Costs {
    fn cost(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "counter_cycles" => &mut self.counter_cycles,
            "counter_instructions" => &mut self.counter_instructions,
            "matmul_peak_permille" => &mut self.matmul_peak_permille,
            "mandelbrot_operations" => &mut self.mandelbrot_operations,
            "dram_read_ns" => &mut self.dram_read_ns,
            "cached_read_ns" => &mut self.cached_read_ns,
            _ => return None,
        })
    }

    /// Derives a cost from a run of its kernel: the law is proportional to it, so its error is that
    /// of the blocks' mean time.
    ///
    /// # Errors
    /// What is missing in the run.
    pub(super) fn learn(
        &mut self,
        scenario: &Scenario,
        record: &Record,
        spec: &DeviceSpec,
    ) -> Result<(), String> {
        let name = scenario.config.name.as_str();
        let missing = |what: &str| format!("{name}: {what}");
        let kernel = record.benchmarks.iter().flat_map(|one| one.kernels()).last();
        let blocks = kernel.map_or(&[][..], |kernel| &kernel.blocks);
        let measured: f64 =
            blocks.iter().map(|block| block.stop_ns.saturating_sub(block.start_ns) as f64).sum();
        let measured = measured / blocks.len().max(1) as f64;
        if measured <= 0.0 {
            return Err(missing("no block left a record"));
        }
        let one = scenario.config.benchmarks.first().ok_or_else(|| missing("it has no benchmark"))?;
        let program = Program::of(one).map_err(|error| error.to_string())?;
        let step = program.kernels().next().ok_or_else(|| missing("it has no kernel"))?;
        let expected = model::kernel(spec, self, step, spec.topology.all(), false).block_ns as f64;
        let is_rate = name == "matmul_peak_permille";
        let cost = self.cost(name).ok_or_else(|| missing("there is no such cost"))?;
        let off = measured / expected;
        *cost = if is_rate { *cost / off } else { *cost * off };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_sim::catalogue;

    #[test]
    fn what_a_run_shows_is_what_the_model_had() {
        let spec = catalogue::device("h200").unwrap();
        let truth = Costs {
            counter_cycles: 23.0,
            counter_instructions: 11.0,
            matmul_peak_permille: 90.0,
            mandelbrot_operations: 17.0,
            dram_read_ns: 711.0,
            cached_read_ns: 19.0,
        };
        let mut learned = Costs::default();
        let mut names = Vec::new();
        for scenario in scenarios() {
            let record = model::run_scenario_at(&scenario, &spec, 0, &truth).unwrap();
            learned.learn(&scenario, &record, &spec).unwrap();
            names.push(scenario.config.name.clone());
        }
        assert_eq!(names.len(), 6, "{names:?}");
        let (mut truth, mut learned) = (truth, learned);
        for name in names {
            let off = *learned.cost(&name).unwrap() / *truth.cost(&name).unwrap();
            // The picture's blocks differ, and so does their mean.
            assert!((0.97..1.03).contains(&off), "{name}: {off}");
        }
    }
}
