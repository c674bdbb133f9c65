//! Records with values of all kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{
    Action, Affinity, Alignment, Alternative, Alternatives, AntiAffinity, Bytes, Comparison, Constraints, DeviceCore,
    DeviceLink, DeviceMemory, DeviceProperty, DeviceRequest, DeviceSpec, DumpedKeeping, DumpedMixCounter,
    DumpedTurnover, DumpedUsage, FurtherRequest, FurtherRequests, Health, LastEviction, MilliCpu, NodeOperator,
    NodeRequirement, NodeSpec, NodeTerm, PeerGroup, PeerPreference, Peers, PlacementRules, Preference, Preferences,
    Request, Resource, Taint, TaintEffect, Toleration, TopologySpread,
};
use aliquot_scheduler_engine::{
    Amounts, BoundRecord, ClaimRecord, DevicePart, EvictionRecord, Generation, InstanceRecord, Memory, NodeName,
    NodeRecord, Owner, Phase, ResizeRecord,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z]{1,8}", ".{0,6}", Just("\u{0}\"\\\u{1F600}".to_owned())]
}

fn node_name() -> impl Strategy<Value = NodeName> {
    text().prop_map(NodeName::from)
}

pub(super) fn generation() -> impl Strategy<Value = Generation> {
    any::<(u64, u64)>().prop_map(|(term, number)| Generation { term, number })
}

fn action() -> impl Strategy<Value = Action> {
    prop::sample::select(vec![
        Action::Allocate,
        Action::Consolidate,
        Action::Reclaim,
        Action::Preempt,
        Action::StaleGang,
        Action::Relieve,
    ])
}

fn resource() -> impl Strategy<Value = Resource> {
    prop_oneof![
        Just(Resource::Cpu),
        Just(Resource::Memory),
        Just(Resource::DeviceCore),
        Just(Resource::DeviceMemory),
        text().prop_map(Resource::ModelCore),
    ]
}

fn owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        (text(), text()).prop_map(|(namespace, name)| Owner::Group(namespace, name)),
        text().prop_map(|uid| Owner::Claim(uid.into())),
    ]
}

fn effect() -> impl Strategy<Value = TaintEffect> {
    prop::sample::select(vec![TaintEffect::NoSchedule, TaintEffect::NoExecute, TaintEffect::PreferNoSchedule])
}

fn taint() -> impl Strategy<Value = Taint> {
    (text(), text(), effect()).prop_map(|(key, value, effect)| Taint { key, value, effect })
}

fn toleration() -> impl Strategy<Value = Toleration> {
    let parts = (option::of(text()), option::of(text()), option::of(effect()));
    parts.prop_map(|(key, value, effect)| Toleration { key, value, effect })
}

fn node_term() -> impl Strategy<Value = NodeTerm> {
    let operator = prop_oneof![
        btree_set(text(), 0..3).prop_map(NodeOperator::In),
        btree_set(text(), 0..3).prop_map(NodeOperator::NotIn),
        Just(NodeOperator::Exists),
        Just(NodeOperator::DoesNotExist),
        any::<i64>().prop_map(NodeOperator::GreaterThan),
        any::<i64>().prop_map(NodeOperator::LessThan),
    ];
    let requirement = (text(), operator).prop_map(|(key, operator)| NodeRequirement { key, operator });
    btree_set(requirement, 0..3).prop_map(|requirements| NodeTerm { requirements })
}

fn counted() -> impl Strategy<Value = BTreeMap<String, u64>> {
    btree_map(text(), any::<u64>(), 0..3)
}

prop_compose! {
    fn share()(queue in text(), resource in resource(), (held, asked, fair_share) in any::<(u64, u64, u64)>()) -> Share {
        Share { queue, resource, held, asked, fair_share }
    }
}

prop_compose! {
    fn device_part()(uuid in text(), core in any::<u32>(), memory in any::<u64>()) -> DevicePart {
        DevicePart { uuid, core: DeviceCore::new(core), memory: Bytes::new(memory) }
    }
}

prop_compose! {
    fn instance()(
        node in node_name(),
        (session, started_ms, cpu, memory, alternative) in any::<(u64, u64, u64, u64, u16)>(),
        generation in generation(),
        phase in prop::sample::select(vec![Phase::Starting, Phase::Running, Phase::Stopping]),
        devices in vec(device_part(), 0..3),
        counted in counted(),
    ) -> InstanceRecord {
        let (cpu, memory) = (MilliCpu::new(cpu), Bytes::new(memory));
        let amounts = Amounts { cpu, memory, devices, alternative, counted };
        InstanceRecord { node, session, generation, phase, started_ms, amounts }
    }
}

prop_compose! {
    fn eviction()(
        action in action(),
        by in option::of(owner()),
        by_name in text(),
        at_ms in any::<u64>(),
        shares in vec(share(), 0..3),
    ) -> EvictionRecord {
        EvictionRecord { action, by, by_name, at_ms, shares }
    }
}

