//! The program to run, and whether limits would reach it.
//!
//! The hook comes into a program by `LD_PRELOAD`, which the dynamic loader
//! honours and nothing else does: not a statically linked program, and not one
//! that gains privileges when it starts. Such a program would run without
//! limits, so it is refused.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::registry::Isolation;

/// How many interpreters of interpreters are followed; the kernel stops after four.
const SCRIPTS_MAX: usize = 4;
const PT_INTERP: u32 = 3;

/// Finds `program` as a shell would and checks that limits would hold it.
///
/// # Errors
/// [`Error::NoProgram`] if there is no such program, [`Error::Program`] if it is not executable;
/// [`Error::Unenforceable`] if a preloaded library would not get into it.
pub fn find(program: &OsStr) -> Result<PathBuf, Error> {
    let path = locate(program)?;
    check_name(&path)
        .and_then(|()| check(&path, SCRIPTS_MAX))
        .map_err(|reason| Error::Unenforceable { program: program.to_string_lossy().into_owned(), reason })?;
    Ok(path)
}

/// Programs that let a daemon start containers.
const CONTAINER_CLIENTS: [&str; 4] = ["docker", "nerdctl", "kubectl", "crictl"];

/// Says why limits would not hold what such a program starts.
fn check_name(path: &Path) -> Result<(), String> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if CONTAINER_CLIENTS.contains(&name) {
        return Err(
            "a daemon starts its containers, and these limits do not reach them; give the container \
                    its limits by variables, see docs/migrating-from-hami.md"
                .to_owned(),
        );
    }
    Ok(())
}

/// Refuses NVIDIA's debugger in a tenant that would run beside others.
///
/// MPS lets a debugged program start only when no other client runs, and no other client starts
/// until the debugger ends (NVIDIA's guide to MPS, 2.3.6.1): it would stop all tenants.
///
/// # Errors
/// [`Error::NotOffered`], with the option that lets it run.
pub(crate) fn check_debugger(program: &Path, isolation: Isolation) -> Result<(), Error> {
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if isolation == Isolation::Own || !name.starts_with("cuda-gdb") {
        return Ok(());
    }
    Err(Error::NotOffered {
        option: format!("{name} in a tenant that shares the GPU's MPS service"),
        reason: "the service starts a debugged program only when no other client runs, and no other client \
                 until the debugger ends; use `partita run --isolation own`"
            .to_owned(),
    })
}

/// The file of a program, in `PATH` if it has no slash; one of Partita's also beside this program.
pub(crate) fn locate(program: &OsStr) -> Result<PathBuf, Error> {
    let name = || program.to_string_lossy().into_owned();
    let refuse = |reason: String| Error::Program { program: name(), reason };
    let missing = |reason: &str| Error::NoProgram { program: name(), reason: reason.to_owned() };
    if program.is_empty() {
        return Err(missing("no program named; give one after `--`"));
    }
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(missing("no such program; check the path"))
            }
            Err(error) => Err(refuse(format!("{error}; check the path and its permissions"))),
            Ok(meta) if meta.is_dir() => Err(refuse("it is a directory; name a program in it".to_owned())),
            Ok(meta) if meta.permissions().mode() & 0o111 == 0 => {
                Err(refuse(format!("it is not executable; `chmod +x {}`", path.display())))
            }
            Ok(_) => Ok(path),
        };
    }
    let search = env::var_os("PATH").unwrap_or_default();
    // Partita's own programs need not be in it.
    let is_own = program.as_bytes().starts_with(b"partita-");
    let beside = env::current_exe().ok().filter(|_| is_own);
    let beside = beside.and_then(|own| own.parent().map(Path::to_owned));
    env::split_paths(&search)
        .chain(beside)
        .map(|directory| directory.join(program))
        .find(|path| {
            fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
        .ok_or_else(|| missing("no such program in PATH; check its spelling or give its path"))
}

/// Says why limits would not hold the executable, in one clause with the remedy.
fn check(path: &Path, scripts_left: usize) -> Result<(), String> {
    let describe =
        |error: io::Error| format!("{} cannot be read ({error}); make it readable", path.display());
    privileges(path).map_err(describe)??;
    let mut file = File::open(path).map_err(describe)?;
    let mut head = [0; 256];
    let length = read_up_to(&mut file, &mut head).map_err(describe)?;
    let head = &head[..length];
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or(rest);
        let interpreter = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty());
        let Some(interpreter) = interpreter else {
            return Err(format!("{} names no interpreter after `#!`", path.display()));
        };
        if scripts_left == 0 {
            return Err(format!("{} is a script of a script of a script", path.display()));
        }
        return check(Path::new(OsStr::from_bytes(interpreter)), scripts_left - 1);
    }
    if !head.starts_with(b"\x7fELF") {
        // The kernel refuses it too, unless binfmt_misc handles it: then the program that runs is
        // unknown.
        return Err(format!("{} is neither an ELF program nor a script", path.display()));
    }
    let interpreter = elf_interpreter(&mut file, head)
        .map_err(|error| format!("{} is no proper ELF program ({error})", path.display()))?;
    let loader = match interpreter {
        Loader::Named(loader) => loader,
        Loader::None => {
            return Err(format!(
                "{} is statically linked, so no library can be preloaded; use a dynamically linked build",
                path.display()
            ));
        }
        Loader::OtherMachine => {
            return Err(format!("{} is not a program for this machine's 64-bit processor", path.display()));
        }
    };
    if loader.to_string_lossy().contains("ld-musl") {
        return Err(format!(
            "{} is linked with musl, which libcuda does not work with; use a build for glibc",
            path.display()
        ));
    }
    Ok(())
}

