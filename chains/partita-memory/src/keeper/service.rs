//! The keeper's answers to requests.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::pool::{Denied, Lease, LeaseId, OwnerId, Pool, Refusal, SlabId, SlabPlan, Step};

use super::Options;
use super::chains::Chains;
use super::clients::{ClientId, Clients, Peer, Seat};
use super::fault::{Fault, check_distinct, checked, fault};
use super::memory::{Handle, Memory, MemoryError};
use super::tenants::Tenants;
use crate::wire::{
    Beat, Code, HandleKind, ITEMS_MAX, LeaseRow, Privileged, ROWS_MAX, Reply, Request, Status, TenantRow,
    VERSION, Welcome, tag_of,
};

/// Steps of the pool taken at one time beside requests, to bound a request's wait.
const STEPS_AT_ONCE: usize = 8;

/// A keeper's data about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub gpu_uuid: [u8; 16],
    /// A number that no other keeper has had.
    pub instance: u64,
    /// Its process.
    pub pid: u32,
    /// Its user, who may administer it.
    pub uid: u32,
}

/// The tenants that have returned slabs since the keeper began: that memory may have its old
/// content.
enum Former {
    NoTenant,
    One(crate::pool::TenantId),
    Several,
}

/// The keeper without its sockets: frames in, frames out.
pub struct Service<M: Memory> {
    pool: Pool,
    memory: M,
    slabs: BTreeMap<SlabId, M::Slab>,
    tenants: Tenants,
    clients: Clients,
    chains: Chains,
    facts: Facts,
    handles: HandleKind,
    former: Former,
    requests: u64,
    bad_frames: u64,
    /// When a client last had memory or a connection, in milliseconds.
    busy_ms: u64,
    must_end: bool,
    /// The process that a connection has just begun to speak for.
    adopted: Option<OwnedFd>,
}

impl<M: Memory> Service<M> {
    /// A service without clients, at time 0.
    #[must_use]
    pub fn new(memory: M, facts: Facts, options: &Options) -> Self {
        let mut limits = options.limits.clone();
        let unit = memory.granularity_bytes().max(1);
        limits.granularity_bytes = limits.granularity_bytes.max(1).next_multiple_of(unit);
        limits.batch_max = limits.batch_max.min(ITEMS_MAX as u32);
        Self {
            pool: Pool::new(limits),
            memory,
            slabs: BTreeMap::new(),
            tenants: Tenants::new(options.quota_bytes),
            clients: Clients::default(),
            chains: Chains::default(),
            facts,
            handles: options.handles,
            former: Former::NoTenant,
            requests: 0,
            bad_frames: 0,
            busy_ms: 0,
            must_end: false,
            adopted: None,
        }
    }

    /// The process for which the last request's connection speaks from now on, in the place of its
    /// own: its end is that client's.
    pub fn take_adopted(&mut self) -> Option<OwnedFd> {
        self.adopted.take()
    }

    /// A client has connected.
    pub fn join(&mut self, peer: Peer) -> ClientId {
        self.clients.add(peer)
    }

    /// A connection is closed. Returns whether nothing remains of it; if not, call
    /// [`Service::gone`] when its process is gone.
    pub fn leave(&mut self, client: ClientId, now_ms: u64) -> bool {
        self.clients.leave(&mut self.pool, client, now_ms)
    }

    /// A client's process is gone, and all its work on the GPU.
    pub fn gone(&mut self, client: ClientId, now_ms: u64) {
        self.clients.gone(&mut self.pool, client, now_ms);
    }

    /// Answers a frame, in `out`. Returns the descriptor that belongs to the answer.
    /// `lost_descriptors` says that more came than were accepted.
    pub fn answer(
        &mut self,
        client: ClientId,
        frame: &[u8],
        descriptors: Vec<OwnedFd>,
        lost_descriptors: bool,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> Option<BorrowedFd<'_>> {
        self.requests += 1;
        let extra = usize::from(lost_descriptors);
        let done = checked(frame, descriptors.len() + extra).and_then(|request| {
            let descriptor = descriptors.into_iter().next();
            self.handle(client, request, descriptor, now_ms)
        });
        // Not only at the next tick: before that the keeper could end, with new leases.
        self.note_busy(now_ms);
        let reply = done.unwrap_or_else(|fault| {
            self.bad_frames += u64::from(fault.code == Code::BadFrame);
            Reply::Error { code: fault.code, text: fault.text }
        });
        reply.encode(tag_of(frame), out);
        match reply {
            Reply::Slab { slab, handle: None, .. } => match self.memory.handle(self.slabs.get(&slab)?) {
                Handle::Descriptor(descriptor) => Some(descriptor),
                Handle::Ipc(_) => None,
            },
            _ => None,
        }
    }

