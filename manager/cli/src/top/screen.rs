//! The screen: for each slice and device the share over time, and figures beside it.

use std::cmp::Reverse;
use std::time::Duration;

use aliquot_proto::node::v1::{Device, PartUsage, SliceUsage};
use prost_types::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use super::chart::{self, Chart};
use super::history::History;
use crate::ps::short_uuid;
use crate::quantity::{bytes_human, duration_human, millipercent_human};
use crate::table::{self, printable};
use crate::{bar, consumers, priority, waits};

/// Lines of one part: a heading, the chart, and a line of figures.
const PART_LINES_MIN: u16 = 5;
const PART_LINES_MAX: u16 = 20;

/// The order of the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The manager's order, by name.
    Name,
    /// The greatest share first.
    Share,
    /// The longest waiting first.
    Wait,
    /// The most memory in use first.
    Memory,
}

impl Order {
    /// The order that follows when the key is pressed.
    pub(super) fn next(self) -> Order {
        match self {
            Order::Name => Order::Share,
            Order::Share => Order::Wait,
            Order::Wait => Order::Memory,
            Order::Memory => Order::Name,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::Name => "name",
            Order::Share => "share",
            Order::Wait => "wait",
            Order::Memory => "memory",
        }
    }
}

/// The state of the display.
pub(super) struct Screen {
    /// Whether the picture stands still.
    pub(super) held: bool,
    /// How long the manager has been silent, if that is longer than expected; the picture is as old as that.
    pub(super) silent_for: Option<Duration>,
    /// The node's devices, for the totals of each; empty if only some slices are shown.
    pub(super) devices: Vec<Device>,
    /// The first visible part.
    pub(super) first: usize,
    /// The order of the parts.
    pub(super) order: Order,
    interval: Duration,
    colours: bool,
}

impl Screen {
    pub(super) fn new(interval: Duration, colours: bool) -> Screen {
        let devices = Vec::new();
        Screen { held: false, silent_for: None, devices, first: 0, order: Order::Name, interval, colours }
    }

