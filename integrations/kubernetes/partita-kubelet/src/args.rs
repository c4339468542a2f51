//! The arguments of the program.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::shares::{MemoryUnit, Offer};

/// Gives pods shares of this node's GPUs, as a DRA driver of Kubernetes.
#[derive(Debug, Clone, clap::Parser)]
#[command(
    name = "partita-kubelet",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    /// What to do instead of being the driver.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The node's name.
    #[arg(long, env = "NODE_NAME", required = true)]
    pub node_name: Option<String>,
    /// The node's GPUs and directories.
    #[command(flatten)]
    pub node: NodeArgs,
    /// The API server's address, for tests and for servers behind a local proxy, instead of the
    /// cluster's configuration.
    #[arg(long, value_name = "URL")]
    pub api_server: Option<String>,
}

/// What else the program can be.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Serves the admission webhook that turns extended resources of pods into claims.
    Webhook(WebhookArgs),
    /// Is a device plugin instead of a DRA driver, for clusters before Kubernetes 1.34.
    DevicePlugin(DevicePluginArgs),
}

/// The arguments of the device plugin.
#[derive(Debug, Clone, clap::Args)]
pub struct DevicePluginArgs {
    /// Offers `nvidia.com/gpu.shared`: so many equal shares of each GPU.
    #[arg(long, value_name = "N", required_unless_present = "hami", conflicts_with = "hami",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub shared: Option<u32>,
    /// Offers HAMi's names, `nvidia.com/gpu`, `gpucores` and `gpumem`, on a node with one GPU.
    #[arg(long)]
    pub hami: bool,
    /// With --hami: containers that may have the GPU at once.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub split: u32,
    /// With --hami: the name of memory, as the kubelet counts each name by itself.
    #[arg(long, default_value = "gpumem", value_name = "NAME", value_parser = ["gpumem", "gpumem-percentage"])]
    pub memory: String,
    /// With --hami: how many MiB one of `gpumem` is.
    #[arg(long, default_value_t = 1, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub memory_unit_mib: u32,
    /// The directory of device plugins. The kubelet's is a constant.
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins", value_name = "DIR")]
    pub device_plugins_dir: PathBuf,
    /// The node's GPUs and directories.
    #[command(flatten)]
    pub node: NodeArgs,
}

impl DevicePluginArgs {
    /// How GPUs are offered.
    #[must_use]
    pub fn offer(&self) -> Offer {
        match self.shared {
            Some(replicas) => Offer::Shared { replicas },
            None => Offer::Hami {
                split: self.split,
                memory: match self.memory.as_str() {
                    "gpumem" => MemoryUnit::Mib(self.memory_unit_mib),
                    _ => MemoryUnit::Percent,
                },
            },
        }
    }
}

/// The arguments of the webhook.
#[derive(Debug, Clone, clap::Args)]
pub struct WebhookArgs {
    /// Where to serve HTTPS.
    #[arg(long, default_value = "0.0.0.0:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// The server's certificate and those between it and the CA, in PEM. Files that change are
    /// read again.
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// The certificate's private key, in PEM.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The device class of shares.
    #[arg(long, default_value = "partita-share", value_name = "CLASS")]
    pub share_class: String,
    /// The device class of whole GPUs.
    #[arg(long, default_value = "partita-gpu", value_name = "CLASS")]
    pub whole_class: String,
    /// The compute of a container that names memory alone, in percent. Without it such pods are
    /// refused.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub default_cores: Option<u32>,
    /// The API server's address, instead of the cluster's configuration.
    #[arg(long, value_name = "URL")]
    pub api_server: Option<String>,
}

/// The node's GPUs and directories.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
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
    /// How often the GPUs are looked at, in seconds.
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub look_s: u64,
    /// Where to serve `/metrics`: ADDRESS:PORT. Without it they are not served.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
}
