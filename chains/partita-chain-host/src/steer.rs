//! Who divides a running chain's compute units: a word from outside to the process that runs the
//! chain.

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

/// The file in the tenant's directory that says it.
const FILE: &str = "chain.steer.json";
/// Of that file, at most.
const BYTES_MAX: u64 = 64 << 10;

/// Who divides a chain's compute units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steering {
    /// An algorithm, online.
    Algorithm(Algorithm),
    /// Somebody by hand: the TPCs of each component, in the chain's order.
    Tpcs(Vec<u32>),
}

impl Steering {
    /// Checks that a chain of so many components can be steered so.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn check(&self, chain: &str, components: usize) -> Result<(), Error> {
        let Self::Tpcs(tpcs) = self else { return Ok(()) };
        let refuse = |reason| Err(Error::Refused { what: format!("chain {chain}"), reason });
        if tpcs.len() != components {
            return refuse(format!(
                "it has {components} components, and --tpcs has {}; give one for each",
                Count(tpcs.len(), "number")
            ));
        }
        match Allocation::new(tpcs.as_slice()) {
            Ok(_) => Ok(()),
            Err(error) => refuse(error.to_string()),
        }
    }

    /// Leaves the word for the chain in this tenant's directory.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn leave(&self, tenant: &Path) -> Result<(), Error> {
        show(&tenant.join(FILE), self)
    }
}

/// What was said last, looked for now and then.
#[derive(Debug)]
pub(super) struct Orders {
    path: PathBuf,
    /// The file's number and time of change, of the order that was read last.
    seen: Option<(u64, i64, i64)>,
}

impl Orders {
    pub(super) fn of(tenant: &Path) -> Self {
        Self { path: tenant.join(FILE), seen: None }
    }

    fn stamp(&self) -> Option<(u64, i64, i64)> {
        let meta = fs::symlink_metadata(&self.path).ok().filter(fs::Metadata::is_file)?;
        Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
    }

    /// Whether there is one that was not read yet.
    pub(super) fn is_new(&self) -> bool {
        self.stamp().is_some_and(|stamp| Some(stamp) != self.seen)
    }

    /// The new one, if there is one that is any.
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
    fn an_order_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut orders = Orders::of(dir.path());
        assert!(!orders.is_new() && orders.next().is_none());
        for order in [Steering::Tpcs(vec![4, 4, 25]), Steering::Algorithm(Algorithm::Published)] {
            order.leave(dir.path()).unwrap();
            assert!(orders.is_new());
            assert_eq!(orders.next().unwrap().unwrap(), order);
            assert!(!orders.is_new() && orders.next().is_none());
        }
        fs::remove_file(dir.path().join(FILE)).unwrap();
        fs::write(dir.path().join(FILE), "{\"tpcs\": \"all\"}").unwrap();
        assert!(orders.next().unwrap().is_err());
        assert!(orders.next().is_none());
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
