//! The table and the picture of the measurements.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, Row};
use crate::plot::{Picture, grouped};

/// The measurements under some conditions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The conditions' name.
    pub regime: String,
    /// A description.
    pub about: String,
    /// A period, in milliseconds.
    pub period_ms: f64,
    /// The sets.
    pub rows: Vec<Row>,
}

/// All measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// By conditions.
    pub sections: Vec<Section>,
}

impl Report {
    /// Violated requirements of our algorithm, with the conditions.
    pub fn broken(&self) -> Vec<String> {
        let of = |section: &Section| {
            let regime = section.regime.clone();
            let broken: Vec<String> = section.rows.iter().flat_map(Row::broken).collect();
            broken.into_iter().map(move |what| format!("{regime}, {what}"))
        };
        self.sections.iter().flat_map(of).collect()
    }

    /// A set under some conditions.
    pub fn row(&self, regime: &str, set: &str) -> Option<&Row> {
        let section = self.sections.iter().find(|section| section.regime == regime)?;
        section.rows.iter().find(|row| row.set == set)
    }

    /// Tables, a section for each of the conditions.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        for section in &self.sections {
            _ = section.write(&mut text);
        }
        text
    }

    /// The requirements that hold, over everything.
    pub fn summary(&self) -> String {
        let rows = || self.sections.iter().flat_map(|section| &section.rows);
        let broken = self.broken();
        let mut text = String::new();
        let share =
            |of: fn(&Row) -> f64| rows().map(|row| row.share_percent(of(row))).fold(f64::INFINITY, f64::min);
        let mean = |of: &dyn Fn(&Row) -> f64| rows().map(of).sum::<f64>() / rows().count().max(1) as f64;
        _ = writeln!(
            text,
            "Over all {} rows ours brings at least {:.1} % of the oracle's throughput, the published algorithm {:.1} %. Ours takes {:.1} trials and {:.0} periods in the mean, \
             the published one {:.1} and {:.0}.",
            rows().count(),
            share(|row| row.steady.frames_per_s),
            share(|row| row.published.frames_per_s),
            mean(&|row| row.steady.trials as f64),
            mean(&|row| row.steady.periods as f64),
            mean(&|row| row.published.trials as f64),
            mean(&|row| row.published.periods as f64),
        );
        let allowed: Vec<String> = self
            .sections
            .iter()
            .flat_map(|section| section.rows.iter().map(move |row| (section, row)))
            .filter(|(_, row)| row.allows_paper_gain())
            .map(|(section, row)| {
                let ours = row.gain_percent(row.steady.frames_per_s);
                let best = row.gain_percent(row.oracle_frames_per_s);
                format!("{} {} (oracle {best:+.1} %, ours {ours:+.1} %)", section.regime, row.set)
            })
            .collect();
        _ = match allowed.is_empty() {
            true => writeln!(text, "\nThe oracle allows the paper's gain nowhere."),
            false => writeln!(text, "\nThe oracle allows the paper's gain in: {}.", allowed.join("; ")),
        };
        _ = match broken.is_empty() {
            true => writeln!(
                text,
                "\nRequired: never below default MPS, at least 95 % of the oracle, and the paper's gain wherever the oracle allows it. All of it holds in every row."
            ),
            false => writeln!(text, "\nRequired and not met:\n\n- {}", broken.join("\n- ")),
        };
        text
    }

    /// Gains over default MPS, a panel for each of the conditions.
    pub fn picture(&self) -> Picture {
        let panel = |section: &Section| grouped::Panel {
            title: shortened(&section.about),
            y: "gain over default MPS, %".to_owned(),
            groups: section.rows.iter().map(group).collect(),
        };
        let panels: Vec<_> = self.sections.iter().map(panel).collect();
        let title = "Chains of components: throughput over default MPS, on the model";
        let series = ["algorithm 1, published", "ours", "oracle"];
        Picture::of("chains", grouped::scene(title, &series, &panels))
    }
}

fn group(row: &Row) -> (String, Vec<grouped::Bar>) {
    let rates = [row.published.frames_per_s, row.steady.frames_per_s, row.oracle_frames_per_s];
    (row.set.clone(), rates.map(|rate| row.gain_percent(rate).into()).to_vec())
}

/// As much text as fits over a panel.
fn shortened(about: &str) -> String {
    let text = about.split(" (").next().unwrap_or(about);
    text.to_owned()
}

