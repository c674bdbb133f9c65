//! The steps of the demonstration.

use std::io::IsTerminal;
use std::path::Path;

use aliquot_proto::node::v1::{
    Device, DeviceHealth, GetNodeRequest, GetUsageRequest, GetUsageResponse, Node, PartUsage,
};
use tokio::runtime::Runtime;

use super::monotonic_ns;
use super::program::Program;
use super::protocol::{Filled, Progress};
use crate::args::{DemoArgs, ShareArgs};
use crate::error::{Failure, Result};
use crate::quantity::{CorePercent, Memory, bytes_human, millipercent_human};
use crate::run::{OwnSlice, Supervisor};
use crate::simulated::SimulatedGpu;
use crate::{bar, client, output, parts};

/// Duration of one kernel.
const KERNEL_NS: u64 = 1_000_000;
/// Time for the shares to settle, and for the manager to learn the size of contexts, before the measurement.
const SETTLE_NS: u64 = 1_500_000_000;
/// Time between two lines of progress.
const TICK_NS: u64 = 1_000_000_000;
/// Number of progress lines during a measurement.
const PROGRESS_LINES: u64 = 5;
/// The share that the fourth slice requests while two slices have the whole device.
const FOURTH_PERCENT: u32 = 10;

/// The request of a slice of the demonstration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cast {
    /// The name of the slice.
    pub(super) name: &'static str,
    /// Share of the device's time in percent: request and limit.
    pub(super) core_percent: u32,
    /// The memory limit, in bytes.
    pub(super) memory_bytes: u64,
}

/// The result of one of the two slices that share the device.
pub(super) struct Sharer {
    /// The request of the slice.
    pub(super) cast: Cast,
    /// Kernels completed in the window, times their duration.
    pub(super) kernel_ns: u64,
    /// The window, by the worker's reports.
    pub(super) window_ns: u64,
    /// Device time that the manager charged in its window.
    pub(super) charged_ns: u64,
    /// The window, by the manager's answers.
    pub(super) charged_window_ns: u64,
    /// The memory that it got.
    pub(super) filled: Filled,
    /// The manager's figures at the end of the window.
    pub(super) usage: PartUsage,
}

/// The result of the third slice.
pub(super) struct Third {
    /// The request of the slice.
    pub(super) cast: Cast,
    /// Memory that it requested in one piece: beyond its limit, although the device has it.
    pub(super) grab_bytes: u64,
    /// The driver's refusal, if it refused.
    pub(super) grab_refusal: Option<String>,
    /// The device's memory as the third slice sees it.
    pub(super) seen_total_bytes: u64,
    /// The memory that it got.
    pub(super) filled: Filled,
    /// The manager's figures for the slice.
    pub(super) usage: PartUsage,
}

/// The results of the demonstration.
pub(super) struct Shown {
    /// The device that the slices share.
    pub(super) device: Device,
    /// Duration of the measurement.
    pub(super) seconds: u64,
    /// The two slices that share the device.
    pub(super) sharers: [Sharer; 2],
    /// The slice that wants more memory than its limit.
    pub(super) third: Third,
    /// The manager's refusal of a slice for which there is no room; `None` if it made one.
    pub(super) fourth_refusal: Option<String>,
}

/// The environment of the demonstration.
pub(super) struct Stage<'run> {
    supervisor: &'run Supervisor,
    runtime: &'run Runtime,
    socket: &'run Path,
    simulated: Option<&'run SimulatedGpu>,
    seconds: u64,
    json: bool,
    /// The device that is shared.
    pub(super) device: Device,
}

