//! The requirements of MPS for a machine, its GPUs and its programs: sections 2.3.1 and 2.3.2 of
//! the MPS guide, one condition after the other.
//!
//! The facts come from elsewhere ([`Machine`]); the conclusions here are pure functions.

use serde::Serialize;

use crate::Pid;

/// The limit on open files that daemon and clients should have: with a lower one, allocations fail
/// with «failed to create/open SHM segment».
pub const OPEN_FILES_MIN: u64 = 16_384;
/// Page-locked memory of clients goes through `/dev/shm`; with less than this, frameworks' loaders
/// fail.
pub const SHARED_MEMORY_BYTES_MIN: u64 = 1 << 30;

/// The compute mode: how many processes a GPU accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes, clients of MPS or not.
    Default,
    /// One process: under MPS the server.
    ExclusiveProcess,
    /// None.
    Prohibited,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its number for `nvidia-smi`.
    pub index: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its compute mode; `None` if the query is not possible.
    pub compute_mode: Option<ComputeMode>,
    /// Whether it is in MIG mode.
    pub mig: bool,
}

/// A server that runs on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningServer {
    /// Its process.
    pub pid: Pid,
    /// Its user.
    pub user: u32,
    /// Whether it belongs to a service of Partita.
    pub own: bool,
}

/// The facts of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The operating system, in the kernel's words.
    pub system: String,
    /// Bits of a pointer.
    pub pointer_bits: u32,
    /// Whether it is a Tegra board.
    pub tegra: bool,
    /// The devices of the service.
    pub devices: Vec<Device>,
    /// The user of the service.
    pub user: u32,
    /// Limit on open files of a process (`ulimit -n`); `None` for no limit.
    pub open_files_max: Option<u64>,
    /// Size of `/dev/shm` in bytes; `None` without it.
    pub shared_memory_bytes: Option<u64>,
    /// Servers that run on the machine.
    pub servers: Vec<RunningServer>,
    /// `CUDA_FORCE_API_VERSION` of the environment.
    pub forced_api_version: Option<String>,
    /// `CUDA_DEVICE_MAX_CONNECTIONS` of the environment.
    pub max_connections: Option<String>,
    /// `CUDA_VISIBLE_DEVICES` of the environment.
    pub visible_devices: Option<String>,
    /// Whether the tenants' service admits other users' programs.
    pub multi_user: bool,
}

/// The state of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It holds.
    Holds,
    /// It does not hold, or only in part: MPS works, with the consequence in the detail.
    Weak,
    /// It does not hold: MPS does not work.
    Broken,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    /// Its state.
    pub standing: Standing,
    /// The finding, and its consequence.
    pub detail: String,
    /// The remedy, or advice.
    pub remedy: Option<String>,
}

fn holds(name: &'static str, detail: impl Into<String>) -> Condition {
    Condition { name, standing: Standing::Holds, detail: detail.into(), remedy: None }
}

