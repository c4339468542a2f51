//! Traces what the driver reads of a stream's structure during a launch, without changing a byte of
//! it.
//!
//! The pages of the structure are protected for the length of one launch. Each access then faults,
//! is recorded, and is allowed for just that instruction by a single step. The words of one read
//! can be *replaced*, either in a copy of the process ([`Answer::InCopy`]), which ends before it
//! reaches the GPU, or in place for the one instruction ([`Answer::InPlace`]), after which the
//! original words are restored before the next instruction. If the driver uses the words as a mask,
//! they appear, translated, in the launch's descriptor. On an H200 (driver 580.159.04) a launch
//! makes 520 accesses and takes 5 ms under trace.
//!
//! Use it only in a sacrificial process: it keeps the handlers of SIGSEGV and SIGTRAP.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use alloc::vec;
use alloc::vec::Vec;

use crate::error::Error;
use crate::stream_mask::{STRUCTURE_BYTES, read_memory};

const PAGE_BYTES: usize = 4096;
/// The trap flag of EFLAGS: a trap after the next instruction (Intel SDM volume 1, section 3.4.3).
const TRAP_FLAG: i64 = 0x100;
/// The bit of a page fault's error code for a write (Intel SDM volume 3, section 4.7).
const FAULT_WRITE: i64 = 2;
/// The timeout for a copy to reach the descriptor, which takes microseconds.
const COPY_LIMIT_MS: c_int = 2_000;

static FIRST_PAGE: AtomicUsize = AtomicUsize::new(0);
static PAGES_BYTES: AtomicUsize = AtomicUsize::new(0);
static STRUCTURE: AtomicUsize = AtomicUsize::new(0);
static ARMED: AtomicBool = AtomicBool::new(false);
/// The thread that launches; accesses of other threads are allowed and not recorded.
static THREAD: AtomicI32 = AtomicI32::new(0);
/// One bit for each byte at which an access began.
static READ: [AtomicU32; STRUCTURE_BYTES / 32] = [const { AtomicU32::new(0) }; STRUCTURE_BYTES / 32];
static WRITTEN: [AtomicU32; STRUCTURE_BYTES / 32] = [const { AtomicU32::new(0) }; STRUCTURE_BYTES / 32];

/// 0 without a replacement, 1 in a copy, 2 in place.
static ANSWER: AtomicU32 = AtomicU32::new(0);
static ANSWER_OFFSET: AtomicUsize = AtomicUsize::new(0);
static ANSWER_WORDS: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];
static ANSWER_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether an instruction runs with replaced words, which must be restored.
static ANSWERED: AtomicBool = AtomicBool::new(false);
static KEPT_WORDS: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];

static PIPE_READ: AtomicI32 = AtomicI32::new(-1);
static PIPE_WRITE: AtomicI32 = AtomicI32::new(-1);
static IS_COPY: AtomicBool = AtomicBool::new(false);
/// Whether the copy sent a report, and the report.
static REPORTED: AtomicBool = AtomicBool::new(false);
static REPORT: [AtomicU32; REPORT_WORDS] = [const { AtomicU32::new(0) }; REPORT_WORDS];

/// Whether launches can be traced on this kind of machine.
pub(crate) const IS_POSSIBLE: bool = true;
/// Words of a copy's report: whether the descriptor had a mask, and its eight words.
pub(crate) const REPORT_WORDS: usize = 9;

/// How the words of a read are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// In a copy of the process that ends at the descriptor. Without words nothing is replaced, and
    /// the report shows whether copies get that far.
    InCopy {
        /// Offset of the words in the structure.
        offset_bytes: usize,
        /// The words, and how many of them count.
        words: Option<([u32; 5], usize)>,
    },
    /// In this process, for the instructions that read there.
    InPlace {
        /// Offset of the words in the structure.
        offset_bytes: usize,
        /// The words, and how many of them count.
        words: ([u32; 5], usize),
    },
}

