//! Lines: scaling curves and distributions.

use kuva::render::render::{Primitive, Scene};
use partita_core::Samples;

use crate::canvas::{Frame, color, heading, legend, legend_height};

/// One plot.
#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    /// The horizontal quantity with its unit.
    pub x: String,
    /// The vertical one.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Whether the vertical axis is logarithmic.
    pub is_log: bool,
}

/// One line.
#[derive(Debug, Clone)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    style: Style,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Line,
    /// Points joined by a line.
    Dots,
    /// Points alone.
    Points,
    Dashes,
}

impl Series {
    /// Points joined by a line.
    pub fn dots(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, style: Style::Dots }
    }

    /// Points alone: one choice among others.
    pub fn points(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, style: Style::Points }
    }

    /// A dashed line: computed, not measured.
    pub fn reference(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, style: Style::Dashes }
    }

    /// The distribution of samples: which part of them is no larger.
    pub fn cdf(name: &str, samples: &Samples) -> Self {
        let count = samples.count() as f64;
        let mut points = vec![(samples.min(), 0.0)];
        for (index, &value) in samples.sorted().iter().enumerate() {
            let before = points.last().map_or(0.0, |point| point.1);
            points.push((value, before));
            points.push((value, (index + 1) as f64 / count));
        }
        Self { name: name.to_owned(), points, style: Style::Line }
    }
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 78.0;
const TOP: f64 = 78.0;
const BETWEEN: f64 = 110.0;

/// Panels side by side.
pub fn scene(title: &str, panels: &[Panel]) -> Scene {
    let count = panels.len().max(1) as f64;
    let width = LEFT + count * WIDTH + (count - 1.0) * BETWEEN + 30.0;
    let names = |panel: &Panel| legend_height(WIDTH, panel.series.iter().map(|series| series.name.as_str()));
    let legends = panels.iter().map(names).fold(0.0, f64::max);
    let mut scene = Scene::new(width, TOP + HEIGHT + 62.0 + legends);
    heading(&mut scene, 20.0, 28.0, title, 17);
    for (index, panel) in panels.iter().enumerate() {
        draw(&mut scene, panel, LEFT + index as f64 * (WIDTH + BETWEEN));
    }
    scene
}

fn draw(scene: &mut Scene, panel: &Panel, left: f64) {
    // The logarithm of zero is not finite: such a point is not drawn.
    let shown = |series: &Series| {
        let points = series.points.iter().map(|&(x, y)| (x, if panel.is_log { y.log10() } else { y }));
        points.filter(|point| point.1.is_finite()).collect::<Vec<_>>()
    };
    let all: Vec<(f64, f64)> = panel.series.iter().flat_map(shown).collect();
    let most = |of: fn(&(f64, f64)) -> f64| all.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let (right, top) = (most(|point| point.0), most(|point| point.1));
    let has_points = right.is_finite() && top.is_finite();
    let y = match (has_points, panel.is_log) {
        (false, _) => [0.0, 1.0],
        (true, false) => [0.0, top.max(1e-9) * 1.05],
        (true, true) => [all.iter().map(|point| point.1).fold(top, f64::min) - 0.1, top + 0.1],
    };
    let frame = Frame {
        left,
        top: TOP,
        width: WIDTH,
        height: HEIGHT,
        x: [0.0, if has_points { right.max(1e-9) * 1.04 } else { 1.0 }],
        y,
    };
    frame.x_axis(scene, &panel.x);
    if panel.is_log {
        frame.log_y_axis(scene, &panel.y);
    } else {
        frame.y_axis(scene, &panel.y);
    }
    frame.title(scene, &panel.title);
    let mut names = Vec::new();
    for (index, series) in panel.series.iter().enumerate() {
        let stroke = color(index);
        let path: Vec<(f64, f64)> =
            shown(series).into_iter().map(|(x, y)| (frame.px(x), frame.py(y))).collect();
        if matches!(series.style, Style::Dots | Style::Points) {
            for &(cx, cy) in &path {
                scene.elements.push(Primitive::Circle {
                    cx,
                    cy,
                    r: if series.style == Style::Points { 5.0 } else { 2.6 },
                    fill: stroke.clone(),
                    fill_opacity: None,
                    stroke: None,
                    stroke_width: None,
                });
            }
        }
        if series.style != Style::Points {
            scene.elements.push(Primitive::PolyLine {
                points: path,
                stroke: stroke.clone(),
                stroke_width: 1.6,
                stroke_dasharray: (series.style == Style::Dashes).then(|| "6 4".to_owned()),
            });
        }
        names.push((series.name.clone(), stroke));
    }
    frame.border(scene);
    let _: f64 = legend(scene, left, TOP + HEIGHT + 60.0, WIDTH, &names);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picture;

    #[test]
    fn a_distribution_climbs_from_none_to_all() {
        let samples = Samples::new(vec![3.0, 1.0]).unwrap();
        let series = Series::cdf("x", &samples);
        assert_eq!(series.points, [(1.0, 0.0), (1.0, 0.0), (1.0, 0.5), (3.0, 0.5), (3.0, 1.0)]);
    }

    #[test]
    fn nothing_to_draw_is_drawn() {
        let panel = Panel {
            title: "t".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            series: vec![Series::dots("a & b", vec![(1.0, f64::NAN)])],
            is_log: false,
        };
        let svg = Picture::of("p", scene("<title>", &[panel])).svg();
        assert!(svg.contains("&lt;title&gt;") && svg.contains("a &amp; b"), "{svg}");
    }

    #[test]
    fn a_logarithmic_axis_has_equal_steps_for_equal_factors() {
        let panel = Panel {
            title: "t".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            series: vec![Series::points("a", vec![(1.0, 0.0), (1.0, 1.0), (1.0, 10.0), (1.0, 100.0)])],
            is_log: true,
        };
        let heights: Vec<f64> = scene("t", &[panel])
            .elements
            .iter()
            .filter_map(|element| match element {
                Primitive::Circle { cy, .. } => Some(*cy),
                _ => None,
            })
            .collect();
        let [low, middle, high] = heights[..] else { panic!("zero has no logarithm: {heights:?}") };
        assert!(low > middle && ((low - middle) - (middle - high)).abs() < 1e-9, "{heights:?}");
    }
}
