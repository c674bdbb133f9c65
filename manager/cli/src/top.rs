//! `aliquot top`: the slices and their use over time.

mod chart;
mod history;
mod screen;

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_proto::node::v1::{Device, GetNodeRequest, GetUsageRequest, GetUsageResponse, WatchUsageRequest};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::args::TopArgs;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::output::{Look, Reader};
use crate::server::NODE_MANAGER;
use crate::{client, deadline, json, moment, output, ps};
use history::History;
use screen::Screen;

/// Time between two checks of the keyboard and the stream.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// An answer counts as missing when it is later than its interval plus this.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Shows the use of slices until a key or the reader ends it.
pub(crate) fn top(socket: Option<&Path>, args: &TopArgs) -> Result<()> {
    let socket = client::find(socket)?;
    if args.once {
        let slices = args.names.clone();
        let usage = client::runtime()?.block_on(async {
            let mut client = client::connect(&socket).await?;
            Ok::<_, Failure>(client.get_usage(GetUsageRequest { slices }).await?.into_inner())
        })?;
        return match args.json {
            true => output::print(&json_line(&usage)),
            false => output::print(&ps::table(&usage, Look::of_stdout())),
        };
    }
    let draws = args.iterations.is_none() && !args.json && stdout().is_terminal();
    let watched = Watched { socket, slices: args.names.clone(), interval: args.interval, outlives_silence: draws };
    let answers = watch(watched);
    if !draws {
        return tables(&answers, args.iterations, args.json);
    }
    let mut terminal = ratatui::try_init().map_err(|error| {
        Failure::new(format!("cannot draw on this terminal: {error}")).hint("use aliquot top --once")
    })?;
    let result = pictures(&mut terminal, &answers, args.interval);
    ratatui::restore();
    result
}

/// An answer of the manager.
enum Said {
    /// The devices, after each connection.
    Devices(Vec<Device>),
    /// The use of slices, at each interval.
    Usage(GetUsageResponse),
}

/// Prints a table, or a line with a JSON object, for each answer.
fn tables(answers: &Receiver<Result<Said>>, iterations: Option<u64>, json: bool) -> Result<()> {
    let mut left = iterations;
    while left != Some(0) {
        let Ok(answer) = answers.recv() else { return Err(client::gone(&NODE_MANAGER)) };
        let Said::Usage(answer) = answer? else { continue };
        let text = match json {
            true => json_line(&answer),
            false => format!("{}\n{}\n", moment::human(answer.time.as_ref()), ps::table(&answer, Look::of_stdout())),
        };
        if output::print_to_reader(&text)? == Reader::Gone {
            return Ok(());
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn json_line(answer: &GetUsageResponse) -> String {
    format!("{}\n", json::usage(answer))
}

/// Draws until a key ends it.
fn pictures(terminal: &mut DefaultTerminal, answers: &Receiver<Result<Said>>, interval: Duration) -> Result<()> {
    let failed = |error: std::io::Error| Failure::new(format!("the terminal fails: {error}"));
    let mut history = History::default();
    let mut screen = Screen::new(interval, output::colours_wanted());
    let mut answered = Instant::now();
    loop {
        match answers.recv_timeout(Duration::ZERO) {
            Ok(answer) => match answer? {
                Said::Devices(devices) => screen.devices = devices,
                Said::Usage(usage) => {
                    answered = Instant::now();
                    if !screen.held {
                        history.add(usage);
                    }
                }
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(client::gone(&NODE_MANAGER)),
        }
        screen.silent_for = Some(answered.elapsed()).filter(|silence| *silence > interval + DELAY_MAX);
        terminal.draw(|frame| screen.draw(frame, &history)).map_err(failed)?;
        if event::poll(LOOK_INTERVAL).map_err(failed)?
            && let Event::Key(key) = event::read().map_err(failed)?
            && key.kind == KeyEventKind::Press
            && screen_ends_with(&mut screen, key)
        {
            return Ok(());
        }
    }
}

/// Handles a key. Returns whether it ends the display.
fn screen_ends_with(screen: &mut Screen, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('p' | ' ') => screen.held = !screen.held,
        KeyCode::Char('s') => screen.order = screen.order.next(),
        KeyCode::Up | KeyCode::Char('k') => screen.first = screen.first.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => screen.first = screen.first.saturating_add(1),
        _ => {}
    }
    false
}

/// The request of the watching thread, and its options.
struct Watched {
    socket: PathBuf,
    slices: Vec<String>,
    interval: Duration,
    /// Whether to go on when the manager is silent: the screen shows that its picture is old, and the manager may
    /// answer again.
    outlives_silence: bool,
}

/// Receives the manager's answers on a separate thread, until the receiver is dropped.
fn watch(watched: Watched) -> Receiver<Result<Said>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let result = client::runtime().and_then(|runtime| runtime.block_on(stream(&watched, &sender)));
        if let Err(failure) = result {
            // If this fails, the receiver is gone and needs no failure.
            let _ = sender.send(Err(failure));
        }
    });
    receiver
}

