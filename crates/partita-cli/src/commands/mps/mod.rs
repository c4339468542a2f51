//! `partita mps`.

mod limits;
mod logs;
mod partitions;
mod status;

use std::process::ExitCode;

use partita::error::Error;
use partita::gpu::Gpu;
use partita::gpus;
use partita::holder;
use partita::install::Install;
use partita::mps;
use partita::mps::StartOptions;
use partita::mps::end_work::end_work;
use partita::mps::recover;
use partita::registry::Registry;
use partita_mps::{MpsError, Service, State};
use serde::Serialize;

pub use self::partitions::partition;
use partita_console::{Failure, GpusOption, print, print_json, select_several, tell};

use crate::args::{Mps, MpsRecover, MpsStart, MpsStartServer, MpsStop, MpsTerminate};

/// A service and its GPUs.
struct Of {
    install: Install,
    registry: Registry,
    gpus: Vec<Gpu>,
    service: Service,
    label: String,
}

impl Of {
    fn find(option: &GpusOption) -> Result<Self, Failure> {
        let install = Install::of_this_program()?;
        let registry = Registry::open()?;
        let gpus = select_several(&install, option)?;
        let service = mps::service(&install, &registry, &gpus)?;
        let label = gpus::labels(&gpus);
        Ok(Self { install, registry, gpus, service, label })
    }

    /// The same to change it.
    fn find_to_change(option: &GpusOption) -> Result<Self, Failure> {
        mps::check_may_change(&Registry::open()?)?;
        Self::find(option)
    }

    fn is_running(&self) -> Result<bool, Failure> {
        Ok(matches!(self.service.state()?, State::Running { .. }))
    }

    /// Refuses an action that only a running service can do.
    fn must_run(&self) -> Result<(), Failure> {
        if self.is_running()? {
            return Ok(());
        }
        let remedy = match self.registry.is_client() {
            true => "the first shared tenant of `partita run` starts it",
            false => "start it with `partita mps start`",
        };
        Err(Failure::Told(format!("MPS of {}: does not run; {remedy}", self.label)))
    }
}

