//! What is done as the job's user: its service, its tenant, its clients.
//!
//! In a child process that has nothing of root's and a time limit: the driver and the control
//! program may hang, and the directories are the user's to fill with links.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use partita_host::child::{Job, JobError};
use partita_host::error::Error;
use partita_host::gpu::Gpu;
use partita_host::gpus::{self, Selectors};
use partita_host::install::Install;
use partita_host::limits::LimitSet;
use partita_host::mps::end_work::end_work;
use partita_host::process::ProcessId;
use partita_host::registry::{Registry, Tenant};
use partita_host::run::{self, RunRequest};
use partita_host::{kill, mps};
use partita_mps::command::COMMAND_LIMIT;
use partita_mps::{Ensured, MpsError, Service, State};
use serde::{Deserialize, Serialize};

use super::account::Account;
use super::deadline::Deadline;
use super::environment::JobEnvironment;
use super::job::JobId;
use super::request::{self, Request};
use super::strays;
use super::trouble::Blame;
use super::trouble::Trouble;

/// The job's name.
pub const JOB: &str = "batch";
/// The hidden subcommand of `partita` that does nothing until it is ended: it keeps a job's tenant
/// alive between the job's programs.
pub const HOLD_SUBCOMMAND: &str = "internal-hold";

/// Batch systems call their scripts without one.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Our own variables that say where things are, beside those that every child gets.
const PLACES_KEPT: [&str; 2] = ["PARTITA_RUN_DIR", "PARTITA_CACHE_DIR"];
/// Those that the commands of the job are to have too.
const PLACES_OF_JOB: [&str; 2] = ["PARTITA_RUN_DIR", "PARTITA_LIB_DIR"];
/// Variables that are lists of files or directories.
const LISTS: [&str; 3] = ["LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"];
/// How long a daemon may take to answer a command by which something is ended.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Start what the request asks for; what is there already stays.
    Start {
        /// The name of the tenant, if there is to be one.
        tenant: String,
        /// What to start.
        request: Request,
        /// Nobody else uses the service: one that does not answer may be ended and started again.
        alone: bool,
    },
    /// End what the job has on the GPUs, through MPS before anything else.
    Leave {
        /// The tenant to end with all its processes, if it is there.
        tenant: Option<String>,
        /// Whether the job's processes may be clients of the service.
        service: bool,
        /// The job's other processes.
        pids: Vec<u32>,
        /// Whether every client of the service is the job's.
        alone: bool,
        /// Whether the job is over: nothing that was ever begun for it is to stay.
        over: bool,
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// Stop the service and remove its directories.
    Stop,
}

/// An action and the GPUs that it is about, as `--gpu` takes them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// In the job's own order.
    pub gpus: Vec<String>,
    /// What to do.
    pub action: Action,
    /// The time for it, in milliseconds. Set by [`ask`].
    pub limit_ms: u64,
    /// The process that waits for it. Set by [`ask`].
    pub caller: u32,
}

impl Order {
    /// An order for [`ask`].
    pub fn new(gpus: Vec<String>, action: Action) -> Self {
        Self { gpus, action, limit_ms: 0, caller: 0 }
    }
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The service's daemon, if one runs now.
    pub daemon: Option<u32>,
    /// Whether this call started it.
    pub started: bool,
    /// Whether one ran that this call stopped.
    pub ran: bool,
    /// What the job's programs are to see.
    pub environment: JobEnvironment,
    /// Clients whose work on the GPU was ended.
    pub terminated: Vec<u32>,
    /// Those of them that are no living processes.
    pub zombies: Vec<u32>,
    /// How many processes of the tenant were ended; none if it was not there.
    pub tenant_processes: Option<usize>,
    /// What did not go as it should, though the rest did.
    pub notices: Vec<String>,
    /// Whose fault it is that the rest did not, and why.
    pub refused: Option<(Blame, String)>,
}

