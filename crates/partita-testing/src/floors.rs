//! Which modules of a crate use which, and whether they keep to the crate's floors.
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
//! The first word of a line is a module of the root file. What lies below it in its folder is on
//! the same floor. A module may use modules of its own floor and of lower ones. No two modules may
//! use each other, directly or through others; each file is a module here. The root file may use
//! every floor, and no module may use what the root file defines.
//!
//! What counts as a use are the paths that begin with `crate`, `super` or `self`, in `use` lines
//! and in code. Methods have no such path. So a type's methods must stand in the file that defines
//! it, and who calls them from elsewhere has imported the type or a function that returns it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fmt, fs};

/// What opens the list of floors in the root file.
const LIST: &str = "//! ```floors";

/// A module of a crate, by its path: `memory::pools`; empty for the root file.
type Module = Vec<String>;

/// The modules of a crate and what they use of each other.
#[derive(Debug)]
pub struct Modules {
    /// The floors, the ground first.
    floors: Vec<String>,
    /// The modules that each module uses, each with a path by which it does.
    uses: BTreeMap<Module, BTreeMap<Module, String>>,
    /// Methods that stand outside of the file of their type.
    strays: Vec<String>,
}

impl Modules {
    /// Reads the crate whose root file, `lib.rs`, is in a folder.
    ///
    /// # Panics
    /// If a file cannot be read, or the root file has no list of floors.
    pub fn read(src: &Path) -> Self {
        let mut files = BTreeMap::new();
        find(src, &[], &mut files);
        let root = files.get(&Module::new()).expect("the crate has a lib.rs");
        let floors: Vec<String> = root
            .lines()
            .skip_while(|line| *line != LIST)
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .filter_map(|line| line.strip_prefix("//! ")?.split_whitespace().next().map(str::to_owned))
            .collect();
        assert!(!floors.is_empty(), "{}/lib.rs has no list of floors ({LIST})", src.display());
        let known: BTreeSet<Module> = files.keys().cloned().collect();
        let (mut uses, mut strays) = (BTreeMap::new(), Vec::new());
        for (module, text) in &files {
            let found = Found::of(text, module);
            let mut of_module = BTreeMap::new();
            for path in &found.paths {
                let used = home(path, &known);
                if used != *module {
                    of_module.entry(used).or_insert_with(|| path.join("::"));
                }
            }
            let imported = |name: &String| {
                found.paths.iter().any(|path| path.last() == Some(name) && home(path, &known) != *module)
            };
            let outside = found.methods_of.iter().filter(|name| imported(name));
            strays.extend(outside.map(|name| format!("{}: methods of {name}", Shown(module))));
            uses.insert(module.clone(), of_module);
        }
        Self { floors, uses, strays }
    }

    /// What breaks the rules, one line each.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.unlisted();
        for (module, used) in &self.uses {
            faults.extend(used.iter().filter_map(|(used, path)| self.upward(module, used, path)));
        }
        faults.extend(self.circles());
        let outside = |stray: &String| format!("{stray} stand outside of its file: make functions of them");
        faults.extend(self.strays.iter().map(outside));
        faults
    }

    /// Floors without a module, and modules without a floor.
    fn unlisted(&self) -> Vec<String> {
        let there: BTreeSet<&String> = self.uses.keys().filter_map(|module| module.first()).collect();
        let listed: BTreeSet<&String> = self.floors.iter().collect();
        let differ = there.symmetric_difference(&listed);
        differ.map(|name| format!("{name}: listed as a floor, or there as a module, and not both")).collect()
    }

    fn upward(&self, module: &Module, used: &Module, path: &str) -> Option<String> {
        let floor = |module: &Module| self.floors.iter().position(|floor| Some(floor) == module.first());
        let from = floor(module)?;
        let is_above = floor(used).is_none_or(|to| to > from);
        is_above.then(|| format!("{} uses {path}, which is above it", Shown(module)))
    }

    /// One circle for each set of modules that reach each other.
    fn circles(&self) -> Vec<String> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.uses.keys().map(|module| (module, self.reached_from(module))).collect();
        let mut told: BTreeSet<&Module> = BTreeSet::new();
        let mut circles = Vec::new();
        for (module, from_here) in &reached {
            if !from_here.contains(module) || told.contains(module) {
                continue;
            }
            let all: Vec<&Module> =
                from_here.iter().filter(|other| reached[*other].contains(module)).copied().collect();
            let edges = all.iter().flat_map(|from| {
                let inside = self.uses[*from].iter().filter(|(to, _)| all.contains(to));
                inside.map(move |(_, path)| format!("{} uses {path}", Shown(from)))
            });
            circles.push(format!("a circle of {}: {}", all.len(), edges.collect::<Vec<_>>().join(", ")));
            told.extend(all);
        }
        circles
    }

    fn reached_from(&self, module: &Module) -> BTreeSet<&Module> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Module> = self.uses[module].keys().collect();
        while let Some(at) = next.pop() {
            if reached.insert(at) {
                next.extend(self.uses[at].keys());
            }
        }
        reached
    }
}

