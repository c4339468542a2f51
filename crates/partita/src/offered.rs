//! What this build enforces, and what it refuses because it does not.

use std::str::FromStr;

use partita_core::time::Priority;

use crate::error::Error;

/// `--via`: how a partition is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// Shares of time.
    Time,
}

/// `--time`: a share of the device's time, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Refuses what this build would not enforce: better no tenant than one whose
/// neighbours believe in limits that nobody keeps.
///
/// # Errors
/// [`Error::NotOffered`].
pub fn check(via: Via, time: TimeShare) -> Result<(), Error> {
    let refuse = |option: &str, reason: &str| {
        Err(Error::NotOffered { option: option.to_owned(), reason: reason.to_owned() })
    };
    match via {
        Via::Auto | Via::Mask => {}
        Via::Green => {
            return refuse(
                "--via green",
                "green contexts are not enforced by this build; use --via mask, which has steps of one TPC",
            );
        }
        Via::Mps => {
            return refuse(
                "--via mps",
                "an active thread percentage changes the SM count that libraries see, and cuBLAS then computes \
                 wrong products on some devices; use --via mask",
            );
        }
        Via::Time => {
            return refuse(
                "--via time",
                "shares of time are not enforced by this build; use --via mask with --sm",
            );
        }
    }
    if time != TimeShare::default() {
        return refuse(
            &format!("--time {}", percent(time)),
            "shares of time are not enforced by this build; leave it out, and limit compute units with --sm",
        );
    }
    Ok(())
}

/// Refuses priorities where the gate between tenants has not been proved.
///
/// # Errors
/// [`Error::NotOffered`].
pub fn check_priority(is_simulated: bool) -> Result<(), Error> {
    Priority::check_offered(is_simulated).map_err(|reason| Error::NotOffered {
        option: "--priority".to_owned(),
        reason: format!("{reason}; leave it out, and give each tenant TPCs of its own with --sm"),
    })
}

fn percent(time: TimeShare) -> String {
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
        check(Via::Auto, TimeShare(1000)).unwrap();
        check(Via::Mask, TimeShare(1000)).unwrap();
        for (via, time, named) in [
            (Via::Green, 1000, "--via green"),
            (Via::Mps, 1000, "--via mps"),
            (Via::Time, 1000, "--via time"),
            (Via::Auto, 125, "--time 12.5%"),
        ] {
            let error = check(via, TimeShare(time)).unwrap_err().to_string();
            assert!(error.starts_with(named), "{error}");
        }
        check_priority(true).unwrap();
        assert!(check_priority(false).unwrap_err().to_string().starts_with("--priority"));
    }
}
