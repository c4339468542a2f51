//! [`ByteSize`]: a memory size with IEC units.

#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// A number of bytes, written with IEC units.
///
/// Units are powers of 1024, in either case: `KiB`, `MiB`, `GiB`, `TiB`, `PiB`, `EiB`; the short
/// forms `K`/`Ki`, `M`/`Mi`, … mean the same, as they do in `CUDA_DEVICE_MEMORY_LIMIT` of HAMi
/// (`20G` is 20 GiB). `B` is bytes. `KB`, `MB`, `GB`, … are refused, because some readers take them
/// for powers of 1000, and so is a number without a unit, which some mean as GiB; only 0 needs
/// none. Fractions are taken, and the result rounded down to a byte.
///
/// It prints as the shortest text that is exact, and parses back to the same number.
///
/// ```
/// use partita_core::ByteSize;
///
/// let quota: ByteSize = "20GiB".parse().unwrap();
/// assert_eq!(quota, ByteSize(20 << 30));
/// assert_eq!("20g".parse(), Ok(quota));
/// assert_eq!("1.5GiB".parse(), Ok(ByteSize::from_mib(1536)));
/// assert_eq!(ByteSize(1536 << 20).to_string(), "1.5GiB");
/// assert_eq!(ByteSize(4097).to_string(), "4097B");
/// assert_eq!(ByteSize(150_754_820_096).approximate().to_string(), "140.4GiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// The units' letters; the `i`-th is 1024 to the power of `i`.
const UNITS: [char; 7] = ['b', 'k', 'm', 'g', 't', 'p', 'e'];
const SUFFIXES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl ByteSize {
    /// That many KiB; at most the largest 64-bit number.
    #[must_use]
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// That many MiB; at most the largest 64-bit number.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// That many GiB; at most the largest 64-bit number.
    #[must_use]
    pub const fn from_gib(gib: u64) -> Self {
        Self(gib.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// For readers: one decimal of the largest unit that is not above the size, rounded to nearest.
    #[must_use]
    pub fn approximate(self) -> impl fmt::Display {
        Approximate(self.0)
    }

    /// For readers: exact if that is short and not a large number of bytes, else [approximate].
    ///
    /// [approximate]: Self::approximate
    #[must_use]
    pub fn short(self) -> String {
        const SHORT: usize = 8;
        const IN_BYTES_MAX: u64 = 1024;
        let exact = self.to_string();
        let is_plain = !exact.ends_with("iB");
        if exact.len() <= SHORT && !(is_plain && self.0 > IN_BYTES_MAX) {
            exact
        } else {
            self.approximate().to_string()
        }
    }

    /// For readers who write it again: [short](Self::short), and never above the size.
    #[must_use]
    pub fn rounded_down(self) -> String {
        let unit = self.0.checked_ilog2().unwrap_or(0) / 10;
        let tenths = (u128::from(self.0) * 10) >> (10 * unit);
        match unit {
            0 => self.to_string(),
            _ if tenths.is_multiple_of(10) => format!("{}{}", tenths / 10, SUFFIXES[unit as usize]),
            _ => format!("{}.{}{}", tenths / 10, tenths % 10, SUFFIXES[unit as usize]),
        }
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A text with four decimals or more is longer than that of the next smaller unit: going
        // down adds at most four digits and takes away the point and up to ten decimals.
        let best = (0..UNITS.len())
            .filter_map(|unit| {
                let (whole, decimals, width) = exact(self.0, unit)?;
                let point = if width > 0 { 1 + width } else { 0 };
                let length = digits(whole) + point + SUFFIXES[unit].len();
                Some((length, unit, whole, decimals, width))
            })
            // Of two texts of one length, that of the larger unit.
            .min_by_key(|&(length, unit, ..)| (length, UNITS.len() - unit));
        let (_, unit, whole, decimals, width) = best.ok_or(fmt::Error)?;
        if self.0 == 0 {
            return f.pad("0B");
        }
        let text = if width > 0 {
            format!("{whole}.{decimals:0width$}{}", SUFFIXES[unit])
        } else {
            format!("{whole}{}", SUFFIXES[unit])
        };
        f.pad(&text)
    }
}

/// The size in a unit: whole part, decimals and how many of them, if three are enough to be exact.
fn exact(bytes: u64, unit: usize) -> Option<(u64, u64, usize)> {
    let shift = 10 * unit as u32;
    let whole = bytes >> shift;
    let mut rest = u128::from(bytes) - (u128::from(whole) << shift);
    let (mut decimals, mut width) = (0, 0);
    while rest > 0 {
        if width == 3 {
            return None;
        }
        rest *= 10;
        decimals = decimals * 10 + (rest >> shift) as u64;
        rest &= (1 << shift) - 1;
        width += 1;
    }
    Some((whole, decimals, width))
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

struct Approximate(u64);

impl fmt::Display for Approximate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = self.0.checked_ilog2().unwrap_or(0) as usize / 10;
        let tenths = |unit: usize| {
            let shift = 10 * unit as u32;
            (u128::from(self.0) * 10 + ((1u128 << shift) >> 1)) >> shift
        };
        if unit == 0 {
            return f.pad(&format!("{}B", self.0));
        }
        // 1023.96 MiB rounds to 1024.0 MiB, which is 1.0 GiB.
        if tenths(unit) >= 10_240 && unit + 1 < UNITS.len() {
            unit += 1;
        }
        let tenths = tenths(unit);
        f.pad(&format!("{}.{}{}", tenths / 10, tenths % 10, SUFFIXES[unit]))
    }
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, ParseByteSizeError> {
        parse(text).map_err(|reason| ParseByteSizeError { text: text.into(), reason })
    }
}

fn parse(text: &str) -> Result<ByteSize, Reason> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Reason::Empty);
    }
    if text.starts_with('-') {
        return Err(Reason::Negative);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = (&text[..end], text[end..].trim_start());
    let unit = parse_unit(suffix)?;
    if suffix.is_empty() && number.bytes().any(|byte| byte != b'0') {
        return Err(Reason::NoUnit);
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(Reason::NotANumber(number.into()));
    }
    let fraction = fraction.trim_end_matches('0');
    if unit == 0 && !fraction.is_empty() {
        return Err(Reason::PartOfAByte);
    }
    if fraction.len() > 18 {
        return Err(Reason::TooPrecise);
    }
    let shift = 10 * unit as u32;
    // Below 10^18 · 2^60, so it fits 128 bits.
    let decimals = fraction.bytes().fold(0u128, |n, b| n * 10 + u128::from(b - b'0'));
    let part = (decimals << shift) / 10u128.pow(fraction.len() as u32);
    let whole: u64 = whole.parse().map_err(|_| Reason::TooLarge)?;
    let bytes = (u128::from(whole) << shift) + part;
    u64::try_from(bytes).map(ByteSize).map_err(|_| Reason::TooLarge)
}

