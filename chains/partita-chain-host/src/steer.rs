//! How a running chain's compute units are divided, and the request that changes it: a file that
//! the process that runs the chain reads.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use partita_core::Count;
use partita_host::error::Error;
use partita_host::files;
use partita_steering::Allocation;
use serde::{Deserialize, Serialize};

use super::Algorithm;
use super::show::show;

/// The name of that file in the chain's directory.
const FILE: &str = "chain.steer.json";
/// The longest such file, in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// How a chain's compute units are divided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steering {
    /// By an algorithm, online.
    Algorithm(Algorithm),
    /// By hand: the TPCs of each component, in the chain's request.
    Tpcs(Vec<u32>),
}

impl Steering {
    /// Checks that a chain of so many components can be divided in this way.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn check(&self, chain: &str, components: usize) -> Result<(), Error> {
        let Self::Tpcs(tpcs) = self else { return Ok(()) };
        let refuse = |reason| Err(Error::Refused { what: format!("chain {chain}"), reason });
        if tpcs.len() != components {
            return refuse(format!(
                "it has {components} components, and --tpcs has {}; give one number for each",
                Count(tpcs.len(), "number")
            ));
        }
        match Allocation::new(tpcs.as_slice()) {
            Ok(_) => Ok(()),
            Err(error) => refuse(error.to_string()),
        }
    }

    /// Writes the request into the chain's directory.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn write(&self, dir: &Path) -> Result<(), Error> {
        show(&dir.join(FILE), self)
    }
}

/// Polls for steering requests.
#[derive(Debug)]
pub(super) struct SteeringRequests {
    path: PathBuf,
    /// Inode number and modification time of the request that was read last.
    seen: Option<(u64, i64, i64)>,
}

impl SteeringRequests {
    pub(super) fn of(dir: &Path) -> Self {
        Self { path: dir.join(FILE), seen: None }
    }

    fn stamp(&self) -> Option<(u64, i64, i64)> {
        let meta = fs::symlink_metadata(&self.path).ok().filter(fs::Metadata::is_file)?;
        Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
    }

    /// Whether there is an unread request.
    pub(super) fn is_new(&self) -> bool {
        self.stamp().is_some_and(|stamp| Some(stamp) != self.seen)
    }

    /// The unread request, if there is one.
    pub(super) fn next(&mut self) -> Option<io::Result<Steering>> {
        let stamp = self.stamp().filter(|stamp| Some(*stamp) != self.seen)?;
        self.seen = Some(stamp);
        Some(files::read_json(&self.path, BYTES_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut requests = SteeringRequests::of(dir.path());
        assert!(!requests.is_new() && requests.next().is_none());
        for request in [Steering::Tpcs(vec![4, 4, 25]), Steering::Algorithm(Algorithm::Published)] {
            request.write(dir.path()).unwrap();
            assert!(requests.is_new());
            assert_eq!(requests.next().unwrap().unwrap(), request);
            assert!(!requests.is_new() && requests.next().is_none());
        }
        fs::remove_file(dir.path().join(FILE)).unwrap();
        fs::write(dir.path().join(FILE), "{\"tpcs\": \"all\"}").unwrap();
        assert!(requests.next().unwrap().is_err());
        assert!(requests.next().is_none());
    }

    #[test]
    fn each_component_needs_a_tpc() {
        Steering::Tpcs(vec![1, 66]).check("c", 2).unwrap();
        for wrong in [vec![], vec![1], vec![1, 2, 3], vec![0, 4]] {
            let error = Steering::Tpcs(wrong).check("c", 2).unwrap_err().to_string();
            assert!(error.contains("chain c"), "{error}");
        }
    }
}
