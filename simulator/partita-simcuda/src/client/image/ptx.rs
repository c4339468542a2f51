//! The data of PTX text about its kernels: names, parameters, bounds and shared memory. Nothing is
//! compiled.

use partita_abi::CuResult;

use super::{Global, Loaded};
use crate::client::function::KernelInfo;

/// Size of a PTX type by its name, in bytes.
fn type_bytes(name: &str) -> Option<usize> {
    Some(match name.trim_start_matches('.') {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}

/// Text without comments.
fn strip(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
            plain.push(' ');
        } else {
            plain.push('/');
            rest = &rest[1..];
        }
    }
    plain.push_str(rest);
    plain
}

/// Alignment, size and name of a declaration such as `.param .align 8 .b8 name[24]`.
fn declaration(text: &str) -> Option<(usize, usize, &str)> {
    let (mut align, mut element, mut name) = (None, None, None);
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            ".align" => align = words.next().and_then(|number| number.parse().ok()),
            // A pointer's target and its alignment are not those of the parameter itself.
            ".ptr" => {
                element = element.or(Some(8));
            }
            word if word.starts_with('.') => element = element.or(type_bytes(word)),
            word => name = Some(word),
        }
    }
    let (element, name) = (element?, name?);
    let (name, count) = match name.split_once('[') {
        Some((name, rest)) => (name, rest.trim_end_matches([']', ' ']).parse().unwrap_or(0)),
        None => (name, 1),
    };
    Some((align.unwrap_or(element), element * count, name))
}

