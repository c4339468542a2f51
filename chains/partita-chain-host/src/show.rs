//! Files that a chain writes in its directory.

use std::path::Path;

use partita_host::error::Error;
use partita_host::files::{self, Durable};
use serde::Serialize;

/// Writes a value as JSON into a chain's directory, for readers.
pub(super) fn show(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let failed = || Error::io(path.display().to_string());
    let json = serde_json::to_vec(value).map_err(|error| failed()(error.into()))?;
    files::replace(path, &json, 0o644, Durable::No).map_err(failed())
}
