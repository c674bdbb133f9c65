//! The threads that carry out queued work: for each device one that takes time slices on it, and one for host functions.
//!
//! They start with the first work. An executor follows the device's timeline: it sleeps until the instant at which a
//! piece of work ends there. If it wakes late, the next piece still begins where the previous one ended.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::mpsc::{Sender, channel};
use std::sync::{MutexGuard, Once, OnceLock};

use aliquot_fake_machine::{Bell, TimeSlice, now_ns};

use crate::device::Device;
use crate::process::initialised;
use crate::queue::{Effect, Queues, queues, wait_at};

/// Interval of the checks of values for which a stream waits.
pub(crate) const POLL: Duration = Duration::from_micros(50);

/// An executor that is further behind than this catches up at no more than twice the device's speed. Programs infer
/// durations from when their launches are done, and no real device does the work of milliseconds at once.
const FAR_BEHIND_NS: u64 = 1_000_000;
/// When catching up, work shorter than this is done at once: sleeping for half its duration would take longer.
const CATCH_UP_PIECE_NS_MIN: u64 = 200_000;

pub(crate) struct Executor {
    started: Once,
    work: Bell,
    /// Whether it sleeps because there is no work. Changed under the queues' lock.
    idle: AtomicBool,
}

/// Where kernels of several streams overlap, the length of a piece: a task that comes meanwhile begins after it.
const OVERLAP_PIECE_NS: u64 = 50_000;

/// A time slice on the device, used up to `cursor_ns`.
struct Running {
    time_slice: TimeSlice,
    cursor_ns: u64,
    busy_ns: u64,
}

impl Executor {
    pub(crate) fn new() -> Executor {
        Executor { started: Once::new(), work: Bell::new(), idle: AtomicBool::new(false) }
    }

    /// Notifies the executor of new work. `urgent`: the work can be done while a kernel runs. Called under the queues'
    /// lock.
    pub(crate) fn notice(&self, device: &'static Device, urgent: bool) {
        self.started.call_once(|| spawn("fake-gpu", move || run(device)));
        if urgent || self.idle.load(Ordering::Relaxed) {
            self.work.ring_one();
        }
    }
}

/// Notifies the executors of other devices of an event for which their streams may be waiting.
pub(crate) fn notice_others(device: &Device) {
    for other in initialised().devices.iter().filter(|other| other.ordinal != device.ordinal) {
        other.executor.work.ring_one();
    }
}

/// Starts a thread that handles none of the host program's signals.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // SAFETY: the set is initialised before use, and all calls concern this thread alone.
        unsafe {
            let mut all: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, core::ptr::null_mut());
            libc::prctl(libc::PR_SET_TIMERSLACK, 1);
            // A real device does not wait for the processor: if permitted, this thread gets priority over programs.
            let priority = libc::sched_param { sched_priority: 1 };
            libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const priority);
        }
        body();
    });
    if let Err(error) = started {
        eprintln!("simulated GPU: cannot start a thread, so queued work will not run: {error}");
    }
}

fn run(device: &'static Device) {
    let member = &initialised().member;
    let mut running: Option<Running> = None;
    let mut queues = queues();
    loop {
        while queues.run_untimed(device, None) {}
        let cursor_ns = running.as_ref().map_or(0, |running| running.cursor_ns);
        let Some((lane, ready_ns)) = queues.next_task(device.ordinal, cursor_ns) else {
            if let Some(Running { time_slice, cursor_ns, busy_ns }) = running.take() {
                member.end_time_slice(device.index, time_slice, cursor_ns, busy_ns);
            }
            queues = sleep(device, queues);
            continue;
        };
        match running.take() {
            None => {
                drop(queues);
                let time_slice = member.take_time_slice(device.index, ready_ns);
                running = Some(Running { time_slice, cursor_ns: time_slice.start_ns, busy_ns: 0 });
                queues = self::queues();
            }
            // Between two pieces of work the device is free for other processes.
            Some(Running { time_slice, cursor_ns, busy_ns }) if ready_ns > cursor_ns => {
                member.end_time_slice(device.index, time_slice, cursor_ns, busy_ns);
            }
            Some(Running { time_slice, cursor_ns, busy_ns }) if cursor_ns >= time_slice.end_ns => {
                let next = member.extend_time_slice(device.index, time_slice, busy_ns);
                running = match next {
                    Some(time_slice) => Some(Running { time_slice, cursor_ns: time_slice.start_ns, busy_ns: 0 }),
                    None => {
                        drop(queues);
                        let time_slice = member.take_time_slice(device.index, cursor_ns);
                        queues = self::queues();
                        Some(Running { time_slice, cursor_ns: time_slice.start_ns, busy_ns: 0 })
                    }
                };
            }
            Some(mut time_slice) => {
                queues = match initialised().config.concurrent_kernels {
                    1 => run_piece(device, queues, lane, &mut time_slice),
                    most => run_pieces(device, queues, lane, most, &mut time_slice),
                };
                running = Some(time_slice);
            }
        }
    }
}

