//! Limits as they arrive: names with values as users write them, or members of JSON objects.

use std::fmt::{self, Formatter};

use partita_core::ByteSize;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::table::{Form, LIMITS, Limit, LimitError, LimitSet, Shown};

/// Limits with values as users write them, not read yet.
#[derive(Debug, Clone, Default)]
pub struct Given(Vec<One>);

#[derive(Debug, Clone)]
struct One {
    limit: &'static Limit,
    /// The option or the member by which it came.
    name: &'static str,
    value: String,
}

/// A value that a limit does not take.
#[derive(Debug, Clone, Error)]
#[error("{}: {error}", limit.name)]
pub struct Refused {
    /// The limit.
    pub limit: &'static Limit,
    /// The option or the member by which it came.
    pub name: &'static str,
    /// The value.
    pub value: String,
    /// What is wrong with it.
    #[source]
    pub error: LimitError,
}

impl Given {
    /// Adds a limit.
    pub fn add(&mut self, limit: &'static Limit, value: String) {
        self.0.push(One { limit, name: limit.name, value });
    }

    /// By which name this limit came.
    pub fn name_of(&self, limit: &str) -> Option<&'static str> {
        self.0.iter().find(|one| one.limit.name == limit).map(|one| one.name)
    }

    /// Whether no limit is given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the values.
    ///
    /// # Errors
    /// The first wrong one.
    pub fn read(&self) -> Result<LimitSet, Refused> {
        let mut limits = LimitSet::default();
        for One { limit, name, value } in &self.0 {
            let refuse = |error| Refused { limit, name, value: value.clone(), error };
            limit.put(&mut limits, value).map_err(refuse)?;
        }
        Ok(limits)
    }
}

/// Reads the members of a JSON object, which must all be limits. One that is `null` is as good as
/// missing. A size is a number of bytes, or a text as commands take it under the option's name:
/// `"memory_quota_bytes": 1073741824` or `"mem": "1GiB"`.
#[derive(Debug, Clone, Copy)]
pub struct Members {
    /// The limits that are allowed.
    pub may: fn(&Limit) -> bool,
    /// The members that messages name, as they are allowed there.
    pub expected: &'static [&'static str],
}

impl<'de> Visitor<'de> for Members {
    type Value = Given;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("limits")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Given, A::Error> {
        let (mut given, mut seen) = (Given::default(), Vec::new());
        while let Some(name) = members.next_key::<String>()? {
            let is_it = |limit: &&Limit| limit.member == name || is_written(limit, &name);
            let limit = LIMITS.iter().find(|limit| is_it(limit) && (self.may)(limit));
            let limit = limit.ok_or_else(|| A::Error::unknown_field(&name, self.expected))?;
            if let Some((_, before)) = seen.iter().find(|(member, _)| *member == limit.member) {
                return Err(A::Error::custom(match *before == name {
                    true => format!("`{name}` is given twice; give it once"),
                    false => format!("`{before}` and `{name}` are one limit; give one of them"),
                }));
            }
            seen.push((limit.member, name.clone()));
            let name = if is_written(limit, &name) { limit.name } else { limit.member };
            let value = match limit.form {
                Form::Size { .. } if name == limit.member => {
                    members.next_value::<Option<u64>>()?.map(|bytes| ByteSize(bytes).to_string())
                }
                _ => members.next_value::<Option<String>>()?,
            };
            match (value, limit.form) {
                (Some(word), Form::Words { words, .. }) if !words.contains(&&*word) => {
                    return Err(A::Error::unknown_variant(&word, words));
                }
                (value, _) => given.0.extend(value.map(|value| One { limit, name, value })),
            }
        }
        Ok(given)
    }
}

/// Whether this is the member for a limit's size as a text.
fn is_written(limit: &Limit, name: &str) -> bool {
    matches!(limit.form, Form::Size { .. }) && limit.name == name
}

impl LimitSet {
    /// The members of `partita ps --json`; `null` where nothing is known or there is no limit.
    ///
    /// # Errors
    /// The serializer's.
    pub fn in_ps<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.members(to, |limit| !matches!(limit.shown, Shown::Not))
    }

    /// The members of `partita run --dry-run --json`, likewise: every limit.
    ///
    /// # Errors
    /// The serializer's.
    pub fn in_plan<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.members(to, |_| true)
    }

    /// The members of `GET /v1/tenants`, likewise.
    ///
    /// # Errors
    /// The serializer's.
    pub fn in_rest<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.members(to, |limit| matches!(limit.shown, Shown::InRest(_)))
    }

    fn members<S: Serializer>(&self, to: S, may: fn(&Limit) -> bool) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for limit in LIMITS.iter().filter(|limit| may(limit)) {
            map.serialize_entry(limit.member, &limit.json(self))?;
        }
        map.end()
    }
}

/// As [`Members`] reads it; sizes are texts, for a quota may be a percentage.
impl Serialize for LimitSet {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let name = |limit: &Limit| match limit.form {
            Form::Size { .. } => limit.name,
            _ => limit.member,
        };
        to.collect_map(LIMITS.iter().map(|limit| (name(limit), limit.text(self))))
    }
}

impl<'de> Deserialize<'de> for LimitSet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let members = Members { may: |_| true, expected: &["limits"] };
        let given = from.deserialize_map(members)?;
        given.read().map_err(D::Error::custom)
    }
}
