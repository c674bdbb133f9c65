//! `aliquot top`: who uses what, over time.

mod chart;
mod history;
mod screen;

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_proto::node::v1::{GetUsageRequest, GetUsageResponse, WatchUsageRequest};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::args::TopArgs;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::{client, output, ps};
use history::History;
use screen::Screen;

/// How often the keyboard and the stream are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A manager that has ended is started again by systemd, and goes on where it was: for so long that is waited for.
const RESTART_PATIENCE: Duration = Duration::from_secs(30);

/// Between two tries to reach the manager again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// An answer that is later than its interval and this is missed.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Shows it until it is told to end.
pub(crate) fn top(socket: Option<&Path>, args: &TopArgs) -> Result<()> {
    let socket = client::find(socket)?;
    if args.once {
        let slices = args.names.clone();
        let usage = client::runtime()?.block_on(async {
            let mut client = client::connect(&socket).await?;
            Ok::<_, Failure>(client.get_usage(GetUsageRequest { slices }).await?.into_inner())
        })?;
        return output::print(&ps::table(&usage));
    }
    let answers = watch(socket, args.names.clone(), args.interval);
    if args.iterations.is_some() || !stdout().is_terminal() {
        return tables(&answers, args.iterations);
    }
    let mut terminal = ratatui::try_init().map_err(|error| {
        Failure::new(format!("cannot draw on this terminal: {error}")).hint("use aliquot top --once")
    })?;
    let result = pictures(&mut terminal, &answers, args.interval);
    ratatui::restore();
    result
}

/// Prints a table for each answer.
fn tables(answers: &Receiver<Result<GetUsageResponse>>, iterations: Option<u64>) -> Result<()> {
    let mut left = iterations;
    while left != Some(0) {
        let Ok(answer) = answers.recv() else { return Err(gone()) };
        let answer = answer?;
        let time = answer.time.as_ref().map_or_else(String::new, |time| format!("{time}\n"));
        output::print(&format!("{time}{}\n", ps::table(&answer)))?;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Draws until a key ends it.
fn pictures(
    terminal: &mut DefaultTerminal,
    answers: &Receiver<Result<GetUsageResponse>>,
    interval: Duration,
) -> Result<()> {
    let failed = |error: std::io::Error| Failure::new(format!("the terminal fails: {error}"));
    let mut history = History::default();
    let mut screen = Screen::new(interval, output::colours_wanted());
    let mut answered = Instant::now();
    loop {
        match answers.recv_timeout(Duration::ZERO) {
            Ok(answer) => {
                let answer = answer?;
                answered = Instant::now();
                if !screen.held {
                    history.add(answer);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
        }
        screen.is_old = answered.elapsed() > interval + DELAY_MAX;
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

/// Does what a key asks for; whether it asks to end.
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

fn gone() -> Failure {
    Failure::new(format!("the node manager has ended, and there is no other one for {} s", RESTART_PATIENCE.as_secs()))
        .hint("see its log: journalctl -u aliquot-manager")
}

/// Receives the manager's answers on a thread of its own, until the receiver is dropped.
fn watch(socket: PathBuf, slices: Vec<String>, interval: Duration) -> Receiver<Result<GetUsageResponse>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let result = client::runtime().and_then(|runtime| runtime.block_on(stream(&socket, slices, interval, &sender)));
        if let Err(failure) = result {
            // Whoever has stopped to listen does not want to know.
            let _ = sender.send(Err(failure));
        }
    });
    receiver
}

async fn stream(
    socket: &Path,
    slices: Vec<String>,
    interval: Duration,
    sender: &Sender<Result<GetUsageResponse>>,
) -> Result<()> {
    let mut client = client::connect(socket).await?;
    let interval = prost_types::Duration { seconds: interval.as_secs() as i64, nanos: interval.subsec_nanos() as i32 };
    let request = WatchUsageRequest { slices, interval: Some(interval) };
    let mut lost_since = None;
    loop {
        match relay(&mut client, request.clone(), sender, &mut lost_since).await {
            Ok(Relayed::NobodyListens) => return Ok(()),
            // What the manager itself answers has no source; a broken connection has.
            Err(status) if std::error::Error::source(&status).is_none() => return Err(status.into()),
            Ok(Relayed::ManagerEnded) | Err(_) => {}
        }
        if lost_since.get_or_insert_with(Instant::now).elapsed() > RESTART_PATIENCE {
            return Err(gone());
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Why a stream of answers has come to its end.
enum Relayed {
    ManagerEnded,
    NobodyListens,
}

/// Passes the manager's answers on to `sender`; each says that the manager is not lost.
async fn relay(
    client: &mut Client,
    request: WatchUsageRequest,
    sender: &Sender<Result<GetUsageResponse>>,
    lost_since: &mut Option<Instant>,
) -> std::result::Result<Relayed, tonic::Status> {
    let mut answers = client.watch_usage(request).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        *lost_since = None;
        if sender.send(Ok(answer)).is_err() {
            return Ok(Relayed::NobodyListens);
        }
    }
    Ok(Relayed::ManagerEnded)
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
