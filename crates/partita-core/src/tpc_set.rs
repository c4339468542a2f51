//! [`TpcSet`], a set of TPCs.

#[cfg(test)]
mod tests;

use alloc::string::String;
use core::cmp::Ordering;
use core::fmt;
use core::iter::FusedIterator;
use core::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, BitXorAssign, Not, Range, RangeInclusive};
use core::ops::{Sub, SubAssign};
use core::str::FromStr;

use thiserror::Error;

/// A set of TPCs, numbered 0 to 255.
///
/// A member is an *enabled* TPC. Unless a function says otherwise the numbers are logical: TPC `i`
/// holds the SMs `i * k .. (i + 1) * k` of a device with `k` SMs a TPC. The hardware's own masks
/// are physical and inverted (a set bit disables); [`Topology`](crate::Topology) translates.
///
/// The text form is a list of ranges; `{:#x}` gives the set as a 256-bit number, and both parse.
///
/// ```
/// use partita_core::TpcSet;
///
/// let half: TpcSet = "0-9,12".parse().unwrap();
/// assert_eq!(half.len(), 11);
/// assert_eq!(half.to_string(), "0-9,12");
/// assert_eq!(format!("{half:#x}"), "0x13ff");
/// assert_eq!("0x13ff".parse(), Ok(half));
///
/// let device = TpcSet::first(66);
/// let rest = half.complement_within(device);
/// assert!(rest.is_disjoint(&half));
/// assert_eq!((rest | half), device);
/// assert_eq!(rest.to_string(), "10-11,13-65");
/// assert_eq!(TpcSet::EMPTY.to_string(), "none");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TpcSet([u64; 4]);

impl TpcSet {
    /// How many TPCs a set can number: 0 up to this, exclusive.
    pub const CAPACITY: u32 = 256;

    /// The set without members.
    pub const EMPTY: Self = Self([0; 4]);

    /// The set of one TPC.
    #[must_use]
    pub const fn single(tpc: u8) -> Self {
        let mut words = [0; 4];
        words[(tpc / 64) as usize] = 1 << (tpc % 64);
        Self(words)
    }

    /// The TPCs of a half-open range. TPCs of [`Self::CAPACITY`] and above do not exist, so a range
    /// that goes beyond ends there; a reversed range is empty.
    #[must_use]
    pub const fn range(tpcs: Range<u16>) -> Self {
        let below_end = Self::first(tpcs.end as u32).0;
        let below_start = Self::first(tpcs.start as u32).0;
        let mut words = [0; 4];
        let mut i = 0;
        while i < 4 {
            words[i] = below_end[i] & !below_start[i];
            i += 1;
        }
        Self(words)
    }

    /// The TPCs `0..count`, at most [`Self::CAPACITY`] of them.
    #[must_use]
    pub const fn first(count: u32) -> Self {
        let mut words = [0; 4];
        let mut i = 0;
        while i < 4 {
            let below = count.saturating_sub(64 * i as u32);
            words[i] = if below >= 64 { u64::MAX } else { (1 << below) - 1 };
            i += 1;
        }
        Self(words)
    }

    /// The set whose TPC `i` is bit `i % 64` of word `i / 64`.
    #[must_use]
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// The words of the set: TPC `i` is bit `i % 64` of word `i / 64`.
    #[must_use]
    pub const fn to_words(self) -> [u64; 4] {
        self.0
    }

    /// The set whose TPC `i` is bit `i % 32` of word `i / 32`.
    #[must_use]
    pub const fn from_words32(words: [u32; 8]) -> Self {
        let mut out = [0; 4];
        let mut i = 0;
        while i < 4 {
            out[i] = words[2 * i] as u64 | (words[2 * i + 1] as u64) << 32;
            i += 1;
        }
        Self(out)
    }

    /// The set as 32-bit words, the form in which launch descriptors hold masks: TPC `i` is bit
    /// `i % 32` of word `i / 32`.
    #[must_use]
    pub const fn to_words32(self) -> [u32; 8] {
        let mut out = [0; 8];
        let mut i = 0;
        while i < 4 {
            out[2 * i] = self.0[i] as u32;
            out[2 * i + 1] = (self.0[i] >> 32) as u32;
            i += 1;
        }
        out
    }