/// Starts, stops, describes, limits and reads a GPU's service.
pub fn mps(arguments: &Mps) -> Result<ExitCode, Failure> {
    match arguments {
        Mps::Start(arguments) => start(arguments)?,
        Mps::StartServer(arguments) => start_server(arguments)?,
        Mps::Stop(arguments) => stop(arguments)?,
        Mps::Status(arguments) => status::status(arguments)?,
        Mps::Clients(arguments) => status::clients(arguments)?,
        Mps::Limits(arguments) => limits::limits(arguments)?,
        Mps::Partitions(arguments) => partitions::partitions(arguments)?,
        Mps::Terminate(arguments) => terminate(arguments)?,
        Mps::Recover(arguments) => recover(arguments)?,
        Mps::Logs(arguments) => logs::logs(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Started {
    started: bool,
    daemon: u32,
    pipe_directory: String,
    log_directory: String,
}

fn start(arguments: &MpsStart) -> Result<(), Failure> {
    let install = Install::of_this_program()?;
    let registry = Registry::open()?;
    let gpus = select_several(&install, &arguments.gpu)?;
    let cpus = arguments.cpus.as_deref().map(partita_mps::detach::parse_cpus).transpose();
    let options = StartOptions {
        all_users: arguments.multi_user,
        cpus: cpus.map_err(|error| Failure::Told(format!("--cpus: {error}")))?,
        exclusive: arguments.exclusive,
        static_partitions: arguments.static_partitions,
    };
    let (service, ensured) = mps::start(&install, &registry, &gpus, &options)?;
    holder::keep_all(&install, &registry, &service)?;
    if ensured.started {
        mps::machine::shortages(&gpus).iter().for_each(|shortage| tell(shortage));
    }
    if arguments.json {
        return print_json(&Started {
            started: ensured.started,
            daemon: ensured.pid,
            pipe_directory: service.dirs().pipe().display().to_string(),
            log_directory: service.dirs().log().display().to_string(),
        });
    }
    let verb = if ensured.started { "started" } else { "runs already" };
    print(&format!("MPS of {}: {verb} (daemon {})\n", gpus::labels(&gpus), ensured.pid))
}

fn start_server(arguments: &MpsStartServer) -> Result<(), Failure> {
    let of = Of::find_to_change(&arguments.gpu)?;
    of.must_run()?;
    let caller = rustix::process::geteuid();
    let user = arguments.user.unwrap_or(caller.as_raw());
    if user != caller.as_raw() && !caller.is_root() {
        return Err(Failure::Told(format!(
            "--user {user}: only root starts servers of other users; leave --user out for your own"
        )));
    }
    let control = of.service.control();
    if let [server, ..] = control.server_list().map_err(Error::from)?[..] {
        return Err(Failure::Told(format!(
            "MPS of {}: server {server} runs already, and a service has one server at a time; see `partita mps \
             status`",
            of.label
        )));
    }
    control.start_server(user).map_err(Error::from)?;
    print(&format!("MPS of {}: starts a server for user {user}\n", of.label))
}

#[derive(Serialize)]
struct Stopped {
    /// False if it did not run.
    stopped: bool,
}

/// A client whose work was ended.
#[derive(Serialize)]
struct Terminated {
    client: u32,
    server: u32,
    /// False if it had just disconnected.
    ended: bool,
}

fn stop(arguments: &MpsStop) -> Result<(), Failure> {
    let of = Of::find_to_change(&arguments.gpu)?;
    if !arguments.force {
        refuse_if_used(&of)?;
    }
    let stopped = of.service.stop(arguments.force)?;
    mps::exclusive::take_back(&of.service, &of.gpus)?;
    mps::remove(&of.registry, &of.gpus, &of.service)?;
    if arguments.json {
        return print_json(&Stopped { stopped });
    }
    print(&format!("MPS of {}: {}\n", of.label, if stopped { "stopped" } else { "did not run" }))
}

fn recover(arguments: &MpsRecover) -> Result<(), Failure> {
    let of = Of::find_to_change(&arguments.gpu)?;
    mps::check_may_recover(&of.registry, &of.gpus)?;
    of.must_run()?;
    let Some(gpu) = of.gpus.first() else { return Ok(()) };
    let recovered = recover::recover(&of.install, gpu, &of.service, "partita mps recover", arguments.force)?;
    let took = recovered.took.as_secs_f64();
    let servers: Vec<String> = recovered.servers.iter().map(u32::to_string).collect();
    print(&match servers.is_empty() {
        true => format!("MPS of {}: works; a test kernel ran within {took:.1} s\n", of.label),
        false => format!(
            "MPS of {}: restarted server {}; a test kernel ran after {took:.1} s\n",
            of.label,
            servers.join(", ")
        ),
    })
}

fn refuse_if_used(of: &Of) -> Result<(), Failure> {
    if !of.is_running()? {
        return Ok(());
    }
    let clients = match of.service.clients() {
        Err(MpsError::NotRunning { .. }) => return Ok(()),
        clients => clients?,
    };
    if clients.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = clients.iter().map(|(_, client)| client.to_string()).collect();
    Err(Failure::Told(format!(
        "MPS of {} has clients (processes {}): end them with `partita kill`, or stop it with --force",
        of.label,
        list.join(", ")
    )))
}

fn terminate(arguments: &MpsTerminate) -> Result<(), Failure> {
    let of = Of::find(&arguments.gpu)?;
    of.must_run()?;
    let clients = of.service.clients()?;
    let mut done = Vec::new();
    for pid in &arguments.pids {
        let Some((server, client)) = clients.iter().find(|(_, client)| client == pid) else {
            let list: Vec<String> = clients.iter().map(|(_, client)| client.to_string()).collect();
            let there = if list.is_empty() { "none".to_owned() } else { list.join(", ") };
            return Err(Failure::Told(format!(
                "process {pid} is not a client of MPS of {}; its clients: {there}",
                of.label
            )));
        };
        mps::end_work::check_may_end(*client)?;
        let ended = end_work(&of.service.control(), *server, *client).map_err(Error::from)?;
        if arguments.json {
            done.push(Terminated { client: *client, server: *server, ended });
            continue;
        }
        let what = if ended {
            "its work on the GPU is ended; its process may be ended now"
        } else {
            "it has just disconnected"
        };
        print(&format!("client {client} of server {server}: {what}\n"))?;
    }
    if arguments.json {
        print_json(&done)?;
    }
    Ok(())
}
