//! Translates a container's request: finds the dialect, and has its system make the wish.

use std::collections::BTreeSet;

use crate::constraints::Decided;
use crate::decision::{DECISION, DecidedPart, Decision, GENERATION, NoDecision};
use crate::dialect::Dialect;
use crate::pod::{NodeFacts, Pod};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::wish::Wish;

/// The dialects that a node speaks, always including its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoken(BTreeSet<Dialect>);

/// Two dialects in which the same name means different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node cannot accept both dialects {first} and {second}: both have the resource {resource}; choose one")]
pub struct Clash {
    /// One of the two dialects.
    pub first: Dialect,
    /// The other one of them.
    pub second: Dialect,
    /// The resource of both.
    pub resource: &'static str,
}

const CLASHES: [Clash; 2] = [
    Clash { first: Dialect::Nvidia, second: Dialect::Hami, resource: "nvidia.com/gpu" },
    Clash { first: Dialect::GpuShare, second: Dialect::Cgpu, resource: "aliyun.com/gpu-mem" },
];

impl Spoken {
    /// These dialects and Aliquot's own.
    ///
    /// # Errors
    /// The same name means different things in two of them.
    pub fn new(dialects: impl IntoIterator<Item = Dialect>) -> Result<Spoken, Clash> {
        let mut spoken: BTreeSet<Dialect> = dialects.into_iter().collect();
        spoken.insert(Dialect::Own);
        let clash = CLASHES.into_iter().find(|clash| spoken.contains(&clash.first) && spoken.contains(&clash.second));
        clash.map_or(Ok(Spoken(spoken)), Err)
    }

    /// The dialects, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = Dialect> {
        self.0.iter().copied()
    }

    /// Whether the resource of this name is a request for devices in one of the dialects.
    #[must_use]
    pub fn is_resource(&self, name: &str) -> bool {
        self.iter().any(|dialect| dialect.has_resource(name))
    }

    /// The wish of the container with this index; `None` if it asks for no device, or if there is no such container.
    ///
    /// # Errors
    /// The request is not valid, or this node does not speak its dialect. See [`Refusal`].
    pub fn translate(&self, pod: &Pod, index: usize, node: &NodeFacts) -> Result<Option<Wish>, Refusal> {
        let Some(container) = pod.containers.get(index) else { return Ok(None) };
        let request = Request { pod, container, index, node };
        let keys = keys(&request);
        let Some(first) = keys.first() else { return Ok(None) };
        let has_all = |dialect: &Dialect| keys.iter().all(|key| key.dialects.contains(dialect));
        let Some(dialect) = self.iter().find(has_all) else {
            return Err(self.not_understood(first, &keys, Dialect::ALL.into_iter().find(has_all)));
        };
        let mut wish = (dialect.system().translate)(&request)?;
        if let Some(decided) = decided(&request)? {
            wish.constraints.decided = Some(decided);
        }
        Ok(Some(wish))
    }

    /// Why a request is refused of which no dialect that is spoken has all words. `of_all`: the one that has them.
    fn not_understood(&self, first: &Key, keys: &[Key], of_all: Option<Dialect>) -> Refusal {
        let spoken = |key: &Key| key.dialects.iter().copied().find(|dialect| self.0.contains(dialect));
        let known = keys.iter().find_map(|key| Some((key, spoken(key)?)));
        let stranger = known.and_then(|(_, dialect)| keys.iter().find(|key| !key.dialects.contains(&dialect)));
        match (of_all, known, stranger) {
            (None, Some((first, first_dialect)), Some(second)) => Refusal::Mixed {
                first: first.name.clone(),
                first_dialect,
                second: second.name.clone(),
                second_dialect: second.dialect,
            },
            (of_all, ..) => {
                let key = stranger.unwrap_or(first);
                self.not_spoken(&key.name, of_all.unwrap_or(key.dialect))
            }
        }
    }

    /// Refuses a word of a dialect that is not spoken.
    pub(crate) fn not_spoken(&self, key: &str, dialect: Dialect) -> Refusal {
        let other = |clash: Clash| match (clash.first == dialect, clash.second == dialect) {
            (true, _) => Some(clash.second),
            (_, true) => Some(clash.first),
            _ => None,
        };
        let in_place_of = CLASHES.into_iter().filter_map(other).find(|other| self.0.contains(other));
        Refusal::NotSpoken { key: key.to_owned(), dialect, in_place_of }
    }
}

