//! Contexts: created ones, the primary one, and which is current in a thread.

pub mod calls;
pub mod green;
pub mod stream;

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::{CU_CTX_FLAGS_MASK, CU_CTX_SCHED_MASK, CUcontext, CUdevice};

use super::gpus::{runtime, set_current, visible};
use super::object::{Mark, Object, object};
use super::runtime::Runtime;
use crate::kernel::{group, vidmem};
use crate::mps::own::context_percentage;
use crate::shared::place::{context_bytes, usable_bytes};
use crate::shared::protocol::{MpsIdentity, Reply, Request};
use crate::shared::sys::lock;
use calls::CallLock;
use green::Green;
use stream::Stream;

/// A context. Never unmapped; a destroyed one is known by its mark.
#[derive(Debug)]
pub struct Context {
    mark: Mark,
    /// Its GPU.
    pub runtime: &'static Runtime,
    /// The board's number.
    pub number: u32,
    /// A number that no other context of this process has.
    pub id: u64,
    /// Its current flags.
    pub flags: AtomicU32,
    /// SMs that it may use.
    pub sms: u32,
    /// Its legacy default stream.
    pub legacy: &'static Stream,
    /// Whether it is the device's primary context.
    pub primary: bool,
    green: Option<Green>,
    pub(super) affinity: Option<u32>,
    streams: Mutex<Vec<&'static Stream>>,
    threads: Mutex<Vec<(u64, &'static Stream)>>,
    /// Destroyed streams that may still have work: the slot and the number of the last command.
    ending: Mutex<Vec<(u32, u64)>>,
    pub(super) limits: Mutex<[usize; 10]>,
    /// The allocation from the kernel driver and the channel group, until it is destroyed.
    taken: Mutex<Vec<group::Taken>>,
    /// Memory for limits above their initial values, by limit.
    pub(super) buffers: Mutex<[u64; 10]>,
    /// Which calls wait for which.
    pub calls: CallLock,
    /// References of `cuCtxAttach`, with the creator's.
    pub(super) attached: AtomicU32,
}

impl Object for Context {
    const KIND: u64 = u64::from_le_bytes(*b"simctx\0\0");
    const BAD: CuResult = CuResult::INVALID_CONTEXT;
    fn mark(&self) -> &Mark {
        &self.mark
    }
}

/// Contexts that were made and not destroyed.
static ALL: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Never dropped: the driver's calls still work in the functions that a program has called at
    /// its exit, after the destructors of its main thread.
    static STACK: RefCell<ManuallyDrop<Vec<&'static Context>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static THREAD: u64 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

/// The current context.
///
/// # Errors
/// `NOT_INITIALIZED`; `INVALID_CONTEXT` without a current context, `CONTEXT_IS_DESTROYED` if it was
/// destroyed.
#[inline]
pub fn current() -> Result<&'static Context, CuResult> {
    let top = STACK.with_borrow(|stack| stack.last().copied());
    match top {
        Some(context) if context.mark.is(Context::KIND) => Ok(context),
        Some(_) => Err(CuResult::CONTEXT_IS_DESTROYED),
        None => {
            runtime()?;
            Err(CuResult::INVALID_CONTEXT)
        }
    }
}

/// The live context with a number.
pub fn by_id(id: u64) -> Option<&'static Context> {
    lock(&ALL).iter().find(|context| context.id == id && context.is_alive()).copied()
}

/// Runs an action on this thread's contexts, the current one last.
pub(super) fn with_stack<R>(action: impl FnOnce(&mut Vec<&'static Context>) -> R) -> R {
    STACK.with_borrow_mut(|stack| {
        let result = action(stack);
        set_current(stack.last().map(|top| top.runtime));
        result
    })
}

/// Checks a device's number: there is one, and `CUDA_VISIBLE_DEVICES` may hide it.
///
/// # Errors
/// `NOT_INITIALIZED`, `INVALID_DEVICE`.
pub fn check_device(device: CUdevice) -> Result<&'static Runtime, CuResult> {
    runtime()?;
    let index = usize::try_from(device).map_err(|_| CuResult::INVALID_DEVICE)?;
    visible().get(index).copied().ok_or(CuResult::INVALID_DEVICE)
}

