//! `libpartita_chain.so` and `libpartita_chain.a`: components of chains in C. The functions are
//! documented in `include/partita_chain.h`.
//!
//! C code is never unwound through: [`for_c`] defines each function, and stops a panic in it.
#![allow(clippy::missing_safety_doc, reason = "the header states the obligations of C callers")]

mod contain;
mod handle;
mod text;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use chain::{Attach, Component, Outcome, Received, Role};
use partita_driver::{Cuda, Gpu};

use handle::{Holder, Kind};
use text::{fail, misuse, no_text};

const OK: c_int = 0;
const LATE: c_int = 1;
const ENDED: c_int = 2;
const DROPPED: c_int = 3;
pub(crate) const FAILED: c_int = -1;
pub(crate) const MISUSE: c_int = -2;

/// Defines the functions of the header. After a panic a function, and every later one, returns the
/// value after `else`.
macro_rules! for_c {
    (fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $returned:ty, else $failed:expr; $work:block) => {
        /// See the header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $returned {
            contain::contained($failed, || $work)
        }
    };
}

/// A component, for C.
pub struct Place {
    component: &'static Component<'static>,
    /// The component's address, for [`partita_chain_detach`].
    owned: *mut Component<'static>,
    frames: std::cell::Cell<usize>,
}

impl Kind for Place {
    const KIND: u8 = 1;
}

impl Kind for Frame {
    const KIND: u8 = 2;
}

/// A frame, for C.
pub struct Frame {
    frame: chain::Frame<'static, 'static>,
    place: *const Holder<Place>,
}

fn limit(limit_ns: i64) -> Option<Duration> {
    u64::try_from(limit_ns).ok().map(Duration::from_nanos)
}

thread_local! {
    /// The GPUs of this thread's failed attempts, by number, for the next attempt: a program may
    /// try again and again.
    static SPARE: RefCell<HashMap<c_uint, &'static Gpu<'static>>> = RefCell::default();
}

/// The driver, loaded once.
fn cuda() -> Result<&'static Cuda, partita_driver::Error> {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    match CUDA.get() {
        Some(cuda) => Ok(cuda),
        None => Cuda::load(None).map(|cuda| CUDA.get_or_init(|| cuda)),
    }
}

/// Opens a GPU for the life of the process, with the primary context current.
fn open(device: c_uint) -> Result<&'static Gpu<'static>, partita_driver::Error> {
    let Some(gpu) = SPARE.with_borrow_mut(|spare| spare.remove(&device)) else {
        return Ok(Box::leak(Box::new(Gpu::open(cuda()?, device)?)));
    };
    let mut context = std::ptr::null_mut();
    // SAFETY: a valid pointer; the context lives as long as the GPU is open, so the retained
    // reference may be released at once.
    unsafe {
        gpu.cuda().primary_retain(&mut context, gpu.device())?;
        let made_current = gpu.cuda().ctx_set_current(context);
        gpu.cuda().primary_release(gpu.device())?;
        made_current?;
    }
    Ok(gpu)
}

/// Opens a GPU for the life of the process, and takes the place.
fn attach(attach: Attach<'static>, device: c_uint) -> Result<Place, String> {
    let gpu = open(device).map_err(|error| error.to_string())?;
    let attached = attach.attach(gpu).map_err(|error| {
        SPARE.with_borrow_mut(|spare| spare.insert(device, gpu));
        error.to_string()
    });
    let owned = Box::into_raw(Box::new(attached?));
    // SAFETY: just made, and freed only by detach(), which no frame outlives.
    let component = unsafe { &*owned };
    Ok(Place { component, owned, frames: std::cell::Cell::new(0) })
}

/// # Safety
/// `to` is null or may be written.
unsafe fn give<T: Kind>(to: *mut *mut Holder<T>, made: Result<T, String>) -> c_int {
    match made {
        Ok(value) => {
            // SAFETY: by the caller's guarantee, and not null: every caller has checked.
            unsafe { to.write(handle::make(value)) };
            no_text();
            OK
        }
        Err(error) => fail(error),
    }
}

for_c! {
    fn partita_chain_attach(component: *mut *mut Holder<Place>) -> c_int, else FAILED; {
        if component.is_null() {
            return misuse("no place for the component");
        }
        let made = Attach::from_environment().map_err(|error| error.to_string());
        // SAFETY: not null, so writable by the header's contract.
        unsafe { give(component, made.and_then(|attach_to| attach(attach_to, 0))) }
    }
}

for_c! {
    fn partita_chain_attach_to(component: *mut *mut Holder<Place>, file: *const c_char, role: *const c_char, device: c_uint) -> c_int, else FAILED; {
        if component.is_null() || file.is_null() || role.is_null() {
            return misuse("no place for the component, no file, or no role");
        }
        // SAFETY: not null, so strings by the header's contract.
        let (file, role) = unsafe { (CStr::from_ptr(file), CStr::from_ptr(role)) };
        let Ok(role) = role.to_str() else { return misuse("a role that is not UTF-8") };
        let file = OsStr::from_bytes(file.to_bytes());
        let role = role.parse().map_or_else(|_| Role::Name(role.to_owned()), Role::Number);
        let made = Attach::new(PathBuf::from(file), role)
            .keeper_from_environment()
            .and_then(Attach::steer_from_environment)
            .and_then(Attach::transport_from_environment);
        let made = made.map_err(|error| error.to_string()).and_then(|made| attach(made, device));
        // SAFETY: as above.
        unsafe { give(component, made) }
    }
}

