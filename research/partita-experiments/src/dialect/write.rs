//! Writing a configuration.

use partita_core::Placement;
use serde_json::{Map, Value, json};

use super::{Benchmark, Config, Dims};

pub(super) fn config(config: &Config) -> Value {
    let mut out = Map::new();
    put(&mut out, "name", &config.name);
    put(&mut out, "max_iterations", config.max_iterations);
    put(&mut out, "max_time", number(config.max_time_s));
    put(&mut out, "cuda_device", config.cuda_device);
    for (key, set) in [
        ("use_processes", config.use_processes),
        ("pin_cpus", config.pin_cpus),
        ("do_warmup", config.do_warmup),
        ("sync_every_iteration", config.sync_every_iteration),
    ] {
        if set {
            put(&mut out, key, true);
        }
    }
    optional(&mut out, "mps", config.mps);
    optional(&mut out, "base_result_directory", config.base_result_directory.as_ref());
    optional(&mut out, "comment", config.comment.as_ref());
    put(&mut out, "benchmarks", config.benchmarks.iter().map(benchmark).collect::<Vec<_>>());
    out.into()
}

fn benchmark(one: &Benchmark) -> Value {
    let mut out = Map::new();
    put(&mut out, "filename", &one.filename);
    optional(&mut out, "log_name", one.log_name.as_ref());
    optional(&mut out, "label", one.label.as_ref());
    put(&mut out, "thread_count", dims(one.thread_count));
    put(&mut out, "block_count", dims(one.block_count));
    put(&mut out, "data_size", one.data_size_bytes);
    put(&mut out, "additional_info", one.task.write());
    optional(&mut out, "max_iterations", one.max_iterations);
    optional(&mut out, "max_time", one.max_time_s.map(number));
    if one.terminator {
        put(&mut out, "terminator", true);
    }
    optional(&mut out, "release_time", one.release_time_s.map(number));
    optional(&mut out, "cpu_core", one.cpu_core);
    optional(&mut out, "stream_priority", one.stream_priority);
    optional(&mut out, "mps_thread_percentage", one.mps_thread_percentage.map(number));
    optional(&mut out, "sm_mask", one.sm_mask.map(|mask| mask.to_string()));
    optional(&mut out, "partition", one.partition.map(|share| share.to_string()));
    if one.partition.is_some() && one.placement == Placement::Spread {
        put(&mut out, "placement", "spread");
    }
    if !one.record_blocks {
        put(&mut out, "record_blocks", false);
    }
    optional(&mut out, "comment", one.comment.as_ref());
    out.into()
}

fn put(out: &mut Map<String, Value>, key: &str, value: impl serde::Serialize) {
    out.insert(key.to_owned(), json!(value));
}

fn optional(out: &mut Map<String, Value>, key: &str, value: Option<impl serde::Serialize>) {
    if let Some(value) = value {
        put(out, key, value);
    }
}

/// Whole seconds without a point.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

fn dims(dims: Dims) -> Value {
    match dims.0 {
        [x, 1, 1] => json!(x),
        [x, y, 1] => json!([x, y]),
        all => json!(all),
    }
}
