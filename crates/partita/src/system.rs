//! System mode: `partitad` makes and changes the tenants of all users of a machine, and users'
//! commands ask it.
//!
//! The run directory is root's alone then, and a user cannot write what limits that user's tenants.
//! `partitad` accepts connections at [`SOCKET`] and gives each to a new process of root's,
//! [`answer`], which asks the kernel whose connection it is and acts for that user. So nothing of
//! one request is left for the next, and a request that crashes or hangs ends nobody else's. The
//! registry itself is all that lasts: a `partitad` that was killed has nothing to restore, and
//! tenants never notice.
//!
//! One request a connection: JSON, then the end of the stream. The answer is JSON too. With a new
//! tenant come the locked files that keep it alive, as descriptors: whoever has one of them is of
//! the tenant, and nobody but the tenant's user can open those files.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_ledger::GPUS_MAX;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus::Selectors;
use crate::install::Install;
use crate::mps;
use crate::mps::attend::end_leftovers;
use crate::mps::incident::{self, Incident, What};
use crate::process::ProcessId;
use crate::registry::{self, Isolation, Meta, OwnedTenant, Registry, Tenant, check_name};
use crate::run::{self, RunRequest};
use crate::signals;

/// The socket's name in the run directory.
pub const SOCKET: &str = ".system.sock";
/// The most that is read of a request, in bytes: a long command line fits.
const REQUEST_BYTES_MAX: u64 = 4 << 20;
/// How long a client may take to send its request, or to read the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// The most that is read of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What is asked of `partitad`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Do what this command line says.
    Command { arguments: Vec<String> },
    /// Make a tenant for the process that asks.
    Make { name: String, gpus: String, request: Box<RunRequest> },
    /// Note which program a tenant has started.
    NoteChild { name: String, child: ProcessId },
    /// Write down what happened to a tenant of an MPS service.
    NoteIncident { name: String, what: What },
    /// End what is left of a tenant's program.
    EndProcesses { name: String },
    /// Remove what ended tenants left.
    Clean,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Answer {
    /// It is done.
    Done,
    /// What the command printed, and its exit code.
    Printed { code: u8, stdout: Vec<u8>, stderr: Vec<u8> },
    /// The tenant: its directory and what is known of it, for each GPU.
    Made { parts: Vec<(PathBuf, Meta)> },
    /// It is not done, and why.
    Refused { reason: String },
}

/// What a command has printed that `partitad` ran for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    /// Its exit code.
    pub code: u8,
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: Vec<u8>,
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

/// Has `partitad` make a tenant that this process owns.
pub(crate) fn make(
    registry: &Registry,
    request: &RunRequest,
    gpus: &[Gpu],
    name: &str,
) -> Result<OwnedTenant, Error> {
    let selectors = Selectors::List(gpus.iter().map(Gpu::selector).collect());
    let request = Request::Make {
        name: name.to_owned(),
        gpus: selectors.to_string(),
        request: Box::new(request.clone()),
    };
    let (answer, owners) = ask(registry, &request)?;
    let Answer::Made { parts } = answer else { return Err(other_version(registry)) };
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
    Ok(OwnedTenant::received(parts))
}

/// Has `partitad` note the program that a tenant of this process has started. `ps` and `kill` find
/// the program by other ways too, so nothing waits for it.
pub(crate) fn note_child(registry: &Registry, meta: &Meta) {
    if let Some(child) = meta.child {
        let _ = send(registry, &Request::NoteChild { name: meta.name.clone(), child });
    }
}

/// Has `partitad` write down what happened to a tenant of this user's.
pub(crate) fn note_incident(registry: &Registry, name: &str, what: What) -> Result<(), Error> {
    ask(registry, &Request::NoteIncident { name: name.to_owned(), what }).map(drop)
}

/// Has `partitad` end what is left of the program of a tenant of this user's.
pub(crate) fn end_processes(registry: &Registry, name: &str) -> Result<(), Error> {
    ask(registry, &Request::EndProcesses { name: name.to_owned() }).map(drop)
}

/// Has `partitad` remove what ended tenants left. Nothing waits for it: whoever looks before passes
/// over the dead.
pub(crate) fn clean(registry: &Registry) -> Result<(), Error> {
    send(registry, &Request::Clean).map(drop)
}

/// Refuses what only `partitad` and root do in system mode.
pub(crate) fn only_the_daemon(registry: &Registry) -> Error {
    Error::RunDirectory {
        path: registry.root().to_owned(),
        reason: "it is in system mode, where partitad makes and changes tenants for `partita run`, `set` and `kill` \
                 alone; ask root, or set PARTITA_RUN_DIR to a directory of your own"
            .to_owned(),
    }
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
        "{error}; tenants keep running, and root starts it again with `partitad --system` or \
         `systemctl start partitad`"
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GPUS_MAX))];
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
        Answer::Refused { reason } => Err(Error::Served { reason }),
        answer => Ok((answer, descriptors)),
    }
}