/// Has an order carried out by a child process that runs as `account`.
///
/// # Errors
/// The order's [`Trouble`], or the node's if the child gave no answer in time.
pub fn ask(
    install: &Install,
    account: &Account,
    of: &JobId,
    order: Order,
    deadline: Deadline,
) -> Result<Outcome, Trouble> {
    // The child has its own deadlines; this one is for when it hangs in the driver.
    const RESERVE: Duration = Duration::from_millis(500);
    let limit = deadline.left();
    let order = Order {
        limit_ms: limit.saturating_sub(RESERVE).as_millis() as u64,
        caller: std::process::id(),
        ..order
    };
    let what = match order.action {
        Action::Start { .. } => "starting MPS",
        Action::Leave { .. } => "ending what the job has on the GPU",
        Action::Stop => "stopping MPS",
    };
    let gpus = order.gpus.join(",");
    let job = Job::new(install, JOB, &order).map_err(Trouble::node)?.limit(limit);
    let places = PLACES_KEPT.iter().filter_map(|key| Some((*key, std::env::var_os(key)?)));
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    let job = job.envs(places).envs([("PATH", path), (strays::JOB_VARIABLE, of.to_string().into())]).envs([
        ("HOME", &account.home),
        ("USER", &account.name),
        ("LOGNAME", &account.name),
    ]);
    let job = if rustix::process::geteuid().as_raw() == account.user {
        job
    } else {
        // The jobs' users share a run directory of root's: one that was the first user's would
        // serve nobody else.
        Registry::open().map_err(Trouble::node)?;
        job.as_user(account.user, account.group)
    };
    let outcome: Outcome = job.run().map_err(Trouble::node)?.map_err(|error| {
        let reason = match error {
            JobError::TimedOut { .. } => format!(
                "{what} for {} on GPU {gpus} took longer than the {} s that were left for it; see whether `nvidia-smi` \
                 answers, and for the daemon its control.log",
                account.name,
                limit.as_secs()
            ),
            JobError::Failed { reason } => reason,
            other => format!("{what} for {} on GPU {gpus}: {other}", account.name),
        };
        Trouble::node(reason)
    })?;
    match outcome.refused {
        Some((blame, reason)) => Err(Trouble { blame, reason }),
        None => Ok(outcome),
    }
}

/// The job: carries out an order as the user whom this process runs as.
///
/// # Errors
/// What is the node's fault.
pub fn work(order: &Order) -> Result<Outcome, String> {
    // A caller that died before this process asked to die with it: its job may have another script
    // by now.
    if rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get() as u32) != Some(order.caller) {
        return Err("whoever asked for it is gone".to_owned());
    }
    let outcome = Here::open(order).and_then(|here| here.carry_out(order));
    outcome.or_else(|error| match blame(&error) {
        Blame::Job => Ok(Outcome { refused: Some((Blame::Job, error.to_string())), ..Outcome::default() }),
        Blame::Node => Err(error.to_string()),
    })
}

/// Whether a job asked for what there is not.
fn blame(error: &Error) -> Blame {
    match error {
        Error::Plan { .. }
        | Error::QuotaAboveDevice { .. }
        | Error::QuotaPromised { .. }
        | Error::QuotaZero
        | Error::Name { .. }
        | Error::NameInUse { .. }
        | Error::GpuSelector { .. }
        | Error::GpuTwice { .. }
        | Error::NotOffered { .. } => Blame::Job,
        _ => Blame::Node,
    }
}

/// Where an order is carried out.
struct Here {
    install: Install,
    registry: Registry,
    gpus: Vec<Gpu>,
    selectors: String,
    deadline: Deadline,
}

impl Here {
    fn open(order: &Order) -> Result<Self, Error> {
        let deadline = Deadline::after(Duration::from_millis(order.limit_ms));
        let install = Install::of_this_program()?;
        let registry = Registry::open()?;
        let selectors: Selectors = order.gpus.join(",").parse()?;
        // Also a sign of life of the driver.
        let gpus = gpus::select(&install, Some(&selectors))?.gpus;
        Ok(Self { install, registry, gpus, selectors: selectors.to_string(), deadline })
    }

