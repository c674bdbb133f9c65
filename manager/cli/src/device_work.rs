//! Work for a device: memory, and kernels that take a certain time and do nothing else.

mod cuda;

use std::collections::VecDeque;
use std::ffi::CStr;

use cuda::{Cuda, Event, Kernel};
pub(crate) use cuda::{CudaError, result_name};

const SPIN_PTX: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("device_work/spin.ptx"), "\0").as_bytes())
{
    Ok(text) => text,
    Err(_) => panic!("the PTX text holds a NUL"),
};
const SPIN_KERNEL: &CStr = c"spin_ns";
/// Kernels in flight: enough that the device never waits for the launching thread, and few enough to stop soon.
const IN_FLIGHT: usize = 4;

/// A plain driver-API program that launches kernels of one duration, and knows nothing about slices.
pub(crate) struct DeviceWork {
    /// The device, and the driver's functions.
    pub(crate) cuda: Cuda,
    kernel: Kernel,
    kernel_ns: u64,
    /// Free events, and recorded ones, the oldest first.
    idle: Vec<Event>,
    recorded: VecDeque<Event>,
    completed: u64,
}

impl DeviceWork {
    /// Opens the first device that this process sees, for kernels that take `kernel_ns` each.
    pub(crate) fn open(kernel_ns: u64) -> Result<DeviceWork, CudaError> {
        let cuda = Cuda::open()?;
        let kernel = cuda.kernel(SPIN_PTX, SPIN_KERNEL)?;
        let idle = (0..IN_FLIGHT).map(|_| cuda.event()).collect::<Result<_, _>>()?;
        Ok(DeviceWork { cuda, kernel, kernel_ns, idle, recorded: VecDeque::new(), completed: 0 })
    }

    /// Launches a kernel. If enough are in flight, waits for the oldest one first.
    pub(crate) fn launch_one(&mut self) -> Result<(), CudaError> {
        let event = match self.idle.pop() {
            Some(event) => event,
            None => match self.complete_oldest()? {
                Some(oldest) => oldest,
                None => self.cuda.event()?,
            },
        };
        self.cuda.launch(self.kernel, self.kernel_ns, event)?;
        self.recorded.push_back(event);
        Ok(())
    }

    /// Waits for all kernels in flight.
    pub(crate) fn complete_all(&mut self) -> Result<(), CudaError> {
        while let Some(event) = self.complete_oldest()? {
            self.idle.push(event);
        }
        Ok(())
    }

    /// Kernels that are known to be complete.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    fn complete_oldest(&mut self) -> Result<Option<Event>, CudaError> {
        let Some(oldest) = self.recorded.pop_front() else { return Ok(None) };
        self.cuda.wait(oldest)?;
        self.completed += 1;
        Ok(Some(oldest))
    }
}
