//! What would happen if there were more pods: a copy of the scheduler decides it in a copy of the books.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_api_server::questions::{DeviceAsk, MakingWay, Part, Placement, Reason, WhatIf, WhatIfAnswer};
use aliquot_scheduler_core::explain::{Change, Explanation, Tier};
use aliquot_scheduler_core::{
    Action, Allocation, Bytes, ClaimId, Cluster, DEFAULT_QUEUE, DeviceCore, DeviceMemory, DeviceRequest, Event,
    GroupId, Outcome, PlannedStep, PriorityClass, Step,
};
use aliquot_scheduler_engine::View;
use aliquot_telemetry::tier_word;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::reasons;
use crate::mirror::Imagined;
use crate::owner::OwnerFacts;
use crate::pod::{PodFacts, SeenPod};
use crate::report::{about_other_devices, about_our_devices, changes_worth_saying};
use crate::serve::Shared;
use crate::webhook::filled_in;

/// Pods that can be asked about together.
const COUNT_MAX: u32 = 1000;
/// Cycles that are tried, at most. One of them makes room for the pods, and pods that come before may need others.
const CYCLES_MAX: usize = 16;

/// Says where the pods would be, or why they would wait. `fills_in`: when they are made, the webhook fills in what they
/// leave out.
///
/// # Errors
/// Why such pods will not be scheduled, or what is wrong with the question.
pub(super) fn answer(shared: &Shared, view: &View, question: WhatIf, fills_in: bool) -> Result<WhatIfAnswer, String> {
    let count = question.count;
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(format!("the number of pods is {count}; ask for 1 to {COUNT_MAX}"));
    }
    let pod = if question.pod.is_null() { json!({"spec": {"containers": []}}) } else { question.pod };
    let pod = if fills_in { as_made(&shared.name, pod)? } else { pod };
    let owner = question.owner.map(serde_json::from_value::<ObjectMeta>).transpose();
    let owner = owner.map_err(|error| format!("the owner's metadata cannot be read: {error}"))?;
    let words = owner.and_then(|metadata| OwnerFacts::of(&metadata).words);
    let facts = facts(&shared.name, pod.clone())?.with_words_of(words.as_deref());
    let devices = question.devices.map(request).transpose()?;
    let is_gang = question.gang || facts.gang.is_some();
    let (imagined, ill, idle) = shared.read(|mirror| {
        let imagined = mirror.imagine(&facts, count, is_gang, devices)?;
        Ok::<_, String>((imagined, mirror.ill_devices(), mirror.idle_parts()))
    })?;
    let (asks, place) = (imagined.claim.request.device_count() > 0, imagined.place.clone());
    let (mut answer, explanation) = Trial::new(view, imagined, count)?.run(view)?;
    let reason = |tier: Tier, text: String| Reason { tier: tier_word(tier).to_owned(), text };
    if let Some(explanation) = &explanation {
        let of_others = about_other_devices(explanation, place.as_deref());
        answer.reasons.extend(of_others.map(|(tier, text)| reason(tier, text.to_owned())));
        let of_ours = about_our_devices(asks, explanation, &ill, &idle);
        answer.reasons.extend(of_ours.map(|text| reason(Tier::Device, text)));
    }
    answer.pod = fills_in.then_some(pod);
    Ok(answer)
}

/// The pod with what the webhook fills in.
fn as_made(own_name: &str, mut pod: Value) -> Result<Value, String> {
    let spec = pod.get_mut("spec").and_then(Value::as_object_mut).ok_or("it is no pod: it has no spec")?;
    spec.insert("schedulerName".to_owned(), own_name.into());
    filled_in(&pod, own_name, false, &[])
}

/// The pod as the scheduler would see it.
fn facts(own_name: &str, pod: Value) -> Result<PodFacts, String> {
    let mut seen: SeenPod = serde_json::from_value(pod).map_err(|error| format!("it is no pod: {error}"))?;
    let metadata = &mut seen.pod.metadata;
    metadata.uid = Some("what-if".to_owned());
    metadata.name.get_or_insert_with(|| "what-if".to_owned());
    metadata.namespace.get_or_insert_with(|| "default".to_owned());
    let spec = seen.pod.spec.get_or_insert_default();
    (spec.scheduler_name, spec.node_name) = (Some(own_name.to_owned()), None);
    if let (None, Some(class)) = (spec.priority, spec.priority_class_name.as_deref().filter(|name| !name.is_empty())) {
        let known = PriorityClass::ALL.into_iter().find(|of| of.name() == class);
        let known = known.ok_or_else(|| format!("the priority class {class:?} is not known here; give spec.priority"));
        spec.priority = Some(known?.value());
    }
    PodFacts::of(seen, own_name).ok_or_else(|| "it is no pod".to_owned())
}

fn request(ask: DeviceAsk) -> Result<DeviceRequest, String> {
    let DeviceAsk { gpus, gpu_core_percent: percent, gpu_memory_bytes } = ask;
    if !(1..=100).contains(&percent) {
        return Err(format!("gpu-core is {percent} %; ask for 1 to 100 % of each of several devices"));
    }
    let memory = match gpu_memory_bytes {
        Some(bytes) => DeviceMemory::Bytes(Bytes::new(bytes)),
        None => DeviceMemory::Thousandths(percent * 10),
    };
    Ok(DeviceRequest { count: gpus, core: DeviceCore::new(percent * 10), memory })
}