/// The devices that Aliquot's scheduler has chosen for the container, whatever the dialect of the request.
fn decided(request: &Request<'_>) -> Result<Option<Decided>, Refusal> {
    let decision = decision_of(request)?;
    let parts = decision.as_ref().and_then(|decision| decision.containers.get(&request.container.name));
    Ok(parts.map(|parts| Decided::Uuids(parts.iter().map(|part| part.uuid.clone()).collect())))
}

/// What Aliquot's scheduler has decided for the pod, if it has.
fn decision_of(request: &Request<'_>) -> Result<Option<Decision>, Refusal> {
    let Some(text) = request.annotation(DECISION) else { return Ok(None) };
    let decision = text.parse().map_err(|error: NoDecision| Refusal::Value {
        key: DECISION.to_owned(),
        value: text.to_owned(),
        must: format!("what Aliquot's scheduler writes there ({error}); leave it out"),
    })?;
    Ok(Some(decision))
}

/// The parts that Aliquot's scheduler has decided on for the container, if it has bound the pod: whoever makes a pod can
/// write a decision, but not that it is bound by it. `None`: it has not bound the pod.
pub(crate) fn bound_parts(request: &Request<'_>) -> Result<Option<Vec<DecidedPart>>, Refusal> {
    if request.annotation(GENERATION).is_none() {
        return Ok(None);
    }
    let decision = decision_of(request)?;
    Ok(Some(decision.and_then(|mut of| of.containers.remove(&request.container.name)).unwrap_or_default()))
}

/// The guaranteed time of a part in percent.
pub(crate) fn decided_percent(part: &DecidedPart) -> Result<u32, Refusal> {
    let percent = part.core_thousandths / 10;
    if !(1..=100).contains(&percent) {
        let must = "a part of one device, of which the time is 10 to 1000 thousandths";
        return Err(Refusal::value(DECISION, part.core_thousandths, must));
    }
    Ok(percent)
}

/// A resource or annotation that asks for devices.
struct Key {
    name: String,
    /// The dialects that it belongs to.
    dialects: Vec<Dialect>,
    /// The first of them.
    dialect: Dialect,
}

impl Key {
    /// `None`: it belongs to no dialect.
    fn new(name: &str, dialects: Vec<Dialect>) -> Option<Key> {
        let dialect = *dialects.first()?;
        Some(Key { name: name.to_owned(), dialects, dialect })
    }
}

/// Whether a container asks for devices in any dialect, spoken or not.
pub(crate) fn asks(request: &Request<'_>) -> bool {
    !keys(request).is_empty()
}

/// Whether a container asks for devices by annotations of this dialect, and in no other words.
pub(crate) fn asks_by_annotations_alone(request: &Request<'_>, dialect: Dialect) -> bool {
    (dialect.system().annotation)(request).is_some() && keys(request).iter().all(|key| key.dialects == [dialect])
}

fn keys(request: &Request<'_>) -> Vec<Key> {
    let resources = request.container.words().filter_map(|resource| {
        let is_of = |dialect: &Dialect| dialect.has_resource(resource);
        Key::new(resource, Dialect::ALL.into_iter().filter(is_of).collect())
    });
    let annotations =
        Dialect::ALL.into_iter().filter_map(|dialect| Key::new((dialect.system().annotation)(request)?, vec![dialect]));
    resources.chain(annotations).collect()
}
