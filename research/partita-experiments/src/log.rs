//! The record of a run, and the logs for the original's viewers.

use std::fmt::Write;

use partita_core::TpcSet;
use partita_sim::DeviceSpec;
use serde::{Deserialize, Serialize};

use crate::dialect::Config;

/// The record of one scenario. Times are nanoseconds since its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The scenario's name.
    pub scenario: String,
    /// Threads that the device holds at once.
    pub resident_threads_max: u64,
    /// SMs of the device.
    pub sm_count: u32,
    /// Threads that an SM holds.
    pub sm_threads_max: u32,
    /// Each benchmark's record, in the configuration's order.
    pub benchmarks: Vec<BenchmarkRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkRecord {
    /// The plugin's own name.
    pub benchmark_name: String,
    pub label: Option<String>,
    /// Its name in plots.
    pub title: String,
    /// Its SMs, as ranges; `None` for all.
    pub sms: Option<String>,
    pub data_size_bytes: u64,
    /// When it was released, seconds.
    pub release_time_s: f64,
    /// Its process.
    pub pid: u32,
    /// Its thread, if it is one of several.
    pub tid: Option<u32>,
    /// Its iterations, without the warm-up.
    pub iterations: Vec<Iteration>,
}

/// The record of one benchmark's host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Its iterations, without the warm-up.
    pub iterations: Vec<Iteration>,
    /// Its process.
    pub pid: u32,
    /// Its thread, if it is one of several.
    pub tid: Option<u32>,
}

/// One iteration. There can be many: it is stored as a list without names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "ShortIteration", into = "ShortIteration")]
pub struct Iteration {
    /// Begin and end of copying in.
    pub copy_in_ns: [u64; 2],
    /// Begin and end of the work.
    pub execute_ns: [u64; 2],
    /// Begin and end of copying out.
    pub copy_out_ns: [u64; 2],
    /// Its kernels, as launched.
    pub kernels: Vec<KernelRecord>,
    /// The core that it ran on.
    pub cpu_core: u32,
}

/// One kernel, stored likewise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "ShortKernel", into = "ShortKernel")]
pub struct KernelRecord {
    pub name: String,
    pub block_count: u64,
    /// Threads of a block.
    pub thread_count: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Before and after the launch, and when the host knew of its end (0: unknown).
    pub launch_ns: [u64; 3],
    /// First start and last end of its blocks.
    pub span_ns: [u64; 2],
    /// Its blocks, in order, if recorded.
    pub blocks: Vec<BlockSpan>,
}

/// Where and when a block ran, stored likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u64, u64)", into = "(u32, u64, u64)")]
pub struct BlockSpan {
    /// `%smid`.
    pub sm: u32,
    pub start_ns: u64,
    /// Its end.
    pub stop_ns: u64,
}

type ShortIteration = ([u64; 2], [u64; 2], [u64; 2], Vec<KernelRecord>, u32);
type ShortKernel = (String, u64, u32, u32, [u64; 3], [u64; 2], Vec<BlockSpan>);

impl From<ShortIteration> for Iteration {
    fn from((copy_in_ns, execute_ns, copy_out_ns, kernels, cpu_core): ShortIteration) -> Self {
        Self { copy_in_ns, execute_ns, copy_out_ns, kernels, cpu_core }
    }
}

impl From<Iteration> for ShortIteration {
    fn from(long: Iteration) -> Self {
        (long.copy_in_ns, long.execute_ns, long.copy_out_ns, long.kernels, long.cpu_core)
    }
}

impl From<ShortKernel> for KernelRecord {
    fn from(
        (name, block_count, thread_count, shared_bytes, launch_ns, span_ns, blocks): ShortKernel,
    ) -> Self {
        Self { name, block_count, thread_count, shared_bytes, launch_ns, span_ns, blocks }
    }
}

impl From<KernelRecord> for ShortKernel {
    fn from(long: KernelRecord) -> Self {
        let counts = (long.block_count, long.thread_count, long.shared_bytes);
        (long.name, counts.0, counts.1, counts.2, long.launch_ns, long.span_ns, long.blocks)
    }
}

