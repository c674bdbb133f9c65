//! Where a task would rather be, and where others would rather have it, because of where they are: preferred affinity,
//! anti-affinity and topology spread.
//!
//! As with [`PeerRules`](super::peer_rules::PeerRules), nothing of it is kept with bids.

use std::collections::BTreeMap;

use crate::decisions::placement::peer_rules::{Counts, Even, in_domains};
use crate::decisions::placement::rank::{Rank, distance_of_peers};
use crate::state::cluster::Cluster;
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::peers::PeerPreference;
use crate::vocabulary::preference::Preferences;
use crate::vocabulary::request::Request;

/// How far nodes are from where one more task should rather be.
#[derive(Debug)]
pub(crate) struct PeerWishes<'a> {
    /// What speaks for domains, by topology key.
    near: BTreeMap<&'a str, Weights<'a>>,
    /// What the best domains of all keys have together, and by how much it is more than what the worst have, at least 1.
    best: i128,
    span: i128,
    /// The spread rules, each with the most members that a domain has.
    even: Vec<(Even<'a>, u32)>,
}

/// By domain the weights of all wishes, once for each task that is there and is meant or wishes. What speaks against a
/// domain is below 0; a domain that is not here has 0.
type Weights<'a> = BTreeMap<&'a str, i128>;

impl<'a> PeerWishes<'a> {
    /// What is wished of one more task of a request now; `None`: nothing.
    pub(crate) fn of(cluster: &'a Cluster, request: &'a Request) -> Option<Self> {
        let peers = request.peers.as_deref()?;
        let books = cluster.peers();
        let mut near = BTreeMap::new();
        for wish in &peers.preferences {
            add(&mut near, wish, in_domains(cluster, &wish.topology_key, books.members(&wish.group)));
        }
        for (wish, nodes) in peers.member_of.iter().flat_map(|group| books.wishing(group)) {
            let nodes = nodes.iter().map(|(node, count)| (*node, *count));
            add(&mut near, wish, in_domains(cluster, &wish.topology_key, nodes));
        }
        let rules = &peers.preferred_spread;
        if near.is_empty() && rules.is_empty() {
            return None;
        }
        let even = rules.iter().map(|rule| {
            let even = Even::of(cluster, rules, rule);
            let most = even.members.values().max().copied().unwrap_or(0);
            (even, most)
        });
        let extreme = |of: &dyn Fn(&Weights<'a>) -> i128| near.values().map(of).sum::<i128>();
        let best = extreme(&|weights| weights.values().fold(0, |best, weight| best.max(*weight)));
        let worst = extreme(&|weights| weights.values().fold(0, |worst, weight| worst.min(*weight)));
        Some(Self { even: even.collect(), best, span: (best - worst).max(1), near })
    }

    /// What a node's distance from the best adds to its rank.
    pub(crate) fn distance(&self, node: &KnownNode) -> Rank {
        distance_of_peers(self.distance_to_others(node), self.unevenness(node))
    }

    /// How far a node is from one in the best domain of each key, if the farthest is in the worst of each.
    fn distance_to_others(&self, node: &KnownNode) -> u32 {
        let of_domains = self.near.iter().filter_map(|(key, weights)| weights.get(node.labels.get(key)?));
        let missed = self.best - of_domains.sum::<i128>();
        let distance = (missed * i128::from(Preferences::FARTHEST) + self.span - 1) / self.span;
        u32::try_from(distance).unwrap_or(Preferences::FARTHEST)
    }

    /// How far a node is from one in the domain with least members: the mean of what the rules say. Farthest is a node
    /// that is in no domain of one of them.
    fn unevenness(&self, node: &KnownNode) -> u32 {
        let mut sum = 0;
        for (even, most) in &self.even {
            let Some(domain) = node.labels.get(&even.rule.topology_key) else { return Preferences::FARTHEST };
            let members = even.members.get(domain).copied().unwrap_or(even.least);
            // Where a greater skew is tolerated, one more makes less of a difference.
            let scale = u64::from(*most) + u64::from(even.rule.max_skew.saturating_sub(1));
            let more = u64::from(members.saturating_sub(even.least));
            sum += (more * u64::from(Preferences::FARTHEST)).div_ceil(scale.max(1));
        }
        let rules = u64::try_from(self.even.len()).unwrap_or(u64::MAX).max(1);
        u32::try_from(sum.div_ceil(rules)).unwrap_or(Preferences::FARTHEST)
    }
}

fn add<'a>(near: &mut BTreeMap<&'a str, Weights<'a>>, wish: &'a PeerPreference, counts: Counts<'a>) {
    for (domain, count) in counts {
        let weights = near.entry(wish.topology_key.as_str()).or_default();
        *weights.entry(domain).or_default() += i128::from(wish.weight) * i128::from(count);
    }
}
