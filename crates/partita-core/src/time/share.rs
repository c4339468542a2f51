//! A share of a GPU's time, as users write it.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// A share of a GPU's time, in thousandths; written as a percentage with at most one decimal.
///
/// ```
/// use partita_core::time::TimeShare;
///
/// assert_eq!("12.5%".parse(), Ok(TimeShare(125)));
/// assert_eq!(TimeShare(300).to_string(), "30%");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeShare(pub u32);

/// A text that is not a share of time.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseTimeShareError {
    /// It is not a percentage.
    #[error(
        "{0:?} is not understood: use a percentage of the device's time from 0.1% to 100%, with at most one decimal"
    )]
    NoPercentage(String),
    /// It is 0% or above 100%.
    #[error("{0}: a share of time is 0.1% to 100%")]
    OutOfRange(String),
}

impl FromStr for TimeShare {
    type Err = ParseTimeShareError;

    fn from_str(text: &str) -> Result<Self, ParseTimeShareError> {
        match permille(text) {
            Some(permille @ 1..=1000) => Ok(Self(permille)),
            Some(_) => Err(ParseTimeShareError::OutOfRange(text.to_owned())),
            None => Err(ParseTimeShareError::NoPercentage(text.to_owned())),
        }
    }
}

fn permille(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(tenths) || tenths.len() != 1 || whole.len() > 3 {
        return None;
    }
    Some(whole.parse::<u32>().ok()? * 10 + tenths.parse::<u32>().ok()?)
}

impl fmt::Display for TimeShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, tenths) => write!(f, "{whole}.{tenths}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_time_parse() {
        for (text, permille) in [("100%", 1000), ("100.0%", 1000), ("30%", 300), ("12.5%", 125), ("0.1%", 1)]
        {
            assert_eq!(text.parse(), Ok(TimeShare(permille)), "{text}");
        }
        for text in ["", "%", "30", "0%", "101%", "100.1%", "-1%", "1.%", ".5%", "1.25%", "9999%", "1e2%"] {
            assert!(text.parse::<TimeShare>().is_err(), "{text}");
        }
    }
}
