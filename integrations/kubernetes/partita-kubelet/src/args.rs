//! The arguments of the program.

use std::path::PathBuf;

/// Gives pods shares of this node's GPUs, as a DRA driver of Kubernetes.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "partita-kubelet", version)]
pub struct Args {
    /// The node's name.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The kubelet's directory.
    #[arg(long, default_value = "/var/lib/kubelet", value_name = "DIR")]
    pub kubelet_dir: PathBuf,
    /// The journal's directory, which outlives this program and the node's restarts.
    #[arg(long, default_value = "/var/lib/partita/kubelet", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// The directory of CDI files.
    #[arg(long, default_value = partita::cdi::DIR_DEFAULT, value_name = "DIR")]
    pub cdi_dir: PathBuf,
    /// The GPUs to offer: `all`, or indices and UUIDs with commas between them.
    #[arg(long, env = "PARTITA_GPU", default_value = "all", value_name = "G")]
    pub gpu: String,
    /// The kind of the CDI devices of the GPUs themselves, which `nvidia-ctk cdi generate
    /// --device-name-strategy=uuid` writes.
    #[arg(long, default_value = "nvidia.com/gpu", value_name = "KIND")]
    pub gpu_cdi_kind: String,
    /// The program `partita`.
    #[arg(long, value_name = "PATH")]
    pub partita: Option<PathBuf>,
    /// The API server's address, for tests and for servers behind a local proxy, instead of the
    /// cluster's configuration.
    #[arg(long, value_name = "URL")]
    pub api_server: Option<String>,
    /// Where to serve `/metrics`: ADDRESS:PORT. Without it they are not served.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<std::net::SocketAddr>,
    /// How often the GPUs are looked at, in seconds.
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub look_s: u64,
}
