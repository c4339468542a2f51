//! Clients: requests, admission and departure.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use partita_abi::CuResult;

use super::daemon::{Daemon, board, client_name, has_fault, number_of};
use super::peer::{Candidate, Member, Peer, PeerId, Phase, Role, Server};
use super::script::Failure;
use super::wire::{Answer, Attach};
use super::{clients_max, is_before_volta};
use crate::shared::place::Place;
use crate::shared::protocol::MpsIdentity;
use crate::shared::sys::pidfd;
use crate::shared::visible::{device_uuid, is_visible, uuid_text};

impl Daemon {
    /// The clients, in the order of their admission.
    pub(super) fn members(&self) -> impl Iterator<Item = (PeerId, u32, &Member)> {
        self.peers.iter().filter_map(|(id, peer)| match &peer.role {
            Role::Client(member) => Some((*id, peer.pid, &**member)),
            _ => None,
        })
    }

    /// Handles a program's request to become a client.
    pub(super) fn attach(&mut self, id: PeerId, attach: Attach) {
        match self.script.failure("attach") {
            Some(Failure::Silence) => return,
            Some(Failure::Death) => std::process::abort(),
            Some(Failure::Refuse(code)) => return self.refuse(id, CuResult(code)),
            Some(Failure::Exhausted) => {
                if let Some(server) = self.server.as_ref().map(Server::pid) {
                    self.log.server(server, "MPS Server failed to create/open SHM segment.");
                }
                return self.refuse(id, CuResult::OUT_OF_MEMORY);
            }
            _ => {}
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let dir = OsString::from_vec(attach.dir);
        let Ok(place) = Place::new(&attach.device, attach.index, Some(dir)) else {
            self.refuse(id, CuResult::NO_DEVICE);
            return;
        };
        let known = self.server.as_ref().is_some_and(|server| server.phase == Phase::Ready);
        let then =
            if known { "Server already exists" } else { "Server is not ready, push client to pending list" };
        self.log.control(format_args!("NEW CLIENT {} from user {}: {then}", peer.pid, peer.uid));
        let Attach { own, partition, command, .. } = attach;
        peer.role = Role::Waiting(Box::new(Candidate { place, own, partition, command }));
        self.waiting.push_back(id);
        self.admit();
    }

    /// Admits waiting programs as far as there is a server for them, in the order of their
    /// requests.
    pub(super) fn admit(&mut self) {
        while let Some(id) = self.waiting.front().copied() {
            let root_for_all = |uid| if self.for_all { 0 } else { uid };
            let Some(uid) = self.peers.get(&id).map(|peer| root_for_all(peer.uid)) else {
                self.waiting.pop_front();
                continue;
            };
            if self.ending.is_some() {
                self.waiting.pop_front();
                self.refuse(id, CuResult::MPS_SERVER_NOT_READY);
                continue;
            }
            match &mut self.server {
                None => {
                    if self.start_server(uid).is_err() {
                        self.waiting.pop_front();
                        self.refuse(id, CuResult::MPS_CONNECTION_FAILED);
                    }
                }
                Some(server) if server.phase == Phase::Ready && server.uid == uid => {
                    self.waiting.pop_front();
                    if let Err(code) = self.enter(id) {
                        self.refuse(id, code);
                    }
                }
                Some(server) if server.phase == Phase::Ready => {
                    server.phase = Phase::Ending;
                    self.end_unused_server();
                }
                Some(_) => return,
            }
        }
    }

    /// Makes a waiting program a client of the server.
    fn enter(&mut self, id: PeerId) -> Result<(), CuResult> {
        let members = self.members().count();
        let (Some(peer), Some(server)) = (self.peers.get_mut(&id), &mut self.server) else {
            return Err(CuResult::MPS_SERVER_NOT_READY);
        };
        let Role::Waiting(candidate) = &peer.role else { return Err(CuResult::MPS_SERVER_NOT_READY) };
        let (pid, server_pid) = (peer.pid, server.pid());
        let uuid = device_uuid(&candidate.place);
        if !is_visible(self.visible.as_deref(), candidate.place.index, uuid) {
            return Err(CuResult::NO_DEVICE);
        }
        let is_shared_context = is_before_volta(&candidate.place.spec);
        if members >= clients_max(&candidate.place.spec) {
            return Err(CuResult::MPS_MAX_CLIENTS_REACHED);
        }
        // A server with a fault admits no client until all affected ones have left.
        if self.fault.is_some() || board(&candidate.place).is_some_and(|board| has_fault(&board, server_pid))
        {
            return Err(CuResult::MPS_SERVER_NOT_READY);
        }
        let uuid = uuid_text(uuid);
        let number = number_of(self.visible.as_deref(), &candidate.place, &uuid);
        let partition = match &self.partitions {
            None => None,
            Some(partitions) => Some(
                partitions
                    .find(&uuid, candidate.partition.as_deref())
                    .ok_or(CuResult::INVALID_RESOURCE_CONFIGURATION)?,
            ),
        };
        server.clients_so_far += 1;
        let identity = MpsIdentity {
            server: server_pid,
            client: server.clients_so_far,
            // A client with a partition has all of it, and one of a shared context has no share.
            percentage: match &partition {
                None if !is_shared_context => server.limits.client_percentage(candidate.own.percentage),
                _ => 100,
            },
            partition_tpcs: partition.as_ref().map(|(_, tpcs)| *tpcs),
            memory_limit_bytes: match is_shared_context {
                true => None,
                false => server.limits.client_memory_bytes(candidate.own.memory, number, &uuid),
            },
            is_below_normal: candidate.own.priority.unwrap_or(server.limits.priority) > 0,
        };
        let member = Member {
            place: candidate.place.clone(),
            uuid,
            partition: partition.map(|(id, _)| id),
            command: candidate.command.clone(),
            number: server.clients_so_far,
            contexts: BTreeSet::new(),
            terminated: false,
            exit: pidfd(pid).ok(),
        };
        peer.role = Role::Client(Box::new(member));
        let name = client_name(pid, 0);
        self.log.server(server_pid, format_args!("Received new client request for {name}"));
        self.log.server(server_pid, format_args!("Client {name} connected"));
        self.log.server(server_pid, format_args!("Creating worker thread for client {name}"));
        if !self.answer(id, &Answer::Attached(identity)) {
            self.leave(id);
        }
        Ok(())
    }

    /// The end of a connection.
    pub(super) fn leave(&mut self, id: PeerId) {
        self.end_contexts_of(id);
        let Some(peer) = self.peers.remove(&id) else { return };
        match peer.role {
            Role::Unknown => {}
            Role::Ui => self.log.control("UI closed"),
            Role::Waiting(_) => self.waiting.retain(|waiting| *waiting != id),
            Role::Client(member) => {
                if let Some(server) = self.server.as_ref().map(Server::pid) {
                    let name = client_name(peer.pid, 0);
                    self.log.server(
                        server,
                        format_args!(
                            "Server failed to recevie command with status 806, assuming client {name} exit"
                        ),
                    );
                    self.log.server(server, format_args!("Client process {} disconnected", peer.pid));
                    self.leave_fault(server, id, &member.place);
                }
                self.end_unused_server();
                self.admit();
            }
        }
    }
    /// Ends the contexts of a client that is leaving, and handles the fault that its death causes.
    /// The server ends the contexts of the dead, then the fault comes, and then it ends their
    /// connections (H200, driver 580.159.04, 2026-11-28). A client that leaves because it got the
    /// error of a fault is one of those that the fault hit.
    fn end_contexts_of(&mut self, id: PeerId) {
        let Some(Peer { pid, role: Role::Client(member), .. }) = self.peers.get_mut(&id) else { return };
        let (pid, place, contexts) = (*pid, member.place.clone(), std::mem::take(&mut member.contexts));
        if let Some(server) = self.server.as_ref().map(Server::pid) {
            for context in &contexts {
                self.log_context_end(server, &client_name(pid, *context));
            }
        }
        self.hear_fault_of(pid, &place, !contexts.is_empty());
    }
}
