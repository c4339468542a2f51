//! The table and the picture.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use partita::gpu::Gpu;
use partita_chain_host::Algorithm;
use partita_core::Samples;
use partita_experiments::chains::ChainSet;
use partita_experiments::plot::Picture;
use partita_experiments::plot::grouped::{self, Bar, Panel};
use serde::{Deserialize, Serialize};

use crate::best::Best;
use crate::live::{Measured, Order};
use crate::{Options, Sizes};

/// A chain whose throughput falls by less with a quarter of the TPCs for every component is not
/// limited by the GPU.
const GPU_BOUND_BELOW: f64 = 0.9;

/// All rows of a GPU.
#[derive(Serialize, Deserialize)]
pub struct Report {
    device: String,
    driver: String,
    cuda_version: u32,
    gpu: String,
    rows: Vec<Row>,
}

/// A set in a regime.
#[derive(Serialize, Deserialize)]
pub struct Row {
    set: String,
    class: String,
    list: String,
    sizes: Sizes,
    repeat: u32,
    paper_gain_percent: Option<f64>,
    /// Frames a second with a quarter of the TPCs for every component.
    pub quarter_fps: Option<f64>,
    none: Vec<Measured>,
    published: Vec<Measured>,
    steady: Vec<Measured>,
    of_best: Vec<Measured>,
    /// The best division that was found by hand.
    pub best: Option<Best>,
    /// Why the row is incomplete.
    pub failure: Option<String>,
}

impl Row {
    /// Without runs.
    pub fn new(set: &ChainSet, sizes: Sizes, repeat: u32) -> Self {
        Self {
            set: set.name.to_owned(),
            class: set.class.to_owned(),
            list: set.list(),
            sizes,
            repeat,
            paper_gain_percent: set.paper_gain_percent,
            quarter_fps: None,
            none: Vec::new(),
            published: Vec::new(),
            steady: Vec::new(),
            of_best: Vec::new(),
            best: None,
            failure: None,
        }
    }

    /// How many components the set has.
    pub fn components(&self) -> usize {
        self.list.split(", ").count()
    }

    /// Adds measurements.
    pub fn add(&mut self, order: &Order, measured: Measured) {
        match order {
            Order::Algorithm(Algorithm::None) => self.none.push(measured),
            Order::Algorithm(Algorithm::Published) => self.published.push(measured),
            Order::Algorithm(Algorithm::Steady) => self.steady.push(measured),
            Order::Best(_) => self.of_best.push(measured),
        }
    }

    /// The divisions that the algorithms ended with.
    pub fn divisions(&self) -> Vec<Vec<u32>> {
        self.published.iter().chain(&self.steady).map(|measured| measured.tpcs.clone()).collect()
    }

    /// The gain of a way over the undivided GPU, by the rounds in which its search ended, in
    /// percent: during a search, divisions are tried.
    fn gain(&self, with: &[Measured]) -> Option<Samples> {
        let pairs = with.iter().zip(&self.none).filter(|(with, _)| with.has_ended);
        let gains: Vec<f64> =
            pairs.map(|(with, none)| 100.0 * (with.frames_per_s / none.frames_per_s - 1.0)).collect();
        Samples::new(gains).ok()
    }

    /// The ways compared with the undivided GPU, in the order of the table.
    fn ways(&self) -> [&[Measured]; 3] {
        [&self.published, &self.steady, &self.of_best]
    }

    fn bar(&self, with: &[Measured]) -> Bar {
        let Some(gain) = self.gain(with) else { return Bar::from(f64::NAN) };
        let range = (gain.max() > gain.min()).then(|| (gain.min(), gain.max()));
        Bar { height: gain.median(), range }
    }

    /// A quantity of the rounds in which a search ended.
    fn of(with: &[Measured], of: impl Fn(&Measured) -> f64) -> Option<Samples> {
        let ended = with.iter().filter(|measured| measured.has_ended);
        Samples::new(ended.map(of).collect::<Vec<_>>()).ok()
    }

