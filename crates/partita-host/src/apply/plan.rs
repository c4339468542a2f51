//! What `partita apply` does to make the tenants as a file describes them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::Wanted;
use crate::error::Error;
use crate::limits::LIMITS;

/// What `partita apply` noted of a tenant when it last started or changed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The file.
    pub file: PathBuf,
    /// The options that the file gave.
    pub options: BTreeMap<String, String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The limits that the tenant had then. If it has others now, `partita set` changed them.
    pub limits: BTreeMap<String, String>,
}

/// A tenant of the current user that lives or waits for room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// Its name.
    pub name: String,
    /// `None` if `partita apply` did not start it.
    pub applied: Option<Applied>,
    /// Its limits, by the names of their options: of one on several GPUs those that differ from
    /// what was applied, wherever that is.
    pub limits: BTreeMap<String, String>,
    /// The options that cannot change while it runs, because of how it was started.
    pub fixed: BTreeSet<String>,
    /// Whether it waits for room and its program has not started.
    pub waits: bool,
}

/// What the user allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consent {
    /// To end and start tenants whose changes cannot be made while they run.
    pub restart: bool,
    /// To end tenants that the file no longer names.
    pub prune: bool,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// End a tenant that the file no longer names.
    End {
        /// Its name.
        name: String,
    },
    /// Change limits of a running tenant.
    Change {
        /// The tenant as it is to be.
        wanted: Wanted,
        /// The options to change, with their values.
        options: BTreeMap<String, String>,
    },
    /// End a tenant and start it again.
    Restart {
        /// The tenant as it is to be.
        wanted: Wanted,
        /// The keys of the file that need it.
        keys: Vec<String>,
    },
    /// Start a tenant.
    Start {
        /// The tenant as it is to be.
        wanted: Wanted,
    },
}

impl Action {
    /// The tenant's name.
    pub fn name(&self) -> &str {
        match self {
            Self::End { name } => name,
            Self::Change { wanted, .. } | Self::Restart { wanted, .. } | Self::Start { wanted } => {
                &wanted.name
            }
        }
    }
}

/// What is to be done, and what is not done without consent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The actions, in their order: what makes room comes first.
    pub actions: Vec<Action>,
    /// Actions that need consent.
    pub left: Vec<Action>,
    /// The tenants of the file that wait for room already, for which there is nothing to do.
    pub waits: Vec<String>,
}

/// Plans the actions for the tenants of `file`.
///
/// # Errors
/// [`Error::Refused`] for a living tenant of a wanted name that was not started from this file.
pub fn plan(file: &Path, wanted: &[Wanted], current: &[Current], consent: Consent) -> Result<Plan, Error> {
    let mut plan = Plan::default();
    let (mut restarts, mut starts) = (Vec::new(), Vec::new());
    let of_file = |tenant: &&Current| tenant.applied.as_ref().is_some_and(|applied| applied.file == file);
    for tenant in current.iter().filter(of_file) {
        if !wanted.iter().any(|one| one.name == tenant.name) {
            let end = Action::End { name: tenant.name.clone() };
            if consent.prune { plan.actions.push(end) } else { plan.left.push(end) }
        }
    }
    for one in wanted {
        let Some(tenant) = current.iter().find(|tenant| tenant.name == one.name) else {
            starts.push(Action::Start { wanted: one.clone() });
            continue;
        };
        // It has no limits to compare before it runs, whether this file or a user started it.
        if tenant.waits {
            plan.waits.push(one.name.clone());
            continue;
        }
        let applied = tenant.applied.as_ref().filter(|applied| applied.file == file).ok_or_else(|| {
            let of = match &tenant.applied {
                Some(applied) => format!("was started from {}", applied.file.display()),
                None => "was not started by `partita apply`".to_owned(),
            };
            Error::Refused {
                what: format!("tenant {}", one.name),
                reason: format!(
                    "it runs and {of}; rename it in the file, or end it with `partita kill {}`",
                    one.name
                ),
            }
        })?;
        let (options, keys) = differences(one, applied, tenant);
        if !keys.is_empty() {
            let restart = Action::Restart { wanted: one.clone(), keys };
            if consent.restart { restarts.push(restart) } else { plan.left.push(restart) }
        } else if !options.is_empty() {
            plan.actions.push(Action::Change { wanted: one.clone(), options });
        }
    }
    plan.actions.extend(restarts);
    plan.actions.extend(starts);
    Ok(plan)
}

