//! Streams: created here, or by the program.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;

use partita_abi::types::{CU_STREAM_NON_BLOCKING, CUstream};

use crate::cuda::Cuda;
use crate::error::Error;

/// A live stream that is not one of the default streams.
///
/// The handles 0, 1 and 2 name default streams and are not pointers; a `StreamRef` cannot refer to
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRef<'s> {
    handle: *mut c_void,
    _stream: PhantomData<&'s ()>,
}

impl StreamRef<'_> {
    /// Wraps a `CUstream` (a `cudaStream_t` is one) that other code created.
    ///
    /// # Errors
    /// [`Error::DefaultStream`] for 0, 1 and 2 (null, legacy, per-thread): the driver has no way
    /// from them to the actual stream of this thread, so its structure cannot be read or changed.
    ///
    /// # Safety
    /// The handle came from the driver of this process, and the stream is not destroyed while the
    /// result lives.
    pub unsafe fn from_raw<'s>(handle: *mut c_void) -> Result<StreamRef<'s>, Error> {
        if CUstream(handle).is_default() {
            return Err(Error::DefaultStream(handle.addr()));
        }
        Ok(StreamRef { handle, _stream: PhantomData })
    }

    /// The `CUstream`.
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }
}

/// A stream that this crate created; destroyed on drop.
pub struct Stream<'a> {
    cuda: &'a Cuda,
    handle: *mut c_void,
}

impl<'a> Stream<'a> {
    /// Creates a stream in the current context that does not wait for the legacy stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(cuda: &'a Cuda) -> Result<Self, Error> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        unsafe { cuda.stream_create(&mut handle, CU_STREAM_NON_BLOCKING)? };
        Ok(Self { cuda, handle })
    }

    /// As [`Stream::new`], with a priority: lower numbers go first, 0 is the default.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn with_priority(cuda: &'a Cuda, priority: c_int) -> Result<Self, Error> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        unsafe { cuda.stream_create_with_priority(&mut handle, CU_STREAM_NON_BLOCKING, priority)? };
        Ok(Self { cuda, handle })
    }

    /// Takes ownership of a stream that the driver just created.
    ///
    /// # Safety
    /// No other code destroys it.
    pub(crate) unsafe fn adopt(cuda: &'a Cuda, handle: *mut c_void) -> Self {
        Self { cuda, handle }
    }

    /// Waits inside the driver for everything launched on it: with the least delay, but without a
    /// timeout.
    ///
    /// # Errors
    /// Those of the driver, if a kernel failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: a live stream.
        unsafe { self.cuda.stream_synchronize(self.handle) }
    }

    /// The stream, for launches and masks.
    pub fn as_ref(&self) -> StreamRef<'_> {
        StreamRef { handle: self.handle, _stream: PhantomData }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // SAFETY: created here and destroyed once; the driver lets queued work finish. Failure
        // means that the context is gone.
        let _ = unsafe { self.cuda.stream_destroy(self.handle) };
    }
}
