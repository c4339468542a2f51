//! The file of `partita apply`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::Error;
use crate::gpus::Selectors;
use crate::limits::{LIMITS, Limit, LimitSet};
use crate::registry::check_name;
use crate::request::wait_time;

/// The options of `partita run` that are not limits and that a tenant of a file can have.
const OTHERS: [&str; 5] = ["gpu", "compact", "mps-partition", "mps-deadline", "wait"];

/// A tenant as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// The options of `partita run` without their dashes, and their values; `true` for one without
    /// a value.
    pub options: BTreeMap<String, String>,
    /// The program and its arguments.
    pub command: Vec<String>,
}

impl Wanted {
    /// The arguments of `partita run` that start it.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        let option = |(key, value): (&String, &String)| match &**key {
            "compact" => vec![format!("--{key}")],
            // Its value is optional, so it needs the sign.
            "wait" if value == "true" => vec![format!("--{key}")],
            "wait" => vec![format!("--{key}={value}")],
            _ => vec![format!("--{key}"), value.clone()],
        };
        let name = ["--name".to_owned(), self.name.clone()];
        let options = self.options.iter().flat_map(option);
        name.into_iter().chain(options).chain(["--".to_owned()]).chain(self.command.iter().cloned())
    }

    /// Whether it waits for room.
    pub fn waits(&self) -> bool {
        self.options.contains_key("wait")
    }
}

/// Reads the tenants of a file, in its order. `what` names the file.
///
/// # Errors
/// [`Error::Refused`] with the line and the key of the first mistake.
pub fn read(what: &str, text: &str) -> Result<Vec<Wanted>, Error> {
    let reader = Reader { what, text };
    let table = DeTable::parse(text).map_err(|error| {
        let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        reader.refuse(&error.span().unwrap_or_default(), reason)
    })?;
    let (mut profiles, mut tenants) = (BTreeMap::new(), Vec::new());
    for (key, value) in table.get_ref() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("profile", DeValue::Table(table)) => {
                for (name, profile) in table {
                    profiles.insert(name.get_ref().to_string(), reader.profile(name, profile)?);
                }
            }
            ("tenant", DeValue::Array(list)) => tenants.extend(list.iter()),
            ("profile" | "tenant", _) => {
                let form = "write [profile.NAME] and [[tenant]]";
                return Err(reader.refuse(&key.span(), format!("{}: {form}", key.get_ref())));
            }
            (other, _) => {
                let reason = format!("there is no key `{other}` here; write [profile.NAME] and [[tenant]]");
                return Err(reader.refuse(&key.span(), reason));
            }
        }
    }
    let mut names = BTreeSet::new();
    let mut wanted = Vec::new();
    for tenant in tenants {
        let one = reader.tenant(tenant, &profiles)?;
        if !names.insert(one.name.clone()) {
            let reason = format!("tenant {} is there twice; rename one", one.name);
            return Err(reader.refuse(&tenant.span(), reason));
        }
        wanted.push(one);
    }
    Ok(wanted)
}

type Options = BTreeMap<String, String>;

