//! Frames between components on different GPUs.
//!
//! Each frame has memory on every GPU of the chain. The receiver copies the frame from the sender's
//! GPU to its own: from memory that it has opened, if the driver gives it access to the other GPU,
//! otherwise from a file, into which the sender has copied it. The driver alone knows, so the first
//! frames go both ways until the receiver has tried.
//!
//! No stream waits for an event of another GPU. A frame leaves a GPU only when that has done all
//! work on it: its sender waits on the host. So what another GPU reads is complete, and what it
//! overwrites later is unused.

use std::cell::{RefCell, RefMut};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use partita_driver::ipc::Span;
use partita_frames::{ChainPlan, Lease, Policy, ROLES_MAX};

use crate::error::Error;

/// The file's name in the chain's directory.
const FILE: &str = "frames-of-other-gpus";
/// Bytes of a stamp.
const STAMP_BYTES: u64 = 4;

/// A GPU of a chain, and frames' memory there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Its number in [`ChainPlan::gpus`].
    pub number: u8,
    /// Its UUID.
    pub uuid: [u8; 16],
}

impl Site {
    /// The GPUs of a chain; if they are unknown, the one that `known` is.
    pub(crate) fn all(plan: &ChainPlan, known: [u8; 16]) -> Vec<Self> {
        let gpus = if plan.role_gpus.is_empty() { vec![known] } else { plan.gpus() };
        gpus.into_iter().zip(0..).map(|(uuid, number)| Self { number, uuid }).collect()
    }
}

/// The GPUs of a component and its neighbours.
pub(crate) struct Cross {
    role: u8,
    /// The GPU of each role.
    gpus: Vec<u8>,
    policy: Policy,
    frame_bytes: u64,
    path: PathBuf,
    file: RefCell<Option<File>>,
    buffer: RefCell<Vec<u8>>,
}

impl Cross {
    pub(crate) fn new(plan: &ChainPlan, role: u8, directory: &Path) -> Self {
        Self {
            role,
            gpus: (0..plan.roles.len() as u8).map(|role| plan.gpu_of(role)).collect(),
            policy: plan.policy,
            frame_bytes: plan.frame_bytes,
            path: directory.join(FILE),
            file: RefCell::default(),
            buffer: RefCell::default(),
        }
    }

    /// The number of a role's GPU.
    fn of(&self, role: u8) -> u8 {
        self.gpus.get(usize::from(role)).copied().unwrap_or_default()
    }

    /// The number of the component's GPU.
    pub(crate) fn own(&self) -> u8 {
        self.of(self.role)
    }

    /// The GPU of the component before, if it is another one.
    pub(crate) fn before(&self) -> Option<u8> {
        let before = self.of(self.role.checked_sub(1)?);
        (before != self.own()).then_some(before)
    }

    /// Whether the next component is on another GPU.
    pub(crate) fn leaves(&self) -> bool {
        usize::from(self.role) + 1 < self.gpus.len() && self.of(self.role + 1) != self.own()
    }

    /// Whether a role's events are another GPU's.
    pub(crate) fn is_elsewhere(&self, role: u8) -> bool {
        self.of(role) != self.own()
    }

    /// Whether the GPU must have done a frame before it goes to the pool: the next to have it is
    /// the first component.
    pub(crate) fn waits_to_return(&self) -> bool {
        self.is_elsewhere(0)
    }

    /// Whether the GPU must have done a frame before it is sent, which may drop it.
    pub(crate) fn waits_to_send(&self) -> bool {
        self.leaves() || self.policy != Policy::Wait && self.waits_to_return()
    }

    /// Where a lease's frame lies in the file, in bytes: its number, its content, its stamps.
    fn place(&self, lease: &Lease) -> u64 {
        let stride = self.frame_bytes.saturating_add(8 + STAMP_BYTES * ROLES_MAX as u64);
        stride.saturating_mul(lease.ticket.lease() as u64)
    }

    /// Room for a frame as it lies in the file, and the bytes of its content.
    fn buffer_of(&self, content: &Span<'_>, stamps: &Span<'_>) -> (RefMut<'_, Vec<u8>>, usize) {
        let mut buffer = self.buffer.borrow_mut();
        let bytes = content.bytes() as usize;
        buffer.resize(8 + bytes + stamps.bytes() as usize, 0);
        (buffer, bytes)
    }

    fn with_file<R>(&self, with: impl FnOnce(&File) -> std::io::Result<R>) -> Result<R, Error> {
        let mut file = self.file.borrow_mut();
        let done = match file.as_mut() {
            Some(file) => with(file),
            None => {
                let mut options = File::options();
                options.read(true).write(true).create(true).truncate(false).mode(0o600);
                options.open(&self.path).and_then(|opened| with(file.insert(opened)))
            }
        };
        done.map_err(|source| Error::System { what: "frames on their way through host memory", source })
    }

    /// Copies a frame of the GPU to host memory. The GPU has done the work on it.
    pub(crate) fn put(
        &self,
        lease: &Lease,
        sequence: u64,
        content: Span<'_>,
        stamps: Span<'_>,
    ) -> Result<(), Error> {
        let (mut buffer, bytes) = self.buffer_of(&content, &stamps);
        let (head, rest) = buffer.split_at_mut(8);
        let (frame, of_stamps) = rest.split_at_mut(bytes);
        head.copy_from_slice(&sequence.to_le_bytes());
        let failed = || Error::driver("a copy from a frame");
        content.read(frame).map_err(failed())?;
        stamps.read(of_stamps).map_err(failed())?;
        self.with_file(|file| file.write_all_at(&buffer, self.place(lease)))
    }

    /// Copies a frame from host memory to the GPU; returns whether its sender has left it there.
    pub(crate) fn take(
        &self,
        lease: &Lease,
        sequence: u64,
        content: Span<'_>,
        stamps: Span<'_>,
    ) -> Result<bool, Error> {
        let (mut buffer, bytes) = self.buffer_of(&content, &stamps);
        let read = self.with_file(|file| match file.read_exact_at(&mut buffer, self.place(lease)) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| true),
        })?;
        let (head, rest) = buffer.split_at(8);
        if !read || head != sequence.to_le_bytes() {
            return Ok(false);
        }
        let (frame, of_stamps) = rest.split_at(bytes);
        let failed = || Error::driver("a copy to a frame");
        content.write(frame).map_err(failed())?;
        stamps.write(of_stamps).map_err(failed())?;
        Ok(true)
    }
}
