//! Connected clients, and former ones whose memory is still in use.

use std::collections::BTreeMap;

use crate::pool::{OwnerId, Pool, TenantId};

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The process at the other end, by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// A client that belongs to a tenant.
#[derive(Clone, Copy)]
pub(super) struct Seat {
    pub(super) tenant: TenantId,
    /// The connection, as an owner of leases.
    pub(super) owner: OwnerId,
}

pub(super) struct Client {
    pub(super) peer: Peer,
    pub(super) has_greeted: bool,
    pub(super) seat: Option<Seat>,
    /// Whether its connection is closed, and only its process's end is missing.
    pub(super) has_left: bool,
}

#[derive(Default)]
pub(super) struct Clients {
    by_id: BTreeMap<ClientId, Client>,
    last: u64,
}

impl Clients {
    pub(super) fn add(&mut self, peer: Peer) -> ClientId {
        self.last += 1;
        let id = ClientId(self.last);
        self.by_id.insert(id, Client { peer, has_greeted: false, seat: None, has_left: false });
        id
    }

    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.by_id.get_mut(&id)
    }

    /// Records that a connection is closed. Returns whether nothing remains of it.
    pub(super) fn leave(&mut self, pool: &mut Pool, id: ClientId, now_ms: u64) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else { return true };
        // A second report changes nothing: only its process's end is missing.
        if std::mem::replace(&mut client.has_left, true) {
            return false;
        }
        let is_forgotten = client.seat.is_none_or(|seat| pool.end(seat.owner, now_ms).unwrap_or(true));
        if is_forgotten {
            self.by_id.remove(&id);
        }
        is_forgotten
    }

    /// Records that a client's process is gone.
    pub(super) fn gone(&mut self, pool: &mut Pool, id: ClientId, now_ms: u64) {
        if let Some(seat) = self.by_id.remove(&id).and_then(|client| client.seat) {
            pool.gone(seat.owner, now_ms);
        }
    }

    /// How many are connected, and how many former ones still have memory.
    pub(super) fn counts(&self) -> (u64, u64) {
        let left = self.by_id.values().filter(|client| client.has_left).count();
        ((self.by_id.len() - left) as u64, left as u64)
    }

    /// Whether any client is connected for a tenant.
    pub(super) fn has_tenants(&self) -> bool {
        self.by_id.values().any(|client| client.seat.is_some() && !client.has_left)
    }

    /// The process of each owner that is a connection.
    pub(super) fn pids(&self) -> BTreeMap<OwnerId, u32> {
        self.by_id.values().filter_map(|client| Some((client.seat?.owner, client.peer.pid))).collect()
    }
}
