//! The program that proves a driver: `partita`, in a separate process.
//!
//! A wrong mask hangs a kernel forever, and a write at a wrong place of a stream can crash the
//! process, so the host's process tries nothing. If Partita is installed, its program does it once
//! for each driver build and caches the proof.

use alloc::ffi::CString;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use partita_driver::files::{self, Descriptor};
use partita_driver::kept::json::Value;
use partita_driver::now_ns;

/// The prefix of the line with the result (the command's `child` module).
const MARK: &str = "partita-job-result ";
/// Timeout. A proof of stream masks on an unlisted driver takes seconds.
const LIMIT_NS: u64 = 300_000_000_000;
/// The most output that is read, in bytes.
const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// Variables that it must not see: it proves the bare device, outside of any partition.
const HIDDEN: [&[u8]; 3] = [b"LD_PRELOAD=", b"PARTITA_LEDGER=", b"CUDA_VISIBLE_DEVICES="];

/// The program: `LIBSMCTRL_PARTITA`, or `partita` beside this library as installations have it, or
/// in `PATH`.
pub fn program() -> Option<String> {
    if let Some(program) = files::variable(c"LIBSMCTRL_PARTITA") {
        return Some(program).filter(|program| files::is_program(program));
    }
    let own = files::object_of(program as *const () as usize).unwrap_or_default();
    let own = files::directory(&own);
    let mut places: Vec<String> =
        ["", "/../bin", "/../../bin"].iter().map(|place| format!("{own}{place}/partita")).collect();
    if let Some(path) = files::variable(c"PATH") {
        places.extend(
            path.split(':').filter(|place| place.starts_with('/')).map(|place| format!("{place}/partita")),
        );
    }
    places.into_iter().find(|place| files::is_program(place))
}

/// Makes the program calibrate a GPU and cache the result: the board, and the place of stream masks
/// if `streams` is set. `uuid` is `GPU-…`, or `None` for a simulated GPU. Returns the result in the
/// form of the cache.
///
/// # Errors
/// Why there is no proof.
pub fn prove(uuid: Option<&str>, streams: bool) -> Result<Value, String> {
    let program = program().ok_or(
        "the program `partita`, which would prove it, was not found (in PATH, beside this library, or \
         by LIBSMCTRL_PARTITA)",
    )?;
    let gpu = uuid.map_or("null".to_string(), |uuid| format!("\"{uuid}\""));
    let request = format!("{{\"gpu\":{gpu},\"streams\":{streams}}}");
    let output = run(&program, &["internal-job", "keep-calibration", &request])
        .map_err(|errno| format!("{program} could not be started: system error {errno}"))?;
    let Some(line) = output.lines().find_map(|line| line.strip_prefix(MARK)) else {
        return Err(format!("{program} gave no result: is it of this version?"));
    };
    let result = Value::parse(line).ok_or_else(|| format!("the result of {program} is malformed"))?;
    if let Some(reason) = result.get("failed").and_then(Value::text) {
        return Err(reason.to_string());
    }
    result.get("done").cloned().ok_or_else(|| format!("the result of {program} is malformed"))
}

/// Runs a program and returns its output; an empty text on timeout.
fn run(program: &str, arguments: &[&str]) -> Result<String, c_int> {
    let owned: Option<Vec<CString>> =
        core::iter::once(&program).chain(arguments).map(|text| CString::new(*text).ok()).collect();
    let owned = owned.ok_or(libc::EINVAL)?;
    let mut argv: Vec<*mut c_char> = owned.iter().map(|text| text.as_ptr().cast_mut()).collect();
    argv.push(ptr::null_mut());
    let mut environment = environment();
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(files::errno());
    }
    let (read, write) = (Descriptor(ends[0]), Descriptor(ends[1]));
    let pid = spawn(&owned, &mut argv, &mut environment, write.0)?;
    drop(write);
    let output = read_all(&read);
    if output.is_none() {
        // SAFETY: our own child, not waited for yet, and the group that it leads.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: our own child. A host that waits for every child may have reaped it already.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 && files::errno() == libc::EINTR {}
    Ok(output.unwrap_or_default())
}

fn environment() -> Vec<*mut c_char> {
    unsafe extern "C" {
        static environ: *const *mut c_char;
    }
    let mut kept = Vec::new();
    // SAFETY: the C library's array of strings, terminated by null; no thread may change it while a
    // program is started.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = core::ffi::CStr::from_ptr(*entry).to_bytes();
            if !HIDDEN.iter().any(|hidden| text.starts_with(hidden)) {
                kept.push(*entry);
            }
            entry = entry.add(1);
        }
    }
    kept.push(ptr::null_mut());
    kept
}

fn spawn(
    program: &[CString],
    argv: &mut [*mut c_char],
    environment: &mut [*mut c_char],
    out: c_int,
) -> Result<libc::pid_t, c_int> {
    let path = program.first().ok_or(libc::EINVAL)?;
    let mut pid = 0;
    // SAFETY: both objects are initialised before use and destroyed after; all strings and arrays
    // outlive the call.
    let failed = unsafe {
        let mut actions = core::mem::zeroed();
        let mut attributes = core::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        libc::posix_spawnattr_init(&raw mut attributes);
        let nothing = c"/dev/null".as_ptr();
        libc::posix_spawn_file_actions_addopen(&raw mut actions, 0, nothing, libc::O_RDONLY, 0);
        libc::posix_spawn_file_actions_adddup2(&raw mut actions, out, 1);
        libc::posix_spawn_file_actions_addopen(&raw mut actions, 2, nothing, libc::O_WRONLY, 0);
        // The child does not inherit the host's blocked and ignored signals; a process group makes
        // it and its children one thing to kill.
        let mut none = core::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const none);
        libc::posix_spawnattr_setpgroup(&raw mut attributes, 0);
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETPGROUP;
        libc::posix_spawnattr_setflags(&raw mut attributes, flags as _);
        let failed = libc::posix_spawn(
            &mut pid,
            path.as_ptr(),
            &raw const actions,
            &raw const attributes,
            argv.as_ptr(),
            environment.as_ptr(),
        );
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        libc::posix_spawnattr_destroy(&raw mut attributes);
        failed
    };
    if failed == 0 { Ok(pid) } else { Err(failed) }
}

/// Reads until the other end is closed; `None` on timeout.
fn read_all(from: &Descriptor) -> Option<String> {
    let until = now_ns() + LIMIT_NS;
    let mut bytes = Vec::new();
    let mut part = [0u8; 4096];
    while bytes.len() < OUTPUT_BYTES_MAX {
        let left_ms = until.checked_sub(now_ns())? / 1_000_000;
        let mut poll = libc::pollfd { fd: from.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&mut poll, 1, c_int::try_from(left_ms).unwrap_or(c_int::MAX)) } <= 0 {
            continue;
        }
        // SAFETY: the buffer is valid for its length.
        let read = unsafe { libc::read(from.0, part.as_mut_ptr().cast::<c_void>(), part.len()) };
        match usize::try_from(read) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(part.get(..read).unwrap_or(&[])),
            Err(_) if files::errno() == libc::EINTR => {}
            Err(_) => break,
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_and_are_heard() {
        assert_eq!(run("/bin/sh", &["-c", "echo a; echo b >&2; echo c"]).unwrap(), "a\nc\n");
        assert_eq!(run("/dev/null/none", &[]).unwrap_err(), libc::ENOTDIR);
    }
}
