//! Fences behind the program's work, for the holder.
//!
//! The launch path does nothing for them, and calls that copy add to a number. The hook's thread
//! looks a hundred times a second whether the program has launched or copied since the last look.
//! If so, it puts a write of a number behind what is in each stream, a *round*; the GPU writes it
//! into the [page](FlightPage) when all of that has ended. A launch is counted before the driver
//! has it, so a round covers the launches that the look before had counted. A last round comes when
//! the program exits ([`put_last`]).
//!
//! A write takes a place in the stream's channel, which is full after some 1,000 commands. Then the
//! driver's call waits, so another thread puts them than the one that opens the gate. Rounds come
//! the slower the more of them have not passed ([`round_pause_ns`]), and few while the tenant's
//! gate is closed ([`AT_GATE_MAX`]): the places are the program's.
//!
//! The thread does not touch streams while there is a capture, or while a stream is destroyed
//! ([`quiet`]). A fence in the default stream would order the program's blocking streams. So where
//! there are such streams, the thread asks instead whether the default stream is idle. Default
//! streams of threads get no fence: then, and with several contexts, the page says that not
//! everything is seen.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use partita_ledger::mutex::Mutex;
use partita_ledger::{FENCES, FLIGHT_BYTES, FlightPage, round_pause_ns};

use crate::account::tenant::{self, Tenant};
use crate::driver::calls::{Kept, calls};
use crate::driver::memory_ops::MemoryOps;
use crate::driver::page::PageCalls;
use crate::driver::{capture, quiet, stream};
use crate::sys::clock::{now_ns, sleep_ns};
use crate::sys::fork::{in_child, renew};
use crate::sys::watcher;

/// How often the thread looks, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;
/// Fences in flight, of all streams together, up to which there are rounds while the gate is
/// closed: a quarter of a channel. An endless kernel closes the gate for ever, and needs its fence.
const AT_GATE_MAX: usize = 256;
/// Launches and copies, by the piece, that may be in flight up to which an exit puts a fence behind
/// them: half a channel.
const AT_EXIT_MAX: u64 = 500;
/// How long an exit gives a call of another thread to reach the driver.
const AT_EXIT_NS: u32 = 1_000_000;
/// A fence in an idle stream has passed after so long.
const SHORT_NS: u64 = 50_000;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// The place of the default stream of the context; others follow.
const DEFAULT: usize = 0;

calls! {
    /// Entry points that go to the context of the streams.
    struct ContextCalls;
    push = cuCtxPushCurrent_v2;
    pop = cuCtxPopCurrent_v2;
    query = cuStreamQuery;
}

struct FenceCalls {
    memory: MemoryOps,
    page: PageCalls,
    contexts: ContextCalls,
}

fn fence_calls() -> Option<&'static FenceCalls> {
    static CALLS: Kept<FenceCalls> = Kept::new();
    CALLS.get(|| {
        Ok(FenceCalls {
            memory: MemoryOps::resolve()?,
            page: PageCalls::resolve()?,
            contexts: ContextCalls::resolve()?,
        })
    })
}

/// Null before the first delivery; then mapped for as long as the process.
static PAGE: AtomicPtr<FlightPage> = AtomicPtr::new(core::ptr::null_mut());
/// The page's file; -1 for none.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// The context whose streams have fences, and in which the GPU has the page: the first one, until
/// it ends. 0 for none.
static CONTEXT: AtomicUsize = AtomicUsize::new(0);
/// Where the GPU has the page.
static DEVICE: AtomicU64 = AtomicU64::new(0);
/// The streams of the places in the page: their handles, 0 for none.
static STREAMS: [AtomicUsize; FENCES] = [const { AtomicUsize::new(0) }; FENCES];
/// The contexts of the streams of [`STREAMS`]: 0 where it is not known.
static OWNERS: [AtomicUsize; FENCES] = [const { AtomicUsize::new(0) }; FENCES];
/// Streams that wait for the default stream, and it for them.
static BLOCKING: AtomicUsize = AtomicUsize::new(0);
/// Whether each stream of [`STREAMS`] is one of those.
static IS_BLOCKING: [AtomicBool; FENCES] = [const { AtomicBool::new(false) }; FENCES];
/// Whether [`count_other`] gets the launches of a tenant without a mask.
static COUNTED: AtomicBool = AtomicBool::new(false);
/// When the last round was put, by the clock of the hook.
static PUT_NS: AtomicU64 = AtomicU64::new(0);
/// The thread's notes.
static NOTES: Mutex<Notes> = Mutex::new(Notes::NEW);

