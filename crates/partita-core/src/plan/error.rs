//! Why there is no plan, in one line that a user can act on.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

use crate::{Count, Share, ShareError, TpcSet};

/// Why a share cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The share means nothing on this device.
    #[error(transparent)]
    Share(Box<ShareError>),
    /// Too few TPCs are free.
    #[error(transparent)]
    NotEnough(Box<NotEnough>),
    /// Some of the TPCs that the share names are held by others.
    #[error(transparent)]
    Taken(Box<Taken>),
    /// The tenant to plan anew is not there.
    #[error("there is no tenant `{name}`; {}", Names(present))]
    UnknownTenant {
        /// The name asked for.
        name: String,
        /// The names that there are.
        present: Vec<String>,
    },
    /// The new sets are known, but there is no order in which the tenants could take them without
    /// two holding one TPC for a moment.
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
}

/// Too few TPCs are free.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct NotEnough {
    /// The share as asked for.
    pub asked: Share,
    /// How many TPCs that is.
    pub wanted_tpcs: u32,
    /// How many SMs each TPC of the device has.
    pub sms_per_tpc: u32,
    /// How many TPCs the device has.
    pub tpc_count: u32,
    /// The TPCs that could be given, those that the tenant already has included.
    pub free: TpcSet,
    /// The TPCs that the tenant already has.
    pub own: TpcSet,
    /// Who holds the others.
    pub holders: Vec<Holder>,
    /// The largest share of the form asked for that fits; `None` if nothing is free.
    pub fits: Option<Share>,
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
            write!(f, "{or}shrink or end a tenant")?;
        }
        Ok(())
    }
}

/// Some of the TPCs that the share names are held by others.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Taken {
    /// The share as asked for.
    pub asked: Share,
    /// Who holds which of the TPCs named.
    pub conflicts: Vec<Holder>,
    /// Shares that fit, nearest to what was asked for first; empty if nothing is free.
    pub fits: Vec<Share>,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not free", self.asked)?;
        let mut separator = ": ";
        for Holder { name, set } in &self.conflicts {
            // In full: these are the TPCs that the user has to take out.
            write!(f, "{separator}tenant `{name}` holds {} of it (tpc:{set})", Count(set.len(), "TPC"))?;
            separator = ", ";
        }
        for (i, fits) in self.fits.iter().enumerate() {
            write!(f, "{}`--sm {fits}`", if i == 0 { "; ask for " } else { ", or " })?;
        }
        f.write_str(if self.fits.is_empty() { "; " } else { ", or " })?;
        f.write_str("shrink or end a tenant")
    }
}

/// Names those who hold the most, and counts the others: a line is read, `partita ps` lists them
/// all.
fn write_holders(f: &mut fmt::Formatter<'_>, first: &str, holders: &[Holder]) -> fmt::Result {
    const NAMED_MAX: usize = 5;
    let mut by_size: Vec<&Holder> = holders.iter().collect();
    by_size.sort_by_key(|holder| core::cmp::Reverse(holder.set.len()));
    let (named, others) = by_size.split_at(by_size.len().min(NAMED_MAX));
    let mut separator = first;
    for Holder { name, set } in named {
        write!(f, "{separator}tenant `{name}` holds {} ({})", Count(set.len(), "TPC"), Short(*set))?;
        separator = ", ";
    }
    let held: u32 = others.iter().map(|holder| holder.set.len()).sum();
    match others.len() {
        0 => Ok(()),
        1 => write!(f, "{separator}another {}", Count(held, "TPC")),
        count => write!(f, "{separator}{count} others {}", Count(held, "TPC")),
    }
}

/// A set of which at most the first runs are shown: TPCs of one GPC are spread over the numbers, so
/// that the whole list can be long.
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
