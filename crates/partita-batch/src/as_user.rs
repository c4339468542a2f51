//! The part of the work that is done for the job's user: its service, its tenant, its clients.
//!
//! It runs in a child process with a timeout, because the driver and the control program can hang.
//! That process has the user's rights: the user can fill the directories with links. In system mode
//! the directories and the service are root's. There the process stays root's for what the user may
//! not do, and acts for the user, as the processes of `partitad` do.

use std::collections::BTreeSet;
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
use partita_host::registry::{self, Registry, Tenant};
use partita_host::run::{self, RunRequest};
use partita_host::{kill, mps, queue, system};
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
/// The hidden subcommand of `partita` that only waits: it keeps a job's tenant alive between the
/// job's programs.
pub const HOLD_SUBCOMMAND: &str = "internal-hold";

/// Batch systems call their scripts without a `PATH`.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where the directory of tenants is.
const RUN_DIR: &str = "PARTITA_RUN_DIR";
/// The directory of calibrations, if it is not the default.
const CACHE_DIR: &str = "PARTITA_CACHE_DIR";
/// Those that the commands of the job get too.
const PLACES_OF_JOB: [&str; 2] = [RUN_DIR, "PARTITA_LIB_DIR"];
/// Variables that are lists of files or directories.
const LISTS: [&str; 3] = ["LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"];
/// Timeout of a daemon's answer to a command that ends something.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);

/// An action.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Start the service of the machine, in system mode.
    Serve,
    /// Whether the GPUs are there and a tenant has room: for a dry run, and after a start has
    /// failed, because that shows whether the job is at fault.
    Check {
        /// The name of the tenant.
        tenant: String,
        /// Its limits, if there is to be one.
        wanted: Option<LimitSet>,
    },
    /// Start what the request asks for; what already runs stays.
    Start {
        /// The name of the tenant, if there is one.
        tenant: String,
        /// The request.
        request: Request,
        /// The job alone uses the service: if it does not answer, it may be restarted.
        alone: bool,
    },
    /// End the job's work on the GPUs, through MPS first.
    Leave {
        /// The tenant to end with all its processes, if it exists.
        tenant: Option<String>,
        /// Whether the job's processes may be clients of the service.
        service: bool,
        /// The job's other processes.
        pids: Vec<u32>,
        /// Whether all clients of the service belong to the job.
        alone: bool,
        /// Whether the job is over: nothing that was ever started for it may stay.
        over: bool,
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// Stop the service and remove its directories. Not in system mode, where it is not the job's.
    Stop,
}

impl Action {
    /// Whether root does it for the user in system mode.
    fn is_roots(&self) -> bool {
        matches!(self, Self::Serve | Self::Check { .. } | Self::Leave { .. })
    }
}

/// An action and its GPUs, in the form of `--gpu`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// In the job's order.
    pub gpus: Vec<String>,
    /// The action.
    pub action: Action,
    /// The job's user. Set by [`ask`].
    pub user: u32,
    /// The timeout, in milliseconds. Set by [`ask`].
    pub limit_ms: u64,
    /// The process that waits for it. Set by [`ask`].
    pub caller: u32,
}

impl Order {
    /// An order for [`ask`].
    pub fn new(gpus: Vec<String>, action: Action) -> Self {
        Self { gpus, action, user: 0, limit_ms: 0, caller: 0 }
    }
}

/// The result of an action.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The service's daemon, if one runs now.
    pub daemon: Option<u32>,
    /// Whether this call started it.
    pub started: bool,
    /// Whether this call stopped a running one.
    pub ran: bool,
    /// The environment of the job's programs.
    pub environment: JobEnvironment,
    /// Clients whose work on the GPU was ended.
    pub terminated: Vec<u32>,
    /// Those of them that are not living processes.
    pub zombies: Vec<u32>,
    /// How many processes of the tenant were ended; `None` without a tenant.
    pub tenant_processes: Option<usize>,
    /// Problems that did not prevent the rest.
    pub notices: Vec<String>,
    /// The cause of the failure, if the action failed: whose fault, and why.
    pub refused: Option<(Blame, String)>,
}

