//! Everything that may happen in a world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Affinity, Allowance, Alternative, Alternatives, AntiAffinity, Bytes, Comparison, Constraints, DeviceCore,
    DeviceLink, DeviceMemory, DeviceProperty, DeviceRequest, FurtherRequest, FurtherRequests, MilliCpu, PeerGroup,
    PeerPreference, Peers, Request, TopologySpread,
};

use crate::random::Random;

/// The resource of devices that a queue's bounds are on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bounded {
    Core,
    Memory,
    /// Device time of one model.
    Model,
}

/// One thing that happens. A number chooses among the existing things: it is taken modulo their count.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    NodeComes {
        devices: u8,
        model: &'static str,
        rack: u8,
    },
    NodeFails(u64),
    NodeCordoned(u64, bool),
    DeviceHealth {
        node: u64,
        device: u16,
        healthy: bool,
    },
    ClaimComes {
        request: Request,
        terms: Terms,
        min_runtime_ms: u64,
        budget: Option<u64>,
    },
    GangComes {
        request: Request,
        terms: Terms,
        shape: Shape,
    },
    MemberComes {
        gang: u64,
        request: Request,
    },
    ClaimGoes(u64),
    /// A claim is withdrawn. Its container takes time to stop.
    ClaimWithdrawn(u64),
    ClaimFails(u64),
    /// It is unknown whether the claim runs.
    ClaimSilent(u64),
    ContainerDies(u64),
    /// A claim that has its place, but waits for others to leave it, loses the place.
    LostBeforeStart {
        claim: u64,
        loss: Loss,
    },
    ClaimResized(u64, Request),
    /// A claim's groups of peers, or its rules about them, change.
    ClaimPeers(u64, Option<Arc<Peers>>),
    /// Another disruption budget protects the claim, or none does.
    ClaimBudget(u64, Option<u64>),
    /// Tasks that are not claims run on a node.
    NodeForeign(u64, Vec<Arc<Peers>>),
    StoppingIsGone(u64),
    /// The machine does not let a stopping claim go.
    StoppingIsRefused(u64),
    EverythingStoppingIsGone,
    QueueChanges {
        queue: u64,
        allowance: Allowance,
        of: Bounded,
    },
    /// A queue that exists only at times.
    QueueComesOrGoes,
    TopologyChanges(&'static [&'static str]),
    GangChanges {
        gang: u64,
        min_members: u32,
        priority: i32,
        preemptible: bool,
    },
    BudgetChanges {
        budget: u64,
        min_available: Option<u32>,
    },
    TimePasses {
        ms: u64,
    },
    /// A decision outside the scheduler: these claims are evicted and these placed, in one statement.
    Statement {
        evicted: Vec<u64>,
        placed: Vec<u64>,
    },
    Cycle,
    /// A cycle that a scheduler restored from a dump makes, too, for comparison.
    CycleTwice,
}

/// The way in which a claim is lost before it has started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    Removed,
    Failed,
    Evicted,
    NodeGone,
    DeviceFailed,
}

/// The terms under which a claim or a gang waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) queue: u64,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    pub(crate) delay_ms: u64,
}

/// The shape of a gang.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) min_members: u32,
    pub(crate) members: u32,
    /// Members after the first are workers; this many of them are needed.
    pub(crate) workers: Option<u32>,
    pub(crate) grace_ms: Option<u64>,
    pub(crate) one_rack: bool,
    pub(crate) min_runtime_ms: u64,
}

/// Everything that happens in the world of a seed.
pub(crate) fn of(seed: u64) -> Vec<Happening> {
    let mut random = Random::new(seed);
    let mut happenings: Vec<Happening> = (0..2 + random.below(3)).map(|_| node(&mut random)).collect();
    for queue in 0..super::play::QUEUES.len() as u64 {
        if !random.one_in(3) {
            let (allowance, of) = (allowance(&mut random), bounded(&mut random));
            happenings.push(Happening::QueueChanges { queue, allowance, of });
        }
    }
    let count = 40 + random.below(120);
    happenings.extend((0..count).map(|_| happening(&mut random)));
    if seed.is_multiple_of(WITH_PEERS) { among_peers(seed, happenings) } else { happenings }
}

/// In one of this many worlds, claims have rules about each other.
const WITH_PEERS: u64 = 3;

/// The same happenings with rules of claims about each other, and changes of these rules.
fn among_peers(seed: u64, happenings: Vec<Happening>) -> Vec<Happening> {
    let mut random = Random::new(seed.wrapping_mul(3) | 1);
    let mut among = Vec::with_capacity(happenings.len());
    for mut happening in happenings {
        if let Happening::ClaimComes { request, .. }
        | Happening::GangComes { request, .. }
        | Happening::MemberComes { request, .. }
        | Happening::ClaimResized(_, request) = &mut happening
        {
            request.peers = peers(&mut random);
        }
        among.push(happening);
        match random.below(30) {
            0 => among.push(Happening::ClaimPeers(random.next(), peers(&mut random))),
            1 => {
                let foreign = (0..random.below(3)).filter_map(|_| peers(&mut random)).collect();
                among.push(Happening::NodeForeign(random.next(), foreign));
            }
            _ => {}
        }
    }
    among
}

