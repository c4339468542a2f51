//! Contexts of MPS that may use some SMs only: how the paper's components change theirs (Luo and
//! Wei 2023, 3.2).

use core::cell::Cell;
use core::ffi::c_void;

use partita_abi::kernels;
use partita_abi::types::{CU_EXEC_AFFINITY_TYPE_SM_COUNT, CUexecAffinityParam};

use crate::current::Current;
use crate::error::Error;
use crate::gpu::{Gpu, Place};
use crate::ipc::SharedEvent;
use crate::stream::{Stream, StreamRef};

/// A context with a number of SMs, chosen by the driver, and one stream in it. Destroyed when
/// dropped.
///
/// It is another context than the GPU's primary one, so kernels must be loaded in it, or be
/// `CUkernel`s, which belong to none.
pub struct AffinityContext<'g, 'a> {
    gpu: &'g Gpu<'a>,
    /// Dropped, and so destroyed, before the context.
    stream: Option<Stream<'a>>,
    /// The same: of this context, as an event must be that its stream records.
    joint: Option<SharedEvent<'a>>,
    context: *mut c_void,
    /// The known kernels in it, once they were wanted.
    module: Cell<*mut c_void>,
    sms: u32,
}

impl<'g, 'a> AffinityContext<'g, 'a> {
    /// Makes one of at least `sms` SMs; the driver rounds up (to 8 and to even numbers, on an
    /// H200). What is current stays so.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY` for a process that is no client of MPS.
    pub fn create(gpu: &'g Gpu<'a>, sms: u32) -> Result<Self, Error> {
        let cuda = gpu.cuda();
        let mut wish = CUexecAffinityParam { kind: CU_EXEC_AFFINITY_TYPE_SM_COUNT, sm_count: sms };
        let mut context = core::ptr::null_mut();
        // SAFETY: valid pointers, one wish, and the device that the driver gave.
        unsafe { cuda.ctx_create_with_affinity(&mut context, &mut wish, 1, 0, gpu.device())? };
        let module = Cell::new(core::ptr::null_mut());
        let mut made = Self { gpu, stream: None, joint: None, context, module, sms: 0 };
        let (stream, joint) = (Stream::new(cuda), SharedEvent::of_this_process(cuda));
        let mut granted = CUexecAffinityParam::default();
        // SAFETY: a valid pointer; the new context is current.
        let asked = unsafe { cuda.ctx_get_exec_affinity(&mut granted, CU_EXEC_AFFINITY_TYPE_SM_COUNT) };
        let mut former = core::ptr::null_mut();
        // SAFETY: a valid pointer; what is taken from the stack is what was put there above.
        unsafe { cuda.ctx_pop_current(&mut former)? };
        asked?;
        made.stream = Some(stream?);
        made.joint = Some(joint?);
        made.sms = granted.sm_count;
        Ok(made)
    }

    /// Its stream.
    pub fn stream(&self) -> StreamRef<'_> {
        self.stream.as_ref().map(Stream::as_ref).expect("set when the context is made")
    }

    /// The place of launches of Partita's own kernels on its stream. They are loaded in the context
    /// at the first call.
    ///
    /// # Errors
    /// The driver's.
    pub fn place(&self) -> Result<Place<'_>, Error> {
        if self.module.get().is_null() {
            let (cuda, mut module) = (self.gpu.cuda(), core::ptr::null_mut());
            // SAFETY: the context lives as long as self; a valid pointer and a module that ends
            // with a zero.
            unsafe {
                let _current = Current::switch(cuda, self.context)?;
                cuda.module_load_data(&mut module, kernels::PTX_MODULE.as_ptr().cast())?;
            }
            self.module.set(module);
        }
        Ok(Place { stream: self.stream(), module: self.module.get() })
    }

    /// Has another stream, of whatever context, wait for all that this one's was given so far. Its
    /// events record nothing on this one: the driver wants event and stream of one context.
    ///
    /// # Errors
    /// The driver's.
    pub fn join(&self, other: StreamRef<'_>) -> Result<(), Error> {
        let joint = self.joint.as_ref().expect("set when the context is made");
        joint.record(self.stream())?;
        joint.hold(other)
    }

    /// How many SMs it has.
    pub fn sms(&self) -> u32 {
        self.sms
    }
}

impl Drop for AffinityContext<'_, '_> {
    fn drop(&mut self) {
        (self.stream, self.joint) = (None, None);
        // SAFETY: made by us and destroyed once, after its stream.
        let _ = unsafe { self.gpu.cuda().ctx_destroy(self.context) };
    }
}