    /// The work beside requests: deadlines, ended chains, memory to make or to free.
    pub fn tick(&mut self, now_ms: u64) {
        self.pool.expire(now_ms);
        self.chains.sweep(&mut self.pool, now_ms);
        for _ in 0..STEPS_AT_ONCE {
            match self.pool.step(now_ms) {
                None => break,
                Some(Step::Remove(slab)) => self.remove(slab),
                Some(Step::Add(plan)) => match self.allocate(plan) {
                    Ok(slab) => drop(self.enter(plan, slab, now_ms)),
                    Err(_) => match self.pool.superfluous(now_ms) {
                        Some(slab) => self.remove(slab),
                        // Without spare memory, requests find none ready, which is not an error.
                        None => break,
                    },
                },
            }
        }
        self.tenants.forget_idle(&mut self.pool);
        self.note_busy(now_ms);
    }

    fn note_busy(&mut self, now_ms: u64) {
        let totals = self.pool.totals();
        if totals.leases + totals.resting > 0 || self.clients.has_tenants() {
            self.busy_ms = now_ms;
        }
    }

    /// Since when there has been no lease and no connection for a tenant, in milliseconds.
    #[must_use]
    pub fn idle_since_ms(&self) -> u64 {
        self.busy_ms
    }

    /// Whether [`Service::tick`] has anything to check.
    #[must_use]
    pub fn needs_ticks(&self) -> bool {
        let totals = self.pool.totals();
        totals.owners + totals.slabs > 0 || self.tenants.has_passing()
    }

    /// Whether a client has requested the keeper's end.
    #[must_use]
    pub fn must_end(&self) -> bool {
        self.must_end
    }

    /// Its state.
    #[must_use]
    pub fn status(&self, now_ms: u64) -> Status {
        let (clients, dying) = self.clients.counts();
        Status {
            totals: self.pool.totals(),
            clients,
            chains: self.chains.len() as u64,
            dying,
            uptime_ms: now_ms,
            requests: self.requests,
            bad_frames: self.bad_frames,
        }
    }

    fn handle(
        &mut self,
        client: ClientId,
        request: Request,
        descriptor: Option<OwnedFd>,
        now_ms: u64,
    ) -> Result<Reply, Fault> {
        let who = self.clients.get_mut(client).ok_or(Refusal::UnknownOwner { owner: client.0 })?;
        let (peer, has_greeted, seat) = (who.peer, who.has_greeted, who.seat);
        if let Some(seat) = seat {
            // A request of any kind is a sign of life.
            self.pool.seen(seat.owner, now_ms)?;
        }
        match request {
            Request::Hello { version, tenant } => {
                if has_greeted {
                    return Err(fault(
                        Code::Greeting,
                        "this connection has already greeted: make another one",
                    ));
                }
                if version != VERSION {
                    let text = format!(
                        "version {version} of the frames: this keeper speaks {VERSION}; use a client and a \
                         keeper of the same Partita version"
                    );
                    return Err(Fault { code: Code::Version, text });
                }
                if let Some(name) = tenant {
                    let key = (peer.uid, name);
                    let tenant = self.tenants.find(&mut self.pool, key)?;
                    let owner = self.pool.add_owner(tenant, now_ms)?;
                    who.seat = Some(Seat { tenant, owner });
                }
                who.has_greeted = true;
                Ok(Reply::Welcome(self.welcome()))
            }
            _ if !has_greeted => Err(fault(Code::Greeting, "the first request must be the greeting")),
            Request::Privileged(Privileged::SpeakFor { uid, pid, tenant }) => {
                self.check_privileged(peer)?;
                let process = descriptor.ok_or_else(|| {
                    fault(Code::TooMany, "the keeper has reached its limit of open files; raise it")
                })?;
                if seat.is_some() {
                    return Err(fault(Code::Greeting, "this connection has a tenant: make another one"));
                }
                let tenant = self.tenants.find(&mut self.pool, (uid, tenant))?;
                let owner = self.pool.add_owner(tenant, now_ms)?;
                let who = self.clients.get_mut(client).ok_or(Refusal::UnknownOwner { owner: client.0 })?;
                who.seat = Some(Seat { tenant, owner });
                who.peer = Peer { pid, uid };
                self.adopted = Some(process);
                Ok(Reply::Done)
            }
            Request::Privileged(what) => self.privileged(peer, &what, now_ms),
            Request::Status | Request::Leases { .. } | Request::Tenants { .. } => {
                self.listing(peer, &request, now_ms)
            }
            Request::Beat if seat.is_none() => Ok(Reply::Beat(Beat::default())),
            request => {
                let seat = seat.ok_or_else(|| {
                    let text =
                        format!("a {} request of a client without a tenant: greet with one", request.name());
                    Fault { code: Code::NotAllowed, text }
                })?;
                self.of_tenant(seat, request, descriptor, now_ms)
            }
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            version: VERSION,
            handles: self.handles,
            instance: self.facts.instance,
            gpu_uuid: self.facts.gpu_uuid,
            pid: self.facts.pid,
            batch_max: self.pool.limits().batch_max,
            ttl_ms_max: self.pool.limits().ttl_ms_max,
        }
    }

