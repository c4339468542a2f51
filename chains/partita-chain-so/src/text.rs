//! The last error of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn set(text: String) {
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // An ending thread has no caller to ask for it.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Stores an error's text, and returns the number that means that there is one.
pub fn fail(text: String) -> c_int {
    set(text);
    crate::FAILED
}

/// As [`fail`], for a caller's mistake.
pub fn misuse(text: &str) -> c_int {
    set(text.to_owned());
    crate::MISUSE
}

/// No error.
pub fn no_text() {
    set(String::new());
}

/// The text.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
