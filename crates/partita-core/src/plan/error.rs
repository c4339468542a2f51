//! Reasons for the absence of a plan, in one line that a user can act on.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

use crate::{Count, Share, ShareError, TpcSet};

/// Why Partita cannot give a share.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The share is invalid on this device.
    #[error(transparent)]
    Share(Box<ShareError>),
    /// Too few TPCs are free.
    #[error(transparent)]
    NotEnough(Box<NotEnough>),
    /// A tenant asks for all free TPCs, and no TPC is free.
    #[error(transparent)]
    NoneFree(Box<NoneFree>),
    /// Other tenants hold some of the TPCs that the share names.
    #[error(transparent)]
    Taken(Box<Taken>),
    /// The tenant to plan again does not exist.
    #[error("there is no tenant `{name}`; {}", Names(present))]
    UnknownTenant {
        /// The requested name.
        name: String,
        /// The existing names.
        present: Vec<String>,
    },
    /// The new sets are known, but in every order of moves two tenants would hold one TPC for a
    /// moment.
    #[error(
        "tenant `{tenant}` cannot move: every TPC is held, and those that wait for each other hold one each; shrink or end a tenant"
    )]
    Deadlock {
        /// A tenant that cannot get to its new set.
        tenant: String,
    },
}

impl From<ShareError> for PlanError {
    fn from(error: ShareError) -> Self {
        Self::Share(Box::new(error))
    }
}

/// A tenant and TPCs that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The tenant's name.
    pub name: String,
    /// The TPCs, logical.
    pub set: TpcSet,
    /// Whether it stands for a reservation, by [`PlanError::with_remedy`].
    pub is_reservation: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_reservation {
            true => f.write_str(&self.name),
            false => write!(f, "tenant `{}`", self.name),
        }
    }
}

/// Too few TPCs are free.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct NotEnough {
    /// The requested share.
    pub asked: Share,
    /// How many TPCs that is.
    pub wanted_tpcs: u32,
    /// How many SMs each TPC of the device has.
    pub sms_per_tpc: u32,
    /// How many TPCs the device has.
    pub tpc_count: u32,
    /// The available TPCs, including those that the tenant already has.
    pub free: TpcSet,
    /// The TPCs that the tenant already has.
    pub own: TpcSet,
    /// The holders of the others.
    pub holders: Vec<Holder>,
    /// The largest share of the same form that fits; `None` if no TPC is free.
    pub fits: Option<Share>,
    /// How the holders could make room.
    pub remedy: Remedy,
}

impl fmt::Display for NotEnough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, wanted_tpcs, sms_per_tpc, tpc_count, .. } = self;
        let free = self.free.len();
        let sms = u64::from(*wanted_tpcs) * u64::from(*sms_per_tpc);
        write!(f, "{asked} ({}, {}) does not fit: ", Count(*wanted_tpcs, "TPC"), Count(sms, "SM"))?;
        match free {
            0 => write!(f, "none of {tpc_count} TPCs is free")?,
            1 => write!(f, "1 of {tpc_count} TPCs is free")?,
            _ => write!(f, "{free} of {tpc_count} TPCs are free")?,
        }
        if !self.own.is_empty() {
            write!(f, ", the {} of this tenant counted", self.own.len())?;
        }
        write_holders(f, "; ", &self.holders)?;
        match self.fits {
            Some(fits) => write!(f, "; ask for `--sm {fits}` or less")?,
            None => write!(f, "; ")?,
        }
        if !self.holders.is_empty() {
            let or = if self.fits.is_some() { ", or " } else { "" };
            write!(f, "{or}{}", self.remedy)?;
        }
        Ok(())
    }
}

