//! The cache directory of findings.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use partita_core::kept;

/// It may not exist: `PARTITA_CACHE_DIR`, else `/var/cache/partita` for root, else `partita` in the
/// user's cache directory.
pub(crate) fn dir() -> PathBuf {
    let variable = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("PARTITA_CACHE_DIR").unwrap_or_else(|| {
        if rustix::process::geteuid().is_root() {
            return PathBuf::from(kept::ROOT_DIRECTORY);
        }
        variable("XDG_CACHE_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".cache")))
            .unwrap_or_else(std::env::temp_dir)
            .join("partita")
    })
}

/// Makes the directory of a cache, if it is missing.
///
/// # Errors
/// Those of the system.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir)
}
