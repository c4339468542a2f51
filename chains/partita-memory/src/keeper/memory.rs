//! The source of slabs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use partita_driver::ipc::{MemoryHandle, Physical};
use partita_driver::{Buffer, Error, Gpu, Stream};
use rustix::fs::MemfdFlags;
use thiserror::Error;

use crate::wire::{HANDLE_BYTES, HandleKind};

/// Why there is no slab.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct MemoryError {
    /// Whether memory is short, so that a smaller one might be possible.
    pub is_full: bool,
    /// The reason.
    pub text: String,
}

/// How another process opens a slab.
#[derive(Clone, Copy, Debug)]
pub enum Handle<'s> {
    /// A handle of CUDA's interprocess calls.
    Ipc([u8; HANDLE_BYTES]),
    Descriptor(BorrowedFd<'s>),
}

/// The source of slabs. Dropping a slab returns its memory.
pub trait Memory {
    type Slab;

    /// The granularity of a slab's size in bytes.
    fn granularity_bytes(&self) -> u64;

    /// Makes a slab. `clear` requests zeros, because the memory may have been another tenant's in
    /// this process; the driver clears memory that was another process's.
    ///
    /// # Errors
    /// [`MemoryError`].
    fn allocate(&mut self, bytes: u64, clear: bool) -> Result<Self::Slab, MemoryError>;

    /// How other processes open a slab.
    fn handle<'s>(&self, slab: &'s Self::Slab) -> Handle<'s>;
}

pub struct GpuMemory<'a> {
    gpu: &'a Gpu<'a>,
    kind: HandleKind,
    granularity_bytes: u64,
}

/// The granularity for `cuMemAlloc`. Its own is not documented; with this one the slabs of both
/// kinds are alike.
const IPC_GRANULARITY_BYTES: u64 = 2 << 20;

impl<'a> GpuMemory<'a> {
    /// Memory that is opened by handles of that kind.
    ///
    /// # Errors
    /// The driver's, if it does not support the kind.
    pub fn new(gpu: &'a Gpu<'a>, kind: HandleKind) -> Result<Self, Error> {
        let granularity_bytes = match kind {
            HandleKind::Ipc => IPC_GRANULARITY_BYTES,
            HandleKind::Descriptor => Physical::granularity_bytes(gpu)?,
        };
        Ok(Self { gpu, kind, granularity_bytes })
    }
}

/// A slab of a GPU's memory.
pub struct GpuSlab<'a>(Kind<'a>);

enum Kind<'a> {
    Ipc { handle: MemoryHandle, _buffer: Buffer<'a> },
    Descriptor { descriptor: OwnedFd, _physical: Physical<'a> },
}

impl<'a> Memory for GpuMemory<'a> {
    type Slab = GpuSlab<'a>;

    fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }

    fn allocate(&mut self, bytes: u64, clear: bool) -> Result<GpuSlab<'a>, MemoryError> {
        match self.kind {
            HandleKind::Ipc => self.by_handle(bytes, clear),
            HandleKind::Descriptor => self.by_descriptor(bytes, clear),
        }
        .map(GpuSlab)
        .map_err(|error| MemoryError { is_full: is_full(&error), text: error.to_string() })
    }

    fn handle<'s>(&self, slab: &'s GpuSlab<'a>) -> Handle<'s> {
        match &slab.0 {
            Kind::Ipc { handle, .. } => Handle::Ipc(handle.to_bytes()),
            Kind::Descriptor { descriptor, .. } => Handle::Descriptor(descriptor.as_fd()),
        }
    }
}

impl<'a> GpuMemory<'a> {
    fn by_handle(&self, bytes: u64, clear: bool) -> Result<Kind<'a>, Error> {
        let buffer = self.gpu.alloc(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        if clear {
            buffer.fill(0)?;
        }
        Ok(Kind::Ipc { handle: MemoryHandle::of(self.gpu, &buffer)?, _buffer: buffer })
    }

    fn by_descriptor(&self, bytes: u64, clear: bool) -> Result<Kind<'a>, Error> {
        let physical = Physical::create(self.gpu, bytes)?;
        if clear {
            let (here, stream) = (physical.map()?, Stream::new(self.gpu.cuda())?);
            here.span().fill(0, stream.as_ref())?;
            stream.synchronize()?;
        }
        let place = File::open("/dev/null").map_err(|error| {
            Error::Refused(format!("/dev/null cannot be opened: {error}; create it again"))
        })?;
        physical.export_over(place.as_raw_fd())?;
        Ok(Kind::Descriptor { descriptor: place.into(), _physical: physical })
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Call { code: partita_abi::CuResult::OUT_OF_MEMORY, .. })
}

/// Memory of the host in place of a GPU's: files without a name. For tests of the service where the
/// memory's content does not matter.
#[derive(Debug)]
pub struct HostMemory {
    /// Remaining bytes.
    left: std::rc::Rc<std::cell::Cell<u64>>,
}

/// A slab of [`HostMemory`].
#[derive(Debug)]
pub struct HostSlab {
    file: OwnedFd,
    bytes: u64,
    left: std::rc::Rc<std::cell::Cell<u64>>,
}

impl HostMemory {
    /// This many bytes of it.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { left: std::rc::Rc::new(std::cell::Cell::new(bytes)) }
    }
}

impl Memory for HostMemory {
    type Slab = HostSlab;

    fn granularity_bytes(&self) -> u64 {
        4096
    }

    fn allocate(&mut self, bytes: u64, _clear: bool) -> Result<HostSlab, MemoryError> {
        let left = self.left.get().checked_sub(bytes);
        let left = left.ok_or(MemoryError { is_full: true, text: "no memory is left".to_owned() })?;
        let made = rustix::fs::memfd_create("partita-slab", MemfdFlags::CLOEXEC)
            .and_then(|file| rustix::fs::ftruncate(&file, bytes).map(|()| file));
        let file = made.map_err(|errno| MemoryError {
            is_full: false,
            text: format!("a file in memory cannot be made: {}", io::Error::from(errno)),
        })?;
        // A new file is all zero, whatever its memory was before.
        self.left.set(left);
        Ok(HostSlab { file, bytes, left: self.left.clone() })
    }

    fn handle<'s>(&self, slab: &'s HostSlab) -> Handle<'s> {
        Handle::Descriptor(slab.file.as_fd())
    }
}

impl Drop for HostSlab {
    fn drop(&mut self) {
        self.left.set(self.left.get() + self.bytes);
    }
}
