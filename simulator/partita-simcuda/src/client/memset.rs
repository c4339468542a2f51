//! Fills.

use partita_abi::CuResult;
use partita_abi::types::*;

use super::capture;
use super::context::stream::{Stream, resolve};
use super::fill::Fill;
use super::gpus::owner;

impl Fill {
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
