//! Answers of commands, parsed.
//!
//! The forms of `ps`, of lists and of percentages are those of the MPS guide and of driver 580.
//! Those of `get_device_client_list`, `device_query` and of memory limits are not documented: parts
//! that need no guess are read, others are an error.

use serde::Serialize;

use crate::Pid;
use crate::values::DeviceName;

/// The answer of `get_server_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerStatus {
    /// The server starts; new clients wait.
    Initializing,
    /// It accepts clients.
    Active,
    /// A fatal fault blocks it; new clients get error 807.
    Fault,
}

impl ServerStatus {
    pub(crate) fn parse(reply: &str) -> Option<Self> {
        // The guide shows the word alone; a sentence around it would mean the same.
        let mut words = reply.split(|c: char| !c.is_ascii_alphabetic());
        words.find_map(|word| match word {
            "INITIALIZING" => Some(Self::Initializing),
            "ACTIVE" => Some(Self::Active),
            "FAULT" => Some(Self::Fault),
            _ => None,
        })
    }
}

impl std::fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Initializing => "INITIALIZING",
            Self::Active => "ACTIVE",
            Self::Fault => "FAULT",
        })
    }
}

/// One line of `ps`: a client process on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientRow {
    /// The process, in the daemon's pid namespace.
    pub pid: Pid,
    /// Its number with the server.
    pub id: u32,
    /// The server.
    pub server: Pid,
    /// A prefix of the device's UUID.
    pub device: String,
    /// The number of the process's pid namespace.
    pub namespace: u64,
    /// The program.
    pub command: String,
}

impl ClientRow {
    /// Reads a table; `None` if a line has another form.
    pub(crate) fn parse_table(reply: &str) -> Option<Vec<Self>> {
        let mut lines = reply.lines().map(str::trim).filter(|line| !line.is_empty());
        match lines.next() {
            None => return Some(Vec::new()),
            Some(head)
                if head.split_whitespace().eq(["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]) => {}
            Some(_) => return None,
        }
        lines.map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            rest = after.trim_start();
            Some(word).filter(|word| !word.is_empty())
        };
        Some(Self {
            pid: word()?.parse().ok()?,
            id: word()?.parse().ok()?,
            server: word()?.parse().ok()?,
            device: word()?.to_owned(),
            namespace: word()?.parse().ok()?,
            command: rest.to_owned(),
        })
    }

    /// Whether the row is of the device with this UUID: the table has only its prefix.
    #[must_use]
    pub fn is_on(&self, uuid: &str) -> bool {
        !self.device.is_empty() && uuid.starts_with(&self.device)
    }
}

/// A device and the processes that use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceClients {
    /// The device.
    pub device: DeviceName,
    /// Its clients.
    pub clients: Vec<Pid>,
}

impl DeviceClients {
    /// Reads a list in which each device is followed by its clients, on its line or below it. A
    /// device is a UUID, or a number with a colon.
    pub(crate) fn parse_list(reply: &str) -> Option<Vec<Self>> {
        let mut found: Vec<Self> = Vec::new();
        for word in reply.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()) {
            let name = word.trim_end_matches(':');
            match (name.parse::<DeviceName>().ok()?, word.ends_with(':')) {
                (device @ DeviceName::Uuid(_), _) | (device @ DeviceName::Ordinal(_), true) => {
                    found.push(Self { device, clients: Vec::new() });
                }
                (DeviceName::Ordinal(pid), false) => {
                    found.last_mut()?.clients.push(Some(pid).filter(|&pid| pid > 0)?);
                }
            }
        }
        Some(found)
    }
}

/// Numbers, one after the other.
pub(crate) fn pids(reply: &str) -> Option<Vec<Pid>> {
    reply.split_whitespace().map(|word| word.parse().ok().filter(|&pid| pid > 0)).collect()
}

/// A percentage, with or without its sign.
pub(crate) fn percent(reply: &str) -> Option<f64> {
    let value = reply.trim().trim_end_matches('%').trim_end();
    value.parse().ok().filter(|percent| (0.0..=100.0).contains(percent))
}

