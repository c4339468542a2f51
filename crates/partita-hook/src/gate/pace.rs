//! Which launches of low priority wait for the lanes: the first of each unit.
//!
//! The number of launches in a unit follows from their measured lengths, for each stream
//! ([`Pacer`]). About one launch in 32 is measured, by an event before and one after it; a later
//! launch in the stream reads them, once the GPU has passed them. Nothing waits for that, and
//! captured launches are not measured. If the tenant also has a share of time, a launch that waits
//! for it counts with its wait, so units are shorter. Both events are in the launch's own stream,
//! so they order nothing that the launch does not order, even in the legacy stream.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use partita_abi::CuResult;
use partita_core::time::Pacer;
use partita_ledger::mutex::Mutex;

use crate::driver::calls::calls;
use crate::driver::stream::places;
use crate::driver::{capture, quiet};

calls! {
    /// Entry points that measure a launch.
    struct EventCalls;
    create = cuEventCreate;
    destroy = cuEventDestroy_v2;
    record = cuEventRecord;
    query = cuEventQuery;
    elapsed = cuEventElapsedTime;
}

/// Units of 200 µs: a hundred times the cost of a wait on the GPU, and the longest time that a lane
/// that closes waits.
const PACER: Pacer = Pacer::new(200_000, 64);
/// Streams that are known at a time; every launch in others waits.
const STREAMS: usize = 64;
/// Places of the table that are tried for a stream.
const TRIES: usize = 8;
/// Launches between two measurements, in turns: none of them divides the length of a program's
/// loop.
const INTERVALS: [u32; 4] = [29, 31, 37, 41];
/// Measured launches of a stream that follow each other as closely as they can be read; the first
/// of them does not count.
const FIRST: u32 = 5;
/// Launches until one that is measured is looked for again, when the GPU has not come to it: twice
/// as many each time.
const LOOK_AGAIN: u32 = 2;
const LOOK_AGAIN_MAX: u32 = 64;
/// Launches until the next try, where the driver would not measure one.
const TRY_AGAIN: u32 = 1024;

/// A stream and the unit that it is in.
struct Pace {
    /// The key of the stream; 0 without one.
    key: AtomicUsize,
    /// Launches that the present unit still takes, below the lanes that were closed when it was
    /// begun.
    unit: AtomicU64,
    /// Launches that make a unit.
    target: AtomicU32,
    /// Launches until something is to be measured or read.
    until: AtomicU32,
    sample: Mutex<Sample>,
}

/// A launch that is measured.
struct Sample {
    /// The events in front of a launch and behind it; 0 before they are made.
    events: [usize; 2],
    /// Whether they are recorded, and not read yet.
    is_pending: bool,
    /// Launches until it was looked for last.
    waited: u32,
    /// How many were read.
    readings: u32,
    pacer: Pacer,
}

impl Sample {
    const fn new() -> Self {
        Self { events: [0; 2], is_pending: false, waited: LOOK_AGAIN, readings: 0, pacer: PACER }
    }

