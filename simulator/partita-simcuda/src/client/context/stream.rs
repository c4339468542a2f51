//! Streams: the objects behind `CUstream`, with the private structure that carries the TPC mask.

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::{Context, current};
use crate::client::object::{Mark, Object, Used, object};
use crate::client::runtime::Runtime;
use crate::client::structure::{Foreign, Structure};
use crate::shared::command::{Command, KIND_COMMAND};
use crate::shared::protocol::{Reply, Request, StreamKind};
use crate::shared::sys::lock;

/// Words of streams' structures that other code than the driver wrote, in this process.
static CORRUPTIONS: AtomicU64 = AtomicU64::new(0);

/// Commands for which a stream's channel has room, as on an H200 (driver 580.159.04).
const CHANNEL_COMMANDS: u64 = 1020;

/// A stream. Programs that know the driver's layout follow the first word to a private structure;
/// everything after it is this library's own.
#[repr(C)]
#[derive(Debug)]
pub struct Stream {
    structure: AtomicPtr<u8>,
    mark: Mark,
    /// Launches, as the structure counts them.
    launches: AtomicU64,
    /// The slot of its progress.
    pub slot: AtomicU32,
    /// Number of the last command that was published.
    pub submitted: AtomicU64,
    /// The number of a command for which the channel has had room.
    room: AtomicU64,
    /// Commands that wait for room.
    waiting: AtomicU32,
    /// Its context.
    pub ctx: AtomicPtr<Context>,
    /// Creation flags.
    pub flags: AtomicU32,
    /// Priority; smaller is more urgent.
    pub priority: AtomicI32,
    /// A number that no other stream has.
    pub id: AtomicU64,
    /// Whether commands are being captured; every command checks it first.
    pub capturing: AtomicBool,
}

impl Object for Stream {
    const KIND: u64 = u64::from_le_bytes(*b"simstrm\0");
    const BAD: CuResult = CuResult::INVALID_HANDLE;
    fn mark(&self) -> &Mark {
        &self.mark
    }
}

