//! How much of the expected work a node has room for, by the resource that runs out first there.

use crate::decisions::placement::policies::expected_waste::cpu_supply::CPU_MAX;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::{Bytes, MilliCpu};
use crate::vocabulary::request::Request;

/// How many times a free device counts, in halves. The proportions of a mix are means, and many tasks ask for more CPU
/// and memory for a device. So a node can still use more CPU and memory than its devices need as a mean.
const DEVICES_HALVES: i64 = 3;

/// The most memory that is computed with: a petabyte.
const MEMORY_MIB_MAX: i64 = 1 << 30;

/// Parts are kept in 2^20ths.
const PART_BITS: u32 = 20;

/// How much device time a mix asks for with CPU and with memory. It says for how much typical work a node has room.
///
/// Where memory runs out first, a task takes as much of this room as it asks for memory, and its CPU costs nothing.
/// Where CPU runs out first, it is the other way round. So a task with much CPU goes where memory is short, and a task
/// with much memory where CPU is. Between nodes that lack the same, this makes no difference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypicalWork {
    /// Thousandths of a device for a thousandth of a core, in 2^20ths; `None` if no task of the mix asks for CPU.
    by_cpu: Option<i64>,
    /// Thousandths of a device for a MiB of memory, in 2^20ths; `None` if no task of the mix asks for memory.
    by_memory: Option<i64>,
}

impl TypicalWork {
    /// The proportions of a mix.
    pub(crate) fn new(mix: &Mix) -> Self {
        let all = |amount: &dyn Fn(&Request) -> u64| {
            mix.requests().map(|(request, tasks)| u128::from(amount(request)) * u128::from(tasks)).sum::<u128>()
        };
        let devices = u128::from(mix.device_core()) << PART_BITS;
        // At most 2^32, so that a product with the most CPU or memory is an i64.
        let part = |all: u128| devices.checked_div(all).map(|part| part.min(1 << 32) as i64);
        Self {
            by_cpu: part(all(&|request| request.cpu.get())),
            by_memory: part(all(&|request| request.memory.get()) >> 20),
        }
    }

    /// The device time of the typical work for which there is room in this much device time, CPU and memory, in
    /// thousandths of a device.
    pub(crate) fn room(self, devices: i64, cpu: MilliCpu, memory: Bytes) -> i64 {
        let of = |amount: u64, most: i64, part: Option<i64>| {
            part.map_or(i64::MAX, |part| (i64::try_from(amount).unwrap_or(most).min(most) * part) >> PART_BITS)
        };
        let by_cpu = of(cpu.get(), CPU_MAX, self.by_cpu);
        let by_memory = of(memory.get() >> 20, MEMORY_MIB_MAX, self.by_memory);
        by_cpu.min(by_memory).min(devices * DEVICES_HALVES / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::device_request::DeviceRequest;

    /// A task for one device with this much CPU and memory.
    fn task(cores: u64, memory_gib: u64) -> Request {
        let devices = DeviceRequest::whole(1);
        Request {
            cpu: MilliCpu::new(cores * 1000),
            memory: Bytes::from_mib(memory_gib << 10),
            devices,
            ..Request::default()
        }
    }

    fn room(mix: &[&Request], devices: i64, cores: u64, memory_gib: u64) -> i64 {
        let mix = Mix::of(mix.iter().copied());
        TypicalWork::new(&mix).room(devices, MilliCpu::new(cores * 1000), Bytes::from_mib(memory_gib << 10))
    }

    #[test]
    fn the_scarcest_resource_says_how_much_work_has_room() {
        let (small, large) = (task(4, 24), task(12, 40));
        let room = |devices, cores, memory_gib| room(&[&small, &large], devices, cores, memory_gib);
        // A task asks for 8 cores and 32 GiB as a mean.
        assert_eq!(room(8000, 32, 256), 4000, "CPU for four tasks");
        assert_eq!(room(8000, 64, 64), 2000, "memory for two tasks");
        assert_eq!(room(2000, 64, 256), 3000, "two devices, which count as three");
        assert_eq!(room(0, 64, 256), 0);
    }

    #[test]
    fn what_no_task_asks_for_limits_nothing() {
        assert_eq!(room(&[&task(8, 0)], 8000, 32, 0), 4000);
        assert_eq!(room(&[&task(0, 32)], 8000, 0, 64), 2000);
        let without = Request { devices: DeviceRequest::default(), ..task(8, 32) };
        assert_eq!(room(&[&without], 8000, 64, 256), 0, "no device time goes with CPU and memory");
        assert_eq!(room(&[], 8000, 64, 256), 12_000);
    }

    #[test]
    fn any_amounts_are_taken() {
        let least = Request { cpu: MilliCpu::new(1), memory: Bytes::new(1), ..task(0, 0) };
        let most = Request { cpu: MilliCpu::new(u64::MAX), memory: Bytes::new(u64::MAX), ..task(0, 0) };
        for mix in [Mix::of([&least]), Mix::of([&most]), Mix::counted([(least.clone(), u64::MAX)])] {
            let work = TypicalWork::new(&mix);
            let room = work.room(1_000_000, MilliCpu::new(u64::MAX), Bytes::new(u64::MAX));
            assert!((0..=1_500_000).contains(&room), "{room}");
        }
    }
}
