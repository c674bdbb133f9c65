//! Claims whose node is chosen outside the scheduler. Only their devices are decided here.

use super::Scheduler;
use crate::decisions::gang::{FreeRoom, place_unit};
use crate::decisions::plan::cause;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::statement::Statement;
use crate::vocabulary::claim::{Action, ClaimId, NodeId};

impl Scheduler {
    /// Places the next unit of a claim's group in free room, outside of a cycle. No claim makes way for it, and it does
    /// not wait for its turn. Returns whether it was placed; if not, nothing has changed. A caller that has chosen a
    /// node for the claim says so in the claim's constraints.
    pub fn place_now(&mut self, cluster: &mut Cluster, claim: ClaimId) -> bool {
        let Some(group) = cluster.group_of(claim) else { return false };
        let Ok(Some(unit)) = Unit::next(cluster, group) else { return false };
        if self.holds.bounds.exceeded(cluster, &unit).is_some() {
            return false;
        }
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

    /// The cost of placing a pending claim on each of these nodes, for comparison only. `None`: the claim does not fit
    /// there, or the node is kept for a group.
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
