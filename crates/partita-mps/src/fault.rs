//! Faults and their reach, as values: events in, states and attributions out.
//!
//! A server is `INITIALIZING`, then `ACTIVE`. A fatal error of the GPU makes it `FAULT`: the server
//! reports the error to every client that shares a device with the one that caused it, directly or
//! through clients on several devices. Those clients have to leave, and new ones get error 807.
//! When the last has left, the server makes its contexts again and is `ACTIVE` (MPS guide, sections
//! 2.3.3.2 and 3.3.1).
//!
//! [`Tracker`] follows this from the logs' [entries](Entry) and from the answers to
//! `get_server_status`; [`contain`] and [`domains`] predict which clients a fault would hit.

use std::collections::{BTreeMap, BTreeSet};

mod culprit;

use serde::Serialize;

pub use self::culprit::{Candidate, Culprit, Evidence, Part, Why, Work};
use crate::Pid;
use crate::log::{ClientName, Entry, Event, Stamp};
use crate::reply::ServerStatus;

/// Clients that fail together, and the devices that connect them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Domain<C: Ord, D: Ord> {
    /// The devices to which a fault on any of them is contained.
    pub devices: BTreeSet<D>,
    /// The clients that get the error.
    pub clients: BTreeSet<C>,
}

/// The reach of a fatal fault on a device among these clients, with the devices of each.
#[must_use]
pub fn contain<C: Ord + Clone, D: Ord + Clone>(
    clients: &BTreeMap<C, BTreeSet<D>>,
    device: &D,
) -> Domain<C, D> {
    let mut domain = Domain { devices: BTreeSet::from([device.clone()]), clients: BTreeSet::new() };
    loop {
        let before = domain.clients.len();
        for (client, devices) in clients {
            if !domain.clients.contains(client) && !devices.is_disjoint(&domain.devices) {
                domain.clients.insert(client.clone());
                domain.devices.extend(devices.iter().cloned());
            }
        }
        if domain.clients.len() == before {
            return domain;
        }
    }
}

/// Every group of clients that fail together. A client without a device is in no group.
#[must_use]
pub fn domains<C: Ord + Clone, D: Ord + Clone>(clients: &BTreeMap<C, BTreeSet<D>>) -> Vec<Domain<C, D>> {
    let mut left: BTreeSet<&D> = clients.values().flatten().collect();
    let mut found = Vec::new();
    while let Some(device) = left.pop_first() {
        let domain = contain(clients, device);
        left.retain(|device| !domain.devices.contains(device));
        found.push(domain);
    }
    found
}

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It starts; the daemon delays new clients.
    Initializing,
    /// It accepts clients.
    Active,
    /// A fatal fault blocks it until the affected clients have left; new ones get error 807.
    Fault,
    /// It has ended.
    Ended,
}

impl From<ServerStatus> for ServerState {
    fn from(status: ServerStatus) -> Self {
        match status {
            ServerStatus::Initializing => Self::Initializing,
            ServerStatus::Active => Self::Active,
            ServerStatus::Fault => Self::Fault,
        }
    }
}

/// A fatal fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The server.
    pub server: Pid,
    /// Which of this server's faults it is, from 1.
    pub number: u32,
    /// When the server noticed, if its log says.
    pub began: Option<Stamp>,
    /// When the server accepted clients again, if it does and its log says.
    pub ended: Option<Stamp>,
    /// The devices to which it is contained, by the server's numbers.
    pub devices: BTreeSet<u32>,
    /// The processes that got the error.
    pub hit: BTreeSet<Pid>,
    /// The processes that were clients and continued.
    pub spared: BTreeSet<Pid>,
    /// The processes that were clients when it began, did not get the error, and left meanwhile.
    pub left: BTreeSet<Pid>,
    /// The processes that were clients until shortly before.
    pub gone: BTreeSet<Pid>,
    /// The processes that were clients when it began, and whose last context had ended shortly
    /// before. The server ends the contexts of the dead first, and 0.1 to 0.3 s later their
    /// connections (H200, driver 580.159.04).
    pub lost: BTreeSet<Pid>,
    /// Those of [`hit`](Self::hit) that have not left yet.
    pub staying: BTreeSet<Pid>,
    named: Option<Pid>,
}

impl Fault {
    fn new(server: Pid, number: u32, began: Option<Stamp>, clients: impl Iterator<Item = Pid>) -> Self {
        Self {
            server,
            number,
            began,
            ended: None,
            devices: BTreeSet::new(),
            hit: BTreeSet::new(),
            spared: clients.collect(),
            staying: BTreeSet::new(),
            left: BTreeSet::new(),
            gone: BTreeSet::new(),
            lost: BTreeSet::new(),
            named: None,
        }
    }

