//! Room for tasks that need several whole devices of one node: how much there is, how much will be needed, and its
//! price.

use crate::decisions::placement::policy::NodeChange;
use crate::state::node::Node;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::{Bytes, MilliCpu};
use crate::vocabulary::request::Request;

/// The most levels that are told apart: one bit each.
const LEVELS_MAX: usize = 8;

/// The price of room for tasks of a number of devices, in thousandths of a device for each task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPrice {
    /// The price when there is plenty of room.
    pub always: i32,
    /// An addition to the price: twice this without any room, half of it with the needed room, and 0 with twice the
    /// needed room.
    pub short: i32,
    /// The room that is needed for each expected task, in thousandths, if such tasks are few. It rises with their part
    /// of all work. Of all weights, this is a sensitive one: 10 % more or less cost 0.4 to 0.5 points on trace cpu250.
    pub needed: u64,
    /// The room that is needed in any case, in thousandths of a task's room.
    pub reserve: u64,
}

/// A level: tasks with nearly the same needs.
#[derive(Clone, Debug)]
struct Level {
    devices: u16,
    cpu: MilliCpu,
    memory: Bytes,
    /// The number of tasks of the mix that need at least this, with the same number of devices.
    tasks: u64,
    /// The room that is needed for each expected task, in thousandths.
    needed: u64,
    /// The room that is needed in any case, in thousandths.
    reserve: u64,
    price: HostPrice,
}

/// The levels of a mix, and the room for each level.
///
/// A task for eight whole devices fails when no idle node is left, even if hundreds of devices are free. Without a
/// price, no idle nodes are kept for it. With a fixed price, they are kept too early, when it does not matter, or given
/// away too late. The price here follows from what is left: tasks of the mix will fill the free devices, and a known
/// part of these tasks needs such nodes. As long as there are more nodes than that, they cost little.
///
/// If tasks end, the cluster does not fill up. The number of running tasks of a level varies by chance, by about the
/// square root of the number, and so does the room that they need. Small tasks would soon take the nodes that such
/// tasks leave, and would hardly ever leave a whole node themselves.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    levels: Vec<Level>,
    /// Device time that the mix's tasks ask for, in thousandths of a device.
    mix_core: u64,
    /// For each node: for how many tasks of each level it has room, its free device time, and its number of devices.
    nodes: Vec<([u16; LEVELS_MAX], u32, u16)>,
    room: [u64; LEVELS_MAX],
    /// Free time of all devices, in thousandths of a device.
    free: u64,
    /// Number of all devices.
    devices: u64,
    /// Room that is needed in addition, in thousandths of the standard deviation of the number of running tasks.
    deviations: u64,
    prices: [i32; LEVELS_MAX],
    /// The factor by which prices are multiplied.
    scale: i32,
}

impl Hosts {
    /// The levels of a mix. `price` gives the price of room for a number of devices.
    pub(crate) fn new(mix: &Mix, scale: i32, price: impl Fn(u16) -> HostPrice) -> Self {
        let mut tasks: Vec<(u16, MilliCpu, Bytes, u64)> = mix
            .requests()
            .filter(|(request, _)| request.devices.count > 1 && request.devices.takes_whole_devices())
            .map(|(request, count)| (power_of_two(request.devices.count), request.cpu, request.memory, count))
            .collect();
        // The most demanding first.
        tasks.sort_unstable_by(|left, right| right.cmp(left));
        let mut levels: Vec<Level> = Vec::new();
        for (devices, cpu, memory, count) in tasks {
            match levels.last_mut().filter(|level| level.devices == devices) {
                // Up to a tenth less CPU belongs to the same level.
                Some(level) if cpu.get().saturating_mul(10) >= level.cpu.get().saturating_mul(9) => {
                    level.memory = level.memory.max(memory);
                    level.tasks += count;
                }
                same => {
                    let more_demanding = same.map_or(0, |level| level.tasks);
                    let (tasks, price) = (more_demanding + count, price(devices));
                    let needed = price.needed.saturating_mul(1000) / (1000 - part_of_demand(mix, devices));
                    levels.push(Level { devices, cpu, memory, tasks, needed, reserve: price.reserve, price });
                }
            }
        }
        levels.truncate(LEVELS_MAX);
        Self {
            levels,
            mix_core: mix.device_core().max(1),
            nodes: Vec::new(),
            room: [0; LEVELS_MAX],
            free: 0,
            devices: 0,
            deviations: 0,
            prices: [0; LEVELS_MAX],
            scale,
        }
    }

