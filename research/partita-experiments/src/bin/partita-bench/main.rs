//! `partita-bench`, the program of `partita bench`.

mod args;

use std::fs;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use partita::gpu::{self, Selector};
use partita::install::Install;
use partita_console::{Failure, Table, print, print_json, selector, tell};
use partita_experiments::dialect::Config;
use partita_experiments::experiment::{self, Experiment, Scenario, Verdict};
use partita_experiments::gpu::{self as work, Device};
use partita_experiments::log::Record;
use partita_experiments::machine::{Machine, Model};
use partita_experiments::page::{self, Entry, PageError};
use partita_experiments::recorded::Recorded;
use partita_experiments::report::{self, Report};
use partita_experiments::{dialect::DialectError, plot};
use partita_sim::{DeviceSpec, catalogue};
use serde_json::Value;

use crate::args::{Bench, OnArg};

fn main() -> ExitCode {
    if partita_console::complete::answer(Bench::command) {
        return ExitCode::SUCCESS;
    }
    let program = Bench::command().version(env!("PARTITA_VERSION"));
    match partita_console::parse::<Bench>(&program, std::env::args_os()) {
        Ok(Bench { internal: Some(internal), .. }) => {
            internal.run(Bench::command(), job).unwrap_or_else(Failure::report)
        }
        Ok(arguments) => bench(&arguments).unwrap_or_else(Failure::report),
        Err(code) => code,
    }
}

/// Runs a job: the experiments' own, or one of the library's.
fn job(name: &str, request: &str) -> Result<String, String> {
    match name {
        work::JOB => work::work(request),
        name => partita::jobs::run(name, request),
    }
}

