//! The command line of a process. The short name is the kernel's own and always available.

use std::fs::{self, File};
use std::io::Read;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::slow::SlowReads;

/// Maximum characters kept of a command line.
const CHARS_MAX: usize = 256;
/// Maximum bytes read of a command line.
const BYTES_MAX: u64 = 4096;
/// Maximum command lines that wait for [`command_later`] to read them.
const WAITING_MAX: usize = 4096;

static READS: SlowReads = SlowReads::new(Duration::from_millis(200), 8);

/// The command line of a process, or its name until it has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// The name in brackets; empty if the process was gone.
    name: String,
    /// Empty until the line has been read; `None` if the process has no command line.
    line: Line,
}

type Line = Arc<OnceLock<Option<String>>>;

impl CommandLine {
    /// The command line once it has been read, until then the name in brackets; empty if the process was gone.
    #[must_use]
    pub(crate) fn text(&self) -> &str {
        self.line.get().and_then(Option::as_deref).unwrap_or(&self.name)
    }

    fn unread(pid: u32) -> CommandLine {
        let name = fs::read(format!("/proc/{pid}/comm")).ok();
        let name = name.and_then(|name| Some(format!("[{}]", readable(name.trim_ascii_end())?))).unwrap_or_default();
        CommandLine { name, line: Line::default() }
    }
}

/// Reads the command line of a process. Waits for a short while; a line that comes later is visible from then on.
#[must_use]
pub(crate) fn command(pid: u32) -> CommandLine {
    let command = CommandLine::unread(pid);
    read(&READS, pid, &command.line);
    command
}

/// Like [`command`], but does not wait at all: a thread of its own reads one line after the other.
#[must_use]
pub(crate) fn command_later(pid: u32) -> CommandLine {
    static READER: Mutex<Option<SyncSender<(u32, Line)>>> = Mutex::new(None);
    command_by(pid, &READER, &READS)
}

/// The command line of a process, which `reader` gets by `reads`. Starts the reader if there is none.
fn command_by(pid: u32, reader: &Mutex<Option<SyncSender<(u32, Line)>>>, reads: &'static SlowReads) -> CommandLine {
    let command = CommandLine::unread(pid);
    let mut reader = reader.lock();
    if reader.is_none() {
        let (asked, inbox) = mpsc::sync_channel::<(u32, Line)>(WAITING_MAX);
        let thread = thread::Builder::new().name("cmdline".into());
        let started = thread.spawn(move || inbox.into_iter().for_each(|(pid, line)| read(reads, pid, &line)));
        *reader = started.ok().map(|_| asked);
    }
    if let Some(reader) = reader.as_ref() {
        // If too many lines wait already, the name has to do.
        let _ = reader.try_send((pid, Arc::clone(&command.line)));
    }
    command
}

fn read(reads: &'static SlowReads, pid: u32, line: &Line) {
    reads.ask(pid, line, move || {
        let mut line = Vec::new();
        let file = File::open(format!("/proc/{pid}/cmdline"));
        // Bytes that were read before an error count.
        let _ = file.and_then(|file| file.take(BYTES_MAX).read_to_end(&mut line));
        readable(&line)
    });
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

#[cfg(test)]
mod tests {
    use aliquot_harness::wait;

    use super::*;

    /// The beginning of this process's command line, as far as it is kept.
    fn own_program() -> String {
        std::env::args().next().unwrap().chars().take(CHARS_MAX).collect()
    }

    #[test]
    fn a_command_line_is_one_line_of_text() {
        assert_eq!(readable(b"python\0\0train\xff.py\0-c\0a\nb\0").as_deref(), Some("python train\u{fffd}.py -c a b"));
        assert_eq!(readable(b"\0"), None);
        assert_eq!(readable(&[b'x'; 1000]).unwrap().len(), CHARS_MAX);
        for ask in [command as fn(u32) -> CommandLine, command_later] {
            let mut asked = Vec::new();
            // Asked several times: nothing is read while another test's read of this process's line is slow.
            let own = wait::until("the line is read", || {
                asked.push(ask(std::process::id()));
                asked.iter().find(|own| own.line.get().is_some()).cloned()
            });
            assert!(own.name.starts_with('[') && own.name.ends_with(']'), "{own:?}");
            assert!(own.text().starts_with(&own_program()), "{own:?}");
        }
        assert_eq!(command(u32::MAX).text(), "");
    }

    /// The attach thread serves all slices, and a tenant can start any number of processes whose lines hang.
    #[test]
    fn a_line_that_is_read_later_is_not_waited_for() {
        static PATIENT: SlowReads = SlowReads::new(Duration::from_secs(3600), 8);
        static READER: Mutex<Option<SyncSender<(u32, Line)>>> = Mutex::new(None);
        let pid = std::process::id();
        let (go_on, waiting) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        // As long as this read hangs, another one of the same process is waited for.
        let hung = thread::spawn(move || {
            PATIENT.ask(pid, &Line::default(), move || {
                begun.send(()).unwrap();
                waiting.recv().unwrap();
                None
            });
        });
        has_begun.recv().unwrap();
        let later = command_by(pid, &READER, &PATIENT);
        assert_eq!(later.text(), later.name);
        go_on.send(()).unwrap();
        hung.join().unwrap();
        wait::until_true("the line is read", || later.text().starts_with(&own_program()));
    }
}
