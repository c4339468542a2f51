//! The paper's nine chain sets on the model of a GPU: default MPS, its algorithm 1, ours, and the
//! best allocation by trial. Figure 4 of J. Luo and X. Wei, «Dynamic GPU Resource Management in
//! Component-Based Applications», 2023.
//!
//! ```text
//! cargo build --profile dist -p partita-bench
//! target/dist/chain-sets --out research/bench/results/chains
//! ```
//!
//! All of it is computed on the model; nothing here touches a GPU. Equal arguments give equal
//! results.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use partita_experiments::chains::report::{Report, Section};
use partita_experiments::chains::{
    CHAIN_SETS, ChainError, ChainSet, IMAGE_CHAIN, REGIMES, Regime, Row, measure,
};

/// Runs the paper's chain sets on the model.
#[derive(Parser)]
struct Options {
    /// Conditions to run under, of: raised, lock-step, scaled, printed, paper, paper-raised.
    #[arg(long, value_delimiter = ',', default_value = "raised,lock-step,scaled,printed,paper,paper-raised")]
    regimes: Vec<String>,
    /// Runs only sets with this text in their names.
    #[arg(long, default_value = "")]
    only: String,
    /// Omits our additional chain, which streams and computes.
    #[arg(long)]
    without_image: bool,
    /// Sets run at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Write FILE.json, FILE.svg and FILE.png; the tables go to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Reads the oracles from an earlier FILE.json instead of searching for them, which is nearly
    /// all of the work.
    #[arg(long, value_name = "FILE")]
    oracles: Option<PathBuf>,
    /// Print and draw a FILE.json again instead of running.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    draw: Option<PathBuf>,
}

/// A set under some conditions; the image chain runs under the first of them only, as its kernels
/// are the same under all.
type Case = (Regime, ChainSet);

fn cases(options: &Options) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for name in &options.regimes {
        let regime = REGIMES.iter().find(|regime| regime.name == name);
        let regime = regime.ok_or_else(|| {
            let names: Vec<&str> = REGIMES.iter().map(|regime| regime.name).collect();
            anyhow!("there are no conditions `{name}`; there are {}", names.join(", "))
        })?;
        let image = (regime.name == REGIMES[0].name && !options.without_image).then_some(IMAGE_CHAIN);
        let sets = CHAIN_SETS.into_iter().chain(image).filter(|set| set.name.contains(&options.only));
        cases.extend(sets.map(|set| (*regime, set)));
    }
    ensure!(!cases.is_empty(), "no set has `{}` in its name", options.only);
    Ok(cases)
}

/// Runs all cases, this many at a time.
fn run(cases: &[Case], jobs: usize, before: Option<&Report>) -> Result<Vec<Row>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<Row, ChainError>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, cases.len()) {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some((regime, set)) = cases.get(at)
                {
                    let before = before.and_then(|report| report.row(regime.name, set.name));
                    let row = measure(regime, set, before);
                    eprintln!("{} {}", regime.name, set.name);
                    if let Ok(mut done) = done.lock() {
                        done.push((at, row));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().map_err(|_| anyhow!("a thread ended early"))?;
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, row)| row).collect::<Result<_, _>>()?)
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(path) = &options.draw {
        let report: Report =
            serde_json::from_slice(&std::fs::read(path)?).context("not a report of this program")?;
        return show(&report, Some(&path.with_extension("")));
    }
    let cases = cases(&options)?;
    let read = |path: &PathBuf| -> Result<Report> {
        serde_json::from_slice(&std::fs::read(path)?).context("not a report of this program")
    };
    let before = options.oracles.as_ref().map(read).transpose()?;
    let rows = run(&cases, options.jobs, before.as_ref())?;
    let mut report = Report { sections: Vec::new() };
    for ((regime, _), row) in cases.iter().zip(rows) {
        if report.sections.last().is_none_or(|section| section.regime != regime.name) {
            report.sections.push(Section {
                regime: regime.name.to_owned(),
                about: regime.about.to_owned(),
                period_ms: regime.period_ns as f64 / 1e6,
                rows: Vec::new(),
            });
        }
        if let Some(section) = report.sections.last_mut() {
            section.rows.push(row);
        }
    }
    if let Some(path) = &options.out {
        let path = path.with_extension("json");
        std::fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    show(&report, options.out.as_deref())
}

/// Prints the tables and draws the picture.
fn show(report: &Report, file: Option<&std::path::Path>) -> Result<()> {
    println!("{}\n{}", report.summary(), report.tables());
    if let Some(file) = file {
        report.picture().save(file)?;
    }
    Ok(())
}
