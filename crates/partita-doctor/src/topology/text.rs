//! The chart as text.

use partita_core::{ByteSize, Count};
use partita_host::escape::escape;

use super::chart::{Chart, GpcRow};

/// Whether the text is for a terminal with colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Characters alone.
    Plain,
    /// With the escape sequences of a terminal.
    Colour,
}

impl Ink {
    fn paint(self, style: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Colour => format!("\x1b[{style}m{text}\x1b[0m"),
        }
    }
}

/// The most of a command line that the legend shows, in characters.
const COMMAND_MAX: usize = 40;

const DIM: &str = "2";
const BOLD: &str = "1";
const ALARM: &str = "1;31";
/// By tenant, in turn: black on colours that both light and dark terminals show.
const TENANTS: [&str; 6] = ["30;46", "30;43", "30;42", "30;45", "30;44", "30;41"];

/// The number of places on one line if CPCs are unknown.
const PLACES_MAX: usize = 9;
/// The label in front of a row: `chip 11`, `uGPU 0`.
const LABEL: usize = 8;

/// One place: three lines of equal width.
struct PlaceLines {
    lines: [String; 3],
}

/// Renders the picture and its sources.
pub(super) fn render(chart: &Chart, ink: Ink) -> String {
    // The label of a real GPU already includes the name.
    let name = if chart.gpu.contains(&chart.name) { String::new() } else { format!(" ({})", chart.name) };
    let mut text = format!(
        "{}{name}: {} SMs in {} TPCs\nCompute capability {}, driver {}\n",
        ink.paint(BOLD, &chart.gpu),
        chart.sms,
        chart.tpcs,
        chart.compute_capability,
        chart.driver_version
    );
    text.push_str(
        "Each place has a TPC and the tenant that holds it, its SMs, and its bit in a launch mask.\n\n",
    );
    text.push_str(&picture(chart, ink));
    text.push('\n');
    legend(&mut text, chart, ink);
    text
}

fn picture(chart: &Chart, ink: Ink) -> String {
    let width = cell_width(chart);
    type Boxes<'a> = Vec<&'a [Option<u8>]>;
    // Each row with its label, whether it begins a GPC, and its places box by box.
    let mut rows: Vec<(&GpcRow, bool, Boxes<'_>)> = Vec::new();
    for row in &chart.gpcs {
        match &row.cpcs[..] {
            [only] if only.cpc.is_none() && only.places.len() > PLACES_MAX => {
                let parts = only.places.chunks(PLACES_MAX).enumerate();
                rows.extend(parts.map(|(index, part)| (row, index == 0, vec![part])));
            }
            cpcs => rows.push((row, true, cpcs.iter().map(|cpc| &cpc.places[..]).collect())),
        }
    }
    let columns = rows.iter().map(|(.., boxes)| boxes.len()).max().unwrap_or(0);
    let places: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|(.., boxes)| boxes.get(column).map(|places| places.len()))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let inner = |places: usize| places * (width + 1) + 1;
    let rule = |left: char, middle: char, right: char| {
        let parts: Vec<String> = places.iter().map(|&places| "─".repeat(inner(places))).collect();
        let line = format!("{left}{}{right}", parts.join(&middle.to_string()));
        format!("{:LABEL$}{}\n", "", ink.paint(DIM, &line))
    };
    let mut text = String::new();
    if let Some(first) = chart.gpcs.iter().find(|row| row.cpcs.iter().any(|cpc| cpc.cpc.is_some())) {
        let heads: Vec<String> = (first.cpcs.iter().zip(&places))
            .map(|(cpc, &places)| {
                let name = cpc.cpc.map_or(String::new(), |number| format!("CPC {number}"));
                format!("{name:^width$}", width = inner(places))
            })
            .collect();
        text.push_str(format!("{:LABEL$} {}", "", heads.join(" ")).trim_end());
        text.push('\n');
    }
    text.push_str(&rule('┌', '┬', '┐'));
    for (index, (row, begins, boxes)) in rows.iter().enumerate() {
        if index > 0 && *begins {
            text.push_str(&rule('├', '┼', '┤'));
        }
        let drawn: Vec<Vec<PlaceLines>> = (0..columns)
            .map(|column| {
                let places_there = boxes.get(column).copied().unwrap_or_default();
                let blank = places[column] - places_there.len();
                let drawn = places_there.iter().map(|place| draw(chart, *place, width, ink));
                drawn.chain((0..blank).map(|_| blank_place(width))).collect()
            })
            .collect();
        let labels = if *begins { labels(row) } else { Default::default() };
        for (line, label) in labels.iter().enumerate() {
            let bar = ink.paint(DIM, "│");
            let boxes: Vec<String> = drawn
                .iter()
                .map(|places| {
                    let cells: Vec<&str> = places.iter().map(|place| place.lines[line].as_str()).collect();
                    format!(" {} ", cells.join(" "))
                })
                .collect();
            let label = format!("{label:LABEL$}");
            let label = if line == 0 { ink.paint(BOLD, &label) } else { ink.paint(DIM, &label) };
            text.push_str(&format!("{label}{bar}{}{bar}\n", boxes.join(&bar)));
        }
    }
    text.push_str(&rule('└', '┴', '┘'));
    text
}

