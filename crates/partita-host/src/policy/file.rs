//! A policy as root writes it. Each mistake is reported with its line and its key.

use std::str::FromStr;

use partita_core::{Quota, Share};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use super::{Escaped, Outside, Policy, Programs, Reservation, Rule, Who};

/// A mistake in a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {}{reason}", key.as_ref().map_or_else(String::new, |key| format!("{key}: ")))]
pub struct PolicyError {
    /// The line, from 1.
    pub line: usize,
    /// The key, if the file is TOML so far.
    pub key: Option<String>,
    /// What is wrong, and the remedy.
    pub reason: String,
}

type Text = Spanned<String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    default: Defaults,
    #[serde(default)]
    rule: Vec<Spanned<RuleEntry>>,
    #[serde(default)]
    reservation: Vec<Spanned<ReservationEntry>>,
    outside: Option<Spanned<OutsideEntry>>,
    escaped: Option<Spanned<EscapedEntry>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Defaults {
    sm: Option<Text>,
    mem: Option<Text>,
    place: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    #[serde(default)]
    users: Vec<Text>,
    #[serde(default)]
    groups: Vec<Text>,
    when: Option<Text>,
    sm_max: Option<Text>,
    mem_max: Option<Text>,
    priorities: Option<Vec<Text>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationEntry {
    #[serde(default)]
    users: Vec<Text>,
    #[serde(default)]
    groups: Vec<Text>,
    when: Option<Text>,
    gpu: Option<Text>,
    sm: Option<Text>,
    mem: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutsideEntry {
    programs: Text,
    sm: Option<Text>,
    mem: Option<Text>,
    #[serde(default)]
    users: Vec<Text>,
    #[serde(default)]
    groups: Vec<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EscapedEntry {
    programs: Text,
    #[serde(default)]
    users: Vec<Text>,
    #[serde(default)]
    groups: Vec<Text>,
}

/// The text of a file, for the lines of its mistakes.
struct Source<'a>(&'a str);

impl Source<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self.0.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count()
    }

    fn mistake(&self, at: usize, key: &str, reason: impl ToString) -> PolicyError {
        PolicyError { line: self.line(at), key: Some(key.to_owned()), reason: reason.to_string() }
    }

    /// Reads the value of a key.
    fn read<T: FromStr<Err: ToString>>(&self, key: &str, value: &Text) -> Result<T, PolicyError> {
        value.get_ref().parse().map_err(|error: T::Err| self.mistake(value.span().start, key, error))
    }

    fn read_some<T: FromStr<Err: ToString>>(
        &self,
        key: &str,
        value: Option<&Text>,
    ) -> Result<Option<T>, PolicyError> {
        value.map(|value| self.read(key, value)).transpose()
    }

    /// A share by number: which TPCs are meant is for runs to say.
    fn share(&self, key: &str, value: &Text) -> Result<Share, PolicyError> {
        match self.read(key, value)? {
            Share::Gpcs(_) | Share::Exact(_) => {
                Err(self.mistake(value.span().start, key, "name a number and no places: 30%, 40sm or 20tpc"))
            }
            share => Ok(share),
        }
    }

    fn who(&self, users: &[Text], groups: &[Text]) -> Result<Who, PolicyError> {
        for (key, names) in [("users", users), ("groups", groups)] {
            if let Some(name) = names.iter().find(|name| name.get_ref().trim().is_empty()) {
                return Err(self.mistake(
                    name.span().start,
                    key,
                    "a name is empty; leave the key out for all users",
                ));
            }
        }
        let names = |names: &[Text]| names.iter().map(|name| name.get_ref().clone()).collect();
        Ok(Who { users: names(users), groups: names(groups) })
    }
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let source = Source(text);
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            // The parser names the field; a line of several keys has several.
            let reason = error.message().replace('\n', "; ");
            PolicyError { line: source.line(at), key: key_at(text, at), reason }
        })?;
        let Defaults { sm, mem, place } = &file.default;
        Ok(Self {
            default_share: sm.as_ref().map(|sm| source.share("sm", sm)).transpose()?,
            default_memory: source.memory("mem", mem.as_ref())?,
            default_place: source.read_some("place", place.as_ref())?,
            rules: file.rule.iter().map(|entry| source.rule(entry)).collect::<Result<_, _>>()?,
            reservations: file
                .reservation
                .iter()
                .map(|entry| source.reservation(entry))
                .collect::<Result<_, _>>()?,
            outside: file
                .outside
                .as_ref()
                .map(|entry| source.outside(entry))
                .transpose()?
                .unwrap_or_default(),
            escaped: file
                .escaped
                .as_ref()
                .map(|entry| source.escaped(entry))
                .transpose()?
                .unwrap_or_default(),
        })
    }
}