fn weak(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Condition {
    Condition { name, standing: Standing::Weak, detail: detail.into(), remedy: Some(remedy.into()) }
}

fn broken(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Condition {
    Condition { name, standing: Standing::Broken, detail: detail.into(), remedy: Some(remedy.into()) }
}

/// Every condition, in the guide's order.
#[must_use]
pub fn judge(machine: &Machine) -> Vec<Condition> {
    let mut found = vec![system(machine), capability(machine), generation(machine), shared_memory(machine)];
    found.extend([open_files(machine), compute_mode(machine), users(machine), attribution()]);
    found.extend([api_version(machine), connections(machine), visible_devices(machine)]);
    found.extend([dynamic_parallelism(), early_end(), codecs_and_callbacks(machine), tegra(machine)]);
    found
}

fn system(machine: &Machine) -> Condition {
    const NAME: &str = "mps: system";
    match (machine.system.as_str(), machine.pointer_bits) {
        ("Linux", 64) => holds(NAME, "Linux, 64 bits, unified addressing"),
        (system, bits) => broken(
            NAME,
            format!(
                "{system}, {bits} bits; the server starts only on 64-bit Linux, and 32-bit programs fail in \
                 cuInit"
            ),
            "without MPS tenants take turns: `partita run --isolation own`",
        ),
    }
}

fn capability(machine: &Machine) -> Condition {
    const NAME: &str = "mps: capability";
    let old: Vec<String> = machine
        .devices
        .iter()
        .filter(|device| device.compute_capability < (3, 5))
        .map(|device| {
            format!(
                "GPU {} has {}.{}",
                device.index, device.compute_capability.0, device.compute_capability.1
            )
        })
        .collect();
    if old.is_empty() {
        return holds(NAME, "3.5 or more");
    }
    broken(
        NAME,
        format!("{}; the server does not start with such a device", old.join(", ")),
        "leave it out with --gpu, and run its tenants with `--isolation own`",
    )
}

fn before_volta(machine: &Machine) -> Vec<u32> {
    machine
        .devices
        .iter()
        .filter(|device| device.compute_capability.0 < 7)
        .map(|device| device.index)
        .collect()
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn generation(machine: &Machine) -> Condition {
    const NAME: &str = "mps: generation";
    let old = before_volta(machine);
    if old.is_empty() {
        return holds(
            NAME,
            "Volta or newer: separate address spaces, limits, faults contained to shared GPUs",
        );
    }
    if old.len() < machine.devices.len() {
        return broken(
            NAME,
            format!("GPU {} is older than Volta; a server that sees a newer one drops it", list(&old)),
            "give GPUs older than Volta a separate service with --gpu",
        );
    }
    weak(
        NAME,
        "older than Volta: clients share one address space and can overwrite each other unseen, a fault of one ends the server and \
         all, 16 contexts at most",
        "only for programs that trust each other; others with `--isolation own`",
    )
}

/// Whether `/dev/shm` is large enough.
#[must_use]
pub fn shared_memory(machine: &Machine) -> Condition {
    const NAME: &str = "mps: /dev/shm";
    let remedy =
        "enlarge it: `mount -o remount,size=8G /dev/shm`; in a container --shm-size=8g or --ipc=host";
    match machine.shared_memory_bytes {
        None => broken(NAME, "it does not exist; daemon and clients share memory through it", remedy),
        Some(bytes) if bytes < SHARED_MEMORY_BYTES_MIN => weak(
            NAME,
            format!("{} MiB, which bounds the page-locked memory of all clients together", bytes >> 20),
            remedy,
        ),
        Some(bytes) => holds(
            NAME,
            format!("{} MiB for page-locked memory; daemon and clients must share it", bytes >> 20),
        ),
    }
}

/// Whether daemon and clients may open enough files.
#[must_use]
pub fn open_files(machine: &Machine) -> Condition {
    const NAME: &str = "mps: open files";
    match machine.open_files_max {
        Some(limit) if limit < OPEN_FILES_MIN => weak(
            NAME,
            format!(
                "{limit} allowed; MPS wants {OPEN_FILES_MIN}, with fewer allocations fail once many clients run"
            ),
            format!(
                "`ulimit -n {OPEN_FILES_MIN}` before `partita mps start` and `partita run`, or LimitNOFILE= of the service"
            ),
        ),
        Some(limit) => holds(NAME, format!("{limit} allowed")),
        None => holds(NAME, "no limit"),
    }
}

fn compute_mode(machine: &Machine) -> Condition {
    const NAME: &str = "mps: compute mode";
    let with = |mode| -> Vec<u32> {
        let is = |device: &&Device| device.compute_mode == Some(mode);
        machine.devices.iter().filter(is).map(|device| device.index).collect()
    };
    let closed = with(ComputeMode::Prohibited);
    if let Some(first) = closed.first() {
        let detail = format!("GPU {} is PROHIBITED: no program can use it", list(&closed));
        return broken(NAME, detail, format!("`nvidia-smi -i {first} -c DEFAULT`"));
    }
    let open = with(ComputeMode::Default);
    if open.is_empty() {
        return holds(
            NAME,
            "EXCLUSIVE_PROCESS: the server is the only one on the GPU, and programs beside it fail",
        );
    }
    if machine.devices.iter().any(|device| device.mig) {
        return holds(NAME, "DEFAULT; MIG has no other mode");
    }
    weak(
        NAME,
        format!(
            "GPU {} is DEFAULT: a program that misses the service runs beside it, in turns with all clients",
            list(&open)
        ),
        "`partita mps start --exclusive` sets EXCLUSIVE_PROCESS (root); then programs that are not clients \
         fail",
    )
}

fn users(machine: &Machine) -> Condition {
    const NAME: &str = "mps: users";
    let others: Vec<String> = machine
        .servers
        .iter()
        .filter(|server| !server.own)
        .map(|server| format!("server {} of user {}", server.pid, server.user))
        .collect();
    if !others.is_empty() {
        return weak(
            NAME,
            format!(
                "{} beside Partita's; on the same GPU they take turns with it, and a daemon serves one user at a time",
                others.join(", ")
            ),
            "stop the other daemon with `echo quit | nvidia-cuda-mps-control`, or give it other GPUs",
        );
    }
    if machine.multi_user {
        return weak(
            NAME,
            "the service is for all users: they share its faults and its logs, without isolation",
            "for programs that trust each other; else a service for each user, without --multi-user",
        );
    }
    holds(
        NAME,
        format!(
            "user {} only; another user's programs have a separate service and take turns with this one",
            machine.user
        ),
    )
}

fn attribution() -> Condition {
    holds(
        "mps: accounting",
        "nvidia-smi shows the server for its clients; `partita ps` and `partita mps clients` tell them apart",
    )
}

fn api_version(machine: &Machine) -> Condition {
    const NAME: &str = "mps: api version";
    match &machine.forced_api_version {
        Some(version) => weak(
            NAME,
            format!(
                "CUDA_FORCE_API_VERSION={version}; contexts of an API older than 4.0 are refused under MPS"
            ),
            "`unset CUDA_FORCE_API_VERSION`",
        ),
        None => holds(NAME, "no older version is forced"),
    }
}

fn connections(machine: &Machine) -> Condition {
    const NAME: &str = "mps: connections";
    match &machine.max_connections {
        Some(number) if number.trim() != "2" => weak(
            NAME,
            format!(
                "CUDA_DEVICE_MAX_CONNECTIONS={number}; clients share one pool and take 2 by default: \
                 with more, fewer clients fit (on an H200 48 with 2, 15 with 8, 3 with 32)"
            ),
            "`unset CUDA_DEVICE_MAX_CONNECTIONS` where many clients share a GPU",
        ),
        _ => holds(NAME, "2 for each client"),
    }
}

fn visible_devices(machine: &Machine) -> Condition {
    const NAME: &str = "mps: visible gpus";
    match &machine.visible_devices {
        Some(list)
            if list.bytes().any(|byte| byte.is_ascii_digit())
                && !list.contains("GPU-")
                && !list.contains("MIG-") =>
        {
            weak(
                NAME,
                format!(
                    "CUDA_VISIBLE_DEVICES={list} counts by index, and the server counts its own devices from 0"
                ),
                "not needed for `partita run`, which names GPUs by UUID; for other clients `unset \
                 CUDA_VISIBLE_DEVICES`",
            )
        }
        _ => holds(NAME, "GPUs are named by UUID, which does not depend on their numbers"),
    }
}

fn dynamic_parallelism() -> Condition {
    holds(
        "mps: dynamic",
        "programs whose kernels launch kernels fail to load their modules (error 811); run those with `--isolation own`",
    )
}

fn early_end() -> Condition {
    holds(
        "mps: early end",
        "a client killed with work in flight can break the others; `partita kill` and signals through `partita run` end that work first",
    )
}

fn codecs_and_callbacks(machine: &Machine) -> Condition {
    const NAME: &str = "mps: callbacks";
    if before_volta(machine).is_empty() {
        return holds(NAME, "stream callbacks, graphs with host nodes and video codecs work from Volta on");
    }
    weak(
        NAME,
        "no stream callbacks, no graphs with host nodes, no video codecs for clients on GPUs before Volta",
        "run such programs with `--isolation own`",
    )
}

fn tegra(machine: &Machine) -> Condition {
    const NAME: &str = "mps: tegra";
    if !machine.tegra {
        return holds(
            NAME,
            "no Tegra: CUDA IPC, cooperative launches, ending clients and compute modes are there",
        );
    }
    weak(
        NAME,
        "Tegra: no CUDA IPC, no cooperative launches, no terminate_client and no compute modes under MPS, and no default directories",
        "let clients end by themselves, and keep programs that need these out with `--isolation own`",
    )
}

#[cfg(test)]
mod tests;
