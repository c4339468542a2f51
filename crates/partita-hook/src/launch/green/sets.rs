//! The sets of TPCs of the program's green contexts, and the driver's contexts behind them.
//!
//! The driver makes a green context of the device's TPCs and knows nothing of the tenant's. So each
//! of its contexts has all of the device's TPCs but one, and each set of the program lacks a
//! different one. A launch then comes to the callback with a mask that identifies its set, whatever
//! stream, graph or library it comes from. The callback replaces that mask by the program's set,
//! inside the tenant's. Contexts of equal sets share a mask. A set keeps its mask for the life of
//! the process: a graph outlives the context in which it was captured.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use partita_abi::CuResult;
use partita_abi::kernels::PTX_MODULE;
use partita_abi::types::{
    CU_DEV_RESOURCE_TYPE_SM, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, CU_GREEN_CTX_DEFAULT_STREAM,
    CU_STREAM_NON_BLOCKING, CUdevResource, CUdevSmResource,
};
use partita_core::TpcSet;
use partita_ledger::mutex::Mutex;

use crate::account::gpu::Gpu;
use crate::driver::calls::{Kept, calls as driver_calls};
use crate::driver::capture;
use crate::launch::carried::Carried;
use crate::launch::noted::{self, Call};
use crate::sys::fork::{in_child, renew};

/// The driver itself disables TPCs with this number and above for clusters of more than 2 blocks
/// (`docs/hardware.md`), so they cannot identify contexts.
const SINGLETONS_FROM: usize = 72;
/// SMs of the parts that the device is split into: as few as the driver gives.
const PART_SMS: c_uint = 2;
/// Parts that a device can have: as many as a mask has TPCs.
const PARTS_MAX: usize = 256;

type Words = [u32; 8];

driver_calls! {
    /// Entry points for green contexts, complete from CUDA 12.4 on.
    struct GreenCalls;
    device_resource = cuDeviceGetDevResource;
    split = cuDevSmResourceSplitByCount;
    describe = cuDevResourceGenerateDesc;
    create = cuGreenCtxCreate;
    destroy = cuGreenCtxDestroy;
    as_context = cuCtxFromGreenCtx;
    push_context = cuCtxPushCurrent_v2;
    pop_context = cuCtxPopCurrent_v2;
    create_stream = cuStreamCreate;
    destroy_stream = cuStreamDestroy_v2;
    load = cuModuleLoadData;
    function = cuModuleGetFunction;
    launch = cuLaunchKernel;
}

driver_calls! {
    /// The entry point that returns a stream's context.
    struct StreamCalls;
    green_context = cuStreamGetGreenCtx;
}

/// A set that the program has made green contexts of.
pub struct Asked {
    /// The part of the device that its contexts lack.
    without: AtomicUsize,
    /// The mask with which their launches come.
    shown: [AtomicU32; 8],
    /// The set, logical.
    set: [AtomicU64; 4],
    /// The disable words of the set.
    disable: [AtomicU32; 8],
}

/// Never changed once it is counted.
static ASKED: [Asked; SINGLETONS_FROM] = [const {
    Asked {
        without: AtomicUsize::new(0),
        shown: [const { AtomicU32::new(0) }; 8],
        set: [const { AtomicU64::new(0) }; 4],
        disable: [const { AtomicU32::new(0) }; 8],
    }
}; SINGLETONS_FROM];
/// How many of [`ASKED`] there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Asked {
    /// The set, logical.
    pub fn set(&self) -> TpcSet {
        TpcSet::from_words(core::array::from_fn(|word| self.set[word].load(Ordering::Relaxed)))
    }

    fn shown(&self) -> Words {
        core::array::from_fn(|word| self.shown[word].load(Ordering::Relaxed))
    }
}

/// Every set that a green context of this process has had. Empty in ordinary programs.
#[inline]
pub fn asked() -> &'static [Asked] {
    &ASKED[..COUNT.load(Ordering::Acquire)]
}