struct Notes {
    /// Launches and copies at the last look.
    counted: Counts,
    /// The number of the last round. A stream's fences have the numbers of their rounds.
    round: u32,
    /// A round that has not passed, when it was put, and what was behind it.
    timed: Option<(u32, u64, Counts)>,
    /// What has ended for certain.
    passed: Counts,
    /// When the next round may be put.
    next_ns: u64,
}

impl Notes {
    const NEW: Self = Self { counted: Counts::NONE, round: 0, timed: None, passed: Counts::NONE, next_ns: 0 };

    /// Sees whether the rounds in flight have passed.
    fn see_passed(&mut self, page: &FlightPage, now: u64) {
        if let Some((round, put_ns, covered)) = self.timed
            && page.fences.iter().all(|fence| fence.has_passed(round))
        {
            let ms = now.saturating_sub(put_ns) / 1_000_000;
            page.note_passed(u32::try_from(ms).unwrap_or(u32::MAX));
            self.timed = None;
            self.passed = covered;
        }
    }
}

/// What the program has put into its streams.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Counts {
    launches: u64,
    copies: u64,
}

impl Counts {
    const NONE: Self = Self { launches: 0, copies: 0 };

    fn of(tenant: &Tenant, page: &FlightPage) -> Self {
        let launches = tenant.gpus().iter().map(|gpu| gpu.slot.launches());
        Self { launches: launches.fold(page.others(), u64::wrapping_add), copies: page.copies() }
    }

    /// How many have no fence behind them.
    fn uncovered(self, page: &FlightPage) -> u64 {
        self.launches.wrapping_sub(page.covered()).saturating_add(page.copies_uncovered())
    }

    /// How many there are since these.
    fn since(self, earlier: Self) -> u64 {
        let copies = self.copies.wrapping_sub(earlier.copies);
        self.launches.wrapping_sub(earlier.launches).saturating_add(copies)
    }

    fn cover(self, page: &FlightPage) {
        page.cover(self.launches);
        if !page.has_lost_sight() {
            page.cover_copies(self.copies);
        }
    }
}

// A child has no context and no page.
in_child! {
    renew(&NOTES, Notes::NEW);
    PAGE.store(core::ptr::null_mut(), Ordering::Relaxed);
    let file = FILE.swap(-1, Ordering::Relaxed);
    if file >= 0 {
        libc::close(file);
    }
    CONTEXT.store(0, Ordering::Relaxed);
    COUNTED.store(false, Ordering::Relaxed);
    PUT_NS.store(0, Ordering::Relaxed);
    BLOCKING.store(0, Ordering::Relaxed);
    STREAMS.iter().for_each(|stream| stream.store(0, Ordering::Relaxed));
}

fn known() -> Option<&'static FlightPage> {
    // SAFETY: null, or mapped for ever by make().
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// The descriptor of the page, which is made and mapped for the GPU the first time. Called with a
/// context that was just made, one call at a time.
pub fn page(tenant: &Tenant) -> Option<c_int> {
    if PAGE.load(Ordering::Acquire).is_null() {
        make()?;
    }
    let page = known()?;
    if !tenant.is_masked() && !COUNTED.load(Ordering::Relaxed) {
        // Nothing counts its launches.
        page.lose_sight();
    }
    if watcher::COMMANDS.start(true).is_err() {
        page.lose_sight();
    }
    Some(FILE.load(Ordering::Acquire))
}

