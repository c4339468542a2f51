//! What this build enforces, and what it refuses because it cannot.

use partita_core::words;

use crate::error::Error;

words! {
    /// How a partition is enforced.
    pub enum Via: Auto {
        /// The best method that works here.
        Auto => "auto",
        /// Masks in the launch descriptors.
        Mask => "mask",
        /// Green contexts.
        Green => "green",
        /// Thread percentages of MPS.
        Mps => "mps",
        /// A share of time or a priority alone: tenants take turns on the whole GPU, without a
        /// partition.
        Time => "time",
        /// Kernels rewritten into persistent blocks.
        Persistent => "persistent",
    }
}

impl Via {
    /// Every way, the choice among them left out.
    pub const ALL: [Self; 5] = [Self::Mask, Self::Time, Self::Green, Self::Mps, Self::Persistent];

    /// Why this build does not enforce it on any GPU, and the alternative; `None` if it does.
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

/// Refuses limits that this build would not enforce: no tenant is better than one whose neighbours
/// rely on unenforced limits. `takes_turns`: a share of time or a priority is requested;
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

#[cfg(test)]
mod tests {
    use super::*;

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