static USED: Used<Stream> = Used::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Stream {
    /// Makes a stream for a slot of the board.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn adopt(
        runtime: &Runtime,
        ctx: *mut Context,
        slot: u32,
        seq: u64,
        flags: u32,
        priority: i32,
    ) -> Result<&'static Self, CuResult> {
        let stream = match USED.take() {
            Some(used) => used,
            None => Box::leak(Box::new(Self {
                structure: AtomicPtr::new(Structure::new().ok_or(CuResult::OUT_OF_MEMORY)?.address()),
                mark: Mark::live(0),
                launches: AtomicU64::new(0),
                slot: AtomicU32::new(0),
                submitted: AtomicU64::new(0),
                room: AtomicU64::new(0),
                waiting: AtomicU32::new(0),
                ctx: AtomicPtr::new(std::ptr::null_mut()),
                flags: AtomicU32::new(0),
                priority: AtomicI32::new(0),
                id: AtomicU64::new(0),
                capturing: AtomicBool::new(false),
            })),
        };
        stream.slot.store(slot, Ordering::Relaxed);
        stream.submitted.store(seq, Ordering::Relaxed);
        stream.room.store(seq, Ordering::Relaxed);
        stream.ctx.store(ctx, Ordering::Relaxed);
        stream.flags.store(flags, Ordering::Relaxed);
        stream.priority.store(priority, Ordering::Relaxed);
        stream.id.store(NEXT_ID.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        stream.capturing.store(false, Ordering::Relaxed);
        stream.launches.store(0, Ordering::Relaxed);
        stream.structure().arm(&runtime.structure);
        stream.mark.revive(Self::KIND);
        Ok(stream)
    }

    /// Requests a stream from the board.
    ///
    /// # Errors
    /// The board's refusal.
    pub fn create(ctx: &'static Context, flags: u32, priority: i32) -> Result<&'static Self, CuResult> {
        let runtime = ctx.runtime;
        let kind =
            if flags & CU_STREAM_NON_BLOCKING != 0 { StreamKind::NonBlocking } else { StreamKind::Blocking };
        let request = Request::StreamCreate { ctx: ctx.number, priority, kind };
        let Reply::Stream { stream, seq } = runtime.call(&request)? else { return Err(CuResult::UNKNOWN) };
        Self::adopt(runtime, std::ptr::from_ref(ctx).cast_mut(), stream, seq, flags, priority)
    }

    /// Destroys the object. The board destroys the stream once its work is done.
    pub fn retire(&'static self) -> bool {
        let ended = self.mark.kill(Self::KIND);
        if ended {
            USED.put(self);
        }
        ended
    }

    /// Its context.
    pub fn context(&self) -> &'static Context {
        // SAFETY: set when the stream is made, to a context that is never unmapped.
        unsafe { &*self.ctx.load(Ordering::Relaxed) }
    }

    /// Its GPU.
    #[inline]
    pub fn runtime(&self) -> &'static Runtime {
        self.context().runtime
    }

    /// Its handle.
    pub fn handle(&self) -> CUstream {
        CUstream(std::ptr::from_ref(self).cast_mut().cast())
    }

    // ---- the private structure ----

    fn structure(&self) -> Structure {
        // SAFETY: set when the object was made, to a structure's address.
        unsafe { Structure::at(self.structure.load(Ordering::Relaxed)) }
    }

    /// The mask that a program wrote into the structure, if it is active.
    ///
    /// # Errors
    /// `UNKNOWN` if the driver's own words there were changed; the error is sticky.
    #[inline]
    pub fn enter_launch(&self) -> Result<Option<[u32; 4]>, CuResult> {
        let runtime = self.runtime();
        let mask = self.structure().launch(&runtime.structure);
        self.launches.fetch_add(1, Ordering::Relaxed);
        mask.map_err(|foreign| corrupted(runtime, foreign))
    }

    /// Searches for words that other code than the driver wrote.
    ///
    /// # Errors
    /// As [`Self::enter_launch`].
    pub fn inspect(&self) -> Result<(), CuResult> {
        let runtime = self.runtime();
        self.structure().inspect(&runtime.structure).map_err(|foreign| corrupted(runtime, foreign))
    }

    /// Also checks the count of launches.
    ///
    /// # Errors
    /// As [`Self::enter_launch`].
    pub fn inspect_all(&self) -> Result<(), CuResult> {
        let runtime = self.runtime();
        let launches = self.launches.load(Ordering::Relaxed);
        let inspected = self.structure().inspect_all(&runtime.structure, launches);
        inspected.map_err(|foreign| corrupted(runtime, foreign))
    }

    // ---- waiting ----

    /// Whether the stream's channel has room for one more command.
    fn has_room(&self) -> bool {
        let next = self.submitted.load(Ordering::Relaxed) + 1;
        if next <= self.room.load(Ordering::Relaxed) {
            return true;
        }
        let room = self.runtime().completed(self.slot.load(Ordering::Relaxed)) + CHANNEL_COMMANDS;
        self.room.store(room, Ordering::Relaxed);
        next <= room
    }

    /// Waits until a command that waits for room in the channel has found it: the driver holds a
    /// lock of the stream meanwhile.
    ///
    /// # Errors
    /// Those of [`Runtime::wait`].
    pub fn await_lock(&self) -> Result<(), CuResult> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.runtime().wait(|| self.has_room())
    }

    /// Whether everything up to a command's number is complete.
    pub fn reached(&self, seq: u64) -> bool {
        self.runtime().reached(self.slot.load(Ordering::Relaxed), seq)
    }

    /// Waits for all that was submitted so far.
    ///
    /// # Errors
    /// Those of [`Runtime::wait`].
    pub fn synchronize(&self) -> Result<(), CuResult> {
        let seq = self.submitted.load(Ordering::Acquire);
        self.runtime().wait(|| self.reached(seq))
    }
}

