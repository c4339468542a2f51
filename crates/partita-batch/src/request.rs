//! The requests of jobs, in the text fields of batch systems.
//!
//! Pure: text in, a request or an error out. A mistake in the text is the job's fault, and never a
//! reason to drain a node.

use std::fmt;

use partita_core::{ByteSize, Share};
use partita_host::limits::{Form, LIMITS, Limit, LimitError, LimitSet};
use partita_host::registry::Isolation;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The prefix of a request, in a comment or an account: `partita:sm=50%`.
pub const PREFIX: &str = "partita:";
/// The key of a request in a list of resources: `-l partita=sm=50%`.
const RESOURCE: &str = "partita";
/// The node feature by which a job asks for the service alone: `--constraint=partita_mps`.
pub const FEATURE: &str = "partita_mps";

/// The limits that a job can ask for.
fn limits() -> impl Iterator<Item = &'static Limit> {
    LIMITS.iter().filter(|limit| limit.batch)
}

/// How requests are written, for messages.
fn forms() -> String {
    let form = |limit: &Limit| match limit.form {
        Form::Words { words, .. } => format!("{}={}", limit.name, words.join("|")),
        Form::Share => format!("{}=SHARE", limit.name),
        Form::Size { .. } => format!("{}=SIZE", limit.name),
        Form::Percent => format!("{}=PERCENT", limit.name),
        Form::Target => format!("{}=TARGET", limit.name),
    };
    format!(
        "write partita:mps, or partita: with {} between commas or plus signs, or partita:off",
        limits().map(form).collect::<Vec<_>>().join(", ")
    )
}

/// A mistake in the request of a job.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// A request that is not written as it should be.
    #[error("the request {PREFIX}{text}: {fault}; {}", forms())]
    Wrong {
        /// The text after [`PREFIX`].
        text: String,
        /// The mistake.
        #[source]
        fault: Fault,
    },
    /// Several requests.
    #[error(
        "the job asks more than once ({}): ask once",
        .0.iter().map(|text| format!("{PREFIX}{text}")).collect::<Vec<_>>().join(", ")
    )]
    Several(Vec<String>),
    /// A percentage of the scheduler that no GPU has.
    #[error(
        "--gres=mps gives the job {0:?} percent of a GPU, which is not a share of one; ask for at most \
         the count of one GPU"
    )]
    NoShare(String),
    /// More than the scheduler gives.
    #[error(
        "sm={share} beside --gres=mps, which gives the job {percent}% of a GPU: leave sm out, or ask for \
         a percentage of at most that"
    )]
    AboveScheduler {
        /// The job's share.
        share: Share,
        /// The scheduler's percentage.
        percent: String,
    },
}

/// A mistake in one request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// It has no item.
    #[error("it requests nothing")]
    Nothing,
    /// An item is not `KEY=VALUE`.
    #[error("{0:?} is not understood")]
    Item(String),
    /// A key is repeated.
    #[error("{0} is given twice")]
    Twice(String),
    /// A key that is not a limit of jobs.
    #[error("{0}={1}: it is not understood")]
    Key(String, String),
    /// A value that the limit does not take.
    #[error("{0}={1}: {2}")]
    Value(String, String, Box<LimitError>),
    /// `mem=0`.
    #[error("mem={0}: a quota of nothing")]
    NoMemory(String),
    /// The service, and a tenant outside of it.
    #[error("isolation=own is outside of the service that mps asks for; leave one out")]
    OwnInService,
}

/// The request of a job. As text it follows [`PREFIX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Request {
    /// Explicitly nothing, not even the node's default.
    Off,
    /// The GPUs' service; the job's programs can become tenants themselves.
    Service,
    /// The whole job is one tenant; missing limits have the defaults of `partita run`.
    Tenant(LimitSet),
}

impl From<Request> for String {
    fn from(request: Request) -> Self {
        request.to_string()
    }
}

impl TryFrom<String> for Request {
    type Error = RequestError;

