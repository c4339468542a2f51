//! The driver's calls that identify GPUs, contexts and streams, for a process that sees several
//! GPUs.

use core::ffi::{c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::types::CUpointer_attribute;

use crate::driver::calls::calls;

calls! {
    /// Entry points that identify contexts and streams, complete from CUDA 11.3 on.
    struct PlaceCalls;
    current_device = cuCtxGetDevice;
    push_context = cuCtxPushCurrent_v2;
    pop_context = cuCtxPopCurrent_v2;
    stream_context = cuStreamGetCtx;
    capture_info = cuStreamGetCaptureInfo_v2;
    pointer_attribute = cuPointerGetAttribute;
}

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURE_ACTIVE: c_uint = 1;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const POINTER_DEVICE_ORDINAL: CUpointer_attribute = 9;

impl PlaceCalls {
    /// The device of the current context.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn current_device(&self) -> Result<c_int, CuResult> {
        let mut device = -1;
        // SAFETY: a valid pointer.
        unsafe { (self.current_device)(&mut device) }.ok()?;
        Ok(device)
    }

    /// The context of a stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn context_of(&self, stream: *mut c_void) -> Result<*mut c_void, CuResult> {
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer, and the stream that the program gives the driver next.
        unsafe { (self.stream_context)(stream, &mut context) }.ok()?;
        Ok(context)
    }

    /// Asks the driver something in a context.
    ///
    /// # Errors
    /// Those of the driver, if it has no such context.
    pub fn in_context<R>(&self, context: *mut c_void, ask: impl FnOnce() -> R) -> Result<R, CuResult> {
        // SAFETY: a context that the driver gave.
        unsafe { (self.push_context)(context) }.ok()?;
        let answer = ask();
        // SAFETY: a valid pointer; what was pushed is on top.
        let _ = unsafe { (self.pop_context)(&mut core::ptr::null_mut()) };
        Ok(answer)
    }

    /// The graph that a stream is captured into.
    pub fn captured_into(&self, stream: *mut c_void) -> Option<*mut c_void> {
        let (mut status, mut id, mut graph) = (0, 0, core::ptr::null_mut());
        let (mut nodes, mut count) = (core::ptr::null(), 0);
        // SAFETY: valid pointers, and a stream in which the driver has just launched.
        unsafe { (self.capture_info)(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count) }
            .ok()
            .ok()?;
        (status == CAPTURE_ACTIVE && !graph.is_null()).then_some(graph)
    }

    /// The device of some memory.
    pub fn device_of(&self, pointer: u64) -> Option<c_int> {
        let mut device: c_int = -1;
        // SAFETY: room for the attribute, an int.
        unsafe { (self.pointer_attribute)((&raw mut device).cast(), POINTER_DEVICE_ORDINAL, pointer) }
            .ok()
            .ok()?;
        Some(device)
    }
}
