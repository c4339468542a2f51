//! The library in every program of the machine: its line in `/etc/ld.so.preload`.
//!
//! That file concerns each program that starts. The library is checked before its line is written,
//! the file is replaced as a whole, and every other library in it stays. A line that names a
//! missing file makes every program print an error, so a package removes the line before the
//! library.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::FlockOperation;
use serde::Serialize;

use crate::error::Error;
use crate::files::{self, Durable};
use crate::install::{self, Install};
use crate::policy::Programs;
use crate::run;

/// The file that the linker reads at the start of each program.
pub const PATH: &str = "/etc/ld.so.preload";
/// What is run to see whether programs load the library.
const PROBES: [&str; 2] = ["/bin/true", "/usr/bin/true"];
/// `nobody` on most systems; any user but root will do.
const UNPRIVILEGED: u32 = 65_534;
/// The linker of 32-bit programs.
const LINKER_32: &str = "/lib/ld-linux.so.2";

/// Whether programs load the library, and whether the policy of the site makes use of that.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The file.
    pub file: PathBuf,
    /// The library.
    pub library: PathBuf,
    /// Whether the file names it.
    pub enabled: bool,
    /// `[outside]` of the policy: `report`, `limit` or `end`.
    #[serde(serialize_with = "crate::text::serialize")]
    pub programs: Programs,
}

/// The present state.
///
/// # Errors
/// [`Error::PartMissing`], [`Error::Policy`], [`Error::Io`].
pub fn status(install: &Install, file: &Path) -> Result<Status, Error> {
    let library = install.part(install::HOOK)?;
    let enabled = words(&read(file)?).any(|word| Path::new(word) == library);
    let programs = crate::policy::load(&crate::policy::path())?.0.outside.programs;
    Ok(Status { file: file.to_owned(), library, enabled, programs })
}

/// Makes each program that starts from now on load the library. False if they did already.
///
/// # Errors
/// [`Error::Refused`] with the check that failed; [`Error::Io`]. Nothing has changed then.
pub fn enable(install: &Install, file: &Path) -> Result<bool, Error> {
    check_root(file)?;
    let library = run::hook(install)?;
    check_owners(&library)?;
    check_kind(&library)?;
    check_loads(&library, Some(&library))?;
    let _lock = lock(file)?;
    let before = read(file)?;
    if let Some(other) = words(&before).find(|word| is_ours(word) && Path::new(word) != library) {
        let reason = format!(
            "it names {other}, the library of another installation of Partita; remove that with \
             `partita preload disable` of that installation, or by hand if it is gone"
        );
        return Err(refused(file, reason));
    }
    let Some(after) = with(&before, &library) else { return Ok(false) };
    write(file, &after)?;
    if file == Path::new(PATH)
        && let Err(error) = check_loads(&library, None)
    {
        write(file, &before)?;
        return Err(error);
    }
    Ok(true)
}

/// Makes no program load the library from now on, nor one that is gone. False if there was none.
///
/// # Errors
/// [`Error::Refused`]; [`Error::Io`].
pub fn disable(install: &Install, file: &Path) -> Result<bool, Error> {
    check_root(file)?;
    let library = install.part(install::HOOK).ok();
    let _lock = lock(file)?;
    let before = read(file)?;
    let is_own = |word: &str| {
        library.as_ref().is_some_and(|library| Path::new(word) == library)
            || (is_ours(word) && !Path::new(word).exists())
    };
    let Some(after) = without(&before, is_own) else { return Ok(false) };
    write(file, &after)?;
    Ok(true)
}

/// What an administrator who has enabled it must know besides.
pub fn notices(status: &Status) -> Vec<String> {
    let mut notices = Vec::new();
    if status.enabled && Path::new(LINKER_32).exists() {
        notices.push(
            "32-bit programs can run here, and each prints a line that it cannot load the library; it runs \
             all the same"
                .to_owned(),
        );
    }
    if status.enabled != (status.programs == Programs::Limit) {
        notices.push(match status.enabled {
            true => format!(
                "the policy says programs = \"{}\", so programs run as without Partita; write \
                 programs = \"limit\" into [outside] of {}",
                status.programs,
                crate::policy::path().display()
            ),
            false => "the policy says programs = \"limit\", and programs do not load the library, so they \
                      are reported and not limited; use `sudo partita preload enable`"
                .to_owned(),
        });
    }
    notices
}

