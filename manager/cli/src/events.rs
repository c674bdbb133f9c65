//! `aliquot events`: the events of this node.

use std::path::Path;
use std::time::Instant;

use aliquot_proto::node::v1::{Event, EventKind, GetNodeRequest, ListEventsRequest, WatchEventsRequest};
use prost_types::{Duration, Timestamp};
use tonic::Status;

use crate::args::EventsArgs;
use crate::client::{self, Client};
use crate::error::Result;
use crate::output::{Colour, Reader, paint};
use crate::ps::short_uuid;
use crate::server::NODE_MANAGER;
use crate::table::printable;
use crate::{json, moment, output};

/// Time between two checks that output is still read.
const READER_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// Columns of an event's kind.
const KIND_WIDTH: usize = "device_unhealthy".len();

/// Prints past events, and new ones if requested.
pub(crate) async fn events(socket: Option<&Path>, args: &EventsArgs) -> Result<()> {
    let socket = client::find(socket)?;
    let mut client = client::connect(&socket).await?;
    let mut printer = Printer { args, colours: output::stdout_has_colours(), told: 0, has_begun: false };
    if args.follow {
        return follow(&socket, client, &mut printer).await;
    }
    let events = client.list_events(ListEventsRequest { since: since(args) }).await?.into_inner().events;
    let mut text = String::new();
    for event in &events {
        text.push_str(&printer.text(event));
    }
    if text.is_empty() {
        output::say(format_args!("No events{}.", if args.names.is_empty() { "" } else { " of these slices" }));
    }
    output::print(&text)
}

fn since(args: &EventsArgs) -> Option<Duration> {
    args.since.map(|since| Duration { seconds: since.duration().as_secs() as i64, nanos: 0 })
}

/// Prints until the reader is gone. If the manager is restarted, waits for the new one.
async fn follow(socket: &Path, mut client: Client, printer: &mut Printer<'_>) -> Result<()> {
    let (mut run, mut lost_since): (Option<Timestamp>, _) = (None, None);
    loop {
        match relay(&mut client, printer, &mut run, &mut lost_since).await {
            Ok(Ok(Reader::Gone)) => return Ok(()),
            Ok(Err(failure)) => return Err(failure),
            // An answer of the manager has no source; a broken connection has one.
            Err(status) if std::error::Error::source(&status).is_none() => return Err(status.into()),
            Ok(Ok(Reader::Reads)) | Err(_) => {}
        }
        if lost_since.get_or_insert_with(Instant::now).elapsed() > client::RESTART_PATIENCE {
            return Err(client::gone(&NODE_MANAGER));
        }
        tokio::time::sleep(client::RETRY_INTERVAL).await;
        if let Ok(again) = client::connect(socket).await {
            client = again;
        }
    }
}

/// Prints the manager's events, from where an earlier stream ended, until this stream ends.
async fn relay(
    client: &mut Client,
    printer: &mut Printer<'_>,
    run: &mut Option<Timestamp>,
    lost_since: &mut Option<Instant>,
) -> std::result::Result<Result<Reader>, Status> {
    let started = client.get_node(GetNodeRequest {}).await?.into_inner().manager_started;
    if *run != started {
        // A new manager counts from 1 again.
        (*run, printer.told) = (started, 0);
    }
    let since = since(printer.args).filter(|_| !printer.has_begun);
    let request = WatchEventsRequest { since, after_sequence: printer.told };
    let mut events = client.watch_events(request).await?.into_inner();
    loop {
        // The reader may go away between two events.
        let event = match tokio::time::timeout(READER_INTERVAL, events.message()).await {
            Ok(event) => event?,
            Err(_) if output::has_no_reader() => return Ok(Ok(Reader::Gone)),
            Err(_) => continue,
        };
        let Some(event) = event else { return Ok(Ok(Reader::Reads)) };
        *lost_since = None;
        match output::print_to_reader(&printer.text(&event)) {
            Ok(Reader::Reads) => {}
            other => return Ok(other),
        }
    }
}

/// Formats consecutive events, with notes about missing ones.
struct Printer<'args> {
    args: &'args EventsArgs,
    colours: bool,
    /// The number of the previous event; 0 if there was none.
    told: u64,
    /// An event was received, of this manager or of an earlier one.
    has_begun: bool,
}

