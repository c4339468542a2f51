//! SVG pictures, one element a line.

use std::fmt::Write;

/// A picture in progress.
#[derive(Debug, Default)]
pub(crate) struct Svg(pub(crate) String);

impl Svg {
    /// Adds an element, or a part of one.
    pub(crate) fn add(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// A text as an element's content.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
