//! What queues have used, as a value, and restored from one.

use super::{Queue, Queues};
use crate::state::resources::Resources;
use crate::state::usage::DecayedUsage;
use crate::vocabulary::dump::DumpedUsage;

impl Queue {
    /// What it has used. Resources that it has not used are left out.
    pub(crate) fn dump_usage(&self, resources: &Resources) -> DumpedUsage {
        let used = self.usage.iter().enumerate().filter(|(_, usage)| usage.integral() > 0);
        DumpedUsage {
            until_ms: self.used_until_ms,
            integrals: used.map(|(number, usage)| (resources.resource(number), usage.integral())).collect(),
        }
    }
}

impl Queues {
    /// Past usage counts half as much after so many milliseconds.
    pub(crate) fn half_life_ms(&self) -> u64 {
        self.half_life_ms
    }

    /// What there was of each resource that was noted.
    pub(crate) fn dump_capacity(&self, resources: &Resources) -> DumpedUsage {
        let noted = self.capacity.iter().enumerate();
        DumpedUsage {
            until_ms: self.capacity.first().map_or(0, DecayedUsage::at_ms),
            integrals: noted.map(|(number, usage)| (resources.resource(number), usage.integral())).collect(),
        }
    }

    /// Sets what the queue of this name has used.
    pub(crate) fn restore_usage(&mut self, name: &str, dumped: &DumpedUsage, resources: &mut Resources) {
        let usage = restored(dumped, self.half_life_ms, resources);
        if let Some(queue) = self.named(name).and_then(|id| self.queues.get_mut(id)) {
            (queue.usage, queue.used_until_ms) = (usage, dumped.until_ms);
        }
    }

    /// Sets what there was of each resource.
    pub(crate) fn restore_capacity(&mut self, dumped: &DumpedUsage, resources: &mut Resources) {
        self.capacity = restored(dumped, self.half_life_ms, resources);
    }
}

/// By number of the resource; of those in between that are left out nothing was used.
fn restored(dumped: &DumpedUsage, half_life_ms: u64, resources: &mut Resources) -> Vec<DecayedUsage> {
    let mut usages = Vec::new();
    for (resource, integral) in &dumped.integrals {
        let number = resources.number(resource);
        if usages.len() <= number {
            usages.resize(number + 1, DecayedUsage::new(half_life_ms, dumped.until_ms));
        }
        usages[number] = DecayedUsage::restored(half_life_ms, *integral, dumped.until_ms);
    }
    usages
}
