//! What a process was started as.
//!
//! The kernel reads a command line from the memory of the process itself, and waits for a page of it as the process
//! would: for ever, if the page is of a file whose file system does not answer, which a process of a container can
//! arrange. So it is read on a thread of its own, for which nobody waits long. The short name is the kernel's own and
//! always there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Characters of a command line that are kept.
const CHARS_MAX: usize = 256;
/// Bytes of a command line that are read.
const BYTES_MAX: u64 = 4096;
/// How long a command line is waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// Threads that wait for command lines at most; each has cost [`PATIENCE`] once.
const PENDING_MAX: usize = 8;

/// The processes whose command lines are waited for: each by one thread only, however often it is asked for.
static PENDING: Pending = Pending(Mutex::new(BTreeSet::new()));

/// What a process was started as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// In brackets; empty if the process was gone.
    name: String,
    /// Empty until it has been read; `None`: there is none.
    line: Arc<OnceLock<Option<String>>>,
}

impl CommandLine {
    /// Its command line, from when that is known, or else its name in brackets; empty if it was gone.
    #[must_use]
    pub(crate) fn text(&self) -> &str {
        self.line.get().and_then(Option::as_deref).unwrap_or(&self.name)
    }
}

/// The command line of a process. It is waited for for a while; what comes later is known from then on.
#[must_use]
pub(crate) fn command(pid: u32) -> CommandLine {
    let name = fs::read(format!("/proc/{pid}/comm")).ok();
    let name = name.and_then(|name| Some(format!("[{}]", readable(name.trim_ascii_end())?))).unwrap_or_default();
    let line = PENDING.ask(pid, move || {
        let mut line = Vec::new();
        let file = File::open(format!("/proc/{pid}/cmdline"));
        // What was read before an error counts.
        let _ = file.and_then(|file| file.take(BYTES_MAX).read_to_end(&mut line));
        readable(&line)
    });
    CommandLine { name, line }
}

/// The words of `line` as text for terminals and logs: it was written by whoever runs in the container. `None` if there
/// are none.
fn readable(line: &[u8]) -> Option<String> {
    let words: Vec<_> =
        line.split(|&byte| byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    let text = words.join(" ");
    let letter = |letter: char| if letter.is_control() { ' ' } else { letter };
    (!text.is_empty()).then(|| text.chars().map(letter).take(CHARS_MAX).collect())
}

/// The processes of which something is asked that may never be answered.
struct Pending(Mutex<BTreeSet<u32>>);

impl Pending {
    /// What `read` reads of the process `pid`, as soon as it has; it is waited for for a while. Nobody is asked if the
    /// process or too many others are waited for already.
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
            // Nobody else sets it.
            let _ = late.set(read());
            self.0.lock().remove(&pid);
            // Who asked may have given up waiting.
            let _ = done.send(());
        });
        if reader.is_err() {
            self.0.lock().remove(&pid);
            return answer;
        }
        // If it is not there then, it comes later, or never.
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
    fn what_is_never_answered_holds_nobody_up_and_what_is_answered_late_is_known_then() {
        static PENDING: Pending = Pending(Mutex::new(BTreeSet::new()));
        let mut waited_for = Vec::new();
        let (asked, asked_for) = mpsc::channel();
        for pid in 0..PENDING_MAX as u32 {
            let (hang, hung) = mpsc::channel::<()>();
            let answer = PENDING.ask(pid, move || hung.recv().is_err());
            assert_eq!(answer.get(), None);
            waited_for.push((hang, answer));
            // It is asked once: the second time there is nothing to wait for.
            let asked = asked.clone();
            assert!(PENDING.ask(pid, move || asked.send(pid)).get().is_none());
        }
        // Too many are waited for.
        assert!(PENDING.ask(u32::MAX, move || asked.send(u32::MAX)).get().is_none());
        assert_eq!(asked_for.recv(), Err(mpsc::RecvError));
        let (hang, answers): (Vec<_>, Vec<_>) = waited_for.into_iter().unzip();
        drop(hang);
        for answer in answers {
            while answer.get() != Some(&true) {
                thread::yield_now();
            }
        }
        // As soon as they are answered, there is room again.
        while PENDING.ask(u32::MAX, || 7).get() != Some(&7) {
            thread::yield_now();
        }
    }
}