/// What one launch did.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    read: Vec<u32>,
    written: Vec<u32>,
    /// The copy's report, if there was a copy and it got that far.
    pub report: Option<[u32; REPORT_WORDS]>,
}

impl Trace {
    /// Whether a read began at this byte. An instruction that reads and writes counts as a write.
    pub fn was_read(&self, offset_bytes: usize) -> bool {
        bit(&self.read, offset_bytes)
    }

    /// Whether a write began at this byte.
    pub fn was_written(&self, offset_bytes: usize) -> bool {
        bit(&self.written, offset_bytes)
    }

    /// An empty trace, for tests.
    #[cfg(test)]
    pub fn empty() -> Self {
        Self { read: vec![0; STRUCTURE_BYTES / 32], written: vec![0; STRUCTURE_BYTES / 32], report: None }
    }

    /// Records an access, for tests.
    #[cfg(test)]
    pub fn note(&mut self, offset_bytes: usize, is_write: bool) {
        let log = if is_write { &mut self.written } else { &mut self.read };
        log[offset_bytes / 32] |= 1 << (offset_bytes % 32);
    }
}

fn bit(words: &[u32], offset_bytes: usize) -> bool {
    words.get(offset_bytes / 32).is_some_and(|word| word >> (offset_bytes % 32) & 1 == 1)
}

/// Traces one launch's accesses to the structure at `structure`.
///
/// # Errors
/// [`Error::Refused`] if the pages cannot be protected; those of the launch.
pub(crate) fn trace(
    structure: usize,
    answer: Option<Answer>,
    launch: impl FnOnce() -> Result<(), Error>,
) -> Result<Trace, Error> {
    let first_page = structure / PAGE_BYTES * PAGE_BYTES;
    let mut looked = vec![0u8; STRUCTURE_BYTES];
    // Only mapped pages can be protected.
    let readable = read_memory(structure, &mut looked);
    drop(looked);
    let pages_bytes = (structure + readable.max(1)).next_multiple_of(PAGE_BYTES) - first_page;
    for word in READ.iter().chain(&WRITTEN) {
        word.store(0, Ordering::Relaxed);
    }
    FIRST_PAGE.store(first_page, Ordering::Relaxed);
    PAGES_BYTES.store(pages_bytes, Ordering::Relaxed);
    STRUCTURE.store(structure, Ordering::Relaxed);
    prepare(answer)?;
    // SAFETY: the handlers follow the rules of signal handlers; gettid has no arguments.
    let closed = unsafe {
        THREAD.store(libc::syscall(libc::SYS_gettid) as i32, Ordering::Relaxed);
        handle(libc::SIGSEGV, on_fault) && handle(libc::SIGTRAP, on_step)
    };
    if !closed {
        return Err(Error::Refused("this process may not handle SIGSEGV and SIGTRAP".into()));
    }
    ARMED.store(true, Ordering::SeqCst);
    let launched = if protect(libc::PROT_NONE) {
        launch()
    } else {
        Err(Error::Refused("the pages of a stream's structure cannot be protected".into()))
    };
    if IS_COPY.load(Ordering::Acquire) {
        // The driver failed before it reached a descriptor. A copy must not continue beyond the
        // launch. SAFETY: ends this copy without running any more of its code.
        unsafe { libc::_exit(1) };
    }
    ARMED.store(false, Ordering::SeqCst);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    finish_copies();
    launched?;
    let load = |words: &[AtomicU32]| words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let report = REPORTED
        .load(Ordering::Acquire)
        .then(|| core::array::from_fn(|index| REPORT[index].load(Ordering::Relaxed)));
    Ok(Trace { read: load(&READ), written: load(&WRITTEN), report })
}

/// In a copy: sends the mask of the launch's descriptor, and ends the copy. Elsewhere it does
/// nothing.
///
/// The launch callback calls it on the launching thread.
pub(crate) fn report_if_copy(mask: Option<[u32; 8]>) {
    if !IS_COPY.load(Ordering::Acquire) {
        return;
    }
    let mut report = [0u32; REPORT_WORDS];
    report[0] = u32::from(mask.is_some());
    report[1..].copy_from_slice(&mask.unwrap_or([0; 8]));
    // SAFETY: writes from our array and ends this copy of the process without running any more of
    // its code.
    unsafe {
        libc::write(PIPE_WRITE.load(Ordering::Relaxed), report.as_ptr().cast(), size_of_val(&report));
        libc::_exit(0);
    }
}

