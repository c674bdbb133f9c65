//! The events of the node: as many as a bounded memory holds.
//!
//! Tenants can cause any number of events, by starting processes and by requesting memory beyond their limit. So the
//! event that is dropped first is the oldest one of the slice with the most events; events of its neighbours stay.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

pub(crate) use aliquot_proto::node::v1::EventKind as Kind;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::monotonic_ns;
use crate::inventory::DeviceUuid;
use crate::procfs::CommandLine;

/// Maximum number of events kept.
const KEPT_MAX: usize = 4096;
/// Maximum bytes of an event's text. Command lines and driver messages can be long, and all events must fit into one
/// answer.
const TEXT_BYTES_MAX: usize = 512;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Ascending by 1; 0 until it is recorded.
    pub sequence: u64,
    /// The wall-clock time of the event.
    pub time: SystemTime,
    /// The same moment by the clock that is never set.
    pub monotonic_ns: u64,
    /// The kind of event.
    pub kind: Kind,
    /// The slice that the event is about.
    pub slice: Option<String>,
    /// The device that the event is about.
    pub device: Option<DeviceUuid>,
    /// The pid of the process, in the manager's pid namespace.
    pub pid: Option<u32>,
    /// For people to read.
    pub text: String,
    /// The command line that is the text, as far as it has been read.
    command: Option<CommandLine>,
}

impl Event {
    /// An event that happens now.
    #[must_use]
    pub(crate) fn of(kind: Kind, text: impl Into<String>) -> Event {
        let (text, time, monotonic_ns) = (shortened(text.into()), SystemTime::now(), monotonic_ns());
        Event { sequence: 0, time, monotonic_ns, kind, slice: None, device: None, pid: None, text, command: None }
    }

    /// An event that happens now, and whose text is a command line. Its readers see the line once it has been read.
    #[must_use]
    pub(crate) fn of_command(kind: Kind, command: CommandLine) -> Event {
        Event { command: Some(command), ..Event::of(kind, "") }
    }

    /// The event with the text as it is now.
    fn worded(&self) -> Event {
        let text = self.command.as_ref().map(|command| shortened(command.text().to_owned()));
        Event { text: text.unwrap_or_else(|| self.text.clone()), ..self.clone() }
    }

    /// Adds the slice that the event is about.
    #[must_use]
    pub(crate) fn of_slice(self, name: &str) -> Event {
        Event { slice: Some(name.into()), ..self }
    }

    /// Adds the device that the event is about.
    #[must_use]
    pub(crate) fn of_device(self, uuid: &DeviceUuid) -> Event {
        Event { device: Some(uuid.clone()), ..self }
    }

