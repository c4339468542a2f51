//! The offset of a stream's TPC mask in the driver's memory.
//!
//! `*(char **)stream` is the driver's private structure; somewhere in it are the words that the
//! driver merges into the descriptor of every launch of the stream. The offset depends on the
//! driver's CUDA version *and* on the platform, and two platforms of one version are known to
//! differ, so each number here is a **hint**: the start of a search in a process that may crash,
//! never a place to write to without a proof. libsmctrl and its forks collected the numbers on the
//! drivers and boards named in their sources.
//!
//! Bits of a stream's mask number TPCs *logically* (bit `i` is SMs `2i` and `2i + 1` if a TPC has
//! two), unlike those of a launch descriptor, and a set bit disables.

/// The layout of the words of a stream's mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMaskLayout {
    /// Up to CUDA 11.8: `{u32 upper; u32 lower}`, 64 TPCs, always in force.
    UpperLower,
    /// From CUDA 12.0: `{u32 enabled; u32 mask[4]}`, 128 TPCs, in force while
    /// `enabled` is 1.
    EnabledWords,
}

impl StreamMaskLayout {
    /// The layout of a driver's CUDA version (major × 1000 + minor × 10).
    pub const fn of(cuda_version: u32) -> StreamMaskLayout {
        if cuda_version < 12_000 { Self::UpperLower } else { Self::EnabledWords }
    }

    /// Size of the mask, in bytes.
    pub const fn bytes(self) -> usize {
        self.words() * 4
    }

    /// Size of the mask, in 32-bit words.
    pub const fn words(self) -> usize {
        match self {
            Self::UpperLower => 2,
            Self::EnabledWords => 5,
        }
    }

    /// How many TPCs the mask can name.
    pub const fn tpcs_max(self) -> u32 {
        match self {
            Self::UpperLower => 64,
            Self::EnabledWords => 128,
        }
    }

    /// The words to write for a disable mask; the first
    /// [`StreamMaskLayout::words`] count.
    pub const fn encode(self, disable: &[u32; 4]) -> [u32; 5] {
        match self {
            Self::UpperLower => [disable[1], disable[0], 0, 0, 0],
            Self::EnabledWords => [1, disable[0], disable[1], disable[2], disable[3]],
        }
    }

    /// The disable mask in the words of a stream, or `None` without an active one: the flag is
    /// clear or, without a flag, both words are zero.
    pub const fn decode(self, words: &[u32; 5]) -> Option<[u32; 4]> {
        match self {
            Self::UpperLower if words[0] | words[1] == 0 => None,
            Self::UpperLower => Some([words[1], words[0], 0, 0]),
            Self::EnabledWords if words[0] & 1 == 0 => None,
            Self::EnabledWords => Some([words[1], words[2], words[3], words[4]]),
        }
    }
}

/// The kind of machine that an offset was seen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPlatform {
    /// x86_64 with a PCIe or SXM board.
    X86_64,
    /// aarch64 Jetson (TX2, Xavier, Orin), where the offset is fixed by CUDA
    /// version alone.
    Jetson,
    /// Jetson Thor.
    Thor,
    /// DGX Spark (GB10).
    Spark,
}

/// One known offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHint {
    /// The kind of machine.
    pub platform: StreamPlatform,
    /// The driver's CUDA version (major × 1000 + minor × 10).
    pub cuda_version: u32,
    /// Offset of the mask from the stream's structure, in bytes.
    pub offset_bytes: u32,
}

const fn hint(platform: StreamPlatform, cuda_version: u32, offset_bytes: u32) -> StreamHint {
    StreamHint { platform, cuda_version, offset_bytes }
}

use StreamPlatform::{Jetson, Spark, Thor, X86_64};

