//! Thread percentages and memory limits, as text and as numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// SMs of the smallest percentage on an H200.
const SMS_LEAST: u32 = 8;

/// SMs that a client of `percentage` may use on a device of `sms`, made of TPCs of `sms_per_tpc`.
///
/// Rounds down to whole TPCs. Measured on an H200 (132 SMs): 10 % gives 12, 25 % gives 32, 50 %
/// gives 66; others report 8 for 1 to 7 %. The minimum of four TPCs on other devices too is an
/// assumption.
#[must_use]
pub fn percentage_sms(percentage: u32, sms: u32, sms_per_tpc: u32) -> u32 {
    let per_tpc = sms_per_tpc.max(1);
    let exact = u64::from(sms) * u64::from(percentage.min(100)) / 100;
    let least = (SMS_LEAST / 2 * per_tpc).min(sms);
    (exact as u32 / per_tpc * per_tpc).max(least)
}

/// Reads an active thread percentage: above 0 and up to 100.
///
/// # Errors
/// A line that names the value.
pub fn percentage(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= 100.0 => Ok(value),
        _ => Err(format!("Invalid active thread percentage: {text}")),
    }
}

/// A memory limit: a whole number of GiB or MiB, written with `G` or `M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    number: u64,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Gib,
    Mib,
}

impl MemoryLimit {
    /// Reads a limit.
    ///
    /// # Errors
    /// A line that names the value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("Invalid memory limit: {text} (a whole number and G or M)");
        let (unit, shift) = match text.as_bytes().last() {
            Some(b'G' | b'g') => (Unit::Gib, 30),
            Some(b'M' | b'm') => (Unit::Mib, 20),
            _ => return Err(invalid()),
        };
        let number: u64 = text[..text.len() - 1].parse().map_err(|_| invalid())?;
        if number > u64::MAX >> shift {
            return Err(invalid());
        }
        Ok(Self { number, unit })
    }

    /// The limit in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self.unit {
            Unit::Gib => self.number << 30,
            Unit::Mib => self.number << 20,
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, if self.unit == Unit::Gib { 'G' } else { 'M' })
    }
}

/// A client's own limit of device memory on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnMemory {
    /// Its list does not name the device, or is not there.
    #[default]
    Unset,
    /// Bytes, which can only lower the server's.
    Bytes(u64),
    /// Its list names a device that the client does not see: then the driver drops every limit, the
    /// server's too (NVIDIA, «Multi-Process Service», 4.2.7, release 615).
    DropsAll,
}

/// The limits of servers or clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Active thread percentage.
    pub percentage: f32,
    /// Priority of clients: 0 normal, 1 below normal.
    pub priority: u32,
    /// Limits of device memory by the user's name of the device, in order: the last one counts. As
    /// in the real daemon, the device need not exist.
    memory: Vec<(String, MemoryLimit)>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { percentage: 100.0, priority: 0, memory: Vec::new() }
    }
}

impl Limits {
    /// The initial limits of the daemon. Like the real daemon, it ignores invalid values.
    #[must_use]
    pub fn from_values(percentage_text: Option<&str>, memory: Option<&str>) -> Self {
        let mut limits = Self::default();
        if let Some(Ok(value)) = percentage_text.map(percentage) {
            limits.percentage = value;
        }
        for entry in memory.into_iter().flat_map(|list| list.split(',')) {
            if let Some((device, value)) = entry.split_once('=')
                && let Ok(value) = MemoryLimit::parse(value.trim())
            {
                limits.set_memory(device.trim(), value);
            }
        }
        limits
    }

    /// Sets the memory limit of a device.
    pub fn set_memory(&mut self, device: &str, limit: MemoryLimit) {
        self.memory.retain(|(known, _)| known != device);
        self.memory.push((device.to_owned(), limit));
    }

    /// The memory limit set under this name.
    #[must_use]
    pub fn memory(&self, device: &str) -> Option<MemoryLimit> {
        self.memory.iter().find(|(known, _)| known == device).map(|(_, limit)| *limit)
    }

