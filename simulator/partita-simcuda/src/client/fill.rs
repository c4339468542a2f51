//! Fills, before they are on a stream.

use partita_abi::CuResult;

use super::gpus::runtime_at;
use super::region::Kind;
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
    /// So many elements in a row.
    pub fn line(dst: u64, value: u32, element_bytes: u8, count: usize) -> Self {
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
            // A range can continue in the next map of the same reservation.
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
}
