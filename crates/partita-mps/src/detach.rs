//! Giving a daemon a session of its own and none of our descriptors.
//!
//! A daemon that inherits a descriptor of its starter keeps that descriptor's
//! other end waiting: a shell pipeline around `partita run` would not end
//! while the MPS daemon lives. The standard library opens everything
//! close-on-exec, but what the starter's own parent left open it passes on.
//! So the daemon is started through a small launcher process that calls
//! [`detach_and_exec`].

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Keeps this process, and all that it becomes and starts, to these processors, as `taskset` does. A daemon hands this on to its
/// servers (MPS guide, section 2.3.5.3).
///
/// # Errors
/// What the system said: none of them is there, or allowed.
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

/// Reads a list of processors as `taskset -c` takes it: `0,2-5`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_cpus(text: &str) -> Result<Vec<usize>, String> {
    let refuse = || format!("{text:?} is no list of processors: use 0,2-5");
    let number =
        |text: &str| text.parse::<usize>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first).ok_or_else(refuse)?, number(last).ok_or_else(refuse)?);
        if first > last || last >= rustix::thread::CpuSet::MAX_CPU {
            return Err(refuse());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Closes every descriptor but the three standard ones, starts a session and
/// becomes `argv`. For a launcher process that does nothing else: it must have
/// one thread and hold no descriptor that it still wants.
///
/// # Errors
/// What the system said, if `argv` is empty or cannot be executed. On success
/// the call does not return.
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
    // Fails only for a process that leads a group already; then the caller
    // put it into a group of its own, which serves as well.
    let _ = rustix::process::setsid();
    Err(Command::new(program).args(arguments).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed_as_for_taskset() {
        assert_eq!(parse_cpus("0,2-4"), Ok(vec![0, 2, 3, 4]));
        for text in ["", "a", "3-1", "1-", "-1", "0,,1", "99999999"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }
}