    fn carry_out(&self, order: &Order) -> Result<Outcome, Error> {
        match &order.action {
            Action::Start { tenant, request, alone } => self.start(order, tenant, request, *alone),
            Action::Leave { tenant, service, pids, alone, over, grace_ms } => {
                let mut outcome = Outcome::default();
                if *service && let Err(error) = self.terminate(pids, *alone, &mut outcome) {
                    outcome.notices.push(format!(
                        "work on the GPU could not be ended through MPS first, which may hurt other clients: {error}"
                    ));
                }
                let grace = Duration::from_millis(*grace_ms);
                let end_tenant = |outcome: &mut Outcome| match tenant {
                    Some(name) => self.end_tenant(name, grace, outcome),
                    None => Ok(()),
                };
                end_tenant(&mut outcome)?;
                // What was on its way to make the tenant may have made it in this moment.
                if *over && strays::end(strays::unfinished, self.deadline)? {
                    end_tenant(&mut outcome)?;
                }
                // What ended tenants of the job left behind goes as well.
                self.registry.lock()?.tenants()?;
                Ok(outcome)
            }
            Action::Stop => self.stop(),
        }
    }

    fn start(&self, order: &Order, tenant: &str, request: &Request, alone: bool) -> Result<Outcome, Error> {
        self.gpus.iter().try_for_each(run::check_usable)?;
        let mut outcome = Outcome::default();
        let service = match request.needs_service() {
            true => Some(mps::service(&self.install, &self.registry, &self.gpus)?),
            false => None,
        };
        if let Some(service) = &service {
            let Ensured { pid, started } = self.ensure(service, alone)?;
            (outcome.daemon, outcome.started) = (Some(pid), started);
        }
        let mut variables: Vec<(&str, std::ffi::OsString)>;
        match request {
            Request::Tenant(wanted) => {
                self.make_tenant(tenant, wanted)?;
                let dir = self.registry.lock()?.tenant(tenant)?[0].dir.clone();
                let hook = run::hook(&self.install)?;
                variables = run::variables(&self.gpus, &hook, &dir, service.as_ref());
            }
            Request::Service | Request::Off => {
                variables = gpus::variables(&self.gpus);
                variables.extend(service.iter().flat_map(Service::client_env));
                variables.push(("PARTITA_GPU", self.selectors.clone().into()));
            }
        }
        variables.extend(PLACES_OF_JOB.iter().filter_map(|key| Some((*key, std::env::var_os(key)?))));
        outcome.environment = environment(&variables);
        outcome.environment.gpus =
            order.gpus.iter().cloned().zip(self.gpus.iter().map(|gpu| gpu.facts.uuid.clone())).collect();
        Ok(outcome)
    }

    fn ensure(&self, service: &Service, alone: bool) -> Result<Ensured, Error> {
        mps::make_dirs(&self.registry, &self.gpus, service)?;
        match service.ensure() {
            // No daemon would make a difference.
            Err(
                error @ (MpsError::BinaryNotFound { .. }
                | MpsError::Spawn { .. }
                | MpsError::Directory { .. }
                | MpsError::Foreign { .. }),
            ) => Err(error.into()),
            // What an earlier job or a killed prolog left, and nobody else has.
            Err(_) if alone => {
                self.service_to_end()?.stop(true)?;
                strays::end_service(service, self.deadline)?;
                mps::make_dirs(&self.registry, &self.gpus, service)?;
                Ok(service.ensure()?)
            }
            ensured => Ok(ensured?),
        }
    }

    /// Makes the tenant and leaves a process in it that waits, unless both are there.
    fn make_tenant(&self, name: &str, wanted: &LimitSet) -> Result<(), Error> {
        if self.tenant_is_up(name)? == Some(true) {
            return Ok(());
        }
        // One that a killed prolog began may be on its way; it would have this name.
        strays::end(strays::unfinished, self.deadline)?;
        let request = RunRequest {
            gpus: Some(self.selectors.parse()?),
            limits: *wanted,
            name: Some(name.to_owned()),
            ..RunRequest::default()
        };
        // Says what is the job's fault by its type. Somebody may still be faster.
        let plan = || run::dry_run(&self.install, &request, |_| {}).map(drop);
        plan()?;
        self.hold(name, wanted).or_else(|error| plan().and(Err(error)))
    }

