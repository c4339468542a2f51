//! Detached runs: `partita run --detach`, `logs`, `attach` and `wait`.

use std::process::ExitCode;
use std::time::Duration;

use partita::Error;
use partita::detached::{self, Begun, LogReader, Record, Records, last_lines};
use partita::install::Install;
use partita::registry::Registry;
use partita::signals::Keys;
use partita_console::{Failure, pause, print, print_bytes, print_json, tell};
use rustix::process::Signal;
use serde::Serialize;

use crate::args::{Attach, Logs, Run, Wait};

/// How often the log is read while it is followed.
const PERIOD: Duration = Duration::from_millis(100);
/// The lines that `attach` begins with.
const ATTACH_LINES: usize = 10;

/// The answer of `run --detach --json`.
#[derive(Debug, Serialize)]
struct Started<'a> {
    name: &'a str,
}

/// Runs this command line again, in a session of its own, and ends when its program runs.
pub fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    // The first words are the program and `run`.
    let words = std::env::args_os().skip(2);
    let name = match detached::start(&Install::of_this_program()?, words, None)? {
        Begun::Runs(name) => name,
        Begun::Failed(code) => return Ok(ExitCode::from(code)),
    };
    match arguments.json {
        true => print_json(&Started { name: &name })?,
        false => print(&format!("{name}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the log.
pub fn logs(arguments: &Logs) -> Result<ExitCode, Failure> {
    let records = Records::open()?;
    let run = records.get(&arguments.name)?;
    if is_of_an_earlier_run(&run)? {
        tell(&format!(
            "tenant {0} runs, but not detached; this is the log of its last detached run",
            run.name
        ));
    }
    let mut reader = first_lines(&records, &run, arguments.tail)?;
    while arguments.follow && is_followed(&records, &run, &mut reader)? {
        pause(PERIOD)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the log until the program ends, and sends Ctrl-C to the program.
pub fn attach(arguments: &Attach) -> Result<ExitCode, Failure> {
    let records = Records::open()?;
    let run = records.get(&arguments.name)?;
    refuse_an_earlier_run(&run, "attach")?;
    let keys = Keys::take_over().map_err(Error::io("signal handlers"))?;
    let mut reader = first_lines(&records, &run, Some(ATTACH_LINES))?;
    while is_followed(&records, &run, &mut reader)? {
        if keys.interrupt() {
            run.run.signal(Signal::INT).map_err(Error::io(format!("process {}", run.run.pid)))?;
        }
        if keys.quit() {
            tell(&format!("detached from {}, which goes on", run.name));
            return Ok(ExitCode::SUCCESS);
        }
        pause(PERIOD)?;
    }
    exit_code(&records, &run)
}

/// Waits for the program's end and ends with its exit code.
pub fn wait(arguments: &Wait) -> Result<ExitCode, Failure> {
    let records = Records::open()?;
    refuse_an_earlier_run(&records.get(&arguments.name)?, "wait")?;
    Ok(ExitCode::from(detached::wait(&records, &arguments.name)?.exit_code()?))
}

/// Whether a tenant of this name runs that is not this run, which has ended.
fn is_of_an_earlier_run(run: &Record) -> Result<bool, Failure> {
    let runs = || -> Result<bool, Error> {
        let tenants = Registry::open()?.lock()?.tenants()?;
        let user = rustix::process::geteuid().as_raw();
        let mut of_name = tenants.iter().filter(|tenant| tenant.name == run.name && tenant.user == user);
        // The tenant of a killed run is still this run's.
        Ok(of_name.any(|tenant| tenant.meta.as_ref().is_ok_and(|meta| meta.run != run.run)))
    };
    Ok(!run.lasts() && runs()?)
}

/// A script that waits for the tenant that runs would go on with the end of another one.
fn refuse_an_earlier_run(run: &Record, command: &str) -> Result<(), Failure> {
    match is_of_an_earlier_run(run)? {
        true => Err(Failure::Told(format!(
            "tenant {0} runs, but not detached, and `partita {command}` is for detached runs; \
             `partita logs {0}` has the log of the last one",
            run.name
        ))),
        false => Ok(()),
    }
}

fn first_lines(records: &Records, run: &Record, lines: Option<usize>) -> Result<LogReader, Failure> {
    let mut reader = records.log(&run.name)?;
    let text = reader.more().map_err(Error::io("the log"))?;
    print_bytes(lines.map_or(&*text, |lines| last_lines(&text, lines)))?;
    Ok(reader)
}

/// Prints what is new in the log; returns whether more may come.
fn is_followed(records: &Records, run: &Record, reader: &mut LogReader) -> Result<bool, Failure> {
    // Before the log is read: all of the program's output is there once its end is recorded.
    let lasts = records.get(&run.name).is_ok_and(|now| now.run == run.run && now.lasts());
    print_bytes(&reader.more().map_err(Error::io("the log"))?)?;
    Ok(lasts)
}

fn exit_code(records: &Records, run: &Record) -> Result<ExitCode, Failure> {
    let now = records.get(&run.name)?;
    let record = if now.run == run.run { &now } else { run };
    Ok(ExitCode::from(record.exit_code()?))
}