/// The options to change while the tenant runs, and the keys that need a restart.
fn differences(wanted: &Wanted, applied: &Applied, now: &Current) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut options, mut keys) = (BTreeMap::new(), Vec::new());
    let all: BTreeSet<&String> = wanted.options.keys().chain(applied.options.keys()).collect();
    for key in all {
        let (value, before) = (wanted.options.get(key), applied.options.get(key));
        // It runs, and waits for nothing.
        if key == "wait" {
            continue;
        }
        let is_drifted = value.is_some() && now.limits.get(key) != applied.limits.get(key);
        if value == before && !is_drifted {
            continue;
        }
        match value {
            Some(value) if is_live(key, now) => _ = options.insert(key.clone(), value.clone()),
            _ => keys.push(key.clone()),
        }
    }
    if wanted.command != applied.command {
        keys.push("command".to_owned());
    }
    (options, keys)
}

/// Whether an option can change while this tenant runs.
fn is_live(key: &str, now: &Current) -> bool {
    let can_change = LIMITS.iter().any(|limit| limit.name == key && limit.change.is_some());
    can_change && !now.fixed.contains(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = "/f.toml";

    /// What a tenant with these options cannot change.
    fn fixed(options: &BTreeMap<String, String>) -> BTreeSet<String> {
        let is_missing = |key: &&str| options.get(*key).is_none_or(|value| value == "normal");
        ["sm", "time", "priority"].into_iter().filter(is_missing).map(str::to_owned).collect()
    }

    /// The tenants after the actions, as `partita apply` would note them.
    fn after(actions: &[Action], current: &[Current]) -> Vec<Current> {
        let mut tenants: BTreeMap<String, Current> =
            current.iter().map(|one| (one.name.clone(), one.clone())).collect();
        for action in actions {
            match action {
                Action::End { name } => _ = tenants.remove(name),
                Action::Change { wanted, .. } | Action::Restart { wanted, .. } | Action::Start { wanted } => {
                    let Wanted { name, options, command } = wanted.clone();
                    let is_live = matches!(action, Action::Change { .. });
                    assert_eq!(tenants.contains_key(&name), !matches!(action, Action::Start { .. }));
                    let fixed = match action {
                        Action::Change { .. } => tenants[&name].fixed.clone(),
                        _ => fixed(&options),
                    };
                    let limits = match action {
                        Action::Change { options, .. } => {
                            let mut limits = tenants[&name].limits.clone();
                            limits.extend(options.clone());
                            limits
                        }
                        _ => options.clone(),
                    };
                    if is_live {
                        assert_eq!(tenants[&name].applied.as_ref().unwrap().command, command);
                    }
                    let applied = Applied { file: FILE.into(), options, command, limits: limits.clone() };
                    let tenant =
                        Current { name: name.clone(), applied: Some(applied), limits, fixed, waits: false };
                    tenants.insert(name, tenant);
                }
            }
        }
        tenants.into_values().collect()
    }

    fn options() -> impl Strategy<Value = BTreeMap<String, String>> {
        let key = prop::sample::select(vec!["sm", "mem", "time", "priority", "gpu", "via", "spill"]);
        let value = prop::sample::select(vec!["1", "2", "normal"]);
        prop::collection::btree_map(key.prop_map(str::to_owned), value.prop_map(str::to_owned), 0..4)
    }

    fn wanted() -> impl Strategy<Value = Vec<Wanted>> {
        let one = (options(), 0u8..2).prop_map(|(options, program)| (options, vec![program.to_string()]));
        prop::collection::btree_map(0u8..5, one, 0..5).prop_map(|map| {
            let wanted = |(name, (options, command)): (u8, (_, _))| Wanted {
                name: name.to_string(),
                options,
                command,
            };
            map.into_iter().map(wanted).collect()
        })
    }

    fn of_file(wanted: &[Wanted]) -> Vec<Current> {
        let starts: Vec<Action> = wanted.iter().map(|one| Action::Start { wanted: one.clone() }).collect();
        after(&starts, &[])
    }

    const ALL: Consent = Consent { restart: true, prune: true };

    proptest! {
        /// With every consent one apply is enough: the tenants are those of the file, and a second
        /// one has nothing to do.
        #[test]
        fn a_second_apply_does_nothing(first in wanted(), second in wanted()) {
            let before = of_file(&first);
            let planned = plan(Path::new(FILE), &second, &before, ALL).unwrap();
            prop_assert!(planned.left.is_empty());
            let now = after(&planned.actions, &before);
            prop_assert_eq!(now.len(), second.len());
            for one in &second {
                let tenant = now.iter().find(|tenant| tenant.name == one.name).unwrap();
                let applied = tenant.applied.as_ref().unwrap();
                prop_assert_eq!((&applied.options, &applied.command), (&one.options, &one.command));
            }
            prop_assert_eq!(plan(Path::new(FILE), &second, &now, ALL).unwrap(), Plan::default());
        }

        /// Without consent nothing ends, and what is left needs consent again.
        #[test]
        fn without_consent_nothing_ends(first in wanted(), second in wanted()) {
            let before = of_file(&first);
            let none = Consent::default();
            let planned = plan(Path::new(FILE), &second, &before, none).unwrap();
            let ends = |action: &Action| matches!(action, Action::End { .. } | Action::Restart { .. });
            prop_assert!(!planned.actions.iter().any(ends) && planned.left.iter().all(ends));
            let now = after(&planned.actions, &before);
            prop_assert!(before.iter().all(|old| now.iter().any(|new| new.name == old.name)));
            let again = plan(Path::new(FILE), &second, &now, none).unwrap();
            prop_assert_eq!(again, Plan { left: planned.left, ..Plan::default() });
        }

        /// Tenants of others are never touched.
        #[test]
        fn tenants_of_other_files_stay(first in wanted(), second in wanted(), by_hand in any::<bool>()) {
            let mut before = of_file(&first);
            for tenant in &mut before {
                tenant.name = format!("other{}", tenant.name);
                tenant.applied = tenant.applied.take().filter(|_| !by_hand).map(|applied| {
                    Applied { file: "/other.toml".into(), ..applied }
                });
            }
            let planned = plan(Path::new(FILE), &second, &before, ALL).unwrap();
            let are_starts = planned.actions.iter().all(|action| matches!(action, Action::Start { .. }));
            prop_assert!(are_starts);
            if let (Some(taken), Some(tenant)) = (second.first(), before.first_mut()) {
                tenant.name = taken.name.clone();
                let error = plan(Path::new(FILE), &second, &before, ALL).unwrap_err().to_string();
                prop_assert!(error.contains("partita kill"), "{}", error);
            }
        }
    }

    fn one(options: &[(&str, &str)]) -> Wanted {
        let options = options.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        Wanted { name: "a".to_owned(), options, command: vec!["x".to_owned()] }
    }

    #[test]
    fn limits_change_live_where_they_can() {
        for (before, after, restarts) in [
            (&[("sm", "50%")][..], &[("sm", "20%")][..], &[][..]),
            (&[("sm", "50%")], &[("sm", "50%"), ("mem", "1GiB")], &[]),
            (&[("sm", "50%"), ("mem", "1GiB")], &[("sm", "50%")], &["mem"]),
            (&[], &[("time", "50%")], &["time"]),
            (&[("priority", "normal")], &[("priority", "low")], &["priority"]),
            (&[("priority", "high")], &[("priority", "low")], &[]),
            (&[("gpu", "0")], &[("gpu", "1")], &["gpu"]),
        ] {
            let current = of_file(&[one(before)]);
            let planned = plan(Path::new(FILE), &[one(after)], &current, ALL).unwrap();
            match &planned.actions[..] {
                [Action::Restart { keys, .. }] => assert_eq!(keys, restarts),
                [Action::Change { .. }] => assert!(restarts.is_empty(), "{before:?} {after:?}"),
                actions => panic!("{actions:?}"),
            }
        }
    }

    #[test]
    fn a_tenant_that_waits_counts_as_there() {
        let [wanted, other] = [one(&[("sm", "50%")]), one(&[("sm", "20%")])];
        let mut current = of_file(std::slice::from_ref(&wanted));
        current[0].waits = true;
        let planned = |wanted: &[Wanted], current: &[Current], consent| {
            plan(Path::new(FILE), wanted, current, consent).unwrap()
        };
        let waits = Plan { waits: vec!["a".to_owned()], ..Plan::default() };
        assert_eq!(planned(&[wanted], &current, ALL), waits);
        let end = vec![Action::End { name: "a".to_owned() }];
        let left = Plan { left: end.clone(), ..Plan::default() };
        assert_eq!(planned(&[], &current, Consent::default()), left);
        assert_eq!(planned(&[], &current, ALL), Plan { actions: end, ..Plan::default() });
        // One that was started by hand is left, too.
        current[0].applied = None;
        assert_eq!(planned(&[other], &current, ALL), waits);
        assert_eq!(planned(&[], &current, ALL), Plan::default());
    }

    #[test]
    fn a_change_by_hand_is_undone() {
        let wanted = one(&[("sm", "50%"), ("mem", "1GiB")]);
        let mut current = of_file(std::slice::from_ref(&wanted));
        current[0].limits.insert("sm".to_owned(), "20%".to_owned());
        // The file says nothing of it.
        current[0].limits.insert("spill".to_owned(), "host".to_owned());
        let planned = plan(Path::new(FILE), std::slice::from_ref(&wanted), &current, ALL).unwrap();
        let options = BTreeMap::from([("sm".to_owned(), "50%".to_owned())]);
        assert_eq!(planned.actions, [Action::Change { wanted, options }]);
    }
}
