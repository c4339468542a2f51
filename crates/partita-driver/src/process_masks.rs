//! Masks that a program sets for its own launches: the next one of a thread, those of a scope, and
//! all of the process.
//!
//! The launch callback writes all of them into launch descriptors, on the launching thread: without
//! a lock, an allocation or a system call. The most specific mask counts: next launch, then scope,
//! then the stream's own mask, then the process's. In a tenant's process the tenant's set also
//! applies, so a mask can narrow a partition but never leave it.

use alloc::boxed::Box;
use alloc::format;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use partita_abi::qmd::{self, QmdLayout};
use partita_core::{Topology, TpcSet};

use crate::callback;
use crate::cuda::Cuda;
use crate::error::Error;
use crate::subscribers;

/// A mask in the form of descriptors: physical numbering, a set bit disables.
type Words = [u32; 8];

/// The masks of this process. They exist once, because a process that uses them has one GPU.
#[derive(Clone, Copy)]
pub struct ProcessMasks {
    state: &'static State,
}

impl core::fmt::Debug for ProcessMasks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ProcessMasks").field("process", &self.process()).finish_non_exhaustive()
    }
}

/// The masks of one thread, for the thread's life.
#[derive(Default)]
struct ThreadMasks {
    next: Cell<Option<Words>>,
    scope: Cell<Option<Words>>,
}

/// How the layout of launch descriptors is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayoutSource {
    /// It was proved on this board under this driver.
    Proved(&'static QmdLayout),
    /// By the compute capability, once a descriptor shows its version.
    ByClass(u32),
}

struct State {
    topology: Topology,
    source: LayoutSource,
    /// Null until it is known.
    layout: AtomicPtr<QmdLayout>,
    /// The physical numbers that have a TPC on this board.
    live: Words,
    /// Those of TPCs that are alone in their GPC, which the driver leaves out of launches of large
    /// clusters.
    single: Words,
    process: Published,
    /// Every thread's [`ThreadMasks`].
    key: libc::pthread_key_t,
    unmasked: AtomicU64,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());
static INSTALLING: AtomicBool = AtomicBool::new(false);

impl ProcessMasks {
    /// Installs the callback that masks launches of this process. A second call returns the same
    /// masks.
    ///
    /// # Errors
    /// [`Error::Subscribe`]; [`Error::Refused`] if the process sees several GPUs, whose launches
    /// the callback cannot distinguish, or if it has installed the masks of another board.
    pub fn install(cuda: &Cuda, topology: &Topology, layout: &'static QmdLayout) -> Result<Self, Error> {
        Self::install_as(cuda, topology, LayoutSource::Proved(layout))
    }

    /// As [`ProcessMasks::install`], if the version of this driver's launch descriptors is not
    /// proved: the first descriptor shows it, if its class (compute capability, major × 10 + minor)
    /// has that version. `topology` must still be certain.
    ///
    /// # Errors
    /// As [`ProcessMasks::install`]; [`Error::Qmd`] for a capability without a class.
    pub fn install_by_class(
        cuda: &Cuda,
        topology: &Topology,
        compute_capability: u32,
    ) -> Result<Self, Error> {
        if qmd::class_for(compute_capability).is_none() {
            return Err(qmd::QmdError::UnknownCapability { compute_capability }.into());
        }
        Self::install_as(cuda, topology, LayoutSource::ByClass(compute_capability))
    }

