//! The units that a queue wants, whether they are placed or pending.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::decisions::unit::Rank;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::queue::{Single, Turn};
use crate::state::resources::Charge;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

/// The claims of a demanded unit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demanded<'a> {
    /// The claim of a group that was not declared. It is not looked up before it is asked for.
    Single(GroupId),
    Claims(&'a [ClaimId]),
}

impl Demanded<'_> {
    /// The number of the claim among them that was added last, in the order in which claims were added.
    pub(crate) fn latest(self, cluster: &Cluster) -> u64 {
        let (single, claims) = match self {
            Self::Single(group) => (cluster.group(group), [].as_slice()),
            Self::Claims(claims) => (None, claims),
        };
        let members = single.into_iter().flat_map(Group::members).chain(claims.iter().copied());
        members.map(ClaimId::number).max().unwrap_or(0)
    }
}

fn least_charge(cluster: &Cluster, claims: &[ClaimId]) -> Charge {
    let mut sum = Charge::default();
    let classes = claims.iter().filter_map(|claim| cluster.class(cluster.class_of(*claim)?));
    classes.for_each(|class| sum.add(class.least_charge()));
    sum
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
    queue: QueueId,
    mut visit: impl FnMut(Rank, Demanded<'_>, &Charge) -> ControlFlow<B>,
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
                visit(rank, Demanded::Claims(&[claim]), &least_charge(cluster, &[claim]))?;
            }
        }
        let Some((turn, single)) = next else { return ControlFlow::Continue(()) };
        later.priority = turn.priority.0;
        let rank = Rank::new(turn.priority.0, turn.group.number(), None);
        if let Some(class) = single.and_then(|single| cluster.class(single.class)) {
            visit(rank, Demanded::Single(turn.group), class.least_charge())?;
            continue;
        }
        let Some(group) = cluster.group(turn.group) else { continue };
        if !group.is_declared() {
            let claims: Vec<ClaimId> = group.members().collect();
            visit(rank, Demanded::Claims(&claims), &least_charge(cluster, &claims))?;
        } else if let Some((core, beyond)) = group.demanded_parts() {
            visit(rank, Demanded::Claims(&core), &least_charge(cluster, &core))?;
            later.beyond.insert(turn.group, beyond);
        }
    }
}
