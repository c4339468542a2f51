//! The mask of every launch of this process, as its descriptor shows it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partita_abi::qmd::{self, QmdLayout};

use crate::callback::{self, SubscribeError};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::stream_trace;
use crate::subscribers;

static LAYOUT: AtomicPtr<QmdLayout> = AtomicPtr::new(core::ptr::null_mut());
static SEEN: AtomicU64 = AtomicU64::new(0);
static MASKED: AtomicBool = AtomicBool::new(false);
static DISABLE: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// Records the mask of every launch of this process.
pub(super) struct Watch;

impl Watch {
    pub(super) fn install(gpu: &Gpu<'_>, layout: &'static QmdLayout) -> Result<(), Error> {
        LAYOUT.store(core::ptr::from_ref(layout).cast_mut(), Ordering::Release);
        // SAFETY: the subscriber uses statics only, which are set.
        match unsafe { subscribers::add(gpu.cuda(), on_launch, core::ptr::null_mut()) } {
            Ok(_) | Err(Error::Subscribe(SubscribeError::Again)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Launches seen so far.
    pub(super) fn seen() -> u64 {
        SEEN.load(Ordering::Acquire)
    }

    /// The disable words of the last launch, if it had a mask.
    pub(super) fn last() -> Option<[u32; 8]> {
        MASKED
            .load(Ordering::Acquire)
            .then(|| core::array::from_fn(|word| DISABLE[word].load(Ordering::Acquire)))
    }
}

unsafe extern "C" fn on_launch(_: *mut c_void, _domain: c_int, _id: c_int, parameters: *const c_void) {
    // SAFETY: install() stored a static layout before it subscribed.
    let layout = unsafe { &*LAYOUT.load(Ordering::Acquire) };
    // SAFETY: the driver's parameters, during the call.
    let Some(image) = (unsafe { callback::descriptor_of(parameters, layout) }) else { return };
    let mask = qmd::read_disable_mask(image, layout);
    stream_trace::report_if_copy(mask);
    for (slot, word) in DISABLE.iter().zip(mask.unwrap_or([0; 8])) {
        slot.store(word, Ordering::Release);
    }
    MASKED.store(mask.is_some(), Ordering::Release);
    SEEN.fetch_add(1, Ordering::AcqRel);
}
