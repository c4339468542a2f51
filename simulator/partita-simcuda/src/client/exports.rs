//! All exports of libcuda: the simulated ones, and a refusal for all others.

use core::ffi::c_void;

/// One export.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name, suffixes included.
    pub name: &'static str,
    /// The function.
    pub address: *const c_void,
    /// Whether it is more than a refusal.
    #[cfg(test)]
    pub simulated: bool,
}

// SAFETY: the address is a function's, fixed when the library is loaded.
unsafe impl Sync for Entry {}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// The address of this library's own function of a name.
///
/// It does not use `dlsym`: a library that was loaded before this one can define the same names,
/// and programs need the driver's functions.
pub fn address(name: &str) -> Option<*const c_void> {
    let at = ENTRIES.binary_search_by(|entry| entry.name.cmp(name)).ok()?;
    Some(ENTRIES[at].address)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The names of libcuda's calls in the sources of a folder, without versions.
    fn calls(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("the sources are there").flatten() {
            let path = entry.path();
            let ends = |end| path.ends_with(end);
            if path.is_dir() {
                if !ends("partita-abi") && !ends("partita-simcuda/src") && !ends("results") {
                    calls(&path, found);
                }
            } else if path.extension().is_some_and(|end| end == "rs" || end == "c" || end == "h") {
                let text = fs::read_to_string(&path).expect("the sources can be read");
                let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                found.extend(words.filter(|word| word.starts_with("cu")).map(|word| base(word).to_owned()));
            }
        }
    }

    /// Its name for `cuGetProcAddress`.
    fn base(name: &str) -> &str {
        let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        match name.rsplit_once("_v") {
            Some((base, version)) if version.bytes().all(|digit| digit.is_ascii_digit()) => base,
            _ => name,
        }
    }

    /// A call without callers is not simulated: no test would run it.
    #[test]
    fn every_simulated_call_is_made_by_the_hook_by_the_driver_crate_or_by_a_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut made = BTreeSet::new();
        for folder in ["crates", "chains", "research", "simulator"] {
            calls(&root.join(folder), &mut made);
        }
        let idle = ENTRIES.iter().filter(|entry| entry.simulated && !made.contains(base(entry.name)));
        assert_eq!(idle.map(|entry| entry.name).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn every_export_of_the_real_library_is_there_and_sorted() {
        assert!(ENTRIES.is_sorted_by(|a, b| a.name < b.name));
        for export in partita_abi::exports::EXPORTS.iter().filter(|export| export.name.starts_with("cu")) {
            assert!(address(export.name).is_some(), "{} is missing", export.name);
        }
        assert!(address("cuNoSuchCall").is_none());
    }
}
