//! Every record is read back as it was written, and records in today's format can be read for ever.

mod strategies;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::explain::Share;
use aliquot_scheduler_core::{
    Action, AntiAffinity, Bytes, DeviceCore, Health, MilliCpu, Peers, Resource, Taint, TaintEffect, Toleration,
};
use aliquot_scheduler_engine::{
    Amounts, ClaimKey, ClaimRecord, DevicePart, EvictionRecord, Generation, InstanceRecord, Memory, Owner, Phase,
};
use proptest::option;
use proptest::prelude::*;

use super::*;
use strategies::{claim, generation, memory, node, text};

proptest! {
    #[test]
    fn records_of_claims_are_read_as_they_were_written(record in claim()) {
        let (format, text) = write_claim(&record);
        prop_assert_eq!(read_claim(format.into(), &text), Ok(record));
    }

    #[test]
    fn records_of_nodes_are_read_as_they_were_written(record in node()) {
        let (format, text) = write_node(&record);
        prop_assert_eq!(read_node(format.into(), &text), Ok(record));
    }

    #[test]
    fn what_is_remembered_is_read_as_it_was_written(memory in memory()) {
        let (format, text) = write_memory(&memory);
        prop_assert_eq!(read_memory(format.into(), &text), Ok(memory));
    }

    #[test]
    fn keys_of_claims_are_read_as_they_were_written(uid in text(), stray in option::of(generation())) {
        let key = ClaimKey { uid: uid.into(), stray };
        prop_assert_eq!(read_claim_key(&write_claim_key(&key)), Ok(key));
    }

    #[test]
    fn text_that_is_no_record_is_refused_and_never_panics(text in ".{0,40}", record in claim(), cut in any::<prop::sample::Index>()) {
        let _ = (read_claim(1, &text), read_node(2, &text), read_memory(2, &text), read_claim_key(&text));
        let (_, written) = write_claim(&record);
        let cut = written.floor_char_boundary(cut.index(written.len()));
        prop_assert!(read_claim(2, &written[..cut]).is_err());
    }
}

/// A claim of format 1, which looks the same in formats 2 to 4. Such records exist in databases, so they must always be
/// readable.
const CLAIM_1: &str = r#"{"added_ms":1,"failures":2,"retry_at_ms":3,"evicted":{"action":"stale_gang","by":{"group":{"namespace":"n","name":"g"}},"by_name":"g","at_ms":4,"shares":[{"queue":"q","resource":{"model_core":"A100"},"held":5,"asked":6,"fair_share":7}]},"is_ended":true,"instance":{"node":"node-0","session":8,"generation":{"term":9,"number":10},"phase":"stopping","started_ms":11,"amounts":{"cpu_millis":12,"memory_bytes":13,"devices":[{"uuid":"GPU-0","core_millis":14,"memory_bytes":15}]}}}"#;

#[test]
fn a_claim_of_today_looks_so_in_the_file() {
    let eviction = EvictionRecord {
        action: Action::StaleGang,
        by: Some(Owner::Group("n".into(), "g".into())),
        by_name: "g".into(),
        at_ms: 4,
        shares: vec![Share {
            queue: "q".into(),
            resource: Resource::ModelCore("A100".into()),
            held: 5,
            asked: 6,
            fair_share: 7,
        }],
    };
    let part = DevicePart { uuid: "GPU-0".into(), core: DeviceCore::new(14), memory: Bytes::new(15) };
    let instance = InstanceRecord {
        node: "node-0".into(),
        session: 8,
        generation: Generation { term: 9, number: 10 },
        phase: Phase::Stopping,
        started_ms: 11,
        amounts: Amounts {
            cpu: MilliCpu::new(12),
            memory: Bytes::new(13),
            devices: vec![part],
            alternative: 0,
            counted: BTreeMap::new(),
        },
    };
    let record = ClaimRecord {
        added_ms: 1,
        failures: 2,
        retry_at_ms: 3,
        evicted: Some(eviction),
        is_ended: true,
        instance: Some(instance),
        ..ClaimRecord::default()
    };
    assert_eq!(write_claim(&record), (5, CLAIM_1.to_owned()));
    assert_eq!(read_claim(3, CLAIM_1), Ok(record.clone()));
    assert_eq!(read_claim(1, CLAIM_1), Ok(record));
}

