//! The mask of this process's own launches, for probing and proving.
//!
//! A tenant's launches are masked by the hook from its ledger; a probing process
//! has neither and sets its mask here.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partita_abi::qmd::{self, QmdLayout};

use crate::callback::{self, Subscription};
use crate::cuda::Cuda;
use crate::error::Error;
use crate::subscribers;

static DISABLE: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];
static LAYOUT: AtomicPtr<QmdLayout> = AtomicPtr::new(core::ptr::null_mut());
static ACTIVE: AtomicBool = AtomicBool::new(false);
static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Version byte of the last descriptor, plus 256 once one was seen.
static VERSION: AtomicU32 = AtomicU32::new(0);

/// The right to mask this process's launches. One a process.
#[derive(Debug)]
pub struct LaunchMask(Subscription);

impl LaunchMask {
    /// Subscribes to this process's launches. Nothing is masked yet.
    ///
    /// # Errors
    /// [`Error::Subscribe`], for a second call in the process too.
    pub fn install(cuda: &Cuda) -> Result<Self, Error> {
        // SAFETY: the subscriber uses statics only.
        let subscription = unsafe { subscribers::add(cuda, on_launch, core::ptr::null_mut())? };
        Ok(Self(subscription))
    }

    /// Whether the driver calls back at all for later launches; so measurements compare with and without.
    ///
    /// # Errors
    /// [`Error::Subscribe`].
    pub fn call(&mut self, on: bool) -> Result<(), Error> {
        Ok(self.0.call(on)?)
    }

    /// The version byte of the descriptor last launched, `None` before any launch.
    pub fn version_byte(&self) -> Option<u8> {
        let seen = VERSION.load(Ordering::Acquire);
        (seen >= 256).then_some((seen & 0xff) as u8)
    }

    /// Launches seen so far.
    pub fn launches(&self) -> u64 {
        LAUNCHES.load(Ordering::Acquire)
    }

    /// Masks later launches: physical numbering, a set bit disables. A mask that enables no live TPC hangs the launch.
    pub fn set(&mut self, layout: &'static QmdLayout, disable: &[u32; 8]) {
        for (word, value) in DISABLE.iter().zip(disable) {
            word.store(*value, Ordering::Relaxed);
        }
        LAYOUT.store(core::ptr::from_ref(layout).cast_mut(), Ordering::Release);
        ACTIVE.store(true, Ordering::Release);
    }

    /// Leaves later launches as the driver made them.
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
    LAUNCHES.fetch_add(1, Ordering::AcqRel);
    // SAFETY: every version of the descriptor is at least 256 bytes.
    let head = unsafe { core::slice::from_raw_parts(descriptor, 64) };
    let version = qmd::version_byte(head).unwrap_or(0);
    VERSION.store(256 + u32::from(version), Ordering::Release);
    let layout = LAYOUT.load(Ordering::Acquire);
    if !ACTIVE.load(Ordering::Acquire) || layout.is_null() {
        return;
    }
    // SAFETY: set() stored a static layout.
    let layout = unsafe { &*layout };
    if version != layout.version.byte() {
        return;
    }
    let mut disable = [0; 8];
    for (word, value) in disable.iter_mut().zip(&DISABLE) {
        *word = value.load(Ordering::Relaxed);
    }
    // SAFETY: a descriptor of this version has the layout's size, and its subscriber may write it.
    let image = unsafe { core::slice::from_raw_parts_mut(descriptor, layout.words()) };
    // The driver masks large clusters itself; both masks hold.
    if let Some(asked) = qmd::read_disable_mask(image, layout) {
        for (word, more) in disable.iter_mut().zip(asked) {
            *word |= more;
        }
    }
    let _ = qmd::write_disable_mask(image, layout, &disable);
}
