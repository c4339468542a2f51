//! The modules of a crate, and which of them use which: read from its source.
//!
//! A reader of words, not a compiler: comments, strings and test modules are cut away, and what is
//! left is searched for paths that begin with `crate`, `super`, `self` or the name of a module
//! beside. That finds every arrow that an import or a path makes; methods of values make none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's path from the root of its crate; the root's is empty.
pub type Module = Vec<String>;

/// The source of a crate.
pub struct Source {
    pub(crate) words: BTreeMap<Module, Vec<String>>,
    /// What each module re-exports: a name, and the path behind it as it is written.
    exports: BTreeMap<Module, BTreeMap<String, Module>>,
}

impl Source {
    /// Reads what lies below `src`, from `root` (`lib.rs` or `main.rs`) on.
    pub fn read(src: &Path, root: &str) -> Self {
        let mut words = BTreeMap::new();
        read_below(src, root, &mut words);
        let exports = words.iter().map(|(module, words)| (module.clone(), exports(words))).collect();
        Self { words, exports }
    }

    /// The arrows between modules, without those between a module and what lies in it: a module and
    /// its inside are one.
    pub fn arrows(&self) -> BTreeSet<(Module, Module)> {
        let mut arrows = self.every_arrow();
        arrows.retain(|(from, to)| !from.starts_with(to) && !to.starts_with(from));
        arrows
    }

    /// The same with those between a module and what lies in it.
    pub fn every_arrow(&self) -> BTreeSet<(Module, Module)> {
        let mut arrows = BTreeSet::new();
        for (from, words) in &self.words {
            let used = paths(words).into_iter().filter_map(|path| self.resolve(from, &path));
            arrows.extend(used.filter(|to| to != from).map(|to| (from.clone(), to)));
        }
        arrows
    }

    /// The module that a path leads to, if it is one of this crate's.
    pub(crate) fn resolve(&self, from: &Module, path: &[String]) -> Option<Module> {
        let mut at = from.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            // A module beside or inside, or another crate.
            name => {
                let inside = [&from[..], &[name.to_owned()]].concat();
                if !self.words.contains_key(&inside) {
                    return None;
                }
            }
        }
        self.follow(at, rest, 8)
    }

    fn follow(&self, mut at: Module, rest: &[String], depth: u32) -> Option<Module> {
        for (place, name) in rest.iter().enumerate() {
            let inside = [&at[..], std::slice::from_ref(name)].concat();
            if self.words.contains_key(&inside) {
                at = inside;
                continue;
            }
            if depth > 0
                && let Some(behind) = self.exports.get(&at).and_then(|exports| exports.get(name))
            {
                let path = [&behind[..], &rest[place + 1..]].concat();
                let module = self.resolve_export(&at, &path, depth - 1);
                return module.or(Some(at));
            }
            break;
        }
        Some(at)
    }

    fn resolve_export(&self, at: &Module, path: &[String], depth: u32) -> Option<Module> {
        match path.first()?.as_str() {
            "crate" => self.follow(Vec::new(), &path[1..], depth),
            "self" => self.follow(at.clone(), &path[1..], depth),
            "super" => self.follow(at[..at.len().checked_sub(1)?].to_vec(), &path[1..], depth),
            name if self.words.contains_key(&[&at[..], &[name.to_owned()]].concat()) => {
                self.follow(at.clone(), path, depth)
            }
            _ => None,
        }
    }
}

/// The circles among arrows: between modules side by side, at any depth.
pub fn circles(arrows: &BTreeSet<(Module, Module)>) -> Vec<Vec<String>> {
    let mut between: BTreeMap<Module, BTreeSet<(String, String)>> = BTreeMap::new();
    for (from, to) in arrows {
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let pair = (from[common].clone(), to[common].clone());
        between.entry(from[..common].to_vec()).or_default().insert(pair);
    }
    let named = |above: &Module, name: &String| [&above[..], std::slice::from_ref(name)].concat().join("::");
    let mut found = Vec::new();
    for (above, pairs) in &between {
        let reached = |start: &String| {
            let mut reached = BTreeSet::new();
            let mut open = vec![start];
            while let Some(at) = open.pop() {
                let next = pairs.iter().filter(|(from, _)| from == at).map(|(_, to)| to);
                open.extend(next.filter(|to| reached.insert(to.as_str().to_owned())));
            }
            reached
        };
        let all: BTreeSet<&String> = pairs.iter().flat_map(|(from, to)| [from, to]).collect();
        let reach: BTreeMap<&String, BTreeSet<String>> = all.iter().map(|&one| (one, reached(one))).collect();
        let mut seen = BTreeSet::new();
        for one in all {
            let circle: Vec<&String> = reach
                .keys()
                .copied()
                .filter(|&two| reach[one].contains(two) && reach[two].contains(one))
                .collect();
            if reach[one].contains(one) && seen.insert(circle.clone()) {
                found.push(circle.into_iter().map(|name| named(above, name)).collect());
            }
        }
    }
    found
}