fn number_after(text: &str, word: &str) -> Option<u32> {
    let rest = text.split(word).nth(1)?.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// `9.0` as 90.
fn version(text: &str, word: &str) -> u32 {
    let Some(rest) = text.split(word).nth(1) else { return 0 };
    let number = rest.split_whitespace().next().unwrap_or_default();
    let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
    major.parse::<u32>().unwrap_or(0) * 10 + minor.parse::<u32>().unwrap_or(0)
}

/// Reads a module.
///
/// # Errors
/// `INVALID_PTX` for text that is no PTX: it names no version, or a kernel's parameters make no
/// sense.
pub fn parse(text: &str) -> Result<Loaded, CuResult> {
    let text = strip(text);
    if !text.contains(".version") || !text.contains(".target") {
        return Err(CuResult::INVALID_PTX);
    }
    let ptx_version = version(&text, ".version");
    let target = text.split(".target").nth(1).and_then(|rest| number_after(rest, "sm_")).unwrap_or(0);
    let mut loaded = Loaded { ptx_target: Some(target), ..Loaded::default() };
    let mut parts = text.split(".entry");
    globals(parts.next().unwrap_or_default(), &mut loaded);
    for part in parts {
        let open = part.find(['(', '{', ';']).ok_or(CuResult::INVALID_PTX)?;
        let name = part[..open].trim();
        if name.is_empty() {
            return Err(CuResult::INVALID_PTX);
        }
        let mut kernel = KernelInfo {
            name: name.to_owned(),
            ptx_version: target.max(ptx_version),
            binary_version: target,
            ..KernelInfo::default()
        };
        let mut rest = &part[open..];
        if let Some(list) = rest.strip_prefix('(') {
            let close = list.find(')').ok_or(CuResult::INVALID_PTX)?;
            let mut offset = 0usize;
            for param in list[..close].split(',').map(str::trim).filter(|param| !param.is_empty()) {
                let param = param.strip_prefix(".param").ok_or(CuResult::INVALID_PTX)?;
                let (align, bytes, _) = declaration(param).ok_or(CuResult::INVALID_PTX)?;
                offset = offset.next_multiple_of(align.max(1));
                kernel.params.push((offset, bytes));
                offset += bytes;
            }
            rest = &list[close + 1..];
        }
        // A declaration without a body is a promise of another module.
        let body = rest.find('{').filter(|body| rest.find(';').is_none_or(|end| *body < end));
        let Some(body) = body else { continue };
        let bounds = &rest[..body];
        if let Some(list) = bounds.split(".maxntid").nth(1) {
            let list = list.split('.').next().unwrap_or_default();
            kernel.threads_max =
                list.split(',').filter_map(|number| number.trim().parse::<u32>().ok()).product();
        }
        kernel.shared_bytes = rest[body..]
            .split(';')
            .filter_map(|line| {
                line.split(".shared")
                    .nth(1)
                    .filter(|_| line.trim_start_matches(['{', '\n', '\t', ' ', '\r']).starts_with(".shared"))
            })
            .filter_map(declaration)
            .map(|(_, bytes, _)| bytes as u32)
            .sum();
        kernel.fails = failure(&rest[body + 1..]);
        loaded.kernels.push(kernel);
        globals(&rest[body..], &mut loaded);
    }
    Ok(loaded)
}

/// The error of a kernel whose first instruction is a trap, or a failed assertion; 0 for another.
fn failure(body: &str) -> i32 {
    let statements = body.split(';').map(str::trim);
    let first = statements.into_iter().find(|statement| !statement.starts_with('.')).unwrap_or_default();
    match first {
        "trap" => CuResult::LAUNCH_FAILED.0,
        call if call.starts_with("call") && call.contains("__assertfail") => CuResult::ASSERT.0,
        _ => 0,
    }
}

/// Variables in global memory. First values are not read: a variable of PTX starts as zero here.
fn globals(text: &str, loaded: &mut Loaded) {
    for line in text.split(';') {
        let Some(at) = line.find(".global").filter(|at| {
            let before = line[..*at].trim_end();
            before.is_empty() || before.ends_with(".visible") || before.ends_with('}')
        }) else {
            continue;
        };
        let plain = line[at + 7..].split('=').next().unwrap_or_default();
        if let Some((_, bytes, name)) = declaration(plain).filter(|(_, bytes, _)| *bytes > 0) {
            loaded.globals.push(Global { name: name.to_owned(), bytes: bytes as u64, initial: Vec::new() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_kernels_are_read_with_their_parameters() {
        let text = partita_abi::kernels::PTX_MODULE.to_str().unwrap();
        let loaded = parse(text).unwrap();
        assert_eq!(loaded.kernels.len(), partita_abi::kernels::KERNELS.len());
        for (name, sizes) in partita_abi::kernels::KERNELS {
            let kernel = loaded.kernels.iter().find(|k| k.name.as_bytes() == name.to_bytes()).unwrap();
            let found: Vec<usize> = kernel.params.iter().map(|(_, size)| *size).collect();
            assert_eq!(found, *sizes);
        }
        assert!(loaded.globals.is_empty());
    }

    #[test]
    fn structures_bounds_and_variables_are_understood() {
        let text = "
            .version 9.0 .target sm_90 .address_size 64
            .visible .global .align 4 .u32 counter;
            .global .align 16 .b8 table[256] = {1, 2};
            .visible .entry one(
                .param .u32 one_0, // four bytes
                .param .align 8 .b8 one_1[24],
                .param .u64 .ptr .global .align 16 one_2
            ) .maxntid 128, 2, 1 .minnctapersm 2
            { .shared .align 4 .b8 tile[1024]; ld.shared.u32 %r1, [tile]; ret; }
            .entry two() { ret; }
            .entry three() { .reg .u32 %r1; trap; }
            .entry four() { call __assertfail, (a, b, c, d, e); trap; }
            .entry five() { .reg .pred %p; @%p trap; ret; }";
        let loaded = parse(text).unwrap();
        let fails: Vec<i32> = loaded.kernels.iter().map(|kernel| kernel.fails).collect();
        assert_eq!(fails, [0, 0, 719, 710, 0]);
        let one = &loaded.kernels[0];
        assert_eq!(one.params, [(0, 4), (8, 24), (32, 8)]);
        assert_eq!((one.threads_max, one.shared_bytes, one.binary_version), (256, 1024, 90));
        assert_eq!(loaded.kernels[1].name, "two");
        let globals: Vec<_> = loaded.globals.iter().map(|g| (g.name.as_str(), g.bytes)).collect();
        assert_eq!(globals, [("counter", 4), ("table", 256)]);
    }

    #[test]
    fn text_that_is_no_ptx_is_refused() {
        assert_eq!(parse("hello"), Err(CuResult::INVALID_PTX));
        assert_eq!(parse(".version 9.0 .target sm_90 .entry broken( {"), Err(CuResult::INVALID_PTX));
    }
}
