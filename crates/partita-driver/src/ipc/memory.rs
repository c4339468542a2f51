//! Memory by a handle of 64 bytes.

use partita_abi::types::{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUipcMemHandle};

use super::{HANDLE_BYTES, Span};
use crate::cuda::Cuda;
use crate::error::Error;
use crate::gpu::{Buffer, Gpu};

/// What another process opens an allocation by. It says nothing about how long the allocation
/// lives: whoever made it must not free it while anybody has it open (cuda.h calls that undefined).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryHandle {
    bytes: [u8; HANDLE_BYTES],
}

impl MemoryHandle {
    /// The handle of a whole allocation of this process.
    ///
    /// # Errors
    /// The driver's: it has handles of memory from `cuMemAlloc` alone, and none where the kernel
    /// keeps processes apart.
    pub fn of(gpu: &Gpu<'_>, buffer: &Buffer<'_>) -> Result<Self, Error> {
        let mut handle = CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: a valid pointer, and memory that is allocated while the buffer is borrowed.
        unsafe { gpu.cuda().ipc_get_mem_handle(&mut handle, buffer.address())? };
        Ok(Self { bytes: handle.reserved })
    }

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

/// Another process's allocation, open in this one until it is dropped; that waits for the work of
/// the current context first.
pub struct OpenedMemory<'a> {
    cuda: &'a Cuda,
    address: u64,
    bytes: u64,
}

impl<'a> OpenedMemory<'a> {
    /// Opens an allocation of `bytes`, as its owner says: the driver does not tell.
    ///
    /// Opening the same allocation twice gives the same address, and it stays open until both are
    /// dropped.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_INVALID_CONTEXT` in the process that exported it,
    /// `CUDA_ERROR_INVALID_VALUE` for a handle that is none or whose memory is gone,
    /// `CUDA_ERROR_MAP_FAILED` over a tenant's quota.
    pub fn open(gpu: &Gpu<'a>, handle: &MemoryHandle, bytes: u64) -> Result<Self, Error> {
        let (cuda, mut address) = (gpu.cuda(), 0);
        let handle = CUipcMemHandle { reserved: handle.bytes };
        // SAFETY: a valid pointer; the driver checks the handle. cuda.h demands the flag.
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
        // SAFETY: opened once and closed once; failure means that the context is gone, and with it
        // what was open. That the driver waits for what was launched on it is documented nowhere.
        unsafe {
            let _ = self.cuda.ctx_synchronize();
            let _ = self.cuda.ipc_close_mem_handle(self.address);
        }
    }
}
