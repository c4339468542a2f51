//! From bytes to entries.

use std::collections::BTreeMap;

use serde::Serialize;

use super::event::{Event, List, Meaning, meaning};
use super::line::{Line, Source, Stamp};
use crate::Pid;

/// The longest line, in bytes: lines of a log have some hundred. Longer ones are skipped.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

/// Writers whose lists are followed at the same time. A log has one writer, or a few servers one
/// after the other.
const WRITERS_MAX: usize = 64;

/// One line of a log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// When it was written.
    pub time: Stamp,
    /// The writer.
    pub source: Source,
    /// The process that wrote it.
    pub pid: Pid,
    /// Its text.
    pub text: String,
    /// Its meaning, if recognised.
    #[serde(flatten)]
    pub event: Option<Event>,
}

/// Makes entries of a log's bytes, in pieces of any size.
#[derive(Debug, Default, Clone)]
pub struct LogReader {
    /// The incomplete line.
    half: Vec<u8>,
    /// Whether that line is too long already.
    is_passed_over: bool,
    /// The list of each writer's last line.
    lists: BTreeMap<Pid, List>,
}

impl LogReader {
    /// A reader at the start of a line.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes; returns the entries that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            self.keep(&rest[..end]);
            entries.extend(self.end_line());
            rest = &rest[end + 1..];
        }
        self.keep(rest);
        entries
    }

    /// The end of the input: the line without an end counts as complete.
    pub fn finish(&mut self) -> Option<Entry> {
        self.end_line()
    }

    /// The file was emptied: drop the line without an end, and end all lists.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.half.len() + bytes.len() > LINE_BYTES_MAX {
            self.is_passed_over = true;
            self.half.clear();
        }
        if !self.is_passed_over {
            self.half.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) -> Option<Entry> {
        let line = std::mem::take(&mut self.half);
        if std::mem::take(&mut self.is_passed_over) {
            return None;
        }
        let text = String::from_utf8_lossy(&line);
        let line = Line::parse(&text)?;
        let event = match meaning(line.text, self.lists.get(&line.pid).copied()) {
            Meaning::Event(event @ (Event::FaultDevice { .. } | Event::FaultClient { .. })) => Some(event),
            Meaning::ListOf(list) => {
                if self.lists.len() >= WRITERS_MAX {
                    self.lists.clear();
                }
                self.lists.insert(line.pid, list);
                None
            }
            Meaning::Event(event) => {
                self.lists.remove(&line.pid);
                Some(event)
            }
            Meaning::Nothing => {
                self.lists.remove(&line.pid);
                None
            }
        };
        Some(Entry { time: line.time, source: line.source, pid: line.pid, text: line.text.to_owned(), event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(log: &str) -> Vec<Event> {
        LogReader::new().push(log.as_bytes()).into_iter().filter_map(|entry| entry.event).collect()
    }

    #[test]
    fn lists_go_over_lines_and_end_with_them() {
        let log = "\
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: The following devices
[2022-04-28 15:56:08.906 Other 11570] 0
[2022-04-28 15:56:08.906 Control 99] 17
[2022-04-28 15:56:08.907 Other 11570] 1
[2022-04-28 15:56:08.907 Other 11570] Volta MPS: The following clients have a sticky error set:
[2022-04-28 15:56:08.907 Other 11570] 11641
[2022-04-28 15:56:08.907 Other 11570] something else
[2022-04-28 15:56:08.907 Other 11570] 5
";
        let expected = [
            Event::FaultDevice { device: 0 },
            Event::FaultDevice { device: 1 },
            Event::FaultClient { client: 11641 },
        ];
        assert_eq!(events(log), expected);
    }

    #[test]
    fn half_lines_wait_and_endless_ones_are_passed_over() {
        let mut reader = LogReader::new();
        assert!(reader.push(b"[2013-08-05 12:50:24.870 Control 13894] NEW SERV").is_empty());
        let entries = reader.push(b"ER 13929: Ready\n[2013");
        assert_eq!(entries[0].event, Some(Event::ServerReady { server: 13929 }));
        assert_eq!(reader.finish(), None, "no line yet");
        assert!(reader.push(&vec![b'x'; 3 * LINE_BYTES_MAX]).is_empty());
        assert!(
            reader.push(b"[2013-08-05 12:50:24.870 Control 13894] Exit\n").is_empty(),
            "still the endless line"
        );
        assert_eq!(reader.push(b"[2013-08-05 12:50:24.870 Control 13894] Exit\n").len(), 1);
        reader.push(b"[2013-08-05 12:50:24.870 Control 13894] Exit");
        assert_eq!(reader.finish().unwrap().event, Some(Event::DaemonEnded));
    }
}
