//! Processes that use a GPU and that Partita did not start.

use std::fs;
use std::path::Path;

use partita_host::process::{ProcessId, user_name};
use partita_host::registry::GpuMeta;
use serde::Serialize;

use super::DriverProcess;

/// The beginning of the names of the MPS service's processes, which the driver lists too.
const SERVICE: &str = "nvidia-cuda-mps";

/// A process that uses a GPU and belongs to no tenant: nothing limits it, and the memory that it
/// holds may have been promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outsider {
    /// The GPU's short name.
    pub gpu: String,
    /// The GPU's UUID.
    pub gpu_uuid: String,
    /// The process.
    pub pid: u32,
    /// Its user.
    pub user: String,
    /// Device memory that it uses according to the driver, in bytes.
    #[serde(rename = "memory_used_bytes")]
    pub memory_bytes: Option<u64>,
    /// Its program and arguments; empty if the process hides them.
    pub command: Vec<String>,
    /// The process, identified beyond its number, which can be reused.
    #[serde(skip)]
    pub process: ProcessId,
    /// The GPU.
    #[serde(skip)]
    pub device: GpuMeta,
}

impl Outsider {
    /// A process that belongs to no tenant; `None` for one of the MPS service, and for one of
    /// Partita's own, such as a probe.
    pub(super) fn of(gpu: &GpuMeta, listed: &DriverProcess, process: ProcessId) -> Option<Self> {
        let read = |file: &str| fs::read(format!("/proc/{}/{file}", listed.pid)).unwrap_or_default();
        if String::from_utf8_lossy(&read("comm")).starts_with(SERVICE) || is_partitas(listed.pid) {
            return None;
        }
        let words = read("cmdline");
        let words = String::from_utf8_lossy(words.strip_suffix(&[0]).unwrap_or(&words));
        let command = words.split('\0').filter(|_| !words.is_empty()).map(str::to_owned).collect();
        Some(Self {
            gpu: gpu.label.clone(),
            gpu_uuid: gpu.uuid.clone(),
            pid: listed.pid,
            user: process.user().map_or_else(|| "?".to_owned(), user_name),
            memory_bytes: listed.used_bytes,
            command,
            process,
            device: gpu.clone(),
        })
    }
}

/// Whether a process runs a program of this installation.
fn is_partitas(pid: u32) -> bool {
    let own = std::env::current_exe().ok();
    let folder = own.as_deref().and_then(Path::parent);
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    program.parent() == folder && name.starts_with("partita")
}
