//! Writes the table of all exports of libcuda: those that the sources implement, and for every
//! other name of the real library a function that returns `CUDA_ERROR_NOT_SUPPORTED`, so that any
//! program links.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// Finds `fn cuName` and `| cuTwin [` in the `driver_api!` blocks of a file.
fn implemented(source: &str, module: &str, found: &mut BTreeMap<String, String>) {
    for line in source.lines() {
        let Some(rest) = line.strip_prefix("    fn cu") else { continue };
        let head = rest.split('(').next().unwrap_or_default();
        for part in format!("cu{head}").split('|') {
            let name = part.split('[').next().unwrap_or_default().trim().to_owned();
            if let Some(other) = found.insert(name.clone(), module.to_owned()) {
                panic!("{name} is implemented in {other} and in {module}");
            }
        }
    }
}

fn main() {
    println!("cargo:rerun-if-changed=src/client");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("src/client").expect("the sources are there") {
        let path = entry.expect("the directory can be read").path();
        // Folders contain no entry points.
        if path.is_dir() {
            continue;
        }
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let source = fs::read_to_string(&path).expect("the sources can be read");
        implemented(&source, &module, &mut found);
    }
    let known: Vec<&str> = partita_abi::exports::EXPORTS
        .iter()
        .map(|export| export.name)
        .filter(|name| name.starts_with("cu"))
        .collect();
    for name in found.keys() {
        assert!(known.contains(&name.as_str()), "libcuda does not export {name}");
    }
    let mut text = String::new();
    let mut rows: BTreeMap<&str, String> = BTreeMap::new();
    for name in known {
        if let Some(module) = found.get(name) {
            rows.insert(name, format!("crate::client::{module}::{name}"));
        } else {
            let _ = write!(
                text,
                "/// Not simulated: `CUDA_ERROR_NOT_SUPPORTED`.\n#[unsafe(no_mangle)]\n#[allow(non_snake_case)]\n\
                 pub extern \"C\" fn {name}() -> partita_abi::CuResult {{ partita_abi::CuResult::NOT_SUPPORTED }}\n"
            );
            rows.insert(name, name.to_owned());
        }
    }
    text.push_str("/// Every export of libcuda, by name, sorted.\npub static ENTRIES: &[Entry] = &[\n");
    for (name, path) in &rows {
        let simulated = found.contains_key(*name);
        let _ = writeln!(
            text,
            "    Entry {{ name: {name:?}, address: {path} as *const core::ffi::c_void, \
             #[cfg(test)] simulated: {simulated} }},"
        );
    }
    text.push_str("];\n");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("exports.rs"), text).expect("the table can be written");
}
