//! Page-locked memory of the host.

use core::ffi::c_void;

use crate::cuda::Cuda;
use crate::error::Error;
use crate::gpu::Gpu;

/// Page-locked memory, which the GPU copies to and from without the host's help. No other code
/// reads or writes its content, so copies can be in flight.
///
/// Wait for the streams before dropping it: no copy may be in flight.
pub struct HostBuffer<'a> {
    cuda: &'a Cuda,
    start: *mut c_void,
    bytes: usize,
}

impl<'a> HostBuffer<'a> {
    /// Allocates so many bytes, at least one.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(gpu: &Gpu<'a>, bytes: usize) -> Result<Self, Error> {
        let (cuda, bytes) = (gpu.cuda(), bytes.max(1));
        let mut start = core::ptr::null_mut();
        // SAFETY: a valid pointer; the GPU's context is current.
        unsafe { cuda.mem_alloc_host(&mut start, bytes)? };
        Ok(Self { cuda, start, bytes })
    }

    /// Allocates as many bytes as `data` has, at least one, and copies `data` into them.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn of(gpu: &Gpu<'a>, data: &[u8]) -> Result<Self, Error> {
        let buffer = Self::new(gpu, data.len())?;
        // SAFETY: so many bytes were just allocated, and no copy uses them yet.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), buffer.start.cast(), data.len()) };
        Ok(buffer)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn start(&self) -> *mut c_void {
        self.start
    }
}

impl Drop for HostBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated in new() and freed once; failure means that the context is gone.
        let _ = unsafe { self.cuda.mem_free_host(self.start) };
    }
}
