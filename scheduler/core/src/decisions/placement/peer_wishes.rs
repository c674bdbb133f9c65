//! The wishes about peers: where a task would rather be, and where other tasks would rather have it, because of their
//! places. These are preferred affinity, anti-affinity and topology spread.
//!
//! As with [`PeerRules`](crate::state::cluster::peer_rules::PeerRules), none of this is kept with bids.

use std::collections::BTreeMap;

use crate::decisions::placement::rank::{Rank, distance_of_peers};
use crate::state::cluster::Cluster;
use crate::state::cluster::peer_rules::{Counts, Even, in_domains};
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::peers::PeerPreference;
use crate::vocabulary::preference::Preferences;
use crate::vocabulary::request::Request;

/// How far nodes are from the places that wishes prefer for one more task.
#[derive(Debug)]
pub(crate) struct PeerWishes<'a> {
    /// The weights of domains, by topology key.
    near: BTreeMap<&'a str, Weights<'a>>,
    /// The greatest possible sum of weights over all keys, and its difference from the least possible sum, at least 1.
    best: i128,
    span: i128,
    /// The preferred spread rules, each with the greatest number of members in a domain.
    even: Vec<(Even<'a>, u32)>,
}

/// By domain, the sum of the weights of all wishes, counted once for each task there that a wish is about or that has
/// the wish. A negative weight speaks against the domain. A domain without an entry has 0.
type Weights<'a> = BTreeMap<&'a str, i128>;

impl<'a> PeerWishes<'a> {
    /// The wishes about one more task with a request now; `None`: there are none.
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

    /// The rank that a node's distance from the best adds.
    pub(crate) fn distance(&self, node: &KnownNode) -> Rank {
        distance_of_peers(self.distance_to_others(node), self.unevenness(node))
    }

    /// How far a node is from the best domain of each key, on a scale where the worst domain of each key is farthest.
    fn distance_to_others(&self, node: &KnownNode) -> u32 {
        let of_domains = self.near.iter().filter_map(|(key, weights)| weights.get(node.labels.get(key)?));
        let missed = self.best - of_domains.sum::<i128>();
        let distance = (missed * i128::from(Preferences::FARTHEST) + self.span - 1) / self.span;
        u32::try_from(distance).unwrap_or(Preferences::FARTHEST)
    }

    /// How far a node is from the domain with the fewest members: the mean over the rules. A node that is in no domain
    /// of one of the rules is farthest.
    fn unevenness(&self, node: &KnownNode) -> u32 {
        let mut sum = 0;
        for (even, most) in &self.even {
            let Some(domain) = node.labels.get(&even.rule.topology_key) else { return Preferences::FARTHEST };
            let members = even.members.get(domain).copied().unwrap_or(even.least);
            // If a greater skew is tolerated, one more member makes less difference.
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
