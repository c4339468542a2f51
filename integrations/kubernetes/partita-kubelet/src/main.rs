//! The program `partita-kubelet`.

use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Parser;
use partita::gpus::Selectors;
use partita_kubelet::args::Args;
use partita_kubelet::events::Events;
use partita_kubelet::journal::Journal;
use partita_kubelet::metrics::{Calls, Page};
use partita_kubelet::plugin::{Driver, serve};
use partita_kubelet::prepare::{Tenants, install};
use partita_kubelet::publish::Publisher;
use partita_kubelet::{node, resize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, watch};

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
    match runtime.block_on(run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("partita-kubelet: {error:#}");
            ExitCode::from(125)
        }
    }
}

async fn client(args: &Args) -> anyhow::Result<kube::Client> {
    let config = match &args.api_server {
        Some(url) => kube::Config::new(url.parse().with_context(|| format!("--api-server {url}"))?),
        None => kube::Config::infer().await.context("the cluster's configuration")?,
    };
    kube::Client::try_from(config).context("the client of the API server")
}

async fn run(args: Args) -> anyhow::Result<()> {
    let selectors: Selectors = args.gpu.parse().map_err(|error| anyhow!("--gpu: {error}"))?;
    let install = install(args.partita.as_deref()).map_err(|error| anyhow!(error))?;
    let client = client(&args).await?;
    let journal = Journal::open(&args.state_dir.join("claims")).context("the journal")?;
    let tenants = Arc::new(Tenants {
        install,
        cdi: std::path::absolute(&args.cdi_dir).context("--cdi-dir")?,
        journal,
        boards: RwLock::new(Vec::new()),
    });
    let look = |tenants: Arc<Tenants>, selectors: Selectors| async move {
        let read = tokio::task::spawn_blocking(move || node::read(&tenants.install, &selectors));
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    };
    let (boards, left_out) =
        look(tenants.clone(), selectors.clone()).await.map_err(|error| anyhow!(error))?;
    for reason in left_out {
        tracing::error!(reason, "a GPU is not offered");
    }
    tracing::info!(gpus = boards.len(), node = args.node_name, "starts");
    tenants.set_boards(node::merge(&[], boards));

    let (boards_changed, boards_seen) = watch::channel(0);
    let (changed, changes_seen) = watch::channel(0);
    let calls = Arc::new(Calls::default());
    let driver = Arc::new(Driver {
        tenants: tenants.clone(),
        client: client.clone(),
        events: Events::new(client.clone(), &args.node_name),
        node: args.node_name.clone(),
        gpu_kind: args.gpu_cdi_kind.clone(),
        turn: Arc::new(Mutex::new(())),
        calls: calls.clone(),
        changed,
    });
    if let Some(address) = args.metrics {
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("--metrics {address}"))?;
        tracing::info!(address = %listener.local_addr()?, "serves /metrics");
        let page = Page { tenants: tenants.clone(), calls, kubelet_dir: args.kubelet_dir.clone() };
        tokio::spawn(page.serve(listener));
    }
    let (end, ended) = watch::channel(false);
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    tokio::spawn(async move {
        let [terminate, interrupt] = &mut signals;
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        let _ = end.send(true);
    });
    tokio::spawn(Publisher::new(client, &args.node_name, tenants.clone()).keep(boards_seen));
    tokio::spawn(resize::keep(driver.clone(), changes_seen));
    {
        let driver = driver.clone();
        tokio::spawn(async move { driver.end_orphans().await });
    }
    let pause = Duration::from_secs(args.look_s);
    tokio::spawn(async move {
        let mut left_out_before = Vec::new();
        loop {
            tokio::time::sleep(pause).await;
            match look(tenants.clone(), selectors.clone()).await {
                Ok((boards, left_out)) => {
                    if tenants.set_boards(node::merge(&tenants.boards(), boards)) {
                        tracing::warn!(?left_out, "the GPUs changed");
                        boards_changed.send_modify(|count| *count += 1);
                    } else if left_out != left_out_before {
                        tracing::warn!(?left_out, "GPUs are not offered");
                    }
                    left_out_before = left_out;
                }
                Err(error) => {
                    if tenants.set_boards(node::merge(&tenants.boards(), Vec::new())) {
                        tracing::error!(error, "the GPUs cannot be listed");
                        boards_changed.send_modify(|count| *count += 1);
                    }
                }
            }
        }
    });
    serve(driver, &args.kubelet_dir, ended).await.context("the sockets for the kubelet")
}
