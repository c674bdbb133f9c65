//! The room of parts of devices. The books keep it by a claim of its own, whether a pod uses the part or not, so a pod
//! that uses a part asks for no device. Nothing changes in the books when such a pod begins or ends.
//!
//! There are two ways to get the room. A part whose room is reserved already, or that a bound pod has, is reported as
//! running on its node. For any other part the books are asked, which give it free room or refuse.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_api_server::QUEUE;
use aliquot_scheduler_core::{Bytes, Claim, Constraints, DeviceCore, DeviceMemory, DeviceRequest, Request, Toleration};
use aliquot_scheduler_engine::{Amounts, ClaimUid, DevicePart, Generation, Observation, Running, StepOutcome};

use super::super::chosen::only_on;
use super::super::{Access, Instance, KeptPart, Mirror};
use crate::devices;
use crate::elastic::{ElasticGpu, Name, Room, bound_to, subject_of};
use crate::pod::PodFacts;

/// The prefix of the names of parts in the books. No UID of a pod has it.
const PART: &str = "elasticgpu/";
/// A label that no node has: a part that is reported is never placed, only seen.
const NEVER_PLACED: &str = "aliquot.dev/is-reserved-already";
/// The generation of parts that are reported. No command has it.
const REPORTED: Generation = Generation { term: 0, number: 1 };

/// What the books were told of a part.
#[derive(Debug)]
pub(super) struct Told {
    place: Place,
    /// The generation that names it in the node's reports; `None`: the books were asked, and it is not there yet.
    instance: Option<Generation>,
    /// The books have no room for it. They are not asked again at once.
    is_refused: bool,
}

/// What a part is to hold, where, and for whom.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    node: String,
    part: DevicePart,
    /// The part's claim, or the part itself, for people who read reasons.
    of: String,
    namespace: String,
    queue: String,
}

impl Mirror {
    /// Brings the rooms of all parts of these subjects into the state that they should have.
    pub(super) fn look_at_rooms(&mut self, subjects: &BTreeSet<Name>) {
        if self.elastic_gpus.access != Access::Read {
            return;
        }
        let known = &self.elastic_gpus.known;
        let parts = subjects.iter().flat_map(|subject| known.parts_of(subject)).map(|(name, _)| name.to_owned());
        let parts: BTreeSet<String> = parts.chain(std::mem::take(&mut self.elastic_gpus.changed_parts)).collect();
        for name in parts {
            self.look_at_room(&name);
        }
    }

    fn look_at_room(&mut self, name: &str) {
        if self.awaits_answer(name) {
            self.elastic_gpus.postponed.insert(name.to_owned());
            return;
        }
        let Some(gpu) = self.elastic_gpus.known.gpu(name) else {
            self.end_part(name);
            self.elastic_gpus.known.rooms.remove(name);
            return;
        };
        let place = match self.place_of(name, gpu) {
            Ok(place) => place,
            Err(why) => {
                self.end_part(name);
                return self.note_room(name, Room::None(why));
            }
        };
        let told = self.elastic_gpus.told.get(name);
        if told.is_some_and(|told| told.place == place) {
            return;
        }
        let was_kept = told.is_some_and(|told| told.instance.is_some() && told.place.part == place.part);
        let is_reserved = gpu.status.as_ref().is_some_and(|status| status.reserved);
        if was_kept || is_reserved || self.is_of_bound_pod(name, gpu) {
            self.end_part(name);
            self.report_part(name, place);
        } else {
            self.end_part(name);
            self.ask_for_room(name, place);
        }
    }

    /// Whether an answer is on its way that concerns the room of a part, so that the room must stay as it is: the answer of
    /// the books, which were asked for the room, or that of a binding of a pod that has the part.
    fn awaits_answer(&self, name: &str) -> bool {
        let Some(told) = self.elastic_gpus.told.get(name) else { return false };
        if told.instance.is_none() {
            return !told.is_refused && !self.elastic_gpus.asked.iter().any(|asked| is_about(asked, name));
        }
        let gpu = self.elastic_gpus.known.gpu(name);
        if gpu.is_some_and(|gpu| self.place_of(name, gpu).is_ok_and(|place| place.part == told.place.part)) {
            return false;
        }
        let has_it = |of: &Instance| !of.is_bound && of.node == told.place.node && of.kept.contains(&told.place.part);
        self.pods.values().any(|pod| pod.instance.as_ref().is_some_and(has_it))
    }

