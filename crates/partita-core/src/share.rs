//! [`Share`]: a requested amount of a GPU's compute units.

#[cfg(test)]
mod tests;

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use crate::tpc_set::{Reason, parse_ranges};
use crate::{GpcSet, Topology, TpcSet};

/// A requested amount of a GPU's compute units, in the form of the command line.
///
/// | text | meaning |
/// |---|---|
/// | `30%`, `12.5%` | a part of the device, at most three decimals |
/// | `40sm` | a number of SMs, whole TPCs |
/// | `20tpc` | a number of TPCs |
/// | `gpc:0-2` | every TPC of these GPCs |
/// | `tpc:0-9`, `tpc:0x3ff` | exactly these logical TPCs |
///
/// # Rounding
/// A percentage gives whole TPCs, **rounded down**: `12.5%` of 66 TPCs (8.25) is 8. A result that
/// is less than 1/(n+2) TPC short of a whole number, on a device of n TPCs, counts as that number,
/// so that `33.33%` of 66 TPCs (21.998) is 22.
///
/// This keeps a promise: **percentages that together make at most 100 % always fit**, on any
/// device. For k tenants the forgiven parts add up to less than k/(n+2) TPC, which is below 1 while
/// k ≤ n, so the sum of the whole numbers stays at most n; and n+1 tenants of one TPC each would
/// need more than 100 %. (Rounding to nearest breaks it: twice `50%` of 9 TPCs would be 10.) For
/// the same reason a percentage that gives less than one TPC is not rounded up: it is an error,
/// which names the smallest percentage that gives one.
///
/// ```
/// use partita_core::{Share, Topology, Tpc};
///
/// let tpcs: Vec<Tpc> = (0..66).map(|i| Tpc { gpc: i % 8, physical: i.into() }).collect();
/// let h200 = Topology::new(2, tpcs).unwrap();
///
/// let half: Share = "50%".parse().unwrap();
/// assert_eq!(half, Share::Percent(50_000));
/// assert_eq!(half.tpcs_wanted(&h200), Ok(33));
/// assert_eq!("40sm".parse::<Share>().unwrap().tpcs_wanted(&h200), Ok(20));
///
/// let odd = "41sm".parse::<Share>().unwrap().tpcs_wanted(&h200).unwrap_err();
/// assert_eq!(
///     odd.to_string(),
///     "41sm is not a whole number of TPCs: a TPC of this device has 2 SMs; ask for 40sm or 42sm",
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// A part of the device, in thousandths of a percent: 1 to 100 000.
    Percent(u32),
    /// A number of SMs.
    Sms(u32),
    /// A number of TPCs.
    Tpcs(u32),
    /// Every TPC of these GPCs.
    Gpcs(GpcSet),
    /// Exactly these logical TPCs.
    Exact(TpcSet),
}

/// 100 %, in thousandths of a percent.
const WHOLE: u32 = 100_000;

impl Share {
    /// How many TPCs of the device the share stands for, at least 1.
    ///
    /// # Errors
    /// A share of zero, a percentage above 100 or of less than one TPC, SMs that are not whole
    /// TPCs, GPCs or TPCs that the device does not have, more than the device has.
    pub fn tpcs_wanted(&self, topology: &Topology) -> Result<u32, ShareError> {
        let tpc_count = topology.tpc_count();
        let sms_per_tpc = topology.sms_per_tpc();
        let wanted = match *self {
            Self::Percent(0) | Self::Sms(0) | Self::Tpcs(0) => {
                return Err(ShareError::Nothing { share: *self });
            }
            Self::Percent(milli) if milli > WHOLE => return Err(ShareError::AboveWhole { share: *self }),
            Self::Percent(milli) => match percent_of(milli, tpc_count) {
                0 => {
                    return Err(ShareError::BelowOneTpc {
                        share: *self,
                        smallest: smallest(tpc_count),
                        tpc_count,
                    });
                }
                wanted => wanted,
            },
            Self::Sms(sms) if sms % sms_per_tpc != 0 => {
                return Err(ShareError::BrokenTpc {
                    share: *self,
                    sms_per_tpc,
                    sm_count: topology.sm_count(),
                });
            }
            Self::Sms(sms) => sms / sms_per_tpc,
            Self::Tpcs(tpcs) => tpcs,
            Self::Gpcs(_) | Self::Exact(_) => return self.named_tpcs(topology).map(|set| set.len()),
        };
        if wanted > tpc_count {
            return Err(ShareError::TooMany { share: *self, wanted_tpcs: wanted, tpc_count, sms_per_tpc });
        }
        Ok(wanted)
    }

