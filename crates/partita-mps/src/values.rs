//! Arguments of commands: devices, limits of memory, priorities.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A device, as the control daemon's commands name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub enum DeviceName {
    /// Its number among the daemon's devices.
    Ordinal(u32),
    /// Its UUID, `GPU-…` or `MIG-…`, or a prefix of it.
    Uuid(String),
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordinal(number) => write!(f, "{number}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_uuid = |text: &str| {
            let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
            rest.is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            })
        };
        match text.parse() {
            Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Self::Ordinal(number)),
            _ if is_uuid(text) => Ok(Self::Uuid(text.to_owned())),
            _ => Err(format!(
                "{text:?} is not a device: use its number or its UUID (GPU-…), as `nvidia-smi -L` lists them"
            )),
        }
    }
}

/// A limit of device memory for each client process, in whole MiB: the commands accept whole
/// numbers of MiB or GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryLimit {
    mib: u64,
}

impl MemoryLimit {
    /// A limit of this many bytes.
    ///
    /// # Errors
    /// If it is not a whole number of MiB above zero.
    pub fn from_bytes(bytes: u64) -> Result<Self, String> {
        const MIB: u64 = 1 << 20;
        match (bytes / MIB, bytes % MIB) {
            (0, _) | (_, 1..) => Err(format!(
                "{bytes} bytes are not a limit of MPS: it accepts whole MiB, at least one; give 512MiB or \
                 20GiB"
            )),
            (mib, 0) => Ok(Self { mib }),
        }
    }

    /// The limit in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.mib << 20
    }
}

/// In the form of the commands: `20G`, `900M`.
impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.mib / 1024, self.mib % 1024) {
            (gib, 0) => write!(f, "{gib}G"),
            _ => write!(f, "{}M", self.mib),
        }
    }
}

/// The priority of a client's work beside others': a hint to the driver, without a guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientPriority {
    /// Level 0.
    #[default]
    Normal,
    /// Level 1.
    BelowNormal,
}

impl ClientPriority {
    /// The number in commands.
    #[must_use]
    pub fn level(self) -> u32 {
        match self {
            Self::Normal => 0,
            Self::BelowNormal => 1,
        }
    }

    /// Reads the number, alone or followed by its name.
    pub(crate) fn parse(reply: &str) -> Option<Self> {
        match reply.split_whitespace().next()? {
            "0" => Some(Self::Normal),
            "1" => Some(Self::BelowNormal),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbers_or_uuids() {
        for text in ["0", "17", "GPU-cb1213a3-d6a4-be7f", "MIG-1"] {
            assert_eq!(text.parse::<DeviceName>().unwrap().to_string(), text);
        }
        for text in ["", "-1", "+1", "GPU-", "GPU-1 2", "gpu", "GPU-1\n", "99999999999"] {
            assert!(text.parse::<DeviceName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn limits_are_written_as_commands_take_them() {
        for (bytes, text) in [(20 << 30, "20G"), (900 << 20, "900M"), (1536 << 20, "1536M"), (1 << 20, "1M")]
        {
            let limit = MemoryLimit::from_bytes(bytes).unwrap();
            assert_eq!((limit.to_string().as_str(), limit.bytes()), (text, bytes));
        }
        for bytes in [0, 1, (1 << 20) + 1] {
            assert!(MemoryLimit::from_bytes(bytes).is_err(), "{bytes}");
        }
    }
}
