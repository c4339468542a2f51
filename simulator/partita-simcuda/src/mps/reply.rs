//! The effect of each command, and its reply.
//!
//! Lists, percentages, unknown commands, and messages about missing servers and clients have the
//! wording of driver 580.159.04. The other refusals, and the forms of `get_device_client_list` and
//! of memory limits, are not published and are this module's own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::command::Command;
use super::daemon::{Daemon, board, has_fault};
use super::limits::MemoryLimit;
use super::partitions::{InUse, Partitions};
use super::peer::{Member, Peer, Phase, Role, Server};
use crate::shared::ask::observe;
use crate::shared::protocol::{Reply, Request};

type Text = Result<String, String>;

impl Daemon {
    /// Executes a command line of a user's. Returns the text to print.
    pub(super) fn execute(&mut self, uid: u32, line: &str) -> String {
        if let Some(name @ ("lspart" | "sm_partition")) = line.split_whitespace().next()
            && !super::has_partitions()
        {
            return format!("Unknown command \"{name}\"");
        }
        // SAFETY: takes nothing and cannot fail.
        let is_owner = uid == 0 || uid == unsafe { libc::geteuid() };
        let done = Command::parse(line).and_then(|command| match command.refusal(uid) {
            Some(refusal) if !is_owner => Err(refusal),
            _ => self.obey(command),
        });
        done.unwrap_or_else(|refusal| refusal)
    }

    fn obey(&mut self, command: Command) -> Text {
        match command {
            Command::ServerList => {
                Ok(self.server.as_ref().map(|server| server.pid().to_string()).unwrap_or_default())
            }
            Command::ServerStatus(server) => self.server_status(server),
            Command::StartServer(uid) => self.start_server_for(uid),
            Command::ShutdownServer(server, force) => self.shutdown_server(server, force),
            Command::ClientList(server) => {
                self.the_server(server)?;
                // A process is in it once, for however many devices it is connected.
                let mut pids: Vec<u32> = Vec::new();
                for (pid, _) in self.listed() {
                    if !pids.contains(&pid) {
                        pids.push(pid);
                    }
                }
                Ok(lines(pids.iter().map(u32::to_string)))
            }
            Command::DeviceClientList(server) => self.device_client_list(server),
            Command::Ps(server) => self.ps(server),
            Command::DefaultPercentage => Ok(percent(self.limits.percentage)),
            Command::SetDefaultPercentage(value) => {
                self.limits.percentage = value;
                Ok(percent(value))
            }
            Command::Percentage(server) => Ok(percent(self.the_server(server)?.limits.percentage)),
            Command::SetPercentage(server, value) => {
                self.the_server(server)?.limits.percentage = value;
                Ok(percent(value))
            }
            Command::DefaultMemoryLimit(device) => memory(self.limits.memory(&device), &device),
            Command::SetDefaultMemoryLimit(device, limit) => {
                self.limits.set_memory(&device, limit);
                Ok(String::new())
            }
            Command::MemoryLimit(server, device) => {
                memory(self.the_server(server)?.limits.memory(&device), &device)
            }
            Command::SetMemoryLimit(server, device, limit) => {
                self.the_server(server)?.limits.set_memory(&device, limit);
                Ok(String::new())
            }
            Command::DefaultPriority => Ok(self.limits.priority.to_string()),
            Command::SetDefaultPriority(level) => {
                self.limits.priority = level;
                Ok(String::new())
            }
            Command::Partitions => {
                let in_use = self.partitions_in_use();
                Ok(self.the_partitions()?.list(&in_use))
            }
            Command::AddPartition(device, chunks) => {
                let in_use = self.partitions_in_use();
                self.the_partitions()?.add(&device, chunks, &in_use)
            }
            Command::RemovePartition(device, id) => {
                let in_use = self.partitions_in_use();
                self.the_partitions()?.remove(&device, &id, &in_use)
            }
            Command::TerminateClient(server, client) => self.terminate_client(server, client),
            Command::Quit(seconds) => {
                self.quit(seconds.map(Duration::from_secs));
                Ok(String::new())
            }
        }
    }

    fn the_partitions(&mut self) -> Result<&mut Partitions, String> {
        self.partitions.as_mut().ok_or_else(|| {
            "Failed: static SM partitioning is not enabled, start the daemon with -S".to_owned()
        })
    }

    /// The partitions of the clients.
    fn partitions_in_use(&self) -> InUse {
        let of = |member: &Member| Some((member.uuid.clone(), member.partition.clone()?));
        self.members().filter_map(|(_, _, member)| of(member)).collect()
    }