prop_compose! {
    pub(super) fn claim()(
        (added_ms, failures, retry_at_ms, is_ended) in any::<(u64, u32, u64, bool)>(),
        evicted in option::of(eviction()),
        last_eviction in option::of(any::<(Option<u64>, u32, u64)>()),
        resize in option::of((request(), request())),
        instance in option::of(instance()),
    ) -> ClaimRecord {
        let last_eviction = last_eviction.map(|(ran_since_ms, refusals, left_alone_until_ms)| LastEviction {
            ran_since_ms,
            refusals,
            left_alone_until_ms,
        });
        let resize = resize.map(|(from, held)| ResizeRecord { from, held });
        ClaimRecord { added_ms, failures, retry_at_ms, evicted, last_eviction, is_ended, resize, instance }
    }
}

prop_compose! {
    fn device()(
        (uuid, model) in (text(), text()),
        (memory, is_healthy, nvlink_group, switch, numa) in any::<(u64, bool, Option<u16>, Option<u16>, Option<u16>)>(),
        attributes in btree_map(text(), text(), 0..3),
    ) -> DeviceSpec {
        let health = if is_healthy { Health::Healthy } else { Health::Unhealthy };
        let (memory, memory_outside) = (Bytes::new(memory), Bytes::ZERO);
        let attributes = attributes.into();
        DeviceSpec { uuid, model, memory, memory_outside, health, nvlink_group, switch, numa, attributes }
    }
}

prop_compose! {
    pub(super) fn node()(
        name in text(),
        labels in btree_map(text(), text(), 0..3),
        taints in vec(taint(), 0..3),
        (cpu, memory, cordoned, session) in any::<(u64, u64, bool, u64)>(),
        (has_lapsed, lease_ms) in any::<(bool, u64)>(),
        devices in vec(device(), 0..3),
        (counted, foreign) in (counted(), vec(peers(), 0..3)),
    ) -> NodeRecord {
        let (cpu, memory) = (MilliCpu::new(cpu), Bytes::new(memory));
        let labels = labels.into();
        let spec = NodeSpec { name, labels, taints, cpu, memory, devices, cordoned, counted, foreign };
        NodeRecord { spec, session, has_lapsed, lease_ms }
    }
}

fn group() -> impl Strategy<Value = PeerGroup> {
    text().prop_map(|name| PeerGroup::from(name.as_str()))
}

prop_compose! {
    fn spread()(
        (group, topology_key, labels) in (group(), text(), btree_map(text(), text(), 0..3)),
        (max_skew, min_domains) in any::<(u32, u32)>(),
        node_terms in btree_set(node_term(), 0..3),
        tolerations in option::of(btree_set(toleration(), 0..3)),
    ) -> TopologySpread {
        TopologySpread { group, topology_key, max_skew, min_domains, labels, node_terms, tolerations }
    }
}

fn peers() -> impl Strategy<Value = Arc<Peers>> {
    let affinity = (group(), btree_set(text(), 0..3));
    let affinity = affinity.prop_map(|(group, topology_keys)| Affinity { group, topology_keys });
    let anti_affinity = (group(), text()).prop_map(|(group, topology_key)| AntiAffinity { group, topology_key });
    let preference = (group(), text(), any::<i32>());
    let preference =
        preference.prop_map(|(group, topology_key, weight)| PeerPreference { group, topology_key, weight });
    let rules = (option::of(affinity), btree_set(anti_affinity, 0..3), btree_set(spread(), 0..3));
    let wishes = (btree_set(preference, 0..3), btree_set(spread(), 0..3));
    let all = (btree_set(group(), 0..3), rules, wishes);
    all.prop_map(|(member_of, (affinity, anti_affinity, spread), (preferences, preferred_spread))| {
        Arc::new(Peers { member_of, affinity, anti_affinity, spread, preferences, preferred_spread })
    })
}

fn alignment() -> impl Strategy<Value = Alignment> {
    prop::sample::select(vec![Alignment::Any, Alignment::Preferred, Alignment::Required])
}

fn device_memory() -> impl Strategy<Value = DeviceMemory> {
    prop_oneof![
        any::<u64>().prop_map(|bytes| DeviceMemory::Bytes(Bytes::new(bytes))),
        any::<u32>().prop_map(DeviceMemory::Thousandths),
    ]
}

fn preference() -> impl Strategy<Value = Preference> {
    (any::<u8>(), node_term()).prop_map(|(weight, term)| Preference { weight, term })
}