/// Runs experiments or configurations.
fn bench(arguments: &Bench) -> Result<ExitCode, Failure> {
    if arguments.list {
        return list(arguments.json);
    }
    if let Some(path) = &arguments.config {
        return configurations(path, arguments);
    }
    let name = arguments.name.as_deref().unwrap_or("all");
    let experiments = match name {
        "all" => experiment::ALL.iter().collect::<Vec<_>>(),
        name => vec![experiment::find(name).ok_or_else(|| unknown(name))?],
    };
    if let (Some(file), Some(out)) = (&arguments.page, &arguments.out) {
        return page(&experiments, file, out);
    }
    let place = Place::of(arguments)?;
    let (mut reports, mut failures) = (Vec::new(), Vec::new());
    for experiment in experiments {
        match one(experiment, &place, arguments) {
            Ok(Some(report)) => reports.push(report),
            Ok(None) => {}
            Err(Failure::Told(reason)) => failures.push(reason),
            Err(other) => return Err(other),
        }
    }
    if let (Place::Replay(dir), true, true) = (&place, reports.is_empty(), failures.is_empty()) {
        return Err(Failure::Told(format!(
            "--replay {}: it has no measurements of {name}; name a directory that `partita bench --gpu GPU \
             --out DIR` has written",
            dir.display()
        )));
    }
    if let (Some(out), false) = (&arguments.out, reports.is_empty()) {
        write(&out.join("README.md"), report::page(&reports).as_bytes())?;
    }
    if arguments.json {
        print_json(&reports.iter().map(Report::to_json).collect::<Vec<_>>())?;
    } else {
        for report in &reports {
            print(&text(report))?;
        }
    }
    if let Some(last) = failures.pop() {
        // The others still have their reports.
        failures.iter().for_each(|failure| tell(failure));
        return Err(Failure::Told(last));
    }
    let all_hold = reports.iter().all(|report| report.judgement.verdict() == Verdict::Reproduced);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the page of the experiments.
fn page(experiments: &[&Experiment], file: &Path, out: &Path) -> Result<ExitCode, Failure> {
    let told = |error: PageError| Failure::Told(error.to_string());
    let bar = progress_bar("experiments");
    bar.set_length(experiments.len() as u64);
    let mut entries = Vec::new();
    for experiment in experiments {
        entries.push(Entry::make(experiment, out).map_err(told)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    page::write_table(&entries, out).map_err(told)?;
    write(file, page::text(&entries, out, file).as_bytes())?;
    Ok(if entries.iter().all(Entry::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one experiment and writes its results; `None` if it has no record.
fn one(experiment: &Experiment, place: &Place, arguments: &Bench) -> Result<Option<Report>, Failure> {
    let Some(mut machine) = place.machine(Some(experiment), arguments.seed)? else { return Ok(None) };
    let bar = progress_bar(experiment.name);
    let report = report::run(experiment, &mut *machine, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| Failure::Told(error.to_string()))?;
    if let Some(out) = &arguments.out {
        report.write(out).map_err(|error| Failure::Told(format!("{}: {error}", out.display())))?;
    }
    Ok(Some(report))
}

fn unknown(name: &str) -> Failure {
    let names: Vec<&str> = experiment::ALL.iter().map(|experiment| experiment.name).collect();
    Failure::Told(format!("there is no experiment {name:?}; there are all, {}", names.join(", ")))
}

fn list(json: bool) -> Result<ExitCode, Failure> {
    let told = |error: experiment::FileError| Failure::Told(error.to_string());
    let headers = experiment::ALL.iter().map(|one| Ok((one.name, one.header().map_err(told)?)));
    let headers = headers.collect::<Result<Vec<_>, Failure>>()?;
    if json {
        let rows = headers.iter().map(|(name, header)| {
            serde_json::json!({"name": name, "title": header.title, "source": header.source, "device": header.device})
        });
        print_json(&rows.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NAME", "DEVICE", "TITLE"]);
    for (name, header) in headers {
        table.row([name.to_owned(), format!("sim:{}", header.device), header.title]);
    }
    print(&table.render())?;
    Ok(ExitCode::SUCCESS)
}

/// The place to run.
enum Place {
    /// Each on the model of its own device.
    Home,
    /// All on the model of one.
    Model(Box<DeviceSpec>),
    /// Each on the simulated driver of its own device.
    HomeDriver(Install),
    /// All on a GPU, or on a simulated driver.
    Gpu(Box<Device>),
    /// Nowhere: earlier measurements are read again.
    Replay(PathBuf),
}

impl Place {
    fn of(arguments: &Bench) -> Result<Self, Failure> {
        if let Some(dir) = &arguments.replay {
            return Ok(Self::Replay(dir.clone()));
        }
        let wanted = selector(&arguments.gpu)?;
        let is_home = arguments.gpu.gpu.as_deref() == Some("sim");
        match (&wanted, arguments.on) {
            (Some(Selector::Sim(..)), OnArg::Model) if is_home => Ok(Self::Home),
            (Some(Selector::Sim(device, _)), OnArg::Model) => {
                let spec = catalogue::device(device).map_err(|error| Failure::Told(error.to_string()))?;
                Ok(Self::Model(Box::new(spec)))
            }
            (Some(Selector::Sim(..)), OnArg::Driver) if is_home => {
                Ok(Self::HomeDriver(Install::of_this_program()?))
            }
            _ => Self::gpu(wanted.as_ref()),
        }
    }

    fn gpu(wanted: Option<&Selector>) -> Result<Self, Failure> {
        partita::signals::end_in_order()
            .map_err(|error| Failure::Told(format!("signal handlers: {error}")))?;
        let install = Install::of_this_program()?;
        let selected = gpu::select(&install, wanted)?;
        if selected.notice.is_some() {
            tell("no GPU here: each experiment runs on the model of its own device");
            return Ok(Self::Home);
        }
        Ok(Self::Gpu(Box::new(Device::open(&install, &selected.gpu).map_err(Failure::Told)?)))
    }

    /// The machine of an experiment, or a configuration; `None` without a record.
    fn machine(
        &self,
        experiment: Option<&Experiment>,
        seed: u64,
    ) -> Result<Option<Box<dyn Machine>>, Failure> {
        let home = || match experiment {
            Some(experiment) => experiment.home().map_err(|error| Failure::Told(error.to_string())),
            None => catalogue::device(catalogue::DEFAULT).map_err(|error| Failure::Told(error.to_string())),
        };
        Ok(Some(match self {
            Self::Home => Box::new(Model::of(home()?, seed)),
            Self::Model(spec) => Box::new(Model::of((**spec).clone(), seed)),
            Self::HomeDriver(install) => {
                let gpu = gpu::simulated(install, home()?.id, 0)?;
                Box::new(Device::open(install, &gpu).map_err(Failure::Told)?)
            }
            Self::Gpu(device) => device.clone(),
            Self::Replay(dir) => {
                let name = experiment.map_or("", |experiment| experiment.name);
                match Recorded::open(dir, name).map_err(Failure::Told)? {
                    Some(recorded) => Box::new(recorded),
                    None => return Ok(None),
                }
            }
        }))
    }
}

/// Runs the configurations of a file, one after the other.
fn configurations(path: &Path, arguments: &Bench) -> Result<ExitCode, Failure> {
    let shown = path.display();
    let told = |error: std::io::Error| Failure::Told(format!("{shown}: {error}"));
    let mut source = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut source).map_err(told)?;
    } else {
        source = fs::read_to_string(path).map_err(told)?;
    }
    let wrong = |error: DialectError| Failure::Told(format!("{shown}: {error}"));
    let configs = Config::parse_all(&source).map_err(wrong)?;
    let place = Place::of(arguments)?;
    let mut summaries = Vec::new();
    for (index, config) in configs.into_iter().enumerate() {
        let Some(mut machine) = place.machine(None, arguments.seed)? else { break };
        let scenario = Scenario::at(config, index as f64);
        let name = &scenario.config.name;
        let ran = machine.run(&scenario).map_err(|error| Failure::Told(format!("{name}: {error}")))?;
        let record = ran.record;
        if let Some(out) = &arguments.out {
            write_logs(out, &scenario, &record, &*machine, index)?;
        }
        summaries.push((record, machine.label()));
    }
    if arguments.json {
        print_json(&summaries.iter().map(|(record, _)| report::record_json(record)).collect::<Vec<_>>())?;
    } else {
        for (record, label) in &summaries {
            print(&summary(record, label))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The original's logs, one for each benchmark, and a picture.
fn write_logs(
    out: &Path,
    scenario: &Scenario,
    record: &Record,
    machine: &dyn Machine,
    index: usize,
) -> Result<(), Failure> {
    let dir = if index == 0 { out.to_owned() } else { out.join(format!("scenario-{}", index + 1)) };
    fs::create_dir_all(&dir).map_err(|error| Failure::Told(format!("{}: {error}", dir.display())))?;
    for (number, (one, found)) in scenario.config.benchmarks.iter().zip(&record.benchmarks).enumerate() {
        if !one.is_discarded() {
            write(&dir.join(one.log_file(number)), found.log_json(record).as_bytes())?;
        }
    }
    let title = format!("{} — {}", record.scenario, machine.model().name);
    let panel = plot::blocks::Panel { title: machine.label(), record };
    let picture = plot::Picture::of("blocks", plot::blocks::scene(&title, &[panel]));
    report::write_picture(&picture, &dir)
        .map_err(|error| Failure::Told(format!("{}: {error}", dir.display())))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).map_err(|error| Failure::Told(format!("{}: {error}", path.display())))
}

/// Progress, on a terminal only.
fn progress_bar(name: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let shown = std::io::stderr().is_terminal();
    bar.set_draw_target(if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len}") {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar
}

/// A report for readers.
fn text(report: &Report) -> String {
    let mut table = Table::new(&["", "PAPER", "HERE", ""]);
    for finding in &report.judgement.findings {
        let mark = if finding.holds { "holds" } else { "differs" };
        table.row([finding.what.clone(), finding.paper.clone(), finding.here.clone(), mark.to_owned()]);
    }
    let mut out = format!(
        "{}: {}\n{}: {}\n{}",
        report.name,
        report.header.title,
        report.device,
        report.judgement.verdict(),
        table.render()
    );
    for (scenario, reason) in &report.skipped {
        out += &format!("not run: {scenario} ({reason})\n");
    }
    if let Some(comparison) = &report.comparison {
        let mut table =
            Table::new(&["SCENARIO", "KERNEL", "WHAT", ">PREDICTED MS", ">MEASURED MS", ">ERROR %"]);
        for row in &comparison.rows {
            let what = serde_json::to_value(row.what).ok();
            table.row([
                row.scenario.clone(),
                row.of.clone(),
                what.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned(),
                format!("{:.3}", row.predicted_ms),
                format!("{:.3}", row.measured_ms),
                format!("{:+.1}", row.error_percent),
            ]);
        }
        out += &table.render();
        if let Some(median) = comparison.error_percent_median {
            out += &format!("median error {median:.1} %\n");
        }
    }
    out + "\n"
}

/// A record for readers.
fn summary(record: &Record, label: &str) -> String {
    let mut table = Table::new(&["BENCHMARK", "SMS", ">ITERATIONS", ">FIRST START MS", ">LAST STOP MS"]);
    for one in &record.benchmarks {
        let span = one.span_ns().map(|span| span.map(|ns| format!("{:.3}", ns as f64 / 1e6)));
        let [start, stop] = span.unwrap_or_default();
        let sms = one.sms.clone().unwrap_or_else(|| "all".to_owned());
        table.row([one.title.clone(), sms, one.iterations.len().to_string(), start, stop]);
    }
    format!("{} ({label})\n{}", record.scenario, table.render())
}
