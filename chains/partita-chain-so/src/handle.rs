//! Handles that C code holds. Each thread keeps a list of its own, so it recognizes a wrong or a
//! released pointer without reading what it points to.

use std::cell::RefCell;
use std::collections::HashMap;

thread_local! {
    /// The handles of this thread, with what kind of thing each stands for.
    static LIVE: RefCell<HashMap<usize, u8>> = RefCell::default();
}

/// What a handle can stand for.
pub trait Kind {
    /// Tells it from others.
    const KIND: u8;
}

/// What lies behind a handle.
pub struct Holder<T>(Option<T>);

/// Makes a handle of this thread.
pub fn make<T: Kind>(value: T) -> *mut Holder<T> {
    let handle = Box::into_raw(Box::new(Holder(Some(value))));
    LIVE.with_borrow_mut(|live| live.insert(handle.addr(), T::KIND));
    handle
}

fn is_live<T: Kind>(handle: *const Holder<T>) -> bool {
    // On a thread that is ending there are none.
    LIVE.try_with(|live| live.borrow().get(&handle.addr()) == Some(&T::KIND)).unwrap_or(false)
}

/// What a handle stands for; none if it is not one of this thread.
///
/// # Safety
/// Nobody changes it meanwhile.
pub unsafe fn of<'h, T: Kind>(handle: *const Holder<T>) -> Option<&'h T> {
    // SAFETY: this thread made it with this type and has not ended it.
    if is_live(handle) { unsafe { (*handle).0.as_ref() } } else { None }
}

/// As [`of`], to be changed.
///
/// # Safety
/// Nobody else has it meanwhile.
pub unsafe fn of_mut<'h, T: Kind>(handle: *mut Holder<T>) -> Option<&'h mut T> {
    // SAFETY: as in `of`.
    if is_live(handle) { unsafe { (*handle).0.as_mut() } } else { None }
}

/// Takes out what a handle stands for: to be put back, or the handle to be ended.
///
/// # Safety
/// As for [`of_mut`].
pub unsafe fn lend<T: Kind>(handle: *mut Holder<T>) -> Option<T> {
    // SAFETY: as in `of`.
    if is_live(handle) { unsafe { (*handle).0.take() } } else { None }
}

/// Puts back what was lent.
///
/// # Safety
/// As for [`of_mut`].
pub unsafe fn put_back<T: Kind>(handle: *mut Holder<T>, value: T) {
    if is_live(handle) {
        // SAFETY: as in `of`.
        unsafe { (*handle).0 = Some(value) };
    }
}

/// Ends a handle: it is none from here on.
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