    fn reach(&mut self, client: Pid) {
        self.spared.remove(&client);
        self.left.remove(&client);
        self.gone.remove(&client);
        self.lost.remove(&client);
        if self.hit.insert(client) {
            self.staying.insert(client);
        }
    }
}

/// A change of a server's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The server.
    pub server: Pid,
    /// The old state; `None` for a new server.
    pub from: Option<ServerState>,
    /// The new state.
    pub to: ServerState,
}

/// One server.
#[derive(Debug, Clone)]
struct Server {
    state: ServerState,
    /// Connections by process. Context 0 is the process itself.
    clients: BTreeMap<Pid, BTreeSet<u32>>,
    /// The last fault, over or not.
    fault: Option<Fault>,
    /// Faults so far.
    faults: u32,
    /// Clients that left just before, or whose last context ended, and when.
    gone: Vec<(Pid, Stamp)>,
    /// Clients whose work the server ended by command: their death harms no other.
    terminated: BTreeSet<Pid>,
    /// Devices whose contexts the server has made again since the fault.
    recreated: BTreeSet<u32>,
}

/// How long before a fault a client may have left that caused it, in milliseconds.
const GONE_MS_MAX: u32 = 2000;

/// The largest number of clients and of servers in memory: bounds the effect of a damaged log.
const KEPT_MAX: usize = 4096;

/// Follows the servers of one daemon.
#[derive(Debug, Clone, Default)]
pub struct Tracker {
    servers: BTreeMap<Pid, Server>,
}

impl Tracker {
    /// A tracker without servers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line of either log, in the order of writing.
    pub fn apply(&mut self, entry: &Entry) -> Option<Change> {
        let writer = entry.pid;
        match entry.event.as_ref()? {
            Event::ServerStarting { server, .. } => {
                // A number that occurs again is another server's.
                self.servers.remove(server);
                self.change(*server, ServerState::Initializing)
            }
            Event::ServerReady { server } => self.change(*server, ServerState::Active),
            Event::ServerExited { server, .. } => {
                let change = self.change(*server, ServerState::Ended);
                self.servers.remove(server);
                change
            }
            Event::ClientConnected { client } | Event::ClientStatus { client, active: true } => {
                self.connect(writer, *client);
                None
            }
            Event::ClientStatus { client, active: false } => {
                match self.state(writer) {
                    Some(ServerState::Fault) => self.in_fault(writer, |fault| fault.reach(client.pid)),
                    _ => self.terminate(writer, client.pid),
                }
                None
            }
            Event::ContextEnded { client: Some(client), .. } => {
                self.disconnect(writer, client.pid, Some(client.context), entry.time);
                None
            }
            Event::ClientLeft { client: Some(client) } => {
                self.disconnect(writer, *client, None, entry.time);
                None
            }
            Event::FaultBegan => {
                self.begin_fault(writer, Some(entry.time));
                self.change(writer, ServerState::Fault)
            }
            Event::FaultCaused { client } => {
                self.in_fault(writer, |fault| {
                    fault.named = Some(*client);
                    fault.reach(*client);
                });
                None
            }
            Event::FaultDevice { device } => {
                self.in_fault(writer, |fault| {
                    fault.devices.insert(*device);
                });
                None
            }
            Event::FaultClient { client } => {
                self.in_fault(writer, |fault| fault.reach(*client));
                None
            }
            Event::DeviceCreated { device } => self.recreate(writer, *device, entry.time),
            _ => None,
        }
    }

    /// Adds an answer of `get_server_status`: it is right if a log is missing or late.
    pub fn observe(&mut self, server: Pid, status: ServerStatus) -> Option<Change> {
        if status == ServerStatus::Fault {
            let known = self.server(server);
            if known.state != ServerState::Fault {
                self.begin_fault(server, None);
            }
        }
        self.change(server, status.into())
    }

    /// A server's state; `None` for an unknown one.
    #[must_use]
    pub fn state(&self, server: Pid) -> Option<ServerState> {
        self.servers.get(&server).map(|server| server.state)
    }

    /// The living servers, with their states.
    pub fn states(&self) -> impl Iterator<Item = (Pid, ServerState)> {
        self.servers.iter().map(|(pid, server)| (*pid, server.state))
    }

    /// A server's last fault, over or not.
    #[must_use]
    pub fn fault(&self, server: Pid) -> Option<&Fault> {
        self.servers.get(&server)?.fault.as_ref()
    }

    /// The processes that are clients of a server.
    pub fn clients(&self, server: Pid) -> impl Iterator<Item = Pid> {
        self.servers.get(&server).into_iter().flat_map(|server| server.clients.keys().copied())
    }

