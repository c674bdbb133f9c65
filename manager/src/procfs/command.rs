//! What a process was started as.
//!
//! The kernel reads a command line from the memory of the process itself, and waits for a page of it as the process
//! would: for ever, if the page is of a file whose file system does not answer, which a process of a container can
//! arrange. So it is read on a thread of its own, for which nobody waits long. The short name is the kernel's own and
//! always there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::sync::mpsc;
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

/// The command line of a process, or its name in brackets; empty if it is gone.
#[must_use]
pub(crate) fn command(pid: u32) -> String {
    let line = PENDING.ask(pid, move || {
        let mut line = Vec::new();
        let file = File::open(format!("/proc/{pid}/cmdline"));
        // What was read before an error counts.
        let _ = file.and_then(|file| file.take(BYTES_MAX).read_to_end(&mut line));
        line
    });
    readable(&line.unwrap_or_default()).unwrap_or_else(|| {
        let name = fs::read(format!("/proc/{pid}/comm")).ok();
        name.and_then(|name| Some(format!("[{}]", readable(name.trim_ascii_end())?))).unwrap_or_default()
    })
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
    /// What `read` reads of the process `pid`; `None` if that takes too long, or if it or too many others are waited
    /// for already.
    fn ask<T: Send + 'static>(&'static self, pid: u32, read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        {
            let mut pending = self.0.lock();
            if pending.len() >= PENDING_MAX || !pending.insert(pid) {
                return None;
            }
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let reader = thread::Builder::new().name("cmdline".into()).spawn(move || {
            let read = read();
            self.0.lock().remove(&pid);
            // Who asked may have given up waiting.
            let _ = answer.send(read);
        });
        if reader.is_err() {
            self.0.lock().remove(&pid);
            return None;
        }
        answered.recv_timeout(PATIENCE).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_command_line_is_one_line_of_text() {
        assert_eq!(readable(b"python\0\0train\xff.py\0-c\0a\nb\0").as_deref(), Some("python train\u{fffd}.py -c a b"));
        assert_eq!(readable(b"\0"), None);
        assert_eq!(readable(&[b'x'; 1000]).unwrap().len(), CHARS_MAX);
        assert!(command(std::process::id()).contains("aliquot_manager"));
        assert_eq!(command(u32::MAX), "");
    }

    #[test]
    fn what_is_never_answered_holds_nobody_up() {
        static PENDING: Pending = Pending(Mutex::new(BTreeSet::new()));
        let mut never = Vec::new();
        for pid in 0..PENDING_MAX as u32 {
            let (hang, hung) = mpsc::channel::<()>();
            never.push(hang);
            assert_eq!(PENDING.ask(pid, move || hung.recv()), None);
            // It is asked once, and the second time is not even waited for.
            let started = Instant::now();
            assert_eq!(PENDING.ask(pid, || panic!("it is asked a second time")), None::<()>);
            assert!(started.elapsed() < PATIENCE);
        }
        assert_eq!(PENDING.ask(u32::MAX, || panic!("too many are waited for")), None::<()>);
        drop(never);
        // As soon as they are answered, there is room again.
        while PENDING.ask(u32::MAX, || 7) != Some(7) {
            thread::yield_now();
        }
    }
}
