//! What a process has in flight on the GPU: a page that the process, the GPU and the holder share.
//!
//! The hook puts fences into the program's streams: writes of a number into the page, which the GPU
//! does when everything before them has ended. The process may die at any instruction. The page is
//! an anonymous file, so the holder of the tenant still reads it then, and sees the GPU's writes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Streams with a fence: more than the 1,000 that programs with floods of streams were seen to use.
pub const FENCES: usize = 2000;
/// Size of the page's file, in bytes.
pub const FLIGHT_BYTES: usize = 16384;

const MAGIC: u64 = u64::from_le_bytes(*b"PTFLIGHT");
/// Bits of the state: the work of the process was ended by the driver.
const FAILED: u32 = 1;
/// Some work is in a stream without a fence.
const UNSEEN: u32 = 2;

/// The least pause after a round of fences, one in each stream, in nanoseconds.
const PAUSE_NS_MIN: u64 = 10_000_000;
/// The pause after a round doubles with each round in flight, up to this many times.
const DOUBLINGS_MAX: u32 = 8;
/// The pause after a round is so many times as long as the round took, because the program's calls
/// wait for the same locks of the driver.
const PAUSE_PER_ROUND: u64 = 20;
/// Such a pause is at most this long, in nanoseconds.
const PAUSE_NS_MAX: u64 = 250_000_000;

/// The pause in nanoseconds after a round of fences that took `took_ns` to put, with `in_flight`
/// rounds since the oldest one that has not passed. Streams that stand still get ever fewer, so
/// that they do not fill their channels.
#[must_use]
pub fn round_pause_ns(took_ns: u64, in_flight: u32) -> u64 {
    let of_round = took_ns.saturating_mul(PAUSE_PER_ROUND).min(PAUSE_NS_MAX);
    of_round.max(PAUSE_NS_MIN << in_flight.min(DOUBLINGS_MAX))
}

/// The fence of a stream.
#[repr(C)]
#[derive(Debug)]
pub struct Fence {
    /// The last number that the process has surely put into the stream. The process may die between
    /// the two, so the GPU may write a later one.
    pub put: AtomicU32,
    /// The last number that the GPU has written.
    pub done: AtomicU32,
}

impl Fence {
    /// Whether the GPU has passed it.
    pub fn is_passed(&self) -> bool {
        is_passed(self.put.load(Ordering::Acquire), self.done.load(Ordering::Acquire))
    }

    /// Whether the GPU has passed this number, or all that was put.
    pub fn has_passed(&self, number: u32) -> bool {
        self.is_passed() || is_passed(number, self.done.load(Ordering::Acquire))
    }

    /// Has nothing in flight, and was last passed with this number. For a stream whose fences the
    /// GPU will not write.
    pub fn pass(&self, number: u32) {
        self.done.store(number, Ordering::Release);
        self.put.store(number, Ordering::Release);
    }
}

/// Whether the GPU has written this number or a later one.
fn is_passed(put: u32, done: u32) -> bool {
    done.wrapping_sub(put) < 1 << 31
}

/// The page, as the process maps it.
#[repr(C)]
#[derive(Debug)]
pub struct FlightPage {
    magic: AtomicU64,
    covered: AtomicU64,
    state: AtomicU32,
    longest_ms: AtomicU32,
    others: AtomicU64,
    copies: AtomicU64,
    copies_ended: AtomicU64,
    /// By stream.
    pub fences: [Fence; FENCES],
}

const _: () = assert!(size_of::<FlightPage>() <= FLIGHT_BYTES);

