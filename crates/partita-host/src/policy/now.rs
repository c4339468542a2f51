//! The policy that holds for this process: its file, its clock, its users.

use std::path::{Path, PathBuf};

use chrono::{Datelike, Local, Timelike};
use nix::unistd::{Gid, Group, Uid, User as SystemUser, getgrouplist};
use partita_core::{Share, Topology, TpcSet};

use super::decide::tpcs;
use super::{Decided, Device, Held, Moment, Policy, User, Wish, decide};
use crate::error::Error;
use crate::process::user_name;
use crate::registry::{GpuMeta, Tenant, acting_user, acts_for_user, memory};

/// The policy of a machine.
pub const PATH: &str = "/etc/partita/policy.toml";
/// The variable that names another file, where no daemon plans.
pub const VARIABLE: &str = "PARTITA_POLICY";
/// The variable with which `partitad` passes on the text of the policy that holds.
pub const TEXT_VARIABLE: &str = "PARTITAD_POLICY_TEXT";
/// The most that is read of a policy, in bytes: it must fit into a variable.
const BYTES_MAX: u64 = 64 << 10;
/// The commented file that packages install; it changes nothing.
pub const EXAMPLE: &str = include_str!("../../../../packaging/policy.toml");

/// Where this process looks for the policy.
pub fn path() -> PathBuf {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map_or_else(|| PATH.into(), Into::into)
}

/// Reads a policy file, and returns its text too. Without a file the policy is the default.
///
/// # Errors
/// [`Error::Policy`] with the mistake; also for a file that others than root and the current user
/// can write.
pub fn load(path: &Path) -> Result<(Policy, String), Error> {
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;

    let refuse = |reason: String| Error::Policy { path: path.to_owned(), reason };
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
        file => file.map_err(|error| refuse(error.to_string()))?,
    };
    let about = file.metadata().map_err(|error| refuse(error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    if about.mode() & 0o022 != 0 || (about.uid() != 0 && about.uid() != own) {
        return Err(refuse("others than root can write it; use `chown root` and `chmod 644`".to_owned()));
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| refuse(error.to_string()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(refuse(format!("it has more than {} KiB", BYTES_MAX >> 10)));
    }
    let policy = Policy::parse(&text).map_err(|error| refuse(error.to_string()))?;
    Ok((policy, text))
}

/// The moment of the local week.
pub fn moment() -> Moment {
    let now = Local::now();
    let minute = now.hour() * 60 + now.minute();
    Moment { day: now.weekday().num_days_from_monday() as u8, minute: minute as u16 }
}

/// The users and groups of a policy that this machine does not know, with the lines.
pub fn unknown_names(policy: &Policy) -> Vec<String> {
    let entries = policy.rules.iter().map(|rule| (rule.line, &rule.who));
    let entries = entries.chain(policy.reservations.iter().map(|entry| (entry.line, &entry.who)));
    let mut unknown = Vec::new();
    for (line, who) in entries {
        let is_no_user = |name: &&String| !matches!(SystemUser::from_name(name), Ok(Some(_)));
        let is_no_group = |name: &&String| !matches!(Group::from_name(name), Ok(Some(_)));
        let users =
            who.users.iter().filter(is_no_user).map(|name| format!("line {line}: there is no user {name}"));
        unknown.extend(users);
        let groups = who.groups.iter().filter(is_no_group);
        unknown.extend(groups.map(|name| format!("line {line}: there is no group {name}")));
    }
    unknown
}

/// A user of this machine.
fn user_of(uid: u32) -> User {
    let found = SystemUser::from_uid(Uid::from_raw(uid)).ok().flatten();
    let groups = found.and_then(|user| {
        let name = std::ffi::CString::new(user.name).ok()?;
        getgrouplist(&name, user.gid).ok()
    });
    let name = |gid: Gid| Group::from_gid(gid).ok().flatten().map(|group| group.name);
    let groups = groups.unwrap_or_default().into_iter().filter_map(name).collect();
    User { name: user_name(uid), groups, is_root: uid == 0 }
}

/// The policy, for the plans of this process.
pub(crate) struct Rules {
    policy: Policy,
    now: Moment,
}

/// The policy that holds now: that which `partitad` has passed on, or the file's.
///
/// # Errors
/// [`Error::Policy`].
pub(crate) fn present_rules() -> Result<Rules, Error> {
    let policy = if acts_for_user() {
        let text = std::env::var(TEXT_VARIABLE).unwrap_or_default();
        Policy::parse(&text)
            .map_err(|error| Error::Policy { path: PATH.into(), reason: error.to_string() })?
    } else {
        load(&path())?.0
    };
    Ok(Rules { policy, now: moment() })
}

/// Where a tenant is planned.
pub(crate) struct Site<'a> {
    pub topology: &'a Topology,
    pub gpu: &'a GpuMeta,
    pub gpu_key: &'a str,
    pub memory_bytes: u64,
    pub driver_bytes: u64,
    /// The tenants of the machine.
    pub tenants: &'a [Tenant],
    /// The tenant to change.
    pub changed: Option<&'a Tenant>,
}

impl Site<'_> {
    fn others(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.iter().filter(|tenant| {
            let is_changed = self.changed.is_some_and(|changed| changed.is_of_same(tenant));
            tenant.gpu_key == self.gpu_key && tenant.counts() && !is_changed
        })
    }

    /// The user for whom this is planned.
    fn user(&self) -> u32 {
        self.changed.map_or_else(acting_user, |tenant| tenant.user)
    }
}

