//! Masks in configurations.

use std::fmt;

use partita_core::{Topology, TpcSet};

/// An `sm_mask`: a hexadecimal number in which a set bit disables its TPC; with `~` before it, a
/// set bit enables it. Bits are logical TPCs.
///
/// The original has masks of 64 bits. So does this for a number of at most 16 digits, whose last
/// bit stands for every TPC from 63 on, as in a signed number: disjoint masks stay disjoint on
/// devices with more TPCs (`docs/libsmctrl.md`). A number with more digits, up to 64, names every
/// TPC separately; bits beyond it are not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmMask {
    /// The bits as written.
    pub bits: TpcSet,
    /// Whether they enable.
    pub enables: bool,
    /// Whether every bit is written, up to 256.
    pub is_wide: bool,
}

/// Digits of the original's masks.
const NARROW_DIGITS: usize = 16;
const WIDE_DIGITS: usize = 64;

impl SmMask {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Self> {
        let (enables, rest) = text.trim().strip_prefix('~').map_or((false, text.trim()), |rest| (true, rest));
        let digits = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")).unwrap_or(rest);
        if digits.len() > WIDE_DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let bits = TpcSet::from_hex(digits).ok()?;
        Some(Self { bits, enables, is_wide: digits.len() > NARROW_DIGITS })
    }

    /// A mask that enables exactly `set`.
    pub fn enabling(set: TpcSet) -> Self {
        // In 64 bits the last bit would stand for further TPCs.
        let is_wide = set.last_tpc().is_some_and(|last| last >= 63);
        Self { bits: set, enables: true, is_wide }
    }

    /// The TPCs of a device that it leaves enabled; `None` for a mask with which no launch could
    /// run.
    pub fn enabled(&self, topology: &Topology) -> TpcSet {
        let mut bits = self.bits;
        if !self.is_wide && bits.contains(63) {
            bits |= TpcSet::range(63..256);
        }
        if self.enables { bits & topology.all() } else { topology.all() - bits }
    }
}

impl fmt::Display for SmMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let enables = if self.enables { "~" } else { "" };
        // The width shows the kind.
        let width = if self.is_wide { 2 + NARROW_DIGITS + 1 } else { 0 };
        write!(f, "{enables}{:#0width$x}", self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_core::Tpc;

    fn device(tpcs: u16) -> Topology {
        Topology::new(2, (0..tpcs).map(|i| Tpc { gpc: 0, physical: i }).collect::<Vec<_>>()).unwrap()
    }

    fn enabled(text: &str, tpcs: u16) -> String {
        SmMask::parse(text).unwrap().enabled(&device(tpcs)).to_string()
    }

    #[test]
    fn masks_disable_or_enable() {
        assert_eq!(enabled("0xffffffffffffffe0", 9), "0-4");
        assert_eq!(enabled("0xfffffffffffff01f", 12), "5-11");
        assert_eq!(enabled("~0x3e", 9), "1-5");
        assert_eq!(enabled("0", 9), "0-8");
        assert_eq!(enabled("~0", 9), "none");
    }

    #[test]
    fn the_last_of_64_bits_stands_for_all_beyond() {
        assert_eq!(enabled("0xffffffffffffffe0", 66), "0-4");
        assert_eq!(enabled("0x1f", 66), "5-65");
        assert_eq!(enabled("~0x1f", 66), "0-4");
        // A seventeenth digit makes it a wide mask.
        assert_eq!(enabled("~0x08000000000000000", 66), "63");
        assert_eq!(enabled("~0x20000000000000000", 66), "65");
        assert_eq!(enabled("0x0ffffffffffffffff", 66), "64-65");
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["0x0", "~0x3e", "0xffffffffffffffff", "0x0ffffffffffffffff", "~0x20000000000000000"] {
            let mask = SmMask::parse(text).unwrap();
            assert_eq!(mask.to_string(), text);
        }
        let all = format!("~0x{}", "f".repeat(64));
        assert_eq!(SmMask::parse(&all).unwrap().to_string(), all);
        for text in ["", "0x", "~", "0xg", "~~0x1", "-1", "+1", &"f".repeat(65)] {
            assert_eq!(SmMask::parse(text), None, "{text}");
        }
        for set in ["0-4", "63", "0,65", "200"] {
            let set: TpcSet = set.parse().unwrap();
            assert_eq!(SmMask::enabling(set).enabled(&device(250)), set);
        }
    }
}
