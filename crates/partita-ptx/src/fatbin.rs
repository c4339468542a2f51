//! Fat binaries: containers of cubins and PTX, one for each architecture.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use ruzstd::decoding::FrameDecoder;

/// Begins a container.
pub const MAGIC: u32 = 0xba55_ed50;
/// Begins the wrapper that `nvcc` puts around a container in a program: magic, version, pointer.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// Bytes of a container's own header.
pub const HEADER_BYTES: usize = 16;

/// A part is packed with LZ4.
const FLAG_LZ4: u64 = 0x2000;
/// A part is packed with Zstandard.
const FLAG_ZSTD: u64 = 0x8000;
/// Longest part, in bytes: a damaged header must not take all memory.
const BYTES_MAX: usize = 1 << 30;

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PTX text, which may end with zeroes.
    Ptx,
    /// An ELF file.
    Cubin,
    /// Something else, by its number.
    Other(u16),
}

/// A part of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its architecture: 90 for `sm_90`.
    pub architecture: u32,
    /// Its bytes; `None` if they are damaged.
    pub bytes: Option<Cow<'a, [u8]>>,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The length of a container in bytes, from its first [`HEADER_BYTES`].
#[must_use]
pub fn length(header: &[u8]) -> Option<usize> {
    let payload = usize::try_from(u64_at(header, 8)?).ok()?;
    usize::from(u16_at(header, 6)?).checked_add(payload)
}

/// The parts of a container; `None` if it is damaged.
#[must_use]
pub fn parts(bytes: &[u8]) -> Option<Vec<Part<'_>>> {
    let mut at = usize::from(u16_at(bytes, 6)?);
    let mut parts = Vec::new();
    while at + 64 <= bytes.len() {
        let header = usize::try_from(u32_at(bytes, at + 4)?).ok()?;
        let stored = usize::try_from(u64_at(bytes, at + 8)?).ok()?;
        let packed = usize::try_from(u32_at(bytes, at + 16)?).ok()?;
        let flags = u64_at(bytes, at + 40)?;
        let plain = usize::try_from(u64_at(bytes, at + 56)?).ok()?;
        let start = at.checked_add(header)?;
        let next = start.checked_add(stored)?;
        let payload = bytes.get(start..next)?;
        let content = if flags & FLAG_ZSTD != 0 {
            zstd(payload.get(..packed).unwrap_or(payload), plain).map(Cow::Owned)
        } else if flags & FLAG_LZ4 != 0 {
            lz4(payload.get(..packed).unwrap_or(payload), plain).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(payload))
        };
        let kind = match u16_at(bytes, at)? {
            1 => Kind::Ptx,
            2 => Kind::Cubin,
            other => Kind::Other(other),
        };
        parts.push(Part { kind, architecture: u32_at(bytes, at + 28)?, bytes: content });
        if next <= at {
            break;
        }
        at = next;
    }
    Some(parts)
}

/// Unpacks a Zstandard frame, the default of CUDA 13. `None` when it is damaged.
fn zstd(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    if length > BYTES_MAX {
        return None;
    }
    let mut out = alloc::vec![0; length];
    let count = FrameDecoder::new().decode_all(packed, &mut out).ok()?;
    (count == length).then_some(out)
}

/// Unpacks an LZ4 block. `None` when it is damaged.
fn lz4(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    if length > BYTES_MAX {
        return None;
    }
    let mut out = Vec::with_capacity(length);
    let mut rest = packed.iter().copied();
    let long = |short: usize, rest: &mut dyn Iterator<Item = u8>| -> Option<usize> {
        let mut total = short;
        if short == 15 {
            loop {
                let more = rest.next()?;
                total += usize::from(more);
                if more != 255 {
                    break;
                }
            }
        }
        Some(total)
    };
    while let Some(token) = rest.next() {
        let literals = long(usize::from(token >> 4), &mut rest)?;
        for _ in 0..literals {
            out.push(rest.next()?);
        }
        if out.len() >= length {
            break;
        }
        let offset = usize::from(u16::from_le_bytes([rest.next()?, rest.next()?]));
        let count = long(usize::from(token & 15), &mut rest)? + 4;
        let from = out.len().checked_sub(offset).filter(|_| offset > 0)?;
        for index in 0..count {
            out.push(*out.get(from + index)?);
        }
    }
    out.truncate(length);
    (out.len() == length).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zstandard_frames_unpack_and_damaged_ones_are_refused() {
        // One segment of nine bytes: a raw block of five, then a block of one byte four times.
        let frame = b"\x28\xb5\x2f\xfd\x20\x09\x28\x00\x00hello\x23\x00\x00!";
        assert_eq!(zstd(frame, 9).unwrap(), b"hello!!!!");
        assert_eq!(zstd(&frame[..12], 9), None);
        assert_eq!(zstd(frame, 8), None);
        assert_eq!(zstd(b"hello", 9), None);
    }

    #[test]
    fn lz4_blocks_unpack_and_damaged_ones_are_refused() {
        // Five literals, then a match of nine bytes that overlaps itself, then three literals.
        let packed = [0x55, b'a', b'b', b'c', b'd', b'e', 5, 0, 0x30, b'x', b'y', b'z'];
        assert_eq!(lz4(&packed, 17).unwrap(), b"abcdeabcdeabcdxyz");
        assert_eq!(lz4(&packed[..7], 17), None);
        assert_eq!(lz4(&[0x10, b'a', 9, 0], 20), None);
    }
}
