//! Whether this process is still the one that claimed a slot, without a system call.
//!
//! A word in a page that the kernel empties in every child of `fork` (`MADV_WIPEONFORK`, Linux
//! 4.14) holds the number of the process that wrote it last. On a kernel without such pages, each
//! check calls `getpid`.

use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The kernel rounds it up to its pages.
const PAGE_BYTES: usize = 4096;

/// The word, after the first use; [`NONE`] if the kernel has no such pages.
static WORD: AtomicPtr<AtomicI32> = AtomicPtr::new(ptr::null_mut());
const NONE: *mut AtomicI32 = ptr::without_provenance_mut(align_of::<AtomicI32>());

/// The number of the calling process, which changes only in children of `fork`.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    word: Option<&'static AtomicI32>,
}

impl Process {
    /// The calling process.
    pub fn current() -> Self {
        // SAFETY: a plain system call.
        let pid = unsafe { libc::getpid() };
        let word = word();
        if let Some(word) = word {
            word.store(pid, Ordering::Relaxed);
        }
        Self { pid, word }
    }

    /// Whether the calling process is another one: a child of `fork`.
    #[inline]
    pub fn is_another(&self) -> bool {
        match self.word {
            Some(word) => word.load(Ordering::Relaxed) != self.pid,
            // SAFETY: a plain system call.
            None => unsafe { libc::getpid() != self.pid },
        }
    }
}

fn word() -> Option<&'static AtomicI32> {
    let mut found = WORD.load(Ordering::Acquire);
    if found.is_null() {
        let made = make().unwrap_or(NONE);
        found = match WORD.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                if made != NONE {
                    // SAFETY: the page was made above and no other code has seen it.
                    unsafe { libc::munmap(made.cast(), PAGE_BYTES) };
                }
                other
            }
        };
    }
    // SAFETY: make() mapped the page and no code unmaps it; it is aligned, and any number is valid.
    (found != NONE).then(|| unsafe { &*found })
}

fn make() -> Option<*mut AtomicI32> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping; the call touches nothing else.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page mapped above.
    if unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; no other code has seen it.
        unsafe { libc::munmap(page, PAGE_BYTES) };
        return None;
    }
    Some(page.cast())
}

#[cfg(test)]
mod tests {
    use super::Process;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not model this kernel call")]
    fn the_kernel_has_such_pages() {
        assert!(Process::current().word.is_some(), "every kernel since Linux 4.14");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not model this kernel call")]
    fn a_child_is_another_also_once_it_has_asked_who_it_is() {
        let parent = Process::current();
        let asking = Process { pid: parent.pid, word: None };
        // SAFETY: the child makes system calls and atomic loads only, and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = parent.is_another() && asking.is_another();
            let own = Process::current();
            let after = parent.is_another() && !own.is_another();
            // SAFETY: ends the child without running the parent's handlers.
            unsafe { libc::_exit(i32::from(!(before && after))) };
        }
        let mut status = 0;
        // SAFETY: the child started above, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
        assert!(!parent.is_another() && !asking.is_another());
    }
}