fn prepare(answer: Option<Answer>) -> Result<(), Error> {
    REPORTED.store(false, Ordering::Relaxed);
    ANSWERED.store(false, Ordering::Relaxed);
    let (kind, offset_bytes, words) = match answer {
        None => (0, 0, None),
        Some(Answer::InCopy { offset_bytes, words }) => (1, offset_bytes, words),
        Some(Answer::InPlace { offset_bytes, words }) => (2, offset_bytes, Some(words)),
    };
    let (words, count) = words.unwrap_or(([0; 5], 0));
    for (slot, word) in ANSWER_WORDS.iter().zip(words) {
        slot.store(word, Ordering::Relaxed);
    }
    ANSWER_COUNT.store(count, Ordering::Relaxed);
    ANSWER_OFFSET.store(offset_bytes, Ordering::Relaxed);
    if kind == 1 {
        let mut ends = [-1; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Error::Refused("no pipe can be created".into()));
        }
        PIPE_READ.store(ends[0], Ordering::Relaxed);
        PIPE_WRITE.store(ends[1], Ordering::Relaxed);
    }
    ANSWER.store(kind, Ordering::Release);
    Ok(())
}

fn finish_copies() {
    ANSWER.store(0, Ordering::Release);
    for end in [&PIPE_READ, &PIPE_WRITE] {
        let descriptor = end.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: a descriptor of ours.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Protects or unprotects the pages. Safe in a signal handler.
fn protect(access: c_int) -> bool {
    let page: *mut c_void = core::ptr::with_exposed_provenance_mut(FIRST_PAGE.load(Ordering::Relaxed));
    // SAFETY: pages that were readable; a thread that touches them while they are protected faults
    // into our handler.
    unsafe { libc::mprotect(page, PAGES_BYTES.load(Ordering::Relaxed), access) == 0 }
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

unsafe fn handle(signal: c_int, handler: Handler) -> bool {
    // SAFETY: a zeroed action is a valid one, and the handler has the three-argument form of
    // SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(signal, &action, core::ptr::null_mut()) == 0
    }
}

/// Another fault than ours: the default action handles it when the instruction runs again.
fn leave_to_default(signal: c_int) {
    // SAFETY: a zeroed action with the default handler.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, core::ptr::null_mut());
    }
}

fn is_launching_thread() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 == THREAD.load(Ordering::Relaxed) }
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments to a handler of this form.
    let (address, registers) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        ((*info).si_addr().addr(), &mut (*context).uc_mcontext.gregs)
    };
    let within = address.wrapping_sub(FIRST_PAGE.load(Ordering::Relaxed));
    if within >= PAGES_BYTES.load(Ordering::Relaxed) || IS_COPY.load(Ordering::Relaxed) {
        return leave_to_default(signal);
    }
    protect(libc::PROT_READ | libc::PROT_WRITE);
    if !ARMED.load(Ordering::SeqCst) {
        // Another thread that faulted just before the trace ended.
        return;
    }
    if is_launching_thread() {
        let offset = address.wrapping_sub(STRUCTURE.load(Ordering::Relaxed));
        let is_write = registers[libc::REG_ERR as usize] & FAULT_WRITE != 0;
        let log = if is_write { &WRITTEN } else { &READ };
        if let Some(word) = log.get(offset / 32) {
            word.fetch_or(1 << (offset % 32), Ordering::Relaxed);
        }
        if !is_write && answer(offset) {
            // A copy, with the replacement in its own memory: it continues untraced.
            return;
        }
    }
    registers[libc::REG_EFL as usize] |= TRAP_FLAG;
}