    /// Updates a node that was added or removed, or that has changed.
    pub(crate) fn learn(&mut self, change: NodeChange<'_>) {
        let id = change.id;
        if self.nodes.len() <= id.index() {
            self.nodes.resize(id.index() + 1, ([0; LEVELS_MAX], 0, 0));
        }
        let node = change.node.filter(|node| !node.spec().cordoned);
        let mut room = [0; LEVELS_MAX];
        if let Some(node) = node {
            for (room, level) in room.iter_mut().zip(&self.levels) {
                *room = level.room(node);
            }
        }
        let free = node.map_or(0, Node::usable_thousandths);
        let devices = node.map_or(0, |node| u16::try_from(node.devices().len()).unwrap_or(u16::MAX));
        let (old_room, old_free, old_devices) = std::mem::replace(&mut self.nodes[id.index()], (room, free, devices));
        self.free = self.free + u64::from(free) - u64::from(old_free);
        for ((sum, room), old) in self.room.iter_mut().zip(room).zip(old_room) {
            *sum = *sum + u64::from(room) - u64::from(old);
        }
        if devices != old_devices {
            self.devices = self.devices + u64::from(devices) - u64::from(old_devices);
            self.set_reserves();
        }
        self.set_prices();
    }

    /// Sets how much more room is needed from now on, in thousandths of a standard deviation.
    pub(crate) fn turnover(&mut self, deviations: u64) {
        self.deviations = deviations;
        self.set_reserves();
        self.set_prices();
    }

    fn set_reserves(&mut self) {
        for level in &mut self.levels {
            // The number of running tasks of this level when all devices are in use, in millionths. The variance of
            // this number is the number itself. So the square root of these millionths is its standard deviation in
            // thousandths.
            let running =
                u128::from(level.tasks) * u128::from(self.devices) * 1_000_000_000 / u128::from(self.mix_core);
            let deviation = u64::try_from(running).unwrap_or(u64::MAX).isqrt();
            level.reserve = level.price.reserve.saturating_add(deviation.saturating_mul(self.deviations) / 1000);
        }
    }

    /// The levels for which a node with these free amounts has room, one bit each.
    pub(crate) fn levels(&self, idle_devices: u16, cpu: MilliCpu, memory: Bytes) -> u8 {
        let mut levels = 0;
        for (bit, level) in self.levels.iter().enumerate() {
            if idle_devices >= level.devices && cpu >= level.cpu && memory >= level.memory {
                levels |= 1 << bit;
            }
        }
        levels
    }

    /// The present price of room for these levels.
    pub(crate) fn price(&self, levels: u8) -> i32 {
        let prices = self.prices.iter().enumerate().filter(|(bit, _)| levels >> bit & 1 == 1);
        prices.map(|(_, price)| *price).sum()
    }

    fn set_prices(&mut self) {
        for ((price, level), room) in self.prices.iter_mut().zip(&self.levels).zip(self.room) {
            // Tasks of this level among those that will fill the free devices, in 16ths, and the room for them, in
            // thousandths.
            let expected = (level.tasks.saturating_mul(self.free) / (self.mix_core / 16).max(1)).min(1 << 40);
            let needed = (expected.saturating_mul(level.needed) / 16).saturating_add(level.reserve);
            let there = room.saturating_mul(1000);
            // short = 1 − (there / needed) / 2, in 1024ths; 0 if there is at least twice as much as needed.
            let short = if there / 2 >= needed { 0 } else { 1024 - 512 * there / needed };
            let short = i64::try_from(short).unwrap_or(0);
            // Squared, so that the price rises steeply as room runs out.
            let risen = (i64::from(level.price.short) * i64::from(self.scale) * (short * short)) >> 19;
            *price = level.price.always * self.scale + i32::try_from(risen).unwrap_or(i32::MAX);
        }
    }
}

