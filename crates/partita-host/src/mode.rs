//! Who plans the tenants of this machine, and so whose programs run at the same time.

use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::error::Error;
use crate::escape::escape;
use crate::registry::{DEFAULT_ROOT, Registry, SYSTEM_ROOT};
use crate::system;

/// The mode that holds and its reason, in one line.
pub fn line(registry: &Registry) -> String {
    let root = registry.root().to_string_lossy();
    let root = escape(&root);
    if registry.is_system() {
        return format!(
            "system mode: partitad plans in {root}, and tenants of all users run at the same time"
        );
    }
    let reason = match registry.root() == Path::new(DEFAULT_ROOT) {
        true => "no partitad --system runs".to_owned(),
        false => format!("PARTITA_RUN_DIR is {root}"),
    };
    format!("user mode ({reason}): tenants of one user run at the same time, those of several users in turns")
}

/// Whether `partitad` accepts requests in system mode.
pub fn is_served(registry: &Registry) -> bool {
    UnixStream::connect(system::socket_in(registry.root())).is_ok()
}

/// How many tenants of user mode still run beside the machine's system mode, whose plans do not
/// count them.
///
/// # Errors
/// [`Error::RunDirectory`], [`Error::Io`].
pub fn left_in_user_mode(registry: &Registry) -> Result<usize, Error> {
    let before = Path::new(DEFAULT_ROOT);
    if !registry.is_system() || registry.root() != Path::new(SYSTEM_ROOT) || !before.is_dir() {
        return Ok(0);
    }
    let before = Registry::at(before)?;
    let tenants = before.lock()?.tenants()?;
    Ok(tenants.len())
}