for_c! {
    fn partita_chain_detach(component: *mut Holder<Place>) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract.
        let Some(place) = (unsafe { handle::of(component) }) else {
            return misuse("no component of this thread");
        };
        if place.frames.get() > 0 {
            return misuse("the component still has frames: pass them on or drop them first");
        }
        // SAFETY: a handle that was just checked, and is invalid from here on.
        if let Some(place) = unsafe { handle::end(component) } {
            // SAFETY: made in attach(), and no code has a frame of it.
            drop(unsafe { Box::from_raw(place.owned) });
        }
        no_text();
        OK
    }
}

/// # Safety
/// As the header requires.
unsafe fn receive(
    component: *mut Holder<Place>,
    limit_ns: i64,
    to: *mut *mut Holder<Frame>,
    acquire: bool,
) -> c_int {
    // SAFETY: a handle or null, by the header's contract.
    let Some(place) = (unsafe { handle::of(component) }) else {
        return misuse("no component of this thread");
    };
    if to.is_null() {
        return misuse("no place for the frame");
    }
    let limit = limit(limit_ns);
    let received = if acquire { place.component.acquire(limit) } else { place.component.receive(limit) };
    match received {
        Ok(Received::Frame(frame)) => {
            place.frames.set(place.frames.get() + 1);
            // SAFETY: not null, so writable by the header's contract.
            unsafe { give(to, Ok(Frame { frame, place: component })) }
        }
        Ok(Received::Late) => LATE,
        Ok(Received::Ended) => ENDED,
        Err(error) => fail(error.to_string()),
    }
}

for_c! {
    fn partita_chain_receive(component: *mut Holder<Place>, limit_ns: i64, frame: *mut *mut Holder<Frame>) -> c_int, else FAILED; {
        // SAFETY: the caller guarantees it.
        unsafe { receive(component, limit_ns, frame, false) }
    }
}

for_c! {
    fn partita_chain_acquire(component: *mut Holder<Place>, limit_ns: i64, frame: *mut *mut Holder<Frame>) -> c_int, else FAILED; {
        // SAFETY: the caller guarantees it.
        unsafe { receive(component, limit_ns, frame, true) }
    }
}

/// Takes a frame from C: its handle is invalid from then on.
///
/// # Safety
/// No other code uses them meanwhile.
unsafe fn take(
    component: *mut Holder<Place>,
    frame: *mut Holder<Frame>,
) -> Option<(&'static Component<'static>, chain::Frame<'static, 'static>)> {
    // SAFETY: the caller guarantees it.
    let (place, held) = unsafe { (handle::of(component)?, handle::of(frame)?) };
    if !std::ptr::eq(held.place, component) {
        return None;
    }
    // SAFETY: as above.
    let Frame { frame, .. } = unsafe { handle::end(frame)? };
    place.frames.set(place.frames.get().saturating_sub(1));
    Some((place.component, frame))
}

const NO_FRAME: &str = "no component of this thread, or no frame of it: each frame is passed on once";

for_c! {
    fn partita_chain_send(component: *mut Holder<Place>, frame: *mut Holder<Frame>, limit_ns: i64) -> c_int, else FAILED; {
        // SAFETY: valid handles or not, which is checked; no other code uses them meanwhile, by the
        // header's contract.
        let (place, held) = unsafe { (handle::of(component), handle::of(frame)) };
        let (Some(place), Some(held)) = (place, held) else { return misuse(NO_FRAME) };
        if !std::ptr::eq(held.place, component) {
            return misuse(NO_FRAME);
        }
        // SAFETY: as above. Taken out for a while, so that a frame without room keeps its handle.
        let Some(Frame { frame: own, place: of }) = (unsafe { handle::lend(frame) }) else {
            return misuse(NO_FRAME);
        };
        let sent = match limit(limit_ns) {
            Some(limit) => place.component.send_within(own, limit),
            None => place.component.send(own),
        };
        if let Ok(Outcome::Late(own)) = sent {
            // SAFETY: as above.
            unsafe { handle::put_back(frame, Frame { frame: own, place: of }) };
            return LATE;
        }
        // SAFETY: as above.
        unsafe { handle::end(frame) };
        place.frames.set(place.frames.get().saturating_sub(1));
        match sent {
            Ok(Outcome::Sent | Outcome::DroppedOlder(_) | Outcome::Late(_)) => OK,
            Ok(Outcome::Dropped) => DROPPED,
            Ok(Outcome::Ended) => ENDED,
            Err(error) => fail(error.to_string()),
        }
    }
}

