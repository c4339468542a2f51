//! Signals that `partita run` gets and its program should get.
//!
//! A program that is started from a terminal is a process group of its own, and
//! gets every signal by way of `partita`, which can end its work on the GPU
//! first (see `terminal.rs`): what the terminal sends, and what asks it to end,
//! goes to all of its group, as it would to a job; anything else to the program
//! alone. Without a terminal it is in `partita`'s group, and whoever signals
//! that group reaches both; so only what came to `partita` alone is sent on.

use std::fs;
use std::io;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Those that a program may have a use for, and that end a process that has none.
const USERS: [i32; 3] = [number::SIGUSR1, number::SIGUSR2, number::SIGALRM];

/// The signals by which a job is stopped from the terminal, and goes on.
const JOB_CONTROL: [i32; 2] = [number::SIGTSTP, number::SIGCONT];

/// From now on a signal that would end this process only marks it as ending, so
/// that it can clean up: waiting for a job stops, and [`ending`] tells.
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

/// From its creation on, signals are kept for the program instead of acting on this process.
#[derive(Debug)]
pub struct Signals {
    iterator: SignalsInfo<WithOrigin>,
    terminal: Option<Terminal>,
}

impl Signals {
    /// Takes over the signals, but not those that this process was started to
    /// ignore: under `nohup` the program is to ignore them too.
    ///
    /// # Errors
    /// If the system refuses the handlers.
    pub fn take_over() -> io::Result<Self> {
        end_in_order_by(ENDING.into_iter())?;
        let ignored = ignored_signals();
        let wanted = FORWARDED
            .iter()
            .map(|&(signal, _)| signal)
            .filter(|signal| ignored & (1 << (signal - 1)) == 0)
            .chain([number::SIGCHLD]);
        Ok(Self { iterator: SignalsInfo::new(wanted)?, terminal: Terminal::of_job() })
    }

    /// To be called just before the program is started: from then on it stops and goes on with this
    /// process. Returns whether it is to be started as a process group of its own.
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
        Ok(self.terminal.is_some())
    }

    /// Waits until `child` has ended, sending on the signals that came and come. `before` is called
    /// with each that may end a process of its, before it is sent on. A child is a process group of
    /// its own exactly if `take_over_job` said so.
    ///
    /// # Errors
    /// If the system cannot tell how it ended.
    pub fn attend(
        &mut self,
        child: &mut Child,
        mut before: impl FnMut(Signal, ProcessId),
    ) -> io::Result<ExitStatus> {
        let process = ProcessId::living(child.id());
        let mut job = self.terminal.as_ref().and_then(|terminal| Job::new(terminal, child.id()));
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

/// Sends a signal on to whom it is for.
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
        // The terminal has told it itself.
        None if !was_sent(origin) => {}
        _ => {
            if let Some(process) = process {
                if ends {
                    before(signal, process);
                }
                // The program may end at any moment; then there is nobody to tell.
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
