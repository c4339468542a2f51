//! The house is built as `ARCHITECTURE.md` draws it: which crate may use which, folder by folder,
//! and no circles between the modules of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use partita_testing::modules::{Module, Source, circles};

/// The folders, and those that the crates of each may use.
const FOLDERS: [(&str, &[&str]); 5] = [
    ("crates", &["crates"]),
    ("chains", &["chains", "crates"]),
    ("integrations", &["integrations", "crates"]),
    ("simulator", &["simulator", "crates"]),
    ("research", &["research", "chains", "simulator", "crates"]),
];

/// Arrows against the order of the folders, each with its reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("partita-chain-cli", "partita-plot", "`partita chain plot` draws with the pictures of the experiments"),
    ("partita-daemon", "partita-memory", "`partitad keeper` owns leased memory, and the API lists leases"),
    ("partita-daemon", "partita-chain-host", "the API starts, steers and stops chains"),
];

struct Crate {
    folder: &'static str,
    path: PathBuf,
    /// What it is built with; not what only its tests use.
    uses: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crates of the workspace by their names.
fn crates() -> BTreeMap<String, Crate> {
    let mut found = BTreeMap::new();
    for (folder, _) in FOLDERS {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(manifest) = fs::read_to_string(path.join("Cargo.toml")) else { continue };
            let manifest: toml::Table = manifest.parse().unwrap();
            // A workspace of its own has none.
            let Some(package) = manifest.get("package") else { continue };
            let name = package["name"].as_str().unwrap().to_owned();
            let tables =
                ["dependencies", "build-dependencies"].into_iter().filter_map(|key| manifest.get(key));
            let uses = tables
                .flat_map(|table| table.as_table().unwrap())
                .map(|(key, value)| {
                    value.get("package").and_then(toml::Value::as_str).unwrap_or(key).to_owned()
                })
                .filter(|name| name == "partita" || name.starts_with("partita-"))
                .collect();
            found.insert(name, Crate { folder, path, uses });
        }
    }
    assert!(found.len() > 20, "the workspace was found");
    found
}

/// Every arrow between folders goes the one way, but for the exceptions; and no exception is kept
/// that nothing needs.
#[test]
fn folders_use_each_other_in_one_direction() {
    let crates = crates();
    let may: BTreeMap<&str, &[&str]> = FOLDERS.into_iter().collect();
    let mut against = BTreeSet::new();
    for (name, one) in &crates {
        for used in &one.uses {
            let folder = crates[used].folder;
            if !may[one.folder].contains(&folder) {
                against.insert((name.as_str(), used.as_str()));
            }
        }
    }
    let excepted: BTreeSet<_> = EXCEPTIONS.iter().map(|(from, to, _)| (*from, *to)).collect();
    assert_eq!(against, excepted, "left: the arrows against the order; right: those that are excepted");
}

/// The table of crates in `ARCHITECTURE.md` says of each crate what it uses, and says it right.
#[test]
fn crates_use_what_the_table_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let names = |cell: &str| -> BTreeSet<String> {
        let quoted = cell.split('`').skip(1).step_by(2).map(str::to_owned);
        quoted
            .map(|name| if name.starts_with("partita") { name } else { format!("partita-{name}") })
            .collect()
    };
    let mut drawn = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `partita")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [of, _, uses] = cells[..] else { panic!("three cells: {line}") };
        for name in names(of) {
            assert!(drawn.insert(name.clone(), names(uses)).is_none(), "{name} stands twice");
        }
    }
    let built: BTreeMap<_, _> = crates().into_iter().map(|(name, one)| (name, one.uses)).collect();
    for (name, uses) in &built {
        assert_eq!(
            drawn.get(name),
            Some(uses),
            "{name}: left: drawn in ARCHITECTURE.md; right: its Cargo.toml"
        );
    }
    assert_eq!(drawn.len(), built.len(), "ARCHITECTURE.md has crates that are not there");
}

/// Modules side by side do not use each other in a circle, at any depth.
#[test]
fn modules_are_not_in_circles() {
    let mut found = Vec::new();
    for (name, one) in crates() {
        for file in ["lib.rs", "main.rs"] {
            let source = one.path.join("src");
            if source.join(file).exists() {
                let arrows = Source::read(&source, file).arrows();
                for circle in circles(&arrows) {
                    let is_in = |module: &Module| {
                        circle
                            .iter()
                            .any(|one| format!("{}::", module.join("::")).starts_with(&format!("{one}::")))
                    };
                    println!("{name}: {}", circle.join(", "));
                    for (from, to) in arrows.iter().filter(|(from, to)| is_in(from) && is_in(to)) {
                        println!("    {} -> {}", from.join("::"), to.join("::"));
                    }
                    found.push((name.clone(), circle));
                }
            }
        }
    }
    assert!(found.is_empty(), "circles: {found:?}");
}