impl From<(u32, u64, u64)> for BlockSpan {
    fn from((sm, start_ns, stop_ns): (u32, u64, u64)) -> Self {
        Self { sm, start_ns, stop_ns }
    }
}

impl From<BlockSpan> for (u32, u64, u64) {
    fn from(block: BlockSpan) -> Self {
        (block.sm, block.start_ns, block.stop_ns)
    }
}

impl Record {
    /// From the records of a configuration's hosts on a device; `sets` are the benchmarks' own.
    pub(crate) fn of(
        config: &Config,
        spec: &DeviceSpec,
        sets: &[Option<TpcSet>],
        hosts: Vec<HostRecord>,
    ) -> Self {
        let per_tpc = spec.topology.sms_per_tpc();
        let all = spec.topology.all();
        let benchmarks =
            hosts.into_iter().zip(&config.benchmarks).zip(sets).map(|((host, one), set)| BenchmarkRecord {
                benchmark_name: one.task.plugin().title().to_owned(),
                label: one.label.clone(),
                title: one.title().to_owned(),
                sms: set.filter(|set| *set != all).map(|set| sms_of(set, per_tpc)),
                data_size_bytes: one.data_size_bytes,
                release_time_s: one.release_time_s.unwrap_or(0.0),
                pid: host.pid,
                tid: host.tid,
                iterations: host.iterations,
            });
        Self {
            scenario: config.name.clone(),
            resident_threads_max: u64::from(spec.sm.threads_max) * u64::from(spec.sm_count()),
            sm_count: spec.sm_count(),
            sm_threads_max: spec.sm.threads_max,
            benchmarks: benchmarks.collect(),
        }
    }

    /// The end of the last iteration.
    pub fn end_ns(&self) -> u64 {
        let iterations = self.benchmarks.iter().flat_map(|one| &one.iterations);
        iterations.map(|iteration| iteration.copy_out_ns[1]).max().unwrap_or(0)
    }
}

impl Iteration {
    /// From the start of its work to the end.
    pub fn execute_time_ns(&self) -> u64 {
        self.execute_ns[1].saturating_sub(self.execute_ns[0])
    }
}

impl BenchmarkRecord {
    pub fn kernels(&self) -> impl Iterator<Item = &KernelRecord> {
        self.iterations.iter().flat_map(|iteration| &iteration.kernels)
    }

    /// First start and last end of its kernels.
    pub fn span_ns(&self) -> Option<[u64; 2]> {
        let start = self.kernels().map(|kernel| kernel.span_ns[0]).min()?;
        let stop = self.kernels().map(|kernel| kernel.span_ns[1]).max()?;
        Some([start, stop])
    }

    /// The log of this benchmark, as the original writes it.
    pub fn log_json(&self, record: &Record) -> String {
        let mut out = String::new();
        let text = |value: &str| serde_json::Value::from(value).to_string();
        let _ = writeln!(out, "{{\n\"scenario_name\": {},", text(&record.scenario));
        let _ = writeln!(out, "\"benchmark_name\": {},", text(&self.benchmark_name));
        if let Some(label) = &self.label {
            let _ = writeln!(out, "\"label\": {},", text(label));
        }
        let _ = writeln!(out, "\"max_resident_threads\": {},", record.resident_threads_max);
        let _ = writeln!(out, "\"data_size\": {},", self.data_size_bytes);
        let _ = writeln!(out, "\"release_time\": {:.9},", self.release_time_s);
        let _ = writeln!(out, "\"PID\": {},", self.pid);
        if let Some(tid) = self.tid {
            let _ = writeln!(out, "\"TID\": {tid},");
        }
        out.push_str("\"times\": [{}");
        for iteration in &self.iterations {
            let times = [
                ("copy_in_times", iteration.copy_in_ns),
                ("execute_times", iteration.execute_ns),
                ("copy_out_times", iteration.copy_out_ns),
                ("cpu_times", [iteration.copy_in_ns[0], iteration.copy_out_ns[1]]),
            ];
            let times = times.map(|(key, pair)| format!("\"{key}\": [{}]", seconds(pair)));
            let _ = write!(out, ",\n{{{}}}", times.join(", "));
            for kernel in &iteration.kernels {
                kernel.write(self.label.as_deref(), iteration.cpu_core, &mut out);
            }
        }
        out.push_str("\n]}\n");
        out
    }
}

