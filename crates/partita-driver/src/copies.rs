//! Copies and fills that run beside kernels, on a stream; nothing uses their data.

use crate::cuda::Cuda;
use crate::error::Error;
use crate::gpu::{Buffer, Gpu};
use crate::host_buffer::HostBuffer;
use crate::stream::StreamRef;

/// Memory to copy between: two device buffers, and page-locked host memory.
///
/// Wait for the streams before dropping it: no copy may be in flight.
pub struct Copies<'a> {
    cuda: &'a Cuda,
    device: [Buffer<'a>; 2],
    host: HostBuffer<'a>,
    bytes: usize,
}

impl<'a> Copies<'a> {
    /// Memory for copies of at most `bytes`.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(gpu: &Gpu<'a>, bytes: usize) -> Result<Self, Error> {
        let bytes = bytes.max(1);
        let device = [gpu.alloc(bytes)?, gpu.alloc(bytes)?];
        Ok(Self { cuda: gpu.cuda(), device, host: HostBuffer::new(gpu, bytes)?, bytes })
    }

    /// Queues a copy to the device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn to_device(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        self.device[0].span().part(0, bytes.min(self.bytes) as u64)?.copy_from(&self.host, stream)
    }

    /// Queues a copy from the device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn to_host(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        self.device[0].span().part(0, bytes.min(self.bytes) as u64)?.copy_to(&self.host, stream)
    }

    /// Queues a copy inside the device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn within(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        let [from, to] = &self.device;
        let bytes = bytes.min(self.bytes);
        // SAFETY: as above; the buffers are two.
        unsafe { self.cuda.memcpy_within_async(to.address(), from.address(), bytes, stream.handle()) }
    }

    /// Queues a fill.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn fill(&self, bytes: usize, stream: StreamRef<'_>) -> Result<(), Error> {
        let bytes = bytes.min(self.bytes);
        // SAFETY: as above.
        unsafe { self.cuda.memset_d8_async(self.device[0].address(), 0, bytes, stream.handle()) }
    }
}
