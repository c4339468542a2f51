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

/// A reference to physical memory of a GPU, which has no address until it is mapped. The memory is
/// there while anybody, in any process, has a reference, a map or a descriptor of it.
pub struct Physical<'a> {
    cuda: &'a Cuda,
    device: c_int,
    handle: u64,
    bytes: u64,
}

impl<'a> Physical<'a> {
    /// What the size of physical memory must be a multiple of, in bytes.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_NOT_SUPPORTED` where memory has no descriptors.
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

    /// Obtains memory that can be exported.
    ///
    /// # Errors
    /// [`Error::Refused`] for a size that is no multiple of the granularity; the driver's.
    pub fn create(gpu: &Gpu<'a>, bytes: u64) -> Result<Self, Error> {
        let granularity = Self::granularity_bytes(gpu)?;
        if bytes == 0 || !bytes.is_multiple_of(granularity) {
            return Err(Error::Refused(format!(
                "physical memory of {bytes} bytes: the driver gives it in multiples of {granularity} bytes"
            )));
        }
        let (cuda, device, mut handle) = (gpu.cuda(), gpu.device(), 0);
        // SAFETY: valid pointers; the flags must be zero.
        unsafe { cuda.mem_create(&mut handle, bytes as usize, &properties(device), 0)? };
        Ok(Self { cuda, device, handle, bytes })
    }

    /// Takes a reference to the memory of a descriptor, which stays the caller's; `bytes` are its
    /// size, as its owner says: the driver does not tell.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_INVALID_VALUE` for a descriptor of something else.
    pub fn import(gpu: &Gpu<'a>, descriptor: c_int, bytes: u64) -> Result<Self, Error> {
        let (cuda, device, mut handle) = (gpu.cuda(), gpu.device(), 0);
        // The number itself stands where a pointer is passed.
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

    /// Puts a descriptor of the memory in the place of one that the caller has open on `/dev/null`,
    /// so that it is the caller's to close.
    ///
    /// # Errors
    /// [`Error::Refused`] if `placeholder` is anything else, so that a wrong number closes nobody's
    /// file; the driver's.
    pub fn export_over(&self, placeholder: c_int) -> Result<(), Error> {
        if !is_null_device(placeholder) {
            return Err(Error::Refused(format!(
                "descriptor {placeholder} is not open on /dev/null: memory is exported in the place of one that is"
            )));
        }
        let mut exported: c_int = -1;
        let shared = core::ptr::from_mut(&mut exported).cast();
        // SAFETY: for this kind the driver writes a descriptor's number there.
        unsafe { self.cuda.mem_export(shared, self.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)? };
        // SAFETY: plain system calls on descriptors that are the caller's and ours.
        let result = unsafe { libc::dup3(exported, placeholder, libc::O_CLOEXEC) };
        // SAFETY: as above; nobody else has the number.
        unsafe { libc::close(exported) };
        if result < 0 {
            return Err(Error::Refused(format!(
                "a descriptor of memory cannot be duplicated: error {}",
                errno()
            )));
        }
        Ok(())
    }

    /// Gives it an address in this process, with access for its GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn map(&self) -> Result<MappedMemory<'a>, Error> {
        let bytes = self.bytes as usize;
        let mut address = 0;
        // SAFETY: a valid pointer; no alignment and no place asked for.
        unsafe { self.cuda.mem_address_reserve(&mut address, bytes, 0, 0, 0)? };
        // From here on, dropped on an error.
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
        // SAFETY: our reference, given back once; maps and descriptors keep the memory.
        let _ = unsafe { self.cuda.mem_release(self.handle) };
    }
}

/// Physical memory at an address of this process, until it is dropped; that waits for the work of
/// the current context first.
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
        // SAFETY: reserved and mapped by us, and given back once. Failure means that the context is
        // gone, and the map with it.
        unsafe {
            if self.is_mapped {
                let _ = self.cuda.ctx_synchronize();
                let _ = self.cuda.mem_unmap(self.address, bytes);
            }
            let _ = self.cuda.mem_address_free(self.address, bytes);
        }
    }
}

/// Memory of a device that can be exported as a descriptor.
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
    // SAFETY: a valid pointer; a descriptor that is none is an error of the call.
    let known = unsafe { libc::fstat(descriptor, &mut status) } == 0;
    // Linux: the null device is character device 1:3 (Documentation/admin-guide/devices.txt).
    known && status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == libc::makedev(1, 3)
}
