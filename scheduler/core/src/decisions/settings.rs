//! The settings of a scheduler.

/// The settings that decide how a scheduler makes its decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How strongly past usage counts against a queue, in thousandths; see [`divide`](crate::divide). 0: not at all.
    pub usage_weight: u64,
    /// The most device time that may be evicted for a unit, in thousandths of what the unit asks for. One unit may
    /// always be evicted, whatever its size. So an entitled unit gets its share, but not by the eviction of half the
    /// cluster.
    pub disruption_per_mille: u64,
    /// The most nodes and victims that are looked at for one unit.
    pub search_budget: u32,
    /// The most nodes and victims that are looked at in a cycle, for all units together. Units that are not looked at
    /// because this is used up go first in the next cycles.
    pub search_budget_per_cycle: u32,
    /// The most claims that are moved in a cycle to make room in one place.
    pub moves_per_cycle: u32,
    /// How long one of the first units of a queue waits for room before nodes are kept for it, in milliseconds, and the
    /// first unit for its queue's limit or quota before a part of that is; `None`: nothing is ever kept.
    pub hold_after_ms: Option<u64>,
    /// The most nodes that are kept, in thousandths of all nodes, but at least one. A unit that is the only one with
    /// kept nodes may have up to a quarter of all nodes. For a unit that needs more, none are kept.
    pub held_nodes_per_mille: u32,
    /// Whether the policy is told what claims have lately asked for, as the expected work. If not, it continues with
    /// the expectation that it was made with.
    pub counts_mix: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            usage_weight: 0,
            disruption_per_mille: 2000,
            search_budget: 100_000,
            search_budget_per_cycle: 1_000_000,
            moves_per_cycle: 16,
            hold_after_ms: Some(300_000),
            held_nodes_per_mille: 50,
            counts_mix: true,
        }
    }
}
