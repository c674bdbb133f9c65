//! The command line of a process.
//!
//! The kernel reads a command line from the process's own memory, and waits for its pages as the process would. It
//! waits for ever if a page belongs to a file whose file system does not answer, and a process in a container can
//! arrange that. So a separate thread reads the command line, and the manager waits only briefly. The short name is the
//! kernel's own and always available.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Maximum characters kept of a command line.
const CHARS_MAX: usize = 256;
/// Maximum bytes read of a command line.
const BYTES_MAX: u64 = 4096;
/// How long the caller waits for a command line.
const PATIENCE: Duration = Duration::from_millis(200);
/// Maximum threads that wait for command lines. Each of them has delayed a caller by [`PATIENCE`] once.
const PENDING_MAX: usize = 8;

/// The processes whose command lines are being read, each by a single thread, however often they are requested.
static PENDING: Pending = Pending(Mutex::new(BTreeSet::new()));

/// The command line of a process, or its name until it has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// The name in brackets; empty if the process was gone.
    name: String,
    /// Empty until the line has been read; `None` if the process has no command line.
    line: Arc<OnceLock<Option<String>>>,
}

impl CommandLine {
    /// The command line once it has been read, until then the name in brackets; empty if the process was gone.
    #[must_use]
    pub(crate) fn text(&self) -> &str {
        self.line.get().and_then(Option::as_deref).unwrap_or(&self.name)
    }
}

/// Reads the command line of a process. Waits for a short while; a line that comes later is visible from then on.
#[must_use]
pub(crate) fn command(pid: u32) -> CommandLine {
    let name = fs::read(format!("/proc/{pid}/comm")).ok();
    let name = name.and_then(|name| Some(format!("[{}]", readable(name.trim_ascii_end())?))).unwrap_or_default();
    let line = PENDING.ask(pid, move || {
        let mut line = Vec::new();
        let file = File::open(format!("/proc/{pid}/cmdline"));
        // Bytes that were read before an error count.
        let _ = file.and_then(|file| file.take(BYTES_MAX).read_to_end(&mut line));
        readable(&line)
    });
    CommandLine { name, line }
}

/// The words of `line`, made safe for terminals and logs, because the process in the container chose them. `None` if
/// there are none.
fn readable(line: &[u8]) -> Option<String> {
    let words: Vec<_> =
        line.split(|&byte| byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    let text = words.join(" ");
    let letter = |letter: char| if letter.is_control() { ' ' } else { letter };
    (!text.is_empty()).then(|| text.chars().map(letter).take(CHARS_MAX).collect())
}

/// The processes for which a read is under way that may never end.
struct Pending(Mutex<BTreeSet<u32>>);

impl Pending {
    /// Runs `read` for the process `pid` on a thread, and waits a short while for the result. Starts nothing if a read
    /// for the process is under way already, or if too many others are.
    fn ask<T: Send + Sync + 'static>(
        &'static self,
        pid: u32,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Arc<OnceLock<T>> {
        let answer = Arc::new(OnceLock::new());
        {
            let mut pending = self.0.lock();
            if pending.len() >= PENDING_MAX || !pending.insert(pid) {
                return answer;
            }
        }
        let (done, is_done) = mpsc::sync_channel(1);
        let late = Arc::clone(&answer);
        let reader = thread::Builder::new().name("cmdline".into()).spawn(move || {
            // Only this thread sets the value.
            let _ = late.set(read());
            self.0.lock().remove(&pid);
            // The caller may have given up waiting.
            let _ = done.send(());
        });
        if reader.is_err() {
            self.0.lock().remove(&pid);
            return answer;
        }
        // After the timeout the result comes later, or never.
        let _ = is_done.recv_timeout(PATIENCE);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_one_line_of_text() {
        assert_eq!(readable(b"python\0\0train\xff.py\0-c\0a\nb\0").as_deref(), Some("python train\u{fffd}.py -c a b"));
        assert_eq!(readable(b"\0"), None);
        assert_eq!(readable(&[b'x'; 1000]).unwrap().len(), CHARS_MAX);
        let own = command(std::process::id());
        assert!(own.name.starts_with('[') && own.name.ends_with(']'), "{own:?}");
        while own.line.get().is_none() {
            thread::yield_now();
        }
        assert!(own.text().contains("/aliquot_manager-"), "{own:?}");
        assert_eq!(command(u32::MAX).text(), "");
    }

    #[test]
    fn reads_that_hang_block_no_caller_and_late_answers_are_kept() {
        static PENDING: Pending = Pending(Mutex::new(BTreeSet::new()));
        let mut waited_for = Vec::new();
        let (asked, asked_for) = mpsc::channel();
        for pid in 0..PENDING_MAX as u32 {
            let (hang, hung) = mpsc::channel::<()>();
            let answer = PENDING.ask(pid, move || hung.recv().is_err());
            assert_eq!(answer.get(), None);
            waited_for.push((hang, answer));
            // A read is under way, so the second one is not started.
            let asked = asked.clone();
            assert!(PENDING.ask(pid, move || asked.send(pid)).get().is_none());
        }
        // Too many reads are under way.
        assert!(PENDING.ask(u32::MAX, move || asked.send(u32::MAX)).get().is_none());
        assert_eq!(asked_for.recv(), Err(mpsc::RecvError));
        let (hang, answers): (Vec<_>, Vec<_>) = waited_for.into_iter().unzip();
        drop(hang);
        for answer in answers {
            while answer.get() != Some(&true) {
                thread::yield_now();
            }
        }
        // Finished reads make room for new ones.
        while PENDING.ask(u32::MAX, || 7).get() != Some(&7) {
            thread::yield_now();
        }
    }
}
