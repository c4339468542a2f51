//! `partitad` in system mode: how it answers the command of a user ([`system`](crate::system)).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use partita_mps::Service;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::error::Error;
use crate::gpu::{self, Gpu};
use crate::gpus::Selectors;
use crate::groups::GpuGroups;
use crate::holder;
use crate::install::Install;
use crate::kill::end_leftovers;
use crate::mps;
use crate::mps::incident::{self, Incident};
use crate::mps::vacancy::Vacancy;
use crate::outside::{self, Newcomer};
use crate::partition;
use crate::policy;
use crate::process::ProcessId;
use crate::registry::{self, Isolation, Meta, OwnedTenant, Registry, Tenant, Waiter, check_name};
use crate::request::RunRequest;
use crate::run;
use crate::site;
use crate::system::{Answer, DESCRIPTORS_MAX, Request};

/// The most that is read of a request, in bytes: a long command line fits.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// How long a look at compute units waits for others of its user.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to send its request, or to read the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);

/// Answers the one request of a connection, as root for the user whose connection it is. `run` runs
/// a command line, which it checks to be one that users may have run for them, and returns the exit
/// code.
///
/// # Errors
/// [`Error::Io`] if the client has gone; [`Error::RunDirectory`] if this process is not root's.
pub fn answer(install: &Install, stream: UnixStream, run: impl FnOnce(&[String]) -> u8) -> Result<(), Error> {
    let io = || Error::io("the connection");
    let peer = socket_peercred(&stream).map_err(|error| io()(error.into()))?;
    stream.set_write_timeout(Some(CLIENT_LIMIT)).map_err(io())?;
    let user = peer.uid.as_raw();
    registry::act_for(user);
    let bytes = receive(&stream, CLIENT_LIMIT).map_err(io())?;
    let asked = serde_json::from_slice(&bytes).map_err(|error| Error::Served {
        reason: format!(
            "the request is not understood: {error}; this `partita` is of another version than partitad"
        ),
    });
    let client = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
    let is_librarys = matches!(asked, Ok(Request::Enter { .. }));
    let done = asked.and_then(|asked| act(install, asked, user, client, run));
    let (answer, made) = done.unwrap_or_else(|error| match error {
        Error::Waits { reason } => (Answer::Waits { reason }, Vec::new()),
        error => (Answer::of_error(&error), Vec::new()),
    });
    let owners: Vec<BorrowedFd<'_>> = made.iter().map(AsFd::as_fd).collect();
    let bytes = match is_librarys {
        true => answer.for_library(),
        false => serde_json::to_vec(&answer).map_err(|error| io()(error.into()))?,
    };
    match reply(&stream, &bytes, &owners) {
        // The client does not wait for this answer, or has ended. A tenant that was made for it
        // ends with this process.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent.map_err(io()),
    }
}