/// A copy of the books with the pods in it.
struct Trial {
    cluster: Cluster,
    ours: Vec<ClaimId>,
    groups: BTreeSet<GroupId>,
    placed: BTreeMap<ClaimId, Placement>,
    making_way: BTreeMap<ClaimId, MakingWay>,
}

impl Trial {
    fn new(view: &View, imagined: Imagined, count: u32) -> Result<Trial, String> {
        let mut cluster = view.cluster().clone();
        if let Some(group) = imagined.group {
            cluster.apply(Event::PodGroupAdded(group)).map_err(|error| error.to_string())?;
        }
        let mut ours = Vec::new();
        for _ in 0..count {
            match cluster.apply(Event::ClaimAdded(imagined.claim.clone())) {
                Ok(Outcome::Claim(id)) => ours.push(id),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let groups = ours.iter().filter_map(|id| cluster.group_of(*id)).collect();
        Ok(Trial { cluster, ours, groups, placed: BTreeMap::new(), making_way: BTreeMap::new() })
    }

    /// Says what becomes of the pods, and why the first one waits that does.
    fn run(mut self, view: &View) -> Result<(WhatIfAnswer, Option<Explanation>), String> {
        let mut scheduler = view.scheduler().fork();
        for _ in 0..CYCLES_MAX {
            let plan = scheduler.cycle(&mut self.cluster);
            plan.steps.iter().for_each(|step| self.note(step));
            let is_placed = |id: &ClaimId| self.cluster.allocation(*id).is_some();
            if plan.steps.is_empty() || self.ours.iter().all(is_placed) {
                break;
            }
            let leaving: Vec<ClaimId> =
                self.cluster.claims().map(|(id, ..)| id).filter(|id| self.cluster.leaving(*id).is_some()).collect();
            for id in leaving {
                self.cluster.apply(Event::ClaimGone(id)).map_err(|error| error.to_string())?;
            }
        }
        // A pod that was placed may have been evicted again.
        self.placed.retain(|id, _| self.cluster.allocation(*id).is_some());
        let first_waiting = self.ours.iter().find(|id| !self.placed.contains_key(id));
        let explanation = first_waiting.and_then(|id| scheduler.explain(&self.cluster, *id).ok());
        let queue = self.ours.first().map(|id| self.queue_of(*id)).unwrap_or_default();
        let answer = WhatIfAnswer {
            queue,
            waiting: u32::try_from(self.ours.len() - self.placed.len()).unwrap_or(u32::MAX),
            placed: self.placed.into_values().collect(),
            making_way: self.making_way.into_values().collect(),
            reasons: explanation.as_ref().map(reasons).unwrap_or_default(),
            pod: None,
            changes: explanation
                .iter()
                .flat_map(changes_worth_saying)
                // The imagined pods end only in the imagination.
                .filter(|change| !matches!(change, Change::WaitFor { claim, .. } if self.ours.contains(claim)))
                .map(ToString::to_string)
                .collect(),
        };
        Ok((answer, explanation))
    }

    fn note(&mut self, planned: &PlannedStep) {
        let claim = planned.step.claim();
        let is_ours = self.ours.contains(&claim);
        match &planned.step {
            Step::Place { to, starts_after, .. } | Step::Move { to, starts_after, .. } if is_ours => {
                let after = starts_after.iter().map(|id| self.name_of(*id)).collect();
                let placement = Placement { after, ..self.placement(to) };
                self.placed.insert(claim, placement);
            }
            Step::Evict { from, .. } if self.is_for_ours(planned) && !is_ours => {
                let way = self.way_of(claim, from, None, planned.action);
                self.making_way.insert(claim, way);
            }
            Step::Move { from, to, .. } if self.is_for_ours(planned) => {
                let to = Some(self.placement(to).node);
                let way = self.way_of(claim, from, to, planned.action);
                self.making_way.insert(claim, way);
            }
            _ => {}
        }
    }

    fn is_for_ours(&self, planned: &PlannedStep) -> bool {
        planned.for_group.is_some_and(|group| self.groups.contains(&group))
    }

    fn way_of(&self, claim: ClaimId, from: &Allocation, to: Option<String>, action: Action) -> MakingWay {
        MakingWay {
            pod: self.name_of(claim),
            queue: self.queue_of(claim),
            node: self.placement(from).node,
            to,
            action: match action {
                Action::Consolidate => "consolidate",
                Action::Preempt => "preempt",
                Action::Reclaim | Action::Allocate | Action::StaleGang | Action::Relieve => "reclaim",
            }
            .to_owned(),
        }
    }

    fn placement(&self, at: &Allocation) -> Placement {
        let Some(node) = self.cluster.node(at.node).map(|node| node.spec()) else { return Placement::default() };
        let part = |of: &aliquot_scheduler_core::DeviceAllocation| Part {
            uuid: node.devices.get(usize::from(of.device)).map(|device| device.uuid.to_string()).unwrap_or_default(),
            core_thousandths: of.core.get(),
            memory_bytes: of.memory.get(),
        };
        Placement { node: node.name.clone(), devices: at.devices.iter().map(part).collect(), after: Vec::new() }
    }

    fn name_of(&self, claim: ClaimId) -> String {
        self.cluster.claim(claim).map(|claim| claim.name.to_string()).unwrap_or_default()
    }

    fn queue_of(&self, claim: ClaimId) -> String {
        let group = self.cluster.group_of(claim).and_then(|group| self.cluster.group(group));
        let queue = group.and_then(|group| self.cluster.queue(group.queue()));
        queue.map_or_else(|| DEFAULT_QUEUE.to_owned(), |queue| queue.spec().name.clone())
    }
}
