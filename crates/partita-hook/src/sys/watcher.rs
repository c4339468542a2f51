//! The one thread that the hook ever has: started when a tenant's priority, share of time or holder
//! needs it, asleep for most of the time.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

use partita_abi::CuResult;
use partita_ledger::mutex::Mutex;

use crate::sys::fork::in_child;
use crate::sys::futex;

/// The thread's periodic work: returns in how many nanoseconds to run again, if at all.
pub type Look = fn() -> Option<u64>;

/// The [`Look`]; null before the process attaches.
static LOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the thread's work, before anything can start it.
pub fn prepare(look: Look) {
    LOOK.store(look as *mut (), Ordering::Release);
}

static STARTED: AtomicBool = AtomicBool::new(false);
/// Changes when the thread is to look now.
static BELL: AtomicU32 = AtomicU32::new(0);
/// Whether the thread sleeps until the bell.
static DOZES: AtomicBool = AtomicBool::new(false);
/// The thread holds one of these while it sleeps and looks, in turns: it has the next one before it
/// lets go of this one. So a thread that waits for a look lends it its priority, and cannot come
/// between two looks.
static LOOKING: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
/// How many looks have ended: this one's turn in [`LOOKING`] is the present one.
static LOOKS: AtomicU32 = AtomicU32::new(0);

// A forked child has no such thread.
in_child! {
    STARTED.store(false, Ordering::Relaxed);
    DOZES.store(false, Ordering::Relaxed);
    LOOKING.iter().for_each(|turn| turn.reset_after_fork());
}

/// The lock of a look.
fn turn_of(look: u32) -> &'static Mutex<()> {
    &LOOKING[look as usize % LOOKING.len()]
}

/// Has the thread look now, and waits for the end of a look: of the one under way, if there is one.
#[cold]
pub fn await_look() {
    let look = LOOKS.load(Ordering::Acquire);
    ring();
    drop(turn_of(look).lock());
}

/// Sees to it that the thread runs, and that it looks soon: at once if `now`.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if there can be no thread.
#[inline]
pub fn start(now: bool) -> Result<(), CuResult> {
    if !STARTED.load(Ordering::Relaxed) {
        launch_thread()?;
    }
    // What the caller has noted, and whether the thread sleeps: see watch().
    fence(Ordering::SeqCst);
    if now || DOZES.load(Ordering::SeqCst) {
        ring();
    }
    Ok(())
}

#[cold]
fn ring() {
    BELL.fetch_add(1, Ordering::SeqCst);
    futex::wake_all(&BELL);
}

#[cold]
fn launch_thread() -> Result<(), CuResult> {
    if STARTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: plain calls on values of this frame. The program's signals are for its own threads,
    // so this one is born with all of them blocked.
    let started = unsafe {
        let (mut all, mut former) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut former);
        let mut thread = 0;
        let started = libc::pthread_create(&mut thread, core::ptr::null(), watch, core::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &former, core::ptr::null_mut());
        if started == 0 {
            libc::pthread_detach(thread);
        }
        started
    };
    if started != 0 {
        STARTED.store(false, Ordering::Relaxed);
        return Err(CuResult::OUT_OF_MEMORY);
    }
    Ok(())
}

extern "C" fn watch(_: *mut c_void) -> *mut c_void {
    // Slices of time are milliseconds: the default slack of 50 µs would be a few percent of them.
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0) };
    let look = LOOK.load(Ordering::Acquire);
    if look.is_null() {
        return look.cast();
    }
    // SAFETY: prepare() stored a function of this type.
    let look = unsafe { core::mem::transmute::<*mut (), Look>(look) };
    let mut looks = LOOKS.load(Ordering::Relaxed);
    let mut looking = turn_of(looks).lock();
    loop {
        let heard = BELL.load(Ordering::SeqCst);
        let mut next = look();
        if next.is_none() {
            DOZES.store(true, Ordering::SeqCst);
            // A launching thread either sees that it sleeps, or is seen here.
            fence(Ordering::SeqCst);
            next = look();
        }
        looks = looks.wrapping_add(1);
        let next_turn = turn_of(looks).lock();
        LOOKS.store(looks, Ordering::Release);
        drop(core::mem::replace(&mut looking, next_turn));
        futex::wait(&BELL, heard, next);
        DOZES.store(false, Ordering::SeqCst);
    }
}
