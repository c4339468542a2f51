//! [`Count`]: a number of things, in words.

use core::fmt;

/// A number and the noun that it counts, in the plural unless the number is one.
///
/// ```
/// # use partita_core::Count;
/// assert_eq!(Count(1_u32, "TPC").to_string(), "1 TPC");
/// assert_eq!(Count(0_usize, "process").to_string(), "0 processes");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<N>(pub N, pub &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Count<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, of) = self;
        let ending = match (*number == N::from(1), of.ends_with('s')) {
            (true, _) => "",
            (false, true) => "es",
            (false, false) => "s",
        };
        write!(f, "{number} {of}{ending}")
    }
}
