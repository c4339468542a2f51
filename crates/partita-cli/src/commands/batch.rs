//! `partita batch`.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use partita::batch::drain::{self, Drain};
use partita::batch::job::{self, Job, JobId, System};
use partita::batch::plan::{Blame, Stage, verdict};
use partita::batch::request::Request;
use partita::batch::spank::{self, SlurmVersion};
use partita::batch::{Deadline, Options, Report, Step, epilog, prolog, task};
use partita::install::{self, Install};
use partita_console::{Failure, print, print_json, tell};
use serde::Serialize;

use crate::args::{Batch, BatchScript, DrainArg, FormatArg, Spank, SystemArg, TaskEpilog, TaskProlog};

/// Runs one of the scripts.
pub fn batch(arguments: &Batch) -> Result<ExitCode, Failure> {
    match arguments {
        Batch::Prolog(arguments) => Ok(script(Stage::Prolog, arguments)),
        Batch::Epilog(arguments) => Ok(script(Stage::Epilog, arguments)),
        Batch::TaskProlog(arguments) => task_prolog(arguments),
        Batch::TaskEpilog(arguments) => task_epilog(arguments),
        Batch::Spank(arguments) => spank(arguments),
    }
}

/// Slurm's programs that print its version. Some read the configuration first, which a machine need
/// not have yet.
const VERSION_PROGRAMS: [&str; 4] = ["sinfo", "srun", "slurmd", "slurmctld"];

