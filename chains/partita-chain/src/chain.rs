//! A whole chain, for the process that makes it, starts its processes and watches it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use partita_core::TpcSet;
use partita_frames::{Census, ChainFile, ChainPlan, Recovered, RoleStatus, monotonic_ns};

use crate::error::Error;

/// How long to wait for work of a dead process on the GPU before its frames are used again.
pub(crate) const REST: Duration = Duration::from_millis(20);

pub(crate) fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Path { path: path.to_owned() })
}

/// A chain's file, opened.
#[derive(Debug)]
pub struct Chain {
    file: ChainFile,
}

impl Chain {
    /// Makes a chain: its file, of mode 0600. No process runs yet, and no memory is allocated
    /// before the first component attaches.
    ///
    /// # Errors
    /// [`Error::File`] for an impossible plan, and for a file that exists already.
    pub fn create(path: &Path, plan: &ChainPlan) -> Result<Self, Error> {
        Ok(Self { file: ChainFile::create(&c_path(path)?, plan)? })
    }

    /// Opens an existing chain.
    ///
    /// # Errors
    /// [`Error::File`]: its problem.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { file: ChainFile::open(&c_path(path)?)? })
    }

    pub fn plan(&self) -> &ChainPlan {
        self.file.plan()
    }

    /// Its components, in order.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn status(&self) -> Result<Vec<RoleStatus>, Error> {
        (0..self.file.roles()).map(|role| self.file.status(role).map_err(Error::from)).collect()
    }

    /// The places of its frames.
    pub fn census(&self) -> Census {
        self.file.census()
    }

    /// Frames that the last component has finished so far.
    pub fn frames_finished(&self) -> u64 {
        self.file.frames_finished()
    }

    /// Suggests compute units to a component, which applies them from its next frame on. Returns
    /// the suggestion's number.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn suggest(&mut self, role: u8, set: &TpcSet) -> Result<u64, Error> {
        Ok(self.file.suggest(role, &set.to_words())?)
    }

    /// Frees what a dead component held; `None` if it lives. The next process in its place would do
    /// the same.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn recover(&self, role: u8) -> Result<Option<Recovered>, Error> {
        let rests_until_ns = monotonic_ns().saturating_add(REST.as_nanos() as u64);
        Ok(self.file.recover(role, rests_until_ns)?)
    }

    /// Asks every component to end: no frame starts any more, frames on their way are finished.
    pub fn stop(&self) {
        self.file.stop();
    }

    /// Removes the file.
    pub fn remove(self) {
        self.file.remove();
    }
}
