//! JSON with positions, so that an error can name the field and the line.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// The fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}line {line}: {what}", if .path.is_empty() { String::new() } else { format!("{path}, ") })]
pub struct DialectError {
    /// The field: `benchmarks[1].sm_mask`; empty for the whole.
    pub path: String,
    /// Its line, counted from 1.
    pub line: usize,
    /// The value, and the valid ones.
    pub what: String,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node<'t> {
    whole: &'t str,
    raw: &'t str,
    path: String,
}

/// The members of an object, in their order, including duplicates.
struct Members<'t>(Vec<(String, &'t RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

impl<'t> Node<'t> {
    /// A whole text.
    pub fn root(text: &'t str) -> Result<Self, DialectError> {
        match serde_json::from_str::<&RawValue>(text) {
            Ok(raw) => Ok(Self { whole: text, raw: raw.get(), path: String::new() }),
            Err(error) => {
                let what = error.to_string();
                let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
                Err(DialectError {
                    path: String::new(),
                    line: error.line().max(1),
                    what: format!("no JSON: {what} (column {})", error.column()),
                })
            }
        }
    }

    /// An error about this value.
    pub fn fail(&self, what: impl Into<String>) -> DialectError {
        // Both are parts of one text.
        let offset = self.raw.as_ptr().addr() - self.whole.as_ptr().addr();
        let line = 1 + self.whole.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count();
        DialectError { path: self.path.clone(), line, what: what.into() }
    }

    /// An error about this value, which is quoted.
    pub fn refuse(&self, accepted: &str) -> DialectError {
        const LONGEST: usize = 40;
        let shown: String = self.raw.chars().take(LONGEST).map(|c| if c == '\n' { ' ' } else { c }).collect();
        let dots = if self.raw.chars().count() > LONGEST { "…" } else { "" };
        self.fail(format!("{shown}{dots} is not accepted: {accepted}"))
    }

    fn child(&self, raw: &'t RawValue, path: String) -> Self {
        Self { whole: self.whole, raw: raw.get(), path }
    }

    /// The members of an object.
    pub fn object(&self) -> Result<Object<'t>, DialectError> {
        let members: Members<'t> =
            serde_json::from_str(self.raw).map_err(|_| self.refuse("an object, { … }"))?;
        let dot = if self.path.is_empty() { "" } else { "." };
        let members = members.0.into_iter().map(|(key, raw)| {
            let path = format!("{}{dot}{key}", self.path);
            (key, self.child(raw, path))
        });
        let object = Object { node: self.clone(), members: members.collect(), known: Vec::new() };
        for (index, (key, node)) in object.members.iter().enumerate() {
            if object.members[..index].iter().any(|(other, _)| other == key) {
                return Err(node.fail("the key stands here for the second time"));
            }
        }
        Ok(object)
    }

    /// The elements of an array.
    pub fn array(&self) -> Result<Vec<Self>, DialectError> {
        let elements: Vec<&'t RawValue> =
            serde_json::from_str(self.raw).map_err(|_| self.refuse("an array, [ … ]"))?;
        let elements = elements.into_iter().enumerate();
        Ok(elements.map(|(index, raw)| self.child(raw, format!("{}[{index}]", self.path))).collect())
    }

    pub fn is_array(&self) -> bool {
        self.raw.starts_with('[')
    }

    pub fn is_null(&self) -> bool {
        self.raw == "null"
    }

    pub fn string(&self) -> Result<String, DialectError> {
        serde_json::from_str(self.raw).map_err(|_| self.refuse("a string, \"…\""))
    }

    pub fn bool(&self) -> Result<bool, DialectError> {
        serde_json::from_str(self.raw).map_err(|_| self.refuse("true or false"))
    }

    /// A whole number from `least` to `most`. `1e6` and `5.0` count as whole, as in the original.
    pub fn whole(&self, least: u64, most: u64) -> Result<u64, DialectError> {
        let number = serde_json::from_str::<u64>(self.raw).ok().or_else(|| {
            let float = serde_json::from_str::<f64>(self.raw).ok()?;
            // Above 2^53 a floating-point number is not an exact count.
            (float >= 0.0 && float.fract() == 0.0 && float <= 9_007_199_254_740_992.0).then_some(float as u64)
        });
        number.filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            let to = if most == u64::MAX { "and above".to_owned() } else { format!("to {most}") };
            self.refuse(&format!("a whole number, {least} {to}"))
        })
    }

    /// A finite number of at least 0.
    pub fn number(&self, unit: &str) -> Result<f64, DialectError> {
        // Exact, unlike serde_json's reading.
        let number = self.raw.parse::<f64>().ok();
        number
            .filter(|number| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| self.refuse(&format!("a number of {unit}, 0 and above")))
    }

    pub fn signed(&self, least: i64, most: i64) -> Result<i64, DialectError> {
        let number = serde_json::from_str::<i64>(self.raw).ok();
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.refuse(&format!("a whole number from {least} to {most}")))
    }

    /// The value as it is.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(self.raw).unwrap_or_default()
    }
}

/// An object whose keys are read one by one; unread ones are unknown keys.
pub(crate) struct Object<'t> {
    pub node: Node<'t>,
    members: Vec<(String, Node<'t>)>,
    known: Vec<&'static str>,
}

impl<'t> Object<'t> {
    /// The value of a key, if it exists and is not null.
    pub fn get(&mut self, key: &'static str) -> Option<Node<'t>> {
        self.known.push(key);
        let found = self.members.iter().find(|(name, _)| name == key)?;
        Some(found.1.clone()).filter(|node| !node.is_null())
    }

    /// The value of a required key.
    pub fn need(&mut self, key: &'static str, accepted: &str) -> Result<Node<'t>, DialectError> {
        self.get(key).ok_or_else(|| self.node.fail(format!("{key} is missing: {accepted}")))
    }

    /// Refuses unread keys.
    pub fn finish(self) -> Result<(), DialectError> {
        let Some((key, node)) = self.members.iter().find(|(key, _)| !self.known.contains(&key.as_str()))
        else {
            return Ok(());
        };
        let nearest = self.known.iter().map(|known| (distance(key, known), known)).min();
        let mut known = self.known.clone();
        known.sort_unstable();
        Err(node.fail(match nearest {
            Some((steps, known)) if steps <= 1 + key.chars().count() / 3 => {
                format!("there is no key {key:?}; the nearest is {known:?}")
            }
            _ => format!("there is no key {key:?}; the keys are {}", known.join(", ")),
        }))
    }
}

/// The number of letters to exchange, add or remove.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        for (one, other, steps) in
            [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0), ("ab", "ba", 2)]
        {
            assert_eq!(distance(one, other), steps, "{one} {other}");
        }
    }

    #[test]
    fn values_know_their_lines() {
        let text = "{\n \"a\": [1,\n  2],\n\n \"b\": {\"c\": true}}";
        let mut root = Node::root(text).unwrap().object().unwrap();
        let a = root.get("a").unwrap().array().unwrap();
        assert_eq!(a[1].fail("x").to_string(), "a[1], line 3: x");
        let c = root.get("b").unwrap().object().unwrap().get("c").unwrap();
        assert_eq!(c.fail("x").to_string(), "b.c, line 5: x");
        assert_eq!(root.node.fail("x").to_string(), "line 1: x");
    }
}
