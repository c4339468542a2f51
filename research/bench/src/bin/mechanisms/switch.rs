//! The cost of moving compute units with each actuator of chains, side by side.
//!
//! Each actuator is a process (`actuator.rs`), half of them clients of an MPS service and half not,
//! and all of them take turns, round by round.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use partita::calibration::{Cache, without_mps};
use partita::gpu::Gpu;
use partita::install::Install;
use partita::mps::{self, StartOptions};
use partita::registry::Registry;
use partita_bench::side::Side;
use partita_mps::Service;
use serde::Serialize;

use crate::actuator::{Kind, Prepared, Round};
use crate::{Options, Spread};

/// Every process: its actuator and whether it is a client of MPS.
const PROCESSES: [(Kind, bool); 6] = [
    (Kind::None, false),
    (Kind::Masks, false),
    (Kind::Green, false),
    (Kind::None, true),
    (Kind::Masks, true),
    (Kind::Contexts, true),
];

/// An MPS service that is stopped with this, unless it ran before or others use it by then.
struct Served {
    service: Service,
    started: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.started
            && let Err(error) = self.service.stop_if_unused()
        {
            eprintln!("the MPS service cannot be stopped: {error}");
        }
    }
}

/// One process, with its answers.
struct Runner {
    kind: Kind,
    under_mps: bool,
    side: Option<Side>,
    prepared: Option<Prepared>,
    rounds: Vec<Round>,
    failure: Option<String>,
}

#[derive(Serialize)]
struct Report {
    gpu: String,
    driver: String,
    device: String,
    cuda_version: u32,
    rounds: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    actuator: Kind,
    under_mps: bool,
    /// Why there are no figures, or no more.
    failure: Option<String>,
    /// SMs of the partitions.
    sms: Vec<u32>,
    make_ms: Option<Spread>,
    switch_ns: Option<Spread>,
    first_work_us: Option<Spread>,
    same_work_us: Option<Spread>,
    /// Each first work after a switch, less the same work without one just before.
    added_us: Option<Spread>,
    launch_ns: Option<Spread>,
    pass_on_ns: Option<Spread>,
    checked: u64,
    wrong: u64,
}

impl Runner {
    fn start(options: &Options, kind: Kind, under_mps: bool, variables: &[Variable]) -> Self {
        let mut runner =
            Self { kind, under_mps, side: None, prepared: None, rounds: Vec::new(), failure: None };
        let started = std::env::current_exe().context("where this program is").and_then(|own| {
            let mut command = Command::new(own);
            command.args(["--actuator", kind.word(), "--switches", &options.switches.to_string()]);
            command.args(["--burst", &options.burst.to_string()]);
            command.args(["--deadline-s", &options.deadline_s.to_string()]);
            command.envs(variables.iter().map(|(key, value)| (key, value)));
            Side::start(command)
        });
        match started {
            Ok(side) => runner.side = Some(side),
            Err(error) => runner.failure = Some(format!("{error:#}")),
        }
        runner
    }

    /// Requests an answer of its process; a failed one gets no more requests.
    fn ask<T: serde::de::DeserializeOwned>(&mut self, text: &str) -> Option<T> {
        let answer = self.side.as_mut()?.ask(text).and_then(|line| Ok(serde_json::from_str(&line)?));
        answer
            .map_err(|error| {
                self.failure = Some(format!("{error:#}"));
                self.side = None;
            })
            .ok()
    }

    fn row(&self) -> Row {
        let all = |of: fn(&Round) -> &Vec<f64>| -> Vec<f64> {
            self.rounds.iter().flat_map(|round| of(round).iter().copied()).collect()
        };
        let spread = |of: fn(&Round) -> &Vec<f64>| Spread::of(all(of)).ok();
        let first = all(|round| &round.first_work_us);
        let pairs = first.iter().zip(all(|round| &round.same_work_us));
        let added = pairs.map(|(first, same)| first - same).collect();
        Row {
            actuator: self.kind,
            under_mps: self.under_mps,
            failure: self.failure.clone(),
            sms: self.prepared.as_ref().map(|prepared| prepared.sms.clone()).unwrap_or_default(),
            make_ms: self.prepared.as_ref().and_then(|prepared| Spread::of(prepared.make_ms.clone()).ok()),
            switch_ns: spread(|round| &round.switch_ns),
            first_work_us: spread(|round| &round.first_work_us),
            same_work_us: spread(|round| &round.same_work_us),
            added_us: Spread::of(added).ok(),
            launch_ns: spread(|round| &round.launch_ns),
            pass_on_ns: spread(|round| &round.pass_on_ns),
            checked: self.rounds.iter().map(|round| round.checked).sum(),
            wrong: self.rounds.iter().map(|round| round.wrong).sum(),
        }
    }
}

type Variable = (String, std::ffi::OsString);

