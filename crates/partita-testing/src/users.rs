//! Two users and root, who share a run directory.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::child::succeed;
use crate::devices::is_real;

/// The user who does no harm. Needs no account.
pub const VICTIM: u32 = 65_533;
/// The user who tries to. Needs no account.
pub const ATTACKER: u32 = 65_534;

/// Whether a test can be two users that run `program` on a simulated GPU. Prints why it is skipped
/// if not.
#[must_use]
pub fn can_be_users(program: &Path) -> bool {
    if !rustix::process::geteuid().is_root() || is_real() {
        eprintln!("skipped: needs root, to become two users, and a simulated GPU");
        return false;
    }
    let mut command = Command::new(program);
    command.arg("--version").uid(VICTIM).gid(VICTIM);
    let can_run = command.output().is_ok_and(|output| output.status.success());
    if !can_run {
        eprintln!("skipped: other users cannot run {}", program.display());
    }
    can_run
}

/// Makes a directory for each of the two users in `dir`, which they can enter, if it has none.
///
/// # Panics
/// If a directory cannot be made.
pub fn make_places(dir: &Path) {
    fs::set_permissions(dir, Permissions::from_mode(0o755)).expect("root's directory");
    for user in [VICTIM, ATTACKER] {
        let place = dir.join(user.to_string());
        fs::create_dir_all(&place).expect("a new directory");
        chown(&place, Some(user), Some(user)).expect("root may");
    }
}

/// Two users with a directory each, and the attacker's program (`attack.c`).
#[derive(Debug)]
pub struct Users {
    dir: PathBuf,
    run_dir: PathBuf,
}

impl Users {
    /// The users of a test that has the directory `dir` and the run directory `run_dir` in it.
    /// None, with a line that says why, where there can be no two users, no simulated GPU, or where
    /// they cannot run `program`.
    ///
    /// # Panics
    /// If their directories cannot be made.
    #[must_use]
    pub fn new(dir: &Path, run_dir: &Path, program: &Path) -> Option<Self> {
        if !can_be_users(program) {
            return None;
        }
        make_places(dir);
        let users = Self { dir: dir.to_owned(), run_dir: run_dir.to_owned() };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/attack.c");
        succeed(Command::new("cc").args(["-O1", "-o"]).arg(users.attacker()).arg(source));
        Some(users)
    }

    /// The attacker's program.
    #[must_use]
    pub fn attacker(&self) -> PathBuf {
        self.dir.join("attack")
    }

    /// A directory of a user's own.
    #[must_use]
    pub fn place(&self, user: u32) -> PathBuf {
        self.dir.join(user.to_string())
    }

    /// A user's part of the run directory.
    #[must_use]
    pub fn home(&self, user: u32) -> PathBuf {
        self.run_dir.join(format!("user-{user}"))
    }

    /// Has a command run as a user, with that user's own simulated GPU and cache.
    pub fn enter(&self, user: u32, command: &mut Command) {
        let place = self.place(user);
        command.uid(user).gid(user).env("HOME", &place).env("TMPDIR", &place);
        command.env("PARTITA_SIM_DIR", place.join("sim")).env("PARTITA_CACHE_DIR", place.join("cache"));
    }

    /// The attack of this name, under way.
    ///
    /// # Panics
    /// If it does not come to that.
    pub fn attack<S: AsRef<OsStr>>(&self, what: &str, arguments: impl IntoIterator<Item = S>) -> Running {
        let mut command = Command::new(self.attacker());
        Running::attack(command.arg(what).args(arguments).uid(ATTACKER).gid(ATTACKER))
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.run_dir).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|meta| meta.uid() != 0) {
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
    }
}

/// A process that has said its first line. It ends with this.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub child: Child,
    /// Its first line.
    pub line: String,
    lines: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a command and waits for its first line.
    ///
    /// # Panics
    /// If it prints no line.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "{command:?}: {:?}", child.wait());
        Self { child, line, lines }
    }

    /// Starts an attack, and waits until it is under way.
    ///
    /// # Panics
    /// If it does not come to that.
    pub fn attack(command: &mut Command) -> Self {
        let attack = Self::start(command);
        assert_eq!(attack.line, "ready\n", "{command:?}");
        attack
    }

    /// Kills it, and returns what it has said after its first line.
    ///
    /// # Panics
    /// If its output cannot be read.
    pub fn end(mut self) -> String {
        let _ = self.child.kill();
        let mut said = String::new();
        self.lines.read_to_string(&mut said).expect("readable");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `partita run` passes it on, so that its program ends too.
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), i32::try_from(self.child.id()))
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
