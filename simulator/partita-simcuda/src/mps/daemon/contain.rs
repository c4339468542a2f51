//! Faults: the affected clients, the log entries, and the recovery.
//!
//! A board fails all clients of the server by itself and notifies the daemon, which has subscribed.
//! The daemon finds the boards that clients with several devices tie to that one, fails those
//! clients too, and writes what a server of driver 580 writes (H200, 2026-11-21), which does not
//! say whose work was at fault.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use partita_abi::CuResult;

use super::{Daemon, client_name};
use crate::mps::is_before_volta;
use crate::mps::peer::{Member, PeerId, Server};
use crate::mps::wait::poll;
use crate::shared::ask::{await_fault, observe};
use crate::shared::place::Place;
use crate::shared::protocol::{BoardStatus, ProcessStatus, Reply, Request};
use crate::shared::socket::{self, Received};

/// How long a board may take to notice the death of a process.
const PATIENCE: Duration = Duration::from_millis(500);

/// A fault that is not over.
#[derive(Debug)]
pub(in crate::mps) struct Fault {
    /// The devices, as this service counts.
    devices: BTreeSet<u32>,
    /// Connections of the clients that have not left yet.
    staying: BTreeSet<PeerId>,
}

/// Boards that will report a fault.
#[derive(Debug, Default)]
pub(in crate::mps) struct FaultWatches(BTreeMap<PathBuf, (Place, OwnedFd)>);

impl FaultWatches {
    /// The descriptors to poll.
    pub fn sources(&self) -> impl Iterator<Item = (&PathBuf, &OwnedFd)> {
        self.0.iter().map(|(dir, (_, socket))| (dir, socket))
    }
}

impl Daemon {
    /// Subscribes to faults of this server's clients on a board, once.
    pub(in crate::mps) fn watch(&mut self, place: &Place, server: u32) {
        if !self.watches.0.contains_key(&place.socket())
            && let Some(socket) = await_fault(place, server)
        {
            self.watches.0.insert(place.socket(), (place.clone(), socket));
        }
    }

    /// Handles a message of a board, or its end.
    pub(in crate::mps) fn on_board_message(&mut self, dir: &PathBuf) {
        let Some((place, socket)) = self.watches.0.remove(dir) else { return };
        let told = match socket::receive(socket.as_fd()) {
            Ok(Received::Packet(packet, _)) => postcard::from_bytes::<Reply>(&packet).ok(),
            Ok(Received::Nothing) => {
                self.watches.0.insert(dir.clone(), (place, socket));
                return;
            }
            _ => None,
        };
        let Some(server) = self.server.as_ref().map(Server::pid) else { return };
        match told {
            Some(Reply::Status(status)) => self.contain(server, &place, &status),
            // That board has ended. A client may have a context on the next one already.
            _ if self
                .members()
                .any(|(_, _, member)| member.place.socket() == *dir && !member.contexts.is_empty()) =>
            {
                self.watch(&place, server);
            }
            _ => {}
        }
    }

    /// Handles the fault that the death of a client has caused, if it has: a server reports the
    /// fault while the dead process is still its client (H100, 2026-11-22).
    pub(in crate::mps) fn hear_fault_of(&mut self, pid: u32, place: &Place, had_contexts: bool) {
        let begin = Instant::now();
        // The board notices the end by itself, with a small delay.
        while had_contexts
            && board(place).is_some_and(|board| board.processes.iter().any(|process| process.pid == pid))
            && begin.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.hear_fault(place);
    }

