//! The table and the picture.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use partita::chain::Algorithm;
use partita_bench::plot::{Panel, Series, Style, draw};
use partita_core::Samples;
use partita_experiments::chains::ChainSet;

use crate::Options;
use crate::climb::Best;
use crate::live::Run;

/// A set in a regime.
pub struct Row {
    set: &'static str,
    class: &'static str,
    list: String,
    paper_gain_percent: Option<f64>,
    repeat: u32,
    runs: Vec<(Algorithm, Run)>,
    /// The best division that was found by hand.
    pub best: Option<Best>,
}

impl Row {
    /// Without runs.
    pub fn new(set: &ChainSet, repeat: u32) -> Self {
        Self {
            set: set.name,
            class: set.class,
            list: set.list(),
            paper_gain_percent: set.paper_gain_percent,
            repeat,
            runs: Vec::new(),
            best: None,
        }
    }

    /// Takes a run.
    pub fn add(&mut self, division: Algorithm, run: Run) {
        self.runs.push((division, run));
    }

    fn of(&self, division: Algorithm) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |(of, _)| *of == division).map(|(_, run)| run)
    }

    fn samples(&self, division: Algorithm) -> Option<Samples> {
        Samples::new(self.of(division).map(|run| run.frames_per_s).collect::<Vec<_>>()).ok()
    }

    fn median(&self, division: Algorithm, of: impl Fn(&Run) -> f64) -> f64 {
        Samples::new(self.of(division).map(of).collect::<Vec<_>>()).map_or(f64::NAN, |samples| samples.p50())
    }

    /// The divisions that the algorithms ended with.
    pub fn divisions(&self) -> Vec<Vec<u32>> {
        [Algorithm::Published, Algorithm::Steady]
            .into_iter()
            .flat_map(|division| self.of(division).map(|run| run.tpcs.clone()))
            .collect()
    }

    /// What an algorithm gains over nobody, by rounds, in percent.
    fn gain(&self, division: Algorithm) -> Option<Samples> {
        let pairs = self.of(division).zip(self.of(Algorithm::None));
        Samples::new(
            pairs
                .map(|(with, without)| 100.0 * (with.frames_per_s / without.frames_per_s - 1.0))
                .collect::<Vec<_>>(),
        )
        .ok()
    }

    /// In a line.
    pub fn line(&self) -> String {
        let mut text = format!("| {} | {} | {} | {} |", self.set, self.class, self.list, self.repeat);
        if let Some(all) = self.samples(Algorithm::None) {
            let _ = write!(text, " {:.0} ({:.0} to {:.0}) |", all.p50(), all.min(), all.max());
        }
        for division in [Algorithm::Published, Algorithm::Steady] {
            let Some(gain) = self.gain(division) else {
                text += " nothing came through |";
                continue;
            };
            let (trials, settled_s) =
                (self.median(division, |run| run.trials as f64), self.median(division, |run| run.settled_s));
            let _ = write!(
                text,
                " {:+.1} % ({:+.1} to {:+.1}); {trials:.0}, {settled_s:.1} s |",
                gain.p50(),
                gain.min(),
                gain.max()
            );
        }
        let without = self.median(Algorithm::None, |run| run.frames_per_s);
        let steady = self.median(Algorithm::Steady, |run| run.frames_per_s);
        match &self.best {
            Some(best) => {
                let _ = write!(
                    text,
                    " {:+.1} % {:?}; {} | {:.1} % |",
                    100.0 * (best.frames_per_s / without - 1.0),
                    best.tpcs,
                    best.trials,
                    100.0 * steady / best.frames_per_s
                );
            }
            None => text += " | |",
        }
        let _ = write!(
            text,
            " {} |",
            self.paper_gain_percent.map_or_else(String::new, |gain| format!("{gain:+.2} %"))
        );
        text
    }
}

const HEAD: &str = "| set | class | components | repeated | nobody divides: frames/s | published: gain; trials, time | ours: gain; trials, time | best found: gain, TPCs; trials | ours of the best | the paper, up to |\n\
                    |---|---|---|---|---|---|---|---|---|---|";

/// Prints the table, and writes it and the picture where that is wanted.
pub fn write(options: &Options, rows: &[Row]) -> Result<()> {
    let lines: Vec<String> = rows.iter().map(Row::line).collect();
    let table = format!("{HEAD}\n{}\n", lines.join("\n"));
    println!("{table}");
    let Some(out) = &options.out else { return Ok(()) };
    let page = format!(
        "# The paper's chain sets as processes\n\nFigure 4 of Luo and Wei (2023). `chain-live --gpu {} --rounds {} --seconds {} --counted-s {} --search-s {}`: {} rounds, the ways in turns. A gain is \
         over the chain that nobody divides, in the same round: median, least and most. Trials: divisions that were tried; time: of the last one, after the first frame. The best found is a climb's, not an \
         exhaustive search's.\n\n{table}\n![Gains](chain_live.png)\n",
        options.gpu, options.rounds, options.seconds, options.counted_s, options.search_s, options.rounds
    );
    let path = out.with_extension("md");
    std::fs::write(&path, page).with_context(|| path.display().to_string())?;
    let series = |name: &str, color: &'static str, repeat: u32, value: &dyn Fn(&Row) -> Option<f64>| Series {
        name: name.to_owned(),
        color,
        points: rows
            .iter()
            .filter(|row| row.repeat == repeat)
            .enumerate()
            .filter_map(|(at, row)| Some((at as f64 + 1.0, value(row)?)))
            .collect(),
        style: Style::Measured,
    };
    let panels: Vec<Panel> = options
        .repeat
        .iter()
        .map(|&repeat| Panel {
            title: format!("kernels repeated {repeat} ×"),
            x: "set, in the table's order".to_owned(),
            y: "gain over nobody, percent".to_owned(),
            series: vec![
                series("published", "darkorange", repeat, &|row| Some(row.gain(Algorithm::Published)?.p50())),
                series("ours", "seagreen", repeat, &|row| Some(row.gain(Algorithm::Steady)?.p50())),
                series("best found", "gray", repeat, &|row| {
                    Some(
                        100.0
                            * (row.best.as_ref()?.frames_per_s
                                / row.median(Algorithm::None, |run| run.frames_per_s)
                                - 1.0),
                    )
                }),
            ],
            is_log: false,
        })
        .collect();
    draw(out, &format!("Chain sets on GPU {}", options.gpu), &panels)
}