/// Runs an action in a child process for `account`, in the run directory `registry`.
///
/// # Errors
/// The action's [`Trouble`], or the node's if the child did not answer in time.
pub fn ask(
    install: &Install,
    registry: &Registry,
    account: &Account,
    of: &JobId,
    order: Order,
    deadline: Deadline,
) -> Result<Outcome, Trouble> {
    // The child has its own deadlines; this one is for a child that hangs in the driver.
    const RESERVE: Duration = Duration::from_millis(500);
    let limit = deadline.left();
    let is_roots = order.action.is_roots();
    let order = Order {
        user: account.user,
        limit_ms: limit.saturating_sub(RESERVE).as_millis() as u64,
        caller: std::process::id(),
        ..order
    };
    let what = match order.action {
        Action::Serve | Action::Start { .. } => "starting MPS",
        Action::Check { .. } => "planning its part of the GPU",
        Action::Leave { .. } => "ending the job's work on the GPU",
        Action::Stop => "stopping MPS",
    };
    let gpus = order.gpus.join(",");
    let job = Job::new(install, JOB, &order).map_err(Trouble::node)?.limit(limit);
    let cache = std::env::var_os(CACHE_DIR).map(|dir| (CACHE_DIR, dir));
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    let run_dir = (RUN_DIR, registry.root().into());
    let variables = [("PATH", path), run_dir, (strays::JOB_VARIABLE, of.to_string().into())];
    let job = job.envs(cache).envs(variables);
    let own = rustix::process::geteuid();
    let stays_root = registry.is_system() && own.is_root() && is_roots;
    let job = match own.as_raw() == account.user || stays_root {
        true => job,
        false => job.as_user(account.user, account.group),
    };
    let job = if stays_root { job } else { job.envs(account.variables()) };
    let outcome: Outcome = job.run().map_err(Trouble::node)?.map_err(|error| {
        let reason = match error {
            JobError::TimedOut { .. } => format!(
                "{what} for {} on GPU {gpus} took longer than the remaining {} s; see whether \
                 `nvidia-smi` answers, and for the daemon its control.log",
                account.name,
                limit.as_secs()
            ),
            JobError::Failed { reason, .. } => reason,
            other => format!("{what} for {} on GPU {gpus}: {other}", account.name),
        };
        Trouble::node(reason)
    })?;
    match outcome.refused {
        Some((blame, reason)) => Err(Trouble { blame, reason }),
        None => Ok(outcome),
    }
}

/// The job: runs an action for its user.
///
/// # Errors
/// Failures of the node.
pub fn work(order: &Order) -> Result<Outcome, String> {
    // A caller that died before this process asked to die with it: its job may have another script
    // by now.
    if rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get() as u32) != Some(order.caller) {
        return Err("the process that requested it is gone".to_owned());
    }
    if rustix::process::geteuid().as_raw() != order.user {
        registry::act_for(order.user);
    }
    let outcome = Worker::open(order).and_then(|here| here.carry_out(order));
    outcome.or_else(|error| match blame(&error) {
        Blame::Job => Ok(Outcome { refused: Some((Blame::Job, error.to_string())), ..Outcome::default() }),
        Blame::Node => Err(error.to_string()),
    })
}

/// Whether the job requested something that does not exist.
fn blame(error: &Error) -> Blame {
    match error {
        Error::Plan { .. }
        | Error::QuotaAboveDevice { .. }
        | Error::MemoryPromised { .. }
        | Error::Queued { .. }
        | Error::QuotaZero
        | Error::Name { .. }
        | Error::NameInUse { .. }
        | Error::GpuSelector { .. }
        | Error::GpuTwice { .. }
        | Error::NotOffered { .. }
        | Error::OtherGroup { .. } => Blame::Job,
        _ => Blame::Node,
    }
}

/// The context of an action.
struct Worker {
    install: Install,
    registry: Registry,
    gpus: Vec<Gpu>,
    selectors: String,
    /// The job's user.
    user: u32,
    deadline: Deadline,
}

impl Worker {
    fn open(order: &Order) -> Result<Self, Error> {
        let deadline = Deadline::after(Duration::from_millis(order.limit_ms));
        let install = Install::of_this_program()?;
        let registry = Registry::open()?;
        let selectors: Selectors = order.gpus.join(",").parse()?;
        // This also shows that the driver answers.
        let gpus = gpus::select(&install, Some(&selectors))?.gpus;
        let (selectors, user) = (selectors.to_string(), order.user);
        Ok(Self { install, registry, gpus, selectors, user, deadline })
    }

