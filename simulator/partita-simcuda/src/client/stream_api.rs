//! Streams' entry points.

use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::current;
use super::context::stream::{Stream, clamp_priority, resolve};
use super::gpus::runtime;
use super::{capture, put};
use crate::shared::protocol::Request;

fn check_flags(flags: u32) -> Result<(), CuResult> {
    if flags & !CU_STREAM_NON_BLOCKING != 0 { Err(CuResult::INVALID_VALUE) } else { Ok(()) }
}

driver_api! {
    /// Makes a stream.
    fn cuStreamCreate(stream, flags) {
        check_flags(flags)?;
        let context = current()?;
        let made = Stream::create(context, flags, 0)?;
        context.add_stream(made);
        put(stream, made.handle())
    }

    /// Makes a stream with a priority; one out of range is moved into it.
    fn cuStreamCreateWithPriority(stream, flags, priority) {
        check_flags(flags)?;
        let context = current()?;
        let made = Stream::create(context, flags, clamp_priority(runtime()?, priority))?;
        context.add_stream(made);
        put(stream, made.handle())
    }

    /// Destroys a stream once its work is done.
    fn cuStreamDestroy_v2(stream) {
        runtime()?;
        if stream.is_default() {
            return Err(CuResult::INVALID_HANDLE);
        }
        let ended: &'static Stream = resolve(stream, false)?;
        let runtime = ended.runtime();
        let sound = ended.inspect_all();
        capture::abandon(ended);
        let slot = ended.slot.load(Ordering::Relaxed);
        ended.context().remove_stream(ended);
        if !ended.retire() {
            return Err(CuResult::INVALID_HANDLE);
        }
        match runtime.call(&Request::StreamDestroy { stream: slot }) {
            // After a sticky error there is nothing left to destroy.
            Err(_) if runtime.healthy().is_err() => sound,
            result => sound.and(result.map(drop)),
        }
    }

    /// As `cuStreamDestroy_v2`.
    fn cuStreamDestroy(stream) {
        cuStreamDestroy_v2(stream).ok()
    }

    /// Waits for a stream's work.
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz [per_thread] (stream) {
        runtime()?;
        let stream = resolve(stream, per_thread)?;
        capture::refuse_sync(stream)?;
        stream.inspect()?;
        stream.synchronize()
    }

    /// Whether a stream's work is done.
    fn cuStreamQuery | cuStreamQuery_ptsz [per_thread] (stream) {
        runtime()?;
        let stream = resolve(stream, per_thread)?;
        stream.runtime().healthy()?;
        capture::refuse_sync(stream)?;
        stream.inspect()?;
        stream.await_lock()?;
        let seq = stream.submitted.load(Ordering::Acquire);
        if stream.reached(seq) { Ok(()) } else { Err(CuResult::NOT_READY) }
    }

    /// A stream's priority.
    fn cuStreamGetPriority | cuStreamGetPriority_ptsz [per_thread] (stream, priority) {
        put(priority, resolve(stream, per_thread)?.priority.load(Ordering::Relaxed))
    }

    /// A stream's creation flags.
    fn cuStreamGetFlags | cuStreamGetFlags_ptsz [per_thread] (stream, flags) {
        put(flags, resolve(stream, per_thread)?.flags.load(Ordering::Relaxed))
    }

    /// A stream's context.
    fn cuStreamGetCtx | cuStreamGetCtx_ptsz [per_thread] (stream, context) {
        put(context, resolve(stream, per_thread)?.context().handle())
    }

    /// A stream's context, or its green context and the primary one.
    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz [per_thread] (stream, context, green) {
        let found = resolve(stream, per_thread)?.context();
        put(context, found.home().handle())?;
        put(green, super::green::handle_of(found))
    }

    /// A stream's device.
    fn cuStreamGetDevice | cuStreamGetDevice_ptsz [per_thread] (stream, device) {
        put(device, resolve(stream, per_thread)?.runtime().ordinal)
    }
}
