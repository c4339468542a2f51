//! Chains as owners of leases: they live as long as somebody holds a lock on their file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::pool::{OwnerId, Pool, Refusal, TenantId};
use thiserror::Error;

/// Why a file is not taken for a chain's.
#[derive(Debug, Error)]
pub(super) enum ChainError {
    /// What came is no file of a chain.
    #[error("the descriptor is of {0}: pass the chain's file")]
    NotAFile(&'static str),
    /// It cannot be looked at.
    #[error("the chain's file cannot be opened anew: {0}; the keeper's user must be able to read it")]
    Io(#[from] io::Error),
    /// Nobody has a role of it.
    #[error("nobody holds a lock on the chain's file: take a role of the chain first, and keep it")]
    Unlocked,
    /// It is another tenant's, or the pool refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another tenant has joined it.
    #[error("the chain is another tenant's: use that one's name, or a chain of your own")]
    OtherTenant,
}

struct Chain {
    owner: OwnerId,
    tenant: TenantId,
    /// A description of the keeper's own, which has no locks: what is seen on it is others'.
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
        let file = opened_anew(descriptor)?;
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

    /// Ends the owners whose chains nobody runs any more.
    pub(super) fn sweep(&mut self, pool: &mut Pool, now_ms: u64) {
        self.by_file.retain(|_, chain| {
            // What cannot be looked at counts as locked: nobody's memory is taken for an error of
            // the keeper's.
            let lives = is_locked(&chain.file).unwrap_or(true);
            if !lives {
                let _ = pool.end(chain.owner, now_ms);
            }
            lives
        });
    }
}

/// The file of a descriptor under a description of our own: with the sender's, its locks would look
/// like ours, and would live as long as we hold it.
fn opened_anew(descriptor: OwnedFd) -> Result<File, ChainError> {
    let received = File::from(descriptor);
    // Before it is opened: to open something else may wait, or do something.
    if !received.metadata()?.is_file() {
        return Err(ChainError::NotAFile("something else than a file"));
    }
    Ok(File::open(format!("/proc/self/fd/{}", received.as_raw_fd()))?)
}

fn is_locked(file: &File) -> io::Result<bool> {
    partita_ledger::is_locked_elsewhere(file.as_raw_fd())
        .map_err(|errno| io::Error::from_raw_os_error(errno.0))
}
