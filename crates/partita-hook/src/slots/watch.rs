//! The hook's thread releases launches that wait behind a stream that waits for the program itself.
//!
//! A stream that has not reached its launch takes no slot, so the launches behind it need not wait.
//! Without the release a program could wait for itself, for example through a memory word or a host
//! function. A launch that has begun is never overtaken.
//!
//! A stream may also be blocked by waits of other streams in its hardware queue. Those waits end by
//! themselves, because they are for launches made earlier. So the thread notes the streams that
//! have not reached their launch. It looks again until each launch made before the note has ended,
//! has begun, or waits for such a stream. A stream that has not moved by then waits for the program
//! itself.

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
/// A stream must not have moved for this long before others are released, in nanoseconds.
const PATIENCE_NS: u64 = 100_000_000;

/// Whether any launch has waited.
static WAITS: AtomicBool = AtomicBool::new(false);
static NOTES: Mutex<Notes> = Mutex::new(Notes { since_ns: 0, streams: Vec::new() });

// A child starts without notes.
in_child! {
    WAITS.store(false, Ordering::Relaxed);
    renew(&NOTES, Notes { since_ns: 0, streams: Vec::new() });
}

/// What the thread noted at one moment. The thread alone uses it.
struct Notes {
    since_ns: u64,
    /// By the streams' numbers; empty if there are no notes.
    streams: Vec<Note>,
}

/// What was noted of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    /// Launches that it had.
    launches: u32,
    /// Launches that had ended, if it had not reached the next one and has not done so since.
    stuck_at: Option<u32>,
}

/// A stream with launches that have not ended.
struct Pending<'a> {
    pool: &'a Pool,
    number: usize,
    stream: &'a Stream,
}

impl Pending<'_> {
    /// Launches that have ended, if it has not reached the next one.
    fn stuck_at(&self) -> Option<u32> {
        let ended = self.pool.ended(self.number);
        (self.pool.at(self.number) == At::Before).then_some(ended)
    }
}

/// Starts the thread. It looks while launches are in flight; without it no launch may wait.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if there can be no thread.
pub fn start() -> Result<(), CuResult> {
    let is_first = !WAITS.load(Ordering::Relaxed) && !WAITS.swap(true, Ordering::SeqCst);
    watcher::RELEASES.start(is_first).inspect_err(|_| WAITS.store(false, Ordering::Relaxed))
}

/// Releases launches that wait behind a stream that waits for the program, and returns in how many
/// nanoseconds to look again; `None` if no launch is in flight.
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
                pool.release(*number, stream, ended);
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

    /// Forgets streams that have moved; returns whether any has not.
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

    /// Whether a stream has begun a launch, or its chain of waits ends at one that has not moved.
    fn is_held_up(&self, pool: &Pool, number: usize) -> bool {
        let mut at = number;
        // Waits lead to earlier launches, so each stream appears once at most.
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
