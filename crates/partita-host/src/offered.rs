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
        /// A share of time or a priority alone: tenants take turns on the whole GPU, without a
        /// partition.
        Time => "time",
        /// Kernels rewritten into persistent blocks, which keep to their SMs by themselves.
        Persistent => "persistent",
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
    match via {
        Via::Time if !takes_turns => refuse(
            "--via time",
            "neither a share of time nor a priority was asked for, nor a target or a goal; add one, as --time 30%, \
             --priority low or --slo p99=2.5ms",
        ),
        Via::Time if has_share => refuse(
            "--via time with --sm",
            "with time alone a tenant has every compute unit while it is its turn; leave out --via for both a partition and \
             turns",
        ),
        Via::Persistent if takes_turns => refuse(
            "--via persistent with --time or --priority",
            "neither is measured with persistent blocks yet; leave them out, or use --via mask",
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
            (Via::Persistent, false, true),
        ] {
            check(via, takes_turns, has_share).unwrap();
        }
        for (via, takes_turns, has_share, named) in [
            (Via::Time, false, false, "--via time"),
            (Via::Time, true, true, "--via time with --sm"),
            (Via::Persistent, true, true, "--via persistent with --time"),
        ] {
            let error = check(via, takes_turns, has_share).unwrap_err().to_string();
            assert!(error.starts_with(named), "{error}");
        }
    }
}
