//! Draws a share over time: a column for each point, with lines at the request and at the limit.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

/// Blocks that fill 0 to 8 eighths of a cell, from below.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// The symbol of a full cell on a line, so that the line is visible without colours too.
const FULL_ON_LINE: &str = "▓";
const LIMIT_LINE: &str = "━";
const REQUEST_LINE: &str = "┈";
/// Width of the lines' labels, with the space before them.
const LABELS_WIDTH: u16 = 13;

/// A chart. All figures are in thousandths of a percent of the device's time.
pub(super) struct Chart<'points> {
    /// The points, the oldest first; the newest one is drawn at the right.
    pub(super) shares: &'points [u64],
    /// The share at which the request's line is drawn.
    pub(super) request: u64,
    /// The share at which the limit's line is drawn.
    pub(super) limit: u64,
    /// The greatest limit of all charts on the screen, so that they have the same scale.
    pub(super) greatest_limit: u64,
    /// The style of a column within the request.
    pub(super) within: Style,
    /// The style of a column beyond the request.
    pub(super) beyond: Style,
}

/// How many points a chart of this width can show.
pub(super) fn points(width: u16) -> u16 {
    width.saturating_sub(LABELS_WIDTH)
}

impl Chart<'_> {
    /// The height of `share` in eighths of a cell, in a chart of `rows` rows. The greatest limit ends below the highest
    /// row, so that its line runs above the columns.
    fn eighths(&self, share: u64, rows: u16) -> u64 {
        let rows_at_limit = u64::from(rows.saturating_sub(1).max(1));
        let eighths = u128::from(share) * u128::from(rows_at_limit * 8) / u128::from(self.greatest_limit.max(1));
        u64::try_from(eighths).unwrap_or(u64::MAX).min(u64::from(rows) * 8)
    }

    /// The row, counted from below, of a line at `share`: the first one that a column of this height leaves free.
    fn line_row(&self, share: u64, rows: u16) -> u64 {
        self.eighths(share, rows).div_ceil(8).min(u64::from(rows.saturating_sub(1)))
    }
}

impl Widget for Chart<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.is_empty() {
            return;
        }
        let (rows, width) = (area.height, points(area.width));
        let (limit_row, request_row) = (self.line_row(self.limit, rows), self.line_row(self.request, rows));
        let line = |row: u64| match row {
            row if row == limit_row => Some(LIMIT_LINE),
            row if row == request_row => Some(REQUEST_LINE),
            _ => None,
        };
        let skipped = self.shares.len().saturating_sub(usize::from(width));
        let shown = &self.shares[skipped..];
        let blank = usize::from(width) - shown.len();
        for (row, y) in (0..u64::from(rows)).zip((area.top()..area.bottom()).rev()) {
            for (column, x) in (area.left()..area.left() + width).enumerate() {
                let share = column.checked_sub(blank).map_or(0, |index| shown[index]);
                let eighths = self.eighths(share, rows).saturating_sub(row * 8).min(8) as usize;
                let symbol = match (eighths, line(row)) {
                    (0, Some(line)) => line,
                    (8, Some(_)) => FULL_ON_LINE,
                    (eighths, _) => EIGHTHS[eighths],
                };
                let style = match (eighths, share > self.request) {
                    (0, _) => Style::new(),
                    (_, false) => self.within,
                    (_, true) => self.beyond,
                };
                buffer[(x, y)].set_symbol(symbol).set_style(style);
            }
            let percent = |share: u64| share / 1000;
            let label = match row {
                row if row == limit_row && self.limit == self.request => format!("{} % = req.", percent(self.limit)),
                row if row == limit_row && row == request_row => {
                    format!("{}..{} %", percent(self.request), percent(self.limit))
                }
                row if row == limit_row => format!("{} % limit", percent(self.limit)),
                row if row == request_row => format!("{} % req.", percent(self.request)),
                _ => continue,
            };
            if width > 0 {
                buffer.set_stringn(area.left() + width + 1, y, label, usize::from(LABELS_WIDTH - 1), Style::new());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(shares: &[u64], request: u64, limit: u64, greatest_limit: u64, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        let (within, beyond) = (Style::new(), Style::new());
        Chart { shares, request, limit, greatest_limit, within, beyond }.render(area, &mut buffer);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn lines_run_above_columns_that_reach_them() {
        assert_eq!(
            lines(&[0, 15_000, 30_000, 60_000], 30_000, 60_000, 60_000, 19, 5),
            ["━━━━━━ 60 % limit", "     █", "┈┈┈┈┈▓ 30 % req.", "    ██", "   ███"]
        );
    }

    #[test]
    fn a_request_that_is_the_limit_is_one_line_and_charts_have_one_scale() {
        assert_eq!(lines(&[30_000, 15_000], 30_000, 30_000, 60_000, 15, 5), ["", "", "━━ 30 % = req.", "█", "██"]);
    }

    #[test]
    fn the_newest_points_and_values_beyond_the_limit_are_shown() {
        assert_eq!(lines(&[1_000, 90_000, 60_000], 60_000, 60_000, 60_000, 15, 3), ["▓━ 60 % = req.", "██", "██"]);
    }

    #[test]
    fn no_size_and_no_figure_is_too_small_or_too_great() {
        for (width, height) in [(0, 0), (1, 1), (13, 1), (14, 1), (80, 2), (300, 90)] {
            for share in [0, 1, u64::MAX] {
                lines(&[share], share, share, share, width, height);
                lines(&[share; 2], 1, u64::MAX, 0, width, height);
            }
        }
    }
}
