//! FGD as published: fragmentation gradient descent (*Beware of Fragmentation*, USENIX ATC'23).

use crate::decisions::placement::devices::chosen;
use crate::decisions::placement::fitting::fitting_devices;
use crate::decisions::placement::fragmentation::Fragmentation;
use crate::decisions::placement::policies::sigmoid::Hundredths;
use crate::decisions::placement::policy::{Bid, Choice, NodeChange, Policy};
use crate::state::node::{Device, Node};
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::request::Request;

/// The part of all tasks that the measure is computed over, in percent.
const TYPICAL_PERCENT: u64 = 95;

/// Places a task where fragmentation grows least. The published score is the logistic function of the decrease, in
/// hundredths, *rounded down*. So nearly equal nodes are equal, and the first of them is filled. Without this rounding
/// the policy is much worse.
#[derive(Clone, Debug)]
pub struct FragmentationGradient {
    measure: Fragmentation,
    score: Hundredths,
}

impl FragmentationGradient {
    /// The policy for a mix. It uses only the most frequent tasks of the mix.
    #[must_use]
    pub fn new(mix: &Mix) -> Self {
        let measure = Fragmentation::new(&mix.most_frequent(TYPICAL_PERCENT));
        let score = Hundredths::new(1000 * measure.tasks());
        Self { measure, score }
    }

    /// The measure of fragmentation.
    #[must_use]
    pub fn measure(&self) -> &Fragmentation {
        &self.measure
    }
}

impl Policy for FragmentationGradient {
    fn bid(&self, id: NodeId, node: &Node, request: &Request) -> Bid {
        let none = Bid { cost: 0, forgone: 0, choice: Choice::Tightest };
        let Some(row) = self.measure.row(id, node.cpu_free().saturating_sub(request.cpu)) else { return none };
        let before = self.measure.of(id, node);
        let tasks = self.measure.tasks();
        let useful: i64 = node.devices().iter().map(|device| row.useful(device.usable_thousandths())).sum();
        let (free, idle) = (i64::from(node.usable_thousandths()), node.idle_devices());
        let fragmentation = |free: i64, useful: i64, idle: u16| tasks * free - useful - row.useful_idle(idle);
        // The changes when a device's usable part goes from the present one to `after`: free, useful, idle.
        let change = |device: &Device, after: u16| {
            let now = device.usable_thousandths();
            (i64::from(now) - i64::from(after), row.useful(now) - row.useful(after), u16::from(device.is_idle()))
        };
        if request.devices.count == 1 {
            let scores = fitting_devices(node, request).map(|(index, device, after)| {
                let (less, less_useful, less_idle) = change(device, after);
                let after = fragmentation(free - less, useful - less_useful, idle - less_idle);
                (-self.score.of(before - after), index)
            });
            return match scores.min() {
                Some((cost, index)) => Bid { cost, choice: Choice::Device(index), ..none },
                None => none,
            };
        }
        let (mut free, mut useful, mut idle) = (free, useful, idle);
        if let Some(devices) = chosen(node, request, Choice::Tightest) {
            for part in devices {
                let device = node.devices().get(usize::from(part.device));
                let after = device.and_then(|device| device.usable_after(part.core, part.memory));
                if let (Some(device), Some(after)) = (device, after) {
                    let (less, less_useful, less_idle) = change(device, after);
                    (free, useful, idle) = (free - less, useful - less_useful, idle - less_idle);
                }
            }
        }
        Bid { cost: -self.score.of(before - fragmentation(free, useful, idle)), ..none }
    }

    fn expect(&mut self, mix: &Mix) -> bool {
        *self = Self::new(mix);
        true
    }

    fn node_changed(&mut self, change: NodeChange<'_>) -> bool {
        self.measure.learn(change);
        false
    }
}
