//! The client side: leases of the keeper's memory, open in this process.
//!
//! [`Connection`] speaks to the keeper and needs no GPU: for administration, and for callers that
//! open memory themselves. [`Client`] opens each slab once, caches returned leases for the next
//! one, and gives out [`Leased`] memory that is returned when it is dropped.

mod connection;
mod error;
mod leased;
mod slabs;
mod stash;

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::pool::{Lease, LeaseId, OwnerId, SlabId};
use partita_driver::Gpu;

pub use connection::{Connection, Opened, OpenedBy};
pub use error::Error;
pub use leased::Leased;
pub use slabs::OpenSlab;

use crate::name::TenantName;
use crate::wire::{Beat, Code, Welcome};
use slabs::Slabs;
use stash::Stash;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// After how long without a sign of life its leases end; `None` for never. The client sends one
    /// with every request, and as often as needed while it leases from its cache. A cached lease
    /// that is silent for longer is lost, though no other client gets its memory before this
    /// process has returned it or is gone.
    pub ttl: Option<Duration>,
    /// Bytes that it caches at most for later leases; 0 for none.
    pub kept_bytes_max: u64,
    /// How long it waits for an answer.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { ttl: None, kept_bytes_max: 256 << 20, patience: Duration::from_secs(30) }
    }
}

/// Leases of one keeper's memory, for the thread that has the GPU.
///
/// Returned memory may be leased again at once, by any client of the tenant: work launched on it
/// must be done by then, because the driver does not wait for it as in `cuMemFree`.
pub struct Client<'a> {
    /// First, so that slabs are closed before the connection to the keeper.
    slabs: RefCell<Slabs<'a>>,
    stash: RefCell<Stash>,
    connection: RefCell<Connection>,
    gpu: &'a Gpu<'a>,
    ttl_ms: u32,
    beat_every: Option<Duration>,
    last_beat: Cell<Instant>,
    /// Leases that ended by their deadline since the last query.
    expired: Cell<u32>,
    /// How often the keeper reported ended leases of this client. It does not say which, so no
    /// older lease is cached.
    endings: Cell<u64>,
}

impl<'a> Client<'a> {
    /// Connects to the keeper of this GPU, for a tenant.
    ///
    /// # Errors
    /// [`Error::NoKeeper`], [`Error::OtherGpu`], and refusals of the keeper.
    pub fn connect(
        gpu: &'a Gpu<'a>,
        socket: &Path,
        tenant: TenantName,
        options: &Options,
    ) -> Result<Self, Error> {
        let connection = Connection::connect(socket, Some(tenant), options.patience)?;
        let welcome = *connection.welcome();
        if welcome.gpu_uuid != gpu.facts().uuid {
            return Err(Error::OtherGpu {
                socket: socket.to_owned(),
                keepers: uuid(welcome.gpu_uuid),
                ours: uuid(gpu.facts().uuid),
            });
        }
        let ttl_ms = options.ttl.map_or(0, |ttl| u32::try_from(ttl.as_millis().max(1)).unwrap_or(u32::MAX));
        Ok(Self {
            slabs: RefCell::new(Slabs::new(gpu)),
            stash: RefCell::new(Stash::new(options.kept_bytes_max, welcome.batch_max)),
            connection: RefCell::new(connection),
            gpu,
            ttl_ms,
            // Two signs of life may be late before the third is too late.
            beat_every: options.ttl.map(|ttl| ttl / 3),
            last_beat: Cell::new(Instant::now()),
            expired: Cell::new(0),
            endings: Cell::new(0),
        })
    }

    /// The keeper.
    #[must_use]
    pub fn welcome(&self) -> Welcome {
        *self.connection.borrow().welcome()
    }

    #[must_use]
    pub fn gpu(&self) -> &'a Gpu<'a> {
        self.gpu
    }

