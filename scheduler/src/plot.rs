//! Curves as an SVG picture.

use std::fmt::Write as _;

use crate::curve::Point;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const MARGIN: f64 = 48.0;

/// A curve with its name and colour.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// The name of the curve.
    pub name: &'a str,
    /// The colour as a CSS name or value.
    pub colour: &'a str,
    /// The points of the curve, by ascending percentage.
    pub points: &'a [Point],
}

/// Draws curves over the demand that has arrived; both axes are percentages of capacity.
#[must_use]
pub fn svg(title: &str, series: &[Series<'_>]) -> String {
    let arrived = series.iter().flat_map(|series| series.points).map(|point| f64::from(point.arrived_percent));
    let x_max = arrived.fold(100.0, f64::max);
    let x = |percent: f64| MARGIN + (WIDTH - 2.0 * MARGIN) * percent / x_max;
    let y = |percent: f64| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * percent / 100.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    for percent in (0..=10).map(|tenth| f64::from(tenth) * 10.0) {
        let (left, right, at) = (x(0.0), x(x_max), y(percent));
        let _ = writeln!(svg, "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"#ddd\"/>");
        let _ =
            writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent}</text>", left - 6.0, at + 4.0);
    }
    let mut tick = 0.0;
    while tick <= x_max {
        let _ =
            writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>", x(tick), y(0.0) + 18.0);
        tick += 10.0;
    }
    let (middle, bottom) = (WIDTH / 2.0, HEIGHT - 10.0);
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">demand arrived, % of capacity</text>"
    );
    for (number, series) in series.iter().enumerate() {
        let points: Vec<String> = series
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(f64::from(point.arrived_percent)), y(point.percent)))
            .collect();
        let colour = escaped(series.colour);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        let below = MARGIN + 16.0 * number as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{below:.1}\" fill=\"{colour}\">{}</text>",
            x(2.0),
            escaped(series.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
