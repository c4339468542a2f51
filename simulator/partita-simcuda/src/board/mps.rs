//! Connections and disconnections, and their meaning under MPS.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_sim::{Connections, GroupId, GroupKind};

use super::client::{Arrival, Client};
use super::interpret::Execution;
use super::{Board, ClientId, Effect, Job, STANDSTILL_NS, Standstill};
use crate::shared::channel::Channel;
use crate::shared::protocol::{MpsIdentity, PROTOCOL_VERSION, Reply, Role};
use crate::shared::socket;
use crate::shared::sys::monotonic_ns;

/// How long the server takes to take an exited client's memory away. On an H100, kernels of 2 to 4
/// ms never broke a neighbour when their process returned from `main`, and endless ones always did.
const TEARDOWN_NS: u64 = 20_000_000;

impl Board {
    /// Answers a hello: makes a client of the connection, or leaves it an observer.
    pub(super) fn welcome(&mut self, id: ClientId, version: u32, role: Role, command: String) {
        let Some(socket) = self.observers.remove(&id) else {
            // A client sends only one hello.
            self.disconnect(id);
            return;
        };
        let device = self.spec.id.to_owned();
        let welcome = |sms| Reply::Welcome { device, instance: self.instance, sms };
        if version != PROTOCOL_VERSION {
            let refusal = Reply::Refused(CuResult::SYSTEM_DRIVER_MISMATCH.0);
            let _ = postcard::to_allocvec(&refusal).map(|bytes| socket::send(socket.as_fd(), &bytes, &[]));
            return;
        }
        let (window, mps, connections) = match role {
            Role::Observer => {
                let reply = welcome(self.spec.sm_count());
                self.observers.insert(id, socket);
                self.reply(id, &reply, None);
                return;
            }
            Role::Client { window, mps, connections } => (window, mps, connections),
        };
        let (Ok((pid, _)), Ok((channel, channel_fd))) = (socket::peer(socket.as_fd()), Channel::create())
        else {
            return;
        };
        let allowed = match mps {
            Some(MpsIdentity { partition_tpcs: Some((first, count)), .. }) => {
                (first..first + count).map(|tpc| tpc as u8).collect()
            }
            Some(MpsIdentity { percentage, client, .. }) if percentage < 100 => {
                self.percentage_set(percentage, client)
            }
            _ => self.spec.topology.all(),
        };
        let reply = welcome(allowed.len() * self.spec.topology.sms_per_tpc());
        let descriptors =
            [self.page_fd.as_fd(), channel_fd.as_fd(), self.memory.file(), self.doorbell.as_fd()];
        let sent = postcard::to_allocvec(&reply)
            .is_ok_and(|bytes| socket::send(socket.as_fd(), &bytes, &descriptors).is_ok());
        if !sent {
            return;
        }
        let group = self.group_for(mps.as_ref());
        // The driver ignores a number that it does not have.
        let connections =
            connections.and_then(|text| Connections::new(&self.spec.scheduler, group, Some(&text)).ok());
        let arrival = Arrival { pid, command, socket, channel, window, group, mps, allowed, connections };
        self.clients.insert(id, Client::new(arrival));
        self.note_stuck(id);
    }

    /// A separate group for a process, or one group for all clients of an MPS server.
    fn group_for(&mut self, mps: Option<&MpsIdentity>) -> GroupId {
        match mps {
            None => self.engine.add_group(GroupKind::Own),
            Some(identity) => match self.mps_groups.get(&identity.server) {
                Some(group) => *group,
                None => {
                    let group = self.engine.add_group(GroupKind::Mps);
                    self.mps_groups.insert(identity.server, group);
                    group
                }
            },
        }
    }

    /// Handles the end of a connection: releases everything that it held.
    pub(super) fn disconnect(&mut self, id: ClientId) {
        self.observers.remove(&id);
        self.fault_watchers.retain(|(watcher, _)| *watcher != id);
        // Earlier commands count: they decide whether work was in flight.
        while self.drain(id, usize::MAX) {}
        let Some(mut client) = self.clients.remove(&id) else { return };
        if client.channel.is_called() {
            client.channel.reply(None);
        }
        let in_flight = client
            .streams
            .values()
            .any(|stream| self.engine.pending(stream.engine).is_some_and(|pending| pending > 0));
        let never_runs = self
            .engine
            .stuck()
            .iter()
            .any(|stuck| self.works.get(&stuck.work).is_some_and(|job| job.client == id));
        self.retire(&mut client);
        self.works.retain(|_, job| job.client != id);
        self.executions.retain(|_, execution| execution.client != id);
        self.value_waits.retain(|wait| wait.client != id);
        if let Some(identity) = client.mps {
            if self.clients_of(identity.server).is_empty() {
                self.mps_groups.remove(&identity.server);
                let _ = self.engine.remove_group(client.group);
            }
            // The server shares one address space: a client that dies under its running kernels
            // unmaps their memory, and all clients get the fault. It waits for ever for the end of
            // a launch that no SM can run, and every client waits for the server.
            if never_runs && client.fault == 0 {
                self.stuck_servers.insert(identity.server);
                for other in self.clients_of(identity.server) {
                    self.note_stuck(other);
                }
            } else if in_flight && client.fault == 0 {
                self.fail_all(identity.server, CuResult::ILLEGAL_ADDRESS);
            }
        }
    }

    /// Whether a kernel of an MPS client touches memory and still runs when the server takes the
    /// memory of an exited process away.
    pub(super) fn outlasts_exit(&self, id: ClientId) -> bool {
        let is_mps = self.clients.get(&id).is_some_and(|client| client.mps.is_some());
        let outlasts = |job: &Job| {
            let touches = matches!(job.effect, Effect::Kernel(_));
            job.client == id && touches && job.kernel.is_some_and(|block_ns| block_ns >= TEARDOWN_NS)
        };
        let runs_late = |execution: &Execution| execution.client == id && execution.is_late();
        is_mps && (self.works.values().any(outlasts) || self.executions.values().any(runs_late))
    }