impl Source<'_> {
    fn memory(&self, key: &str, value: Option<&Text>) -> Result<Option<Quota>, PolicyError> {
        let Some(text) = value else { return Ok(None) };
        match self.read(key, text)? {
            Quota::Bytes(bytes) if bytes.0 == 0 => Err(self.mistake(
                text.span().start,
                key,
                "no program starts without memory; leave the key out",
            )),
            quota => Ok(Some(quota)),
        }
    }

    fn rule(&self, entry: &Spanned<RuleEntry>) -> Result<Rule, PolicyError> {
        let RuleEntry { users, groups, when, sm_max, mem_max, priorities } = entry.get_ref();
        let at = entry.span().start;
        if sm_max.is_none() && mem_max.is_none() && priorities.is_none() {
            return Err(self.mistake(at, "rule", "it limits nothing; add sm_max, mem_max or priorities"));
        }
        let read = |words: &Vec<Text>| {
            words.iter().map(|word| self.read("priorities", word)).collect::<Result<Vec<_>, _>>()
        };
        let priorities = priorities.as_ref().map(read).transpose()?;
        if priorities.as_ref().is_some_and(Vec::is_empty) {
            return Err(self.mistake(at, "priorities", "none is allowed; list high, normal or low"));
        }
        Ok(Rule {
            line: self.line(at),
            who: self.who(users, groups)?,
            hours: self.read_some("when", when.as_ref())?,
            share_max: sm_max.as_ref().map(|sm| self.share("sm_max", sm)).transpose()?,
            memory_max: self.memory("mem_max", mem_max.as_ref())?,
            priorities,
        })
    }

    fn reservation(&self, entry: &Spanned<ReservationEntry>) -> Result<Reservation, PolicyError> {
        let ReservationEntry { users, groups, when, gpu, sm, mem } = entry.get_ref();
        let at = entry.span().start;
        let who = self.who(users, groups)?;
        if who.is_everyone() {
            let reason = "it is for nobody in particular; add users or groups";
            return Err(self.mistake(at, "reservation", reason));
        }
        if sm.is_none() && mem.is_none() {
            return Err(self.mistake(at, "reservation", "it keeps nothing; add sm or mem"));
        }
        let gpu_is =
            |text: &Text| self.read::<crate::gpu::Selector>("gpu", text).map(|_| text.get_ref().clone());
        Ok(Reservation {
            line: self.line(at),
            who,
            hours: self.read_some("when", when.as_ref())?,
            gpu: gpu.as_ref().map(gpu_is).transpose()?,
            share: sm.as_ref().map(|sm| self.share("sm", sm)).transpose()?,
            memory: self.memory("mem", mem.as_ref())?,
        })
    }
}

impl Source<'_> {
    fn outside(&self, entry: &Spanned<OutsideEntry>) -> Result<Outside, PolicyError> {
        let OutsideEntry { programs: word, sm, mem, users, groups } = entry.get_ref();
        let programs = word.get_ref().parse().map_err(|_| {
            let reason = "use \"report\", \"limit\" to make them tenants, or \"end\" to end them";
            self.mistake(word.span().start, "programs", reason)
        })?;
        let limits = [("sm", sm), ("mem", mem)];
        if let (true, Some((key, Some(limit)))) =
            (programs != Programs::Limit, limits.into_iter().find(|(_, limit)| limit.is_some()))
        {
            let reason = "only programs = \"limit\" makes tenants of these programs";
            return Err(self.mistake(limit.span().start, key, reason));
        }
        let exempt = self.exempt(users, groups)?;
        Ok(Outside {
            line: self.line(entry.span().start),
            programs,
            share: sm.as_ref().map(|sm| self.share("sm", sm)).transpose()?,
            memory: self.memory("mem", mem.as_ref())?,
            exempt,
        })
    }

    fn escaped(&self, entry: &Spanned<EscapedEntry>) -> Result<Escaped, PolicyError> {
        let EscapedEntry { programs: word, users, groups } = entry.get_ref();
        let is_ended = match word.get_ref().parse() {
            Ok(Programs::Report) => false,
            Ok(Programs::End) => true,
            Ok(Programs::Limit) | Err(_) => {
                let reason = "use \"report\", or \"end\" to end them";
                return Err(self.mistake(word.span().start, "programs", reason));
            }
        };
        Ok(Escaped { line: self.line(entry.span().start), is_ended, exempt: self.exempt(users, groups)? })
    }

    /// Whose programs are left alone; `None` if nobody is named.
    fn exempt(&self, users: &[Text], groups: &[Text]) -> Result<Option<Who>, PolicyError> {
        Ok(Some(self.who(users, groups)?).filter(|who| !who.is_everyone()))
    }
}

/// The key that stands at this place of a file.
fn key_at(text: &str, at: usize) -> Option<String> {
    let begin = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let line = text.get(begin..)?.lines().next()?.trim();
    let key = line.split_once('=').map_or(line, |(key, _)| key).trim();
    let is_key = |c: char| c.is_ascii_alphanumeric() || "_-.[]\"".contains(c);
    (!key.is_empty() && key.chars().all(is_key)).then(|| key.trim_matches(['[', ']']).to_owned())
}