for_c! {
    fn partita_chain_finish(component: *mut Holder<Place>, frame: *mut Holder<Frame>) -> c_int, else FAILED; {
        // SAFETY: handles or null, by the header's contract.
        let Some((component, frame)) = (unsafe { take(component, frame) }) else { return misuse(NO_FRAME) };
        component.finish(frame).map_or_else(|error| fail(error.to_string()), |()| OK)
    }
}

for_c! {
    fn partita_chain_drop(component: *mut Holder<Place>, frame: *mut Holder<Frame>) -> c_int, else FAILED; {
        // SAFETY: handles or null, by the header's contract.
        let Some((_, frame)) = (unsafe { take(component, frame) }) else { return misuse(NO_FRAME) };
        drop(frame);
        OK
    }
}

for_c! {
    fn partita_chain_stream(component: *mut Holder<Place>) -> *mut c_void, else std::ptr::null_mut(); {
        // SAFETY: a handle or null, by the header's contract.
        let place = unsafe { handle::of(component) };
        place.map_or(std::ptr::null_mut(), |place| place.component.stream().handle())
    }
}

for_c! {
    fn partita_chain_role(component: *mut Holder<Place>) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract.
        let place = unsafe { handle::of(component) };
        place.map_or_else(|| misuse("no component of this thread"), |place| place.component.role().into())
    }
}

for_c! {
    fn partita_chain_roles(component: *mut Holder<Place>) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract.
        let place = unsafe { handle::of(component) };
        place.map_or_else(
            || misuse("no component of this thread"),
            |place| place.component.plan().roles.len() as c_int,
        )
    }
}

/// Defines functions that return a number of a frame.
macro_rules! numbers {
    ($($name:ident = $number:ident;)*) => {$(
        for_c! {
            fn $name(frame: *const Holder<Frame>) -> u64, else 0; {
                // SAFETY: a handle or null, by the header's contract.
                unsafe { handle::of(frame) }.map_or(0, |held| held.frame.$number())
            }
        }
    )*};
}

numbers! {
    partita_frame_address = address;
    partita_frame_bytes = bytes;
    partita_frame_capacity = capacity_bytes;
    partita_frame_sequence = sequence;
}

for_c! {
    fn partita_frame_set_bytes(frame: *mut Holder<Frame>, bytes: u64) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract; no other code uses it.
        let Some(held) = (unsafe { handle::of_mut(frame) }) else { return misuse(NO_FRAME) };
        held.frame.set_bytes(bytes);
        OK
    }
}

for_c! {
    fn partita_frame_meta(frame: *mut Holder<Frame>) -> *mut u64, else std::ptr::null_mut(); {
        // SAFETY: a handle or null, by the header's contract; no other code uses it.
        unsafe { handle::of_mut(frame) }.map_or(std::ptr::null_mut(), |held| held.frame.meta_mut().as_mut_ptr())
    }
}

/// Whether memory of this size can exist at an address.
fn is_memory(at: *const c_void, bytes: usize) -> bool {
    !at.is_null() && isize::try_from(bytes).is_ok_and(|bytes| at.addr().checked_add_signed(bytes).is_some())
}

const NO_MEMORY: &str = "no frame, or no host memory of that size";

for_c! {
    fn partita_frame_write(frame: *mut Holder<Frame>, from: *const c_void, bytes: usize) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract.
        let Some(held) = (unsafe { handle::of(frame) }).filter(|_| is_memory(from, bytes)) else {
            return misuse(NO_MEMORY);
        };
        // SAFETY: not null, so readable for as many bytes by the header's contract.
        let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
        held.frame.write(data).map_or_else(|error| fail(error.to_string()), |()| OK)
    }
}

for_c! {
    fn partita_frame_read(frame: *mut Holder<Frame>, offset: u64, to: *mut c_void, bytes: usize) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract.
        let Some(held) = (unsafe { handle::of(frame) }).filter(|_| is_memory(to, bytes)) else {
            return misuse(NO_MEMORY);
        };
        // SAFETY: not null, so writable for as many bytes by the header's contract.
        let data = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
        held.frame.read(offset, data).map_or_else(|error| fail(error.to_string()), |()| OK)
    }
}

for_c! {
    fn partita_frame_is_whole(frame: *mut Holder<Frame>) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract.
        let Some(held) = (unsafe { handle::of(frame) }) else { return misuse(NO_FRAME) };
        held.frame.is_whole().map_or_else(|error| fail(error.to_string()), c_int::from)
    }
}

#[cfg(feature = "panics")]
for_c! {
    fn partita_chain_panic(component: *mut Holder<Place>) -> c_int, else FAILED; {
        // SAFETY: a handle or null, by the header's contract.
        let role = unsafe { handle::of(component) }.map(|place| place.component.role());
        panic!("component {role:?} panics because it was asked to")
    }
}

/// See the header. It cannot panic, and it must report panics of others.
#[unsafe(no_mangle)]
pub extern "C" fn partita_chain_error() -> *const c_char {
    text::last()
}