/// Measures all actuators and writes the results after each round.
///
/// # Errors
/// If nothing can be measured or written.
pub fn run(options: &Options, install: &Install, gpu: &Gpu) -> Result<()> {
    let begin = Instant::now();
    // The board's calibration, which masks need.
    let calibrated = Cache::open().get(install, gpu);
    let registry = Registry::open()?;
    let served = mps::start(install, &registry, std::slice::from_ref(gpu), &StartOptions::default());
    let served = served.map(|(service, ensured)| Served { service, started: ensured.started });
    let of_gpu = || gpu.variables().into_iter().map(|(key, value)| (key.to_owned(), value));
    let without: Vec<Variable> = of_gpu()
        .chain(without_mps().into_iter().map(|(key, value)| (key.to_owned(), value.into())))
        .collect();
    let with: Option<Vec<Variable>> = served.as_ref().ok().map(|served| {
        let of_service = served.service.client_env().into_iter();
        of_gpu().chain(of_service.map(|(key, value)| (key.to_owned(), value))).collect()
    });
    let mut runners = Vec::new();
    for (kind, under_mps) in PROCESSES {
        let failure = match (&calibrated, &served) {
            (Err(error), _) if kind == Kind::Masks => Some(error.to_string()),
            (_, Err(error)) if under_mps => Some(format!("no MPS service: {error}")),
            _ => None,
        };
        let variables = if under_mps { with.as_ref() } else { Some(&without) };
        runners.push(match (failure, variables) {
            (None, Some(variables)) => Runner::start(options, kind, under_mps, variables),
            (failure, _) => {
                Runner { kind, under_mps, side: None, prepared: None, rounds: Vec::new(), failure }
            }
        });
    }
    for runner in &mut runners {
        runner.prepared = runner.ask("prepare");
        eprintln!("{:.1} s: {} prepared", begin.elapsed().as_secs_f64(), runner.kind.name());
    }
    let count = runners.len();
    for round in 0..options.rounds as usize {
        if begin.elapsed() + Duration::from_secs(5) > Duration::from_secs(options.deadline_s) {
            eprintln!("no more rounds: {} s are nearly over", options.deadline_s);
            break;
        }
        for turn in 0..count {
            let runner = &mut runners[(turn + round) % count];
            if let Some(measured) = runner.ask("round") {
                runner.rounds.push(measured);
            }
        }
        eprintln!("{:.1} s: round {round}", begin.elapsed().as_secs_f64());
        write(options, gpu, &runners)?;
    }
    print!("{}", page(options, &report(options, gpu, &runners)));
    for runner in &mut runners {
        if let Some(side) = runner.side.take() {
            side.stop()?;
        }
    }
    Ok(())
}

fn report(options: &Options, gpu: &Gpu, runners: &[Runner]) -> Report {
    let facts = runners.iter().find_map(|runner| runner.prepared.as_ref());
    Report {
        gpu: options.gpu.clone(),
        driver: gpu.driver_version.clone(),
        device: facts.map(|facts| facts.device.clone()).unwrap_or_default(),
        cuda_version: facts.map_or(0, |facts| facts.cuda_version),
        rounds: runners.iter().map(|runner| runner.rounds.len()).max().unwrap_or(0),
        rows: runners.iter().map(Runner::row).collect(),
    }
}

fn write(options: &Options, gpu: &Gpu, runners: &[Runner]) -> Result<()> {
    let Some(out) = &options.out else { return Ok(()) };
    let report = report(options, gpu, runners);
    let put = |extension: &str, text: String| {
        let path = out.with_extension(extension);
        if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
            std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    put("json", serde_json::to_string_pretty(&report)? + "\n")?;
    put("md", page(options, &report))
}

fn page(options: &Options, report: &Report) -> String {
    let cell = |spread: &Option<Spread>, digits: usize| match spread {
        Some(Spread { median, p10, p90, count }) => {
            format!("{median:.digits$} ({p10:.digits$} to {p90:.digits$}), {count}")
        }
        None => String::new(),
    };
    let mut text = format!(
        "# What moving compute units costs\n\n{}, driver {}, CUDA {}.{} (`mechanisms --switch --gpu {} --rounds {}`); {} rounds, the processes in turns. Each cell: median \
         (10th to 90th percentile), count.\n\n\
         | actuator | MPS | SMs | make a partition, ms | the switch, ns | from the switch to the end of the first work, µs | the same work without one, µs | added, µs | a launch, ns | pass a frame on, ns | censuses, wrong |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        report.device,
        report.driver,
        report.cuda_version / 1000,
        report.cuda_version % 1000 / 10,
        report.gpu,
        options.rounds,
        report.rounds
    );
    for row in &report.rows {
        let sms: Vec<String> = row.sms.iter().map(u32::to_string).collect();
        let is_moved = row.actuator != Kind::None;
        let only_moved = |text: String| if is_moved { text } else { String::new() };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.actuator.name(),
            if row.under_mps { "yes" } else { "no" },
            only_moved(sms.join(", ")),
            only_moved(cell(&row.make_ms, 1)),
            only_moved(cell(&row.switch_ns, 0)),
            only_moved(cell(&row.first_work_us, 1)),
            cell(&row.same_work_us, 1),
            only_moved(cell(&row.added_us, 1)),
            cell(&row.launch_ns, 0),
            only_moved(cell(&row.pass_on_ns, 0)),
            only_moved(format!("{}, {}", row.checked, row.wrong)),
        );
    }
    text += "\nThe work is one block, launched and waited for by asking the stream; after a switch it is in order behind what the former partition was given, as in a component of a \
             chain. To make a partition is what the first switch to a set costs: for masks the launch callback, for contexts the context. To pass a frame on \
             costs an event and a wait more where work is in another context than the frames' events.\n";
    for row in &report.rows {
        if let Some(failure) = &row.failure {
            let mps = if row.under_mps { "under MPS" } else { "without MPS" };
            let _ = writeln!(text, "\n{}, {mps}: {failure}", row.actuator.name());
        }
    }
    text
}
