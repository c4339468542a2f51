//! Events that order the work of several processes on one GPU.

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::types::{CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CUipcEventHandle};

use super::HANDLE_BYTES;
use crate::cuda::Cuda;
use crate::error::Error;
use crate::stream::StreamRef;

/// The handle by which another process opens an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventHandle {
    bytes: [u8; HANDLE_BYTES],
}

impl EventHandle {
    /// A handle from another process; it is checked when it is opened.
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

/// An event that several processes can record and wait for: created here, or opened; released on
/// drop. It needs a current context.
///
/// A wait is for the last recording before the wait was queued, by any process; without a recording
/// there is no wait. So the waiting process must know by other means that the recording has been
/// made.
pub struct SharedEvent<'a> {
    cuda: &'a Cuda,
    handle: *mut c_void,
}

impl<'a> SharedEvent<'a> {
    /// Creates an event in the current context, without timing, which the driver does not offer for
    /// interprocess events.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn create(cuda: &'a Cuda) -> Result<Self, Error> {
        Self::with_flags(cuda, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event that other processes cannot open, in the current context. Streams of other
    /// contexts of this process can wait for it. An interprocess event would not do: if another
    /// context of the same process uses it, libcuda ends in a segmentation fault (H200, driver
    /// 580.159.04).
    ///
    /// # Errors
    /// Those of the driver.
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
    /// Those of the driver: `CUDA_ERROR_INVALID_CONTEXT` in the process that created it; another
    /// one for an invalid handle or a destroyed event.
    pub fn open(cuda: &'a Cuda, handle: &EventHandle) -> Result<Self, Error> {
        let mut opened = core::ptr::null_mut();
        // SAFETY: a valid pointer; the driver checks the handle.
        unsafe { cuda.ipc_open_event_handle(&mut opened, CUipcEventHandle { reserved: handle.bytes })? };
        Ok(Self { cuda, handle: opened })
    }

    /// The handle for other processes.
    ///
    /// # Errors
    /// Those of the driver; an opened event may have no handle.
    pub fn export(&self) -> Result<EventHandle, Error> {
        let mut handle = CUipcEventHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: a valid pointer and a live event.
        unsafe { self.cuda.ipc_get_event_handle(&mut handle, self.handle)? };
        Ok(EventHandle { bytes: handle.reserved })
    }

    /// Records it behind all work that the stream has so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: StreamRef<'_>) -> Result<(), Error> {
        // SAFETY: a live event and stream.
        unsafe { self.cuda.event_record(self.handle, stream.handle()) }
    }

    /// Makes the stream's later work wait for the last recording, on the GPU. Returns at once.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn hold(&self, stream: StreamRef<'_>) -> Result<(), Error> {
        // SAFETY: a live event and stream; the flags must be zero here.
        unsafe { self.cuda.stream_wait_event(stream.handle(), self.handle, 0) }
    }

    /// Whether the GPU has reached the last recording, or there was no recording.
    ///
    /// # Errors
    /// Those of the driver, if earlier work failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: a live event.
        match unsafe { self.cuda.event_query(self.handle) } {
            Ok(()) => Ok(true),
            Err(Error::Call { code: CuResult::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits on the host for the last recording, without a timeout.
    ///
    /// # Errors
    /// Those of the driver, if earlier work failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: a live event.
        unsafe { self.cuda.event_synchronize(self.handle) }
    }
}

impl Drop for SharedEvent<'_> {
    fn drop(&mut self) {
        // SAFETY: created or opened here, and released once; the driver keeps it until queued work
        // that needs it is done.
        let _ = unsafe { self.cuda.event_destroy(self.handle) };
    }
}
