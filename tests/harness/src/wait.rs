//! Waits for a condition by checking it repeatedly, never by sleeping for the time that it should take.

use std::thread;
use std::time::{Duration, Instant};

/// The longest wait. It is generous, because machines that run tests are slow and shared.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// The longest pause after a look that took long.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Calls `look` until it returns a value. Fails the test if there is none by the [`DEADLINE`]; `what` names the awaited
/// event. Pauses as long as the look took: a look that runs programs or asks an API server takes the machine's time
/// from those for whom the test waits.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_micros(100);
    loop {
        let looked = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "still not after {DEADLINE:?}: {what}");
        thread::sleep(pause.max(looked.elapsed().min(LONGEST_PAUSE)));
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Waits until `condition` holds. See [`until`].
#[track_caller]
pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// Repeats `attempt` a few times until it succeeds once, and prints each result. A single failure may mean that the
/// machine kept one thread from its processor while all others ran; a failure of every attempt is a real one.
#[track_caller]
pub fn in_one_of_a_few(mut attempt: impl FnMut() -> Result<String, String>) {
    const ATTEMPTS: usize = 4;
    for number in 1..=ATTEMPTS {
        match attempt() {
            Ok(found) => return println!("{found}"),
            Err(found) if number == ATTEMPTS => panic!("{found}"),
            Err(found) => println!("{found}"),
        }
    }
}
