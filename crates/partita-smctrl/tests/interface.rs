//! The library as linkers and compilers see it.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use common::{Link, World, sources};
use object::read::elf::FileHeader;
use object::{Endianness, Object, ObjectSymbol, SymbolKind};
use partita_testing::build;

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(sources().join("include/libsmctrl.h")).unwrap();
    let header = header.split("#include").last().unwrap().to_owned();
    let mut names = BTreeSet::new();
    for line in header.lines().filter(|line| line.contains('(') && !line.starts_with([' ', '#', '/'])) {
        let name = line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap();
        names.insert(name.to_owned());
    }
    names
}

/// Defect 12: other code cannot write to the library's state.
#[test]
fn the_shared_library_exports_the_headers_functions_and_no_data() {
    let bytes = fs::read(build().join("libsmctrl.so")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let exported: Vec<_> = file.dynamic_symbols().filter(|symbol| symbol.is_definition()).collect();
    assert!(exported.iter().all(|symbol| symbol.kind() == SymbolKind::Text));
    let names: BTreeSet<String> = exported.iter().map(|symbol| symbol.name().unwrap().to_owned()).collect();
    assert_eq!(names, declared());
    for published in [
        "libsmctrl_set_global_mask",
        "libsmctrl_set_next_mask",
        "libsmctrl_set_stream_mask",
        "libsmctrl_set_stream_mask_ext",
        "libsmctrl_get_gpc_info",
        "libsmctrl_get_gpc_info_ext",
        "libsmctrl_get_tpc_info",
        "libsmctrl_get_tpc_info_cuda",
        "libsmctrl_init",
        "libsmctrl_init_from_cuda",
        "libsmctrl_is_init",
        "libsmctrl_get_version",
        "libsmctrl_make_mask",
        "libsmctrl_make_mask_ext",
        "libsmctrl_validate_stream_mask",
    ] {
        assert!(names.contains(published), "{published}");
    }
}

#[test]
fn it_needs_the_c_library_and_nothing_of_cuda() {
    let bytes = fs::read(build().join("libsmctrl.so")).unwrap();
    let elf = object::elf::FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = elf.endian().unwrap();
    let sections = elf.sections(endian, &*bytes).unwrap();
    let table = sections.dynamic_table(endian, &*bytes).unwrap();
    let of = |tag| -> BTreeSet<String> {
        let entries = table.iter().filter(|entry| entry.tag == tag);
        entries.map(|entry| String::from_utf8(table.string(entry).unwrap().to_vec()).unwrap()).collect()
    };
    assert_eq!(of(object::elf::DT_SONAME), BTreeSet::from(["libsmctrl.so".to_owned()]));
    let needed = of(object::elf::DT_NEEDED);
    assert!(needed.contains("libc.so.6"), "{needed:?}");
    assert!(
        needed.iter().all(|name| name.starts_with("libc.") || name.starts_with("libgcc_s.")),
        "{needed:?}"
    );
}

#[test]
fn the_header_agrees_with_the_published_interface() {
    let world = World::new();
    let both = world.path("both.c");
    fs::write(&both, "#include <libsmctrl.h>\n#include \"published.h\"\n#include <libsmctrl.h>\n").unwrap();
    for (compiler, standard) in [("cc", "-std=c99"), ("cc", "-std=c11"), ("c++", "-std=c++11")] {
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
        if compiler == "c++" {
            // In C++, prototypes without `extern "C"` would be a different interface.
            fs::write(&both, "#include <libsmctrl.h>\n").unwrap();
            command.args(["-x", "c++"]);
        }
        command.arg("-I").arg(sources().join("include")).arg("-I").arg(sources().join("tests/c"));
        let output = command.arg(&both).output().unwrap();
        assert!(
            output.status.success(),
            "{compiler} {standard}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_cplusplus_program_that_links_the_archive_keeps_its_exceptions() {
    let world = World::new();
    let program = world.compile("exceptions.cc", Link::Archive);
    let output = world.command(&program, "h200").output().unwrap();
    common::stderr_of(&output, "exceptions");
}
