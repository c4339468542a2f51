//! `partita run --detach`: a program that outlives its terminal.
//!
//! The caller starts a `partita` in a session of its own, which runs the program as `partita run`
//! does and writes the program's output to a log. Until the program runs, the new process has the
//! caller's stderr, and its exit code becomes the caller's. So a refusal reads the same.

mod log;
mod record;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use self::log::Log;
pub use self::log::{FILE_BYTES_MAX, LogReader, last_lines};
use self::record::OwnRecord;
pub use self::record::{ENDED_MAX, Ended, Record, Records};
use crate::error::{Error, OWN_ERROR};
use crate::install::Install;
use crate::mps::DETACH_SUBCOMMAND;
use crate::request::RunRequest;
use crate::run::run_apart;

/// The hidden subcommand of `partita` that attends a detached program: its arguments are those of
/// `partita run`, and its stdin is a pipe to the caller.
pub const SUBCOMMAND: &str = "internal-run";

/// How often a wait looks.
const LOOK: Duration = Duration::from_millis(50);

/// The result of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The program of this tenant runs.
    Runs(String),
    /// It does not, and stderr has the reason. This is the exit code of `partita run`.
    Failed(u8),
}

/// Starts `partita run` with these arguments in a session of its own, in `dir` or in the caller's
/// directory, and waits until its program runs.
///
/// # Errors
/// [`Error::Io`] if the system refuses a process or a pipe.
pub fn start(
    install: &Install,
    arguments: impl IntoIterator<Item = OsString>,
    dir: Option<&Path>,
) -> Result<Begun, Error> {
    let failed = || Error::io("the detached run");
    let (reader, writer) = io::pipe().map_err(failed())?;
    let program = install.program();
    let mut command = Command::new(program);
    command.args([DETACH_SUBCOMMAND, "--"]).arg(program).arg(SUBCOMMAND).args(arguments);
    command.stdin(Stdio::from(writer)).stdout(Stdio::null());
    dir.map(|dir| command.current_dir(dir));
    let mut child = command.spawn().map_err(failed())?;
    // With it goes this process's end of the pipe.
    drop(command);
    let mut name = String::new();
    BufReader::new(reader).read_line(&mut name).map_err(failed())?;
    match name.strip_suffix('\n') {
        Some(name) => Ok(Begun::Runs(name.to_owned())),
        None => {
            let code = child.wait().map_err(failed())?.code().and_then(|code| u8::try_from(code).ok());
            Ok(Begun::Failed(code.unwrap_or(OWN_ERROR)))
        }
    }
}

/// Runs a program as [`run`](crate::run::run()) does, for the process that called [`start`].
/// Returns the exit code; an error is only for a program that was not started.
///
/// # Errors
/// As [`run`](crate::run::run()); those of the record's directory.
pub fn attend(
    install: &Install,
    request: &RunRequest,
    mut say: impl FnMut(&str) + Clone + Send + 'static,
) -> Result<u8, Error> {
    let streams = || Error::io("the streams of the detached run");
    let caller = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(streams())?);
    let nothing = File::options().read(true).write(true).open("/dev/null").map_err(Error::io("/dev/null"))?;
    rustix::stdio::dup2_stdin(&nothing).map_err(|error| streams()(error.into()))?;
    let records = Records::open()?;
    records.create()?;
    let (reader, output) = io::pipe().map_err(streams())?;
    let is_begun = Arc::new(AtomicBool::new(false));
    end_with_caller(&caller, &is_begun)?;
    let exit_code = Arc::new(OnceLock::new());
    let mut writer = None;
    let words: Vec<String> = request.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let begun = |name: &str, _| {
        let (record, log) = records.begin(name, &words)?;
        writer = Some(write_log(reader, log, record, Arc::clone(&exit_code)));
        is_begun.store(true, Ordering::Release);
        // The caller's stderr may be a pipe, whose reader waits for the last writer.
        rustix::stdio::dup2_stderr(&output).map_err(|error| streams()(error.into()))?;
        writeln!(&caller, "{name}").map_err(Error::io("the caller of the detached run"))
    };
    let ended = run_apart(install, request, Some(output.as_fd()), begun, say.clone());
    let Some(writer) = writer else { return ended };
    let code = ended.unwrap_or_else(|error| {
        say(&error.to_string());
        error.exit_code()
    });
    let _ = exit_code.set(code);
    // The log lasts until the last process that writes to it.
    let _ = rustix::stdio::dup2_stderr(&nothing);
    drop(output);
    let _ = writer.join();
    Ok(code)
}

/// Ends this process in order if the caller ends before the program runs: nobody waits for it then.
fn end_with_caller(caller: &File, is_begun: &Arc<AtomicBool>) -> Result<(), Error> {
    let failed = || Error::io("the caller of the detached run");
    let (caller, is_begun) = (caller.try_clone().map_err(failed())?, Arc::clone(is_begun));
    let watch = move || {
        let waits = || !is_begun.load(Ordering::Acquire);
        while waits() {
            if wait_for(&caller, PollFlags::empty()).intersects(PollFlags::ERR) && waits() {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
                return;
            }
        }
    };
    thread::Builder::new().name("partita-caller".to_owned()).spawn(watch).map(drop).map_err(failed())
}

/// Writes what comes from the pipe to the log, in a thread of its own, until the last writer closes
/// the pipe. Records the end once the program has ended and its output is written.
fn write_log(
    mut reader: PipeReader,
    mut log: Log,
    mut record: OwnRecord,
    exit_code: Arc<OnceLock<u8>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        let mut is_recorded = false;
        loop {
            // Before the look: what the program wrote is in the pipe then.
            let code = exit_code.get().copied().filter(|_| !is_recorded);
            if wait_for(&reader, PollFlags::IN).is_empty() {
                if let Some(code) = code {
                    record.end(code);
                    is_recorded = true;
                }
                continue;
            }
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => log.append(&buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if !is_recorded {
            record.end(*exit_code.wait());
        }
    })
}

/// Waits for a moment; returns what has happened to a descriptor.
fn wait_for(descriptor: &impl AsFd, events: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(descriptor, events)];
    let limit = Timespec::try_from(LOOK).ok();
    match poll(&mut polled, limit.as_ref()) {
        Ok(1..) => polled[0].revents(),
        _ => PollFlags::empty(),
    }
}

/// Waits until the last detached run of this name has ended, and returns its record.
///
/// # Errors
/// As [`Records::get`].
pub fn wait(records: &Records, name: &str) -> Result<Record, Error> {
    loop {
        let record = records.get(name)?;
        if !record.lasts() {
            // The end may have been recorded between the two looks.
            return records.get(name);
        }
        thread::sleep(LOOK);
    }
}
