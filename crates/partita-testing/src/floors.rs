//! The floors of a crate: which of its modules stands on which.
//!
//! A crate lists its floors in the documentation of its root file, the ground first:
//!
//! ````text
//! //! ```floors
//! //! ground   what needs nothing else of the crate
//! //! upper    what stands on it
//! //! ```
//! ````
//!
//! The first word of a line is a module of the root file. What lies in its folder is on the same
//! floor. A module uses modules of its own floor and of lower ones, and nothing of the modules
//! around it. No two modules use each other, directly or through others.
//!
//! Methods make no arrow ([`modules`](crate::modules)). So the methods of a type stand in the file
//! that defines the type, and not in a file of a higher floor.

use std::collections::BTreeSet;
use std::path::Path;

use crate::modules::{Module, Source, circles, paths};

/// What opens the list of floors in the root file.
const LIST: &str = "//! ```floors";

/// Where a crate does not keep to its floors, one line each. `src` is the folder of its `lib.rs`.
///
/// # Panics
/// If there is no such file, or no list of floors in it.
#[must_use]
pub fn faults(src: &Path) -> Vec<String> {
    let floors = listed(src);
    let source = Source::read(src, "lib.rs");
    let floor = |module: &Module| floors.iter().position(|floor| Some(floor) == module.first());
    let is_upward = |from: &Module, to: &Module| from.starts_with(to) || floor(to) > floor(from);
    let shown = |module: &Module| if module.is_empty() { "lib.rs".to_owned() } else { module.join("::") };

    let there: BTreeSet<&String> = source.words.keys().filter_map(|module| module.first()).collect();
    let differ =
        there.symmetric_difference(&floors.iter().collect()).map(|name| (*name).clone()).collect::<Vec<_>>();
    let mut faults: Vec<String> = differ
        .iter()
        .map(|name| format!("{name}: a floor without a module, or a module without a floor"))
        .collect();
    let arrows = source.every_arrow();
    let upward = arrows.iter().filter(|(from, to)| !from.is_empty() && is_upward(from, to));
    faults.extend(upward.map(|(from, to)| format!("{} uses {}, which is above it", shown(from), shown(to))));
    let circles = circles(&source.arrows());
    faults.extend(circles.into_iter().map(|circle| format!("a circle: {}", circle.join(", "))));
    faults.extend(methods_elsewhere(&source));
    faults
}

fn listed(src: &Path) -> Vec<String> {
    let root = std::fs::read_to_string(src.join("lib.rs")).expect("the crate has a lib.rs");
    let lines = root.lines().skip_while(|line| *line != LIST).skip(1).take_while(|line| *line != "//! ```");
    let floors: Vec<String> = lines
        .filter_map(|line| line.strip_prefix("//! ")?.split_whitespace().next().map(str::to_owned))
        .collect();
    assert!(!floors.is_empty(), "{}/lib.rs has a list of floors ({LIST})", src.display());
    floors
}

/// Methods that do not stand in the file of their type.
fn methods_elsewhere(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (module, words) in &source.words {
        let imported: BTreeSet<String> = paths(words)
            .into_iter()
            .filter(|path| source.resolve(module, path).is_some_and(|home| home != *module))
            .filter_map(|path| path.last().cloned())
            .collect();
        let blocks = words.iter().enumerate().filter(|(_, word)| *word == "impl");
        let types = blocks.filter_map(|(at, _)| own_methods_of(&words[at + 1..]));
        found.extend(
            types
                .filter(|name| imported.contains(name))
                .map(|name| format!("{}: methods of {name}, which another file defines", module.join("::"))),
        );
    }
    found
}

/// The type of an `impl` block that is of no trait, from the word behind `impl` on.
fn own_methods_of(words: &[String]) -> Option<String> {
    let mut angles = 0;
    let mut name = None;
    for word in words {
        match word.as_str() {
            "<" => angles += 1,
            ">" => angles -= 1,
            "{" | "where" => return name,
            // Of a trait; or `impl` in the type of an argument or a result.
            "for" | ";" | ")" | "," | "=" => return None,
            word if angles == 0 && name.is_none() && word.starts_with(char::is_alphabetic) => {
                name = Some(word.to_owned());
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::faults;

    /// The faults of a crate with a ground, a floor above it and these files.
    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let src = tempfile::tempdir().expect("a temporary directory");
        let root = "//! ```floors\n//! low   the ground\n//! high  above it\n//! ```\nmod low;\nmod high;\nstruct Root;\n";
        let all = [("lib.rs", root), ("low/mod.rs", "pub mod a;\npub mod b;\npub mod c;\n"), ("high.rs", "")];
        for (name, text) in all.iter().chain(files) {
            let path = src.path().join(name);
            std::fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        faults(src.path())
    }

    #[test]
    fn what_keeps_to_its_floor_is_in_order() {
        let high = "use crate::low::{a::{self, One}, b};\nfn f() { a::g(\"crate::high\"); } // crate::high\n";
        let a = "pub struct One;\nimpl One {}\nimpl<'a> From<&'a str> for One {}\nfn g(x: impl Fn()) {}\n";
        let b = "use super::a::One;\nimpl Clone for One {}\nmod inside { use super::*; fn f() { super::super::a::g() } }\n#[cfg(test)]\nmod tests { use crate::high::f; }\n";
        assert_eq!(of(&[("high.rs", high), ("low/a.rs", a), ("low/b.rs", b)]), [""; 0]);
    }

    #[test]
    fn a_use_of_a_higher_floor_is_found_in_code_as_well_as_in_imports() {
        for a in [
            "use crate::high::f;",
            "fn g() { let c = '\"'; crate::high::f() }",
            "use super::super::high::{f};",
        ] {
            assert_eq!(of(&[("low/a.rs", a)]), ["low::a uses high, which is above it"], "{a}");
        }
        assert_eq!(of(&[("low/a.rs", "use crate::Root;")]), ["low::a uses lib.rs, which is above it"]);
    }

    #[test]
    fn a_circle_on_one_floor_is_found() {
        let files = [
            ("low/a.rs", "use crate::low::b::f;"),
            ("low/b.rs", "use crate::low::c;"),
            ("low/c.rs", "fn g() { super::a::h() }"),
        ];
        assert_eq!(of(&files), ["a circle: low::a, low::b, low::c"]);
    }

    #[test]
    fn methods_elsewhere_and_modules_without_a_floor_are_found() {
        let root = "//! ```floors\n//! low   the ground\n//! high  above it\n//! ```\nmod low;\nmod high;\nmod other;\n";
        let high = "use crate::low::a::One;\nimpl<T> One<T> {}\n";
        let found = of(&[("lib.rs", root), ("high.rs", high), ("low/a.rs", ""), ("other.rs", "")]);
        let unlisted = "other: a floor without a module, or a module without a floor";
        assert_eq!(found, [unlisted, "high: methods of One, which another file defines"]);
    }
}