async fn stream(watched: &Watched, sender: &Sender<Result<Said>>) -> Result<()> {
    let mut client = client::connect(&watched.socket).await?;
    let mut lost_since = None;
    loop {
        let failure = match relay(&mut client, watched, sender, &mut lost_since).await {
            Ok(Relayed::NobodyListens) => return Ok(()),
            Ok(Relayed::ManagerEnded) => client::gone(&NODE_MANAGER),
            // An answer of the manager has no source; a broken connection has one.
            Err(status) if std::error::Error::source(&status).is_some() => client::gone(&NODE_MANAGER),
            Err(status) => match deadline::failure(&status) {
                Some(failure) if watched.outlives_silence && lost_since.is_some() => failure,
                Some(failure) => return Err(failure),
                None => return Err(status.into()),
            },
        };
        if lost_since.get_or_insert_with(Instant::now).elapsed() > client::RESTART_PATIENCE {
            return Err(failure);
        }
        tokio::time::sleep(client::RETRY_INTERVAL).await;
    }
}

/// The reason why a stream of answers has ended.
enum Relayed {
    ManagerEnded,
    NobodyListens,
}

/// Passes the manager's answers on to `sender`. Each answer shows that the manager is alive.
async fn relay(
    client: &mut Client,
    watched: &Watched,
    sender: &Sender<Result<Said>>,
    lost_since: &mut Option<Instant>,
) -> std::result::Result<Relayed, tonic::Status> {
    // Sums over a device need all of its slices.
    if watched.slices.is_empty() {
        let node = client.get_node(GetNodeRequest {}).await?.into_inner();
        if sender.send(Ok(Said::Devices(node.devices))).is_err() {
            return Ok(Relayed::NobodyListens);
        }
    }
    let Watched { slices, interval, .. } = watched;
    let interval = prost_types::Duration { seconds: interval.as_secs() as i64, nanos: interval.subsec_nanos() as i32 };
    let request = WatchUsageRequest { slices: slices.clone(), interval: Some(interval) };
    let mut answers = client.watch_usage(request).await?.into_inner();
    let limit = watched.interval + deadline::of_question();
    loop {
        let answer = match watched.outlives_silence {
            true => answers.message().await?,
            false => tokio::time::timeout(limit, answers.message())
                .await
                .map_err(|_| deadline::silent_stream(&NODE_MANAGER, &watched.socket, limit))??,
        };
        let Some(answer) = answer else { return Ok(Relayed::ManagerEnded) };
        *lost_since = None;
        if sender.send(Ok(Said::Usage(answer))).is_err() {
            return Ok(Relayed::NobodyListens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::screen::Order;

    #[test]
    fn keys() {
        let mut screen = Screen::new(Duration::from_secs(1), false);
        let mut press = |code| screen_ends_with(&mut screen, KeyEvent::new(code, KeyModifiers::NONE));
        assert!(press(KeyCode::Char('q')) && press(KeyCode::Esc));
        assert!(!press(KeyCode::Char('p')) && !press(KeyCode::Down) && !press(KeyCode::Down) && !press(KeyCode::Up));
        assert!(!press(KeyCode::Char('s')));
        assert_eq!((screen.held, screen.first, screen.order), (true, 1, Order::Share));
        assert!(screen_ends_with(&mut screen, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