    fn install_as(cuda: &Cuda, topology: &Topology, source: LayoutSource) -> Result<Self, Error> {
        let mut devices = 0;
        // SAFETY: a valid pointer.
        unsafe {
            cuda.init(0)?;
            cuda.device_get_count(&mut devices)?;
        }
        if devices != 1 {
            return Err(Error::Refused(format!(
                "this process sees {devices} GPUs, and the callback that writes masks cannot \
                 distinguish their launches: name one in CUDA_VISIBLE_DEVICES, or restrict \
                 streams"
            )));
        }
        while INSTALLING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            core::hint::spin_loop();
        }
        let installed = Self::install_alone(cuda, topology, source);
        INSTALLING.store(false, Ordering::Release);
        installed
    }

    fn install_alone(cuda: &Cuda, topology: &Topology, source: LayoutSource) -> Result<Self, Error> {
        let present = STATE.load(Ordering::Acquire);
        if !present.is_null() {
            // SAFETY: stored below and never freed.
            let state = unsafe { &*present };
            if state.topology != *topology || state.source != source {
                return Err(Error::Refused("this process already masks the launches of another GPU".into()));
            }
            return Ok(Self { state });
        }
        let mut key = 0;
        // SAFETY: a valid pointer; the destructor takes what thread_masks() stores.
        if unsafe { libc::pthread_key_create(&mut key, Some(forget_thread)) } != 0 {
            return Err(Error::Refused(
                "no thread-specific data is available: the process has too many keys".into(),
            ));
        }
        let alone = topology.gpcs().iter().filter(|gpc| gpc.tpcs.len() == 1);
        let alone = alone.fold(TpcSet::EMPTY, |all, gpc| all | gpc.tpcs);
        // Never freed: launches on any thread read it.
        let state: &'static State = Box::leak(Box::new(State {
            topology: topology.clone(),
            source,
            layout: AtomicPtr::new(match source {
                LayoutSource::Proved(layout) => core::ptr::from_ref(layout).cast_mut(),
                LayoutSource::ByClass(_) => core::ptr::null_mut(),
            }),
            live: topology.physical_set(&topology.all()).to_words32(),
            single: topology.physical_set(&alone).to_words32(),
            process: Published::new(),
            key,
            unmasked: AtomicU64::new(0),
        }));
        // SAFETY: the state lives for ever, and on_launch only reads it.
        match unsafe { subscribers::add(cuda, on_launch, core::ptr::from_ref(state).cast_mut().cast()) } {
            Ok(_) => {
                STATE.store(core::ptr::from_ref(state).cast_mut(), Ordering::Release);
                Ok(Self { state })
            }
            Err(error) => Err(error),
        }
    }

    /// Restricts the next kernel launch of this thread to `set`, on any stream. `None` removes the
    /// mask. Returns the previous one.
    ///
    /// # Errors
    /// [`Error::Refused`] for a set that no launch can run on, and after a launch that could not be
    /// masked.
    pub fn set_next(&self, set: Option<&TpcSet>) -> Result<Option<TpcSet>, Error> {
        let words = set.map(|set| self.words(set)).transpose()?;
        Ok(self.thread_masks()?.next.replace(words).map(|words| self.set_of(&words)))
    }

    /// Converts a set once, for a [`Scope`] that is entered often.
    ///
    /// # Errors
    /// As [`ProcessMasks::set_next`].
    pub fn prepare(&self, set: &TpcSet) -> Result<PreparedMask, Error> {
        self.words(set).map(PreparedMask)
    }

    /// Restricts every launch of this process without a more specific mask to `set`. Returns the
    /// previous one.
    ///
    /// # Errors
    /// As [`ProcessMasks::set_next`].
    pub fn set_process(&self, set: Option<&TpcSet>) -> Result<Option<TpcSet>, Error> {
        let words = set.map(|set| self.words(set)).transpose()?;
        Ok(self.state.process.replace(words).map(|words| self.set_of(&words)))
    }

    /// The set for this thread's next launch, if there is one and the launch has not come yet.
    pub fn next(&self) -> Option<TpcSet> {
        // SAFETY: what thread_masks() stored on this very thread.
        let own = unsafe { masks_of_thread(self.state.key) }?;
        own.next.get().map(|words| self.set_of(&words))
    }

    /// The process's set.
    pub fn process(&self) -> Option<TpcSet> {
        self.state.process.load().map(|words| self.set_of(&words))
    }

    /// Launches that were not masked because their descriptors had another version than the proved
    /// one.
    pub fn unmasked(&self) -> u64 {
        self.state.unmasked.load(Ordering::Acquire)
    }

    /// The board.
    pub fn topology(&self) -> &'static Topology {
        &self.state.topology
    }

    fn words(&self, set: &TpcSet) -> Result<Words, Error> {
        if self.unmasked() > 0 {
            return Err(Error::Refused(
                "the driver makes launch descriptors of another version than the proved one: calibrate \
                 again with `partita doctor`"
                    .into(),
            ));
        }
        let all = self.state.topology.all();
        if set.is_empty() {
            return Err(Error::Refused(
                "an empty set: a launch with no TPC would never end; name at least one".into(),
            ));
        }
        if !set.is_subset(&all) {
            return Err(Error::Refused(format!(
                "the device does not have TPCs {}: it has TPCs {all}",
                *set - all
            )));
        }
        Ok(self.state.topology.disable_words(set))
    }

    fn set_of(&self, disable: &Words) -> TpcSet {
        let physical = !TpcSet::from_words32(*disable);
        let tpcs = (0..).zip(self.state.topology.tpcs());
        tpcs.filter(|(_, tpc)| u8::try_from(tpc.physical).is_ok_and(|bit| physical.contains(bit)))
            .map(|(logical, _)| logical)
            .collect()
    }

    /// This thread's masks, allocated at the first use.
    fn thread_masks(&self) -> Result<&ThreadMasks, Error> {
        let key = self.state.key;
        // SAFETY: what was stored on this very thread.
        if let Some(own) = unsafe { masks_of_thread(key) } {
            return Ok(own);
        }
        let own = Box::into_raw(Box::new(ThreadMasks::default()));
        // SAFETY: a live key; the thread's end frees the box.
        unsafe {
            if libc::pthread_setspecific(key, own.cast()) != 0 {
                drop(Box::from_raw(own));
                return Err(Error::Refused("no memory for this thread's masks".into()));
            }
            Ok(&*own)
        }
    }
}

