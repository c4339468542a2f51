//! A frame with axes, for drawing into.

use kuva::render::color::Color;
use kuva::render::render::{Primitive, Scene, TextAnchor};

/// Colours that colour-blind readers can distinguish (Okabe and Ito), then lighter and darker ones.
pub const COLORS: [&str; 14] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7f7f7f", "#004b75",
    "#a06e00", "#00664a", "#8a4d70", "#2f7ea8", "#8f3f00",
];
const INK: &str = "#222222";
const GRID: &str = "#e3e3e3";
const FONT: u32 = 12;

/// A colour for the i-th of many. The first one's is unique; the others repeat after thirteen.
pub fn color(index: usize) -> Color {
    let index = index.checked_sub(1).map_or(0, |index| 1 + index % (COLORS.len() - 1));
    COLORS[index].into()
}

/// A rectangle of the scene that stands for ranges of two quantities.
#[derive(Clone, Copy)]
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    /// At the left and right edge.
    pub x: [f64; 2],
    /// At the bottom and top edge.
    pub y: [f64; 2],
}

impl Frame {
    pub fn px(&self, x: f64) -> f64 {
        self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * self.width
    }

    pub fn py(&self, y: f64) -> f64 {
        self.top + self.height - (y - self.y[0]) / (self.y[1] - self.y[0]) * self.height
    }

    /// Grid, numbers and name of the horizontal axis.
    pub fn x_axis(&self, scene: &mut Scene, name: &str) {
        for tick in ticks(self.x) {
            let at = self.px(tick);
            line(scene, [at, self.top], [at, self.top + self.height], GRID, 1.0);
            text(scene, at, self.top + self.height + 17.0, &number(tick), FONT, TextAnchor::Middle);
        }
        let middle = self.left + self.width / 2.0;
        text(scene, middle, self.top + self.height + 36.0, name, FONT + 1, TextAnchor::Middle);
    }

    /// Grid, numbers and name of the vertical axis.
    pub fn y_axis(&self, scene: &mut Scene, name: &str) {
        for tick in ticks([self.y[0].min(self.y[1]), self.y[0].max(self.y[1])]) {
            self.y_tick(scene, tick, tick);
        }
        self.y_name(scene, name);
    }

    /// The same where `y` holds decimal logarithms of the quantity.
    pub fn log_y_axis(&self, scene: &mut Scene, name: &str) {
        for exponent in self.y[0].floor() as i32..=self.y[1].ceil() as i32 {
            for digit in [1.0, 2.0, 5.0] {
                let value: f64 = digit * 10f64.powi(exponent);
                if (self.y[0]..=self.y[1]).contains(&value.log10()) {
                    self.y_tick(scene, value.log10(), value);
                }
            }
        }
        self.y_name(scene, name);
    }

    fn y_tick(&self, scene: &mut Scene, y: f64, value: f64) {
        let at = self.py(y);
        line(scene, [self.left, at], [self.left + self.width, at], GRID, 1.0);
        text(scene, self.left - 7.0, at + 4.0, &number(value), FONT, TextAnchor::End);
    }

    /// The name of the vertical axis.
    pub fn y_name(&self, scene: &mut Scene, name: &str) {
        scene.elements.push(Primitive::Text {
            x: self.left - 46.0,
            y: self.top + self.height / 2.0,
            content: name.to_owned(),
            size: FONT + 1,
            anchor: TextAnchor::Middle,
            rotate: Some(-90.0),
            bold: false,
            color: Some(INK.into()),
        });
    }

    /// The edges.
    pub fn border(&self, scene: &mut Scene) {
        let (right, bottom) = (self.left + self.width, self.top + self.height);
        for (from, to) in [
            ([self.left, self.top], [right, self.top]),
            ([self.left, bottom], [right, bottom]),
            ([self.left, self.top], [self.left, bottom]),
            ([right, self.top], [right, bottom]),
        ] {
            line(scene, from, to, "#888888", 1.0);
        }
    }

