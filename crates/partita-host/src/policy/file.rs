//! A policy as root writes it. Each mistake is reported with its line and its key.

use std::str::FromStr;

use partita_core::{ParseShareError, Quota, Share};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use super::{Escaped, Hours, Moment, Outside, Policy, Programs, Reservation, Rule, Who};
use crate::gpu::Selector;

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
type Names = Option<Spanned<Vec<Text>>>;

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
    users: Names,
    groups: Names,
    when: Option<Text>,
    sm_max: Option<Text>,
    mem_max: Option<Text>,
    priorities: Option<Vec<Text>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationEntry {
    users: Names,
    groups: Names,
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
    users: Names,
    groups: Names,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EscapedEntry {
    programs: Text,
    users: Names,
    groups: Names,
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
        let mistake = |reason: String| self.mistake(value.span().start, key, reason);
        match value.get_ref().parse().map_err(|error: ParseShareError| mistake(error.by_number()))? {
            Share::Gpcs(_) | Share::Exact(_) => {
                Err(mistake("name a number and no places: 30%, 40sm or 20tpc".to_owned()))
            }
            share => Ok(share),
        }
    }

    fn who(&self, users: &Names, groups: &Names) -> Result<Who, PolicyError> {
        Ok(Who { users: self.names("users", users)?, groups: self.names("groups", groups)? })
    }

    /// An empty list could mean everyone or no one, so it is a mistake.
    fn names(&self, key: &str, names: &Names) -> Result<Vec<String>, PolicyError> {
        let Some(names) = names else { return Ok(Vec::new()) };
        let empty = |at, what| {
            Err(self.mistake(at, key, format!("{what} is empty; name someone, or leave the key out")))
        };
        if names.get_ref().is_empty() {
            return empty(names.span().start, "the list");
        }
        if let Some(name) = names.get_ref().iter().find(|name| name.get_ref().trim().is_empty()) {
            return empty(name.span().start, "a name");
        }
        Ok(names.get_ref().iter().map(|name| name.get_ref().clone()).collect())
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
            let reason = plain(&error.message().replace('\n', "; "));
            PolicyError { line: source.line(at), key: key_at(text, at), reason }
        })?;
        let Defaults { sm, mem, place } = &file.default;
        let reservations =
            file.reservation.iter().map(|entry| source.reservation(entry)).collect::<Result<Vec<_>, _>>()?;
        check_sums(&reservations)?;
        Ok(Self {
            default_share: sm.as_ref().map(|sm| source.share("sm", sm)).transpose()?,
            default_memory: source.memory("mem", mem.as_ref())?,
            default_place: source.read_some("place", place.as_ref())?,
            rules: file.rule.iter().map(|entry| source.rule(entry)).collect::<Result<_, _>>()?,
            reservations,
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
        let gpu_is = |text: &Text| self.read::<Selector>("gpu", text).map(|_| text.get_ref().clone());
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
    fn exempt(&self, users: &Names, groups: &Names) -> Result<Option<Who>, PolicyError> {
        Ok(Some(self.who(users, groups)?).filter(|who| !who.is_everyone()))
    }
}

/// Refuses percentages that no GPU can keep at the same time. Numbers of SMs and bytes are compared
/// with a GPU as something is planned on it.
fn check_sums(reservations: &[Reservation]) -> Result<(), PolicyError> {
    let share: fn(&Reservation) -> Option<u32> = |entry| match entry.share {
        Some(Share::Percent(part)) => Some(part),
        _ => None,
    };
    let memory: fn(&Reservation) -> Option<u32> = |entry| match entry.memory {
        Some(Quota::Percent(part)) => Some(part),
        _ => None,
    };
    // A sum is greatest at the moment at which one of the entries begins.
    let begins = reservations.iter().filter_map(|entry| entry.hours).flat_map(Hours::begins);
    let moments: Vec<Moment> = std::iter::once(Moment { day: 0, minute: 0 }).chain(begins).collect();
    let named = reservations.iter().filter_map(|entry| entry.gpu.as_ref()?.parse().ok());
    let gpus: Vec<Option<Selector>> = std::iter::once(None).chain(named.map(Some)).collect();
    for (key, part) in [("sm", share), ("mem", memory)] {
        for (moment, gpu) in moments.iter().flat_map(|moment| gpus.iter().map(move |gpu| (*moment, gpu))) {
            let holds = |entry: &&Reservation| entry.holds(moment, |selector| gpu.as_ref() == Some(selector));
            let there = reservations.iter().filter(holds);
            let parts: Vec<(usize, u64)> =
                there.filter_map(|entry| Some((entry.line, part(entry)?.into()))).collect();
            let sum: u64 = parts.iter().map(|(_, part)| part).sum();
            let Some(((line, _), before)) = parts.split_last().filter(|_| sum > 100_000) else { continue };
            let others: Vec<String> = before.iter().map(|(line, _)| line.to_string()).collect();
            let reason = format!(
                "with the reservations of line {} this is {}% of one GPU at the same time; keep at most 100%",
                others.join(", "),
                sum as f64 / 1000.0
            );
            return Err(PolicyError { line: *line, key: Some(key.to_owned()), reason });
        }
    }
    Ok(())
}

/// A message of the parser in the words of the file's author.
fn plain(message: &str) -> String {
    let Some((found, expected)) =
        message.strip_prefix("invalid type: ").and_then(|rest| rest.split_once(", expected "))
    else {
        return message.replace("unknown field", "unknown key").replace("missing field", "missing key");
    };
    let remedy = match (found, expected) {
        ("map", "a sequence") => "there may be several of this table; write its name in [[ ]]",
        (_, "a sequence") => "a list belongs here; write it as [\"a\", \"b\"]",
        (_, "a string") => "a text belongs here; write it in quotes",
        _ => "a table belongs here; write its name in [ ], and its keys below",
    };
    let found = found.replace("map", "a table").replace("sequence", "a list");
    format!("this is {found}: {remedy}")
}

/// The key that stands at this place of a file.
fn key_at(text: &str, at: usize) -> Option<String> {
    let begin = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let line = text.get(begin..)?.lines().next()?.trim();
    let key = line.split_once('=').map_or(line, |(key, _)| key).trim();
    let is_key = |c: char| c.is_ascii_alphanumeric() || "_-.[]\"".contains(c);
    (!key.is_empty() && key.chars().all(is_key)).then(|| key.trim_matches(['[', ']']).to_owned())
}
