//! The program `partita-sim-mps-control`: daemon, server or front end, by its arguments.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use super::daemon::Daemon;
use super::dirs::{self, PipeFiles};
use super::limits::Limits;
use super::log::Logs;
use super::script::{Failure, Script};
use super::wire::{self, Answer, Message};
use super::{binary_version, has_partitions, server};
use crate::shared::socket;
use crate::shared::sys::{check, owned};

const USAGE: &str = "Usage: nvidia-cuda-mps-control [-d [-multiuser-server] | -f | -v]\n       nvidia-cuda-mps-control [COMMAND]
Without arguments commands are read from standard input, one a line.";

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> =
        env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if env::args_os().next().is_some_and(|name| Path::new(&name).file_name() == Some(server::NAME.as_ref())) {
        return server_main(&arguments);
    }
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["-v"] => {
            println!("CUDA MPS Control for Linux/Unix/QNX. Binary version: {}", binary_version());
            println!("Simulated by Partita.");
            ExitCode::SUCCESS
        }
        ["-h" | "--help"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        ["-d"] => background(Mode::default()),
        ["-d", "-multiuser-server"] => background(Mode { for_all: true, ..Mode::default() }),
        ["-d", "-S"] if has_partitions() => background(Mode { is_static: true, ..Mode::default() }),
        ["-d", "-S", "-multiuser-server"] if has_partitions() => {
            background(Mode { for_all: true, is_static: true })
        }
        ["-f"] => outcome(prepare(true, Mode::default()).and_then(serve)),
        [option, ..] if option.starts_with('-') => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
        [] => front_end(io::stdin().lock().lines()),
        _ => front_end([Ok(arguments.join(" "))].into_iter()),
    }
}

/// Runs the program under the server's name. Its own options are those of NVIDIA's guide (4.1.2).
fn server_main(arguments: &[String]) -> ExitCode {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["-v"] => {
            println!("CUDA MPS Server for Linux/Unix/QNX. Binary version: {}", binary_version());
            println!("Simulated by Partita.");
            ExitCode::SUCCESS
        }
        [server::ARGUMENT] => {
            server::run();
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("Usage: {} [-v]\nThe control daemon starts the server.", server::NAME);
            ExitCode::FAILURE
        }
    }
}

/// The options of a daemon.
#[derive(Clone, Copy, Default)]
struct Mode {
    /// For every user's programs.
    for_all: bool,
    /// With static partitions.
    is_static: bool,
}

fn outcome(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends each line to the daemon and prints the answer.
fn front_end(lines: impl Iterator<Item = io::Result<String>>) -> ExitCode {
    let Ok(connection) = socket::connect(&dirs::control(&dirs::pipe())) else {
        println!("Cannot find MPS control daemon process");
        return ExitCode::FAILURE;
    };
    for line in lines.map_while(Result::ok) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        match wire::ask(&connection, &Message::Command(line.to_owned())) {
            Ok(Answer::Text(text)) if text.is_empty() => {}
            Ok(Answer::Text(text)) => println!("{text}"),
            Ok(Answer::Half(text)) => {
                print!("{text}");
                return ExitCode::FAILURE;
            }
            Ok(_) | Err(_) => {
                println!("Lost the connection to the MPS control daemon");
                return ExitCode::FAILURE;
            }
        }
        if line.split_whitespace().next() == Some("quit") {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// A daemon that listens. Its log's first lines are those of the real one.
fn prepare(foreground: bool, mode: Mode) -> Result<Daemon, String> {
    // SAFETY: takes no arguments.
    if mode.for_all && unsafe { libc::geteuid() } != 0 {
        return Err("Only root can start a server for all users".to_owned());
    }
    let (pipe, log) = (dirs::pipe(), dirs::log());
    let files = PipeFiles::create(&pipe).map_err(|error| error.to_string())?;
    let mut logs = Logs::open(&log, foreground)
        .map_err(|error| format!("Failed to open logs in {}: {error}", log.display()))?;
    let control = dirs::control(&pipe);
    logs.control(format_args!("Starting control daemon using socket {}", control.display()));
    logs.control(format_args!(
        "To connect CUDA applications to this daemon, set env {}={}",
        dirs::ENV_PIPE,
        pipe.display()
    ));
    logs.control(format_args!("CUDA MPS Control binary version: {}", binary_version()));
    let value = |name| env::var(name).ok();
    let percentage = value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    let memory = value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    let limits = Limits::from_values(percentage.as_deref(), memory.as_deref());
    Daemon::new(files, logs, limits, value("CUDA_VISIBLE_DEVICES"), mode.for_all, mode.is_static)
        .map_err(|error| error.to_string())
}

fn serve(daemon: Daemon) -> Result<(), String> {
    daemon.serve().map_err(|error| error.to_string())
}

/// Starts a daemon in a new session; returns when it listens, or reports why it does not.
fn background(mode: Mode) -> ExitCode {
    match Script::from_env().failure("start") {
        Some(Failure::Silence) => loop {
            std::thread::park();
        },
        Some(Failure::Say(words)) => return outcome(Err(words)),
        Some(Failure::Death) => std::process::abort(),
        _ => {}
    }
    let (read_end, write_end) = match pipe() {
        Ok(ends) => ends,
        Err(error) => return outcome(Err(error.to_string())),
    };
    // SAFETY: this program has one thread, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => outcome(Err(io::Error::last_os_error().to_string())),
        0 => {
            drop(read_end);
            daemon_process(File::from(write_end), mode)
        }
        _ => {
            drop(write_end);
            let mut refusal = String::new();
            // The child silently closes its end when it listens.
            match File::from(read_end).read_to_string(&mut refusal) {
                Ok(_) if refusal.is_empty() => ExitCode::SUCCESS,
                Ok(_) => outcome(Err(refusal)),
                Err(error) => outcome(Err(error.to_string())),
            }
        }
    }
}

fn daemon_process(mut report: File, mode: Mode) -> ExitCode {
    // SAFETY: takes no arguments; a fresh child leads no group, so it cannot fail.
    unsafe { libc::setsid() };
    let daemon = match prepare(false, mode).and_then(|daemon| detach_from_starter().map(|()| daemon)) {
        Ok(daemon) => daemon,
        Err(error) => {
            let _ = report.write_all(error.as_bytes());
            return ExitCode::FAILURE;
        }
    };
    drop(report);
    outcome(serve(daemon))
}

/// Leaves the starter's terminal and directory.
fn detach_from_starter() -> Result<(), String> {
    let null =
        OpenOptions::new().read(true).write(true).open("/dev/null").map_err(|error| error.to_string())?;
    for standard in 0..=2 {
        // SAFETY: plain numbers; no other code uses the standard descriptors now.
        check(unsafe { libc::dup2(null.as_raw_fd(), standard) }).map_err(|error| error.to_string())?;
    }
    env::set_current_dir("/").map_err(|error| error.to_string())
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors into the local array.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((owned(ends[0])?, owned(ends[1])?))
}