/// A module as messages name it.
struct Shown<'m>(&'m Module);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&if self.0.is_empty() { "lib.rs".to_owned() } else { self.0.join("::") })
    }
}

/// Every file below a folder, by its module. Files of tests are left out.
fn find(folder: &Path, module: &[String], files: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).expect("a folder of the crate") {
        let path = entry.expect("an entry of the folder").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a file's name");
        let below = || module.iter().cloned().chain([stem.to_owned()]).collect::<Module>();
        if path.is_dir() {
            find(&path, &below(), files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && stem != "tests" {
            let module = if matches!(stem, "lib" | "mod") { module.to_vec() } else { below() };
            files.insert(module, fs::read_to_string(&path).expect("a file of the crate"));
        }
    }
}

/// The module in which a path ends.
fn home(path: &[String], known: &BTreeSet<Module>) -> Module {
    let prefixes = (0..=path.len()).rev().map(|length| path[..length].to_vec());
    prefixes.into_iter().find(|prefix| known.contains(prefix)).unwrap_or_default()
}

/// What a file says.
#[derive(Default)]
struct Found {
    /// The paths into its crate, from the root on.
    paths: Vec<Vec<String>>,
    /// The types of its `impl` blocks that are of no trait.
    methods_of: Vec<String>,
}

impl Found {
    fn of(text: &str, module: &Module) -> Self {
        let words = words(text);
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let mut found = Self::default();
        // The modules that are written out in the file, as far as they are open: how deep each is.
        let mut inline: Vec<(usize, String)> = Vec::new();
        let (mut at, mut depth) = (0, 0);
        while at < words.len() {
            match word(at) {
                "#" if words[at..]
                    .starts_with(&["#", "[", "cfg", "(", "test", ")", "]", "mod"].map(String::from)) =>
                {
                    at = skip_block(&words, at);
                    continue;
                }
                "mod" if word(at + 2) == "{" => inline.push((depth, word(at + 1).to_owned())),
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    inline.retain(|(outside, _)| *outside < depth);
                }
                "impl" => found.methods_of.extend(own_methods(&words[at + 1..])),
                "crate" | "super" | "self" if word(at + 1) == "::" && (at == 0 || word(at - 1) != "::") => {
                    let mut here: Vec<String> =
                        module.iter().cloned().chain(inline.iter().map(|(_, name)| name.clone())).collect();
                    if word(at) == "crate" {
                        here.clear();
                    }
                    let mut from = at;
                    while word(from) == "super" && word(from + 1) == "::" {
                        here.pop();
                        from += 2;
                    }
                    if matches!(word(from), "crate" | "self") {
                        from += 2;
                    }
                    tree(&words, from, &here, &mut found.paths);
                }
                _ => {}
            }
            at += 1;
        }
        found
    }
}

/// The place behind the block that begins next.
fn skip_block(words: &[String], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while let Some(word) = words.get(at) {
        at += 1;
        match word.as_str() {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            // The module is in a file of its own.
            ";" if depth == 0 => break,
            _ => {}
        }
    }
    at
}

/// The type of an `impl` block, if it is of no trait.
fn own_methods(words: &[String]) -> Option<String> {
    let mut angles = 0;
    let mut name = None;
    for word in words {
        match word.as_str() {
            "<" => angles += 1,
            ">" => angles -= 1,
            "{" | "where" => return name,
            // `impl Trait` of an argument or a result.
            "for" | ";" | ")" | "," | "=" => return None,
            word if angles == 0 && name.is_none() && word.starts_with(char::is_alphabetic) => {
                name = Some(word.to_owned());
            }
            _ => {}
        }
    }
    None
}

