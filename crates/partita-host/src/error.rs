//! The errors of this crate's calls.
//!
//! Each message is one line that names the thing, the reason and the remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use partita_core::ByteSize;

/// The exit code of Partita's own errors, as in container tools.
pub const OWN_ERROR: u8 = 125;

/// An error of Partita's own, as opposed to one of the program that it runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something that normally works.
    #[error("{what}: {source}{}", remedy_of(source))]
    Io {
        /// The failed action, with its path.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A part of the installation is missing.
    #[error(
        "{name} is not in {searched}: build it with `cargo build --release --workspace`, or name its \
         directory in PARTITA_LIB_DIR"
    )]
    PartMissing {
        /// The part.
        name: &'static str,
        /// Where it was looked for.
        searched: String,
    },
    /// The text of `--gpu` has none of the accepted forms.
    #[error("GPU {text:?} is not understood: use an index (0), a UUID (GPU-…), or sim:NAME ({known})")]
    GpuSelector {
        /// The given text.
        text: String,
        /// The simulated devices.
        known: String,
    },
    /// No such GPU on this machine.
    #[error("there is no GPU {wanted} here: {present}")]
    NoSuchGpu {
        /// The requested GPU.
        wanted: String,
        /// The existing ones, or what to use instead.
        present: String,
    },
    /// A GPU is named twice.
    #[error("--gpu {selectors}: {gpu} is named twice; name each GPU once")]
    GpuTwice {
        /// The selection.
        selectors: String,
        /// The GPU.
        gpu: String,
    },
    /// A tenant is on other GPUs.
    #[error("tenant {name} has no partition on GPU {wanted}: it has {present}")]
    NotOnGpu {
        /// The tenant.
        name: String,
        /// What was asked for.
        wanted: String,
        /// Its GPUs.
        present: String,
    },
    /// The driver or the management library does not work.
    #[error("the NVIDIA driver cannot be used: {reason}")]
    Driver {
        /// Why, with the remedy.
        reason: String,
    },
    /// The driver's layouts could not be proved in a child process.
    #[error("the driver {driver} on {gpu} could not be proved: {reason}; `partita doctor` shows each check")]
    Unproved {
        /// The driver's build.
        driver: String,
        /// The GPU.
        gpu: String,
        /// Which proof failed.
        reason: String,
    },
    /// The requested compute units cannot be had.
    #[error("{reason}")]
    Plan {
        /// Why not and what would fit, from the planner.
        reason: String,
    },
    /// The quota exceeds the device's memory.
    #[error("--mem {}: {gpu} has {}; ask for at most that", .wanted.short(), .total.rounded_down())]
    QuotaAboveDevice {
        /// What was asked for.
        wanted: ByteSize,
        /// The device's memory.
        total: ByteSize,
        /// The device.
        gpu: String,
    },
    /// The memory that tenants were promised or use would exceed the device's.
    #[error(
        "{}{gpu} has {} left of {}: {holders}; {remedy}",
        asked(.wanted), .left.approximate(), .total.approximate()
    )]
    MemoryPromised {
        /// The quota that was asked for; `None` for a tenant without a promise.
        wanted: Option<ByteSize>,
        /// The memory that can be promised.
        left: ByteSize,
        /// The device's memory.
        total: ByteSize,
        /// The device.
        gpu: String,
        /// What the rest is for.
        holders: String,
        /// What to do.
        remedy: String,
    },
    /// A quota of nothing.
    #[error(
        "--mem 0: a program without device memory cannot even start; ask for at least --mem 1MiB, or leave --mem out"
    )]
    QuotaZero,
    /// A tenant's name is not allowed.
    #[error("name {name:?}: {reason}; use 1 to 63 of A-Z a-z 0-9 . _ - beginning with a letter or a digit")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A tenant of this name lives.
    #[error(
        "name {name} is in use by {user}'s tenant on {gpu} ({what}): choose another --name{}",
        command.map_or_else(String::new, |command| format!(", or end it with `partita {command} {name}`"))
    )]
    NameInUse {
        /// The name.
        name: String,
        /// Its owner.
        user: String,
        /// Its GPU.
        gpu: String,
        /// What it runs.
        what: String,
        /// The command that ends it, if the user may do that.
        command: Option<&'static str>,
    },
    /// No tenant of this name lives.
    #[error("there is no tenant {name}: {present}")]
    NoSuchTenant {
        /// The name.
        name: String,
        /// The existing tenants, or the remedy.
        present: String,
    },
    /// Several users have a tenant of this name, and the calling user has none.
    #[error(
        "users {users} have a tenant {name} each; run this as the user of the right one: `sudo -u \
         '#{first}' partita kill {name}`"
    )]
    SeveralTenants {
        /// The name.
        name: String,
        /// The numbers of the users.
        users: String,
        /// The first of them.
        first: u32,
    },
    /// The process is of no tenant.
    #[error("process {pid} is of no tenant: {reason}")]
    NoTenantOfProcess {
        /// Its number.
        pid: u32,
        /// Why not, and the remedy.
        reason: String,
    },
    /// The tenant belongs to another user.
    #[error("tenant {name} belongs to {user}: {}", whose(user))]
    NotYours {
        /// The name.
        name: String,
        /// Its owner.
        user: String,
    },
    /// A tenant's file is damaged, foreign or of another version.
    #[error("{}: {reason}; `partita kill {name}` ends and removes tenant {name}", .path.display())]
    DamagedTenant {
        /// The tenant.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory of the tenants cannot be used.
    #[error("the directory of tenants {}: {reason}", .path.display())]
    RunDirectory {
        /// The directory.
        path: PathBuf,
        /// Why, with the remedy.
        reason: String,
    },
    /// There is no such program to run.
    #[error("{program}: {reason}")]
    NoProgram {
        /// The program as it was given.
        program: String,
        /// Where it was looked for, with the remedy.
        reason: String,
    },
    /// The program to run is there and cannot be executed.
    #[error("{program}: {reason}")]
    Program {
        /// The program as it was given.
        program: String,
        /// Why it cannot be run, with the remedy.
        reason: String,
    },
    /// The program would not be held to its limits.
    #[error("{program} cannot be held to limits: {reason}")]
    Unenforceable {
        /// The program.
        program: String,
        /// Why, with the remedy.
        reason: String,
    },
    /// A mechanism or limit that this build does not enforce.
    #[error("{option} is refused: {reason}")]
    NotOffered {
        /// The option with its value.
        option: String,
        /// Why, with the remedy.
        reason: String,
    },
    /// Only users of other groups make tenants on the GPU.
    #[error("{reason}")]
    OtherGroup {
        /// The GPU and its groups, with the remedy.
        reason: String,
    },
    /// A program's own launches cannot be restricted as it asked.
    #[error("launches cannot be restricted so: {reason}")]
    Restrict {
        /// Why, with the remedy.
        reason: String,
    },
    /// The Multi-Process Service.
    #[error("{0}")]
    Mps(#[from] partita_mps::MpsError),
    /// The policy of the site cannot be read.
    #[error("the policy {}: {reason}; correct it, and check it with `partita policy check`", path.display())]
    Policy {
        /// Its file.
        path: PathBuf,
        /// The mistake, with its line.
        reason: String,
    },
    /// The request cannot be carried out as it is written.
    #[error("{what}: {reason}")]
    Refused {
        /// The thing, and which part of it.
        what: String,
        /// Why, with the remedy.
        reason: String,
    },
    /// The daemon does not answer, or refuses.
    #[error("partitad at {}: {reason}", .socket.display())]
    Daemon {
        /// Its socket.
        socket: PathBuf,
        /// Why, with the remedy, in the daemon's words where it said so.
        reason: String,
    },
    /// `partitad`, asked by a command in system mode, refuses in the words that the command would
    /// have for it.
    #[error("{reason}")]
    Served {
        /// Why, with the remedy.
        reason: String,
    },
    /// A child process that does a risky job.
    #[error("{job}: {reason}")]
    Child {
        /// The job.
        job: String,
        /// How it ended.
        reason: String,
    },
    /// The program does not fit yet, and has a place in the queue (`--wait`).
    #[error("{reason}")]
    Waits {
        /// What it waits for.
        reason: String,
    },
    /// Programs that wait for room come first (`--wait`).
    #[error("{reason}")]
    Queued {
        /// Which ones, with the remedy.
        reason: String,
    },
    /// The time of `--wait` has passed.
    #[error("--wait {}s: no room within that time: {reason}", .limit.as_secs())]
    WaitedInVain {
        /// The time.
        limit: Duration,
        /// What it waited for.
        reason: String,
    },
    /// A signal ended the command before the program had started.
    #[error("ended by signal {signal} before the program was started")]
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
}

fn asked(wanted: &Option<ByteSize>) -> String {
    wanted.map_or_else(String::new, |wanted| format!("--mem {wanted}: "))
}

/// What helps where the system refuses to write; empty where that depends on what was done.
fn remedy_of(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "; make room on this file system",
        io::ErrorKind::QuotaExceeded => "; the user's disk quota is used up: make room in it",
        io::ErrorKind::ReadOnlyFilesystem => "; name a place on a file system that can be written",
        _ => "",
    }
}