    /// Gives back the room of all parts, because the cluster has no such objects any more.
    pub(super) fn end_all_parts(&mut self) {
        let names: Vec<String> = self.elastic_gpus.told.keys().cloned().collect();
        names.iter().for_each(|name| self.end_part(name));
        self.elastic_gpus.postponed.clear();
        self.elastic_gpus.known.rooms.clear();
        self.elastic_gpus.known.matches.clear();
    }

    fn note_room(&mut self, name: &str, room: Room) {
        if self.elastic_gpus.known.rooms.insert(name.to_owned(), room.clone()) != Some(room)
            && let Some(gpu) = self.elastic_gpus.known.gpu(name)
        {
            let subject = subject_of(name, gpu);
            self.elastic_gpus.claim_changed(subject);
        }
    }

    /// What a part is to hold.
    ///
    /// # Errors
    /// Why it can hold nothing, and what to do.
    fn place_of(&self, name: &str, gpu: &ElasticGpu) -> Result<Place, String> {
        let spec = &gpu.spec;
        let (node, device) = (&spec.node_name, &spec.device);
        let Some(inventory) = self.device_of(node, device) else {
            return Err(format!("the device {device} is not on node {node}"));
        };
        let core = u32::try_from(spec.capacity.core).ok().filter(|core| (1..=100).contains(core));
        let core = core.ok_or("its core must be 1 to 100 percent; create another ElasticGPU")?;
        let memory = u64::try_from(spec.capacity.memory_bytes).ok().filter(|bytes| *bytes > 0);
        let memory = memory.ok_or("its memory must be more than 0 bytes; create another ElasticGPU")?;
        let size = inventory.memory_bytes;
        if memory > size {
            return Err(format!(
                "its {memory} bytes are more than the {size} bytes of the device; create a smaller ElasticGPU"
            ));
        }
        let known = &self.elastic_gpus.known;
        let claim = spec.claim_ref.as_ref().map(|of| (of.namespace.clone(), of.name.clone()));
        let bound = claim.as_ref().and_then(|name| known.claims.get(name));
        let is_bound_here = spec.claim_ref.as_ref().is_some_and(|of| {
            !of.uid.is_empty() && bound.and_then(|claim| claim.metadata.uid.as_ref()) == Some(&of.uid)
        });
        if let Some(other) = bound.filter(|_| is_bound_here).and_then(|claim| known.gpu_of(claim))
            && other.metadata.name.as_deref() != Some(name)
        {
            let other = other.metadata.name.as_deref().unwrap_or_default();
            return Err(format!("its claim is bound to the ElasticGPU {other:?}; delete this one"));
        }
        let part = DevicePart { uuid: device.clone(), core: DeviceCore::new(core * 10), memory: Bytes::new(memory) };
        let on_node = self.elastic_gpus.on_node.get(node).into_iter().flatten().filter(|other| *other != name);
        let there = on_node.filter_map(|other| Some((other.as_str(), self.elastic_gpus.told.get(other)?)));
        let there = there
            .filter(|(_, told)| told.instance.is_some() && told.place.node == *node && told.place.part.uuid == *device);
        let there: Vec<(&str, &DevicePart)> = there.map(|(other, told)| (other, &told.place.part)).collect();
        let (cores, bytes) = there.iter().fold((core * 10, memory), |(core, bytes), (_, part)| {
            (core.saturating_add(part.core.get()), bytes.saturating_add(part.memory.get()))
        });
        if cores > DeviceCore::WHOLE.get() || bytes > size {
            let others: Vec<&str> = there.iter().map(|(other, _)| *other).collect();
            return Err(format!(
                "together with the ElasticGPU {} it is more than the device; delete one of them",
                others.join(", ")
            ));
        }
        // A part of an earlier claim of this name does not count to the queue of the new one.
        let may_be_bound = is_bound_here || bound_to(gpu).is_none();
        let of_queue = bound.filter(|_| may_be_bound);
        let queue_of_claim = of_queue.and_then(|claim| claim.metadata.labels.as_ref()?.get(QUEUE).cloned());
        let own = || gpu.metadata.labels.as_ref()?.get(QUEUE).cloned();
        let namespace = claim.as_ref().map(|(namespace, _)| namespace.clone()).unwrap_or_default();
        let queue = queue_of_claim.or_else(own).or_else(|| self.queue_of_namespace(&namespace));
        let queue = queue.filter(|queue| self.takes_claims(queue)).unwrap_or_default();
        let of = claim.map_or_else(
            || format!("ElasticGPU {name}"),
            |(namespace, name)| format!("ElasticGPUClaim {namespace}/{name}"),
        );
        Ok(Place { node: node.clone(), part, of, namespace, queue })
    }