/// A node and a memory of format 1, with all types that a claim's record does not contain.
const NODE_1: &str = r#"{"spec":{"name":"n","labels":{"zone":"a"},"taints":[{"key":"k","value":"v"}],"cpu_millis":1,"memory_bytes":2,"devices":[{"uuid":"GPU-0","model":"A","memory_bytes":3,"health":"unhealthy","nvlink_group":4,"switch":5,"numa":6,"attributes":{"arch":"h"}}],"cordoned":true},"session":7,"has_lapsed":true}"#;
const MEMORY_1: &str = r#"{"models":["A"],"capacity":{"until_ms":1,"integrals":[{"resource":"device_core","integral":"340282366920938463463374607431768211455"}]},"usage":[{"queue":"q","usage":{"until_ms":2,"integrals":[]}}],"arrivals":{"half_life_ms":3,"decayed_ms":4,"counts":[{"request":{"cpu_millis":5,"memory_bytes":6,"device_count":7,"device_core_millis":8,"device_memory":{"thousandths":9},"models":["A"],"attributes":{"a":"b"},"labels":{"c":"d"},"tolerations":[{"key":"k","value":""}],"nvlink":"required","switch":"preferred","memory_threshold_percent":10},"count":11}],"news":12,"given":[]},"groups":[{"namespace":"n","name":"g","added_ms":13,"stale_since_ms":14}],"holds":[{"owner":{"claim":"c"},"since_ms":15,"nodes":["n"]}],"searches":[{"action":"preempt","owner":{"claim":"c"},"node":"n","times":16}]}"#;

#[test]
fn nodes_and_memories_of_today_look_so_in_the_file() {
    let node = read_node(1, NODE_1).expect("it can be read");
    assert_eq!(node.spec.devices[0].numa, Some(6));
    assert_eq!(node.spec.taints, [Taint { key: "k".into(), value: "v".into(), effect: TaintEffect::NoSchedule }]);
    assert_eq!(write_node(&node), (5, NODE_1.to_owned()));
    let memory = read_memory(1, MEMORY_1).expect("it can be read");
    assert_eq!(memory.capacity.integrals, [(Resource::DeviceCore, u128::MAX)]);
    assert_eq!(memory.searches, [(Action::Preempt, Owner::Claim("c".into()), Some("n".into()), 16)]);
    assert_eq!(tolerations(&memory), [&Toleration { key: Some("k".into()), value: Some(String::new()), effect: None }]);
    assert_eq!(write_memory(&memory), (5, MEMORY_1.to_owned()));
}

/// The tolerations in all counted requests.
fn tolerations(memory: &Memory) -> Vec<&Toleration> {
    let counts = memory.arrivals.iter().flat_map(|arrivals| &arrivals.counts);
    counts.flat_map(|(request, _)| &request.constraints.tolerations).collect()
}

/// What format 2 added.
const NODE_2: &str = r#"{"spec":{"name":"n","taints":[{"key":"k","value":"","effect":"no_execute"}],"cpu_millis":0,"memory_bytes":0,"cordoned":false,"counted":{"pods":110}},"session":1,"has_lapsed":false}"#;
const MEMORY_2: &str = r#"{"models":[],"capacity":{"until_ms":0,"integrals":[]},"usage":[],"arrivals":{"half_life_ms":1,"decayed_ms":0,"counts":[{"request":{"cpu_millis":0,"memory_bytes":0,"device_count":0,"device_core_millis":0,"device_memory":{"bytes":0},"tolerations":[{"key":"","value":"","any_key":true,"any_value":true,"effect":"no_schedule"},{"key":"k","value":"","any_value":true}],"node_terms":[[{"key":"disk","operator":"exists"},{"key":"zone","operator":{"in":["a","b"]}}]],"nvlink":"any","switch":"any","counted":{"pods":1}},"count":1}],"news":0},"groups":[],"holds":[],"searches":[]}"#;

#[test]
fn what_came_with_format_2_looks_so_in_the_file() {
    let node = read_node(2, NODE_2).expect("it can be read");
    assert_eq!(node.spec.taints[0].effect, TaintEffect::NoExecute);
    assert_eq!(node.spec.counted, BTreeMap::from([("pods".to_owned(), 110)]));
    assert_eq!(write_node(&node), (5, NODE_2.to_owned()));
    let memory = read_memory(2, MEMORY_2).expect("it can be read");
    let any = Toleration { effect: Some(TaintEffect::NoSchedule), ..Toleration::default() };
    assert_eq!(tolerations(&memory), [&any, &Toleration { key: Some("k".into()), ..Toleration::default() }]);
    assert_eq!(write_memory(&memory), (5, MEMORY_2.to_owned()));
}

/// What format 3 added.
const NODE_3: &str = r#"{"spec":{"name":"n","cpu_millis":0,"memory_bytes":0,"cordoned":false,"foreign":[{"member_of":["g"],"anti_affinity":[{"group":"g","topology_key":"zone"}]}]},"session":1,"has_lapsed":false}"#;
const CLAIM_3: &str = r#"{"added_ms":0,"failures":0,"retry_at_ms":0,"is_ended":false,"resize":{"from":{"cpu_millis":0,"memory_bytes":0,"device_count":0,"device_core_millis":0,"device_memory":{"bytes":0},"nvlink":"any","switch":"any"},"held":{"cpu_millis":0,"memory_bytes":0,"device_count":0,"device_core_millis":0,"device_memory":{"bytes":0},"nvlink":"any","switch":"any","peers":{"affinity":{"group":"g","topology_keys":["host","zone"]},"spread":[{"group":"g","topology_key":"zone","max_skew":1,"min_domains":2,"labels":{"a":"b"},"tolerations":[]}]}}}}"#;

