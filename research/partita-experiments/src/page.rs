//! The page of all experiments: the paper, the model of its GPU, and one GPU, predicted and
//! measured.
//!
//! It depends only on the experiments' files, the model and stored measurements, so it can be made
//! again anywhere, byte for byte.

use std::fmt::Write as _;
use std::io;
use std::path::{Component, Path, PathBuf};

use partita_core::Samples;
use partita_sim::catalogue;
use serde_json::{Value, json};

use crate::compare::Comparison;
use crate::experiment::{Experiment, Verdict};
use crate::machine::{Machine, Model};
use crate::recorded::Recorded;
use crate::report::{self, Report, ReportError};

/// Directories of the results: the model of each paper's GPU, the model of the one GPU, its
/// measurements.
const MODEL: &str = "model";
const PREDICTED: &str = "h200-model";
const MEASURED: &str = "h200";
/// The one GPU, in the catalogue.
const DEVICE: &str = catalogue::DEFAULT;
/// Both files of the table of all quantities.
const TABLE: &str = "model_against_hardware";

/// A larger error of a prediction needs an explanation.
const ERROR_PERCENT_GOOD: f64 = 10.0;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// An experiment.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Stored measurements.
    #[error("{0}")]
    Kept(String),
    /// A file.
    #[error("{path}: {error}")]
    Write {
        path: String,
        /// The fault.
        error: io::Error,
    },
}

/// An experiment on the page.
#[derive(Debug)]
pub struct Entry {
    /// On the model of the paper's GPU.
    pub home: Report,
    /// On the model of the one GPU.
    pub predicted: Report,
    /// On that GPU.
    pub measured: Option<Report>,
}

impl Entry {
    /// Runs an experiment on both models, replays its measurements, and writes all that under
    /// `results`.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn make(experiment: &Experiment, results: &Path) -> Result<Self, PageError> {
        let kept = Recorded::open(&results.join(MEASURED), experiment.name).map_err(PageError::Kept)?;
        let home = experiment.home().map_err(ReportError::from)?;
        let predicted = match &kept {
            Some(kept) => kept.model_machine(),
            None => {
                Model::of(catalogue::device(DEVICE).map_err(|error| PageError::Kept(error.to_string()))?, 0)
            }
        };
        let run = |mut machine: Box<dyn Machine>| report::run(experiment, &mut *machine, |_, _| {});
        let entry = Self {
            home: run(Box::new(Model::of(home, 0)))?,
            predicted: run(Box::new(predicted))?,
            measured: kept.map(|kept| run(Box::new(kept))).transpose()?,
        };
        let write = |report: &Report, dir: &str| {
            let path = results.join(dir);
            report.write(&path).map_err(|error| PageError::Write { path: path.display().to_string(), error })
        };
        write(&entry.home, MODEL)?;
        write(&entry.predicted, PREDICTED)?;
        // Beside the measurements only the page's own files: `--replay` makes all others from them.
        if let Some(measured) = &entry.measured {
            let path = results.join(MEASURED);
            let written = measured.write_pictures_png(&path);
            written.map_err(|error| PageError::Write { path: path.display().to_string(), error })?;
        }
        Ok(entry)
    }

    /// Whether all runs agree with the paper.
    pub fn holds(&self) -> bool {
        let reports = [Some(&self.home), Some(&self.predicted), self.measured.as_ref()];
        reports.into_iter().flatten().all(|report| report.judgement.verdict() == Verdict::Reproduced)
    }
}