impl<'run> Stage<'run> {
    pub(super) fn new(
        supervisor: &'run Supervisor,
        runtime: &'run Runtime,
        socket: &'run Path,
        simulated: Option<&'run SimulatedGpu>,
        args: &DemoArgs,
    ) -> Result<Stage<'run>> {
        let node = runtime.block_on(async {
            let mut client = client::connect(socket).await?;
            Ok::<_, Failure>(client.get_node(GetNodeRequest {}).await?.into_inner())
        })?;
        let device = free_device(&node)?;
        Ok(Stage { supervisor, runtime, socket, simulated, seconds: args.seconds, json: args.json, device })
    }

    /// Prints the current step; to standard error if the result is JSON.
    pub(super) fn say(&self, text: &str) {
        if self.json {
            output::say_text(text);
        } else {
            // If the reader is gone, the exit code still tells the result.
            let _ = output::print(text);
        }
    }

    /// Prints the progress of a measurement: on a terminal in one line that is updated, else in a few lines.
    fn say_progress(&self, line: &str, second: u64) {
        let is_last = second == self.seconds;
        if !self.json && std::io::stdout().is_terminal() {
            self.say(&format!("\r{line}\x1b[K{}", if is_last { "\n" } else { "" }));
        } else if is_last || second.is_multiple_of(self.seconds.div_ceil(PROGRESS_LINES)) {
            self.say(&format!("{line}\n"));
        }
    }

    /// Runs all steps, and returns the results.
    pub(super) fn show(&self) -> Result<Shown> {
        let [small, large, third] = casts(self.device.memory_bytes);
        let mut programs = [self.start(small)?.0, self.start(large)?.0];
        programs.iter_mut().try_for_each(Program::launch)?;
        self.say("Two programs keep the device busy; the shares settle …\n");
        let begin_ns = monotonic_ns() + SETTLE_NS;
        for program in &mut programs {
            program.progress_at(begin_ns)?;
        }
        let [small_filled, large_filled] = {
            let [small, large] = &mut programs;
            [small.fill()?, large.fill()?]
        };
        let [before, after] = self.measure(&mut programs, [small, large])?;
        let fourth_refusal = self.fourth()?;

        let sharer = |index: usize, cast: Cast, filled| {
            let (then, now) = (part_of(&before.usage, cast.name)?, part_of(&after.usage, cast.name)?);
            Ok::<_, Failure>(Sharer {
                cast,
                kernel_ns: (after.progress[index].kernels - before.progress[index].kernels) * KERNEL_NS,
                window_ns: after.progress[index].at_ns - before.progress[index].at_ns,
                charged_ns: now.core_used_ns.saturating_sub(then.core_used_ns),
                charged_window_ns: after.asked_ns - before.asked_ns,
                filled,
                usage: now.clone(),
            })
        };
        let sharers = [sharer(0, small, small_filled)?, sharer(1, large, large_filled)?];
        // Makes room for the third slice, which starts while the first one still runs.
        let [_first, second] = programs;
        drop(second);
        let third = self.third(third)?;
        Ok(Shown { device: self.device.clone(), seconds: self.seconds, sharers, third, fourth_refusal })
    }

    fn start(&self, cast: Cast) -> Result<(Program<'run>, u64)> {
        let share = self.share(cast)?;
        let slice = OwnSlice::of_share(self.runtime, self.socket, cast.name, &share, "demonstration".to_owned())?;
        let environment = self.simulated.iter().flat_map(|simulated| simulated.environment());
        Program::start(slice, KERNEL_NS, environment, self.supervisor)
    }

    fn share(&self, cast: Cast) -> Result<ShareArgs> {
        Ok(ShareArgs {
            gpu_core: cast.core_percent.to_string().parse::<CorePercent>()?,
            gpu_core_limit: None,
            gpu_memory: Some(Memory::Bytes(cast.memory_bytes)),
            host_memory: None,
            priority: None,
            devices: 1,
            device: vec![self.device.uuid.clone()],
        })
    }

    /// Measures for the requested time. Returns the state at its beginning and at its end.
    fn measure(&self, programs: &mut [Program; 2], casts: [Cast; 2]) -> Result<[Snapshot; 2]> {
        self.say(&format!(
            "Measuring for {} s each program's share of the device's time, by completed kernels\n",
            self.seconds
        ));
        let before = self.snapshot(programs)?;
        let mut last = before.progress;
        for second in 1..=self.seconds {
            let at_ns = before.asked_ns + second * TICK_NS;
            let mut line = format!("{second:>4} s");
            for ((program, last), cast) in programs.iter_mut().zip(&mut last).zip(casts) {
                let now = program.progress_at(at_ns)?;
                let used = share_millipercent((now.kernels - last.kernels) * KERNEL_NS, now.at_ns - last.at_ns);
                let (bar, percent) = (bar::bar(used, 100_000), millipercent_human(used));
                line.push_str(&format!("   {} {bar} {percent:>5} %", cast.name));
                *last = now;
            }
            self.say_progress(&line, second);
        }
        Ok([before, self.snapshot(programs)?])
    }

    fn snapshot(&self, programs: &mut [Program; 2]) -> Result<Snapshot> {
        let usage = self.usage()?;
        let asked_ns = monotonic_ns();
        let [small, large] = programs;
        Ok(Snapshot { progress: [small.progress_at(asked_ns)?, large.progress_at(asked_ns)?], usage, asked_ns })
    }

    fn usage(&self) -> Result<GetUsageResponse> {
        self.runtime.block_on(async {
            let mut client = client::connect(self.socket).await?;
            Ok(client.get_usage(GetUsageRequest { slices: Vec::new() }).await?.into_inner())
        })
    }

    /// Requests a slice of a device that is given away completely. Returns the refusal.
    fn fourth(&self) -> Result<Option<String>> {
        let cast = Cast { name: "demo-fourth", core_percent: FOURTH_PERCENT, memory_bytes: 1 << 30 };
        let share = self.share(cast)?;
        match OwnSlice::of_share(self.runtime, self.socket, cast.name, &share, "demonstration".to_owned()) {
            Ok(_) => Ok(None),
            Err(refusal) => Ok(Some(refusal.message().to_owned())),
        }
    }

    fn third(&self, cast: Cast) -> Result<Third> {
        self.say(&format!("A third program, limited to {}, tries to take more …\n", bytes_human(cast.memory_bytes)));
        let (mut program, seen_total_bytes) = self.start(cast)?;
        let grab_bytes = cast.memory_bytes + 1;
        let grab_refusal = program.take(grab_bytes)?;
        let filled = program.fill()?;
        let usage = part_of(&self.usage()?, cast.name)?.clone();
        Ok(Third { cast, grab_bytes, grab_refusal, seen_total_bytes, filled, usage })
    }
}

