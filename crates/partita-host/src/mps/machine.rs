//! The facts that MPS's conditions are judged by.

use std::path::Path;

use partita_mps::conditions::{self, ComputeMode, Device, Machine, RunningServer, Standing};
use partita_mps::detach;

use crate::gpu::Gpu;
use crate::process::{ProcessId, pids};

/// The name of servers, as far as the kernel keeps it.
const SERVER_NAME: &str = "nvidia-cuda-mps";

/// Gathers them for a service of these GPUs. `own` returns whether a server is one of Partita's.
#[must_use]
pub fn machine(gpus: &[Gpu], multi_user: bool, own: impl Fn(u32) -> bool) -> Machine {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Machine {
        system: std::fs::read_to_string("/proc/sys/kernel/ostype").unwrap_or_default().trim().to_owned(),
        pointer_bits: usize::BITS,
        tegra: Path::new("/etc/nv_tegra_release").exists(),
        devices: gpus.iter().map(device).collect(),
        user: rustix::process::geteuid().as_raw(),
        open_files_max: limit.current,
        shared_memory_bytes: shared_memory_bytes(),
        servers: servers(own),
        forced_api_version: variable("CUDA_FORCE_API_VERSION"),
        max_connections: variable("CUDA_DEVICE_MAX_CONNECTIONS"),
        visible_devices: variable("CUDA_VISIBLE_DEVICES"),
        multi_user,
    }
}

/// What a daemon that starts now would lack of the resources that it shares with its clients, each
/// with its remedy: open files, and `/dev/shm`.
#[must_use]
pub fn shortages(gpus: &[Gpu]) -> Vec<String> {
    let machine =
        Machine { open_files_max: detach::open_files_of_daemon(), ..machine(gpus, false, |_| true) };
    let found = [conditions::open_files(&machine), conditions::shared_memory(&machine)];
    let lacking = found.into_iter().filter(|condition| condition.standing != Standing::Holds);
    lacking
        .map(|condition| {
            let remedy = condition.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
            format!("{}: {}{remedy}", condition.name, condition.detail)
        })
        .collect()
}

fn device(gpu: &Gpu) -> Device {
    Device {
        index: gpu.facts.index,
        compute_capability: gpu.facts.compute_capability,
        compute_mode: match gpu.facts.compute_mode.as_str() {
            "default" => Some(ComputeMode::Default),
            "exclusive-process" => Some(ComputeMode::ExclusiveProcess),
            "prohibited" => Some(ComputeMode::Prohibited),
            _ => None,
        },
        mig: gpu.facts.mig_enabled == Some(true),
    }
}

fn shared_memory_bytes() -> Option<u64> {
    let stat = rustix::fs::statvfs("/dev/shm").ok()?;
    Some(stat.f_blocks.saturating_mul(stat.f_frsize))
}

fn servers(own: impl Fn(u32) -> bool) -> Vec<RunningServer> {
    pids()
        .filter(|pid| is_server(*pid))
        .filter_map(|pid| Some(RunningServer { pid, user: ProcessId::living(pid)?.user()?, own: own(pid) }))
        .collect()
}

/// Control daemons have the same 15 letters; their command line distinguishes them.
fn is_server(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().starts_with(SERVER_NAME)
        && std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("nvidia-cuda-mps-server"))
}
