//! Serving: from the arguments to sockets that answer, until a signal ends it.

mod connection;
mod end;
mod logs;
mod socket;
mod system;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use partita::install::Install;
use partita::mode;
use partita::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use crate::caller::Peer;
pub use crate::token::Tokens;

use crate::api::{self, App};
use crate::args::Serve;
use crate::chains::Facade;
use crate::memory::Keepers;
use crate::site::SitePolicy;
use crate::store::Store;
use connection::{Guarded, Limits, Source};
use socket::Socket;

/// Descriptors for all connections of both listeners, and some for their requests.
const DESCRIPTORS: u64 = 4096;

/// How long a request waits for the registry: its client waits, and `/healthz` must report a
/// registry that does not answer.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Additional time for a request's head: a body that is late is refused before the connection ends.
const HEAD: Duration = Duration::from_secs(5);

/// Serves until a signal ends it.
///
/// # Errors
/// Why it cannot start, with the remedy.
pub fn run(arguments: &Serve) -> anyhow::Result<()> {
    let left_out = logs::start(&arguments.log, arguments.log_format)?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("threads")?;
    runtime.spawn(left_out.clone().keep_telling());
    let served = runtime.block_on(serve(arguments));
    left_out.tell();
    // Looks at a driver that hangs must not hold the end up.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

async fn serve(arguments: &Serve) -> anyhow::Result<()> {
    // First, so that no signal is missed from here on.
    let signals = end::Signals::new().context("signal handlers")?;
    let tokens = Tokens::read(arguments.token_file.as_deref(), arguments.read_token_file.as_deref())?;
    arguments.gpu_groups.check_exist().map_err(|reason| anyhow::anyhow!("--gpu-groups: {reason}"))?;
    if !arguments.system && !arguments.gpu_groups.is_empty() {
        anyhow::bail!(
            "--gpu-groups: without --system each user plans alone, and no group is asked; add --system"
        );
    }
    let registry = if arguments.system { Registry::open_system()? } else { Registry::open()? };
    if !arguments.system && registry.is_system() {
        let root = registry.root().display();
        match registry.is_client() {
            true => bail!(
                "{root} is in system mode, where root's partitad serves every user ({}); for one of your \
                 own, set PARTITA_RUN_DIR to a directory of your own",
                partita_chain_host::daemon::socket_of(&registry, 0).display()
            ),
            false => {
                bail!("{root} is in system mode; add --system, or set PARTITA_RUN_DIR to another directory")
            }
        }
    }
    let registry = registry.with_lock_limit(LOCK_LIMIT);
    let steered = registry.is_system().then(|| registry.clone());
    let planned = registry.clone();
    let left = mode::left_in_user_mode(&registry);
    let path = arguments
        .socket
        .clone()
        .unwrap_or_else(|| partita_chain_host::daemon::socket_of(&registry, own_user()));
    let mut socket = Socket::claim(&path)?;
    if let Some(dir) = &arguments.dcgm_job_map {
        api::make_dir(dir).with_context(|| format!("--dcgm-job-map {}", dir.display()))?;
    }
    let state = arguments.state.clone().map_or_else(partita::state::dir, Ok)?;
    let store = Store::open(&state)?;
    let program = std::env::current_exe().context("the path of this program")?;
    let command = program.with_file_name(partita::install::COMMAND);
    let requests = registry.is_system().then(|| partita::system::socket_in(registry.root()));
    let chains = Facade::new(registry.clone(), program.clone(), state.join("chains"), arguments.gpu.as_ref());
    let keepers = Keepers::new(registry.clone());
    let (ending, ended) = watch::channel(false);
    let site = requests.is_some().then(|| SitePolicy::begin(partita::policy::path())).transpose()?;
    let app = Arc::new(App::new(api::Parts {
        store,
        registry,
        install: Install::of(program, std::env::var_os("PARTITA_LIB_DIR")),
        gpus: arguments.gpu.clone(),
        chains: Box::new(chains),
        memory: Box::new(keepers),
        user: own_user(),
        tokens,
        hosts: hosts(&arguments.allow_host),
        metric_names: arguments.metric_names.clone(),
        job_map: arguments.dcgm_job_map.clone(),
        audit_every: arguments.audit_every.0,
        site: site.clone(),
        answer_limit: arguments.answer_s,
        body_limit: arguments.body_s,
        ended: ended.clone(),
    }));
    let ended_by = ended.clone();
    let router = api::router(Arc::clone(&app));
    let mut serving = JoinSet::new();
    let limits = Limits::new(arguments.body_s + HEAD);
    if let Some(address) = arguments.listen {
        if !address.ip().is_loopback() && !arguments.allow_remote {
            bail!(
                "--listen {address}: other machines reach this address, and the token would cross the network in the clear; listen on \
                 127.0.0.1 behind a proxy with TLS, or say --allow-remote"
            );
        }
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!(
                "--listen {address}: cannot bind this address; choose another port, or stop the \
                program that uses it"
            )
        })?;
        tracing::info!(address = %listener.local_addr()?, "listening on TCP");
        serving.spawn(accept(Guarded::new(listener, limits, own_user()), router.clone(), ended.clone()));
    }
    let mut requests = requests.as_deref().map(Socket::claim).transpose()?;
    if let (Some(socket), Some(policy)) = (&mut requests, site) {
        policy.follow(planned, ended.clone()).context("signal handlers")?;
        let listener = Guarded::new(socket.listen()?, limits, own_user());
        let answering = system::Answering { command, gpu_groups: arguments.gpu_groups.to_string(), policy };
        serving.spawn(system::accept(listener, answering, ended.clone()));
    }
    let listener = socket.listen()?;
    serving.spawn(accept(Guarded::new(listener, limits, own_user()), router, ended));
    tracing::info!(socket = %path.display(), state = %app.store().path().display(), user = own_user(), "serving");
    match left {
        Ok(0) => {}
        Ok(tenants) => tracing::warn!(
            tenants,
            run_dir = partita::registry::DEFAULT_ROOT,
            "tenants of user mode run on, which plans of system mode do not count; end them"
        ),
        Err(error) => tracing::warn!(%error, "tenants of user mode"),
    }
    app.look_at_health();
    let groups = arguments.gpu_groups.clone();
    tokio::spawn(api::check_groups(Arc::clone(&app), groups));
    let following = tokio::spawn(api::follow(Arc::clone(&app)));
    let auditing = tokio::spawn(api::audit(Arc::clone(&app)));
    let sampling = tokio::spawn(api::sample(Arc::clone(&app)));
    let mapping = tokio::spawn(api::map_jobs(Arc::clone(&app)));
    let deciding = tokio::spawn(api::decisions(Arc::clone(&app)));
    let steering = steered.map(|registry| hold_targets(registry, ended_by));
    let watchdog = end::tell_ready();

    let why = signals.wait().await;
    tracing::info!(signal = why, drain_s = arguments.drain_s.as_secs(), "ending");
    end::tell_stopping();
    let _ = ending.send(true);
    let drained =
        tokio::time::timeout(arguments.drain_s, async { while serving.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(
            requests = app.requests_in_flight(),
            "some requests did not end in time and are cut off"
        );
        serving.shutdown().await;
    }
    let _ = following.await;
    let _ = auditing.await;
    let _ = sampling.await;
    let _ = mapping.await;
    let _ = deciding.await;
    if let Some(Ok(thread)) = steering {
        // A look takes milliseconds; a move waits for planners.
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
    if let Some(watchdog) = watchdog {
        watchdog.abort();
    }
    drop((socket, requests));
    tracing::info!("ended");
    Ok(())
}

/// Moves compute units for the targets of all tenants, in a separate thread, until the end begins.
fn hold_targets(
    registry: Registry,
    ended: watch::Receiver<bool>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let hold = move || {
        let is_over = || *ended.borrow() || ended.has_changed().is_err();
        partita::slo::control_all(&registry, is_over, |error| tracing::warn!(%error, "targets of tenants"));
    };
    let thread = std::thread::Builder::new().name("targets".to_owned()).spawn(hold);
    thread.inspect_err(|error| tracing::warn!(%error, "targets of tenants are not held"))
}

/// Serves the connections of one listener until the end begins, and then those that exist.
async fn accept<S: Source>(mut listener: Guarded<S>, router: Router, mut ended: watch::Receiver<bool>) {
    let router = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    // A client may say that its request was the last before it reads the answer. The connection has
    // its own deadlines.
    http.half_close(true).header_read_timeout(None);
    let connections = GracefulShutdown::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender gone is the end too.
            _ = ended.wait_for(|&ended| ended) => break,
        };
        let router = router.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            router.call(request)
        });
        let served = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        // How it ended is the client's affair.
        tokio::spawn(async move { drop(served.await) });
    }
    drop(listener);
    connections.shutdown().await;
}

/// Every connection is a descriptor, and the usual limit is fewer than there may be connections. As
/// much as is allowed without asking.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let wanted = now.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if now.current.is_some_and(|current| current < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..now })
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// The names of this machine: its own, with and without its domain, and those of `--allow-host`.
fn hosts(allowed: &[String]) -> Vec<String> {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own = own.trim().to_ascii_lowercase();
    let short = own.split('.').next().unwrap_or_default().to_owned();
    let names = [own, short].into_iter().chain(allowed.iter().cloned());
    names.filter(|name| !name.is_empty()).collect()
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
