//! The terminal of a job, and who is in its foreground.
//!
//! A program that `partita run` starts from a terminal is in a process group of its own, in the
//! background. So what the terminal sends on Ctrl-C, Ctrl-\ and Ctrl-Z reaches `partita run` alone,
//! which ends the program's work on the GPU first where it must, and sends the signal on. The
//! kernel stops a program in the background that reads the terminal or sets its modes; then it is
//! given the terminal, and goes on as if it had been in the foreground. From then on the terminal's
//! signals are its own, until it ends.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Number};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::process::{ProcessId, Stat};

/// The terminal of the job that this process is in.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    /// The job: this process's group.
    own: Pid,
}

impl Terminal {
    /// The terminal, if there is one and this process's group has it or could be given it by a
    /// shell.
    pub fn of_job() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let terminal = Self { tty, own: rustix::process::getpgrp() };
        (terminal.is_ours() || !is_orphaned()).then_some(terminal)
    }

    /// Whether this process's group is in the foreground.
    fn is_ours(&self) -> bool {
        self.is_of(self.own)
    }

    fn is_of(&self, group: Pid) -> bool {
        rustix::termios::tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Puts a group into the foreground, though this process be in the background.
    fn give(&self, group: Pid) -> io::Result<()> {
        // Else the kernel would stop this process for it.
        let unharmed = SigSet::from(Number::SIGTTOU);
        let before = unharmed.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let given = rustix::termios::tcsetpgrp(&self.tty, group);
        before.thread_set_mask()?;
        Ok(given?)
    }
}

/// A program that is a process group of its own.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    terminal: &'a Terminal,
    group: Pid,
    /// Whether it was given the terminal.
    is_given: bool,
}

impl<'a> Job<'a> {
    /// The group that this child was started as.
    pub fn new(terminal: &'a Terminal, child: u32) -> Option<Self> {
        let group = i32::try_from(child).ok().and_then(Pid::from_raw)?;
        Some(Self { terminal, group, is_given: false })
    }

    /// Its living processes.
    pub fn processes(&self) -> Vec<ProcessId> {
        crate::process::in_group(self.group.as_raw_nonzero().get())
    }

    /// Sends a signal to all of it.
    pub fn signal(&self, signal: Signal) {
        // It may be gone at any moment; then there is nobody to tell.
        let _ = rustix::process::kill_process_group(self.group, signal);
    }

    /// To be called after any child has changed: the program may have been stopped, by the terminal
    /// or for want of it.
    pub fn look(&mut self) {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = rustix::process::waitid(WaitId::Pid(self.group), options) else { return };
        let Some(signal) = status.stopping_signal() else { return };
        if signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw() {
            if self.terminal.is_ours() {
                self.is_given = self.terminal.give(self.group).is_ok();
                self.signal(Signal::CONT);
            } else if self.terminal.is_of(self.group) {
                self.signal(Signal::CONT);
            } else {
                // The shell says that the job wants the terminal, and continues it in the
                // foreground.
                let _ = rustix::process::kill_current_process_group(Signal::TTIN);
            }
        } else if signal == Signal::TSTP.as_raw() && self.is_given {
            if is_orphaned() {
                // The kernel stops no job that nobody would continue.
                self.signal(Signal::CONT);
            } else {
                // The terminal has told the program's group alone.
                let _ = rustix::process::kill_current_process_group(Signal::STOP);
            }
        }
    }

    /// The terminal, or somebody, asks the job to stop: the program, and then this process.
    pub fn stop(&self) {
        if !is_orphaned() {
            self.signal(Signal::TSTP);
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        }
    }

    /// The job goes on, in the foreground or in the background.
    pub fn go_on(&mut self) {
        self.is_given = self.is_given && self.terminal.is_ours() && self.terminal.give(self.group).is_ok();
        self.signal(Signal::CONT);
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // For whoever is left of the job: the script around it, say.
        if self.terminal.is_of(self.group) {
            let _ = self.terminal.give(self.terminal.own);
        }
    }
}

/// Whether nobody would continue this process's group if it stopped: no shell of the same session
/// watches over it.
fn is_orphaned() -> bool {
    let Some(own) = Stat::of("self") else { return true };
    let mut at = own;
    loop {
        match Stat::of(&at.parent.to_string()) {
            Some(parent) if parent.session != own.session => return true,
            Some(parent) if parent.group != own.group => return false,
            Some(parent) => at = parent,
            None => return true,
        }
    }
}
