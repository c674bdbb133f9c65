//! Claims whose node somebody else chooses. Of them only the devices are decided here.

use super::Scheduler;
use crate::decisions::gang::{FreeRoom, place_unit};
use crate::decisions::plan::cause;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::statement::Statement;
use crate::vocabulary::claim::{Action, ClaimId, NodeId};

impl Scheduler {
    /// Places what the group of a claim wants to have placed next, outside of a cycle and into what is free. Nobody
    /// makes way for it, and it does not wait for its turn. Whether it was placed; if not, nothing has changed. Who has
    /// chosen a node for the claim says so in its constraints.
    pub fn place_now(&mut self, cluster: &mut Cluster, claim: ClaimId) -> bool {
        let Some(group) = cluster.group_of(claim) else { return false };
        let Ok(Some(unit)) = Unit::next(cluster, group) else { return false };
        let cause = cause(cluster, Action::Allocate, group);
        let mut statement = Statement::new(cluster);
        if !unit.claims.contains(&claim) || place_unit(&mut statement, &mut self.engine, &unit, &mut FreeRoom).is_err()
        {
            return false;
        }
        let steps = statement.commit(&cause);
        debug_assert_eq!(steps.len(), unit.claims.len(), "only its own claims are placed");
        true
    }

    /// What it costs to place a claim that waits on each of these nodes, by which they can be compared; `None`: it does
    /// not fit there, or the node is kept for somebody.
    pub fn costs_on(
        &mut self,
        cluster: &Cluster,
        claim: ClaimId,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> Vec<Option<i64>> {
        let class = cluster.class_of(claim);
        nodes.into_iter().map(|node| self.engine.cost_on(cluster, class?, node)).collect()
    }
}
