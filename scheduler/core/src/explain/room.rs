//! Where a task could be placed, and what is in its way there.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::decisions::placement::{Misfit, admits, crowded_out, fits, fitting_for, has_room, room};
use crate::explain::reason::Reason;
use crate::explain::shortage::{Exclusion, Nearest, NodeCount, Shortage};
use crate::state::cluster::Cluster;
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::device_request::{DeviceRequest, DeviceWish};
use crate::vocabulary::request::Request;

/// Why there is no room for one more task. `fitting` of `wanted` members have found room and are placed in `cluster`.
/// `alike` members have the same request as the one that has not.
pub(crate) fn no_room(cluster: &Cluster, request: &Request, wanted: u32, fitting: u32, alike: u32) -> Reason {
    if let Some(reason) = why_never(cluster, request, alike) {
        return reason;
    }
    let open: Vec<(NodeId, &Node)> = open_nodes(cluster, request).collect();
    let rules = PeerRules::of(cluster, request);
    let rules = rules.as_ref();
    let is_open = |node: &Node| rules.is_none_or(|rules| rules.admit(node.spec()));
    let held = open.iter().filter(|(id, node)| cluster.is_held(*id) && has_room(node, request) && is_open(node));
    let held: Vec<String> = held.map(|(_, node)| node.spec().name.clone()).collect();
    if !held.is_empty() {
        return Reason::NodesHeld { nodes: held };
    }
    let (nodes, nearest) = shortages(open.iter().map(|(_, node)| *node), request, rules);
    Reason::NoRoom { wanted, fitting, nodes, nearest }
}

/// Why the nodes cannot take `wanted` tasks with one request, whatever is free there; `None`: they can.
pub(crate) fn why_never(cluster: &Cluster, request: &Request, wanted: u32) -> Option<Reason> {
    if open_nodes(cluster, request).next().is_none() {
        return Some(Reason::NoSuchNode { nodes: count(cluster.nodes()), excluded: excluded(cluster, request) });
    }
    let mut fitting: u32 = 0;
    for (_, node) in open_nodes(cluster, request) {
        fitting = fitting.saturating_add(room(&node.at_best(), request));
        if fitting >= wanted {
            return None;
        }
    }
    let empty: Vec<Node> = match fitting {
        0 => open_nodes(cluster, request).map(|(_, node)| node.at_best()).collect(),
        _ => Vec::new(),
    };
    let (nodes, nearest) = shortages(empty.iter(), request, None);
    Some(Reason::TooLarge { wanted, fitting, nodes, nearest })
}

/// The nodes that may take a task, whatever is free there.
fn open_nodes<'a>(cluster: &'a Cluster, request: &'a Request) -> impl Iterator<Item = (NodeId, &'a Node)> {
    cluster.nodes().filter(|(_, node)| admits(node.spec(), request).is_ok())
}

/// The obstacles that keep a task from nodes, and the number of nodes for each.
fn excluded(cluster: &Cluster, request: &Request) -> Vec<NodeCount<Exclusion>> {
    let mut counts: BTreeMap<Exclusion, u32> = BTreeMap::new();
    for (_, node) in cluster.nodes() {
        exclusions(node, request).for_each(|exclusion| *counts.entry(exclusion).or_default() += 1);
    }
    let mut excluded: Vec<_> = counts.into_iter().map(|(what, nodes)| NodeCount { nodes, what }).collect();
    excluded.sort_by_key(|excluded| Reverse(excluded.nodes));
    excluded
}

/// All obstacles that keep a task from a node, whatever is free there.
pub(crate) fn exclusions<'a>(node: &'a Node, request: &'a Request) -> impl Iterator<Item = Exclusion> + 'a {
    let (spec, asked) = (node.spec(), &request.constraints);
    let lacking = |wish: &DeviceWish<'_>| {
        let devices = spec.devices.iter().filter(|device| wish.admit_device(device));
        devices.count() < usize::from(wish.devices.count)
    };
    let choices = 0..request.choice_count();
    // Devices exclude a node only if they make all of the task's choices impossible.
    let are_lacking = choices.clone().all(|choice| request.wishes_of(choice).any(|wish| lacking(&wish)));
    let wishes = choices.flat_map(|choice| request.wishes_of(choice)).filter(move |wish| are_lacking && lacking(wish));
    let devices = wishes.map(|wish| Exclusion::Devices {
        request: wish.name.map(str::to_owned),
        wanted: wish.devices.count,
        models: wish.models.iter().cloned().collect(),
        attributes: wish.attributes.clone().into_iter().collect(),
    });
    let label = |(key, value): (&str, &str)| Exclusion::Label { key: key.to_owned(), value: value.to_owned() };
    let of_spec = spec.cordoned.then_some(Exclusion::Cordoned).into_iter();
    of_spec
        .chain(asked.missing_labels(spec).map(label))
        .chain((!asked.admit_by_terms(spec)).then(|| Exclusion::NodeTerms(asked.node_terms.clone())))
        .chain(asked.untolerated(spec).cloned().map(Exclusion::Taint))
        .chain(devices)
}

