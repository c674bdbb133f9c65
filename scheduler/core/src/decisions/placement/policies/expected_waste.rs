//! The default policy: places a task where it makes the least room unusable for the expected work.

mod cpu_supply;
mod fixed_point;
mod hosts;
mod packing_prices;
mod scarcity;
mod typical_work;
mod waste;

pub use hosts::HostPrice;

use crate::decisions::placement::devices::chosen;
use crate::decisions::placement::fitting::fitting_devices;
use crate::decisions::placement::policies::expected_waste::cpu_supply::{CPU_MAX, CpuSupply};
use crate::decisions::placement::policies::expected_waste::hosts::Hosts;
use crate::decisions::placement::policies::expected_waste::scarcity::Scarcity;
use crate::decisions::placement::policies::expected_waste::typical_work::TypicalWork;
use crate::decisions::placement::policies::expected_waste::waste::WasteTables;
use crate::decisions::placement::policy::{Bid, Choice, NodeChange, Policy};
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::MilliCpu;
use crate::vocabulary::request::Request;

/// Units of cost for a thousandth of a device.
const UNIT: i64 = 64;

/// The weights of the considerations. Amounts are in thousandths of a device unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weights {
    /// The weight of waste on devices, in thousandths.
    pub waste: i64,
    /// The weight of devices that the node's CPU cannot feed, in thousandths. It counts only as long as no tasks
    /// end. With turnover, on 150 equal nodes of 8 devices and 96 cores at a load of 85 % of openb's trace multigpu20,
    /// 30 % instead of 20 % of the tasks for several devices were lost.
    pub unfed: i64,
    /// The CPU that a device needs, in thousandths of what the mix's tasks with devices ask for.
    pub fed_by: i64,
    /// The weight of CPU for which the node has no device left, in thousandths.
    pub surplus: i64,
    /// The CPU for a device beyond which there is too much, in thousandths of what the mix's tasks with devices ask
    /// for.
    pub enough: i64,
    /// The weight of room for the expected work that the node loses, in thousandths. It counts only as long as no tasks
    /// end. With turnover, at a load of 90 % of openb's trace multigpu20, 3.0 % instead of 1.3 % of the tasks for
    /// several devices were lost (six seeds).
    pub typical_work: i64,
    /// The cost of each device on nodes that tasks are restricted to, if these tasks ask for as much as there is.
    pub scarcity: i64,
    /// The cost of each core of CPU that is left free on the node, in thousandths of a thousandth of a device. If CPU
    /// runs out before devices do, it is subtracted instead.
    pub core_left: i64,
    /// The cost of putting a part onto an idle device.
    pub start_device: i64,
    /// The cost of putting the first task with devices onto a node.
    pub start_node: i64,
    /// The cost of what is left free of a device that a part is put onto, in thousandths. So of devices that are
    /// otherwise equal, the fullest is taken.
    pub device_left: i64,
    /// The prices of room for more than four, for more than two, and for two devices.
    pub hosts: [HostPrice; 3],
    /// The weights of what counts in addition if tasks end.
    pub turnover: TurnoverWeights,
}

/// Weights in addition to [`Weights`], in proportion to how far arriving tasks replace ending ones. If no task ends,
/// they do not count at all.
///
/// For a cluster that only fills, it matters what will fit into the room that is left. A cluster in which tasks end
/// never fills up. There, tasks for several devices need nodes that *become* idle, and a node becomes idle only if no
/// small task is put on it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnoverWeights {
    /// Room that is needed for tasks of several devices in addition to what is needed anyway, in thousandths of a
    /// standard deviation. It is the deviation of the number of such tasks that run at a time, as this number varies by
    /// chance.
    pub deviations: u64,
    /// The cost of each device that is left free on the node. So the fullest node is taken, and others have time to
    /// become idle.
    pub node_left: i64,
    /// The cost of each core of CPU that is left free on the node, in thousandths of a thousandth of a device.
    pub core_left: i64,
    /// The additional cost of devices on nodes that tasks are restricted to, in thousandths of [`Weights::scarcity`].
    pub scarcity: i64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            waste: 1000,
            unfed: 1000,
            fed_by: 500,
            surplus: 500,
            enough: 1400,
            typical_work: 300,
            scarcity: 800,
            core_left: 200,
            start_device: 70,
            start_node: 40,
            device_left: 60,
            hosts: [
                HostPrice { always: 60, short: 2000, needed: 1410, reserve: 2000 },
                HostPrice { always: 0, short: 2000, needed: 1000, reserve: 0 },
                HostPrice { always: 16, short: 40, needed: 200, reserve: 1200 },
            ],
            turnover: TurnoverWeights { deviations: 6000, node_left: 60, core_left: 3000, scarcity: 2000 },
        }
    }
}

