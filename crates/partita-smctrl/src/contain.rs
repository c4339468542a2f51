//! Containment: a bug in this library must not end its host.
//!
//! Nothing here unwinds, so a panic cannot be caught where it happens. The work that reads files
//! and talks to other programs and to the kernel driver therefore runs on a separate thread while
//! the caller waits. If it panics, that thread stops forever, so that everything it borrowed stays
//! valid, and the caller gets an error. This happens once a process; after that, setting a mask is
//! a few checked words.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
#[cfg(not(test))]
use core::panic::PanicInfo;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::fault::Fault;
use crate::lock::Mutex;

/// Allows one piece of work at a time; see [`RUNNING`].
static ONE: Mutex<()> = Mutex::new(());
/// The contained work, for the panic handler.
static RUNNING: AtomicPtr<Wait> = AtomicPtr::new(ptr::null_mut());

/// What the caller waits for.
struct Wait {
    done: UnsafeCell<libc::sem_t>,
    thread: Cell<libc::pthread_t>,
    panic: UnsafeCell<Option<String>>,
}

struct Task<T, W> {
    wait: Wait,
    work: UnsafeCell<Option<W>>,
    result: UnsafeCell<Option<Result<T, Fault>>>,
}

/// Runs `work` such that a panic is an error of this call.
///
/// # Errors
/// Those of `work`; `EIO` if it panicked; `EAGAIN` if no thread could be created.
pub fn run<T, W>(work: W) -> Result<T, Fault>
where
    T: Send + 'static,
    W: FnOnce() -> Result<T, Fault> + Send + 'static,
{
    let _one = ONE.lock();
    // Leaked if the work panics, because its thread still uses it.
    let task = Box::into_raw(Box::new(Task {
        wait: Wait {
            // SAFETY: a semaphore is plain memory until it is initialised.
            done: UnsafeCell::new(unsafe { core::mem::zeroed() }),
            // SAFETY: a thread's name is plain memory.
            thread: Cell::new(unsafe { core::mem::zeroed() }),
            panic: UnsafeCell::new(None),
        },
        work: UnsafeCell::new(Some(work)),
        result: UnsafeCell::new(None),
    }));
    // SAFETY: the task lives until both sides are done with it; the semaphore orders them.
    unsafe {
        libc::sem_init((*task).wait.done.get(), 0, 0);
        RUNNING.store(ptr::addr_of_mut!((*task).wait), Ordering::Release);
        let mut thread = core::mem::zeroed();
        if libc::pthread_create(&raw mut thread, ptr::null(), begin::<T, W>, task.cast()) != 0 {
            RUNNING.store(ptr::null_mut(), Ordering::Release);
            drop(Box::from_raw(task));
            return Err(Fault::new(libc::EAGAIN, "no thread could be created: the process has too many"));
        }
        while libc::sem_wait((*task).wait.done.get()) != 0 {}
        RUNNING.store(ptr::null_mut(), Ordering::Release);
        if let Some(panic) = (*(*task).wait.panic.get()).take() {
            libc::pthread_detach(thread);
            return Err(Fault::new(
                libc::EIO,
                format!("an internal error of libsmctrl: {panic}; please report it"),
            ));
        }
        libc::pthread_join(thread, ptr::null_mut());
        let task = Box::from_raw(task);
        task.result.into_inner().unwrap_or_else(|| Err(Fault::new(libc::EIO, "the work left no result")))
    }
}

extern "C" fn begin<T, W: FnOnce() -> Result<T, Fault>>(task: *mut c_void) -> *mut c_void {
    // SAFETY: run() passed the task and waits.
    unsafe {
        let task = &*task.cast::<Task<T, W>>();
        task.wait.thread.set(libc::pthread_self());
        if let Some(work) = (*task.work.get()).take() {
            *task.result.get() = Some(work());
        }
        libc::sem_post(task.wait.done.get());
    }
    ptr::null_mut()
}

/// Handles a panic.
#[cfg(not(test))]
pub fn end(info: &PanicInfo<'_>) -> ! {
    let wait = RUNNING.load(Ordering::Acquire);
    // SAFETY: run() keeps it alive while the pointer is set.
    unsafe {
        if !wait.is_null() && libc::pthread_equal((*wait).thread.get(), libc::pthread_self()) != 0 {
            *(*wait).panic.get() = Some(format!("{info}"));
            libc::sem_post((*wait).done.get());
            loop {
                libc::pause();
            }
        }
    }
    // A bug in the few lines that run on the caller's own thread. To continue would let launches
    // run without their masks.
    crate::report::write(format!("libsmctrl: internal error: {info}; please report it\n").as_bytes());
    // SAFETY: ends the process at once; no handler of it runs.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_gives_its_result_from_another_thread() {
        // SAFETY: no arguments.
        let here = unsafe { libc::pthread_self() };
        // SAFETY: no arguments.
        let there = run(move || Ok(unsafe { libc::pthread_self() })).unwrap();
        assert_ne!(here, there);
        assert_eq!(run(|| Err::<(), _>(Fault::new(7, "x"))).unwrap_err().code, 7);
    }
}
