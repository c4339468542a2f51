//! How fast programs are alone, by their command lines: `alone.json` in the directory of state.

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

/// What one program's bursts, or steps, take alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Program {
    /// 99 of 100 at most, in nanoseconds.
    alone_ns: u64,
    /// When that was learnt, in milliseconds since 1970.
    at_unix_ms: u64,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Programs(BTreeMap<String, Program>);

impl Programs {
    /// Adds a program, and returns the text of the file: the oldest entries go until it fits.
    /// `None` if the program's command line alone is too long.
    fn add(&mut self, key: &str, program: Program) -> Option<Vec<u8>> {
        self.0.insert(key.to_owned(), program);
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

/// What names a program: its user, its GPU, what is timed, and its command line.
pub(super) fn key(tenant: &Tenant, is_of_steps: bool) -> String {
    let (gpu, command) = tenant
        .meta
        .as_ref()
        .map_or_else(|_| Default::default(), |meta| (meta.gpu.uuid.clone(), meta.command.join(" ")));
    let unit = if is_of_steps { "steps" } else { "bursts" };
    format!("{} {gpu} {unit} {command}", tenant.user)
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
    let file = file()?;
    // For this user alone: it names command lines.
    DirBuilder::new().recursive(true).mode(0o700).create(file.parent()?).ok()?;
    let mut programs = read(&file);
    let bytes = programs.add(key, Program { alone_ns, at_unix_ms: now_unix_ms() })?;
    files::replace(&file, &bytes, 0o644, Durable::No).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BYTES_MAX, PROGRAMS_MAX, Program, Programs};

    #[test]
    fn the_oldest_go_first() {
        let mut programs = Programs::default();
        // The names fall while the times rise, so that the order of names would take the newest.
        let name = |number: u64| format!("0 GPU bursts {:04}", 9_999 - number);
        for number in 0..PROGRAMS_MAX as u64 + 10 {
            programs.add(&name(number), Program { alone_ns: 1, at_unix_ms: number }).unwrap();
        }
        assert_eq!(programs.0.len(), PROGRAMS_MAX);
        assert!((0..10).all(|number| !programs.0.contains_key(&name(number))));
        assert!(programs.0.contains_key(&name(10)));
        // One that is learnt again takes no other's place.
        programs.add(&name(10), Program { alone_ns: 2, at_unix_ms: 1_000 }).unwrap();
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
                let bytes = programs.add(&key, Program { alone_ns: 1, at_unix_ms }).unwrap();
                prop_assert!(bytes.len() as u64 <= BYTES_MAX && programs.0.len() <= PROGRAMS_MAX);
                prop_assert!(programs.0.contains_key(&key));
                prop_assert_eq!(&serde_json::from_slice::<Programs>(&bytes).unwrap(), &programs);
            }
        }
    }
}
