//! Limits in the environment variables of HAMi-core and vgpu-manager.
//!
//! [`Says::of`] reads an environment in HAMi-core's meaning; names and meanings are facts of those
//! projects (`docs/migrating-from-hami.md` has the table). An unreadable value is an error here,
//! not "no limit" as it is there.

mod value;

#[cfg(test)]
mod tests;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::time::Priority;
use crate::{Present, Share, ShareError, Topology, TpcSet, plan};

/// Largest number of devices that variables can name; device numbers are below it.
pub const DEVICES_MAX: usize = 32;
/// The file that names a tenant by default.
pub const DEFAULT_CACHE: &str = "/tmp/cudevshr.cache";

const CACHE: &[u8] = b"CUDA_DEVICE_MEMORY_SHARED_CACHE";
const MEMORY: [&[u8]; 2] = [b"CUDA_DEVICE_MEMORY_LIMIT", b"CUDA_MEM_LIMIT"];
const CORES: [&[u8]; 2] = [b"CUDA_DEVICE_SM_LIMIT", b"CUDA_CORE_LIMIT"];
const PRIORITY: &[u8] = b"CUDA_TASK_PRIORITY";
const SOFT_CORES: &[u8] = b"CUDA_CORE_SOFT_LIMIT";
const OVERSOLD: &[u8] = b"CUDA_MEM_OVERSOLD";

/// A value for all devices, and values for single devices.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PerDevice<T> {
    general: T,
    own: [T; DEVICES_MAX],
}

impl<T: Copy + Default> Default for PerDevice<T> {
    fn default() -> Self {
        Self { general: T::default(), own: [T::default(); DEVICES_MAX] }
    }
}

/// The requests of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// Bytes; 0 is no limit.
    memory: PerDevice<u64>,
    /// Percent; 0 and 100 or more are no limit.
    cores: PerDevice<u64>,
    oversold: PerDevice<bool>,
    cache: Option<Vec<u8>>,
    visible: Option<String>,
    /// The tenant's priority; normal if `None`.
    pub priority: Option<Priority>,
    /// Whether core limits are off (`GPU_CORE_UTILIZATION_POLICY=disable`).
    pub cores_off: bool,
    /// Whether allocations beyond the quota get host memory.
    oversubscribe: bool,
    /// Whether the environment asks to kill processes when memory runs out. Partita does not.
    oom_killer: bool,
    /// Whether the environment asks to lend more than the core limit. Partita does not.
    soft_cores: bool,
    /// `PARTITA_RUN_DIR`: the directory of the ledgers, if not beside the cache.
    pub run_dir: Option<Vec<u8>>,
    /// `PARTITA_CACHE_DIR`: the directory of the calibrations.
    pub calibrations: Option<Vec<u8>>,
    /// `LIBCUDA_LOG_LEVEL`: 0 reports failures only, 1 and 2 also ignored requests, 3 and above
    /// also the limits in force.
    pub log_level: u8,
}

/// A variable with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its name.
    pub variable: String,
    /// Its value.
    pub value: String,
    /// The valid values.
    pub expected: &'static str,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variable, value, expected } = self;
        write!(f, "{variable}={value:?} is not understood: it must be {expected}")
    }
}

impl core::error::Error for Unreadable {}

/// The relation of an environment to a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Says {
    /// It does not ask for a tenant.
    Nothing,
    /// It asks for no control (`CUDA_DISABLE_CONTROL=true`).
    Off,
    /// The requests of the tenant.
    Asks(Box<Asked>),
    /// An invalid request.
    Unclear(Unreadable),
}

impl Says {
    /// Reads the entries (`NAME=VALUE`) of an environment. If a name occurs twice, the first
    /// counts, as for getenv(3).
    pub fn of<'e>(entries: impl IntoIterator<Item = &'e [u8]>) -> Self {
        match Asked::read(entries) {
            Ok(says) => says,
            Err(unreadable) => Self::Unclear(unreadable),
        }
    }
}

