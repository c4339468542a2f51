//! Processes as the kernel shows them in `/proc`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// One process and no later one that got the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl ProcessId {
    /// The living process that has this number now; a zombie does not live.
    pub fn living(pid: u32) -> Option<Self> {
        let stat = Stat::of(&pid.to_string())?;
        stat.lives().then_some(Self { pid, start_ticks: stat.start_ticks })
    }

    /// The calling process.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        Self::living(std::process::id())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "/proc is not mounted"))
    }

    /// Whether this very process lives.
    pub fn lives(self) -> bool {
        Self::living(self.pid) == Some(self)
    }

    /// Whether it has ended, or the kernel is removing it, which takes as long as its GPU memory
    /// takes to be freed. Its descriptors may be closed already, in any order, and it no longer
    /// runs.
    pub fn is_ending(self) -> bool {
        let stat = Stat::of(&self.pid.to_string()).filter(|stat| stat.start_ticks == self.start_ticks);
        stat.is_none_or(|stat| !stat.lives() || stat.flags & EXITING != 0)
    }

    /// The user that it runs as.
    pub fn user(self) -> Option<u32> {
        fs::metadata(format!("/proc/{}", self.pid)).ok().map(|meta| meta.uid())
    }

    /// The group that it runs as.
    pub(crate) fn user_group(self) -> Option<u32> {
        fs::metadata(format!("/proc/{}", self.pid)).ok().map(|meta| meta.gid())
    }

    /// The name of its program as the kernel keeps it, 15 bytes of it; `?` once it has ended.
    pub fn program(self) -> String {
        let name = fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_else(|_| b"?".to_vec());
        String::from_utf8_lossy(&name).trim_end().to_owned()
    }

    /// Its state and where in the kernel it waits, for a message.
    pub fn what_it_does(self) -> String {
        let state = Stat::of(&self.pid.to_string()).map_or('?', |stat| stat.state);
        let place = fs::read_to_string(format!("/proc/{}/wchan", self.pid)).unwrap_or_default();
        format!("state {state}, in {place}")
    }

    /// The process that started it, or has taken it over since.
    pub fn parent(self) -> Option<Self> {
        let parent = Stat::of(&self.pid.to_string())?.parent;
        if parent == 0 || !self.lives() {
            return None;
        }
        Self::living(parent)
    }

    /// Its numbers, from this process's namespace to its own innermost one.
    pub fn numbers(self) -> Vec<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let numbers: Vec<u32> = numbers
            .unwrap_or_default()
            .split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        if numbers.is_empty() { vec![self.pid] } else { numbers }
    }

    /// The value of a variable in the environment that it was started with.
    /// None also if it may not be read.
    pub fn variable(self, key: &str) -> Option<std::ffi::OsString> {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        environment.split(|&byte| byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
            Some(OsStr::from_bytes(value).to_owned())
        })
    }

    /// Whether it is stopped, by a signal or a debugger.
    pub(crate) fn is_stopped(self) -> bool {
        let stat = Stat::of(&self.pid.to_string());
        stat.is_some_and(|stat| stat.start_ticks == self.start_ticks && matches!(stat.state, 'T' | 't'))
    }

    /// Sends a signal to exactly this process, never to a later one with its number.
    ///
    /// # Errors
    /// Those of the system. A process that is gone is not an error.
    pub fn signal(self, signal: Signal) -> io::Result<()> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(());
        };
        let gone = |error: rustix::io::Errno| {
            if error == rustix::io::Errno::SRCH { Ok(()) } else { Err(error.into()) }
        };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            // The handle refers to the process, so what is checked now stays true.
            Ok(handle) if self.lives() => rustix::process::pidfd_send_signal(handle, signal).or_else(gone),
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) if self.lives() => {
                rustix::process::kill_process(pid, signal).or_else(gone)
            }
            Err(error) => gone(error),
        }
    }
}