fn parse_unit(suffix: &str) -> Result<usize, Reason> {
    let lower = suffix.to_ascii_lowercase();
    let mut rest = lower.chars();
    let Some(letter) = rest.next() else { return Ok(0) };
    let unit = UNITS.iter().position(|&u| u == letter).ok_or_else(|| Reason::UnknownUnit(suffix.into()))?;
    match (unit, rest.as_str()) {
        (_, "") => Ok(unit),
        (1.., "i" | "ib") => Ok(unit),
        (1.., "b") => Err(Reason::Ambiguous { typed: suffix.into(), iec: SUFFIXES[unit] }),
        _ => Err(Reason::UnknownUnit(suffix.into())),
    }
}

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not a size: {reason}; write 20GiB, 1.5GiB, 512MiB or 4096B")]
pub struct ParseByteSizeError {
    text: String,
    reason: Reason,
}

impl ParseByteSizeError {
    /// A text that ends as a percentage and is none.
    pub(crate) fn no_percentage(text: &str) -> Self {
        Self { text: text.into(), reason: Reason::NoPercentage }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Reason {
    #[error("it is empty")]
    Empty,
    #[error("it has no unit")]
    NoUnit,
    #[error("it is not a percentage above 0% and up to 100%, as 50%")]
    NoPercentage,
    #[error("it is negative")]
    Negative,
    #[error("`{0}` is not a number")]
    NotANumber(String),
    #[error("`{0}` is not a unit")]
    UnknownUnit(String),
    #[error("`{typed}` may mean powers of 1000 or of 1024, and `{iec}` means 1024")]
    Ambiguous { typed: String, iec: &'static str },
    #[error("it has a part of a byte")]
    PartOfAByte,
    #[error("it has more than 18 decimals")]
    TooPrecise,
    #[error("it is more than 64 bits hold")]
    TooLarge,
}