    /// Reads a hexadecimal number, with or without `0x`, as a set: bit `i` is TPC `i`.
    ///
    /// # Errors
    /// No digits, a character that is no hexadecimal digit, or a number of more than 256 bits.
    pub fn from_hex(text: &str) -> Result<Self, ParseTpcSetError> {
        let trimmed = text.trim();
        let digits = trimmed.strip_prefix("0x").or_else(|| trimmed.strip_prefix("0X")).unwrap_or(trimmed);
        let bad = |reason| ParseTpcSetError { text: text.into(), reason };
        if digits.is_empty() {
            return Err(bad(Reason::NoDigits));
        }
        let mut words = [0u64; 4];
        for c in digits.chars() {
            let digit = c.to_digit(16).ok_or_else(|| bad(Reason::NotHex(c)))?;
            if words[3] >> 60 != 0 {
                return Err(bad(Reason::TooWide));
            }
            for i in (1..4).rev() {
                words[i] = words[i] << 4 | words[i - 1] >> 60;
            }
            words[0] = words[0] << 4 | u64::from(digit);
        }
        Ok(Self(words))
    }

    /// Adds a TPC; returns whether it was absent.
    pub const fn insert(&mut self, tpc: u8) -> bool {
        let absent = !self.contains(tpc);
        self.0[(tpc / 64) as usize] |= 1 << (tpc % 64);
        absent
    }

    /// Removes a TPC; returns whether it was present.
    pub const fn remove(&mut self, tpc: u8) -> bool {
        let present = self.contains(tpc);
        self.0[(tpc / 64) as usize] &= !(1 << (tpc % 64));
        present
    }

    /// Whether the TPC is a member.
    #[must_use]
    pub const fn contains(&self, tpc: u8) -> bool {
        self.0[(tpc / 64) as usize] >> (tpc % 64) & 1 == 1
    }

    /// How many members there are.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.0[0].count_ones() + self.0[1].count_ones() + self.0[2].count_ones() + self.0[3].count_ones()
    }

    /// Whether there are no members.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// The lowest member.
    #[must_use]
    pub fn first_tpc(&self) -> Option<u8> {
        self.iter().next()
    }

    /// The highest member.
    #[must_use]
    pub fn last_tpc(&self) -> Option<u8> {
        self.iter().next_back()
    }

    /// The members with the `count` lowest numbers; the whole set if it has fewer.
    #[must_use]
    pub fn lowest(self, count: u32) -> Self {
        self.iter().take(count as usize).collect()
    }

    /// The TPCs of `universe` that are not in this set.
    #[must_use]
    pub fn complement_within(self, universe: Self) -> Self {
        universe - self
    }

    /// Whether the two sets share no member.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        (*self & *other).is_empty()
    }

    /// Whether every member of this set is one of `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        (*self - *other).is_empty()
    }

    /// The members, lowest first.
    #[must_use]
    pub const fn iter(&self) -> Iter {
        Iter(*self)
    }

    /// The maximal runs of adjacent members, lowest first: what the text form lists.
    pub fn runs(&self) -> impl Iterator<Item = RangeInclusive<u8>> + use<> {
        let mut rest = *self;
        core::iter::from_fn(move || {
            let start = rest.first_tpc()?;
            let mut end = start;
            rest.remove(start);
            while end < u8::MAX && rest.remove(end + 1) {
                end += 1;
            }
            Some(start..=end)
        })
    }

    fn write_runs(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for (i, run) in self.runs().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match (run.start(), run.end()) {
                (start, end) if start == end => write!(out, "{comma}{start}")?,
                (start, end) => write!(out, "{comma}{start}-{end}")?,
            }
        }
        Ok(())
    }

    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self(core::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

/// The order of the sets as 256-bit numbers.
impl Ord for TpcSet {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

impl PartialOrd for TpcSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

macro_rules! operator {
    ($trait:ident $method:ident, $assign:ident $assign_method:ident, $doc:literal, $f:expr) => {
        #[doc = $doc]
        impl $trait for TpcSet {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.zip(other, $f)
            }
        }
        #[doc = $doc]
        impl $assign for TpcSet {
            fn $assign_method(&mut self, other: Self) {
                *self = self.zip(other, $f);
            }
        }
    };
}
operator!(BitOr bitor, BitOrAssign bitor_assign, "The members of either set.", |a, b| a | b);
operator!(BitAnd bitand, BitAndAssign bitand_assign, "The members of both sets.", |a, b| a & b);
operator!(BitXor bitxor, BitXorAssign bitxor_assign, "The members of exactly one of the sets.", |a, b| a ^ b);
operator!(Sub sub, SubAssign sub_assign, "The members of the first set that are not in the second.", |a, b| a & !b);

/// All of the 256 numbers that are not members: what a mask of disabled TPCs holds.
/// Use [`TpcSet::complement_within`] for the complement on a device.
impl Not for TpcSet {
    type Output = Self;
    fn not(self) -> Self {
        Self(self.0.map(|word| !word))
    }
}

impl FromIterator<u8> for TpcSet {
    fn from_iter<I: IntoIterator<Item = u8>>(tpcs: I) -> Self {
        let mut set = Self::EMPTY;
        set.extend(tpcs);
        set
    }
}

impl Extend<u8> for TpcSet {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, tpcs: I) {
        for tpc in tpcs {
            self.insert(tpc);
        }
    }
}

