//! `partita run --info`: how programs that call `partita run` learn whether it has started.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use partita_console::{Failure, tell};
use serde_json::{Value, json};

/// The file of `--info`, for one line. The program does not inherit it.
pub struct Info {
    file: File,
    path: PathBuf,
}

impl Info {
    /// Opens the file before anything is started.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(path);
        let file = opened.map_err(|error| {
            Failure::Told(format!(
                "--info {}: {error}; name a file in a directory that you can write, or a named pipe",
                path.display()
            ))
        })?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes the line and closes the file.
    pub fn write(mut self, line: &Value) {
        // One write: the reader of a pipe gets the whole line.
        if let Err(error) = self.file.write_all(format!("{line}\n").as_bytes()) {
            tell(&format!("--info {}: {error}; the program runs without it", self.path.display()));
        }
    }
}

/// Writes a mistake in these words of a command line to the file that `--info=` names in them. It
/// is on standard error in any case.
pub fn note_mistake(words: &[OsString], mistake: &str) {
    let options = words.iter().take_while(|word| *word != "--");
    let path = options.filter_map(|word| word.to_str()?.strip_prefix("--info=")).next();
    if let Some(Ok(info)) = path.map(|path| Info::open(Path::new(path))) {
        info.write(&json!({ "error": mistake }));
    }
}
