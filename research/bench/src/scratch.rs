//! A directory for one run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory below the system's for temporary files, which goes with all that is in it when this
/// is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty one for a benchmark of this name.
    ///
    /// # Errors
    /// The system's.
    pub fn new(bench: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("{bench}-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