fn refused(what: &Path, reason: String) -> Error {
    Error::Refused { what: what.display().to_string(), reason }
}

fn check_root(file: &Path) -> Result<(), Error> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(refused(
            file,
            "it concerns every program of the machine, so only root changes it; use sudo".to_owned(),
        )),
    }
}

/// Keeps other commands of this kind out until it is dropped.
fn lock(file: &Path) -> Result<File, Error> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |error: io::Error| {
        refused(file, format!("its directory: {error}; name a file in a directory that is there"))
    };
    let lock = File::open(dir).map_err(failed)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    Ok(lock)
}

/// The file's text; empty without a file.
fn read(file: &Path) -> Result<String, Error> {
    match file.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Ok(about) if !about.is_file() => {
            let reason =
                "it is not a regular file; name one with --file, if this is a link the one it leads to";
            return Err(refused(file, reason.to_owned()));
        }
        _ => {}
    }
    std::fs::read_to_string(file).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            let reason = "it is not UTF-8 text; name the right file with --file, or edit this one by hand";
            refused(file, reason.to_owned())
        }
        _ => Error::io(file.display().to_string())(error),
    })
}

/// Replaces the file; an empty one goes.
fn write(file: &Path, text: &str) -> Result<(), Error> {
    let failed = || Error::io(file.display().to_string());
    if text.is_empty() {
        return match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed()(error)),
            _ => Ok(()),
        };
    }
    let mode = std::fs::metadata(file).map_or(0o644, |about| about.mode() & 0o7777);
    files::replace(file, text.as_bytes(), mode, Durable::Yes).map_err(failed())
}

/// The libraries that a text names, as the linker reads it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    fn of_line(line: &str) -> impl Iterator<Item = &str> {
        line.split('#').next().unwrap_or_default().split([' ', '\t', ':'])
    }
    text.lines().flat_map(of_line).filter(|word| !word.is_empty())
}

/// Whether a word names the library of some installation of Partita.
fn is_ours(word: &str) -> bool {
    word.starts_with('/') && Path::new(word).file_name().is_some_and(|name| name == install::HOOK)
}

/// The text with a line for the library at its end; `None` if it names it.
fn with(text: &str, library: &Path) -> Option<String> {
    if words(text).any(|word| Path::new(word) == library) {
        return None;
    }
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    Some(format!("{text}{gap}{}\n", library.display()))
}

/// The text without the words for which `leaves` is true, and without lines that named nothing
/// else; `None` if it has no such word.
fn without(text: &str, leaves: impl Fn(&str) -> bool) -> Option<String> {
    let rest = |line: &str| {
        let mut kept: Vec<&str> = words(line).filter(|word| !leaves(word)).collect();
        if kept.len() == words(line).count() {
            return line.to_owned();
        }
        kept.extend(line.find('#').map(|at| line[at..].trim_end_matches('\n')));
        if kept.is_empty() { String::new() } else { format!("{}\n", kept.join(" ")) }
    };
    words(text).any(&leaves).then(|| text.split_inclusive('\n').map(rest).collect())
}

/// Every user's programs run what is in the library, so nobody but root may change it.
fn check_owners(library: &Path) -> Result<(), Error> {
    for (place, at) in library.ancestors().zip(0..) {
        let about = std::fs::metadata(place).map_err(Error::io(place.display().to_string()))?;
        // In such a directory nobody removes what is root's.
        let is_sticky = at > 0 && about.mode() & 0o1000 != 0;
        let needed = if at == 0 { 0o444 } else { 0o111 };
        let reason = if about.uid() != 0 {
            "it does not belong to root"
        } else if about.mode() & 0o022 != 0 && !is_sticky {
            "others than root can write it"
        } else if about.mode() & needed != needed {
            "not every user can read it"
        } else {
            continue;
        };
        return Err(refused(
            place,
            format!(
                "{reason}, and every program of the machine would load the library through it; install \
                 Partita for all users: its package, or `install.sh` as root"
            ),
        ));
    }
    Ok(())
}

/// A 64-bit library for this machine.
fn check_kind(library: &Path) -> Result<(), Error> {
    /// `\x7fELF`, 64 bits, little endian.
    const IDENT: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
    let mut head = [0; IDENT.len()];
    let read = File::open(library).and_then(|mut file| file.read_exact(&mut head));
    read.map_err(Error::io(library.display().to_string()))?;
    match head == IDENT {
        true => Ok(()),
        false => Err(refused(library, "it is no 64-bit library; install Partita again".to_owned())),
    }
}

