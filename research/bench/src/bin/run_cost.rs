//! The time of `partita run` for a program that does nothing, in user mode and in system mode, in
//! milliseconds.
//!
//! Each round runs `true` once in each mode, in an order that changes each round, on a simulated
//! GPU outside of MPS. In user mode the command makes the tenant itself. In system mode it runs as
//! an unprivileged user and calls `partitad`, and root's process makes the tenant. Needs root.
//!
//! ```text
//! cargo build --profile dist && sudo target/dist/run-cost
//! ```

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Parser;
use partita_core::Samples;

/// Measures the time of `partita run`.
#[derive(Parser)]
struct Options {
    /// Runs in each mode.
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// The user of system mode.
    #[arg(long, default_value_t = 65_533)]
    user: u32,
    /// The directory of programs and libraries [default: beside this program].
    #[arg(long)]
    programs: Option<PathBuf>,
}

/// `partitad`, which ends with this.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command of Partita with a run directory and a board in `dir`.
fn command(program: &Path, dir: &Path, libraries: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("PARTITA_RUN_DIR", dir.join("run"))
        .env("PARTITA_SIM_DIR", dir.join("sim"))
        .env("PARTITA_CACHE_DIR", dir.join("cache"))
        .env("PARTITA_LIB_DIR", libraries)
        .env("PARTITA_GPU", "sim:h200")
        .stdin(Stdio::null());
    command
}

fn run_ms(mut command: Command) -> Result<f64> {
    command.args("run --isolation own --sm 10% -- true".split(' ')).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    ensure!(status.success(), "partita run: {status}");
    Ok(ms)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let programs = match options.programs {
        Some(programs) => programs,
        None => std::env::current_exe()?.with_file_name(""),
    };
    // A tmpfs, like /run and /dev/shm.
    let temp = tempfile::Builder::new().prefix("pr").tempdir_in("/dev/shm")?;
    fs::set_permissions(temp.path(), Permissions::from_mode(0o755))?;
    let (own, shared) = (temp.path().join("user"), temp.path().join("system"));
    let place = shared.join("place");
    for dir in [&own, &shared, &place] {
        fs::create_dir(dir)?;
    }
    chown(&place, Some(options.user), Some(options.user))?;
    let mut daemon = command(&programs.join("partitad"), &shared, &programs);
    daemon.args(["--system", "--log", "error", "--state"]).arg(shared.join("state"));
    let _daemon = Daemon(daemon.spawn()?);
    let deadline = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(shared.join("run/.system.sock")).is_err() {
        if Instant::now() > deadline {
            bail!("partitad does not serve");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let partita = programs.join("partita");
    let in_user_mode = || run_ms(command(&partita, &own, &programs));
    let in_system_mode = || {
        let mut command = command(&partita, &shared, &programs);
        command.uid(options.user).gid(options.user).env("HOME", &place).env("TMPDIR", &place);
        run_ms(command)
    };
    let (mut user, mut system) = (Vec::new(), Vec::new());
    // The first runs prove the masks of the board.
    in_user_mode()?;
    in_system_mode()?;
    for round in 0..options.rounds {
        if round % 2 == 0 {
            user.push(in_user_mode()?);
        }
        system.push(in_system_mode()?);
        if round % 2 == 1 {
            user.push(in_user_mode()?);
        }
    }
    let added: Vec<f64> = system.iter().zip(&user).map(|(system, user)| system - user).collect();
    println!(
        "partita run --isolation own --sm 10% -- true: {} runs in each mode, interleaved, in ms\n",
        options.rounds
    );
    println!("| | median | p10 | p90 |");
    println!("|---|---|---|---|");
    for (name, samples) in [("user mode", user), ("system mode", system), ("added, in pairs", added)] {
        let all = Samples::new(samples)?;
        println!("| {name} | {:.1} | {:.1} | {:.1} |", all.median(), all.quantile(100), all.quantile(900));
    }
    Ok(())
}