    /// Draws the newest answer.
    pub(super) fn draw(&mut self, frame: &mut Frame, history: &History) {
        let totals = self.totals(history, frame.area());
        let rows = Constraint::Length(u16::try_from(totals.len()).unwrap_or(u16::MAX));
        let [heading, devices, body, footing] =
            Layout::vertical([Constraint::Length(1), rows, Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(totals), devices);
        let parts = self.parts(history);
        frame.render_widget(Paragraph::new(self.heading(history, body.width)).style(self.heading_style()), heading);
        frame.render_widget(Paragraph::new("q quit   p hold   s sort   ↑ ↓ scroll"), footing);
        if parts.is_empty() {
            if history.newest.time.is_some() {
                let text = "No slices. Make one: aliquot run --gpu-core 30 --gpu-memory 4GiB -- CMD";
                frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), body);
            }
            return;
        }
        let count = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        let lines = (body.height / count).clamp(PART_LINES_MIN, PART_LINES_MAX);
        let visible = usize::from(body.height / lines).max(1);
        self.first = self.first.min(parts.len().saturating_sub(visible));
        let areas = Layout::vertical(vec![Constraint::Length(lines); visible]).split(body);
        let greatest_limit = parts.iter().map(|(_, part)| millipercent(part.core_limit_percent)).max().unwrap_or(0);
        for (&(slice, part), &area) in parts.iter().skip(self.first).zip(areas.iter()) {
            self.draw_part(frame, area, history, slice, part, greatest_limit);
        }
    }

    fn heading_style(&self) -> Style {
        let colour = if self.silent_for.is_some() { self.foreground(Color::Red) } else { Style::new() };
        colour.add_modifier(Modifier::BOLD)
    }

    /// A line for each device with slices: their total use of it. The lines take at most a quarter of the screen.
    fn totals(&self, history: &History, area: Rect) -> Vec<Line<'static>> {
        let slices = &history.newest.slices;
        let totals = self.devices.iter().filter_map(|device| Total::of(device, slices));
        let style = self.foreground(Color::Cyan);
        totals.take(usize::from(area.height / 4)).map(|total| Line::from(total.text(area.width)).style(style)).collect()
    }

    fn heading(&self, history: &History, width: u16) -> String {
        let Some(Timestamp { seconds, .. }) = history.newest.time else {
            let waited = self.silent_for.map_or_else(String::new, |silence| format!(" for {} s", silence.as_secs()));
            return format!("waiting for the node manager{waited} …");
        };
        let time = Timestamp { seconds, nanos: 0 };
        let shown = self.interval * u32::from(chart::points(width));
        let state = match (self.silent_for, self.held) {
            (Some(silence), _) => format!("no answer by the node manager for {} s   ", silence.as_secs()),
            (None, true) => "held   ".to_owned(),
            (None, false) => String::new(),
        };
        format!(
            "{state}{} by {}   every {} s, {} shown   {time}",
            counted(history.newest.slices.len(), "slice"),
            self.order.name(),
            self.interval.as_secs_f64(),
            duration_human(u64::try_from(shown.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    fn parts<'history>(&self, history: &'history History) -> Vec<(&'history SliceUsage, &'history PartUsage)> {
        let slices = &history.newest.slices;
        let mut parts: Vec<_> =
            slices.iter().flat_map(|slice| slice.parts.iter().map(move |part| (slice, part))).collect();
        match self.order {
            Order::Name => {}
            Order::Share => parts.sort_by_key(|(_, part)| Reverse(part.core_used_1s_millipercent)),
            Order::Wait => {
                parts.sort_by_key(|(slice, part)| Reverse(history.waited_permille(&slice.id, &part.device_uuid)));
            }
            Order::Memory => parts.sort_by_key(|(_, part)| Reverse(part.memory_used_bytes)),
        }
        parts
    }

    fn draw_part(
        &self,
        frame: &mut Frame,
        area: Rect,
        history: &History,
        slice: &SliceUsage,
        part: &PartUsage,
        greatest_limit: u64,
    ) {
        let state = format!(" {} ", state(part, history.waited_permille(&slice.id, &part.device_uuid)));
        let title = title(slice, part, area.width.saturating_sub(table::width(&state) as u16));
        let block = Block::new()
            .borders(Borders::TOP)
            .title_top(Line::from(title).style(Style::new().add_modifier(Modifier::BOLD)))
            .title_top(Line::from(state).right_aligned());
        let inside = block.inner(area);
        frame.render_widget(block, area);
        let [chart_area, figures_area] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(inside);
        let count = usize::from(chart::points(chart_area.width));
        let chart = Chart {
            shares: &history.newest_shares(&slice.id, &part.device_uuid, count),
            request: millipercent(part.core_request_percent),
            limit: millipercent(part.core_limit_percent),
            greatest_limit,
            within: self.foreground(Color::Green),
            beyond: self.foreground(Color::Yellow),
        };
        frame.render_widget(chart, chart_area);
        frame.render_widget(Paragraph::new(figures(slice, part, figures_area.width)), figures_area);
    }

    fn foreground(&self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }
}

fn millipercent(percent: u32) -> u64 {
    u64::from(percent) * 1000
}

/// The state of a part in words.
fn state(part: &PartUsage, waited_permille: u64) -> String {
    match (part.waiting, waited_permille.div_ceil(10)) {
        (false, 0) if part.core_used_1s_millipercent == 0 => "idle".to_owned(),
        (false, 0) => "runs".to_owned(),
        (true, 0) => "waits".to_owned(),
        (false, percent) => format!("waited {percent} % of the time"),
        (true, percent) => format!("waits, {percent} % of the time"),
    }
}

/// The title of a part in `width` columns. If containers in the slice are known, they come first, because they say more
/// than the slice's name.
fn title(slice: &SliceUsage, part: &PartUsage, width: u16) -> String {
    let consumers = consumers::summary(slice);
    let slice_name = consumers.as_ref().map(|_| format!(" in {}", printable(&slice.name)));
    let name = consumers.as_deref().unwrap_or(&slice.name);
    let words = [
        format!("{}  {} %", printable(name), millipercent_human(part.core_used_1s_millipercent.into())),
        format!("of {}", short_uuid(&part.device_uuid)),
        format!(" {}", priority::name(slice.priority_class())),
    ];
    let words = words.into_iter().chain(slice_name);
    line_of(words, " ", width.saturating_sub(1)) + " "
}

/// The figures of a part in `width` columns.
fn figures(slice: &SliceUsage, part: &PartUsage, width: u16) -> String {
    let share = |millipercent: u32| millipercent_human(millipercent.into());
    let figures = [
        format!("10 s {} %", share(part.core_used_10s_millipercent)),
        format!("60 s {} %", share(part.core_used_60s_millipercent)),
        format!("wait p99 {}", waits::p99(part)),
        format!("memory {} of {}", bytes_human(part.memory_used_bytes), bytes_human(part.memory_limit_bytes)),
        counted(slice.processes.len(), "process"),
        format!("{} overruns", part.overruns),
        format!("threads throttled {}", duration_human(part.throttled_ns)),
        format!("peak {}", bytes_human(part.memory_peak_bytes)),
        format!("{} refused", part.memory_refused),
    ];
    line_of(figures, "   ", width)
}

/// As many of the words as fit into a line of `width` columns; the most important ones come first.
fn line_of(words: impl IntoIterator<Item = String>, between: &str, width: u16) -> String {
    let mut line = String::new();
    for word in words {
        let gap = if line.is_empty() { " " } else { between };
        if table::width(&line) + gap.len() + table::width(&word) > usize::from(width) {
            break;
        }
        line.push_str(gap);
        line.push_str(&word);
    }
    line
}

/// `count` with the singular or plural of `one`.
fn counted(count: usize, one: &str) -> String {
    match (count, one.ends_with('s')) {
        (1, _) => format!("1 {one}"),
        (count, true) => format!("{count} {one}es"),
        (count, false) => format!("{count} {one}s"),
    }
}

/// The use of a device by all slices together.
struct Total {
    name: String,
    core_used_millipercent: u64,
    core_requested_percent: u64,
    memory_used_bytes: u64,
    memory_given_bytes: u64,
    memory_bytes: u64,
    slices: usize,
}

impl Total {
    /// `None` if no slice has a part of the device.
    fn of(device: &Device, slices: &[SliceUsage]) -> Option<Total> {
        let mut total = Total {
            name: format!("{} {}", device.index, short_uuid(&device.uuid)),
            core_used_millipercent: 0,
            core_requested_percent: 0,
            memory_used_bytes: 0,
            memory_given_bytes: 0,
            memory_bytes: device.memory_bytes,
            slices: 0,
        };
        for part in slices.iter().flat_map(|slice| &slice.parts).filter(|part| part.device_uuid == device.uuid) {
            total.core_used_millipercent += u64::from(part.core_used_1s_millipercent);
            total.core_requested_percent += u64::from(part.core_request_percent);
            total.memory_used_bytes = total.memory_used_bytes.saturating_add(part.memory_used_bytes);
            total.memory_given_bytes = total.memory_given_bytes.saturating_add(part.memory_limit_bytes);
            total.slices += 1;
        }
        (total.slices > 0).then_some(total)
    }

    fn text(&self, width: u16) -> String {
        let words = [
            format!("{} {}", self.name, bar::bar(self.core_used_millipercent, 100_000)),
            format!("{} % used", millipercent_human(self.core_used_millipercent)),
            format!("{} % requested", self.core_requested_percent),
            format!("memory {} used", bytes_human(self.memory_used_bytes)),
            format!("{} given of {}", bytes_human(self.memory_given_bytes), bytes_human(self.memory_bytes)),
            counted(self.slices, "slice"),
        ];
        line_of(words, "   ", width)
    }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::{Consumer, GetUsageResponse, WaitHistogram};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// A slice of 30 to 60 percent that has used `share`, and waits for 700 ms of each second.
    fn slice(name: &str, share: u32, seconds: u64) -> SliceUsage {
        let part = PartUsage {
            device_uuid: "GPU-a110c07a-5130".to_owned(),
            core_request_percent: 30,
            core_limit_percent: 60,
            core_used_1s_millipercent: share,
            memory_limit_bytes: 4 << 30,
            memory_used_bytes: 1 << 30,
            lease_waits: Some(WaitHistogram {
                bounds_ns: vec![5_000_000],
                counts: vec![seconds * 100, 0],
                total_ns: seconds * 700_000_000,
                longest_ns: 4_000_000,
            }),
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
        for (seconds, share) in [0, 30_000, 60_000].into_iter().enumerate() {
            let slices = names.iter().map(|name| slice(name, share, seconds as u64)).collect();
            let time = Some(Timestamp { seconds: seconds as i64, nanos: 0 });
            history.add(GetUsageResponse { slices, time });
        }
        history
    }

    #[test]
    fn a_part_is_drawn_over_time_with_its_request_its_limit_and_how_it_waits() {
        let mut screen = Screen::new(Duration::from_secs(1), false);
        let text = picture(&mut screen, &history(&["train"]), 80, 24);
        for expected in [
            "1 slice by name   every 1 s, 1 min 7 s shown",
            " train  60.0 % of GPU-a110c07a  standard ──",
            "── waits, 70 % of the time ",
            "━━ 60 % limit",
            "┈┈▓ 30 % req.",
            "wait p99 4.0 ms   memory 1 GiB of 4 GiB   0 processes",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn the_usage_of_a_device_is_summed() {
        let mut screen = Screen::new(Duration::from_secs(1), false);
        let device =
            |index, uuid: &str| Device { index, uuid: uuid.to_owned(), memory_bytes: 80 << 30, ..Device::default() };
        screen.devices = vec![device(0, "GPU-a110c07a-5130"), device(1, "GPU-unused")];
        let text = picture(&mut screen, &history(&["train", "serve"]), 110, 24);
        let expected =
            " 0 GPU-a110c07a ▕██████████▏   120.0 % used   60 % requested   memory 2 GiB used   8 GiB given of 80 GiB";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("GPU-unused"), "{text}");
        // On a small screen the slices come first.
        assert!(!picture(&mut screen, &history(&["train"]), 110, 3).contains("requested"));
    }

    #[test]
    fn parts_stand_in_the_order_asked_for() {
        let mut history = History::default();
        let slices = vec![slice("a", 10_000, 0), slice("b", 50_000, 0), slice("c", 30_000, 0)];
        history.add(GetUsageResponse { slices, time: Some(Timestamp { seconds: 0, nanos: 0 }) });
        let mut screen = Screen::new(Duration::from_secs(1), false);
        let order = |screen: &Screen| -> String {
            screen.parts(&history).iter().map(|(slice, _)| slice.name.as_str()).collect()
        };
        assert_eq!(order(&screen), "abc");
        screen.order = screen.order.next();
        assert_eq!((screen.order, order(&screen).as_str()), (Order::Share, "bca"));
        assert_eq!(screen.order.next().next().next(), Order::Name);
    }

    #[test]
    fn a_title_leaves_out_what_does_not_fit() {
        let slice = slice("train", 60_000, 0);
        let title = |width| title(&slice, &slice.parts[0], width);
        assert_eq!(title(41), " train  60.0 % of GPU-a110c07a  standard ");
        assert_eq!(title(40), " train  60.0 % of GPU-a110c07a ");
        assert_eq!(title(30), " train  60.0 % ");
        assert_eq!(title(0), " ");
    }

    #[test]
    fn a_title_names_the_container_if_it_is_known() {
        let consumer = Consumer { namespace: "team".to_owned(), pod: "web-0".to_owned(), container: "main".to_owned() };
        let slice = SliceUsage { consumers: vec![consumer], ..slice("claim-1", 60_000, 0) };
        let title = |width| title(&slice, &slice.parts[0], width);
        assert_eq!(title(80), " team/web-0/main  60.0 % of GPU-a110c07a  standard  in claim-1 ");
        assert_eq!(title(60), " team/web-0/main  60.0 % of GPU-a110c07a  standard ");
    }

    #[test]
    fn outdated_figures_are_marked() {
        let mut screen = Screen::new(Duration::from_secs(1), false);
        screen.silent_for = Some(Duration::from_secs(7));
        let text = picture(&mut screen, &history(&["train"]), 80, 24);
        assert!(text.starts_with("\"no answer by the node manager for 7 s   1 slice by name"), "{text}");
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
    fn any_size_of_terminal_and_no_slices_are_fine() {
        for (width, height) in [(1, 1), (3, 2), (10, 3), (20, 6), (80, 24), (300, 100)] {
            picture(&mut Screen::new(Duration::from_secs(1), true), &history(&["train", "serve"]), width, height);
        }
        let empty = history(&[]);
        assert!(picture(&mut Screen::new(Duration::from_secs(1), true), &empty, 90, 5).contains("aliquot run"));
    }
}