/// The process has made a context, or has retained its primary one.
pub fn context_made(tenant: &Tenant) {
    let Some(page) = known() else { return };
    let driver = tenant.driver();
    let is_active = |device: &c_int| driver.primary_context_is_active(*device);
    let devices = 0..tenant.gpus().len() as c_int;
    let primary = devices.filter(is_active).filter_map(|device| driver.primary_context(device));
    for context in core::iter::once(driver.current_context()).chain(primary).filter(|context| *context != 0) {
        let first = CONTEXT.compare_exchange(0, context, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err_and(|first| first != context) {
            page.lose_sight();
        }
    }
}

#[cold]
fn make() -> Option<()> {
    // SAFETY: plain system calls; a fresh mapping overlaps nothing and stays. Zeros are a page's
    // valid content.
    unsafe {
        let name = c"partita-flight".as_ptr();
        let file = libc::syscall(libc::SYS_memfd_create, name, libc::MFD_CLOEXEC) as c_int;
        if file < 0 {
            return None;
        }
        let at = match libc::posix_fallocate(file, 0, FLIGHT_BYTES as libc::off_t) {
            0 => libc::mmap(
                core::ptr::null_mut(),
                FLIGHT_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file,
                0,
            ),
            _ => libc::MAP_FAILED,
        };
        if at == libc::MAP_FAILED {
            libc::close(file);
            return None;
        }
        (*at.cast::<FlightPage>()).begin();
        FILE.store(file, Ordering::Release);
        PAGE.store(at.cast(), Ordering::Release);
    }
    quiet::before_exit(put_last);
    Some(())
}

/// The program launches something that the ledger does not count.
#[inline]
pub fn count_other() {
    if let Some(page) = known() {
        page.count_other();
    }
}

/// The program copies or fills memory in this stream, and does not wait for it.
#[inline]
pub fn count_copy(stream: *mut c_void) {
    if let Some(page) = known() {
        if stream.addr() == stream::PER_THREAD {
            page.lose_sight();
        }
        page.count_copy();
    }
}

/// Copies up to now, for [`copies_ended`].
#[inline]
pub fn copies() -> u64 {
    known().map_or(0, FlightPage::copies)
}

/// The program has waited for everything in its context, or in the only stream that is known, with
/// so many copies before it.
#[inline]
pub fn copies_ended(copies: u64, of_context: bool) {
    if let Some(page) = known().filter(|page| of_context || !page.has_lost_sight()) {
        page.cover_copies(copies);
    }
}

/// From now on [`count_other`] gets the launches that no mask counts.
pub fn launches_are_counted() {
    COUNTED.store(true, Ordering::Relaxed);
}

/// Whether fences were put so lately that a stream may have nothing else to do.
pub fn were_just_put() -> bool {
    now_ns().saturating_sub(PUT_NS.load(Ordering::Relaxed)) < SHORT_NS
}

/// The program launches in a stream that gets no fence.
#[cold]
pub fn lose_sight() {
    if let Some(page) = known() {
        page.lose_sight();
    }
}

/// The program has made a stream in its current context, or in a green one.
pub fn stream_made(stream: *mut c_void, flags: c_uint, is_green: bool) {
    let (Some(page), Some(tenant)) = (known(), tenant::current()) else { return };
    let context = if is_green { 0 } else { tenant.driver().current_context() };
    let present = CONTEXT.load(Ordering::Acquire);
    if context != 0 && present != 0 && context != present {
        return page.lose_sight();
    }
    let is_free = |at: &usize| STREAMS[*at].load(Ordering::Relaxed) == 0 && page.fences[*at].is_passed();
    let is_blocking = flags & NON_BLOCKING == 0;
    let notes = NOTES.lock();
    let Some(at) = (DEFAULT + 1..FENCES).find(is_free) else { return page.lose_sight() };
    // Not the number of a round that was put before there was this stream.
    page.fences[at].pass(notes.round);
    IS_BLOCKING[at].store(is_blocking, Ordering::Relaxed);
    BLOCKING.fetch_add(usize::from(is_blocking), Ordering::Relaxed);
    OWNERS[at].store(context, Ordering::Relaxed);
    STREAMS[at].store(stream.addr(), Ordering::Release);
}

/// The program is about to end a stream: what it has launched goes on.
pub fn stream_ends(stream: *mut c_void) {
    let Some(page) = known() else { return };
    let _quiet = quiet::keep();
    let mut notes = NOTES.lock();
    let Some(at) = STREAMS.iter().position(|known| known.load(Ordering::Relaxed) == stream.addr()) else {
        return;
    };
    if at == DEFAULT {
        return;
    }
    // Captures forbid it: then what the stream ends with is not seen.
    notes.round = notes.round.wrapping_add(1);
    if capture::is_any() || !put(page, at, stream, notes.round) {
        page.lose_sight();
    }
    forget(at);
}

/// Frees the place of a stream, if there is one.
fn forget(at: usize) -> bool {
    let was_taken = STREAMS[at].swap(0, Ordering::AcqRel) != 0;
    if was_taken {
        BLOCKING.fetch_sub(usize::from(IS_BLOCKING[at].load(Ordering::Relaxed)), Ordering::Relaxed);
    }
    was_taken
}

/// A context has ended, and its streams and their work with it. The driver reads freed memory if it
/// is given one of them afterwards.
pub fn context_ended(context: usize) {
    let Some(page) = known() else { return };
    let mut notes = NOTES.lock();
    if CONTEXT.compare_exchange(context, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        DEVICE.store(0, Ordering::Release);
        BLOCKING.store(0, Ordering::Relaxed);
        STREAMS.iter().for_each(|stream| stream.store(0, Ordering::Relaxed));
        page.fences.iter().for_each(|fence| fence.pass(notes.round));
        notes.timed = None;
        return;
    }
    for (at, owner) in OWNERS.iter().enumerate() {
        let owner = owner.load(Ordering::Relaxed);
        if (owner == 0 || owner == context) && forget(at) {
            // Its work may go on if the stream was another context's.
            page.fences[at].pass(notes.round);
            page.lose_sight();
        }
    }
}

/// Puts the fence of a round into a stream of the current context.
fn put(page: &FlightPage, at: usize, stream: *mut c_void, round: u32) -> bool {
    let (Some(calls), device) = (fence_calls(), DEVICE.load(Ordering::Acquire)) else { return false };
    if device == 0 {
        return false;
    }
    let fence = &page.fences[at];
    let word = core::ptr::from_ref(&fence.done).addr() - core::ptr::from_ref(page).addr();
    // SAFETY: the page stays mapped for the GPU as long as the context.
    match unsafe { calls.memory.write(stream, device + word as u64, round) } {
        Ok(()) => {
            // Not before: the process may die in between, and nothing would pass the fence.
            fence.put.store(round, Ordering::Release);
            true
        }
        Err(code) => {
            if code.is_sticky() {
                page.fail();
            }
            false
        }
    }
}

/// Puts fences behind what was launched since the last look, and says in how many nanoseconds to
/// look again; none for a process without a holder.
pub fn look(tenant: &Tenant, is_gate_open: bool) -> Option<u64> {
    let page = known()?;
    let mut notes = NOTES.lock();
    let now = now_ns();
    notes.see_passed(page, now);
    let counts = Counts::of(tenant, page);
    let is_mapped = DEVICE.load(Ordering::Acquire) != 0;
    if is_mapped && counts.uncovered(page) == 0 {
        // Nothing is to be covered.
        notes.counted = counts;
        return Some(LOOK_NS);
    }
    let counted = core::mem::replace(&mut notes.counted, counts);
    let rounds = notes.timed.map_or(0, |(timed, ..)| notes.round.wrapping_sub(timed) as usize + 1);
    let streams = || STREAMS.iter().filter(|stream| stream.load(Ordering::Relaxed) != 0).count() + 1;
    if (is_gate_open || streams() * (rounds + 1) <= AT_GATE_MAX)
        && now >= notes.next_ns
        && let Some(_putting) = quiet::put()
        && !capture::is_any()
    {
        let round = notes.round.wrapping_add(1);
        notes.round = round;
        // The program can make streams while this waits for room.
        drop(notes);
        let is_put = put_all(tenant, page, round) == Some(true);
        let end = now_ns();
        PUT_NS.store(end, Ordering::Relaxed);
        notes = NOTES.lock();
        if is_put {
            counted.cover(page);
            let (timed, ..) = *notes.timed.get_or_insert((round, now, counted));
            notes.next_ns = end + round_pause_ns(end.saturating_sub(now), round.wrapping_sub(timed));
        }
    }
    Some(LOOK_NS)
}

/// The program exits: a last round, so that the holder need not find out whether its last work has
/// ended. Not behind much work: the channel may be full, and the exit would wait for it.
fn put_last() {
    let (Some(page), Some(tenant)) = (known(), tenant::current()) else { return };
    let Some(_putting) = quiet::put_soon() else { return };
    let mut notes = NOTES.lock();
    let counts = Counts::of(tenant, page);
    notes.see_passed(page, now_ns());
    if DEVICE.load(Ordering::Acquire) == 0
        || capture::is_any()
        || counts.uncovered(page) == 0
        || counts.since(notes.passed) > AT_EXIT_MAX
    {
        return;
    }
    if counts != notes.counted {
        // Other threads may be on their way into the driver.
        sleep_ns(AT_EXIT_NS);
    }
    let round = notes.round.wrapping_add(1);
    notes.round = round;
    if put_all(tenant, page, round) == Some(true) {
        counts.cover(page);
    }
}

/// Puts a fence into every stream; whether that succeeded. None where there is no context.
fn put_all(tenant: &Tenant, page: &FlightPage, round: u32) -> Option<bool> {
    let calls = fence_calls()?;
    let context = match CONTEXT.load(Ordering::Acquire) {
        0 => tenant.driver().active_context()?,
        context => context,
    };
    // SAFETY: a context of the process; calls that destroy one wait for this thread.
    unsafe { (calls.contexts.push)(core::ptr::with_exposed_provenance_mut(context)) }.ok().ok()?;
    let is_put = map(calls, page, context) && {
        let default = core::ptr::null_mut();
        let is_default_put = match BLOCKING.load(Ordering::Relaxed) {
            0 => put(page, DEFAULT, default, round),
            // SAFETY: the default stream of the current context.
            _ => unsafe { (calls.contexts.query)(default) }.is_ok(),
        };
        let streams = STREAMS.iter().enumerate().skip(DEFAULT + 1);
        let used = streams.map(|(at, stream)| (at, stream.load(Ordering::Acquire)));
        // Every stream, also if one refuses.
        used.filter(|(_, stream)| *stream != 0).fold(is_default_put, |is_put, (at, stream)| {
            put(page, at, core::ptr::with_exposed_provenance_mut(stream), round) && is_put
        })
    };
    // SAFETY: a valid pointer; what was pushed is on top.
    let _ = unsafe { (calls.contexts.pop)(&mut core::ptr::null_mut()) };
    Some(is_put)
}

/// Has the GPU reach the page in the current context.
fn map(calls: &FenceCalls, page: &FlightPage, context: usize) -> bool {
    if DEVICE.load(Ordering::Acquire) != 0 {
        return true;
    }
    match calls.page.map(core::ptr::from_ref(page).addr(), FLIGHT_BYTES) {
        Ok(device) => {
            DEVICE.store(device, Ordering::Release);
            CONTEXT.store(context, Ordering::Release);
            true
        }
        Err(_) => false,
    }
}
