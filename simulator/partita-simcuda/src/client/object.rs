//! Handles that are pointers: contexts, streams, events and functions.
//!
//! Such an object is never unmapped, so a stale handle is recognised by its mark and refused with
//! an error where a real driver may crash. Streams and events, of which programs make many, are
//! used again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use partita_abi::CuResult;

use crate::shared::sys::lock;

/// The kind of the object at an address, and whether it is alive.
#[derive(Debug)]
pub struct Mark(AtomicU64);

impl Mark {
    /// A live object of a kind.
    pub const fn live(kind: u64) -> Self {
        Self(AtomicU64::new(kind))
    }

    /// Makes a destroyed object live again.
    pub fn revive(&self, kind: u64) {
        self.0.store(kind, Ordering::Release);
    }

    /// Destroys an object; `false` after an earlier call.
    pub fn kill(&self, kind: u64) -> bool {
        self.0.compare_exchange(kind, !kind, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the object is alive.
    #[inline]
    pub fn is(&self, kind: u64) -> bool {
        self.0.load(Ordering::Acquire) == kind
    }
}

/// An object with a mark.
pub trait Object: Sized + Sync + 'static {
    /// The mark's value while it is alive.
    const KIND: u64;
    /// The error for a bad handle of this kind.
    const BAD: CuResult;
    /// Its mark.
    fn mark(&self) -> &Mark;
}

/// The object of a handle.
///
/// # Errors
/// `T::BAD` for null, for an invalid address, and for a destroyed object.
///
/// # Safety
/// The address is null or points to readable memory, as the C interface requires of every handle.
#[inline]
pub unsafe fn object<T: Object>(handle: *const std::ffi::c_void) -> Result<&'static T, CuResult> {
    let object = handle.cast::<T>();
    if object.addr() < 4096 || !object.is_aligned() {
        return Err(T::BAD);
    }
    // SAFETY: the caller guarantees the address; objects are leaked, so a handle that this library
    // returned stays readable.
    let object = unsafe { &*object };
    if object.mark().is(T::KIND) { Ok(object) } else { Err(T::BAD) }
}

/// Objects that were destroyed and may be used again.
#[derive(Debug)]
pub struct Used<T: 'static>(Mutex<Vec<&'static T>>);

impl<T> Default for Used<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Used<T> {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Takes one.
    pub fn take(&self) -> Option<&'static T> {
        lock(&self.0).pop()
    }

    /// Returns one.
    pub fn put(&self, object: &'static T) {
        lock(&self.0).push(object);
    }
}

/// Handles that are numbers, for objects that programs create few of. A handle is never reused.
#[derive(Debug)]
pub struct Registry<T>(Mutex<Vec<(usize, T)>>, AtomicU64);

impl<T: Clone> Registry<T> {
    /// Handles from `base` on, far away from other registries' and from any address that is mapped.
    pub const fn new(base: u64) -> Self {
        Self(Mutex::new(Vec::new()), AtomicU64::new(base))
    }

    /// Returns a new handle for a value.
    pub fn insert(&self, value: T) -> usize {
        let mut values = lock(&self.0);
        // Under the lock, so that handles grow along the list.
        let handle = self.1.fetch_add(64, Ordering::Relaxed) as usize;
        values.push((handle, value));
        handle
    }

    /// The value of a handle.
    pub fn get(&self, handle: usize) -> Option<T> {
        let values = lock(&self.0);
        // Handles only grow and removal keeps the order.
        let at = values.binary_search_by_key(&handle, |(handle, _)| *handle).ok()?;
        Some(values[at].1.clone())
    }

    /// Replaces the value of a handle.
    pub fn replace(&self, handle: usize, value: T) {
        let mut values = lock(&self.0);
        if let Ok(at) = values.binary_search_by_key(&handle, |(handle, _)| *handle) {
            values[at].1 = value;
        }
    }

    /// Removes a value.
    pub fn remove(&self, handle: usize) -> Option<T> {
        let mut values = lock(&self.0);
        let at = values.binary_search_by_key(&handle, |(handle, _)| *handle).ok()?;
        Some(values.remove(at).1)
    }

    /// All values with their handles.
    pub fn all(&self) -> Vec<(usize, T)> {
        lock(&self.0).clone()
    }
}