    fn handle(event: usize) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(event)
    }

    /// Records one of the events, made when it is first needed.
    fn record(&mut self, calls: &EventCalls, which: usize, stream: *mut c_void) -> Result<(), CuResult> {
        if self.events[which] == 0 {
            let mut event = core::ptr::null_mut();
            // SAFETY: a valid pointer. No flags: the event has a time.
            unsafe { (calls.create)(&mut event, 0) }.ok()?;
            self.events[which] = event.expose_provenance();
        }
        // SAFETY: an event of the hook's own and the program's stream; the driver checks that they
        // are of one context.
        unsafe { (calls.record)(Self::handle(self.events[which]), stream) }.ok()
    }

    /// The measured length, in nanoseconds; `None` while the measurement runs.
    fn read(&self, calls: &EventCalls) -> Result<Option<u64>, CuResult> {
        let [start, end] = self.events.map(Self::handle);
        // SAFETY: events of the hook's own, which live.
        match unsafe { (calls.query)(end) } {
            CuResult::SUCCESS => {}
            CuResult::NOT_READY => return Ok(None),
            failed => return Err(failed),
        }
        let mut milliseconds = 0.0f32;
        // SAFETY: a valid pointer, and events that are complete.
        unsafe { (calls.elapsed)(&mut milliseconds, start, end) }.ok()?;
        Ok(Some((f64::from(milliseconds) * 1e6) as u64))
    }

    fn discard(&mut self, calls: &EventCalls) {
        for event in core::mem::take(&mut self.events).into_iter().filter(|event| *event != 0) {
            // SAFETY: an event of the hook, which is not used any more; the driver frees it when
            // the GPU has passed it.
            let _ = unsafe { (calls.destroy)(Self::handle(event)) };
        }
        *self = Self { pacer: self.pacer, readings: self.readings, ..Self::new() };
    }
}

/// Every stream of this process on a GPU, and how long its launches are.
pub struct Paces {
    calls: EventCalls,
    streams: [Pace; STREAMS],
    /// The lengths of launches in all of them.
    lengths: Mutex<Pacer>,
}

