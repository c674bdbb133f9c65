//! The picture: for each slice and device the share over time and the memory.

use std::time::Duration;

use aliquot_proto::node::v1::{PartUsage, SliceUsage};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Block, Gauge, Paragraph, RenderDirection, Sparkline, Wrap};

use super::history::History;
use crate::ps::short_device;
use crate::quantity::{bytes_human, duration_human, millipercent_human};
use crate::table::printable;

/// Lines of one part, with its frame.
const PART_LINES: u16 = 5;
/// The whole device in thousandths of a percent.
const WHOLE_MILLIPERCENT: u64 = 100_000;

/// What is seen of the history.
pub(super) struct Screen {
    /// The picture stands still.
    pub(super) held: bool,
    /// The first part that is seen.
    pub(super) first: usize,
    interval: Duration,
    colours: bool,
}

impl Screen {
    pub(super) fn new(interval: Duration, colours: bool) -> Screen {
        Screen { held: false, first: 0, interval, colours }
    }

    /// Draws the newest answer.
    pub(super) fn draw(&mut self, frame: &mut Frame, history: &History) {
        let [heading, body, footing] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        let slices = &history.newest.slices;
        let parts: Vec<_> = slices.iter().flat_map(|slice| slice.parts.iter().map(move |part| (slice, part))).collect();
        let time = history
            .newest
            .time
            .as_ref()
            .map_or_else(|| "waiting for the node manager …".to_owned(), ToString::to_string);
        let held = if self.held { "   held" } else { "" };
        let text =
            format!("aliquot top   {} slices   {time}   every {} s{held}", slices.len(), self.interval.as_secs_f64());
        frame.render_widget(Paragraph::new(text).style(Style::new().add_modifier(Modifier::BOLD)), heading);
        frame.render_widget(Paragraph::new("q quit   p hold   ↑ ↓ scroll"), footing);
        if parts.is_empty() && history.newest.time.is_some() {
            let text = "No slices. Make one: aliquot run --gpu-core 30 --gpu-memory 4GiB -- CMD";
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), body);
            return;
        }
        let visible = usize::from(body.height / PART_LINES).max(1);
        self.first = self.first.min(parts.len().saturating_sub(visible));
        let areas = Layout::vertical(vec![Constraint::Length(PART_LINES); visible]).split(body);
        for (&(slice, part), &area) in parts.iter().skip(self.first).zip(areas.iter()) {
            self.draw_part(frame, area, history, slice, part);
        }
    }

    fn draw_part(&self, frame: &mut Frame, area: Rect, history: &History, slice: &SliceUsage, part: &PartUsage) {
        let title = format!(
            " {}  {}  {} % of {}..{} %  {} ",
            printable(&slice.name),
            short_device(part),
            millipercent_human(part.core_used_1s_millipercent.into()),
            part.core_request_percent,
            part.core_limit_percent,
            processes(slice.processes.len()),
        );
        let block = Block::bordered().title(title);
        let inside = block.inner(area);
        frame.render_widget(block, area);
        let [left, right] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).spacing(1).areas(inside);
        let mut shares = history.newest_shares(&slice.id, &part.device_uuid, usize::from(left.width));
        shares.reverse();
        // The newest at the right edge, so that the picture moves to the left.
        let sparkline =
            Sparkline::default().data(shares).max(WHOLE_MILLIPERCENT).direction(RenderDirection::RightToLeft);
        frame.render_widget(sparkline.style(self.foreground(Color::Green)), left);
        let [gauge_area, text_area] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(right);
        let (used, limit) = (part.memory_used_bytes, part.memory_limit_bytes);
        let ratio = if limit == 0 { 0.0 } else { (used as f64 / limit as f64).clamp(0.0, 1.0) };
        let colour = if ratio > 0.95 { Color::Yellow } else { Color::Cyan };
        let gauge = Gauge::default().ratio(ratio).label(format!("{} of {}", bytes_human(used), bytes_human(limit)));
        frame.render_widget(gauge.gauge_style(self.foreground(colour)), gauge_area);
        let text = format!(
            "peak {}, {} refused\nthrottled {}{}",
            bytes_human(part.memory_peak_bytes),
            part.memory_refused,
            duration_human(part.throttled_ns),
            if part.waiting { ", waits" } else { "" }
        );
        frame.render_widget(Paragraph::new(text), text_area);
    }

    fn foreground(&self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }
}

fn processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::GetUsageResponse;
    use prost_types::Timestamp;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn slice(name: &str, share: u32) -> SliceUsage {
        let part = PartUsage {
            device_uuid: "GPU-a110c07a-5130".to_owned(),
            core_request_percent: 30,
            core_limit_percent: 60,
            core_used_1s_millipercent: share,
            memory_limit_bytes: 4 << 30,
            memory_used_bytes: 1 << 30,
            waiting: true,
            ..PartUsage::default()
        };
        SliceUsage { name: name.to_owned(), id: name.to_owned(), parts: vec![part], ..SliceUsage::default() }
    }

    fn picture(screen: &mut Screen, history: &History, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, history)).unwrap();
        terminal.backend().to_string()
    }

    fn history(names: &[&str]) -> History {
        let mut history = History::default();
        for share in [0, 50_000, 100_000] {
            let slices = names.iter().map(|name| slice(name, share)).collect();
            history.add(GetUsageResponse { slices, time: Some(Timestamp { seconds: 0, nanos: 0 }) });
        }
        history
    }

    #[test]
    fn shares_over_time_and_memory() {
        let text = picture(&mut Screen::new(Duration::from_secs(1), true), &history(&["train"]), 100, 8);
        assert!(text.contains(" train  0 GPU-a110c07a  100.0 % of 30..60 %  0 processes "), "{text}");
        assert!(text.contains("1 GiB of 4 GiB") && text.contains("waits"), "{text}");
        // The newest point, a full column, is at the right edge of the left half.
        let bars: Vec<_> = text.lines().filter(|line| line.contains('█')).collect();
        assert!(bars.len() >= 3, "{text}");
    }

    #[test]
    fn scrolling_stops_at_the_last_part() {
        let mut screen = Screen::new(Duration::from_secs(1), false);
        screen.first = 99;
        let text = picture(&mut screen, &history(&["one", "two", "three"]), 80, 12);
        assert_eq!(screen.first, 1);
        assert!(text.contains("three") && text.contains("two") && !text.contains(" one "), "{text}");
    }

    #[test]
    fn a_tiny_terminal_and_no_slices_are_fine() {
        for (width, height) in [(1, 1), (3, 2), (10, 3), (20, 6)] {
            picture(&mut Screen::new(Duration::from_secs(1), true), &history(&["train"]), width, height);
        }
        let empty = history(&[]);
        assert!(picture(&mut Screen::new(Duration::from_secs(1), true), &empty, 90, 5).contains("aliquot run"));
    }
}
