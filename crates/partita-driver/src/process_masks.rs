//! Masks that a program puts on its own launches: the next one of a thread, those of a scope, and
//! all of the process.
//!
//! All are written into launch descriptors by the launch callback, on the launching thread: no
//! lock, no allocation, no system call. The nearest wish counts: next launch, then scope, then the
//! stream's own mask, then the process's. In a tenant's process the tenant's set is united with the
//! result, so a wish can narrow a partition and never leave it.

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

/// A mask in the form in which descriptors hold it: physical numbering, a set bit disables.
type Words = [u32; 8];

/// The masks of this process. There is one set of them; a process has one GPU while it uses them.
#[derive(Clone, Copy)]
pub struct ProcessMasks {
    state: &'static State,
}

impl core::fmt::Debug for ProcessMasks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ProcessMasks").field("process", &self.process()).finish_non_exhaustive()
    }
}

/// What one thread wishes. Lives as long as the thread.
#[derive(Default)]
struct Wishes {
    next: Cell<Option<Words>>,
    scope: Cell<Option<Words>>,
}

/// How the layout of launch descriptors is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// It was proved on this board under this driver.
    Proved(&'static QmdLayout),
    /// By the compute capability, once a descriptor shows its version.
    ByClass(u32),
}

struct State {
    topology: Topology,
    told: Told,
    /// Null until it is known.
    layout: AtomicPtr<QmdLayout>,
    /// The physical numbers that carry a TPC on this board.
    live: Words,
    /// Those of TPCs that are the only ones of their GPC, which the driver leaves out of launches
    /// of large clusters.
    single: Words,
    process: Published,
    /// Every thread's [`Wishes`].
    key: libc::pthread_key_t,
    unmasked: AtomicU64,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());
static INSTALLING: AtomicBool = AtomicBool::new(false);

impl ProcessMasks {
    /// Has launches of this process masked as it will wish. A second call gives the same masks.
    ///
    /// # Errors
    /// [`Error::Subscribe`]; [`Error::Refused`] if the process sees several GPUs, whose launches
    /// the callback could not tell apart, or if it has installed the masks of another board.
    pub fn install(cuda: &Cuda, topology: &Topology, layout: &'static QmdLayout) -> Result<Self, Error> {
        Self::install_as(cuda, topology, Told::Proved(layout))
    }

