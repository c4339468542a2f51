//! Contexts of MPS clients that may use only some SMs: the way in which the paper's components
//! change their size (Luo and Wei 2023, 3.2).

use core::cell::Cell;
use core::ffi::c_void;

use partita_abi::kernels;
use partita_abi::types::{CU_EXEC_AFFINITY_TYPE_SM_COUNT, CUexecAffinityParam};

use crate::current::Current;
use crate::error::Error;
use crate::gpu::{Gpu, Place};
use crate::ipc::SharedEvent;
use crate::stream::{Stream, StreamRef};

/// A context with a number of SMs that the driver chooses, and one stream in it. Destroyed on drop.
///
/// It is not the GPU's primary context, so kernels must be loaded in it, or be `CUkernel`s, which
/// belong to no context.
pub struct AffinityContext<'g, 'a> {
    gpu: &'g Gpu<'a>,
    /// Destroyed before the context.
    stream: Option<Stream<'a>>,
    /// An event of this context, because a stream can only record events of its own context.
    joint: Option<SharedEvent<'a>>,
    context: *mut c_void,
    /// The known kernels in it, after the first use.
    module: Cell<*mut c_void>,
    sms: u32,
}

impl<'g, 'a> AffinityContext<'g, 'a> {
    /// Creates a context of at least `sms` SMs; the driver rounds up (to 8 and to even numbers, on
    /// an H200). The current context does not change.
    ///
    /// # Errors
    /// Those of the driver: `CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY` for a process that is not a
    /// client of MPS.
    pub fn create(gpu: &'g Gpu<'a>, sms: u32) -> Result<Self, Error> {
        let cuda = gpu.cuda();
        let mut parameter = CUexecAffinityParam { kind: CU_EXEC_AFFINITY_TYPE_SM_COUNT, sm_count: sms };
        let mut context = core::ptr::null_mut();
        // SAFETY: valid pointers, one parameter, and the device that the driver gave.
        unsafe { cuda.ctx_create_with_affinity(&mut context, &mut parameter, 1, 0, gpu.device())? };
        let module = Cell::new(core::ptr::null_mut());
        let mut made = Self { gpu, stream: None, joint: None, context, module, sms: 0 };
        let (stream, joint) = (Stream::new(cuda), SharedEvent::of_this_process(cuda));
        let mut granted = CUexecAffinityParam::default();
        // SAFETY: a valid pointer; the new context is current.
        let queried = unsafe { cuda.ctx_get_exec_affinity(&mut granted, CU_EXEC_AFFINITY_TYPE_SM_COUNT) };
        let mut former = core::ptr::null_mut();
        // SAFETY: a valid pointer; the pop removes what was pushed above.
        unsafe { cuda.ctx_pop_current(&mut former)? };
        queried?;
        made.stream = Some(stream?);
        made.joint = Some(joint?);
        made.sms = granted.sm_count;
        Ok(made)
    }

    /// Its stream.
    pub fn stream(&self) -> StreamRef<'_> {
        self.stream.as_ref().map(Stream::as_ref).expect("set when the context is created")
    }

    /// The place for launches of Partita's own kernels on its stream. The first call loads them in
    /// the context.
    ///
    /// # Errors
    /// Those of the driver.
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

    /// Makes another stream, of any context, wait for all work that this context's stream has so
    /// far. The other stream's own events cannot record this one: the driver requires event and
    /// stream of one context.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn join(&self, other: StreamRef<'_>) -> Result<(), Error> {
        let joint = self.joint.as_ref().expect("set when the context is created");
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
