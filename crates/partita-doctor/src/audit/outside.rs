//! Processes that use a GPU and that Partita did not start.

use std::fs;

use partita_host::escape::escape;
use partita_host::process::{ProcessId, user_name};
use partita_host::registry::GpuMeta;

use super::DriverProcess;

/// The beginning of the names of the MPS service's processes, which the driver lists too.
const SERVICE: &str = "nvidia-cuda-mps";
/// The most of a command line that is shown, in characters.
const COMMAND_MAX: usize = 60;

/// A process that uses a GPU and belongs to no tenant: nothing limits it, and the memory that it
/// holds may have been promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outsider {
    /// The GPU's short name.
    pub gpu: String,
    /// The process.
    pub pid: u32,
    /// Its user.
    pub user: String,
    /// Device memory that it uses according to the driver, in bytes.
    pub memory_bytes: Option<u64>,
    /// The beginning of its command line, for terminals.
    pub command: String,
}

impl Outsider {
    /// A process that belongs to no tenant; `None` for one of the MPS service.
    pub(super) fn of(gpu: &GpuMeta, listed: &DriverProcess, process: ProcessId) -> Option<Self> {
        let read = |file: &str| fs::read(format!("/proc/{}/{file}", listed.pid)).unwrap_or_default();
        if String::from_utf8_lossy(&read("comm")).starts_with(SERVICE) {
            return None;
        }
        let words = read("cmdline");
        let line = String::from_utf8_lossy(&words).trim_end_matches('\0').replace('\0', " ");
        Some(Self {
            gpu: gpu.label.clone(),
            pid: listed.pid,
            user: process.user().map_or_else(|| "?".to_owned(), user_name),
            memory_bytes: listed.used_bytes,
            command: escape(&line.chars().take(COMMAND_MAX).collect::<String>()).into_owned(),
        })
    }
}
