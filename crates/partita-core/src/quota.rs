//! [`Quota`]: the device memory that a user asks for.

use core::fmt;
use core::str::FromStr;

use crate::memory::RESERVE_BYTES;
use crate::{ByteSize, ParseByteSizeError, Share};

/// A memory quota, as `20GiB` or `50%`.
///
/// ```
/// use partita_core::{ByteSize, Quota};
///
/// let half: Quota = "50%".parse().unwrap();
/// // Half of what tenants may have of 80 GiB, and of that 1 GiB is for the driver itself.
/// assert_eq!(half.bytes(80 << 30, 1 << 30), ByteSize((159 << 28) - (1 << 30)));
/// assert_eq!("20GiB".parse(), Ok(Quota::Bytes(ByteSize(20 << 30))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// A number of bytes.
    Bytes(ByteSize),
    /// Of the device, in thousandths of a percent.
    Percent(u32),
}

impl Quota {
    /// The quota in bytes on a device of `total_bytes`.
    ///
    /// A percentage is of the memory that tenants may have, which leaves out [`RESERVE_BYTES`], and
    /// includes what the driver may take for itself in the tenant, `driver_bytes`. So two tenants
    /// with 50% fit. It is rounded down to whole MiB, and zero if the driver needs it all.
    #[must_use]
    pub fn bytes(self, total_bytes: u64, driver_bytes: u64) -> ByteSize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(milli) => {
                let whole = u128::from(total_bytes.saturating_sub(RESERVE_BYTES));
                let part = u64::try_from(whole * u128::from(milli) / 100_000).unwrap_or(u64::MAX);
                ByteSize(part.saturating_sub(driver_bytes) >> 20 << 20)
            }
        }
    }
}

impl From<ByteSize> for Quota {
    fn from(bytes: ByteSize) -> Self {
        Self::Bytes(bytes)
    }
}

impl FromStr for Quota {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, ParseByteSizeError> {
        match text.trim().ends_with('%').then(|| text.parse()) {
            Some(Ok(Share::Percent(milli))) => Ok(Self::Percent(milli)),
            Some(_) => Err(ParseByteSizeError::no_percentage(text)),
            None => text.parse().map(Self::Bytes),
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Percent(milli) => Share::Percent(milli).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::{Claim, To, divide};

    proptest! {
        #[test]
        fn percentages_of_at_most_100_all_fit(
            total in (1u64 << 30)..(1 << 40),
            parts in prop::collection::vec(1u32..=100_000, 1..8),
            driver in 0u64..(2 << 30),
        ) {
            let sum: u64 = parts.iter().map(|&part| u64::from(part)).sum();
            let parts = parts.iter().map(|&part| (u64::from(part) * 100_000 / sum.max(100_000)) as u32);
            let quotas: Vec<u64> = parts.map(|part| Quota::Percent(part).bytes(total, driver).0).collect();
            let claims = quotas.iter().filter(|&&bytes| bytes > 0);
            let claims: Vec<Claim> = claims.map(|&bytes| Claim { to: To::Promise(bytes), driver, user: 0 }).collect();
            prop_assert!(divide(total, &claims, &[]).is_ok());
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["50%", "12.5%", "100%", "20GiB", "0B"] {
            assert_eq!(text.parse::<Quota>().unwrap().to_string(), text);
        }
        for (text, reason) in [
            ("0%", "above 0%"),
            ("101%", "up to 100%"),
            ("-5%", "percentage"),
            ("x%", "percentage"),
            ("50", "unit"),
        ] {
            let said = text.parse::<Quota>().unwrap_err().to_string();
            assert!(said.starts_with(&std::format!("`{text}` is not a size")), "{said}");
            assert!(said.contains(reason), "{said}");
        }
    }
}
