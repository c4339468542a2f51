//! The results of an experiment, as tables and files.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use partita_core::Samples;
use serde::Serialize;
use serde_json::{Value, json};

use crate::compare::{Comparison, Quantity, compare};
use crate::experiment::{Experiment, FileError, Header, Judgement, Run, Scenario};
use crate::log::{BenchmarkRecord, Record};
use crate::machine::{Machine, Origin};
use crate::plot::Picture;
use crate::recorded;

/// An experiment that was run.
pub struct Report {
    pub name: &'static str,
    /// Its file's header.
    pub header: Header,
    /// Its machine.
    pub device: String,
    pub runs: Vec<Run>,
    /// Scenarios that this machine does not run, with the reason.
    pub skipped: Vec<(String, String)>,
    /// The verdict on the paper's claims.
    pub judgement: Judgement,
    /// Predicted and measured, for runs on a GPU.
    pub comparison: Option<Comparison>,
    pictures: Vec<Picture>,
    origin: Option<Origin>,
}

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Report")
            .field("name", &self.name)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// Why an experiment gave no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Its file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// A scenario could not be run.
    #[error("{experiment}, {scenario:?}: {reason}")]
    Run {
        experiment: &'static str,
        scenario: String,
        /// Why.
        reason: String,
    },
}

/// Runs an experiment; calls `progress` with the numbers of finished and of all scenarios.
///
/// # Errors
/// [`ReportError`].
pub fn run(
    experiment: &Experiment,
    machine: &mut dyn Machine,
    mut progress: impl FnMut(usize, usize),
) -> Result<Report, ReportError> {
    let device = machine.model().clone();
    let scenarios = experiment.scenarios(&device)?;
    let count = scenarios.len();
    let failed = |scenario: &Scenario, reason: String| ReportError::Run {
        experiment: experiment.name,
        scenario: scenario.config.name.clone(),
        reason,
    };
    let (mut runs, mut predicted, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for (index, scenario) in scenarios.into_iter().enumerate() {
        progress(index, count);
        if machine.is_measured() && !scenario.runs_on_gpu() {
            skipped.push((scenario.config.name, "MIG instances are on the model alone".to_owned()));
            continue;
        }
        let ran = machine.run(&scenario).map_err(|error| failed(&scenario, error))?;
        if let Some(record) = ran.predicted {
            predicted.push(Run { scenario: scenario.clone(), record });
        }
        runs.push(Run { scenario, record: ran.record });
    }
    progress(count, count);
    let judgement = experiment.judge(&runs, &device);
    let pictures = experiment.draw(&runs, &device);
    Ok(Report {
        name: experiment.name,
        header: experiment.header()?,
        device: machine.label(),
        judgement,
        comparison: machine.is_measured().then(|| compare(&predicted, &runs)),
        pictures,
        origin: machine.origin(),
        runs,
        skipped,
    })
}

/// A benchmark's result, in short.
#[derive(Serialize)]
struct Summary<'r> {
    title: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sms: Option<&'r str>,
    iterations: usize,
    kernels: usize,
    blocks: u64,
    first_start_ms: Option<f64>,
    last_stop_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iteration_ms: Option<Value>,
}

fn summary(one: &BenchmarkRecord) -> Summary<'_> {
    let span = one.span_ns();
    let times = one.iterations.iter().map(|iteration| iteration.execute_time_ns() as f64 / 1e6);
    let samples = Samples::new(times.collect::<Vec<_>>()).ok();
    Summary {
        title: &one.title,
        sms: one.sms.as_deref(),
        iterations: one.iterations.len(),
        kernels: one.kernels().count(),
        blocks: one.kernels().map(|kernel| kernel.block_count).sum(),
        first_start_ms: span.map(|span| span[0] as f64 / 1e6),
        last_stop_ms: span.map(|span| span[1] as f64 / 1e6),
        iteration_ms: samples.map(|samples| {
            json!({
                "mean": samples.mean(), "min": samples.min(), "p50": samples.p50(), "p99": samples.p99(), "max": samples.max(),
            })
        }),
    }
}

/// A record, in short.
pub fn record_json(record: &Record) -> Value {
    let benchmarks: Vec<Summary<'_>> = record.benchmarks.iter().map(summary).collect();
    json!({"scenario": record.scenario, "benchmarks": benchmarks})
}

