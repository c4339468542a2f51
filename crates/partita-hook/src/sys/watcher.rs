//! The hook's threads: started when a tenant's priority, share of time or holder needs them, asleep
//! for most of the time.
//!
//! A stream's channel has room for some 1,000 commands. A call that puts one more into a full
//! channel waits, with a lock of the context, and so do most calls of other threads
//! (`docs/hardware.md`). A channel that waits for a gate stays full until the gate opens. So
//! [`RELEASES`], which opens gates, asks the driver for events alone, and [`COMMANDS`] makes the
//! calls that may wait.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

use partita_abi::CuResult;
use partita_ledger::mutex::Mutex;

use crate::sys::fork::in_child;
use crate::sys::futex;

/// The thread's periodic work: returns in how many nanoseconds to run again, if at all.
pub type Look = fn() -> Option<u64>;

/// Releases what waits on the GPU.
pub static RELEASES: Watcher = Watcher::new();
/// Puts commands into streams. Its calls may wait for room in a channel.
pub static COMMANDS: Watcher = Watcher::new();

/// A thread that looks from time to time.
pub struct Watcher {
    /// The [`Look`]; null before the process attaches.
    look: AtomicPtr<()>,
    started: AtomicBool,
    /// Changes when the thread is to look now.
    bell: AtomicU32,
    /// Whether the thread sleeps until the bell.
    dozes: AtomicBool,
    /// The thread holds one of these while it sleeps and looks, in turns: it has the next one
    /// before it lets go of this one. So a thread that waits for a look lends it its priority, and
    /// cannot come between two looks.
    looking: [Mutex<()>; 2],
    /// How many looks have ended: this one's turn in `looking` is the present one.
    looks: AtomicU32,
}

// A forked child has no such threads.
in_child! {
    RELEASES.reset_after_fork();
    COMMANDS.reset_after_fork();
}

impl Watcher {
    const fn new() -> Self {
        Self {
            look: AtomicPtr::new(core::ptr::null_mut()),
            started: AtomicBool::new(false),
            bell: AtomicU32::new(0),
            dozes: AtomicBool::new(false),
            looking: [Mutex::new(()), Mutex::new(())],
            looks: AtomicU32::new(0),
        }
    }

    /// Sets the thread's work, before anything can start it.
    pub fn prepare(&self, look: Look) {
        self.look.store(look as *mut (), Ordering::Release);
    }

    /// # Safety
    /// As for [`Mutex::reset_after_fork`].
    unsafe fn reset_after_fork(&self) {
        self.started.store(false, Ordering::Relaxed);
        self.dozes.store(false, Ordering::Relaxed);
        // SAFETY: the caller's.
        self.looking.iter().for_each(|turn| unsafe { turn.reset_after_fork() });
    }

    /// The lock of a look.
    fn turn_of(&self, look: u32) -> &Mutex<()> {
        &self.looking[look as usize % self.looking.len()]
    }

    /// Has the thread look now, and waits for the end of a look: of the one under way, if there is
    /// one.
    #[cold]
    pub fn await_look(&self) {
        let look = self.looks.load(Ordering::Acquire);
        self.ring();
        drop(self.turn_of(look).lock());
    }

    /// Sees to it that the thread runs, and that it looks soon: at once if `now`.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if there can be no thread.
    #[inline]
    pub fn start(&'static self, now: bool) -> Result<(), CuResult> {
        if !self.started.load(Ordering::Relaxed) {
            self.launch_thread()?;
        }
        // What the caller has noted, and whether the thread sleeps: see watch().
        fence(Ordering::SeqCst);
        if now || self.dozes.load(Ordering::SeqCst) {
            self.ring();
        }
        Ok(())
    }

    #[cold]
    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.bell);
    }

    #[cold]
    fn launch_thread(&'static self) -> Result<(), CuResult> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let argument = core::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: plain calls on values of this frame, and an argument that lives as long as the
        // process. The program's signals are for its own threads, so this one is born with all of
        // them blocked.
        let started = unsafe {
            let (mut all, mut former) = (core::mem::zeroed(), core::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut former);
            let mut thread = 0;
            let started = libc::pthread_create(&mut thread, core::ptr::null(), watch, argument);
            libc::pthread_sigmask(libc::SIG_SETMASK, &former, core::ptr::null_mut());
            if started == 0 {
                libc::pthread_detach(thread);
            }
            started
        };
        if started != 0 {
            self.started.store(false, Ordering::Relaxed);
            return Err(CuResult::OUT_OF_MEMORY);
        }
        Ok(())
    }
}

extern "C" fn watch(watcher: *mut c_void) -> *mut c_void {
    // SAFETY: the argument of launch_thread().
    let watcher = unsafe { &*watcher.cast::<Watcher>() };
    // Slices of time are milliseconds: the default slack of 50 µs would be a few percent of them.
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0) };
    let look = watcher.look.load(Ordering::Acquire);
    if look.is_null() {
        return look.cast();
    }
    // SAFETY: prepare() stored a function of this type.
    let look = unsafe { core::mem::transmute::<*mut (), Look>(look) };
    let mut looks = watcher.looks.load(Ordering::Relaxed);
    let mut looking = watcher.turn_of(looks).lock();
    loop {
        let heard = watcher.bell.load(Ordering::SeqCst);
        let mut next = look();
        if next.is_none() {
            watcher.dozes.store(true, Ordering::SeqCst);
            // A launching thread either sees that it sleeps, or is seen here.
            fence(Ordering::SeqCst);
            next = look();
        }
        looks = looks.wrapping_add(1);
        let next_turn = watcher.turn_of(looks).lock();
        watcher.looks.store(looks, Ordering::Release);
        drop(core::mem::replace(&mut looking, next_turn));
        futex::wait(&watcher.bell, heard, next);
        watcher.dozes.store(false, Ordering::SeqCst);
    }
}
