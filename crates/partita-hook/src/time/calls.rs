//! The driver's calls that measure launches and have them wait.

use core::ffi::c_void;

use partita_abi::CuResult;

use crate::driver::calls::calls;

calls! {
    /// Entry points of shares of time, complete from CUDA 11.7 on.
    struct TimeCalls;
    wait = cuStreamWaitValue32_v2;
    create_event = cuEventCreate;
    record = cuEventRecord;
    query_event = cuEventQuery;
    elapsed = cuEventElapsedTime;
    query_stream = cuStreamQuery;
    new_stream = cuStreamCreate;
    stream_context = cuStreamGetCtx;
    push_context = cuCtxPushCurrent_v2;
    pop_context = cuCtxPopCurrent_v2;
    set_context = cuCtxSetCurrent;
    exchange_mode = cuThreadExchangeStreamCaptureMode;
}

impl TimeCalls {
    /// Makes an event that has a time.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new_event(&self) -> Result<*mut c_void, CuResult> {
        let mut event = core::ptr::null_mut();
        // SAFETY: a valid pointer. No flags: the event has a time.
        unsafe { (self.create_event)(&mut event, 0) }.ok()?;
        Ok(event)
    }
}
