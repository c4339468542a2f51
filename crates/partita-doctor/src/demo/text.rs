//! The demo as text.

use super::outcome::{GREEDY, Outcome, SERVE};
use super::picture::Panel;

/// Characters from left to right.
const COLUMNS: u64 = 72;
/// Lines from top to bottom, at most.
const LINES_MAX: u32 = 12;

/// Renders the panels and the table.
pub(super) fn render(outcome: &Outcome) -> String {
    let mut text = format!(
        "Two tenants on {}, {} SMs, both clients of one MPS service:\n  {SERVE} answers a request every 4 ms with one \
         short kernel; {GREEDY} keeps the GPU full.\n",
        outcome.gpu, outcome.sms
    );
    for scene in &outcome.scenes {
        if let Some(panel) = &scene.panel {
            text.push_str(&format!("\n{}\n{}", capital(&scene.title), picture(panel)));
        }
    }
    text.push_str(&format!("  █ {SERVE}   ░ {GREEDY}   ▒ both on these SMs\n"));
    if outcome.scenes.iter().filter_map(|scene| scene.panel.as_ref()).any(|panel| panel.renumbered) {
        text.push_str(
            "(MPS numbers a tenant's SMs from 0; they are drawn at the SMs of its \
            partition)\n",
        );
    }
    text.push_str(&format!(
        "\nLatency of {SERVE}                     p50        p99   requests   kernels/s of {GREEDY}\n"
    ));
    for scene in &outcome.scenes {
        let greedy = scene.greedy_kernels_per_s.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
        text.push_str(&format!(
            "  {:<29} {:>7.3} ms {:>7.3} ms {:>10} {:>14}\n",
            scene.title, scene.serve.p50_ms, scene.serve.p99_ms, scene.serve.requests, greedy
        ));
    }
    text.push_str(&format!(
        "\nWith partitions {SERVE} has {} SMs and {GREEDY} the other {}.\n",
        outcome.serve_sms, outcome.greedy_sms
    ));
    text
}

fn picture(panel: &Panel) -> String {
    let per_line = panel.rows.div_ceil(LINES_MAX);
    let step_ns = panel.span_ns / COLUMNS;
    let mut text = String::new();
    // A line never mixes SMs of both partitions.
    let (first, all) = (panel.rows_of_first, panel.rows);
    let starts = (0..first).step_by(per_line as usize).map(|row| (row, first));
    let starts = starts.chain((first..all).step_by(per_line as usize).map(|row| (row, all)));
    for (row, part_end) in starts {
        let rows = row..(row + per_line).min(part_end);
        text.push_str(&format!("  {:>3} SMs |", rows.end - rows.start));
        for column in 0..COLUMNS {
            let time = column * step_ns..(column + 1) * step_ns;
            text.push(mark(panel.coverage(rows.clone(), time)));
        }
        text.push_str("|\n");
    }
    let span_ms = panel.span_ns / 1_000_000;
    text.push_str(&format!("          0{:>width$}\n", format!("{span_ms} ms"), width = COLUMNS as usize - 1));
    text
}

/// One character for the cover of a cell.
fn mark([serve, greedy]: [f64; 2]) -> char {
    const SEEN: f64 = 0.25;
    match (serve >= SEEN, greedy >= SEEN) {
        (true, true) => '▒',
        (true, false) => '█',
        (false, true) => '░',
        (false, false) => ' ',
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::picture::tests::panel;

    #[test]
    fn cells_show_who_is_there() {
        assert_eq!([[0.9, 0.0], [0.0, 0.9], [0.3, 0.7], [0.1, 0.1]].map(mark), ['█', '░', '▒', ' ']);
    }

    #[test]
    fn a_picture_has_a_line_a_row() {
        let text = picture(&panel());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 8 + 1);
        assert_eq!(lines[0].matches('█').count() as u64, COLUMNS / 2);
        assert_eq!(lines[7].matches('░').count() as u64, COLUMNS);
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() == lines[0].chars().count() || line.ends_with("1 ms"))
        );
    }
}