/// The paths of a tree of paths, such as `a::{b, c::{self, d}}`; returns the place behind it.
fn tree(words: &[String], from: usize, before: &[String], paths: &mut Vec<Vec<String>>) -> usize {
    let (mut at, mut path) = (from, before.to_vec());
    loop {
        match words.get(at).map_or("", String::as_str) {
            "{" => {
                at += 1;
                while !matches!(words.get(at).map_or("}", String::as_str), "}") {
                    at = tree(words, at, &path, paths);
                    if words.get(at).is_some_and(|word| word == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            name => {
                if name != "self" && name != "*" {
                    path.push(name.to_owned());
                }
                at += 1;
            }
        }
        if words.get(at).is_none_or(|word| word != "::") {
            break;
        }
        at += 1;
    }
    paths.push(path);
    if words.get(at).is_some_and(|word| word == "as") { at + 2 } else { at }
}

/// The words and signs of a file, without its comments and the contents of its strings.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            string(rest)
        } else if let Some(bytes) = raw_string(rest) {
            bytes
        } else if first == '\'' {
            character(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            words.push(rest[..end].to_owned());
            end
        } else {
            let sign = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            if !first.is_whitespace() {
                words.push(rest[..sign].to_owned());
            }
            sign
        };
        rest = &rest[length..];
    }
    words
}

/// The length of the string at the beginning.
fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let is_end = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The length of the raw string at the beginning, if there is one.
fn raw_string(text: &str) -> Option<usize> {
    let body = ["r", "br", "cr"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inside = body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inside.find(&close).map_or(inside.len(), |at| at + close.len());
    Some(text.len() - inside.len() + end)
}

/// The length of the character or the lifetime at the beginning.
fn character(text: &str) -> usize {
    let mut inside = text.char_indices().skip(1);
    match (inside.next(), inside.next()) {
        (Some((_, '\\')), Some(_)) => inside.find(|(_, c)| *c == '\'').map_or(text.len(), |(at, _)| at + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::Modules;

    /// A crate with a ground, a floor above it and these files besides.
    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let src = tempfile::tempdir().expect("a temporary directory");
        let root = "//! ```floors\n//! low   the ground\n//! high  above it\n//! ```\nmod low;\nmod high;\nstruct Root;\n";
        let all = [("lib.rs", root), ("low/mod.rs", "pub mod a;\npub mod b;\n"), ("high.rs", "")];
        for (name, text) in all.iter().chain(files) {
            let path = src.path().join(name);
            std::fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        Modules::read(src.path()).faults()
    }

    #[test]
    fn what_keeps_to_its_floor_is_in_order() {
        let high = "use crate::low::{a::{self, One}, b};\nfn f() { a::g(\"crate::high\"); } // crate::high\n";
        let a = "pub struct One;\nimpl One {}\nimpl<'a> From<&'a str> for One {}\nfn g(x: impl Fn()) {}\n";
        let b = "use super::a::One;\nimpl Clone for One {}\nmod inside { use super::*; }\n#[cfg(test)]\nmod tests { use crate::high::f; }\n";
        assert_eq!(faults(&[("high.rs", high), ("low/a.rs", a), ("low/b.rs", b)]), [""; 0]);
    }

    #[test]
    fn a_use_of_a_higher_floor_is_found_in_code_as_well_as_in_imports() {
        let told = ["low::a uses high::f, which is above it"];
        for a in [
            "use crate::high::f;",
            "fn g() { let c = '\"'; crate::high::f() }",
            "use super::super::high::{f};",
        ] {
            assert_eq!(faults(&[("low/a.rs", a)]), told, "{a}");
        }
        assert_eq!(faults(&[("low/a.rs", "use crate::Root;")]), ["low::a uses Root, which is above it"]);
    }

    #[test]
    fn a_circle_on_one_floor_is_found_with_its_edges() {
        let found = faults(&[
            ("low/a.rs", "use crate::low::b::f;"),
            ("low/b.rs", "use crate::low::c;"),
            ("low/c.rs", "fn g() { super::a::h() }"),
        ]);
        let told = "a circle of 3: low::a uses low::b::f, low::b uses low::c, low::c uses low::a::h";
        assert_eq!(found, [told]);
    }

    #[test]
    fn methods_outside_of_their_types_file_and_modules_without_a_floor_are_found() {
        let found = faults(&[("high.rs", "use crate::low::a::One;\nimpl<T> One<T> {}\n"), ("other.rs", "")]);
        assert_eq!(
            found,
            [
                "other: listed as a floor, or there as a module, and not both",
                "high: methods of One stand outside of its file: make functions of them",
            ]
        );
    }
}
