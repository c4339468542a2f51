//! Predicted and measured, side by side.

use partita_core::Samples;
use serde::Serialize;

use crate::dialect::{Benchmark, Config};
use crate::experiment::Run;
use crate::log::{BenchmarkRecord, KernelRecord, Record};

/// One quantity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub scenario: String,
    /// The benchmark or kernel; empty for all.
    pub of: String,
    pub what: Quantity,
    /// On the model, in milliseconds.
    pub predicted_ms: f64,
    /// On the GPU, in milliseconds.
    pub measured_ms: f64,
    /// The error of the prediction, in percent of the measurement.
    pub error_percent: f64,
}

/// The compared quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The end of a kernel, from the first start of any.
    Finish,
    /// The median of the times of iterations.
    Iteration,
    /// The end of the last kernel, from the first start of any.
    Makespan,
}

/// The comparison of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Row by row.
    pub rows: Vec<Row>,
    /// The median of the errors without their signs, in percent.
    pub error_percent_median: Option<f64>,
}

/// Of a larger crowd the first, the middle one and the last are compared.
const NAMED_MAX: usize = 8;

/// Compares runs of the same scenarios.
pub fn compare(predicted: &[Run], measured: &[Run]) -> Comparison {
    let mut rows = Vec::new();
    for measured in measured {
        let scenario = &measured.scenario.config.name;
        let Some(predicted) = predicted.iter().find(|run| run.scenario.config.name == *scenario) else {
            continue;
        };
        scenario_rows(&measured.scenario.config, &predicted.record, &measured.record, &mut rows);
    }
    let errors = rows.iter().map(|row: &Row| row.error_percent.abs()).filter(|error| error.is_finite());
    let error_percent_median = Samples::new(errors.collect::<Vec<_>>()).ok().map(|errors| errors.median());
    Comparison { rows, error_percent_median }
}

fn scenario_rows(config: &Config, predicted: &Record, measured: &Record, rows: &mut Vec<Row>) {
    let mut push = |of: String, what, times: [Option<f64>; 2]| {
        if let [Some(predicted_ms), Some(measured_ms)] = times {
            let error_percent = 100.0 * (predicted_ms / measured_ms - 1.0);
            rows.push(Row {
                scenario: config.name.clone(),
                of,
                what,
                predicted_ms,
                measured_ms,
                error_percent,
            });
        }
    };
    let records = [predicted, measured];
    let starts = records.map(first_start_ns);
    for crowd in crowds(config) {
        let [ones, others] = [predicted, measured].map(|record| in_order_of_ends(record, &crowd));
        let count = ones.len().min(others.len());
        let places: Vec<usize> = match count {
            0..=NAMED_MAX => (0..count).collect(),
            _ => vec![0, count / 2, count - 1],
        };
        for place in places {
            let number = (crowd.len() > 1).then_some((place + 1, count));
            benchmark_rows([ones[place], others[place]], starts, number, &mut push);
        }
    }
    push(String::new(), Quantity::Makespan, records.map(makespan_ms));
}

/// The benchmarks that differ only in their names, and so by chance: places in the configuration.
/// Their order is unpredictable and irrelevant; they are compared in the order in which they end.
fn crowds(config: &Config) -> Vec<Vec<usize>> {
    let nameless = |index: usize| {
        let one = config.benchmarks[index].clone();
        Benchmark { label: None, log_name: one.log_name.filter(|name| name == "/dev/null"), ..one }
    };
    let mut crowds: Vec<Vec<usize>> = Vec::new();
    for index in 0..config.benchmarks.len() {
        let alike = |crowd: &&mut Vec<usize>| {
            config.benchmarks[index].partition.is_none() && nameless(crowd[0]) == nameless(index)
        };
        match crowds.iter_mut().find(alike) {
            Some(crowd) => crowd.push(index),
            None => crowds.push(vec![index]),
        }
    }
    crowds
}

