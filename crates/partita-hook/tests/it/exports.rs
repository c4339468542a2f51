//! The table of libcuda's exports against the libraries themselves.

use crate::common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{Dyn, ElfFile64};
use object::{Endianness, Object, ObjectSymbol};
use partita_abi::exports::{EXPORTS, Export, LATER, NVML_WRAPPED, policy_of};
use partita_testing::build;

/// The names that a shared library defines for others and that begin with one of `prefixes`.
fn exported(library: &Path, prefixes: &[&str]) -> BTreeSet<String> {
    let bytes = std::fs::read(library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let file = object::File::parse(&*bytes).expect("a shared library");
    file.dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
        .map(str::to_owned)
        .collect()
}

/// Including those of drivers that were not tested yet.
fn all_exports() -> impl Iterator<Item = Export> {
    EXPORTS.iter().copied().chain(LATER.iter().map(|row| row.export))
}

#[test]
fn the_hook_exports_what_the_table_says_it_wraps_and_the_few_others_that_it_stands_before() {
    let mut expected: BTreeSet<String> =
        all_exports().filter(|row| row.policy.is_wrapped()).map(|row| row.name.to_owned()).collect();
    expected.extend(NVML_WRAPPED.iter().map(|&name| name.to_owned()));
    expected.extend(["dlopen", "dlmopen", "dlsym", "dlvsym", "ioctl", "partita_step"].map(str::to_owned));
    // Anything else that it exported would shadow a name of the tenant's program.
    assert_eq!(exported(&common::library(), &[""]), expected);
}

#[test]
fn every_export_of_the_simulated_driver_has_a_row_and_every_row_an_export() {
    let library = build().join("libpartita_simcuda.so");
    let exports = exported(&library, &["cu"]);
    let unknown: Vec<_> = exports.iter().filter(|name| policy_of(name).is_none()).collect();
    assert!(unknown.is_empty(), "no row for {unknown:?}");
    let missing: Vec<_> = EXPORTS
        .iter()
        .map(|row| row.name)
        .filter(|name| !name.starts_with("cudbg") && !exports.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "programs that use {missing:?} cannot be linked against the simulated driver"
    );
}

#[test]
fn every_export_of_the_real_driver_has_a_row() {
    if !partita_testing::is_real() {
        eprintln!("skipped: set PARTITA_TEST_GPU=real on a machine with a GPU");
        return;
    }
    let cache = std::process::Command::new("ldconfig").arg("-p").output().expect("ldconfig runs");
    let cache = String::from_utf8_lossy(&cache.stdout).into_owned();
    let library: PathBuf = cache
        .lines()
        .find(|line| line.trim_start().starts_with("libcuda.so.1 "))
        .and_then(|line| line.split("=> ").nth(1))
        .expect("libcuda.so.1 is in the linker's cache")
        .into();
    let exports = exported(&library, &["cu"]);
    let unknown: Vec<_> = exports.iter().filter(|name| policy_of(name).is_none()).collect();
    assert!(unknown.is_empty(), "{} exports names without a row: {unknown:?}", library.display());
    println!("{}: {} exports, {} rows", library.display(), exports.len(), EXPORTS.len());
}

#[test]
fn the_hook_needs_nothing_but_the_c_library() {
    let bytes = std::fs::read(common::library()).expect("readable");
    let file = ElfFile64::<Endianness>::parse(&*bytes).expect("a 64-bit shared library");
    let endian = file.endian();
    let sections = file.elf_section_table();
    let (entries, strings) = sections.dynamic(endian, &*bytes).expect("readable").expect("a dynamic section");
    let strings = sections.strings(endian, &*bytes, strings).expect("its strings");
    let needed: Vec<_> = entries
        .iter()
        .filter(|entry| entry.tag(endian) == elf::DT_NEEDED)
        .map(|entry| String::from_utf8_lossy(entry.string(endian, strings).expect("a name")).into_owned())
        .collect();
    assert_eq!(needed, ["libc.so.6"]);
    // An unwinder or a thread-local destructor would come in under these names.
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_undefined()) {
        let name = symbol.name().expect("a name");
        assert!(
            !name.contains("Unwind") && !name.contains("personality") && name != "__cxa_thread_atexit_impl",
            "{name}"
        );
    }
}

