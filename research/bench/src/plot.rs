//! Line plots of measurements, as SVG and PNG.
//!
//! The one place that knows the plotting library.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use kuva::backend::png::PngBackend;
use kuva::backend::svg::SvgBackend;
use kuva::prelude::{Figure, Layout, LegendPosition, LinePlot, Plot, ScatterPlot};

/// A series of points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its colour, as CSS names it.
    pub color: &'static str,
    /// The points.
    pub points: Vec<(f64, f64)>,
    /// How they are drawn.
    pub style: Style,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Measured: points joined by a line.
    Measured,
    /// Computed: a dashed line.
    Reference,
    /// A measured alternative among others: points alone.
    Alternative,
}

/// One plot of a picture.
#[derive(Debug, Clone)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// The horizontal quantity and its unit.
    pub x: String,
    /// The vertical quantity and its unit.
    pub y: String,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Whether the vertical axis is logarithmic.
    pub is_log: bool,
}

/// Draws panels side by side into `FILE.svg` and `FILE.png`; `file` is the path without an
/// extension.
///
/// # Errors
/// The files cannot be written, or the library cannot draw.
pub fn draw(file: &Path, title: &str, panels: &[Panel]) -> Result<()> {
    let cells: Vec<Vec<Plot>> = panels.iter().map(plots).collect();
    let layouts = panels.iter().zip(&cells).map(|(panel, cell)| {
        // Where curves that saturate, and alternatives of which less of both is worse, leave room.
        let is_choice = panel.series.iter().all(|series| series.style == Style::Alternative);
        let falls = |series: &Series| match series.points.as_slice() {
            [first, .., last] => series.style == Style::Measured && last.1 < first.1,
            _ => false,
        };
        let legend = match (is_choice, panel.series.iter().any(falls)) {
            (true, _) => LegendPosition::InsideTopLeft,
            (_, true) => LegendPosition::OutsideRightTop,
            _ => LegendPosition::InsideBottomRight,
        };
        let layout = Layout::auto_from_plots(cell)
            .with_title(&panel.title)
            .with_x_label(&panel.x)
            .with_y_label(&panel.y)
            .with_legend_position(legend);
        if panel.is_log { layout.with_log_y() } else { layout }
    });
    let figure = Figure::new(1, panels.len())
        .with_title(title)
        .with_structure((0..panels.len()).map(|cell| vec![cell]).collect())
        .with_layouts(layouts.collect())
        .with_plots(cells)
        .with_cell_size(620.0, 440.0);
    let scene = figure.render();
    write(&file.with_extension("svg"), SvgBackend::new().render_scene(&scene).as_bytes())?;
    let png = PngBackend::new().with_scale(1.5).render_scene(&scene).map_err(|error| anyhow!(error))?;
    write(&file.with_extension("png"), &png)
}

fn plots(panel: &Panel) -> Vec<Plot> {
    let mut plots = Vec::new();
    for series in &panel.series {
        let line = LinePlot::new().with_data(series.points.clone()).with_color(series.color);
        match series.style {
            Style::Reference => plots.push(Plot::Line(line.with_dashed().with_legend(&series.name))),
            Style::Measured => {
                plots.push(Plot::Line(line.with_stroke_width(1.0).with_legend(&series.name)));
                let points = ScatterPlot::new().with_data(series.points.clone());
                plots.push(Plot::Scatter(points.with_color(series.color).with_size(2.0)));
            }
            Style::Alternative => {
                let points = ScatterPlot::new().with_data(series.points.clone()).with_size(6.0);
                plots.push(Plot::Scatter(points.with_color(series.color).with_legend(&series.name)));
            }
        }
    }
    plots
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
