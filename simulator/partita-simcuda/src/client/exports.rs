//! All exports of libcuda: what is simulated, and a refusal for everything else.

use core::ffi::c_void;

/// One export.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name, suffixes included.
    pub name: &'static str,
    /// The function.
    pub address: *const c_void,
}

// SAFETY: the address is a function's, fixed when the library is loaded.
unsafe impl Sync for Entry {}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// The address of this library's own function of a name.
///
/// Not through `dlsym`: a library that was loaded before this one may define the same names, and
/// programs ask the driver for the driver's functions.
pub fn address(name: &str) -> Option<*const c_void> {
    let at = ENTRIES.binary_search_by(|entry| entry.name.cmp(name)).ok()?;
    Some(ENTRIES[at].address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_export_of_the_real_library_is_there_and_sorted() {
        assert!(ENTRIES.is_sorted_by(|a, b| a.name < b.name));
        for export in partita_abi::exports::EXPORTS.iter().filter(|export| export.name.starts_with("cu")) {
            assert!(address(export.name).is_some(), "{} is missing", export.name);
        }
        assert!(address("cuNoSuchCall").is_none());
    }
}
