//! Waiting for what must come: by looking, never by sleeping for as long as it ought to take.

use std::thread;
use std::time::{Duration, Instant};

/// What has not come by then does not come. Machines that run tests are slow and shared, so this is generous.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Looks until `look` finds something. Fails the test if it does not by the [`DEADLINE`]; `what` says what was awaited.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_micros(100);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "still not after {DEADLINE:?}: {what}");
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Looks until `condition` holds. See [`until`].
#[track_caller]
pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// Tries `attempt` a few times, until once it finds what should be, and prints what it finds. What is wrong each time
/// is wrong; once, the machine may have kept a single thread from its processor, and let all others run.
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