    fn of_tenant(
        &mut self,
        seat: Seat,
        request: Request,
        descriptor: Option<OwnedFd>,
        now_ms: u64,
    ) -> Result<Reply, Fault> {
        match request {
            Request::Lease { owner, bytes, count, ttl_ms } => {
                let owner = owner.unwrap_or(seat.owner);
                if owner != seat.owner && !self.pool.is_member(owner, seat.owner) {
                    return Err(Refusal::UnknownOwner { owner: owner.0 }.into());
                }
                self.lease(owner, bytes, count, ttl_ms, now_ms).map(Reply::Leased)
            }
            Request::Free { leases } => {
                check_distinct(leases.iter().map(|lease| lease.0), "lease")?;
                for lease in &leases {
                    self.pool.may_free(*lease, seat.owner)?;
                }
                for lease in &leases {
                    self.pool.free(*lease, seat.owner, now_ms)?;
                }
                Ok(Reply::Done)
            }
            Request::Open { slab } => {
                self.pool.open(slab, seat.owner)?;
                let unknown = Refusal::UnknownSlab { slab: slab.0 };
                let bytes = self.pool.slab(slab).ok_or(unknown)?.bytes;
                let handle = match self.memory.handle(self.slabs.get(&slab).ok_or(unknown)?) {
                    Handle::Ipc(bytes) => Some(bytes),
                    Handle::Descriptor(_) => None,
                };
                Ok(Reply::Slab { slab, bytes, handle })
            }
            Request::Close { slabs } => {
                check_distinct(slabs.iter().map(|slab| slab.0), "slab")?;
                for slab in &slabs {
                    self.pool.may_close(*slab, seat.owner)?;
                }
                for slab in &slabs {
                    self.pool.close(*slab, seat.owner, now_ms)?;
                }
                Ok(Reply::Done)
            }
            Request::Beat => Ok(Reply::Beat(Beat {
                expired: self.pool.take_expired(seat.owner),
                retiring: self.pool.retiring(seat.owner).take(ITEMS_MAX).collect(),
            })),
            Request::Own => {
                // It came, or this would be a bad frame.
                let descriptor = descriptor.ok_or_else(|| {
                    let text = "the keeper has reached its limit of open files and cannot open the chain's: \
                        end some of its clients, or raise its limit";
                    fault(Code::TooMany, text)
                })?;
                let joined = self.chains.join(&mut self.pool, descriptor, seat.owner, seat.tenant, now_ms)?;
                Ok(Reply::Owner(joined))
            }
            // Handled before.
            Request::Hello { .. }
            | Request::Status
            | Request::Leases { .. }
            | Request::Tenants { .. }
            | Request::Privileged(_) => Err(fault(Code::NotAllowed, "this request belongs to no tenant")),
        }
    }

    fn lease(
        &mut self,
        owner: OwnerId,
        bytes: u64,
        count: u32,
        ttl_ms: u32,
        now_ms: u64,
    ) -> Result<Vec<Lease>, Fault> {
        loop {
            // Each step adds a missing block, or takes a slab, of which there is a finite number.
            match self.pool.lease(owner, bytes, count, ttl_ms, now_ms) {
                Ok(leases) => return Ok(leases),
                Err(Denied::Refused(refusal)) => return Err(refusal.into()),
                Err(Denied::Until(Step::Remove(slab))) => self.remove(slab),
                Err(Denied::Until(Step::Add(plan))) => self.make_room(plan, now_ms)?,
            }
        }
    }

    /// Makes a slab for a request: rather a smaller one, or after freeing idle memory, than none.
    fn make_room(&mut self, plan: SlabPlan, now_ms: u64) -> Result<(), Fault> {
        let mut plan = plan;
        loop {
            let error = match self.allocate(plan) {
                Ok(slab) => return self.enter(plan, slab, now_ms),
                Err(error) => error,
            };
            let least = plan.least(self.pool.limits());
            if !error.is_full {
                return Err(error.into());
            } else if let Some(spare) = self.pool.spare(None, Some((plan.tenant, plan.block_bytes))) {
                self.remove(spare);
            } else if least.bytes < plan.bytes {
                plan = least;
            } else {
                self.pool.retire_idle(None);
                return Err(error.into());
            }
        }
    }

