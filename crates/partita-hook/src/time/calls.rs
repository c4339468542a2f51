//! The driver's calls that measure launches and have them wait.

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;

use crate::driver::calls::calls;

calls! {
    /// Entry points of shares of time, complete from CUDA 11.7 on.
    struct TimeCalls;
    wait = c"cuStreamWaitValue32_v2": fn(*mut c_void, u64, c_uint, c_uint);
    create_event = c"cuEventCreate": fn(*mut *mut c_void, c_uint);
    record = c"cuEventRecord": fn(*mut c_void, *mut c_void);
    query_event = c"cuEventQuery": fn(*mut c_void);
    elapsed = c"cuEventElapsedTime": fn(*mut f32, *mut c_void, *mut c_void);
    query_stream = c"cuStreamQuery": fn(*mut c_void);
    new_stream = c"cuStreamCreate": fn(*mut *mut c_void, c_uint);
    stream_context = c"cuStreamGetCtx": fn(*mut c_void, *mut *mut c_void);
    push_context = c"cuCtxPushCurrent_v2": fn(*mut c_void);
    pop_context = c"cuCtxPopCurrent_v2": fn(*mut *mut c_void);
    set_context = c"cuCtxSetCurrent": fn(*mut c_void);
    exchange_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_uint);
}

impl TimeCalls {
    /// Makes an event that has a time.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_event(&self) -> Result<*mut c_void, CuResult> {
        let mut event = core::ptr::null_mut();
        // SAFETY: a valid pointer. No flags: the event has a time.
        unsafe { (self.create_event)(&mut event, 0) }.ok()?;
        Ok(event)
    }
}
