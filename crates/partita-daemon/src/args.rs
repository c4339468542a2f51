//! The daemon's arguments.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use partita::gpu::Selector;
use partita::gpus::Selectors;
use partita::groups::GpuGroups;
use partita_core::{ByteSize, ParseByteSizeError};

/// Serves this machine's GPUs, tenants, chains and their memory over REST.
///
/// On a Unix socket unless told otherwise, where the kernel says who asks: the owner of a thing and
/// root may change it. See docs/partitad.md.
#[derive(Debug, Parser)]
#[command(
    name = "partitad",
    version = env!("PARTITA_VERSION"),
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  partitad
  curl --unix-socket /dev/shm/partita/.partitad-$(id -u).sock http://partitad/v1/chains
  partitad --listen 127.0.0.1:7878 --token-file ~/.partitad-token"
)]
pub struct Arguments {
    /// Something else than to serve.
    #[command(subcommand)]
    pub command: Option<Cmd>,
    /// How to serve.
    #[command(flatten)]
    pub serve: Serve,
}

/// What `partitad` does beside serving.
#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// Own the memory of one GPU that is leased to components of chains
    ///
    /// A process of its own, so that leases outlive a restart of the daemon; the daemon and
    /// `partita chain` start it when it is missing.
    Keeper(Keeper),
    /// Print the OpenAPI document and end
    Openapi,
    /// A chain that the daemon starts, for as long as it runs
    #[command(name = crate::chains::START_SUBCOMMAND, hide = true)]
    InternalStartChain {
        /// The chain as JSON
        order: String,
    },
    /// What runs a chain, in its tenant
    #[command(name = "internal-chain", hide = true)]
    InternalChain {
        /// The chain as JSON
        order: String,
    },
    /// Internal commands with which Partita's programs run themselves
    #[command(flatten)]
    Internal(partita_console::Internal),
}

/// Arguments of `keeper`.
#[derive(Debug, Args)]
pub struct Keeper {
    /// The GPU: an index, a UUID, or sim:NAME
    #[arg(long, env = "PARTITA_GPU", value_name = "GPU", value_parser = selector)]
    pub gpu: Option<Selector>,
    /// The Unix socket [default: .keeper-UID-GPU.sock in the run directory]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// End after so long without leases and without a client of a tenant [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub idle_s: Option<u64>,
    /// By what components open memory
    #[arg(long, value_enum, default_value_t = Handles::Ipc)]
    pub handles: Handles,
    /// What a tenant may have if nothing else is said of it [default: all that there is]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub quota: Option<ByteSize>,
    /// This process has the environment of its GPU already
    #[arg(long, hide = true)]
    pub attached: bool,
}

/// By what memory is opened in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Handles {
    /// CUDA's interprocess handles of 64 bytes
    Ipc,
    /// File descriptors of the driver's virtual memory
    Fd,
}

/// How to serve.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("tokens").multiple(true))]
pub struct Serve {
    /// Share this machine between users: only this daemon makes and changes tenants, for every
    /// user, in /run/partita
    ///
    /// As root. The commands of all users then ask this daemon. It is not needed while their
    /// tenants run. PARTITA_RUN_DIR names another directory.
    #[arg(long)]
    pub system: bool,
    /// The GPUs to serve: indexes, UUIDs, sim:NAME, or all [default: every GPU of this machine]
    #[arg(long, env = "PARTITA_GPU", value_name = "GPU", value_parser = selectors)]
    pub gpu: Option<Selectors>,
    /// Who makes tenants on a GPU in system mode: 0=vision 1=vision,speech [default: every user]
    ///
    /// A GPU is an index, a UUID or sim:NAME. Every user may use GPUs that are not named, and root
    /// all of them.
    #[arg(long, env = partita::groups::VARIABLE, value_name = "GPU=GROUP,…", default_value = "", hide_default_value = true)]
    pub gpu_groups: GpuGroups,
    /// The Unix socket [default: .partitad-UID.sock in the run directory]
    #[arg(long, env = "PARTITAD_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Listen on TCP too, for those who have a token; a browser shows the page there
    #[arg(long, value_name = "ADDRESS:PORT", requires = "tokens", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// The file with the token of --listen; only its owner may read it
    #[arg(long, value_name = "FILE", requires = "listen", group = "tokens")]
    pub token_file: Option<PathBuf>,
    /// The file with a second token of --listen, which reads and changes nothing: for Prometheus
    /// and for those who look at the page
    #[arg(long, value_name = "FILE", requires = "listen", group = "tokens")]
    pub read_token_file: Option<PathBuf>,
    /// Another name by which clients of --listen reach this machine, such as a proxy's; may be
    /// repeated [default: addresses, localhost and the machine's own name]
    #[arg(long, value_name = "NAME", requires = "listen", value_parser = host_name)]
    pub allow_host: Vec<String>,
    /// Let --listen name an address that other machines reach: the token then crosses the network
    /// in the clear
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,
    /// Where chains and their history are kept [default: /var/lib/partita for root, else
    /// ~/.local/state/partita]
    #[arg(long, env = "PARTITA_STATE_DIR", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The form of the log on stderr
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace, also by part (info,partita_daemon=debug)
    #[arg(long, env = "PARTITAD_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// How often processes are looked for that use a GPU without their tenant's limits, or off
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = every)]
    pub audit_every: Every,
    /// Repeat figures of /metrics under the names of other exporters, for dashboards that exist
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub metric_names: Vec<MetricNames>,
    /// Write the tenants of each GPU to files in this directory, as `dcgm-exporter
    /// --hpc-job-mapping-dir` reads them
    #[arg(long, value_name = "DIR")]
    pub dcgm_job_map: Option<PathBuf>,
    /// How long running requests may take to finish after the daemon gets a signal to stop
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    pub drain_s: Duration,
    /// How long the answer to a request may take
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = some_seconds)]
    pub answer_s: Duration,
    /// How long the body of a request may take to arrive
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = some_seconds)]
    pub body_s: Duration,
}