unsafe extern "C" fn on_step(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments to a handler of this form.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    if is_launching_thread() && ANSWERED.swap(false, Ordering::Relaxed) {
        store(&KEPT_WORDS);
    }
    if ARMED.load(Ordering::SeqCst) {
        protect(libc::PROT_NONE);
    }
}

/// The address of the replaced words. The pages are unprotected when it is used.
fn place(index: usize) -> *mut u32 {
    let at = STRUCTURE.load(Ordering::Relaxed) + ANSWER_OFFSET.load(Ordering::Relaxed) + 4 * index;
    core::ptr::with_exposed_provenance_mut(at)
}

fn store(words: &[AtomicU32; 5]) {
    for (index, word) in words.iter().enumerate().take(ANSWER_COUNT.load(Ordering::Relaxed)) {
        // SAFETY: words inside the structure, which are in our memory and readable, at a multiple
        // of four. In place, only the very next instruction of this thread reads them; in a copy
        // they are the copy's own.
        unsafe { place(index).write_volatile(word.load(Ordering::Relaxed)) };
    }
}

/// Replaces the words of a read at `offset` if it is the chosen one. Returns whether this is a
/// copy.
fn answer(offset: usize) -> bool {
    let window = 4 * ANSWER_COUNT.load(Ordering::Relaxed);
    let hit = offset.wrapping_sub(ANSWER_OFFSET.load(Ordering::Relaxed)) < window;
    match ANSWER.load(Ordering::Acquire) {
        1 if hit || window == 0 => {
            // Once: copies of other reads would report the same.
            ANSWER.store(0, Ordering::Release);
            let is_copy = copy();
            if is_copy {
                store(&ANSWER_WORDS);
            }
            is_copy
        }
        2 if hit => {
            for (index, word) in KEPT_WORDS.iter().enumerate().take(ANSWER_COUNT.load(Ordering::Relaxed)) {
                // SAFETY: as in store().
                word.store(unsafe { place(index).read_volatile() }, Ordering::Relaxed);
            }
            store(&ANSWER_WORDS);
            ANSWERED.store(true, Ordering::Relaxed);
            false
        }
        _ => false,
    }
}

/// Copies the process and waits for the copy's report. Returns `true` in the copy.
///
/// It uses the bare system call, so that the driver's fork handlers do not run.
fn copy() -> bool {
    // SAFETY: system calls with valid arguments. The copy has only this thread and runs nothing but
    // the rest of the launch.
    unsafe {
        let child = libc::syscall(libc::SYS_fork) as libc::pid_t;
        if child == 0 {
            IS_COPY.store(true, Ordering::Release);
            ARMED.store(false, Ordering::SeqCst);
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            libc::alarm(COPY_LIMIT_MS as u32 / 1000);
            return true;
        }
        if child < 0 {
            return false;
        }
        let pipe = PIPE_READ.load(Ordering::Relaxed);
        // Our own end stays open, so a copy that dies is noticed by waiting for it, and a copy that
        // hangs by the timeout.
        let mut report = [0u32; REPORT_WORDS];
        let mut waited_ms = 0;
        loop {
            let mut poll = libc::pollfd { fd: pipe, events: libc::POLLIN, revents: 0 };
            let ready = libc::poll(&mut poll, 1, 1);
            let ended = libc::waitpid(child, core::ptr::null_mut(), libc::WNOHANG) == child;
            if ready > 0 || ended && libc::poll(&mut poll, 1, 0) > 0 {
                let read = libc::read(pipe, report.as_mut_ptr().cast(), size_of_val(&report));
                if read == size_of_val(&report) as isize {
                    for (slot, word) in REPORT.iter().zip(report) {
                        slot.store(word, Ordering::Relaxed);
                    }
                    REPORTED.store(true, Ordering::Release);
                }
            }
            if ended {
                return false;
            }
            waited_ms += 1;
            if REPORTED.load(Ordering::Relaxed) || waited_ms > COPY_LIMIT_MS {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, core::ptr::null_mut(), 0);
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests;
