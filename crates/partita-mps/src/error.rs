//! Errors of the service, each with its remedy.

use std::io;
use std::path::PathBuf;

use crate::Pid;

/// An error of the Multi-Process Service or of the connection to it.
///
/// `Display` is one line: the failure, the reason, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpsError {
    /// No control binary in the searched places, or no server beside it.
    #[error(
        "the programs of MPS were not found ({searched}): install the driver's compute utilities (package \
         nvidia-compute-utils, or the container capability `compute,utility`), or give --isolation own"
    )]
    BinaryNotFound {
        /// The searched places.
        searched: String,
    },
    /// The control binary could not be run.
    #[error("{} cannot be run: {source}", .binary.display())]
    Spawn {
        /// The binary.
        binary: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// `-v` did not print a version.
    #[error("{} -v printed no version but {reply:?}: is it NVIDIA's MPS control program?", .binary.display())]
    NoVersion {
        /// The binary.
        binary: PathBuf,
        /// Its output.
        reply: String,
    },
    /// The socket's path would not fit in a Unix socket address.
    #[error(
        "the MPS socket path {} is {bytes} bytes long, more than the {limit} that a socket address holds: \
         set PARTITA_RUN_DIR to a shorter directory", .path.display()
    )]
    PathTooLong {
        /// The longest socket path.
        path: PathBuf,
        /// Its length in bytes.
        bytes: usize,
        /// The longest that fits.
        limit: usize,
    },
    /// A directory of the service cannot be made or used.
    #[error("the MPS directory {} cannot be used: {reason}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process holds a lock of the service for too long.
    #[error(
        "another process has been starting, stopping or testing MPS for {waited_s} s: \
         find it with `fuser {}`", .file.display()
    )]
    Locked {
        /// The locked file.
        file: PathBuf,
        /// Seconds waited.
        waited_s: u64,
    },
    /// No daemon answers in this directory.
    #[error(
        "no MPS daemon runs in {}: start it with `partita mps start`, in system mode as root", .pipe.display()
    )]
    NotRunning {
        /// The pipe directory.
        pipe: PathBuf,
    },
    /// The daemon of this directory belongs to another user.
    #[error("the MPS daemon {pid} in {} belongs to another user: ask that user or root to stop it", .pipe.display())]
    Foreign {
        /// The pipe directory.
        pipe: PathBuf,
        /// The daemon.
        pid: Pid,
    },
    /// Only root may have a service for all users.
    #[error(
        "only root can start or stop an MPS service for all users: `sudo partita mps start --multi-user`, \
         or start your own without it"
    )]
    NeedsRoot,
    /// The daemon ended, or did not start.
    #[error("the MPS daemon did not start: {reason}")]
    StartFailed {
        /// Its output, or the end of its log.
        reason: String,
    },
    /// The daemon's process exists, but it does not answer.
    #[error(
        "the MPS daemon {pid} does not answer within {waited_s} s: see {}, then `partita mps stop --force`",
        .log.display()
    )]
    NotAnswering {
        /// The daemon.
        pid: Pid,
        /// Seconds waited.
        waited_s: u64,
        /// Its log file.
        log: PathBuf,
    },
    /// A command took longer than its time limit.
    #[error("the MPS command `{command}` had no answer within {waited_s} s")]
    Timeout {
        /// The command.
        command: String,
        /// Seconds waited.
        waited_s: u64,
    },
    /// There is no room for another client.
    #[error(
        "the MPS service has {clients} clients of the {limit} that fit on a GPU: wait until one leaves, run the program with \
         --isolation own, or on another GPU"
    )]
    Full {
        /// Clients that exist or have a reserved place.
        clients: usize,
        /// The most that fit.
        limit: u32,
    },
    /// A server did not get ready in time.
    #[error(
        "MPS server {server} is still {status} after {waited_s} s{}: `partita mps status` lists the clients \
         that it waits for; end those with `partita kill`, or run the program with --isolation own",
        clients_text(.clients)
    )]
    NotReady {
        /// The server.
        server: Pid,
        /// Its state.
        status: crate::reply::ServerStatus,
        /// Seconds waited.
        waited_s: u64,
        /// Clients that have not left.
        clients: Vec<Pid>,
    },
    /// A server runs no kernel of any client any more.
    #[error(
        "MPS server {server} is stuck: for {waited_s} s it has run no kernel of any client, also no test \
         kernel of Partita's; `partita mps recover` restarts it, which ends the work of all of its clients"
    )]
    Stuck {
        /// The server.
        server: Pid,
        /// Seconds since that was found.
        waited_s: u64,
    },
    /// No test kernel could be tried.
    #[error(
        "whether the MPS service runs kernels is not known: the test program did not become a client \
         ({reason}); `partita mps recover --force` restarts the servers anyway, which ends the work of \
         all of their clients"
    )]
    NoCanary {
        /// Why.
        reason: String,
    },
    /// A server logged that it cannot work.
    #[error("the MPS server says «{reason}»: {}", server_remedy(.reason))]
    ServerFailed {
        /// Its message.
        reason: String,
    },
    /// The daemon ended while it answered.
    #[error(
        "the answer to the MPS command `{command}` breaks off after {reply:?}: the daemon ended; see its log"
    )]
    Cut {
        /// The command.
        command: String,
        /// The partial answer.
        reply: String,
    },
    /// The daemon has no such server.
    #[error("the MPS daemon has no server {server}: `partita mps status` lists the clients of each")]
    NoSuchServer {
        /// The requested server.
        server: Pid,
    },
    /// The server has no such client.
    #[error("MPS server {server} has no client {client}: it has left, or never was one")]
    NoSuchClient {
        /// The server.
        server: Pid,
        /// The requested client.
        client: Pid,
    },
    /// The daemon's program does not know the command.
    #[error("this driver's MPS does not know the command `{command}`: a newer driver may")]
    UnknownCommand {
        /// The command.
        command: String,
    },
    /// The daemon refused a command.
    #[error("the MPS command `{command}` was refused: {message}")]
    Refused {
        /// The command.
        command: String,
        /// The daemon's message.
        message: String,
    },
    /// The daemon's answer has an unexpected form.
    #[error("the MPS command `{command}` answered {reply:?}, which is not understood")]
    Reply {
        /// The command.
        command: String,
        /// The daemon's answer.
        reply: String,
    },
    /// The service limits SMs by itself, which makes libraries compute wrong results.
    #[error(
        "the MPS service in {} has an active thread percentage of {found} % instead of 100 %, \
         with which cuBLAS computes wrong products: `partita mps limits --percent 100` changes it for new \
         clients", .pipe.display()
    )]
    ThreadPercentage {
        /// The pipe directory.
        pipe: PathBuf,
        /// The service's percentage.
        found: f64,
    },
    /// The daemon outlived its `quit`.
    #[error("the MPS daemon {pid} still runs {waited_s} s after `quit`: `partita mps stop --force` ends it")]
    StillRunning {
        /// The daemon.
        pid: Pid,
        /// Seconds waited.
        waited_s: u64,
    },
}

/// The remedy for a server's message; section 4.4 of the MPS guide has the first.
fn server_remedy(reason: &str) -> &'static str {
    if reason.contains("SHM segment") {
        "daemon and clients may open too few files, or /dev/shm is full; `ulimit -n 16384` before `partita mps start`, and see `partita doctor`"
    } else {
        "`partita doctor` lists the conditions that the machine does not meet, `partita mps logs` the \
         events before"
    }
}

fn clients_text(clients: &[Pid]) -> String {
    let clients: Vec<String> = clients.iter().map(Pid::to_string).collect();
    if clients.is_empty() { String::new() } else { format!(", with clients {}", clients.join(", ")) }
}