    /// The limit of a device, whose number the service counts among its own, in bytes.
    #[must_use]
    pub fn memory_bytes(&self, number: u32, uuid: &str) -> Option<u64> {
        self.memory
            .iter()
            .rev()
            .find(|(known, _)| known == uuid || known.parse() == Ok(number))
            .map(|(_, limit)| limit.bytes())
    }

    /// The limit of a client with its own limit, in bytes: that can only lower the server's.
    #[must_use]
    pub fn client_memory_bytes(&self, own: OwnMemory, number: u32, uuid: &str) -> Option<u64> {
        let servers = self.memory_bytes(number, uuid);
        match own {
            OwnMemory::Unset => servers,
            OwnMemory::Bytes(bytes) => Some(servers.map_or(bytes, |limit| limit.min(bytes))),
            OwnMemory::DropsAll => None,
        }
    }

    /// The percentage of a client that requests `own`: it can only lower the server's. A fraction
    /// counts as the next whole percent.
    #[must_use]
    pub fn client_percentage(&self, own: Option<f32>) -> u32 {
        let own = own.filter(|own| *own > 0.0).unwrap_or(100.0);
        (self.percentage.min(own).ceil() as u32).clamp(1, 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_give_the_measured_numbers_of_sms() {
        for (percentage, sms) in [(1, 8), (7, 8), (10, 12), (25, 32), (50, 66), (99, 130), (100, 132)] {
            assert_eq!(percentage_sms(percentage, 132, 2), sms, "{percentage} %");
        }
        assert_eq!(percentage_sms(25, 188, 2), 46);
        assert_eq!(percentage_sms(50, 9, 1), 4);
        assert_eq!(percentage_sms(1, 2, 1), 2, "never more than there are");
    }

    #[test]
    fn memory_limits_are_whole_numbers_with_a_unit() {
        assert_eq!(MemoryLimit::parse("2G").unwrap().bytes(), 2 << 30);
        assert_eq!(MemoryLimit::parse("512m").unwrap().to_string(), "512M");
        for text in
            ["", "G", "1", "1.5G", "-1G", "1T", "99999999999999999999G", "18446744073709551615M", "1é"]
        {
            assert!(MemoryLimit::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_limit_of_a_device_counts_under_any_name() {
        let mut limits = Limits::from_values(Some("50"), Some("0=1G, GPU-1=512M,junk,0=x"));
        assert_eq!(limits.percentage, 50.0);
        assert_eq!(limits.memory_bytes(0, "GPU-1"), Some(512 << 20));
        assert_eq!(limits.memory_bytes(0, "GPU-2"), Some(1 << 30));
        limits.set_memory("0", MemoryLimit::parse("3G").unwrap());
        assert_eq!(limits.memory_bytes(0, "GPU-1"), Some(3 << 30));
        assert_eq!(limits.memory_bytes(1, "GPU-1"), Some(512 << 20), "0 is another device");
        assert_eq!(limits.memory_bytes(1, "GPU-2"), None);
        assert_eq!(Limits::from_values(Some("0"), None), Limits::default());
    }

    #[test]
    fn a_client_can_only_lower_its_memory() {
        let limits = Limits::from_values(None, Some("0=1G"));
        let of = |own| limits.client_memory_bytes(own, 0, "GPU-1");
        assert_eq!(of(OwnMemory::Unset), Some(1 << 30));
        assert_eq!(of(OwnMemory::Bytes(2 << 30)), Some(1 << 30));
        assert_eq!(of(OwnMemory::Bytes(2 << 20)), Some(2 << 20));
        assert_eq!(of(OwnMemory::DropsAll), None);
        assert_eq!(Limits::default().client_memory_bytes(OwnMemory::Bytes(5), 0, "GPU-1"), Some(5));
    }

    #[test]
    fn a_client_can_only_lower_its_percentage() {
        let limits = Limits { percentage: 50.0, ..Limits::default() };
        assert_eq!(limits.client_percentage(None), 50);
        assert_eq!(limits.client_percentage(Some(80.0)), 50);
        assert_eq!(limits.client_percentage(Some(12.5)), 13);
        assert_eq!(limits.client_percentage(Some(-3.0)), 50);
        assert_eq!(limits.client_percentage(Some(f32::NAN)), 50);
    }
}
