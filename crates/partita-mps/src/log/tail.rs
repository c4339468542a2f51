//! A log file that grows, is rotated and is truncated while it is read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::reader::{Entry, LogReader};
use crate::files::open_regular;

/// How many bytes to read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Follows the log at a path.
///
/// A replaced file (`logrotate` with `create`) is read to its end first; a truncated one
/// (`copytruncate`) is read from its start. Lines written between a truncation and the next
/// [`Tail::poll`] are lost if they are longer than the old content: the file does not show it.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    file: Option<Opened>,
    reader: LogReader,
    /// Where to start in the first file.
    begin: Begin,
}

#[derive(Debug)]
struct Opened {
    file: File,
    offset_bytes: u64,
    identity: (u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    Start,
    End,
}

impl Tail {
    /// From the first line of the present content, if there is any.
    #[must_use]
    pub fn from_start(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, reader: LogReader::new(), begin: Begin::Start }
    }

    /// From the lines that are written from now on.
    ///
    /// # Errors
    /// Those of opening the file, except if it is missing: then all of its lines will be new.
    pub fn from_end(path: &Path) -> io::Result<Self> {
        let mut tail = Self { begin: Begin::End, ..Self::from_start(path) };
        tail.file = tail.open()?;
        tail.begin = Begin::Start;
        Ok(tail)
    }

    /// All new entries.
    ///
    /// # Errors
    /// Those of reading. A missing file is not an error: it may be created later.
    pub fn poll(&mut self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        loop {
            if self.file.is_none() {
                self.file = self.open()?;
            }
            let Some(opened) = &mut self.file else { return Ok(entries) };
            let replaced = match self.path.metadata() {
                Ok(meta) => identity(&meta) != opened.identity,
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(error),
            };
            if opened.file.metadata()?.len() < opened.offset_bytes {
                opened.file.seek(SeekFrom::Start(0))?;
                opened.offset_bytes = 0;
                self.reader.restart();
            }
            read(opened, &mut self.reader, &mut entries)?;
            if !replaced {
                return Ok(entries);
            }
            entries.extend(self.reader.finish());
            self.file = None;
        }
    }

    fn open(&self) -> io::Result<Option<Opened>> {
        let mut file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let identity = identity(&file.metadata()?);
        let offset_bytes = match self.begin {
            Begin::Start => 0,
            Begin::End => file.seek(SeekFrom::End(0))?,
        };
        Ok(Some(Opened { file, offset_bytes, identity }))
    }
}

fn read(opened: &mut Opened, reader: &mut LogReader, entries: &mut Vec<Entry>) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match opened.file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(bytes) => {
                opened.offset_bytes += bytes as u64;
                entries.extend(reader.push(&chunk[..bytes]));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn identity(meta: &std::fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;
    use crate::log::Event;

    fn line(server: u32) -> String {
        format!("[2013-08-05 12:50:24.870 Control 13894] NEW SERVER {server}: Ready\n")
    }

    fn append(path: &Path, text: &str) {
        OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn servers(tail: &mut Tail) -> Vec<u32> {
        let server = |entry: Entry| match entry.event {
            Some(Event::ServerReady { server }) => server,
            other => panic!("{other:?}"),
        };
        tail.poll().unwrap().into_iter().map(server).collect()
    }

    #[test]
    fn a_log_is_followed_through_rotation_truncation_and_half_lines() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("control.log");
        let mut tail = Tail::from_start(&path);
        assert!(servers(&mut tail).is_empty(), "no file yet");
        append(&path, &line(1));
        append(&path, &line(2)[..30]);
        assert_eq!(servers(&mut tail), [1]);
        append(&path, &line(2)[30..]);
        assert_eq!(servers(&mut tail), [2]);

        // Rotated while the writer still has the old file, whose last line never ends.
        let old = temp.path().join("control.log.1");
        append(&path, &line(3));
        fs::rename(&path, &old).unwrap();
        append(&old, line(4).trim_end());
        assert_eq!(servers(&mut tail), [3], "the new file may yet be to come");
        append(&path, &line(5));
        assert_eq!(servers(&mut tail), [4, 5]);

        // Truncated in the middle of a line.
        append(&path, "[2013-08-05 12:50");
        assert!(servers(&mut tail).is_empty());
        File::create(&path).unwrap();
        assert!(servers(&mut tail).is_empty());
        append(&path, &line(6));
        assert_eq!(servers(&mut tail), [6]);
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("server.log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert!(Tail::from_start(&path).poll().unwrap_err().to_string().contains("not a regular file"));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(Tail::from_end(&path).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn from_the_end_only_new_lines_are_reported() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("server.log");
        append(&path, &line(1));
        let mut tail = Tail::from_end(&path).unwrap();
        append(&path, &line(2));
        assert_eq!(servers(&mut tail), [2]);
        let missing = temp.path().join("none");
        let mut tail = Tail::from_end(&missing).unwrap();
        append(&missing, &line(3));
        assert_eq!(servers(&mut tail), [3]);
    }
}
