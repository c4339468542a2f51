//! Events that order the work of several processes on one GPU.

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::types::{CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CUipcEventHandle};

use super::HANDLE_BYTES;
use crate::cuda::Cuda;
use crate::error::Error;
use crate::stream::StreamRef;

/// What another process opens an event by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventHandle {
    bytes: [u8; HANDLE_BYTES],
}

impl EventHandle {
    /// A handle as it came from another process; whether it is one is known when it is opened.
    #[must_use]
    pub fn from_bytes(bytes: [u8; HANDLE_BYTES]) -> Self {
        Self { bytes }
    }

    /// The handle as it is sent to another process.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HANDLE_BYTES] {
        self.bytes
    }
}

/// An event that several processes can record and wait for: their own, or an opened one; let go
/// when dropped. It needs a current context.
///
/// A wait is for what was recorded last when the wait was queued, by whichever process; where
/// nothing was recorded, it is none. So who waits must know from elsewhere that the recording has
/// been made.
pub struct SharedEvent<'a> {
    cuda: &'a Cuda,
    handle: *mut c_void,
}

impl<'a> SharedEvent<'a> {
    /// Makes an event in the current context. It keeps no time: the driver has no interprocess
    /// events that do.
    ///
    /// # Errors
    /// The driver's.
    pub fn create(cuda: &'a Cuda) -> Result<Self, Error> {
        Self::with_flags(cuda, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)
    }

    /// Makes an event that no other process opens, in the current context. Streams of other
    /// contexts of this process may wait for it: for an interprocess event of another context of
    /// the same process libcuda ends in a segmentation fault (H200, driver 580.159.04).
    ///
    /// # Errors
    /// The driver's.
    pub fn of_this_process(cuda: &'a Cuda) -> Result<Self, Error> {
        Self::with_flags(cuda, CU_EVENT_DISABLE_TIMING)
    }

    fn with_flags(cuda: &'a Cuda, flags: c_uint) -> Result<Self, Error> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        unsafe { cuda.event_create(&mut handle, flags)? };
        Ok(Self { cuda, handle })
    }

    /// Opens another process's event in the current context.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_INVALID_CONTEXT` in the process that made it, and one for a handle
    /// that is none or whose event is gone.
    pub fn open(cuda: &'a Cuda, handle: &EventHandle) -> Result<Self, Error> {
        let mut opened = core::ptr::null_mut();
        // SAFETY: a valid pointer; the driver checks the handle.
        unsafe { cuda.ipc_open_event_handle(&mut opened, CUipcEventHandle { reserved: handle.bytes })? };
        Ok(Self { cuda, handle: opened })
    }

    /// What other processes open it by.
    ///
    /// # Errors
    /// The driver's; for an opened event it may have none.
    pub fn export(&self) -> Result<EventHandle, Error> {
        let mut handle = CUipcEventHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: a valid pointer and a live event.
        unsafe { self.cuda.ipc_get_event_handle(&mut handle, self.handle)? };
        Ok(EventHandle { bytes: handle.reserved })
    }

    /// Records it behind what the stream has been given so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, stream: StreamRef<'_>) -> Result<(), Error> {
        // SAFETY: a live event and stream.
        unsafe { self.cuda.event_record(self.handle, stream.handle()) }
    }

    /// Makes what the stream is given from now on wait for the last recording, on the GPU. Returns
    /// at once.
    ///
    /// # Errors
    /// The driver's.
    pub fn hold(&self, stream: StreamRef<'_>) -> Result<(), Error> {
        // SAFETY: a live event and stream; the flags must be zero here.
        unsafe { self.cuda.stream_wait_event(stream.handle(), self.handle, 0) }
    }

    /// Whether the last recording has been reached, or there was none.
    ///
    /// # Errors
    /// The driver's, if earlier work failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: a live event.
        match unsafe { self.cuda.event_query(self.handle) } {
            Ok(()) => Ok(true),
            Err(Error::Call { code: CuResult::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits on the host for the last recording, however long it takes.
    ///
    /// # Errors
    /// The driver's, if earlier work failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: a live event.
        unsafe { self.cuda.event_synchronize(self.handle) }
    }
}

impl Drop for SharedEvent<'_> {
    fn drop(&mut self) {
        // SAFETY: made or opened by us, and let go once; the driver keeps it until queued work that
        // needs it is done.
        let _ = unsafe { self.cuda.event_destroy(self.handle) };
    }
}
