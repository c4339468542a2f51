//! The system calls that a process makes, by ptrace(2).

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs a program and returns the numbers of the system calls of its first thread, and its exit
/// code.
///
/// # Panics
/// If the program cannot be traced or is ended by a signal.
#[allow(clippy::zombie_processes, reason = "it is waited for by its number, as a tracer must")]
pub fn trace(command: &mut Command) -> (Vec<u64>, i32) {
    let stop_for_tracer = || {
        // SAFETY: asks for nothing but to be traced by the parent.
        match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call.
    let child = unsafe { command.pre_exec(stop_for_tracer) }.spawn().expect("the program starts");
    let pid = libc::pid_t::try_from(child.id()).expect("a process number");
    let (mut calls, mut is_inside) = (Vec::new(), false);
    loop {
        let mut status = 0;
        // SAFETY: a valid pointer, and a child of this process.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        if libc::WIFEXITED(status) {
            return (calls, libc::WEXITSTATUS(status));
        }
        assert!(libc::WIFSTOPPED(status), "ended by signal {}", libc::WTERMSIG(status));
        let signal = libc::WSTOPSIG(status);
        let of_call = libc::SIGTRAP | 0x80;
        if signal == of_call {
            // SAFETY: plain memory, written by the call.
            let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
            // SAFETY: a stopped child and a valid pointer.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) }, 0);
            is_inside = !is_inside;
            if is_inside {
                calls.push(registers.orig_rax);
            }
        } else {
            // The first stop, at the program's start.
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
            // SAFETY: a stopped child.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) }, 0);
        }
        let passed_on = if [of_call, libc::SIGTRAP].contains(&signal) { 0 } else { signal };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, passed_on) }, 0);
    }
}

/// The calls from where the loader has relocated all libraries: from then on the code of libraries
/// runs. Before, the loader maps and protects them, in an order that depends on their sizes.
pub fn without_loading(calls: &[u64]) -> &[u64] {
    let is_loading = |call: &u64| {
        [libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_mprotect, libc::SYS_mmap]
            .contains(&call.cast_signed())
    };
    let first = calls.iter().position(|&call| call.cast_signed() == libc::SYS_set_tid_address);
    let first = first.expect("the loader makes this call once it has loaded all libraries") + 1;
    let relocating = calls[first..].iter().take_while(|call| is_loading(call)).count();
    &calls[first + relocating..]
}
