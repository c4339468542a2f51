//! System mode: `partitad` makes and changes the tenants of all users of a machine, at the request
//! of users' commands.
//!
//! The run directory then belongs to root alone, and a user cannot write the limits of that user's
//! tenants. `partitad` accepts connections at [`SOCKET`] and gives each to a new process of root,
//! [`mod@crate::answer`], which gets the client's user from the kernel and acts for that user. So a
//! request leaves nothing for the next, and a request that crashes or hangs does not affect others.
//! Only the registry persists: a `partitad` that was killed has nothing to restore, and tenants
//! never notice.
//!
//! One request a connection: JSON, then the end of the stream. The answer is JSON too. A new tenant
//! comes with the locked files that keep it alive, as descriptors: each holder of one belongs to
//! the tenant, and only the tenant's user can open those files.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use partita_ledger::GPUS_MAX;
use partita_mps::{MpsError, Service};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus::Selectors;
use crate::limits::LimitSet;
use crate::mps::incident::What;
use crate::mps::vacancy::Vacancy;
use crate::policy::Policy;
use crate::process::ProcessId;
use crate::registry::{Meta, OwnedTenant, Registry};
use crate::request::RunRequest;
use crate::signals;

/// The socket's name in the run directory.
pub const SOCKET: &str = ".system.sock";
/// The most descriptors of an answer: the locked file of a tenant on each GPU, and its holder's
/// socket.
pub(crate) const DESCRIPTORS_MAX: usize = GPUS_MAX + 1;
/// The most that is read of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A request to `partitad`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Run this command line.
    Command { arguments: Vec<String> },
    /// Make a tenant for the process that asks.
    Make {
        name: String,
        gpus: String,
        request: Box<RunRequest>,
        /// Whether it asks for the socket of a holder, too.
        #[serde(default)]
        has_holder: bool,
    },
    /// Rank the GPUs for this request, which leaves the choice to Partita.
    Rank { request: Box<RunRequest> },
    /// The policy that holds.
    Policy,
    /// Whether the groups of these GPUs let the user make tenants on them.
    MayUse { gpus: String },
    /// Note which program a tenant has started.
    NoteChild { name: String, child: ProcessId },
    /// Record an incident of a tenant of an MPS service.
    NoteIncident { name: String, what: What },
    /// End the rest of a tenant's program.
    EndProcesses { name: String },
    /// Look at the compute units of a tenant, for its holder.
    Look { name: String },
    /// End the servers of a tenant's service, which have none but dead clients.
    EndServers { name: String },
    /// Remove what ended tenants left.
    Clean,
    /// Whether the site limits the program that asks, for which nobody has made a tenant. The
    /// library asks, and gets [`Answer::for_library`].
    Enter {
        /// Its `CUDA_VISIBLE_DEVICES`.
        visible: Option<String>,
        /// Its `CUDA_DEVICE_ORDER`.
        order: Option<String>,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// The command's output, and its exit code.
    Printed { code: u8, stdout: Vec<u8>, stderr: Vec<u8> },
    /// The tenant: its directory and its metadata, for each GPU. Its limits are those that were
    /// asked for, with what depends on the tenants that are there. The socket of its holder, if
    /// there is one, comes last.
    Made { parts: Vec<(PathBuf, Meta)>, limits: Box<LimitSet> },
    /// The keys of GPUs, the best first, and why each has its place.
    Ranked { places: Vec<(String, String)> },
    /// The file of the policy that holds, and the text that holds; empty if there was no file.
    Policy { path: PathBuf, text: String },
    /// What a look at compute units has found, and its process, if that waits still.
    Looked { vacancy: Vacancy, waits: Option<ProcessId> },
    /// The program has a place in the queue, and why it does not start yet.
    Waits { reason: String },
    /// It is not done, and why.
    Refused {
        reason: String,
        #[serde(default)]
        kind: Refusal,
    },
    /// The program belongs to a tenant: its directory, what to tell the user, and the variables
    /// that lead to its GPUs and their service.
    Entered { dir: PathBuf, notice: String, variables: Vec<(String, OsString)> },
}

