//! Translates between the agents' contract and the engine's types.

use std::collections::BTreeMap;

use aliquot_proto::agent::v1 as wire;
use aliquot_scheduler_core::{Bytes, DeviceCore, DeviceSpec, Health, MilliCpu, NodeSpec, Taint, TaintEffect};
use aliquot_scheduler_engine::{Amounts, DevicePart, Generation, NodeReport, Running, StepOutcome};

use crate::jobs::{ClaimName, NODE_LABEL, SECRETS_LABEL};

pub(crate) fn generation(from: Option<wire::Generation>) -> Generation {
    from.map_or_else(Generation::default, |from| Generation { term: from.term, number: from.number })
}

pub(crate) fn to_generation(from: Generation) -> wire::Generation {
    wire::Generation { term: from.term, number: from.number }
}

/// A node's report. The node's name comes from its certificate.
pub(crate) fn report(name: &str, session: u64, sequence: u64, from: wire::Report) -> NodeReport {
    let running = from.running.into_iter().map(|running| Running {
        claim: running.claim.into(),
        instance: generation(running.instance),
        amounts: amounts(running.amounts.unwrap_or_default()),
        since_ms: None,
    });
    NodeReport {
        spec: spec(name, from.spec.unwrap_or_default()),
        session,
        sequence,
        handled: generation(from.handled),
        running: running.collect(),
    }
}

fn spec(name: &str, from: wire::NodeSpec) -> NodeSpec {
    let narrow = |number: Option<u32>| number.and_then(|number| u16::try_from(number).ok());
    let device = |from: wire::Device| DeviceSpec {
        uuid: from.uuid,
        model: from.model,
        memory: Bytes::new(from.memory_bytes),
        health: if from.healthy { Health::Healthy } else { Health::Unhealthy },
        nvlink_group: narrow(from.nvlink_group),
        numa: narrow(from.numa_node),
        attributes: from.attributes.into_iter().collect(),
        ..DeviceSpec::default()
    };
    let taint = |from: wire::Taint| Taint { key: from.key, value: from.value, effect: TaintEffect::NoSchedule };
    let mut labels: BTreeMap<String, String> = from.labels.into_iter().collect();
    labels.insert(NODE_LABEL.to_owned(), name.to_owned());
    // This overrides the node's configuration: a node with an older version would run the job without its secrets.
    match from.keeps_secrets {
        true => _ = labels.insert(SECRETS_LABEL.0.to_owned(), SECRETS_LABEL.1.to_owned()),
        false => _ = labels.remove(SECRETS_LABEL.0),
    }
    NodeSpec {
        name: name.to_owned(),
        labels: labels.into(),
        taints: from.taints.into_iter().map(taint).collect(),
        cpu: MilliCpu::new(from.cpu_millis),
        memory: Bytes::new(from.memory_bytes),
        devices: from.devices.into_iter().map(device).collect(),
        cordoned: from.cordoned,
        counted: BTreeMap::new(),
        foreign: Vec::new(),
    }
}

pub(crate) fn amounts(from: wire::Amounts) -> Amounts {
    let part = |from: wire::DevicePart| DevicePart {
        uuid: from.uuid,
        core: DeviceCore::new(from.core_millis),
        memory: Bytes::new(from.memory_bytes),
    };
    Amounts {
        cpu: MilliCpu::new(from.cpu_millis),
        memory: Bytes::new(from.memory_bytes),
        devices: from.devices.into_iter().map(part).collect(),
        // Jobs have no alternatives.
        alternative: 0,
        counted: BTreeMap::new(),
    }
}

pub(crate) fn to_amounts(from: &Amounts) -> wire::Amounts {
    let part = |from: &DevicePart| wire::DevicePart {
        uuid: from.uuid.clone(),
        core_millis: from.core.get(),
        memory_bytes: from.memory.get(),
    };
    wire::Amounts {
        cpu_millis: from.cpu.get(),
        memory_bytes: from.memory.get(),
        devices: from.devices.iter().map(part).collect(),
    }
}

pub(crate) fn step_outcome(from: &wire::outcome::Outcome) -> StepOutcome {
    use wire::outcome::Outcome;
    match from {
        Outcome::Started(_) => StepOutcome::Started,
        Outcome::Refused(why) => StepOutcome::Refused(why.clone()),
        Outcome::Failed(why) => StepOutcome::Failed(why.clone()),
        Outcome::Ended(_) => StepOutcome::Gone,
    }
}

pub(crate) fn acknowledge(claim: ClaimName, instance: Generation) -> wire::SchedulerMessage {
    let acknowledge = wire::Acknowledge { claim: claim.to_string(), instance: Some(to_generation(instance)) };
    message(0, wire::scheduler_message::Message::Acknowledge(acknowledge))
}

pub(crate) fn message(session: u64, message: wire::scheduler_message::Message) -> wire::SchedulerMessage {
    wire::SchedulerMessage { session, message: Some(message) }
}