/// The functions that the hook asks the linker for and cannot do without. Every C library since
/// glibc 2.17 has them in libc itself, and musl has them too; what is newer or lies elsewhere is in
/// `floor.rs`.
const STRONG: [&str; 58] = [
    "__cxa_atexit",
    "__errno_location",
    "__xpg_strerror_r",
    "abort",
    "access",
    "bcmp",
    "chmod",
    "clock_gettime",
    "close",
    "closedir",
    "environ",
    "fchmod",
    "fcntl",
    "flock",
    "free",
    "getauxval",
    "getenv",
    "geteuid",
    "getpid",
    "getppid",
    "madvise",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "mkdir",
    "mmap",
    "munmap",
    "nanosleep",
    "open",
    "openat",
    "opendir",
    "posix_fallocate",
    "posix_memalign",
    "prctl",
    "pread",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_self",
    "read",
    "readdir",
    "readlink",
    "realpath",
    "rename",
    "renameat",
    "rmdir",
    "sched_yield",
    "secure_getenv",
    "setenv",
    "sigfillset",
    "statfs",
    "strlen",
    "syscall",
    "time",
    "unlink",
    "unlinkat",
    "unsetenv",
    "write",
];

#[test]
fn the_hook_asks_for_nothing_that_an_old_c_library_or_musl_lacks() {
    let bytes = std::fs::read(common::library()).expect("readable");
    let file = ElfFile64::<Endianness>::parse(&*bytes).expect("a 64-bit shared library");
    let names: Vec<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined() && !symbol.is_weak())
        .map(|symbol| symbol.name().expect("a name"))
        .collect();
    let unknown: Vec<_> = names.iter().filter(|name| !STRONG.contains(name)).collect();
    assert!(
        unknown.is_empty(),
        "look these up in floor.rs, or review that glibc 2.17 and musl have them: {unknown:?}"
    );
}

/// The parts of a version, as `GLIBC_2.3.4`.
fn parts(version: &[u8]) -> Vec<u32> {
    let text = std::str::from_utf8(version).expect("ASCII");
    let numbers = text.strip_prefix("GLIBC_").unwrap_or_else(|| panic!("{text}: not glibc's"));
    numbers.split('.').map(|number| number.parse().expect("a number")).collect()
}

/// A name without a version is bound to whichever the loader meets first, in any library of the
/// process.
#[test]
fn the_hook_asks_for_versions_of_the_c_librarys_functions_and_for_none_after_2_17() {
    let bytes = std::fs::read(common::library()).expect("readable");
    let file = ElfFile64::<Endianness>::parse(&*bytes).expect("a 64-bit shared library");
    let endian = file.endian();
    let versions =
        file.elf_section_table().versions(endian, &*bytes).expect("readable").expect("needs of versions");
    let mut versioned = 0;
    // Weak names are those of tools that may be there or not, such as a profiler.
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_undefined()) {
        let name = symbol.name().expect("a name");
        let version = versions.version_index(endian, symbol.index()).index();
        let Some(version) = versions.version(version).expect("readable") else {
            assert!(symbol.is_weak(), "{name}: any");
            continue;
        };
        assert_eq!(version.file(), Some(&b"libc.so.6"[..]), "{name}");
        assert!(parts(version.name()) <= vec![2, 17], "{name}: {}", String::from_utf8_lossy(version.name()));
        versioned += 1;
    }
    assert!(versioned > 0, "the hook calls nothing");
}

/// The loader refuses a library whose segments lie closer together than the kernel's pages, which
/// have up to 64 KiB on aarch64.
#[test]
fn the_hook_for_aarch64_loads_where_pages_have_64_kib() {
    let Some(machine) = partita_testing::aarch64() else { return };
    let bytes = std::fs::read(machine.built("libpartita.so")).expect("readable");
    let file = ElfFile64::<Endianness>::parse(&*bytes).expect("a 64-bit shared library");
    assert_eq!(file.architecture(), object::Architecture::Aarch64);
    let aligns: Vec<_> = file
        .elf_program_headers()
        .iter()
        .filter(|header| header.p_type.get(file.endian()) == elf::PT_LOAD)
        .map(|header| header.p_align.get(file.endian()))
        .collect();
    assert!(aligns.len() > 1 && aligns.iter().all(|align| align % (64 << 10) == 0), "{aligns:#x?}");
}
