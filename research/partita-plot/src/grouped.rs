//! Groups of bars above and below a line.

use kuva::render::render::{Scene, TextAnchor};

use crate::canvas::{Frame, color, heading, legend, line, rect, text};

/// One plot.
#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    /// The quantity with its unit.
    pub y: String,
    /// Groups: a name, and a bar for each series.
    pub groups: Vec<(String, Vec<Bar>)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// Its height; a value that is not finite is not drawn.
    pub height: f64,
    /// The least and the most of the values of which it is the median, if there are several.
    pub range: Option<(f64, f64)>,
}

impl Bar {
    fn ends(self) -> [f64; 3] {
        let (least, most) = self.range.unwrap_or((self.height, self.height));
        [self.height, least, most]
    }
}

impl From<f64> for Bar {
    fn from(height: f64) -> Self {
        Self { height, range: None }
    }
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 78.0;
const TOP: f64 = 76.0;
const BELOW: f64 = 74.0;

/// Panels, two to a row, all to one scale around 0, with a legend for the series.
pub fn scene(title: &str, series: &[&str], panels: &[Panel]) -> Scene {
    let bars = || panels.iter().flat_map(|panel| &panel.groups).flat_map(|group| &group.1);
    let finite = || bars().flat_map(|bar| bar.ends()).filter(|end| end.is_finite());
    let (least, most) = (finite().fold(0.0, f64::min), finite().fold(1.0, f64::max));
    let room = (most - least) * 0.08;
    let rows = panels.len().div_ceil(2) as f64;
    let columns = panels.len().clamp(1, 2) as f64;
    let mut scene = Scene::new(columns * (LEFT + WIDTH) + 30.0, TOP + rows * (HEIGHT + BELOW) + 14.0);
    heading(&mut scene, 20.0, 28.0, title, 17);
    let names: Vec<_> = series.iter().enumerate().map(|(i, name)| ((*name).to_owned(), color(i))).collect();
    let _: f64 = legend(&mut scene, LEFT, 48.0, WIDTH, &names);
    for (index, panel) in panels.iter().enumerate() {
        let frame = Frame {
            left: LEFT + (index % 2) as f64 * (WIDTH + LEFT),
            top: TOP + 20.0 + (index / 2) as f64 * (HEIGHT + BELOW),
            width: WIDTH,
            height: HEIGHT,
            x: [0.0, panel.groups.len().max(1) as f64],
            y: [least - room, most + room],
        };
        draw(&mut scene, &frame, panel, series.len());
    }
    scene
}

fn draw(scene: &mut Scene, frame: &Frame, panel: &Panel, series: usize) {
    frame.y_axis(scene, &panel.y);
    frame.title(scene, &panel.title);
    let zero = frame.py(0.0);
    // A quarter of each group's place is left between groups.
    let bar = frame.width / panel.groups.len().max(1) as f64 * 0.75 / series.max(1) as f64;
    for (place, (name, bars)) in panel.groups.iter().enumerate() {
        let left = frame.px(place as f64 + 0.125);
        for (i, Bar { height, range }) in bars.iter().enumerate().filter(|(_, bar)| bar.height.is_finite()) {
            let y = frame.py(*height);
            // A bar of 0 is still visible.
            let (top, tall) = (y.min(zero), (y - zero).abs().max(1.2));
            rect(scene, [left + i as f64 * bar, top], [bar, tall], color(i), true);
            if let Some((least, most)) = range {
                let x = left + (i as f64 + 0.5) * bar;
                line(scene, [x, frame.py(*least)], [x, frame.py(*most)], "#333333", 1.2);
            }
        }
        let below = frame.top + frame.height + 16.0;
        text(scene, frame.px(place as f64 + 0.5), below, name, 12, TextAnchor::Middle);
    }
    line(scene, [frame.left, zero], [frame.left + frame.width, zero], "#555555", 1.0);
    frame.border(scene);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picture;

    #[test]
    fn bars_rise_and_fall_from_the_line() {
        let svg = |other: Bar| {
            let groups = vec![("a & b".to_owned(), vec![5.0.into(), other, f64::NAN.into()])];
            let panel = Panel { title: "t".to_owned(), y: "%".to_owned(), groups };
            Picture::of("p", scene("title", &["one", "other", "none"], &[panel])).svg()
        };
        let (plain, ranged) = (svg((-5.0).into()), svg(Bar { height: -5.0, range: Some((-5.0, 5.0)) }));
        assert!(plain.contains("a &amp; b") && !plain.contains("NaN"), "{plain}");
        assert_eq!(ranged.matches("#333333").count(), plain.matches("#333333").count() + 1, "{ranged}");
    }
}
