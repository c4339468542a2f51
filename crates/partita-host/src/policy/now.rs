//! The policy that holds for this process: its file, its clock, its users.

use std::path::{Path, PathBuf};

use chrono::{Datelike, Local, Timelike};
use nix::unistd::{Gid, Group, Uid, User as SystemUser, getgrouplist};

use super::{Moment, Policy, User, Who};
use crate::error::Error;
use crate::process::user_name;

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
    if !about.is_file() {
        return Err(refuse("it is no file; a policy is a file of TOML".to_owned()));
    }
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
    let Policy { outside, escaped, .. } = policy;
    let exempt = outside.exempt.iter().map(|who| (outside.line, who));
    let exempt = exempt.chain(escaped.exempt.iter().map(|who| (escaped.line, who)));
    let mut unknown = Vec::new();
    for (line, who) in entries.chain(exempt) {
        let users = who.users.iter().filter(|name| !is_user(name));
        unknown.extend(users.map(|name| format!("line {line}: there is no user {name}")));
        let groups = who.groups.iter().filter(|name| !is_group(name));
        unknown.extend(groups.map(|name| format!("line {line}: there is no group {name}")));
    }
    unknown
}

fn is_user(name: &str) -> bool {
    matches!(SystemUser::from_name(name), Ok(Some(_)))
}

fn is_group(name: &str) -> bool {
    matches!(Group::from_name(name), Ok(Some(_)))
}

impl Who {
    /// The names for messages. A reservation holds for unknown users too, because a name service
    /// may fail for a while; the message shows a mistake in the file.
    pub(crate) fn names(&self) -> String {
        let marked = |name: &String, kind: &str, is_known: bool| match is_known {
            true => name.clone(),
            false => format!("the unknown {kind} {name}"),
        };
        let users = self.users.iter().map(|name| marked(name, "user", is_user(name)));
        let groups = self.groups.iter().map(|name| marked(name, "group", is_group(name)));
        let names: Vec<String> = users.chain(groups).collect();
        names.join(", ")
    }
}

/// A user of this machine.
pub fn user_of(uid: u32) -> User {
    let found = SystemUser::from_uid(Uid::from_raw(uid)).ok().flatten();
    let groups = found.and_then(|user| {
        let name = std::ffi::CString::new(user.name).ok()?;
        getgrouplist(&name, user.gid).ok()
    });
    let name = |gid: Gid| Group::from_gid(gid).ok().flatten().map(|group| group.name);
    let groups = groups.unwrap_or_default().into_iter().filter_map(name).collect();
    User { name: user_name(uid), groups, is_root: uid == 0 }
}

/// The policy that holds now, and when that is: values for plans.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// The policy.
    pub policy: Policy,
    /// The moment.
    pub now: Moment,
}

impl Rules {
    /// The same for programs that the policy limits although nobody made a tenant for them.
    pub fn for_outside(self) -> Self {
        Self { policy: self.policy.for_outside(), ..self }
    }
}

/// The policy that holds now: that which `partitad` has passed on to this process, or the file's.
///
/// # Errors
/// [`Error::Policy`].
pub(crate) fn present_rules(is_passed_on: bool) -> Result<Rules, Error> {
    let policy = match std::env::var(TEXT_VARIABLE) {
        Ok(text) if is_passed_on => Policy::parse(&text)
            .map_err(|error| Error::Policy { path: PATH.into(), reason: error.to_string() })?,
        // Also for a batch job, for whose user another process of root acts.
        _ => load(&path())?.0,
    };
    Ok(Rules { policy, now: moment() })
}
