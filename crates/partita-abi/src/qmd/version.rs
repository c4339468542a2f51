//! Versions of the launch descriptor, and where each says which it is.

use core::fmt;

/// A version of the QMD. The discriminant is the version byte, major version in the high half:
/// `QMD_MAJOR_VERSION << 4 | QMD_VERSION` (`QMD_MINOR_VERSION` from V04_01 on) of the headers.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types)] // The headers' own names.
pub enum QmdVersion {
    /// Kepler to Maxwell, without a TPC mask.
    V00_06 = 0x06,
    /// Kepler.
    V01_06 = 0x16,
    /// Kepler to Pascal.
    V01_07 = 0x17,
    /// Pascal.
    V02_00 = 0x20,
    /// Pascal.
    V02_01 = 0x21,
    /// Volta.
    V02_02 = 0x22,
    /// Turing and Ampere.
    V02_03 = 0x23,
    /// Ampere and Ada.
    V02_04 = 0x24,
    /// Ampere, Ada (where the mask has eight more bits) and Hopper.
    V03_00 = 0x30,
    /// Hopper.
    V04_00 = 0x40,
    /// Blackwell.
    V04_01 = 0x41,
    /// Blackwell.
    V05_00 = 0x50,
    /// Blackwell, of several tasks: its header says whether a TPC mask counts, but has no mask.
    V05_01 = 0x51,
}

impl QmdVersion {
    /// Every version that NVIDIA's headers describe, in ascending order.
    pub const ALL: [QmdVersion; 13] = [
        Self::V00_06,
        Self::V01_06,
        Self::V01_07,
        Self::V02_00,
        Self::V02_01,
        Self::V02_02,
        Self::V02_03,
        Self::V02_04,
        Self::V03_00,
        Self::V04_00,
        Self::V04_01,
        Self::V05_00,
        Self::V05_01,
    ];

    /// The version with this version byte, or `None` for an unknown one.
    pub const fn from_byte(byte: u8) -> Option<QmdVersion> {
        let mut index = 0;
        while index < Self::ALL.len() {
            if Self::ALL[index] as u8 == byte {
                return Some(Self::ALL[index]);
            }
            index += 1;
        }
        None
    }

    /// The version byte.
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Where a descriptor of this version keeps its version byte, in bytes from its start.
    ///
    /// `QMD_VERSION` MW(579:576) and `QMD_MAJOR_VERSION` MW(583:580) up to V04_01;
    /// `QMD_MINOR_VERSION` MW(467:464) and `QMD_MAJOR_VERSION` MW(471:468) in V05 (`clcdc0qmd.h`).
    pub const fn offset_bytes(self) -> u16 {
        match self {
            Self::V05_00 | Self::V05_01 => 464 / 8,
            _ => 576 / 8,
        }
    }

    /// The word of the version byte, and its lowest bit there.
    #[inline]
    pub(super) const fn place(self) -> (usize, u32) {
        (self.offset_bytes() as usize / 4, self.offset_bytes() as u32 % 4 * 8)
    }

    /// The byte of a descriptor at this version's offset; `None` if the image ends before it.
    #[inline]
    pub fn byte_at_place(self, image: &[u32]) -> Option<u8> {
        let (word, shift) = self.place();
        image.get(word).map(|word| (word >> shift) as u8)
    }

    /// Whether a descriptor says at this version's place that it is of this version. The place
    /// holds other data in descriptors of other classes, so this proves nothing without the class.
    #[inline]
    pub fn stands_in(self, image: &[u32]) -> bool {
        self.byte_at_place(image) == Some(self.byte())
    }
}

/// `V04_00`, as in the headers.
impl fmt::Display for QmdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "V{:02}_{:02}", self.byte() >> 4, self.byte() & 0xf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn version_bytes_round_trip_and_print_as_in_the_headers() {
        for version in QmdVersion::ALL {
            assert_eq!(QmdVersion::from_byte(version.byte()), Some(version));
        }
        assert!(QmdVersion::ALL.is_sorted());
        assert_eq!(QmdVersion::from_byte(0x18), None);
        assert_eq!(QmdVersion::V04_00.to_string(), "V04_00");
        assert_eq!(QmdVersion::V01_06.to_string(), "V01_06");
    }

    #[test]
    fn the_version_byte_is_byte_72_and_58_in_v05() {
        let mut image = [0_u32; 96];
        image[18] = 0xabcd_ef40;
        image[14] = 0xab50_cdef;
        assert_eq!(QmdVersion::V04_00.byte_at_place(&image), Some(0x40));
        assert_eq!(QmdVersion::V05_01.byte_at_place(&image), Some(0x50));
        assert!(QmdVersion::V05_00.stands_in(&image) && !QmdVersion::V05_01.stands_in(&image));
        assert_eq!(QmdVersion::V04_00.byte_at_place(&image[..18]), None);
        assert_eq!((QmdVersion::V01_06.offset_bytes(), QmdVersion::V05_00.offset_bytes()), (72, 58));
    }
}
