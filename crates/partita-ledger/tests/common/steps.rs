//! A process that its parent single-steps, and kills after some of the steps.

use std::ptr;

use super::process::{Child, End, fork};

/// Kills are spread over all instructions; an unoptimised build has thousands.
pub const KILLS_MAX: usize = 80;
/// Steps that all victims of a test make together; each takes microseconds.
const STEPS_MAX: usize = 200_000;

/// A process that prepares, and stops before the operation under test; `None` if processes may not
/// trace others here.
pub fn stopped<P>(prepare: impl FnOnce() -> P, operation: impl FnOnce(P)) -> Option<Child> {
    let child = fork(|| {
        // SAFETY: asks to be traced by the parent, and stops for it.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut::<u8>(), ptr::null_mut::<u8>()) != 0 {
                libc::_exit(77);
            }
        }
        let prepared = prepare();
        // SAFETY: stops this process until its parent resumes it.
        unsafe { libc::raise(libc::SIGSTOP) };
        operation(prepared);
        // SAFETY: ends the child as it is, so that it releases nothing.
        unsafe { libc::_exit(0) }
    });
    match wait_stop(&child) {
        Some(libc::SIGSTOP) => Some(child),
        other => {
            assert_eq!(other, None, "stopped by another signal");
            None
        }
    }
}

/// The signal that stopped it, or `None` if it has ended.
fn wait_stop(child: &Child) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the status is where the call writes.
    let waited = unsafe { libc::waitpid(child.0, &mut status, 0) };
    assert_eq!(waited, child.0);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

/// The length of a step.
#[derive(Clone, Copy)]
pub enum Step {
    /// One instruction.
    Instruction,
    /// To the next entry to the kernel or return from it.
    SystemCall,
}

/// Lets it make one step; false if that ended it.
pub fn step(child: &Child, step: Step) -> bool {
    let request = match step {
        Step::Instruction => libc::PTRACE_SINGLESTEP,
        Step::SystemCall => libc::PTRACE_SYSCALL,
    };
    // SAFETY: the child is stopped and traced by this thread.
    let result = unsafe { libc::ptrace(request, child.0, ptr::null_mut::<u8>(), ptr::null_mut::<u8>()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    wait_stop(child).is_some_and(|signal| {
        assert_eq!(signal, libc::SIGTRAP);
        true
    })
}

/// Counts the steps of an operation, examines each, and kills it after some of them. Returns false
/// if processes may not trace others here.
pub fn at_every(
    unit: Step,
    start: impl Fn() -> Option<Child>,
    mut at_each: impl FnMut(usize),
    mut at_kill: impl FnMut(usize, Child),
) -> bool {
    let Some(victim) = start() else {
        eprintln!("skipped: this system does not let a process trace its child");
        return false;
    };
    let mut steps = 0;
    while step(&victim, unit) {
        steps += 1;
        at_each(steps);
    }
    // It has been waited for.
    std::mem::forget(victim);
    // On average each makes half of them.
    let kills = KILLS_MAX.min(2 * STEPS_MAX / steps);
    assert!(kills > 10, "{steps} steps are too many to try enough of them");
    for kill in (0..steps).step_by(1 + steps / kills) {
        let victim = start().unwrap();
        if (0..kill).all(|_| step(&victim, unit)) {
            at_kill(kill, victim);
        } else {
            // A few instructions fewer than the first one: it has ended, and has been waited for.
            std::mem::forget(victim);
        }
    }
    true
}

pub fn end(victim: Child) {
    victim.kill();
    assert_eq!(victim.wait(), End::Signal(libc::SIGKILL));
}
