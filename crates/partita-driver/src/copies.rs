//! Copies and fills that go beside kernels, on a stream; what is in the memory, nobody reads.

use core::ffi::c_void;

use crate::cuda::Cuda;
use crate::error::Error;
use crate::gpu::{Buffer, Gpu};
use crate::stream::StreamRef;

/// Memory to copy between: two buffers on the device, and page-locked memory of the host.
///
/// Nothing may run any more when it is dropped: wait for the streams first.
pub struct Copies<'a> {
    cuda: &'a Cuda,
    device: [Buffer<'a>; 2],
    host: *mut c_void,
    bytes: usize,
}

impl<'a> Copies<'a> {
    /// Memory for copies of at most `bytes`.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Gpu<'a>, bytes: usize) -> Result<Self, Error> {
        let bytes = bytes.max(1);
        let device = [gpu.alloc(bytes)?, gpu.alloc(bytes)?];
        let mut host = core::ptr::null_mut();
        let cuda = gpu.cuda();
        // SAFETY: a valid pointer; the GPU's context is current.
        unsafe { cuda.mem_alloc_host(&mut host, bytes)? };
        Ok(Self { cuda, device, host, bytes })
    }

    /// Queues a copy to the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn to_device(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        let bytes = bytes.min(self.bytes);
        // SAFETY: both ranges have that many bytes, and live as long as self.
        unsafe {
            self.cuda.memcpy_to_device_async(self.device[0].address(), self.host, bytes, stream.handle())
        }
    }

    /// Queues a copy from the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn to_host(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        let bytes = bytes.min(self.bytes);
        // SAFETY: as above; nobody else reads or writes the host's range.
        unsafe { self.cuda.memcpy_to_host_async(self.host, self.device[0].address(), bytes, stream.handle()) }
    }

    /// Queues a copy inside the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn within(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        let [from, to] = &self.device;
        let bytes = bytes.min(self.bytes);
        // SAFETY: as above; the buffers are two.
        unsafe { self.cuda.memcpy_within_async(to.address(), from.address(), bytes, stream.handle()) }
    }

    /// Queues a fill.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        let bytes = bytes.min(self.bytes);
        // SAFETY: as above.
        unsafe { self.cuda.memset_d8_async(self.device[0].address(), 0, bytes, stream.handle()) }
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated in new() and freed once; failure means that the context is gone.
        let _ = unsafe { self.cuda.mem_free_host(self.host) };
    }
}