    /// The limit of the throughput.
    fn regime(&self) -> Option<&'static str> {
        let none = Self::of(&self.none, |measured| measured.frames_per_s)?.median();
        Some(if self.quarter_fps? < GPU_BOUND_BELOW * none { "GPU" } else { "host" })
    }

    /// Ours as a part of the highest throughput of any way, in percent.
    fn share_percent(&self) -> Option<f64> {
        let median = |with: &[Measured]| Some(Self::of(with, |measured| measured.frames_per_s)?.median());
        let highest = [&self.none, &self.published, &self.of_best]
            .into_iter()
            .filter_map(|with| median(with))
            .fold(f64::NEG_INFINITY, f64::max);
        Some(100.0 * median(&self.steady)? / highest)
    }

    /// In a line.
    pub fn line(&self) -> String {
        let mut text = format!(
            "| {} | {} | {} | {} | {} | {} |",
            self.set,
            self.class,
            self.list,
            self.sizes.name(),
            self.repeat,
            self.regime().unwrap_or("")
        );
        match Self::of(&self.none, |measured| measured.frames_per_s) {
            Some(all) => _ = write!(text, " {:.0} ({:.0} to {:.0}) |", all.median(), all.min(), all.max()),
            None => text += " |",
        }
        for with in self.ways() {
            let open = with.iter().filter(|measured| !measured.has_ended).count();
            if let Some(gain) = self.gain(with) {
                let _ = write!(text, " {:+.1} % ({:+.1} to {:+.1}", gain.median(), gain.min(), gain.max());
                let last = with.iter().rfind(|measured| measured.has_ended).map(|measured| &measured.tpcs);
                let tpcs: Vec<String> = last.into_iter().flatten().map(u32::to_string).collect();
                let _ = write!(text, "); {}", tpcs.join(" "));
            }
            if std::ptr::eq(with, self.of_best.as_slice()) {
                if let Some(best) = &self.best {
                    let end = if best.is_local_optimum { ", climbed to its end" } else { "" };
                    let Best { trials, combined, combinations, .. } = best;
                    let _ = write!(text, "; {trials} tried, {combined} of {combinations} combinations{end}");
                }
                text += " |";
                continue;
            }
            let median = |of: fn(&Measured) -> f64| Some(Self::of(with, of)?.median());
            let trials = median(|measured| measured.trials as f64);
            let changes = median(|measured| measured.changes as f64);
            if let (Some(trials), Some(changes), Some(settled)) =
                (trials, changes, median(|measured| measured.settled_s))
            {
                let _ = write!(text, "; {trials:.0} trials, {changes:.0} changes, {settled:.1} s");
            }
            text += &match (open, with.len()) {
                (0, _) => " |".to_owned(),
                (open, all) if open == all => " not ended in time |".to_owned(),
                (open, all) => format!("; {open} of {all} not ended in time |"),
            };
        }
        match self.share_percent() {
            Some(share) => _ = write!(text, " {share:.1} % |"),
            None => text += " |",
        }
        let paper = self.paper_gain_percent.map_or_else(String::new, |gain| format!("{gain:+.2} %"));
        let _ = write!(text, " {paper} |");
        text
    }
}

const HEAD: &str = "| set | class | components | sizes | repeated | bound by | nobody divides: frames/s | published: gain; TPCs; trials, changes, time | ours: gain; TPCs; trials, changes, time | best found: gain; TPCs | ours of the best | the paper, up to |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|---|";

fn put(out: &Path, extension: &str, bytes: &[u8]) -> Result<()> {
    let path = out.with_extension(extension);
    std::fs::write(&path, bytes).with_context(|| path.display().to_string())
}

impl Report {
    /// The content of a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Without rows, or with those of the existing file for the same GPU and driver.
    pub fn begin(options: &Options, gpu: &Gpu) -> Result<Self> {
        let fresh = Self {
            device: gpu.facts.name.clone(),
            driver: gpu.driver_version.clone(),
            cuda_version: gpu.cuda_version,
            gpu: options.gpu.clone(),
            rows: Vec::new(),
        };
        let Some(path) = options.out.as_ref().map(|out| out.with_extension("json")) else { return Ok(fresh) };
        if !path.exists() {
            return Ok(fresh);
        }
        let before = Self::read(&path)?;
        ensure!(
            (&before.device, &before.driver) == (&fresh.device, &fresh.driver),
            "{} is of {}, driver {}, and this is {}, driver {}: name another file",
            path.display(),
            before.device,
            before.driver,
            fresh.device,
            fresh.driver
        );
        Ok(before)
    }