/// What the nodes that admit such tasks lack for one of them, the most frequent lack first, and the node that lacks
/// least.
fn shortages<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    request: &Request,
    rules: Option<&PeerRules<'_>>,
) -> (Vec<NodeCount<Shortage>>, Option<Nearest>) {
    let mut counts: Vec<NodeCount<Shortage>> = Vec::new();
    let mut nearest: Option<(u64, &Node)> = None;
    for node in nodes {
        let lacks = lacks(node, request, rules);
        let lack = lacks.iter().map(Shortage::lack).fold(0, u64::saturating_add);
        if !lacks.is_empty() && nearest.is_none_or(|(least, _)| lack < least) {
            nearest = Some((lack, node));
        }
        for what in lacks {
            match counts.iter_mut().find(|known| known.what.is_alike(&what)) {
                Some(known) => {
                    known.nodes += 1;
                    if what.lack() < known.what.lack() {
                        known.what = what;
                    }
                }
                None => counts.push(NodeCount { nodes: 1, what }),
            }
        }
    }
    counts.sort_by_key(|count| Reverse(count.nodes));
    let nearest =
        nearest.map(|(_, node)| Nearest { node: node.spec().name.clone(), lacks: lacks(node, request, rules) });
    (counts, nearest)
}

/// Everything that a node lacks for one such task. The node admits such tasks.
pub(crate) fn lacks(node: &Node, request: &Request, rules: Option<&PeerRules<'_>>) -> Vec<Shortage> {
    let mut lacks = Vec::new();
    if node.cpu_free() < request.cpu {
        lacks.push(Shortage::Cpu { wanted: request.cpu, free: node.cpu_free() });
    }
    if node.memory_free() < request.memory {
        lacks.push(Shortage::Memory { wanted: request.memory, free: node.memory_free() });
    }
    let counted = node.lacking_counted(request);
    lacks.extend(counted.map(|(name, wanted, free)| Shortage::Counted { name: name.to_owned(), wanted, free }));
    lacks.extend(lacks_of_devices(node, request));
    let misfit = rules.and_then(|rules| rules.misfit(node.spec()));
    lacks.extend(misfit.map(|misfit| Shortage::Peers(misfit.to_owned())));
    lacks
}

/// What its devices lack. For a task with alternatives: nothing if one choice fits, otherwise what each choice lacks.
fn lacks_of_devices(node: &Node, request: &Request) -> Vec<Shortage> {
    if !request.has_alternatives() {
        return lacks_of_choice(node, request, request.wishes());
    }
    let mut lacks: Vec<Shortage> = Vec::new();
    for choice in request.choices() {
        let of_choice = lacks_of_choice(node, &choice.request, request.wishes_of(choice.number));
        if of_choice.is_empty() {
            return Vec::new();
        }
        // A request that stands in several choices lacks the same in each.
        for lack in of_choice {
            if !lacks.contains(&lack) {
                lacks.push(lack);
            }
        }
    }
    lacks
}

/// What the node's devices lack for one choice of a request. `wishes` have the names that reasons use.
fn lacks_of_choice<'a>(node: &Node, request: &Request, wishes: impl Iterator<Item = DeviceWish<'a>>) -> Vec<Shortage> {
    let mut lacks = Vec::new();
    for wish in wishes {
        let DeviceRequest { count: wanted, core, memory } = *wish.devices;
        let fitting = fitting_for(node, wish, request.rules.memory_threshold_percent).count();
        let fitting = u16::try_from(fitting).unwrap_or(u16::MAX);
        if fitting < wanted {
            lacks.push(Shortage::Devices { request: wish.name.map(str::to_owned), wanted, fitting, core, memory });
        }
    }
    if lacks.is_empty() && request.further.is_some() {
        let crowded_out = crowded_out(node, request);
        lacks.extend(crowded_out.map(|request| Shortage::CrowdedOut { request: request.to_owned() }));
    } else if lacks.is_empty()
        && let Err(Misfit::Alignment { fitting }) = fits(node, request)
    {
        lacks.push(Shortage::Alignment { wanted: request.devices.count, fitting });
    }
    lacks
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// The domain of a topology level in which most tasks with a request find room, and their number. Without a level, the
/// node.
pub(crate) fn best_domain(cluster: &Cluster, level: Option<&str>, request: &Request) -> Option<(String, u32)> {
    let room_on = |id: NodeId| match cluster.node(id).filter(|_| !cluster.is_held(id)) {
        Some(node) => room(node, request),
        None => 0,
    };
    let mut best: Option<(String, u32)> = None;
    let mut offer = |name: &str, fitting: u32| {
        if best.as_ref().is_none_or(|(_, most)| fitting > *most) {
            best = Some((name.to_owned(), fitting));
        }
    };
    match level {
        None => cluster.nodes().for_each(|(id, node)| offer(&node.spec().name, room_on(id))),
        Some(level) => {
            let topology = cluster.topology();
            let domains = topology.domains(topology.level(level)?, None).filter_map(|id| topology.domain(id));
            for domain in domains {
                let fitting = domain.nodes().map(room_on).fold(0, u32::saturating_add);
                offer(&domain.values().join("/"), fitting);
            }
        }
    }
    best
}