    fn the_server(&mut self, pid: u32) -> Result<&mut Server, String> {
        self.server
            .as_mut()
            .filter(|server| server.pid() == pid)
            .ok_or_else(|| format!("Server {pid} not found"))
    }

    /// The clients that lists show, without terminated ones.
    fn listed(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.members().filter(|(_, _, member)| !member.terminated).map(|(_, pid, member)| (pid, member))
    }

    fn server_status(&mut self, server: u32) -> Text {
        if self.the_server(server)?.phase == Phase::Starting {
            return Ok("INITIALIZING".to_owned());
        }
        if self.fault.is_some() {
            return Ok("FAULT".to_owned());
        }
        // Each board once, however many clients it has.
        let boards: BTreeMap<&str, &Member> =
            self.members().map(|(_, _, member)| (member.uuid.as_str(), member)).collect();
        let fault = boards
            .values()
            .filter_map(|member| board(&member.place))
            .any(|status| has_fault(&status, server));
        Ok(if fault { "FAULT" } else { "ACTIVE" }.to_owned())
    }

    fn start_server_for(&mut self, uid: u32) -> Text {
        match &self.server {
            Some(server) => Err(format!("Failed to start a server: server {} is there", server.pid())),
            None => self
                .start_server(uid)
                .map(|()| String::new())
                .map_err(|error| format!("Failed to start a server for user {uid}: {error}")),
        }
    }

    fn shutdown_server(&mut self, server: u32, force: bool) -> Text {
        self.the_server(server)?.phase = Phase::Ending;
        if force {
            self.drop_clients();
        }
        self.end_unused_server();
        Ok(String::new())
    }

    fn device_client_list(&mut self, server: Option<u32>) -> Text {
        if let Some(server) = server {
            self.the_server(server)?;
        }
        let mut devices: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (pid, member) in self.listed() {
            devices.entry(&member.uuid).or_default().push(pid);
        }
        Ok(lines(devices.into_iter().map(|(uuid, pids)| {
            pids.iter().fold(format!("{uuid}:"), |mut line, pid| {
                // Writing to a string does not fail.
                let _ = write!(line, " {pid}");
                line
            })
        })))
    }

    fn ps(&mut self, server: Option<u32>) -> Text {
        let pid = match server {
            Some(server) => self.the_server(server)?.pid(),
            None => self.server.as_ref().map_or(0, Server::pid),
        };
        let head = row("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
        let rows = self.listed().map(|(client, member)| {
            // The first three groups of the identifier, as the real list shows it.
            let device = member.uuid.splitn(4, '-').take(3).collect::<Vec<_>>().join("-");
            let (client_text, server) = (client.to_string(), pid.to_string());
            row(
                &client_text,
                &member.number.to_string(),
                &server,
                &device,
                &namespace(client),
                &member.command,
            )
        });
        Ok(lines(std::iter::once(head).chain(rows)))
    }

    /// Whether the command is one to a client that cannot react: then there is no answer, as on an
    /// H200 (CUDA 13.0).
    pub(super) fn waits_for_a_stopped_client(&self, line: &str) -> bool {
        let Ok(Command::TerminateClient(_, client)) = Command::parse(line) else { return false };
        let stat = std::fs::read_to_string(format!("/proc/{client}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    }

    fn terminate_client(&mut self, server: u32, client: u32) -> Text {
        // The last line is the outcome, 0 or 1; the real program repeats the first line.
        self.the_server(server).map_err(|words| format!("{words}\n{words}!\n1"))?;
        let missing = || format!("Client {client} not found\n1");
        let member = self.peers.values_mut().find_map(|Peer { pid, role, .. }| match role {
            Role::Client(member) if *pid == client && !member.terminated => Some(member),
            _ => None,
        });
        let member = member.ok_or_else(missing)?;
        match observe(&member.place, &Request::Terminate { server, pid: client }) {
            Some(Reply::Done) => {
                member.terminated = true;
                Ok("0".to_owned())
            }
            // It is attached, but is not on its board yet or any more: it has no work to end.
            _ => Err(missing()),
        }
    }
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

fn percent(value: f32) -> String {
    format!("{value:.1}")
}

fn memory(limit: Option<MemoryLimit>, device: &str) -> Text {
    limit.map(|limit| limit.to_string()).ok_or_else(|| format!("Device {device} has no limit"))
}

fn row(pid: &str, id: &str, server: &str, device: &str, namespace: &str, command: &str) -> String {
    format!("{pid:<9} {id:<5} {server:<9} {device:<18} {namespace:<12} {command}")
}

/// The number of a process's pid namespace.
fn namespace(pid: u32) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/pid"))
        .ok()
        .and_then(|link| Some(link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.to_owned()))
        .unwrap_or_else(|| "0".to_owned())
}
