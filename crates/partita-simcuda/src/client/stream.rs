//! Streams: the objects behind `CUstream`, with the private structure that carries the TPC mask.

use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::{
    CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, CU_STREAM_NON_BLOCKING,
    CUcontext, CUdevice, CUlaunchAttributeID, CUlaunchAttributeValue, CUstream,
};

use super::capture;
use super::context::{Context, current};
use super::object::{Mark, Object, Used, object};
use super::put;
use super::runtime::{Runtime, runtime};
use crate::shared::protocol::{Reply, Request, StreamKind};

/// Length of the private structure, in bytes: that of the longest offset known, with room behind it.
const BLOCK_BYTES: usize = 0x800;
/// Watched bytes on each side of the mask.
const GUARD_BYTES: usize = 64;
/// What the watched words hold.
const GUARD_WORD: u32 = 0x5eed_c0de;

static WRITES_BESIDE: AtomicU32 = AtomicU32::new(0);

/// A stream. Programs that know the driver's layout follow the first word to a private structure; everything
/// after it is this library's own.
#[repr(C)]
#[derive(Debug)]
pub struct Stream {
    block: AtomicPtr<u8>,
    mark: Mark,
    /// The slot of its progress.
    pub slot: AtomicU32,
    /// Number of the last command that was published.
    pub submitted: AtomicU64,
    /// Its context.
    pub ctx: AtomicPtr<Context>,
    /// Creation flags.
    pub flags: AtomicU32,
    /// Priority; smaller is more urgent.
    pub priority: AtomicI32,
    /// A number that no other stream has.
    pub id: AtomicU64,
    /// Whether commands are being captured: the first thing that each of them looks at.
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
    /// Makes a stream around a slot that the board gave.
    pub fn adopt(
        runtime: &Runtime,
        ctx: *mut Context,
        slot: u32,
        seq: u64,
        flags: u32,
        priority: i32,
    ) -> &'static Self {
        let stream = USED.take().unwrap_or_else(|| {
            let block: &'static mut [u64] = Box::leak(vec![0u64; BLOCK_BYTES / 8].into_boxed_slice());
            Box::leak(Box::new(Self {
                block: AtomicPtr::new(block.as_mut_ptr().cast()),
                mark: Mark::live(0),
                slot: AtomicU32::new(0),
                submitted: AtomicU64::new(0),
                ctx: AtomicPtr::new(std::ptr::null_mut()),
                flags: AtomicU32::new(0),
                priority: AtomicI32::new(0),
                id: AtomicU64::new(0),
                capturing: AtomicBool::new(false),
            }))
        });
        stream.slot.store(slot, Ordering::Relaxed);
        stream.submitted.store(seq, Ordering::Relaxed);
        stream.ctx.store(ctx, Ordering::Relaxed);
        stream.flags.store(flags, Ordering::Relaxed);
        stream.priority.store(priority, Ordering::Relaxed);
        stream.id.store(NEXT_ID.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        stream.capturing.store(false, Ordering::Relaxed);
        stream.arm(runtime);
        stream.mark.revive(Self::KIND);
        stream
    }

