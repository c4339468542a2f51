//! The CUDA driver, loaded at run time.
#![no_std]
extern crate alloc;