    /// Handles the fault that a board has reported, if it has.
    pub(super) fn hear_fault(&mut self, place: &Place) {
        let dir = place.socket();
        let has_message = self.watches.0.get(&dir).is_some_and(|(_, socket)| {
            poll(std::iter::once(socket.as_fd()), Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
        });
        if has_message {
            self.on_board_message(&dir);
        }
    }

    /// Handles a fault on this board: fails the clients tied to it, and logs the affected ones.
    fn contain(&mut self, server: u32, origin: &Place, status: &BoardStatus) {
        let faults = || status.processes.iter().filter(|process| is_fault(process, server));
        let Some(code) = faults().map(|process| process.fault).next() else { return };
        if is_before_volta(&origin.spec) {
            // All clients' work was in the one context of the server, which ends with it
            // (NVIDIA, «Multi-Process Service», 2.3.3.2). The next program gets another server.
            self.log.server(server, "Server is handling a fatal GPU error.");
            self.drop_clients();
            self.end_server();
            self.admit();
            return;
        }
        // A program connects to the server for each device that it sees; it runs where it has
        // contexts. The board may know a context that the daemon does not know yet, and does not
        // know a process any more that has just died: it is not in the server's list either
        // (H100, 2026-11-22).
        let hurt: BTreeSet<u32> = faults().map(|process| process.pid).collect();
        let runs_there = |pid: u32, member: &Member| match member.place.socket() == origin.socket() {
            true => hurt.contains(&pid),
            false => !member.contexts.is_empty(),
        };

        let mut boards = BTreeSet::from([origin.socket()]);
        let hit: Vec<(PeerId, u32)> = loop {
            let pids: BTreeSet<u32> = self
                .members()
                .filter(|(_, pid, member)| {
                    boards.contains(&member.place.socket()) && runs_there(*pid, member) && !member.terminated
                })
                .map(|(_, pid, _)| pid)
                .collect();
            let hit: Vec<_> = self.members().filter(|(_, pid, _)| pids.contains(pid)).collect();
            let before = boards.len();
            let tied = hit.iter().filter(|(_, pid, member)| runs_there(*pid, member));
            boards.extend(tied.map(|(_, _, member)| member.place.socket()));
            if boards.len() == before {
                break hit.into_iter().map(|(id, pid, _)| (id, pid)).collect();
            }
        };
        let mut devices = BTreeSet::new();
        let mut others = BTreeMap::new();
        for (_, _, member) in self.members().filter(|(_, _, member)| boards.contains(&member.place.socket()))
        {
            devices.insert(self.device_number(member));
            others.insert(member.place.socket(), member.place.clone());
        }
        others.remove(&origin.socket());
        for place in others.values() {
            let _ = observe(place, &Request::Contain { server, code });
        }

        let pids: BTreeSet<u32> = hit.iter().map(|(_, pid)| *pid).collect();
        // The log names the oldest one, whose work need not be at fault.
        if let Some((_, pid)) = hit.first() {
            let line = format_args!("Client {{PID: {pid}, Context: 1}} encountered a fatal GPU error.");
            self.log.server(server, line);
        }
        self.log.server(server, "Server is handling a fatal GPU error.");
        let contexts: Vec<(u32, String)> = self
            .members()
            .filter(|(id, _, _)| hit.iter().any(|(one, _)| one == id))
            .flat_map(|(_, pid, member)| {
                let device = self.device_number(member);
                member.contexts.iter().map(move |context| (device, client_name(pid, *context)))
            })
            .collect();
        for (device, name) in contexts {
            self.log.server(server, format_args!("Client {name} on device {device} to be torn down"));
        }
        for pid in &pids {
            let line =
                format_args!("All clients belonging to error trigging process {pid} will be torn down");
            self.log.server(server, line);
        }
        self.log.server(server, "The following devices will be reset:");
        devices.iter().for_each(|device| self.log.server(server, device));
        self.log.server(server, "The following client process have a sticky error set:");
        pids.iter().for_each(|pid| self.log.server(server, pid));
        let staying: BTreeSet<PeerId> = hit.into_iter().map(|(id, _)| id).collect();
        let is_over = staying.is_empty();
        self.fault = Some(Fault { devices, staying });
        if is_over {
            // All affected clients had left before the board reported the fault.
            self.restart_server(server, origin);
        }
    }

    /// A client's device as the service counts: among those that it is for.
    pub(in crate::mps) fn device_number(&self, member: &Member) -> u32 {
        number_of(self.visible.as_deref(), &member.place, &member.uuid)
    }

    /// Handles the departure of a client. After the last one that a fault affected, the server
    /// restarts.
    pub(in crate::mps) fn leave_fault(&mut self, server: u32, id: PeerId, place: &Place) {
        let Some(fault) = &mut self.fault else { return };
        if fault.staying.remove(&id) && fault.staying.is_empty() {
            self.restart_server(server, place);
        }
    }

    /// The server's contexts are made again.
    fn restart_server(&mut self, server: u32, place: &Place) {
        let begin = Instant::now();
        // The board notices the end by itself, with a small delay.
        while board(place)
            .is_some_and(|board| board.processes.iter().any(|process| is_fault(process, server)))
            && begin.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let Some(fault) = self.fault.take() else { return };
        for device in &fault.devices {
            self.log.server(server, format_args!("Destroy server context on device {device}"));
        }
        for device in &fault.devices {
            self.log.server(server, format_args!("Creating server context on device {device}"));
        }
    }
}

/// The number of a device with this identifier, as a service counts that shows the devices
/// `visible`.
pub(in crate::mps) fn number_of(visible: Option<&str>, place: &Place, uuid: &str) -> u32 {
    let mut visible = visible.into_iter().flat_map(|list| list.split(','));
    let at = visible.position(|one| !one.is_empty() && uuid.starts_with(one.trim()));
    at.map_or(place.index, |at| at as u32)
}

/// The state of a client's board, if it runs.
pub(in crate::mps) fn board(place: &Place) -> Option<BoardStatus> {
    match observe(place, &Request::Status)? {
        Reply::Status(status) => Some(status),
        _ => None,
    }
}

/// Whether a fault has hurt clients of a server that are still there.
pub(in crate::mps) fn has_fault(board: &BoardStatus, server: u32) -> bool {
    board.processes.iter().any(|process| is_fault(process, server))
}

/// Whether a fault has hit a client of a server. One that was terminated, or is leaving, does not
/// count.
pub(in crate::mps) fn is_fault(process: &ProcessStatus, server: u32) -> bool {
    let no_fault = [0, CuResult::MPS_CLIENT_TERMINATED.0, CuResult::DEINITIALIZED.0];
    process.mps.is_some_and(|mps| mps.server == server) && !no_fault.contains(&process.fault)
}