/// The program's mask for a launch whose descriptor came with the mask `own`: for a launch in a
/// green context the disable words of its set. Called by the callback: neither allocates nor waits.
pub fn asked_for(own: Words, live: &Words) -> Words {
    for asked in asked() {
        let shown = asked.shown();
        let lacks = (0..8).any(|word| shown[word] & live[word] & !own[word] != 0);
        let more: Words = core::array::from_fn(|word| own[word] & live[word] & !shown[word]);
        let below = (0..SINGLETONS_FROM).any(|bit| more[bit / 32] >> (bit % 32) & 1 != 0);
        if !lacks && !below {
            return core::array::from_fn(|word| asked.disable[word].load(Ordering::Relaxed) | more[word]);
        }
    }
    own
}

/// A green context of the driver's.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The driver's handle, an address.
    handle: usize,
    /// The same as a context.
    context: usize,
    /// Its set, in [`ASKED`].
    asked: usize,
}

/// The green contexts that the program has and has not destroyed.
static CONTEXTS: Mutex<Vec<Context>> = Mutex::new(Vec::new());

fn find(is_it: impl Fn(&Context) -> bool) -> Option<&'static Asked> {
    // No lock in programs that have never made one.
    if asked().is_empty() {
        return None;
    }
    let asked = CONTEXTS.lock().iter().find(|context| is_it(context)).map(|context| context.asked)?;
    ASKED.get(asked)
}

/// The set of the green context with a handle.
pub fn of_handle(handle: *mut c_void) -> Option<&'static Asked> {
    find(|green| green.handle == handle.addr())
}

/// The set of the green context that a context is.
pub fn of_context(context: usize) -> Option<&'static Asked> {
    find(|green| green.context == context)
}

/// The set of the green context that a stream, which is not a default one, is of.
pub fn of_stream(stream: *mut c_void) -> Option<&'static Asked> {
    if asked().is_empty() {
        return None;
    }
    // Without the lock of the maker: a tool may ask while a context is made.
    static CALLS: Kept<StreamCalls> = Kept::new();
    let calls = CALLS.get(StreamCalls::resolve)?;
    let mut handle = core::ptr::null_mut();
    // SAFETY: a valid pointer; the driver checks the stream.
    unsafe { (calls.green_context)(stream, &mut handle) }.ok().ok()?;
    of_handle(handle)
}

/// Forgets a context that the program destroys.
pub fn forget(handle: *mut c_void) -> Option<Context> {
    if asked().is_empty() {
        return None;
    }
    let mut contexts = CONTEXTS.lock();
    let place = contexts.iter().position(|green| green.handle == handle.addr())?;
    Some(contexts.swap_remove(place))
}

/// Undoes [`forget`]: the context is still there.
pub fn remember(context: Context) {
    CONTEXTS.lock().push(context);
}

/// Removes all contexts of a device whose primary context has ended, and the kernel in it.
pub fn forget_all() {
    CONTEXTS.lock().clear();
    MAKER.lock().kernel = core::ptr::null_mut();
}

// Leaves the parent's contexts to the parent.
in_child! {
    COUNT.store(0, Ordering::Release);
    renew(&CONTEXTS, Vec::new());
    renew(&MAKER, Maker::NEW);
}

/// Why there is no green context.
pub enum NotMade {
    /// The driver refused.
    Driver(CuResult),
    /// The program uses as many sets as can be distinguished.
    Full,
    /// Launches of green contexts cannot be distinguished on this driver.
    Alike,
}

impl From<CuResult> for NotMade {
    fn from(code: CuResult) -> Self {
        Self::Driver(code)
    }
}

