//! The queues of each context, and the words in which the GPU writes how far streams are.
//!
//! The words of a context are mapped for the GPU in that context, and only its streams wait for
//! them, so no stream waits for a word that disappears with another context. The contexts of a
//! GPU divide the process's slots.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use partita_abi::CuResult;
use partita_core::task_slots::{Launch, Queues};
use partita_ledger::mutex::{Guard, Mutex};

use crate::account::gpu::Gpu;
use crate::driver::calls::{Kept, calls};
use crate::driver::memory_ops::MemoryOps;
use crate::driver::page::PageCalls;
use crate::slots::seen;
use crate::slots::streams::{self, STREAMS, Stream};
use crate::sys::fork::{in_child, renew};
use crate::sys::pages;

/// Contexts of the process with queues.
const POOLS: usize = 16;
const WORDS: usize = 2 * STREAMS;
const WORD_BYTES: usize = 4;
const BYTES: usize = WORDS * WORD_BYTES;
/// Added to the value that a stream waits for: it releases the stream. The GPU overwrites it later.
const RELEASED: u32 = 1 << 30;

calls! {
    /// Entry points that find a stream's context and go there.
    struct ContextCalls;
    of_stream = cuStreamGetCtx;
    push = cuCtxPushCurrent_v2;
    pop = cuCtxPopCurrent_v2;
}

/// Bits of a word that say for which stream another one waits.
const TARGET_BITS: u32 = 12;
const _: () = assert!(STREAMS < 1 << TARGET_BITS);

/// How far a stream is with a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// It has not reached it: a wait of the program is before it, or another stream's work in the
    /// same hardware queue.
    Before,
    /// It waits for a launch of the stream with this number.
    Waits(usize),
    /// It has begun the launch.
    Launch,
}

impl At {
    /// What the stream writes into its word: the launch, and above 0 one more than the stream that
    /// it waits for.
    pub fn word(self, launch: u32) -> u32 {
        let target = match self {
            Self::Waits(stream) => stream as u32 + 1,
            Self::Before | Self::Launch => 0,
        };
        launch << TARGET_BITS | target
    }

    /// What a word says of a launch.
    fn of(word: u32, launch: u32) -> Self {
        let target = word & ((1 << TARGET_BITS) - 1);
        match target.checked_sub(1) {
            _ if word >> TARGET_BITS != launch << TARGET_BITS >> TARGET_BITS => Self::Before,
            None => Self::Launch,
            Some(stream) => Self::Waits(stream as usize),
        }
    }
}

/// What the queues need of the driver.
pub struct SlotCalls {
    pub memory: MemoryOps,
    page: PageCalls,
    contexts: ContextCalls,
}

impl SlotCalls {
    fn resolve() -> Result<Self, &'static CStr> {
        Ok(Self {
            memory: MemoryOps::resolve()?,
            page: PageCalls::resolve()?,
            contexts: ContextCalls::resolve()?,
        })
    }

    /// The context of a stream; `None` if the driver does not report one.
    pub fn context_of(&self, stream: *mut c_void) -> Option<usize> {
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer, and the stream that the program gives the driver next.
        unsafe { (self.contexts.of_stream)(stream, &mut context) }.ok().ok()?;
        Some(context as usize).filter(|context| *context != 0)
    }
}

/// The calls; `None` if the driver lacks one of them.
pub fn calls() -> Option<&'static SlotCalls> {
    static CALLS: Kept<SlotCalls> = Kept::new();
    CALLS.get(SlotCalls::resolve)
}

/// The queues of a context.
pub struct Pool {
    /// 0 if the pool is free.
    context: AtomicUsize,
    gpu: AtomicU8,
    /// For each stream by its number: how far it is ([`At::word`]), and the last launch that has
    /// ended. Null until they are needed, then never freed.
    words: AtomicPtr<AtomicU32>,
    /// The words' device address; 0 before they are mapped.
    device: AtomicU64,
    queues: Mutex<Queues>,
}

static ALL: [Pool; POOLS] = [const {
    Pool {
        context: AtomicUsize::new(0),
        gpu: AtomicU8::new(0),
        words: AtomicPtr::new(core::ptr::null_mut()),
        device: AtomicU64::new(0),
        queues: Mutex::new(Queues::new()),
    }
}; POOLS];
/// A thread holds this while it opens a pool or maps its words.
static MAKING: Mutex<()> = Mutex::new(());

