//! The places of keepers' sockets.

use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = ".keeper-";
const SUFFIX: &str = ".sock";

/// The keeper of one GPU and user, by its socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub user: u32,
    /// The GPU's name for directories: its UUID, or the name of a simulated one.
    pub gpu_key: String,
    pub socket: PathBuf,
}

impl Place {
    /// The default socket of the keeper of a user and GPU: in the run directory.
    #[must_use]
    pub fn of(run_directory: &Path, user: u32, gpu_key: &str) -> Self {
        let socket = run_directory.join(format!("{PREFIX}{user}-{gpu_key}{SUFFIX}"));
        Self { user, gpu_key: gpu_key.to_owned(), socket }
    }

    /// The sockets of a run directory, in order; only connecting shows whether a keeper listens.
    ///
    /// # Errors
    /// If the directory cannot be read; a missing one has none.
    pub fn all(run_directory: &Path) -> io::Result<Vec<Self>> {
        let entries = match std::fs::read_dir(run_directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut places: Vec<Self> = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let parsed = name.to_str().and_then(parse);
            places.extend(parsed.map(|(user, gpu_key)| Self::of(run_directory, user, gpu_key)));
        }
        places.sort();
        Ok(places)
    }
}

fn parse(name: &str) -> Option<(u32, &str)> {
    let (user, gpu_key) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    Some((user.parse().ok()?, gpu_key)).filter(|(_, key)| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(Place::all(&temp.path().join("none")).unwrap(), []);
        let uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        let places = [Place::of(temp.path(), 0, uuid), Place::of(temp.path(), 1000, "sim-h200-0badcafe")];
        for place in &places {
            std::fs::write(&place.socket, "").unwrap();
        }
        for other in
            [".keeper-x-a.sock", ".keeper-1-.sock", ".keeper-1.sock", ".keeper-0-a.sock.lock", "tenant"]
        {
            std::fs::write(temp.path().join(other), "").unwrap();
        }
        assert_eq!(Place::all(temp.path()).unwrap(), places);
    }
}
