//! [`Hours`]: days of the week and times of the day.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const DAY_MINUTES: u16 = 24 * 60;

/// A moment of a week, in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The day: 0 is Monday.
    pub day: u8,
    /// Minutes since midnight.
    pub minute: u16,
}

/// Hours of some days of the week, as `mon-fri 08:00-18:00`.
///
/// Days without hours are whole days, hours without days are of every day. Hours that end before
/// they begin (`22:00-06:00`) end on the next day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hours {
    days: [bool; 7],
    from: u16,
    to: u16,
}

/// A text that is not such hours.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not understood: {reason}; write \"mon-fri 08:00-18:00\", \"sat,sun\" or \"22:00-06:00\""
)]
pub struct ParseHoursError {
    text: String,
    reason: &'static str,
}

impl Hours {
    /// The moments at which they begin.
    pub(super) fn begins(self) -> impl Iterator<Item = Moment> {
        let days = (0..).zip(self.days).filter(|(_, is_on)| *is_on);
        days.map(move |(day, _)| Moment { day, minute: self.from })
    }

    /// Whether a moment is within them.
    pub fn has(&self, moment: Moment) -> bool {
        let on = |day: u8| self.days[usize::from(day % 7)];
        let Moment { day, minute } = moment;
        if self.from < self.to {
            return on(day) && (self.from..self.to).contains(&minute);
        }
        (on(day) && minute >= self.from) || (on(day + 6) && minute < self.to)
    }
}

impl FromStr for Hours {
    type Err = ParseHoursError;

    fn from_str(text: &str) -> Result<Self, ParseHoursError> {
        let refuse = |reason| ParseHoursError { text: text.to_owned(), reason };
        let mut hours = Self { days: [true; 7], from: 0, to: DAY_MINUTES };
        let lower = text.to_ascii_lowercase();
        let words: Vec<&str> = lower.split_whitespace().collect();
        let (days, times) = match words.as_slice() {
            [times] if times.contains(':') => (None, Some(times)),
            [days] => (Some(days), None),
            [days, times] => (Some(days), Some(times)),
            _ => return Err(refuse("it is neither days nor hours nor both")),
        };
        if let Some(days) = days {
            hours.days = [false; 7];
            for part in days.split(',') {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let number = |day| DAYS.iter().position(|name| *name == day);
                let both = number(first).zip(number(last));
                let (mut day, last) =
                    both.ok_or_else(|| refuse("days are mon, tue, wed, thu, fri, sat, sun"))?;
                hours.days[day] = true;
                while day != last {
                    day = (day + 1) % 7;
                    hours.days[day] = true;
                }
            }
        }
        if let Some(times) = times {
            let both = times.split_once('-').and_then(|(from, to)| minute(from).zip(minute(to)));
            (hours.from, hours.to) = both.ok_or_else(|| refuse("hours are written as 08:00-18:00"))?;
            if hours.from == hours.to || hours.from == DAY_MINUTES {
                return Err(refuse("the hours are empty"));
            }
        }
        Ok(hours)
    }
}

/// Minutes since midnight of `08:00`, up to `24:00`.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str| match text.len() {
        1 | 2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u16>().ok(),
        _ => None,
    };
    let (hour, minute) = (number(hour)?, number(minute)?);
    let all = hour * 60 + minute;
    (minute < 60 && all <= DAY_MINUTES).then_some(all)
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days: Vec<&str> = (0..7).filter(|&day| self.days[day]).map(|day| DAYS[day]).collect();
        if days.len() < 7 {
            write!(f, "{} ", days.join(","))?;
        }
        let time = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        write!(f, "{}-{}", time(self.from), time(self.to))
    }
}
