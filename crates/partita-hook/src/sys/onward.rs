//! Calls that go on elsewhere by a *jump*: the caller's arguments and return address stay in place.
//!
//! Whatever the processor, the code here is all the assembly that this takes. What happens between
//! the call and the jump is a function in Rust.

use core::ffi::c_void;

/// A call's first four arguments, which are in registers. What is changed here, the function behind
/// gets.
pub type Arguments = [*mut c_void; 4];

/// The body of a naked function that goes on at the address which a function
/// `extern "C" fn(&mut Arguments, caller: *const c_void) -> *mut c_void` returns.
macro_rules! onward {
    ($decide:path) => {
        core::arch::naked_asm!(
            #[cfg(target_arch = "x86_64")]
            "push rcx
             push rdx
             push rsi
             push rdi
             mov rdi, rsp
             mov rsi, qword ptr [rsp + 32]
             sub rsp, 8
             call {decide}
             add rsp, 8
             pop rdi
             pop rsi
             pop rdx
             pop rcx
             jmp rax",
            #[cfg(target_arch = "aarch64")]
            "stp x29, x30, [sp, #-48]!
             mov x29, sp
             stp x0, x1, [sp, #16]
             stp x2, x3, [sp, #32]
             add x0, sp, #16
             mov x1, x30
             bl {decide}
             mov x16, x0
             ldp x0, x1, [sp, #16]
             ldp x2, x3, [sp, #32]
             ldp x29, x30, [sp], #48
             br x16",
            decide = sym $decide,
        )
    };
}
pub(crate) use onward;

/// Defines a hidden function by a name of C: it jumps to a function, or through a word that holds
/// an address.
macro_rules! hidden_jump {
    ($name:ident to $body:path) => {
        $crate::sys::onward::hidden_jump!(@ $name, "jmp {target}", "b {target}", $body);
    };
    ($name:ident through $word:path) => {
        $crate::sys::onward::hidden_jump!(
            @ $name,
            "jmp qword ptr [rip + {target}]",
            "adrp x16, {target}
             ldr x16, [x16, :lo12:{target}]
             br x16",
            $word
        );
    };
    (@ $name:ident, $x86_64:literal, $aarch64:literal, $target:path) => {
        core::arch::global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", %function"),
            concat!(stringify!($name), ":"),
            #[cfg(target_arch = "x86_64")]
            $x86_64,
            #[cfg(target_arch = "aarch64")]
            $aarch64,
            target = sym $target,
        );
    };
}
pub(crate) use hidden_jump;

/// Where a call goes on that is answered already: with the answer as its first argument.
pub extern "C" fn answered(answer: *mut c_void) -> *mut c_void {
    answer
}
