//! The control program's commands as text. The forms are those of control binary 13000.

use super::limits::{MemoryLimit, percentage};

/// One command.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Servers' process ids.
    ServerList,
    /// A server's state.
    ServerStatus(u32),
    /// Starts a server for a user.
    StartServer(u32),
    /// Shuts down a server, at once if forced, else when its clients are gone.
    ShutdownServer(u32, bool),
    /// Clients' process ids.
    ClientList(u32),
    /// Devices and the clients of each; of one server or of all.
    DeviceClientList(Option<u32>),
    /// Clients in columns; of one server or of all.
    Ps(Option<u32>),
    /// The percentage of the next server.
    DefaultPercentage,
    /// Sets the percentage of the next server.
    SetDefaultPercentage(f32),
    /// The percentage of a server.
    Percentage(u32),
    /// Sets the percentage of a server's next clients.
    SetPercentage(u32, f32),
    /// The memory limit of a device for the next server.
    DefaultMemoryLimit(String),
    /// Sets the memory limit of a device for the next server.
    SetDefaultMemoryLimit(String, MemoryLimit),
    /// The memory limit of a device for a server.
    MemoryLimit(u32, String),
    /// Sets the memory limit of a device for a server's next clients.
    SetMemoryLimit(u32, String, MemoryLimit),
    /// The priority of the next clients.
    DefaultPriority,
    /// Sets the priority of the next clients.
    SetDefaultPriority(u32),
    /// The static partitions.
    Partitions,
    /// Makes a static partition of a device, of so many chunks.
    AddPartition(String, u32),
    /// Removes a static partition of a device.
    RemovePartition(String, String),
    /// Ends a client's GPU work.
    TerminateClient(u32, u32),
    /// Ends the daemon when the clients are gone, or after so many seconds.
    Quit(Option<u64>),
}

