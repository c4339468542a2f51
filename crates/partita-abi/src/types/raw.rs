//! Types without handles.

use super::{CUhostFn, CUoccupancyB2DSize, CUstreamCallback, CuResult, c_void};

/// A type of the header, and the same without handles.
pub trait Erase {
    /// The type, with `*mut c_void` for each handle.
    type Raw;
}

/// `T` with `*mut c_void` for each handle, for code that only passes handles on. Both have the same
/// ABI, for a handle is a pointer.
pub type Raw<T> = <T as Erase>::Raw;

impl<T: Erase> Erase for *const T {
    type Raw = *const T::Raw;
}

impl<T: Erase> Erase for *mut T {
    type Raw = *mut T::Raw;
}

macro_rules! same {
    ($($type:ty)*) => {
        $(impl Erase for $type {
            type Raw = Self;
        })*
    };
}

same! {
    c_void i8 u8 u16 u32 i32 u64 usize f32
    CuResult CUhostFn CUoccupancyB2DSize CUstreamCallback
}