prop_compose! {
    fn request()(
        (cpu, memory, count, core, memory_threshold_percent) in any::<(u64, u64, u16, u32, Option<u8>)>(),
        device_memory in device_memory(),
        models in btree_set(text(), 0..3),
        (attributes, labels) in (btree_map(text(), text(), 0..3), btree_map(text(), text(), 0..3)),
        (tolerations, node_terms) in (btree_set(toleration(), 0..3), btree_set(node_term(), 0..3)),
        preferences in option::of(vec(preference(), 1..3)),
        (nvlink, switch) in (alignment(), alignment()),
        (counted, peers) in (counted(), option::of(peers())),
        (further, alternatives) in (option::of(further()), option::of(alternatives())),
    ) -> Request {
        Request {
            cpu: MilliCpu::new(cpu),
            memory: Bytes::new(memory),
            devices: DeviceRequest { count, core: DeviceCore::new(core), memory: device_memory },
            constraints: Constraints { models, attributes, labels, tolerations, node_terms },
            preferences: preferences.map(|all| Arc::new(Preferences(all))),
            rules: PlacementRules { nvlink, switch, memory_threshold_percent },
            counted,
            peers,
            further: further.map(Arc::new),
            alternatives: alternatives.map(Arc::new),
        }
    }
}

prop_compose! {
    fn alternatives()(
        first_name in text(),
        others in vec((text(), any::<(u16, u16, u32)>(), device_memory(), option::of(further())), 0..3),
        (models, attributes) in (btree_set(text(), 0..3), btree_map(text(), text(), 0..3)),
    ) -> Alternatives {
        let other = |(name, (rank, count, core), memory, further): (_, _, _, Option<_>)| {
            let devices = DeviceRequest { count, core: DeviceCore::new(core), memory };
            let (models, attributes, further) = (models.clone(), attributes.clone(), further.map(Arc::new));
            Alternative { name, rank, devices, models, attributes, further }
        };
        Alternatives { first_name, others: others.into_iter().map(other).collect() }
    }
}

prop_compose! {
    fn further()(
        first_name in text(),
        requests in vec((text(), any::<(u16, u32)>(), device_memory(), btree_set(text(), 0..3)), 0..3),
        attributes in btree_map(text(), text(), 0..3),
        links in btree_set((btree_set(any::<u16>(), 0..3), property(), any::<bool>()), 0..3),
    ) -> FurtherRequests {
        let request = |(name, (count, core), memory, models)| {
            let devices = DeviceRequest { count, core: DeviceCore::new(core), memory };
            FurtherRequest { name, devices, models, attributes: attributes.clone() }
        };
        let link = |(requests, property, is_same)| {
            let comparison = if is_same { Comparison::Same } else { Comparison::Distinct };
            DeviceLink { requests, property, comparison }
        };
        let links = links.into_iter().map(link).collect();
        FurtherRequests { first_name, requests: requests.into_iter().map(request).collect(), links }
    }
}

fn property() -> impl Strategy<Value = DeviceProperty> {
    prop_oneof![
        Just(DeviceProperty::Identity),
        Just(DeviceProperty::NvlinkGroup),
        Just(DeviceProperty::Switch),
        text().prop_map(DeviceProperty::Attribute),
    ]
}

prop_compose! {
    fn usage()(until_ms in any::<u64>(), integrals in vec((resource(), any::<u128>()), 0..3)) -> DumpedUsage {
        DumpedUsage { until_ms, integrals }
    }
}

prop_compose! {
    fn arrivals()(
        (half_life_ms, decayed_ms, news) in any::<(u64, u64, u64)>(),
        counts in vec((request(), any::<u64>()), 0..3),
        given in option::of(vec((request(), any::<u64>()), 0..3)),
    ) -> DumpedMixCounter {
        DumpedMixCounter { half_life_ms, decayed_ms, counts, news, given }
    }
}

prop_compose! {
    fn keeping()(
        queues in vec(text(), 1..3),
        (excess_per_mille, since_ms, is_entitled) in any::<(u64, u64, bool)>(),
    ) -> DumpedKeeping {
        DumpedKeeping { queues, excess_per_mille, since_ms, is_entitled }
    }
}

prop_compose! {
    fn bound()(
        owner in owner(),
        (since_ms, times) in any::<(u64, u32)>(),
        keeping in option::of(keeping()),
    ) -> BoundRecord {
        BoundRecord { owner, since_ms, times, keeping }
    }
}

prop_compose! {
    pub(super) fn memory()(
        models in vec(text(), 0..3),
        capacity in usage(),
        usage in vec((text(), usage()), 0..3),
        arrivals in option::of(arrivals()),
        groups in vec((text(), text(), any::<u64>(), any::<Option<u64>>()), 0..3),
        holds in vec((owner(), any::<u64>(), vec(node_name(), 0..3)), 0..3),
        bounds in vec(bound(), 0..3),
        searches in vec((action(), owner(), option::of(node_name()), any::<u32>()), 0..3),
        (ended, eighths) in any::<(u64, u8)>(),
    ) -> Memory {
        let turnover = DumpedTurnover { ended, eighths };
        Memory { models, capacity, usage, arrivals, groups, holds, bounds, searches, turnover }
    }
}
