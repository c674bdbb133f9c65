//! A thread that repeats a task, can be woken early, and can be stopped.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    stop: bool,
    woken: bool,
    /// The thread sleeps, and will tick by itself.
    has_alarm: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// Handle of the thread.
pub(crate) struct Periodic {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Periodic {
    /// Starts a thread that calls `tick` again and again. `tick` returns how long to sleep before the next call; `None`
    /// stands for a sleep until the thread is woken.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub(crate) fn start(
        name: &str,
        mut tick: impl FnMut() -> Option<Duration> + Send + 'static,
    ) -> io::Result<Periodic> {
        let shared = Arc::new(Shared::default());
        let inner = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            loop {
                let pause = tick();
                if !inner.sleep(pause) {
                    return;
                }
            }
        })?;
        Ok(Periodic { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Makes the thread tick now, or once more if it is in a tick.
    pub(crate) fn wake(&self) {
        self.shared.wake();
    }

    /// Makes the thread tick now if it would otherwise sleep until it is woken. If it will tick by itself soon, nothing
    /// changes.
    pub(crate) fn rouse(&self) {
        if !self.shared.state.lock().has_alarm {
            self.wake();
        }
    }

    /// A handle that others can use to wake the thread.
    #[must_use]
    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    /// Ends the thread, after its current tick.
    pub(crate) fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            self.shared.state.lock().stop = true;
            self.shared.wake.notify_one();
            // A panic in the thread would have ended the whole process.
            let _ = thread.join();
        }
    }
}

/// A handle that wakes the thread.
pub(crate) struct Waker(Arc<Shared>);

impl Waker {
    /// See [`Periodic::wake`]. Has no effect once the thread has ended.
    pub(crate) fn wake(&self) {
        self.0.wake();
    }
}

impl Shared {
    fn wake(&self) {
        self.state.lock().woken = true;
        self.wake.notify_one();
    }

    /// Sleeps. Returns whether to continue.
    fn sleep(&self, pause: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let awake = |state: &mut State| !state.stop && !state.woken;
        state.has_alarm = pause.is_some();
        match pause {
            None => self.wake.wait_while(&mut state, awake),
            Some(pause) => {
                self.wake.wait_while_for(&mut state, awake, pause);
            }
        }
        (state.woken, state.has_alarm) = (false, false);
        !state.stop
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_ticks_at_once_when_woken_and_not_after_the_stop() {
        let (ticks, seen) = mpsc::channel();
        let periodic = Periodic::start("test", move || {
            ticks.send(()).unwrap();
            None
        });
        let periodic = periodic.unwrap();
        seen.recv().unwrap();
        periodic.wake();
        seen.recv().unwrap();
        periodic.stop();
        assert!(seen.recv().is_err());
        periodic.stop();
    }

    #[test]
    fn it_is_roused_only_from_a_sleep_without_an_end() {
        let (ticks, seen) = mpsc::channel();
        let (pauses, wanted) = mpsc::channel();
        let periodic = Periodic::start("test", move || {
            ticks.send(()).unwrap();
            wanted.recv().unwrap()
        });
        let periodic = periodic.unwrap();
        // Roused in a tick or after it, the thread ticks once more.
        seen.recv().unwrap();
        pauses.send(None).unwrap();
        periodic.rouse();
        seen.recv().unwrap();
        pauses.send(Some(Duration::from_secs(3600))).unwrap();
        while !periodic.shared.state.lock().has_alarm {
            thread::yield_now();
        }
        periodic.rouse();
        assert!(!periodic.shared.state.lock().woken);
        periodic.stop();
        assert!(seen.try_recv().is_err());
    }
}
