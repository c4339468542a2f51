//! Fills.

use partita_abi::CuResult;
use partita_abi::types::*;

use super::capture;
use super::region::Kind;
use super::runtime::{owner, runtime_at};
use super::stream::{Stream, resolve};
use crate::shared::command::Command;

/// Rows to fill with a value of 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// First byte.
    pub dst: u64,
    /// Bytes between rows.
    pub pitch: u64,
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// The value.
    pub value: u32,
    /// Bytes of an element.
    pub element_bytes: u8,
}

impl Fill {
    fn line(dst: u64, value: u32, element_bytes: u8, count: usize) -> Self {
        Self { dst, pitch: 0, width: count as u64, height: 1, value, element_bytes }
    }

    /// The command that does it.
    ///
    /// # Errors
    /// `INVALID_VALUE` for memory that is not there, is not the device's, or is not aligned to the
    /// element.
    pub fn command(&self) -> Result<Command, CuResult> {
        let runtime = runtime_at(self.dst)?;
        let size = u64::from(self.element_bytes);
        let width = self.width.checked_mul(size).ok_or(CuResult::INVALID_VALUE)?;
        let pitch = if self.height > 1 { self.pitch } else { width };
        if !matches!(size, 1 | 2 | 4) || !self.dst.is_multiple_of(size) || pitch < width || pitch % size != 0
        {
            return Err(CuResult::INVALID_VALUE);
        }
        if width > 0 && self.height > 0 {
            let region = runtime.regions.find(self.dst).ok_or(CuResult::INVALID_VALUE)?;
            let end = pitch
                .checked_mul(self.height - 1)
                .and_then(|rows| (self.dst - region.start).checked_add(rows)?.checked_add(width))
                .ok_or(CuResult::INVALID_VALUE)?;
            // A range may go on in the next map of the same reservation.
            let last = runtime.regions.kind(region.start + end - 1);
            if region.kind == Kind::Reserved || (end > region.bytes && last != Some(region.kind)) {
                return Err(CuResult::INVALID_VALUE);
            }
        }
        Ok(Command::Fill {
            dst: self.dst,
            pitch,
            width,
            height: self.height,
            value: self.value,
            element_bytes: self.element_bytes,
        })
    }

    fn submit(&self, stream: &'static Stream) -> Result<(), CuResult> {
        let command = self.command()?;
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        if capture::captures(stream)? {
            return capture::add_fill(stream, *self);
        }
        let runtime = stream.runtime();
        if owner(self.dst).is_some_and(|owner| !std::ptr::eq(owner, runtime)) {
            return Err(CuResult::INVALID_VALUE);
        }
        runtime.command(stream, &command).map(drop)
    }
}

/// A fill in a default stream. Filling device memory does not wait, as on hardware.
fn now(fill: Fill, per_thread: bool) -> Result<(), CuResult> {
    // SAFETY: null is a default stream.
    fill.submit(unsafe { resolve(CUstream::NULL, per_thread)? })
}

driver_api! {
    /// Fills with bytes.
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds [per_thread] (dst, value, count) {
        now(Fill::line(dst, u32::from(value), 1, count), per_thread)
    }

    /// Fills with 16-bit values.
    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds [per_thread] (dst, value, count) {
        now(Fill::line(dst, u32::from(value), 2, count), per_thread)
    }

    /// Fills with 32-bit values.
    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds [per_thread] (dst, value, count) {
        now(Fill::line(dst, value, 4, count), per_thread)
    }

    /// Fills rows with bytes.
    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds [per_thread] (dst, pitch, value, width, height) {
        let (pitch, width, height) = (pitch as u64, width as u64, height as u64);
        now(Fill { dst, pitch, width, height, value: u32::from(value), element_bytes: 1 }, per_thread)
    }

    /// Fills rows with 32-bit values.
    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds [per_thread] (dst, pitch, value, width, height) {
        let (pitch, width, height) = (pitch as u64, width as u64, height as u64);
        now(Fill { dst, pitch, width, height, value, element_bytes: 4 }, per_thread)
    }

    /// Fills with bytes, in stream order.
    fn cuMemsetD8Async | cuMemsetD8Async_ptsz [per_thread] (dst, value, count, stream) {
        Fill::line(dst, u32::from(value), 1, count).submit(resolve(stream, per_thread)?)
    }

    /// Fills with 32-bit values, in stream order.
    fn cuMemsetD32Async | cuMemsetD32Async_ptsz [per_thread] (dst, value, count, stream) {
        Fill::line(dst, value, 4, count).submit(resolve(stream, per_thread)?)
    }
}
