//! Requests to the keeper, and its answers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::pool::{Lease, LeaseId, OwnerId, SlabId};
use partita_ledger::SocketPeer;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use super::Error;
use crate::millis;
use crate::name::TenantName;
use crate::socket::{self, Buffer};
use crate::wire::{
    Beat, Code, HANDLE_BYTES, ITEMS_MAX, LeaseRow, Privileged, ROWS_MAX, Reply, Request, Status, TenantRow,
    VERSION, Welcome, tag_of,
};

/// The longest wait for room in a socket, as set in the kernel; longer than any client's patience.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The largest number of rows of a list: twice as many as a keeper has leases.
const LIST_ROWS_MAX: usize = 1 << 17;

/// How to open a slab.
#[derive(Debug)]
pub enum OpenedBy {
    /// A handle of CUDA's interprocess calls.
    Ipc([u8; HANDLE_BYTES]),
    Descriptor(OwnedFd),
}

/// A slab that the keeper counts as open here from now on.
#[derive(Debug)]
pub struct Opened {
    pub bytes: u64,
    /// How to open it.
    pub by: OpenedBy,
}

/// A connection to a keeper, with one request at a time.
pub struct Connection {
    socket: OwnedFd,
    path: PathBuf,
    user: u32,
    welcome: Welcome,
    patience: Duration,
    tag: u64,
    frame: Vec<u8>,
    buffer: Buffer,
    is_out_of_step: bool,
}