impl Error {
    /// The same of one GPU among several, where it does not say which.
    pub(crate) fn on_gpu(self, gpu: &str) -> Self {
        match self {
            Self::Plan { reason } => Self::Plan { reason: format!("{gpu}: {reason}") },
            Self::NotOffered { option, reason } => {
                Self::NotOffered { option, reason: format!("{gpu}: {reason}") }
            }
            other => other,
        }
    }

    /// The refusal of the best of several GPUs, with those of the others after it.
    pub(crate) fn with_others(self, others: &str) -> Self {
        match self {
            Self::NotOffered { option, reason } => {
                Self::NotOffered { option, reason: format!("{reason}{others}") }
            }
            Self::Plan { .. } | Self::MemoryPromised { .. } | Self::Queued { .. } => {
                Self::Plan { reason: format!("{self}{others}") }
            }
            other => other,
        }
    }

    /// The exit code of the command that fails with it. As for shells, `env` and container tools,
    /// it is 127 if there is no such program and 126 if the program cannot be executed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoProgram { .. } => 127,
            Self::Program { .. } => 126,
            Self::Interrupted { signal } => u8::try_from(128 + signal).unwrap_or(OWN_ERROR),
            _ => OWN_ERROR,
        }
    }

    /// For `map_err`: the system refused `what`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Who changes and ends a tenant of this user.
fn whose(user: &str) -> String {
    match user {
        "root" => "only root changes or ends it; ask root".to_owned(),
        user => format!(
            "only {user} and, in system mode, root change it, and only {user} and root end it; ask {user}, \
             or run this as {user}"
        ),
    }
}
