//! What queues hold beside their fair shares, for reports.

use crate::decisions::shares::Shares;
use crate::state::cluster::Cluster;
use crate::state::resources::Charge;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::share::Share;

/// What a queue holds of one resource, and would hold with `asked`. Of the resources in `among` that are divided among
/// queues, it is the one of which the queue would then hold the greatest part of its fair share.
pub(crate) fn share(
    cluster: &Cluster,
    shares: &Shares,
    queue: QueueId,
    asked: Option<&Charge>,
    among: impl Iterator<Item = usize>,
) -> Option<Share> {
    let state = cluster.queue(queue)?;
    let asked_of = |number: usize| {
        let parts = asked.into_iter().flat_map(Charge::parts).filter(|(other, _)| *other == number);
        parts.map(|(_, amount)| amount).fold(0, u64::saturating_add)
    };
    let of = |number: usize| {
        let held = state.allocated().get(number);
        (number, held, asked_of(number), shares.fair_share(queue, number))
    };
    let greater = |left: &(usize, u64, u64, u64), right: &(usize, u64, u64, u64)| {
        let part = |one: &(usize, u64, u64, u64), other: &(usize, u64, u64, u64)| {
            u128::from(one.1.saturating_add(one.2)) * u128::from(other.3.max(1))
        };
        // Of equal parts, the first resource is kept.
        part(left, right).cmp(&part(right, left)).then(right.0.cmp(&left.0))
    };
    // Of a resource that is not divided, every queue may have all.
    let divided = among.map(of).filter(|(.., fair_share)| *fair_share < u64::MAX);
    let (number, held, asked, fair_share) = divided.max_by(greater)?;
    let resource = cluster.resources().resource(number);
    Some(Share { queue: state.spec().name.clone(), resource, held, asked, fair_share })
}
