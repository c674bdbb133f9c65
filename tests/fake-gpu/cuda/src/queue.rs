//! The work queued on streams, and the order in which it may run.
//!
//! All streams of the process are *lanes* of one set of queues under one lock. An operation has a place in the order of
//! submission; the legacy default stream's rule and every wait compare such places. Executors take operations out
//! ([`crate::executor`]); this module has the state that they share with the callers.
//!
//! Within a process the kernels and copies of a device run one at a time, or `concurrent_kernels` of different streams.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_fake_machine::{Bell, now_ns};

use crate::context::Context;
use crate::device::Device;
use crate::events::Event;
use crate::executor::POLL;
use crate::meetings::Meeting;
use crate::memory_operations::{ValueWait, ValueWrite};
use crate::process::{Process, initialised};
use crate::streams::{Stream, StreamKind};

/// An operation's effect on memory, carried out at the end of its time on the device.
pub(crate) type Effect = Box<dyn FnOnce() + Send>;

/// The work of an operation.
pub(crate) enum Work {
    /// A kernel, copy or set: device time, then an effect.
    Task { duration_ns: u64, effect: Option<Effect> },
    /// A kernel that waits for another kernel, and then becomes a task.
    Meeting(Meeting),
    /// The completion of an event's record with this number.
    Record(&'static Event, u64),
    /// A wait for the event's record with this number.
    Wait(&'static Event, u64),
    /// A host function.
    Host(Effect),
    /// A host function that is running.
    HostRunning,
    /// A stream memory operation that writes. It occupies its stream for a while, but not the device: kernels of other
    /// streams run at the same time.
    Write { write: ValueWrite, duration_ns: u64 },
    /// A stream memory operation that waits.
    WaitValue(ValueWait),
}

/// An operation in a stream's queue.
pub(crate) struct Operation {
    place: u64,
    submitted_ns: u64,
    /// Whether its end frees a place in the launch queue.
    takes_place: bool,
    pub(crate) work: Work,
}

/// The queue of a stream's operations.
pub(crate) struct Lane {
    pub(crate) ordinal: usize,
    /// The life of its context.
    life: u32,
    kind: StreamKind,
    pub(crate) priority: i32,
    operations: VecDeque<Operation>,
    /// When its last completed operation ended, on the timeline.
    end_ns: u64,
    /// The lowest place for which a thread waits.
    wake_at: u64,
    /// Whether the stream was destroyed.
    closed: bool,
}

/// The operations of all streams.
pub(crate) struct Queues {
    next_place: u64,
    lanes: Vec<Lane>,
    unused: Vec<usize>,
    /// In the launch queue.
    places_taken: usize,
}

static QUEUES: Mutex<Queues> =
    Mutex::new(Queues { next_place: 1, lanes: Vec::new(), unused: Vec::new(), places_taken: 0 });
/// Rung when an operation for which a thread waits has completed.
static DONE: Bell = Bell::new();
/// Rung when the launch queue has room.
static ROOM: Bell = Bell::new();
/// Operations queued in the whole process.
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// Releases the queues' lock until `bell` rings or `timeout` is over.
pub(crate) fn wait_at(
    bell: &Bell,
    queues: MutexGuard<'static, Queues>,
    timeout: Option<Duration>,
) -> MutexGuard<'static, Queues> {
    bell.wait(&QUEUES, queues, timeout)
}

pub(crate) fn queues() -> MutexGuard<'static, Queues> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an operation may take effect in the calling thread: in instant mode, if nothing is queued.
#[inline]
pub(crate) fn runs_at_once(process: &Process) -> bool {
    process.instant && PENDING.load(Ordering::Acquire) == 0
}

/// Makes a lane for a stream.
pub(crate) fn open_lane(device: &Device, life: u32, kind: StreamKind, priority: i32) -> usize {
    let lane = Lane {
        ordinal: device.ordinal,
        life,
        kind,
        priority,
        operations: VecDeque::new(),
        end_ns: 0,
        wake_at: u64::MAX,
        closed: false,
    };
    let mut queues = queues();
    match queues.unused.pop() {
        Some(index) => {
            queues.lanes[index] = lane;
            index
        }
        None => {
            queues.lanes.push(lane);
            queues.lanes.len() - 1
        }
    }
}

/// Ends a stream's lane when its queued operations have run.
pub(crate) fn close_lane(index: usize) {
    let mut queues = queues();
    queues.lanes[index].closed = true;
    if queues.lanes[index].operations.is_empty() {
        queues.unused.push(index);
    }
}

/// Queues one operation. If it takes a place in the launch queue, it waits while that is full.
pub(crate) fn submit(stream: &Stream, work: Work, takes_place: bool) {
    submit_all(stream, [work], takes_place);
}

/// Queues operations in order. They take one place in the launch queue together, or none.
pub(crate) fn submit_all(stream: &Stream, works: impl IntoIterator<Item = Work>, takes_place: bool) {
    let process = initialised();
    let mut works = works.into_iter().peekable();
    while runs_at_once(process) {
        let Some(work) = works.next() else { return };
        if let Some(work) = run_now(work) {
            enqueue(process, stream, std::iter::once(work).chain(works), takes_place);
            return;
        }
    }
    enqueue(process, stream, works, takes_place);
}

/// Carries an operation out, or returns it if it needs another thread or must wait.
fn run_now(work: Work) -> Option<Work> {
    match work {
        Work::Task { effect, .. } => effect.into_iter().for_each(|effect| effect()),
        Work::Record(event, number) => event.complete(number, now_ns()),
        Work::Wait(event, number) if event.completed_at(number).is_some() => {}
        Work::Write { write, .. } => write.carry_out(),
        Work::WaitValue(wait) if wait.is_satisfied() => {}
        work => return Some(work),
    }
    None
}

fn enqueue(process: &'static Process, stream: &Stream, works: impl Iterator<Item = Work>, takes_place: bool) {
    let mut queues = queues();
    if takes_place {
        while queues.places_taken >= process.config.launch_queue_depth {
            queues = wait_at(&ROOM, queues, None);
        }
        queues.places_taken += 1;
    }
    let submitted_ns = now_ns();
    let index = stream.lane;
    let was_empty = queues.lanes[index].operations.is_empty();
    let mut urgent = false;
    for work in works {
        urgent |= !matches!(work, Work::Task { .. });
        let place = queues.next_place;
        queues.next_place += 1;
        queues.lanes[index].operations.push_back(Operation { place, submitted_ns, takes_place: false, work });
        PENDING.fetch_add(1, Ordering::Release);
    }
    match queues.lanes[index].operations.back_mut() {
        Some(last) if takes_place => last.takes_place = true,
        // Nothing was queued, so no completion will free the place.
        None if takes_place => queues.places_taken -= 1,
        _ => {}
    }
    let device = &process.devices[queues.lanes[index].ordinal];
    device.executor.notice(device, was_empty && urgent);
}

impl Queues {
    /// The lanes of a device that have work, each with its first operation and the instant from which that may run.
    fn ready(&self, ordinal: usize) -> impl Iterator<Item = (usize, &Lane, &Operation, u64)> {
        self.lanes.iter().enumerate().filter_map(move |(index, lane)| {
            let first = lane.operations.front().filter(|_| lane.ordinal == ordinal)?;
            Some((index, lane, first, self.ready_at(lane, first)?))
        })
    }

