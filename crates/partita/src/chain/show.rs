//! What a chain shows in its tenant's directory.

use std::path::Path;

use serde::Serialize;

use crate::error::Error;
use crate::files::{self, Durable};

/// Writes a value as JSON into a tenant's directory, for others to read.
pub(super) fn show(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let failed = || Error::io(path.display().to_string());
    let json = serde_json::to_vec(value).map_err(|error| failed()(error.into()))?;
    files::replace(path, &json, 0o644, Durable::No).map_err(failed())
}
