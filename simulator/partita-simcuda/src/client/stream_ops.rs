//! Other work of streams than launches and copies: waits, host functions and words in memory.

use core::ffi::c_void;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::stream::{Stream, resolve};
use super::event::Event;
use super::gpus::{runtime, runtime_at};
use super::object::object;
use super::worker::{self, HostWork};
use super::{capture, list};
use crate::shared::command::Command;

/// Checks a word's address and makes the command of a wait.
///
/// # Errors
/// `INVALID_VALUE` for addresses that are not mapped or not aligned, and unknown conditions.
pub fn wait_command(address: u64, value: u64, flags: u32, wide: bool) -> Result<Command, CuResult> {
    let condition = flags & !CU_STREAM_WAIT_VALUE_FLUSH;
    check_word(address, wide)?;
    let condition = u8::try_from(condition).ok().filter(|c| *c <= 3).ok_or(CuResult::INVALID_VALUE)?;
    Ok(Command::WaitValue { address, value, condition, wide })
}

/// Checks a word's address and makes the command of a write.
///
/// # Errors
/// `INVALID_VALUE` for addresses that are not mapped or not aligned, and unknown flags.
pub fn write_command(address: u64, value: u64, flags: u32, wide: bool) -> Result<Command, CuResult> {
    check_word(address, wide)?;
    if flags & !CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(Command::WriteValue { address, value, wide })
}

fn check_word(address: u64, wide: bool) -> Result<(), CuResult> {
    let aligned = address.is_multiple_of(if wide { 8 } else { 4 });
    if !aligned || runtime_at(address)?.regions.kind(address).is_none() {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

/// The stream of a handle. The driver (580.159.04) crashes in a write of a word if the stream has
/// ended with its context; this ends the process in words.
///
/// # Errors
/// Those of [`resolve`].
///
/// # Safety
/// As for [`resolve`].
unsafe fn existing(handle: CUstream, per_thread: bool) -> Result<&'static Stream, CuResult> {
    // SAFETY: by the caller's word.
    let stream = unsafe { resolve(handle, per_thread) };
    if stream.is_err_and(|code| code == CuResult::INVALID_HANDLE) {
        eprintln!("simulated driver: a word is to be written or waited for in a stream that has ended");
        std::process::abort();
    }
    stream
}

fn submit(stream: &'static Stream, command: Command) -> Result<(), CuResult> {
    if capture::captures(stream)? {
        return capture::add_command(stream, command);
    }
    let context = stream.context();
    if std::ptr::eq(stream, context.legacy) {
        context.calls.exclude(context.runtime)?;
    }
    stream.runtime().command(stream, &command).map(drop)
}

/// The command of one operation of a batch; `None` for barriers, which order nothing here.
///
/// # Errors
/// As for the single operations.
pub fn batch_command(operation: &CUstreamBatchMemOpParams) -> Result<Option<Command>, CuResult> {
    let (address, value, flags) = (operation.address, operation.value, operation.flags);
    match operation.operation {
        CU_STREAM_MEM_OP_WAIT_VALUE_32 => wait_command(address, value & 0xffff_ffff, flags, false).map(Some),
        CU_STREAM_MEM_OP_WAIT_VALUE_64 => wait_command(address, value, flags, true).map(Some),
        CU_STREAM_MEM_OP_WRITE_VALUE_32 => {
            write_command(address, value & 0xffff_ffff, flags, false).map(Some)
        }
        CU_STREAM_MEM_OP_WRITE_VALUE_64 => write_command(address, value, flags, true).map(Some),
        CU_STREAM_MEM_OP_BARRIER | CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => Ok(None),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

driver_api! {
    /// Holds a stream until an event's last recording is complete.
    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz [per_thread] (stream, event, flags) {
        runtime()?;
        if flags & !CU_EVENT_WAIT_EXTERNAL != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let event: &'static Event = object(event.0)?;
        let stream = resolve(stream, per_thread)?;
        if flags == CU_EVENT_WAIT_EXTERNAL && !capture::captures(stream)? {
            return Err(CuResult::ILLEGAL_STATE);
        }
        if capture::captures(stream)? || event.captured.load(Ordering::Relaxed) {
            return capture::wait_event(stream, event, flags == CU_EVENT_WAIT_EXTERNAL);
        }
        event.hold(stream)
    }

    /// Calls a host function in stream order.
    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz [per_thread] (stream, function, data) {
        runtime()?;
        let stream = resolve(stream, per_thread)?;
        let runtime = stream.runtime();
        if function.is_none() {
            return Err(CuResult::INVALID_VALUE);
        }
        if capture::captures(stream)? {
            return capture::add_host(stream, function, data as usize);
        }
        let token = worker::prepare(runtime, HostWork::Function(function, data as usize), false);
        runtime.command(stream, &Command::Host { token }).map(drop)
    }

    /// Calls a callback in stream order.
    fn cuStreamAddCallback | cuStreamAddCallback_ptsz [per_thread] (handle, callback, data, flags) {
        runtime()?;
        let stream = resolve(handle, per_thread)?;
        let runtime = stream.runtime();
        if callback.is_none() || flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if capture::captures(stream)? {
            capture::invalidate(stream);
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
        }
        let work = HostWork::Callback(callback, handle.addr(), data as usize);
        let token = worker::prepare(runtime, work, false);
        runtime.command(stream, &Command::Host { token }).map(drop)
    }

    /// Holds a stream until a 32-bit word satisfies a condition.
    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz [per_thread] (
        stream, address, value, flags,
    ) {
        submit(existing(stream, per_thread)?, wait_command(address, value.into(), flags, false)?)
    }

    /// Writes a 32-bit word in stream order.
    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz [per_thread] (
        stream, address, value, flags,
    ) {
        submit(existing(stream, per_thread)?, write_command(address, value.into(), flags, false)?)
    }

    /// Several waits and writes in a row.
    fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz [per_thread] (
        stream, count, operations, flags,
    ) {
        let stream = resolve(stream, per_thread)?;
        if flags != 0 || count > 256 {
            return Err(CuResult::INVALID_VALUE);
        }
        // All are checked before the first is submitted.
        let commands: Result<Vec<_>, _> = list(operations, count as usize)?.iter().map(batch_command).collect();
        commands?.into_iter().flatten().try_for_each(|command| submit(stream, command))
    }
}
