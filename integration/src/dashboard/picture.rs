//! A picture of the dashboard: its panels, with what Prometheus answered. Grafana has no part in it.

use std::fmt::Write as _;

use super::{Panel, Place};
use crate::prometheus::{Range, Series};

/// The size of one column and one row of the dashboard, in pixels.
const COLUMN: f64 = 50.0;
const ROW: f64 = 30.0;
const GAP: f64 = 4.0;
/// The room for the figures at the left of a graph, and for those below it.
const LEFT: f64 = 62.0;
const BELOW: f64 = 18.0;
const LINE: f64 = 14.0;
const COLOURS: [&str; 8] = [
    "#3274d9", "#56a64b", "#e0752d", "#8f3bb8", "#e02f44", "#0aa2a2", "#b8860b", "#6b6b6b",
];

/// The series that a panel shows, with their names.
pub type Shown = Vec<(String, Series)>;

/// Draws the panels.
pub fn draw(panels: &[(&Panel, Shown)], range: Range, caption: &str) -> String {
    let bottom = panels.iter().map(|(panel, _)| panel.grid_pos);
    let bottom = bottom.map(|place| place.y + place.h).max().unwrap_or(0);
    let (width, height) = (24.0 * COLUMN, f64::from(bottom) * ROW + 26.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"#333\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#f4f5f5\"/>\n"
    );
    for (panel, shown) in panels {
        let frame = Frame::of(panel.grid_pos);
        match panel.kind.as_str() {
            "row" => frame.heading(&mut svg, &panel.title),
            "stat" => frame.figure(&mut svg, panel, shown),
            _ => frame.graph(&mut svg, panel, shown, range),
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"8\" y=\"{}\" fill=\"#666\">{}</text>\n</svg>",
        height - 8.0,
        escaped(caption)
    );
    svg
}

/// The place of a panel in the picture.
#[derive(Debug, Clone, Copy)]
struct Frame {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
}

// === impl Frame ===

impl Frame {
    fn of(place: Place) -> Self {
        Self {
            x: f64::from(place.x) * COLUMN + GAP,
            y: f64::from(place.y) * ROW + GAP,
            w: f64::from(place.w) * COLUMN - 2.0 * GAP,
            h: f64::from(place.h) * ROW - 2.0 * GAP,
        }
    }

    fn heading(self, svg: &mut String, title: &str) {
        let (x, y) = (self.x + 4.0, self.y + 16.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"14\" font-weight=\"bold\">{}</text>",
            escaped(title)
        );
    }

    fn panel(self, svg: &mut String, title: &str) {
        let Self { x, y, w, h } = self;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"#fff\" stroke=\"#ddd\"/>\n\
             <text x=\"{}\" y=\"{}\" font-size=\"12\" font-weight=\"bold\">{}</text>",
            x + 8.0,
            y + 18.0,
            escaped(title)
        );
    }

    fn figure(self, svg: &mut String, panel: &Panel, shown: &Shown) {
        self.panel(svg, &panel.title);
        let last = shown.first().and_then(|(_, series)| series.last());
        let text = last.map_or("no data".into(), |value| {
            readable(value, &panel.field_config.defaults.unit)
        });
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" font-size=\"36\" text-anchor=\"middle\">{text}</text>",
            self.x + self.w / 2.0,
            self.y + self.h * 0.72
        );
    }

    fn graph(self, svg: &mut String, panel: &Panel, shown: &Shown, range: Range) {
        self.panel(svg, &panel.title);
        let unit = &panel.field_config.defaults.unit;
        let legend = self.legend(svg, shown);
        let plot = Self {
            x: self.x + LEFT,
            y: self.y + 30.0,
            w: self.w - LEFT - 12.0,
            h: self.h - 30.0 - BELOW - legend,
        };
        let top = shown.iter().flat_map(|(_, series)| series.points());
        let top = top.map(|(_, value)| value).fold(0.0_f64, f64::max);
        let top = if top > 0.0 { top * 1.05 } else { 1.0 };
        for part in [0.0, 0.5, 1.0] {
            let y = plot.y + plot.h * (1.0 - part);
            let _ = writeln!(
                svg,
                "<path d=\"M{} {y}H{}\" stroke=\"#e5e5e5\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\" \
                 fill=\"#666\">{}</text>",
                plot.x,
                plot.x + plot.w,
                plot.x - 6.0,
                y + 4.0,
                readable(top * part, unit)
            );
        }
        let length = range.end - range.start;
        for (part, anchor) in [(0.0, "start"), (0.5, "middle"), (1.0, "end")] {
            let before = length * (1.0 - part);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"#666\">{}</text>",
                plot.x + plot.w * part,
                plot.y + plot.h + 14.0,
                if before < 1.0 {
                    "now".to_owned()
                } else {
                    format!("−{}", readable(before, "s"))
                }
            );
        }
        for (number, (_, series)) in shown.iter().enumerate() {
            let path = plot.path(&series.points(), range, top);
            let colour = COLOURS[number % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
            );
        }
    }

    /// The line of a series; where a point is missing it is interrupted.
    fn path(self, points: &[(f64, f64)], range: Range, top: f64) -> String {
        let mut path = String::new();
        let mut before = f64::MIN;
        for (at, value) in points {
            let x = self.x + self.w * (at - range.start) / (range.end - range.start);
            let y = self.y + self.h * (1.0 - value / top);
            let letter = if at - before > 1.5 * range.step {
                'M'
            } else {
                'L'
            };
            let _ = write!(path, "{letter}{x:.1} {y:.1}");
            before = *at;
        }
        path
    }

    /// Writes the names of the series at the bottom, and says how much room they take.
    fn legend(self, svg: &mut String, shown: &Shown) -> f64 {
        let longest = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let each = f64::from(u16::try_from(longest).unwrap_or(u16::MAX)) * 6.2 + 24.0;
        let columns = ((self.w - 16.0) / each).floor().max(1.0);
        let rows = (f64::from(u16::try_from(shown.len()).unwrap_or(u16::MAX)) / columns).ceil();
        let (mut column, mut row) = (0.0, 0.0);
        for (number, (name, _)) in shown.iter().enumerate() {
            let x = self.x + 8.0 + column * each;
            let y = self.y + self.h - 8.0 - (rows - 1.0 - row) * LINE;
            let colour = COLOURS[number % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<path d=\"M{x} {}h12\" stroke=\"{colour}\" stroke-width=\"3\"/><text x=\"{}\" y=\"{y}\">{}</text>",
                y - 4.0,
                x + 16.0,
                escaped(name)
            );
            column += 1.0;
            if column >= columns {
                (column, row) = (0.0, row + 1.0);
            }
        }
        rows * LINE + 6.0
    }
}

/// A number as a reader wants it.
fn readable(value: f64, unit: &str) -> String {
    let (value, suffix) = match unit {
        "bytes" => thousands(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"]),
        "s" if value > 0.0 && value < 1.0 => (value * 1000.0, " ms"),
        "s" if value >= 120.0 => (value / 60.0, " min"),
        "s" => (value, " s"),
        "ops" => (value, "/s"),
        _ => thousands(value, 1000.0, &["", " K", " Mil"]),
    };
    let digits = if value.fract().abs() < 1e-9 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{suffix}")
}

fn thousands<'a>(mut value: f64, step: f64, suffixes: &[&'a str]) -> (f64, &'a str) {
    let mut at = 0;
    while value >= step && at + 1 < suffixes.len() {
        value /= step;
        at += 1;
    }
    (value, suffixes[at])
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
