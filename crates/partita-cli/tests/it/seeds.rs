//! docs/seeds.md, kept true: its commands run, its tests and files exist, and its counts are those
//! of its rows.

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{World, is_real};

const STATES: [&str; 5] = ["works", "measured", "simulated", "differs", "open"];

struct Row<'a> {
    id: &'a str,
    state: &'a str,
    command: &'a str,
    shown_by: &'a str,
    remark: &'a str,
}

impl<'a> Row<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let id = *cells.first()?;
        let number = id.strip_prefix(['A', 'B', 'C', 'D', 'E'])?;
        number.parse::<u32>().ok()?;
        let [id, _, state, command, shown_by, remark] = cells[..] else { panic!("six cells: {line}") };
        Some(Self { id, state, command: command.trim_matches('`'), shown_by, remark })
    }

    /// What stands in backticks, as `module::name`.
    fn tests(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.shown_by.split('`').skip(1).step_by(2).map(|text| text.split_once("::").expect("module::name"))
    }

    fn links(&self) -> Vec<&'a str> {
        [self.shown_by, self.remark].iter().flat_map(|text| links(text)).collect()
    }
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files of this project's Rust, without what was built.
fn sources() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        ["crates", "chains", "simulator", "research"].iter().map(|dir| root().join(dir)).collect();
    let mut found = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_row_is_true() {
    let page = fs::read_to_string(root().join("docs/seeds.md")).unwrap();
    let rows: Vec<Row<'_>> = page.lines().filter_map(Row::of).collect();
    assert!(rows.len() > 150, "{}", rows.len());

    for source in ["A", "B", "C", "D", "E", ""] {
        let of = |state: &str| {
            let is_of = |row: &&Row<'_>| row.id.starts_with(source) && row.state == state;
            rows.iter().filter(is_of).count()
        };
        let counts = STATES.map(of);
        let all = counts.iter().sum::<usize>();
        let cells: Vec<String> = counts.iter().chain([&all]).map(usize::to_string).collect();
        let end = format!("| {} |", cells.join(" | "));
        let name = if source.is_empty() { "| all |".to_owned() } else { format!("| {source}: ") };
        let line = page.lines().find(|line| line.starts_with(&name) && !line.contains('`')).unwrap();
        assert!(line.ends_with(&end), "the rows of {source:?} give «{end}»: {line}");
    }

    let sources: Vec<(PathBuf, String)> = sources()
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path, text)
        })
        .collect();
    let mut known = BTreeSet::new();
    for row in &rows {
        let Row { id, state, .. } = row;
        assert!(STATES.contains(state), "{id}: {state}");
        assert!(["works", "measured", "simulated"].contains(state) || !row.remark.is_empty(), "{id}");
        let is_shown = !row.command.is_empty() || !row.shown_by.is_empty();
        assert!(*state == "open" || is_shown, "{id}");
        assert!(*state != "measured" || !row.links().is_empty(), "{id} names no measurement");
        for test in row.tests() {
            let (module, name) = test;
            if !known.insert(test) {
                continue;
            }
            let has = |(path, text): &(PathBuf, String)| {
                path.file_stem().is_some_and(|stem| stem == module) && text.contains(&format!("fn {name}("))
            };
            assert!(sources.iter().any(has), "{id}: no {module}.rs has a function {name}");
        }
        for link in row.links() {
            let file = link.split('#').next().unwrap();
            assert!(root().join("docs").join(file).exists(), "{id}: {link}");
        }
    }
}

#[test]
fn the_commands_of_the_first_paper_run() {
    run_commands("A");
}

#[test]
fn the_commands_of_the_other_sources_run() {
    // A chain on both GPUs had a service for both.
    if let Some(world) = run_commands("BCDE") {
        world.keeper_ok("mps stop --gpu sim:h200:0,1 --force");
    }
}

/// Runs the commands of these sources in the order of the page, each once, in a world with two
/// GPUs, which it returns; `None` on a real GPU.
fn run_commands(sources: &str) -> Option<World> {
    if is_real() {
        eprintln!("skipped on a real GPU: the commands of the page");
        return None;
    }
    let page = fs::read_to_string(root().join("docs/seeds.md")).unwrap();
    let world = World::plan().own().in_memory().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())]);
    let path = format!("{}:{}", partita_testing::build().display(), std::env::var("PATH").unwrap());
    let mut done = BTreeSet::new();
    for Row { id, command, .. } in page.lines().filter_map(Row::of) {
        if command.is_empty() || !id.starts_with(|source| sources.contains(source)) || !done.insert(command) {
            continue;
        }
        let mut words = command.split_whitespace();
        assert_eq!(words.next(), Some("partita"), "{id}");
        let output = world.partita(words).current_dir(root()).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{id}: {command}: {output:?}");
    }
    assert!(!done.is_empty());
    Some(world)
}