/// # Safety
/// The result is used on this thread only, and not beyond its life.
unsafe fn masks_of_thread<'t>(key: libc::pthread_key_t) -> Option<&'t ThreadMasks> {
    // SAFETY: a live key.
    let own = unsafe { libc::pthread_getspecific(key) }.cast::<ThreadMasks>();
    // SAFETY: null, or what thread_masks() stored on this thread, never borrowed mutably.
    unsafe { own.as_ref() }
}

unsafe extern "C" fn forget_thread(own: *mut c_void) {
    // SAFETY: made by thread_masks() for the thread that ends.
    drop(unsafe { Box::from_raw(own.cast::<ThreadMasks>()) });
}

unsafe extern "C" fn on_launch(argument: *mut c_void, _domain: c_int, _id: c_int, parameters: *const c_void) {
    // SAFETY: install() passed a leaked State.
    let state = unsafe { &*argument.cast::<State>() };
    // SAFETY: the driver's parameters, during the call.
    let Some((layout, image)) = (unsafe { descriptor(state, parameters) }) else {
        state.unmasked.fetch_add(1, Ordering::AcqRel);
        return;
    };
    // SAFETY: used during the call only.
    let own = unsafe { masks_of_thread(state.key) };
    if let Some(words) = own.and_then(|own| own.next.take().or(own.scope.get())) {
        let _ = qmd::write_disable_mask(image, layout, &words);
        return;
    }
    let Some(words) = state.process.load() else { return };
    let words = match qmd::read_disable_mask(image, layout) {
        None => words,
        // The driver's own mask, for a large cluster: both hold.
        Some(present) if is_drivers_own(state, &present) && may_be_clusters(layout, image) => {
            both(state, &words, &present)
        }
        // The mask of the stream or of a green context, which is more specific.
        Some(_) => return,
    };
    let _ = qmd::write_disable_mask(image, layout, &words);
}

/// The descriptor of a launch and its layout, if the layout is known.
///
/// # Safety
/// `parameters` is what the driver passed to a subscriber, and the result is not used after the
/// subscriber has returned.
#[inline]
unsafe fn descriptor<'d>(
    state: &State,
    parameters: *const c_void,
) -> Option<(&'static QmdLayout, &'d mut [u32])> {
    let layout = state.layout.load(Ordering::Acquire);
    // SAFETY: null, or a static layout.
    let layout = match unsafe { layout.as_ref() } {
        Some(layout) => layout,
        // SAFETY: the caller guarantees it.
        None => unsafe { first_layout(state, parameters) }?,
    };
    // SAFETY: the caller guarantees it.
    Some((layout, unsafe { callback::descriptor_of(parameters, layout) }?))
}

/// # Safety
/// As for [`descriptor`].
#[cold]
unsafe fn first_layout(state: &State, parameters: *const c_void) -> Option<&'static QmdLayout> {
    let LayoutSource::ByClass(compute_capability) = state.source else { return None };
    // SAFETY: the caller guarantees it.
    let descriptor = unsafe { callback::launch_descriptor(parameters) };
    if descriptor.is_null() {
        return None;
    }
    // SAFETY: every version of the descriptor is longer than its head.
    let head = unsafe { core::slice::from_raw_parts(descriptor, qmd::QMD_HEAD_WORDS) };
    let layout = qmd::layout_of(compute_capability, head).ok()?;
    state.layout.store(core::ptr::from_ref(layout).cast_mut(), Ordering::Release);
    Some(layout)
}

