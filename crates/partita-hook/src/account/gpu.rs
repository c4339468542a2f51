//! The tenant on one of its GPUs: limits, account and mask there.

use core::sync::atomic::{Ordering, fence};

use partita_ledger::{HookState, Key, Limits, LimitsMap, NO_QUOTA, Slot};

use crate::account::launch_mask::LaunchMask;
use crate::account::presence::Presence;

/// This process's part in its tenant on one GPU.
///
/// The fields that every launch reads come first, in few cache lines.
#[repr(C)]
pub struct Gpu {
    /// The data for masking launches; `None` if the tenant has no partition.
    pub mask: Option<LaunchMask>,
    /// Whether the tenant's kernels keep to its SMs by themselves
    /// ([`persistent`](crate::persistent)).
    pub is_persistent: bool,
    /// The limits, mapped read-only.
    pub limits: LimitsMap,
    /// This process's slot in the tenant's account of this GPU.
    pub slot: Slot,
    /// Its record in the GPU's elastic file, where the tenant lends.
    pub presence: Option<Presence>,
    /// Its place among the GPUs that this process sees: the driver's ordinal.
    pub index: u8,
}

/// Bytes of device memory, the GPU on which they are charged, and the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// [`Gpu::index`].
    pub gpu: u8,
    /// The bytes.
    pub bytes: u64,
    /// To whom.
    pub account: Account,
}

/// The account that memory is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Account {
    /// This process.
    Own,
    /// This process, and it goes back to the pool of this handle.
    Pool(u64),
    /// All processes of the tenant that hold the memory of this key.
    Shared(Key),
    /// No account: it is host memory, beyond the quota.
    Host(Form),
}

/// Whether calls that move managed memory are to find it where it was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As device memory: such calls fail.
    Device,
    /// As managed memory: they do nothing.
    Managed,
}

impl Charge {
    /// Bytes that are this process's own.
    pub fn own(gpu: u8, bytes: u64) -> Self {
        Self { gpu, bytes, account: Account::Own }
    }
}

impl Gpu {
    /// The memory quota in bytes, `None` without one.
    pub fn quota_bytes(&self) -> Option<u64> {
        // A writer that holds the limits busy does so for microseconds; the
        // bound on the reader is there for one that was made to misbehave, and
        // then the safe answer is that nothing more may be had.
        match self.limits.memory_bytes() {
            Ok((NO_QUOTA, _)) => None,
            Ok((quota_bytes, _)) => Some(quota_bytes),
            Err(_) => Some(0),
        }
    }

    /// Bytes that the tenant's living processes hold together.
    pub fn used_bytes(&self) -> u64 {
        let usage = self.slot.map();
        if usage.used() > self.slot.bytes() {
            // Some may belong to a process that has ended. Even without reading the file, the
            // answer is right about what is available now.
            let _ = usage.reap();
        }
        usage.used()
    }

    /// The limits as they are now.
    pub fn limits_now(&self) -> Option<Limits> {
        self.limits.load().ok().map(|(_, limits)| limits)
    }

    /// Takes `bytes` from the quota if they fit.
    pub fn reserve(&self, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let take = |quota_bytes| self.slot.reserve(bytes, quota_bytes);
        self.within_quota(take, |()| self.credit(bytes)).is_ok()
    }

    /// Charges something to the quota as it is, and gives it back if the quota has become smaller
    /// meanwhile.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn within_quota<T, E>(
        &self,
        take: impl Fn(u64) -> Result<T, E>,
        give_back: impl Fn(T),
    ) -> Result<T, E> {
        let quota_bytes = || self.quota_bytes().unwrap_or(NO_QUOTA);
        let mut quota = quota_bytes();
        loop {
            let taken = take(quota)?;
            // A command that promises memory to another tenant lowers the quota, then reads the
            // account. It may not have seen this charge.
            fence(Ordering::SeqCst);
            let now = quota_bytes();
            if now >= quota {
                return Ok(taken);
            }
            give_back(taken);
            quota = now;
        }
    }

    /// Gives `bytes` back to the quota.
    pub fn credit(&self, bytes: u64) {
        if bytes > 0 {
            // Fails only if the ledger was damaged from outside; this path cannot report it, and
            // the observer sees the damage.
            let _ = self.slot.release(bytes);
        }
    }

    /// Reports the hook's findings about itself.
    pub fn report(&self, flags: u32) {
        self.slot.report(HookState { flags, code: 0 });
    }
}
