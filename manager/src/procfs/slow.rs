//! Reads of `/proc` that may never end.
//!
//! The kernel reads a command line from the process's own memory, and waits for its pages as the process would. It
//! waits for ever if a page belongs to a file whose file system does not answer, and a process in a container can
//! arrange that. To list a process's mappings, it waits for a lock that such a process may hold. So a separate thread
//! reads, and the manager waits only briefly.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Reads of one kind, each by a thread of its own.
pub(super) struct SlowReads {
    /// How long a caller waits, if no other read is under way.
    patience: Duration,
    /// Maximum reads under way.
    under_way_max: usize,
    /// When the read of each process began that is under way.
    under_way: Mutex<BTreeMap<u32, Instant>>,
    ended: Condvar,
}

impl SlowReads {
    pub(super) const fn new(patience: Duration, under_way_max: usize) -> SlowReads {
        let under_way = Mutex::new(BTreeMap::new());
        SlowReads { patience, under_way_max, under_way, ended: Condvar::new() }
    }

    /// Runs `read` for the process `pid` on a thread, and waits a short while until it has set `answer`. An answer that
    /// comes later is set later. Starts nothing if a read for the process hangs already, or if too many others do.
    pub(super) fn ask<T: Send + Sync + 'static>(
        &'static self,
        pid: u32,
        answer: &Arc<OnceLock<T>>,
        read: impl FnOnce() -> T + Send + 'static,
    ) {
        let Some(patience) = self.begin(pid) else { return };
        let (done, is_done) = mpsc::sync_channel(1);
        let late = Arc::clone(answer);
        let reader = thread::Builder::new().name("procfs".into()).spawn(move || {
            // Only this thread sets the value.
            let _ = late.set(read());
            self.end(pid);
            // The caller may have given up waiting.
            let _ = done.send(());
        });
        if reader.is_err() {
            self.end(pid);
            return;
        }
        // After the timeout the result comes later, or never.
        let _ = is_done.recv_timeout(patience);
    }

    /// Notes that a read for the process is under way. Waits for one that is under way already, but not for one that
    /// hangs. Returns how long to wait for the result; the more reads hang, the shorter, so that processes which
    /// arrange this cannot add up their delays.
    fn begin(&self, pid: u32) -> Option<Duration> {
        let mut under_way = self.under_way.lock();
        while let Some(&begun) = under_way.get(&pid) {
            if begun.elapsed() >= self.patience {
                return None;
            }
            self.ended.wait_until(&mut under_way, begun + self.patience);
        }
        if under_way.len() >= self.under_way_max {
            return None;
        }
        under_way.insert(pid, Instant::now());
        let hang = under_way.values().filter(|begun| begun.elapsed() >= self.patience).count();
        Some(self.patience / u32::try_from(hang + 1).unwrap_or(u32::MAX))
    }

    fn end(&self, pid: u32) {
        self.under_way.lock().remove(&pid);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `read` returns for the process; `None` if it has not returned yet.
    fn ask<T: Send + Sync + 'static>(
        reads: &'static SlowReads,
        pid: u32,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Arc<OnceLock<T>> {
        let answer = Arc::new(OnceLock::new());
        reads.ask(pid, &answer, read);
        answer
    }

    #[test]
    fn reads_that_hang_block_no_caller_and_late_answers_are_kept() {
        const HANG_MAX: u32 = 8;
        static READS: SlowReads = SlowReads::new(Duration::from_millis(50), HANG_MAX as usize);
        let mut waited_for = Vec::new();
        let (asked, asked_for) = mpsc::channel();
        for pid in 0..HANG_MAX {
            let (hang, hung) = mpsc::channel::<()>();
            let answer = ask(&READS, pid, move || hung.recv().is_err());
            assert_eq!(answer.get(), None);
            waited_for.push((hang, answer));
            // A read is under way, so the second one is not started.
            let asked = asked.clone();
            assert!(ask(&READS, pid, move || asked.send(pid)).get().is_none());
        }
        // Too many reads are under way.
        assert!(ask(&READS, u32::MAX, move || asked.send(u32::MAX)).get().is_none());
        assert_eq!(asked_for.recv(), Err(mpsc::RecvError));
        let (hang, answers): (Vec<_>, Vec<_>) = waited_for.into_iter().unzip();
        drop(hang);
        for answer in answers {
            while answer.get() != Some(&true) {
                thread::yield_now();
            }
        }
        // Finished reads make room for new ones.
        while ask(&READS, u32::MAX, || 7).get() != Some(&7) {
            thread::yield_now();
        }
    }

    #[test]
    fn two_callers_that_ask_about_one_process_both_get_an_answer() {
        static READS: SlowReads = SlowReads::new(Duration::from_secs(3600), 8);
        let (go_on, waiting) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        let first = thread::spawn(move || {
            ask(&READS, 1, move || {
                begun.send(()).unwrap();
                waiting.recv().unwrap();
            })
        });
        has_begun.recv().unwrap();
        let second = thread::spawn(|| ask(&READS, 1, || 2));
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap().get(), Some(&()));
        assert_eq!(second.join().unwrap().get(), Some(&2));
    }
}
