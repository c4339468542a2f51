//! This process, as the ledger names it.

use partita_ledger::Owner;

/// This process.
pub fn this_process() -> Owner {
    // SAFETY: plain system calls; the buffer is written up to `read` bytes.
    unsafe {
        let pid = libc::getpid();
        let mut text = [0u8; 1024];
        let file = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return Owner { pid, start_ticks: 0 };
        }
        let read = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        let text = text.get(..usize::try_from(read).unwrap_or(0)).unwrap_or(&[]);
        Owner { pid, start_ticks: start_ticks(text).unwrap_or(0) }
    }
}

/// Field 22 of `/proc/PID/stat`. The second field, a command's name in
/// brackets, may hold blanks and brackets itself, so fields count from its end.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let field = stat.get(after_name..)?.split(|&byte| byte == b' ').nth(19)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}
