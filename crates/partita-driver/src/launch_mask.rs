//! The mask of this process's own launches, for probing and proving.
//!
//! In a tenant, the hook masks launches according to its ledger. A probing process has neither and
//! sets its mask here.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partita_abi::qmd::{self, QMD_HEAD_WORDS, QmdError, QmdLayout};

use crate::callback::{self, Subscription};
use crate::cuda::Cuda;
use crate::error::Error;
use crate::subscribers;

static DISABLE: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];
static LAYOUT: AtomicPtr<QmdLayout> = AtomicPtr::new(core::ptr::null_mut());
static ACTIVE: AtomicBool = AtomicBool::new(false);
static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// The first words of the first descriptor, which include its version.
static HEAD: [AtomicU32; QMD_HEAD_WORDS] = [const { AtomicU32::new(0) }; QMD_HEAD_WORDS];

/// The right to mask this process's launches; unique in a process.
#[derive(Debug)]
pub struct LaunchMask(Subscription);

impl LaunchMask {
    /// Subscribes to this process's launches. Nothing is masked yet.
    ///
    /// # Errors
    /// [`Error::Subscribe`], also for a second call in the process.
    pub fn install(cuda: &Cuda) -> Result<Self, Error> {
        // SAFETY: the subscriber uses statics only.
        let subscription = unsafe { subscribers::add(cuda, on_launch, core::ptr::null_mut())? };
        Ok(Self(subscription))
    }

    /// Enables or disables the driver's callback for later launches, so that measurements can
    /// compare.
    ///
    /// # Errors
    /// [`Error::Subscribe`].
    pub fn call(&mut self, on: bool) -> Result<(), Error> {
        Ok(self.0.call(on)?)
    }

    /// The layout of the first launched descriptor, found from the GPU's compute capability (major
    /// × 10 + minor) and its version byte; `None` before any launch.
    ///
    /// # Errors
    /// [`QmdError`] for a descriptor that cannot be masked.
    pub fn layout(&self, compute_capability: u32) -> Option<Result<&'static QmdLayout, QmdError>> {
        (self.launches() > 0).then(|| {
            let head: [u32; QMD_HEAD_WORDS] = core::array::from_fn(|word| HEAD[word].load(Ordering::Relaxed));
            qmd::layout_of(compute_capability, &head)
        })
    }

    /// Launches so far, of a process that launches on one thread at a time.
    pub fn launches(&self) -> u64 {
        LAUNCHES.load(Ordering::Acquire)
    }

    /// Masks later launches: physical numbering, a set bit disables. A mask that enables no live
    /// TPC hangs the launch.
    pub fn set(&mut self, layout: &'static QmdLayout, disable: &[u32; 8]) {
        for (word, value) in DISABLE.iter().zip(disable) {
            word.store(*value, Ordering::Relaxed);
        }
        LAYOUT.store(core::ptr::from_ref(layout).cast_mut(), Ordering::Release);
        ACTIVE.store(true, Ordering::Release);
    }

    /// Removes the mask from later launches.
    pub fn clear(&mut self) {
        ACTIVE.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn on_launch(_: *mut c_void, _domain: c_int, _id: c_int, parameters: *const c_void) {
    // SAFETY: the driver's parameters, during the call.
    let descriptor = unsafe { callback::launch_descriptor(parameters) };
    if descriptor.is_null() {
        return;
    }
    // SAFETY: every version of the descriptor is longer than its head.
    let head = unsafe { core::slice::from_raw_parts(descriptor, QMD_HEAD_WORDS) };
    // Once suffices.
    let launches = LAUNCHES.load(Ordering::Relaxed);
    if launches == 0 {
        for (kept, word) in HEAD.iter().zip(head) {
            kept.store(*word, Ordering::Relaxed);
        }
    }
    // The count comes after the head, which layout() reads once a launch is counted. This is not an
    // atomic addition, which on x86 would wait for all earlier stores of the driver. Launches on
    // several threads at the same time can be counted once.
    LAUNCHES.store(launches.wrapping_add(1), Ordering::Release);
    let layout = LAYOUT.load(Ordering::Acquire);
    if !ACTIVE.load(Ordering::Acquire) || layout.is_null() {
        return;
    }
    // SAFETY: set() stored a static layout.
    let layout = unsafe { &*layout };
    if !layout.is_version_of(head) {
        return;
    }
    let mut disable = [0; 8];
    for (word, value) in disable.iter_mut().zip(&DISABLE) {
        *word = value.load(Ordering::Relaxed);
    }
    // SAFETY: a descriptor of this version has the layout's size, and its subscriber may write it.
    let image = unsafe { core::slice::from_raw_parts_mut(descriptor, layout.words()) };
    // The driver masks large clusters itself; both masks hold. Any other mask is a leftover: a
    // graph's descriptor keeps the mask of its previous launch (measured on an H200).
    let clustered = layout.shape(image).is_ok_and(|shape| shape.cluster.iter().product::<u32>() > 1);
    let _ = if clustered {
        qmd::merge_disable_mask(image, layout, &disable)
    } else {
        qmd::write_disable_mask(image, layout, &disable)
    };
}
