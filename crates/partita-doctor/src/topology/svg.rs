//! The chart as a picture.

use partita_core::Count;

use super::Chart;
use crate::svg::{Svg, escape};

const LEFT: f64 = 110.0;
const TOP: f64 = 96.0;
const CELL_WIDTH: f64 = 84.0;
const CELL_HEIGHT: f64 = 56.0;
const GAP: f64 = 6.0;
/// Between CPCs, and between GPCs.
const WIDE_GAP: f64 = 18.0;
/// The number of places on one line if CPCs are unknown.
const PLACES_MAX: usize = 9;
/// By tenant, in turn; distinct also for most colour-blind readers (Okabe and Ito).
const COLOURS: [&str; 7] = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00"];
const FREE: &str = "#eeeeee";

/// Renders the GPCs, one below the other, and the legend.
pub(super) fn render(chart: &Chart) -> String {
    let mut body = Svg::default();
    let (mut y, mut right) = (TOP, LEFT);
    for row in &chart.gpcs {
        let mut x = LEFT;
        label(&mut body, y, row);
        for cpc in &row.cpcs {
            if let Some(number) = cpc.cpc
                && y == TOP
            {
                let width = cpc.places.len() as f64 * (CELL_WIDTH + GAP) - GAP;
                body.add(format_args!(
                    r#"<text x="{}" y="{}" text-anchor="middle" fill="{GREY}">CPC {number}</text>"#,
                    x + width / 2.0,
                    TOP - 10.0
                ));
            }
            let begin = x;
            for (index, place) in cpc.places.iter().enumerate() {
                if index > 0 && index % PLACES_MAX == 0 {
                    (x, y) = (begin, y + CELL_HEIGHT + GAP);
                }
                cell(&mut body, x, y, chart, *place);
                x += CELL_WIDTH + GAP;
                right = right.max(x - GAP);
            }
            x += WIDE_GAP - GAP;
        }
        y += CELL_HEIGHT + WIDE_GAP;
    }
    let (width, legend_top) = (right.max(640.0) + 30.0, y + 14.0);
    let bottom = legend(&mut body, legend_top, chart);
    let mut svg = Svg::default();
    let height = bottom + 14.0;
    svg.add(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">"#
    ));
    svg.add(format_args!(r##"<rect width="{width}" height="{height}" fill="#ffffff"/>"##));
    let title = format!("{}: {} SMs in {} TPCs", chart.name, chart.sms, chart.tpcs);
    svg.add(format_args!(r#"<text x="24" y="34" font-size="20">{}</text>"#, escape(&title)));
    let subtitle = format!(
        "{}, compute capability {}, driver {}. Each place: TPC and tenant, SMs, bit in a launch mask.",
        chart.gpu, chart.compute_capability, chart.driver_version
    );
    svg.add(format_args!(r#"<text x="24" y="56" fill="{GREY}">{}</text>"#, escape(&subtitle)));
    svg.0.push_str(&body.0);
    svg.add(format_args!("</svg>"));
    svg.0
}

const GREY: &str = "#666666";

fn label(svg: &mut Svg, y: f64, row: &super::GpcRow) {
    if let Some(gpc) = row.gpc {
        svg.add(format_args!(
            r#"<text x="24" y="{}" font-size="16" font-weight="bold">GPC {gpc}</text>"#,
            y + 20.0
        ));
    }
    for (name, number, line) in [("chip", row.chip_gpc, 37.0), ("uGPU", row.ugpu, 52.0)] {
        if let Some(number) = number {
            svg.add(format_args!(
                r#"<text x="24" y="{}" font-size="12" fill="{GREY}">{name} {number}</text>"#,
                y + line
            ));
        }
    }
}

fn cell(svg: &mut Svg, x: f64, y: f64, chart: &Chart, place: Option<u8>) {
    let Some(unit) = place.and_then(|tpc| chart.units.get(usize::from(tpc))) else {
        svg.add(format_args!(
            r##"<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" rx="4" fill="none" stroke="#bbbbbb" stroke-dasharray="4 4"/>"##
        ));
        return;
    };
    let holder = chart.holder(unit.tpc);
    let fill = holder.map_or(FREE, |holder| COLOURS[holder % COLOURS.len()]);
    let disputed = chart.disagreements.iter().any(|disagreement| disagreement.tpc == Some(unit.tpc));
    let singleton = chart.gpcs.iter().any(|row| row.singletons.contains(&unit.tpc));
    let border = match (disputed, singleton) {
        (true, _) => r##" stroke="#cc0000" stroke-width="3""##,
        (false, true) => r##" stroke="#333333" stroke-width="1.5""##,
        (false, false) => "",
    };
    svg.add(format_args!(
        r#"<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" rx="4" fill="{fill}"{border}/>"#
    ));
    let letter = holder.map_or(String::new(), |holder| format!(" {}", chart.tenants[holder].letter));
    let mark = if singleton { "*" } else { "" };
    let sms = match (unit.sms.first(), unit.sms.last()) {
        (Some(first), Some(last)) if first != last => format!("SM {first}-{last}"),
        (Some(only), _) => format!("SM {only}"),
        (None, _) => String::new(),
    };
    let lines = [
        (18.0, 15, "bold", format!("{}{mark}{letter}", unit.tpc)),
        (34.0, 11, "normal", sms),
        (48.0, 11, "normal", format!("bit {}", unit.bit)),
    ];
    for (down, size, weight, text) in lines {
        svg.add(format_args!(
            r#"<text x="{}" y="{}" text-anchor="middle" font-size="{size}" font-weight="{weight}">{}</text>"#,
            x + CELL_WIDTH / 2.0,
            y + down,
            escape(&text)
        ));
    }
}

/// Draws the legend below `top` and returns where it ends.
fn legend(svg: &mut Svg, top: f64, chart: &Chart) -> f64 {
    let mut y = top;
    let mut entry = |svg: &mut Svg, fill: &str, dashed: &str, text: &str| {
        svg.add(format_args!(
            r#"<rect x="24" y="{}" width="16" height="16" rx="3" fill="{fill}"{dashed}/>"#,
            y - 13.0
        ));
        svg.add(format_args!(r#"<text x="50" y="{y}">{}</text>"#, escape(text)));
        y += 22.0;
    };
    for (index, tenant) in chart.tenants.iter().enumerate() {
        let text = format!(
            "{} {}: {}, {}",
            tenant.letter,
            tenant.name,
            Count(tenant.set.len(), "TPC"),
            Count(tenant.sms, "SM")
        );
        entry(svg, COLOURS[index % COLOURS.len()], "", &text);
    }
    let free = chart.free_tpcs();
    entry(svg, FREE, "", &format!("free: {}, {}", Count(free, "TPC"), Count(free * chart.sms_per_tpc, "SM")));
    if chart.holes > 0 {
        let dashed = r##" stroke="#bbbbbb" stroke-dasharray="4 4""##;
        entry(svg, "none", dashed, &format!("fused off: {}", Count(chart.holes, "place")));
    }
    if chart.gpcs.iter().any(|row| !row.singletons.is_empty()) {
        let border = r##" stroke="#333333" stroke-width="1.5""##;
        entry(svg, FREE, border, "* a singleton: scheduled as a separate GPC");
    }
    let placing: Vec<&str> =
        chart.sources.iter().filter(|source| source.reason.is_none()).map(|source| source.source).collect();
    let verdict = if chart.agree { "which agree" } else { "which disagree on the others" };
    let text = format!(
        "Sources: {}. {} of {} SMs are located by two or more of them, {verdict}.",
        placing.join(", "),
        chart.confirmed_sms,
        chart.sms
    );
    svg.add(format_args!(r#"<text x="24" y="{}">{}</text>"#, y + 4.0, escape(&text)));
    y += 22.0;
    for disagreement in &chart.disagreements {
        svg.add(format_args!(
            r##"<text x="24" y="{}" fill="#cc0000">{}</text>"##,
            y + 4.0,
            escape(&disagreement.text)
        ));
        y += 22.0;
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::{a100, h200};

    #[test]
    fn every_place_is_drawn_and_tags_are_closed() {
        for mut chart in [h200(), a100()] {
            chart.gpu = "a <b> & c".to_owned();
            let svg = render(&chart);
            assert!(svg.contains("a &lt;b&gt; &amp; c"));
            // Cells and holes, and the background.
            assert!(svg.matches("<rect").count() as u32 > chart.tpcs + chart.holes);
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
            for unit in &chart.units {
                assert!(svg.contains(&format!(">bit {}<", unit.bit)));
            }
        }
    }
}
