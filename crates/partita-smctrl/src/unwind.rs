//! Replaces the personality routine, to which `alloc` refers because it is compiled for unwinding.
//! Nothing here unwinds.
//!
//! It is hidden, so that the shared library does not export it, and weak, so that a program that
//! links the archive beside other Rust code keeps the other definition. `_Unwind_Resume` is not
//! defined here: in a C++ program that links the archive it would replace that of the C++ runtime.

core::arch::global_asm!(
    ".weak rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    "ud2",
    #[cfg(target_arch = "aarch64")]
    "brk #1",
);
