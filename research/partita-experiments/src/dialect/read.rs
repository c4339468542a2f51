//! Reading a configuration.

use partita_core::{Placement, Share};

use super::node::{DialectError, Node};
use super::plugin::{Plugin, Task, mask};
use super::{BLOCK_THREADS_MAX, Benchmark, Config, Dims};

/// A year in seconds: no experiment takes longer.
const SECONDS_MAX: f64 = 3.2e7;
/// Largest number of benchmarks of a scenario.
const BENCHMARKS_MAX: usize = 4096;

pub(super) fn config(root: &Node<'_>) -> Result<Config, DialectError> {
    let mut object = root.object()?;
    let name = object.need("name", "the scenario's name")?.string()?;
    let max_iterations =
        object.need("max_iterations", "iterations of each benchmark, 0 for no limit")?.whole(0, 1 << 40)?;
    let max_time_s = seconds(&object.need("max_time", "seconds, 0 for no limit")?)?;
    let cuda_device = object.need("cuda_device", "CUDA's number of the device")?.whole(0, 1023)? as u32;
    let mut flag = |key| object.get(key).map_or(Ok(false), |node| node.bool());
    let use_processes = flag("use_processes")?;
    let pin_cpus = flag("pin_cpus")?;
    let do_warmup = flag("do_warmup")?;
    let sync_every_iteration = flag("sync_every_iteration")?;
    let mps = object.get("mps");
    if let Some(node) = mps.as_ref().filter(|_| !use_processes) {
        return Err(node.fail("mps is about processes: set use_processes to true, or leave it out"));
    }
    let mps = mps.map(|node| node.bool()).transpose()?;
    let base_result_directory = object.get("base_result_directory").map(|node| node.string()).transpose()?;
    let comment = object.get("comment").map(|node| node.value());
    let list = object.need("benchmarks", "an array of benchmarks")?;
    object.finish()?;
    let nodes = list.array()?;
    if nodes.is_empty() || nodes.len() > BENCHMARKS_MAX {
        return Err(list.fail(format!("{} benchmarks: 1 to {BENCHMARKS_MAX} are accepted", nodes.len())));
    }
    let mut config = Config {
        name,
        max_iterations,
        max_time_s,
        cuda_device,
        use_processes,
        base_result_directory,
        pin_cpus,
        do_warmup,
        sync_every_iteration,
        mps,
        comment,
        benchmarks: Vec::new(),
    };
    for node in &nodes {
        let one = benchmark(node, &config)?;
        config.benchmarks.push(one);
    }
    ends(&config, &nodes)?;
    Ok(config)
}

