//! How a scheduler decides.

/// How a scheduler decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How strongly past usage counts against a queue, in thousandths; see [`divide`](crate::divide). 0: not at all.
    pub usage_weight: u64,
    /// Device time that may be evicted for a unit, in thousandths of what the unit asks for. One unit may always be
    /// evicted: who is entitled gets its share, but never at the cost of half the cluster.
    pub disruption_per_mille: u64,
    /// Nodes and victims that are looked at for one unit at most.
    pub search_budget: u32,
    /// Nodes and victims that are looked at in a cycle at most, for all units together. Who is not looked at for want
    /// of this goes first in the next cycles.
    pub search_budget_per_cycle: u32,
    /// Claims that are moved in a cycle at most to make room in one place.
    pub moves_per_cycle: u32,
    /// How long one of the first units of a queue waits for room before nodes are kept for it, in milliseconds; `None`:
    /// for ever.
    pub hold_after_ms: Option<u64>,
    /// Nodes that are kept at most, in thousandths of all; but at least one. For a unit that needs more none are kept.
    pub held_nodes_per_mille: u32,
    /// Whether the policy is told what claims have asked for lately, as the work to expect. If not, it goes on with
    /// what it was made with.
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
