//! The picture of `partita explain --svg`: p99 by TPCs with the bound, and beside it what tenants
//! for throughput do on theirs. Pure: from an explanation to SVG.

use std::fmt::Write;

use partita::explain::Explanation;
use partita::slo::LevelRow;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 92.0;
/// A time above so many bounds is drawn at the upper edge.
const BOUNDS_MAX: f64 = 4.0;
const INK: &str = "#222222";
const GRID: &str = "#e3e3e3";
const OWN: &str = "#0072b2";
const BOUND: &str = "#d55e00";
/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const OTHERS: [&str; 4] = ["#009e73", "#e69f00", "#cc79a7", "#7f7f7f"];

/// The picture; `None` if there is nothing to draw yet.
pub fn picture(one: &Explanation) -> Option<String> {
    let bound_us = one.target.as_ref().and_then(|target| target.bound_us);
    let highest = one.levels.iter().map(|level| level.p99_us).fold(0.0, f64::max);
    if one.levels.is_empty() && one.others.is_empty() {
        return None;
    }
    let top_us = bound_us.map_or(highest, |bound| highest.max(bound).min(BOUNDS_MAX * bound)).max(1.0) * 1.1;
    let levels = one.levels.iter().chain(one.others.iter().flat_map(|other| &other.levels));
    let most = levels.map(|level| level.tpcs).max().max(one.tpcs_of_device).unwrap_or(1).max(1);
    let x = |tpcs: f64| LEFT + tpcs / f64::from(most) * (WIDTH - LEFT - RIGHT);
    let y = |part: f64| HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} \
         {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    let mut text = |at: (f64, f64), anchor: &str, color: &str, text: &str| {
        let (x, y) = at;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{}</text>",
            escape(text)
        );
    };
    let slo = one.slo.as_ref().map_or_else(String::new, |slo| format!(", target {slo}"));
    text((LEFT, 24.0), "start", INK, &format!("tenant {} on {}{slo}", one.name, one.gpu));
    let (unit_us, unit) = if top_us < 1e3 {
        (1.0, "µs")
    } else if top_us < 1e6 {
        (1e3, "ms")
    } else {
        (1e6, "s")
    };
    text((LEFT, 42.0), "start", OWN, &format!("p99 of its bursts or steps, {unit}"));
    if !one.others.is_empty() {
        text((WIDTH - RIGHT, 42.0), "end", INK, "throughput of others, % of the best that was measured");
    }
    text(((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - BOTTOM + 36.0), "middle", INK, "TPCs of each tenant");
    let mut lines = String::new();
    let mut line = |from: (f64, f64), to: (f64, f64), color: &str, more: &str| {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            lines,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\"{more}/>"
        );
    };
    for tick in ticks(top_us / unit_us) {
        let at = y(tick * unit_us / top_us);
        line((LEFT, at), (WIDTH - RIGHT, at), GRID, "");
        text((LEFT - 6.0, at + 4.0), "end", INK, &format!("{tick}"));
    }
    for tick in ticks(f64::from(most)) {
        line((x(tick), TOP), (x(tick), y(0.0)), GRID, "");
        text((x(tick), y(0.0) + 18.0), "middle", INK, &format!("{tick}"));
    }
    if let Some(bound_us) = bound_us {
        let at = y(bound_us / top_us);
        line((LEFT, at), (WIDTH - RIGHT, at), BOUND, " stroke-width=\"2\" stroke-dasharray=\"7 4\"");
        text((WIDTH - RIGHT - 4.0, at - 5.0), "end", BOUND, "target");
    }
    if let Some(tpcs) = one.tpcs {
        let at = x(f64::from(tpcs));
        line((at, TOP), (at, y(0.0)), OWN, " stroke-dasharray=\"2 4\"");
        let (beside, anchor) = if 2 * tpcs > most { (-4.0, "end") } else { (4.0, "start") };
        text((at + beside, TOP + 12.0), anchor, OWN, &format!("now {tpcs}"));
    }
    let mut curves = String::new();
    let own = one.levels.iter().map(|level| (level, level.p99_us / top_us));
    curve(&mut curves, own, &x, &y, OWN);
    for (at, other) in one.others.iter().enumerate() {
        let color = OTHERS[at % OTHERS.len()];
        let best = other.levels.iter().map(|level| level.mean_us).fold(f64::INFINITY, f64::min);
        curve(
            &mut curves,
            other.levels.iter().map(|level| (level, best / level.mean_us / 1.1)),
            &x,
            &y,
            color,
        );
        let place = (LEFT + 160.0 * (at % 4) as f64, HEIGHT - BOTTOM + 58.0 + 16.0 * (at / 4) as f64);
        let now = other.tpcs.map_or_else(String::new, |tpcs| format!(", now on {tpcs}"));
        text(place, "start", color, &format!("\u{25cf} {}{now}", other.name));
    }
    if !one.others.is_empty() {
        for percent in [0, 20, 40, 60, 80, 100] {
            let at = y(f64::from(percent) / 110.0);
            text((WIDTH - RIGHT + 6.0, at + 4.0), "start", INK, &format!("{percent}"));
        }
    }
    svg.push_str(&lines);
    svg.push_str(&curves);
    svg.push_str("</svg>\n");
    Some(svg)
}

/// A line through measured points. One above the upper edge is hollow.
fn curve<'a>(
    svg: &mut String,
    points: impl Iterator<Item = (&'a LevelRow, f64)>,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
    color: &str,
) {
    let mut line = String::new();
    for (level, part) in points.filter(|(_, part)| part.is_finite()) {
        let (x, y) = (x(f64::from(level.tpcs)), y(part));
        let fill = if part > 1.0 { "white" } else { color };
        let _ = write!(line, "{x:.1},{y:.1} ");
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{color}\"><title>{} TPCs: p99 {:.1} \
             µs, mean {:.1} µs, {} times</title></circle>",
            level.tpcs, level.p99_us, level.mean_us, level.count
        );
    }
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\"/>", line.trim_end());
}

/// Round numbers from 0 to a number, at most eleven.
fn ticks(to: f64) -> impl Iterator<Item = f64> {
    let power = 10f64.powf((to / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|by| by * power).find(|step| to / step <= 8.0);
    let step = step.unwrap_or(to);
    (0..11u8).map(move |at| (f64::from(at) * step * 1e9).round() / 1e9).take_while(move |tick| *tick <= to)
}

fn escape(text: &str) -> String {
    let text = partita::escape::escape(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
