//! One frame, for its holder.

use std::rc::Rc;
use std::time::Duration;

use partita_driver::ipc::Span;
use partita_driver::{KERNEL_DEADLINE_MS, StreamRef};
use partita_frames::{Lease, META_WORDS, Note, ROLES_MAX, monotonic_ns};

use super::Component;
use crate::error::Error;
use crate::memory::Memory;

/// A frame in GPU memory, until it is passed on. A dropped one goes back to the pool, and is
/// counted.
///
/// The memory may be used in work on [`Component::stream`], where it is ordered after earlier work.
/// Order work on other streams after that, and before the frame is passed on.
#[must_use = "a frame that is dropped is lost to the chain's next component"]
pub struct Frame<'c, 'g> {
    pub(crate) component: &'c Component<'g>,
    pub(crate) lease: Lease,
    /// Where it begins in `memory`, in bytes.
    pub(crate) offset: u64,
    pub(crate) note: Note,
    pub(crate) memory: Rc<Memory<'g>>,
    pub(crate) received_ns: u64,
    /// Whether another role has it by now.
    pub(crate) passed: bool,
}

impl Frame<'_, '_> {
    /// Its address on the device, in this process.
    pub fn address(&self) -> u64 {
        self.memory.span().address() + self.offset
    }

    /// How many bytes of it are in use.
    pub fn bytes(&self) -> u64 {
        self.note.bytes
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.component.plan().frame_bytes
    }

    /// Sets how many bytes of it are in use; at most its capacity.
    pub fn set_bytes(&mut self, bytes: u64) {
        self.note.bytes = bytes.min(self.capacity_bytes());
    }

    /// Its number in the order of their starts, from 0.
    pub fn sequence(&self) -> u64 {
        self.note.sequence
    }

    /// The words of the components before for the later ones.
    pub fn meta(&self) -> &[u64; META_WORDS] {
        &self.note.meta
    }

    /// As [`Frame::meta`], mutable.
    pub fn meta_mut(&mut self) -> &mut [u64; META_WORDS] {
        &mut self.note.meta
    }

    pub fn age(&self) -> Duration {
        Duration::from_nanos(monotonic_ns().saturating_sub(self.note.born_ns))
    }

    /// Its bytes in use.
    pub(crate) fn content(&self) -> Result<Span<'_>, Error> {
        self.part(0, self.bytes())
    }

    /// All of its memory.
    ///
    /// # Errors
    /// [`Error::Damaged`], which receiving it has excluded.
    pub fn span(&self) -> Result<Span<'_>, Error> {
        self.part(0, self.capacity_bytes())
    }

    /// A part of its memory.
    ///
    /// # Errors
    /// [`Error::Driver`] if it reaches beyond the end.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Span<'_>, Error> {
        let whole = self.memory.span().part(self.offset, self.capacity_bytes());
        whole.and_then(|whole| whole.part(offset, bytes)).map_err(Error::driver("a part of a frame"))
    }
}

impl Frame<'_, '_> {
    /// Waits on the host until the last user of the frame has finished, and copies to its start.
    /// For the first component.
    ///
    /// # Errors
    /// [`Error::Driver`], also if `data` does not fit.
    pub fn write(&self, data: &[u8]) -> Result<(), Error> {
        self.wait()?;
        self.part(0, data.len() as u64)?.write(data).map_err(Error::driver("a copy to a frame"))
    }

    /// Waits on the host for all work launched on the component's stream, and copies from the
    /// frame. For the last component.
    ///
    /// # Errors
    /// As [`Frame::write`].
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        self.wait()?;
        self.part(offset, data.len() as u64)?.read(data).map_err(Error::driver("a copy from a frame"))
    }

    /// Waits on the host for all work launched on the component's stream, and returns whether the
    /// GPU has done the work of every component before. It has not if one of them was killed while
    /// the frame was on its way; its content is then unknown. For the last component.
    ///
    /// # Errors
    /// As [`Frame::read`].
    pub fn is_whole(&self) -> Result<bool, Error> {
        self.wait()?;
        let roles = usize::from(self.component.role());
        let is_done = |role: usize| self.note.done_roles >> role & 1 != 0;
        if (0..roles).all(is_done) {
            return Ok(true);
        }
        let mut stamps = [0; 4 * ROLES_MAX];
        let stamps = &mut stamps[..4 * roles];
        self.stamps()?.read(stamps).map_err(Error::driver("the stamps of a frame"))?;
        let mut stamps = stamps.as_chunks::<4>().0.iter().enumerate();
        Ok(stamps.all(|(role, stamp)| is_done(role) || u32::from_le_bytes(*stamp) == self.stamp()))
    }

    /// What the GPU writes after each component's work on this frame: another number than for the
    /// former frame in the same memory.
    fn stamp(&self) -> u32 {
        (self.note.sequence as u32).wrapping_add(1)
    }

    pub(crate) fn stamps(&self) -> Result<Span<'_>, Error> {
        let at = self.offset.saturating_add(self.component.plan().stamps_offset_bytes());
        self.memory.span().part(at, 4 * ROLES_MAX as u64).map_err(Error::driver("the stamps of a frame"))
    }

    /// Makes the GPU report the end of this component's work, through a stream that is ordered
    /// after it.
    pub(crate) fn put_stamp(&self, stream: StreamRef<'_>) -> Result<(), Error> {
        let place = self.stamps()?.part(4 * u64::from(self.component.role()), 4);
        let put = place.and_then(|place| place.write_number(self.stamp(), stream));
        put.map_err(Error::driver("the stamp of a frame"))
    }

    fn wait(&self) -> Result<(), Error> {
        let waited =
            self.component.gpu().wait_on(self.component.stream(), "work on a frame", KERNEL_DEADLINE_MS);
        waited.map_err(Error::driver("work on a frame"))
    }
}

impl Drop for Frame<'_, '_> {
    fn drop(&mut self) {
        if !self.passed {
            // There is no caller to report to; a frame that cannot be returned now is returned when
            // the process ends.
            let _ = self.component.discard(self);
        }
    }
}

impl std::fmt::Debug for Frame<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("sequence", &self.note.sequence)
            .field("bytes", &self.note.bytes)
            .finish()
    }
}
