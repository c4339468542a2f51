//! `docs/boundaries.md` names a test for each line that a test can show.

use std::fs;
use std::path::{Path, PathBuf};

/// The file that `cli/hook.rs` stands for.
fn file(named: &str) -> Option<PathBuf> {
    let (part, rest) = named.split_once('/')?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tests = |folder| root.join(format!("{folder}/partita-{part}/tests"));
    ["crates", "chains", "simulator", "research"]
        .into_iter()
        .flat_map(|folder| ["", "it", "forks"].map(|program| tests(folder).join(program).join(rest)))
        .find(|file| file.is_file())
}

/// Whether a file has a test of this name.
fn has_test(file: &Path, name: &str) -> bool {
    let text = fs::read_to_string(file).unwrap();
    let head = format!("fn {name}()");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_test = |at: usize| {
        lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).any(|line| *line == "#[test]")
    };
    lines.iter().enumerate().any(|(at, line)| line.starts_with(&head) && is_test(at))
}

#[test]
fn every_test_that_the_page_names_exists() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/boundaries.md");
    let text = fs::read_to_string(page).unwrap();
    let named: Vec<(&str, &str)> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.split_once("::"))
        .filter(|(file, _)| file.ends_with(".rs"))
        .collect();
    assert!(named.len() >= 50, "{named:?}");
    for (path, name) in named {
        assert!(file(path).is_some_and(|file| has_test(&file, name)), "{path}::{name}");
    }
    // Each line of the tables of boundaries and conventions names one.
    let begin = text.find("### Boundaries").unwrap();
    let tables = text[begin..text.find("## Neither").unwrap()].lines().filter(|line| line.starts_with("| "));
    let lines: Vec<&str> = tables.filter(|line| !line.ends_with("| test |")).collect();
    assert!(lines.len() >= 35, "{}", lines.len());
    for line in lines {
        assert!(line.contains(".rs::"), "{line}");
    }
}