    fn try_from(text: String) -> Result<Self, RequestError> {
        Self::parse(&text)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Service => f.write_str("mps"),
            Self::Tenant(wanted) => {
                let words: Vec<String> =
                    pairs(wanted).map(|(name, value)| format!("{name}={value}")).collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

impl Request {
    /// The whole job as one tenant. Its isolation is always set, so that equal requests compare as
    /// equal.
    pub fn tenant(wanted: LimitSet) -> Self {
        Self::Tenant(LimitSet { isolation: Some(wanted.isolation()), ..wanted })
    }

    /// Parses the text after [`PREFIX`].
    ///
    /// # Errors
    /// The mistake, with the valid forms.
    pub fn parse(text: &str) -> Result<Self, RequestError> {
        Self::read(text).map_err(|fault| RequestError::Wrong { text: text.to_owned(), fault })
    }

    fn read(text: &str) -> Result<Self, Fault> {
        let mut service = false;
        let mut keys: Vec<(String, String)> = Vec::new();
        for item in text.split([',', '+']).map(str::trim) {
            match item.split_once('=') {
                Some((key, value)) => keys.push((key.trim().to_ascii_lowercase(), value.trim().to_owned())),
                None if item.eq_ignore_ascii_case("mps") => service = true,
                None if item.eq_ignore_ascii_case("off") && text.trim().eq_ignore_ascii_case("off") => {
                    return Ok(Self::Off);
                }
                // A list of units contains commas: sm=tpc:0-3,8.
                None if item.starts_with(|c: char| c.is_ascii_digit())
                    && keys.last().is_some_and(|(key, _)| key == "sm") =>
                {
                    keys.iter_mut().last().into_iter().for_each(|(_, value)| {
                        value.push(',');
                        value.push_str(item);
                    });
                }
                None => return Err(Fault::Item(item.to_owned())),
            }
        }
        if keys.is_empty() {
            return if service { Ok(Self::Service) } else { Err(Fault::Nothing) };
        }
        let mut wanted = LimitSet::default();
        for (at, (key, value)) in keys.iter().enumerate() {
            if keys[..at].iter().any(|(other, _)| other == key) {
                return Err(Fault::Twice(key.clone()));
            }
            put(&mut wanted, key, value)?;
        }
        if service && wanted.isolation() == Isolation::Own {
            return Err(Fault::OwnInService);
        }
        Ok(Self::tenant(wanted))
    }

    /// Whether it needs the service of the GPUs.
    pub fn needs_service(&self) -> bool {
        match self {
            Self::Off => false,
            Self::Service => true,
            Self::Tenant(wanted) => wanted.isolation() == Isolation::Shared,
        }
    }
}

fn put(wanted: &mut LimitSet, key: &str, value: &str) -> Result<(), Fault> {
    let (name, given) = (key.to_owned(), value.to_owned());
    let Some(limit) = limits().find(|limit| limit.name == key) else { return Err(Fault::Key(name, given)) };
    limit
        .put(wanted, &value.to_ascii_lowercase())
        .map_err(|error| Fault::Value(name, given.clone(), error.into()))?;
    if wanted.memory == Some(ByteSize(0).into()) { Err(Fault::NoMemory(given)) } else { Ok(()) }
}

/// The limits by name, `isolation` first: it is always present, so that a tenant without limits
/// differs from the service.
fn pairs(wanted: &LimitSet) -> impl Iterator<Item = (&'static str, String)> {
    let others = limits().filter(|limit| limit.name != "isolation");
    let others = others.filter_map(|limit| Some((limit.name, limit.text(wanted)?)));
    std::iter::once(("isolation", wanted.isolation().to_string())).chain(others)
}

/// The equivalent options of `partita run`.
pub fn options(wanted: &LimitSet) -> Vec<String> {
    pairs(wanted).flat_map(|(name, value)| [format!("--{name}"), value]).collect()
}

/// The fields of batch systems where users write requests.
#[derive(Debug, Clone, Default)]
pub struct Sources<'a> {
    /// Slurm's `--comment`: words between spaces and semicolons.
    pub comment: Option<&'a str>,
    /// Slurm's `--constraint`: an expression of node features.
    pub constraints: Option<&'a str>,
    /// PBS's `-A`.
    pub account: Option<&'a str>,
    /// PBS's `-l`: `key=value` between commas.
    pub resources: Option<&'a str>,
    /// The percentage of Slurm's `--gres=mps:N`.
    pub mps_percent: Option<&'a str>,
    /// The argument of `--partita`, which the SPANK plugin passes on.
    pub option: Option<&'a str>,
}

/// The job's request; `None` without one.
///
/// With Slurm's `--gres=mps`, the scheduler promises the rest of the GPU to other jobs. So the
/// percentage becomes the partition's share, or bounds it.
///
/// # Errors
/// The reason, for the job's owner.
pub fn find(sources: &Sources<'_>) -> Result<Option<Request>, RequestError> {
    let mut found: Vec<String> = sources.option.map(str::to_owned).into_iter().collect();
    for text in [sources.comment, sources.account].into_iter().flatten() {
        for word in text.split(|c: char| c.is_whitespace() || c == ';') {
            found.extend(strip_prefix_ignoring_case(word, PREFIX).map(str::to_owned));
        }
    }
    // As in NVIDIA's guide: qsub -A "MPS=true".
    let asks = |text: &str| text.split([',', ';', ' ']).any(|word| word.eq_ignore_ascii_case("MPS=true"));
    if sources.account.is_some_and(asks) {
        found.push("mps".to_owned());
    }
    for item in sources.resources.unwrap_or_default().split(',') {
        if let Some((key, value)) = item.trim().split_once('=')
            && key == RESOURCE
        {
            found.push(value.to_owned());
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if found.is_empty()
        && sources.constraints.unwrap_or_default().split(|c| !is_name(c)).any(|name| name == FEATURE)
    {
        found.push("mps".to_owned());
    }
    let asked = match found.as_slice() {
        [] => None,
        [text] => Some(Request::parse(text)?),
        _ => return Err(RequestError::Several(found)),
    };
    match sources.mps_percent {
        None => Ok(asked),
        Some(percent) => bound(asked, percent).map(Some),
    }
}

fn strip_prefix_ignoring_case<'a>(word: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, rest) = word.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn bound(asked: Option<Request>, percent: &str) -> Result<Request, RequestError> {
    let promised = match format!("{percent}%").parse() {
        Ok(Share::Percent(promised @ 1..=100_000)) => promised,
        _ => return Err(RequestError::NoShare(percent.to_owned())),
    };
    let mut wanted = match asked {
        None | Some(Request::Service) => LimitSet::default(),
        Some(Request::Tenant(wanted)) => wanted,
        // Slurm's own percentage applies unchanged.
        Some(Request::Off) => return Ok(Request::Off),
    };
    match wanted.share {
        None => wanted.share = Some(Share::Percent(promised)),
        Some(Share::Percent(share)) if share <= promised => {}
        Some(share) => {
            return Err(RequestError::AboveScheduler { share, percent: percent.to_owned() });
        }
    }
    Ok(Request::tenant(wanted))
}

#[cfg(test)]
mod tests {
    use partita_core::Words;
    use partita_core::time::Priority;
    use proptest::prelude::*;

    use super::*;

    fn comment(text: &str) -> Result<Option<Request>, String> {
        find(&Sources { comment: Some(text), ..Sources::default() }).map_err(|error| error.to_string())
    }

    fn tenant(text: &str) -> LimitSet {
        match Request::parse(text).unwrap() {
            Request::Tenant(wanted) => wanted,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn comments_ask_among_other_words() {
        for (text, asked) in [
            ("", None),
            ("my partita job", None),
            ("partita:mps", Some("mps")),
            ("Partita:MPS", Some("mps")),
            ("run 7; partita:off", Some("off")),
            ("x partita:sm=50%,mem=40GiB y", Some("isolation=shared,sm=50%,mem=40GiB")),
            ("partita:isolation=own+sm=8tpc+priority=low", Some("isolation=own,sm=8tpc,priority=low")),
            ("partita:sm=tpc:0-3,8,mem=1GiB", Some("isolation=shared,sm=tpc:0-3,8,mem=1GiB")),
        ] {
            let found = comment(text).unwrap().map(|request| request.to_string());
            assert_eq!(found.as_deref(), asked, "{text}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_the_valid_forms() {
        for (text, words) in [
            ("partita:", "requests nothing|\"\" is not understood"),
            ("partita:mpss", "\"mpss\" is not understood"),
            ("partita:sm=", "sm="),
            ("partita:sm=0%", "sm=0%"),
            ("partita:mem=0", "a quota of nothing"),
            ("partita:mem=lots", "mem=lots"),
            ("partita:color=red", "color=red"),
            ("partita:sm=1%,sm=2%", "sm is given twice"),
            ("partita:mps,isolation=own", "leave one out"),
            ("partita:off,sm=1%", "\"off\" is not understood"),
            ("partita:priority=urgent", "high, normal or low"),
            ("partita:mps partita:sm=1%", "more than once"),
        ] {
            let error = comment(text).unwrap_err();
            assert!(words.split('|').any(|words| error.contains(words)), "{text}: {error}");
        }
    }

    #[test]
    fn pbs_asks_by_account_or_resource() {
        let pbs = |account, resources| {
            find(&Sources { account: Some(account), resources: Some(resources), ..Sources::default() })
                .map(|found| found.map(|request| request.to_string()))
                .map_err(|error| error.to_string())
        };
        assert_eq!(pbs("physics", "nodes=1:gpus=1,walltime=10"), Ok(None));
        assert_eq!(pbs("MPS=true", "nodes=1"), Ok(Some("mps".to_owned())));
        assert_eq!(pbs("mps=TRUE", ""), Ok(Some("mps".to_owned())));
        assert_eq!(
            pbs("physics", "nodes=1,partita=sm=50%+mem=1GiB,walltime=1"),
            Ok(Some("isolation=shared,sm=50%,mem=1GiB".to_owned()))
        );
        assert!(pbs("MPS=true", "partita=mps").unwrap_err().contains("more than once"));
    }

    #[test]
    fn a_feature_asks_for_the_service() {
        let asked = |constraints| {
            find(&Sources { constraints: Some(constraints), ..Sources::default() }).unwrap().is_some()
        };
        assert!(asked("partita_mps") && asked("[rack1&partita_mps]*2"));
        assert!(!asked("") && !asked("partita") && !asked("xpartita_mps") && !asked("partita_mps_old"));
    }

    #[test]
    fn a_share_of_the_scheduler_bounds_the_jobs() {
        let with = |comment, percent| {
            find(&Sources { comment, mps_percent: Some(percent), ..Sources::default() })
                .map(|found| found.unwrap().to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(with(None, "30").unwrap(), "isolation=shared,sm=30%");
        assert_eq!(with(Some("partita:mps"), "30").unwrap(), "isolation=shared,sm=30%");
        assert_eq!(with(Some("partita:mem=1GiB"), "30").unwrap(), "isolation=shared,sm=30%,mem=1GiB");
        assert_eq!(with(Some("partita:sm=20%"), "30").unwrap(), "isolation=shared,sm=20%");
        assert_eq!(with(Some("partita:off"), "30").unwrap(), "off");
        for asked in ["partita:sm=31%", "partita:sm=1tpc"] {
            assert!(with(Some(asked), "30").unwrap_err().contains("at most that"), "{asked}");
        }
        // Counts that the scheduler distributes wrongly.
        for percent in ["375", "0", "", "x", "-1"] {
            assert!(with(None, percent).unwrap_err().contains("not a share"), "{percent:?}");
        }
    }

    #[test]
    fn options_are_those_of_run() {
        assert_eq!(options(&tenant("isolation=shared")), ["--isolation", "shared"]);
        assert_eq!(
            options(&tenant("sm=50%,mem=1GiB,priority=high,isolation=own")),
            ["--isolation", "own", "--sm", "50%", "--mem", "1GiB", "--priority", "high"]
        );
    }

    proptest! {
        #[test]
        fn no_text_panics_and_only_ours_asks(text in "\\PC{0,40}") {
            let _ = Request::parse(&text);
            let found = comment(&text);
            prop_assert!(text.to_ascii_lowercase().contains("partita:") || found == Ok(None));
        }

        #[test]
        fn written_records_are_read_back(
            share in prop::option::of(1u32..=100_000),
            memory in prop::option::of(1u64..=1 << 50),
            own in any::<bool>(),
            level in 0usize..3,
        ) {
            let request = Request::Tenant(LimitSet {
                share: share.map(Share::Percent),
                memory: memory.map(|bytes| ByteSize(bytes).into()),
                isolation: Some(if own { Isolation::Own } else { Isolation::Shared }),
                priority: Some(Priority::VALUES[level]),
                ..LimitSet::default()
            });
            prop_assert_eq!(Request::parse(&request.to_string()), Ok(request));
        }
    }
}
