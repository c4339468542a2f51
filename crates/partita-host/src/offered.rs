//! What this build enforces, and what it refuses because it does not.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// `--via`: how a partition is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The best that works here.
    #[default]
    Auto,
    /// Masks in the launch descriptors.
    Mask,
    /// Green contexts.
    Green,
    /// Active thread percentages of MPS.
    Mps,
    /// A share of time alone: no partition.
    Time,
    /// Kernels rewritten into persistent blocks, which keep to the tenant's SMs of their own
    /// accord.
    Persistent,
}

impl Via {
    /// Every way, the choice among them left out.
    pub const ALL: [Self; 5] = [Self::Mask, Self::Time, Self::Green, Self::Mps, Self::Persistent];

    /// Its name, as `--via` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mask => "mask",
            Self::Green => "green",
            Self::Mps => "mps",
            Self::Time => "time",
            Self::Persistent => "persistent",
        }
    }

    /// Why this build does not enforce it on any GPU, and what to use instead; none where it does.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::Mask | Self::Time => None,
            Self::Green => Some(
                "green contexts are not enforced by this build; use --via mask, which has steps of one TPC",
            ),
            Self::Mps => Some(
                "an active thread percentage changes the SM count that libraries see, and cuBLAS then computes wrong products on \
                 some devices; use --via mask",
            ),
            Self::Persistent => Some(
                "it means to rewrite a program's PTX so that its kernels run as persistent blocks on some SMs, and this build rewrites \
                 no kernels; use --via mask where `partita doctor` proves masks, and --via time elsewhere",
            ),
        }
    }
}

/// `--time`: a share of the device's time, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeShare(pub u32);

impl Default for TimeShare {
    fn default() -> Self {
        Self(1000)
    }
}

impl FromStr for TimeShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "--time {text:?} is not understood: use a percentage of the device's time, as 30% or 12.5%"
            )
        };
        let number = text.strip_suffix('%').ok_or_else(refuse)?;
        let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(tenths) || tenths.len() != 1 || whole.len() > 3 {
            return Err(refuse());
        }
        let number = |text: &str| text.parse::<u32>().map_err(|_| refuse());
        match number(whole)? * 10 + number(tenths)? {
            permille @ 1..=1000 => Ok(Self(permille)),
            _ => Err(format!("--time {text}: a share of time is above 0% and at most 100%")),
        }
    }
}

/// Refuses what this build would not enforce: better no tenant than one whose neighbours believe in
/// limits that nobody keeps. `takes_turns`: a share of time or a priority is asked for;
/// `has_share`: compute units are.
///
/// # Errors
/// [`Error::NotOffered`].
pub fn check(via: Via, takes_turns: bool, has_share: bool) -> Result<(), Error> {
    let refuse = |option: &str, reason: &str| {
        Err(Error::NotOffered { option: option.to_owned(), reason: reason.to_owned() })
    };
    if let Some(reason) = via.refusal() {
        return refuse(&format!("--via {}", via.name()), reason);
    }
    match via {
        Via::Time if !takes_turns => refuse(
            "--via time",
            "neither a share of time nor a priority was asked for; add one, as --time 30% or --priority low",
        ),
        Via::Time if has_share => refuse(
            "--via time with --sm",
            "with time alone a tenant has every compute unit while it is its turn; leave out --via for both a partition and \
             turns",
        ),
        _ => Ok(()),
    }
}

/// As it is written.
pub fn percent(time: TimeShare) -> String {
    match (time.0 / 10, time.0 % 10) {
        (whole, 0) => format!("{whole}%"),
        (whole, tenths) => format!("{whole}.{tenths}%"),
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

    #[test]
    fn only_what_is_enforced_is_offered() {
        for (via, takes_turns, has_share) in [
            (Via::Auto, false, true),
            (Via::Mask, false, false),
            (Via::Auto, true, true),
            (Via::Mask, true, false),
            (Via::Time, true, false),
        ] {
            check(via, takes_turns, has_share).unwrap();
        }
        for (via, takes_turns, has_share, named) in [
            (Via::Green, false, true, "--via green"),
            (Via::Mps, false, true, "--via mps"),
            (Via::Persistent, false, true, "--via persistent"),
            (Via::Time, false, false, "--via time"),
            (Via::Time, true, true, "--via time with --sm"),
        ] {
            let error = check(via, takes_turns, has_share).unwrap_err().to_string();
            assert!(error.starts_with(named), "{error}");
        }
    }
}
