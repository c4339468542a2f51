//! A whole chain, for whoever makes it, starts its processes and watches it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use partita_core::TpcSet;
use partita_frames::{Census, ChainFile, ChainPlan, Recovered, RoleStatus, monotonic_ns};

use crate::error::Error;

/// How long what the GPU may still be doing for a dead process is waited for before its frames are
/// used again.
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
    /// [`Error::File`] for a plan that no chain can have, and for a file that is there already.
    pub fn create(path: &Path, plan: &ChainPlan) -> Result<Self, Error> {
        Ok(Self { file: ChainFile::create(&c_path(path)?, plan)? })
    }

    /// Opens a chain that is there.
    ///
    /// # Errors
    /// [`Error::File`]: what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { file: ChainFile::open(&c_path(path)?)? })
    }

    /// What it is made of.
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

    /// Where its frames are.
    pub fn census(&self) -> Census {
        self.file.census()
    }

    /// Frames that the last component has finished so far.
    pub fn frames_finished(&self) -> u64 {
        self.file.frames_finished()
    }

    /// Suggests compute units to a component, which keeps to them from its next frame on. Returns
    /// the suggestion's number.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn suggest(&mut self, role: u8, set: &TpcSet) -> Result<u64, Error> {
        Ok(self.file.suggest(role, &set.to_words())?)
    }

    /// Gives back what a dead component held; `None` if it lives. The next process in its place
    /// would do it too.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn recover(&self, role: u8) -> Result<Option<Recovered>, Error> {
        let rests_until_ns = monotonic_ns().saturating_add(REST.as_nanos() as u64);
        Ok(self.file.recover(role, rests_until_ns)?)
    }

    /// Tells every component to end: no frame begins any more, those on their way are finished.
    pub fn stop(&self) {
        self.file.stop();
    }

    /// Removes the file.
    pub fn remove(self) {
        self.file.remove();
    }
}