fn peers(random: &mut Random) -> Option<Arc<Peers>> {
    if random.one_in(3) {
        return None;
    }
    let group = |random: &mut Random| -> PeerGroup { random.one_of(&["a", "b"]).into() };
    let key = |random: &mut Random| random.one_of(&["host", "rack", "zone"]).to_owned();
    let member_of: BTreeSet<PeerGroup> = (0..random.below(3)).map(|_| group(random)).collect();
    let affinity = random.one_in(4).then(|| Affinity {
        group: group(random),
        topology_keys: (0..1 + random.below(2)).map(|_| key(random)).collect(),
    });
    let anti_affinity = (0..random.below(2)).map(|_| AntiAffinity { group: group(random), topology_key: key(random) });
    let anti_affinity = anti_affinity.collect();
    let even = match random.below(3) {
        0 => (0..1 + random.below(2)).map(|_| spread(random)).collect(),
        _ => BTreeSet::new(),
    };
    let preferences = (0..random.below(2)).map(|_| preference(random)).collect();
    let preferred_spread = if random.one_in(4) { BTreeSet::from([spread(random)]) } else { BTreeSet::new() };
    Some(Arc::new(Peers { member_of, affinity, anti_affinity, spread: even, preferences, preferred_spread }))
}

fn preference(random: &mut Random) -> PeerPreference {
    PeerPreference {
        group: random.one_of(&["a", "b"]).into(),
        topology_key: random.one_of(&["host", "rack", "zone"]).to_owned(),
        weight: random.one_of(&[-100, -1, 1, 50]),
    }
}

fn spread(random: &mut Random) -> TopologySpread {
    let number = |random: &mut Random| u32::try_from(1 + random.below(3)).unwrap_or(1);
    TopologySpread {
        group: random.one_of(&["a", "b"]).into(),
        topology_key: random.one_of(&["host", "rack"]).into(),
        max_skew: number(random),
        min_domains: number(random),
        labels: match random.below(4) {
            0 => BTreeMap::from([("rack".into(), "1".into())]),
            _ => BTreeMap::new(),
        },
        node_terms: BTreeSet::new(),
        tolerations: None,
    }
}

fn bounded(random: &mut Random) -> Bounded {
    random.one_of(&[Bounded::Memory, Bounded::Model, Bounded::Core, Bounded::Core])
}

fn happening(random: &mut Random) -> Happening {
    match random.below(100) {
        0 => node(random),
        1 => Happening::NodeFails(random.next()),
        2 => Happening::NodeCordoned(random.next(), random.one_in(2)),
        3..=4 => Happening::DeviceHealth {
            node: random.next(),
            device: u16::try_from(random.below(4)).unwrap_or(0),
            healthy: !random.one_in(3),
        },
        5..=28 => Happening::ClaimComes {
            request: request(random),
            terms: terms(random),
            min_runtime_ms: random.one_of(&[0, 0, 0, 5000, 60_000]),
            budget: random.one_in(4).then(|| random.below(2)),
        },
        29..=36 => Happening::GangComes { request: request(random), terms: terms(random), shape: shape(random) },
        37..=40 => Happening::MemberComes { gang: random.next(), request: request(random) },
        41..=43 => Happening::ClaimGoes(random.next()),
        44..=45 => Happening::ClaimWithdrawn(random.next()),
        46 => Happening::ClaimFails(random.next()),
        47 => Happening::ClaimSilent(random.next()),
        48 => Happening::ContainerDies(random.next()),
        49..=51 => Happening::ClaimResized(random.next(), request(random)),
        52..=56 => Happening::StoppingIsGone(random.next()),
        57..=58 => Happening::StoppingIsRefused(random.next()),
        59 => Happening::EverythingStoppingIsGone,
        60..=62 => Happening::LostBeforeStart {
            claim: random.next(),
            loss: random.one_of(&[
                Loss::Removed,
                Loss::Failed,
                Loss::Failed,
                Loss::Evicted,
                Loss::NodeGone,
                Loss::DeviceFailed,
            ]),
        },
        63..=65 => Happening::QueueChanges { queue: random.next(), allowance: allowance(random), of: bounded(random) },
        66 => match random.below(4) {
            0 => Happening::QueueComesOrGoes,
            1 => Happening::TopologyChanges(random.one_of(&[&["rack"], &[], &["zone", "rack"], &["zone"]])),
            _ => Happening::GangChanges {
                gang: random.next(),
                min_members: u32::try_from(random.below(5)).unwrap_or(0),
                priority: random.one_of(&[50, 75, 125]),
                preemptible: !random.one_in(4),
            },
        },
        67 if random.one_in(2) => Happening::ClaimBudget(random.next(), random.one_of(&[None, Some(0), Some(1)])),
        67..=68 => Happening::BudgetChanges {
            budget: random.below(2),
            min_available: (!random.one_in(4)).then(|| u32::try_from(random.below(4)).unwrap_or(0)),
        },
        69..=75 => Happening::TimePasses { ms: random.one_of(&[1, 1000, 10_000, 60_000, 400_000]) },
        76..=79 => Happening::Statement {
            evicted: (0..random.below(4)).map(|_| random.next()).collect(),
            placed: (0..random.below(4)).map(|_| random.next()).collect(),
        },
        80 => Happening::CycleTwice,
        _ => Happening::Cycle,
    }
}

