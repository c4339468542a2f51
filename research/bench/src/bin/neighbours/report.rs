//! The page of a run.

use std::fmt::Write as _;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use partita_core::Samples;

/// A cell beyond this ratio needs an explanation on the page of results.
pub const BOUND: f64 = 1.05;

/// Times of the victim's kernels, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    p50: f64,
    p99: f64,
}

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Times(Times),
    /// The victim or the neighbour did not work, and why.
    Broken(String),
}

impl FromStr for Outcome {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        if let Some(code) = line.strip_prefix("error ") {
            return Ok(Self::Broken(format!("CUDA error {code}")));
        }
        let words: Vec<f64> =
            line.split(' ').map(str::parse).collect::<Result<_, _>>().with_context(|| format!("{line:?}"))?;
        let [p50, p99, ..] = words[..] else { bail!("the victim answered {line:?}") };
        Ok(Self::Times(Times { p50, p99 }))
    }
}

impl Outcome {
    /// The ratios to the victim alone, as text.
    pub fn against(&self, alone: &Times) -> String {
        match self {
            Self::Times(times) => {
                format!("p50 {:.2} x, p99 {:.2} x", times.p50 / alone.p50, times.p99 / alone.p99)
            }
            Self::Broken(why) => why.clone(),
        }
    }
}

/// A victim beside a neighbour, in one round.
#[derive(Debug)]
pub struct Cell {
    pub setting: &'static str,
    pub kind: String,
    pub alone: Times,
    pub outcome: Outcome,
    /// What broke the victim after the neighbour's end.
    pub end: Option<String>,
}

/// The page: a row for each kind, a column for each setting.
///
/// # Errors
/// If a ratio is not a number.
pub fn page(heading: &str, kinds: &[String], settings: &[&str], cells: &[Cell]) -> Result<String> {
    let mut text = format!("# A victim beside bad neighbours\n\n{heading}\n\n| neighbour |");
    settings.iter().try_for_each(|setting| write!(text, " {setting} |"))?;
    write!(text, "\n|---|{}", "---|".repeat(settings.len()))?;
    let mut beyond = Vec::new();
    for kind in kinds {
        write!(text, "\n| {kind} |")?;
        for setting in settings {
            let of: Vec<&Cell> =
                cells.iter().filter(|cell| cell.setting == *setting && cell.kind == *kind).collect();
            let ratios: Vec<f64> = of.iter().filter_map(|cell| ratio(cell)).collect();
            let broken: Vec<&str> = of.iter().filter_map(|cell| reason(cell)).collect();
            if !ratios.is_empty() {
                let samples = Samples::new(ratios)?;
                let (least, median, most) = (samples.quantile(0), samples.p50(), samples.quantile(1000));
                write!(text, " {median:.2} ({least:.2} to {most:.2})")?;
                if median > BOUND {
                    beyond.push(format!("{kind}, {setting}: {median:.2}"));
                }
            }
            if let Some(first) = broken.first() {
                write!(text, " {} of {}: {first}", broken.len(), of.len())?;
                beyond.push(format!("{kind}, {setting}: {first}"));
            }
            text.push_str(" |");
        }
    }
    write!(text, "\n\nBeyond {BOUND}, or broken: {}.\n", beyond.len())?;
    beyond.iter().try_for_each(|line| write!(text, "\n* {line}"))?;
    Ok(text.trim_end().to_owned() + "\n")
}

fn ratio(cell: &Cell) -> Option<f64> {
    match &cell.outcome {
        Outcome::Times(times) => Some(times.p99 / cell.alone.p99),
        Outcome::Broken(_) => None,
    }
}

fn reason(cell: &Cell) -> Option<&str> {
    match &cell.outcome {
        Outcome::Times(_) => cell.end.as_deref(),
        Outcome::Broken(why) => Some(why),
    }
}