    /// The heading.
    pub fn title(&self, scene: &mut Scene, title: &str) {
        heading(scene, self.left, self.top - 9.0, title, FONT + 2);
    }
}

pub fn line(scene: &mut Scene, from: [f64; 2], to: [f64; 2], stroke: &str, width: f64) {
    scene.elements.push(Primitive::Line {
        x1: from[0],
        y1: from[1],
        x2: to[0],
        y2: to[1],
        stroke: stroke.into(),
        stroke_width: width,
        stroke_dasharray: None,
    });
}

pub fn text(scene: &mut Scene, x: f64, y: f64, content: &str, size: u32, anchor: TextAnchor) {
    scene.elements.push(Primitive::Text {
        x,
        y,
        content: content.to_owned(),
        size,
        anchor,
        rotate: None,
        bold: false,
        color: Some(INK.into()),
    });
}

pub fn heading(scene: &mut Scene, x: f64, y: f64, content: &str, size: u32) {
    scene.elements.push(Primitive::Text {
        x,
        y,
        content: content.to_owned(),
        size,
        anchor: TextAnchor::Start,
        rotate: None,
        bold: true,
        color: Some(INK.into()),
    });
}

/// A rectangle from its corner; a white edge separates neighbours.
pub fn rect(scene: &mut Scene, corner: [f64; 2], size: [f64; 2], fill: Color, has_edge: bool) {
    scene.elements.push(Primitive::Rect {
        x: corner[0],
        y: corner[1],
        width: size[0],
        height: size[1],
        fill,
        stroke: has_edge.then(|| "#ffffff".into()),
        stroke_width: has_edge.then_some(0.6),
        opacity: None,
    });
}

/// Height of a row of names.
const LEGEND_ROW: f64 = 18.0;

/// The start of each name of a legend: across, and in which row.
fn legend_places<'n>(width: f64, names: impl Iterator<Item = &'n str>) -> Vec<(f64, usize)> {
    let (mut x, mut row) = (0.0, 0);
    let place = |name: &str| {
        let long = 26.0 + name.chars().count() as f64 * 6.9;
        if x > 0.0 && x + long > width {
            (x, row) = (0.0, row + 1);
        }
        let at = (x, row);
        x += long;
        at
    };
    names.map(place).collect()
}

pub fn legend_height<'n>(width: f64, names: impl Iterator<Item = &'n str>) -> f64 {
    let rows = legend_places(width, names).last().map_or(0, |(_, row)| row + 1);
    rows as f64 * LEGEND_ROW
}

/// A row of names with their colours, wrapped; returns its height.
pub fn legend(scene: &mut Scene, left: f64, top: f64, width: f64, names: &[(String, Color)]) -> f64 {
    let texts = || names.iter().map(|(name, _)| name.as_str());
    for ((name, color), (x, row)) in names.iter().zip(legend_places(width, texts())) {
        let (x, y) = (left + x, top + row as f64 * LEGEND_ROW);
        rect(scene, [x, y - 9.0], [11.0, 11.0], color.clone(), false);
        text(scene, x + 16.0, y + 1.0, name, FONT, TextAnchor::Start);
    }
    legend_height(width, texts())
}

/// Round numbers inside a range, five or so.
pub fn ticks(range: [f64; 2]) -> Vec<f64> {
    let span = range[1] - range[0];
    if span.is_nan() || span <= 0.0 {
        return Vec::new();
    }
    let rough = span / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|step| *step >= rough);
    let step = step.unwrap_or(power);
    let first = (range[0] / step - 1e-9).ceil() as i64;
    let last = (range[1] / step + 1e-9).floor() as i64;
    (first..=last).map(|index| index as f64 * step).collect()
}

/// A tick's number, without rounding errors of binary fractions.
pub fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks([0.0, 10.0]), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(
            ticks([0.0, 0.5]).iter().map(|t| number(*t)).collect::<Vec<_>>(),
            ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]
        );
        assert!(ticks([1.0, 1.0]).is_empty() && ticks([f64::NAN, 1.0]).is_empty());
    }
}