/// The state at one moment.
struct Snapshot {
    progress: [Progress; 2],
    usage: GetUsageResponse,
    /// When the manager was asked.
    asked_ns: u64,
}

/// The only part of a slice of the demonstration.
fn part_of<'usage>(usage: &'usage GetUsageResponse, slice: &str) -> Result<&'usage PartUsage> {
    let found = usage.slices.iter().find(|usage| usage.name == slice).and_then(|usage| usage.parts.first());
    found.ok_or_else(|| Failure::new(format!("the node manager does not know the slice {slice:?} any more")))
}

/// A device of which no slice has a part, because the demonstration needs all of its time.
fn free_device(node: &Node) -> Result<Device> {
    let healthy = |device: &&Device| device.health() == DeviceHealth::Healthy;
    if parts::with_slices(node).next().is_none() {
        return Err(parts::no_devices(node));
    }
    let free = parts::with_slices(node).filter(healthy).find(|device| device.core_requested_percent == 0);
    free.cloned().ok_or_else(|| {
        Failure::new("every device of this node is unhealthy or partly given to a slice, and the demonstration needs a whole one")
            .hint("see: aliquot nodes; or use the simulated GPU: aliquot demo --simulated")
    })
}

/// The requests: limits that fit on a small device, and no larger than a demonstration needs.
fn casts(device_bytes: u64) -> [Cast; 3] {
    const GIB: u64 = 1 << 30;
    let part = |of: u64, most: u64| (device_bytes / of).min(most) >> 20 << 20;
    [
        Cast { name: "demo-small", core_percent: 30, memory_bytes: part(5, 4 * GIB) },
        Cast { name: "demo-large", core_percent: 70, memory_bytes: part(3, 8 * GIB) },
        Cast { name: "demo-third", core_percent: 10, memory_bytes: part(6, 2 * GIB) },
    ]
}

/// The ratio of `used_ns` to `window_ns` in thousandths of a percent.
pub(super) fn share_millipercent(used_ns: u64, window_ns: u64) -> u64 {
    (u128::from(used_ns) * 100_000 / u128::from(window_ns.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slices_fit_together_on_any_device() {
        for device_bytes in [2 << 30, 6 << 30, 80 << 30, 192u64 << 30] {
            let [small, large, third] = casts(device_bytes);
            assert_eq!(small.core_percent + large.core_percent, 100);
            assert!(small.memory_bytes + large.memory_bytes + third.memory_bytes < device_bytes);
            assert!(third.memory_bytes >= 256 << 20, "a context must fit");
        }
    }

    #[test]
    fn only_a_healthy_unused_device_is_chosen() {
        let device = |health: DeviceHealth, core_requested_percent| Device {
            health: health.into(),
            core_requested_percent,
            ..Device::default()
        };
        let node = |devices: Vec<Device>| Node { devices, ..Node::default() };
        assert!(free_device(&node(vec![device(DeviceHealth::Healthy, 10), device(DeviceHealth::Healthy, 0)])).is_ok());
        let divided = Device { mig_enabled: true, ..device(DeviceHealth::Healthy, 0) };
        let instance = Device { mig_gpu_uuid: "GPU-a".into(), ..device(DeviceHealth::Healthy, 0) };
        assert_eq!(free_device(&node(vec![divided.clone(), instance.clone()])).ok(), Some(instance));
        assert!(free_device(&node(vec![divided])).is_err());
        for devices in [vec![], vec![device(DeviceHealth::Healthy, 1)], vec![device(DeviceHealth::Unhealthy, 0)]] {
            assert!(free_device(&node(devices)).is_err());
        }
    }
}
