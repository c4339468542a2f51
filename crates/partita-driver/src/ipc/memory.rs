//! Memory by a handle of 64 bytes.

use partita_abi::types::{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUipcMemHandle};

use super::{HANDLE_BYTES, Span};
use crate::cuda::Cuda;
use crate::error::Error;
use crate::gpu::{Buffer, Gpu};

/// The handle by which another process opens an allocation. It does not keep the allocation alive:
/// the owner must not free it while another process has it open (cuda.h calls that undefined).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryHandle {
    bytes: [u8; HANDLE_BYTES],
}

impl MemoryHandle {
    /// The handle of a whole allocation of this process.
    ///
    /// # Errors
    /// Those of the driver: only memory from `cuMemAlloc` has handles, and only if the kernel lets
    /// processes access each other.
    pub fn of(gpu: &Gpu<'_>, buffer: &Buffer<'_>) -> Result<Self, Error> {
        let mut handle = CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: a valid pointer, and memory that is allocated while the buffer is borrowed.
        unsafe { gpu.cuda().ipc_get_mem_handle(&mut handle, buffer.address())? };
        Ok(Self { bytes: handle.reserved })
    }

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

/// Another process's allocation, open in this one until it is dropped. The drop first waits for the
/// work of the current context.
pub struct OpenedMemory<'a> {
    cuda: &'a Cuda,
    address: u64,
    bytes: u64,
}

impl<'a> OpenedMemory<'a> {
    /// Opens an allocation of `bytes`, a size that its owner must provide, because the driver does
    /// not.
    ///
    /// A second opening of the same allocation gives the same address, and it stays open until both
    /// are dropped.
    ///
    /// # Errors
    /// Those of the driver: `CUDA_ERROR_INVALID_CONTEXT` in the process that exported it,
    /// `CUDA_ERROR_INVALID_VALUE` for an invalid handle or freed memory, `CUDA_ERROR_MAP_FAILED`
    /// beyond a tenant's quota.
    pub fn open(gpu: &Gpu<'a>, handle: &MemoryHandle, bytes: u64) -> Result<Self, Error> {
        let (cuda, mut address) = (gpu.cuda(), 0);
        let handle = CUipcMemHandle { reserved: handle.bytes };
        // SAFETY: a valid pointer; the driver checks the handle. cuda.h requires the flag.
        unsafe { cuda.ipc_open_mem_handle(&mut address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)? };
        Ok(Self { cuda, address, bytes })
    }

    /// The whole allocation.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        Span::new(self.cuda, self.address, self.bytes)
    }
}

impl Drop for OpenedMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: opened once and closed once; failure means that the context is gone, and the
        // opened memory with it. No document says that the driver waits for launched work.
        unsafe {
            let _ = self.cuda.ctx_synchronize();
            let _ = self.cuda.ipc_close_mem_handle(self.address);
        }
    }
}
