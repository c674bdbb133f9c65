//! `aliquot ps --since`: the use of slices over time.

use aliquot_proto::node::v1::{GetUsageHistoryRequest, GetUsageHistoryResponse, PartHistory, UsagePoint};
use prost_types::Duration;

use crate::args::PsArgs;
use crate::client::Client;
use crate::error::Result;
use crate::output::{Colour, Look};
use crate::ps::short_uuid;
use crate::quantity::{Span, bytes_human, duration_human, millipercent_human};
use crate::table::{Align, Cell, Table};
use crate::{bar, json, output};

/// Columns of the chart.
const CHART_WIDTH: usize = 30;
/// Maximum points requested for JSON: all of them for a few slices, and never more than an answer can hold.
const JSON_POINTS_MAX: u32 = 120;

/// Prints the use in the last `since`.
pub(crate) async fn print(client: &mut Client, args: &PsArgs, since: Span) -> Result<()> {
    let request = GetUsageHistoryRequest {
        slices: args.names.clone(),
        since: Some(Duration { seconds: since.duration().as_secs() as i64, nanos: 0 }),
        points_max: if args.json { JSON_POINTS_MAX } else { CHART_WIDTH as u32 },
    };
    let history = client.get_usage_history(request).await?.into_inner();
    match args.json {
        true => output::print_json(&json::usage_history(&history)),
        false => output::print(&table(&history, Look::of_stdout())),
    }
}

/// The use of a part in all points together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    length_ns: u64,
    core_used_ns: u64,
    throttled_ns: u64,
    waited_ns: u64,
    memory_peak_bytes: u64,
    memory_refused: u64,
}

impl Sum {
    fn of(points: &[UsagePoint]) -> Sum {
        points.iter().fold(Sum::default(), |sum, point| Sum {
            length_ns: sum.length_ns.saturating_add(point.length_ns),
            core_used_ns: sum.core_used_ns.saturating_add(point.core_used_ns),
            throttled_ns: sum.throttled_ns.saturating_add(point.throttled_ns),
            waited_ns: sum.waited_ns.saturating_add(point.waited_ns),
            memory_peak_bytes: sum.memory_peak_bytes.max(point.memory_peak_bytes),
            memory_refused: sum.memory_refused.saturating_add(point.memory_refused),
        })
    }
}

/// The ratio of `core_used_ns` to `length_ns` in thousandths of a percent.
fn share_millipercent(core_used_ns: u64, length_ns: u64) -> u64 {
    let share = u128::from(core_used_ns) * 100_000 / u128::from(length_ns.max(1));
    share.min(100_000) as u64
}

fn table(history: &GetUsageHistoryResponse, look: Look) -> String {
    if history.slices.is_empty() {
        return "No slices.\n".to_owned();
    }
    let chart_heading = look.bars.then_some(("CORE OVER TIME", Align::Left));
    let mut table = Table::new(
        [
            ("SLICE", Align::Left),
            ("DEVICE", Align::Left),
            ("OVER", Align::Right),
            ("CORE %", Align::Right),
            ("MOST", Align::Right),
            ("REQUEST", Align::Right),
            ("LIMIT", Align::Right),
            ("WAITED", Align::Right),
            ("THROTTLED", Align::Right),
            ("MEMORY PEAK", Align::Right),
            ("LIMIT", Align::Right),
            ("REFUSED", Align::Right),
        ]
        .into_iter()
        .chain(chart_heading),
    );
    for slice in &history.slices {
        for (index, part) in slice.parts.iter().enumerate() {
            let name = if index == 0 { slice.name.clone() } else { String::new() };
            let chart = look.bars.then(|| Cell::coloured(chart(part), Colour::Green));
            table.row(std::iter::once(name.into()).chain(cells(part)).chain(chart));
        }
    }
    table.render_as(look)
}

fn shares(part: &PartHistory) -> impl Iterator<Item = u64> {
    part.points.iter().map(|point| share_millipercent(point.core_used_ns, point.length_ns))
}

fn cells(part: &PartHistory) -> [Cell; 11] {
    let sum = Sum::of(&part.points);
    let most = shares(part).max().unwrap_or(0);
    [
        format!("{} {}", part.device_index, short_uuid(&part.device_uuid)).into(),
        duration_human(sum.length_ns).into(),
        millipercent_human(share_millipercent(sum.core_used_ns, sum.length_ns)).into(),
        millipercent_human(most).into(),
        part.core_request_percent.to_string().into(),
        part.core_limit_percent.to_string().into(),
        duration_human(sum.waited_ns).into(),
        duration_human(sum.throttled_ns).into(),
        bytes_human(sum.memory_peak_bytes).into(),
        bytes_human(part.memory_limit_bytes).into(),
        Cell::coloured(sum.memory_refused.to_string(), (sum.memory_refused > 0).then_some(Colour::Yellow)),
    ]
}

/// A chart with one column for each point; the limit has full height.
fn chart(part: &PartHistory) -> String {
    let limit = u64::from(part.core_limit_percent) * 1000;
    format!("▕{}▏", bar::columns(shares(part), limit))
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::SliceHistory;

    use super::*;

    #[test]
    fn pieces_are_added_up_and_the_greatest_is_told() {
        let point = |core_used_ns, memory_peak_bytes| UsagePoint {
            length_ns: 10_000_000_000,
            core_used_ns,
            throttled_ns: 1_000_000_000,
            waited_ns: 500_000_000,
            memory_peak_bytes,
            memory_refused: 2,
            ..UsagePoint::default()
        };
        let part = PartHistory {
            device_uuid: "GPU-0110c07a-5130".to_owned(),
            core_request_percent: 30,
            core_limit_percent: 60,
            memory_limit_bytes: 4 << 30,
            points: vec![point(0, 1 << 30), point(6_000_000_000, 3 << 30), point(3_000_000_000, 2 << 30)],
            ..PartHistory::default()
        };
        let slice = SliceHistory { name: "train".to_owned(), parts: vec![part], ..SliceHistory::default() };
        let mut history = GetUsageHistoryResponse { slices: vec![slice], ..GetUsageHistoryResponse::default() };
        let text = table(&history, Look::PLAIN);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row.join(" "), "train 0 GPU-0110c07a 30.0 s 30.0 60.0 30 60 1.5 s 3.0 s 3 GiB 4 GiB 6");
        let with_chart = table(&history, Look { colours: false, bars: true, width: None });
        assert!(with_chart.ends_with("▕ █▄▏\n"), "{with_chart}");
        history.slices[0].parts[0].points.clear();
        assert!(table(&history, Look::PLAIN).contains(" 0 s "));
    }
}
