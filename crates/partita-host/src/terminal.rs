//! The terminal of a job, and the process group in its foreground.
//!
//! A program that `partita run` starts from a terminal is in a separate process group, in the
//! background. So the terminal's signals of Ctrl-C, Ctrl-\ and Ctrl-Z reach only `partita run`,
//! which first ends the program's GPU work if necessary, and forwards the signal. The kernel stops
//! a program in the background that reads the terminal or sets its modes; then the program gets the
//! terminal, and continues in the foreground. From then on it gets the terminal's signals directly,
//! until it ends.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Number};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::process::{ProcessId, is_orphaned};

/// The terminal of the job that this process is in.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    /// The job: this process's group.
    own: Pid,
}

impl Terminal {
    /// The terminal, if there is one and this process's group owns it or could get it from a shell.
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

/// A program in a separate process group.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// `None` for a program that no terminal attends.
    terminal: Option<&'a Terminal>,
    group: Pid,
    /// Whether it was given the terminal.
    is_given: bool,
}

impl<'a> Job<'a> {
    /// The group that this child was started as.
    pub fn new(terminal: Option<&'a Terminal>, child: u32) -> Option<Self> {
        let group = i32::try_from(child).ok().and_then(Pid::from_raw)?;
        Some(Self { terminal, group, is_given: false })
    }

    /// Its living processes.
    pub fn processes(&self) -> Vec<ProcessId> {
        crate::process::in_group(self.group.as_raw_nonzero().get())
    }

    /// Sends a signal to all of it.
    pub fn signal(&self, signal: Signal) {
        // It may be gone at any moment; then there is no receiver.
        let _ = rustix::process::kill_process_group(self.group, signal);
    }

    /// To be called after any child has changed: the program may have been stopped, by the terminal
    /// or for want of it.
    pub fn look(&mut self) {
        let Some(terminal) = self.terminal else { return };
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = rustix::process::waitid(WaitId::Pid(self.group), options) else { return };
        let Some(signal) = status.stopping_signal() else { return };
        if signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw() {
            if terminal.is_ours() {
                self.is_given = terminal.give(self.group).is_ok();
                self.signal(Signal::CONT);
            } else if terminal.is_of(self.group) {
                self.signal(Signal::CONT);
            } else {
                // The shell says that the job wants the terminal, and continues it in the
                // foreground.
                let _ = rustix::process::kill_current_process_group(Signal::TTIN);
            }
        } else if signal == Signal::TSTP.as_raw() && self.is_given {
            if is_orphaned() {
                // The kernel does not stop a job that no shell would continue.
                self.signal(Signal::CONT);
            } else {
                // The terminal has sent it only to the program's group.
                let _ = rustix::process::kill_current_process_group(Signal::STOP);
            }
        }
    }

    /// Stops the job, for the terminal or another sender: the program, and then this process.
    pub fn stop(&self) {
        if !is_orphaned() {
            self.signal(Signal::TSTP);
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        }
    }

    /// Continues the job, in the foreground or in the background.
    pub fn go_on(&mut self) {
        let give = |terminal: &Terminal| terminal.is_ours() && terminal.give(self.group).is_ok();
        self.is_given = self.is_given && self.terminal.is_some_and(give);
        self.signal(Signal::CONT);
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // For the rest of the job, such as the script around it.
        if let Some(terminal) = self.terminal.filter(|terminal| terminal.is_of(self.group)) {
            let _ = terminal.give(terminal.own);
        }
    }
}