/// The part of a mix's demand that is for at least this many whole devices, in thousandths, at most 900. It
/// approximates the part of all room that will be needed: other demand can be placed elsewhere.
fn part_of_demand(mix: &Mix, devices: u16) -> u64 {
    let whole =
        |request: &Request| request.devices.takes_whole_devices() && power_of_two(request.devices.count) >= devices;
    let demand = |(request, tasks): (&Request, u64)| u128::from(request.total_core()) * u128::from(tasks);
    let all: u128 = mix.requests().map(demand).sum();
    let part: u128 = mix.requests().filter(|(request, _)| whole(request)).map(demand).sum();
    u64::try_from(part * 1000 / all.max(1)).unwrap_or(0).min(900)
}

/// The number of devices, rounded up to a power of two.
fn power_of_two(devices: u16) -> u16 {
    devices.checked_next_power_of_two().unwrap_or(u16::MAX)
}

impl Level {
    /// For how many tasks of this level a node has room.
    fn room(&self, node: &Node) -> u16 {
        if node.memory_free() < self.memory {
            return 0;
        }
        let by_cpu = node.cpu_free().get().checked_div(self.cpu.get()).unwrap_or(u64::MAX);
        u16::try_from(by_cpu).unwrap_or(u16::MAX).min(node.idle_devices() / self.devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::node::Node;
    use crate::state::node_parts::NodeParts;
    use crate::vocabulary::claim::NodeId;
    use crate::vocabulary::device_request::DeviceRequest;
    use crate::vocabulary::spec::{DeviceSpec, NodeSpec};

    #[test]
    fn the_part_of_all_work_that_needs_so_many_devices_is_by_device_time() {
        let whole = |count| Request { devices: DeviceRequest::whole(count), ..Request::default() };
        let mix = Mix::counted([(whole(1), 8), (whole(4), 2), (whole(8), 3)]);
        assert_eq!([2, 4, 8].map(|devices| part_of_demand(&mix, devices)), [800, 800, 600]);
        assert_eq!(part_of_demand(&Mix::counted([(whole(8), 1)]), 8), 900, "never all of it");
        assert_eq!(part_of_demand(&Mix::default(), 2), 0);
    }

    #[test]
    fn turnover_makes_room_dearer_by_how_much_it_goes_up_and_down() {
        let whole = |count| Request { devices: DeviceRequest::whole(count), ..Request::default() };
        let mix = Mix::counted([(whole(1), 72), (whole(8), 1)]);
        let price = HostPrice { always: 10, short: 1000, needed: 1000, reserve: 0 };
        let mut hosts = Hosts::new(&mix, 1, |_| price);
        let spec = NodeSpec { devices: vec![DeviceSpec::default(); 8], ..NodeSpec::default() };
        for id in 0..90 {
            let node = Node::new(NodeParts::default().join(spec.clone(), &[0; 8]));
            hosts.learn(NodeChange { id: NodeId(id), node: Some(&node), spec: true });
        }
        // Nine tasks for eight devices run when all is in use, three more or fewer. Room is needed for ten, and there is
        // some for 90.
        assert_eq!(hosts.price(1), 10);
        hosts.turnover(11_000);
        assert_eq!(hosts.price(1), 10, "with 33 more, 43 are needed, and there is twice as much");
        hosts.turnover(26_667);
        assert_eq!(hosts.price(1), 10 + 500, "with 80 more, just as much is needed as there is");
        hosts.turnover(0);
        assert_eq!(hosts.price(1), 10);
    }
}