impl Section {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "## `{}`: {}\n", self.regime, self.about)?;
        writeln!(text, "Periods of {} ms.\n", self.period_ms)?;
        writeln!(
            text,
            "| set | components | decided by | default MPS, frames/s | algorithm 1 | of oracle | trials, periods | ours | of oracle | trials, periods | time | oracle | no allocation exceeds | paper |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for row in &self.rows {
            let cells = |outcome: &Outcome| {
                let (gain, share) =
                    (row.gain_percent(outcome.frames_per_s), row.share_percent(outcome.frames_per_s));
                format!("{} | {share:.1} % | {}, {}", percent(gain), outcome.trials, outcome.periods)
            };
            writeln!(
                text,
                "| {} | {} | {} | {:.1} | {} | {} | {:.1} s | {} | {} | {} |",
                row.set,
                row.components,
                row.bound,
                row.default_frames_per_s,
                cells(&row.published),
                cells(&row.steady),
                row.steady.seconds,
                percent(row.gain_percent(row.oracle_frames_per_s)),
                percent(row.gain_percent(row.ceiling_frames_per_s)),
                row.paper_gain_percent.map_or("–".to_owned(), |gain| format!("≤ {gain} %")),
            )?;
        }
        writeln!(text, "\nTPCs of each component that the searches ended with:\n")?;
        writeln!(
            text,
            "| set | algorithm 1 (bottlenecks it found) | ours | oracle (allocations run, excluded by their ceiling) |"
        )?;
        writeln!(text, "|---|---|---|---|")?;
        for row in &self.rows {
            let bottlenecks: Vec<String> = row.bottlenecks.iter().map(|i| (i + 1).to_string()).collect();
            writeln!(
                text,
                "| {} | {} ({}) | {} | {} ({}, {}) |",
                row.set,
                numbers(&row.published.tpcs),
                bottlenecks.join(", "),
                numbers(&row.steady.tpcs),
                numbers(&row.oracle_tpcs),
                row.oracle_run,
                row.oracle_excluded,
            )?;
        }
        writeln!(text)
    }
}

fn numbers(tpcs: &[u32]) -> String {
    let texts: Vec<String> = tpcs.iter().map(u32::to_string).collect();
    texts.join(" ")
}

/// Without a sign where nothing is gained or lost.
fn percent(gain: f64) -> String {
    let text = format!("{gain:+.1} %");
    if text == "+0.0 %" || text == "-0.0 %" { "0.0 %".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(set: &str, [default, published, ours, oracle]: [f64; 4], paper: f64) -> Row {
        let outcome =
            |frames_per_s| Outcome { tpcs: vec![3, 66], frames_per_s, trials: 7, periods: 20, seconds: 2.0 };
        Row {
            set: set.to_owned(),
            class: "small".to_owned(),
            components: "S, XL".to_owned(),
            bound: "GPU".to_owned(),
            default_frames_per_s: default,
            published: outcome(published),
            bottlenecks: vec![1],
            steady: outcome(ours),
            oracle_tpcs: vec![6, 60],
            oracle_frames_per_s: oracle,
            ceiling_frames_per_s: oracle * 1.1,
            oracle_run: 100,
            oracle_excluded: 50,
            paper_gain_percent: Some(paper),
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        let section = Section {
            regime: "r".to_owned(),
            about: "somewhere (assumed)".to_owned(),
            period_ms: 100.0,
            rows,
        };
        Report { sections: vec![section] }
    }

    #[test]
    fn what_is_not_met_is_said() {
        let good = report(vec![row("A", [100.0, 90.0, 107.0, 110.0], 5.0)]);
        assert_eq!(good.broken(), [""; 0]);
        assert!(good.summary().contains("All of it holds"), "{}", good.summary());
        assert!(good.summary().contains("r A (oracle +10.0 %, ours +7.0 %)"), "{}", good.summary());
        let bad = report(vec![
            row("A", [100.0, 90.0, 99.0, 100.0], 5.0),
            row("B", [100.0, 90.0, 100.0, 106.0], 50.0),
            row("C", [100.0, 90.0, 106.0, 110.0], 8.0),
        ]);
        assert_eq!(
            bad.broken(),
            [
                "r, A: below default MPS by 1.00 %",
                "r, B: 94.3 % of the oracle",
                "r, C: 6.00 %, where the oracle allows the paper's 8 %",
            ]
        );
        assert!(bad.summary().contains("Required and not met"), "{}", bad.summary());
    }

    #[test]
    fn the_table_has_a_line_for_each_set() {
        let report = report(vec![row("A", [100.0, 90.0, 107.0, 110.0], 5.0)]);
        let text = report.tables();
        assert!(text.contains("| A | S, XL | GPU | 100.0 | -10.0 % | 81.8 % | 7, 20 | +7.0 % | 97.3 % | 7, 20 | 2.0 s | +10.0 % | +21.0 % | ≤ 5 % |"), "{text}");
        assert!(text.contains("| A | 3 66 (2) | 3 66 | 6 60 (100, 50) |"), "{text}");
        assert!(report.picture().svg().contains("somewhere"));
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