impl Paces {
    /// No stream is known, and no length.
    ///
    /// # Errors
    /// The first call that this driver does not have.
    pub fn new() -> Result<Self, &'static core::ffi::CStr> {
        let stream = || Pace {
            key: AtomicUsize::new(0),
            unit: AtomicU64::new(0),
            target: AtomicU32::new(1),
            until: AtomicU32::new(0),
            sample: Mutex::new(Sample::new()),
        };
        Ok(Self {
            calls: EventCalls::resolve()?,
            streams: core::array::from_fn(|_| stream()),
            lengths: Mutex::new(PACER),
        })
    }

    /// The measured lengths of this process's launches on the GPU.
    pub fn lengths(&self) -> Pacer {
        *self.lengths.lock()
    }

    fn places(&self, key: usize) -> impl Iterator<Item = &Pace> {
        places::<STREAMS>(key).take(TRIES).map(|at| &self.streams[at])
    }

    #[inline]
    fn find(&self, key: usize) -> Option<&Pace> {
        self.places(key).find(|pace| pace.key.load(Ordering::Relaxed) == key)
    }

    fn find_or_add(&self, key: usize) -> Option<&Pace> {
        self.find(key).or_else(|| {
            self.places(key).find(|pace| {
                let claimed = pace.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
                claimed.is_ok() || claimed == Err(key)
            })
        })
    }

    /// Whether a launch in the stream with this key must wait for the lanes. `closed` identifies
    /// the lanes that are closed now, 0 for none: a launch while a lane is closed that was open
    /// when the unit began begins another unit. `alone`: it is a unit by itself.
    #[inline]
    pub fn begins_unit(&self, key: usize, closed: u32, alone: bool) -> bool {
        let Some(pace) = self.find_or_add(key) else { return true };
        let unit = pace.unit.load(Ordering::Relaxed);
        let (left, under) = (unit as u32, (unit >> 32) as u32);
        let inside = left > 0 && !alone && (closed == 0 || closed == under);
        let (left, under) = match inside {
            true => (left - 1, under),
            false if alone => (0, 0),
            false => (pace.target.load(Ordering::Relaxed).saturating_sub(1), closed),
        };
        // Of two threads that launch in one stream at a time, one may not be counted: the unit is
        // so much longer.
        pace.unit.store(u64::from(under) << 32 | u64::from(left), Ordering::Relaxed);
        !inside
    }

    /// The next launch in the stream begins a unit.
    pub fn end_unit(&self, key: usize) {
        if let Some(pace) = self.find(key) {
            pace.unit.store(0, Ordering::Relaxed);
        }
    }

    /// Runs a launch in the stream with this key, measured if it is its turn.
    #[inline]
    pub fn measured(&self, key: usize, stream: *mut c_void, launch: impl FnOnce() -> CuResult) -> CuResult {
        let Some(pace) = self.find_or_add(key) else { return launch() };
        match pace.until.load(Ordering::Relaxed) {
            0 => self.measure(pace, stream, launch),
            left => {
                pace.until.store(left - 1, Ordering::Relaxed);
                launch()
            }
        }
    }

    #[cold]
    fn measure(&self, pace: &Pace, stream: *mut c_void, launch: impl FnOnce() -> CuResult) -> CuResult {
        let Some(mut sample) = pace.sample.try_lock() else { return launch() };
        // Queries would invalidate a capture, and the queried object may be about to be destroyed.
        let asking = quiet::ask().filter(|_| !capture::is_any());
        if asking.is_none() {
            pace.until.store(LOOK_AGAIN_MAX, Ordering::Relaxed);
            return launch();
        }
        if sample.is_pending {
            let until = self.look(pace, &mut sample);
            pace.until.store(until, Ordering::Relaxed);
            if until > 0 {
                return launch();
            }
        }
        let begun = sample.record(&self.calls, 0, stream);
        drop(asking);
        let result = launch();
        // Where the driver will not, the stream's units stay as they are.
        match begun.and_then(|()| sample.record(&self.calls, 1, stream)) {
            Ok(()) => {
                sample.is_pending = true;
                sample.waited = LOOK_AGAIN;
                pace.until.store(LOOK_AGAIN, Ordering::Relaxed);
            }
            Err(_) => {
                sample.discard(&self.calls);
                pace.until.store(TRY_AGAIN, Ordering::Relaxed);
            }
        }
        result
    }

    /// Checks whether the measurement is over, and returns in how many launches to measure or to
    /// check again.
    fn look(&self, pace: &Pace, sample: &mut Sample) -> u32 {
        match sample.read(&self.calls) {
            Ok(Some(launch_ns)) => {
                sample.is_pending = false;
                sample.readings = sample.readings.wrapping_add(1);
                // A stream's first launch brings its code to the GPU, and is as long as many.
                if sample.readings > 1 {
                    // The program may have been delayed between the two events, and a launch longer
                    // than a unit is gated alone anyway.
                    let launch_ns = launch_ns.min(2 * PACER.unit_ns);
                    sample.pacer.observe(launch_ns);
                    // One length more or less does not matter to the mean of all streams.
                    if let Some(mut lengths) = self.lengths.try_lock() {
                        lengths.observe(launch_ns);
                    }
                    pace.target.store(sample.pacer.launches(), Ordering::Relaxed);
                }
                if sample.readings < FIRST {
                    return 0;
                }
                INTERVALS[sample.readings as usize % INTERVALS.len()]
            }
            Ok(None) => {
                sample.waited = (sample.waited * 2).min(LOOK_AGAIN_MAX);
                sample.waited
            }
            Err(_) => {
                sample.discard(&self.calls);
                TRY_AGAIN
            }
        }
    }

    /// Forgets a stream that the program ends.
    pub fn forget(&self, key: usize) {
        if let Some(pace) = self.find(key) {
            self.reset(pace, |sample| sample.discard(&self.calls));
        }
    }

    /// Forgets all, because a context has ended and its events with it.
    pub fn context_ended(&self) {
        for pace in self.streams.iter().filter(|pace| pace.key.load(Ordering::Relaxed) != 0) {
            self.reset(pace, |sample| sample.events = [0; 2]);
        }
    }

    fn reset(&self, pace: &Pace, end: impl FnOnce(&mut Sample)) {
        let mut sample = pace.sample.lock();
        end(&mut sample);
        *sample = Sample::new();
        pace.unit.store(0, Ordering::Relaxed);
        pace.target.store(1, Ordering::Relaxed);
        pace.until.store(0, Ordering::Relaxed);
        pace.key.store(0, Ordering::Release);
    }
}
