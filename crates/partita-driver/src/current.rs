//! The current context.

use core::ffi::c_void;

use crate::cuda::Cuda;
use crate::error::Error;

/// A context that is current for a while.
pub(crate) struct Current<'a> {
    cuda: &'a Cuda,
    former: *mut c_void,
}

impl<'a> Current<'a> {
    /// Makes it current until the result is dropped.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// `context` is alive.
    pub(crate) unsafe fn switch(cuda: &'a Cuda, context: *mut c_void) -> Result<Self, Error> {
        let mut former = core::ptr::null_mut();
        // SAFETY: a valid pointer; the caller guarantees the context.
        unsafe {
            cuda.ctx_get_current(&mut former)?;
            cuda.ctx_set_current(context)?;
        }
        Ok(Self { cuda, former })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: it was current before.
        let _ = unsafe { self.cuda.ctx_set_current(self.former) };
    }
}
