//! Bytes that a thread of this process moves.

use partita_abi::CuResult;

use super::runtime::Runtime;
use crate::shared::command::Rect;

/// Bytes to move inside this process: where to, where from, how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    dst: usize,
    src: usize,
    bytes: usize,
}

/// Finds where this process can access both ends of a rectangle. This happens when the program
/// requests a copy, because it may free the memory, in stream order, before the copy runs.
///
/// # Errors
/// `INVALID_VALUE` when a row leaves the device memory that it starts in.
pub fn moves(runtime: &Runtime, rect: &Rect) -> Result<Vec<Move>, CuResult> {
    moves_between(runtime, runtime, rect)
}

/// As [`moves`], if the two ends belong to different GPUs.
///
/// # Errors
/// As [`moves`].
pub fn moves_between(to: &Runtime, from: &Runtime, rect: &Rect) -> Result<Vec<Move>, CuResult> {
    let mut moves = Vec::new();
    let (target, source) = (to, from);
    for (dst, src) in rect.rows() {
        let to = target.regions.pieces(&target.memory, dst, rect.width).ok_or(CuResult::INVALID_VALUE)?;
        let from = source.regions.pieces(&source.memory, src, rect.width).ok_or(CuResult::INVALID_VALUE)?;
        let (mut to, mut from) = (to.into_iter(), from.into_iter());
        let (mut target, mut source) = (to.next(), from.next());
        while let (Some((dst, room)), Some((src, left))) = (target, source) {
            let bytes = room.min(left);
            let (dst, src) = (dst.addr(), src.addr());
            moves.push(Move { dst, src, bytes });
            let rest = |at: usize, left: usize| Some(((at + bytes) as *mut u8, left - bytes));
            target = if bytes == room { to.next() } else { rest(dst, room) };
            source = if bytes == left { from.next() } else { rest(src, left) };
        }
    }
    Ok(moves)
}

/// Moves bytes in this thread.
pub fn perform(moves: &[Move]) {
    for step in moves {
        // SAFETY: both ends are inside mappings that last as long as the process, or in host memory
        // that the program promised for this copy; they may overlap where the program's ranges do.
        unsafe { std::ptr::copy(step.src as *const u8, step.dst as *mut u8, step.bytes) };
    }
}

/// Writes bytes of this library's own into device memory.
///
/// # Errors
/// Those of [`moves`].
pub fn write_device(runtime: &Runtime, address: u64, bytes: &[u8]) -> Result<(), CuResult> {
    perform(&moves(runtime, &Rect::line(address, bytes.as_ptr() as u64, bytes.len() as u64))?);
    Ok(())
}
