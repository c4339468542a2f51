//! Masks of C programs as sets of TPCs. In a mask a set bit disables a TPC; in a [`TpcSet`] a
//! member is enabled.

use alloc::format;
use core::fmt;

use partita_core::{Topology, TpcSet};

use crate::fault::Fault;

/// A mask of 256 bits; bit `i` is bit `i % 64` of word `i / 64`.
pub type Wide = [u64; 4];

/// What the bits of process and launch masks count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// TPCs: bit `i` is the SMs `2i` and `2i + 1` if a TPC has two.
    Logical,
    /// Bits of the launch descriptor's own mask, as they are on this board.
    Physical,
}

impl Numbering {
    /// The numbering of this number in the header.
    pub fn of(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Logical),
            1 => Some(Self::Physical),
            _ => None,
        }
    }
}

/// Extends a 64-bit mask: bit 63 stands for TPC 63 and all above.
///
/// The two other possible rules both lose something. If TPCs from 64 on were always enabled, two
/// partitions with disjoint masks would share them. If they were always disabled, no mask could
/// reach them. With this rule, disjoint masks stay disjoint, a mask and its complement divide the
/// whole device, and no TPC is lost.
pub const fn from_64(mask: u64) -> Wide {
    let above = extend(mask >> 63);
    [mask, above, above, above]
}

/// Extends a 128-bit mask: bit 127 stands for TPC 127 and all above.
pub const fn from_128(mask: u128) -> Wide {
    let above = extend((mask >> 127) as u64);
    [mask as u64, (mask >> 64) as u64, above, above]
}

const fn extend(bit: u64) -> u64 {
    0u64.wrapping_sub(bit)
}

/// The TPCs that a mask leaves enabled.
///
/// # Errors
/// `EINVAL` if it leaves no TPC of the device: such a launch would never end.
pub fn enabled(mask: &Wide, numbering: Numbering, topology: &Topology) -> Result<TpcSet, Fault> {
    let open = !TpcSet::from_words(*mask);
    let set = match numbering {
        Numbering::Logical => open & topology.all(),
        Numbering::Physical => (0..)
            .zip(topology.tpcs())
            .filter(|(_, tpc)| u8::try_from(tpc.physical).is_ok_and(|bit| open.contains(bit)))
            .map(|(logical, _)| logical)
            .collect(),
    };
    if set.is_empty() {
        return Err(nothing_enabled(mask, topology));
    }
    Ok(set)
}

#[cold]
fn nothing_enabled(mask: &Wide, topology: &Topology) -> Fault {
    Fault::new(
        libc::EINVAL,
        format!(
            "mask {} disables every TPC of this GPU (it has {}): a launch with no TPC would never end; \
             a set bit disables, so leave the bit of at least one TPC clear",
            Hex(mask),
            topology.tpc_count()
        ),
    )
}

struct Hex<'a>(&'a Wide);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", TpcSet::from_words(*self.0))
    }
}

/// The mask of `bits` bits that enables the TPCs from `low` to `high`, exclusive.
///
/// # Errors
/// `EINVAL` for an empty range; `ERANGE` for TPCs beyond the mask.
pub fn of_range(low: u32, high: u32, bits: u32) -> Result<u128, Fault> {
    if low >= high {
        return Err(Fault::new(
            libc::EINVAL,
            format!(
                "TPCs {low} to {high}, exclusive, are an empty \
            range"
            ),
        ));
    }
    if high > bits {
        return Err(Fault::new(
            libc::ERANGE,
            format!(
                "TPCs {low} to {high}, exclusive, do not fit a mask of {bits} bits: use \
                 libsmctrl_make_mask_ext, or a mask of 256 bits"
            ),
        ));
    }
    let below = |end: u32| if end >= 128 { u128::MAX } else { (1 << end) - 1 };
    Ok(!(below(high) & !below(low)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_core::Tpc;
    use proptest::prelude::*;

    fn device(tpcs: u16) -> Topology {
        // With a hole after every fourth bit, as boards have them.
        let tpc = |i: u16| Tpc { gpc: (i / 9) as u8, physical: i + i / 4 };
        Topology::new(2, (0..tpcs).map(tpc).collect::<Vec<_>>()).unwrap()
    }

    fn set(mask: u64, tpcs: u16) -> TpcSet {
        enabled(&from_64(mask), Numbering::Logical, &device(tpcs)).unwrap_or(TpcSet::EMPTY)
    }

    #[test]
    fn the_last_bit_stands_for_all_above() {
        assert_eq!(set(0, 66), TpcSet::first(66));
        assert_eq!(set(!0xf, 66), TpcSet::first(4));
        assert_eq!(set(0xf, 66), TpcSet::range(4..66));
        assert_eq!(set(!(1 << 63), 66), TpcSet::range(63..66));
        let wide = enabled(&from_128(!(1 << 65)), Numbering::Logical, &device(66)).unwrap();
        assert_eq!(wide, TpcSet::single(65));
        let beyond = enabled(&from_128(!(1 << 127)), Numbering::Logical, &device(200)).unwrap();
        assert_eq!(beyond, TpcSet::range(127..200));
    }

    #[test]
    fn a_mask_that_leaves_nothing_is_refused() {
        for mask in [[u64::MAX; 4], [u64::MAX, u64::MAX, 0, 0], from_64(u64::MAX)] {
            let fault = enabled(&mask, Numbering::Logical, &device(66)).unwrap_err();
            assert!(fault.code == libc::EINVAL && fault.text.contains("would never end"), "{fault}");
        }
        // Bit 4 is a hole of the device.
        let hole = [!(1 << 4), u64::MAX, u64::MAX, u64::MAX];
        assert!(enabled(&hole, Numbering::Physical, &device(66)).is_err());
        assert!(enabled(&hole, Numbering::Logical, &device(66)).is_ok());
    }

    #[test]
    fn physical_bits_are_translated() {
        let device = device(66);
        for (logical, tpc) in (0..).zip(device.tpcs()) {
            let mask = (!TpcSet::single(tpc.physical as u8)).to_words();
            assert_eq!(enabled(&mask, Numbering::Physical, &device).unwrap(), TpcSet::single(logical));
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(of_range(5, 10, 64).unwrap() as u64, !0x3e0);
        assert_eq!(of_range(0, 64, 64).unwrap() as u64, 0);
        assert_eq!(of_range(0, 128, 128).unwrap(), 0);
        assert_eq!(of_range(127, 128, 128).unwrap(), u128::MAX >> 1);
        assert_eq!(of_range(3, 3, 64).unwrap_err().code, libc::EINVAL);
        assert_eq!(of_range(0, 65, 64).unwrap_err().code, libc::ERANGE);
        assert_eq!(of_range(0, u32::MAX, 128).unwrap_err().code, libc::ERANGE);
    }

    proptest! {
        /// Partitions rely on this, whatever the width of the device.
        #[test]
        fn disjoint_masks_stay_disjoint_and_complements_part_the_device(a: u64, b: u64, tpcs in 1u16..200) {
            let all = TpcSet::first(tpcs.into());
            prop_assert_eq!(set(a, tpcs) | set(!a, tpcs), all);
            prop_assert!(set(a, tpcs).is_disjoint(&set(!a, tpcs)));
            prop_assert!(set(a, tpcs).is_disjoint(&set(!a | b, tpcs)));
        }
    }
}