impl Printer<'_> {
    /// The lines about an event; none if it was not requested.
    fn text(&mut self, event: &Event) -> String {
        let missing = event.sequence.saturating_sub(self.told + 1);
        let is_gap = self.told > 0 && missing > 0;
        self.told = event.sequence;
        self.has_begun = true;
        let wanted = self.args.names.is_empty() || self.args.names.contains(&event.slice);
        if self.args.json {
            return if wanted { format!("{}\n", json::event(event)) } else { String::new() };
        }
        let mut text = String::new();
        if is_gap {
            text.push_str(&format!("… {missing} events are not kept any more\n"));
        }
        if wanted {
            text.push_str(&line(event, self.colours));
        }
        text
    }
}

fn line(event: &Event, colours: bool) -> String {
    let kind = json::event_kind(event);
    let padding = " ".repeat(KIND_WIDTH.saturating_sub(kind.len()));
    let kind = colour(event.kind()).map_or(kind.clone(), |colour| paint(&kind, colour, colours));
    let pid = if event.pid == 0 { String::new() } else { event.pid.to_string() };
    let subject: Vec<&str> = [event.slice.as_str(), short_uuid(&event.device_uuid), &pid]
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect();
    let subject = if subject.is_empty() { String::new() } else { format!("{}: ", subject.join(" ")) };
    let time = moment::human(event.time.as_ref());
    format!("{time}  {kind}{padding}  {}\n", printable(&format!("{subject}{}", event.message)))
}

fn colour(kind: EventKind) -> Option<Colour> {
    match kind {
        EventKind::SliceDamaged
        | EventKind::ProcessStopped
        | EventKind::DeviceGone
        | EventKind::DeviceUnhealthy
        | EventKind::DriverSilent => Some(Colour::Red),
        EventKind::MemoryRefused | EventKind::AuditFinding => Some(Colour::Yellow),
        EventKind::DeviceRecovered | EventKind::DriverAnswers => Some(Colour::Green),
        EventKind::Unspecified
        | EventKind::ManagerStarted
        | EventKind::SliceMade
        | EventKind::SliceChanged
        | EventKind::SliceRemoved
        | EventKind::SliceTakenOver
        | EventKind::ProcessAttached
        | EventKind::ProcessEnded
        | EventKind::DeviceFound => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64, slice: &str) -> Event {
        Event {
            sequence,
            time: Some(Timestamp { seconds: 0, nanos: 5 }),
            kind: EventKind::ProcessAttached.into(),
            slice: slice.to_owned(),
            pid: 7,
            message: "python\u{1b}[2J".to_owned(),
            ..Event::default()
        }
    }

    fn args(names: &[&str], json: bool) -> EventsArgs {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        EventsArgs { names, follow: false, since: None, json }
    }

    #[test]
    fn an_event_is_a_line_that_steers_no_terminal() {
        let args = args(&[], false);
        let mut printer = Printer { args: &args, colours: false, told: 0, has_begun: false };
        assert_eq!(printer.text(&event(9, "train")), "1970-01-01 00:00:00Z  process_attached  train 7: python?[2J\n");
        let device = Event { kind: EventKind::DriverSilent.into(), pid: 0, ..event(10, "") };
        assert_eq!(printer.text(&device), "1970-01-01 00:00:00Z  driver_silent     python?[2J\n");
        printer.colours = true;
        assert!(printer.text(&Event { sequence: 11, ..device }).contains("\u{1b}[31mdriver_silent\u{1b}[0m     "));
    }

    #[test]
    fn lost_events_are_reported_even_for_a_single_slice() {
        let args = args(&["train"], false);
        let mut printer = Printer { args: &args, colours: false, told: 0, has_begun: false };
        assert!(printer.text(&event(5, "train")).starts_with("1970"));
        assert_eq!(printer.text(&event(6, "other")), "");
        let text = printer.text(&event(10, "train"));
        assert!(text.starts_with("… 3 events are not kept any more\n1970"), "{text}");
    }

    #[test]
    fn json_is_an_object_a_line() {
        let args = args(&[], true);
        let mut printer = Printer { args: &args, colours: true, told: 1, has_begun: true };
        let text = printer.text(&event(5, "train"));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["kind"], &value["sequence"], &value["pid"]),
            (&"process_attached".into(), &5.into(), &7.into())
        );
        assert_eq!(text.matches('\n').count(), 1);
    }
}
