//! This process, and the one that had its place before.

use std::time::{Duration, Instant};

use partita_ledger::Owner;

use crate::error::Error;

/// How long a dead process may take to be gone: the kernel releases its locks before everything
/// else.
const GONE_MAX: Duration = Duration::from_secs(2);

/// State and start of a process.
fn look(pid: i32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in parentheses, which may have any characters.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    // Field 22 of all, from 1; the state is the third.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((state, start_ticks))
}

/// The calling process.
pub fn own() -> Result<Owner, Error> {
    let pid = std::process::id().cast_signed();
    let (_, start_ticks) = look(pid)
        .ok_or_else(|| Error::System { what: "/proc/self/stat", source: std::io::Error::last_os_error() })?;
    Ok(Owner { pid, start_ticks })
}

/// Waits until a process that has lost its locks is gone, for [`GONE_MAX`] at most. Returns whether
/// it is.
pub fn wait_gone(former: Owner) -> bool {
    let began = Instant::now();
    loop {
        match look(former.pid) {
            Some((state, start_ticks)) if start_ticks == former.start_ticks && !"ZX".contains(state) => {}
            _ => return true,
        }
        if began.elapsed() > GONE_MAX {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_processes_are_distinguished_from_dead_ones() {
        let own = own().unwrap();
        assert_eq!(look(own.pid).map(|(_, start)| start), Some(own.start_ticks));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        let start_ticks = look(pid).unwrap().1;
        assert!(wait_gone(Owner { pid, start_ticks }), "a zombie has nothing any more");
        child.wait().unwrap();
        assert!(wait_gone(Owner { pid: own.pid, start_ticks: own.start_ticks - 1 }), "another one's number");
    }
}