fn spank(arguments: &Spank) -> Result<ExitCode, Failure> {
    let text = match &arguments.slurm_version {
        Some(text) => text.clone(),
        None => VERSION_PROGRAMS.iter().find_map(|name| version_of(name)).ok_or_else(|| {
            Failure::Told(
                "no program of Slurm gives its version here; name it with --slurm-version 22.05.8".to_owned(),
            )
        })?,
    };
    let version = SlurmVersion::parse(&text).ok_or_else(|| {
        Failure::Told(format!(
            "{:?} is no version of Slurm; give one as --slurm-version 22.05.8",
            text.trim()
        ))
    })?;
    let file = &arguments.file;
    let shipped = Install::of_this_program()?.part(install::SPANK)?;
    let failed = |path: &Path, error: io::Error| Failure::Told(format!("{}: {error}", path.display()));
    let mut plugin = std::fs::read(&shipped).map_err(|error| failed(&shipped, error))?;
    spank::mark(&mut plugin, version)
        .map_err(|reason| Failure::Told(format!("{}: {reason}; install Partita again", shipped.display())))?;
    // Not in the place of a file that a program of Slurm has mapped.
    let fresh = file.with_extension(format!("so.new-{}", std::process::id()));
    let written = std::fs::write(&fresh, &plugin)
        .and_then(|()| std::fs::set_permissions(&fresh, Permissions::from_mode(0o755)))
        .and_then(|()| std::fs::rename(&fresh, file));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&fresh);
        failed(file, error)
    })?;
    let program = std::env::current_exe().unwrap_or_else(|_| "/usr/bin/partita".into());
    let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
    print(&format!(
        "{} for Slurm {version}; add this line to plugstack.conf:\noptional {} partita={}\n",
        file.display(),
        path.display(),
        program.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What a program of Slurm prints with `-V`; `None` if it is not there or fails.
fn version_of(name: &str) -> Option<String> {
    let output = Command::new(name).arg("-V").stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Time beyond the script's own limit before this process ends it.
const WATCH_RESERVE: Duration = Duration::from_secs(5);
/// Time to drain a node.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

fn script(stage: Stage, arguments: &BatchScript) -> ExitCode {
    let system = system(arguments);
    let node_fails = verdict(system, stage, Some(Blame::Node)).exit;
    watch(arguments, stage, node_fails);
    // Slurm and PBS do not know exit code 125: a fault of the script itself counts as the node's.
    let report = Install::of_this_program()
        .map_err(|error| error.to_string())
        .and_then(|install| run(&install, system, stage, arguments));
    let report = match report {
        Ok(report) => report,
        Err(reason) => {
            tell(&reason);
            return ExitCode::from(node_fails);
        }
    };
    for problem in &report.problems {
        tell(&format!("batch: job {}: {}", report.job, problem.reason));
    }
    let verdict = report.verdict();
    let mut steps = report.steps.clone();
    if verdict.drain && !report.dry_run {
        steps.extend(drain_node(system, arguments, &report));
    }
    let report = Report { steps, ..report };
    let printed = if arguments.json {
        print_json(&Told { report: &report, exit_code: verdict.exit, drain: verdict.drain })
    } else {
        print(&text(&report))
    };
    if let Err(Failure::Told(reason)) = printed {
        tell(&reason);
    }
    ExitCode::from(verdict.exit)
}

/// The report and its consequences.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    report: &'a Report,
    exit_code: u8,
    /// Whether the node must take no more jobs.
    drain: bool,
}

/// Ends this process when it is long overdue: a call into a driver, a name service or a file system
/// may never return.
fn watch(arguments: &BatchScript, stage: Stage, code: u8) {
    let limit = Duration::from_secs(arguments.limit.into()) + WATCH_RESERVE + DRAIN_LIMIT;
    thread::spawn(move || {
        thread::sleep(limit);
        let name = if stage == Stage::Prolog { "prolog" } else { "epilog" };
        let _ = writeln!(
            std::io::stderr(),
            "partita: batch {name}: gave up after {} s: a system call does not return, see `dmesg`; the \
             epilog undoes the unfinished work",
            limit.as_secs()
        );
        std::process::exit(code.into());
    });
}

fn system(arguments: &BatchScript) -> System {
    match arguments.system {
        Some(SystemArg::Slurm) => System::Slurm,
        Some(SystemArg::Pbs) => System::Pbs,
        None if variable("SLURM_JOB_ID").is_some() || arguments.arguments.is_empty() => System::Slurm,
        None => System::Pbs,
    }
}

fn run(install: &Install, system: System, stage: Stage, arguments: &BatchScript) -> Result<Report, String> {
    let mut job = match (system, stage) {
        (System::Slurm, _) => Job::of_slurm(variable)?,
        (System::Pbs, Stage::Prolog) => Job::of_prologue(&arguments.arguments)?,
        (System::Pbs, Stage::Epilog) => Job::of_epilogue(&arguments.arguments)?,
    };
    let gpu = arguments.gpu.as_deref().filter(|text| !text.is_empty());
    if system == System::Pbs {
        job.gpus = gpus_of_pbs()?;
    }
    let of_machine = gpu.is_some_and(|text| text.starts_with("sim:") && !text.contains(','));
    match gpu {
        Some(list) if job.gpus.is_empty() && job.request != Ok(None) => job.gpus = job::gpu_list(list),
        Some(machine) if of_machine => job.gpus = job::on_machine(&job.gpus, Some(machine)),
        _ => {}
    }
    let default = Request::parse(&arguments.default).map_err(|error| format!("--default: {error}"))?;
    let options = Options {
        // slurmd runs scripts in a working directory of its choice.
        dir: std::path::absolute(&arguments.records.state_dir)
            .map_err(|error| format!("--state-dir: {error}"))?,
        limit: Duration::from_secs(arguments.limit.into()),
        grace: Duration::from_secs(arguments.grace.into()),
        default,
        dry_run: arguments.dry_run,
    };
    Ok(match stage {
        Stage::Prolog => prolog::prolog(install, &options, &job),
        Stage::Epilog => epilog::epilog(install, &options, &job),
    })
}

/// The GPUs that PBS gave the job, from its file or from a hook's variable.
fn gpus_of_pbs() -> Result<Vec<String>, String> {
    if let Some(path) = variable("PBS_GPUFILE") {
        return match std::fs::read_to_string(&path) {
            Ok(text) => Ok(job::gpus_of_file(&text, &host())),
            Err(error) => Err(format!("PBS_GPUFILE={path}: {error}; name the job's GPUs with --gpu instead")),
        };
    }
    Ok(variable("CUDA_VISIBLE_DEVICES").map(|text| job::gpu_list(&text)).unwrap_or_default())
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

fn variable(key: &str) -> Option<String> {
    std::env::var(key).ok().filter(|value| !value.is_empty())
}

fn drain_node(system: System, arguments: &BatchScript, report: &Report) -> Option<Step> {
    let drain = match (arguments.drain, system) {
        (Some(DrainArg::Exit), _) | (None, System::Slurm) => Drain::Exit,
        (Some(DrainArg::Scontrol), _) => Drain::Scontrol,
        (Some(DrainArg::Pbsnodes), _) | (None, System::Pbs) => Drain::Pbsnodes,
    };
    let node = variable("SLURMD_NODENAME").unwrap_or_else(host);
    let words = drain.command(&node, &report.drain_reason())?;
    match drain::run(&words, Deadline::after(DRAIN_LIMIT)) {
        Ok(()) => Some(Step::NodeDrained { command: words.join(" ") }),
        Err(reason) => {
            tell(&reason);
            None
        }
    }
}

fn text(report: &Report) -> String {
    let would = if report.dry_run { ", after a real run" } else { "" };
    report.steps.iter().map(|step| format!("job {}{would}: {step}\n", report.job)).collect()
}

/// The job of this process.
fn own_job() -> Result<JobId, Failure> {
    let job = [System::Slurm, System::Pbs]
        .iter()
        .find_map(|system| Some(JobId::new(*system, &variable(system.id_variable())?)));
    let job = job.ok_or_else(|| {
        Failure::Told(
            "SLURM_JOB_ID and PBS_JOBID are not set: this command works only inside a job".to_owned(),
        )
    })?;
    job.map_err(Failure::Told)
}

fn task_epilog(arguments: &TaskEpilog) -> Result<ExitCode, Failure> {
    let install = Install::of_this_program()?;
    let limit = Duration::from_secs(arguments.limit.into());
    match task::task_epilog(&install, &arguments.records.state_dir, &own_job()?, limit) {
        Ok(ended) if ended.is_empty() => {}
        Ok(ended) => {
            let pids: Vec<String> = ended.iter().map(u32::to_string).collect();
            tell(&format!("ended work that the job had left on the GPU (processes {})", pids.join(", ")));
        }
        // The task is over; a failure here is no reason to fail it.
        Err(reason) => tell(&reason),
    }
    Ok(ExitCode::SUCCESS)
}

fn task_prolog(arguments: &TaskProlog) -> Result<ExitCode, Failure> {
    let current: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    match (task::task_prolog(&arguments.records.state_dir, &own_job()?, &current), arguments.format) {
        (Ok(changes), FormatArg::Slurm) => print(&changes.slurm())?,
        (Ok(changes), FormatArg::Sh) => print(&changes.shell())?,
        (Err(reason), format) => {
            let line = reason.lines().collect::<Vec<_>>().join(" ");
            match format {
                // Slurm drops a TaskProlog's stderr; this line reaches the job's own output.
                FormatArg::Slurm => print(&format!("print partita: {line}\n"))?,
                FormatArg::Sh => print("exit 1\n")?,
            }
            return Err(Failure::Told(line));
        }
    }
    Ok(ExitCode::SUCCESS)
}
