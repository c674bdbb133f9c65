//! A worker of the demonstration: a plain driver-API program that knows nothing of slices.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::cuda::{Cuda, CudaError, Event as CudaEvent, Kernel, result_name};
use super::monotonic_ns;
use super::protocol::{Event, Filled, Order, Progress};
use crate::args::DemoWorkerArgs;
use crate::error::exit;

const SPIN_PTX: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("spin.ptx"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the PTX text holds a NUL"),
};
const SPIN_KERNEL: &CStr = c"spin_ns";
/// Kernels in flight: enough that the device never waits for the launching thread, few enough that a stop comes soon.
const IN_FLIGHT: usize = 4;
/// Time between two reports.
const REPORT_NS: u64 = 20_000_000;
/// The first request when memory is filled; each refusal halves it.
const FILL_BYTES_FIRST: u64 = 1 << 30;

/// Runs until standard input ends.
pub(crate) fn work(args: &DemoWorkerArgs) -> ExitCode {
    match Worker::start(args.kernel_ns).and_then(Worker::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody listens any more there is nobody to tell.
            let _ = say(&Event::Failed { message: error.to_string() });
            ExitCode::from(exit::FAILED)
        }
    }
}

struct Worker {
    cuda: Cuda,
    kernel: Kernel,
    kernel_ns: u64,
    orders: Receiver<Order>,
    /// Events to record, and those that are recorded, oldest first.
    idle: Vec<CudaEvent>,
    recorded: VecDeque<CudaEvent>,
    launching: bool,
    kernels: u64,
}

impl Worker {
    fn start(kernel_ns: u64) -> Result<Worker, CudaError> {
        let cuda = Cuda::open()?;
        let kernel = cuda.kernel(SPIN_PTX, SPIN_KERNEL)?;
        let idle = (0..IN_FLIGHT).map(|_| cuda.event()).collect::<Result<_, _>>()?;
        let (sender, orders) = mpsc::channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                // What is no order ends the worker, as the end of the input does.
                let Some(order) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return };
                if sender.send(order).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { cuda, kernel, kernel_ns, orders, idle, recorded: VecDeque::new(), launching: false, kernels: 0 })
    }

    fn run(mut self) -> Result<(), CudaError> {
        let (_, total_bytes) = self.cuda.memory_info()?;
        if say(&Event::Ready { total_bytes }).is_err() {
            return Ok(());
        }
        let mut reported_ns = 0;
        loop {
            // While it launches it looks for orders between kernels; otherwise it has nothing else to do.
            let timeout = if self.launching { Duration::ZERO } else { Duration::from_secs(3600) };
            let said = match self.orders.recv_timeout(timeout) {
                Ok(order) => self.obey(order)?.map_or(Ok(()), |event| say(&event)),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if said.is_err() {
                return Ok(());
            }
            if self.launching {
                self.launch_one()?;
                let at_ns = monotonic_ns();
                if at_ns - reported_ns >= REPORT_NS {
                    reported_ns = at_ns;
                    if say(&Event::Progress(Progress { at_ns, kernels: self.kernels })).is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Puts a kernel in flight; if there are enough, waits for the oldest first.
    fn launch_one(&mut self) -> Result<(), CudaError> {
        let event = match self.idle.pop() {
            Some(event) => event,
            None => match self.recorded.pop_front() {
                Some(oldest) => {
                    self.cuda.wait(oldest)?;
                    self.kernels += 1;
                    oldest
                }
                None => self.cuda.event()?,
            },
        };
        self.cuda.launch(self.kernel, self.kernel_ns, event)?;
        self.recorded.push_back(event);
        Ok(())
    }

    fn obey(&mut self, order: Order) -> Result<Option<Event>, CudaError> {
        match order {
            Order::Launch => {
                self.launching = true;
                Ok(None)
            }
            Order::Take { bytes } => {
                let refusal = match self.cuda.allocate(bytes) {
                    Ok(pointer) => {
                        self.cuda.free(pointer)?;
                        None
                    }
                    Err(refusal) => Some(result_name(refusal)),
                };
                Ok(Some(Event::Taken { bytes, refusal }))
            }
            Order::Fill => Ok(Some(Event::Filled(self.fill()?))),
        }
    }

    /// Takes memory in ever smaller pieces, so that what is left in the end is less than the least piece.
    fn fill(&self) -> Result<Filled, CudaError> {
        let (mut piece_bytes, mut allocated_bytes) = (FILL_BYTES_FIRST, 0);
        loop {
            match self.cuda.allocate(piece_bytes) {
                Ok(_) => allocated_bytes += piece_bytes,
                Err(refusal) if piece_bytes == 1 => {
                    let (free_bytes, total_bytes) = self.cuda.memory_info()?;
                    let refusal = result_name(refusal);
                    return Ok(Filled { allocated_bytes, refusal, free_bytes, total_bytes });
                }
                Err(_) => piece_bytes /= 2,
            }
        }
    }
}

fn say(event: &Event) -> std::io::Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}