/// Every process that exists now, as this PID namespace numbers them; none if `/proc` cannot be
/// read.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Every living process whose environment has `key=value`, as far as the caller may read it.
pub fn with_variable(key: &str, value: &OsStr) -> Vec<ProcessId> {
    pids()
        .filter_map(ProcessId::living)
        .filter(|process| process.variable(key).is_some_and(|found| found == value))
        .collect()
}

/// Every living process of a process group.
pub(crate) fn in_group(group: i32) -> Vec<ProcessId> {
    let found = pids().filter_map(|pid| {
        let stat = Stat::of(&pid.to_string())?;
        (stat.group == group && stat.lives()).then_some(ProcessId { pid, start_ticks: stat.start_ticks })
    });
    found.collect()
}

/// `PF_EXITING` of linux/sched.h, which the kernel sets before it closes the first descriptor of a
/// process that ends.
const EXITING: u32 = 0x4;

/// The data of a process in `/proc/PID/stat`, proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    state: char,
    /// The parent; 0 for one in another PID namespace.
    pub parent: u32,
    /// The process group; 0 if it is led from another PID namespace.
    pub group: i32,
    /// The session; 0 likewise.
    pub session: i32,
    /// The kernel's `PF_` flags.
    flags: u32,
    start_ticks: u64,
}

impl Stat {
    /// Of the process that has this number, or of `self`.
    pub fn of(process: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// The command's name, in parentheses, may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            session: fields.next()?.parse().ok()?,
            flags: fields.nth(2)?.parse().ok()?,
            start_ticks: fields.nth(12)?.parse().ok()?,
        })
    }

    fn lives(self) -> bool {
        self.state != 'Z' && self.state != 'X'
    }
}

/// Whether no shell would continue this process's group if it stopped: no shell of the same session
/// controls it.
pub fn is_orphaned() -> bool {
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

/// The name of a user, or `user N` without one here.
pub fn user_name(user: u32) -> String {
    let passwd = fs::read_to_string(PathBuf::from("/etc/passwd")).unwrap_or_default();
    passwd
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == user.to_string()).then(|| name.to_owned())
        })
        .unwrap_or_else(|| format!("user {user}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_command_names_do_not_confuse() {
        let rest = "S 1 2 3 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4242 99 1 2";
        let stat = Stat { state: 'S', parent: 1, group: 2, session: 3, flags: 4, start_ticks: 4242 };
        assert_eq!(Stat::parse(&format!("7 (a) R 9 (b) {rest}")), Some(stat));
        for stat in ["", "7 (a", "7 (a) S", "7 (a) S 1 2 3"] {
            assert_eq!(Stat::parse(stat), None, "{stat:?}");
        }
    }

    #[test]
    fn another_process_of_the_same_number_is_another() {
        let own = ProcessId::own().unwrap();
        assert!(own.lives() && !own.is_ending());
        assert_eq!(own.user(), Some(rustix::process::geteuid().as_raw()));
        let earlier = ProcessId { start_ticks: own.start_ticks - 1, ..own };
        assert!(!earlier.lives() && earlier.is_ending());
        earlier.signal(Signal::KILL).expect("the process is gone, which is no error");
    }

    #[test]
    fn a_child_is_found_by_its_environment_and_a_zombie_does_not_live() {
        let mut child =
            std::process::Command::new("sleep").arg("1000").env("PARTITA_TEST_MARK", "x y").spawn().unwrap();
        let found = loop {
            // The environment changes with exec, a moment after spawn returns.
            let found = with_variable("PARTITA_TEST_MARK", OsStr::new("x y"));
            if !found.is_empty() {
                break found;
            }
        };
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [child.id()]);
        found[0].signal(Signal::KILL).unwrap();
        while found[0].lives() {
            std::thread::yield_now();
        }
        assert!(found[0].is_ending());
        child.wait().unwrap();
    }

    #[test]
    fn users_have_names_or_numbers() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(3_999_999_999), "user 3999999999");
    }
}