/// Writes the table of all predicted and measured quantities, as Markdown and as JSON.
///
/// # Errors
/// [`PageError::Write`].
pub fn write_table(entries: &[Entry], results: &Path) -> Result<(), PageError> {
    let measured = || entries.iter().filter_map(|entry| entry.measured.as_ref());
    let Some(first) = measured().next() else { return Ok(()) };
    let write = |extension: &str, text: String| {
        let path = results.join(format!("{TABLE}.{extension}"));
        std::fs::write(&path, text)
            .map_err(|error| PageError::Write { path: path.display().to_string(), error })
    };
    let mut text = format!(
        "# The model against hardware\n\nMeasured on {}; predicted by the model of it. What the model is told of the kernels was measured by kernels \
         alone (`research/bench/experiments/costs.json`); no kernel that is compared here was among \
         them.\n\n{}",
        first.device,
        summary(entries)
    );
    for report in measured() {
        if let Some(comparison) = &report.comparison {
            let _ = write!(text, "\n## {}\n\n{}", report.name, comparison.markdown());
            text += &explanations(report, comparison);
        }
    }
    write("md", text)?;
    let experiments: Vec<Value> = measured()
        .map(|report| json!({"experiment": report.name, "device": report.device, "comparison": report.comparison}))
        .collect();
    let value = json!({"error_percent_median": median(entries), "experiments": experiments});
    write("json", format!("{value:#}\n"))
}

fn errors(comparison: &Comparison) -> impl Iterator<Item = f64> {
    comparison.rows.iter().map(|row| row.error_percent.abs()).filter(|error| error.is_finite())
}

/// The reasons for larger errors of scenarios, from the experiment's file.
fn explanations(report: &Report, comparison: &Comparison) -> String {
    let mut out = String::new();
    let mut told = Vec::new();
    for row in comparison.rows.iter().filter(|row| row.error_percent.abs() > ERROR_PERCENT_GOOD) {
        let off = report.header.off.iter().find(|off| row.scenario.starts_with(&off.scenarios));
        let because = off.map_or("not explained", |off| off.because.as_str());
        let of = off.map_or(row.scenario.as_str(), |off| off.scenarios.as_str());
        if !told.contains(&of) {
            told.push(of);
            let of = if of.is_empty() { "all" } else { of };
            let _ = write!(out, "\nOff by more than {ERROR_PERCENT_GOOD:.0} % in «{of}»: {because}.\n");
        }
    }
    out
}

/// The median error of all quantities of all experiments, in percent.
fn median(entries: &[Entry]) -> Option<f64> {
    let comparisons = entries.iter().filter_map(|entry| entry.measured.as_ref()?.comparison.as_ref());
    let all: Vec<f64> = comparisons.flat_map(errors).collect();
    Samples::new(all).ok().map(|errors| errors.median())
}

/// A line for each experiment, and one for all.
fn summary(entries: &[Entry]) -> String {
    let mut out = "| experiment | quantities | median error | largest |\n|---|---:|---:|---:|\n".to_owned();
    let mut count = 0;
    for report in entries.iter().filter_map(|entry| entry.measured.as_ref()) {
        let Some(comparison) = &report.comparison else { continue };
        let Ok(errors) = Samples::new(errors(comparison).collect::<Vec<_>>()) else { continue };
        count += errors.count();
        let (median, max) = (errors.median(), errors.max());
        let _ = writeln!(out, "| {} | {} | {median:.1} % | {max:.1} % |", report.name, errors.count());
    }
    if let Some(median) = median(entries) {
        let _ = writeln!(out, "| **all** | {count} | **{median:.1} %** | |");
    }
    out
}

/// The page, with links from where `page` is to where the results are.
pub fn text(entries: &[Entry], results: &Path, page: &Path) -> String {
    let results = relative(page.parent().unwrap_or(Path::new("")), results);
    let mut out = String::from(
        "# Experiments\n\n\
         Made by `partita bench all --gpu sim --out research/bench/results/experiments --page \
         docs/experiments.md` (all experiments on both models, with their pictures: 5 s on one core, release \
         build). Its measurements are kept in `research/bench/results/experiments/h200`: with them the page \
         has the same bytes on every machine; without them the model of the H200 uses its built-in costs of \
         kernels, and its columns differ. «The paper» is J. Bakita and J. H. Anderson, «Hardware Compute \
         Partitioning on NVIDIA GPUs» (RTAS 2023), and for `ecrts25` their article of 2025. Each experiment \
         is a file in `research/bench/experiments`. On another GPU than the paper's, TPC i of n becomes the \
         i-th of n parts of it and grids grow with them. A verdict is computed from the runs: each row is a \
         claim.\n\n",
    );
    out += "| experiment | model of the paper's GPU | model of an H200 | H200 |\n|---|---|---|---|\n";
    for Entry { home, predicted, measured } in entries {
        let short = |report: &Report| match report.judgement.verdict() {
            Verdict::Reproduced => "reproduced",
            Verdict::Differs(_) => "differs",
        };
        let measured = measured.as_ref().map_or("not measured", short);
        let _ = writeln!(
            out,
            "| [{0}](#{0}) | {1} | {2} | {measured} |",
            home.name,
            short(home),
            short(predicted)
        );
    }
    if median(entries).is_some() {
        let _ = write!(
            out,
            "\n## The model against hardware\n\n{}\nSix costs of kernels in the model were measured on the \
             same GPU, by kernels that are not compared here. In figures 3, 4, 11 and 12 the kernels spin \
             for a fixed time, so an error of 0 % there says when kernels start, not how long their work \
             takes.\nEvery quantity stands in [one table]({}/{TABLE}.md).\n",
            summary(entries),
            results.display()
        );
    }
    for entry in entries {
        entry.section(&results, &mut out);
    }
    out
}