impl Connection {
    /// Connects and greets: for a tenant, or to query and to administer.
    ///
    /// # Errors
    /// [`Error::NoKeeper`], [`Error::Unattended`], [`Error::Stranger`], and refusals of the keeper.
    pub fn connect(socket: &Path, tenant: Option<TenantName>, patience: Duration) -> Result<Self, Error> {
        let no_keeper = |reason| Error::NoKeeper { socket: socket.to_owned(), reason };
        let address = socket::address(socket).map_err(no_keeper)?;
        let connected = socket::packet_socket(SocketFlags::empty())?;
        // If the listener's queue is full, the connection would wait. Zero would mean for ever.
        let wait = patience.clamp(Duration::from_millis(1), WAIT_MAX);
        set_socket_timeout(&connected, Timeout::Send, Some(wait)).map_err(io::Error::from)?;
        match rustix::io::retry_on_intr(|| rustix::net::connect(&connected, &address)) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                return Err(Error::Unattended { socket: socket.to_owned(), patience_ms: millis(patience) });
            }
            Err(errno) => return Err(no_keeper(errno.into())),
        }
        // All users may be able to write to its directory, and the first may take a name there.
        let peer =
            SocketPeer::of(connected.as_raw_fd()).map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        let own = rustix::process::geteuid().as_raw();
        // Root may query and administer a user's keeper, and leases nothing from it.
        let may_be_others = own == 0 && tenant.is_none();
        if peer.uid != own && peer.uid != 0 && !may_be_others {
            return Err(Error::Stranger { socket: socket.to_owned(), uid: peer.uid });
        }
        let pid = peer.pid.unsigned_abs();
        let mut connection = Self {
            socket: connected,
            path: socket.to_owned(),
            user: peer.uid,
            welcome: Welcome {
                version: 0,
                handles: crate::wire::HandleKind::Ipc,
                instance: 0,
                gpu_uuid: [0; 16],
                pid,
                batch_max: 1,
                ttl_ms_max: 0,
            },
            patience,
            tag: 0,
            frame: Vec::new(),
            buffer: Buffer::new(),
            is_out_of_step: false,
        };
        let hello = Request::Hello { version: VERSION, tenant };
        match connection.ask(&hello, None)?.0 {
            // The kernel's number for the process, which is 0 for a process of a namespace that is
            // not below this one's.
            Reply::Welcome(welcome) => {
                connection.welcome = Welcome { pid: if pid == 0 { welcome.pid } else { pid }, ..welcome };
            }
            _ => return Err(Error::Answer { asked: "hello" }),
        }
        Ok(connection)
    }

    /// The keeper's greeting; its process number is the kernel's, if that has one.
    #[must_use]
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The user of the listening process, by the kernel.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Leases `count` blocks of at least `bytes`, all or none, for this connection or a chain that
    /// it joined.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lease(
        &mut self,
        owner: Option<OwnerId>,
        bytes: u64,
        count: u32,
        ttl_ms: u32,
    ) -> Result<Vec<Lease>, Error> {
        match self.ask(&Request::Lease { owner, bytes, count, ttl_ms }, None)?.0 {
            Reply::Leased(leases) if leases.len() == count as usize => Ok(leases),
            _ => Err(Error::Answer { asked: "lease" }),
        }
    }

    /// Returns leases; as many at a time as a frame holds, each time all or none.
    ///
    /// # Errors
    /// [`Error`].
    pub fn free(&mut self, leases: &[LeaseId]) -> Result<(), Error> {
        for leases in leases.chunks(ITEMS_MAX) {
            self.done(&Request::Free { leases: leases.to_vec() })?;
        }
        Ok(())
    }

    /// Requests the handle of a slab. The keeper counts it as open until [`Connection::close`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(&mut self, slab: SlabId) -> Result<Opened, Error> {
        match self.ask(&Request::Open { slab }, None)? {
            (Reply::Slab { bytes, handle: Some(handle), .. }, _) => {
                Ok(Opened { bytes, by: OpenedBy::Ipc(handle) })
            }
            (Reply::Slab { bytes, handle: None, .. }, Some(descriptor)) => {
                Ok(Opened { bytes, by: OpenedBy::Descriptor(descriptor) })
            }
            _ => Err(Error::Answer { asked: "open" }),
        }
    }

    /// Reports that slabs are closed, and that nothing uses them any more.
    ///
    /// # Errors
    /// [`Error`].
    pub fn close(&mut self, slabs: &[SlabId]) -> Result<(), Error> {
        for slabs in slabs.chunks(ITEMS_MAX) {
            self.done(&Request::Close { slabs: slabs.to_vec() })?;
        }
        Ok(())
    }

    /// Sends a sign of life.
    ///
    /// # Errors
    /// [`Error`].
    pub fn beat(&mut self) -> Result<Beat, Error> {
        match self.ask(&Request::Beat, None)?.0 {
            Reply::Beat(beat) => Ok(beat),
            _ => Err(Error::Answer { asked: "beat" }),
        }
    }

    /// Joins a chain by its file, on which a process must hold a lock.
    ///
    /// # Errors
    /// [`Error`].
    pub fn join_chain(&mut self, file: BorrowedFd<'_>) -> Result<OwnerId, Error> {
        match self.ask(&Request::Own, Some(file))?.0 {
            Reply::Owner(owner) => Ok(owner),
            _ => Err(Error::Answer { asked: "own" }),
        }
    }

    /// The keeper's state.
    ///
    /// # Errors
    /// [`Error`].
    pub fn status(&mut self) -> Result<Status, Error> {
        match self.ask(&Request::Status, None)?.0 {
            Reply::Status(status) => Ok(status),
            _ => Err(Error::Answer { asked: "status" }),
        }
    }

    /// All leases, in the order of their creation.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Answer`] if there are more than a keeper can have, and [`Error::Silent`]
    /// if they take longer than the patience.
    pub fn leases(&mut self) -> Result<Vec<LeaseRow>, Error> {
        let begin = Instant::now();
        let mut all: Vec<LeaseRow> = Vec::new();
        loop {
            let after = all.last().map_or(LeaseId(0), |row| row.lease.id);
            match self.ask(&Request::Leases { after }, None)?.0 {
                Reply::Leases(rows) => {
                    let is_last = rows.len() < ROWS_MAX;
                    all.extend(rows);
                    self.check_list("leases", all.len(), begin)?;
                    if is_last {
                        return Ok(all);
                    }
                }
                _ => return Err(Error::Answer { asked: "leases" }),
            }
        }
    }

    /// All tenants, in order of users and names.
    ///
    /// # Errors
    /// As [`Connection::leases`].
    pub fn tenants(&mut self) -> Result<Vec<TenantRow>, Error> {
        let begin = Instant::now();
        let mut all: Vec<TenantRow> = Vec::new();
        loop {
            let skip = u32::try_from(all.len()).unwrap_or(u32::MAX);
            match self.ask(&Request::Tenants { skip }, None)?.0 {
                Reply::Tenants(rows) => {
                    let is_last = rows.len() < ROWS_MAX;
                    all.extend(rows);
                    self.check_list("tenants", all.len(), begin)?;
                    if is_last {
                        return Ok(all);
                    }
                }
                _ => return Err(Error::Answer { asked: "tenants" }),
            }
        }
    }

    /// Sets the quota of a user's tenant, in bytes of slabs; it need not have clients yet.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_quota(&mut self, uid: u32, tenant: TenantName, bytes: u64) -> Result<(), Error> {
        self.done(&Request::Privileged(Privileged::Quota { uid, tenant, bytes }))
    }

    /// Ends the keeper, unless memory is leased and `force` is false.
    ///
    /// # Errors
    /// [`Error`].
    pub fn end_keeper(&mut self, even_if_leased: bool) -> Result<(), Error> {
        self.done(&Request::Privileged(Privileged::End { even_if_leased }))
    }

    fn done(&mut self, request: &Request) -> Result<(), Error> {
        match self.ask(request, None)?.0 {
            Reply::Done => Ok(()),
            _ => Err(Error::Answer { asked: request.name() }),
        }
    }

    /// Ends any lease before its time. Its memory rests until its owner has returned it too, or has
    /// ended.
    ///
    /// # Errors
    /// [`Error`]; [`Code::Unknown`]; [`Code::InUse`] if it has ended already.
    pub fn take_back(&mut self, lease: LeaseId) -> Result<(), Error> {
        self.done(&Request::Privileged(Privileged::TakeBack { lease }))
    }

    /// Frees the memory of an ended owner although its process is not gone: the caller guarantees
    /// that the process no longer writes there.
    ///
    /// # Errors
    /// [`Error`]; [`Code::Unknown`]; [`Code::InUse`] for an owner that lives.
    pub fn disown(&mut self, owner: OwnerId) -> Result<(), Error> {
        self.done(&Request::Privileged(Privileged::Disown { owner }))
    }

    /// Makes this connection, which greeted without a tenant, that of another process with this
    /// descriptor: that process owns the leases, and they end with it or with this connection. Only
    /// the keeper's user and root may.
    ///
    /// # Errors
    /// [`Error`].
    pub fn speak_for(
        &mut self,
        process: BorrowedFd<'_>,
        pid: u32,
        uid: u32,
        tenant: TenantName,
    ) -> Result<(), Error> {
        let request = Request::Privileged(Privileged::SpeakFor { uid, pid, tenant });
        match self.ask(&request, Some(process))?.0 {
            Reply::Done => Ok(()),
            _ => Err(Error::Answer { asked: request.name() }),
        }
    }

    /// Sends a request, and waits for the answer.
    fn ask(
        &mut self,
        request: &Request,
        with: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Option<OwnedFd>), Error> {
        if self.is_out_of_step {
            return Err(Error::OutOfStep);
        }
        self.tag += 1;
        request.encode(self.tag, &mut self.frame);
        // Until its answer arrives, the next answer would be the wrong one.
        self.is_out_of_step = true;
        // A keeper that refuses a connection sends the reason and closes it, perhaps before the
        // greeting is sent.
        let sent = socket::send(&self.socket, &self.frame, with, SendFlags::empty());
        self.wait(request.name())?;
        let received = socket::receive(&self.socket, &mut self.buffer, RecvFlags::empty());
        // If the other end was closed with unread data, Linux reports that before it delivers an
        // earlier answer.
        let received = if received.as_ref().is_err_and(is_gone) {
            drop(received);
            socket::receive(&self.socket, &mut self.buffer, RecvFlags::empty())
        } else {
            received
        };
        let packet = match received {
            Ok(Some(packet)) => packet,
            Ok(None) => return Err(gone(&self.path)),
            Err(error) if is_gone(&error) => return Err(gone(&self.path)),
            Err(error) => return Err(error.into()),
        };
        let tag = tag_of(packet.bytes);
        let reply = Reply::decode(packet.bytes)?;
        self.is_out_of_step = false;
        if let Reply::Error { code, text } = reply {
            // An answer without a request is about the connection.
            self.is_out_of_step = tag == 0 && code == Code::TooMany;
            return Err(Error::Refused { asked: request.name(), code, text });
        }
        match sent {
            Err(error) if is_gone(&error) => return Err(gone(&self.path)),
            sent => sent?,
        }
        let descriptor = packet.descriptors.into_iter().next();
        if tag != self.tag || usize::from(descriptor.is_some()) != reply.descriptors() {
            self.is_out_of_step = true;
            return Err(Error::Answer { asked: request.name() });
        }
        Ok((reply, descriptor))
    }

    /// Checks a list that arrives in parts: a list without end is not a keeper's.
    fn check_list(&self, asked: &'static str, rows: usize, begin: Instant) -> Result<(), Error> {
        if rows > LIST_ROWS_MAX {
            return Err(Error::Answer { asked });
        }
        if begin.elapsed() > self.patience { Err(self.silent(asked)) } else { Ok(()) }
    }

    fn silent(&self, asked: &'static str) -> Error {
        let (socket, patience_ms) = (self.path.clone(), millis(self.patience));
        Error::Silent { socket, asked, patience_ms, pid: self.welcome.pid }
    }

    /// Waits for an answer.
    fn wait(&self, asked: &'static str) -> Result<(), Error> {
        // A deadline too far for the clock is no deadline.
        let until = Instant::now().checked_add(self.patience);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| rustix::event::Timespec::try_from(left).ok());
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut polled, timeout.as_ref()) {
                Ok(0) => return Err(self.silent(asked)),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Io(errno.into())),
            }
        }
    }
}

fn gone(path: &Path) -> Error {
    Error::KeeperGone { socket: path.to_owned() }
}

/// Whether an error means that the other end is closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}
