//! Copies.
//!
//! The board copies between addresses that it can reach. If ordinary or registered host memory
//! takes part, the board decides the time, and a thread of this process moves the bytes: the worker
//! for asynchronous copies of pinned memory, the calling thread for all others.

use partita_abi::CuResult;

use super::capture;
use super::context::stream::Stream;
use super::gpus::{are_several, owner};
use super::moves::{moves, moves_between, perform};
use super::region::Kind;
use super::runtime::Runtime;
use super::worker::{self, HostWork};
use crate::shared::command::{Command, Rect, Route};

/// The kinds of copies, by the location of their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The board moves the bytes.
    Board(Route),
    /// The worker does.
    Pinned(Route),
    /// The calling thread does, and waits.
    Pageable(Route),
}

fn is_device(kind: Option<Kind>) -> bool {
    matches!(kind, Some(Kind::Device | Kind::Managed | Kind::Reserved))
}

/// Decides which side moves the bytes of a copy.
pub fn plan(runtime: &Runtime, rect: &Rect) -> Plan {
    let (dst, src) = (runtime.regions.kind(rect.dst), runtime.regions.kind(rect.src));
    let route = match (is_device(src), is_device(dst)) {
        (true, true) => Route::DeviceToDevice,
        (true, false) => Route::DeviceToHost,
        (false, true) => Route::HostToDevice,
        (false, false) => Route::HostToHost,
    };
    if dst.is_none() || src.is_none() {
        Plan::Pageable(route)
    } else if dst == Some(Kind::Registered) || src == Some(Kind::Registered) {
        Plan::Pinned(route)
    } else {
        Plan::Board(route)
    }
}

/// Checks that device memory covers a rectangle's rows, as the driver does before it accepts a
/// copy.
fn check(runtime: &Runtime, rect: &Rect) -> Result<(), CuResult> {
    check_side(runtime, rect, rect.dst, rect.dst_pitch, rect.dst_slice)?;
    check_side(runtime, rect, rect.src, rect.src_pitch, rect.src_slice)
}

fn check_side(runtime: &Runtime, rect: &Rect, first: u64, pitch: u64, slice: u64) -> Result<(), CuResult> {
    if rect.bytes() == 0 {
        return Ok(());
    }
    if first == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let rows = pitch.saturating_mul(rect.height - 1).saturating_add(slice.saturating_mul(rect.depth - 1));
    let last = first.saturating_add(rows).saturating_add(rect.width - 1);
    let covered = match runtime.regions.find(first) {
        None => !runtime.has(first),
        Some(region) => {
            region.kind != Kind::Reserved
                && (last - region.start < region.bytes || runtime.regions.kind(last) == Some(region.kind))
        }
    };
    if covered { Ok(()) } else { Err(CuResult::INVALID_VALUE) }
}

/// Copies in stream order and, with `wait`, waits for it.
///
/// # Errors
/// `INVALID_VALUE` for ranges that are not there; those of waiting.
pub fn copy(stream: &'static Stream, rect: Rect, wait: bool) -> Result<(), CuResult> {
    let runtime = stream.runtime();
    runtime.healthy()?;
    if are_several() && [rect.dst, rect.src].into_iter().any(|end| is_elsewhere(runtime, end)) {
        return copy_across(stream, &rect);
    }
    check(runtime, &rect)?;
    if capture::captures(stream)? {
        if wait {
            return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
        }
        return capture::add_copy(stream, rect);
    }
    if rect.bytes() == 0 {
        return if wait { stream.synchronize() } else { Ok(()) };
    }
    let bytes = rect.bytes();
    match plan(runtime, &rect) {
        Plan::Board(route) => {
            let seq = runtime.command(stream, &Command::Copy { route, rect })?;
            if wait { runtime.wait(|| stream.reached(seq)) } else { Ok(()) }
        }
        Plan::Pinned(route) if !wait => {
            let work = HostWork::Copy(moves(runtime, &rect)?.into());
            let token = worker::prepare(runtime, work, false);
            runtime.command(stream, &Command::HostCopy { route, bytes, token }).map(drop)
        }
        Plan::Pinned(route) | Plan::Pageable(route) => {
            let moves = moves(runtime, &rect)?;
            let seq = runtime.command(stream, &Command::HostCopy { route, bytes, token: 0 })?;
            runtime.wait(|| stream.reached(seq))?;
            perform(&moves);
            Ok(())
        }
    }
}

/// Whether an address is another GPU's.
fn is_elsewhere(runtime: &Runtime, address: u64) -> bool {
    !runtime.has(address) && owner(address).is_some()
}

/// Copies from or to another GPU's memory: this thread does it, when the stream reaches it. It
/// takes no simulated time.
fn copy_across(stream: &'static Stream, rect: &Rect) -> Result<(), CuResult> {
    if capture::captures(stream)? {
        capture::invalidate(stream);
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    let side = |address: u64| owner(address).unwrap_or(stream.runtime());
    let (to, from) = (side(rect.dst), side(rect.src));
    check_side(to, rect, rect.dst, rect.dst_pitch, rect.dst_slice)?;
    check_side(from, rect, rect.src, rect.src_pitch, rect.src_slice)?;
    let moves = moves_between(to, from, rect)?;
    stream.synchronize()?;
    perform(&moves);
    Ok(())
}