impl FlightPage {
    /// Marks a page of zeros as one.
    pub fn begin(&self) {
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Counts a launch that the ledger does not count: one of a graph.
    pub fn count_other(&self) {
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    /// Launches that the ledger does not count.
    pub fn others(&self) -> u64 {
        self.others.load(Ordering::Relaxed)
    }

    /// All launches up to this number, those of graphs included, have a fence behind them.
    pub fn cover(&self, launches: u64) {
        self.covered.store(launches, Ordering::Release);
    }

    /// Launches that have a fence behind them.
    pub fn covered(&self) -> u64 {
        self.covered.load(Ordering::Relaxed)
    }

    /// Counts a copy that the program does not wait for.
    pub fn count_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// Copies that the program did not wait for when it made them.
    pub fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    /// All copies up to this number have a fence behind them, or have ended.
    pub fn cover_copies(&self, copies: u64) {
        self.copies_ended.fetch_max(copies, Ordering::Release);
    }

    /// Copies that have no fence behind them and may be in flight.
    pub fn copies_uncovered(&self) -> u64 {
        self.copies().wrapping_sub(self.copies_ended.load(Ordering::Relaxed))
    }

    /// Whether some work is in a stream without a fence.
    pub fn has_lost_sight(&self) -> bool {
        self.state.load(Ordering::Relaxed) & UNSEEN != 0
    }

    /// A fence was passed so many milliseconds after it was put.
    pub fn note_passed(&self, ms: u32) {
        self.longest_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// The driver has ended the work of the process.
    pub fn fail(&self) {
        self.state.fetch_or(FAILED, Ordering::Release);
    }

    /// From now on there is work in streams that have no fence.
    pub fn lose_sight(&self) {
        self.state.fetch_or(UNSEEN, Ordering::Release);
    }
}

/// What is known of the work of a dead process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flight {
    /// All of it has ended.
    Over,
    /// Some of it runs, or waits on the GPU.
    Runs,
    /// All fences have passed, but the last launches or copies have no fence. They take about as
    /// long as the longest fence of the process, if they are like those before.
    Unfenced {
        /// The longest time that a fence took, in milliseconds.
        longest_ms: u32,
        /// Whether there are copies among them, which run on no compute units.
        has_copies: bool,
    },
}

impl Flight {
    /// How many launches that the ledger does not count, and copies, the process has begun. `None`
    /// if these bytes are not such a page.
    #[must_use]
    pub fn begun(bytes: &[u8]) -> Option<u64> {
        let u64_at = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        (u64_at(0)? == MAGIC).then_some(u64_at(24)?.wrapping_add(u64_at(32)?))
    }

    /// Reads the page's bytes; `launches` is the number of launches that the ledger has counted for
    /// the process, `None` if the process had waited for all of them. The answer is `None` if it is
    /// not such a page. A page with wrong numbers gives a wrong answer and does nothing else.
    #[must_use]
    pub fn read(bytes: &[u8], launches: Option<u64>) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        if u64_at(0)? != MAGIC {
            return None;
        }
        let (covered, state, longest_ms) = (u64_at(8)?, u32_at(16)?, u32_at(20)?);
        let (others, has_copies) = (u64_at(24)?, u64_at(32)? != u64_at(40)?);
        if state & FAILED != 0 {
            return Some(Self::Over);
        }
        let first = core::mem::offset_of!(FlightPage, fences);
        for fence in (first..).step_by(size_of::<Fence>()).take(FENCES) {
            if !is_passed(u32_at(fence)?, u32_at(fence + 4)?) {
                return Some(Self::Runs);
            }
        }
        let is_covered =
            launches.is_none_or(|ledger| ledger.wrapping_add(others) == covered && state & UNSEEN == 0);
        Some(match is_covered && !has_copies {
            true => Self::Over,
            false => Self::Unfenced { longest_ms, has_copies },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn bytes(page: &FlightPage) -> Vec<u8> {
        // SAFETY: plain words, all of them initialised, and no other thread has the page.
        unsafe {
            core::slice::from_raw_parts(core::ptr::from_ref(page).cast(), size_of::<FlightPage>()).to_vec()
        }
    }

    fn page() -> FlightPage {
        // SAFETY: zeros are a valid value of every field.
        unsafe { core::mem::zeroed() }
    }

    #[test]
    fn a_page_tells_what_is_known() {
        let page = page();
        assert_eq!(Flight::read(&bytes(&page), Some(0)), None);
        page.begin();
        assert_eq!(Flight::read(&bytes(&page), Some(0)), Some(Flight::Over));
        page.note_passed(7);
        page.note_passed(3);
        assert_eq!(
            Flight::read(&bytes(&page), Some(2)),
            Some(Flight::Unfenced { longest_ms: 7, has_copies: false })
        );
        page.fences[FENCES - 1].put.store(1, Ordering::Relaxed);
        page.cover(2);
        assert_eq!(Flight::read(&bytes(&page), Some(2)), Some(Flight::Runs));
        page.fences[FENCES - 1].done.store(1, Ordering::Relaxed);
        assert!(page.fences[FENCES - 1].is_passed());
        assert_eq!(Flight::read(&bytes(&page), Some(2)), Some(Flight::Over));
        assert!(page.fences[FENCES - 1].has_passed(1) && page.fences[FENCES - 1].has_passed(2));
        page.fences[FENCES - 1].put.store(3, Ordering::Relaxed);
        assert!(page.fences[FENCES - 1].has_passed(1) && !page.fences[FENCES - 1].has_passed(2));
        page.fences[FENCES - 1].pass(1);
        // The GPU has passed one that the process did not come to note.
        page.fences[FENCES - 1].done.store(2, Ordering::Relaxed);
        assert_eq!(Flight::read(&bytes(&page), Some(2)), Some(Flight::Over));
        page.fences[FENCES - 1].put.store(u32::MAX, Ordering::Relaxed);
        assert!(page.fences[FENCES - 1].is_passed());
        page.count_other();
        assert_eq!(
            Flight::read(&bytes(&page), Some(2)),
            Some(Flight::Unfenced { longest_ms: 7, has_copies: false })
        );
        page.cover(2 + page.others());
        assert_eq!(Flight::read(&bytes(&page), Some(2)), Some(Flight::Over));
        page.lose_sight();
        assert_eq!(
            Flight::read(&bytes(&page), Some(2)),
            Some(Flight::Unfenced { longest_ms: 7, has_copies: false })
        );
        // It had waited for all launches, but not for a copy.
        assert_eq!(Flight::read(&bytes(&page), None), Some(Flight::Over));
        page.count_copy();
        assert_eq!(page.copies_uncovered(), 1);
        let copies = Some(Flight::Unfenced { longest_ms: 7, has_copies: true });
        assert_eq!(Flight::read(&bytes(&page), None), copies);
        assert_eq!(Flight::read(&bytes(&page), Some(2)), copies);
        page.cover_copies(page.copies());
        page.cover_copies(0);
        assert_eq!(page.copies_uncovered(), 0);
        assert_eq!(Flight::read(&bytes(&page), None), Some(Flight::Over));
        page.fences[0].put.store(9, Ordering::Relaxed);
        assert_eq!(Flight::read(&bytes(&page), None), Some(Flight::Runs));
        page.fail();
        assert_eq!(Flight::read(&bytes(&page), Some(2)), Some(Flight::Over));
    }

    #[test]
    fn rounds_come_slower_the_more_of_them_are_in_flight_and_the_longer_they_take() {
        assert_eq!(round_pause_ns(1_000, 0), PAUSE_NS_MIN);
        assert_eq!(round_pause_ns(1_000_000, 0), 20_000_000);
        assert_eq!(round_pause_ns(1_000_000_000, 0), PAUSE_NS_MAX);
        assert_eq!(round_pause_ns(1_000, 3), 80_000_000);
        assert_eq!(round_pause_ns(u64::MAX, u32::MAX), PAUSE_NS_MIN << DOUBLINGS_MAX);
        // A channel that stands still for a minute has room for them.
        let (mut rounds, mut ns) = (0, 0);
        while ns < 60_000_000_000 {
            ns += round_pause_ns(0, rounds);
            rounds += 1;
        }
        assert!(rounds < 40, "{rounds}");
    }

    #[test]
    fn no_bytes_are_read_beyond_the_end() {
        let page = page();
        page.begin();
        let whole = bytes(&page);
        for length in 0..whole.len() {
            assert_eq!(Flight::read(&whole[..length], Some(0)), None);
        }
    }
}
