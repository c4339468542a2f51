//! Leases that the daemon holds for processes that ask over HTTP: each ends with its process.
//!
//! For each process and keeper there is one connection, which speaks for the process: the keeper
//! watches that process, and uses its memory again only when it has ended. When the daemon ends,
//! its connections end, so the leases do, too; the memory rests until the processes have ended.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use partita::process::ProcessId;
use partita_memory::TenantName;
use partita_memory::client::{Connection, OpenedBy};
use partita_memory::pool::{Lease, LeaseId, SlabId};
use partita_memory::wire::HANDLE_BYTES;
use rustix::process::{Pid, PidfdFlags};

use super::{Held, Wanted, told};
use crate::caller::Caller;
use crate::problem::{Kind, Problem};

/// Processes for which leases are held at most.
const SESSIONS_MAX: usize = 256;

/// Every lease that the daemon holds.
#[derive(Default)]
pub(super) struct Rented(Mutex<Vec<Session>>);

/// The leases of one process with one keeper.
struct Session {
    keeper: u32,
    process: ProcessId,
    user: u32,
    tenant: TenantName,
    connection: Connection,
    leases: BTreeMap<LeaseId, Lease>,
    slabs: BTreeMap<SlabId, Slab>,
}

/// An open slab.
#[derive(Clone, Copy)]
struct Slab {
    bytes: u64,
    handle: [u8; HANDLE_BYTES],
}

impl std::fmt::Debug for Rented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rented").field("processes", &self.sessions().len()).finish()
    }
}

impl Rented {
    /// The sessions of living processes. The keeper ends those of the others by itself.
    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| session.process.lives());
        sessions
    }

    /// Leases memory for a process. `connect` makes a connection to the keeper.
    pub(super) fn lease(
        &self,
        keeper: u32,
        wanted: &Wanted,
        connect: impl FnOnce() -> Result<Connection, Problem>,
    ) -> Result<Held, Problem> {
        let Wanted { process, user, tenant, bytes } = *wanted;
        let mut sessions = self.sessions();
        let is_its = |session: &&mut Session| {
            session.keeper == keeper && session.process == process && session.tenant == tenant
        };
        if let Some(session) = sessions.iter_mut().find(is_its) {
            return session.lease(bytes);
        }
        if sessions.len() >= SESSIONS_MAX {
            return Err(Problem::new(
                Kind::Conflict,
                format!(
                    "the daemon holds leases for {SESSIONS_MAX} processes already; end one, or use the keeper's socket"
                ),
            ));
        }
        let mut connection = connect()?;
        let gone = || Problem::invalid("/pid", format!("process {} has just ended", process.pid));
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let watched = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
        // The number may have been another process's when the descriptor was opened.
        if !process.lives() {
            return Err(gone());
        }
        connection.speak_for(watched.as_fd(), process.pid, user, tenant).map_err(told)?;
        let (leases, slabs) = (BTreeMap::new(), BTreeMap::new());
        let mut session = Session { keeper, process, user, tenant, connection, leases, slabs };
        let held = session.lease(bytes)?;
        sessions.push(session);
        Ok(held)
    }

    /// A lease that the daemon holds, for its user and root; `None` if it holds no such lease.
    pub(super) fn held(&self, caller: Caller, keeper: u32, lease: u64) -> Option<Result<Held, Problem>> {
        let mut sessions = self.sessions();
        let session = of(&mut sessions, keeper, lease)?;
        let shown = session.check(caller, lease).map(|()| session.show(LeaseId(lease)));
        Some(shown.and_then(|held| held.ok_or_else(|| no_lease(lease))))
    }

    /// Gives a lease back that the daemon holds, for its user and root; `None` if it holds no such
    /// lease.
    pub(super) fn release(&self, caller: Caller, keeper: u32, lease: u64) -> Option<Result<(), Problem>> {
        let mut sessions = self.sessions();
        let session = of(&mut sessions, keeper, lease)?;
        Some(session.check(caller, lease).and_then(|()| session.release(LeaseId(lease))))
    }
}

fn of(sessions: &mut [Session], keeper: u32, lease: u64) -> Option<&mut Session> {
    sessions
        .iter_mut()
        .find(|session| session.keeper == keeper && session.leases.contains_key(&LeaseId(lease)))
}

fn no_lease(lease: u64) -> Problem {
    Problem::not_found(format!("there is no lease {lease}; GET /v1/leases lists them"))
}

impl Session {
    fn check(&self, caller: Caller, lease: u64) -> Result<(), Problem> {
        caller.check(&format!("lease {lease}"), self.user)
    }

    fn lease(&mut self, bytes: u64) -> Result<Held, Problem> {
        let lease = *self
            .connection
            .lease(None, bytes, 1, 0)
            .map_err(told)?
            .first()
            .ok_or_else(|| Problem::new(Kind::Internal, "the keeper gave no lease"))?;
        if let Err(problem) = self.open(lease.slab) {
            let _ = self.connection.free(&[lease.id]);
            return Err(problem);
        }
        self.leases.insert(lease.id, lease);
        self.show(lease.id).ok_or_else(|| no_lease(lease.id.0))
    }

    fn open(&mut self, slab: SlabId) -> Result<(), Problem> {
        if self.slabs.contains_key(&slab) {
            return Ok(());
        }
        let opened = self.connection.open(slab).map_err(told)?;
        let OpenedBy::Ipc(handle) = opened.by else {
            let _ = self.connection.close(&[slab]);
            let detail = format!(
                "the keeper with process {} passes memory by file descriptors, which HTTP cannot carry: use its socket, or a keeper \
                 with --handles ipc",
                self.keeper
            );
            return Err(Problem::new(Kind::Conflict, detail));
        };
        self.slabs.insert(slab, Slab { bytes: opened.bytes, handle });
        Ok(())
    }

    fn show(&self, id: LeaseId) -> Option<Held> {
        let lease = self.leases.get(&id)?;
        let slab = self.slabs.get(&lease.slab)?;
        Some(Held {
            keeper: self.keeper,
            id: id.0,
            pid: self.process.pid,
            tenant: self.tenant.to_string(),
            bytes: lease.bytes,
            offset: lease.offset,
            slab_bytes: slab.bytes,
            handle: slab.handle.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    fn release(&mut self, id: LeaseId) -> Result<(), Problem> {
        self.connection.free(&[id]).map_err(told)?;
        let Some(lease) = self.leases.remove(&id) else { return Ok(()) };
        if !self.leases.values().any(|other| other.slab == lease.slab) {
            self.slabs.remove(&lease.slab);
            self.connection.close(&[lease.slab]).map_err(told)?;
        }
        Ok(())
    }
}
