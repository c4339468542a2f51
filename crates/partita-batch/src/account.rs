//! The owner of a job, on this machine.

use nix::unistd::{Uid, User};

use super::job::Owner;
use super::record::Record;
use super::trouble::Trouble;

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The user's number.
    pub user: u32,
    /// The group's.
    pub group: u32,
    /// For messages and `USER`.
    pub name: String,
    /// For `HOME`.
    pub home: String,
}

impl Account {
    /// The account of a job's owner.
    ///
    /// # Errors
    /// The reason, if there is no such user, or if it is a user other than the caller and the
    /// caller is not root.
    pub fn of(owner: &Owner) -> Result<Self, Trouble> {
        if let Owner::Ids { user: u32::MAX, .. } = owner {
            // For the kernel it means «no change».
            return Err(Trouble::node(format!("user {}: this is no user's number", u32::MAX)));
        }
        let (found, who) = match owner {
            Owner::Ids { user, .. } => (User::from_uid(Uid::from_raw(*user)), format!("user {user}")),
            Owner::Name(name) => (User::from_name(name), format!("user {name}")),
        };
        let found = found.map_err(|error| Trouble::node(format!("{who}: {error}; see `getent passwd`")))?;
        let account = match (owner, found) {
            (Owner::Ids { user, group }, found) => {
                let own = found.as_ref().map_or(*user, |found| found.gid.as_raw());
                Self::new(*user, group.unwrap_or(own), found)
            }
            (Owner::Name(_), Some(found)) => Self::new(found.uid.as_raw(), found.gid.as_raw(), Some(found)),
            (Owner::Name(_), None) => {
                return Err(Trouble::node(format!(
                    "{who}: this node has no user of that name; see `getent passwd`"
                )));
            }
        };
        let own = rustix::process::geteuid();
        if !own.is_root() && own.as_raw() != account.user {
            return Err(Trouble::node(format!(
                "the job belongs to {} and this runs as user {}: run the prolog and the epilog as root",
                account.name,
                own.as_raw()
            )));
        }
        Ok(account)
    }

    fn new(user: u32, group: u32, found: Option<User>) -> Self {
        let (name, home) = match found {
            Some(found) => (found.name, found.dir.to_string_lossy().into_owned()),
            None => (user.to_string(), "/".to_owned()),
        };
        Self { user, group, name, home }
    }

    /// The variables of the environment that name it.
    pub(super) fn variables(&self) -> [(&'static str, &str); 3] {
        [("HOME", &self.home), ("USER", &self.name), ("LOGNAME", &self.name)]
    }

    /// The account of a record's owner.
    ///
    /// # Errors
    /// As [`Account::of`].
    pub fn of_record(record: &Record) -> Result<Self, Trouble> {
        Self::of(&Owner::Ids { user: record.group.user, group: Some(record.user_group) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::trouble::Blame;
    use super::*;

    #[test]
    fn accounts_are_by_number_or_name() {
        let own = rustix::process::geteuid().as_raw();
        let by_number = Account::of(&Owner::Ids { user: own, group: None }).unwrap();
        assert_eq!(by_number.user, own);
        assert_eq!(Account::of(&Owner::Name(by_number.name.clone())).unwrap(), by_number);
        assert_eq!(Account::of(&Owner::Ids { user: own, group: Some(7) }).unwrap().group, 7);
        let unknown = Account::of(&Owner::Name("no such user".to_owned())).unwrap_err();
        assert!(unknown.blame == Blame::Node && unknown.reason.contains("getent"), "{unknown:?}");
        match Account::of(&Owner::Ids { user: 3_999_999_999, group: Some(1) }) {
            // A user without an account, as in a container: root can still run as it.
            Ok(account) => assert_eq!((own, account.home.as_str()), (0, "/")),
            Err(trouble) => assert!(trouble.reason.contains("as root"), "{trouble:?}"),
        }
    }
}
