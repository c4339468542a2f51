//! The meaning of a line's text.
//!
//! The words are those of the MPS guide (section 4.3) and of public logs of drivers from R450 to
//! R610. Words of newer and of older drivers are both recognised. The prefix `Volta MPS: `, which
//! only some drivers write, is ignored.

use serde::Serialize;

use crate::Pid;

/// A client, as servers name it: `{PID: 4267, Context ID: 1}` or `{4267, 1}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ClientName {
    /// The process, in the daemon's pid namespace; 0 if it is not visible there.
    pub pid: Pid,
    /// The context; 0 is the process itself, before it has one.
    pub context: u32,
}

/// The meaning of a line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The control daemon listens.
    DaemonStarted {
        /// The socket's path.
        socket: String,
    },
    /// The version of the daemon's or the server's program, thousands for the major.
    BinaryVersion {
        /// 13000 is 13.0.
        number: u32,
    },
    /// The control daemon ends.
    DaemonEnded,
    /// The daemon starts a server.
    ServerStarting {
        /// The server.
        server: Pid,
        /// The user of its clients.
        user: u32,
    },
    /// A server accepts clients.
    ServerReady {
        /// The server.
        server: Pid,
    },
    /// A server has ended.
    ServerExited {
        /// The server.
        server: Pid,
        /// Its exit status, by the daemon's report.
        status: i64,
    },
    /// A server cannot work, or cannot start at all.
    ServerFailed {
        /// Its message.
        reason: String,
    },
    /// A program requests a server.
    ClientAsked {
        /// The program; `None` if the daemon cannot see its number.
        client: Option<Pid>,
        /// Its user.
        user: u32,
        /// Whether it has to wait for a server.
        queued: bool,
    },
    /// A connection failed.
    ConnectionFailed {
        /// The daemon's message.
        reason: String,
    },
    /// A command reached the daemon.
    Command {
        /// The command.
        line: String,
    },
    /// A client has connected.
    ClientConnected {
        /// The client.
        client: ClientName,
    },
    /// A client is in use, hit by a fault, or being terminated.
    ClientStatus {
        /// The client.
        client: ClientName,
        /// `ACTIVE`; `INACTIVE` otherwise.
        active: bool,
    },
    /// A context of a client has ended.
    ContextEnded {
        /// The client; `None` if the server does not name it.
        client: Option<ClientName>,
        /// Remaining contexts, if the server gives their number.
        contexts_left: Option<u32>,
    },
    /// A client's process has left.
    ClientLeft {
        /// The process; `None` if the server does not name it.
        client: Option<Pid>,
    },
    /// A server made its own context on a device: at its start, and again after a fault.
    DeviceCreated {
        /// The device, by the server's number.
        device: u32,
    },
    /// A server destroyed its own context on a device: at its end, and after a fault.
    DeviceDestroyed {
        /// The device, by the server's number.
        device: u32,
    },
    /// A client has its first context on a device.
    DeviceAssociated {
        /// The device's name.
        name: String,
        /// Its UUID, as the server writes it: `GPU-…`, or four hexadecimal numbers.
        uuid: String,
    },
    /// A server's active thread percentage.
    ThreadPercentage {
        /// Percent.
        percent: f64,
    },
    /// A server's limit of device memory for each client.
    MemoryLimit {
        /// The device, by the server's number.
        device: u32,
        /// Bytes.
        bytes: u64,
    },
    /// A server's priority: 0 normal, 1 below normal.
    Priority {
        /// The number.
        level: u32,
    },
    /// A fatal error of the GPU: the server is in the state `FAULT` from now on.
    FaultBegan,
    /// The client whose work caused a fault, by the server's report. Servers name it only for
    /// memory faults.
    FaultCaused {
        /// The client's process.
        client: Pid,
    },
    /// A device to which a fault is contained.
    FaultDevice {
        /// The device, by the server's number.
        device: u32,
    },
    /// A client that a fault hit.
    FaultClient {
        /// The client's process.
        client: Pid,
    },
}

/// The kind of list on the following lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Devices,
    Clients,
}

/// The kind of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    Event(Event),
    ListOf(List),
    Nothing,
}