fn read_below(src: &Path, root: &str, words: &mut BTreeMap<Module, Vec<String>>) {
    let mut open = vec![(src.join(root), Module::new())];
    while let Some((file, module)) = open.pop() {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let own = without_tests(cut(&text));
        // The modules that the file declares lie beside it, or in the folder of its name.
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("mod.rs" | "lib.rs" | "main.rs") => file.parent().expect("a file is in a folder").to_owned(),
            _ => file.with_extension(""),
        };
        for pair in own.windows(3) {
            if let [key, name, end] = pair
                && key == "mod"
                && end == ";"
            {
                let inside = [&module[..], std::slice::from_ref(name)].concat();
                let flat = folder.join(format!("{name}.rs"));
                open.push((if flat.exists() { flat } else { folder.join(name).join("mod.rs") }, inside));
            }
        }
        words.insert(module, own);
    }
}

/// The words of Rust source: names, `::`, and single signs; without comments, strings and numbers.
fn cut(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let byte = bytes[at];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if let Some(length) = raw_string(rest) {
            at += length;
        } else if byte == b'"' {
            at += 1;
            while at < bytes.len() && bytes[at] != b'"' {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            at += 1;
        } else if byte == b'\'' {
            // A character, or a lifetime.
            let is_escape = rest[1..].starts_with('\\');
            let end = rest[1..].char_indices().skip(usize::from(is_escape) + 1).find(|(_, c)| *c == '\'');
            let length = end.map_or(usize::MAX, |(end, _)| end + 2);
            let is_character = is_escape || rest[1..].chars().nth(1) == Some('\'');
            at += if is_character && length < 16 { length } else { 1 };
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            words.push(rest[..end].to_owned());
            at += end;
        } else if rest.starts_with("::") {
            words.push("::".to_owned());
            at += 2;
        } else {
            let sign = rest.chars().next().expect("there is a byte");
            if !sign.is_whitespace() && !sign.is_ascii_digit() {
                words.push(sign.to_string());
            }
            at += sign.len_utf8();
        }
    }
    words
}

/// The length of the raw string that the text begins with.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let begin = text.len() - rest.len() + hashes + 1;
    Some(text[begin..].find(&close).map_or(text.len(), |end| begin + end + close.len()))
}

/// Without what only test builds have: `#[cfg(test)]` and the item behind it.
fn without_tests(words: Vec<String>) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < words.len() {
        if !(words.len() - at > TEST.len()
            && words[at..at + TEST.len()].iter().zip(TEST).all(|(a, b)| a == b))
        {
            kept.push(words[at].clone());
            at += 1;
            continue;
        }
        at += TEST.len();
        let mut depth = 0;
        while at < words.len() {
            match words[at].as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            let ends = depth == 0 && (words[at] == ";" || words[at] == "}");
            at += 1;
            if ends {
                break;
            }
        }
    }
    kept
}

/// Every path with more than one part, with the branches of `use` trees written out. A module that
/// is written out in the file is the file: `super` in it leads no further.
pub(crate) fn paths(words: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    // How deep the open braces are, and in how many of them a module is written out.
    let (mut depth, mut written_out) = (0, Vec::new());
    let mut at = 0;
    while at < words.len() {
        let begins = is_name(&words[at]) && (at == 0 || words[at - 1] != "::");
        if begins && words.get(at + 1).is_some_and(|next| next == "::") {
            let mut below = Vec::new();
            branches(words, &mut at, &mut Vec::new(), &mut below);
            for path in &mut below {
                let supers = path.iter().take_while(|word| *word == "super").count();
                if supers > 0 && !written_out.is_empty() {
                    path.drain(..supers.min(written_out.len()));
                    if path.first().is_none_or(|word| word != "super") {
                        path.insert(0, "self".to_owned());
                    }
                }
            }
            found.extend(below);
            continue;
        }
        let name = if words.get(at + 1).is_some_and(|word| word == "$") { at + 2 } else { at + 1 };
        match words[at].as_str() {
            "mod" if words.get(name + 1).is_some_and(|word| word == "{") => written_out.push(depth),
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                written_out.retain(|outside| *outside < depth);
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads one path or tree from `at` on, below `above`.
fn branches(words: &[String], at: &mut usize, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let depth = above.len();
    loop {
        match words.get(*at).map(String::as_str) {
            Some("{") => {
                *at += 1;
                while words.get(*at).is_some_and(|word| word != "}") {
                    let before = *at;
                    branches(words, at, above, found);
                    while words.get(*at).is_some_and(|word| word != "," && word != "}") {
                        *at += 1;
                    }
                    *at += usize::from(words.get(*at).is_some_and(|word| word == ","));
                    if *at == before {
                        *at += 1;
                    }
                }
                *at += 1;
                break;
            }
            Some(name) if is_name(name) => {
                above.push(name.to_owned());
                *at += 1;
                if words.get(*at).is_none_or(|word| word != "::") {
                    found.push(above.clone());
                    break;
                }
                *at += 1;
            }
            _ => {
                found.push(above.clone());
                break;
            }
        }
    }
    above.truncate(depth);
}

/// What a module re-exports: `pub use a::b::{C, D as E}`.
fn exports(words: &[String]) -> BTreeMap<String, Module> {
    let mut exports = BTreeMap::new();
    for at in 0..words.len() {
        if words[at] != "use" || at == 0 || !(words[at - 1] == "pub" || words[at - 1] == ")") {
            continue;
        }
        let end = words[at..].iter().position(|word| word == ";").map_or(words.len(), |end| at + end);
        let mut from = at + 1;
        let mut found = Vec::new();
        branches(&words[..end], &mut from, &mut Vec::new(), &mut found);
        for path in found {
            if let Some(name) = path.last() {
                exports.insert(name.clone(), path.clone());
            }
        }
    }
    exports
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
