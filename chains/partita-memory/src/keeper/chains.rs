//! Chains as owners of leases: they live as long as a process holds a lock on their file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::pool::{OwnerId, Pool, Refusal, TenantId};
use thiserror::Error;

/// Why a file is not accepted as a chain's.
#[derive(Debug, Error)]
pub(super) enum ChainError {
    /// It is not a regular file.
    #[error("the descriptor is of {0}: pass the chain's file")]
    NotAFile(&'static str),
    /// It cannot be examined.
    #[error("the chain's file cannot be opened again: {0}; the keeper's user must be able to read it")]
    Io(#[from] io::Error),
    /// No process has a role of it.
    #[error("no process holds a lock on the chain's file: take a role of the chain first, and keep it")]
    Unlocked,
    /// It belongs to another tenant, or the pool refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another tenant has joined it.
    #[error("the chain belongs to another tenant: use that tenant's name, or your own chain")]
    OtherTenant,
}

struct Chain {
    owner: OwnerId,
    tenant: TenantId,
    /// The keeper's own description, which has no locks: all visible locks are others'.
    file: File,
}

/// The chains that own leases, by device and inode of their files.
#[derive(Default)]
pub(super) struct Chains {
    by_file: BTreeMap<(u64, u64), Chain>,
}

impl Chains {
    pub(super) fn len(&self) -> usize {
        self.by_file.len()
    }

    /// The owner that stands for a chain, of which `member` becomes one.
    pub(super) fn join(
        &mut self,
        pool: &mut Pool,
        descriptor: OwnedFd,
        member: OwnerId,
        tenant: TenantId,
        now_ms: u64,
    ) -> Result<OwnerId, ChainError> {
        let file = reopened(descriptor)?;
        let status = file.metadata()?;
        let key = (status.dev(), status.ino());
        if !is_locked(&file)? {
            return Err(ChainError::Unlocked);
        }
        let owner = match self.by_file.get(&key) {
            Some(known) if known.tenant != tenant => return Err(ChainError::OtherTenant),
            Some(known) => known.owner,
            None => {
                let owner = pool.add_owner(tenant, now_ms)?;
                self.by_file.insert(key, Chain { owner, tenant, file });
                owner
            }
        };
        pool.add_member(owner, member)?;
        Ok(owner)
    }

    /// Ends the owners whose chains no process runs any more.
    pub(super) fn sweep(&mut self, pool: &mut Pool, now_ms: u64) {
        self.by_file.retain(|_, chain| {
            // A file that cannot be examined counts as locked: an error of the keeper must not take
            // memory from a chain.
            let lives = is_locked(&chain.file).unwrap_or(true);
            if !lives {
                let _ = pool.end(chain.owner, now_ms);
            }
            lives
        });
    }
}

/// Opens the file of a descriptor under a new description: with the sender's, its locks would look
/// like the keeper's, and would live as long as the keeper holds it.
fn reopened(descriptor: OwnedFd) -> Result<File, ChainError> {
    let received = File::from(descriptor);
    // Check before opening: opening another kind of file may wait, or have an effect.
    if !received.metadata()?.is_file() {
        return Err(ChainError::NotAFile("something other than a file"));
    }
    Ok(File::open(format!("/proc/self/fd/{}", received.as_raw_fd()))?)
}

fn is_locked(file: &File) -> io::Result<bool> {
    partita_ledger::is_locked_elsewhere(file.as_raw_fd())
        .map_err(|errno| io::Error::from_raw_os_error(errno.0))
}
