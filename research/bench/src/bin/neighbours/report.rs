//! The page of a run.

use std::fmt::Write as _;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use partita_core::Samples;

/// A cell beyond this ratio needs an explanation on the page of results.
pub const BOUND: f64 = 1.05;

/// Times of the victim's kernels, in nanoseconds: p50 and p99 of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    whole: [f64; 2],
    /// Before the first block, beyond the least of the measurement.
    before: [f64; 2],
    inside: [f64; 2],
    /// After the last block, beyond the least of the measurement.
    after: [f64; 2],
}

impl Times {
    /// What each part adds to the victim alone, at p50 and p99, in microseconds.
    fn parts(&self, alone: &Self) -> [[f64; 2]; 3] {
        [(self.before, alone.before), (self.inside, alone.inside), (self.after, alone.after)]
            .map(|(beside, alone)| [0, 1].map(|i| (beside[i] - alone[i]) / 1000.0))
    }
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
        let [a, b, c, d, e, f, g, h] = words[..] else { bail!("the victim answered {line:?}") };
        Ok(Self::Times(Times { whole: [a, b], before: [c, d], inside: [e, f], after: [g, h] }))
    }
}

impl Outcome {
    /// The ratios to the victim alone, as text.
    pub fn against(&self, alone: &Times) -> String {
        match self {
            Self::Times(times) => {
                let [p50, p99] = [0, 1].map(|i| times.whole[i] / alone.whole[i]);
                format!("p50 {p50:.2} x, p99 {p99:.2} x")
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

impl Cell {
    fn times(&self) -> Option<&Times> {
        match &self.outcome {
            Outcome::Times(times) => Some(times),
            Outcome::Broken(_) => None,
        }
    }
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
                    beyond.push(format!("{kind}, {setting}: {median:.2}; {}", parts(&of)?));
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

/// Where the time of these cells has passed: medians of what each part adds.
fn parts(cells: &[&Cell]) -> Result<String> {
    let of: Vec<[[f64; 2]; 3]> =
        cells.iter().filter_map(|cell| Some(cell.times()?.parts(&cell.alone))).collect();
    let mut words = Vec::new();
    for (i, name) in ["before", "in", "after"].into_iter().enumerate() {
        let median = |j: usize| -> Result<f64> {
            let values: Vec<f64> = of.iter().map(|cell| cell[i][j]).collect();
            Ok(Samples::new(values)?.p50())
        };
        words.push(format!("{:+.0} / {:+.0} us {name} the kernels", median(0)?, median(1)?));
    }
    Ok(words.join(", "))
}

fn ratio(cell: &Cell) -> Option<f64> {
    Some(cell.times()?.whole[1] / cell.alone.whole[1])
}

fn reason(cell: &Cell) -> Option<&str> {
    match &cell.outcome {
        Outcome::Times(_) => cell.end.as_deref(),
        Outcome::Broken(why) => Some(why),
    }
}