/// Reads a text. `list` is the list that the writer's last line began or continued.
pub(super) fn meaning(text: &str, list: Option<List>) -> Meaning {
    if let (Some(list), Ok(number)) = (list, text.parse()) {
        return Meaning::Event(match list {
            List::Devices => Event::FaultDevice { device: number },
            List::Clients => Event::FaultClient { client: number },
        });
    }
    let mut text = text;
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)) {
        text = rest;
    }
    if text.starts_with("The following devices") {
        return Meaning::ListOf(List::Devices);
    }
    if text.starts_with("The following client") {
        return Meaning::ListOf(List::Clients);
    }
    daemon(text).or_else(|| client(text)).or_else(|| server(text)).map_or(Meaning::Nothing, Meaning::Event)
}

/// The prefix of some drivers.
const PREFIXES: [&str; 3] = ["Volta MPS: ", "Volta MPS Server: ", "MPS Server: "];

fn daemon(text: &str) -> Option<Event> {
    if let Some(socket) = text.strip_prefix("Starting control daemon using socket ") {
        return Some(Event::DaemonStarted { socket: socket.to_owned() });
    }
    if let Some(version) = after(text, "inary version: ") {
        return Some(Event::BinaryVersion { number: leading(version)? });
    }
    if let Some(rest) = text.strip_prefix("Starting new server ") {
        let (server, user) = rest.split_once(" for user ")?;
        return Some(Event::ServerStarting { server: server.parse().ok()?, user: leading(user)? });
    }
    if let Some(rest) = text.strip_prefix("NEW SERVER ") {
        let (server, state) = rest.split_once(':')?;
        return (state.trim() == "Ready").then_some(Event::ServerReady { server: server.parse().ok()? });
    }
    if let Some(rest) = text.strip_prefix("NEW CLIENT ") {
        let (client, rest) = rest.split_once(" from user ")?;
        let (user, then) = rest.split_once(':')?;
        let client: Pid = client.parse().ok()?;
        let user = user.trim().parse().ok()?;
        let queued = !then.contains("already exists");
        return Some(Event::ClientAsked { client: Some(client).filter(|&pid| pid != 0), user, queued });
    }
    if let Some(line) = text.strip_prefix("Cmd:") {
        return Some(Event::Command { line: line.trim().to_owned() });
    }
    if let Some((server, status)) =
        text.strip_prefix("Server ").and_then(|rest| rest.split_once(" exited with status "))
    {
        return Some(Event::ServerExited {
            server: server.parse().ok()?,
            status: status.trim().parse().ok()?,
        });
    }
    match text {
        "Exit" => Some(Event::DaemonEnded),
        "Unable to read new connection type information" => {
            Some(Event::ConnectionFailed { reason: text.to_owned() })
        }
        _ => None,
    }
}

fn client(text: &str) -> Option<Event> {
    if let Some(pid) = text.strip_prefix("New client ").and_then(|rest| rest.strip_suffix(" connected")) {
        return Some(Event::ClientConnected { client: ClientName { pid: pid.parse().ok()?, context: 0 } });
    }
    if let Some(rest) = after(text, "tatus of client ") {
        let (client, state) = name(rest)?;
        let active = match state.trim_start().strip_prefix("is ")?.trim_end_matches('.') {
            "ACTIVE" => true,
            "INACTIVE" => false,
            _ => return None,
        };
        return Some(Event::ClientStatus { client, active });
    }
    let rest = text.strip_prefix("Client ")?;
    let contexts_left = after(rest, "active client contexts is ").and_then(leading);
    if let Some((client, did)) = name(rest) {
        let did = did.trim_start();
        return match did {
            "connected" => Some(Event::ClientConnected { client }),
            _ if did.starts_with("exit") || did.starts_with("disconnected") => {
                Some(Event::ContextEnded { client: Some(client), contexts_left })
            }
            _ => caused(did, client.pid),
        };
    }
    if rest.starts_with("disconnected") {
        return Some(Event::ContextEnded { client: None, contexts_left });
    }
    let rest = rest.strip_prefix("process ").unwrap_or(rest);
    match rest.strip_suffix("disconnected").map(str::trim) {
        Some("") => Some(Event::ClientLeft { client: None }),
        Some(pid) => Some(Event::ClientLeft { client: Some(pid.parse().ok()?) }),
        None => {
            let (pid, did) = rest.split_once(' ')?;
            caused(did, pid.parse().ok()?)
        }
    }
}