/// Makes a green context for a set with these disable words; its handle.
///
/// # Errors
/// [`NotMade`] with the reason.
pub fn make(gpu: &Gpu, set: &TpcSet, disable: &Words) -> Result<*mut c_void, NotMade> {
    let Some(live) = gpu.mask.as_ref().map(|mask| &mask.live) else {
        return Err(CuResult::NOT_SUPPORTED.into());
    };
    let mut maker = MAKER.lock();
    let parts = maker.parts(gpu.index.into())?;
    if let Some(known) = asked().iter().position(|asked| asked.set() == *set) {
        let asked = &ASKED[known];
        let green = maker.create(&parts, asked.without.load(Ordering::Relaxed), gpu)?;
        return match maker.shown(&green) {
            Ok(Some(shown)) if shown == asked.shown() => Ok(green.keep(known)),
            Ok(_) => Err(maker.destroyed(&green, NotMade::Alike)),
            Err(code) => Err(maker.destroyed(&green, code.into())),
        };
    }
    let count = asked().len();
    while let Some(new) = ASKED.get(count)
        && maker.next < parts.len()
    {
        let green = maker.create(&parts, maker.next, gpu)?;
        let shown = match maker.shown(&green) {
            Ok(Some(shown)) => shown,
            Ok(None) => return Err(maker.destroyed(&green, NotMade::Alike)),
            Err(code) => return Err(maker.destroyed(&green, code.into())),
        };
        let without = maker.next;
        maker.next += 1;
        if !is_new(&shown, live) {
            maker.destroyed(&green, NotMade::Full);
            continue;
        }
        new.without.store(without, Ordering::Relaxed);
        store(&new.shown, shown);
        store(&new.disable, *disable);
        for (to, word) in new.set.iter().zip(set.to_words()) {
            to.store(word, Ordering::Relaxed);
        }
        COUNT.store(count + 1, Ordering::Release);
        if count == 0 {
            // From here on the callback looks at every launch.
            noted::look_always();
        }
        return Ok(green.keep(count));
    }
    Err(NotMade::Full)
}

fn store(to: &[AtomicU32; 8], words: Words) {
    to.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
}

/// Whether a mask differs from that of every other set, in launches of clusters too.
fn is_new(shown: &Words, live: &Words) -> bool {
    let off: Words = core::array::from_fn(|word| shown[word] & live[word]);
    let is_off = |words: &Words, bit: usize| words[bit / 32] >> (bit % 32) & 1 != 0;
    let is_taken = |asked: &Asked| asked.shown().iter().zip(off).any(|(taken, off)| taken & off != 0);
    off != [0; 8] && !(SINGLETONS_FROM..256).any(|bit| is_off(&off, bit)) && !asked().iter().any(is_taken)
}

/// A context that is being made.
struct Green {
    handle: *mut c_void,
    context: *mut c_void,
}

impl Green {
    fn keep(self, asked: usize) -> *mut c_void {
        let mut contexts = CONTEXTS.lock();
        let (handle, context) = (self.handle.addr(), self.context.addr());
        // The driver uses addresses again.
        contexts.retain(|green| green.handle != handle && green.context != context);
        contexts.push(Context { handle, context, asked });
        self.handle
    }
}

/// The data for creating contexts. One is created at a time.
struct Maker {
    calls: Option<GreenCalls>,
    /// A kernel of the primary context that ends at once; null before it is loaded.
    kernel: *mut c_void,
    /// The first part of the device that no set lacks yet.
    next: usize,
}

// SAFETY: a handle of the driver's, which may be used on any thread.
unsafe impl Send for Maker {}

static MAKER: Mutex<Maker> = Mutex::new(Maker::NEW);

impl Maker {
    const NEW: Self = Self { calls: None, kernel: core::ptr::null_mut(), next: 0 };

    fn calls(&self) -> Result<&GreenCalls, CuResult> {
        self.calls.as_ref().ok_or(CuResult::NOT_SUPPORTED)
    }

    /// The device in parts of two SMs: the same parts each time.
    fn parts(&mut self, device: c_int) -> Result<Vec<CUdevResource>, CuResult> {
        if self.calls.is_none() {
            self.calls = GreenCalls::resolve().ok();
        }
        let calls = self.calls()?;
        let mut whole = no_resource();
        let mut parts = vec![no_resource(); PARTS_MAX];
        let mut found = parts.len() as c_uint;
        // SAFETY: valid pointers, and room for as many parts as said.
        unsafe {
            (calls.device_resource)(device, &mut whole, CU_DEV_RESOURCE_TYPE_SM).ok()?;
            let flags = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
            let (to, rest) = (parts.as_mut_ptr(), core::ptr::null_mut());
            (calls.split)(to, &mut found, &whole, rest, flags, PART_SMS).ok()?;
        }
        parts.truncate(found as usize);
        if parts.len() < 2 { Err(CuResult::INVALID_RESOURCE_CONFIGURATION) } else { Ok(parts) }
    }