/// What kind of refusal it is, for a command that has another choice.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Refusal {
    /// There is no room now, or others come first.
    Room,
    /// The GPU is for users of other groups.
    Group,
    /// Any other.
    #[default]
    Other,
}

impl Answer {
    /// The refusal for an error.
    pub(crate) fn of_error(error: &Error) -> Self {
        let kind = match error {
            Error::Plan { .. } | Error::MemoryPromised { .. } | Error::Queued { .. } => Refusal::Room,
            Error::OtherGroup { .. } => Refusal::Group,
            _ => Refusal::Other,
        };
        Self::Refused { reason: error.to_string(), kind }
    }

    /// The answer as the library reads it: words, each of which a zero ends.
    pub(crate) fn for_library(&self) -> Vec<u8> {
        let variables = |variables: &[(String, OsString)]| {
            let word = |(name, value): &(String, OsString)| {
                [name.as_bytes(), b"=", value.as_encoded_bytes()].concat()
            };
            variables.iter().map(word).collect::<Vec<_>>()
        };
        let words = match self {
            Self::Entered { dir, notice, variables: of } => [
                vec![
                    b"tenant".to_vec(),
                    dir.as_os_str().as_encoded_bytes().to_vec(),
                    notice.as_bytes().to_vec(),
                ],
                variables(of),
            ]
            .concat(),
            Self::Refused { reason, .. } | Self::Waits { reason } => {
                vec![b"refused".to_vec(), reason.as_bytes().to_vec()]
            }
            Self::Done
            | Self::Printed { .. }
            | Self::Made { .. }
            | Self::Ranked { .. }
            | Self::Policy { .. }
            | Self::Looked { .. } => vec![b"free".to_vec()],
        };
        let mut bytes = words.join(&0);
        bytes.push(0);
        bytes
    }
}

/// The output of a command that `partitad` ran for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    /// Its exit code.
    pub code: u8,
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: Vec<u8>,
}

impl Printed {
    /// What the command said on stderr, without its name, if it failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let said = String::from_utf8_lossy(&self.stderr);
        (self.code != 0).then(|| said.trim().trim_start_matches("partita: ").to_owned())
    }
}

/// Where `partitad` accepts the requests of commands.
pub fn socket_in(run_dir: &Path) -> PathBuf {
    run_dir.join(SOCKET)
}

/// Has `partitad` run a command of the command line for the current user.
///
/// # Errors
/// [`Error::Daemon`].
pub fn command(registry: &Registry, arguments: Vec<String>) -> Result<Printed, Error> {
    match ask(registry, &Request::Command { arguments })? {
        (Answer::Printed { code, stdout, stderr }, _) => Ok(Printed { code, stdout, stderr }),
        _ => Err(other_version(registry)),
    }
}

/// The refusal where the tenant of this name is another user's, which a client does not see. `None`
/// in user mode.
pub fn of_another_user(registry: &Registry, name: &str) -> Option<Error> {
    if !registry.is_client() {
        return None;
    }
    let arguments = vec!["explain".to_owned(), name.to_owned()];
    let reason = command(registry, arguments).ok()?.failure()?;
    reason.starts_with(&format!("tenant {name} belongs to ")).then_some(Error::Served { reason })
}

/// A tenant that `partitad` has made, what was settled for it, and the socket of its holder.
pub(crate) type Made = (RunRequest, OwnedTenant, Option<OwnedFd>);

