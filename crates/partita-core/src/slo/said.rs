//! What the law says of its moves: [`Reason`] and [`Event`].

use core::fmt;

use super::Time;
use crate::Count;

/// Why TPCs move.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// Too many bursts were late.
    Late {
        /// Late ones.
        late: u64,
        /// Of so many.
        count: u64,
    },
    /// It launches, and no burst ends.
    Stuck,
    /// Its bursts' ends are not seen, so more TPCs are no help that could be seen.
    Unseen,
    /// The target holds; whether it holds on fewer TPCs.
    Trial,
    /// The trial hurt.
    Hurt {
        /// Late ones.
        late: u64,
        /// Of so many.
        count: u64,
    },
    /// The trial stayed open.
    Open {
        /// After so many bursts.
        count: u64,
    },
    /// It rests.
    Resting,
    /// It works again.
    Back,
    /// To learn its time on all that it can have.
    Calibrating,
    /// Whether its mean time stays within the bound on fewer TPCs.
    Size,
    /// Whether more TPCs make it faster by now.
    More,
    /// It was slower than the bound allows, or open.
    Slower,
    /// More made it no faster.
    NoFaster,
    /// Others need them.
    GaveWay,
    /// Others leave them.
    Left,
}

impl Reason {
    /// A word for it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Late { .. } => "late",
            Self::Stuck => "stuck",
            Self::Unseen => "unseen",
            Self::Trial => "trial",
            Self::Hurt { .. } => "hurt",
            Self::Open { .. } => "open",
            Self::Resting => "resting",
            Self::Back => "back",
            Self::Calibrating => "calibrating",
            Self::Size => "size",
            Self::More => "more",
            Self::Slower => "slower",
            Self::NoFaster => "no-faster",
            Self::GaveWay => "gave-way",
            Self::Left => "left",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late { late, count } => write!(f, "{late} of {} were late", Count(*count, "burst")),
            Self::Stuck => f.write_str("it launches kernels, and no burst ends"),
            Self::Unseen => f.write_str("the ends of its bursts are not seen, so more TPCs bring nothing"),
            Self::Trial => f.write_str("the target holds; a trial on fewer TPCs"),
            Self::Hurt { late, count } => {
                write!(f, "the trial hurt: {late} of {} were late", Count(*count, "burst"))
            }
            Self::Open { count } => write!(f, "the trial stayed open after {}", Count(*count, "burst")),
            Self::Resting => f.write_str("it rests"),
            Self::Back => f.write_str("it works again"),
            Self::Calibrating => f.write_str("to learn how fast it is on all that it can have"),
            Self::Size => f.write_str("a trial whether its bursts are as fast on fewer TPCs"),
            Self::More => f.write_str("a trial whether more TPCs make its bursts faster"),
            Self::Slower => f.write_str("on fewer TPCs its bursts were slower, or it stayed open"),
            Self::NoFaster => f.write_str("on more TPCs its bursts were no faster, or it stayed open"),
            Self::GaveWay => f.write_str("a target or a guarantee of another tenant needs them"),
            Self::Left => f.write_str("the others leave them"),
        }
    }
}

/// What became of a tenant, without a move.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A trial is kept.
    Kept {
        /// The TPCs.
        tpcs: u32,
    },
    /// The target cannot be met.
    Unmet {
        /// The best time that 99 of 100 took, in nanoseconds; `None` if no burst has ended.
        best_ns: Option<u64>,
        /// On how many TPCs.
        tpcs: u32,
    },
    /// The target holds again.
    Met,
    /// What 99 of 100 take at most on all that it can have, in nanoseconds.
    Learnt {
        /// The time.
        alone_ns: u64,
    },
}

impl Event {
    /// A word for it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kept { .. } => "kept",
            Self::Unmet { .. } => "unmet",
            Self::Met => "met",
            Self::Learnt { .. } => "learnt",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept { tpcs } => write!(f, "{} are enough", Count(*tpcs, "TPC")),
            Self::Unmet { best_ns: Some(best_ns), tpcs } => {
                let tpcs = Count(*tpcs, "TPC");
                write!(f, "the target cannot be met: the best p99 was {} on {tpcs}", Time(*best_ns))
            }
            Self::Unmet { best_ns: None, tpcs } => {
                write!(f, "the target cannot be met: no burst ended on {}", Count(*tpcs, "TPC"))
            }
            Self::Met => f.write_str("the target holds again"),
            Self::Learnt { alone_ns } => {
                write!(f, "its own p99 on all that it can have is {}", Time(*alone_ns))
            }
        }
    }
}