    fn carry_out(&self, order: &Order) -> Result<Outcome, Error> {
        match &order.action {
            Action::Serve => {
                let (_, Ensured { pid, started }) =
                    mps::start_for_all(&self.install, &self.registry, &self.gpus)?;
                Ok(Outcome { daemon: Some(pid), started, ..Outcome::default() })
            }
            Action::Check { tenant, wanted } => {
                self.gpus.iter().try_for_each(run::check_usable)?;
                if let Some(wanted) = wanted {
                    self.check(&self.request(tenant, wanted)?)?;
                }
                Ok(Outcome::default())
            }
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
                // A process that was about to make the tenant may have made it just now.
                if *over && strays::end(|| self.unfinished(), self.deadline)? {
                    end_tenant(&mut outcome)?;
                }
                // This also removes what ended tenants of the job left behind.
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
        // In system mode `partitad` starts it with the tenant, or root has started it.
        let is_own = !self.registry.is_system();
        if let Some(service) = service.as_ref().filter(|_| is_own) {
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
        if let Some(service) = service.as_ref().filter(|_| !is_own)
            && let State::Running { pid } = service.state()?
        {
            outcome.daemon = Some(pid);
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
            // A daemon would not help.
            Err(
                error @ (MpsError::BinaryNotFound { .. }
                | MpsError::Spawn { .. }
                | MpsError::Directory { .. }
                | MpsError::Foreign { .. }),
            ) => Err(error.into()),
            // The service is left from an earlier job or a killed prolog, and is not in use.
            Err(_) if alone => {
                self.service_to_end()?.stop(true)?;
                strays::end_service(service, self.deadline)?;
                mps::make_dirs(&self.registry, &self.gpus, service)?;
                Ok(service.ensure()?)
            }
            ensured => Ok(ensured?),
        }
    }

    /// Makes the tenant and starts a process in it that waits, unless both exist.
    fn make_tenant(&self, name: &str, wanted: &LimitSet) -> Result<(), Error> {
        if self.tenant_is_up(name)? == Some(true) {
            return Ok(());
        }
        // A killed prolog may have left a process that is about to make a tenant of this name.
        strays::end(|| self.unfinished(), self.deadline)?;
        if self.registry.is_system() {
            // `partitad` plans; if it refuses, root finds out why. Only `partitad` knows groups.
            if self.registry.is_client() {
                system::check_groups(&self.registry, &self.selectors.parse()?)?;
            }
            return self.hold(name, wanted);
        }
        let request = self.request(name, wanted)?;
        self.check(&request)?;
        // Another process can still be faster.
        self.hold(name, wanted).or_else(|error| self.check(&request).and(Err(error)))
    }

    fn request(&self, name: &str, wanted: &LimitSet) -> Result<RunRequest, Error> {
        Ok(RunRequest {
            gpus: Some(self.selectors.parse()?),
            limits: *wanted,
            name: Some(name.to_owned()),
            ..RunRequest::default()
        })
    }

    /// Whether the tenant has room. The type of the error shows whether the job is at fault.
    fn check(&self, request: &RunRequest) -> Result<(), Error> {
        run::dry_run(&self.install, request, |_| {})?;
        queue::check_none_waits(&self.registry, &self.gpus)
    }

    /// What was started for the job, and is not done, by its user and by this one.
    fn unfinished(&self) -> BTreeSet<ProcessId> {
        let users = [self.user, rustix::process::geteuid().as_raw()];
        let mut found = strays::unfinished();
        found.retain(|process| process.user().is_some_and(|user| users.contains(&user)));
        found
    }

    /// Whether the tenant is complete; `None` if this user has no such tenant.
    fn tenant_is_up(&self, name: &str) -> Result<Option<bool>, Error> {
        let user = self.user;
        let is_up = |part: &Tenant| part.meta.as_ref().is_ok_and(|meta| meta.child.is_some());
        match self.registry.lock()?.tenant(name) {
            Ok(parts) if parts.iter().all(|part| part.user == user) => Ok(Some(parts.iter().all(is_up))),
            // If another user has this name, making the tenant will report that.
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

    /// The service, to end something: if it does not answer, it is ended without its help.
    fn service_to_end(&self) -> Result<Service, Error> {
        let service = mps::service(&self.install, &self.registry, &self.gpus)?;
        Ok(service.with_command_limit(ANSWER_LIMIT.min(self.deadline.left() / 4)))
    }

    fn terminate(&self, pids: &[u32], alone: bool, outcome: &mut Outcome) -> Result<(), Error> {
        let service = self.service_to_end()?;
        if self.registry.is_client() {
            let gpus = Selectors::List(self.gpus.iter().map(Gpu::selector).collect());
            outcome.terminated.extend(system::end_work(&self.registry, &service, &gpus, pids)?);
            return Ok(());
        }
        // In system mode the dead may be another user's, whose holder keeps what the GPU needs.
        let with_dead = !self.registry.is_system();
        Ok(terminate(&service, pids, alone, with_dead, outcome)?)
    }

    fn end_tenant(&self, name: &str, grace: Duration, outcome: &mut Outcome) -> Result<(), Error> {
        match kill::kill(&self.install, &self.registry, name, grace) {
            Ok(killed) => {
                *outcome.tenant_processes.get_or_insert(0) += killed.processes;
                outcome.notices.extend(killed.notices);
                Ok(())
            }
            // A tenant of another user with this name is not the job's.
            Err(Error::NoSuchTenant { .. } | Error::NotYours { .. }) => Ok(()),
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

/// Ends the GPU work of clients: these processes, those that are dead, or all.
fn terminate(
    service: &Service,
    pids: &[u32],
    alone: bool,
    with_dead: bool,
    outcome: &mut Outcome,
) -> Result<(), MpsError> {
    if !matches!(service.state()?, State::Running { .. }) {
        return Ok(());
    }
    // Ending the work of a client takes as long as its kernels let it.
    let control = service.control().with_limit(COMMAND_LIMIT);
    for (server, client) in service.clients()? {
        let is_zombie = ProcessId::living(client).is_none();
        if !(alone || is_zombie && with_dead || pids.contains(&client)) {
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

/// The variables, for programs with other environments than this one.
fn environment(variables: &[(&str, std::ffi::OsString)]) -> JobEnvironment {
    let mut environment = JobEnvironment::default();
    for (key, value) in variables {
        let text = value.to_string_lossy();
        match *key {
            // Set for each task, from its own numbers.
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