/// Has `partitad` make a tenant that this process owns.
pub(crate) fn make(
    registry: &Registry,
    asked: &RunRequest,
    gpus: &[Gpu],
    name: &str,
    has_holder: bool,
) -> Result<Made, Error> {
    let selectors = Selectors::List(gpus.iter().map(Gpu::selector).collect());
    let request = Request::Make {
        name: name.to_owned(),
        gpus: selectors.to_string(),
        request: Box::new(asked.clone()),
        has_holder,
    };
    let (answer, mut owners) = ask(registry, &request)?;
    let Answer::Made { parts, limits } = answer else { return Err(other_version(registry)) };
    let socket = if owners.len() == parts.len() + 1 { owners.pop() } else { None };
    let keys = || parts.iter().map(|(_, meta)| meta.gpu.key.clone());
    if parts.len() != owners.len() || !keys().eq(gpus.iter().map(Gpu::key)) {
        let dirs: Vec<String> = parts
            .iter()
            .filter_map(|(_, meta)| meta.gpu.sim.as_ref())
            .map(|sim| format!("; its simulated GPU is in {0}: set PARTITA_SIM_DIR={0}", sim.dir.display()))
            .collect();
        let reason = format!(
            "it sees other GPUs than this command: {} instead of {}{}",
            keys().collect::<Vec<_>>().join(", "),
            gpus.iter().map(Gpu::key).collect::<Vec<_>>().join(", "),
            dirs.concat()
        );
        return Err(failed(registry, reason));
    }
    let parts = parts.into_iter().zip(owners).map(|((path, meta), owner)| (path, meta, File::from(owner)));
    Ok((RunRequest { limits: *limits, ..asked.clone() }, OwnedTenant::received(parts), socket))
}

/// Has `partitad` rank the GPUs for a request of `--gpu any`: their keys, the best first, and why
/// each has its place.
///
/// # Errors
/// The refusal; [`Error::Daemon`].
pub(crate) fn ranked(registry: &Registry, request: &RunRequest) -> Result<Vec<(String, String)>, Error> {
    match ask(registry, &Request::Rank { request: Box::new(request.clone()) })? {
        (Answer::Ranked { places }, _) => Ok(places),
        _ => Err(other_version(registry)),
    }
}

/// The policy that `partitad` holds, and the file that it read: that may say something else now.
/// Without a text there was no file.
///
/// # Errors
/// [`Error::Daemon`]; [`Error::Policy`] for a policy of another version.
pub fn policy(registry: &Registry) -> Result<(PathBuf, Option<Policy>), Error> {
    let (Answer::Policy { path, text }, _) = ask(registry, &Request::Policy)? else {
        return Err(other_version(registry));
    };
    if text.is_empty() {
        return Ok((path, None));
    }
    let policy = Policy::parse(&text);
    let policy = policy.map_err(|error| Error::Policy { path: path.clone(), reason: error.to_string() })?;
    Ok((path, Some(policy)))
}

/// Whether the groups of these GPUs let this user make tenants on them.
///
/// # Errors
/// [`Error::OtherGroup`] if not; [`Error::Daemon`].
pub fn check_groups(registry: &Registry, gpus: &Selectors) -> Result<(), Error> {
    ask(registry, &Request::MayUse { gpus: gpus.to_string() }).map(drop)
}

/// Has `partitad` note the program that a tenant of this process has started. `ps` and `kill` find
/// the program by other ways too, so nothing waits for it.
pub(crate) fn note_child(registry: &Registry, meta: &Meta) {
    if let Some(child) = meta.child {
        let _ = send(registry, &Request::NoteChild { name: meta.name.clone(), child });
    }
}

/// Makes `partitad` record an incident of a tenant of this user.
pub(crate) fn note_incident(registry: &Registry, name: &str, what: What) -> Result<(), Error> {
    ask(registry, &Request::NoteIncident { name: name.to_owned(), what }).map(drop)
}

/// Makes `partitad` end the rest of the program of a tenant of this user.
pub(crate) fn end_processes(registry: &Registry, name: &str) -> Result<(), Error> {
    ask(registry, &Request::EndProcesses { name: name.to_owned() }).map(drop)
}

/// Has `partitad` look at the compute units of a tenant of this user: only root sees whether other
/// tenants have them, too.
pub(crate) fn look(registry: &Registry, name: &str) -> Result<(Vacancy, Option<ProcessId>), Error> {
    match ask(registry, &Request::Look { name: name.to_owned() })? {
        (Answer::Looked { vacancy, waits }, _) => Ok((vacancy, waits)),
        _ => Err(other_version(registry)),
    }
}