    /// Handles a fatal error of a client's work. All clients of an MPS server share its error
    /// state, so all of them fail: at the same moment, after a standstill of the GPU. A failed
    /// assertion concerns its own process alone (H100, 580.159.04, 2026-11-23).
    pub(super) fn fault(&mut self, id: ClientId, code: CuResult) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match client.mps {
            Some(_) if code == CuResult::ASSERT => self.fail(id, code),
            None => self.fail(id, code),
            Some(mps) => {
                let until_ns = monotonic_ns() + STANDSTILL_NS;
                self.standstill.get_or_insert(Standstill { until_ns, client: id, server: mps.server, code });
                self.kill_streams(id);
            }
        }
    }

    /// Whether the GPU stands still. At the end of that, the clients get the error.
    pub(super) fn stands_still(&mut self) -> bool {
        let Some(Standstill { until_ns, server, code, .. }) = self.standstill else { return false };
        if monotonic_ns() < until_ns {
            return true;
        }
        self.standstill = None;
        self.fail_all(server, code);
        false
    }

    /// Fails every client of an MPS server that has contexts here and has not failed yet, and
    /// notifies observers that wait for a fault. A fault is not reported to a client that has
    /// contexts on other devices only.
    pub(super) fn fail_all(&mut self, server: u32, code: CuResult) {
        let mut clients = self.clients_of(server);
        clients.retain(|id| self.clients.get(id).is_some_and(|client| !client.ctxs.is_empty()));
        if clients.is_empty() {
            return;
        }
        clients.retain(|id| match self.clients.get_mut(id) {
            Some(client) if client.fault == 0 => {
                client.fault = code.0;
                true
            }
            _ => false,
        });
        let watchers = std::mem::take(&mut self.fault_watchers).into_iter();
        let (told, others): (Vec<_>, Vec<_>) = watchers.partition(|(_, of)| *of == server);
        self.fault_watchers = others;
        // The current status: affected clients may be gone when it is read.
        let status = self.status();
        if told.is_empty() {
            self.unheard_faults.insert(server, status);
        } else {
            let status = Reply::Status(status);
            told.iter().for_each(|(watcher, _)| self.reply(*watcher, &status, None));
        }
        // The server knows before its clients do, which may leave at once.
        clients.into_iter().for_each(|id| self.show_fault(id));
    }

    /// Answers an observer when a fault hits clients of a server, or at once if one has: the daemon
    /// of a busy machine may ask when all of them have left.
    pub(super) fn await_fault(&mut self, id: ClientId, server: u32) {
        let no_fault = [0, CuResult::MPS_CLIENT_TERMINATED.0, CuResult::DEINITIALIZED.0];
        let hit = |client: &Client| !no_fault.contains(&client.fault);
        let is_hit = || self.clients_of(server).iter().any(|id| self.clients.get(id).is_some_and(hit));
        let now = is_hit().then(|| self.status());
        match self.unheard_faults.remove(&server).or(now) {
            Some(status) => self.reply(id, &Reply::Status(status), None),
            None => self.fault_watchers.push((id, server)),
        }
    }

    fn clients_of(&self, server: u32) -> Vec<ClientId> {
        let is_of = |client: &Client| client.mps.is_some_and(|mps| mps.server == server);
        self.clients.iter().filter(|(_, client)| is_of(client)).map(|(id, _)| *id).collect()
    }

    /// Has the launches of a client hang if its server is stuck.
    fn note_stuck(&self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else { return };
        let is_stuck = client.mps.is_some_and(|mps| self.stuck_servers.contains(&mps.server));
        client.channel.head().server_stuck.0.store(u32::from(is_stuck), Ordering::Relaxed);
    }

    /// Releases everything that a client held.
    fn retire(&mut self, client: &mut Client) {
        for stream in client.streams.values() {
            let _ = self.engine.kill_stream(stream.engine);
        }
        for lane in client.graphs.values().flat_map(|graph| &graph.lanes) {
            let _ = self.engine.kill_stream(*lane);
        }
        for queue in client.connections.iter().flat_map(Connections::queues) {
            let _ = self.engine.remove_queue(*queue);
        }
        if client.mps.is_none() {
            let _ = self.engine.remove_group(client.group);
        }
        for event in std::mem::take(&mut client.events) {
            for work in self.events.release(event) {
                let _ = self.engine.complete(work);
            }
        }
        client.space.clear(&mut self.memory);
        for phys in client.handles.keys() {
            self.memory.release(*phys);
        }
        for ctx in client.ctxs.values() {
            self.memory.release(ctx.overhead);
        }
    }

    /// Ends the GPU work of an MPS client (`terminate_client`). Its process continues with error
    /// 810.
    pub(super) fn terminate(&mut self, server: u32, pid: u32) -> Result<(), CuResult> {
        let id = self
            .clients
            .iter()
            .find(|(_, client)| client.pid == pid && client.mps.is_some_and(|mps| mps.server == server))
            .map(|(id, _)| *id)
            .ok_or(CuResult::INVALID_VALUE)?;
        self.fail(id, CuResult::MPS_CLIENT_TERMINATED);
        Ok(())
    }

    /// Handles the end of an MPS server: its clients lose their contexts.
    pub(super) fn server_gone(&mut self, server: u32) {
        self.stuck_servers.remove(&server);
        for id in self.clients_of(server) {
            self.fail(id, CuResult::MPS_RPC_FAILURE);
        }
    }
}
