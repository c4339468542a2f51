//! What the terminal that this program prints to can show.

use std::io::IsTerminal;

/// Whether it has no more than lines of text.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Whether it has colours and the user has not declined them (no-color.org).
pub fn has_colours() -> bool {
    let is_declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !is_declined && !is_dumb()
}