fn node(random: &mut Random) -> Happening {
    let devices = u8::try_from(random.below(5)).unwrap_or(0);
    let rack = u8::try_from(random.below(2)).unwrap_or(0);
    Happening::NodeComes { devices, model: random.one_of(&["A", "A", "B"]), rack }
}

fn request(random: &mut Random) -> Request {
    let models: &[&str] = match random.below(8) {
        0 => &["A"],
        1 => &["B"],
        2 => &["A", "B"],
        _ => &[],
    };
    let devices = match random.below(10) {
        0 => DeviceRequest::default(),
        1..=4 => DeviceRequest::whole(random.one_of(&[1, 1, 1, 2, 2, 4])),
        _ => DeviceRequest {
            count: random.one_of(&[1, 1, 1, 2]),
            core: DeviceCore::from_percent(random.one_of(&[10, 30, 50, 70])),
            memory: match random.one_in(2) {
                true => DeviceMemory::Thousandths(random.one_of(&[100, 333, 500, 700])),
                false => DeviceMemory::Bytes(Bytes::from_mib(random.one_of(&[0, 4000, 9000, 20_000]))),
            },
        },
    };
    let further = (devices.count > 0 && random.one_in(6)).then(|| further(random));
    let alternatives = (devices.count > 0 && random.one_in(5)).then(|| alternatives(random));
    Request {
        further,
        alternatives,
        cpu: MilliCpu::new(random.one_of(&[0, 1000, 4000, 9000])),
        memory: Bytes::from_mib(random.one_of(&[0, 1000, 16_000])),
        devices,
        constraints: Constraints {
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            ..Constraints::default()
        },
        counted: match random.below(4) {
            0 => BTreeMap::new(),
            slots => BTreeMap::from([("slots".into(), slots - 1)]),
        },
        ..Request::default()
    }
}

/// One or two other choices: less of a device, or more devices than the first choice.
fn alternatives(random: &mut Random) -> Arc<Alternatives> {
    let other = |(rank, name): (u16, &str), random: &mut Random| Alternative {
        name: name.into(),
        rank,
        devices: DeviceRequest {
            count: random.one_of(&[1, 1, 2, 3]),
            core: DeviceCore::from_percent(random.one_of(&[10, 40, 100])),
            memory: DeviceMemory::Thousandths(random.one_of(&[0, 300, 1000])),
        },
        models: random.one_of(&[&[][..], &["A"], &["B"]]).iter().map(|model| (*model).to_owned()).collect(),
        further: random.one_in(5).then(|| further(random)),
        ..Alternative::default()
    };
    let mut others = vec![other((1, "second"), random)];
    if random.one_in(3) {
        others.push(other((random.one_of(&[1, 2]), "third"), random));
    }
    Arc::new(Alternatives { first_name: "first".into(), others })
}

/// One further device request. It may be for the same devices as the first, or must be for others.
fn further(random: &mut Random) -> Arc<FurtherRequests> {
    let devices = DeviceRequest {
        count: random.one_of(&[1, 1, 2]),
        core: DeviceCore::from_percent(random.one_of(&[10, 30, 60])),
        memory: DeviceMemory::Thousandths(random.one_of(&[0, 200, 500])),
    };
    let link = DeviceLink {
        requests: BTreeSet::from([0, 1]),
        property: DeviceProperty::Identity,
        comparison: random.one_of(&[Comparison::Distinct, Comparison::Same]),
    };
    Arc::new(FurtherRequests {
        first_name: "first".into(),
        requests: vec![FurtherRequest { name: "further".into(), devices, ..FurtherRequest::default() }],
        links: random.one_in(3).then_some(link).into_iter().collect(),
    })
}

fn terms(random: &mut Random) -> Terms {
    Terms {
        queue: random.next(),
        priority: random.one_of(&[50, 50, 75, 100, 125]),
        preemptible: !random.one_in(4),
        delay_ms: random.one_of(&[0, 0, 0, 20_000]),
    }
}

fn shape(random: &mut Random) -> Shape {
    let members = u32::try_from(1 + random.below(5)).unwrap_or(1);
    Shape {
        min_members: u32::try_from(random.below(u64::from(members) + 1)).unwrap_or(0),
        members,
        workers: random.one_in(3).then(|| u32::try_from(random.below(u64::from(members))).unwrap_or(0)),
        grace_ms: random.one_of(&[None, Some(0), Some(60_000)]),
        one_rack: random.one_in(5),
        min_runtime_ms: random.one_of(&[0, 0, 30_000]),
    }
}

fn allowance(random: &mut Random) -> Allowance {
    let quota = random.one_of(&[None, Some(0), Some(1000), Some(2000), Some(3500)]);
    let limit = random.one_of(&[None, None, Some(500), Some(2500), Some(6000)]);
    Allowance { quota, limit, weight: random.below(4), priority: None }
}