impl Runtime {
    /// Puts a command into the ring; returns its number on the stream.
    ///
    /// # Errors
    /// The sticky error, if there is one.
    #[inline]
    pub fn publish(&self, stream: &Stream, kind: u32, parts: &[&[u8]]) -> Result<u64, CuResult> {
        self.healthy()?;
        let calls = &stream.context().calls;
        calls.share(self)?;
        if !stream.has_room() {
            stream.waiting.fetch_add(1, Ordering::Relaxed);
            self.ring();
            let found = calls.sharing(|| self.wait(|| stream.has_room()));
            stream.waiting.fetch_sub(1, Ordering::Relaxed);
            found?;
        }
        loop {
            {
                let mut producer = lock(&self.producer);
                let seq = stream.submitted.load(Ordering::Relaxed) + 1;
                if producer.publish(&self.channel, kind, stream.slot.load(Ordering::Relaxed), seq, parts) {
                    stream.submitted.store(seq, Ordering::Release);
                    drop(producer);
                    self.ring();
                    return Ok(seq);
                }
            }
            self.ring();
            let head = &self.channel.head().head.0;
            let seen = head.load(Ordering::Acquire);
            self.wait(|| head.load(Ordering::Acquire) != seen)?;
        }
    }

    /// Puts a [`Command`] into the ring.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn command(&self, stream: &Stream, command: &Command) -> Result<u64, CuResult> {
        let mut buffer = [0u8; 128];
        let bytes = postcard::to_slice(command, &mut buffer).map_err(|_| CuResult::UNKNOWN)?;
        self.publish(stream, KIND_COMMAND, &[bytes])
    }
}

/// Records that the driver's state was destroyed. As on hardware, this process's GPU work is
/// unusable then.
#[cold]
fn corrupted(runtime: &Runtime, foreign: Foreign) -> CuResult {
    // A process whose work has already ended for this reason gets one report for a word.
    if runtime.healthy() == Err(CuResult::UNKNOWN) {
        return CuResult::UNKNOWN;
    }
    CORRUPTIONS.fetch_add(1, Ordering::Relaxed);
    let Foreign { offset_bytes, word } = foreign;
    eprintln!(
        "partita-sim: a program wrote {word:#010x} at offset {offset_bytes:#x} of a stream structure, \
         where the driver stores its own state; the mask of this driver is at {:#x}",
        runtime.structure.mask_at()
    );
    // A copy of the process that was made without fork handlers shares the board with the original,
    // whose state is valid.
    if std::process::id() == runtime.process {
        let report = Request::Corrupted { offset_bytes: offset_bytes as u32, word };
        // If the board is gone, there is nothing to report to.
        let _ = runtime.call(&report);
    }
    CuResult::UNKNOWN
}

/// How many words of its streams' structures the driver found changed by other code, in this
/// process.
#[unsafe(no_mangle)]
pub extern "C" fn partita_sim_corruptions() -> u64 {
    CORRUPTIONS.load(Ordering::Relaxed)
}

/// The stream of a handle in a call of either flavour.
///
/// # Errors
/// `INVALID_CONTEXT` for a default stream without a current context, `INVALID_HANDLE` for a bad
/// handle, `CONTEXT_IS_DESTROYED` for a stream whose green context is destroyed.
///
/// # Safety
/// The handle came from this library.
#[inline]
pub unsafe fn resolve(handle: CUstream, per_thread: bool) -> Result<&'static Stream, CuResult> {
    match handle.addr() {
        0 if per_thread => current()?.thread_stream(),
        0 | 1 => Ok(current()?.legacy),
        2 => current()?.thread_stream(),
        _ => {
            // SAFETY: by the caller's word.
            let stream: &'static Stream = unsafe { object(handle.0)? };
            // Only streams of a green context outlive their context.
            if stream.context().is_alive() { Ok(stream) } else { Err(CuResult::CONTEXT_IS_DESTROYED) }
        }
    }
}

/// Moves a priority into the range that there is.
pub fn clamp_priority(runtime: &Runtime, priority: c_int) -> c_int {
    let scheduler = &runtime.spec.scheduler;
    priority.clamp(scheduler.priority_greatest, scheduler.priority_least)
}
