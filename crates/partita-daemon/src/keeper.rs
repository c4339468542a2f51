//! `partitad keeper`: the process that owns a GPU's leased memory.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use partita::gpu;
use partita::install::Install;
use partita::registry::Registry;
use partita_driver::Cuda;
use partita_memory::Place;
use partita_memory::keeper::{self, End, Options};
use partita_memory::wire::HandleKind;

use crate::args::{Handles, Keeper};

/// Owns the leased memory of one GPU, until it is asked to end, or is unused.
///
/// # Errors
/// Why it cannot, with the remedy.
pub fn run(arguments: &Keeper) -> anyhow::Result<()> {
    if arguments.attached { keep(arguments) } else { become_attached(arguments) }
}

/// Finds the GPU, and restarts this program with the variables that select it: the linker and the
/// driver read them only at the start.
fn become_attached(arguments: &Keeper) -> anyhow::Result<()> {
    let install = Install::of_this_program()?;
    let selected = gpu::select(&install, arguments.gpu.as_ref())?;
    if let Some(notice) = &selected.notice {
        tell(notice);
    }
    let gpu = &selected.gpu;
    let socket = match &arguments.socket {
        Some(socket) => std::path::absolute(socket).context("--socket")?,
        None => {
            let user = rustix::process::geteuid().as_raw();
            Place::of(Registry::open()?.root(), user, &gpu.key()).socket
        }
    };
    let mut command = Command::new(install.program());
    command.args(["keeper", "--attached", "--gpu"]).arg(gpu.selector().to_string());
    command.arg("--socket").arg(socket).envs(gpu.variables());
    if let Some(idle_s) = arguments.idle_s {
        command.args(["--idle-s", &idle_s.to_string()]);
    }
    if let Some(quota) = arguments.quota {
        command.args(["--quota", &quota.to_string()]);
    }
    if arguments.handles == Handles::Fd {
        command.args(["--handles", "fd"]);
    }
    let error = command.exec();
    Err(error).with_context(|| install.program().display().to_string())
}

/// Keeps the first GPU of this process's environment.
fn keep(arguments: &Keeper) -> anyhow::Result<()> {
    let mut options = Options::new(arguments.socket.clone().context("--attached goes with --socket")?);
    options.idle = arguments.idle_s.map(Duration::from_secs);
    options.handles = match arguments.handles {
        Handles::Ipc => HandleKind::Ipc,
        Handles::Fd => HandleKind::Descriptor,
    };
    if let Some(quota) = arguments.quota {
        options.quota_bytes = quota.0;
    }
    let cuda = Cuda::load(None).map_err(|error| anyhow::anyhow!("the driver: {error}"))?;
    let why = match keeper::run(&cuda, 0, &options)? {
        End::Told => "it was asked to",
        // Its sender knows.
        End::Signal => return Ok(()),
        End::Idle => "it was unused",
    };
    tell(&format!("the keeper at {} has ended: {why}", options.socket.display()));
    Ok(())
}

fn tell(message: &str) {
    // Without stderr there is nowhere to report.
    let _ = writeln!(std::io::stderr(), "partitad keeper: {message}");
}
