//! The policy of a site: what users get without an option, what they may have at most, and what is
//! kept for some of them.
//!
//! Root writes it to [`PATH`]. [`Policy::parse`] reads it, [`decide`] applies it; both are pure. In
//! system mode `partitad` reads the file and every plan obeys it. In user mode each command reads
//! it itself, so it is then a default and no boundary.

mod decide;
mod file;
mod hours;
mod memory;
mod now;
#[cfg(test)]
mod tests;

use partita_core::{Placement, Quota, Share, words};

use crate::gpu::Selector;

pub(crate) use self::decide::tpcs;
pub use self::decide::{Decided, Device, Held, Wish, decide, most_tpcs, turns};
pub use self::file::PolicyError;
pub use self::hours::{Hours, Moment, ParseHoursError};
pub use self::memory::Kept;
pub use self::now::{EXAMPLE, PATH, TEXT_VARIABLE, VARIABLE, load, moment, path, unknown_names, user_of};
pub(crate) use self::now::{Rules, present_rules};

/// A policy. The default is that of a machine without a file: no maximum, no reservation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// `[default]`: `sm`.
    pub default_share: Option<Share>,
    /// `[default]`: `mem`.
    pub default_memory: Option<Quota>,
    /// `[default]`: `place`.
    pub default_place: Option<Placement>,
    /// `[[rule]]`, in the order of the file.
    pub rules: Vec<Rule>,
    /// `[[reservation]]`, in the order of the file.
    pub reservations: Vec<Reservation>,
    /// `[outside]`.
    pub outside: Outside,
    /// `[escaped]`.
    pub escaped: Escaped,
}

impl Policy {
    /// The same for programs that it limits although nobody made a tenant for them.
    pub(crate) fn for_outside(mut self) -> Self {
        self.default_share = self.outside.share.or(self.default_share);
        self.default_memory = self.outside.memory.or(self.default_memory);
        self
    }
}

/// What happens to programs that were started without Partita. Those that use the GPU of tenants
/// and belong to no tenant are reported in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outside {
    /// The line of the file, for messages.
    pub line: usize,
    /// `programs`.
    pub programs: Programs,
    /// `sm`: what a program that becomes a tenant gets, instead of the default.
    pub share: Option<Share>,
    /// `mem`, likewise.
    pub memory: Option<Quota>,
    /// Whose it leaves alone, beside root's; no one else's by default.
    pub exempt: Option<Who>,
}

words! {
    /// What happens to programs that were started without Partita.
    pub enum Programs: Report {
        /// `partitad` reports them.
        Report => "report",
        /// They become tenants as they first use the GPU, where the library is loaded.
        Limit => "limit",
        /// `partitad` ends them.
        End => "end",
    }
}

impl Outside {
    /// Whether a program of this user is ended.
    #[must_use]
    pub fn ends(&self, user: &User) -> bool {
        self.programs == Programs::End && self.is_for(user)
    }

    /// Whether a program of this user becomes a tenant.
    #[must_use]
    pub fn limits(&self, user: &User) -> bool {
        self.programs == Programs::Limit && self.is_for(user)
    }

    fn is_for(&self, user: &User) -> bool {
        !user.is_root && !self.exempt.as_ref().is_some_and(|exempt| exempt.includes(user))
    }
}

/// What happens to programs that use a GPU of their tenant without its limits. They are reported in
/// any case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Escaped {
    /// The line of the file, for messages.
    pub line: usize,
    /// `programs`: whether they are ended.
    pub is_ended: bool,
    /// Whose it leaves alone; no one else's by default. Containers run programs as root, so root's
    /// are ended too.
    pub exempt: Option<Who>,
}

impl Escaped {
    /// Whether a program of this user is ended.
    #[must_use]
    pub fn ends(&self, user: &User) -> bool {
        self.is_ended && !self.exempt.as_ref().is_some_and(|exempt| exempt.includes(user))
    }
}

/// Maxima. All rules that hold for a user at a time apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The line of the file, for messages.
    pub line: usize,
    /// For whom.
    pub who: Who,
    /// When.
    pub hours: Option<Hours>,
    /// `sm_max`: all tenants of a user on a GPU together.
    pub share_max: Option<Share>,
    /// `mem_max`, likewise.
    pub memory_max: Option<Quota>,
    /// `priorities`: those that are allowed.
    pub priorities: Option<Vec<partita_core::time::Priority>>,
}

/// Something that is kept for users, whether they run a program or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    /// The line of the file, for messages.
    pub line: usize,
    /// For whom: all of them together.
    pub who: Who,
    /// When.
    pub hours: Option<Hours>,
    /// On which GPU, as `--gpu` names it; `None` for each.
    pub gpu: Option<String>,
    /// How many of its TPCs.
    pub share: Option<Share>,
    /// How much of its memory, with what the driver takes for itself in their tenants.
    pub memory: Option<Quota>,
}

impl Reservation {
    /// Whether it holds at a moment on a GPU; `is_gpu` says whether that is the one that an entry
    /// names.
    pub(crate) fn holds(&self, now: Moment, is_gpu: impl Fn(&Selector) -> bool) -> bool {
        let is_here = |gpu: &String| gpu.parse().is_ok_and(|selector| is_gpu(&selector));
        self.gpu.as_ref().is_none_or(is_here) && self.hours.is_none_or(|hours| hours.has(now))
    }
}

/// The users that an entry is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Who {
    /// These users; with no user and no group, all.
    pub users: Vec<String>,
    /// Members of these groups.
    pub groups: Vec<String>,
}

impl Who {
    /// Whether it is for a user.
    pub fn includes(&self, user: &User) -> bool {
        self.is_everyone()
            || self.users.contains(&user.name)
            || self.groups.iter().any(|group| user.groups.contains(group))
    }

    /// Whether it is for every user.
    pub fn is_everyone(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }
}

/// A user, and the groups of that user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The groups' names.
    pub groups: Vec<String>,
    /// Whether this is root, for whom no maximum holds.
    pub is_root: bool,
}