    /// A context of all parts but one.
    fn create(&self, parts: &[CUdevResource], without: usize, gpu: &Gpu) -> Result<Green, CuResult> {
        let calls = self.calls()?;
        let mut others = parts.to_vec();
        if without < others.len() {
            others.remove(without);
        }
        let (mut described, mut handle, mut context) =
            (core::ptr::null_mut(), core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: valid pointers; the resources are of one split, and the descriptor is made of
        // them.
        unsafe {
            (calls.describe)(&mut described, others.as_mut_ptr(), others.len() as c_uint).ok()?;
            (calls.create)(&mut handle, described, gpu.index.into(), CU_GREEN_CTX_DEFAULT_STREAM).ok()?;
            if let Err(code) = (calls.as_context)(&mut context, handle).ok() {
                // The first error counts.
                let _ = (calls.destroy)(handle);
                return Err(code);
            }
        }
        Ok(Green { handle, context })
    }

    /// Destroys a context that is of no use; the reason again.
    fn destroyed(&self, green: &Green, why: NotMade) -> NotMade {
        if let Ok(calls) = self.calls() {
            // SAFETY: the context was made by create(), and no other code has its handle.
            let _ = unsafe { (calls.destroy)(green.handle) };
        }
        why
    }

    /// The mask with which launches of a context come.
    fn shown(&mut self, green: &Green) -> Result<Option<Words>, CuResult> {
        let (push, pop) = {
            let calls = self.calls()?;
            (calls.push_context, calls.pop_context)
        };
        // SAFETY: a context that the driver gave.
        unsafe { push(green.context) }.ok()?;
        let carried = Carried::new();
        let noted = Call { unmasked: false, carried: Some(&carried), mask: None };
        let launched = capture::relaxed(|| {
            self.load()?;
            noted::within(&noted, || self.launch()).unwrap_or(Err(CuResult::NOT_SUPPORTED))
        });
        // SAFETY: a valid pointer; what was pushed is on top.
        let _ = unsafe { pop(&mut core::ptr::null_mut()) };
        launched?;
        Ok(carried.first_own())
    }

    /// Loads the kernel into the primary context, unless it is there.
    fn load(&mut self) -> Result<(), CuResult> {
        if !self.kernel.is_null() {
            return Ok(());
        }
        let calls = self.calls()?;
        let (mut module, mut function) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: valid pointers, a module that ends with a NUL, and the name of a kernel in it.
        unsafe {
            (calls.load)(&mut module, PTX_MODULE.as_ptr().cast()).ok()?;
            (calls.function)(&mut function, module, c"partita_spin".as_ptr()).ok()?;
        }
        self.kernel = function;
        Ok(())
    }

    /// Launches the kernel in the current context, without waiting: the GPU may be busy with work
    /// that waits for this thread.
    fn launch(&self) -> Result<(), CuResult> {
        let calls = self.calls()?;
        let mut duration_ns = 0u64;
        let mut parameters = [(&raw mut duration_ns).cast::<c_void>()];
        let (mut stream, extra) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: a valid pointer, a function of the module loaded above, and its one parameter,
        // which the driver copies. A stream that is destroyed ends after its work.
        unsafe {
            (calls.create_stream)(&mut stream, CU_STREAM_NON_BLOCKING).ok()?;
            let launched =
                (calls.launch)(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), extra);
            let _ = (calls.destroy_stream)(stream);
            launched.ok()
        }
    }
}

fn no_resource() -> CUdevResource {
    CUdevResource { kind: 0, internal_padding: [0; 92], sm: CUdevSmResource::default(), oversize: [0; 36] }
}