/// Reads a request. The limit is that of the whole request: a client that sends it byte by byte has
/// no longer time.
fn receive(mut stream: &UnixStream, limit: Duration) -> io::Result<Vec<u8>> {
    let begin = Instant::now();
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    while bytes.len() < REQUEST_BYTES_MAX {
        let left = limit.checked_sub(begin.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => bytes.extend(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Handles a request. Returns the answer, and the files that go with it and keep a tenant alive.
fn act(
    install: &Install,
    request: Request,
    user: u32,
    client: u32,
    run: impl FnOnce(&[String]) -> u8,
) -> Result<(Answer, Vec<File>), Error> {
    let registry = Registry::open()?;
    if !registry.is_system() {
        return Err(Error::RunDirectory {
            path: registry.root().to_owned(),
            reason: "it is not in system mode; restart `partitad --system`".to_owned(),
        });
    }
    match request {
        Request::Command { arguments } => {
            let printed = captured(|| run(&arguments)).map_err(Error::io("the command's output"))?;
            return Ok((printed, Vec::new()));
        }
        Request::Make { name, gpus, request, has_holder } => {
            check_name(&name)?;
            // The kernel names the process that has connected.
            let process = ProcessId::living(client).filter(|process| process.user() == Some(user));
            let process =
                process.ok_or_else(|| Error::Served { reason: "the command has ended".to_owned() })?;
            let (request, tenant) = make_for(install, &registry, &name, gpus.parse()?, &request, process)?;
            let parts = tenant.handed_out().map(|(path, meta, _)| (path.to_owned(), meta.clone())).collect();
            let limits = Box::new(request.limits);
            let socket = has_holder.then(|| holder::listen_for(&tenant, user)).transpose()?;
            let mut files = tenant.into_owner_files();
            files.extend(socket.map(File::from));
            return Ok((Answer::Made { parts, limits }, files));
        }
        Request::Enter { visible, order } => {
            return enter(install, &registry, user, client, visible.as_deref(), order.as_deref());
        }
        Request::Rank { request } => {
            let places = run::ranked_for(install, &request, &registry)?;
            return Ok((Answer::Ranked { places }, Vec::new()));
        }
        Request::Policy => {
            let text = std::env::var(policy::TEXT_VARIABLE).unwrap_or_default();
            return Ok((Answer::Policy { path: policy::path(), text }, Vec::new()));
        }
        Request::MayUse { gpus } => {
            let gpus = crate::gpus::select(install, Some(&gpus.parse()?))?.gpus;
            GpuGroups::of_environment()?.check_all(&gpus, user)?;
        }
        Request::NoteChild { name, child } => {
            if child.user() == Some(user) {
                let lock = registry.lock()?;
                lock.tenant(&name)?.iter().try_for_each(|part| part.note_child(child))?;
            }
        }
        Request::NoteIncident { name, what } => {
            if let (_, Some(service)) = of_user(install, &registry, &name)? {
                incident::note(&service, &Incident::now(&name, what.of_another_user()));
            }
        }
        Request::EndProcesses { name } => end_leftovers(install, &registry, &name)?,
        Request::Look { name } => {
            let (parts, service) = of_user(install, &registry, &name)?;
            // One look of a user at a time: those of all users wait for each other.
            let turn = parts.first().and_then(|part| part.lock_user(LOOK_LIMIT));
            let (vacancy, late) = match service.filter(|_| turn.is_some()) {
                Some(service) => holder::look_for(install, &registry, &service, &parts)?,
                None => (Vacancy::Unanswered, None),
            };
            let waits = late.and_then(|late| late.process());
            return Ok((Answer::Looked { vacancy, waits }, Vec::new()));
        }
        Request::EndServers { name } => {
            if let (_, Some(service)) = of_user(install, &registry, &name)? {
                holder::end_servers_of_dead(&service, &name)?;
            }
        }
        Request::Clean => {
            let lock = registry.lock_to_plan()?;
            partition::divide_after_end(&lock)?;
            // One that has given up waiting is ending.
            let is_clients = |waiter: &&Waiter| waiter.user == user && waiter.run.pid == client;
            lock.queue()?.iter().filter(is_clients).try_for_each(|waiter| lock.dequeue(waiter.number))?;
        }
    }
    Ok((Answer::Done, Vec::new()))
}

/// A tenant of the acting user, and the service of its programs: all its GPUs have one.
fn of_user(
    install: &Install,
    registry: &Registry,
    name: &str,
) -> Result<(Vec<Tenant>, Option<Service>), Error> {
    let tenant = registry.lock()?.tenant(name)?;
    tenant.iter().try_for_each(Tenant::check_yours)?;
    let service = tenant.first().map(|first| mps::service_of(install, registry, first)).transpose()?;
    Ok((tenant, service.flatten()))
}

/// Makes a tenant of the acting user's and, for one that shares its GPUs, starts their service.
/// Returns what was settled for it, too.
fn make_for(
    install: &Install,
    registry: &Registry,
    name: &str,
    selectors: Selectors,
    request: &RunRequest,
    process: ProcessId,
) -> Result<(RunRequest, OwnedTenant), Error> {
    let gpus = crate::gpus::select(install, Some(&selectors))?.gpus;
    gpus.iter().try_for_each(run::check_usable)?;
    GpuGroups::of_environment()?.check_all(&gpus, registry::acting_user())?;
    gpu::start_boards(&gpus)?;
    let request = request.settled(registry, &gpus)?;
    let make = || run::make(install, &request, registry, &gpus, name, process);
    let tenant = run::make_after_others(registry, make, &mut |_| {})?;
    // Not before: a refused tenant starts no service.
    let served = match request.limits.isolation() {
        Isolation::Shared => serve(install, registry, &gpus),
        Isolation::Own => Ok(()),
    };
    if let Err(error) = served {
        drop(tenant);
        // Whatever goes wrong here, the next command removes the remains.
        let _ = registry.lock().and_then(|lock| lock.tenants());
        return Err(error);
    }
    Ok((request, tenant))
}

/// The tenant of a program for which nobody has made one, if the policy limits it.
fn enter(
    install: &Install,
    registry: &Registry,
    user: u32,
    client: u32,
    visible: Option<&str>,
    order: Option<&str>,
) -> Result<(Answer, Vec<File>), Error> {
    const FREE: (Answer, Vec<File>) = (Answer::Done, Vec::new());
    let Some(newcomer) = Newcomer::find(install, client, user) else { return Ok(FREE) };
    let refused = |error: Error| Error::Served {
        reason: format!(
            "the policy of this site limits programs that were started without `partita run`, and this one \
                         cannot be: {error}"
        ),
    };
    let gpus = outside::seen(install, visible, order).map_err(refused)?;
    if gpus.is_empty() {
        return Ok(FREE);
    }
    for name in newcomer.names(&gpus) {
        let lock = registry.lock()?;
        let tenants: Vec<Tenant> = lock
            .tenants()?
            .into_iter()
            .filter(|tenant| tenant.user == user && !tenant.is_prepared())
            .collect();
        if let Some(tenant) = newcomer.tenant(&gpus, &tenants) {
            let parts = lock.tenant_of_user(&tenant.name, user)?;
            let held = parts.iter().map(Tenant::hold).collect::<Result<_, _>>()?;
            drop(lock);
            let all = run::gpus_of(install, &tenant.name, tenant.meta()?).map_err(refused)?;
            let seen = if visible.is_some() { &gpus } else { &all };
            let variables = variables(install, registry, tenant.meta()?, &all, seen)?;
            let dir = parts[0].dir.clone();
            return Ok((Answer::Entered { dir, notice: String::new(), variables }, held));
        }
        drop(lock);
        if !site::present_rules()?.policy.outside.limits(&policy::user_of(user)) {
            return Ok(FREE);
        }
        let request = newcomer.request(&gpus);
        let selectors = Selectors::List(gpus.iter().map(Gpu::selector).collect());
        let (_, mut tenant) = match make_for(install, registry, &name, selectors, &request, newcomer.process)
        {
            // Perhaps by another process of the job, a moment ago.
            Err(Error::NameInUse { .. }) => continue,
            made => made.map_err(refused)?,
        };
        // Nothing else starts it.
        tenant.update_meta(|meta| meta.child = Some(newcomer.process))?;
        if let Some(group) = newcomer.process.user_group()
            && tenant.meta().isolation == Isolation::Shared
        {
            holder::start_for(install, &tenant, user, group).map_err(refused)?;
        }
        let variables = variables(install, registry, tenant.meta(), &gpus, &gpus)?;
        let (dir, notice) = (tenant.dir().to_owned(), run::of_outside(&tenant));
        return Ok((Answer::Entered { dir, notice, variables }, tenant.into_owner_files()));
    }
    Err(refused(Error::Refused {
        what: format!("process {client}"),
        reason: "other tenants have its names; use `partita run --name`".to_owned(),
    }))
}

/// The variables that lead a program that runs to those GPUs of its tenant that it sees. One that
/// sees others is refused by the library.
fn variables(
    install: &Install,
    registry: &Registry,
    meta: &Meta,
    gpus: &[Gpu],
    seen: &[Gpu],
) -> Result<Vec<(String, OsString)>, Error> {
    let service = match meta.isolation {
        Isolation::Shared => Some(mps::service(install, registry, gpus)?),
        Isolation::Own => None,
    };
    Ok(run::places(seen, service.as_ref(), meta.mps_partition.as_deref()))
}

/// Starts the service of these GPUs, if it does not run, and refuses one more tenant if there is no
/// room for it.
fn serve(install: &Install, registry: &Registry, gpus: &[Gpu]) -> Result<(), Error> {
    let (service, ensured) = mps::start_for_all(install, registry, gpus)?;
    let admitted =
        mps::tenants_of(registry, gpus).and_then(|tenants| mps::ready::admit(&service, gpus, tenants));
    admitted.inspect_err(|_| {
        if ensured.started {
            let _ = service.stop_if_unused();
        }
    })
}

/// Runs something and returns its output on stdout and stderr.
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
fn reply(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many GPUs for one message"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::thread;

    use super::*;

    #[test]
    fn a_request_that_comes_byte_by_byte_has_no_longer_time() {
        let (mut client, served) = UnixStream::pair().unwrap();
        let drips = thread::spawn(move || {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(60) && client.write_all(b"[").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let error = receive(&served, Duration::from_millis(200)).unwrap_err();
        assert!([io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&error.kind()), "{error}");
        drop(served);
        drips.join().unwrap();
    }

    #[test]
    fn a_request_ends_where_its_client_says_or_at_the_most_bytes() {
        for (sent, read) in [(5, 5), (REQUEST_BYTES_MAX + 100_000, REQUEST_BYTES_MAX)] {
            let (mut client, served) = UnixStream::pair().unwrap();
            let sends = thread::spawn(move || {
                let _ = client.write_all(&vec![b'['; sent]);
                let _ = client.shutdown(Shutdown::Write);
            });
            let bytes = receive(&served, Duration::from_secs(60)).unwrap();
            assert!((read..read + (16 << 10)).contains(&bytes.len()), "{sent}: {}", bytes.len());
            drop(served);
            sends.join().unwrap();
        }
    }
}