    /// The TPCs that the share names, for [`Share::Gpcs`] and [`Share::Exact`]; for the others,
    /// whose TPCs the planner chooses, the whole device.
    ///
    /// # Errors
    /// No TPCs named, GPCs or TPCs that the device does not have.
    pub(crate) fn named_tpcs(&self, topology: &Topology) -> Result<TpcSet, ShareError> {
        let set = match *self {
            Self::Gpcs(gpcs) => {
                let missing = gpcs.difference(topology.gpc_ids());
                if !missing.is_empty() {
                    return Err(ShareError::UnknownGpcs {
                        share: *self,
                        missing,
                        present: topology.gpc_ids(),
                    });
                }
                let chosen = topology.gpcs().iter().filter(|gpc| gpcs.contains(gpc.id));
                chosen.fold(TpcSet::EMPTY, |set, gpc| set | gpc.tpcs)
            }
            Self::Exact(tpcs) => {
                let missing = tpcs - topology.all();
                if !missing.is_empty() {
                    return Err(ShareError::UnknownTpcs { share: *self, missing, present: topology.all() });
                }
                tpcs
            }
            _ => topology.all(),
        };
        if set.is_empty() { Err(ShareError::Nothing { share: *self }) } else { Ok(set) }
    }

    /// The percentage with the fewest decimals that gives exactly `tpcs` TPCs of the device, 1 to
    /// all.
    #[must_use]
    pub fn percent_of_tpcs(tpcs: u32, topology: &Topology) -> Option<Self> {
        let tpc_count = topology.tpc_count();
        if tpcs == 0 || tpcs > tpc_count {
            return None;
        }
        // `percent_of(milli) <= tpcs`, solved for `milli`.
        let (t, n, whole) = (u64::from(tpcs), u64::from(tpc_count), u64::from(WHOLE));
        let highest = ((whole * (t + 1) * (n + 2) - whole) / (n * (n + 2))).min(whole) as u32;
        let shortest = [1000, 100, 10, 1].into_iter().map(|step| highest - highest % step);
        shortest.into_iter().find(|&milli| percent_of(milli, tpc_count) == tpcs).map(Self::Percent)
    }
}

/// Whole TPCs of a percentage, by the rule that [`Share`] documents: the floor of
/// `n·p + 1/(n+2)`, less a hair, so that a shortfall of exactly 1/(n+2) is not forgiven.
fn percent_of(milli: u32, tpc_count: u32) -> u32 {
    let (milli, n, whole) = (u64::from(milli), u64::from(tpc_count), u64::from(WHOLE));
    ((milli * n * (n + 2) + whole - 1) / (whole * (n + 2))) as u32
}

/// The smallest percentage that gives one TPC.
fn smallest(tpc_count: u32) -> Share {
    // `percent_of(milli) >= 1`, solved for `milli`.
    let (n, whole) = (u64::from(tpc_count), u64::from(WHOLE));
    Share::Percent((whole * (n + 1) / (n * (n + 2))) as u32 + 1)
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Percent(milli) => {
                write!(f, "{}", milli / 1000)?;
                let (mut decimals, mut width) = (milli % 1000, 3);
                if decimals > 0 {
                    while decimals % 10 == 0 {
                        decimals /= 10;
                        width -= 1;
                    }
                    write!(f, ".{decimals:0width$}")?;
                }
                f.write_str("%")
            }
            Self::Sms(sms) => write!(f, "{sms}sm"),
            Self::Tpcs(tpcs) => write!(f, "{tpcs}tpc"),
            Self::Gpcs(gpcs) => write!(f, "gpc:{gpcs}"),
            Self::Exact(tpcs) => write!(f, "tpc:{tpcs}"),
        }
    }
}

impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, ParseShareError> {
        parse(text).map_err(|reason| ParseShareError { text: text.into(), reason })
    }
}

fn parse(text: &str) -> Result<Share, ParseReason> {
    let lower = text.trim().to_ascii_lowercase();
    if lower.is_empty() {
        return Err(ParseReason::Empty);
    }
    let share = if lower == "all" {
        Share::Percent(WHOLE)
    } else if let Some(list) = lower.strip_prefix("gpc:") {
        let numbers = parse_ranges(list)?;
        Share::Gpcs(GpcSet::from_numbers(numbers))
    } else if let Some(list) = lower.strip_prefix("tpc:") {
        Share::Exact(if list.trim_start().starts_with("0x") { parse_hex(list)? } else { parse_ranges(list)? })
    } else if let Some(number) = lower.strip_suffix('%') {
        Share::Percent(parse_percent(number.trim_end())?)
    } else if let Some(number) = lower.strip_suffix("sms").or_else(|| lower.strip_suffix("sm")) {
        Share::Sms(parse_count(number.trim_end())?)
    } else if let Some(number) = lower.strip_suffix("tpcs").or_else(|| lower.strip_suffix("tpc")) {
        Share::Tpcs(parse_count(number.trim_end())?)
    } else if lower.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(ParseReason::NoUnit);
    } else {
        return Err(ParseReason::UnknownForm);
    };
    match share {
        Share::Percent(0) | Share::Sms(0) | Share::Tpcs(0) => Err(ParseReason::Zero),
        Share::Exact(set) if set.is_empty() => Err(ParseReason::Zero),
        Share::Percent(milli) if milli > WHOLE => Err(ParseReason::AboveWhole),
        share => Ok(share),
    }
}

fn parse_hex(text: &str) -> Result<TpcSet, ParseReason> {
    TpcSet::from_hex(text).map_err(|error| ParseReason::List(error.into_reason()))
}