/// The guide says that the server names the client that caused a fatal memory fault, but not in
/// which words. The line `encountered a fatal GPU error` does not name it: a server of driver 580
/// (H200) wrote it of its oldest client, whose work was sound.
fn caused(did: &str, client: Pid) -> Option<Event> {
    let did = did.to_ascii_lowercase();
    let fatal = did.contains("fatal") || did.contains("fault");
    (fatal && !did.contains("encountered")).then_some(Event::FaultCaused { client })
}

fn server(text: &str) -> Option<Event> {
    if text.contains("andling a fatal GPU error") {
        return Some(Event::FaultBegan);
    }
    if let Some(device) = text.strip_prefix("Creating server context on device ") {
        return Some(Event::DeviceCreated { device: leading(device)? });
    }
    if let Some(device) = text.strip_prefix("Destroy server context on device ") {
        return Some(Event::DeviceDestroyed { device: leading(device)? });
    }
    if let Some(rest) = text.strip_prefix("Device ").and_then(|rest| rest.strip_suffix(") is associated")) {
        let (device, uuid) = rest.rsplit_once(" (uuid ")?;
        return Some(Event::DeviceAssociated { name: device.to_owned(), uuid: uuid.to_owned() });
    }
    if let Some(percent) = after(text, "Active Threads Percentage set to ")
        .or_else(|| after(text, "activeThreadsPercentage set to "))
    {
        let percent: f64 = percent.trim_end_matches('%').trim_end().parse().ok()?;
        return percent.is_finite().then_some(Event::ThreadPercentage { percent });
    }
    if let Some(rest) = text.strip_prefix("Device pinned memory limit for device ") {
        let (device, bytes) = rest.split_once(" set to ")?;
        let bytes = bytes.trim().trim_end_matches("bytes").trim_end();
        let bytes = match bytes.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => bytes.parse().ok()?,
        };
        return Some(Event::MemoryLimit { device: device.parse().ok()?, bytes });
    }
    if let Some(level) = text.strip_prefix("Server Priority set to ") {
        return Some(Event::Priority { level: leading(level)? });
    }
    const FAILURES: [&str; 4] = [
        "server failed to start",
        "MPS is only supported on",
        "failed to create/open SHM segment",
        "Failed to start a server",
    ];
    FAILURES.iter().any(|words| text.contains(words)).then(|| Event::ServerFailed { reason: text.to_owned() })
}

/// The text after the first occurrence of these words.
fn after<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    text.split_once(words).map(|(_, rest)| rest)
}

