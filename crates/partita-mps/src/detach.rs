//! Give a daemon its own session and no inherited descriptors.
//!
//! A daemon that inherits a descriptor of its starter keeps that descriptor's other end waiting: a
//! shell pipeline around `partita run` would not end while the MPS daemon lives. The standard
//! library opens everything close-on-exec, but descriptors that the starter inherited are passed
//! on. So a small launcher process that calls [`detach_and_exec`] starts the daemon.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::conditions::OPEN_FILES_MIN;

/// Restricts this process, and its later programs and children, to these processors, as `taskset`
/// does. A daemon passes this on to its servers (MPS guide, section 2.3.5.3).
///
/// # Errors
/// The system's: none of the processors exists, or is allowed.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no processor {cpu}")));
        }
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The limit on open files of a daemon that a process with this one's limits starts; `None` for no
/// limit. See [`raise_open_files`].
#[must_use]
pub fn open_files_of_daemon() -> Option<u64> {
    enough_files(getrlimit(Resource::Nofile)).current
}

/// Raises the limit on open files of this process, and of its later programs and children, to the
/// number that MPS needs, up to the hard limit: shells and login managers set a lower one, for
/// programs that use `select`.
///
/// # Errors
/// The system's.
pub fn raise_open_files() -> io::Result<()> {
    Ok(setrlimit(Resource::Nofile, enough_files(getrlimit(Resource::Nofile)))?)
}

fn enough_files(limit: Rlimit) -> Rlimit {
    let most = limit.maximum.unwrap_or(u64::MAX);
    Rlimit { current: limit.current.map(|now| now.max(OPEN_FILES_MIN.min(most))), ..limit }
}

/// Reads a list of processors in the form of `taskset -c`: `0,2-5`.
///
/// # Errors
/// A message about the mistake.
pub fn parse_cpus(text: &str) -> Result<Vec<usize>, String> {
    let refuse = || format!("{text:?} is not a list of processors: use 0,2-5");
    let number =
        |text: &str| text.parse::<usize>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first).ok_or_else(refuse)?, number(last).ok_or_else(refuse)?);
        if first > last {
            return Err(refuse());
        }
        let most = rustix::thread::CpuSet::MAX_CPU - 1;
        if last > most {
            return Err(format!("there is no processor {last}: the greatest number is {most}; use 0,2-5"));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Closes every descriptor but the three standard ones, starts a session, sets the umask to 022 and
/// becomes `argv`. For a launcher process with no other work: it must have one thread and no
/// descriptor that it still needs.
///
/// # Errors
/// The system's, if `argv` is empty or cannot be executed. On success the call does not return.
pub fn detach_and_exec(argv: &[OsString]) -> Result<Infallible, io::Error> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program to start"));
    };
    let mut open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&descriptor| descriptor > 2)
        .collect();
    open.sort_unstable();
    for descriptor in open {
        // The directory's own descriptor is in the list and already closed.
        let _ = nix::unistd::close(descriptor);
    }
    // Fails only for a process that leads a group already; then the caller put it into a new group,
    // which serves as well.
    let _ = rustix::process::setsid();
    // Other users' clients read the file with the daemon's process number. The umask of root, or of
    // the service's unit, may hide it; the directory's mode says who enters.
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    Err(Command::new(program).args(arguments).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_has_the_files_that_it_may_have() {
        let raised = |current, maximum| enough_files(Rlimit { current, maximum }).current;
        assert_eq!(raised(Some(1024), Some(524_288)), Some(OPEN_FILES_MIN));
        assert_eq!(raised(Some(1024), Some(4096)), Some(4096));
        assert_eq!(raised(Some(1024), None), Some(OPEN_FILES_MIN));
        assert_eq!(raised(Some(65_536), Some(65_536)), Some(65_536), "never fewer");
        assert_eq!(raised(None, None), None);
    }

    #[test]
    fn processors_are_listed_as_for_taskset() {
        assert_eq!(parse_cpus("0,2-4"), Ok(vec![0, 2, 3, 4]));
        for text in ["", "a", "3-1", "1-", "-1", "0,,1", "99999999"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }
}
