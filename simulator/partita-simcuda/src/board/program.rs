//! The program of the board. The first program that opens the simulated device starts it; it exits
//! by itself.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;

use crate::board;
use crate::shared::place::{GPUS_MAX, Place};

const USAGE: &str =
    "usage: partita-simgpu --device NAME --dir DIR [--index N] [--instance N] [--foreground | --ensure]

The simulated GPU's board. Programs start it on demand; it exits shortly after its last client.
With --ensure it starts at most once, even if other programs start it at the same time.
PARTITA_SIM_SPEED sets how many simulated seconds pass in a second (default 1).";

struct Arguments {
    device: String,
    index: u32,
    instance: Option<u32>,
    dir: OsString,
    foreground: bool,
    ensure: bool,
}

fn arguments() -> Result<Arguments, String> {
    let (mut device, mut index, mut dir, mut foreground) = (None, Some(0), None, false);
    let (mut instance, mut ensure) = (None, false);
    let mut words = std::env::args_os().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--device") => device = words.next().and_then(|name| name.into_string().ok()),
            Some("--index") => {
                index = words.next().and_then(|index| index.to_str()?.parse().ok()).filter(|i| *i < GPUS_MAX);
            }
            Some("--instance") => {
                let number = words.next().and_then(|number| number.to_str()?.parse().ok());
                instance = Some(number.ok_or_else(|| USAGE.to_owned())?);
            }
            Some("--dir") => dir = words.next(),
            Some("--foreground") => foreground = true,
            Some("--ensure") => ensure = true,
            _ => return Err(format!("unknown argument '{}'\n{USAGE}", word.to_string_lossy())),
        }
    }
    match (device, index, dir) {
        (Some(device), Some(index), Some(dir)) => {
            Ok(Arguments { device, index, instance, dir, foreground, ensure })
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn speed() -> Result<f64, String> {
    match std::env::var("PARTITA_SIM_SPEED") {
        Err(_) => Ok(1.0),
        Ok(text) => text
            .parse::<f64>()
            .ok()
            .filter(|speed| speed.is_finite() && *speed > 0.0)
            .ok_or(format!("PARTITA_SIM_SPEED is '{text}', it must be a number above 0")),
    }
}

/// Closes inherited descriptors without the close-on-exec flag: the client's locks and pipes must
/// not outlive it here.
fn close_inherited() {
    // SAFETY: only the standard streams are in use this early; if the call is unknown nothing is
    // closed.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

/// Continues in a child of init, and exits this process once the child is ready.
fn detach() -> std::io::Result<Option<std::io::PipeWriter>> {
    let (mut reader, writer) = std::io::pipe()?;
    // SAFETY: the process has one thread, so the child can continue normally.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            drop(reader);
            // SAFETY: takes no arguments; a fresh child is no group leader, so it cannot fail.
            unsafe { libc::setsid() };
            Ok(Some(writer))
        }
        _ => {
            drop(writer);
            let mut message = String::new();
            let _ = reader.read_to_string(&mut message);
            if message == "ready" {
                std::process::exit(0);
            }
            eprintln!(
                "partita-simgpu: {}",
                if message.is_empty() { "the board exited at once" } else { &message }
            );
            std::process::exit(1);
        }
    }
}

/// Closes the starter's standard error, so that no process waits for the board to close it.
fn silence() {
    // SAFETY: opens a file and duplicates it over standard error; both are descriptors of this
    // process.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null >= 0 {
            for standard in 0..3 {
                libc::dup2(null, standard);
            }
            if null > 2 {
                libc::close(null);
            }
        }
    }
}

/// `partita-simgpu`, with the arguments of this process.
pub fn main() -> ExitCode {
    close_inherited();
    let prepared =
        arguments().and_then(|arguments| Ok((speed()?, arguments))).and_then(|(speed, arguments)| {
            let mut place = Place::new(&arguments.device, arguments.index, Some(arguments.dir))
                .map_err(|error| error.to_string())?;
            if arguments.instance.is_some() {
                let instances = place.instances().map_err(|error| error.to_string())?.unwrap_or_default();
                let found = instances.into_iter().find(|part| part.gpu_instance() == arguments.instance);
                place = found.ok_or("there is no such MIG instance")?;
            }
            Ok((place, speed, arguments.foreground, arguments.ensure))
        });
    let (place, speed, foreground, ensure) = match prepared {
        Ok(prepared) => prepared,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if ensure {
        let own = std::env::current_exe();
        return match own.and_then(|own| place.connect_or_start(Some(&own))) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("partita-simgpu: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut report = if foreground {
        None
    } else {
        match detach() {
            Ok(writer) => writer,
            Err(error) => {
                eprintln!("partita-simgpu: {error}");
                return ExitCode::FAILURE;
            }
        }
    };
    let mut failure = report.as_ref().and_then(|writer| writer.try_clone().ok());
    let ran = board::run(place, speed, || {
        if let Some(mut writer) = report.take() {
            let _ = writer.write_all(b"ready");
            silence();
        }
        failure.take();
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(mut writer) = failure {
                let _ = writer.write_all(error.to_string().as_bytes());
            } else {
                eprintln!("partita-simgpu: {error}");
            }
            ExitCode::FAILURE
        }
    }
}