    /// Adds the process that the event is about.
    #[must_use]
    pub(crate) fn of_process(self, pid: u32) -> Event {
        Event { pid: Some(pid), ..self }
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[derive(Debug, Default)]
struct Kept {
    /// The events, the oldest first.
    events: VecDeque<Event>,
    recorded: u64,
    /// How many events each slice has; events without a slice count under the empty name.
    by_slice: BTreeMap<String, usize>,
}

/// The recent events of this node.
#[derive(Debug)]
pub(crate) struct Events {
    kept: Mutex<Kept>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
}

impl Default for Events {
    fn default() -> Events {
        Events { kept: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl Events {
    /// Records an event, and wakes the readers of streams.
    pub(crate) fn record(&self, event: Event) {
        let mut kept = self.kept.lock();
        kept.recorded += 1;
        let sequence = kept.recorded;
        *kept.by_slice.entry(owner(&event).into()).or_default() += 1;
        kept.events.push_back(Event { sequence, ..event });
        if kept.events.len() > KEPT_MAX {
            kept.drop_one();
        }
        drop(kept);
        // Two events recorded at the same time may get here in reverse order.
        self.newest.send_if_modified(|newest| {
            let is_newer = sequence > *newest;
            *newest = (*newest).max(sequence);
            is_newer
        });
    }

    /// The events with a number greater than `sequence`, the oldest first: at most `count_max`.
    #[must_use]
    pub(crate) fn after(&self, sequence: u64, count_max: usize) -> Vec<Event> {
        let kept = self.kept.lock();
        let first = kept.events.partition_point(|event| event.sequence <= sequence);
        kept.events.range(first..).take(count_max).map(Event::worded).collect()
    }

    /// The number of the last event that happened `age` ago or earlier.
    #[must_use]
    pub(crate) fn last_before(&self, age: Duration) -> u64 {
        let since_ns = monotonic_ns().saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        let kept = self.kept.lock();
        let first = kept.events.iter().find(|event| event.monotonic_ns > since_ns);
        first.map_or(kept.recorded, |event| event.sequence - 1)
    }

    /// The number of the newest event, updated with each new one.
    #[must_use]
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }
}

/// The slice that the event is about; empty if there is none.
fn owner(event: &Event) -> &str {
    event.slice.as_deref().unwrap_or_default()
}

impl Kept {
    fn drop_one(&mut self) {
        let Some((most, _)) = self.by_slice.iter().max_by_key(|(_, count)| **count) else { return };
        let most = most.clone();
        let Some(oldest) = self.events.iter().position(|event| owner(event) == most) else { return };
        self.events.remove(oldest);
        if let Some(count) = self.by_slice.get_mut(&most) {
            *count -= 1;
            if *count == 0 {
                self.by_slice.remove(&most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(slice: &str) -> Event {
        Event::of(Kind::ProcessAttached, "python").of_slice(slice)
    }

    fn sequences(events: &Events) -> Vec<u64> {
        events.after(0, usize::MAX).iter().map(|event| event.sequence).collect()
    }

    #[test]
    fn events_are_numbered_from_one_and_read_after_a_number() {
        let events = Events::default();
        let newest = events.newest();
        for _ in 0..5 {
            events.record(attached("a"));
        }
        assert_eq!(sequences(&events), [1, 2, 3, 4, 5]);
        assert_eq!(*newest.borrow(), 5);
        let numbers = |events: Vec<Event>| events.iter().map(|event| event.sequence).collect::<Vec<_>>();
        assert_eq!(numbers(events.after(3, 10)), [4, 5]);
        assert_eq!(numbers(events.after(1, 2)), [2, 3]);
        assert!(events.after(5, 10).is_empty() && events.after(u64::MAX, 10).is_empty());
    }

    #[test]
    fn a_noisy_slice_pushes_out_its_own_events_only() {
        let events = Events::default();
        events.record(Event::of(Kind::SliceMade, "was made").of_slice("quiet"));
        events.record(Event::of(Kind::DeviceUnhealthy, "is unhealthy").of_device(&DeviceUuid::new("GPU-0")));
        for _ in 0..3 * KEPT_MAX {
            events.record(attached("noisy"));
        }
        let kept = sequences(&events);
        assert_eq!(kept.len(), KEPT_MAX);
        assert_eq!(kept[..2], [1, 2]);
        // The newest events of the noisy slice, without a gap.
        let newest = 2 + 3 * KEPT_MAX as u64;
        assert_eq!(kept[2..], (newest - KEPT_MAX as u64 + 3..=newest).collect::<Vec<_>>());
    }

    #[test]
    fn the_memory_is_bounded() {
        let events = Events::default();
        for number in 0..KEPT_MAX + 100 {
            events.record(
                Event::of(Kind::ProcessAttached, format!("x{}", "ä".repeat(100_000))).of_slice(&format!("s{number}")),
            );
        }
        let kept = events.kept.lock();
        assert_eq!((kept.events.len(), kept.by_slice.len()), (KEPT_MAX, KEPT_MAX));
        assert!(kept.events.iter().all(|event| event.text.len() <= TEXT_BYTES_MAX + '…'.len_utf8()));
    }

    #[test]
    fn events_older_than_an_age_come_before_its_number() {
        let events = Events::default();
        assert_eq!(events.last_before(Duration::ZERO), 0);
        events.record(Event { monotonic_ns: 0, ..attached("a") });
        events.record(attached("a"));
        assert_eq!(events.last_before(Duration::ZERO), 2);
        assert_eq!(events.last_before(Duration::MAX), 1);
        assert_eq!(events.last_before(Duration::from_nanos(monotonic_ns() / 2)), 1);
    }
}