/// Other tenants hold some of the TPCs that the share names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Taken {
    /// The requested share.
    pub asked: Share,
    /// The TPCs that it names.
    pub named: TpcSet,
    /// The holders of some of them, with all their TPCs.
    pub conflicts: Vec<Holder>,
    /// Shares that fit, nearest to the request first; empty if no TPC is free.
    pub fits: Vec<Share>,
    /// How the holders could make room.
    pub remedy: Remedy,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not free", self.asked)?;
        let mut separator = ": ";
        for holder in &self.conflicts {
            let set = holder.set & self.named;
            // In full: the user has to leave these TPCs out.
            write!(f, "{separator}{holder} holds {} of it (tpc:{set})", Count(set.len(), "TPC"))?;
            separator = ", ";
        }
        for (i, fits) in self.fits.iter().enumerate() {
            write!(f, "{}`--sm {fits}`", if i == 0 { "; ask for " } else { ", or " })?;
        }
        f.write_str(if self.fits.is_empty() { "; " } else { ", or " })?;
        write!(f, "{}", self.remedy)
    }
}

/// No TPC is free for a tenant that asks for all free ones.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct NoneFree {
    /// The TPCs of the device.
    pub all: TpcSet,
    /// Their holders.
    pub holders: Vec<Holder>,
    /// How they could make room.
    pub remedy: Remedy,
}

impl fmt::Display for NoneFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "none of {} is free", Count(self.all.len(), "TPC"))?;
        write_holders(f, "; ", &self.holders)?;
        write!(f, "; {}", self.remedy)
    }
}

/// A smaller share for a present tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The tenant.
    pub tenant: String,
    /// The share to give it.
    pub share: Share,
}

/// How the tenants that hold the TPCs of a refused request could make room for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Remedy {
    /// It is not known what the caller may do.
    #[default]
    Unknown,
    /// The request fits after all of these, in any order.
    Shrink(Vec<Resize>),
    /// Smaller shares do not suffice.
    End {
        /// The largest tenant that the caller may end.
        tenant: String,
        /// The command of Partita that ends it: `kill`, or `cdi remove`.
        command: &'static str,
    },
    /// The caller may end none of the holders.
    Ask,
    /// Reservations hold all of them.
    Reserved,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("shrink or end a tenant"),
            Self::Shrink(all) => {
                f.write_str("make room with ")?;
                for (at, Resize { tenant, share }) in all.iter().enumerate() {
                    let and = if at == 0 { "" } else { " and " };
                    write!(f, "{and}`partita set {tenant} --sm {share}`")?;
                }
                Ok(())
            }
            Self::End { tenant, command } => {
                write!(f, "end a tenant with `partita {command} {tenant}`")
            }
            Self::Ask => f.write_str("ask the owner of a tenant to shrink or end it"),
            Self::Reserved => f.write_str("have root change the reservation"),
        }
    }
}

/// Names the tenants that hold the most, and counts the others, to keep the line readable; `partita
/// ps` lists them all.
fn write_holders(f: &mut fmt::Formatter<'_>, first: &str, holders: &[Holder]) -> fmt::Result {
    const NAMED_MAX: usize = 5;
    let mut by_size: Vec<&Holder> = holders.iter().collect();
    by_size.sort_by_key(|holder| core::cmp::Reverse(holder.set.len()));
    let (named, others) = by_size.split_at(by_size.len().min(NAMED_MAX));
    let mut separator = first;
    for holder in named {
        let set = holder.set;
        write!(f, "{separator}{holder} holds {} ({})", Count(set.len(), "TPC"), Short(set))?;
        separator = ", ";
    }
    let held: u32 = others.iter().map(|holder| holder.set.len()).sum();
    match others.len() {
        0 => Ok(()),
        1 => write!(f, "{separator}another {}", Count(held, "TPC")),
        count => write!(f, "{separator}{count} others {}", Count(held, "TPC")),
    }
}

/// Shows at most the first runs of a set: the TPCs of one GPC are spread over the numbers, so the
/// whole list can be long.
struct Short(TpcSet);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LENGTH_MAX: usize = 20;
        let full = alloc::format!("{}", self.0);
        if full.len() <= LENGTH_MAX {
            return f.write_str(&full);
        }
        let end = full[..LENGTH_MAX].rfind(',').unwrap_or(LENGTH_MAX);
        write!(f, "{},...", &full[..end])
    }
}

struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("there are no tenants");
        }
        f.write_str("there are ")?;
        for (i, name) in self.0.iter().enumerate() {
            write!(f, "{}`{name}`", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