/// How often something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every(
    /// The interval; `None` for never.
    pub Option<Duration>,
);

/// Names of other exporters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MetricNames {
    /// dcgm-exporter's, for whole GPUs
    Dcgm,
    /// HAMi's, for GPUs and tenants
    Hami,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

fn selector(text: &str) -> Result<Selector, String> {
    text.parse().map_err(|error: partita::Error| error.to_string())
}

fn size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|error: ParseByteSizeError| error.to_string())
}

fn selectors(text: &str) -> Result<Selectors, String> {
    text.parse().map_err(|error: partita::Error| error.to_string())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an IP address and a port, such as 127.0.0.1:7878".to_owned())
}

fn host_name(text: &str) -> Result<String, String> {
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_one) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("give a host name without a port, such as gpus.example.org".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 0..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err("give whole seconds, 0 to 3600".to_owned()),
    }
}

fn every(text: &str) -> Result<Every, String> {
    if text == "off" {
        return Ok(Every(None));
    }
    some_seconds(text).map(|time| Every(Some(time))).map_err(|error| format!("{error}, or off"))
}

fn some_seconds(text: &str) -> Result<Duration, String> {
    seconds(text)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "give whole seconds, 1 to 3600".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn tcp_is_served_with_a_token_or_not_at_all() {
        for line in [
            "partitad --listen 127.0.0.1:1 --token-file t",
            "partitad --listen 127.0.0.1:1 --read-token-file t",
            "partitad --listen 127.0.0.1:1 --token-file t --read-token-file u --allow-host A.b --allow-host c",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "partitad --listen 127.0.0.1:1",
            "partitad --token-file t",
            "partitad --read-token-file t",
            "partitad --allow-remote",
            "partitad --allow-host a",
            "partitad --listen 127.0.0.1:1 --token-file t --allow-host a:80",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn arguments_are_checked() {
        assert_eq!(parse("partitad --drain-s 3").unwrap().serve.drain_s, Duration::from_secs(3));
        let serve = parse("partitad --answer-s 3").unwrap().serve;
        assert_eq!((serve.answer_s, serve.body_s), (Duration::from_secs(3), Duration::from_secs(10)));
        assert!(parse("partitad --body-s 0").is_err());
        for (line, every) in [
            ("partitad", Some(10)),
            ("partitad --audit-every 3600", Some(3600)),
            ("partitad --audit-every off", None),
        ] {
            assert_eq!(
                parse(line).unwrap().serve.audit_every,
                Every(every.map(Duration::from_secs)),
                "{line}"
            );
        }
        for every in ["0", "3601", "1s", "on"] {
            let error = parse(&format!("partitad --audit-every {every}")).unwrap_err().to_string();
            assert!(error.contains("1 to 3600, or off"), "{error}");
        }
        for line in ["partitad --drain-s -1", "partitad --gpu sim:none", "partitad --socket", "partitad x"] {
            assert!(parse(line).is_err(), "{line}");
        }
        let line = "partitad keeper --gpu sim:h200 --idle-s 60 --handles fd --quota 4GiB";
        let Some(Cmd::Keeper(keeper)) = parse(line).unwrap().command else { panic!("another command") };
        assert_eq!((keeper.idle_s, keeper.handles), (Some(60), Handles::Fd));
        assert_eq!(keeper.quota, Some(ByteSize(4 << 30)));
        for line in
            ["partitad keeper --gpu sim:none", "partitad keeper --quota 4GB", "partitad keeper --handles x"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