#[test]
fn what_came_with_format_3_looks_so_in_the_file() {
    let node = read_node(4, NODE_3).expect("it can be read");
    let rule = AntiAffinity { group: "g".into(), topology_key: "zone".into() };
    let peers =
        Peers { member_of: BTreeSet::from(["g".into()]), anti_affinity: BTreeSet::from([rule]), ..Peers::default() };
    assert_eq!(node.spec.foreign, [Arc::new(peers)]);
    assert_eq!(write_node(&node), (5, NODE_3.to_owned()));
    let claim = read_claim(3, CLAIM_3).expect("it can be read");
    let peers = claim.resize.as_ref().and_then(|resize| resize.held.peers.as_deref()).expect("it has peers");
    let spread = peers.spread.first().expect("there is one");
    assert_eq!((spread.max_skew, spread.min_domains, &spread.tolerations), (1, 2, &Some(BTreeSet::new())));
    assert_eq!(write_claim(&claim), (5, CLAIM_3.to_owned()));
}

/// What format 4 added.
const CLAIM_4: &str = r#"{"added_ms":0,"failures":0,"retry_at_ms":0,"is_ended":false,"resize":{"from":{"cpu_millis":0,"memory_bytes":0,"device_count":1,"device_core_millis":1000,"device_memory":{"thousandths":1000},"further":{"first_name":"a","requests":[{"name":"b","device_count":2,"device_core_millis":200,"device_memory":{"bytes":3},"models":["H100"],"attributes":{"arch":"h"}}],"links":[{"requests":[0,1],"property":"identity","comparison":"distinct"},{"requests":[1],"property":{"attribute":"rack"},"comparison":"same"}]},"nvlink":"any","switch":"any"},"held":{"cpu_millis":0,"memory_bytes":0,"device_count":0,"device_core_millis":0,"device_memory":{"bytes":0},"nvlink":"any","switch":"any"}}}"#;

#[test]
fn what_came_with_format_4_looks_so_in_the_file() {
    let claim = read_claim(4, CLAIM_4).expect("it can be read");
    let further = claim.resize.as_ref().and_then(|resize| resize.from.further.as_deref()).expect("it asks for more");
    let [request] = &further.requests[..] else { panic!("{further:?}") };
    assert_eq!((request.name.as_str(), request.devices.count), ("b", 2));
    assert_eq!(further.links.len(), 2);
    assert_eq!(write_claim(&claim), (5, CLAIM_4.to_owned()));
}

/// What format 5 added.
const CLAIM_5: &str = r#"{"added_ms":0,"failures":0,"retry_at_ms":0,"is_ended":false,"instance":{"node":"n","session":1,"generation":{"term":1,"number":2},"phase":"running","started_ms":3,"amounts":{"cpu_millis":0,"memory_bytes":0,"alternative":1}}}"#;

#[test]
fn what_came_with_format_5_looks_so_in_the_file() {
    let claim = read_claim(5, CLAIM_5).expect("it can be read");
    assert_eq!(claim.instance.as_ref().map(|instance| instance.amounts.alternative), Some(1));
    assert_eq!(write_claim(&claim), (5, CLAIM_5.to_owned()));
}

#[test]
fn a_format_that_is_not_known_is_not_guessed_at() {
    for format in [0, 6] {
        let refused = read_node(format, NODE_1).expect_err("it is not known");
        assert_eq!(refused, format!("it has format {format}, and this program knows 1 to 5"));
    }
}

#[test]
fn fields_that_are_not_known_or_not_there_harm_nobody() {
    assert_eq!(
        read_claim(1, r#"{"later": [1], "failures": 3}"#),
        Ok(ClaimRecord { failures: 3, ..Default::default() })
    );
    assert_eq!(read_memory(1, "{}"), Ok(Memory::default()));
    let node = read_node(1, r#"{"spec": {"name": "n", "devices": [{"uuid": "g", "later": 1}]}, "session": 1}"#);
    assert_eq!(node.map(|node| node.spec.devices[0].health), Ok(Health::Healthy));
    // A field without which the record makes no sense is not guessed.
    read_node(1, "{}").expect_err("a node has a name");
    read_claim(1, r#"{"instance": {}}"#).expect_err("an instance is somewhere");
    read_claim(1, r#"{"evicted": {"action": "later", "at_ms": 1}}"#).expect_err("the word is not known");
}
