//! The C types of the driver API that cross Partita's boundaries.
//!
//! Each type has the name, the fields and the layout of `cuda.h` of CUDA 13.0 on 64-bit Linux
//! (x86_64 and aarch64 agree); sizes and offsets are asserted at compile time against values from a
//! C compiler. Field names are the header's in Rust's spelling (`gridDimX` is `grid_dim_x`).
//!
//! Enumerations are plain `u32` aliases with constants: the values come from other programs, and a
//! Rust `enum` with a value outside its list would be undefined behaviour.
#![allow(non_camel_case_types)] // The header's own names.

mod array;
mod context;
mod copy;
mod flags;
mod graph;
mod handle;
mod launch;
mod memory;
mod raw;

pub use array::*;
pub use context::*;
pub use copy::*;
pub use flags::*;
pub use graph::*;
pub use handle::*;
pub use launch::*;
pub use memory::*;
pub use raw::{Erase, Raw};

pub use crate::CuResult;
pub use crate::attribute::{CUdevice_attribute, CUfunction_attribute, CUpointer_attribute};
pub use core::ffi::{c_char, c_void};

/// Asserts the size of a structure and the offsets of some of its fields.
macro_rules! layout {
    ($type:ty, $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)*
        };
        impl super::Erase for $type {
            type Raw = Self;
        }
    };
}
use layout;