    /// Whether a bound pod that uses the part's claim has the part, and the books know that or are about to hear of it.
    fn is_of_bound_pod(&self, name: &str, gpu: &ElasticGpu) -> bool {
        let subject = subject_of(name, gpu);
        let Some(pod) = self.user_of(&subject) else { return false };
        let is_in_books = pod.instance.as_ref().is_none_or(|of| of.is_bound && pod.claim.is_some());
        let given = self.use_of(&subject).and_then(|used| used.given);
        let has_it = given.is_some_and(|given| {
            let capacity = gpu.spec.capacity;
            (&given.node, &given.device) == (&gpu.spec.node_name, &gpu.spec.device)
                && i32::try_from(given.core_percent) == Ok(capacity.core)
                && i64::try_from(given.memory_bytes) == Ok(capacity.memory_bytes)
        });
        has_it && is_in_books && !pod.facts.is_leaving
    }

    /// The node's next report lists the part.
    fn report_part(&mut self, name: &str, place: Place) {
        let labels = BTreeMap::from([(NEVER_PLACED.to_owned(), "true".to_owned())]);
        let claim = claim_of(&place, Constraints { labels, ..Constraints::default() });
        // What the part holds until now is given back at the same moment.
        self.happens_together();
        self.told.push(Observation::Claim(uid_of(name), Box::new(claim)));
        self.report(&place.node);
        self.elastic_gpus.told.insert(name.to_owned(), Told { place, instance: Some(REPORTED), is_refused: false });
        self.note_room(name, Room::Kept);
    }

    /// Asks the books for room on the device of a part.
    fn ask_for_room(&mut self, name: &str, place: Place) {
        let anywhere = Toleration { key: None, value: None, effect: None };
        let claim = claim_of(
            &place,
            Constraints {
                attributes: BTreeMap::from([(devices::UUID.to_owned(), place.part.uuid.clone())]),
                tolerations: [anywhere].into(),
                node_terms: [only_on(&place.node)].into(),
                ..Constraints::default()
            },
        );
        let node = place.node.as_str().into();
        self.elastic_gpus.asked.push(Observation::ClaimOnNode(uid_of(name), Box::new(claim), node));
        self.elastic_gpus.told.insert(name.to_owned(), Told { place, instance: None, is_refused: false });
        // A part that had no room until now says so until there is an answer.
        if !matches!(self.elastic_gpus.known.rooms.get(name), Some(Room::None(_))) {
            self.note_room(name, Room::Asked);
        }
    }

    fn end_part(&mut self, name: &str) {
        let Some(told) = self.elastic_gpus.told.remove(name) else { return };
        self.happens_together();
        let uid = uid_of(name);
        if let (Some(generation), Some(node)) = (told.instance, self.nodes.get(&told.place.node)) {
            let of = instance_of(&told.place.node, node.session, generation);
            self.tell_outcome(uid.as_str(), &of, generation, StepOutcome::Gone);
            self.report(&told.place.node);
        }
        self.elastic_gpus.asked.retain(|asked| !is_about(asked, name));
        self.told.push(Observation::ClaimEnded(uid));
    }

    /// What the books are to be asked, when they know all that holds room.
    pub(in super::super) fn take_asked(&mut self) -> Vec<Observation> {
        std::mem::take(&mut self.elastic_gpus.asked)
    }

    /// The books have room for a part, and ask that it be taken. Returns whether this is about a part.
    pub(in super::super) fn start_part(&mut self, uid: &str, start: &Instance) -> bool {
        let Some(name) = uid.strip_prefix(PART) else { return false };
        let told = self.elastic_gpus.told.get_mut(name);
        let told =
            told.filter(|told| told.place.node == start.node && start.amounts.devices == [told.place.part.clone()]);
        let outcome = match told {
            Some(told) => {
                (told.instance, told.is_refused) = (Some(start.generation), false);
                StepOutcome::Started
            }
            None => StepOutcome::Gone,
        };
        if let Some(node) = self.nodes.get_mut(&start.node) {
            node.last = node.last.max(start.generation);
        }
        let is_taken = outcome == StepOutcome::Started;
        self.tell_outcome(uid, start, start.generation, outcome);
        if is_taken {
            self.note_room(name, Room::Kept);
        }
        true
    }

    /// The answer to a command that a part be stopped; `None`: it is not about a part.
    pub(in super::super) fn answer_about_part(&self, uid: &str, instance: Generation) -> Option<StepOutcome> {
        let told = self.elastic_gpus.told.get(uid.strip_prefix(PART)?);
        Some(match told.is_some_and(|told| told.instance == Some(instance)) {
            true => StepOutcome::Refused("its room is kept until its ElasticGPU is deleted".into()),
            false => StepOutcome::Gone,
        })
    }

