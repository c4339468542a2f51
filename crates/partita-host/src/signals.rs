//! Signals that `partita run` gets and its program should get.
//!
//! A program that is started from a terminal is a separate process group, and gets every signal
//! through `partita`, which can end its GPU work first (see `terminal.rs`). Signals from the
//! terminal, and requests to end, go to its whole group, as for a job; other signals only to the
//! program. Without a terminal it is in `partita`'s group, where a signal to the group reaches
//! both; so only signals that came to `partita` alone are forwarded.

use std::fs;
use std::io;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use rustix::process::Signal;
use signal_hook::consts::signal as number;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::error::Error;
use crate::process::ProcessId;
use crate::terminal::{Job, Terminal};

/// The signals that are sent on.
const FORWARDED: [(i32, Signal); 8] = [
    (number::SIGHUP, Signal::HUP),
    (number::SIGINT, Signal::INT),
    (number::SIGQUIT, Signal::QUIT),
    (number::SIGTERM, Signal::TERM),
    (number::SIGUSR1, Signal::USR1),
    (number::SIGUSR2, Signal::USR2),
    (number::SIGALRM, Signal::ALARM),
    (number::SIGWINCH, Signal::WINCH),
];

/// The signals of [`FORWARDED`] that end a command that has not started its program yet.
const ENDING: [i32; 4] = [number::SIGHUP, number::SIGINT, number::SIGQUIT, number::SIGTERM];

/// Signals that programs use, and that end a process without a handler.
const USERS: [i32; 3] = [number::SIGUSR1, number::SIGUSR2, number::SIGALRM];

/// The signals by which the terminal stops and continues a job.
const JOB_CONTROL: [i32; 2] = [number::SIGTSTP, number::SIGCONT];

/// From now on a signal that would end this process only marks it as ending, so that it can clean
/// up: waiting for a job stops, and [`ending`] returns the signal.
///
/// # Errors
/// If the system refuses the handlers.
pub fn end_in_order() -> io::Result<()> {
    end_in_order_by(ENDING.into_iter().chain(USERS))
}

fn end_in_order_by(signals: impl Iterator<Item = i32>) -> io::Result<()> {
    let ignored = ignored_signals();
    for signal in signals.filter(|signal| ignored & (1 << (signal - 1)) == 0) {
        signal_hook::flag::register_usize(signal, flag(), signal as usize)?;
    }
    Ok(())
}

/// The handlers want to share ownership; a static lives as long as they do.
fn flag() -> Arc<AtomicUsize> {
    static SHARED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(|| Arc::new(AtomicUsize::new(0)));
    Arc::clone(&SHARED)
}

/// The signal that came and asks this process to end, if one did.
pub fn ending() -> Option<i32> {
    match flag().load(Ordering::Relaxed) {
        0 => None,
        signal => i32::try_from(signal).ok(),
    }
}

/// An error if a signal asked this process to end.
pub fn check() -> Result<(), Error> {
    ending().map_or(Ok(()), |signal| Err(Error::Interrupted { signal }))
}

/// Ctrl-C and Ctrl-\ that come to this process, instead of ending it.
#[derive(Debug)]
pub struct Keys {
    interrupts: Arc<AtomicBool>,
    quits: Arc<AtomicBool>,
}

impl Keys {
    /// Takes over both.
    ///
    /// # Errors
    /// If the system refuses the handlers.
    pub fn take_over() -> io::Result<Self> {
        let keys = Self { interrupts: Arc::default(), quits: Arc::default() };
        signal_hook::flag::register(number::SIGINT, Arc::clone(&keys.interrupts))?;
        signal_hook::flag::register(number::SIGQUIT, Arc::clone(&keys.quits))?;
        Ok(keys)
    }

    /// Whether Ctrl-C came since the last call.
    pub fn interrupt(&self) -> bool {
        self.interrupts.swap(false, Ordering::Relaxed)
    }

