//! Stands in for the unwinder that this library does not have.
//!
//! `alloc` is compiled for unwinding, so it names the personality routine and
//! the function that resumes an unwinding. Nothing here unwinds: a panic ends in
//! the panic handler. The names are defined hidden, so that they satisfy the
//! linker and are invisible outside; exported, they would take the place of the
//! C++ runtime's in the tenant's process.

core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    "rust_eh_personality:",
    "_Unwind_Resume:",
    #[cfg(target_arch = "x86_64")]
    "ud2",
    #[cfg(target_arch = "aarch64")]
    "brk #1",
);
