//! Dumps the usage of queues, and restores it.

use super::{Queue, Queues};
use crate::state::resources::Resources;
use crate::state::usage::DecayedUsage;
use crate::vocabulary::dump::DumpedUsage;

impl Queue {
    /// Its usage. Resources that it has not used are left out.
    pub(crate) fn dump_usage(&self, resources: &Resources) -> DumpedUsage {
        let used = self.usage.iter().enumerate().filter(|(_, usage)| usage.integral() > 0);
        DumpedUsage {
            until_ms: self.used_until_ms,
            integrals: used.map(|(number, usage)| (resources.resource(number), usage.integral())).collect(),
        }
    }
}

impl Queues {
    /// The half-life of past usage, in milliseconds.
    pub(crate) fn half_life_ms(&self) -> u64 {
        self.half_life_ms
    }

    /// The cluster's capacity over time, of each resource that was noted.
    pub(crate) fn dump_capacity(&self, resources: &Resources) -> DumpedUsage {
        let noted = self.capacity.iter().enumerate();
        DumpedUsage {
            until_ms: self.capacity.first().map_or(0, DecayedUsage::at_ms),
            integrals: noted.map(|(number, usage)| (resources.resource(number), usage.integral())).collect(),
        }
    }

    /// Sets the usage of the queue with this name.
    pub(crate) fn restore_usage(&mut self, name: &str, dumped: &DumpedUsage, resources: &mut Resources) {
        let usage = restored(dumped, self.half_life_ms, resources);
        if let Some(queue) = self.named(name).and_then(|id| self.queues.get_mut(id)) {
            (queue.usage, queue.used_until_ms) = (usage, dumped.until_ms);
        }
    }

    /// Sets the cluster's capacity of each resource over time.
    pub(crate) fn restore_capacity(&mut self, dumped: &DumpedUsage, resources: &mut Resources) {
        self.capacity = restored(dumped, self.half_life_ms, resources);
    }
}

/// Usage by the resource's number. Numbers that the dump leaves out have no usage.
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
