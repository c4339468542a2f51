//! Finds processes that have the gate of a GPU open and belong to no tenant there.
//!
//! The gate (`partita_ledger::GateMap`) belongs to one user, and every process of that user, and of
//! root, can write to it. Such a process can hold the lanes that high priority needs, keep one
//! closed most of the time, or truncate the file under the processes that map it. A tenant's
//! processes open it through the hook, with a slot in their ledger; `partita` closes it at once.
//! The audit names every other process that has it open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use partita_host::error::Error;
use partita_host::process::{self, ProcessId, user_name};
use partita_host::registry::{GpuMeta, Registry, Tenant};
use serde::Serialize;

use super::charged::{charged, gpu_of};

/// A process that can write to the gate of a GPU and belongs to no tenant there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stranger {
    /// The gate's file.
    pub gate: PathBuf,
    /// The GPU, if a tenant there names it.
    #[serde(skip)]
    pub gpu: Option<GpuMeta>,
    /// The process.
    pub pid: u32,
    /// The user of the process.
    pub user: String,
    /// The process, identified beyond its number, which can be reused.
    #[serde(skip)]
    pub process: ProcessId,
}

/// A file, by its inode and its file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(meta: &fs::Metadata) -> Self {
        Self { device: meta.dev(), inode: meta.ino() }
    }

    /// Whether a process has it open or mapped; false if the caller must not inspect the process.
    fn is_open_in(self, process: ProcessId) -> bool {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten();
        let mut opened = descriptors.filter_map(|entry| fs::metadata(entry.path()).ok());
        if opened.any(|meta| Self::of(&meta) == self) {
            return true;
        }
        let maps = fs::read_to_string(format!("/proc/{}/maps", process.pid)).unwrap_or_default();
        maps.lines().filter_map(Self::of_mapping).any(|mapped| mapped == self)
    }

    /// The file of a line of `/proc/PID/maps`: addresses, permissions, offset, device as
    /// `major:minor` in hexadecimal, inode, path.
    fn of_mapping(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let device = rustix::fs::makedev(number(major)?, number(minor)?);
        Some(Self { device, inode: fields.next()?.parse().ok()? })
    }
}

/// Every process that has a gate open and no slot in a ledger of its GPU, among the processes that
/// the caller may inspect; root may inspect all.
///
/// # Errors
/// Those of reading the registry.
pub fn strangers(registry: &Registry) -> Result<Vec<Stranger>, Error> {
    let mut found = Vec::new();
    for (gpu_key, gate, file) in registry.gates()? {
        let Ok(meta) = file.metadata() else { continue };
        drop(file);
        let identity = Identity::of(&meta);
        let holders: Vec<ProcessId> = process::pids()
            .filter(|&pid| pid != std::process::id())
            .filter_map(ProcessId::living)
            .filter(|&process| identity.is_open_in(process))
            .collect();
        if holders.is_empty() {
            continue;
        }
        // The tenants are read after the processes: a process that opens the gate for a tenant has
        // a slot by then.
        let tenants = registry.lock()?.tenants()?;
        let here: Vec<&Tenant> =
            tenants.iter().filter(|tenant| tenant.gpu_key == gpu_key && tenant.is_kept_here()).collect();
        let is_known = |process: ProcessId| here.iter().any(|tenant| charged(tenant, process).is_some());
        // The second look excludes processes that only created the gate, or that have ended.
        let strangers =
            holders.into_iter().filter(|&one| !is_known(one) && one.lives() && identity.is_open_in(one));
        found.extend(strangers.map(|process| Stranger {
            gate: gate.clone(),
            gpu: here.iter().find_map(|tenant| gpu_of(tenant)),
            pid: process.pid,
            user: process.user().map_or_else(|| "?".to_owned(), user_name),
            process,
        }));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_names_its_file() {
        let line =
            "7f2c8c021000-7f2c8c022000 rw-s 00000000 00:1a 4711                       /dev/shm/a b/.gate";
        let device = rustix::fs::makedev(0, 0x1a);
        assert_eq!(Identity::of_mapping(line), Some(Identity { device, inode: 4711 }));
        for line in ["", "7f2c-7f2d rw-s 0", "7f2c-7f2d rw-s 0 001a 4711", "7f2c-7f2d rw-s 0 00:1a x"] {
            assert_eq!(Identity::of_mapping(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_file_is_seen_open_and_mapped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let identity = Identity::of(&file.as_file().metadata().unwrap());
        let own = ProcessId::own().unwrap();
        assert!(identity.is_open_in(own));
        let path = file.into_temp_path();
        assert!(!identity.is_open_in(own));
        drop(path);
    }
}