    fn allocate(&mut self, plan: SlabPlan) -> Result<M::Slab, MemoryError> {
        let clear = match self.former {
            Former::NoTenant => false,
            Former::One(tenant) => tenant != plan.tenant,
            Former::Several => true,
        };
        self.memory.allocate(plan.bytes, clear)
    }

    fn enter(&mut self, plan: SlabPlan, slab: M::Slab, now_ms: u64) -> Result<(), Fault> {
        let id = self.pool.add_slab(plan, now_ms)?;
        self.slabs.insert(id, slab);
        Ok(())
    }

    fn remove(&mut self, slab: SlabId) {
        let tenant = self.pool.slab(slab).map(|known| known.tenant);
        if self.pool.remove_slab(slab).is_ok() {
            self.slabs.remove(&slab);
            self.former = match (&self.former, tenant) {
                (Former::NoTenant, Some(tenant)) => Former::One(tenant),
                (Former::One(former), Some(tenant)) if *former == tenant => Former::One(tenant),
                _ => Former::Several,
            };
        }
    }

    fn check_privileged(&self, peer: Peer) -> Result<(), Fault> {
        if peer.uid == self.facts.uid || peer.uid == 0 {
            return Ok(());
        }
        let text = format!(
            "user {} may not administer the keeper of user {}: ask as that user",
            peer.uid, self.facts.uid
        );
        Err(Fault { code: Code::NotAllowed, text })
    }

    fn privileged(&mut self, peer: Peer, what: &Privileged, now_ms: u64) -> Result<Reply, Fault> {
        self.check_privileged(peer)?;
        match *what {
            Privileged::Quota { uid, tenant, bytes } => {
                self.tenants.set_quota(&mut self.pool, (uid, tenant), bytes)?;
            }
            Privileged::TakeBack { lease } => self.pool.take_back(lease, now_ms)?,
            Privileged::Disown { owner } => drop(self.pool.disown(owner, now_ms)?),
            Privileged::End { even_if_leased } => {
                let totals = self.pool.totals();
                let used = totals.leases + totals.resting;
                if used > 0 && !even_if_leased {
                    let text = format!(
                        "{used} leases are in use and would be lost: end their owners, or force the end"
                    );
                    return Err(Fault { code: Code::InUse, text });
                }
                self.must_end = true;
            }
            // Handled before.
            Privileged::SpeakFor { .. } => {
                return Err(fault(Code::NotAllowed, "this request needs a connection without a tenant"));
            }
        }
        Ok(Reply::Done)
    }

    fn listing(&self, peer: Peer, request: &Request, now_ms: u64) -> Result<Reply, Fault> {
        self.check_privileged(peer)?;
        match request {
            Request::Leases { after } => Ok(Reply::Leases(self.lease_rows(*after, now_ms))),
            Request::Tenants { skip } => Ok(Reply::Tenants(self.tenant_rows(*skip as usize))),
            _ => Ok(Reply::Status(self.status(now_ms))),
        }
    }

    fn lease_rows(&self, after: LeaseId, now_ms: u64) -> Vec<LeaseRow> {
        let pids = self.clients.pids();
        let row = |lease: crate::pool::LeaseView| {
            let (uid, tenant) = self.tenants.key_of(lease.tenant)?;
            Some(LeaseRow {
                lease: Lease {
                    id: lease.id,
                    slab: lease.slab,
                    offset: lease.offset,
                    bytes: lease.block_bytes,
                },
                bytes_asked: lease.bytes,
                age_ms: now_ms.saturating_sub(lease.since_ms),
                ttl_ms: lease.ttl_ms,
                left_ms: lease
                    .ends_ms
                    .map_or(0, |ends_ms| u32::try_from(ends_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX)),
                pid: pids.get(&lease.owner).copied().unwrap_or(0),
                owner: lease.owner,
                uid,
                is_resting: lease.is_resting,
                tenant,
            })
        };
        self.pool.leases_after(after).filter_map(row).take(ROWS_MAX).collect()
    }

    fn tenant_rows(&self, skip: usize) -> Vec<TenantRow> {
        let row = |((uid, name), id)| {
            let view = self.pool.tenant_view(id)?;
            let owners = u32::try_from(view.owners).unwrap_or(u32::MAX);
            let (quota_bytes, slab_bytes, used_bytes) = (view.quota_bytes, view.slab_bytes, view.used_bytes);
            Some(TenantRow { uid, owners, quota_bytes, slab_bytes, used_bytes, name })
        };
        self.tenants.all().skip(skip).filter_map(row).take(ROWS_MAX).collect()
    }
}