    /// Whether the tenant is complete; none if there is no such tenant of this user.
    fn tenant_is_up(&self, name: &str) -> Result<Option<bool>, Error> {
        let user = rustix::process::geteuid().as_raw();
        let is_up = |part: &Tenant| part.meta.as_ref().is_ok_and(|meta| meta.child.is_some());
        match self.registry.lock()?.tenant(name) {
            Ok(parts) if parts.iter().all(|part| part.user == user) => Ok(Some(parts.iter().all(is_up))),
            // Of that name, and somebody else's: making ours will say so.
            Ok(_) | Err(Error::NoSuchTenant { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn wait_for(&self, name: &str) -> Result<(), Error> {
        if self.deadline.is_over() {
            let reason = "it was not ready in time; see `partita doctor`".to_owned();
            return Err(Error::Child { job: format!("tenant {name}"), reason });
        }
        thread::sleep(POLL);
        Ok(())
    }

    fn hold(&self, name: &str, wanted: &LimitSet) -> Result<(), Error> {
        let failed = |reason: String| Error::Child { job: format!("tenant {name}"), reason };
        let program = self.install.program();
        let mut command = Command::new(program);
        command.args([mps::DETACH_SUBCOMMAND, "--"]).arg(program);
        command.args(["run", "--gpu", &self.selectors, "--name", name]).args(request::options(wanted));
        command.arg("--").arg(program).arg(HOLD_SUBCOMMAND).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        loop {
            if self.tenant_is_up(name)? == Some(true) {
                return Ok(());
            }
            if child.try_wait().map_err(Error::io("partita run"))?.is_some() {
                let output = child.wait_with_output().map_err(Error::io("partita run"))?;
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(failed(said.trim().trim_start_matches("partita: ").to_owned()));
            }
            self.wait_for(name).inspect_err(|_| {
                let _ = child.kill();
            })?;
        }
    }

    /// The service, to end something: one that does not answer will be ended without its help.
    fn service_to_end(&self) -> Result<Service, Error> {
        let service = mps::service(&self.install, &self.registry, &self.gpus)?;
        Ok(service.with_command_limit(ANSWER_LIMIT.min(self.deadline.left() / 4)))
    }

    fn terminate(&self, pids: &[u32], alone: bool, outcome: &mut Outcome) -> Result<(), Error> {
        let service = self.service_to_end()?;
        Ok(terminate(&service, pids, alone, outcome)?)
    }

    fn end_tenant(&self, name: &str, grace: Duration, outcome: &mut Outcome) -> Result<(), Error> {
        match kill::kill(&self.install, &self.registry, name, grace) {
            Ok(killed) => {
                *outcome.tenant_processes.get_or_insert(0) += killed.processes;
                outcome.notices.extend(killed.notices);
                Ok(())
            }
            Err(Error::NoSuchTenant { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn stop(&self) -> Result<Outcome, Error> {
        let service = self.service_to_end()?;
        let mut outcome = Outcome { ran: service.stop(true)?, ..Outcome::default() };
        outcome.ran |= strays::end_service(&service, self.deadline)?;
        if let State::Running { pid } = service.state()? {
            return Err(Error::Mps(MpsError::StillRunning { pid, waited_s: strays::LIMIT.as_secs() }));
        }
        mps::remove(&self.registry, &self.gpus, &service)?;
        Ok(outcome)
    }
}

/// Ends what clients have on the GPU: these processes, those that are none any more, or all.
fn terminate(service: &Service, pids: &[u32], alone: bool, outcome: &mut Outcome) -> Result<(), MpsError> {
    if !matches!(service.state()?, State::Running { .. }) {
        return Ok(());
    }
    // Ending the work of a client takes as long as its kernels let it.
    let control = service.control().with_limit(COMMAND_LIMIT);
    for (server, client) in service.clients()? {
        let is_zombie = ProcessId::living(client).is_none();
        if !(alone || is_zombie || pids.contains(&client)) {
            continue;
        }
        if !end_work(&control, server, client)? {
            continue;
        }
        outcome.terminated.push(client);
        if is_zombie {
            outcome.zombies.push(client);
        }
    }
    Ok(())
}

/// Variables for programs of other environments than this one's.
fn environment(variables: &[(&str, std::ffi::OsString)]) -> JobEnvironment {
    let mut environment = JobEnvironment::default();
    for (key, value) in variables {
        let text = value.to_string_lossy();
        match *key {
            // Made for each task of its own numbers.
            "CUDA_VISIBLE_DEVICES" => {}
            key if LISTS.contains(&key) => {
                let first = std::env::split_paths(OsStr::new(text.as_ref())).next().unwrap_or_default();
                environment.prepend.push((key.to_owned(), first.to_string_lossy().into_owned()));
            }
            key => environment.set.push((key.to_owned(), text.into_owned())),
        }
    }
    environment
}
