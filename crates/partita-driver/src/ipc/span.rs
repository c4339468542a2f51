//! A part of device memory of any origin.

use alloc::format;

use partita_abi::CuResult;

use crate::cuda::Cuda;
use crate::error::Error;
use crate::gpu::Buffer;
use crate::host_buffer::HostBuffer;
use crate::stream::StreamRef;

/// A range of device memory that stays allocated while this lives.
#[derive(Clone, Copy)]
pub struct Span<'s> {
    cuda: &'s Cuda,
    address: u64,
    bytes: u64,
}

impl core::fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

impl Buffer<'_> {
    /// All of it, as a part of device memory.
    pub fn span(&self) -> Span<'_> {
        Span::new(self.cuda, self.address(), self.bytes() as u64)
    }
}

impl<'s> Span<'s> {
    pub(crate) fn new(cuda: &'s Cuda, address: u64, bytes: u64) -> Self {
        Self { cuda, address, bytes }
    }

    /// The device address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::Refused`] beyond the end.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Self, Error> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(Error::Refused(format!(
                "{bytes} bytes at offset {offset} reach beyond device memory of {} bytes: choose a \
                 smaller part",
                self.bytes
            )));
        }
        Ok(Self { cuda: self.cuda, address: self.address + offset, bytes })
    }

    /// Copies to its beginning, and returns when the data has arrived.
    ///
    /// # Errors
    /// [`Error::Refused`] if `data` is longer; those of the driver.
    pub fn write(&self, data: &[u8]) -> Result<(), Error> {
        let to = self.part(0, data.len() as u64)?;
        // SAFETY: both ranges are valid for the data's bytes.
        unsafe { self.cuda.write(to.address, data) }
    }

    /// Copies from its beginning, after all earlier work of this process's legacy stream.
    ///
    /// # Errors
    /// [`Error::Refused`] if `data` is longer; those of the driver.
    pub fn read(&self, data: &mut [u8]) -> Result<(), Error> {
        let from = self.part(0, data.len() as u64)?;
        // SAFETY: both ranges are valid for the data's bytes.
        unsafe { self.cuda.memcpy_to_host(data.as_mut_ptr().cast(), from.address, data.len()) }
    }

    /// Queues a copy of its length from page-locked memory. Both must stay allocated until it is
    /// done.
    ///
    /// # Errors
    /// [`Error::Refused`] if the host's memory is shorter; those of the driver.
    pub fn copy_from(&self, host: &HostBuffer<'_>, stream: StreamRef<'_>) -> Result<(), Error> {
        let bytes = self.bytes_of(host)?;
        // SAFETY: both ranges have that many bytes; no other code touches the host's.
        unsafe { self.cuda.memcpy_to_device_async(self.address, host.start(), bytes, stream.handle()) }
    }

    /// Queues a copy of all of it to page-locked memory. Both must stay allocated until it is done.
    ///
    /// # Errors
    /// As [`Span::copy_from`].
    pub fn copy_to(&self, host: &HostBuffer<'_>, stream: StreamRef<'_>) -> Result<(), Error> {
        let bytes = self.bytes_of(host)?;
        // SAFETY: as above.
        unsafe { self.cuda.memcpy_to_host_async(host.start(), self.address, bytes, stream.handle()) }
    }

    /// Queues a copy of its length from other device memory. Both must stay allocated until it is
    /// done.
    ///
    /// # Errors
    /// [`Error::Refused`] if the other memory is shorter or overlaps; those of the driver.
    pub fn copy_of(&self, other: &Span<'_>, stream: StreamRef<'_>) -> Result<(), Error> {
        let from = other.part(0, self.bytes)?;
        if from.address < self.address + self.bytes && self.address < from.address + self.bytes {
            return Err(Error::Refused(format!("{self:?} and {from:?} overlap: copy between two parts")));
        }
        let bytes = self.bytes as usize;
        // SAFETY: both ranges have that many bytes, and are two.
        unsafe { self.cuda.memcpy_within_async(self.address, from.address, bytes, stream.handle()) }
    }

    /// Its length, if the host's memory is as long.
    fn bytes_of(&self, host: &HostBuffer<'_>) -> Result<usize, Error> {
        let bytes = usize::try_from(self.bytes).ok().filter(|bytes| *bytes <= host.bytes());
        bytes.ok_or_else(|| {
            let host = host.bytes();
            Error::Refused(format!(
                "{host} bytes of the host are fewer than the {} of the device: choose a smaller part",
                self.bytes
            ))
        })
    }

    /// Queues a write of a number to its beginning, which must be a multiple of four bytes, behind
    /// all work that the stream has. The memory must stay allocated until it is done.
    ///
    /// The stream itself writes, if the driver can do that: a fill would be a kernel, which waits
    /// for compute units as any other kernel.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is shorter than four bytes; those of the driver.
    pub fn write_number(&self, number: u32, stream: StreamRef<'_>) -> Result<(), Error> {
        let to = self.part(0, 4)?;
        // SAFETY: the range is valid now; a driver refuses or delays a release of memory with
        // queued work.
        match unsafe { self.cuda.stream_write_value32(stream.handle(), to.address, number, 0) } {
            Err(Error::MissingSymbol(_) | Error::Call { code: CuResult::NOT_SUPPORTED, .. }) => {
                // SAFETY: as above.
                unsafe { self.cuda.memset_d32_async(to.address, number, 1, stream.handle()) }
            }
            written => written,
        }
    }

    /// Queues a fill of every byte on a stream. The memory must stay allocated until it is done.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn fill(&self, value: u8, stream: StreamRef<'_>) -> Result<(), Error> {
        // SAFETY: the range is valid now; a driver refuses or delays a release of memory with
        // queued work.
        unsafe { self.cuda.memset_d8_async(self.address, value, self.bytes as usize, stream.handle()) }
    }
}
