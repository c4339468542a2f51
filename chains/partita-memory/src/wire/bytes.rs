//! Numbers to bytes, and bytes to numbers.

use super::fault::BadFrame;
use super::{FRAME_BYTES_MAX, HEADER_BYTES};
use crate::name::TenantName;

/// Builds one frame in a reused buffer.
pub(super) struct Writer<'b> {
    buffer: &'b mut Vec<u8>,
}

impl<'b> Writer<'b> {
    /// Begins a frame.
    pub(super) fn new(buffer: &'b mut Vec<u8>, kind: u16, tag: u64) -> Self {
        buffer.clear();
        // The length is filled in last.
        buffer.extend([0; 4]);
        let mut writer = Self { buffer };
        writer.u16(kind).u16(0).u64(tag);
        writer
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(bytes);
        self
    }

    /// A count, padding, and numbers.
    pub(super) fn list(&mut self, items: &[u64]) -> &mut Self {
        self.u32(items.len() as u32).u32(0);
        items.iter().fold(self, |writer, item| writer.u64(*item))
    }

    pub(super) fn finish(&mut self) {
        debug_assert!(self.buffer.len() <= FRAME_BYTES_MAX, "callers keep to the counts");
        let length = (self.buffer.len() as u32).to_le_bytes();
        self.buffer[..4].copy_from_slice(&length);
    }
}

/// Reads the fields of one frame.
pub(super) struct Reader<'f> {
    rest: &'f [u8],
    bytes: usize,
    /// Its name in errors.
    pub(super) kind: &'static str,
}

impl<'f> Reader<'f> {
    /// Checks the header. Returns the kind's number too.
    pub(super) fn new(frame: &'f [u8]) -> Result<(u16, Self), BadFrame> {
        let bytes = frame.len();
        if bytes > FRAME_BYTES_MAX {
            return Err(BadFrame::Long);
        }
        let mut reader = Self { rest: frame, bytes, kind: "header" };
        if bytes < HEADER_BYTES {
            return Err(BadFrame::Short { bytes });
        }
        let (said, kind, reserved) = (reader.u32()?, reader.u16()?, reader.u16()?);
        if said as usize != bytes {
            return Err(BadFrame::Length { bytes, said });
        }
        if reserved != 0 {
            return Err(BadFrame::Reserved { found: reserved });
        }
        reader.u64()?;
        Ok((kind, reader))
    }

    pub(super) fn raw<const N: usize>(&mut self) -> Result<[u8; N], BadFrame> {
        let (found, rest) = self.rest.split_first_chunk().ok_or_else(|| self.wrong())?;
        self.rest = rest;
        Ok(*found)
    }

    fn wrong(&self) -> BadFrame {
        BadFrame::Fields { kind: self.kind, bytes: self.bytes }
    }

    pub(super) fn u16(&mut self) -> Result<u16, BadFrame> {
        self.raw().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, BadFrame> {
        self.raw().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, BadFrame> {
        self.raw().map(u64::from_le_bytes)
    }

    /// Four bytes that must be zero.
    pub(super) fn padding(&mut self) -> Result<(), BadFrame> {
        match self.u32()? {
            0 => Ok(()),
            found => Err(self.value("padding", u64::from(found))),
        }
    }

    /// A number that is 0 or 1.
    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, BadFrame> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(self.value(field, u64::from(found))),
        }
    }

    pub(super) fn value(&self, field: &'static str, found: u64) -> BadFrame {
        BadFrame::Value { kind: self.kind, field, found }
    }

    pub(super) fn name(&mut self) -> Result<TenantName, BadFrame> {
        Ok(TenantName::from_bytes(self.raw()?)?)
    }

    /// A count of items, at least `least`, for which the rest of the frame has room.
    pub(super) fn count(&mut self, least: u32, most: usize) -> Result<usize, BadFrame> {
        let count = self.u32()?;
        self.padding()?;
        if count < least || count as usize > most {
            return Err(BadFrame::Count { kind: self.kind, count, most });
        }
        Ok(count as usize)
    }

    pub(super) fn list(&mut self, least: u32, most: usize) -> Result<Vec<u64>, BadFrame> {
        let count = self.count(least, most)?;
        (0..count).map(|_| self.u64()).collect()
    }

    /// The whole rest.
    pub(super) fn take_rest(&mut self) -> &'f [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Checks that no bytes remain.
    pub(super) fn end(self) -> Result<(), BadFrame> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong()) }
    }
}