impl KernelRecord {
    fn write(&self, label: Option<&str>, cpu_core: u32, out: &mut String) {
        let name = if self.name.is_empty() { label.unwrap_or_default() } else { &self.name };
        let name = serde_json::Value::from(name);
        let _ = write!(
            out,
            ",\n{{\"kernel_name\": {name}, \"block_count\": {}, \"thread_count\": {}, \"shared_memory\": {}, \
             \"cuda_launch_times\": [{}], \"block_times\": [{}], \"block_smids\": [",
            self.block_count,
            self.thread_count,
            self.shared_bytes,
            seconds(self.launch_ns),
            seconds(self.blocks.iter().flat_map(|block| [block.start_ns, block.stop_ns])),
        );
        for (index, block) in self.blocks.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let _ = write!(out, "{comma}{}", block.sm);
        }
        let _ = write!(out, "], \"cpu_core\": {cpu_core}}}");
    }
}

/// Seconds with nine decimals, exactly.
fn seconds(times_ns: impl IntoIterator<Item = u64>) -> String {
    const SECOND: u64 = 1_000_000_000;
    let times = times_ns.into_iter().map(|ns| format!("{}.{:09}", ns / SECOND, ns % SECOND));
    times.collect::<Vec<_>>().join(", ")
}

/// A set of TPCs as the SMs that belong to them.
pub(crate) fn sms_of(set: TpcSet, sms_per_tpc: u32) -> String {
    let runs = set.runs().map(|run| {
        let first = u32::from(*run.start()) * sms_per_tpc;
        let last = (u32::from(*run.end()) + 1) * sms_per_tpc - 1;
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_the_originals_keys() {
        let kernel = KernelRecord {
            name: String::new(),
            block_count: 2,
            thread_count: 64,
            shared_bytes: 16,
            launch_ns: [1, 2, 0],
            span_ns: [5, 9],
            blocks: vec![
                BlockSpan { sm: 3, start_ns: 5, stop_ns: 1_000_000_009 },
                BlockSpan { sm: 0, start_ns: 6, stop_ns: 8 },
            ],
        };
        let iteration = Iteration {
            copy_in_ns: [1, 2],
            execute_ns: [3, 10],
            copy_out_ns: [10, 12],
            kernels: vec![kernel],
            cpu_core: 1,
        };
        let one = BenchmarkRecord {
            benchmark_name: "Timer Spin".to_owned(),
            label: Some("K\"1".to_owned()),
            title: "K1".to_owned(),
            sms: None,
            data_size_bytes: 7,
            release_time_s: 0.25,
            pid: 5,
            tid: Some(6),
            iterations: vec![iteration],
        };
        let record = Record {
            scenario: "s".to_owned(),
            resident_threads_max: 18_432,
            sm_count: 9,
            sm_threads_max: 2048,
            benchmarks: Vec::new(),
        };
        let text = one.log_json(&record);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["times"][0], serde_json::json!({}));
        assert_eq!(value["times"][1]["cpu_times"][1], 0.000000012);
        let kernel = &value["times"][2];
        assert_eq!(kernel["kernel_name"], "K\"1", "no name of its own: the label");
        assert_eq!(kernel["block_times"].as_array().unwrap().len(), 4);
        assert_eq!(kernel["block_smids"], serde_json::json!([3, 0]));
        assert!(text.contains("0.000000005, 1.000000009"), "{text}");
        for key in [
            "scenario_name",
            "benchmark_name",
            "max_resident_threads",
            "data_size",
            "release_time",
            "PID",
            "TID",
        ] {
            assert!(!value[key].is_null(), "{key}");
        }
    }

    #[test]
    fn sets_show_as_sms() {
        let set = "0-4,7".parse().unwrap();
        assert_eq!((sms_of(set, 1).as_str(), sms_of(set, 2).as_str()), ("0-4,7", "0-9,14-15"));
    }
}
