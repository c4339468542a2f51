//! Facts of the kernel and the file system that are cheap to read and decide NVML's answer: the
//! boot of the machine, the kernel module, the GPUs, which of them this process may open, their MIG
//! instances, and the management library's file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use partita_core::kept::fnv1a;
use rustix::fs::Access;
use serde::{Deserialize, Serialize};

use super::Inventory;

/// The longest text from the kernel that is read, in bytes.
const TEXT_BYTES_MAX: u64 = 64 * 1024;
/// No list of it has more entries: 64 GPUs with seven instances, each of several files.
const ENTRIES_MAX: usize = 4096;
/// `capabilities/gpu0/mig/gi0/ci0/access` is the deepest there is.
const DEPTH_MAX: usize = 8;

/// Two that are equal mean the same GPUs, for this process, under the same driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// The kernel's number of this start of the machine.
    pub boot: String,
    /// `/proc/driver/nvidia/version`.
    pub driver: String,
    /// The GPUs by PCI address, as the kernel module names them.
    pub gpus: BTreeMap<String, GpuSeen>,
    /// Everything in `/proc/driver/nvidia/capabilities`, where MIG instances have directories.
    pub capabilities: BTreeSet<String>,
    /// `/dev/nvidiactl`.
    pub control: Option<Node>,
    /// The loader's list of libraries, which is rewritten when the driver's are replaced.
    pub libraries: Option<Stamp>,
    /// `LD_LIBRARY_PATH` of the child process that queries NVML.
    pub library_path: Option<String>,
}

/// A GPU as the kernel module describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSeen {
    /// Its `information`, but for the number of its interrupt, which comes and goes with its users.
    pub information: String,
    /// Its `/dev/nvidia…`.
    pub node: Option<Node>,
}

/// A device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The device's number.
    pub device: u64,
    /// Whether this process may open it. The kernel asks the control group, too, so jobs of a batch
    /// system that are given other GPUs differ here.
    pub may_open: bool,
}

/// One state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl Fingerprint {
    /// Reads it below `root`, which is `/` for the machine. `None` if the kernel does not report
    /// enough: there is no driver, it is simulated, or a container hides it.
    #[must_use]
    pub fn read(root: &Path, library_path: Option<OsString>) -> Option<Self> {
        let driver = root.join("proc/driver/nvidia");
        // Most machines without a driver end here.
        let version = text(&driver.join("version"))?;
        let mut gpus = BTreeMap::new();
        for address in names(&driver.join("gpus"))? {
            let information = text(&driver.join("gpus").join(&address).join("information"))?;
            let node = field(&information, "Device Minor")
                .and_then(|minor| minor.parse::<u32>().ok())
                .and_then(|minor| Node::of(&root.join(format!("dev/nvidia{minor}"))));
            let information = information.lines().filter(|line| !line.starts_with("IRQ:"));
            let information = information.map(|line| format!("{line}\n")).collect();
            gpus.insert(address, GpuSeen { information, node });
        }
        let mut capabilities = BTreeSet::new();
        let listed = driver.join("capabilities");
        if listed.is_dir() {
            list(&listed, "", DEPTH_MAX, &mut capabilities)?;
        }
        let library_path = match library_path {
            Some(path) => Some(path.into_string().ok()?),
            None => None,
        };
        Some(Self {
            boot: text(&root.join("proc/sys/kernel/random/boot_id"))?,
            driver: version,
            gpus,
            capabilities,
            control: Node::of(&root.join("dev/nvidiactl")),
            libraries: fs::metadata(root.join("etc/ld.so.cache")).ok().map(|meta| Stamp {
                inode: meta.ino(),
                bytes: meta.len(),
                changed: (meta.mtime(), meta.mtime_nsec()),
            }),
            library_path,
        })
    }

    /// Whether an inventory can be of these GPUs and this driver at all: it is of some, each is one
    /// of the kernel's that may be opened, and they are numbered as NVML numbers them.
    #[must_use]
    pub fn fits(&self, inventory: &Inventory) -> bool {
        let is_ours = |uuid: &str| {
            self.gpus.values().any(|gpu| {
                let named = field(&gpu.information, "GPU UUID");
                named.is_some_and(|named| named.eq_ignore_ascii_case(uuid))
                    && gpu.node.is_some_and(|node| node.may_open)
            })
        };
        let uuids: BTreeSet<&str> = inventory.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        !inventory.gpus.is_empty()
            && inventory.unreadable.is_empty()
            && uuids.len() == inventory.gpus.len()
            && uuids.into_iter().all(is_ours)
            && inventory.gpus.iter().zip(0..).all(|(gpu, index)| gpu.index == index)
            && self.driver.split_ascii_whitespace().any(|word| word == inventory.driver_version)
    }

    /// A short name of it for a file. Others may have the same; the file holds the whole.
    #[must_use]
    pub fn short(&self) -> String {
        // Values that JSON cannot represent would share one file, which is harmless.
        format!("{:016x}", fnv1a(&serde_json::to_vec(self).unwrap_or_default()))
    }
}

impl Node {
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let may_open = rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).is_ok();
        Some(Self { device: meta.rdev(), may_open })
    }
}

/// A field of a GPU's `information`.
fn field<'t>(information: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = information.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// The whole of a short text.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= TEXT_BYTES_MAX).then_some(text)
}

/// The names in a directory.
fn names(path: &Path) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).ok()? {
        if names.len() == ENTRIES_MAX {
            return None;
        }
        names.push(entry.ok()?.file_name().into_string().ok()?);
    }
    Some(names)
}

/// The paths of everything in a directory, below `prefix`. None if something cannot be read, or
/// there is no end to it.
fn list(path: &Path, prefix: &str, depth: usize, found: &mut BTreeSet<String>) -> Option<()> {
    for name in names(path)? {
        if depth == 0 || found.len() == ENTRIES_MAX {
            return None;
        }
        let below = path.join(&name);
        let is_directory = below.symlink_metadata().ok()?.is_dir();
        let name = format!("{prefix}{name}");
        if is_directory {
            list(&below, &format!("{name}/"), depth - 1, found)?;
        }
        found.insert(name);
    }
    Some(())
}
