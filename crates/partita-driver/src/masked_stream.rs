//! A stream that this crate created, with a mask.

use partita_core::TpcSet;

use crate::error::Error;
use crate::stream::{Stream, StreamRef};
use crate::stream_mask::{MaskPlace, StreamMasks};

/// A stream with a mask, which is removed before the stream is destroyed. Measured on an H200
/// (driver 580.159.04): the mask of a destroyed stream stays in its structure, and the next stream,
/// in the same place, inherits it.
pub(crate) struct MaskedStream<'m> {
    masks: StreamMasks<'m>,
    at: MaskPlace,
    stream: Stream<'m>,
}

impl<'m> MaskedStream<'m> {
    /// Restricts a new stream to `set`.
    pub(crate) fn new(stream: Stream<'m>, masks: StreamMasks<'m>, set: &TpcSet) -> Result<Self, Error> {
        let at = masks.find(stream.as_ref())?;
        let made = Self { masks, at, stream };
        made.set(set)?;
        Ok(made)
    }

    pub(crate) fn as_ref(&self) -> StreamRef<'_> {
        self.stream.as_ref()
    }

    /// As [`StreamMasks::set`].
    pub(crate) fn set(&self, set: &TpcSet) -> Result<(), Error> {
        self.masks.set_at(self.at, self.stream.as_ref(), set).map(drop)
    }
}

impl Drop for MaskedStream<'_> {
    fn drop(&mut self) {
        // Launched work keeps its mask. If the stream is unreadable, its context is gone, and its
        // structure with it.
        let _ = self.masks.clear(self.stream.as_ref());
    }
}
