//! One line of a log: `[YYYY-MM-DD hh:mm:ss.mmm Tag  PID] text`.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::Pid;

/// When a line was written, in the writer's local time. Ordered; the time zone is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Year, four digits.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day, 1 to 31.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 60: there are leap seconds.
    pub second: u8,
    /// Milliseconds, 0 to 999.
    pub millis: u16,
}

impl Stamp {
    /// Milliseconds since another time, less than a day before.
    #[must_use]
    pub fn ms_since(self, before: Self) -> u32 {
        let of_day = |stamp: Self| {
            let seconds =
                (u32::from(stamp.hour) * 60 + u32::from(stamp.minute)) * 60 + u32::from(stamp.second);
            seconds * 1000 + u32::from(stamp.millis)
        };
        const DAY_MS: u32 = 86_400_000;
        (of_day(self) % DAY_MS + DAY_MS - of_day(before) % DAY_MS) % DAY_MS
    }

    /// Reads `2013-08-05 12:50:23.347`.
    fn parse(text: &[u8]) -> Option<Self> {
        let [
            y0,
            y1,
            y2,
            y3,
            b'-',
            mo0,
            mo1,
            b'-',
            d0,
            d1,
            b' ',
            h0,
            h1,
            b':',
            mi0,
            mi1,
            b':',
            s0,
            s1,
            b'.',
            m0,
            m1,
            m2,
        ] = *text
        else {
            return None;
        };
        let number = |digits: &[u8]| {
            digits.iter().try_fold(0u16, |number, digit| {
                digit.is_ascii_digit().then(|| number * 10 + u16::from(digit - b'0'))
            })
        };
        let within = |digits: &[u8], least: u8, most: u8| {
            number(digits)
                .and_then(|value| u8::try_from(value).ok())
                .filter(|value| (least..=most).contains(value))
        };
        Some(Self {
            year: number(&[y0, y1, y2, y3])?,
            month: within(&[mo0, mo1], 1, 12)?,
            day: within(&[d0, d1], 1, 31)?,
            hour: within(&[h0, h1], 0, 23)?,
            minute: within(&[mi0, mi1], 0, 59)?,
            second: within(&[s0, s1], 0, 60)?,
            millis: number(&[m0, m1, m2])?,
        })
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second, millis } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}")
    }
}

impl Serialize for Stamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The part of the service that wrote a line, by its own name. A server is `Other` until it is
/// initialised, and always on drivers before R535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The control daemon.
    Control,
    /// A server.
    Server,
    /// Usually a server.
    Other,
    /// A server for GPUs before Volta.
    Legacy,
}

/// A line, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// When it was written.
    pub time: Stamp,
    /// The writer.
    pub source: Source,
    /// The process that wrote it. The line `Starting new server` of newer daemons has the server's
    /// number, not the daemon's.
    pub pid: Pid,
    /// Its text, without blanks around it.
    pub text: &'a str,
}

impl<'a> Line<'a> {
    /// Parses a line; `None` if it does not begin as a log's lines do.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        const STAMP_BYTES: usize = "2013-08-05 12:50:23.347".len();
        let (head, text) = line.trim_start().strip_prefix('[')?.split_once(']')?;
        let (stamp, writer) = head.as_bytes().split_at_checked(STAMP_BYTES)?;
        let time = Stamp::parse(stamp)?;
        let mut words = std::str::from_utf8(writer).ok()?.split_ascii_whitespace();
        let source = match words.next()? {
            "Control" => Source::Control,
            "Server" => Source::Server,
            "Other" => Source::Other,
            "Legacy" => Source::Legacy,
            _ => return None,
        };
        let pid = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Self { time, source, pid, text: text.trim() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line =
            Line::parse("[2013-08-05 12:50:23.347 Control 13894] Starting new server 13929 for user 500")
                .unwrap();
        assert_eq!(line.time.to_string(), "2013-08-05 12:50:23.347");
        assert_eq!((line.source, line.pid), (Source::Control, 13894));
        assert_eq!(line.text, "Starting new server 13929 for user 500");
        let padded = Line::parse("[2022-04-28 15:56:08.906 Other    17] 0\r").unwrap();
        assert_eq!((padded.source, padded.pid, padded.text), (Source::Other, 17, "0"));
        assert!(line.time < padded.time);
    }

    #[test]
    fn an_incomplete_line_is_no_line() {
        for text in [
            "",
            "[",
            "[]",
            "[2013-08-05 12:50:23.347 Control] no process",
            "[2013-08-05 12:50:23.347 Control 1 2] two processes",
            "[2013-08-05 12:50:23.347 Cloud 1] an unknown writer",
            "[2013-13-05 12:50:23.347 Control 1] an unknown month",
            "[2013-08-05 12:50:23,347 Control 1] a comma",
            "[2013-08-05 12:50:23.3 Control 1] short",
            "[2013-08-05 12:50:23.34é Control 1] not ASCII",
            "2013-08-05 12:50:23.347 Control 1] no bracket",
        ] {
            assert_eq!(Line::parse(text), None, "{text}");
        }
    }
}
