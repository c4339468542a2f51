//! Memory by a file descriptor.

use alloc::format;
use core::ffi::{c_int, c_void};

use partita_abi::types::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE, CUmemAccessDesc,
    CUmemAllocationProp, CUmemAllocationPropFlags, CUmemLocation,
};

use super::Span;
use crate::cuda::Cuda;
use crate::error::Error;
use crate::files::errno;
use crate::gpu::Gpu;

/// A reference to physical memory of a GPU, which has no address until it is mapped. The memory
/// lives while any process has a reference, a mapping or a descriptor of it.
pub struct Physical<'a> {
    cuda: &'a Cuda,
    device: c_int,
    handle: u64,
    bytes: u64,
}

impl<'a> Physical<'a> {
    /// The granularity of physical memory, in bytes.
    ///
    /// # Errors
    /// Those of the driver: `CUDA_ERROR_NOT_SUPPORTED` if memory has no descriptors.
    pub fn granularity_bytes(gpu: &Gpu<'a>) -> Result<u64, Error> {
        let mut bytes = 0;
        // SAFETY: valid pointers.
        unsafe {
            gpu.cuda().mem_get_allocation_granularity(
                &mut bytes,
                &properties(gpu.device()),
                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )?;
        }
        Ok(bytes as u64)
    }

    /// Allocates memory that can be exported.
    ///
    /// # Errors
    /// [`Error::Refused`] for a size that is not a multiple of the granularity; those of the
    /// driver.
    pub fn create(gpu: &Gpu<'a>, bytes: u64) -> Result<Self, Error> {
        let granularity = Self::granularity_bytes(gpu)?;
        if bytes == 0 || !bytes.is_multiple_of(granularity) {
            return Err(Error::Refused(format!(
                "physical memory of {bytes} bytes: the driver allocates multiples of {granularity} \
                 bytes"
            )));
        }
        let (cuda, device, mut handle) = (gpu.cuda(), gpu.device(), 0);
        // SAFETY: valid pointers; the flags must be zero.
        unsafe { cuda.mem_create(&mut handle, bytes as usize, &properties(device), 0)? };
        Ok(Self { cuda, device, handle, bytes })
    }

    /// Takes a reference to the memory of a descriptor, which stays the caller's. The owner must
    /// provide the size, `bytes`, because the driver does not.
    ///
    /// # Errors
    /// Those of the driver: `CUDA_ERROR_INVALID_VALUE` for another kind of descriptor.
    pub fn import(gpu: &Gpu<'a>, descriptor: c_int, bytes: u64) -> Result<Self, Error> {
        let (cuda, device, mut handle) = (gpu.cuda(), gpu.device(), 0);
        // The call takes the number itself in place of a pointer.
        let shared = core::ptr::without_provenance_mut::<c_void>(descriptor as usize);
        // SAFETY: a valid pointer; the driver checks the descriptor and only reads from it.
        unsafe { cuda.mem_import(&mut handle, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)? };
        Ok(Self { cuda, device, handle, bytes })
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Replaces a descriptor that the caller has open on `/dev/null` by one of the memory, which
    /// the caller then closes.
    ///
    /// # Errors
    /// [`Error::Refused`] if `placeholder` is anything else, so that a wrong number closes no other
    /// file; those of the driver.
    pub fn export_over(&self, placeholder: c_int) -> Result<(), Error> {
        if !is_null_device(placeholder) {
            return Err(Error::Refused(format!(
                "descriptor {placeholder} is not open on /dev/null: an exported descriptor replaces \
                 one that is"
            )));
        }
        let mut exported: c_int = -1;
        let shared = core::ptr::from_mut(&mut exported).cast();
        // SAFETY: for this kind the driver writes a descriptor's number there.
        unsafe { self.cuda.mem_export(shared, self.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)? };
        // SAFETY: plain system calls on descriptors of the caller and of this call.
        let result = unsafe { libc::dup3(exported, placeholder, libc::O_CLOEXEC) };
        // SAFETY: as above; no other code uses the number.
        unsafe { libc::close(exported) };
        if result < 0 {
            return Err(Error::Refused(format!(
                "a descriptor of memory cannot be duplicated: error {}",
                errno()
            )));
        }
        Ok(())
    }

    /// Maps it at an address in this process, with access for its GPU.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn map(&self) -> Result<MappedMemory<'a>, Error> {
        let bytes = self.bytes as usize;
        let mut address = 0;
        // SAFETY: a valid pointer; no alignment and no place asked for.
        unsafe { self.cuda.mem_address_reserve(&mut address, bytes, 0, 0, 0)? };
        // From here on, an error drops it.
        let mut mapped = MappedMemory { cuda: self.cuda, address, bytes: self.bytes, is_mapped: false };
        // SAFETY: addresses just reserved, and a live reference of as many bytes.
        unsafe { self.cuda.mem_map(address, bytes, 0, self.handle, 0)? };
        mapped.is_mapped = true;
        let access = CUmemAccessDesc {
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: self.device },
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range just mapped, and one description.
        unsafe { self.cuda.mem_set_access(address, bytes, &access, 1)? };
        Ok(mapped)
    }
}

impl Drop for Physical<'_> {
    fn drop(&mut self) {
        // SAFETY: our reference, released once; mappings and descriptors keep the memory.
        let _ = unsafe { self.cuda.mem_release(self.handle) };
    }
}

/// Physical memory mapped at an address of this process, until it is dropped. The drop first waits
/// for the work of the current context.
pub struct MappedMemory<'a> {
    cuda: &'a Cuda,
    address: u64,
    bytes: u64,
    is_mapped: bool,
}

impl MappedMemory<'_> {
    /// All of it.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        Span::new(self.cuda, self.address, self.bytes)
    }
}

impl Drop for MappedMemory<'_> {
    fn drop(&mut self) {
        let bytes = self.bytes as usize;
        // SAFETY: reserved and mapped here, and released once. Failure means that the context is
        // gone, and the mapping with it.
        unsafe {
            if self.is_mapped {
                let _ = self.cuda.ctx_synchronize();
                let _ = self.cuda.mem_unmap(self.address, bytes);
            }
            let _ = self.cuda.mem_address_free(self.address, bytes);
        }
    }
}

/// The properties of device memory that can be exported as a descriptor.
fn properties(device: c_int) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32_handle_meta_data: core::ptr::null_mut(),
        alloc_flags: CUmemAllocationPropFlags::default(),
    }
}

/// Whether a descriptor is open on `/dev/null`.
fn is_null_device(descriptor: c_int) -> bool {
    // SAFETY: the structure is numbers only, for which zero is a value.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a valid pointer; an invalid descriptor is an error of the call.
    let known = unsafe { libc::fstat(descriptor, &mut status) } == 0;
    // Linux: the null device is character device 1:3 (Documentation/admin-guide/devices.txt).
    known && status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == libc::makedev(1, 3)
}
