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
pub struct Given {
    given: Vec<One>,
    /// The members that were read, also those that are null: limits, and the names by which they
    /// came.
    seen: Vec<(&'static str, &'static str)>,
}

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
        self.given.push(One { limit, name: limit.name, value });
    }

    /// By which name this limit came.
    pub fn name_of(&self, limit: &str) -> Option<&'static str> {
        self.given.iter().find(|one| one.limit.name == limit).map(|one| one.name)
    }

    /// Whether no limit is given.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Reads the values.
    ///
    /// # Errors
    /// The first wrong one.
    pub fn read(&self) -> Result<LimitSet, Refused> {
        let mut limits = LimitSet::default();
        for One { limit, name, value } in &self.given {
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
        let mut given = Given::default();
        while let Some(name) = members.next_key::<String>()? {
            self.read(&name, &mut members, &mut given)?;
        }
        Ok(given)
    }
}

impl Members {
    /// Reads the value of the member `name`, whose key was read.
    ///
    /// # Errors
    /// If it is no limit, given already, or of the wrong type.
    pub fn read<'de, A: MapAccess<'de>>(
        &self,
        name: &str,
        members: &mut A,
        given: &mut Given,
    ) -> Result<(), A::Error> {
        let is_it = |limit: &&Limit| limit.member == name || is_written(limit, name);
        let limit = LIMITS.iter().find(|limit| is_it(limit) && (self.may)(limit));
        let limit = limit.ok_or_else(|| A::Error::unknown_field(name, self.expected))?;
        if let Some((_, before)) = given.seen.iter().find(|(member, _)| *member == limit.member) {
            return Err(A::Error::custom(match *before == name {
                true => format!("`{name}` is given twice; give it once"),
                false => format!("`{before}` and `{name}` are one limit; give one of them"),
            }));
        }
        let name = if is_written(limit, name) { limit.name } else { limit.member };
        given.seen.push((limit.member, name));
        let value = match limit.form {
            Form::Size { .. } if name == limit.member => {
                members.next_value::<Option<u64>>()?.map(|bytes| ByteSize(bytes).to_string())
            }
            _ => members.next_value::<Option<String>>()?,
        };
        match (value, limit.form) {
            (Some(word), Form::Words { words, .. }) if !words.contains(&&*word) => {
                Err(A::Error::unknown_variant(&word, words))
            }
            (value, _) => {
                given.given.extend(value.map(|value| One { limit, name, value }));
                Ok(())
            }
        }
    }
}

/// A refusal for a user who wrote keys and no options: an option for which there is a `key` becomes
/// it, so `--sm 30%` is `sm 30%`. Commands in the text, as `partita set NAME --sm 30%`, stay.
pub fn in_keys<'k>(text: &str, key: impl Fn(&str) -> Option<&'k str>) -> String {
    let mut written = String::new();
    for (at, part) in text.split('`').enumerate() {
        let mut pieces = part.split("--");
        let is_command = at % 2 == 1 && part.starts_with("partita ");
        let quote = if at == 0 { "" } else { "`" };
        written.extend([quote, pieces.next().unwrap_or_default()]);
        for piece in pieces {
            let option = option_of(piece);
            match key(option).filter(|_| !is_command) {
                Some(key) => written.extend([key, &piece[option.len()..]]),
                None => written.extend(["--", piece]),
            }
        }
    }
    written
}

/// The option that a text begins with, after its dashes.
pub fn option_of(text: &str) -> &str {
    text.split(|byte: char| !byte.is_ascii_lowercase() && byte != '-').next().unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_keys_and_commands_stay() {
        let key = |option: &str| ["sm", "mem"].into_iter().find(|key| *key == option);
        for (text, written) in [
            (
                "--mem 1TiB: GPU 0 has 139GiB; ask for at most that",
                "mem 1TiB: GPU 0 has 139GiB; ask for at most that",
            ),
            (
                "ask for `--sm 33tpc` or less, or `partita set a --sm 1%`",
                "ask for `sm 33tpc` or less, or `partita set a --sm 1%`",
            ),
            (
                "tenant `a` uses 1GiB without --mem, and --mem-driver",
                "tenant `a` uses 1GiB without mem, and --mem-driver",
            ),
            ("a--b -- --", "a--b -- --"),
        ] {
            assert_eq!(in_keys(text, key), written);
        }
    }
}
