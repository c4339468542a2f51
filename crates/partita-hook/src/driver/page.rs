//! A page of a file in shared memory that the GPU reads and writes too.

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;

use crate::driver::calls::calls;
use crate::driver::capture;

calls! {
    /// Entry points that give a GPU memory of the host.
    struct PageCalls;
    register = cuMemHostRegister_v2;
    device_pointer = cuMemHostGetDevicePointer_v2;
}

/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const REGISTER_FLAGS: c_uint = 1 | 2;

impl PageCalls {
    /// Where the GPU of the current context has the `bytes` at `address`, a mapping that stays for
    /// as long as the process.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn map(&self, address: usize, bytes: usize) -> Result<u64, CuResult> {
        capture::relaxed(|| self.map_now(address, bytes))
    }

    fn map_now(&self, address: usize, bytes: usize) -> Result<u64, CuResult> {
        let host = core::ptr::with_exposed_provenance_mut::<c_void>(address);
        // SAFETY: the mapping is this process's and stays, as the caller says.
        let registered = unsafe { (self.register)(host, bytes, REGISTER_FLAGS) };
        if registered.is_err() && registered != CuResult::HOST_MEMORY_ALREADY_REGISTERED {
            return Err(registered);
        }
        self.find(address)
    }

    /// Where the GPU of the current context has what was mapped there.
    ///
    /// # Errors
    /// Those of the driver, if it was not.
    pub fn find(&self, address: usize) -> Result<u64, CuResult> {
        let (mut base, host) = (0, core::ptr::with_exposed_provenance_mut::<c_void>(address));
        // SAFETY: a valid pointer; the driver looks up the address.
        unsafe { (self.device_pointer)(&mut base, host, 0) }.ok()?;
        Ok(base)
    }
}