    /// The books have no room for a part. Returns whether this is about a part.
    pub(in super::super) fn room_refused(&mut self, uid: &str, why: &str) -> bool {
        let Some(name) = uid.strip_prefix(PART) else { return false };
        let told = self.elastic_gpus.told.get_mut(name).filter(|told| told.instance.is_none());
        if let Some(told) = told {
            told.is_refused = true;
            self.note_room(name, Room::None(format!("{why}; it gets its room when there is some")));
        }
        true
    }

    /// Has the books asked again for the room of parts that have none.
    pub(crate) fn look_for_room_again(&mut self) {
        let of = &mut self.elastic_gpus;
        of.told.retain(|_, told| !told.is_refused);
        let without = of.known.rooms.iter().filter(|(_, room)| matches!(room, Room::None(_))).map(|(name, _)| name);
        of.changed_parts.extend(without.cloned());
    }

    /// The parts on a node, as they are reported.
    pub(in super::super) fn reported_parts(&self, node: &str) -> impl Iterator<Item = Running> {
        let here = self.elastic_gpus.told.iter().filter(move |(_, told)| told.place.node == node);
        here.filter_map(|(name, told)| {
            let amounts = Amounts { devices: vec![told.place.part.clone()], ..Amounts::default() };
            Some(Running { claim: uid_of(name), instance: told.instance?, amounts, since_ms: None })
        })
    }

    /// What a bound pod has by its claims without holding it itself.
    pub(in super::super) fn kept_for(&self, facts: &PodFacts) -> Vec<DevicePart> {
        let Some(Ok(decision)) = facts.decision.as_ref().filter(|_| facts.generation.is_some()) else {
            return Vec::new();
        };
        let containers = facts.words.containers.iter().enumerate();
        let kept = containers.filter_map(|(index, container)| {
            let name = (facts.namespace.clone(), facts.words.elastic_gpu_claim(index)?.to_owned());
            self.user_of(&name).filter(|user| user.facts.uid == facts.uid)?;
            let claim = self.elastic_gpus.known.claims.get(&name)?;
            let gpu = self.elastic_gpus.known.gpu_of(claim)?.metadata.name.as_ref()?;
            let part = &self.elastic_gpus.told.get(gpu).filter(|told| told.instance.is_some())?.place;
            let given = decision.containers.get(&container.name)?.first()?;
            let is_it = (given.uuid.as_str(), given.core_thousandths, given.memory_bytes)
                == (part.part.uuid.as_str(), part.part.core.get(), part.part.memory.get());
            (is_it && facts.node.as_ref() == Some(&part.node)).then(|| part.part.clone())
        });
        kept.collect()
    }

    /// The parts whose room is kept although no pod uses them now, the largest first.
    pub(crate) fn idle_parts(&self) -> Vec<KeptPart> {
        let told = self.elastic_gpus.told.iter().filter(|(_, told)| told.instance.is_some());
        let idle = told.filter(|(name, _)| {
            let subject = self.elastic_gpus.known.gpu(name).map(|gpu| subject_of(name, gpu));
            subject.is_none_or(|subject| self.use_of(&subject).is_none())
        });
        let mut idle: Vec<KeptPart> = idle
            .map(|(_, Told { place, .. })| KeptPart {
                of: place.of.clone(),
                node: place.node.clone(),
                part: place.part.clone(),
            })
            .collect();
        idle.sort_by_key(|kept| std::cmp::Reverse((kept.part.memory, kept.part.core)));
        idle
    }
}

fn claim_of(place: &Place, constraints: Constraints) -> Claim {
    let DevicePart { core, memory, .. } = place.part;
    let devices = DeviceRequest { count: 1, core, memory: DeviceMemory::Bytes(memory) };
    Claim {
        name: place.of.clone(),
        request: Request { devices, constraints, ..Request::default() },
        namespace: place.namespace.clone(),
        queue: place.queue.clone(),
        ..Claim::default()
    }
}

/// Whether this asks for the room of this part.
fn is_about(asked: &Observation, name: &str) -> bool {
    matches!(asked, Observation::ClaimOnNode(of, ..) if *of == uid_of(name))
}

fn uid_of(name: &str) -> ClaimUid {
    ClaimUid::from(format!("{PART}{name}"))
}

fn instance_of(node: &str, session: u64, generation: Generation) -> Instance {
    Instance {
        node: node.to_owned(),
        session,
        generation,
        amounts: Amounts::default(),
        claims: Vec::new(),
        kept: Vec::new(),
        is_bound: true,
    }
}