    /// The instant from which the first operation of a lane may run; `None` while it must wait for other lanes.
    fn ready_at(&self, lane: &Lane, first: &Operation) -> Option<u64> {
        let mut ready_ns = first.submitted_ns.max(lane.end_ns);
        let before = |other: &&Lane| other.life == lane.life && lane.kind.waits_for(other.kind);
        for other in self.lanes.iter().filter(before) {
            if other.operations.front().is_some_and(|operation| operation.place < first.place) {
                return None;
            }
            ready_ns = ready_ns.max(other.end_ns);
        }
        Some(ready_ns)
    }

    /// The next task of a device whose time is used up to `cursor_ns`: its lane, and when it may begin.
    pub(crate) fn next_task(&self, ordinal: usize, cursor_ns: u64) -> Option<(usize, u64)> {
        let tasks = self
            .ready(ordinal)
            .filter(|(_, _, first, _)| matches!(first.work, Work::Task { .. } | Work::Meeting(_) | Work::Write { .. }));
        let best = tasks.min_by_key(|(_, lane, first, ready)| ((*ready).max(cursor_ns), lane.priority, first.place));
        best.map(|(index, _, _, ready_ns)| (index, ready_ns))
    }

    /// The lanes whose first tasks run on a device at `cursor_ns`: `first` and, as far as `most` allows, others.
    pub(crate) fn running(&self, ordinal: usize, first: usize, cursor_ns: u64, most: usize) -> Vec<usize> {
        let is_task = |work: &Work| match work {
            Work::Task { duration_ns, .. } => *duration_ns > 0,
            Work::Meeting(_) => true,
            _ => false,
        };
        let mut others: Vec<_> = self
            .ready(ordinal)
            .filter(|(index, _, task, ready_ns)| *index != first && *ready_ns <= cursor_ns && is_task(&task.work))
            .map(|(index, lane, task, _)| (lane.priority, task.place, index))
            .collect();
        others.sort_unstable();
        std::iter::once(first).chain(others.into_iter().map(|(_, _, index)| index)).take(most).collect()
    }

