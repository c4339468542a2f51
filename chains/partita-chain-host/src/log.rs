//! The log of a chain's run: a line of JSON that names the format, and one line for each period.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use partita_host::error::Error;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Definition, Phase};

/// The longest line of a log, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// A period of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Period {
    /// When it ended, in seconds since the start of the chain.
    pub at_s: f64,
    /// Frames per second in it.
    pub throughput_fps: f64,
    /// TPCs of each component; `None` before the first division.
    pub tpcs: Option<Vec<u32>>,
    /// TPCs of the whole chain.
    pub tpcs_of_chain: u32,
    /// The content of a log.
    pub phase: Phase,
}

/// What a log says.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The chain.
    pub definition: Definition,
    /// Its periods, in order.
    pub periods: Vec<Period>,
}

/// A log that is being written. A full pipe never blocks the chain: writes that it does not take
/// are errors.
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
            let mut log = Self { to: BufWriter::new(file.map_err(no_reader)?), path: path.to_owned() };
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

    /// Flushes buffered lines, so that readers see them now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Why the log ends here, as a message.
    pub(super) fn ends_by(&self, error: &io::Error) -> String {
        format!("writing to {} failed; the chain continues without a log: {error}", self.path.display())
    }
}

/// A pipe without a reader cannot be opened for writing.
fn no_reader(error: io::Error) -> io::Error {
    match error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
        true => io::Error::other("this pipe has no reader; start the reader first, or name a file"),
        false => error,
    }
}

/// Reads a log.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] with the first invalid line. An unfinished last line is
/// ignored.
pub fn read_log(path: &Path) -> Result<History, Error> {
    let failed = |error: io::Error| Error::io(path.display().to_string())(error);
    let mut lines = BufReader::new(File::open(path).map_err(failed)?);
    let mut next = |number: usize| -> Result<Option<String>, Error> {
        let mut line = String::new();
        let bytes = io::Read::take(&mut lines, LINE_BYTES_MAX).read_line(&mut line).map_err(failed)?;
        if bytes as u64 == LINE_BYTES_MAX && !line.ends_with('\n') {
            return Err(wrong(path, number, "the line is too long"));
        }
        // The chain still runs, or was killed while it wrote.
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
        // A log cut at any byte either reads as its finished lines or is refused.
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