/// Answers the one request of a connection, as root for the user whose connection it is. `run` runs
/// a command line, which it checks to be one that users may have run for them, and returns the exit
/// code.
///
/// # Errors
/// [`Error::Io`] if the client has gone; [`Error::RunDirectory`] if this process is not root's.
pub fn answer(install: &Install, stream: UnixStream, run: impl FnOnce(&[String]) -> u8) -> Result<(), Error> {
    let io = || Error::io("the connection");
    let peer = socket_peercred(&stream).map_err(|error| io()(error.into()))?;
    stream
        .set_read_timeout(Some(CLIENT_LIMIT))
        .and_then(|()| stream.set_write_timeout(Some(CLIENT_LIMIT)))
        .map_err(io())?;
    let user = peer.uid.as_raw();
    registry::act_for(user);
    let mut bytes = Vec::new();
    (&stream).take(REQUEST_BYTES_MAX).read_to_end(&mut bytes).map_err(io())?;
    let asked = serde_json::from_slice(&bytes).map_err(|error| Error::Served {
        reason: format!(
            "the request is not understood: {error}; this `partita` is of another version than partitad"
        ),
    });
    let client = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
    let done = asked.and_then(|asked| act(install, asked, user, client, run));
    let (answer, made) = done.unwrap_or_else(|error| (Answer::Refused { reason: error.to_string() }, None));
    let owners: Vec<BorrowedFd<'_>> =
        made.iter().flat_map(OwnedTenant::handed_out).map(|(_, _, owner)| owner.as_fd()).collect();
    match reply(&stream, &answer, &owners) {
        // The client does not wait for this answer, or has ended. A tenant that was made for it
        // ends with this process.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent.map_err(io()),
    }
}

/// Does what is asked. Returns the answer, and the tenant whose descriptors go with it.
fn act(
    install: &Install,
    request: Request,
    user: u32,
    client: u32,
    run: impl FnOnce(&[String]) -> u8,
) -> Result<(Answer, Option<OwnedTenant>), Error> {
    let registry = Registry::open()?;
    if !registry.is_system() {
        return Err(Error::RunDirectory {
            path: registry.root().to_owned(),
            reason: "it is not in system mode; start `partitad --system` anew".to_owned(),
        });
    }
    match request {
        Request::Command { arguments } => {
            let printed = captured(|| run(&arguments)).map_err(Error::io("the command's output"))?;
            return Ok((printed, None));
        }
        Request::Make { name, gpus, request } => {
            check_name(&name)?;
            // The kernel names the process that has connected.
            let process = ProcessId::living(client).filter(|process| process.user() == Some(user));
            let process =
                process.ok_or_else(|| Error::Served { reason: "the command has ended".to_owned() })?;
            let tenant = make_for(install, &registry, &name, gpus.parse()?, &request, process)?;
            let parts = tenant.handed_out().map(|(path, meta, _)| (path.to_owned(), meta.clone())).collect();
            return Ok((Answer::Made { parts }, Some(tenant)));
        }
        Request::NoteChild { name, child } => {
            if child.user() == Some(user) {
                let lock = registry.lock()?;
                lock.tenant(&name)?.iter().try_for_each(|part| part.note_child(child))?;
            }
        }
        Request::NoteIncident { name, what } => {
            let tenant = registry.lock()?.tenant(&name)?;
            tenant.iter().try_for_each(Tenant::check_yours)?;
            // All its GPUs have one service.
            let service =
                tenant.first().map(|first| mps::service_of(install, &registry, first)).transpose()?;
            if let Some(service) = service.flatten() {
                incident::note(&service, &Incident::now(&name, what.of_another_user()));
            }
        }
        Request::EndProcesses { name } => end_leftovers(install, &registry, &name)?,
        Request::Clean => registry.lock()?.tenants().map(drop)?,
    }
    Ok((Answer::Done, None))
}

/// Makes a tenant of the acting user's and, for one that shares its GPUs, starts their service.
fn make_for(
    install: &Install,
    registry: &Registry,
    name: &str,
    selectors: Selectors,
    request: &RunRequest,
    process: ProcessId,
) -> Result<OwnedTenant, Error> {
    let gpus = crate::gpus::select(install, Some(&selectors))?.gpus;
    gpus.iter().try_for_each(run::check_usable)?;
    let boards = gpus.iter().filter_map(|gpu| Some((gpu.sim()?, gpu.facts.index)));
    for (board, index) in boards {
        board.start_board(index)?;
    }
    let tenant = run::make(install, request, registry, &gpus, name, process)?;
    // Not before: a refused tenant starts no service.
    let served = match request.isolation {
        Isolation::Shared => serve(install, registry, &gpus),
        Isolation::Own => Ok(()),
    };
    if let Err(error) = served {
        drop(tenant);
        // Whatever goes wrong here, the next command removes the remains.
        let _ = registry.lock().and_then(|lock| lock.tenants());
        return Err(error);
    }
    Ok(tenant)
}

/// Starts the service of these GPUs, if it does not run, and refuses one more tenant if there is no
/// room for it.
fn serve(install: &Install, registry: &Registry, gpus: &[Gpu]) -> Result<(), Error> {
    let (service, ensured) = mps::start(install, &registry.of_root(), gpus, &mps::StartOptions::default())?;
    let admitted =
        mps::tenants_of(registry, gpus).and_then(|tenants| mps::ready::admit(&service, gpus, tenants));
    admitted.inspect_err(|_| {
        if ensured.started {
            let _ = service.stop_if_unused();
        }
    })
}

/// Runs something and returns what it prints on stdout and stderr.
fn captured(run: impl FnOnce() -> u8) -> io::Result<Answer> {
    let file = |name| -> io::Result<File> {
        Ok(File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?))
    };
    let (mut out, mut err) = (file("partita-stdout")?, file("partita-stderr")?);
    rustix::stdio::dup2_stdout(&out)?;
    rustix::stdio::dup2_stderr(&err)?;
    let code = run();
    io::stdout().flush()?;
    let read = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map(|_| bytes)
    };
    Ok(Answer::Printed { code, stdout: read(&mut out)?, stderr: read(&mut err)? })
}

/// Sends an answer, with its descriptors beside the first byte.
fn reply(stream: &UnixStream, answer: &Answer, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(answer)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GPUS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many GPUs for one message"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}