/// Runs the first task of a lane to its end or to the time slice's end.
fn run_piece(
    device: &'static Device,
    mut queues: MutexGuard<'static, Queues>,
    lane: usize,
    running: &mut Running,
) -> MutexGuard<'static, Queues> {
    if queues.waits_for_peer(lane) {
        // The kernel runs on and checks again after a while.
        let end_ns = (running.cursor_ns + POLL.as_nanos() as u64).max(now_ns()).min(running.time_slice.end_ns);
        queues = pass_until(device, queues, lane, end_ns);
        running.busy_ns += end_ns - running.cursor_ns;
        running.cursor_ns = end_ns;
        return queues;
    }
    let Some(remaining) = queues.remaining_ns(lane) else { return queues };
    let piece_ns = (*remaining).min(running.time_slice.end_ns - running.cursor_ns);
    let end_ns = running.cursor_ns + piece_ns;
    queues = pass_until(device, queues, lane, end_ns);
    let now_ns = now_ns();
    if now_ns > end_ns + FAR_BEHIND_NS && piece_ns >= CATCH_UP_PIECE_NS_MIN {
        queues = pass_until(device, queues, lane, now_ns + piece_ns / 2);
    }
    running.cursor_ns = end_ns;
    running.busy_ns += piece_ns;
    let Some(remaining) = queues.remaining_ns(lane) else { return queues };
    if *remaining > piece_ns {
        *remaining -= piece_ns;
        return queues;
    }
    end_task(device, queues, lane, running)
}

/// Runs the first tasks of up to `most` lanes side by side, until one of them ends, for a piece of time, or to the time
/// slice's end. The device is busy once, however many run.
fn run_pieces(
    device: &'static Device,
    mut queues: MutexGuard<'static, Queues>,
    first: usize,
    most: usize,
    running: &mut Running,
) -> MutexGuard<'static, Queues> {
    let lanes = queues.running(device.ordinal, first, running.cursor_ns, most);
    let mut piece_ns = OVERLAP_PIECE_NS.min(running.time_slice.end_ns - running.cursor_ns);
    let mut working = Vec::new();
    for lane in lanes {
        // A kernel that waits for its peer runs on, and checks again after the piece.
        if !queues.waits_for_peer(lane)
            && let Some(remaining) = queues.remaining_ns(lane)
        {
            piece_ns = piece_ns.min(*remaining);
            working.push(lane);
        }
    }
    let end_ns = running.cursor_ns + piece_ns;
    queues = pass_until(device, queues, first, end_ns);
    running.cursor_ns = end_ns;
    running.busy_ns += piece_ns;
    for lane in working {
        match queues.remaining_ns(lane) {
            Some(remaining) if *remaining > piece_ns => *remaining -= piece_ns,
            Some(_) => queues = end_task(device, queues, lane, running),
            None => {}
        }
    }
    queues
}

/// Ends the first task of a lane, whose time is over.
fn end_task(
    device: &'static Device,
    mut queues: MutexGuard<'static, Queues>,
    lane: usize,
    running: &mut Running,
) -> MutexGuard<'static, Queues> {
    let Some(remaining) = queues.remaining_ns(lane) else { return queues };
    // The task stays first in its lane while its effect runs without the lock. The remaining nanosecond marks it as a
    // task that needs device time.
    *remaining = 1;
    // Charged before the completion becomes visible, because the process may end then.
    initialised().member.charge(device.index, core::mem::take(&mut running.busy_ns));
    if let Some(effect) = queues.take_effect(lane) {
        drop(queues);
        effect();
        queues = self::queues();
    }
    queues.complete_first(lane, running.cursor_ns);
    queues
}

/// Waits until `end_ns` on the device's timeline, while the first task of a lane runs. Meanwhile does work of other
/// lanes that can run beside it.
fn pass_until(
    device: &'static Device,
    mut queues: MutexGuard<'static, Queues>,
    lane: usize,
    end_ns: u64,
) -> MutexGuard<'static, Queues> {
    while let Some(wait_ns) = end_ns.checked_sub(now_ns()).filter(|&wait_ns| wait_ns > 0) {
        let wait = if queues.polls(device.ordinal) { POLL.as_nanos() as u64 } else { wait_ns };
        let wait = Duration::from_nanos(wait.min(wait_ns));
        queues = wait_at(&device.executor.work, queues, Some(wait));
        while queues.run_untimed(device, Some(lane)) {}
    }
    queues
}

fn sleep(device: &Device, queues: MutexGuard<'static, Queues>) -> MutexGuard<'static, Queues> {
    let executor = &device.executor;
    executor.idle.store(true, Ordering::Relaxed);
    let timeout = queues.polls(device.ordinal).then_some(POLL);
    let queues = wait_at(&executor.work, queues, timeout);
    executor.idle.store(false, Ordering::Relaxed);
    queues
}

/// A host function, with the device and the lane that continue after it.
type HostCall = (Effect, &'static Device, usize);

/// Calls a host function in the thread for host functions.
pub(crate) fn call_host(function: Effect, device: &'static Device, lane: usize) {
    static CALLS: OnceLock<Sender<HostCall>> = OnceLock::new();
    let calls = CALLS.get_or_init(|| {
        let (sender, receiver) = channel::<HostCall>();
        spawn("fake-gpu-host", move || {
            crate::context::enter_callback_thread();
            for (function, device, lane) in receiver {
                function();
                let mut queues = queues();
                queues.complete_first(lane, now_ns());
                device.executor.notice(device, true);
            }
        });
        sender
    });
    // Cannot fail: the receiving thread never ends.
    let _ = calls.send((function, device, lane));
}
