//! The log of a chain's run: a line of JSON that says what it is, and one for each period.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use partita_host::error::Error;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Definition, Phase};

/// A line of a log, in bytes at most.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// A period of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Period {
    /// When it ended, in seconds since the chain began.
    pub at_s: f64,
    /// Frames per second in it.
    pub throughput_fps: f64,
    /// TPCs of each component in it; none before they were divided.
    pub tpcs: Option<Vec<u32>>,
    /// TPCs that the chain had in all.
    pub tpcs_of_chain: u32,
    /// What the optimizer did.
    pub phase: Phase,
}

/// What a log says.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The chain.
    pub definition: Definition,
    /// Its periods, in their order.
    pub periods: Vec<Period>,
}

/// A log that is being written. A pipe that nobody empties holds the chain up neither at its
/// beginning nor later: what it does not take is an error.
#[derive(Debug)]
pub(super) struct Log {
    to: BufWriter<File>,
    path: PathBuf,
}

impl Log {
    pub(super) fn begin(path: &Path, definition: &Definition) -> Result<Self, Error> {
        let begin = || {
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let file =
                OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path);
            let mut log = Self { to: BufWriter::new(file.map_err(unread)?), path: path.to_owned() };
            log.line(definition)?;
            log.flush()?;
            io::Result::Ok(log)
        };
        begin().map_err(Error::io(path.display().to_string()))
    }

    pub(super) fn period(&mut self, period: &Period) -> io::Result<()> {
        self.line(period)
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.to, value)?;
        self.to.write_all(b"\n")
    }

    /// Whoever reads it now sees what was written so far.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// That it ends here, and why, for people.
    pub(super) fn ends_by(&self, error: &io::Error) -> String {
        format!(
            "{} cannot be written any more, and the chain goes on without a log: {error}",
            self.path.display()
        )
    }
}

/// A pipe cannot be opened to write without a reader.
fn unread(error: io::Error) -> io::Error {
    match error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
        true => io::Error::other("nobody reads this pipe; start whoever is to read it first, or name a file"),
        false => error,
    }
}

/// Reads a log.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] with the first line that is not a log's. A last line that was
/// not finished is left out.
pub fn read_log(path: &Path) -> Result<History, Error> {
    let failed = |error: io::Error| Error::io(path.display().to_string())(error);
    let mut lines = BufReader::new(File::open(path).map_err(failed)?);
    let mut next = |number: usize| -> Result<Option<String>, Error> {
        let mut line = String::new();
        let bytes = io::Read::take(&mut lines, LINE_BYTES_MAX).read_line(&mut line).map_err(failed)?;
        if bytes as u64 == LINE_BYTES_MAX && !line.ends_with('\n') {
            return Err(wrong(path, number, "it is too long"));
        }
        // The chain runs, or was killed as it wrote.
        Ok(line.ends_with('\n').then_some(line))
    };
    let first = next(1)?.ok_or_else(|| wrong(path, 1, "it has none"))?;
    let definition = serde_json::from_str(&first).map_err(|error| wrong(path, 1, &error.to_string()))?;
    let mut periods = Vec::new();
    while let Some(line) = next(periods.len() + 2)? {
        let period = serde_json::from_str(&line);
        periods.push(period.map_err(|error| wrong(path, periods.len() + 2, &error.to_string()))?);
    }
    Ok(History { definition, periods })
}

fn wrong(path: &Path, line: usize, reason: &str) -> Error {
    Error::Refused {
        what: format!("{}, line {line}", path.display()),
        reason: format!("{reason}; name a file that `partita chain start --log` wrote"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let definition = Definition::from_toml(Definition::example()).unwrap();
        let period = |at_s, tpcs| Period {
            at_s,
            throughput_fps: 12.5,
            tpcs,
            tpcs_of_chain: 33,
            phase: Phase::Settled,
        };
        let periods = [period(0.1, None), period(0.2, Some(vec![1, 2, 3]))];
        let mut log = Log::begin(&path, &definition).unwrap();
        periods.iter().for_each(|period| log.period(period).unwrap());
        log.flush().unwrap();
        assert_eq!(read_log(&path).unwrap(), History { definition, periods: periods.to_vec() });
        // Cut anywhere, it is what was finished, or it is refused.
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            match read_log(&path) {
                Ok(history) => assert!(history.periods.len() < 2),
                Err(error) => assert!(error.to_string().contains("line 1"), "{error}"),
            }
        }
        std::fs::write(&path, [whole.as_slice(), b"{}\n"].concat()).unwrap();
        assert!(read_log(&path).unwrap_err().to_string().contains("line 4"));
    }
}
