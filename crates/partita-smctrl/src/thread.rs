//! Thread-local data: the last error, and the arrays that the thread was given.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, UnsafeCell};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fault::Fault;
use crate::lock::Mutex;

/// One thread's memory; freed when the thread ends.
#[derive(Default)]
struct ThreadData {
    code: Cell<c_int>,
    text: UnsafeCell<CString>,
    gpcs_64: UnsafeCell<Vec<u64>>,
    gpcs_128: UnsafeCell<Vec<u128>>,
}

/// The key of the threads' memory plus 1; 0 before it exists.
static KEY: AtomicU32 = AtomicU32::new(0);
static MAKING: Mutex<()> = Mutex::new(());

fn key() -> Option<libc::pthread_key_t> {
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        return Some(key);
    }
    let _making = MAKING.lock();
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        return Some(key);
    }
    let mut key = 0;
    // SAFETY: a valid pointer; the destructor takes what thread_data() stores.
    if unsafe { libc::pthread_key_create(&mut key, Some(free)) } != 0 {
        return None;
    }
    KEY.store(key + 1, Ordering::Release);
    Some(key)
}

unsafe extern "C" fn free(data: *mut c_void) {
    // SAFETY: made by thread_data() for the thread that ends.
    drop(unsafe { Box::from_raw(data.cast::<ThreadData>()) });
}

/// This thread's memory, made at the first use. `None` if the process has too many keys.
fn thread_data() -> Option<*const ThreadData> {
    let key = key()?;
    // SAFETY: a live key, and what was stored on this very thread.
    unsafe {
        let data = libc::pthread_getspecific(key).cast::<ThreadData>();
        if !data.is_null() {
            return Some(data);
        }
        let data = Box::into_raw(Box::<ThreadData>::default());
        if libc::pthread_setspecific(key, data.cast()) != 0 {
            drop(Box::from_raw(data));
            return None;
        }
        Some(data)
    }
}

/// Records the result of a call, and returns its number.
pub fn record(result: Result<(), Fault>) -> c_int {
    let (code, text) = match result {
        Ok(()) => (0, None),
        Err(fault) => (fault.code, Some(fault.text)),
    };
    if let Some(data) = thread_data() {
        // SAFETY: this thread's memory; no reference to it outlives a call.
        unsafe {
            (*data).code.set(code);
            if let Some(text) = text {
                *(*data).text.get() = c_string(text);
            }
        }
    }
    code
}

fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// The error number of the thread's last call.
pub fn code() -> c_int {
    // SAFETY: as in record().
    thread_data().map_or(0, |data| unsafe { (*data).code.get() })
}

/// The error text of the thread's last call; empty after success.
pub fn text() -> *const c_char {
    const NOTHING: &CStr = c"";
    match thread_data() {
        // SAFETY: as in record().
        Some(data) if unsafe { (*data).code.get() } != 0 => unsafe { (*(*data).text.get()).as_ptr() },
        _ => NOTHING.as_ptr(),
    }
}

/// Stores an array until this thread's next call, and returns its address.
pub fn store_64(masks: Vec<u64>) -> *mut u64 {
    // SAFETY: as in record().
    thread_data().map_or(ptr::null_mut(), |data| unsafe {
        *(*data).gpcs_64.get() = masks;
        (*(*data).gpcs_64.get()).as_mut_ptr()
    })
}

/// As [`store_64`].
pub fn store_128(masks: Vec<u128>) -> *mut u128 {
    // SAFETY: as in record().
    thread_data().map_or(ptr::null_mut(), |data| unsafe {
        *(*data).gpcs_128.get() = masks;
        (*(*data).gpcs_128.get()).as_mut_ptr()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> String {
        // SAFETY: a string in this thread's memory.
        unsafe { CStr::from_ptr(text()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn each_thread_has_its_own_last_error() {
        assert_eq!((code(), said()), (0, String::new()));
        assert_eq!(record(Err(Fault::new(22, "a\0b"))), 22);
        assert_eq!((code(), said()), (22, "a b".into()));
        std::thread::spawn(|| assert_eq!((code(), said()), (0, String::new()))).join().unwrap();
        assert_eq!(record(Ok(())), 0);
        assert_eq!((code(), said()), (0, String::new()));
    }

    #[test]
    fn arrays_last_until_the_next() {
        let first = store_64(vec![1, 2]);
        // SAFETY: the array stored above.
        assert_eq!(unsafe { core::slice::from_raw_parts(first, 2) }, [1, 2]);
        let wide = store_128(vec![1 << 100]);
        assert_eq!(wide.addr() % 16, 0);
        // SAFETY: as above; another thread's arrays do not touch it.
        std::thread::spawn(|| _ = store_64(vec![9; 2])).join().unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { (*first, *wide) }, (1, 1 << 100));
    }
}