    /// Asks the board for a stream.
    ///
    /// # Errors
    /// The board's refusal.
    pub fn create(ctx: &'static Context, flags: u32, priority: i32) -> Result<&'static Self, CuResult> {
        let runtime = runtime()?;
        let kind =
            if flags & CU_STREAM_NON_BLOCKING != 0 { StreamKind::NonBlocking } else { StreamKind::Blocking };
        let request = Request::StreamCreate { ctx: ctx.number, priority, kind };
        let Reply::Stream { stream, seq } = runtime.call(&request)? else { return Err(CuResult::UNKNOWN) };
        Ok(Self::adopt(runtime, std::ptr::from_ref(ctx).cast_mut(), stream, seq, flags, priority))
    }

    /// Ends the object. The board ends the stream once its work is done.
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

    /// Its handle.
    pub fn handle(&self) -> CUstream {
        CUstream(std::ptr::from_ref(self).cast_mut().cast())
    }

    // ---- the private structure ----

    fn word(&self, offset: usize) -> *mut u32 {
        // SAFETY: callers stay below BLOCK_BYTES, which the block has.
        unsafe { self.block.load(Ordering::Relaxed).add(offset).cast() }
    }

    fn guards(runtime: &Runtime) -> impl Iterator<Item = usize> + use<> {
        let start = runtime.spec.driver.stream_mask.offset_bytes as usize;
        let end = start + runtime.mask_layout.bytes();
        (start.saturating_sub(GUARD_BYTES)..start).chain(end..end + GUARD_BYTES).step_by(4)
    }

    /// Clears the mask and lays the guards around it.
    fn arm(&self, runtime: &Runtime) {
        for offset in (0..BLOCK_BYTES).step_by(4) {
            // SAFETY: inside the block.
            unsafe { self.word(offset).write(0) };
        }
        for offset in Self::guards(runtime) {
            // SAFETY: inside the block.
            unsafe { self.word(offset).write(GUARD_WORD) };
        }
    }

    /// The mask that a program wrote into the structure, if it is in force.
    #[inline]
    pub fn mask(&self, runtime: &Runtime) -> Option<[u32; 4]> {
        let start = runtime.spec.driver.stream_mask.offset_bytes as usize;
        let mut words = [0u32; 5];
        for (index, word) in words.iter_mut().enumerate().take(runtime.mask_layout.words()) {
            // SAFETY: inside the block. Volatile, because programs write there behind the compiler's back.
            *word = unsafe { self.word(start + 4 * index).read_volatile() };
        }
        runtime.mask_layout.decode(&words)
    }

    /// Finds writes beside the mask. On hardware they would have destroyed the driver's own state.
    pub fn inspect(&self, runtime: &Runtime) {
        for offset in Self::guards(runtime) {
            // SAFETY: inside the block.
            let word = unsafe { self.word(offset).read_volatile() };
            if word != GUARD_WORD {
                let count = WRITES_BESIDE.fetch_add(1, Ordering::Relaxed) + 1;
                eprintln!(
                    "partita-sim: a program wrote {word:#010x} at offset {offset:#x} of a stream structure, where \
                     the driver keeps its own state; the mask of this driver lies at {:#x} ({count} so far)",
                    runtime.spec.driver.stream_mask.offset_bytes
                );
                if std::env::var("PARTITA_SIM_STRICT").is_ok_and(|value| value == "1") {
                    std::process::exit(134);
                }
                // SAFETY: inside the block.
                unsafe { self.word(offset).write(GUARD_WORD) };
            }
        }
    }

    // ---- waiting ----

    /// Whether everything up to a command's number is complete.
    pub fn reached(&self, runtime: &Runtime, seq: u64) -> bool {
        let slot = self.slot.load(Ordering::Relaxed) as usize;
        runtime.channel.head().streams[slot].completed.load(Ordering::Acquire) >= seq
    }

    /// Waits for all that was submitted so far.
    ///
    /// # Errors
    /// Those of [`Runtime::wait`].
    pub fn synchronize(&self, runtime: &Runtime) -> Result<(), CuResult> {
        let seq = self.submitted.load(Ordering::Acquire);
        runtime.wait(|| self.reached(runtime, seq))
    }
}

/// The stream that a handle means in a call of either flavour.
///
/// # Errors
/// `INVALID_CONTEXT` for a default stream without a current context, `INVALID_HANDLE` for a bad handle.
///
/// # Safety
/// The handle came from this library.
#[inline]
pub unsafe fn resolve(handle: CUstream, per_thread: bool) -> Result<&'static Stream, CuResult> {
    match handle.addr() {
        0 if per_thread => current()?.thread_stream(),
        0 | 1 => Ok(current()?.legacy),
        2 => current()?.thread_stream(),
        // SAFETY: by the caller's word.
        _ => unsafe { object(handle.0) },
    }
}

fn check_flags(flags: u32) -> Result<(), CuResult> {
    if flags & !CU_STREAM_NON_BLOCKING != 0 { Err(CuResult::INVALID_VALUE) } else { Ok(()) }
}

