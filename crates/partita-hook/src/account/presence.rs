//! This process's record in the GPU's elastic file: whether it is at work, for those who borrow.
//!
//! A launch looks whether the record says so already: two loads. Nothing else is done for it until
//! all work has ended ([`rest`](crate::slots::rest)).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partita_core::TpcSet;
use partita_core::elastic::Law;
use partita_ledger::{ElasticMap, Limits, LimitsMap};

use crate::sys::clock::now_ns;

/// How often a borrower looks for owners that died or keep its work waiting, in nanoseconds.
const LOOK_NS: u64 = 2_500_000;

/// The record of this process.
pub struct Presence {
    /// The file.
    pub map: ElasticMap,
    /// The record's number.
    pub record: usize,
    /// Whether the tenant borrows.
    pub borrows: bool,
    /// The limits' epoch for which the record has the tenant's TPCs.
    epoch: AtomicU64,
    /// How often the process has come to rest.
    rests: AtomicU32,
}

/// A number of a tenant, by its name, which no other tenant of the user has.
pub fn number_of(limits: &Limits) -> u64 {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    limits.name.iter().fold(0xcbf2_9ce4_8422_2325, hash)
}

impl Presence {
    /// Claims a record; `None` if the file has none left, and the tenant's TPCs are lent to nobody.
    ///
    /// # Errors
    /// The file's.
    pub fn claim(
        map: ElasticMap,
        epoch: u64,
        limits: &Limits,
    ) -> Result<Option<Self>, partita_ledger::LedgerError> {
        let borrows = limits.borrow_tpcs_max != 0;
        let owned = TpcSet::from_words(limits.set);
        let Some(record) = map.claim(number_of(limits), owned, borrows, now_ns())? else { return Ok(None) };
        let (epoch, rests) = (AtomicU64::new(epoch), AtomicU32::new(0));
        Ok(Some(Self { map, record, borrows, epoch, rests }))
    }

    /// The process is about to launch: others see it at work from here on.
    #[inline]
    pub fn before_launch(&self, limits: &LimitsMap) {
        if !self.is_at_work() || self.epoch.load(Ordering::Relaxed) != limits.epoch() {
            self.begin(limits);
        }
    }

    #[cold]
    fn begin(&self, limits: &LimitsMap) {
        if let Ok((epoch, now)) = limits.load() {
            self.map.put_owned(self.record, TpcSet::from_words(now.set));
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        self.map.begin(self.record, now_ns());
    }

    /// Whether others see the process at work.
    #[inline]
    pub fn is_at_work(&self) -> bool {
        self.map.is_at_work(self.record)
    }

    /// How often the process has come to rest.
    #[inline]
    pub fn rests(&self) -> u32 {
        self.rests.load(Ordering::Relaxed)
    }

    /// All work has ended, unless something was launched meanwhile.
    pub fn rest(&self, is_still: impl Fn() -> bool) {
        self.map.rest(self.record, now_ns());
        // Threads that launch count first and look at the record then, without a fence.
        // SAFETY: a plain system call. It fails where begin_barriers() did.
        let code =
            unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
        if code != 0 || !is_still() {
            return self.map.begin(self.record, now_ns());
        }
        self.rests.fetch_add(1, Ordering::Relaxed);
        if self.borrows {
            self.map.give_back(self.record, TpcSet::EMPTY);
        }
    }

    /// Lets go on what waits for too long, and clears the records of dead processes. Returns in how
    /// many nanoseconds to look again; `None` for a tenant that does not borrow.
    pub fn look(&self) -> Option<u64> {
        if !self.borrows {
            return None;
        }
        let (law, now_ns) = (Law::default(), now_ns());
        self.map.relent(|begun_ns| law.passes(begun_ns, now_ns));
        // What fails now is tried again.
        let _ = self.map.reap();
        Some(if self.is_at_work() { LOOK_NS } else { 10 * LOOK_NS })
    }
}

/// Makes the barrier of [`Presence::rest`] available to this process. Where the kernel has none,
/// the process never rests, and its TPCs are not lent.
pub fn begin_barriers() {
    // SAFETY: a plain system call.
    let _ =
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) };
}
