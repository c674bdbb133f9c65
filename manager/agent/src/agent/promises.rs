//! The promises that the node never takes back, in a file: the number of its session, and the commands that it has
//! handled.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files;
use crate::instance::Number;

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Kept {
    session: u64,
    handled: Number,
    /// The greatest term of the messages received so far.
    term: u64,
}

/// The promises. Each change is durable before its effect can be seen.
pub(super) struct Promises {
    path: PathBuf,
    kept: Kept,
}

impl Promises {
    /// Reads the promises of earlier agents, and begins a new session: messages are numbered anew, and earlier messages
    /// to an agent mean nothing. Jobs run on in the new session.
    pub(super) fn open(path: &Path) -> io::Result<Promises> {
        // The messages of a node that was set up anew must not be taken for old messages of the former node. So its
        // sessions are numbered from the time in milliseconds, which is greater than any number of sessions.
        let kept: Kept =
            files::read_json(path)?.unwrap_or_else(|| Kept { session: crate::clock::unix_ms(), ..Kept::default() });
        let mut promises = Promises { path: path.to_owned(), kept };
        promises.next_session()?;
        Ok(promises)
    }

    fn keep(&mut self, kept: Kept) -> io::Result<()> {
        files::write_json(&self.path, &kept)?;
        self.kept = kept;
        Ok(())
    }

    pub(super) fn session(&self) -> u64 {
        self.kept.session
    }

    pub(super) fn handled(&self) -> Number {
        self.kept.handled
    }

    /// Begins a new session.
    pub(super) fn next_session(&mut self) -> io::Result<()> {
        self.keep(Kept { session: self.kept.session + 1, ..self.kept })
    }

    /// Notes that the command of this generation was handled, and with it all earlier ones.
    pub(super) fn handle(&mut self, number: Number) -> io::Result<()> {
        if number <= self.kept.handled {
            return Ok(());
        }
        self.keep(Kept { handled: number, term: self.kept.term.max(number.0), ..self.kept })
    }

    /// Notes that a message of this term has arrived. Returns whether no message of a greater term has.
    pub(super) fn hear(&mut self, term: u64) -> bool {
        if term > self.kept.term {
            let heard = Kept { term, ..self.kept };
            // If the term cannot be written, it still holds as long as this agent lives.
            if self.keep(heard).is_err() {
                self.kept = heard;
            }
        }
        term == self.kept.term
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_handled_outlives_the_agent_and_the_session_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("promises.json");
        let mut promises = Promises::open(&path).unwrap();
        let first = promises.session();
        assert!(first > 1_700_000_000_000, "a node that was set up anew comes after the one before");
        assert_eq!(promises.handled(), (0, 0));
        promises.handle((1, 7)).unwrap();
        promises.handle((1, 5)).unwrap();
        assert!(promises.hear(1) && promises.hear(3) && !promises.hear(2));
        let mut promises = Promises::open(&path).unwrap();
        assert_eq!((promises.session(), promises.handled()), (first + 1, (1, 7)));
        assert!(promises.hear(3) && !promises.hear(2));
    }

    #[test]
    fn what_cannot_be_kept_is_not_promised() {
        let dir = tempfile::tempdir().unwrap();
        let mut promises = Promises::open(&dir.path().join("promises.json")).unwrap();
        drop(dir);
        assert!(promises.handle((1, 7)).is_err());
        assert_eq!(promises.handled(), (0, 0));
    }
}
