//! Slabs that are open in this process.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use crate::pool::SlabId;
use partita_driver::Gpu;
use partita_driver::ipc::{MappedMemory, MemoryHandle, OpenedMemory, Physical, Span};

use super::Error;
use super::connection::{Connection, Opened, OpenedBy};

/// A slab, open in this process.
pub enum OpenSlab<'a> {
    /// By a handle.
    Opened(OpenedMemory<'a>),
    /// By a descriptor.
    Mapped(MappedMemory<'a>),
}

impl<'a> OpenSlab<'a> {
    /// Opens a slab after the answer of [`Connection`].
    ///
    /// # Errors
    /// [`Error::Driver`]; the slab then still counts as open until [`Connection::close`].
    pub fn open(gpu: &Gpu<'a>, opened: &Opened) -> Result<Self, Error> {
        Ok(match &opened.by {
            OpenedBy::Ipc(handle) => {
                Self::Opened(OpenedMemory::open(gpu, &MemoryHandle::from_bytes(*handle), opened.bytes)?)
            }
            OpenedBy::Descriptor(descriptor) => {
                Self::Mapped(Physical::import(gpu, descriptor.as_raw_fd(), opened.bytes)?.map()?)
            }
        })
    }

    /// All of its memory.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        match self {
            Self::Opened(memory) => memory.span(),
            Self::Mapped(memory) => memory.span(),
        }
    }
}

/// The open slabs of a client.
pub(super) struct Slabs<'a> {
    gpu: &'a Gpu<'a>,
    open: BTreeMap<SlabId, Rc<OpenSlab<'a>>>,
}

impl<'a> Slabs<'a> {
    pub(super) fn new(gpu: &'a Gpu<'a>) -> Self {
        Self { gpu, open: BTreeMap::new() }
    }

    pub(super) fn get(
        &mut self,
        slab: SlabId,
        connection: &mut Connection,
    ) -> Result<Rc<OpenSlab<'a>>, Error> {
        if let Some(known) = self.open.get(&slab) {
            return Ok(known.clone());
        }
        let opened = connection.open(slab)?;
        match OpenSlab::open(self.gpu, &opened) {
            Ok(open) => Ok(self.open.entry(slab).or_insert(Rc::new(open)).clone()),
            Err(error) => {
                // It is not open.
                connection.close(&[slab])?;
                Err(error)
            }
        }
    }

    /// Closes the unused ones of these.
    pub(super) fn close(&mut self, slabs: &[SlabId], connection: &mut Connection) -> Result<(), Error> {
        let is_idle = |slab: &&SlabId| self.open.get(slab).is_some_and(|open| Rc::strong_count(open) == 1);
        let idle: Vec<SlabId> = slabs.iter().filter(is_idle).copied().collect();
        for slab in &idle {
            self.open.remove(slab);
        }
        connection.close(&idle)
    }

    /// Closes all unused ones.
    pub(super) fn close_all(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let all: Vec<SlabId> = self.open.keys().copied().collect();
        self.close(&all, connection)
    }
}
