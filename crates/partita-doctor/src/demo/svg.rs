//! The demo as an SVG picture.

use super::outcome::{GREEDY, Outcome, SERVE};
use super::picture::Panel;
use crate::svg::{Svg, escape};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const PLOT_WIDTH: f64 = WIDTH - LEFT - 30.0;
/// The height of the plot at most, in pixels. Each row has a whole number of pixels, so that rows
/// look alike.
const PLOT_HEIGHT_MAX: u32 = 300;
const TOP: f64 = 70.0;
/// By tenant; distinct also in grey and for most colour-blind readers.
const COLOURS: [&str; 2] = ["#0b5fa5", "#f0a35e"];

/// Renders the panels, one below the other, and the table.
pub(super) fn render(outcome: &Outcome) -> String {
    let panels: Vec<(&str, &Panel)> = outcome
        .scenes
        .iter()
        .filter_map(|scene| scene.panel.as_ref().map(|panel| (scene.title.as_str(), panel)))
        .collect();
    let panel_height = panels.first().map_or(0.0, |(_, panel)| plot_height(panel) + 70.0);
    let table_top = TOP + panels.len() as f64 * panel_height;
    let height = table_top + 60.0 + 22.0 * outcome.scenes.len() as f64;
    let mut svg = Svg::default();
    svg.add(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">"#
    ));
    svg.add(format_args!(r##"<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##));
    let title = format!("Two tenants on {}, {} SMs", outcome.gpu, outcome.sms);
    svg.add(format_args!(r#"<text x="{LEFT}" y="28" font-size="18">{}</text>"#, escape(&title)));
    for (tenant, name) in [SERVE, GREEDY].into_iter().enumerate() {
        let x = LEFT + 110.0 * tenant as f64;
        svg.add(format_args!(r#"<rect x="{x}" y="40" width="14" height="14" fill="{}"/>"#, COLOURS[tenant]));
        svg.add(format_args!(r#"<text x="{}" y="52">{name}</text>"#, x + 20.0));
    }
    for (number, (title, panel)) in panels.into_iter().enumerate() {
        draw(&mut svg, TOP + number as f64 * panel_height, title, panel);
    }
    table(&mut svg, table_top + 20.0, outcome);
    svg.add(format_args!("</svg>"));
    svg.0
}

fn plot_height(panel: &Panel) -> f64 {
    f64::from(panel.rows * (PLOT_HEIGHT_MAX / panel.rows).max(1))
}

fn draw(svg: &mut Svg, top: f64, title: &str, panel: &Panel) {
    let plot = top + 30.0;
    let height = plot_height(panel);
    let row_height = height / f64::from(panel.rows);
    let x = |ns: u64| LEFT + PLOT_WIDTH * ns as f64 / panel.span_ns as f64;
    svg.add(format_args!(r#"<text x="{LEFT}" y="{}" font-size="15">{}</text>"#, top + 20.0, escape(title)));
    svg.add(format_args!(
        r##"<rect x="{LEFT}" y="{plot}" width="{PLOT_WIDTH}" height="{height}" fill="#f4f4f4"/>"##
    ));
    // The short requests are the subject of the picture, so they are drawn on top.
    for (tenant, colour) in COLOURS.iter().enumerate().rev() {
        svg.add(format_args!(r#"<g fill="{colour}" shape-rendering="crispEdges">"#));
        for bar in panel.bars.iter().filter(|bar| bar.tenant == tenant) {
            svg.add(format_args!(
                r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}"/>"#,
                x(bar.start_ns),
                plot + row_height * f64::from(bar.row),
                (x(bar.stop_ns) - x(bar.start_ns)).max(0.3),
                row_height
            ));
        }
        svg.add(format_args!("</g>"));
    }
    if panel.parted {
        let border = plot + row_height * f64::from(panel.rows_of_first);
        svg.add(format_args!(
            r##"<line x1="{LEFT}" y1="{border:.1}" x2="{}" y2="{border:.1}" stroke="#333333" stroke-dasharray="4 3"/>"##,
            LEFT + PLOT_WIDTH
        ));
    }
    svg.add(format_args!(
        r#"<text transform="translate({} {}) rotate(-90)" text-anchor="middle">{} SMs</text>"#,
        LEFT - 12.0,
        plot + height / 2.0,
        panel.rows
    ));
    for step in 0..=6 {
        let ns = panel.span_ns * step / 6;
        svg.add(format_args!(
            r#"<text x="{:.1}" y="{}" text-anchor="middle" font-size="11">{} ms</text>"#,
            x(ns),
            plot + height + 16.0,
            ns / 1_000_000
        ));
    }
}

fn table(svg: &mut Svg, top: f64, outcome: &Outcome) {
    let columns = [LEFT, 430.0, 540.0, 640.0, 830.0];
    let heads = [
        format!("latency of {SERVE}"),
        "p50".into(),
        "p99".into(),
        "requests".into(),
        format!("kernels/s of {GREEDY}"),
    ];
    let mut rows = vec![heads];
    for scene in &outcome.scenes {
        rows.push([
            scene.title.clone(),
            format!("{:.3} ms", scene.serve.p50_ms),
            format!("{:.3} ms", scene.serve.p99_ms),
            scene.serve.requests.to_string(),
            scene.greedy_kernels_per_s.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
        ]);
    }
    for (number, row) in rows.iter().enumerate() {
        let y = top + 22.0 * number as f64;
        let weight = if number == 0 { "bold" } else { "normal" };
        for (column, cell) in row.iter().enumerate() {
            let anchor = if column == 0 { "start" } else { "end" };
            svg.add(format_args!(
                r#"<text x="{}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{}</text>"#,
                columns[column],
                escape(cell)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::picture::tests::panel;

    #[test]
    fn panels_are_drawn_and_tags_closed() {
        let mut svg = Svg::default();
        let panel = panel();
        draw(&mut svg, 0.0, "a <b> & c", &panel);
        assert!(svg.0.contains("a &lt;b&gt; &amp; c"));
        assert_eq!(svg.0.matches("<rect").count(), panel.bars.len() + 1);
        assert_eq!(svg.0.matches("<g").count(), svg.0.matches("</g>").count());
        assert_eq!(svg.0.matches("<text").count(), svg.0.matches("</text>").count());
    }
}
