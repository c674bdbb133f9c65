//! The units that a queue wants, whether they are placed or pending.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::decisions::unit::Rank;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::queue::{Single, Turn};
use crate::state::resources::Charge;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

/// The least charge of a unit of each class, wherever it is placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassCharges {
    by_class: BTreeMap<ClassId, Charge>,
}

impl ClassCharges {
    fn of(&mut self, cluster: &Cluster, class: ClassId) -> &Charge {
        let of = || cluster.class(class).map(|class| cluster.resources().least_charge(class.request()));
        self.by_class.entry(class).or_insert_with(|| of().unwrap_or_default())
    }

    fn of_claims(&mut self, cluster: &Cluster, claims: &[ClaimId]) -> Charge {
        let mut sum = Charge::default();
        let classes = claims.iter().filter_map(|claim| cluster.class_of(*claim));
        classes.for_each(|class| sum.add(self.of(cluster, class)));
        sum
    }
}

/// Members beyond their groups' cores, kept until all cores of their priority have come.
#[derive(Debug, Default)]
struct Later {
    priority: i32,
    /// By the group's number.
    beyond: BTreeMap<GroupId, Vec<ClaimId>>,
}

/// Visits the units of a leaf queue in the order of rank, placed or pending, as long as `visit` goes on. `visit` is
/// given the rank, the claims and the least charge of each. Where units are placed does not matter. Groups that lack members are
/// left out: they want nothing yet.
pub(crate) fn each_demanded<B>(
    cluster: &Cluster,
    charges: &mut ClassCharges,
    queue: QueueId,
    mut visit: impl FnMut(Rank, &mut dyn Iterator<Item = ClaimId>, &Charge) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let Some(queue) = cluster.queue(queue) else { return ControlFlow::Continue(()) };
    let mut placed = queue.placed().iter().map(|turn| (*turn, None)).peekable();
    // Groups with placed members are found among the placed ones.
    let is_new =
        |turn: &Turn| !turn.elastic || cluster.group(turn.group).is_some_and(|group| group.placed_members() == 0);
    let new = queue.waiting().iter().filter(|(turn, _)| is_new(turn));
    let mut waiting = new.map(|(turn, single)| (*turn, *single)).peekable();
    let mut later = Later::default();
    loop {
        let next: Option<(Turn, Option<Single>)> = match (placed.peek(), waiting.peek()) {
            (Some((one, _)), Some((other, _))) if one < other => placed.next(),
            (Some((one, _)), Some((other, _))) if one == other => {
                waiting.next();
                placed.next()
            }
            (Some(_), None) => placed.next(),
            _ => waiting.next(),
        };
        if next.is_none_or(|(turn, _)| turn.priority.0 != later.priority) {
            for claim in std::mem::take(&mut later.beyond).into_values().flatten() {
                let Some(group) = cluster.group_of(claim) else { continue };
                let rank = Rank::new(later.priority, group.number(), Some(claim.number()));
                visit(rank, &mut std::iter::once(claim), &charges.of_claims(cluster, &[claim]))?;
            }
        }
        let Some((turn, single)) = next else { return ControlFlow::Continue(()) };
        let Some(group) = cluster.group(turn.group) else { continue };
        later.priority = turn.priority.0;
        let rank = Rank::new(turn.priority.0, turn.group.number(), None);
        if let Some(single) = single {
            visit(rank, &mut group.members(), charges.of(cluster, single.class))?;
        } else if !group.is_declared() {
            let claims: Vec<ClaimId> = group.members().collect();
            visit(rank, &mut claims.iter().copied(), &charges.of_claims(cluster, &claims))?;
        } else if let Some((core, beyond)) = group.demanded_parts() {
            visit(rank, &mut core.iter().copied(), &charges.of_claims(cluster, &core))?;
            later.beyond.insert(turn.group, beyond);
        }
    }
}