impl Command {
    /// Why it is refused to a user who is neither root nor the owner of the daemon: commands that
    /// change something, but for a server of the user's own (H200, 580.159.04, 2026-11-30;
    /// `research/bench/results/mps.md`).
    pub fn refusal(&self, uid: u32) -> Option<String> {
        match self {
            Self::Quit(_) => Some("Not enough privilege to execute quit command".to_owned()),
            Self::StartServer(user) if *user == uid => None,
            Self::StartServer(_)
            | Self::ShutdownServer(..)
            | Self::TerminateClient(..)
            | Self::SetDefaultPercentage(_)
            | Self::SetPercentage(..)
            | Self::SetDefaultMemoryLimit(..)
            | Self::SetMemoryLimit(..)
            | Self::SetDefaultPriority(_)
            | Self::AddPartition(..)
            | Self::RemovePartition(..) => Some(format!(
                "Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the \
                 user who started it or by the root user."
            )),
            Self::ServerList
            | Self::ServerStatus(_)
            | Self::ClientList(_)
            | Self::DeviceClientList(_)
            | Self::Ps(_)
            | Self::DefaultPercentage
            | Self::Percentage(_)
            | Self::DefaultMemoryLimit(_)
            | Self::MemoryLimit(..)
            | Self::DefaultPriority
            | Self::Partitions => None,
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The text to print.
    pub fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((&name, arguments)) = words.split_first() else { return Err(String::new()) };
        Ok(match (name, arguments) {
            ("get_server_list", []) => Self::ServerList,
            ("get_server_status", [server]) => Self::ServerStatus(pid(server)?),
            ("start_server", ["-uid", user]) => Self::StartServer(number(user, "user id")?),
            ("shutdown_server", [server]) => Self::ShutdownServer(pid(server)?, false),
            ("shutdown_server", [server, "-f"] | ["-f", server]) => Self::ShutdownServer(pid(server)?, true),
            ("get_client_list", [server]) => Self::ClientList(pid(server)?),
            ("get_device_client_list", []) => Self::DeviceClientList(None),
            ("get_device_client_list", [server]) => Self::DeviceClientList(Some(pid(server)?)),
            ("ps", []) => Self::Ps(None),
            ("ps", ["-p", server]) => Self::Ps(Some(pid(server)?)),
            ("get_default_active_thread_percentage", []) => Self::DefaultPercentage,
            ("set_default_active_thread_percentage", [value]) => {
                Self::SetDefaultPercentage(percentage(value)?)
            }
            ("get_active_thread_percentage", [server]) => Self::Percentage(pid(server)?),
            ("set_active_thread_percentage", [server, value]) => {
                Self::SetPercentage(pid(server)?, percentage(value)?)
            }
            ("get_default_device_pinned_mem_limit", [device]) => {
                Self::DefaultMemoryLimit((*device).to_owned())
            }
            ("set_default_device_pinned_mem_limit", [device, value]) => {
                Self::SetDefaultMemoryLimit((*device).to_owned(), MemoryLimit::parse(value)?)
            }
            ("get_device_pinned_mem_limit", [server, device]) => {
                Self::MemoryLimit(pid(server)?, (*device).to_owned())
            }
            ("set_device_pinned_mem_limit", [server, device, value]) => {
                Self::SetMemoryLimit(pid(server)?, (*device).to_owned(), MemoryLimit::parse(value)?)
            }
            ("get_default_client_priority", []) => Self::DefaultPriority,
            ("set_default_client_priority", [level @ ("0" | "1")]) => {
                Self::SetDefaultPriority(number(level, "priority")?)
            }
            ("lspart", []) => Self::Partitions,
            ("sm_partition", ["add", device, chunks]) => {
                Self::AddPartition((*device).to_owned(), number(chunks, "number of chunks")?)
            }
            ("sm_partition", ["rm", device, id]) => {
                Self::RemovePartition((*device).to_owned(), (*id).to_owned())
            }
            ("terminate_client", [server, client]) => Self::TerminateClient(pid(server)?, pid(client)?),
            ("quit", []) => Self::Quit(None),
            ("quit", ["-t", seconds]) => Self::Quit(Some(number(seconds, "number of seconds")?)),
            _ => {
                return Err(USAGES.iter().find(|(known, _)| *known == name).map_or_else(
                    || format!("Unknown command \"{name}\""),
                    |(known, arguments)| format!("Usage: {known}{arguments}"),
                ));
            }
        })
    }
}

/// Commands and their arguments.
const USAGES: [(&str, &str); 20] = [
    ("get_server_list", ""),
    ("get_server_status", " <server PID>"),
    ("start_server", " -uid <user id>"),
    ("shutdown_server", " <server PID> [-f]"),
    ("get_client_list", " <server PID>"),
    ("get_device_client_list", " [<server PID>]"),
    ("ps", " [-p <server PID>]"),
    ("get_default_active_thread_percentage", ""),
    ("set_default_active_thread_percentage", " <percentage>"),
    ("get_active_thread_percentage", " <server PID>"),
    ("set_active_thread_percentage", " <server PID> <percentage>"),
    ("get_default_device_pinned_mem_limit", " <device>"),
    ("set_default_device_pinned_mem_limit", " <device> <value>"),
    ("get_device_pinned_mem_limit", " <server PID> <device>"),
    ("set_device_pinned_mem_limit", " <server PID> <device> <value>"),
    ("get_default_client_priority", ""),
    ("set_default_client_priority", " <0 [NORMAL] or 1 [BELOW NORMAL]>"),
    ("lspart", ""),
    ("sm_partition", " add <device> <chunks> | rm <device> <partition>"),
    ("terminate_client", " <server PID> <client PID>"),
];

fn pid(word: &str) -> Result<u32, String> {
    number(word, "PID")
}

fn number<T: std::str::FromStr>(word: &str, what: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("Invalid {what}: {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_read() {
        let limit = MemoryLimit::parse("2G").unwrap();
        for (line, command) in [
            ("get_server_list", Command::ServerList),
            ("  get_server_status  12 ", Command::ServerStatus(12)),
            ("start_server -uid 0", Command::StartServer(0)),
            ("shutdown_server 12", Command::ShutdownServer(12, false)),
            ("shutdown_server 12 -f", Command::ShutdownServer(12, true)),
            ("get_client_list 12", Command::ClientList(12)),
            ("get_device_client_list", Command::DeviceClientList(None)),
            ("get_device_client_list 12", Command::DeviceClientList(Some(12))),
            ("ps", Command::Ps(None)),
            ("ps -p 12", Command::Ps(Some(12))),
            ("get_default_active_thread_percentage", Command::DefaultPercentage),
            ("set_default_active_thread_percentage 12.5", Command::SetDefaultPercentage(12.5)),
            ("get_active_thread_percentage 12", Command::Percentage(12)),
            ("set_active_thread_percentage 12 50", Command::SetPercentage(12, 50.0)),
            ("get_default_device_pinned_mem_limit 0", Command::DefaultMemoryLimit("0".to_owned())),
            (
                "set_default_device_pinned_mem_limit 0 2G",
                Command::SetDefaultMemoryLimit("0".to_owned(), limit),
            ),
            ("get_device_pinned_mem_limit 12 GPU-1", Command::MemoryLimit(12, "GPU-1".to_owned())),
            ("set_device_pinned_mem_limit 12 0 2G", Command::SetMemoryLimit(12, "0".to_owned(), limit)),
            ("get_default_client_priority", Command::DefaultPriority),
            ("set_default_client_priority 1", Command::SetDefaultPriority(1)),
            ("lspart", Command::Partitions),
            ("sm_partition add GPU-1 2", Command::AddPartition("GPU-1".to_owned(), 2)),
            ("sm_partition rm GPU-1 a/b", Command::RemovePartition("GPU-1".to_owned(), "a/b".to_owned())),
            ("terminate_client 12 13", Command::TerminateClient(12, 13)),
            ("quit", Command::Quit(None)),
            ("quit -t 5", Command::Quit(Some(5))),
        ] {
            assert_eq!(Command::parse(line).as_ref(), Ok(&command), "{line}");
        }
    }

    #[test]
    fn refusals_name_the_mistake() {
        for (line, words) in [
            ("", ""),
            ("lspart all", "Usage: lspart"),
            ("sm_partition add GPU-1", "Usage: sm_partition add <device> <chunks>"),
            ("sm_partition add GPU-1 some", "Invalid number of chunks: some"),
            ("help me", "Unknown command \"help\""),
            ("get_client_list", "Usage: get_client_list <server PID>"),
            ("terminate_client 1", "Usage: terminate_client <server PID> <client PID>"),
            ("set_default_client_priority 2", "Usage: set_default_client_priority"),
            ("get_client_list me", "Invalid PID: me"),
            ("set_default_active_thread_percentage 0", "Invalid active thread percentage: 0"),
            ("set_default_active_thread_percentage 101", "Invalid active thread percentage: 101"),
            ("set_default_device_pinned_mem_limit 0 much", "Invalid memory limit: much"),
            ("quit -t soon", "Invalid number of seconds: soon"),
        ] {
            let error = Command::parse(line).unwrap_err();
            assert!(error.starts_with(words) && error.is_empty() == words.is_empty(), "{line}: {error}");
        }
    }
}