struct Reader<'a> {
    what: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    fn refuse(&self, at: &Range<usize>, reason: impl Into<String>) -> Error {
        let before = self.text.as_bytes().get(..at.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Error::Refused { what: format!("{}:{line}", self.what), reason: reason.into() }
    }

    fn profile(
        &self,
        name: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Options, Error> {
        let DeValue::Table(table) = value.get_ref() else {
            let reason = format!("profile.{}: write [profile.NAME]", name.get_ref().as_ref());
            return Err(self.refuse(&name.span(), reason));
        };
        table.iter().map(|(key, value)| self.option(key, value)).collect()
    }

    fn tenant(
        &self,
        value: &Spanned<DeValue<'_>>,
        profiles: &BTreeMap<String, Options>,
    ) -> Result<Wanted, Error> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.refuse(&value.span(), "tenant: write [[tenant]]"));
        };
        let (mut name, mut command, mut profile, mut own) = (None, None, None, Options::new());
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "name" => {
                    let text = self.string(key, value)?;
                    check_name(&text).map_err(|error| self.refuse(&value.span(), error.to_string()))?;
                    name = Some(text);
                }
                "command" => command = Some(self.words(key, value)?),
                "profile" => {
                    let text = self.string(key, value)?;
                    profile = Some(profiles.get(&text).ok_or_else(|| {
                        let known: Vec<&str> = profiles.keys().map(String::as_str).collect();
                        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                        let reason = format!("profile: there is no profile {text}; the file has {known}");
                        self.refuse(&value.span(), reason)
                    })?);
                }
                _ => own.extend([self.option(key, value)?]),
            }
        }
        let missing = |key: &str| self.refuse(&value.span(), format!("this tenant has no `{key}`"));
        let name = name.ok_or_else(|| missing("name"))?;
        let command = command.ok_or_else(|| missing("command"))?;
        let mut options = profile.cloned().unwrap_or_default();
        options.extend(own);
        self.check_needs(&value.span(), &name, &options)?;
        Ok(Wanted { name, options, command })
    }

    /// An option, whose value is one that `partita run` takes.
    fn option(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(String, String), Error> {
        let name = key.get_ref().as_ref();
        let wrong = |reason: String| self.refuse(&value.span(), format!("{name}: {reason}"));
        let is_limit = LIMITS.iter().any(|limit| limit.name == name);
        if !is_limit && !OTHERS.contains(&name) {
            // A tenant reads its own keys itself.
            const OF_TENANTS: [&str; 3] = ["name", "command", "profile"];
            if OF_TENANTS.contains(&name) {
                let reason = format!("a profile has no `{name}`; it belongs below [[tenant]]");
                return Err(self.refuse(&key.span(), reason));
            }
            let limits = LIMITS.iter().map(|limit| limit.name);
            let known: Vec<&str> = OF_TENANTS.into_iter().chain(OTHERS).chain(limits).collect();
            let reason = format!("there is no option `{name}`; there are {}", known.join(", "));
            return Err(self.refuse(&key.span(), reason));
        }
        let text = match (name, value.get_ref()) {
            ("compact", DeValue::Boolean(true)) => "true".to_owned(),
            ("wait", DeValue::Boolean(true)) => "true".to_owned(),
            ("wait", value) if !matches!(value, DeValue::String(_)) => {
                return Err(wrong("write `true` or a time such as \"2h\", or leave it out".to_owned()));
            }
            ("compact", _) => return Err(wrong("write `true`, or leave it out".to_owned())),
            ("mps-deadline", DeValue::Integer(seconds)) if seconds.radix() == 10 => {
                seconds.as_str().to_owned()
            }
            ("mps-deadline", _) => return Err(wrong("write a number of seconds".to_owned())),
            _ => self.string(key, value)?,
        };
        if let Some(limit) = LIMITS.iter().find(|limit| limit.name == name) {
            limit.put(&mut LimitSet::default(), &text).map_err(|error| wrong(error.to_string()))?;
        } else if name == "gpu" {
            text.parse::<Selectors>().map_err(|error| wrong(error.to_string()))?;
        } else if name == "wait" && text != "true" {
            wait_time(&text).map_err(wrong)?;
        }
        Ok((name.to_owned(), text))
    }

    fn check_needs(&self, at: &Range<usize>, name: &str, options: &Options) -> Result<(), Error> {
        let lacks = |limit: &&Limit| {
            limit.needs.is_some_and(|needs| {
                let value = options.get(limit.name);
                let is_met = |value: &String| needs.value.is_some_and(|needing| needing != value);
                value.is_some_and(|value| !is_met(value) && !options.contains_key(needs.option))
            })
        };
        let Some(limit) = LIMITS.iter().find(lacks) else { return Ok(()) };
        let needed = limit.needs.map_or("", |needs| needs.option);
        Err(self.refuse(at, format!("tenant {name}: {} needs {needed} beside it", limit.name)))
    }

    fn string(&self, key: &Spanned<impl AsRef<str>>, value: &Spanned<DeValue<'_>>) -> Result<String, Error> {
        match value.get_ref() {
            DeValue::String(text) if !text.contains('\0') => Ok(text.to_string()),
            _ => {
                Err(self.refuse(&value.span(), format!("{}: write a text in quotes", key.get_ref().as_ref())))
            }
        }
    }

    fn words(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<String>, Error> {
        let words = match value.get_ref() {
            DeValue::Array(words) => {
                words.iter().map(|word| self.string(key, word)).collect::<Result<Vec<_>, _>>()?
            }
            _ => Vec::new(),
        };
        match words.first() {
            Some(program) if !program.is_empty() => Ok(words),
            _ => Err(self.refuse(
                &value.span(),
                "command: write the program and its arguments, as [\"python3\", \"train.py\"]",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[profile.half]
sm = "50%"
mem = "40GiB"

[[tenant]]
name = "serve"
profile = "half"
priority = "high"
command = ["python3", "serve.py"]

[[tenant]]
name = "train"
profile = "half"
sm = "20%"
compact = true
mps-deadline = 30
wait = "2h"
command = ["python3", "train.py", "--epochs", "3"]
"#;

    #[test]
    fn profiles_give_options_that_tenants_override() {
        let wanted = read("f", FILE).unwrap();
        let lines: Vec<String> =
            wanted.iter().map(|one| one.arguments().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "--name serve --mem 40GiB --priority high --sm 50% -- python3 serve.py",
                "--name train --compact --mem 40GiB --mps-deadline 30 --sm 20% --wait=2h -- \
                 python3 train.py --epochs 3",
            ]
        );
        assert_eq!(read("f", "").unwrap(), []);
    }

    #[test]
    fn mistakes_name_line_and_key() {
        let tenant = "[[tenant]]\nname = \"a\"\ncommand = [\"x\"]\n";
        for (text, at, part) in [
            ("[[tenant]]\nname = \"a\"\nname = \"b\"\n", "f:3", "duplicate"),
            ("[[tenant]\n", "f:1", ""),
            ("[tenant]\nname = \"a\"\n", "f:1", "[[tenant]]"),
            ("[[tenants]]\n", "f:1", "no key `tenants`"),
            ("[[tenant]]\ncommand = [\"x\"]\n", "f:1", "no `name`"),
            ("[[tenant]]\nname = \"a\"\n", "f:1", "no `command`"),
            ("[[tenant]]\nname = \"a/b\"\n", "f:2", "A-Z"),
            ("[[tenant]]\nname = \"a\"\ncommand = \"x\"\n", "f:3", "command: "),
            ("[[tenant]]\nname = \"a\"\ncommand = []\n", "f:3", "command: "),
            ("[[tenant]]\nname = \"a\"\ncommand = [\"x\"]\nprofile = \"p\"\n", "f:4", "no profile p"),
            (&format!("{tenant}sm = \"300%\"\n"), "f:4", "sm: "),
            (&format!("{tenant}sm = 30\n"), "f:4", "sm: write a text"),
            (&format!("{tenant}priority = \"urgent\"\n"), "f:4", "priority: "),
            (&format!("{tenant}gpu = \"sim:nope\"\n"), "f:4", "gpu: "),
            (&format!("{tenant}compact = false\n"), "f:4", "compact: "),
            (&format!("{tenant}mps-deadline = \"x\"\n"), "f:4", "mps-deadline: "),
            (&format!("{tenant}wait = \"2\"\n"), "f:4", "wait: give a time with its unit"),
            (&format!("{tenant}wait = 2\n"), "f:4", "wait: write `true` or a time"),
            (&format!("{tenant}borrow = true\n"), "f:4", "no option `borrow`"),
            ("[profile.x]\nname = \"y\"\n", "f:2", "a profile has no `name`"),
            (&format!("{tenant}wait = false\n"), "f:4", "wait: write `true`"),
            (&format!("{tenant}shm = \"1GiB\"\n"), "f:4", "no option `shm`"),
            (&format!("{tenant}mem-driver = \"1GiB\"\n"), "f:1", "mem-driver needs mem"),
            (&format!("{tenant}time-policy = \"soft\"\n"), "f:1", "time-policy needs time"),
            (&format!("[profile.p]\nsm = \"x\"\n{tenant}"), "f:2", "sm: "),
            (&format!("{tenant}{tenant}"), "f:4", "twice"),
        ] {
            let error = read("f", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{at}: ")) && error.contains(part), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
