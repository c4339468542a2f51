//! Frames' memory from a keeper: it outlives every component.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use partita_driver::Gpu;
use partita_memory::TenantName;
use partita_memory::client::{Connection, OpenedBy};

use crate::error::Error;
use crate::memory::{Granted, Slabs};

/// How long a keeper is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory that a keeper leases to the chain as a whole, for as long as any of its components lives.
#[derive(Debug)]
pub struct KeeperSlabs {
    socket: PathBuf,
    /// The chain's file, by whose locks the keeper knows that the chain lives.
    chain: PathBuf,
    tenant: TenantName,
}

impl KeeperSlabs {
    /// From the keeper at that socket, for the chain with that file. `tenant` is whose quota counts.
    pub fn new(socket: impl Into<PathBuf>, chain: impl Into<PathBuf>, tenant: TenantName) -> Self {
        Self { socket: socket.into(), chain: chain.into(), tenant }
    }

    fn connect(&self) -> Result<Connection, Error> {
        Ok(Connection::connect(&self.socket, Some(self.tenant), PATIENCE)?)
    }

    fn chain_file(&self) -> Result<File, Error> {
        File::open(&self.chain).map_err(|source| Error::System { what: "the chain's file", source })
    }
}

impl<'g> Slabs<'g> for KeeperSlabs {
    fn grant(&mut self, gpu: &'g Gpu<'g>, bytes: u64) -> Result<Granted<'g>, Error> {
        let mut keeper = self.connect()?;
        let welcome = *keeper.welcome();
        if welcome.gpu_uuid != gpu.facts().uuid {
            return Err(Error::Keeper {
                socket: self.socket.clone(),
                reason: "has the memory of another GPU than this component uses; start one for this GPU"
                    .to_owned(),
            });
        }
        let chain = keeper.join_chain(self.chain_file()?.as_fd())?;
        let leases = keeper.lease(Some(chain), bytes, 1, 0)?;
        let lease = leases.first().copied().ok_or_else(|| self.odd("granted nothing"))?;
        let opened = keeper.open(lease.slab)?;
        let OpenedBy::Ipc(handle) = opened.by else {
            return Err(Error::Keeper {
                socket: self.socket.clone(),
                reason: "gives descriptors, and components pass handles on; start it with `--handles ipc`"
                    .to_owned(),
            });
        };
        let end = lease.offset.checked_add(bytes).filter(|end| *end <= opened.bytes);
        let end = end.ok_or_else(|| self.odd("granted a block outside of its slab"))?;
        Ok(Granted {
            handle,
            begins_at: lease.offset,
            bytes: end,
            keeper: Some(welcome.instance),
            tag: [0; 2],
            // Opened as by everybody, so that nobody's mapping goes before the others'.
            memory: None,
        })
    }

    fn is_there(&mut self, instance: u64) -> bool {
        let leased = || -> Result<bool, Error> {
            let mut keeper = self.connect()?;
            if keeper.welcome().instance != instance {
                return Ok(false);
            }
            let chain = keeper.join_chain(self.chain_file()?.as_fd())?;
            Ok(keeper.leases()?.iter().any(|row| row.owner == chain && !row.is_resting))
        };
        // If it cannot be asked, `grant` says why.
        leased().unwrap_or(false)
    }
}

impl KeeperSlabs {
    fn odd(&self, what: &str) -> Error {
        Error::Keeper {
            socket: self.socket.clone(),
            reason: format!("{what}; it is of another version, start it anew"),
        }
    }
}