fn parse_count(digits: &str) -> Result<u32, ParseReason> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseReason::NotANumber(digits.into()));
    }
    digits.parse().map_err(|_| ParseReason::TooLarge)
}

fn parse_percent(number: &str) -> Result<u32, ParseReason> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return Err(ParseReason::NotANumber(number.into()));
    }
    let decimals = decimals.trim_end_matches('0');
    if decimals.len() > 3 {
        return Err(ParseReason::TooPrecise);
    }
    let whole: u32 = whole.parse().map_err(|_| ParseReason::AboveWhole)?;
    let milli = decimals.bytes().fold(0, |n, b| n * 10 + u32::from(b - b'0'));
    let milli = milli * 10u32.pow(3 - decimals.len() as u32);
    whole.checked_mul(1000).and_then(|n| n.checked_add(milli)).ok_or(ParseReason::AboveWhole)
}

/// A text that is not a share of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not a share of the GPU: {reason}; write 30% or 12.5%, 40sm, 20tpc, gpc:0-2 or tpc:0-9")]
pub struct ParseShareError {
    text: String,
    reason: ParseReason,
}

impl ParseShareError {
    /// The same for a reader that takes no named GPCs and TPCs.
    #[must_use]
    pub fn by_number(&self) -> String {
        let Self { text, reason } = self;
        alloc::format!("`{text}` is not a share of the GPU: {reason}; write 30% or 12.5%, 40sm or 20tpc")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum ParseReason {
    #[error("it is empty")]
    Empty,
    #[error("it has no unit")]
    NoUnit,
    #[error("it has none of the known forms")]
    UnknownForm,
    #[error("a partition needs at least one TPC")]
    Zero,
    #[error("it is above 100%")]
    AboveWhole,
    #[error("it has more than three decimals")]
    TooPrecise,
    #[error("no device has so many")]
    TooLarge,
    #[error("`{0}` is not a number of that form")]
    NotANumber(String),
    #[error("{0}")]
    List(#[from] Reason),
}

/// A share that is invalid on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The share is zero or names no TPC.
    #[error("{share} is nothing: a partition needs at least one TPC; ask for 1tpc or more")]
    Nothing {
        /// The requested share.
        share: Share,
    },
    /// A percentage above 100.
    #[error("{share} is more than the device; ask for 100% or less")]
    AboveWhole {
        /// The requested share.
        share: Share,
    },
    /// A percentage of less than one TPC.
    #[error(
        "{share} of the {tpc_count} TPCs of this device is less than one TPC, the smallest part; ask for {smallest} or 1tpc"
    )]
    BelowOneTpc {
        /// The requested share.
        share: Share,
        /// The smallest percentage that gives one TPC.
        smallest: Share,
        /// How many TPCs the device has.
        tpc_count: u32,
    },
    /// SMs that are not whole TPCs.
    #[error(
        "{share} is not a whole number of TPCs: a TPC of this device has {sms_per_tpc} SMs; ask for {}",
        Neighbours { share: *share, sms_per_tpc: *sms_per_tpc, sm_count: *sm_count }
    )]
    BrokenTpc {
        /// The requested share.
        share: Share,
        /// How many SMs a TPC of the device has.
        sms_per_tpc: u32,
        /// How many SMs the device has.
        sm_count: u32,
    },
    /// More than the device has.
    #[error(
        "{share} is more than the device: it has {tpc_count} TPCs of {sms_per_tpc} SMs; ask for 100% or less"
    )]
    TooMany {
        /// The requested share.
        share: Share,
        /// How many TPCs that is.
        wanted_tpcs: u32,
        /// How many TPCs the device has.
        tpc_count: u32,
        /// How many SMs each of them has.
        sms_per_tpc: u32,
    },
    /// GPCs that the device does not have.
    #[error("{share}: this device has no GPC {missing}; its GPCs are {present}")]
    UnknownGpcs {
        /// The requested share.
        share: Share,
        /// Those that the device does not have.
        missing: GpcSet,
        /// Those that the device has.
        present: GpcSet,
    },
    /// TPCs that the device does not have.
    #[error("{share}: this device has no TPC {missing}; its TPCs are {present}")]
    UnknownTpcs {
        /// The requested share.
        share: Share,
        /// Those that the device does not have.
        missing: TpcSet,
        /// Those that the device has.
        present: TpcSet,
    },
}

/// The whole numbers of TPCs on either side of a number of SMs, as shares to type.
struct Neighbours {
    share: Share,
    sms_per_tpc: u32,
    sm_count: u32,
}

impl fmt::Display for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Share::Sms(sms) = self.share else { return Err(fmt::Error) };
        let below = (sms - sms % self.sms_per_tpc).min(self.sm_count);
        let above = below + self.sms_per_tpc;
        match (below, above) {
            (0, above) => write!(f, "{above}sm"),
            (below, above) if above > self.sm_count => write!(f, "{below}sm or less"),
            (below, above) => write!(f, "{below}sm or {above}sm"),
        }
    }
}
