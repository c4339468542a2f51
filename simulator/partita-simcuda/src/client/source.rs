//! PTX texts of loaded images.

use partita_ptx::Module;

/// A PTX text and what it says.
#[derive(Debug, PartialEq)]
pub struct Source {
    /// The text.
    pub text: String,
    /// The module.
    pub module: Module,
}
