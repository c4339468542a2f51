//! Limits as they arrive: names with values as users write them, or members of JSON objects.

use std::fmt::{self, Formatter};
use std::sync::LazyLock;

use partita_core::ByteSize;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::table::{Form, LIMITS, Limit, LimitError, LimitSet, Shown};

/// Limits with values as users write them, not read yet.
#[derive(Debug, Clone, Default)]
pub struct Given(Vec<(&'static Limit, String)>);

/// A value that a limit does not take.
#[derive(Debug, Clone, Error)]
#[error("{}: {error}", limit.name)]
pub struct Refused {
    /// The limit.
    pub limit: &'static Limit,
    /// The value.
    pub value: String,
    /// What is wrong with it.
    #[source]
    pub error: LimitError,
}

impl Given {
    /// Adds a limit.
    pub fn add(&mut self, limit: &'static Limit, value: String) {
        self.0.push((limit, value));
    }

    /// Whether a limit is given.
    pub fn has(&self, limit: &Limit) -> bool {
        self.0.iter().any(|(given, _)| given.name == limit.name)
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
        for (limit, value) in &self.0 {
            let refuse = |error| Refused { limit, value: value.clone(), error };
            limit.put(&mut limits, value).map_err(refuse)?;
        }
        Ok(limits)
    }

    /// Takes the members of a JSON object, which must all be limits that `may` allows; `expected` is
    /// what messages say is allowed. A member that is `null` is as good as missing.
    ///
    /// # Errors
    /// Unknown and repeated members, and values of another type.
    pub fn of_members<'de, A: MapAccess<'de>>(
        mut members: A,
        may: fn(&Limit) -> bool,
        expected: &'static [&'static str],
    ) -> Result<Self, A::Error> {
        let (mut given, mut seen) = (Self::default(), Vec::new());
        while let Some(name) = members.next_key::<String>()? {
            let limit = LIMITS.iter().find(|limit| limit.member == name && may(limit));
            let limit = limit.ok_or_else(|| A::Error::unknown_field(&name, expected))?;
            if seen.contains(&limit.member) {
                return Err(A::Error::duplicate_field(limit.member));
            }
            seen.push(limit.member);
            let value = match limit.form {
                Form::Size { .. } => {
                    members.next_value::<Option<u64>>()?.map(|bytes| ByteSize(bytes).to_string())
                }
                _ => members.next_value::<Option<String>>()?,
            };
            match (value, limit.form) {
                (Some(word), Form::Words { words, .. }) if !words.contains(&&*word) => {
                    return Err(A::Error::unknown_variant(&word, words));
                }
                (value, _) => given.0.extend(value.map(|value| (limit, value))),
            }
        }
        Ok(given)
    }
}

impl LimitSet {
    /// The members of `partita ps --json`; `null` where nothing is known or there is no limit.
    ///
    /// # Errors
    /// The serializer's.
    pub fn in_ps<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.members(to, |limit| !matches!(limit.shown, Shown::Not))
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

impl Serialize for LimitSet {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.members(to, |_| true)
    }
}

impl<'de> Deserialize<'de> for LimitSet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        static MEMBERS: LazyLock<Vec<&'static str>> =
            LazyLock::new(|| LIMITS.iter().map(|limit| limit.member).collect());

        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = LimitSet;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("limits")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<LimitSet, A::Error> {
                let given = Given::of_members(members, |_| true, &MEMBERS)?;
                given.read().map_err(A::Error::custom)
            }
        }

        from.deserialize_map(Members)
    }
}
