//! Targets instead of shares: what users ask for ([`Slo`], [`Goal`]), and the [`Law`] that moves
//! TPCs between the tenants of a GPU so that targets hold and the others get the rest.
//!
//! A *target* is a time that 99 of 100 bursts (or steps) of a tenant may take at most. The law
//! knows only what it sees: how many bursts took how long, and who holds how many TPCs.

mod evidence;
mod law;
mod one;
mod said;
mod seen;
#[cfg(test)]
mod tests;

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

pub use law::Law;
pub use said::{Event, Reason};
pub use seen::{Level, Look, Order, Room, Seen, Standing, Wanted};

use crate::histogram::{LONG_NS, SHORT_NS};
use crate::words;

words! {
    /// What a tenant's TPCs are for.
    pub enum Goal: None {
        /// The TPCs that it was started with, and no others.
        None => "none",
        /// As much work as possible on what the targets of others leave.
        Throughput => "throughput",
    }
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timed {
    /// Bursts of work.
    Bursts,
    /// Steps that the program names itself.
    Steps,
}

/// How long 99 of 100 may take at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// A time in nanoseconds, from [`SHORT_NS`] to below [`LONG_NS`].
    Ns(u64),
    /// A multiple of what 99 of 100 take on all TPCs that the tenant can have, in thousandths.
    Alone {
        /// Above 1000.
        permille: u32,
    },
}

/// A target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// What is timed.
    pub timed: Timed,
    /// The bound.
    pub bound: Bound,
}

/// `--slo`: a target, or the end of one.
///
/// ```
/// use partita_core::slo::{Bound, Slo, Target, Timed};
///
/// let slo: Slo = "p99=2.5ms".parse().unwrap();
/// assert_eq!(slo, Slo::Target(Target { timed: Timed::Bursts, bound: Bound::Ns(2_500_000) }));
/// assert_eq!("step-p99=1.20x".parse::<Slo>().unwrap().to_string(), "step-p99=1.2x");
/// assert!("p99=2".parse::<Slo>().unwrap_err().to_string().contains("2ms"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slo {
    /// No target.
    None,
    /// A target.
    Target(Target),
}

/// Why a text is no target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseSloError {
    /// It does not begin with what is timed.
    #[error("a target begins with p99= or step-p99=; write p99=2.5ms, step-p99=40ms, p99=1.2x or none")]
    Kind,
    /// Another quantile.
    #[error("only p99 can be held, the time that 99 of 100 bursts do not exceed; write p99=2.5ms")]
    Quantile,
    /// A number without a unit.
    #[error("the time has no unit; write 2ms, 2.5ms, 800us or 1s, or a multiple of its own time: 1.2x")]
    NoUnit,
    /// An unknown unit.
    #[error("its unit is us, ms or s, or x for a multiple of its own time; write 2.5ms or 1.2x")]
    Unit,
    /// No number, or one with too many digits.
    #[error("it needs a number with at most 6 decimals; write 2.5ms or 1.2x")]
    Number,
    /// No time can be that short.
    #[error("no burst takes no time; write the longest time that 99 of 100 may take, as p99=2.5ms")]
    Zero,
    /// Times that share a bucket.
    #[error("times below 2.05us are not told apart; write 3us or more")]
    TooShort,
    /// Times that share a bucket.
    #[error("times from 274s on are not told apart; write less")]
    TooLong,
    /// A multiple that is no target.
    #[error("a multiple is above 1x, its own time on all that it can have, and at most 100x; write 1.2x")]
    Multiple,
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
/// Units of times, the longest first.
const UNITS: [(&str, u64); 3] = [("s", S), ("ms", MS), ("us", US)];
/// The largest multiple, in thousandths.
const PERMILLE_MAX: u32 = 100_000;

impl FromStr for Slo {
    type Err = ParseSloError;

    fn from_str(text: &str) -> Result<Self, ParseSloError> {
        if text == "none" {
            return Ok(Self::None);
        }
        let (timed, rest) = match text.strip_prefix("step-") {
            Some(rest) => (Timed::Steps, rest),
            None => (Timed::Bursts, text),
        };
        let (quantile, value) = rest.split_once('=').ok_or(ParseSloError::Kind)?;
        match quantile.strip_prefix('p') {
            Some("99") => {}
            Some(digits)
                if !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit() || it == b'.') =>
            {
                return Err(ParseSloError::Quantile);
            }
            _ => return Err(ParseSloError::Kind),
        }
        bound(value).map(|bound| Self::Target(Target { timed, bound }))
    }
}

fn bound(text: &str) -> Result<Bound, ParseSloError> {
    let at = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    if number.is_empty() {
        return Err(ParseSloError::Number);
    }
    let unit_of = |name: &str| UNITS.iter().find(|(unit, _)| *unit == name).map(|(_, ns)| *ns);
    match (unit, unit_of(unit)) {
        ("", _) => {
            let is_zero = decimal(number, MS)? == 0;
            Err(if is_zero { ParseSloError::Zero } else { ParseSloError::NoUnit })
        }
        ("x", _) => {
            let permille = decimal(number, 1_000)?;
            let permille = u32::try_from(permille).ok().filter(|it| (1_001..=PERMILLE_MAX).contains(it));
            permille.map(|permille| Bound::Alone { permille }).ok_or(ParseSloError::Multiple)
        }
        (_, Some(ns)) => match decimal(number, ns)? {
            0 => Err(ParseSloError::Zero),
            ns if ns < SHORT_NS => Err(ParseSloError::TooShort),
            ns if ns >= LONG_NS => Err(ParseSloError::TooLong),
            ns => Ok(Bound::Ns(ns)),
        },
        (_, None) => Err(ParseSloError::Unit),
    }
}

/// A decimal number times a unit, without rounding up.
fn decimal(text: &str, unit: u64) -> Result<u64, ParseSloError> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 6 {
        return Err(ParseSloError::Number);
    }
    let whole: u64 = whole.parse().map_err(|_| ParseSloError::Number)?;
    let scale = 10u64.pow(part.len() as u32);
    let part: u64 = part.parse().map_err(|_| ParseSloError::Number)?;
    let product =
        u128::from(whole) * u128::from(unit) + u128::from(part) * u128::from(unit) / u128::from(scale);
    u64::try_from(product).map_err(|_| ParseSloError::TooLong)
}

/// A time in nanoseconds for readers, exact: `2.5ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, ns) = UNITS.into_iter().find(|(_, ns)| self.0 >= *ns).unwrap_or(("us", US));
        write_decimal(f, self.0, ns)?;
        f.write_str(unit)
    }
}

/// A number of units as a decimal without zeros at its end.
fn write_decimal(f: &mut fmt::Formatter<'_>, number: u64, unit: u64) -> fmt::Result {
    write!(f, "{}", number / unit)?;
    let (mut rest, mut digit) = (number % unit, unit);
    if rest > 0 {
        f.write_str(".")?;
    }
    while rest > 0 {
        digit /= 10;
        write!(f, "{}", rest / digit)?;
        rest %= digit;
    }
    Ok(())
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Target(target) => target.fmt(f),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.timed {
            Timed::Bursts => "p99=",
            Timed::Steps => "step-p99=",
        })?;
        match self.bound {
            Bound::Ns(ns) => Time(ns).fmt(f),
            Bound::Alone { permille } => {
                write_decimal(f, permille.into(), 1_000)?;
                f.write_str("x")
            }
        }
    }
}