    /// Adds a row, replacing an older one.
    pub fn put(&mut self, row: Row) {
        let key = |row: &Row| (row.sizes, row.repeat, row.set.clone());
        self.rows.retain(|other| key(other) != key(&row));
        let place = |row: &Row| {
            let number = partita_experiments::chains::CHAIN_SETS.iter().position(|set| set.name == row.set);
            (row.sizes, row.repeat, number)
        };
        self.rows.push(row);
        self.rows.sort_by_key(place);
    }

    fn table(&self) -> String {
        let lines: Vec<String> = self.rows.iter().map(Row::line).collect();
        let mut text = format!("{HEAD}\n{}\n", lines.join("\n"));
        for row in &self.rows {
            if let Some(failure) = &row.failure {
                let _ = writeln!(text, "\n{}, {}, × {}: {failure}", row.set, row.sizes.name(), row.repeat);
            }
        }
        text
    }

    /// Writes all rows, without the picture.
    pub fn write(&self, options: &Options) -> Result<()> {
        let Some(out) = &options.out else { return Ok(()) };
        if let Some(parent) = out.parent().filter(|parent| *parent != Path::new("")) {
            std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        put(out, "json", (serde_json::to_string_pretty(self)? + "\n").as_bytes())?;
        let picture = out.file_name().unwrap_or_default().to_string_lossy();
        let page = format!(
            "# The paper's chain sets as processes\n\n{}, driver {}, CUDA {}.{}. Figure 4 of Luo and Wei (2023). `chain-live --gpu {} --rounds {} --search-s {}{}`; \
             the ways take turns in one chain, each from everything for everybody. A gain is over the chain that nobody divides, in the same round: median (least to \
             most) of the searches that ended in their time, with the division of the last one. Trials: divisions that were tried, each once; changes: how often another one was put in force; time: of the last change, after the order. The best found: by trying what \
             the algorithms ended with, each component at three fifths, a quarter and a twentieth of the TPCs alone, combinations of those of these that cost less than 7 % alone, the most promising first, and a climb from the best of \
             all that, for --search-s seconds; the best three are looked at again, and the best of these is measured again in every round. Both algorithms run under the same controller, which takes back what two periods prove worse. Bound by the GPU: less than nine tenths come through when every component has a quarter of the TPCs.\n\n{}\n![Gains]({picture}.png)\n",
            self.device,
            self.driver,
            self.cuda_version / 1000,
            self.cuda_version % 1000 / 10,
            self.gpu,
            options.rounds,
            options.search_s,
            if options.shrink > 1 { format!(" --shrink {}", options.shrink) } else { String::new() },
            self.table()
        );
        put(out, "md", page.as_bytes())
    }

    /// Prints the table, and draws the picture on request.
    pub fn show(&self, out: Option<&Path>) -> Result<()> {
        println!("{}", self.table());
        let Some(out) = out.filter(|_| !self.rows.is_empty()) else { return Ok(()) };
        let mut regimes: Vec<(Sizes, u32)> = self.rows.iter().map(|row| (row.sizes, row.repeat)).collect();
        regimes.dedup();
        let panel = |&(sizes, repeat): &(Sizes, u32)| Panel {
            title: format!("sizes {}, kernels repeated {repeat} ×", sizes.name()),
            y: "gain over nobody, %".to_owned(),
            groups: self
                .rows
                .iter()
                .filter(|row| (row.sizes, row.repeat) == (sizes, repeat))
                .map(|row| (row.set.clone(), row.ways().map(|with| row.bar(with)).to_vec()))
                .collect(),
        };
        let panels: Vec<Panel> = regimes.iter().map(panel).collect();
        let title = format!(
            "Chain sets, {}: gain over nobody's division; lines: least to most of the rounds",
            self.device
        );
        let scene = grouped::scene(&title, &["published", "ours", "best found"], &panels);
        Ok(Picture::of("chain_live", scene).save(out)?)
    }
}
