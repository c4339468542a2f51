//! What was prepared, one file a claim, so that a driver that was killed at any step goes on.
//!
//! A claim's file is there before its tenant is begun and until its tenant is gone. So a tenant
//! without a file does not exist, and a file without a tenant is work to finish or to undo.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use partita::points::reached;
use serde::{Deserialize, Serialize};

use crate::plan::Definition;

/// The version of the files.
const VERSION: u32 = 1;

/// A claim that is prepared, or about to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    version: u32,
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// The claim's UID.
    pub uid: String,
    /// The claim's name in its pod, if it was made from a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_claim: Option<String>,
    /// The annotation whose size its tenant has; without one the tenant has the claim's own size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resized: Option<String>,
    /// Its tenant.
    pub definition: Definition,
}

impl Entry {
    /// The entry of a claim.
    pub fn new(namespace: &str, name: &str, uid: &str, definition: Definition) -> Self {
        let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
        Self { version: VERSION, namespace, name, uid, pod_claim: None, resized: None, definition }
    }

    /// That of a claim that was made from a template, if the pod has a name for it.
    #[must_use]
    pub fn in_pod(self, pod_claim: Option<&str>) -> Self {
        Self { pod_claim: pod_claim.map(str::to_owned), ..self }
    }

    /// That of a claim whose tenant has the size of this annotation.
    #[must_use]
    pub fn resized_by(self, annotation: Option<&str>) -> Self {
        Self { resized: annotation.map(str::to_owned), ..self }
    }
}

/// The directory of the files.
#[derive(Debug, Clone)]
pub struct Journal {
    dir: PathBuf,
}

fn at(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Journal {
    /// Opens the journal in `dir`, which is made if it is missing, and removes what a killed driver
    /// left half written.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir).map_err(at(dir))?;
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).map_err(at(dir))?;
        for file in fs::read_dir(dir).map_err(at(dir))? {
            let path = file.map_err(at(dir))?.path();
            if path.extension().is_some_and(|extension| extension == "new") {
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        Ok(Self { dir: dir.to_owned() })
    }

    fn path(&self, uid: &str) -> io::Result<PathBuf> {
        let is_plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if uid.is_empty() || uid.len() > 64 || !is_plain {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{uid:?} is no UID of a claim")));
        }
        Ok(self.dir.join(format!("{uid}.json")))
    }

    /// The entry of a claim.
    ///
    /// # Errors
    /// A file that cannot be read, or is another version's.
    pub fn get(&self, uid: &str) -> io::Result<Option<Entry>> {
        let path = self.path(uid)?;
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(at(&path))?,
        };
        let damaged = |reason: String| {
            let remedy = "end the claim's pod and its tenant (`partita ps`), then remove the file";
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is no entry of this driver's journal ({reason}): {remedy}", path.display()),
            )
        };
        let entry: Entry = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if entry.version != VERSION || entry.uid != uid {
            return Err(damaged(format!("version {} of claim {}", entry.version, entry.uid)));
        }
        Ok(Some(entry))
    }

    /// Writes an entry durably, by one rename.
    ///
    /// # Errors
    /// Those of the file system, such as a full disk; then the old entry holds.
    pub fn put(&self, entry: &Entry) -> io::Result<()> {
        let path = self.path(&entry.uid)?;
        let fresh = path.with_extension("new");
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(&serde_json::to_vec_pretty(entry)?)?;
            file.sync_all()?;
            reached("journal-half-written");
            fs::rename(&fresh, &path)?;
            reached("journal-written");
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&fresh);
            at(&path)(error)
        })
    }

    /// Removes a claim's entry, if there is one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        let path = self.path(uid)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => {
                reached("journal-removed");
                removed.and_then(|()| File::open(&self.dir)?.sync_all()).map_err(at(&path))
            }
        }
    }

    /// The UIDs of all claims, in order.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn uids(&self) -> io::Result<Vec<String>> {
        let mut uids = Vec::new();
        for file in fs::read_dir(&self.dir).map_err(at(&self.dir))? {
            let path = file.map_err(at(&self.dir))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                uids.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
            }
        }
        uids.sort();
        Ok(uids)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(uid: &str) -> Entry {
        let definition = Definition {
            tenant: format!("{uid}-1"),
            selectors: vec!["0".to_owned()],
            size: None,
            is_mig: false,
            limits: BTreeMap::new(),
            allocated: Vec::new(),
        };
        Entry::new("default", "claim", uid, definition)
    }

    #[test]
    fn entries_outlive_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.get("a").unwrap(), None);
        journal.put(&entry("a")).unwrap();
        journal.put(&entry("b")).unwrap();
        fs::write(dir.path().join("c.new"), "half").unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.uids().unwrap(), ["a", "b"]);
        assert_eq!(journal.get("a").unwrap(), Some(entry("a")));
        journal.remove("a").unwrap();
        journal.remove("a").unwrap();
        assert_eq!(journal.uids().unwrap(), ["b"]);
        assert!(!dir.path().join("c.new").exists());
    }

    #[test]
    fn what_is_no_entry_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        for (uid, content) in [("a", "{"), ("b", "{\"version\": 2}"), ("c", "")] {
            fs::write(dir.path().join(format!("{uid}.json")), content).unwrap();
            let said = journal.get(uid).unwrap_err().to_string();
            assert!(said.contains(&format!("{uid}.json")) && said.contains("remove the file"), "{said}");
        }
        // The entry of another claim under this name.
        fs::write(dir.path().join("d.json"), serde_json::to_vec(&entry("e")).unwrap()).unwrap();
        assert!(journal.get("d").is_err());
        for uid in ["", "../x", "a/b", "a.b"] {
            assert!(journal.get(uid).is_err(), "{uid:?}");
        }
    }
}
