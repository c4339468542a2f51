//! The floors of the hook: the list in `src/lib.rs` is the picture, and the modules keep to it.

use std::path::{Path, PathBuf};

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn no_module_uses_what_is_above_it_and_no_two_use_each_other() {
    let faults = partita_testing::floors::faults(&src());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_module_with_a_lock_says_what_a_forked_child_does_with_it() {
    let has_lock = |text: &str| {
        text.lines().any(|line| {
            let line = line.trim_start().trim_start_matches("pub ");
            line.starts_with("static ") && line.contains("Mutex<")
        })
    };
    let mut with_locks = 0;
    for file in files(&src()) {
        let text = std::fs::read_to_string(&file).expect("a file");
        if has_lock(&text) {
            with_locks += 1;
            assert!(text.contains("in_child! {"), "{}: a lock that no child makes usable", file.display());
        }
    }
    assert!(with_locks > 10, "{with_locks} modules with locks were found");
}
