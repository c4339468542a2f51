//! The output of a detached program: two files of limited size, of which the older one goes when
//! the newer one is full.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::files::open_regular;

/// The size of each of the two files, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
const NEW: &str = "log";
const OLD: &str = "log.1";

/// The writer of a log.
#[derive(Debug)]
pub(super) struct Log {
    dir: PathBuf,
    file: File,
    bytes: u64,
    /// Output that could not be written, in bytes.
    lost: u64,
}

impl Log {
    /// Makes an empty log in a directory without one.
    pub fn create(dir: &Path) -> io::Result<Self> {
        Ok(Self { dir: dir.to_owned(), file: create(dir)?, bytes: 0, lost: 0 })
    }

    /// Appends output. A full disk loses it, and the log says how much: the program goes on.
    pub fn append(&mut self, bytes: &[u8]) {
        if self.lost > 0 {
            let note = format!("partita: {} bytes of output were lost\n", self.lost);
            if self.try_append(note.as_bytes()).is_ok() {
                self.lost = 0;
            }
        }
        if self.lost > 0 || self.try_append(bytes).is_err() {
            self.lost += bytes.len() as u64;
        }
    }

    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + bytes.len() as u64 > FILE_BYTES_MAX {
            fs::rename(self.dir.join(NEW), self.dir.join(OLD))?;
            self.file = create(&self.dir)?;
            self.bytes = 0;
        }
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn create(dir: &Path) -> io::Result<File> {
    OpenOptions::new().create_new(true).append(true).mode(0o600).open(dir.join(NEW))
}

/// A reader of a log, from its beginning and while it grows.
#[derive(Debug)]
pub struct LogReader {
    dir: PathBuf,
    file: File,
    older: Option<File>,
}

impl LogReader {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let file = open_regular(&dir.join(NEW))?;
        // If the files were changed a moment ago, the older one is the one that is open already.
        let inode = file.metadata()?.ino();
        let older = open_regular(&dir.join(OLD)).ok();
        let older = older.filter(|older| older.metadata().is_ok_and(|meta| meta.ino() != inode));
        Ok(Self { dir: dir.to_owned(), file, older })
    }

    /// The output since the last call; empty if there is none.
    ///
    /// # Errors
    /// Those of the system.
    pub fn more(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if let Some(mut older) = self.older.take() {
            older.read_to_end(&mut bytes)?;
        }
        self.file.read_to_end(&mut bytes)?;
        // In a moment of change there is no newer file.
        let Ok(newer) = open_regular(&self.dir.join(NEW)) else { return Ok(bytes) };
        if newer.metadata()?.ino() != self.file.metadata()?.ino() {
            // What was written before the change.
            self.file.read_to_end(&mut bytes)?;
            self.file = newer;
            self.file.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }
}

/// The last lines of a text.
#[must_use]
pub fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match lines {
        0 => &[],
        lines => ends.map(|(at, _)| at + 1).nth(lines - 1).map_or(text, |begin| &text[begin..]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_counted_from_the_end() {
        for (text, lines, last) in [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\nc\n", 9, "a\nb\nc\n"),
            ("a\nb\n", 0, ""),
            ("\n\n\n", 2, "\n\n"),
            ("", 3, ""),
        ] {
            assert_eq!(last_lines(text.as_bytes(), lines), last.as_bytes(), "{text:?} {lines}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever is written in whatever pieces: a reader that follows gets all of it, and the
        /// files never exceed their size.
        #[test]
        fn a_reader_that_follows_misses_nothing(pieces in prop::collection::vec(1usize..1 << 20, 1..24)) {
            let dir = tempfile::tempdir().unwrap();
            let mut log = Log::create(dir.path()).unwrap();
            let mut reader = LogReader::open(dir.path()).unwrap();
            let (mut written, mut read) = (Vec::new(), Vec::new());
            for (number, bytes) in pieces.iter().enumerate() {
                let piece = vec![number as u8; *bytes];
                log.append(&piece);
                written.extend(piece);
                read.extend(reader.more().unwrap());
                for file in [NEW, OLD] {
                    let length = fs::metadata(dir.path().join(file)).map_or(0, |meta| meta.len());
                    prop_assert!(length <= FILE_BYTES_MAX);
                }
            }
            prop_assert!(read == written);
            // A reader that comes later has the end of it.
            let late = LogReader::open(dir.path()).unwrap().more().unwrap();
            prop_assert!(written.ends_with(&late) && late.len() as u64 >= (written.len() as u64).min(FILE_BYTES_MAX / 2));
        }
    }
}
