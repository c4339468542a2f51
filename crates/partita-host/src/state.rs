//! The directory of what outlives a program: records of detached runs, the daemon's history.

use std::path::PathBuf;

use crate::error::Error;

/// `PARTITA_STATE_DIR`, else `/var/lib/partita` for root, else `partita` in the user's directory of
/// state. It may not exist.
///
/// # Errors
/// [`Error::Refused`] for a user without `HOME` and without the variables that replace it.
pub fn dir() -> Result<PathBuf, Error> {
    let variable = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable("PARTITA_STATE_DIR") {
        return Ok(dir);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/partita"));
    }
    let base = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    base.map(|base| base.join("partita")).ok_or_else(|| Error::Refused {
        what: "the directory of state".to_owned(),
        reason: "neither XDG_STATE_HOME nor HOME is set; name it in PARTITA_STATE_DIR".to_owned(),
    })
}