/// Whether a launch has clusters of blocks, or an unknown shape.
#[cold]
fn may_be_clusters(layout: &QmdLayout, image: &[u32]) -> bool {
    layout.shape(image).map_or(true, |shape| shape.cluster_blocks() > 1)
}

/// Whether a mask leaves out only TPCs that are alone in their GPC, as the driver does for clusters
/// (measured on an H200). A mask that leaves out no TPC is a stream's own request for the whole
/// GPU.
#[cold]
fn is_drivers_own(state: &State, present: &Words) -> bool {
    let off: Words = core::array::from_fn(|word| present[word] & state.live[word]);
    off != [0; 8] && (0..8).all(|word| off[word] & !state.single[word] == 0)
}

/// The TPCs that both masks enable. If they have none in common, those of the program's mask,
/// because a launch with no TPC never ends.
#[cold]
fn both(state: &State, own: &Words, present: &Words) -> Words {
    let both: Words = core::array::from_fn(|word| own[word] | present[word]);
    if (0..8).any(|word| !both[word] & state.live[word] != 0) { both } else { *own }
}

/// A mask that every launch reads while others change it: one of two slots, while writers use the
/// other.
struct Published {
    version: AtomicUsize,
    places: [[AtomicU32; 9]; 2],
    writing: AtomicBool,
}

impl Published {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            places: [const { [const { AtomicU32::new(0) }; 9] }; 2],
            writing: AtomicBool::new(false),
        }
    }

    /// Returns a consistent mask, however often it changes. A reader repeats only while two changes
    /// fall into its few loads.
    #[inline]
    fn load(&self) -> Option<Words> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let place = &self.places[version % 2];
            let is_set = place[8].load(Ordering::Relaxed) != 0;
            let words = core::array::from_fn(|word| place[word].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return is_set.then_some(words);
            }
        }
    }

    fn replace(&self, words: Option<Words>) -> Option<Words> {
        while self.writing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            core::hint::spin_loop();
        }
        let former = self.load();
        let version = self.version.load(Ordering::Relaxed);
        let place = &self.places[(version + 1) % 2];
        // A reader that sees a word of the following write also sees that the slot is no longer the
        // current one.
        fence(Ordering::Release);
        for (slot, word) in place.iter().zip(words.unwrap_or([0; 8])) {
            slot.store(word, Ordering::Relaxed);
        }
        place[8].store(u32::from(words.is_some()), Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
        self.writing.store(false, Ordering::Release);
        former
    }
}

/// A set in the form of descriptors, converted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedMask(Words);

/// A thread's scope with a set; the drop restores the previous one.
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    masks: ProcessMasks,
    former: Option<Words>,
    /// Belongs to the thread that created it.
    _thread: PhantomData<*mut ()>,
}

impl Scope {
    /// Restricts every launch of this thread to `set` until the result is dropped. An inner scope
    /// takes precedence.
    ///
    /// # Errors
    /// As [`ProcessMasks::set_next`].
    pub fn enter(masks: ProcessMasks, set: &TpcSet) -> Result<Self, Error> {
        Self::with(masks, masks.prepare(set)?)
    }

    /// As [`Scope::enter`], at the cost of two stores.
    ///
    /// # Errors
    /// [`Error::Refused`] without memory for this thread's masks.
    pub fn with(masks: ProcessMasks, mask: PreparedMask) -> Result<Self, Error> {
        let former = masks.thread_masks()?.scope.replace(Some(mask.0));
        Ok(Self { masks, former, _thread: PhantomData })
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The thread has masks since the scope was entered.
        if let Ok(own) = self.masks.thread_masks() {
            own.scope.set(self.former);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn published_masks_are_never_torn() {
        let published = Published::new();
        assert_eq!(published.load(), None);
        assert_eq!(published.replace(Some([7; 8])), None);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        if let Some(words) = published.load() {
                            assert!(words.iter().all(|&word| word == words[0] && word != 0), "{words:?}");
                        }
                    }
                });
            }
            for turn in 1..200_000u32 {
                let words = (turn % 7 != 0).then_some([turn; 8]);
                published.replace(words);
            }
            done.store(true, Ordering::Release);
        });
        published.replace(Some([3; 8]));
        assert_eq!(published.replace(None), Some([3; 8]));
        assert_eq!(published.load(), None);
    }
}