driver_api! {
    /// Makes a stream.
    fn cuStreamCreate(stream: *mut CUstream, flags: u32) {
        check_flags(flags)?;
        let context = current()?;
        let made = Stream::create(context, flags, 0)?;
        context.add_stream(made);
        put(stream, made.handle())
    }

    /// Makes a stream with a priority; one out of range is moved into it.
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: u32, priority: c_int) {
        check_flags(flags)?;
        let context = current()?;
        let scheduler = &runtime()?.spec.scheduler;
        let priority = priority.clamp(scheduler.priority_greatest, scheduler.priority_least);
        let made = Stream::create(context, flags, priority)?;
        context.add_stream(made);
        put(stream, made.handle())
    }

    /// Ends a stream once its work is done.
    fn cuStreamDestroy_v2(stream: CUstream) {
        let runtime = runtime()?;
        if stream.is_default() {
            return Err(CuResult::INVALID_HANDLE);
        }
        let ended: &'static Stream = object(stream.0)?;
        ended.inspect(runtime);
        capture::abandon(ended);
        let slot = ended.slot.load(Ordering::Relaxed);
        ended.context().remove_stream(ended);
        if !ended.retire() {
            return Err(CuResult::INVALID_HANDLE);
        }
        match runtime.call(&Request::StreamDestroy { stream: slot }) {
            // After a sticky error there is nothing left to end.
            Err(_) if runtime.healthy().is_err() => Ok(()),
            result => result.map(drop),
        }
    }

    /// As `cuStreamDestroy_v2`.
    fn cuStreamDestroy(stream: CUstream) {
        cuStreamDestroy_v2(stream).ok()
    }

    /// Waits for a stream's work.
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz [per_thread] (stream: CUstream) {
        let runtime = runtime()?;
        let stream = resolve(stream, per_thread)?;
        capture::refuse_sync(stream)?;
        stream.inspect(runtime);
        stream.synchronize(runtime)
    }

    /// Whether a stream's work is done.
    fn cuStreamQuery | cuStreamQuery_ptsz [per_thread] (stream: CUstream) {
        let runtime = runtime()?;
        runtime.healthy()?;
        let stream = resolve(stream, per_thread)?;
        capture::refuse_sync(stream)?;
        let seq = stream.submitted.load(Ordering::Acquire);
        if stream.reached(runtime, seq) { Ok(()) } else { Err(CuResult::NOT_READY) }
    }

    /// A stream's priority.
    fn cuStreamGetPriority | cuStreamGetPriority_ptsz [per_thread] (stream: CUstream, priority: *mut c_int) {
        put(priority, resolve(stream, per_thread)?.priority.load(Ordering::Relaxed))
    }

    /// A stream's creation flags.
    fn cuStreamGetFlags | cuStreamGetFlags_ptsz [per_thread] (stream: CUstream, flags: *mut u32) {
        put(flags, resolve(stream, per_thread)?.flags.load(Ordering::Relaxed))
    }

    /// A number that no other stream of the process has.
    fn cuStreamGetId | cuStreamGetId_ptsz [per_thread] (stream: CUstream, id: *mut u64) {
        put(id, resolve(stream, per_thread)?.id.load(Ordering::Relaxed))
    }

    /// A stream's context.
    fn cuStreamGetCtx | cuStreamGetCtx_ptsz [per_thread] (stream: CUstream, context: *mut CUcontext) {
        put(context, resolve(stream, per_thread)?.context().handle())
    }

    /// A stream's context; no stream here belongs to a green one.
    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz [per_thread] (
        stream: CUstream,
        context: *mut CUcontext,
        green: *mut *mut c_void,
    ) {
        let found = resolve(stream, per_thread)?.context().handle();
        put(context, found)?;
        put(green, std::ptr::null_mut())
    }

    /// A stream's device.
    fn cuStreamGetDevice | cuStreamGetDevice_ptsz [per_thread] (stream: CUstream, device: *mut CUdevice) {
        resolve(stream, per_thread)?;
        put(device, 0)
    }

    /// Copies attributes between streams; the simulated ones are fixed at creation.
    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz [per_thread] (to: CUstream, from: CUstream) {
        resolve(to, per_thread)?;
        resolve(from, per_thread)?;
        Ok(())
    }

    /// Reads an attribute of a stream.
    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz [per_thread] (
        stream: CUstream,
        attribute: CUlaunchAttributeID,
        value: *mut CUlaunchAttributeValue,
    ) {
        let stream = resolve(stream, per_thread)?;
        match attribute {
            CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                put(value, CUlaunchAttributeValue::from_i32(stream.priority.load(Ordering::Relaxed)))
            }
            CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => put(value, CUlaunchAttributeValue::from_i32(1)),
            1 | 9 | 10 => put(value, CUlaunchAttributeValue::default()),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Sets an attribute of a stream. Hints are accepted and have no effect here.
    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz [per_thread] (
        stream: CUstream,
        attribute: CUlaunchAttributeID,
        value: *const CUlaunchAttributeValue,
    ) {
        let stream = resolve(stream, per_thread)?;
        let value = super::get(value)?;
        match attribute {
            CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                // The engine orders by the priority that a stream was made with.
                if value.as_i32() == stream.priority.load(Ordering::Relaxed) {
                    Ok(())
                } else {
                    Err(CuResult::NOT_SUPPORTED)
                }
            }
            1 | CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY | 9 | 10 => Ok(()),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}