pub(super) fn default_limits() -> [usize; 10] {
    // Stack, printf buffer, malloc heap, sync depth, pending launches, L2 fetch granularity,
    // persisting L2.
    [1024, 7340032, 8388608, 2, 2048, 64, 0, 0, 0, 0]
}

/// Sends a time slice for this process's work to the board of the GPU on a bus.
fn send_slice(bus: u32, slice_us: u64) -> Option<Result<(), CuResult>> {
    let runtime = visible().iter().find(|runtime| runtime.pci_bus == bus)?;
    Some(runtime.call(&Request::SetSlice { slice_us }).map(drop))
}

impl Context {
    /// Makes a context on the board.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` and the board's other refusals.
    pub fn create(
        runtime: &'static Runtime,
        flags: u32,
        sms: Option<u32>,
        primary: bool,
    ) -> Result<&'static Self, CuResult> {
        // Without a request of its own, a context has the percentage of this moment.
        let sms = match runtime.mps {
            Some(MpsIdentity { partition_tpcs: None, .. }) if !runtime.is_before_volta() => {
                sms.or_else(|| context_percentage().map(|percentage| runtime.percentage_sms(percentage)))
            }
            _ => sms,
        };
        Self::make(runtime, flags, sms, primary, None)
    }

    /// Creates a context that is restricted to some SMs.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_green(green: Green) -> Result<&'static Self, CuResult> {
        let flags = green.primary.flags.load(Ordering::Relaxed);
        Self::make(green.primary.runtime, flags, None, false, Some(green))
    }

    fn make(
        runtime: &'static Runtime,
        flags: u32,
        sms: Option<u32>,
        primary: bool,
        green: Option<Green>,
    ) -> Result<&'static Self, CuResult> {
        // On hardware a new client of a stuck server hangs here (H100, 580.159.04, 2026-11-23).
        let server_stuck = &runtime.channel.head().server_stuck.0;
        runtime.wait(|| server_stuck.load(Ordering::Relaxed) == 0)?;
        let memory = vidmem::take(runtime.pci_bus, context_bytes(usable_bytes(&runtime.spec)))?;
        let reply = runtime.call(&Request::CtxCreate { sms })?;
        let Reply::Ctx { ctx, sms: granted, legacy, seq } = reply else { return Err(CuResult::UNKNOWN) };
        let legacy = Stream::adopt(runtime, std::ptr::null_mut(), legacy, seq, 0, 0)?;
        let context: &'static Self = Box::leak(Box::new(Self {
            mark: Mark::live(Self::KIND),
            runtime,
            number: ctx,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            flags: AtomicU32::new(flags),
            sms: granted,
            legacy,
            primary,
            green,
            affinity: sms.map(|_| granted),
            streams: Mutex::new(Vec::new()),
            threads: Mutex::new(Vec::new()),
            ending: Mutex::new(Vec::new()),
            limits: Mutex::new(default_limits()),
            taken: Mutex::new(vec![memory]),
            buffers: Mutex::new([0; 10]),
            calls: CallLock::new(),
            attached: AtomicU32::new(1),
        }));
        if runtime.mps.is_none() {
            let slice_us = runtime.spec.scheduler.slice_ns / 1000;
            lock(&context.taken).push(group::begin(runtime.pci_bus, slice_us, send_slice)?);
        }
        legacy.ctx.store(std::ptr::from_ref(context).cast_mut(), Ordering::Release);
        lock(&ALL).push(context);
        Ok(context)
    }

    /// Its handle.
    pub fn handle(&self) -> CUcontext {
        CUcontext(std::ptr::from_ref(self).cast_mut().cast())
    }

    /// The green part of a green context.
    #[inline]
    pub fn green(&self) -> Option<&Green> {
        self.green.as_ref()
    }

    /// The context that owns the objects created in this one: for a green context, the primary one.
    pub fn home(&'static self) -> &'static Self {
        self.green.as_ref().map_or(self, |green| green.primary)
    }

    /// Whether it is alive.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.mark.is(Self::KIND)
    }

    /// Adds a stream.
    pub fn add_stream(&self, stream: &'static Stream) {
        lock(&self.streams).push(stream);
    }

    /// Forgets a stream that the program destroys. Its work still counts as the context's.
    pub fn remove_stream(&self, stream: &'static Stream) {
        let last = (stream.slot.load(Ordering::Relaxed), stream.submitted.load(Ordering::Acquire));
        // Added before the stream leaves the lists, so that no concurrent wait misses it.
        let mut ending = lock(&self.ending);
        ending.retain(|(slot, seq)| !self.runtime.reached(*slot, *seq));
        ending.push(last);
        drop(ending);
        lock(&self.streams).retain(|held| !std::ptr::eq(*held, stream));
        lock(&self.threads).retain(|(_, held)| !std::ptr::eq(*held, stream));
    }

    /// This thread's own default stream.
    ///
    /// # Errors
    /// Those of making it.
    pub fn thread_stream(&'static self) -> Result<&'static Stream, CuResult> {
        let thread = THREAD.try_with(|thread| *thread).map_err(|_| CuResult::DEINITIALIZED)?;
        let mut threads = lock(&self.threads);
        if let Some((_, stream)) = threads.iter().find(|(owner, _)| *owner == thread) {
            return Ok(stream);
        }
        let stream = Stream::create(self, 0, 0)?;
        threads.push((thread, stream));
        Ok(stream)
    }

    /// All its streams.
    pub fn all_streams(&self) -> Vec<&'static Stream> {
        let mut all = lock(&self.streams).clone();
        all.extend(lock(&self.threads).iter().map(|(_, stream)| *stream));
        all.push(self.legacy);
        all
    }

    /// Waits for all work of its streams, including those that capture or are destroyed.
    ///
    /// # Errors
    /// Those of [`Runtime::wait`].
    pub fn finish(&self) -> Result<(), CuResult> {
        self.runtime.healthy()?;
        for stream in self.all_streams() {
            stream.inspect()?;
            stream.synchronize()?;
        }
        let ending = lock(&self.ending).clone();
        ending.into_iter().try_for_each(|(slot, seq)| self.runtime.wait(|| self.runtime.reached(slot, seq)))
    }

    /// Removes the object and its streams, so that they cannot be found. Their parts on the board
    /// remain.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED` after an earlier call.
    pub(super) fn retire(&'static self) -> Result<(), CuResult> {
        if !self.mark.kill(Self::KIND) {
            return Err(CuResult::CONTEXT_IS_DESTROYED);
        }
        lock(&ALL).retain(|context| !std::ptr::eq(*context, self));
        if self.green.is_none() {
            for stream in self.all_streams() {
                stream.retire();
            }
        }
        lock(&self.streams).clear();
        lock(&self.threads).clear();
        Ok(())
    }

    /// Releases its parts on the board and in the kernel driver.
    ///
    /// # Errors
    /// Those of the board.
    pub(super) fn release(&self) -> Result<(), CuResult> {
        let runtime = self.runtime;
        let destroyed = match runtime.call(&Request::CtxDestroy { ctx: self.number }) {
            Err(_) if runtime.healthy().is_err() => Ok(()),
            result => result.map(drop),
        };
        lock(&self.taken).clear();
        destroyed
    }
}

/// Checks creation flags.
///
/// # Errors
/// `INVALID_VALUE` for unknown flags and for two ways of waiting at once.
pub fn check_flags(flags: u32) -> Result<u32, CuResult> {
    let scheduling = flags & CU_CTX_SCHED_MASK;
    if flags & !CU_CTX_FLAGS_MASK != 0 || (scheduling & (scheduling.wrapping_sub(1))) != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(flags)
}

/// The context of a handle, or the current one for null.
///
/// # Errors
/// `INVALID_CONTEXT`, and those of [`current`].
///
/// # Safety
/// The handle is null or came from this library.
pub unsafe fn context_or_current(context: CUcontext) -> Result<&'static Context, CuResult> {
    if context.is_null() {
        return current();
    }
    runtime()?;
    // SAFETY: by the caller's word.
    unsafe { object(context.0) }
}