impl Entry {
    fn section(&self, results: &Path, out: &mut String) {
        let Self { home, predicted, measured } = self;
        // A heading's own anchor would contain its title, too.
        let _ = write!(
            out,
            "\n<a id=\"{0}\"></a>\n\n## {0}: {1}\n\nFrom {2}.\n",
            home.name, home.header.title, home.header.source
        );
        let reports: Vec<&Report> = [home, predicted].into_iter().chain(measured.as_ref()).collect();
        for report in &reports {
            let _ = write!(out, "\n* {}: {}", report.device, report.judgement.verdict());
        }
        let _ = write!(out, "\n\n| | the paper |");
        for report in &reports {
            let _ = write!(out, " {} |", report.device);
        }
        let _ = writeln!(out, "\n|---|---|{}", "---|".repeat(reports.len()));
        for (index, finding) in home.judgement.findings.iter().enumerate() {
            let _ = write!(out, "| {} | {} |", finding.what, finding.paper);
            for report in &reports {
                // A claim that could not be made there has no row; if all were made, their texts
                // may still name the device.
                let all = &report.judgement.findings;
                let same = all.iter().find(|other| other.what == finding.what);
                let is_whole = all.len() == home.judgement.findings.len();
                let here = same.or_else(|| all.get(index).filter(|_| is_whole));
                let _ = write!(out, " {} |", here.map_or("", |finding| finding.here.as_str()));
            }
            out.push('\n');
        }
        if !home.header.notes.is_empty() {
            let _ = writeln!(out, "\n{}", home.header.notes);
        }
        for (scenario, reason) in measured.iter().flat_map(|report| &report.skipped) {
            let _ = writeln!(out, "\nNot measured: {scenario} ({reason}).");
        }
        // If it was measured, the prediction's picture adds nothing.
        let pictured = [
            (Some(home), MODEL),
            (measured.is_none().then_some(predicted), PREDICTED),
            (measured.as_ref(), MEASURED),
        ];
        for (report, dir) in pictured {
            for name in report.iter().flat_map(|report| report.picture_names()) {
                let alt = format!("{}, {dir}", home.header.title);
                let _ = writeln!(out, "\n![{alt}]({}/{dir}/{}/{name}.png)", results.display(), home.name);
            }
        }
    }
}

/// The relative path from a directory to a path.
fn relative(from: &Path, to: &Path) -> PathBuf {
    // A bare file name has an empty parent, which is not a path.
    let named = |path: &Path| if path == Path::new("") { PathBuf::from(".") } else { path.to_owned() };
    let absolute = |path: &Path| std::path::absolute(named(path)).unwrap_or_else(|_| path.to_owned());
    let (from, to) = (absolute(from), absolute(to));
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (from.components().collect(), to.components().collect());
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = from[common..].iter().map(|_| Component::ParentDir);
    up.chain(to[common..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_page_to_the_results() {
        let way = |from: &str, to: &str| relative(Path::new(from), Path::new(to)).display().to_string();
        assert_eq!(way("/a/docs", "/a/bench/results"), "../bench/results");
        assert_eq!(way("/a", "/a/b"), "b");
        assert_eq!(way("", "b"), "b");
    }
}
