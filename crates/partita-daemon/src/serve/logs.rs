//! The log on stderr.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// Starts the log.
pub(super) fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| {
        format!("--log {filter}: it is not understood; write info, or info,partita_daemon=debug")
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("the log: {error}"))
}
