//! Completions: the shell asks the program for them, which knows the tenants, chains and GPUs of
//! the moment.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::process::Command as Program;

use clap::Command;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use partita::install::Install;
use partita::{detached, gpu};

/// The variable in which the shell names itself when it asks.
pub(crate) const VARIABLE: &str = "PARTITA_COMPLETE";
/// The variable in which it says which word it asks about.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";

/// Answers the shell, if it asks; then the program is to end.
#[must_use]
pub fn answer(program: impl Fn() -> Command) -> bool {
    if env::var_os(VARIABLE).is_none() {
        return false;
    }
    let here = env::current_dir().ok();
    let asked = CompleteEnv::with_factory(program).var(VARIABLE).bin("partita");
    // A shell shows the error in the middle of the line.
    !matches!(asked.try_complete(env::args_os(), here.as_deref()), Ok(false))
}

/// What a separate program needs to answer in the place of `partita`.
#[derive(Debug)]
pub struct Question {
    /// Its arguments.
    pub words: Vec<OsString>,
    /// The variable with the place of the word that is written.
    pub index: Option<(&'static str, String)>,
}

/// The question about the words after `partita NAME`, if the shell asks one.
#[must_use]
pub fn question(name: &str) -> Option<Question> {
    env::var_os(VARIABLE)?;
    let words: Vec<OsString> = env::args_os().collect();
    let begin = words.iter().position(|word| word == "--")? + 1;
    let [_, first, rest @ ..] = words.get(begin..)? else { return None };
    // The word itself is still being written if nothing follows it.
    if first != name || rest.is_empty() {
        return None;
    }
    let index = env::var(INDEX).ok().and_then(|index| index.parse::<usize>().ok());
    let index = index.map(|index| (INDEX, index.saturating_sub(1).to_string()));
    let words = [OsString::from("--"), first.clone()].into_iter().chain(rest.iter().cloned()).collect();
    Some(Question { words, index })
}

/// The names in the list that this program's `ps --json` prints: of tenants, of chains. As a
/// command, because only `partitad` knows the tenants where it plans.
#[must_use]
pub fn listed() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Ok(install) = Install::of_this_program() else { return Vec::new() };
        let output = Program::new(install.program()).args(["ps", "--json"]).env_remove(VARIABLE).output();
        let rows = output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok());
        let rows: Vec<serde_json::Value> = rows.unwrap_or_default();
        // A tenant on several GPUs has several rows.
        let names: BTreeSet<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

/// The names of detached runs, also of those that have ended.
#[must_use]
pub fn detached() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let records = detached::Records::open().map(|records| records.all()).unwrap_or_default();
        records.into_iter().map(|record| CompletionCandidate::new(record.name)).collect()
    })
}

/// The GPUs of this machine, and the simulated one.
#[must_use]
pub fn gpus() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let real = Install::of_this_program().ok().and_then(|install| gpu::all_real(&install).ok());
        let real = real.and_then(Result::ok).unwrap_or_default();
        let index = |gpu: &gpu::Gpu| {
            CompletionCandidate::new(gpu.facts.index.to_string()).help(Some(gpu.facts.name.clone().into()))
        };
        let simulated = CompletionCandidate::new("sim:h200").help(Some("simulated".into()));
        let words = ["all", "any"].map(CompletionCandidate::new);
        real.iter().map(index).chain(words).chain([simulated]).collect()
    })
}
