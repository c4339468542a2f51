//! Objects of the program that live as long as graphs.

use core::ffi::c_void;
use std::sync::{Arc, Mutex};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::gpus::runtime;
use super::object::Registry;
use super::put;
use crate::shared::sys::lock;

/// An object of the program with a count and a function that destroys it.
#[derive(Debug)]
struct UserObject {
    count: Mutex<u32>,
    destroy: CUhostFn,
    data: usize,
}

static OBJECTS: Registry<Arc<UserObject>> = Registry::new(0x1a00_0000_0000);

/// Drops references to an object; with the last one the program's function destroys it.
///
/// # Errors
/// `INVALID_VALUE` for a bad handle and for more references than there are.
pub fn release(handle: usize, count: u32) -> Result<(), CuResult> {
    let object = OBJECTS.get(handle).ok_or(CuResult::INVALID_VALUE)?;
    let left = {
        let mut held = lock(&object.count);
        *held = held.checked_sub(count).filter(|_| count > 0).ok_or(CuResult::INVALID_VALUE)?;
        *held
    };
    if left == 0 {
        OBJECTS.remove(handle);
        if let Some(destroy) = object.destroy {
            // SAFETY: the program gave this function to be called once with this argument.
            unsafe { destroy(object.data as *mut c_void) };
        }
    }
    Ok(())
}

/// Adds references to an object.
///
/// # Errors
/// `INVALID_VALUE` for a bad handle and for none.
pub fn retain(handle: usize, count: u32) -> Result<(), CuResult> {
    let object = OBJECTS.get(handle).ok_or(CuResult::INVALID_VALUE)?;
    let mut held = lock(&object.count);
    *held = held.checked_add(count).filter(|_| count > 0).ok_or(CuResult::INVALID_VALUE)?;
    Ok(())
}

/// Checks a handle.
///
/// # Errors
/// `INVALID_VALUE` for a bad one.
pub fn known(handle: usize) -> Result<(), CuResult> {
    OBJECTS.get(handle).map(drop).ok_or(CuResult::INVALID_VALUE)
}

driver_api! {
    /// Puts a thing of the program's under a count.
    fn cuUserObjectCreate(handle, data, destroy, count, flags) {
        runtime()?;
        // The only flag promises that the function will not synchronise, and it is required.
        if handle.is_null() || destroy.is_none() || count == 0 || flags != 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        let object = UserObject { count: Mutex::new(count), destroy, data: data as usize };
        put(handle, CUuserObject::from_addr(OBJECTS.insert(Arc::new(object))))
    }

    /// Drops references.
    fn cuUserObjectRelease(handle, count) {
        runtime()?;
        release(handle.addr(), count)
    }
}
