//! Frames' memory from a keeper: it outlives every component.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use partita_driver::Gpu;
use partita_frames::{HANDLE_BYTES, SlabOwner, SlabPlan};
use partita_memory::TenantName;
use partita_memory::client::{Connection, OpenSlab};
use partita_memory::pool::{LeaseId, OwnerId, SlabId};

use crate::cross::Site;
use crate::error::Error;
use crate::memory::{Granted, Memory, Slabs};

/// How long to wait for a keeper.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory that a keeper leases to the chain as a whole, while any of its components lives.
///
/// In a chain on several GPUs each has a keeper, whose memory is on that GPU.
///
/// Every component opens it through its own connection, by a handle or a descriptor as the keeper
/// supports. So the keeper knows which processes can write there, and reuses a dead chain's memory
/// only after each of those processes is gone.
pub struct KeeperSlabs {
    socket: PathBuf,
    /// The chain's file: its locks show the keeper that the chain lives.
    chain: PathBuf,
    tenant: TenantName,
    /// By the number of the keeper's GPU.
    links: BTreeMap<u8, Link>,
}

/// A connection that has joined the chain.
struct Link {
    keeper: Connection,
    chain: OwnerId,
    /// The slabs that the keeper counts as open here.
    opened: Vec<SlabId>,
}

impl Link {
    fn instance(&self) -> u64 {
        self.keeper.welcome().instance
    }

    /// The chain's leases, including those that were ended: their memory is not reused while the
    /// chain lives.
    fn leases(&mut self) -> Result<Vec<Leased>, Error> {
        let rows = self.keeper.leases()?;
        let own = rows.iter().filter(|row| row.owner == self.chain);
        Ok(own
            .map(|row| Leased { id: row.lease.id, slab: row.lease.slab, has_ended: row.is_resting })
            .collect())
    }
}

/// A lease of the chain's.
struct Leased {
    id: LeaseId,
    slab: SlabId,
    /// Whether the keeper wants it back.
    has_ended: bool,
}

impl Leased {
    /// Whether it is the lease in the chain's file, with that keeper.
    fn is_of(&self, plan: &SlabPlan, instance: u64) -> bool {
        plan.owner == SlabOwner::Keeper(instance) && plan.tag == tag(self.id, self.slab)
    }
}

/// A lease in the form of the chain's file.
fn tag(lease: LeaseId, slab: SlabId) -> [u64; 2] {
    [slab.0, lease.0]
}

impl KeeperSlabs {
    /// From the keeper at that socket, for the chain with that file; those of the chain's other
    /// GPUs are at that socket with `-1`, `-2` and so on. It counts against the quota of `tenant`.
    pub fn new(socket: impl Into<PathBuf>, chain: impl Into<PathBuf>, tenant: TenantName) -> Self {
        Self { socket: socket.into(), chain: chain.into(), tenant, links: BTreeMap::new() }
    }

    /// The connection, if it is to that keeper, or to the one that serves the socket now.
    fn link(&mut self, on: &Site, instance: Option<u64>) -> Result<&mut Link, Error> {
        let link = match self.links.remove(&on.number) {
            Some(link) if instance.is_none_or(|instance| link.instance() == instance) => link,
            _ => self.connect(on)?,
        };
        Ok(self.links.entry(on.number).or_insert(link))
    }

    fn socket(&self, number: u8) -> PathBuf {
        let mut socket = self.socket.clone().into_os_string();
        if number > 0 {
            socket.push(format!("-{number}"));
        }
        socket.into()
    }

    fn connect(&self, on: &Site) -> Result<Link, Error> {
        let socket = self.socket(on.number);
        let mut keeper = Connection::connect(&socket, Some(self.tenant), PATIENCE)?;
        if keeper.welcome().gpu_uuid != on.uuid {
            return Err(Error::Keeper {
                socket,
                reason: "has the memory of another GPU than the chain uses; start one for this GPU"
                    .to_owned(),
            });
        }
        let file =
            File::open(&self.chain).map_err(|source| Error::System { what: "the chain's file", source })?;
        let chain = keeper.join_chain(file.as_fd())?;
        Ok(Link { keeper, chain, opened: Vec::new() })
    }

    fn odd(&self, what: &str) -> Error {
        Error::Keeper {
            socket: self.socket.clone(),
            reason: format!("{what}; it is another version, restart it"),
        }
    }
}

impl<'g> Slabs<'g> for KeeperSlabs {
    fn grant(&mut self, _gpu: &'g Gpu<'g>, on: &Site, bytes: u64) -> Result<Granted<'g>, Error> {
        let link = self.link(on, None)?;
        let (instance, chain) = (link.instance(), link.chain);
        let leases = link.keeper.lease(Some(chain), bytes, 1, 0)?;
        let lease = leases.first().copied().ok_or_else(|| self.odd("granted nothing"))?;
        let end = lease.offset.checked_add(bytes);
        Ok(Granted {
            // Other processes open it only through the keeper.
            handle: [0; HANDLE_BYTES],
            begins_at: lease.offset,
            bytes: end.ok_or_else(|| self.odd("granted a block with an impossible address"))?,
            keeper: Some(instance),
            tag: tag(lease.id, lease.slab),
            memory: None,
        })
    }

    fn still_there(&mut self, _gpu: &'g Gpu<'g>, on: &Site, known: &[SlabPlan]) -> Result<Vec<bool>, Error> {
        let link = self.link(on, None)?;
        let (instance, mut leases) = (link.instance(), link.leases()?);
        leases.retain(|lease| !lease.has_ended);
        let strays = leases.iter().filter(|lease| !known.iter().any(|plan| lease.is_of(plan, instance)));
        // The chain's file never had them, so no process has written there.
        link.keeper.free(&strays.map(|lease| lease.id).collect::<Vec<_>>())?;
        Ok(known.iter().map(|plan| leases.iter().any(|lease| lease.is_of(plan, instance))).collect())
    }

    fn open(&mut self, gpu: &'g Gpu<'g>, on: &Site, plan: &SlabPlan) -> Result<Option<Memory<'g>>, Error> {
        let SlabOwner::Keeper(instance) = plan.owner else { return Ok(None) };
        let link = self.link(on, Some(instance))?;
        let found = link.instance();
        let lease = link.leases()?.into_iter().find(|lease| lease.is_of(plan, found));
        let Some(Leased { slab, .. }) = lease else { return Ok(None) };
        let opened = link.keeper.open(slab)?;
        match OpenSlab::open(gpu, &opened) {
            Ok(memory) => {
                if !link.opened.contains(&slab) {
                    link.opened.push(slab);
                }
                Ok(Some(Memory::Opened(memory)))
            }
            Err(error) => {
                // It is not open.
                link.keeper.close(&[slab])?;
                Err(error.into())
            }
        }
    }

    fn closed(&mut self) {
        for mut link in std::mem::take(&mut self.links).into_values() {
            // A keeper that misses this waits for the end of this process.
            let _ = link.keeper.close(&link.opened);
        }
    }
}