fn labels(row: &GpcRow) -> [String; 3] {
    let number = |name: &str, number: Option<u16>| number.map_or(String::new(), |n| format!("{name} {n}"));
    [number("GPC", row.gpc.map(u16::from)), number("chip", row.chip_gpc), number("uGPU", row.ugpu)]
}

/// The longest content of a place.
fn cell_width(chart: &Chart) -> usize {
    chart
        .units
        .iter()
        .flat_map(|unit| [head(chart, unit.tpc).chars().count(), sms(&unit.sms).len(), bit(unit.bit).len()])
        .max()
        .unwrap_or(0)
        .max(5)
}

/// A TPC's number, its mark if it is a singleton, and its tenant's letter.
fn head(chart: &Chart, tpc: u8) -> String {
    let singleton = chart.gpcs.iter().any(|row| row.singletons.contains(&tpc));
    let mark = if singleton { "*" } else { "" };
    match chart.holder(tpc) {
        Some(holder) => format!("{tpc}{mark} {}", chart.tenants[holder].letter),
        None => format!("{tpc}{mark}"),
    }
}

fn sms(sms: &[u32]) -> String {
    match (sms.first(), sms.last()) {
        (Some(first), Some(last)) if first != last => format!("{first}-{last}"),
        (Some(only), _) => only.to_string(),
        (None, _) => String::new(),
    }
}

fn bit(bit: u16) -> String {
    format!("b{bit}")
}

fn draw(chart: &Chart, tpc: Option<u8>, width: usize, ink: Ink) -> PlaceLines {
    let Some(unit) = tpc.and_then(|tpc| chart.units.get(usize::from(tpc))) else {
        return PlaceLines { lines: [(); 3].map(|()| ink.paint(DIM, &"░".repeat(width))) };
    };
    let centred = |text: String| format!("{text:^width$}");
    let head = centred(head(chart, unit.tpc));
    let disputed = chart.disagreements.iter().any(|disagreement| disagreement.tpc == Some(unit.tpc));
    let style = match (disputed, chart.holder(unit.tpc)) {
        (true, _) => ALARM,
        (false, Some(holder)) => TENANTS[holder % TENANTS.len()],
        (false, None) => BOLD,
    };
    PlaceLines {
        lines: [ink.paint(style, &head), centred(sms(&unit.sms)), ink.paint(DIM, &centred(bit(unit.bit)))],
    }
}

fn blank_place(width: usize) -> PlaceLines {
    PlaceLines { lines: [(); 3].map(|()| " ".repeat(width)) }
}