/// The cost of a bid is the sum of what a placement makes worse:
///
/// 1. the waste of the devices' free parts, by the worth of the expected sizes (`WasteTable`);
/// 2. CPU for which the node has no device;
/// 3. if no tasks end: devices that the node's CPU can no longer feed, and room for the expected work by the resource
///    that runs out first on the node (`TypicalWork`);
/// 4. room for tasks of several devices, at a price that rises as the room runs short (`Hosts`);
/// 5. devices of models that other tasks are restricted to;
/// 6. small charges for what is left of the device and of the node's CPU, and for starting idle devices and nodes, so
///    that devices and nodes fill one after another;
/// 7. if tasks end ([`TurnoverWeights`]): what is left free of the node, and higher prices for room for tasks of
///    several devices and for devices that other tasks are restricted to.
///
/// FGD's increment of fragmentation is not part of the sum: added to the table of waste, it made the result worse on
/// every trace.
#[derive(Clone, Debug)]
pub struct ExpectedWaste {
    weights: Weights,
    waste: WasteTables,
    hosts: Hosts,
    unfed: Imbalance,
    surplus: Imbalance,
    typical_work: TypicalWork,
    scarcity: Scarcity,
    cpu: CpuSupply,
    /// Units of cost for each thousandth of a core that is left, in 2^20ths.
    core_left: i64,
    turnover: TurnoverPrices,
}

/// [`TurnoverWeights`] in units of cost, as far as they count at the present turnover.
#[derive(Clone, Copy, Debug, Default)]
struct TurnoverPrices {
    eighths: u8,
    /// Units of cost for each thousandth of a device that is left on the node, in thousandths.
    node_left: i64,
    /// Units of cost for each thousandth of a core that is left, in 2^20ths.
    core_left: i64,
    /// What is added to the price of scarcity, in thousandths of that price.
    scarcity: i64,
}

impl TurnoverPrices {
    /// Whether enough tasks have ended for the turnover to count in the bids.
    fn counts(&self) -> bool {
        self.eighths >= 4
    }
}

impl ExpectedWaste {
    /// The policy for a mix.
    #[must_use]
    pub fn new(mix: &Mix, weights: Weights) -> Self {
        let [eight, four, two] = weights.hosts;
        let price = |devices: u16| match devices {
            0..=2 => two,
            3..=4 => four,
            _ => eight,
        };
        let with_devices = mix.requests().filter(|(request, _)| request.devices.count > 0);
        let cpu = with_devices.map(|(request, tasks)| u128::from(request.cpu.get()) * u128::from(tasks)).sum::<u128>();
        let device_core = mix.device_core();
        // CPU for device time: thousandths of a core for a thousandth of a device, in 1024ths.
        let fed_by = i64::try_from((cpu * 1024 / u128::from(device_core.max(1))).clamp(1, FED_BY_MAX)).unwrap_or(1);
        // As long as no tasks with devices are known, it is unknown how much CPU a device will need.
        let (unfed, surplus) = if device_core == 0 { (0, 0) } else { (weights.unfed, weights.surplus) };
        Self {
            waste: WasteTables::new(mix, weights.waste * UNIT / 1000),
            hosts: Hosts::new(mix, UNIT as i32, price),
            unfed: Imbalance::Unfed(Proportion::new(fed_by * weights.fed_by / 1000, unfed)),
            surplus: Imbalance::Surplus(Proportion::new(fed_by * weights.enough / 1000, surplus)),
            typical_work: TypicalWork::new(mix),
            scarcity: Scarcity::new(mix, weights.scarcity * UNIT),
            cpu: CpuSupply::new(mix),
            core_left: core_price(weights.core_left),
            turnover: TurnoverPrices::default(),
            weights,
        }
    }
}

