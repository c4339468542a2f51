//! How a GPU divides its time between vGPUs.

use core::fmt;
use core::str::FromStr;

/// A policy of NVIDIA's vGPU scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Those with work get time, round robin.
    BestEffort,
    /// Each vGPU that runs gets the same share.
    EqualShare,
    /// Each vGPU gets the share that its type has of the GPU, whether others run or not.
    FixedShare,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BestEffort, Self::EqualShare, Self::FixedShare];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::BestEffort => "best-effort",
            Self::EqualShare => "equal",
            Self::FixedShare => "fixed",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Policy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|policy| policy.word() == text).ok_or(())
    }
}

/// Adaptive round robin: overruns of a time slice are taken from later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Averaging {
    /// Over how many slices overruns are averaged; 0 for the driver's default.
    pub factor: u32,
    /// How often a second each vGPU gets a slice; 0 for the driver's default.
    pub frequency_hz: u32,
}

/// A policy with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerState {
    /// The policy.
    pub policy: Policy,
    /// The length of a time slice in nanoseconds, with averaging off; 0 for the driver's default.
    pub slice_ns: u32,
    /// Averaging; `None` where it is off.
    pub averaging: Option<Averaging>,
}

impl fmt::Display for SchedulerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        match self.averaging {
            Some(Averaging { factor: 0, frequency_hz: 0 }) => f.write_str(", averaged"),
            Some(averaging) => {
                write!(f, ", averaged over {} slices at {} Hz", averaging.factor, averaging.frequency_hz)
            }
            None if self.slice_ns == 0 => Ok(()),
            None => write!(f, ", slices of {} us", self.slice_ns / 1000),
        }
    }
}
