//! Bars with their values.

use kuva::render::render::{Scene, TextAnchor};

use crate::canvas::{Frame, color, heading, line, rect, text};

/// One plot.
#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    /// The quantity with its unit.
    pub y: String,
    /// Names and heights.
    pub bars: Vec<(String, f64)>,
}

const BAR: f64 = 64.0;
const SPACE: f64 = 56.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 84.0;
const TOP: f64 = 80.0;

/// Panels side by side.
pub fn scene(title: &str, panels: &[Panel]) -> Scene {
    let width = |panel: &Panel| panel.bars.len() as f64 * (BAR + SPACE) + SPACE;
    let all: f64 = panels.iter().map(|panel| LEFT + width(panel) + 20.0).sum();
    let mut scene = Scene::new(all, TOP + HEIGHT + 70.0);
    heading(&mut scene, 20.0, 28.0, title, 17);
    let mut left = LEFT;
    for panel in panels {
        let top = panel.bars.iter().map(|bar| bar.1).filter(|height| height.is_finite()).fold(1.0, f64::max);
        let frame =
            Frame { left, top: TOP, width: width(panel), height: HEIGHT, x: [0.0, 1.0], y: [0.0, top * 1.1] };
        frame.y_axis(&mut scene, &panel.y);
        frame.title(&mut scene, &panel.title);
        for (index, (name, height)) in panel.bars.iter().enumerate().filter(|(_, bar)| bar.1.is_finite()) {
            let x = left + SPACE + index as f64 * (BAR + SPACE);
            let y = frame.py(*height);
            rect(&mut scene, [x, y], [BAR, frame.py(0.0) - y], color(index), false);
            let middle = x + BAR / 2.0;
            text(&mut scene, middle, y - 6.0, &format!("{height:.2}"), 12, TextAnchor::Middle);
            // Long names are broken into lines.
            for (row, part) in name.split(", ").enumerate() {
                text(
                    &mut scene,
                    middle,
                    TOP + HEIGHT + 17.0 + 15.0 * row as f64,
                    part,
                    12,
                    TextAnchor::Middle,
                );
            }
        }
        let one = frame.py(1.0);
        line(&mut scene, [left, one], [left + frame.width, one], "#555555", 1.0);
        frame.border(&mut scene);
        left += LEFT + frame.width + 20.0;
    }
    scene
}
