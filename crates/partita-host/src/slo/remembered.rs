//! How fast programs are alone, and with what they have missed their targets, by their command
//! lines: `alone.json` in the directory of state.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{self, Durable};
use crate::mps::incident::now_unix_ms;
use crate::registry::Tenant;
use crate::state;

/// The most programs that the file has. The one that was learnt first goes first.
const PROGRAMS_MAX: usize = 256;
/// The most bytes that the file has: command lines may be long.
const BYTES_MAX: u64 = 1 << 20;

/// The most targets that a program is known to have missed.
const MISSED_MAX: usize = 8;

/// What is known of one program's bursts, or steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Program {
    /// 99 of 100 take so long alone at most, in nanoseconds; 0 if that is not known.
    #[serde(default)]
    alone_ns: u64,
    /// When something was last learnt, in milliseconds since 1970.
    at_unix_ms: u64,
    /// Targets that could not be met beside others, the last one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missed: Vec<Missed>,
}

/// A target that could not be met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Missed {
    slo: String,
    /// In turns, and not with compute units of its own.
    in_turns: bool,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Programs(BTreeMap<String, Program>);

impl Programs {
    /// Changes what is known of a program, and returns the text of the file: the oldest entries go
    /// until it fits. `None` if the program's command line alone is too long.
    fn change(&mut self, key: &str, at_unix_ms: u64, change: impl FnOnce(&mut Program)) -> Option<Vec<u8>> {
        let program = self.0.entry(key.to_owned()).or_default();
        program.at_unix_ms = at_unix_ms;
        change(program);
        loop {
            let bytes = serde_json::to_vec_pretty(self).ok()?;
            if self.0.len() <= PROGRAMS_MAX && bytes.len() as u64 <= BYTES_MAX {
                return Some(bytes);
            }
            // Never the new one: the clock may have been set back.
            let others = self.0.iter().filter(|(other, _)| *other != key);
            let oldest = others.min_by_key(|(_, program)| program.at_unix_ms);
            let oldest = oldest.map(|(key, _)| key.clone())?;
            self.0.remove(&oldest);
        }
    }
}

/// What names the program of a tenant.
pub(super) fn key(tenant: &Tenant, is_of_steps: bool) -> String {
    let (gpu, command) = tenant
        .meta
        .as_ref()
        .map_or_else(|_| Default::default(), |meta| (meta.gpu.uuid.clone(), meta.command.join(" ")));
    key_of(tenant.user, &gpu, is_of_steps, &command)
}

/// What names a program: its user, its GPU, what is timed, and its command line.
pub(super) fn key_of(user: u32, gpu_uuid: &str, is_of_steps: bool, command: &str) -> String {
    let unit = if is_of_steps { "steps" } else { "bursts" };
    format!("{user} {gpu_uuid} {unit} {command}")
}

fn file() -> Option<PathBuf> {
    state::dir().ok().map(|dir| dir.join("alone.json"))
}

fn read(file: &Path) -> Programs {
    files::read_json(file, BYTES_MAX).unwrap_or_default()
}

/// What 99 of 100 take alone, in nanoseconds, as an earlier run found it.
pub(super) fn recall(key: &str) -> Option<u64> {
    read(&file()?).0.get(key).map(|program| program.alone_ns).filter(|ns| *ns > 0)
}

/// Remembers it, and returns the file; `None` if there is no directory of state, or it cannot be
/// written.
pub(super) fn remember(key: &str, alone_ns: u64) -> Option<PathBuf> {
    change(key, |program| program.alone_ns = alone_ns)
}

/// Remembers that the program could not meet this target, and returns the file, as [`remember`].
pub(super) fn remember_missed(key: &str, slo: &str, in_turns: bool) -> Option<PathBuf> {
    change(key, |program| {
        let missed = Missed { slo: slo.to_owned(), in_turns };
        program.missed.retain(|other| *other != missed);
        program.missed.push(missed);
        program.missed.drain(..program.missed.len().saturating_sub(MISSED_MAX));
    })
}

/// Whether the program could not meet this target with compute units of its own, and is not known
/// to miss it in turns.
pub(super) fn is_missed_with_masks_alone(key: &str, slo: &str) -> bool {
    let Some(file) = file() else { return false };
    let programs = read(&file);
    let is_missed = |in_turns: bool| {
        let missed = Missed { slo: slo.to_owned(), in_turns };
        programs.0.get(key).is_some_and(|program| program.missed.contains(&missed))
    };
    is_missed(false) && !is_missed(true)
}

fn change(key: &str, change: impl FnOnce(&mut Program)) -> Option<PathBuf> {
    let file = file()?;
    // For this user alone: it names command lines.
    DirBuilder::new().recursive(true).mode(0o700).create(file.parent()?).ok()?;
    let bytes = read(&file).change(key, now_unix_ms(), change)?;
    files::replace(&file, &bytes, 0o644, Durable::No).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BYTES_MAX, PROGRAMS_MAX, Programs};

    #[test]
    fn the_oldest_go_first() {
        let mut programs = Programs::default();
        // The names fall while the times rise, so that the order of names would take the newest.
        let name = |number: u64| format!("0 GPU bursts {:04}", 9_999 - number);
        for number in 0..PROGRAMS_MAX as u64 + 10 {
            programs.change(&name(number), number, |program| program.alone_ns = 1).unwrap();
        }
        assert_eq!(programs.0.len(), PROGRAMS_MAX);
        assert!((0..10).all(|number| !programs.0.contains_key(&name(number))));
        assert!(programs.0.contains_key(&name(10)));
        // One that is learnt again takes no other's place.
        programs.change(&name(10), 1_000, |program| program.alone_ns = 2).unwrap();
        assert_eq!((programs.0.len(), programs.0[&name(10)].alone_ns), (PROGRAMS_MAX, 2));
        assert!(programs.0.contains_key(&name(11)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]

        #[test]
        fn the_file_is_bounded_and_read_as_it_was_written(
            lengths in prop::collection::vec(1usize..300_000, 1..12), times in any::<u64>(),
        ) {
            let mut programs = Programs::default();
            for (number, length) in lengths.into_iter().enumerate() {
                let key = format!("{number} {}", "x".repeat(length));
                let at_unix_ms = times.rotate_left(number as u32);
                let bytes = programs.change(&key, at_unix_ms, |program| program.alone_ns = 1).unwrap();
                prop_assert!(bytes.len() as u64 <= BYTES_MAX && programs.0.len() <= PROGRAMS_MAX);
                prop_assert!(programs.0.contains_key(&key));
                prop_assert_eq!(&serde_json::from_slice::<Programs>(&bytes).unwrap(), &programs);
            }
        }
    }
}
