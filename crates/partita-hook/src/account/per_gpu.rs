//! State of this process on each GPU of its tenant.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};

use partita_ledger::GPUS_MAX;

use crate::account::gpu::Gpu;

/// A value for each GPU that has one. A value is set when the process attaches and stays for ever,
/// because launches on any thread may be reading it.
pub struct PerGpu<T: 'static>([AtomicPtr<T>; GPUS_MAX]);

impl<T: Send + Sync> PerGpu<T> {
    /// No values.
    pub const fn new() -> Self {
        Self([const { AtomicPtr::new(core::ptr::null_mut()) }; GPUS_MAX])
    }

    /// Sets the value of the GPU with this [index](Gpu::index).
    pub fn set(&self, gpu: u8, value: T) {
        if let Some(place) = self.0.get(usize::from(gpu)) {
            place.store(Box::leak(Box::new(value)), Ordering::Release);
        }
    }

    /// The value of a GPU.
    #[inline]
    pub fn of(&self, gpu: &Gpu) -> Option<&'static T> {
        // SAFETY: null, or leaked by set().
        unsafe { self.0.get(usize::from(gpu.index))?.load(Ordering::Acquire).as_ref() }
    }

    /// All values.
    pub fn all(&self) -> impl Iterator<Item = &'static T> {
        // SAFETY: null, or leaked by set().
        self.0.iter().filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
    }

    /// Takes all values out, in a child of `fork`, where no other reference to them exists.
    pub fn take(&self) -> impl Iterator<Item = &'static T> {
        let taken = self.0.iter().map(|place| place.swap(core::ptr::null_mut(), Ordering::AcqRel));
        // SAFETY: null, or leaked by set().
        taken.filter_map(|place| unsafe { place.as_ref() })
    }
}