    /// Whether an operation of the device waits for something that must be polled.
    pub(crate) fn polls(&self, ordinal: usize) -> bool {
        self.ready(ordinal).any(|(_, _, first, _)| match &first.work {
            Work::WaitValue(_) => true,
            Work::Wait(event, _) => event.is_shared,
            _ => false,
        })
    }

    /// Carries out the operations that need no device time and may run now. The first operation of the lane `beside`,
    /// if any, is running on the device meanwhile. Returns true if there were any.
    pub(crate) fn run_untimed(&mut self, device: &'static Device, beside: Option<usize>) -> bool {
        let runnable = |index: usize, first: &Operation| match &first.work {
            Work::Task { duration_ns, .. } => *duration_ns == 0,
            Work::Wait(event, number) => event.completed_at(*number).is_some(),
            Work::WaitValue(wait) => wait.is_satisfied(),
            Work::Meeting(_) | Work::HostRunning => false,
            Work::Write { duration_ns, .. } => *duration_ns == 0 || beside.is_some_and(|running| running != index),
            Work::Record(..) | Work::Host(_) => true,
        };
        let ready = self.ready(device.ordinal).filter(|(index, _, first, _)| runnable(*index, first));
        let ready = ready.map(|(index, _, _, ready_ns)| (index, ready_ns)).collect::<Vec<_>>();
        let any = !ready.is_empty();
        for (index, ready_ns) in ready {
            self.run_first(device, index, ready_ns);
        }
        any
    }

    fn run_first(&mut self, device: &'static Device, index: usize, ready_ns: u64) {
        let Some(first) = self.lanes[index].operations.front_mut() else { return };
        let mut end_ns = ready_ns;
        match std::mem::replace(&mut first.work, Work::HostRunning) {
            Work::Task { effect, .. } => effect.into_iter().for_each(|effect| effect()),
            Work::Record(event, number) => {
                event.complete(number, ready_ns);
                crate::executor::notice_others(device);
            }
            Work::Wait(event, number) => end_ns = end_ns.max(event.completed_at(number).unwrap_or(0)),
            Work::Write { write, duration_ns } => {
                write.carry_out();
                end_ns += duration_ns;
            }
            // The wait ends when the value is seen, which can be later than when the operation was ready.
            Work::WaitValue(_) => end_ns = end_ns.max(now_ns()),
            Work::Host(function) => {
                crate::executor::call_host(function, device, index);
                return;
            }
            Work::Meeting(_) | Work::HostRunning => return,
        }
        self.complete_first(index, end_ns);
    }

    /// Whether the first operation of a lane is a kernel whose peer has not arrived. If the peer has arrived, the
    /// kernel becomes a task.
    pub(crate) fn waits_for_peer(&mut self, index: usize) -> bool {
        let Some(first) = self.lanes[index].operations.front_mut() else { return false };
        let Work::Meeting(meeting) = &first.work else { return false };
        if !meeting.is_complete() {
            return true;
        }
        // At least 1 ns, because the executor ignores tasks without device time.
        first.work = Work::Task { duration_ns: meeting.duration_ns.max(1), effect: None };
        false
    }

    /// The device time that the first task of a lane still needs.
    pub(crate) fn remaining_ns(&mut self, index: usize) -> Option<&mut u64> {
        match &mut self.lanes[index].operations.front_mut()?.work {
            Work::Task { duration_ns, .. } | Work::Write { duration_ns, .. } => Some(duration_ns),
            _ => None,
        }
    }

