//! Lines: scaling curves and distributions.

use kuva::render::render::{Primitive, Scene};
use partita_core::Samples;

use crate::canvas::{Frame, color, heading, legend, legend_height};

/// One plot.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// The horizontal quantity with its unit.
    pub x: String,
    /// The vertical one.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug, Clone)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    has_dots: bool,
}

impl Series {
    /// Points joined by a line.
    pub fn dots(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, has_dots: true }
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
        Self { name: name.to_owned(), points, has_dots: false }
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
    let points = || panel.series.iter().flat_map(|series| &series.points).filter(|point| point.1.is_finite());
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::NEG_INFINITY, f64::max);
    let (right, top) = (most(|point| point.0), most(|point| point.1));
    let has_points = right.is_finite() && top.is_finite();
    let frame = Frame {
        left,
        top: TOP,
        width: WIDTH,
        height: HEIGHT,
        x: [0.0, if has_points { right.max(1e-9) * 1.04 } else { 1.0 }],
        y: [0.0, if has_points { top.max(1e-9) * 1.05 } else { 1.0 }],
    };
    frame.x_axis(scene, &panel.x);
    frame.y_axis(scene, &panel.y);
    frame.title(scene, &panel.title);
    let mut names = Vec::new();
    for (index, series) in panel.series.iter().enumerate() {
        let stroke = color(index);
        let finite = series.points.iter().filter(|point| point.1.is_finite());
        let path: Vec<(f64, f64)> = finite.map(|&(x, y)| (frame.px(x), frame.py(y))).collect();
        if series.has_dots {
            for &(cx, cy) in &path {
                scene.elements.push(Primitive::Circle {
                    cx,
                    cy,
                    r: 2.6,
                    fill: stroke.clone(),
                    fill_opacity: None,
                    stroke: None,
                    stroke_width: None,
                });
            }
        }
        scene.elements.push(Primitive::PolyLine {
            points: path,
            stroke: stroke.clone(),
            stroke_width: 1.6,
            stroke_dasharray: None,
        });
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
        };
        let svg = Picture::of("p", scene("<title>", &[panel])).svg();
        assert!(svg.contains("&lt;title&gt;") && svg.contains("a &amp; b"), "{svg}");
    }
}