/// The number at the start of a text.
fn leading(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// A client's name, and the text after it.
fn name(text: &str) -> Option<(ClientName, &str)> {
    let (inside, rest) = text.strip_prefix('{')?.split_once('}')?;
    let (pid, context) = inside.split_once(',')?;
    let number = |text: &str| text.rsplit(':').next()?.trim().parse().ok();
    Some((ClientName { pid: number(pid)?, context: number(context)? }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Option<Event> {
        match meaning(text, None) {
            Meaning::Event(event) => Some(event),
            Meaning::ListOf(_) | Meaning::Nothing => None,
        }
    }

    const fn client(pid: Pid, context: u32) -> ClientName {
        ClientName { pid, context }
    }

    #[test]
    fn the_daemons_words() {
        let asked = |client, queued| Event::ClientAsked { client, user: 500, queued };
        for (text, expected) in [
            ("Starting new server 13929 for user 500", Event::ServerStarting { server: 13929, user: 500 }),
            ("NEW SERVER 13929: Ready", Event::ServerReady { server: 13929 }),
            ("Server 13929 exited with status 0", Event::ServerExited { server: 13929, status: 0 }),
            ("Server 13929 exited with status -1", Event::ServerExited { server: 13929, status: -1 }),
            ("NEW CLIENT 19276 from user 500: Server already exists", asked(Some(19276), false)),
            (
                "NEW CLIENT 0 from user 500: Server is not ready, push client to pending list",
                asked(None, true),
            ),
            ("CUDA MPS Control binary version: 13000", Event::BinaryVersion { number: 13000 }),
            ("CUDA MPS Server for Linux/Unix. Binary version: 13000", Event::BinaryVersion { number: 13000 }),
            ("Cmd:get_server_list", Event::Command { line: "get_server_list".to_owned() }),
            (
                "Starting control daemon using socket /tmp/nvidia-mps/control",
                Event::DaemonStarted { socket: "/tmp/nvidia-mps/control".to_owned() },
            ),
            (
                "Unable to read new connection type information",
                Event::ConnectionFailed {
                    reason: "Unable to read new connection type information".to_owned(),
                },
            ),
            ("Exit", Event::DaemonEnded),
        ] {
            assert_eq!(event(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn the_servers_words_old_and_new() {
        let failed = |reason: &str| Event::ServerFailed { reason: reason.to_owned() };
        let status = |pid, context, active| Event::ClientStatus { client: client(pid, context), active };
        let ended = |client, contexts_left| Event::ContextEnded { client, contexts_left };
        for (text, expected) in [
            ("New client 14781 connected", Event::ClientConnected { client: client(14781, 0) }),
            (
                "Client {PID: 4267, Context ID: 1} connected",
                Event::ClientConnected { client: client(4267, 1) },
            ),
            ("Client 14777 disconnected", Event::ClientLeft { client: Some(14777) }),
            ("Client process 14777 disconnected", Event::ClientLeft { client: Some(14777) }),
            ("Volta MPS: Client process disconnected", Event::ClientLeft { client: None }),
            ("Volta MPS: Client disconnected. Number of active client contexts is 2", ended(None, Some(2))),
            ("Client {11643, 2} exit", ended(Some(client(11643, 2)), None)),
            (
                "Client {PID: 7, Context ID: 1} exiting. Number of active client contexts is 0.",
                ended(Some(client(7, 1)), Some(0)),
            ),
            ("Volta MPS: status of client {11661, 1} is ACTIVE", status(11661, 1, true)),
            ("Status of client {PID: 11661, Context ID: 1} is INACTIVE", status(11661, 1, false)),
            ("Volta MPS: Server is handling a fatal GPU error.", Event::FaultBegan),
            ("Client {11641, 1} caused a fatal memory fault", Event::FaultCaused { client: 11641 }),
            ("Volta MPS: Destroy server context on device 1", Event::DeviceDestroyed { device: 1 }),
            ("Creating server context on device 0 (Tesla T4)", Event::DeviceCreated { device: 0 }),
            ("activeThreadsPercentage set to 33.000000", Event::ThreadPercentage { percent: 33.0 }),
            ("Active Threads Percentage set to 12.5", Event::ThreadPercentage { percent: 12.5 }),
            (
                "Device pinned memory limit for device 0 set to 0x140000000 bytes",
                Event::MemoryLimit { device: 0, bytes: 5 << 30 },
            ),
            ("Server Priority set to 1", Event::Priority { level: 1 }),
            (
                "Device NVIDIA A16 (uuid GPU-077f7bb7-c8e8-46db-77e3-e2c1e5665c78) is associated",
                Event::DeviceAssociated {
                    name: "NVIDIA A16".to_owned(),
                    uuid: "GPU-077f7bb7-c8e8-46db-77e3-e2c1e5665c78".to_owned(),
                },
            ),
            ("MPS server failed to start", failed("MPS server failed to start")),
            (
                "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU.",
                failed("MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."),
            ),
            (
                "MPS Server failed to create/open SHM segment.",
                failed("MPS Server failed to create/open SHM segment."),
            ),
        ] {
            assert_eq!(event(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_means_nothing_is_no_event() {
        for text in [
            "",
            "0",
            "Accepting connection...",
            "User did not send valid credentials",
            "NEW UI",
            "UI closed",
            "Volta MPS: Creating worker thread",
            "Received new client request for {PID: 1073741824, Context ID: 1}",
            "Server failed to recevie command with status 806, assuming client {PID: 7, Context ID: 0} exit",
            "NEW CLIENT x from user 500: Server already exists",
            "Client {PID: 18567, Context: 1} encountered a fatal GPU error.",
            "Client {PID: 18567, Context ID: 1} on device 0 to be torn down",
            "All clients belonging to error trigging process 18567 will be torn down",
            "Client {PID: 18567, Context ID: 1} on the error-trigging process 18567 to be torn down",
            "Client {1} exit",
            "Client {1, 2",
            "Status of client {1, 2} is UNSURE",
            "Device pinned memory limit for device 0 set to 0x bytes",
            "Active Threads Percentage set to nan",
        ] {
            assert_eq!(event(text), None, "{text}");
        }
    }
}