/// A program that gains privileges runs in the loader's secure mode, which ignores `LD_PRELOAD`.
fn privileges(path: &Path) -> io::Result<Result<(), String>> {
    let meta = fs::metadata(path)?;
    let remedy = "so the loader ignores preloaded libraries; run a copy without it";
    let mode = meta.permissions().mode();
    if mode & 0o4000 != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Err(format!("{} is set-user-id, {remedy}", path.display())));
    }
    if mode & 0o2010 == 0o2010 && meta.gid() != rustix::process::getegid().as_raw() {
        return Ok(Err(format!("{} is set-group-id, {remedy}", path.display())));
    }
    let mut value = [0u8; 64];
    if rustix::fs::getxattr(path, "security.capability", &mut value).is_ok_and(|bytes| bytes > 0)
        && !rustix::process::geteuid().is_root()
    {
        return Ok(Err(format!("{} has file capabilities, {remedy}", path.display())));
    }
    Ok(Ok(()))
}

enum Loader {
    Named(OsString),
    None,
    OtherMachine,
}

/// The dynamic loader that an ELF file names in its program headers.
fn elf_interpreter(file: &mut File, head: &[u8]) -> io::Result<Loader> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "truncated header");
    let field = |offset: usize, bytes: usize| -> io::Result<u64> {
        let slice = head.get(offset..offset + bytes).ok_or_else(bad)?;
        Ok(slice.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    const CLASS_64: u64 = 2;
    const LITTLE_ENDIAN: u64 = 1;
    let own_machine: u64 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if field(4, 1)? != CLASS_64 || field(5, 1)? != LITTLE_ENDIAN || field(18, 2)? != own_machine {
        return Ok(Loader::OtherMachine);
    }
    let (table, entry_bytes, entries) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
    if entry_bytes < 56 {
        return Err(bad());
    }
    for index in 0..entries {
        let mut entry = [0; 56];
        file.seek(SeekFrom::Start(table.checked_add(index * entry_bytes).ok_or_else(bad)?))?;
        file.read_exact(&mut entry)?;
        let number = |offset: usize, bytes: usize| {
            entry[offset..offset + bytes].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        if number(0, 4) == u64::from(PT_INTERP) {
            let length = usize::try_from(number(32, 8)).unwrap_or(usize::MAX).min(4096);
            let mut name = vec![0; length];
            file.seek(SeekFrom::Start(number(8, 8)))?;
            file.read_exact(&mut name)?;
            name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
            return Ok(Loader::Named(OsStr::from_bytes(&name).to_owned()));
        }
    }
    Ok(Loader::None)
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            bytes => length += bytes,
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executable(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn limits_do_not_reach_the_containers_of_a_daemon() {
        assert!(check_name(Path::new("/usr/bin/docker")).unwrap_err().contains("a daemon starts"));
        assert!(check_name(Path::new("/usr/bin/dockerize")).is_ok());
    }

    #[test]
    fn ordinary_programs_and_scripts_are_found() {
        assert!(find(OsStr::new("sh")).unwrap().is_absolute());
        let dir = tempfile::tempdir().unwrap();
        let script = executable(dir.path(), "script", b"#! /bin/sh -e\nexit 0\n");
        assert_eq!(find(script.as_os_str()).unwrap(), script);
        let nested = format!("#!{}\n", script.display());
        find(executable(dir.path(), "nested", nested.as_bytes()).as_os_str()).unwrap();
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        fs::write(&plain, "x").unwrap();
        for (program, expected) in [
            ("no-such-program-here", "in PATH"),
            ("", "no program named"),
            ("/no/such/program", "no such program"),
            (dir.path().to_str().unwrap(), "is a directory"),
            (plain.to_str().unwrap(), "chmod +x"),
        ] {
            let error = find(OsStr::new(program)).unwrap_err();
            assert!(error.to_string().contains(expected), "{program}: {error}");
            let is_there = Path::new(program).exists() && !program.is_empty();
            assert_eq!(error.exit_code(), if is_there { 126 } else { 127 }, "{program}: {error}");
        }
    }

    #[test]
    fn what_limits_would_not_reach_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let shell = fs::read(find(OsStr::new("sh")).unwrap().canonicalize().unwrap()).unwrap();
        let mut other_machine = shell.clone();
        other_machine[18] = 0x28;
        // Without its program headers a program has no loader: as a static one.
        let mut no_loader = shell.clone();
        no_loader[56] = 0;
        no_loader[57] = 0;
        for (name, content, expected) in [
            ("other", other_machine.as_slice(), "not a program for this machine"),
            ("static", &no_loader, "statically linked"),
            ("cut", &shell[..40], "no proper ELF"),
            ("garbage", b"garbage", "neither an ELF program nor a script"),
            ("empty", b"", "neither an ELF program nor a script"),
            ("hashbang", b"#!\n", "names no interpreter"),
            ("lost", b"#!/no/such/interpreter\n", "cannot be read"),
        ] {
            let path = executable(dir.path(), name, content);
            let error = find(path.as_os_str()).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
        let looped = dir.path().join("loop");
        executable(dir.path(), "loop", format!("#!{}\n", looped.display()).as_bytes());
        assert!(find(looped.as_os_str()).unwrap_err().to_string().contains("script of a script"));
    }
}