    /// Whether Ctrl-\ came since the last call.
    pub fn quit(&self) -> bool {
        self.quits.swap(false, Ordering::Relaxed)
    }
}

/// From its creation on, signals are kept for the program instead of acting on this process.
#[derive(Debug)]
pub struct Signals {
    iterator: SignalsInfo<WithOrigin>,
    terminal: Option<Terminal>,
    /// No terminal attends the program.
    is_apart: bool,
}

impl Signals {
    /// Takes over the signals, but not those that this process was started to
    /// ignore: under `nohup` the program is to ignore them too. A program `is_apart` if no terminal
    /// attends it: then requests to end go to its whole group too.
    ///
    /// # Errors
    /// If the system refuses the handlers.
    pub fn take_over(is_apart: bool) -> io::Result<Self> {
        end_in_order_by(ENDING.into_iter())?;
        let ignored = ignored_signals();
        let wanted = FORWARDED
            .iter()
            .map(|&(signal, _)| signal)
            .filter(|signal| ignored & (1 << (signal - 1)) == 0)
            .chain([number::SIGCHLD]);
        let terminal = if is_apart { None } else { Terminal::of_job() };
        Ok(Self { iterator: SignalsInfo::new(wanted)?, terminal, is_apart })
    }

    /// Call it just before the program is started: from then on the program stops and continues
    /// with this process. Returns whether to start it in a separate process group.
    ///
    /// # Errors
    /// If the system refuses the handlers.
    pub(crate) fn take_over_job(&self) -> io::Result<bool> {
        if self.terminal.is_some() {
            let ignored = ignored_signals();
            for signal in JOB_CONTROL.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0) {
                self.iterator.add_signal(signal)?;
            }
        }
        Ok(self.terminal.is_some() || self.is_apart)
    }

    /// Waits until `child` has ended, and forwards past and new signals. `before` is called for
    /// each process that a signal may end, before it is forwarded. A child has a separate process
    /// group exactly if `take_over_job` said so.
    ///
    /// # Errors
    /// If the system does not report how it ended.
    pub fn attend(
        &mut self,
        child: &mut Child,
        mut before: impl FnMut(Signal, ProcessId),
    ) -> io::Result<ExitStatus> {
        let process = ProcessId::living(child.id());
        let has_group = self.terminal.is_some() || self.is_apart;
        let job = || Job::new(self.terminal.as_ref(), child.id());
        let mut job = has_group.then(job).flatten();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            job.iter_mut().for_each(Job::look);
            for origin in self.iterator.wait() {
                match (&mut job, origin.signal) {
                    (Some(job), number::SIGTSTP) => job.stop(),
                    (Some(job), number::SIGCONT) => job.go_on(),
                    (job, _) => send_on(&origin, job.as_ref(), process, &mut before),
                }
            }
        }
    }
}

/// Forwards a signal to its receivers.
fn send_on(
    origin: &Origin,
    job: Option<&Job<'_>>,
    process: Option<ProcessId>,
    before: &mut impl FnMut(Signal, ProcessId),
) {
    let Some(&(_, signal)) = FORWARDED.iter().find(|(signal, _)| *signal == origin.signal) else { return };
    let ends = ENDING.contains(&origin.signal);
    match job {
        Some(job) if ends || !was_sent(origin) => {
            if ends {
                job.processes().into_iter().for_each(|process| before(signal, process));
            }
            job.signal(signal);
        }
        // The terminal has sent it itself.
        None if !was_sent(origin) => {}
        _ => {
            if let Some(process) = process {
                if ends {
                    before(signal, process);
                }
                // The program may end at any moment; then there is no receiver.
                let _ = process.signal(signal);
            }
        }
    }
}

/// Whether a process sent the signal, as opposed to the terminal.
fn was_sent(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Sent(_))
}

/// The signals that this process ignores, bit n-1 for signal n.
fn ignored_signals() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0)
}