/// Runs a program that does nothing, as a user without rights: with the library, or as the file
/// says.
fn check_loads(library: &Path, preload: Option<&Path>) -> Result<(), Error> {
    let Some(probe) = PROBES.iter().find(|probe| Path::new(probe).exists()) else {
        return Err(refused(library, format!("{} is missing, with which it is tried", PROBES[0])));
    };
    let mut command = Command::new(probe);
    command.env_clear().envs(preload.map(|library| ("LD_PRELOAD", library)));
    command.uid(UNPRIVILEGED).gid(UNPRIVILEGED).current_dir("/").stdin(Stdio::null());
    let output = command.output().map_err(Error::io(*probe))?;
    if output.status.success() && output.stderr.is_empty() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(refused(
        library,
        format!(
            "{probe} does not run with it: {} ({}); nothing was changed",
            said.lines().next().unwrap_or("it says nothing").trim(),
            output.status
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LIBRARY: &str = "/usr/lib/partita/libpartita.so";

    #[test]
    fn only_the_own_library_comes_and_goes() {
        let library = Path::new(LIBRARY);
        let is_own = |word: &str| word == LIBRARY;
        for before in
            ["", "/usr/lib/other.so\n", "# kept\n/a.so /b.so\n\n", "# /usr/lib/partita/libpartita.so\n"]
        {
            let after = with(before, library).unwrap();
            assert_eq!(after, format!("{before}{LIBRARY}\n"));
            assert_eq!(with(&after, library), None, "twice");
            assert_eq!(without(&after, is_own).unwrap(), before);
            assert_eq!(without(before, is_own), None);
        }
        assert_eq!(with("/a.so", library).unwrap(), format!("/a.so\n{LIBRARY}\n"), "a line without an end");
        for (before, after) in [
            ("/a.so\n  LIBRARY\n/b.so", "/a.so\n/b.so"),
            ("/a.so:LIBRARY\n", "/a.so\n"),
            ("/a.so LIBRARY\t/b.so # why\n/c.so\n", "/a.so /b.so # why\n/c.so\n"),
            ("LIBRARY # why\n", "# why\n"),
        ] {
            let before = before.replace("LIBRARY", LIBRARY);
            assert_eq!(with(&before, library), None, "{before:?}");
            assert_eq!(without(&before, is_own).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn a_library_of_another_installation_is_known() {
        for text in [LIBRARY, "  /opt/partita/lib/libpartita.so ", "/a.so /b/libpartita.so"] {
            assert!(words(text).any(is_ours), "{text}");
        }
        for text in ["", "/usr/lib/libpartita.so.1", "libpartita.so", "#/b/libpartita.so"] {
            assert!(!words(text).any(is_ours), "{text}");
        }
    }

    #[test]
    fn a_library_that_others_can_change_or_not_read_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let library = temp.path().join(install::HOOK);
        fs::write(&library, "no library").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(temp.path(), 0o755);
        set(&library, 0o644);
        if !rustix::process::geteuid().is_root() {
            let refusal = check_owners(&library).unwrap_err().to_string();
            assert!(refusal.contains("does not belong to root"), "{refusal}");
            return;
        }
        check_owners(&library).unwrap();
        for (path, mode, why) in [
            (library.as_path(), 0o664, "others than root can write it"),
            (&library, 0o640, "not every user can read it"),
            (temp.path(), 0o757, "others than root can write it"),
            (temp.path(), 0o700, "not every user can read it"),
        ] {
            set(path, mode);
            let refusal = check_owners(&library).unwrap_err().to_string();
            assert!(refusal.starts_with(&format!("{}: {why}", path.display())), "{refusal}");
            set(path, if path == library { 0o644 } else { 0o755 });
        }
        std::os::unix::fs::chown(&library, Some(1), None).unwrap();
        assert!(check_owners(&library).unwrap_err().to_string().contains("does not belong to root"));
        let refusal = check_kind(&library).unwrap_err().to_string();
        assert!(refusal.contains("no 64-bit library"), "{refusal}");
        let refusal = check_loads(&library, Some(&library)).unwrap_err().to_string();
        assert!(refusal.contains("does not run with it") && refusal.contains("libpartita.so"), "{refusal}");
    }
}