impl Policy for ExpectedWaste {
    fn bid(&self, id: NodeId, node: &Node, request: &Request) -> Bid {
        let (weights, waste) = (&self.weights, self.waste.of(node));
        let (cpu, memory) = (node.cpu_free(), node.memory_free());
        let (cpu_after, memory_after) = (cpu.saturating_sub(request.cpu), memory.saturating_sub(request.memory));
        let (mut cost, mut used, mut started) = (0, 0, 0);
        let mut choice = Choice::Tightest;
        if request.devices.count == 1 {
            let offers = fitting_devices(node, request).map(|(index, device, after)| {
                let now = device.usable_thousandths();
                let mut cost = i64::from(waste.of(after) - waste.of(now));
                if device.is_idle() && after > 0 {
                    cost += weights.start_device * UNIT;
                }
                cost += i64::from(after) * weights.device_left * UNIT / 1000;
                (cost, index, i64::from(now) - i64::from(after), u16::from(device.is_idle()))
            });
            if let Some((least, index, taken, idle)) = offers.min() {
                (cost, used, started, choice) = (least, taken, idle, Choice::Device(index));
            }
        } else if request.devices.count > 1 {
            // Whole devices leave no part on which other parts could be put.
            if !request.devices.takes_whole_devices() {
                choice = Choice::Roomiest;
            }
            for part in chosen(node, request, choice).unwrap_or_default() {
                let Some(device) = node.devices().get(usize::from(part.device)) else { continue };
                let now = device.usable_thousandths();
                let after = device.usable_after(part.core, part.memory).unwrap_or_default();
                cost += i64::from(waste.of(after) - waste.of(now));
                used += i64::from(now) - i64::from(after);
                started += u16::from(device.is_idle());
            }
        }
        if request.devices.count > 0 && usize::from(node.idle_devices()) == node.devices().len() {
            cost += weights.start_node * UNIT;
        }
        let devices = i64::from(node.usable_thousandths());
        let devices_after = devices - used;
        let rise = |imbalance: Imbalance| imbalance.of(devices_after, cpu_after) - imbalance.of(devices, cpu);
        cost += rise(self.surplus);
        if !self.turnover.counts() {
            let room = |devices, cpu, memory| self.typical_work.room(devices, cpu, memory);
            let lost = room(devices, cpu, memory) - room(devices_after, cpu_after, memory_after);
            cost += rise(self.unfed) + lost * weights.typical_work * UNIT / 1000;
        }
        let scarcity = self.scarcity.price(id);
        cost += (scarcity + scarcity * self.turnover.scarcity / 1000) * used / 1000;
        cost += devices_after * self.turnover.node_left / 1000;
        let cores_left = i64::try_from(cpu_after.get()).unwrap_or(i64::MAX).min(CPU_MAX);
        let core_left = if self.cpu.is_short() { -self.core_left } else { self.core_left };
        cost += ((core_left + self.turnover.core_left) * cores_left) >> 20;
        let idle = node.idle_devices();
        let forgone = match self.hosts.levels(idle, cpu, memory) {
            0 => 0,
            levels => levels & !self.hosts.levels(idle - started, cpu_after, memory_after),
        };
        let bound = i64::from(Bid::NONE - 1);
        Bid { cost: i32::try_from(cost.clamp(-bound, bound)).unwrap_or(0), forgone, choice }
    }

    fn surcharge(&self, forgone: u8) -> i32 {
        self.hosts.price(forgone)
    }

    fn expect(&mut self, mix: &Mix) -> bool {
        let eighths = self.turnover.eighths;
        *self = Self::new(mix, self.weights);
        self.turnover(eighths);
        true
    }

    fn turnover(&mut self, eighths: u8) -> bool {
        let TurnoverWeights { deviations, node_left, core_left, scarcity } = self.weights.turnover;
        self.hosts.turnover(deviations.saturating_mul(eighths.into()) / 8);
        let before = std::mem::take(&mut self.turnover).counts();
        self.turnover.eighths = eighths;
        // The price of room is applied at the moment of a decision. All else is in the bids, which are all computed
        // anew when it changes. On large clusters that takes long, so the turnover counts in bids fully or not at all.
        if self.turnover.counts() {
            self.turnover =
                TurnoverPrices { eighths, node_left: node_left * UNIT, core_left: core_price(core_left), scarcity };
        }
        self.turnover.counts() != before
    }

    fn node_changed(&mut self, change: NodeChange<'_>) -> bool {
        if let Some(node) = change.node.filter(|_| change.spec) {
            self.waste.learn(node);
        }
        self.hosts.learn(change);
        let supply_changed = self.cpu.learn(change);
        self.scarcity.learn(change) || supply_changed
    }
}

/// Units of cost for each thousandth of a core, in 2^20ths. The weight is in thousandths of a thousandth of a device
/// for each core.
fn core_price(weight: i64) -> i64 {
    ((weight * UNIT) << 20) / 1_000_000
}

/// The most CPU for a device that is computed with, in 1024ths of thousandths of a core for a thousandth of a device.
const FED_BY_MAX: u128 = 1 << 32;

/// How far the devices and the CPU that are left on a node differ from the proportion that tasks want.
#[derive(Clone, Copy, Debug)]
enum Imbalance {
    /// Devices for which there is too little CPU.
    Unfed(Proportion),
    /// CPU for which there are too few devices.
    Surplus(Proportion),
}

/// The wanted CPU for a device, and the charge for what does not match.
#[derive(Clone, Copy, Debug)]
struct Proportion {
    /// Thousandths of a core for each thousandth of a device, in 1024ths.
    cpu: i64,
    /// Units of cost for each thousandth of a core, in 65536ths.
    charge: i64,
}

impl Proportion {
    /// A proportion with this much CPU for a device, and a charge for each device, in thousandths of the device's
    /// worth.
    fn new(cpu: i64, charge: i64) -> Self {
        let cpu = cpu.max(1);
        Self { cpu, charge: charge * UNIT * 1024 * 65536 / 1000 / cpu }
    }
}

impl Imbalance {
    /// The cost for the devices and the CPU that are left.
    fn of(self, devices: i64, cpu: MilliCpu) -> i64 {
        let cpu = i64::try_from(cpu.get()).unwrap_or(i64::MAX).min(CPU_MAX);
        let (excess, proportion) = match self {
            Self::Unfed(proportion) => (devices * proportion.cpu / 1024 - cpu, proportion),
            Self::Surplus(proportion) => (cpu - devices * proportion.cpu / 1024, proportion),
        };
        (excess.max(0) * proportion.charge) >> 16
    }
}