/// A limit of memory in bytes; the inner `None` for no limit.
pub(crate) fn memory_limit(reply: &str) -> Option<Option<u64>> {
    let reply = reply.trim().to_ascii_lowercase();
    if ["", "0", "none", "no limit", "not set", "unlimited"].contains(&reply.as_str())
        || reply.contains("no limit")
    {
        return Some(None);
    }
    let end = reply.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(reply.len());
    let (number, unit) = match reply[..end].strip_prefix("0x") {
        Some(digits) => (u64::from_str_radix(digits, 16).ok()?, reply[end..].trim()),
        None => {
            let digits = reply.find(|c: char| !c.is_ascii_digit()).unwrap_or(reply.len());
            (reply[..digits].parse().ok()?, reply[digits..].trim())
        }
    };
    let shift = match unit {
        "g" | "gb" | "gib" => 30,
        "m" | "mb" | "mib" => 20,
        "" | "b" | "bytes" => 0,
        _ => return None,
    };
    number.checked_mul(1 << shift).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_guide() {
        let reply = "PID ID SERVER DEVICE NAMESPACE COMMAND

9741 0 6472 GPU-cb1213a3-d6a4-be7f 4026531836 ./nbody -n 5

9743 0 6472 GPU-cb1213a3-d6a4-be7f 4026531836 ./matrixMul
";
        let rows = ClientRow::parse_table(reply).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].pid, rows[0].id, rows[0].server), (9741, 0, 6472));
        assert_eq!((rows[0].namespace, rows[0].command.as_str()), (4_026_531_836, "./nbody -n 5"));
        assert!(rows[1].is_on("GPU-cb1213a3-d6a4-be7f-0000-000000000000"));
        assert!(!rows[1].is_on("GPU-00000000-d6a4-be7f-0000-000000000000"));
        assert_eq!(ClientRow::parse_table("PID ID SERVER DEVICE NAMESPACE COMMAND").unwrap(), []);
        assert_eq!(ClientRow::parse_table("").unwrap(), []);
        for reply in ["9741 0 6472 GPU-1 1 a", "PID ID SERVER DEVICE NAMESPACE COMMAND\n1 2", "hello"] {
            assert_eq!(ClientRow::parse_table(reply), None, "{reply}");
        }
    }

    #[test]
    fn devices_and_their_clients_in_either_form() {
        let uuid = |text: &str| text.parse::<DeviceName>().unwrap();
        let expected = [
            DeviceClients { device: uuid("GPU-1"), clients: vec![5, 6] },
            DeviceClients { device: uuid("GPU-2"), clients: vec![] },
        ];
        for reply in ["GPU-1: 5 6\nGPU-2:", "GPU-1\n5\n6\nGPU-2\n", "GPU-1 5,6 GPU-2"] {
            assert_eq!(DeviceClients::parse_list(reply).unwrap(), expected, "{reply:?}");
        }
        let ordinal = DeviceClients { device: DeviceName::Ordinal(0), clients: vec![5] };
        assert_eq!(DeviceClients::parse_list("0: 5").unwrap(), [ordinal]);
        assert_eq!(DeviceClients::parse_list("").unwrap(), []);
        for reply in ["5 6", "GPU-1: 0", "GPU-1: x"] {
            assert_eq!(DeviceClients::parse_list(reply), None, "{reply:?}");
        }
    }

    #[test]
    fn states_alone_or_in_a_sentence() {
        for (reply, status) in [
            ("ACTIVE\n", Some(ServerStatus::Active)),
            ("Server 7: FAULT.", Some(ServerStatus::Fault)),
            ("INITIALIZING", Some(ServerStatus::Initializing)),
            ("INACTIVE", None),
            ("", None),
        ] {
            assert_eq!(ServerStatus::parse(reply), status, "{reply}");
        }
    }

    #[test]
    fn numbers_of_all_kinds() {
        assert_eq!(pids("1\n2 3\n"), Some(vec![1, 2, 3]));
        assert_eq!(pids("1 0"), None);
        for (reply, expected) in
            [("50.0", Some(50.0)), (" 100 %\n", Some(100.0)), ("101", None), ("NaN", None)]
        {
            assert_eq!(percent(reply), expected, "{reply}");
        }
        for (reply, expected) in [
            ("2G", Some(Some(2 << 30))),
            ("900M\n", Some(Some(900 << 20))),
            ("512MB", Some(Some(512 << 20))),
            ("0x140000000 bytes", Some(Some(5 << 30))),
            ("1048576", Some(Some(1 << 20))),
            ("", Some(None)),
            ("Device 0 has no limit", Some(None)),
            ("10 parsecs", None),
            ("99999999999999999999G", None),
            ("18446744073709551615G", None),
            ("-1G", None),
        ] {
            assert_eq!(memory_limit(reply), expected, "{reply}");
        }
    }
}