/// Refuses a scenario that would never end.
fn ends(config: &Config, nodes: &[Node<'_>]) -> Result<(), DialectError> {
    let is_bounded = |one: &Benchmark| {
        one.max_iterations.unwrap_or(config.max_iterations) > 0
            || one.max_time_s.unwrap_or(config.max_time_s) > 0.0
    };
    if config.benchmarks.iter().any(|one| one.terminator && is_bounded(one)) {
        return Ok(());
    }
    let endless = config.benchmarks.iter().position(|one| !is_bounded(one));
    endless.map_or(Ok(()), |index| {
        Err(nodes[index].fail(
            "it would never end: max_iterations and max_time are 0, and no benchmark that ends is a terminator",
        ))
    })
}

fn benchmark(node: &Node<'_>, config: &Config) -> Result<Benchmark, DialectError> {
    let mut object = node.object()?;
    let file = object.need("filename", "a plugin's .so")?;
    let filename = file.string()?;
    let plugin = Plugin::of_file(&filename).ok_or_else(|| {
        let known: Vec<&str> = Plugin::ALL.iter().map(|plugin| plugin.name()).collect();
        file.refuse(&format!("a plugin's file, one of {}", known.join(", ")))
    })?;
    let threads = object.need("thread_count", "threads of a block")?;
    let thread_count = dims(&threads)?;
    if thread_count.count() > u64::from(BLOCK_THREADS_MAX) {
        return Err(threads.refuse(&format!("at most {BLOCK_THREADS_MAX} threads in a block")));
    }
    let block_count = dims(&object.need("block_count", "blocks of the grid")?)?;
    let data_size_bytes = object.need("data_size", "bytes")?.whole(0, 1 << 48)?;
    let info = object.get("additional_info");
    let task = Task::read(plugin, info.as_ref(), node)?;
    if matches!(task, Task::RandomWalk { .. } | Task::InorderWalk { .. }) && data_size_bytes < 4 {
        return Err(
            node.fail(format!("data_size {data_size_bytes} is not accepted: a walk needs 4 bytes and above"))
        );
    }
    let alone = |key: &str, node: Option<&Node<'_>>| match node {
        Some(node) if config.sync_every_iteration => Err(node.fail(format!(
            "{key} of one benchmark is not accepted beside sync_every_iteration: all do the same iterations"
        ))),
        _ => Ok(()),
    };
    let iterations = object.get("max_iterations");
    alone("max_iterations", iterations.as_ref())?;
    let time = object.get("max_time");
    alone("max_time", time.as_ref())?;
    let percentage = object.get("mps_thread_percentage");
    if let Some(node) = percentage.as_ref().filter(|_| !config.use_processes) {
        return Err(node.fail("mps_thread_percentage is about processes: set use_processes to true"));
    }
    let partition = object.get("partition");
    let sm_mask = object.get("sm_mask");
    if let (Some(node), Some(_)) = (&partition, &sm_mask) {
        return Err(node.fail("partition is not accepted beside sm_mask: both say which TPCs there are"));
    }
    let placement = object.get("placement");
    if let Some(node) = placement.as_ref().filter(|_| partition.is_none()) {
        return Err(node.fail("placement needs a partition"));
    }
    let one = Benchmark {
        filename,
        task,
        log_name: object.get("log_name").map(|node| node.string()).transpose()?,
        label: object.get("label").map(|node| node.string()).transpose()?,
        thread_count,
        block_count,
        data_size_bytes,
        max_iterations: iterations.map(|node| node.whole(0, 1 << 40)).transpose()?,
        max_time_s: time.as_ref().map(seconds).transpose()?,
        terminator: object.get("terminator").map_or(Ok(false), |node| node.bool())?,
        release_time_s: object.get("release_time").as_ref().map(seconds).transpose()?,
        cpu_core: object
            .get("cpu_core")
            .map(|node| node.whole(0, 65_535))
            .transpose()?
            .map(|core| core as u32),
        stream_priority: object
            .get("stream_priority")
            .map(|node| node.signed(-100, 0))
            .transpose()?
            // As in the original: not set.
            .filter(|priority| *priority > -100)
            .map(|priority| priority as i32),
        mps_thread_percentage: percentage.as_ref().map(percent).transpose()?,
        sm_mask: sm_mask.as_ref().map(mask).transpose()?,
        partition: partition.as_ref().map(share).transpose()?,
        placement: placement.as_ref().map_or(Ok(Placement::Packed), place)?,
        record_blocks: object.get("record_blocks").map_or(Ok(true), |node| node.bool())?,
        comment: object.get("comment").map(|node| node.value()),
    };
    object.finish()?;
    Ok(one)
}

fn seconds(node: &Node<'_>) -> Result<f64, DialectError> {
    let seconds = node.number("seconds")?;
    if seconds <= SECONDS_MAX { Ok(seconds) } else { Err(node.refuse("at most a year, 3.2e7 seconds")) }
}

fn percent(node: &Node<'_>) -> Result<f64, DialectError> {
    let accepted = "a percentage above 0 and up to 100";
    let percent = node.number("percent").map_err(|_| node.refuse(accepted))?;
    if percent > 0.0 && percent <= 100.0 { Ok(percent) } else { Err(node.refuse(accepted)) }
}

fn share(node: &Node<'_>) -> Result<Share, DialectError> {
    // The parser's own message lists the forms.
    node.string()?.parse().map_err(|error: partita_core::ParseShareError| node.fail(error.to_string()))
}

fn place(node: &Node<'_>) -> Result<Placement, DialectError> {
    match node.string()?.as_str() {
        "packed" => Ok(Placement::Packed),
        "spread" => Ok(Placement::Spread),
        _ => Err(node.refuse("\"packed\" or \"spread\"")),
    }
}

fn dims(node: &Node<'_>) -> Result<Dims, DialectError> {
    let accepted = "a whole number of 1 and above, or an array of one to three";
    let one = |node: &Node<'_>| node.whole(1, i32::MAX as u64).map_err(|_| node.refuse(accepted));
    if !node.is_array() {
        return Ok(Dims::flat(one(node)? as u32));
    }
    let parts = node.array()?;
    if parts.is_empty() || parts.len() > 3 {
        return Err(node.refuse(accepted));
    }
    let mut dims = [1; 3];
    for (to, part) in dims.iter_mut().zip(&parts) {
        *to = one(part)? as u32;
    }
    Ok(Dims(dims))
}