impl Report {
    /// The result as JSON.
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "experiment": self.name,
            "title": self.header.title,
            "source": self.header.source,
            "device": self.device,
            "verdict": self.judgement.verdict().to_string(),
            "findings": self.judgement.findings,
            "scenarios": self.runs.iter().map(|run| record_json(&run.record)).collect::<Vec<_>>(),
        });
        if !self.skipped.is_empty() {
            let skipped =
                self.skipped.iter().map(|(scenario, reason)| json!({"scenario": scenario, "reason": reason}));
            value["skipped"] = skipped.collect();
        }
        if let Some(comparison) = &self.comparison {
            value["model_against_hardware"] = json!(comparison);
        }
        value
    }

    /// Writes `config.json`, `result.json`, the pictures and measurements into a directory of the
    /// experiment's name in `out`. The configuration is a list, which `partita bench --config` runs
    /// again.
    ///
    /// # Errors
    /// Writing, or drawing.
    pub fn write(&self, out: &Path) -> io::Result<()> {
        let dir = out.join(self.name);
        fs::create_dir_all(&dir)?;
        // There can be a hundred: a line each.
        let configs: Vec<String> =
            self.runs.iter().map(|run| run.scenario.config.to_json().to_string()).collect();
        fs::write(dir.join("config.json"), format!("[\n{}\n]\n", configs.join(",\n")))?;
        fs::write(dir.join("result.json"), pretty(&self.to_json()))?;
        if let Some(origin) = &self.origin {
            fs::write(dir.join(recorded::FILE), recorded::text(origin, &self.runs))?;
        }
        for picture in &self.pictures {
            write_picture(picture, &dir)?;
        }
        Ok(())
    }

    /// Writes the pictures alone, as PNG, into a directory of the experiment's name in `out`.
    ///
    /// # Errors
    /// Writing, or drawing.
    pub fn write_pictures_png(&self, out: &Path) -> io::Result<()> {
        let dir = out.join(self.name);
        fs::create_dir_all(&dir)?;
        self.pictures.iter().try_for_each(|picture| write_png(picture, &dir))
    }

    /// Its pictures' names, without extensions.
    pub fn picture_names(&self) -> impl Iterator<Item = &'static str> {
        self.pictures.iter().map(|picture| picture.name)
    }

    /// The findings as a table, with the pictures if they are beside the text.
    pub fn markdown(&self, with_pictures: bool) -> String {
        let mut out = format!("## {}: {}\n\n", self.name, self.header.title);
        let _ = writeln!(
            out,
            "From {}. Run on: {}. **{}**.\n",
            self.header.source,
            self.device,
            self.judgement.verdict()
        );
        out.push_str("| | paper | here | |\n|---|---|---|---|\n");
        for finding in &self.judgement.findings {
            let mark = if finding.holds { "holds" } else { "differs" };
            let _ = writeln!(out, "| {} | {} | {} | {mark} |", finding.what, finding.paper, finding.here);
        }
        if !self.header.notes.is_empty() {
            let _ = writeln!(out, "\n{}", self.header.notes);
        }
        for (scenario, reason) in &self.skipped {
            let _ = writeln!(out, "\nNot run: {scenario} ({reason}).");
        }
        if let Some(comparison) = &self.comparison {
            let _ = write!(out, "\n{}", comparison.markdown());
        }
        for picture in self.pictures.iter().filter(|_| with_pictures) {
            let _ = writeln!(out, "\n![{}]({}/{}.png)", self.header.title, self.name, picture.name);
        }
        out
    }
}

impl Comparison {
    /// The rows as a table.
    pub fn markdown(&self) -> String {
        let mut out =
            "| scenario | kernel | | predicted | measured | error |\n|---|---|---|---:|---:|---:|\n"
                .to_owned();
        for row in &self.rows {
            let what = match row.what {
                Quantity::Finish => "ends",
                Quantity::Iteration => "iteration, median",
                Quantity::Makespan => "makespan",
            };
            let _ = writeln!(
                out,
                "| {} | {} | {what} | {:.3} ms | {:.3} ms | {:+.1} % |",
                row.scenario, row.of, row.predicted_ms, row.measured_ms, row.error_percent
            );
        }
        if let Some(median) = self.error_percent_median {
            let _ = writeln!(out, "\nMedian error: {median:.1} %.");
        }
        out
    }
}

/// The page of several reports.
pub fn page(reports: &[Report]) -> String {
    let mut out = "# Experiments\n\n| experiment | device | verdict |\n|---|---|---|\n".to_owned();
    for report in reports {
        let _ = writeln!(
            out,
            "| [{0}](#{0}) | {1} | {2} |",
            report.name,
            report.device,
            report.judgement.verdict()
        );
    }
    for report in reports {
        // A heading's own anchor would contain its title, too.
        let _ = write!(out, "\n<a id=\"{}\"></a>\n\n{}", report.name, report.markdown(true));
    }
    out
}

/// Writes a picture as SVG and PNG.
///
/// # Errors
/// Writing, or drawing.
pub fn write_picture(picture: &Picture, dir: &Path) -> io::Result<()> {
    fs::write(dir.join(format!("{}.svg", picture.name)), picture.svg())?;
    write_png(picture, dir)
}

fn write_png(picture: &Picture, dir: &Path) -> io::Result<()> {
    let png = picture.png().map_err(io::Error::other)?;
    fs::write(dir.join(format!("{}.png", picture.name)), png)
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