/// Has `partitad` end the work of those of these processes that are clients of a service of root's:
/// the driver refuses that to other users. Returns them.
///
/// # Errors
/// [`Error::Mps`]; [`Error::Daemon`]; [`Error::Served`] for the reason of a refusal.
pub fn end_work(
    registry: &Registry,
    service: &Service,
    gpus: &Selectors,
    pids: &[u32],
) -> Result<Vec<u32>, Error> {
    let clients = match service.clients() {
        Err(MpsError::NotRunning { .. }) => return Ok(Vec::new()),
        clients => clients?,
    };
    let own: Vec<u32> =
        clients.into_iter().map(|(_, client)| client).filter(|client| pids.contains(client)).collect();
    if own.is_empty() {
        return Ok(own);
    }
    let words = ["mps".to_owned(), "terminate".to_owned(), format!("--gpu={gpus}")];
    let words = words.into_iter().chain(own.iter().map(u32::to_string)).collect();
    match command(registry, words)?.failure() {
        Some(reason) => Err(Error::Served { reason }),
        None => Ok(own),
    }
}

/// Has `partitad` end the servers of a tenant's service, which have none but dead clients.
pub(crate) fn end_servers(registry: &Registry, name: &str) -> Result<(), Error> {
    ask(registry, &Request::EndServers { name: name.to_owned() }).map(drop)
}

/// Makes `partitad` remove what ended tenants left. Nothing waits for it: earlier readers skip dead
/// tenants.
pub(crate) fn clean(registry: &Registry) -> Result<(), Error> {
    send(registry, &Request::Clean).map(drop)
}

fn failed(registry: &Registry, reason: impl Into<String>) -> Error {
    Error::Daemon { socket: socket_in(registry.root()), reason: reason.into() }
}

fn other_version(registry: &Registry) -> Error {
    failed(registry, "it is of another version; restart it")
}

/// That `partitad` does not serve.
fn gone(registry: &Registry, error: &io::Error) -> Error {
    let reason = format!(
        "{error}; tenants keep running, and root starts it again with `systemctl restart partitad` or \
         `partitad --system`"
    );
    failed(registry, reason)
}

fn send(registry: &Registry, request: &Request) -> Result<UnixStream, Error> {
    let io = |error: io::Error| gone(registry, &error);
    let mut stream = UnixStream::connect(socket_in(registry.root())).map_err(io)?;
    let peer = socket_peercred(&stream).map_err(|error| io(error.into()))?;
    if !peer.uid.is_root() {
        return Err(failed(registry, format!("user {} listens there instead of root", peer.uid.as_raw())));
    }
    let request = serde_json::to_vec(request).map_err(|error| io(error.into()))?;
    // It may close the connection before it has read the request.
    let _ = stream.write_all(&request).and_then(|()| stream.shutdown(Shutdown::Write));
    Ok(stream)
}

/// Sends a request and returns the answer with its descriptors. A refusal is an error.
fn ask(registry: &Registry, request: &Request) -> Result<(Answer, Vec<OwnedFd>), Error> {
    let stream = send(registry, request)?;
    let mut descriptors = Vec::new();
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&stream, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {
                signals::check()?;
                continue;
            }
            Err(rustix::io::Errno::CONNRESET) => {
                // One that was killed has reset it, and takes no other.
                UnixStream::connect(socket_in(registry.root())).map_err(|error| gone(registry, &error))?;
                return Err(failed(
                    registry,
                    "it closed the connection: too many requests of yours wait; try again",
                ));
            }
            received => received.map_err(|error| failed(registry, io::Error::from(error).to_string()))?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(failed(registry, "descriptors were lost; allow this process more open files"));
        }
        if received.bytes == 0 {
            break;
        }
        bytes.extend(&buffer[..received.bytes]);
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(failed(registry, "its answer does not end"));
        }
    }
    let answer = serde_json::from_slice(&bytes).map_err(|_| {
        failed(registry, "it ended before it had answered; `partita ps` shows what is done, its log why")
    })?;
    match answer {
        Answer::Refused { reason, kind } => Err(match kind {
            Refusal::Room => Error::Plan { reason },
            Refusal::Group => Error::OtherGroup { reason },
            Refusal::Other => Error::Served { reason },
        }),
        Answer::Waits { reason } => Err(Error::Waits { reason }),
        answer => Ok((answer, descriptors)),
    }
}
