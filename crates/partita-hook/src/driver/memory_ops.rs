//! Waits for words in memory and writes of words, in streams.

use core::ffi::{CStr, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_MEM_OP_WRITE_VALUE_32, CUdeviceptr, CUstreamBatchMemOpParams,
};

use crate::driver::calls::calls;
use crate::driver::real;

calls! {
    /// Entry points of single operations, complete from CUDA 11.7 on.
    struct SingleCalls;
    wait = cuStreamWaitValue32_v2;
    write = cuStreamWriteValue32_v2;
}

/// The driver's calls that put such operations into a stream.
pub struct MemoryOps {
    single: SingleCalls,
    /// Several in one call, where the driver has that. They cost the GPU about 1 µs each so, and 2
    /// µs one by one.
    batch: Option<prototypes::cuStreamBatchMemOp_v2>,
    /// Whether the driver has refused it.
    batch_fails: AtomicBool,
}

/// A wait until a word satisfies a condition, of `CU_STREAM_WAIT_VALUE_*`.
pub fn wait(address: u64, value: u32, condition: c_uint) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        operation: CU_STREAM_MEM_OP_WAIT_VALUE_32,
        address: address as CUdeviceptr,
        value: value.into(),
        flags: condition,
        ..CUstreamBatchMemOpParams::default()
    }
}

/// A write of a word.
pub fn write(address: u64, value: u32) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        operation: CU_STREAM_MEM_OP_WRITE_VALUE_32,
        address: address as CUdeviceptr,
        value: value.into(),
        ..CUstreamBatchMemOpParams::default()
    }
}

impl MemoryOps {
    /// Resolves them.
    ///
    /// # Errors
    /// The name of the first one that this driver does not export.
    pub fn resolve() -> Result<Self, &'static CStr> {
        let address = real::symbol(c"cuStreamBatchMemOp_v2");
        // SAFETY: the prototype of that name in cuda.h.
        let batch = (!address.is_null()).then(|| unsafe {
            core::mem::transmute::<*mut c_void, prototypes::cuStreamBatchMemOp_v2>(address)
        });
        Ok(Self { single: SingleCalls::resolve()?, batch, batch_fails: AtomicBool::new(false) })
    }

    /// Writes a word behind what is in a stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The word is mapped for the GPU until the stream has written it.
    pub unsafe fn write(&self, stream: *mut c_void, address: u64, value: u32) -> Result<(), CuResult> {
        // SAFETY: the program's stream; the word is the caller's.
        unsafe { (self.single.write)(stream, address, value, 0) }.ok()
    }

    /// Puts operations into a stream, in their order.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The words are mapped for the GPU until the stream has done them all.
    pub unsafe fn put(
        &self,
        stream: *mut c_void,
        operations: &mut [CUstreamBatchMemOpParams],
    ) -> Result<(), CuResult> {
        if let Some(batch) = self.batch
            && !self.batch_fails.load(Ordering::Relaxed)
        {
            // SAFETY: the program's stream, and as many operations as said.
            if unsafe { batch(stream, operations.len() as c_uint, operations.as_mut_ptr(), 0) }.is_ok() {
                return Ok(());
            }
        }
        for operation in operations {
            let (address, value) = (operation.address, operation.value as u32);
            // SAFETY: the program's stream; the word is the caller's.
            unsafe {
                match operation.operation {
                    CU_STREAM_MEM_OP_WAIT_VALUE_32 => {
                        (self.single.wait)(stream, address, value, operation.flags)
                    }
                    _ => (self.single.write)(stream, address, value, operation.flags),
                }
            }
            .ok()?;
        }
        // They can be had one by one alone.
        self.batch_fails.store(true, Ordering::Relaxed);
        Ok(())
    }
}
