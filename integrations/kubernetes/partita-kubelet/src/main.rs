//! The program `partita-kubelet`.

use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Parser;
use partita::gpus::{LeftOut, Selectors};
use partita_kubelet::args::{Args, Command, DevicePluginArgs, NodeArgs, WebhookArgs};
use partita_kubelet::device_plugin::Plugin;
use partita_kubelet::events::Events;
use partita_kubelet::journal::Journal;
use partita_kubelet::metadata::Files;
use partita_kubelet::metrics::{Calls, Page};
use partita_kubelet::node::Found;
use partita_kubelet::plugin::{Driver, serve};
use partita_kubelet::prepare::{Tenants, install};
use partita_kubelet::publish::Publisher;
use partita_kubelet::status::Statuses;
use partita_kubelet::{node, resize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, watch};

/// How long to wait for the lock of another driver on this node.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("partita-kubelet: threads cannot be started: {error}");
            return ExitCode::from(125);
        }
    };
    let done = runtime.block_on(async {
        match args.command.clone() {
            None => run(args).await,
            Some(Command::Webhook(args)) => webhook(args).await,
            Some(Command::DevicePlugin(args)) => device_plugin(args).await,
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("partita-kubelet: {error:#}");
            ExitCode::from(125)
        }
    }
}

async fn client(api_server: Option<&str>) -> anyhow::Result<kube::Client> {
    let config = match api_server {
        Some(url) => kube::Config::new(url.parse().with_context(|| format!("--api-server {url}"))?),
        None => kube::Config::infer().await.context("the cluster's configuration")?,
    };
    kube::Client::try_from(config).context("the client of the API server")
}

/// True once the process is asked to end.
fn ended() -> anyhow::Result<watch::Receiver<bool>> {
    let (end, ended) = watch::channel(false);
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    tokio::spawn(async move {
        let [terminate, interrupt] = &mut signals;
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        let _ = end.send(true);
    });
    Ok(ended)
}

async fn webhook(args: WebhookArgs) -> anyhow::Result<()> {
    let client = client(args.api_server.as_deref()).await?;
    partita_kubelet::webhook::serve(&args, client, ended()?).await
}

/// The tenants of this node, with its GPUs, and who looks at the GPUs again and again.
struct Node {
    tenants: Arc<Tenants>,
    selectors: Selectors,
    boards_changed: watch::Sender<u64>,
    /// In seconds of Unix time; it is reported, and decides nothing.
    looked_at_s: watch::Sender<i64>,
    /// No other driver or plugin makes tenants here.
    _alone: std::fs::File,
}

impl Node {
    /// Of claims, or of a device plugin's devices.
    async fn open(args: &NodeArgs, has_claims: bool) -> anyhow::Result<Self> {
        let journal = if has_claims { "claims" } else { "devices" };
        let selectors: Selectors = args.gpu.parse().map_err(|error| anyhow!("--gpu: {error}"))?;
        if matches!(selectors, Selectors::Any(_)) {
            return Err(anyhow!(
                "--gpu {selectors}: a node offers GPUs and chooses none; write all, or name them"
            ));
        }
        let install = install(args.partita.as_deref()).map_err(|error| anyhow!(error))?;
        let lock = args.state_dir.join("lock");
        std::fs::create_dir_all(&args.state_dir).with_context(|| args.state_dir.display().to_string())?;
        let alone = std::fs::File::create(&lock).with_context(|| lock.display().to_string())?;
        lock_alone(&alone).await.with_context(|| {
            format!("another driver or device plugin runs with {}; a node has one", args.state_dir.display())
        })?;
        let journal = Journal::open(&args.state_dir.join(journal)).context("the journal")?;
        let metadata = match has_claims {
            true => Some(std::path::absolute(args.state_dir.join("metadata")).context("--state-dir")?),
            false => None,
        };
        let metadata = metadata.map(|dir| Files::open(&dir).with_context(|| dir.display().to_string()));
        let tenants = Arc::new(Tenants {
            install,
            cdi: std::path::absolute(&args.cdi_dir).context("--cdi-dir")?,
            journal,
            metadata: metadata.transpose()?,
            boards: RwLock::default(),
            left_out: RwLock::default(),
            instances: std::sync::Mutex::default(),
        });
        let (boards_changed, looked_at_s) = (watch::Sender::new(0), watch::Sender::new(0));
        let node = Self { tenants, selectors, boards_changed, looked_at_s, _alone: alone };
        let found = match node.look().await {
            // A device plugin has nothing to do without GPUs. A driver still ends claims.
            Err(error) if !has_claims => return Err(anyhow!(error)),
            found => found.unwrap_or_else(|error| Found::nothing(&error)),
        };
        for LeftOut { reason, .. } in &found.left_out {
            tracing::error!(reason, "a GPU is not offered");
        }
        tracing::info!(gpus = found.boards.len(), "starts");
        node.tenants.set_found(&found);
        node.tenants.take_all_instances();
        node.looked_at_s.send_replace(unix_s());
        Ok(node)
    }