    /// As [`ProcessMasks::install`], where nobody has proved the version of this driver's launch
    /// descriptors: the first descriptor tells it, if its class (compute capability, major × 10 +
    /// minor) knows that version. `topology` must be known for certain all the same.
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
        Self::install_as(cuda, topology, Told::ByClass(compute_capability))
    }

    fn install_as(cuda: &Cuda, topology: &Topology, told: Told) -> Result<Self, Error> {
        let mut devices = 0;
        // SAFETY: a valid pointer.
        unsafe {
            cuda.init(0)?;
            cuda.device_get_count(&mut devices)?;
        }
        if devices != 1 {
            return Err(Error::Refused(format!(
                "this process sees {devices} GPUs, whose launches cannot be told apart where masks are written: name one in \
                 CUDA_VISIBLE_DEVICES, or restrict streams"
            )));
        }
        while INSTALLING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            core::hint::spin_loop();
        }
        let installed = Self::install_alone(cuda, topology, told);
        INSTALLING.store(false, Ordering::Release);
        installed
    }

    fn install_alone(cuda: &Cuda, topology: &Topology, told: Told) -> Result<Self, Error> {
        let present = STATE.load(Ordering::Acquire);
        if !present.is_null() {
            // SAFETY: stored below and never freed.
            let state = unsafe { &*present };
            if state.topology != *topology || state.told != told {
                return Err(Error::Refused("this process masks the launches of another GPU already".into()));
            }
            return Ok(Self { state });
        }
        let mut key = 0;
        // SAFETY: a valid pointer; the destructor takes what wishes() stores.
        if unsafe { libc::pthread_key_create(&mut key, Some(forget_thread)) } != 0 {
            return Err(Error::Refused(
                "no thread-specific data can be had: too many keys in this process".into(),
            ));
        }
        let alone = topology.gpcs().iter().filter(|gpc| gpc.tpcs.len() == 1);
        let alone = alone.fold(TpcSet::EMPTY, |all, gpc| all | gpc.tpcs);
        // Kept for ever: launches on any thread read it.
        let state: &'static State = Box::leak(Box::new(State {
            topology: topology.clone(),
            told,
            layout: AtomicPtr::new(match told {
                Told::Proved(layout) => core::ptr::from_ref(layout).cast_mut(),
                Told::ByClass(_) => core::ptr::null_mut(),
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

    /// Has the next kernel launch of this thread run on `set` only, whatever its stream. `None`
    /// takes the wish back. Returns the former.
    ///
    /// # Errors
    /// [`Error::Refused`] for a set that no launch could run on, and once a launch went by that
    /// could not be masked.
    pub fn set_next(&self, set: Option<&TpcSet>) -> Result<Option<TpcSet>, Error> {
        let words = set.map(|set| self.words(set)).transpose()?;
        Ok(self.wishes()?.next.replace(words).map(|words| self.set_of(&words)))
    }

    /// Looks a set up, for a [`Scope`] that is entered often.
    ///
    /// # Errors
    /// As [`ProcessMasks::set_next`].
    pub fn prepare(&self, set: &TpcSet) -> Result<PreparedMask, Error> {
        self.words(set).map(PreparedMask)
    }

    /// Has every launch of this process run on `set` only, except those with a nearer wish. Returns
    /// the former.
    ///
    /// # Errors
    /// As [`ProcessMasks::set_next`].
    pub fn set_process(&self, set: Option<&TpcSet>) -> Result<Option<TpcSet>, Error> {
        let words = set.map(|set| self.words(set)).transpose()?;
        Ok(self.state.process.replace(words).map(|words| self.set_of(&words)))
    }

    /// The set that this thread's next launch was restricted to, if it was and has not come yet.
    pub fn next(&self) -> Option<TpcSet> {
        // SAFETY: what wishes() stored on this very thread.
        let wishes = unsafe { thread_wishes(self.state.key) }?;
        wishes.next.get().map(|words| self.set_of(&words))
    }

    /// The process's set.
    pub fn process(&self) -> Option<TpcSet> {
        self.state.process.load().map(|words| self.set_of(&words))
    }

    /// Launches whose descriptors were of another version than the one that was proved, and so went
    /// unmasked.
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
                "the driver makes launch descriptors of another version than the one proved here: prove it anew with `partita doctor`"
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
                "TPCs {} are not there: the device has TPCs {all}",
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

    /// This thread's wishes, made at the first one.
    fn wishes(&self) -> Result<&Wishes, Error> {
        let key = self.state.key;
        // SAFETY: what was stored on this very thread.
        if let Some(wishes) = unsafe { thread_wishes(key) } {
            return Ok(wishes);
        }
        let wishes = Box::into_raw(Box::new(Wishes::default()));
        // SAFETY: a live key; the thread's end frees the box.
        unsafe {
            if libc::pthread_setspecific(key, wishes.cast()) != 0 {
                drop(Box::from_raw(wishes));
                return Err(Error::Refused("no memory for this thread's masks".into()));
            }
            Ok(&*wishes)
        }
    }
}

/// # Safety
/// The result is used on this thread only, and not beyond its life.
unsafe fn thread_wishes<'t>(key: libc::pthread_key_t) -> Option<&'t Wishes> {
    // SAFETY: a live key.
    let wishes = unsafe { libc::pthread_getspecific(key) }.cast::<Wishes>();
    // SAFETY: null, or what wishes() stored on this thread, shared and never borrowed mutably.
    unsafe { wishes.as_ref() }
}

unsafe extern "C" fn forget_thread(wishes: *mut c_void) {
    // SAFETY: made by wishes() for the thread that ends.
    drop(unsafe { Box::from_raw(wishes.cast::<Wishes>()) });
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
    let wishes = unsafe { thread_wishes(state.key) };
    if let Some(words) = wishes.and_then(|wishes| wishes.next.take().or(wishes.scope.get())) {
        let _ = qmd::write_disable_mask(image, layout, &words);
        return;
    }
    let Some(words) = state.process.load() else { return };
    let words = match qmd::read_disable_mask(image, layout) {
        None => words,
        // The driver's own, for a large cluster: both hold.
        Some(asked) if is_drivers_own(state, &asked) && may_be_clusters(layout, image) => {
            both(state, &words, &asked)
        }
        // The stream's, or a green context's, which is nearer.
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
        // SAFETY: passed on to the caller.
        None => unsafe { first_layout(state, parameters) }?,
    };
    // SAFETY: passed on to the caller.
    Some((layout, unsafe { callback::descriptor_of(parameters, layout) }?))
}

/// # Safety
/// As for [`descriptor`].
#[cold]
unsafe fn first_layout(state: &State, parameters: *const c_void) -> Option<&'static QmdLayout> {
    let Told::ByClass(compute_capability) = state.told else { return None };
    // SAFETY: passed on to the caller.
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

/// Whether a launch is of clusters of blocks, or of a shape that is not understood.
#[cold]
fn may_be_clusters(layout: &QmdLayout, image: &[u32]) -> bool {
    layout.shape(image).map_or(true, |shape| shape.cluster_blocks() > 1)
}

/// Whether a mask leaves out nothing but TPCs that are alone in their GPC, which the driver does
/// for clusters (measured on an H200). One that leaves out none at all is a stream's own wish for
/// the whole GPU.
#[cold]
fn is_drivers_own(state: &State, asked: &Words) -> bool {
    let off: Words = core::array::from_fn(|word| asked[word] & state.live[word]);
    off != [0; 8] && (0..8).all(|word| off[word] & !state.single[word] == 0)
}

/// What both masks leave enabled; the wish alone where that is nothing, because a launch with no
/// TPC never ends.
#[cold]
fn both(state: &State, own: &Words, asked: &Words) -> Words {
    let both: Words = core::array::from_fn(|word| own[word] | asked[word]);
    if (0..8).any(|word| !both[word] & state.live[word] != 0) { both } else { *own }
}

/// A mask that every launch reads and that is changed under them: one of two places, the other
/// being written.
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

    /// Whole, however often it is changed meanwhile. A reader repeats only while two changes fall
    /// into its few loads.
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
        // Whoever sees a word of what follows sees that the place is no longer the one to read.
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

/// A set as descriptors hold it, looked up once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedMask(Words);

/// A thread's scope with a set, changed back when dropped.
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    masks: ProcessMasks,
    former: Option<Words>,
    /// Belongs to the thread that made it.
    _thread: PhantomData<*mut ()>,
}

impl Scope {
    /// Has every launch of this thread run on `set` only until the result is dropped. A scope
    /// inside another counts more.
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
        let former = masks.wishes()?.scope.replace(Some(mask.0));
        Ok(Self { masks, former, _thread: PhantomData })
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The thread has wishes since the scope was entered.
        if let Ok(wishes) = self.masks.wishes() {
            wishes.scope.set(self.former);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn what_is_published_is_never_torn() {
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