    /// Leases at least this many bytes, open in this process. The old content is unspecified. If
    /// there is no other room, cached leases of this client are returned for it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lease(&self, bytes: u64) -> Result<Leased<'_, 'a>, Error> {
        self.beat_if_due()?;
        let lease = self.take(bytes)?;
        let endings = self.endings.get();
        match self.slab(lease.slab) {
            Ok(slab) => Ok(Leased::new(self, lease, slab, bytes, endings)),
            Err(error) => {
                self.give_back(lease, endings);
                Err(error)
            }
        }
    }

    /// Joins a chain by its file, on which a process must hold a lock: the chain's leases live as
    /// long as such a lock. Returns its number, for [`Client::lease_for`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn join_chain(&self, file: BorrowedFd<'_>) -> Result<OwnerId, Error> {
        self.connection.borrow_mut().join_chain(file)
    }

    /// Leases blocks for a chain, all or none. They belong to the chain: the end of this client
    /// does not return them.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lease_for(&self, chain: OwnerId, bytes: u64, count: u32) -> Result<Vec<Lease>, Error> {
        self.connection.borrow_mut().lease(Some(chain), bytes, count, 0)
    }

    /// Returns leases that are not a [`Leased`], all or none: a chain's. Any client of the tenant
    /// may.
    ///
    /// # Errors
    /// [`Error`].
    pub fn free(&self, leases: &[LeaseId]) -> Result<(), Error> {
        self.connection.borrow_mut().free(leases)
    }

    /// A slab, opened if it is not open yet. It stays open while it is in use, and after that until
    /// the keeper asks to close it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn slab(&self, slab: SlabId) -> Result<Rc<OpenSlab<'a>>, Error> {
        self.slabs.borrow_mut().get(slab, &mut self.connection.borrow_mut())
    }

    /// Sends a sign of life, returns leases that were unused since the last one, and closes slabs
    /// at the keeper's request. Call it about every second if possible; [`Client::lease`] does when
    /// deadlines require it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn beat(&self) -> Result<Beat, Error> {
        let surplus = self.stash.borrow_mut().surplus();
        let mut connection = self.connection.borrow_mut();
        self.last_beat.set(Instant::now());
        connection.free(&surplus)?;
        let beat = connection.beat()?;
        if beat.expired > 0 {
            // Some of them may be in the cache; this client still returns them, and no other client
            // has them before that.
            self.expired.set(self.expired.get().saturating_add(beat.expired));
            self.endings.set(self.endings.get() + 1);
            let kept = self.stash.borrow_mut().take_all();
            connection.free(&kept)?;
        }
        self.slabs.borrow_mut().close(&beat.retiring, &mut connection)?;
        Ok(beat)
    }

    /// How many leases ended by their deadline since the last call: their memory is still this
    /// process's until they are dropped.
    pub fn take_expired(&self) -> u32 {
        self.expired.take()
    }

    fn beat_if_due(&self) -> Result<(), Error> {
        match self.beat_every {
            Some(every) if self.last_beat.get().elapsed() >= every => self.beat().map(drop),
            _ => Ok(()),
        }
    }

    fn take(&self, bytes: u64) -> Result<Lease, Error> {
        let mut stash = self.stash.borrow_mut();
        if let Some(lease) = stash.take(bytes) {
            return Ok(lease);
        }
        let count = stash.batch(bytes);
        let mut connection = self.connection.borrow_mut();
        let leased = connection.lease(None, bytes, count, self.ttl_ms);
        // A batch is optional, one lease is necessary.
        let leased = match leased {
            Err(Error::Refused { .. }) if count > 1 => connection.lease(None, bytes, 1, self.ttl_ms),
            leased => leased,
        };
        let leased = match leased {
            // The missing memory may be in this client's cache, or in slabs that it has open
            // without use.
            Err(Error::Refused { code: Code::Quota | Code::OutOfMemory | Code::TooMany, .. }) => {
                connection.free(&stash.take_all())?;
                self.slabs.borrow_mut().close_all(&mut connection)?;
                connection.lease(None, bytes, 1, self.ttl_ms)
            }
            leased => leased,
        };
        let mut leased = leased?;
        let lease = leased.pop().ok_or(Error::Answer { asked: "lease" })?;
        leased.into_iter().for_each(|lease| drop(stash.put(lease)));
        Ok(lease)
    }

    /// Caches a lease for the next one, or returns some: always one that may have ended since it
    /// was taken. Leases that are not returned now are returned when the connection ends.
    fn give_back(&self, lease: Lease, endings: u64) {
        let has_ended = endings != self.endings.get();
        let over = if has_ended { vec![lease.id] } else { self.stash.borrow_mut().put(lease) };
        if !over.is_empty() {
            let _ = self.connection.borrow_mut().free(&over);
        }
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // Return everything, so that no memory has to rest until this process ends. If the keeper
        // is gone, its memory is gone too.
        let kept = self.stash.borrow_mut().take_all();
        let mut connection = self.connection.borrow_mut();
        let _ = connection.free(&kept);
        let _ = self.slabs.borrow_mut().close_all(&mut connection);
    }
}

fn uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
