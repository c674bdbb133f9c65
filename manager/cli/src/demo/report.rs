//! The report of the demonstration, for people and for programs.

use serde_json::{Value, json};

use super::checks::{Check, Together, Topic};
use super::stage::{Sharer, Shown, share_millipercent};
use crate::output::{Colour, Look, paint};
use crate::quantity::{bytes_human, millipercent_human};
use crate::table::{Align, Table};

/// The table, the promises and the verdict.
pub(super) fn text(shown: &Shown, checks: &[Check], colours: bool) -> String {
    let mut table = Table::new([
        ("SLICE", Align::Left),
        ("CORE ASKED", Align::Right),
        ("MEASURED", Align::Right),
        ("MANAGER", Align::Right),
        ("MEMORY LIMIT", Align::Right),
        ("GIVEN", Align::Right),
        ("THEN", Align::Left),
    ]);
    for sharer in &shown.sharers {
        table.row([
            sharer.cast.name.to_owned(),
            format!("{} %", sharer.cast.core_percent),
            percent(sharer.kernel_ns, sharer.window_ns),
            percent(sharer.charged_ns, sharer.charged_window_ns),
            bytes_human(sharer.cast.memory_bytes),
            bytes_human(sharer.filled.allocated_bytes),
            sharer.filled.refusal.clone(),
        ]);
    }
    let third = &shown.third;
    table.row([
        third.cast.name.to_owned(),
        format!("{} %", third.cast.core_percent),
        "-".to_owned(),
        "-".to_owned(),
        bytes_human(third.cast.memory_bytes),
        bytes_human(third.filled.allocated_bytes),
        third.filled.refusal.clone(),
    ]);
    let mut text = format!("\n{}\n", table.render_as(Look { bars: false, width: None, colours }));
    let mut say = |word: &str, colour, what: &str| text.push_str(&format!("{} {what}\n", paint(word, colour, colours)));
    for topic in Topic::ALL {
        let mut failed = checks.iter().filter(|check| check.topic == topic && !check.holds).peekable();
        if failed.peek().is_none() {
            say("ok  ", Colour::Green, topic.kept());
        }
        failed.for_each(|check| say("FAIL", Colour::Red, &check.text));
    }
    let together = Together::of(&shown.sharers);
    if together.kept_it_busy() && !together.used_it_fully() {
        checks.iter().take(1).for_each(|check| say("note", Colour::Yellow, &check.text));
    }
    let failed = checks.iter().filter(|check| !check.holds).count();
    let (verdict, colour) = match failed {
        0 => ("It holds: each program had its share, and memory up to its limit.".to_owned(), Colour::Green),
        failed if !Together::of(&shown.sharers).kept_it_busy() => {
            (format!("This machine was too busy to tell: {failed} of {} checks failed.", checks.len()), Colour::Red)
        }
        failed => (format!("It does not hold: {failed} of {} checks failed.", checks.len()), Colour::Red),
    };
    text.push_str(&paint(&format!("\n{verdict}\n"), colour, colours));
    text
}

fn percent(used_ns: u64, window_ns: u64) -> String {
    format!("{} %", millipercent_human(share_millipercent(used_ns, window_ns)))
}

/// The same report as JSON, with exact figures.
pub(super) fn json(shown: &Shown, checks: &[Check], simulated: bool) -> Value {
    let sharer = |sharer: &Sharer| {
        json!({
            "name": sharer.cast.name,
            "core_requested_percent": sharer.cast.core_percent,
            "core_measured_millipercent": share_millipercent(sharer.kernel_ns, sharer.window_ns),
            "core_charged_millipercent": share_millipercent(sharer.charged_ns, sharer.charged_window_ns),
            "memory_limit_bytes": sharer.cast.memory_bytes,
            "memory_given_bytes": sharer.filled.allocated_bytes,
            "memory_used_bytes": sharer.usage.memory_used_bytes,
            "memory_overhead_bytes": sharer.usage.memory_overhead_bytes,
            "memory_refusal": sharer.filled.refusal,
        })
    };
    let third = &shown.third;
    json!({
        "device": { "uuid": shown.device.uuid, "model": shown.device.model, "simulated": simulated },
        "seconds": shown.seconds,
        "sharers": shown.sharers.iter().map(sharer).collect::<Vec<_>>(),
        "third": {
            "name": third.cast.name,
            "memory_limit_bytes": third.cast.memory_bytes,
            "memory_seen_bytes": third.seen_total_bytes,
            "memory_asked_at_once_bytes": third.grab_bytes,
            "memory_refusal": third.grab_refusal,
            "memory_given_bytes": third.filled.allocated_bytes,
            "memory_used_bytes": third.usage.memory_used_bytes,
            "memory_overhead_bytes": third.usage.memory_overhead_bytes,
        },
        "fourth_slice_refusal": shown.fourth_refusal,
        "kept_device_busy": Together::of(&shown.sharers).kept_it_busy(),
        "checks": checks.iter().map(|check| json!({ "text": check.text, "holds": check.holds })).collect::<Vec<_>>(),
        "holds": checks.iter().all(|check| check.holds),
    })
}
