//! Stream capture: calls become nodes of a graph instead of work, and calls that cannot be captured are refused.
//!
//! All captures of the process are under one lock, which is taken only while at least one is active.

mod information;

use core::cell::Cell;
use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUgraphNode, CUmemPoolProps, CUresult, CUstream, NullStream,
};

use crate::Done;
use crate::caller::{get, not_null, put};
use crate::events::Event;
use crate::graph_memory::GraphMemory;
use crate::graph_nodes::NodeKind;
use crate::graphs::{self, Graph};
use crate::streams::{Stream, StreamKind, stream};
pub(crate) use information::*;

/// The threads whose unsafe calls a capture forbids. For a thread: the captures whose prohibitions apply to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    fn from_number(number: c_uint) -> Done<Mode> {
        match number {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

struct Capture {
    id: u64,
    mode: Mode,
    thread: u64,
    /// The id of the stream on which it began.
    origin: u64,
    graph: CUgraph,
    /// Whether the capture adds to an existing graph of the program.
    into_existing: bool,
    invalidated: bool,
    streams: Vec<CapturedStream>,
}

/// A stream that a capture has reached.
struct CapturedStream {
    id: u64,
    life: u32,
    kind: StreamKind,
    /// The nodes on which the stream's next node will depend.
    frontier: Vec<CUgraphNode>,
}

/// The position in a capture at which an event was recorded.
#[derive(Clone)]
pub(crate) struct CapturedAt {
    capture: u64,
    nodes: Vec<CUgraphNode>,
}

/// How a call is handled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Issue {
    /// It has become a node.
    Captured,
    /// It must be carried out now.
    Run,
}

static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
/// Number of active captures, so that calls need no lock when there is none.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

fn captures() -> MutexGuard<'static, Vec<Capture>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that identifies the calling thread.
fn this_thread() -> u64 {
    if THREAD.get() == 0 {
        THREAD.set(NEXT_ID.fetch_add(1, Ordering::Relaxed));
    }
    THREAD.get()
}

/// Whether any stream of the process is capturing.
#[inline]
pub(crate) fn any_active() -> bool {
    ACTIVE.load(Ordering::Acquire) != 0
}

impl Capture {
    fn has(&self, stream: &Stream) -> bool {
        self.streams.iter().any(|captured| captured.id == stream.id)
    }

    /// The stream's state in this capture, if the capture is still valid.
    fn valid_stream(&mut self, stream: &Stream) -> Done<&mut CapturedStream> {
        if self.invalidated {
            return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
        }
        let captured = self.streams.iter_mut().find(|captured| captured.id == stream.id);
        captured.ok_or(CUresult::ILLEGAL_STATE)
    }

    fn graph(&self) -> Done<&'static Graph> {
        graphs::graph(self.graph)
    }

    fn forbids_unsafe_calls_of(&self, thread: u64, mode: Mode) -> bool {
        let own = self.thread == thread && self.mode != Mode::Relaxed;
        match mode {
            Mode::Global => own || self.mode == Mode::Global,
            Mode::ThreadLocal => own,
            Mode::Relaxed => false,
        }
    }
}

