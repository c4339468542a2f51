//! What NVIDIA's headers fix.
#![no_std]
