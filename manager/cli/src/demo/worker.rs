//! A worker of the demonstration: a plain driver-API program that knows nothing about slices.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::monotonic_ns;
use super::protocol::{Event, Filled, Order, Progress};
use crate::args::DemoWorkerArgs;
use crate::device_work::{CudaError, DeviceWork, result_name};
use crate::error::exit;

/// Time between two reports.
const REPORT_NS: u64 = 20_000_000;
/// The first request when filling memory; each refusal halves it.
const FILL_BYTES_FIRST: u64 = 1 << 30;

/// Runs until standard input ends.
pub(crate) fn work(args: &DemoWorkerArgs) -> ExitCode {
    match Worker::start(args.kernel_ns).and_then(Worker::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The write fails if the reader is gone; then there is nothing else to do.
            let _ = say(&Event::Failed { message: error.to_string() });
            ExitCode::from(exit::FAILED)
        }
    }
}

struct Worker {
    work: DeviceWork,
    orders: Receiver<Order>,
    launching: bool,
}

impl Worker {
    fn start(kernel_ns: u64) -> Result<Worker, CudaError> {
        let work = DeviceWork::open(kernel_ns)?;
        let (sender, orders) = mpsc::channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                // An invalid order ends the worker, as the end of the input does.
                let Some(order) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return };
                if sender.send(order).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { work, orders, launching: false })
    }

    fn run(mut self) -> Result<(), CudaError> {
        let (_, total_bytes) = self.work.cuda.memory_info()?;
        if say(&Event::Ready { total_bytes }).is_err() {
            return Ok(());
        }
        let mut reported_ns = 0;
        loop {
            // While it launches, it polls for orders between kernels; otherwise it blocks.
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
                self.work.launch_one()?;
                let at_ns = monotonic_ns();
                if at_ns - reported_ns >= REPORT_NS {
                    reported_ns = at_ns;
                    if say(&Event::Progress(Progress { at_ns, kernels: self.work.completed() })).is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn obey(&mut self, order: Order) -> Result<Option<Event>, CudaError> {
        match order {
            Order::Launch => {
                self.launching = true;
                Ok(None)
            }
            Order::Take { bytes } => {
                let refusal = match self.work.cuda.allocate(bytes) {
                    Ok(pointer) => {
                        self.work.cuda.free(pointer)?;
                        None
                    }
                    Err(refusal) => Some(result_name(refusal)),
                };
                Ok(Some(Event::Taken { bytes, refusal }))
            }
            Order::Fill => Ok(Some(Event::Filled(self.fill()?))),
        }
    }

    /// Takes memory in ever smaller pieces, until not even one byte is given.
    fn fill(&self) -> Result<Filled, CudaError> {
        let (mut piece_bytes, mut allocated_bytes) = (FILL_BYTES_FIRST, 0);
        loop {
            match self.work.cuda.allocate(piece_bytes) {
                Ok(_) => allocated_bytes += piece_bytes,
                Err(refusal) if piece_bytes == 1 => {
                    let (free_bytes, total_bytes) = self.work.cuda.memory_info()?;
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