// A child does not inherit contexts.
in_child! {
    MAKING.reset_after_fork();
    for pool in &ALL {
        renew(&pool.queues, Queues::new());
        pool.context.store(0, Ordering::Relaxed);
        pool.device.store(0, Ordering::Relaxed);
        pool.words.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The pool with a number.
pub fn get(pool: usize) -> Option<&'static Pool> {
    ALL.get(pool)
}

/// The number of the pool of a context on `gpu`. Opens one for a new context; `None` if all
/// [`POOLS`] are in use.
pub fn of_context(gpu: &Gpu, context: usize) -> Option<usize> {
    let find = |context: usize| ALL.iter().position(|pool| pool.context.load(Ordering::Acquire) == context);
    if context == 0 {
        return None;
    }
    find(context).or_else(|| {
        let _making = MAKING.lock();
        find(context).or_else(|| {
            let at = find(0)?;
            let pool = &ALL[at];
            if pool.words.load(Ordering::Relaxed).is_null() {
                let words = pages::zeroed(BYTES);
                if words.is_null() {
                    return None;
                }
                pool.words.store(words.cast(), Ordering::Release);
            }
            pool.gpu.store(gpu.index, Ordering::Relaxed);
            pool.context.store(context, Ordering::Release);
            Some(at)
        })
    })
}

/// The pool of a context that has one.
pub fn of_open_context(context: usize) -> Option<&'static Pool> {
    ALL.iter().find(|pool| context != 0 && pool.context.load(Ordering::Acquire) == context)
}

/// How many contexts divide the process's slots on `gpu`.
pub fn count(gpu: &Gpu) -> u32 {
    let is_on = |pool: &&Pool| {
        pool.context.load(Ordering::Acquire) != 0 && pool.gpu.load(Ordering::Relaxed) == gpu.index
    };
    ALL.iter().filter(is_on).count().max(1) as u32
}

/// A context has ended, and its work with it.
pub fn context_ended(context: usize) {
    let Some(at) = ALL.iter().position(|pool| pool.context.load(Ordering::Acquire) == context) else {
        return;
    };
    let pool = &ALL[at];
    let _making = MAKING.lock();
    if let Some(table) = streams::table() {
        for (_, _, stream) in table.in_pools().filter(|(of, ..)| *of == at) {
            stream.leave_pool();
        }
    }
    *pool.queues() = Queues::new();
    pool.device.store(0, Ordering::Release);
    pool.context.store(0, Ordering::Release);
    seen::forget();
}

impl Pool {
    /// Its queues, locked.
    pub fn queues(&self) -> Guard<'_, Queues> {
        self.queues.lock()
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        let words = self.words.load(Ordering::Acquire);
        // SAFETY: made before the pool has a context, with room for `WORDS`, and kept.
        unsafe { &*words.add(at % WORDS) }
    }

    /// How far a stream is with its first launch that has not ended.
    pub fn at(&self, stream: usize) -> At {
        At::of(self.word(2 * stream).load(Ordering::Acquire), self.ended(stream).wrapping_add(1))
    }

    /// The last launch of a stream that has ended.
    pub fn ended(&self, stream: usize) -> u32 {
        self.word(2 * stream + 1).load(Ordering::Acquire)
    }

    /// Whether a launch has ended, or the launches that wait for it were released.
    pub fn has_ended(&self, launch: Launch) -> bool {
        let ahead = self.ended(launch.stream as usize).wrapping_sub(launch.count);
        ahead.cast_signed() >= 0
    }

    /// Whether all launches of a stream have ended.
    pub fn is_over(&self, number: usize, stream: &Stream) -> bool {
        self.ended(number) == stream.launches.load(Ordering::Relaxed)
    }

    /// Initializes the words of a stream that has no launch in flight.
    pub fn begin(&self, number: usize, stream: &Stream) {
        let launches = stream.launches.load(Ordering::Relaxed);
        self.word(2 * number).store(At::Launch.word(launches), Ordering::Relaxed);
        self.word(2 * number + 1).store(launches, Ordering::Release);
    }

    /// Releases the launches that wait for this stream, if `ended` is still the number of its
    /// launches that have ended.
    pub fn release(&self, number: usize, stream: &Stream, ended: u32) {
        let released = stream.launches.load(Ordering::Relaxed).wrapping_add(RELEASED);
        let word = self.word(2 * number + 1);
        let _ = word.compare_exchange(ended, released, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The device addresses of a stream's words: how far it is, and the last launch that has ended.
    ///
    /// # Errors
    /// The driver's.
    pub fn addresses(&self, calls: &SlotCalls, number: usize) -> Result<[u64; 2], CuResult> {
        let base = match self.device.load(Ordering::Acquire) {
            0 => self.map(calls)?,
            base => base,
        };
        let first = base + (2 * number * WORD_BYTES) as u64;
        Ok([first, first + WORD_BYTES as u64])
    }

    #[cold]
    fn map(&self, calls: &SlotCalls) -> Result<u64, CuResult> {
        let _making = MAKING.lock();
        let known = self.device.load(Ordering::Acquire);
        if known != 0 {
            return Ok(known);
        }
        let context = core::ptr::with_exposed_provenance_mut(self.context.load(Ordering::Acquire));
        // SAFETY: a context that the driver named, of the stream in which the program launches.
        unsafe { (calls.contexts.push)(context) }.ok()?;
        let mapped = calls.page.map(self.words.load(Ordering::Acquire).addr(), BYTES);
        // SAFETY: a valid pointer; what was pushed is on top.
        let _ = unsafe { (calls.contexts.pop)(&mut core::ptr::null_mut()) };
        let base = mapped?;
        self.device.store(base, Ordering::Release);
        Ok(base)
    }
}
