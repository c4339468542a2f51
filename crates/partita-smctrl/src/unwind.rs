//! Stands in for the personality routine, which `alloc` names because it is compiled for unwinding.
//! Nothing here unwinds.
//!
//! Hidden, so that it is invisible outside the shared library; weak, so that a program that links
//! the archive beside other Rust code keeps the other's. What resumes an unwinding
//! (`_Unwind_Resume`) is not defined here: in a C++ program that links the archive, a second one
//! would take the place of the C++ runtime's.

core::arch::global_asm!(
    ".weak rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    "ud2",
    #[cfg(target_arch = "aarch64")]
    "brk #1",
);