/// The capture that includes a stream. Using the legacy stream while a stream that synchronises with it is capturing is
/// an error, and invalidates that capture if `invalidate` is true.
fn capture_of<'a>(captures: &'a mut [Capture], stream: &Stream, invalidate: bool) -> Done<Option<&'a mut Capture>> {
    if stream.kind == StreamKind::Legacy {
        let life = stream.owner.life;
        let waits = |captured: &CapturedStream| captured.life == life && captured.kind == StreamKind::Blocking;
        let mut implied = captures.iter_mut().filter(|capture| capture.streams.iter().any(waits)).peekable();
        if implied.peek().is_none() {
            return Ok(None);
        }
        implied.for_each(|capture| capture.invalidated |= invalidate);
        return Err(CUresult::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(captures.iter_mut().find(|capture| capture.has(stream)))
}

/// Refuses a call that may wait for or change other work, if a capture forbids that. The capture is invalid then.
pub(crate) fn check_unsafe_call() -> Done {
    if !any_active() {
        return Ok(());
    }
    let (thread, mode) = (this_thread(), MODE.get());
    let mut result = Ok(());
    for capture in captures().iter_mut().filter(|capture| capture.forbids_unsafe_calls_of(thread, mode)) {
        capture.invalidated = true;
        result = Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    }
    result
}

/// Refuses to wait for or query a stream that is capturing.
pub(crate) fn check_synchronise(stream: &Stream) -> Done {
    if !any_active() {
        return Ok(());
    }
    refuse_in_capture(stream)?;
    check_unsafe_call()
}

/// Refuses, on a capturing stream, a call that cannot become a node.
pub(crate) fn refuse_in_capture(stream: &Stream) -> Done {
    if !any_active() {
        return Ok(());
    }
    match capture_of(&mut captures(), stream, true)? {
        Some(capture) => {
            capture.invalidated = true;
            Err(CUresult::STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Whether calls on a stream become nodes.
pub(crate) fn is_capturing(stream: &Stream) -> Done<bool> {
    if !any_active() {
        return Ok(false);
    }
    Ok(capture_of(&mut captures(), stream, true)?.is_some())
}

/// Makes a call a node if its stream is capturing.
#[inline]
pub(crate) fn issue(stream: &'static Stream, kind: impl FnOnce() -> NodeKind) -> Done<Issue> {
    issue_with(stream, || Ok(kind()))
}

/// As [`issue`], for a node whose creation can fail.
#[inline]
pub(crate) fn issue_with(stream: &'static Stream, kind: impl FnOnce() -> Done<NodeKind>) -> Done<Issue> {
    if !any_active() {
        return Ok(Issue::Run);
    }
    let mut captures = captures();
    let Some(capture) = capture_of(&mut captures, stream, true)? else { return Ok(Issue::Run) };
    let graph = capture.graph()?;
    let handle = capture.graph;
    let captured = capture.valid_stream(stream)?;
    let node = graph.add(handle, kind()?, captured.frontier.clone());
    captured.frontier = vec![node];
    Ok(Issue::Captured)
}

/// Adds an allocation to the graph that a stream captures.
pub(crate) fn allocate(stream: &'static Stream, pool_props: CUmemPoolProps, bytes: u64) -> Done<u64> {
    // A graph takes only the location from the pool's properties.
    let pool_props = CUmemPoolProps { handle_types: 0, max_size_bytes: 0, ..pool_props };
    let memory = GraphMemory::new(CUDA_MEM_ALLOC_NODE_PARAMS {
        pool_props,
        access_descs: core::ptr::null(),
        access_desc_count: 0,
        bytesize: bytes as usize,
        dptr: 0,
    })?;
    let address = memory.address();
    match issue(stream, || NodeKind::MemoryAllocation(memory))? {
        Issue::Captured => Ok(address),
        Issue::Run => Err(CUresult::ILLEGAL_STATE),
    }
}

/// Records an event in a capture. False if the stream is not capturing.
pub(crate) fn record_event(stream: &'static Stream, event: &'static Event, external: bool) -> Done<bool> {
    if external {
        let issue = issue(stream, || NodeKind::EventRecord(event))?;
        // Outside a capture the flag is an error.
        return if issue == Issue::Captured { Ok(true) } else { Err(CUresult::INVALID_VALUE) };
    }
    if !any_active() {
        return Ok(false);
    }
    let mut captures = captures();
    let Some(capture) = capture_of(&mut captures, stream, true)? else { return Ok(false) };
    let id = capture.id;
    let nodes = capture.valid_stream(stream)?.frontier.clone();
    *event.captured() = Some(CapturedAt { capture: id, nodes });
    Ok(true)
}

/// Makes a stream wait for an event in a capture. False if neither is in one.
pub(crate) fn wait_event(stream: &'static Stream, event: &'static Event, external: bool) -> Done<bool> {
    let recorded = event.captured().clone();
    if external {
        let issue = issue(stream, || NodeKind::EventWait(event))?;
        return if issue == Issue::Captured { Ok(true) } else { Err(CUresult::INVALID_VALUE) };
    }
    if !any_active() {
        return if recorded.is_some() { Err(CUresult::CAPTURED_EVENT) } else { Ok(false) };
    }
    let mut captures = captures();
    let own = capture_of(&mut captures, stream, true)?.map(|capture| capture.id);
    match (own, recorded) {
        (None, None) => Ok(false),
        (Some(own), None) => {
            invalidate(&mut captures, own);
            Err(CUresult::STREAM_CAPTURE_ISOLATION)
        }
        (Some(own), Some(recorded)) if own != recorded.capture => {
            invalidate(&mut captures, own);
            invalidate(&mut captures, recorded.capture);
            Err(CUresult::STREAM_CAPTURE_MERGE)
        }
        (_, Some(recorded)) => {
            let capture = captures.iter_mut().find(|capture| capture.id == recorded.capture);
            join(capture.ok_or(CUresult::CAPTURED_EVENT)?, stream, &recorded)
        }
    }
}

/// Lets a stream depend on an event of a capture; the stream becomes part of the capture.
fn join(capture: &mut Capture, stream: &Stream, recorded: &CapturedAt) -> Done<bool> {
    if capture.invalidated {
        return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
    }
    if stream.kind == StreamKind::Legacy {
        capture.invalidated = true;
        return Err(CUresult::STREAM_CAPTURE_IMPLICIT);
    }
    if !capture.has(stream) {
        capture.streams.push(CapturedStream::new(stream));
    }
    let captured = capture.valid_stream(stream)?;
    for node in &recorded.nodes {
        if !captured.frontier.contains(node) {
            captured.frontier.push(*node);
        }
    }
    Ok(true)
}

fn invalidate(captures: &mut [Capture], id: u64) {
    captures.iter_mut().filter(|capture| capture.id == id).for_each(|capture| capture.invalidated = true);
}

impl CapturedStream {
    fn new(stream: &Stream) -> CapturedStream {
        CapturedStream { id: stream.id, life: stream.owner.life, kind: stream.kind, frontier: Vec::new() }
    }
}

/// Invalidates the capture that includes a destroyed stream.
pub(crate) fn stream_destroyed(stream: &Stream) {
    if any_active() {
        for capture in captures().iter_mut().filter(|capture| capture.has(stream)) {
            capture.invalidated = true;
        }
    }
}

/// Begins a capture on a stream: into a new graph, or into an existing one after some of its nodes.
fn begin(stream: &'static Stream, mode: c_uint, into: Option<(CUgraph, Vec<CUgraphNode>)>) -> Done {
    let mode = Mode::from_number(mode)?;
    if stream.kind == StreamKind::Legacy {
        return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut captures = captures();
    if captures.iter().any(|capture| capture.has(stream)) {
        return Err(CUresult::ILLEGAL_STATE);
    }
    let into_existing = into.is_some();
    let (graph, frontier) = into.unwrap_or_else(|| (graphs::create(), Vec::new()));
    captures.push(Capture {
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        mode,
        thread: this_thread(),
        origin: stream.id,
        graph,
        into_existing,
        invalidated: false,
        streams: vec![CapturedStream { frontier, ..CapturedStream::new(stream) }],
    });
    ACTIVE.fetch_add(1, Ordering::Release);
    Ok(())
}

pub(crate) fn cuStreamBeginCapture_v2(null: NullStream, handle: CUstream, mode: c_uint) -> Done {
    begin(stream(null, handle)?, mode, None)
}

pub(crate) fn cuStreamBeginCaptureToGraph(
    null: NullStream,
    handle: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const c_void,
    count: usize,
    mode: c_uint,
) -> Done {
    let stream = stream(null, handle)?;
    graphs::graph(graph)?;
    graphs::check_edge_data(data, count)?;
    begin(stream, mode, Some((graph, graphs::read_dependencies(graph, dependencies, count)?)))
}

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`: replaces the dependencies. With 0 they are added.
const SET_DEPENDENCIES: c_uint = 1;

/// Changes the nodes on which a stream's next node will depend.
pub(crate) fn cuStreamUpdateCaptureDependencies(
    null: NullStream,
    handle: CUstream,
    dependencies: *mut CUgraphNode,
    count: usize,
    flags: c_uint,
) -> Done {
    let stream = stream(null, handle)?;
    if flags > SET_DEPENDENCIES {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut captures = captures();
    let capture = capture_of(&mut captures, stream, true)?.ok_or(CUresult::ILLEGAL_STATE)?;
    let nodes = graphs::read_dependencies(capture.graph, dependencies, count)?;
    let frontier = &mut capture.valid_stream(stream)?.frontier;
    if flags == SET_DEPENDENCIES {
        frontier.clear();
    }
    for node in nodes {
        if !frontier.contains(&node) {
            frontier.push(node);
        }
    }
    Ok(())
}

pub(crate) fn cuStreamUpdateCaptureDependencies_v2(
    null: NullStream,
    handle: CUstream,
    dependencies: *mut CUgraphNode,
    data: *const c_void,
    count: usize,
    flags: c_uint,
) -> Done {
    graphs::check_edge_data(data, count)?;
    cuStreamUpdateCaptureDependencies(null, handle, dependencies, count, flags)
}

pub(crate) fn cuStreamBeginCapture(null: NullStream, handle: CUstream) -> Done {
    cuStreamBeginCapture_v2(null, handle, 0)
}

pub(crate) fn cuStreamEndCapture(null: NullStream, handle: CUstream, target: *mut CUgraph) -> Done {
    let stream = stream(null, handle)?;
    not_null(target)?;
    let mut captures = captures();
    let place = captures.iter().position(|capture| capture.has(stream));
    let place = place.ok_or(CUresult::ILLEGAL_STATE)?;
    let capture = &mut captures[place];
    if capture.thread != this_thread() && capture.mode != Mode::Relaxed {
        return Err(CUresult::STREAM_CAPTURE_WRONG_THREAD);
    }
    if capture.origin != stream.id {
        capture.invalidated = true;
        return Err(CUresult::STREAM_CAPTURE_UNMATCHED);
    }
    let capture = captures.remove(place);
    ACTIVE.fetch_sub(1, Ordering::Release);
    let result = check_joined(&capture);
    if result.is_err() && !capture.into_existing {
        graphs::destroy(capture.graph)?;
    }
    put(target, if result.is_ok() { capture.graph } else { CUgraph::NULL })?;
    result
}

/// Checks that the origin's end depends on all work of the other captured streams.
fn check_joined(capture: &Capture) -> Done {
    if capture.invalidated {
        return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
    }
    let (origin, others): (Vec<_>, Vec<_>) = capture.streams.iter().partition(|stream| stream.id == capture.origin);
    let ends = origin.iter().flat_map(|stream| stream.frontier.iter().copied()).collect::<Vec<_>>();
    let before = graphs::with_ancestors(&ends);
    let joined = others.iter().flat_map(|stream| &stream.frontier).all(|node| before.contains(node));
    if joined { Ok(()) } else { Err(CUresult::STREAM_CAPTURE_UNJOINED) }
}

pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> Done {
    crate::process::process()?;
    let new = Mode::from_number(get(mode)?)?;
    put(mode, MODE.replace(new) as c_uint)
}