fn legend(text: &mut String, chart: &Chart, ink: Ink) {
    let mut line = |name: &str, value: &str| {
        text.push_str(&format!("{}{value}\n", ink.paint(BOLD, &format!("{name:<10}"))));
    };
    for (index, tenant) in chart.tenants.iter().enumerate() {
        let letter = ink.paint(TENANTS[index % TENANTS.len()], &format!(" {} ", tenant.letter));
        let letter = if ink == Ink::Plain { tenant.letter.to_string() } else { letter };
        let tpcs = tenant.set.len();
        let name = if index == 0 { "tenants" } else { "" };
        line(name, &format!("{letter} {}: {}, {}", tenant.name, Count(tpcs, "TPC"), Count(tenant.sms, "SM")));
    }
    let free = chart.free_tpcs();
    line("free", &format!("{}, {}", Count(free, "TPC"), Count(free * chart.sms_per_tpc, "SM")));
    for (index, outsider) in chart.outsiders.iter().enumerate() {
        let memory = outsider
            .memory_bytes
            .map_or_else(|| "memory unknown".to_owned(), |bytes| ByteSize(bytes).approximate().to_string());
        let command: String = outsider.command.join(" ").chars().take(COMMAND_MAX).collect();
        let said = format!("process {} of {}: {memory}, {command}", outsider.pid, outsider.user);
        line(if index == 0 { "outside" } else { "" }, &escape(&said));
    }
    if !chart.outsiders.is_empty() {
        line("", "started without Partita: nothing limits them, and they run on every SM");
    }
    if chart.holes > 0 {
        let all = chart.gpcs.iter().flat_map(|row| &row.cpcs).map(|cpc| cpc.places.len()).sum::<usize>();
        let known = if chart.places_known { "" } else { ", if every GPC is as large as the largest" };
        line("░", &format!("fused off: {} of {all} places{known}", chart.holes));
    }
    let mut singletons: Vec<(u8, u8)> = (chart.gpcs.iter().flat_map(|row| &row.singletons))
        .filter_map(|&tpc| Some((chart.units.get(usize::from(tpc))?.gpc?, tpc)))
        .collect();
    singletons.sort_unstable();
    if !singletons.is_empty() {
        line("*", "a singleton: its GPC lost too many TPCs, so it is scheduled as a separate GPC:");
        let named = singletons.iter().map(|(gpc, tpc)| format!("TPC {tpc} is GPC {gpc}"));
        line("", &named.collect::<Vec<_>>().join(", "));
    }
    line(
        "GPCs",
        match chart.gpcs_proved_by {
            Some("clusters") => "proved: clusters of blocks ran in each of them",
            Some(_) => "proved: by the control interface; probing confirms every TPC and mask bit",
            None => "not proved: shares by GPC are refused, and clusters are limited to one TPC",
        },
    );
    for (index, source) in chart.sources.iter().enumerate() {
        let name = match source.source {
            "control" => "control interface",
            "probe" => "one-bit probing",
            "clusters" => "clusters of blocks",
            other => other,
        };
        let said = match (&source.reason, source.state) {
            (Some(reason), _) => format!("has no report: {reason}"),
            (None, "agrees") => {
                format!("locates {} of {} SMs, without contradiction", source.sms, chart.sms)
            }
            (None, _) => {
                let told = format!("locates {} of {} SMs, and is contradicted", source.sms, chart.sms);
                ink.paint(ALARM, &told)
            }
        };
        line(if index == 0 { "sources" } else { "" }, &format!("{name:<18}  {said}"));
    }
    for disagreement in &chart.disagreements {
        line("", &ink.paint(ALARM, &format!("! {}", disagreement.text)));
    }
    let verdict = match (chart.agree, chart.confirmed_sms) {
        (true, 0) => "only one source locates the SMs, so nothing confirms it".to_owned(),
        (true, confirmed) => {
            format!("{confirmed} of {} SMs are located by two or more sources, which agree", chart.sms)
        }
        (false, confirmed) => {
            format!("sources disagree; they agree on {confirmed} of {} SMs", chart.sms)
        }
    };
    line("result", &verdict);
    let how = if chart.fresh { "measured now" } else { "measured before; --fresh measures again" };
    let took = if chart.took_s < 0.1 {
        format!("{:.0} ms", chart.took_s * 1000.0)
    } else {
        format!("{:.2} s", chart.took_s)
    };
    line("took", &format!("{took}, {how}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::{a100, h200};

    #[test]
    fn a_picture_is_a_rectangle_that_fits_a_terminal() {
        for chart in [h200(), a100()] {
            let text = picture(&chart, Ink::Plain);
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("CPC")).collect();
            let width = lines[0].chars().count();
            assert!(width <= 100, "{text}");
            assert!(lines.iter().all(|line| line.chars().count() == width), "{text}");
            assert_eq!(lines.len(), 4 * chart.gpcs.len() + 1);
            let holes = text.matches(&"░".repeat(cell_width(&chart))).count();
            assert_eq!(holes as u32, 3 * chart.holes);
            for unit in &chart.units {
                assert!(text.contains(&format!(" {} ", bit(unit.bit))), "bit {} in {text}", unit.bit);
            }
        }
    }

    #[test]
    fn colours_add_nothing_but_colours() {
        let chart = h200();
        let colourful = render(&chart, Ink::Colour);
        let mut plain = String::new();
        let mut rest = colourful.as_str();
        while let Some((before, after)) = rest.split_once("\x1b[") {
            plain.push_str(before);
            rest = after.split_once('m').unwrap().1;
        }
        plain.push_str(rest);
        assert!(!render(&chart, Ink::Plain).contains('\x1b'));
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeeze(&plain), squeeze(&render(&chart, Ink::Plain)));
    }

    #[test]
    fn contradictions_and_silent_sources_are_named() {
        let mut chart = h200();
        assert!(render(&chart, Ink::Plain).contains("132 of 132 SMs are located by two or more sources"));
        chart.agree = false;
        chart.confirmed_sms = 130;
        chart.disagreements.push(crate::topology::DisagreementRow { tpc: Some(3), text: "no luck".into() });
        chart.gpcs_proved_by = None;
        let text = render(&chart, Ink::Plain);
        for part in ["! no luck", "agree on 130 of 132", "not proved"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