/// Every known offset, by platform and then by version. The one of CUDA 13.0
/// on x86_64 was also measured on an H200 with driver 580.159.04.
pub static STREAM_HINTS: &[StreamHint] = &[
    hint(X86_64, 8000, 0xec),
    hint(X86_64, 9000, 0x130),
    hint(X86_64, 9010, 0x130),
    hint(X86_64, 9020, 0x140),
    hint(X86_64, 10_000, 0x244),
    hint(X86_64, 10_010, 0x244),
    hint(X86_64, 10_020, 0x244),
    hint(X86_64, 11_000, 0x274),
    hint(X86_64, 11_010, 0x2c4),
    hint(X86_64, 11_020, 0x37c),
    hint(X86_64, 11_030, 0x37c),
    hint(X86_64, 11_040, 0x37c),
    hint(X86_64, 11_050, 0x37c),
    hint(X86_64, 11_060, 0x38c),
    hint(X86_64, 11_070, 0x3c4),
    hint(X86_64, 11_080, 0x47c),
    hint(X86_64, 12_000, 0x4cc),
    hint(X86_64, 12_010, 0x4cc),
    hint(X86_64, 12_020, 0x4e4),
    hint(X86_64, 12_030, 0x49c),
    hint(X86_64, 12_040, 0x4ac),
    hint(X86_64, 12_050, 0x4ec),
    hint(X86_64, 12_060, 0x4ec),
    hint(X86_64, 12_070, 0x4fc),
    hint(X86_64, 12_080, 0x4fc),
    hint(X86_64, 13_000, 0x51c),
    hint(X86_64, 13_030, 0x5fc),
    hint(Jetson, 9000, 0x128),
    hint(Jetson, 10_020, 0x24c),
    hint(Jetson, 11_040, 0x394),
    hint(Jetson, 12_020, 0x50c),
    hint(Jetson, 12_040, 0x4c4),
    hint(Jetson, 12_050, 0x50c),
    hint(Jetson, 12_060, 0x514),
    hint(Thor, 13_000, 0x54c),
    hint(Spark, 13_000, 0x53c),
];

/// The known offset of a platform and CUDA version, in bytes; `None` for an unlisted version:
/// neighbouring versions do not determine it.
pub fn stream_hint(platform: StreamPlatform, cuda_version: u32) -> Option<u32> {
    STREAM_HINTS
        .iter()
        .find(|hint| hint.platform == platform && hint.cuda_version == cuda_version)
        .map(|hint| hint.offset_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_exact_or_absent() {
        assert_eq!(stream_hint(X86_64, 13_000), Some(0x51c));
        assert_eq!(stream_hint(X86_64, 8000), Some(0xec));
        assert_eq!(stream_hint(X86_64, 12_090), None);
        assert_eq!(stream_hint(Thor, 13_000), Some(0x54c));
        assert_ne!(stream_hint(Thor, 13_000), stream_hint(Spark, 13_000));
        assert_eq!(stream_hint(Spark, 12_080), None);
    }

    #[test]
    fn each_platform_and_version_is_listed_once() {
        for (index, hint) in STREAM_HINTS.iter().enumerate() {
            let same = |other: &&StreamHint| {
                other.platform == hint.platform && other.cuda_version == hint.cuda_version
            };
            assert_eq!(STREAM_HINTS[index..].iter().filter(same).count(), 1, "{hint:?}");
            assert_eq!(hint.offset_bytes % 4, 0);
        }
    }

    #[test]
    fn masks_encode_as_each_layout_keeps_them() {
        let disable = [0x1111_1111, 0x2222_2222, 0x3333_3333, 0x4444_4444];
        assert_eq!(StreamMaskLayout::of(11_080), StreamMaskLayout::UpperLower);
        assert_eq!(StreamMaskLayout::of(12_000), StreamMaskLayout::EnabledWords);
        let old = StreamMaskLayout::UpperLower;
        assert_eq!(old.encode(&disable)[..old.words()], [0x2222_2222, 0x1111_1111]);
        let new = StreamMaskLayout::EnabledWords;
        assert_eq!(new.encode(&disable), [1, disable[0], disable[1], disable[2], disable[3]]);
        assert_eq!(new.bytes(), 20);

        assert_eq!(new.decode(&new.encode(&disable)), Some(disable));
        assert_eq!(new.decode(&[0, 1, 2, 3, 4]), None);
        assert_eq!(new.decode(&[1, 0, 0, 0, 0]), Some([0; 4]));
        assert_eq!(old.decode(&old.encode(&disable)), Some([disable[0], disable[1], 0, 0]));
        assert_eq!(old.decode(&[0; 5]), None);
    }
}