impl Asked {
    fn read<'e>(entries: impl IntoIterator<Item = &'e [u8]>) -> Result<Says, Unreadable> {
        let mut asked = Self { log_level: 1, ..Self::default() };
        let mut seen: Vec<&[u8]> = Vec::new();
        // Find out whether a variable names a tenant, and which limits are HAMi-core's: those have
        // precedence over vgpu-manager's.
        let mut is_named = false;
        let mut later: Vec<(&[u8], &[u8])> = Vec::new();
        for entry in entries {
            let Some(at) = entry.iter().position(|&byte| byte == b'=') else { continue };
            let (name, value) = (&entry[..at], &entry[at + 1..]);
            if !is_known(name) || seen.contains(&name) {
                continue;
            }
            seen.push(name);
            if value.is_empty() {
                continue;
            }
            match name {
                CACHE => (asked.cache, is_named) = (Some(value.to_owned()), true),
                b"CUDA_DISABLE_CONTROL" | b"DISABLE_VGPU_CONTROL" if value::is_true(value) => {
                    return Ok(Says::Off);
                }
                b"GPU_CORE_UTILIZATION_POLICY" => asked.cores_off = value.eq_ignore_ascii_case(b"disable"),
                b"CUDA_OVERSUBSCRIBE" => asked.oversubscribe = value::is_true(value),
                b"ACTIVE_OOM_KILLER" => asked.oom_killer = value::is_true(value),
                b"LIBCUDA_LOG_LEVEL" => {
                    asked.log_level = value::number(value).map_or(1, |level| level.min(4) as u8);
                }
                b"NVIDIA_VISIBLE_DEVICES" => {
                    asked.visible = core::str::from_utf8(value).ok().map(str::to_owned)
                }
                b"PARTITA_RUN_DIR" => asked.run_dir = Some(value.to_owned()),
                b"PARTITA_CACHE_DIR" => asked.calibrations = Some(value.to_owned()),
                _ => later.push((name, value)),
            }
        }
        // vgpu-manager's first, so that HAMi-core's replace them.
        for rank in (0..MEMORY.len()).rev() {
            for &(name, value) in &later {
                is_named |= asked.limit(rank, name, value)?;
            }
        }
        Ok(if is_named { Says::Asks(Box::new(asked)) } else { Says::Nothing })
    }

    /// Reads a limit; returns whether the variable is one.
    fn limit(&mut self, rank: usize, name: &[u8], value: &[u8]) -> Result<bool, Unreadable> {
        if let Some(device) = device_of(MEMORY[rank], name, value)? {
            let bytes = value::bytes(value).ok_or_else(|| {
                unreadable(name, value, "a number of bytes, or one with g, m or k after it, as 3g")
            })?;
            put(&mut self.memory, device, bytes);
        } else if let Some(device) = device_of(CORES[rank], name, value)? {
            let percent = value::number(value).ok_or_else(|| {
                unreadable(name, value, "a percentage without a sign, 1 to 99, or 0 for none")
            })?;
            put(&mut self.cores, device, percent);
        } else if rank == 1
            && let Some(device) = device_of(OVERSOLD, name, value)?
        {
            put(&mut self.oversold, device, value::is_true(value));
            return Ok(false);
        } else if rank == 1 && device_of(SOFT_CORES, name, value)?.is_some() {
            self.soft_cores |= value::number(value) != Some(0);
            return Ok(false);
        } else if name == PRIORITY {
            let number = value::number(value)
                .ok_or_else(|| unreadable(name, value, "0 for high or 1 for low priority"))?;
            self.priority = Some(if number == 0 { Priority::High } else { Priority::Low });
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// The memory quota of a device in bytes, `None` without one. A device's own limit has
    /// precedence over the limit for all.
    pub fn memory_bytes(&self, device: usize) -> Option<u64> {
        Some(of(&self.memory, device)).filter(|&bytes| bytes > 0)
    }

    /// The core limit of a device in percent, 1 to 99; `None` without one.
    pub fn cores_percent(&self, device: usize) -> Option<u32> {
        let percent = of(&self.cores, device);
        (!self.cores_off && (1..100).contains(&percent)).then_some(percent as u32)
    }

    /// Whether it asks for no limit on any device.
    pub fn limits_nothing(&self) -> bool {
        let is_free =
            |device| self.memory_bytes(device).or(self.cores_percent(device).map(u64::from)).is_none();
        self.priority.is_none() && (0..DEVICES_MAX).all(is_free)
    }

    /// Whether an allocation beyond the quota of a device gets host memory.
    pub fn spills(&self, device: usize) -> bool {
        self.oversubscribe || of(&self.oversold, device)
    }

    /// The path of the file that names the tenant: all processes that name one share one quota.
    pub fn cache(&self) -> &[u8] {
        self.cache.as_deref().unwrap_or(DEFAULT_CACHE.as_bytes())
    }

    /// Whether limits differ by device, so that the number of a device matters.
    pub fn is_numbered(&self) -> bool {
        self.memory.own.iter().chain(&self.cores.own).any(|&own| own > 0) || self.oversold.own.contains(&true)
    }

    /// The devices that the container runtime gave, as its list of UUIDs; `None` without such a
    /// list.
    pub fn listed(&self) -> Option<Vec<&str>> {
        let entries: Vec<&str> = self.visible.as_deref()?.split(',').map(str::trim).collect();
        entries.iter().all(|entry| uuid_digits(entry).is_some()).then_some(entries)
    }

    /// Ignored requests, each with Partita's behaviour instead.
    pub fn notes(&self) -> impl Iterator<Item = &'static str> {
        let oom =
            "ACTIVE_OOM_KILLER is not obeyed: an allocation beyond the quota fails, and no process is killed";
        let soft =
            "CUDA_CORE_SOFT_LIMIT is not obeyed: the core limit holds at any time, and nothing is lent";
        [self.oom_killer.then_some(oom), self.soft_cores.then_some(soft)].into_iter().flatten()
    }
}