    async fn look(&self) -> Result<Found, String> {
        let (tenants, selectors) = (self.tenants.clone(), self.selectors.clone());
        let read = tokio::task::spawn_blocking(move || node::read(&tenants.install, &selectors));
        let mut found = read.await.unwrap_or_else(|error| Err(error.to_string()))?;
        // A device plugin offers shares of GPUs.
        if self.tenants.metadata.is_none() && !found.divided.is_empty() {
            found.boards.retain(|board| board.mig.is_none());
            let left_out = found.divided.iter().map(|uuid| LeftOut {
                uuid: Some(uuid.clone()),
                reason: format!("{uuid} has MIG; a DRA driver offers instances"),
            });
            found.left_out.extend(left_out);
        }
        Ok(found)
    }

    /// Looks at the GPUs until the process ends.
    async fn keep(self, pause: Duration) {
        let mut left_out_before = Vec::new();
        loop {
            tokio::time::sleep(pause).await;
            let found = self.look().await.unwrap_or_else(|error| Found::nothing(&error));
            let left_out: Vec<&str> = found.left_out.iter().map(|one| one.reason.as_str()).collect();
            if self.tenants.set_found(&found) {
                tracing::warn!(?left_out, "the GPUs changed");
                self.boards_changed.send_modify(|count| *count += 1);
            } else if found.left_out != left_out_before {
                tracing::warn!(?left_out, "GPUs are not offered");
            }
            left_out_before = found.left_out;
            self.looked_at_s.send_replace(unix_s());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it is reported to the kubelet; nothing here reads it")]
fn unix_s() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.ok().and_then(|now| i64::try_from(now.as_secs()).ok()).unwrap_or(0)
}

/// Locks the node for this driver. A child of a driver that was just killed has the lock until it
/// starts its program, so this waits.
async fn lock_alone(file: &std::fs::File) -> Result<(), std::fs::TryLockError> {
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) if begin.elapsed() < LOCK_LIMIT => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => return done,
        }
    }
}

async fn device_plugin(args: DevicePluginArgs) -> anyhow::Result<()> {
    let node = Node::open(&args.node, false).await?;
    let pause = Duration::from_secs(args.node.look_s);
    let plugin = Arc::new(Plugin {
        tenants: node.tenants.clone(),
        offer: args.offer(),
        kubelet_dir: args.node.kubelet_dir.clone(),
        plugins_dir: args.device_plugins_dir.clone(),
        gpu_kind: args.node.gpu_cdi_kind.clone(),
        turn: Mutex::default(),
        boards_changed: node.boards_changed.subscribe(),
    });
    if let Some(address) = args.node.metrics {
        let kubelet_dir = args.node.kubelet_dir.clone();
        Page { tenants: node.tenants.clone(), calls: None, kubelet_dir }.start(address).await?;
    }
    tokio::spawn(node.keep(pause));
    plugin.resume().await;
    {
        let plugin = plugin.clone();
        tokio::spawn(async move { plugin.end_gone(pause).await });
    }
    partita_kubelet::device_plugin::serve(plugin, ended()?).await
}

async fn run(args: Args) -> anyhow::Result<()> {
    let node_name = args.node_name.context("--node-name is missing")?;
    let client = client(args.api_server.as_deref()).await?;
    let node = Node::open(&args.node, true).await?;
    let tenants = node.tenants.clone();
    let (changed, changes_seen) = watch::channel(0);
    let calls = Arc::new(Calls::default());
    let driver = Arc::new(Driver {
        tenants: tenants.clone(),
        client: client.clone(),
        events: Events::new(client.clone(), &node_name),
        node: node_name.clone(),
        gpu_kind: args.node.gpu_cdi_kind,
        turn: Arc::new(Mutex::new(())),
        calls: calls.clone(),
        changed,
        statuses: Statuses::default(),
        looked_at_s: node.looked_at_s.subscribe(),
        look_s: args.node.look_s,
    });
    if let Some(address) = args.node.metrics {
        let page =
            Page { tenants: tenants.clone(), calls: Some(calls), kubelet_dir: args.node.kubelet_dir.clone() };
        page.start(address).await?;
    }
    let ended = ended()?;
    tokio::spawn(Publisher::new(client, &node_name, tenants).keep(node.boards_changed.subscribe()));
    tokio::spawn(resize::keep(driver.clone(), changes_seen));
    tokio::spawn(Statuses::keep(driver.clone(), node.boards_changed.subscribe()));
    {
        let driver = driver.clone();
        tokio::spawn(async move { driver.end_orphans().await });
    }
    tokio::spawn(node.keep(Duration::from_secs(args.node.look_s)));
    serve(driver, &args.node.kubelet_dir, ended).await.context("the sockets for the kubelet")
}
