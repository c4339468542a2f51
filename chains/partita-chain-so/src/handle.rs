//! Handles of C code. Each thread has a list of its handles, so it recognizes an invalid or
//! released pointer without reading its memory.

use std::cell::RefCell;
use std::collections::HashMap;

thread_local! {
    /// The handles of this thread, with the kind of each.
    static LIVE: RefCell<HashMap<usize, u8>> = RefCell::default();
}

/// A kind of object that a handle can stand for.
pub trait Kind {
    /// The tag of the kind.
    const KIND: u8;
}

/// The memory of a handle.
pub struct Holder<T>(Option<T>);

/// Makes a handle of this thread.
pub fn make<T: Kind>(value: T) -> *mut Holder<T> {
    let handle = Box::into_raw(Box::new(Holder(Some(value))));
    LIVE.with_borrow_mut(|live| live.insert(handle.addr(), T::KIND));
    handle
}

fn is_live<T: Kind>(handle: *const Holder<T>) -> bool {
    // An ending thread has none.
    LIVE.try_with(|live| live.borrow().get(&handle.addr()) == Some(&T::KIND)).unwrap_or(false)
}

/// The object of a handle; `None` if the handle is not this thread's.
///
/// # Safety
/// No other code changes it meanwhile.
pub unsafe fn of<'h, T: Kind>(handle: *const Holder<T>) -> Option<&'h T> {
    // SAFETY: this thread made it with this type and has not ended it.
    if is_live(handle) { unsafe { (*handle).0.as_ref() } } else { None }
}

/// As [`of`], mutable.
///
/// # Safety
/// No other code uses it meanwhile.
pub unsafe fn of_mut<'h, T: Kind>(handle: *mut Holder<T>) -> Option<&'h mut T> {
    // SAFETY: as in `of`.
    if is_live(handle) { unsafe { (*handle).0.as_mut() } } else { None }
}

/// Takes the object out of a handle: the caller puts it back, or ends the handle.
///
/// # Safety
/// As for [`of_mut`].
pub unsafe fn lend<T: Kind>(handle: *mut Holder<T>) -> Option<T> {
    // SAFETY: as in `of`.
    if is_live(handle) { unsafe { (*handle).0.take() } } else { None }
}

/// Puts back an object.
///
/// # Safety
/// As for [`of_mut`].
pub unsafe fn put_back<T: Kind>(handle: *mut Holder<T>, value: T) {
    if is_live(handle) {
        // SAFETY: as in `of`.
        unsafe { (*handle).0 = Some(value) };
    }
}

/// Ends a handle: it is invalid from then on.
///
/// # Safety
/// As for [`of_mut`].
pub unsafe fn end<T: Kind>(handle: *mut Holder<T>) -> Option<T> {
    LIVE.with_borrow_mut(|live| match live.get(&handle.addr()) {
        Some(kind) if *kind == T::KIND => {
            live.remove(&handle.addr());
            true
        }
        _ => false,
    })
    // SAFETY: this thread made it with this type, and it was ended just now, once.
    .then(|| unsafe { Box::from_raw(handle) })?
    .0
}