/// The numbers in a value of `CUDA_VISIBLE_DEVICES` up to the first entry that is not one, as the
/// driver reads it; `None` if it names devices in another way.
pub fn ordinals(value: &str) -> Option<Vec<usize>> {
    let numbers: Vec<usize> = value.split(',').map_while(|entry| entry.trim().parse().ok()).collect();
    (!numbers.is_empty()).then_some(numbers)
}

/// Whether an entry of a list of UUIDs names this device. An entry may be a prefix of the UUID.
pub fn names(entry: &str, uuid: &[u8; 16]) -> bool {
    let Some(digits) = uuid_digits(entry) else { return false };
    let of_uuid = uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let mut count = 0;
    let same = digits.zip(of_uuid).all(|(digit, own)| {
        count += 1;
        digit == u32::from(own)
    });
    same && count > 0
}

/// The hexadecimal digits of `GPU-…` or `MIG-…`; `None` for other texts.
fn uuid_digits(entry: &str) -> Option<impl Iterator<Item = u32>> {
    let text = ["GPU-", "MIG-"].iter().find_map(|prefix| entry.strip_prefix(prefix))?;
    let digits = || text.bytes().filter(|&byte| byte != b'-');
    let well = (1..=32).contains(&digits().count()) && digits().all(|byte| byte.is_ascii_hexdigit());
    well.then(|| digits().filter_map(|byte| char::from(byte).to_digit(16)))
}

fn unreadable(name: &[u8], value: &[u8], expected: &'static str) -> Unreadable {
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
    Unreadable { variable: text(name), value: text(value), expected }
}

fn is_known(name: &[u8]) -> bool {
    [
        b"CUDA_".as_slice(),
        b"GPU_CORE_",
        b"ACTIVE_OOM",
        b"LIBCUDA_LOG",
        b"NVIDIA_VISIBLE",
        b"PARTITA_",
        b"DISABLE_VGPU",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// The devices to which a variable applies.
enum Whose {
    All,
    One(usize),
}

/// The devices of the variable with this name, with or without a number at its end.
fn device_of(stem: &[u8], name: &[u8], value: &[u8]) -> Result<Option<Whose>, Unreadable> {
    let Some(rest) = name.strip_prefix(stem) else { return Ok(None) };
    let Some(number) = rest.strip_prefix(b"_") else {
        return Ok(rest.is_empty().then_some(Whose::All));
    };
    match value::number(number) {
        Some(device) if device < DEVICES_MAX as u64 => Ok(Some(Whose::One(device as usize))),
        _ => Err(unreadable(
            name,
            value,
            "of all devices, or of one with a number from 0 to 31 after the name",
        )),
    }
}

fn put<T>(values: &mut PerDevice<T>, whose: Whose, value: T) {
    match whose {
        Whose::One(device) => values.own[device] = value,
        Whose::All => values.general = value,
    }
}

/// A device's own value, or the value for all: a zero value of its own does not count, as in
/// HAMi-core.
fn of<T: Copy + Default + PartialEq>(values: &PerDevice<T>, device: usize) -> T {
    let own = values.own.get(device).copied().unwrap_or_default();
    if own == T::default() { values.general } else { own }
}

/// TPCs for a core limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The TPCs, logical.
    pub set: TpcSet,
    /// Whether some of them also belong to present tenants: a core limit is a maximum, and the
    /// limits of all tenants together may exceed the device.
    pub overlaps: bool,
}

/// Chooses the TPCs of a tenant with a core limit. They are disjoint from those of the other
/// tenants that it can see, if there is room.
///
/// A tenant that sees no other chooses TPCs by its hash, so that tenants in containers that cannot
/// see each other spread over the device. The limit divides the device into places, in the order of
/// GPCs, so that two tenants with one limit share all of their TPCs or none.
///
/// # Errors
/// A limit of less than one TPC.
pub fn choose(
    topology: &Topology,
    present: &[Present],
    percent: u32,
    hash: u64,
) -> Result<Chosen, ShareError> {
    let share = Share::Percent(percent.saturating_mul(1000));
    let count = share.tpcs_wanted(topology)?;
    let others = present.iter().fold(TpcSet::EMPTY, |all, tenant| all | tenant.set);
    if !others.is_empty()
        && let Ok(planned) = plan(topology, present, share)
    {
        return Ok(Chosen { set: planned.set, overlaps: false });
    }
    let in_order: Vec<u8> = topology.gpcs().iter().flat_map(|gpc| gpc.tpcs.iter()).collect();
    let (length, places) = (in_order.len() as u64, topology.tpc_count() / count);
    let start = match u64::from(places) {
        0 | 1 => hash % length,
        places => hash % places * u64::from(count),
    };
    let chosen = in_order.iter().cycle().skip(start as usize).take(count as usize);
    let set: TpcSet = chosen.copied().collect();
    Ok(Chosen { overlaps: !(set & others).is_empty(), set })
}