fn in_order_of_ends<'r>(record: &'r Record, crowd: &[usize]) -> Vec<&'r BenchmarkRecord> {
    let mut found: Vec<&BenchmarkRecord> =
        crowd.iter().filter_map(|&index| record.benchmarks.get(index)).collect();
    found.sort_by_key(|one| one.span_ns().map(|span| span[1]));
    found
}

fn benchmark_rows(
    both: [&BenchmarkRecord; 2],
    starts: [Option<u64>; 2],
    number: Option<(usize, usize)>,
    push: &mut impl FnMut(String, Quantity, [Option<f64>; 2]),
) {
    let title = match number {
        Some((number, count)) => format!("{number} of {count} alike"),
        None => both[0].title.clone(),
    };
    if both.iter().all(|one| one.iterations.len() > 1) {
        push(title, Quantity::Iteration, both.map(iteration_ms));
        return;
    }
    let kernels = both.map(|one| one.kernels().collect::<Vec<_>>());
    for (kernel, twin) in kernels[0].iter().zip(&kernels[1]) {
        let name = if kernel.name.is_empty() { title.clone() } else { kernel.name.clone() };
        let end = |kernel: &KernelRecord, start: Option<u64>| {
            start.map(|start| kernel.span_ns[1].saturating_sub(start) as f64 / 1e6)
        };
        push(name, Quantity::Finish, [end(kernel, starts[0]), end(twin, starts[1])]);
    }
}

fn first_start_ns(record: &Record) -> Option<u64> {
    record.benchmarks.iter().filter_map(BenchmarkRecord::span_ns).map(|span| span[0]).min()
}

fn makespan_ms(record: &Record) -> Option<f64> {
    let end = record.benchmarks.iter().filter_map(BenchmarkRecord::span_ns).map(|span| span[1]).max()?;
    Some((end - first_start_ns(record)?) as f64 / 1e6)
}

fn iteration_ms(one: &BenchmarkRecord) -> Option<f64> {
    let times = one.iterations.iter().map(|iteration| iteration.execute_time_ns() as f64 / 1e6);
    Samples::new(times.collect::<Vec<_>>()).ok().map(|samples| samples.median())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Scenario;
    use crate::model;
    use partita_sim::catalogue;

    #[test]
    fn a_slower_device_shows_in_every_row() {
        let text = r#"{"name": "x", "max_iterations": 1, "max_time": 0, "cuda_device": 0, "benchmarks": [
            {"filename": "timer_spin.so", "label": "A", "thread_count": 1024, "block_count": 18, "data_size": 0, "additional_info": 1000000},
            {"filename": "timer_spin.so", "label": "B", "thread_count": 1024, "block_count": 18, "data_size": 0, "additional_info": 1000000}]}"#;
        let scenario = Scenario::at(Config::parse(text).unwrap(), 0.0);
        let run = |config: &str| {
            let scenario = Scenario::at(Config::parse(config).unwrap(), 0.0);
            let spec = catalogue::device("gtx1060-3gb").unwrap();
            let record = model::run_scenario(&scenario, &spec, 0).unwrap();
            Run { scenario, record }
        };
        let fast = run(text);
        assert_eq!(fast.scenario, scenario);
        let slow = run(&text.replace("1000000", "2000000"));
        let found = compare(std::slice::from_ref(&fast), &[slow]);
        let named: Vec<_> = found.rows.iter().map(|row| (row.of.as_str(), row.what)).collect();
        assert_eq!(
            named,
            [
                ("1 of 2 alike", Quantity::Finish),
                ("2 of 2 alike", Quantity::Finish),
                ("", Quantity::Makespan)
            ]
        );
        assert!(found.rows.iter().all(|row| (-50.5..=-49.5).contains(&row.error_percent)), "{found:?}");
        assert!((49.5..50.5).contains(&found.error_percent_median.unwrap()));
        let same = std::slice::from_ref(&fast);
        assert_eq!(compare(same, same).error_percent_median, Some(0.0));
    }
}