impl IntoIterator for TpcSet {
    type Item = u8;
    type IntoIter = Iter;
    fn into_iter(self) -> Iter {
        self.iter()
    }
}

impl IntoIterator for &TpcSet {
    type Item = u8;
    type IntoIter = Iter;
    fn into_iter(self) -> Iter {
        self.iter()
    }
}

/// The members of a [`TpcSet`], lowest first.
#[derive(Clone, Debug)]
pub struct Iter(TpcSet);

impl Iterator for Iter {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let i = self.0.0.iter().position(|&word| word != 0)?;
        let tpc = 64 * i as u32 + self.0.0[i].trailing_zeros();
        self.0.0[i] &= self.0.0[i] - 1;
        Some(tpc as u8)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.0.len() as usize;
        (left, Some(left))
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<u8> {
        let i = self.0.0.iter().rposition(|&word| word != 0)?;
        let tpc = (64 * i as u32 + self.0.0[i].ilog2()) as u8;
        self.0.remove(tpc);
        Some(tpc)
    }
}

impl ExactSizeIterator for Iter {}
impl FusedIterator for Iter {}

/// Ranges, `0-9,12`; `none` for the empty set.
impl fmt::Display for TpcSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.pad("none");
        }
        if f.width().is_none() {
            return self.write_runs(f);
        }
        // Padding needs the length of the text.
        let mut text = String::new();
        self.write_runs(&mut text)?;
        f.pad(&text)
    }
}

impl fmt::Debug for TpcSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TpcSet({self})")
    }
}

/// The set as a 256-bit number without leading zeros.
impl fmt::LowerHex for TpcSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0u8; 64];
        for (i, digit) in digits.iter_mut().rev().enumerate() {
            let nibble = (self.0[i / 16] >> (4 * (i % 16)) & 0xf) as u8;
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
        let leading = digits.iter().position(|&d| d != b'0').unwrap_or(63);
        let text = core::str::from_utf8(&digits[leading..]).map_err(|_| fmt::Error)?;
        f.pad_integral(true, "0x", text)
    }
}

/// Reads ranges (`0-9,12`, spaces allowed around each), `none`, or a number in hexadecimal
/// (`0x13ff`, bit `i` is TPC `i`).
impl FromStr for TpcSet {
    type Err = ParseTpcSetError;

    fn from_str(text: &str) -> Result<Self, ParseTpcSetError> {
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("none") {
            return Ok(Self::EMPTY);
        }
        if trimmed.starts_with("0x") || trimmed.starts_with("0X") {
            return Self::from_hex(text);
        }
        parse_ranges(trimmed).map_err(|reason| ParseTpcSetError { text: text.into(), reason })
    }
}

pub(crate) fn parse_ranges(text: &str) -> Result<TpcSet, Reason> {
    let mut set = TpcSet::EMPTY;
    for part in text.split(',') {
        let (start, end) = match part.split_once('-') {
            Some((start, end)) => (parse_number(start)?, parse_number(end)?),
            None => {
                let only = parse_number(part)?;
                (only, only)
            }
        };
        if start > end {
            return Err(Reason::Reversed(start, end));
        }
        set |= TpcSet::range(u16::from(start)..u16::from(end) + 1);
    }
    Ok(set)
}

fn parse_number(text: &str) -> Result<u8, Reason> {
    let digits = text.trim();
    if digits.is_empty() {
        return Err(Reason::NoDigits);
    }
    // `u8::from_str` accepts a sign; a list of numbers does not.
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Reason::NotANumber(digits.into()));
    }
    digits.parse().map_err(|_| Reason::TooLarge(digits.into()))
}

/// A text that is not a set of TPCs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a set of TPCs: {reason}; write ranges like 0-9,12, or hexadecimal like 0x13ff, or none"
)]
pub struct ParseTpcSetError {
    text: String,
    reason: Reason,
}

impl ParseTpcSetError {
    pub(crate) fn into_reason(self) -> Reason {
        self.reason
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Reason {
    #[error("a number is missing")]
    NoDigits,
    #[error("`{0}` is not a number")]
    NotANumber(String),
    #[error("{0} is above 255, the highest number there is")]
    TooLarge(String),
    #[error("the range {0}-{1} is reversed")]
    Reversed(u8, u8),
    #[error("`{0}` is not a hexadecimal digit")]
    NotHex(char),
    #[error("it has more than 256 bits")]
    TooWide,
}