/// The TPCs that a tenant was promised.
fn promised(tenant: &Tenant) -> TpcSet {
    match tenant.rests() {
        Some(_) => TpcSet::EMPTY,
        None => tenant.set().unwrap_or(TpcSet::EMPTY),
    }
}

impl Rules {
    /// What a tenant gets of a wish.
    ///
    /// # Errors
    /// [`Error::NotOffered`].
    pub fn decide(&self, site: &Site<'_>, wish: &Wish) -> Result<Decided, Error> {
        let user = user_of(site.user());
        let mut held = Held::default();
        for tenant in site.others().filter(|tenant| tenant.user == site.user()) {
            held.tpcs += promised(tenant).len();
            held.memory_bytes += tenant.limits().ok().and_then(memory::promise).unwrap_or(0);
        }
        let device = Device {
            topology: site.topology,
            memory_bytes: site.memory_bytes,
            driver_bytes: site.driver_bytes,
        };
        let mut decided = decide(&self.policy, &user, &device, held, wish, self.now)
            .map_err(|(option, reason)| Error::NotOffered { option, reason })?;
        let is_without = decided.share.is_none() && !wish.takes_turns && !wish.is_change;
        if let Some(kept) = self.kept_for(site, &user).filter(|_| is_without) {
            // The reservation is the user's own.
            decided.share = Some(Share::Tpcs(kept));
        }
        Ok(decided)
    }

    /// How many TPCs are kept for this user and are not in use.
    fn kept_for(&self, site: &Site<'_>, user: &User) -> Option<u32> {
        let unused = self
            .reserved(site)
            .into_iter()
            .filter(|(index, _)| self.policy.reservations[*index].who.includes(user));
        Some(unused.map(|(_, tpcs)| tpcs).sum()).filter(|tpcs| *tpcs > 0)
    }

    /// Each reservation that holds on this GPU now, and how many TPCs of it no tenant of its users
    /// has.
    fn reserved(&self, site: &Site<'_>) -> Vec<(usize, u32)> {
        let mut unused = Vec::new();
        for (index, entry) in self.policy.reservations.iter().enumerate() {
            let is_here =
                entry.gpu.as_ref().is_none_or(|gpu| gpu.parse().is_ok_and(|selector| site.gpu.is(&selector)));
            if !is_here || !entry.hours.is_none_or(|hours| hours.has(self.now)) {
                continue;
            }
            let used = site.others().filter(|tenant| entry.who.includes(&user_of(tenant.user)));
            let used: u32 = used.map(|tenant| promised(tenant).len()).sum();
            unused.push((index, tpcs(entry.share, site.topology).saturating_sub(used)));
        }
        unused
    }

    /// What is reserved here for others than the user for whom this is planned: names for messages,
    /// and TPCs that no tenant of theirs has.
    pub fn reserved_for_others(&self, site: &Site<'_>) -> Vec<(String, u32)> {
        let user = user_of(site.user());
        let for_others = |(index, tpcs): (usize, u32)| {
            let entry = &self.policy.reservations[index];
            let names: Vec<&str> =
                entry.who.users.iter().chain(&entry.who.groups).map(String::as_str).collect();
            (tpcs > 0 && !entry.who.includes(&user))
                .then(|| (format!("reservation of {}", names.join(", ")), tpcs))
        };
        self.reserved(site).into_iter().filter_map(for_others).collect()
    }
}