    /// The effect of the first task of a lane.
    pub(crate) fn take_effect(&mut self, index: usize) -> Option<Effect> {
        match &mut self.lanes[index].operations.front_mut()?.work {
            Work::Task { effect, .. } => effect.take(),
            &mut Work::Write { write, .. } => Some(Box::new(move || write.carry_out())),
            _ => None,
        }
    }

    /// Removes the first operation of a lane, which ended at `end_ns`.
    pub(crate) fn complete_first(&mut self, index: usize, end_ns: u64) {
        let lane = &mut self.lanes[index];
        let Some(operation) = lane.operations.pop_front() else { return };
        lane.end_ns = lane.end_ns.max(end_ns);
        if lane.wake_at <= operation.place {
            lane.wake_at = u64::MAX;
            DONE.ring_all();
        }
        if lane.closed && lane.operations.is_empty() {
            self.unused.push(index);
        }
        if operation.takes_place {
            self.places_taken -= 1;
            ROOM.ring_one();
        }
        PENDING.fetch_sub(1, Ordering::Release);
    }

    /// For each chosen lane with queued operations, the place of the last one, which must complete.
    fn targets(&self, chosen: impl Fn(usize, &Lane) -> bool) -> Vec<(usize, u64)> {
        let lanes = self.lanes.iter().enumerate().filter(|(index, lane)| chosen(*index, lane));
        lanes.filter_map(|(index, lane)| Some((index, lane.operations.back()?.place))).collect()
    }

    fn is_done(&self, (index, place): (usize, u64)) -> bool {
        self.lanes[index].operations.front().is_none_or(|first| first.place > place)
    }
}

fn wait_for(chosen: impl Fn(usize, &Lane) -> bool) {
    if PENDING.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut queues = queues();
    let targets = queues.targets(chosen);
    loop {
        let open = targets.iter().copied().filter(|&target| !queues.is_done(target)).collect::<Vec<_>>();
        if open.is_empty() {
            return;
        }
        for (index, place) in open {
            let lane = &mut queues.lanes[index];
            lane.wake_at = lane.wake_at.min(place);
        }
        queues = wait_at(&DONE, queues, None);
    }
}

fn lanes_of(stream: &Stream) -> impl Fn(usize, &Lane) -> bool {
    let (index, life, kind) = (stream.lane, stream.owner.life, stream.kind);
    // The legacy stream's work includes all work for which that stream must wait.
    move |other, lane| other == index || (lane.life == life && kind == StreamKind::Legacy && kind.waits_for(lane.kind))
}

/// Waits until all work queued on a stream has completed.
pub(crate) fn wait_for_stream(stream: &Stream) {
    wait_for(lanes_of(stream));
}

/// Whether all work queued on a stream has completed.
pub(crate) fn is_stream_done(stream: &Stream) -> bool {
    PENDING.load(Ordering::Acquire) == 0 || queues().targets(lanes_of(stream)).is_empty()
}

/// Waits until all work queued on a context's streams has completed.
pub(crate) fn wait_for_context(context: &'static Context) {
    let life = context.life();
    wait_for(|_, lane| lane.life == life);
}

/// Waits until all work queued on a device's streams has completed.
pub(crate) fn wait_for_device(device: &Device) {
    wait_for(|_, lane| lane.ordinal == device.ordinal);
}

/// Waits until all queued work has completed.
pub(crate) fn wait_for_all() {
    wait_for(|_, _| true);
}

/// Waits for the record of an event with this number.
pub(crate) fn wait_for_event(event: &'static Event, number: u64) {
    let mut queues = queues();
    while event.completed_at(number).is_none() {
        // The record is in the queue of some lane. Marks it, so that its completion is announced.
        for lane in &mut queues.lanes {
            let records = |operation: &&Operation| matches!(&operation.work, Work::Record(other, _) if core::ptr::eq(*other, event));
            if let Some(record) = lane.operations.iter().find(records) {
                lane.wake_at = lane.wake_at.min(record.place);
            }
        }
        // Polls a shared event, because another process's record rings no bell here.
        queues = wait_at(&DONE, queues, event.is_shared.then_some(POLL));
    }
}
