//! What the hook's thread does for launches that stand in queues: where a stream waits for
//! something of the program's own, it lets on whoever waits behind that stream.
//!
//! A stream that has not come to its launch takes no slot, so whoever waits behind it need not.
//! Without this a program could wait for itself: for a word or a host function, for one. A launch
//! that has begun is overtaken by nobody.
//!
//! A stream may also be held up by waits of other streams that share its hardware queue, and those
//! end by themselves. They are of launches made before, as all that such a stream can wait for is,
//! if the program adds nothing. So the thread notes which streams have not come to their launch,
//! and looks again until all that was launched by then has ended, has begun, or waits for such a
//! stream. What has not moved since then waits for something of the program's own.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use partita_abi::CuResult;
use partita_ledger::mutex::Mutex;

use crate::slots::pools::{self, At, Pool};
use crate::slots::streams::{self, STREAMS, Stream};
use crate::sys::fork::{in_child, renew};
use crate::sys::watcher;

/// How often the thread looks while launches are in flight, in nanoseconds.
const LOOK_NS: u64 = 20_000_000;
/// The shortest time for which a stream has not moved before others are let on, in nanoseconds.
const PATIENCE_NS: u64 = 100_000_000;

/// Whether any launch has waited.
static WAITS: AtomicBool = AtomicBool::new(false);
static NOTES: Mutex<Notes> = Mutex::new(Notes { since_ns: 0, streams: Vec::new() });

// Has a child begin anew.
in_child! {
    WAITS.store(false, Ordering::Relaxed);
    renew(&NOTES, Notes { since_ns: 0, streams: Vec::new() });
}

/// What the thread noted at one moment. The thread alone uses it.
struct Notes {
    since_ns: u64,
    /// By the streams' numbers; empty if nothing is noted.
    streams: Vec<Note>,
}

/// What was noted of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    /// Launches that it had.
    launches: u32,
    /// Launches that had ended, if it had not come to the next one, and has not since.
    stuck_at: Option<u32>,
}

/// A stream with launches that have not ended.
struct Pending<'a> {
    pool: &'a Pool,
    number: usize,
    stream: &'a Stream,
}

impl Pending<'_> {
    /// Launches that have ended, if it has not come to the next one.
    fn stuck_at(&self) -> Option<u32> {
        let ended = self.pool.ended(self.number);
        (self.pool.at(self.number) == At::Before).then_some(ended)
    }
}

/// Has the thread look, as long as something is in flight. Nothing waits without it.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if there can be no thread.
pub fn start() -> Result<(), CuResult> {
    let is_first = !WAITS.load(Ordering::Relaxed) && !WAITS.swap(true, Ordering::SeqCst);
    watcher::start(is_first).inspect_err(|_| WAITS.store(false, Ordering::Relaxed))
}

/// Lets on whoever waits behind a stream that waits for something else, and says in how many
/// nanoseconds to look again; none if nothing is in flight.
pub fn look(now_ns: u64) -> Option<u64> {
    if !WAITS.load(Ordering::SeqCst) {
        return None;
    }
    let mut notes = NOTES.lock();
    let all = streams::table()?.in_pools();
    let pending =
        all.filter_map(|(pool, number, stream)| Some(Pending { pool: pools::get(pool)?, number, stream }));
    let pending: Vec<Pending<'_>> =
        pending.filter(|pending| !pending.pool.is_over(pending.number, pending.stream)).collect();
    if pending.is_empty() {
        notes.streams.clear();
        return None;
    }
    if notes.streams.is_empty() || !notes.still_stuck(&pending) {
        notes.begin(now_ns, &pending);
    } else if now_ns.saturating_sub(notes.since_ns) > PATIENCE_NS && notes.is_rest_over(&pending) {
        for Pending { pool, number, stream } in &pending {
            if let Some(ended) = notes.streams[*number].stuck_at {
                pool.let_on(*number, stream, ended);
            }
        }
        notes.streams.clear();
    }
    Some(LOOK_NS)
}

impl Notes {
    fn begin(&mut self, now_ns: u64, pending: &[Pending<'_>]) {
        self.since_ns = now_ns;
        self.streams.clear();
        if pending.iter().all(|pending| pending.stuck_at().is_none()) {
            return;
        }
        self.streams.resize(STREAMS, Note { launches: 0, stuck_at: None });
        for pending in pending {
            let launches = pending.stream.launches.load(Ordering::Relaxed);
            self.streams[pending.number] = Note { launches, stuck_at: pending.stuck_at() };
        }
    }

    /// Forgets streams that have moved; whether any is left that has not.
    fn still_stuck(&mut self, pending: &[Pending<'_>]) -> bool {
        let mut is_any = false;
        for pending in pending {
            let note = &mut self.streams[pending.number];
            note.stuck_at = note.stuck_at.filter(|ended| pending.stuck_at() == Some(*ended));
            is_any |= note.stuck_at.is_some();
        }
        is_any
    }

    /// Whether everything that was launched when the notes were made has ended, or has begun, or
    /// waits for a stream that has not moved.
    fn is_rest_over(&self, pending: &[Pending<'_>]) -> bool {
        pending.iter().all(|pending| {
            let noted = self.streams[pending.number].launches;
            let ahead = pending.pool.ended(pending.number).wrapping_sub(noted);
            ahead.cast_signed() >= 0 || self.is_held_up(pending.pool, pending.number)
        })
    }

    /// Whether a stream has begun a launch, or waits in the end for one that has not moved.
    fn is_held_up(&self, pool: &Pool, number: usize) -> bool {
        let mut at = number;
        // Waits lead to launches made before, so each stream is met once at most.
        for _ in 0..STREAMS {
            match pool.at(at) {
                At::Launch => return at == number,
                At::Before => return self.streams.get(at).is_some_and(|note| note.stuck_at.is_some()),
                At::Waits(next) => at = next,
            }
        }
        false
    }
}