    /// A server; one that is unknown, because its log is read from the middle, is active.
    fn server(&mut self, pid: Pid) -> &mut Server {
        if self.servers.len() >= KEPT_MAX && !self.servers.contains_key(&pid) {
            self.servers.clear();
        }
        self.servers.entry(pid).or_insert_with(|| Server {
            state: ServerState::Active,
            clients: BTreeMap::new(),
            fault: None,
            faults: 0,
            gone: Vec::new(),
            terminated: BTreeSet::new(),
            recreated: BTreeSet::new(),
        })
    }

    fn change(&mut self, server: Pid, to: ServerState) -> Option<Change> {
        let from = self.state(server);
        if from == Some(to) {
            return None;
        }
        self.server(server).state = to;
        Some(Change { server, from, to })
    }

    fn connect(&mut self, server: Pid, client: ClientName) {
        let clients = &mut self.server(server).clients;
        if clients.len() < KEPT_MAX || clients.contains_key(&client.pid) {
            let contexts = clients.entry(client.pid).or_default();
            if contexts.len() < KEPT_MAX {
                contexts.insert(client.context);
            }
        }
        // Process numbers are reused.
        let server = self.server(server);
        server.gone.retain(|(pid, _)| *pid != client.pid);
        if client.context == 0 {
            server.terminated.remove(&client.pid);
        }
    }

    fn terminate(&mut self, server: Pid, client: Pid) {
        let terminated = &mut self.server(server).terminated;
        if terminated.len() >= KEPT_MAX {
            terminated.clear();
        }
        terminated.insert(client);
    }

    fn begin_fault(&mut self, pid: Pid, began: Option<Stamp>) {
        let server = self.server(pid);
        server.faults += 1;
        let clients: Vec<Pid> = server.clients.keys().copied().collect();
        let mut fault = Fault::new(pid, server.faults, began, clients.into_iter());
        let just_now = |time: Stamp| began.is_none_or(|began| began.ms_since(time) <= GONE_MS_MAX);
        let gone = server.gone.iter().filter(|(_, time)| just_now(*time)).map(|(pid, _)| *pid);
        (fault.lost, fault.gone) = gone.partition(|pid| fault.spared.remove(pid));
        server.fault = Some(fault);
        server.recreated.clear();
    }

    fn disconnect(&mut self, server: Pid, client: Pid, context: Option<u32>, time: Stamp) {
        let Some(known) = self.servers.get_mut(&server) else { return };
        let Some(contexts) = known.clients.get_mut(&client) else { return };
        match context {
            Some(context) => _ = contexts.remove(&context),
            None => contexts.clear(),
        }
        let (is_gone, has_no_context) = (contexts.is_empty(), contexts.iter().all(|context| *context == 0));
        if !has_no_context {
            return;
        }
        let is_harmless = known.terminated.contains(&client);
        if !is_harmless {
            known.gone.retain(|(pid, then)| *pid != client && time.ms_since(*then) <= GONE_MS_MAX);
            known.gone.truncate(KEPT_MAX);
            known.gone.push((client, time));
        }
        if !is_gone {
            return;
        }
        known.clients.remove(&client);
        if let Some(fault) = &mut known.fault {
            fault.staying.remove(&client);
            let was_client = fault.spared.remove(&client) | fault.lost.remove(&client);
            if known.state == ServerState::Fault && was_client && !is_harmless {
                fault.left.insert(client);
            }
        }
    }

    fn in_fault(&mut self, server: Pid, change: impl FnOnce(&mut Fault)) {
        if let Some(known) = self.servers.get_mut(&server)
            && known.state == ServerState::Fault
            && let Some(fault) = &mut known.fault
        {
            change(fault);
            // As with clients: a damaged log must not use memory without bound.
            while fault.hit.len() > KEPT_MAX {
                fault.hit.pop_last();
            }
            while fault.devices.len() > KEPT_MAX {
                fault.devices.pop_last();
            }
        }
    }

    /// A server accepts clients again once it has made all contexts that a fault destroyed.
    fn recreate(&mut self, server: Pid, device: u32, time: Stamp) -> Option<Change> {
        let known = self.servers.get_mut(&server).filter(|known| known.state == ServerState::Fault)?;
        known.recreated.insert(device);
        let fault = known.fault.as_mut()?;
        if !known.recreated.is_superset(&fault.devices) {
            return None;
        }
        fault.ended = Some(time);
        fault.staying.clear();
        let hit = fault.hit.clone();
        known.clients.retain(|client, _| !hit.contains(client));
        self.change(server, ServerState::Active)
    }
}

#[cfg(test)]
mod tests;
