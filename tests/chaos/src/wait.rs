//! Waits with a deadline. A wait that times out is a violation, not the end of the run.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use aliquot_harness::wait::DEADLINE;
use aliquot_harness::{Outcome, Process};

use crate::verdict::Stuck;

/// Time between two checks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Calls `look` until it returns a value or an error, at most until the deadline.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>, Stuck>) -> Result<T, Stuck> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() >= DEADLINE {
            return Err(Stuck(format!("still not after {DEADLINE:?}: {what}")));
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Runs `command` to its end.
pub(crate) fn run(command: &mut Command) -> Result<Outcome, Stuck> {
    let mut process = Process::start(command);
    let ended = until(&format!("the end of {command:?}"), || Ok(process.has_ended().then_some(())));
    ended.map_err(|Stuck(what)| Stuck(format!("{what}: {}{}", process.output(), process.errors())))?;
    Ok(process.wait())
}
