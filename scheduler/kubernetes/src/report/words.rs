//! What is said of a pod that waits: a reason, a tier and a sentence.

use std::time::Duration;

use aliquot_scheduler_core::Toleration;
use aliquot_scheduler_core::explain::{Change, Explanation, Tier};
use aliquot_scheduler_engine::{ClaimUid, View, Whereabouts};
use aliquot_telemetry::tier_word;

use super::explained::Explained;
use super::turns::{Look, Outcome};
use crate::devices::BY_PLUGIN;
use crate::mirror::{IllDevice, KeptPart, Waiting};

/// The reason by which a cluster autoscaler knows pods that more nodes would help.
const UNSCHEDULABLE: &str = "Unschedulable";
/// The reason of pods that wait for something else than nodes.
const WAITING: &str = "Waiting";
/// The reason of pods that are not scheduled as they are.
pub(crate) const UNSUPPORTED: &str = "NotSupported";

/// The tier of pods that are not scheduled as they are.
pub(super) const NOT_SUPPORTED: &str = "not-supported";
/// The tier of pods that the books reject.
const REFUSED: &str = "refused";
/// The tier of pods with nothing in their way but that they could not be bound.
const BINDING: &str = "binding";
/// The tier of members of a gang that is not complete.
pub(super) const GANG_INCOMPLETE: &str = tier_word(Tier::Members);

/// What is said of other drivers' devices, of which the books know only the free ones.
const ALLOCATED_DO_NOT_COUNT: &str = "devices that are allocated already do not count as there";

/// When the explanations of one look have taken this long, nothing is explained any more of which something is said.
const AGAIN: Duration = Duration::from_millis(100);
/// When they have taken this long, what is said first is only what a cycle has found.
const FIRST: Duration = Duration::from_millis(300);

/// The prefix of the taints by which Kubernetes says what is wrong with a node.
const NODE_TAINTS: &str = "node.kubernetes.io/";

/// Whether a condition with this reason says of a pod why it waits. `is_claim`: the pod is scheduled as it is.
pub(super) fn is_of(reason: &str, is_claim: bool) -> bool {
    [UNSCHEDULABLE, WAITING].contains(&reason) || reason == UNSUPPORTED && !is_claim
}

/// What is to be said of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) reason: &'static str,
    /// Programs tell by this word what the pod waits for, as they do by the answers to questions.
    pub(super) tier: &'static str,
    /// The tier's word, and the sentence.
    pub(super) message: String,
    /// The node that is decided on for the pod.
    pub(super) node: Option<String>,
}

impl Said {
    fn new(reason: &'static str, tier: &'static str, text: &str) -> Said {
        Said { reason, tier, message: format!("{tier}: {text}"), node: None }
    }
}

/// A pod of which something is to be said.
pub(super) struct About {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) resource_version: String,
    /// Its condition's reason and message.
    pub(super) before: Option<(String, String)>,
    /// The node that its status names already.
    pub(super) nominated: Option<String>,
    problem: Option<String>,
    /// The name in the books of a place with devices of other drivers for it.
    place: Option<String>,
    /// It is not known yet which nodes have such a place.
    is_searched: bool,
    /// The pod that it follows.
    follows: Option<String>,
}

impl About {
    pub(super) fn of(waiting: Waiting<'_>) -> About {
        About {
            uid: waiting.facts.uid.clone(),
            namespace: waiting.facts.namespace.clone(),
            name: waiting.facts.name.clone(),
            resource_version: waiting.facts.resource_version.clone(),
            before: waiting.facts.said.clone(),
            nominated: waiting.facts.nominated.clone(),
            problem: waiting.problem.map(str::to_owned),
            place: waiting.place.map(str::to_owned),
            is_searched: waiting.is_searched,
            follows: waiting.follows,
        }
    }
}

/// What is known of devices that concerns all pods.
pub(super) struct Devices {
    pub(super) ill: Vec<IllDevice>,
    pub(super) idle: Vec<KeptPart>,
}

/// What is to be said of a pod. `of_devices`: what keeps devices from it.
///
/// # Errors
/// What has come of the look if nothing is to be said.
pub(super) fn find(
    view: &View,
    explained: &mut Explained,
    about: &About,
    devices: &Devices,
    look: &Look,
    of_devices: impl FnOnce() -> Vec<String>,
) -> Result<Said, Outcome> {
    let has_lasted = look.has_lasted;
    if let Some(problem) = &about.problem {
        // Most often an object is missing that is made just after the pod.
        return has_lasted.then(|| Said::new(UNSUPPORTED, NOT_SUPPORTED, problem)).ok_or(Outcome::NotYet);
    }
    let uid = ClaimUid::from(about.uid.as_str());
    // The engine hears of it in a moment.
    let claim = view.claim(&uid).ok_or(Outcome::NotYet)?;
    match claim.whereabouts {
        Whereabouts::Refused(why) => Ok(Said::new(WAITING, REFUSED, &why.to_string())),
        Whereabouts::Placed(_) if !has_lasted => Err(Outcome::NotYet),
        Whereabouts::Placed(node) => {
            let text = format!("node {node} is kept for the pod, which starts there when others have left");
            Ok(Said { node: Some(node.to_string()), ..Said::new(WAITING, tier_word(Tier::Waiting), &text) })
        }
        Whereabouts::There { .. } => Err(Outcome::Nothing),
        Whereabouts::Waiting if !has_lasted && !is_known_to_wait(view, &uid) => Err(Outcome::NotYet),
        // Whatever waits for its first words does not wait long for others.
        Whereabouts::Waiting if look.is_said && explained.took() >= AGAIN => Err(Outcome::PutOff),
        Whereabouts::Waiting => {
            let explanation = explained.of(view, &uid, FIRST).ok_or(Outcome::Nothing)?;
            let complaint = claim.complaint.map(|complaint| format!("it could not be bound: {complaint}"));
            why_waiting(view, &explanation, about, devices, complaint, of_devices).ok_or(Outcome::Nothing)
        }
    }
}

/// Whether the last cycle has found something in a claim's way that does not mostly pass by itself.
fn is_known_to_wait(view: &View, uid: &ClaimUid) -> bool {
    let pending = view.claim_id(uid).and_then(|id| view.pending(view.cluster().group_of(id)?));
    let tier = pending.map(|pending| pending.reason(view.cluster()).tier());
    tier.is_some_and(|tier| !matches!(tier, Tier::Members | Tier::Search | Tier::Waiting))
}

/// Why a pod waits; `None`: nothing is in its way.
fn why_waiting(
    view: &View,
    explanation: &Explanation,
    about: &About,
    devices: &Devices,
    complaint: Option<String>,
    of_devices: impl FnOnce() -> Vec<String>,
) -> Option<Said> {
    let tier = match (explanation.reasons.first(), &complaint) {
        (Some(reason), _) => tier_word(reason.tier()),
        (None, Some(_)) => BINDING,
        (None, None) => return None,
    };
    let of_books = explanation.reasons.iter().map(ToString::to_string);
    let mut reasons: Vec<String> = about.follows.iter().cloned().chain(of_books).chain(complaint).collect();
    let asks_for_devices = asks_for_devices(view, &ClaimUid::from(about.uid.as_str()));
    let of_others = about_other_devices(explanation, about.place.as_deref());
    if of_others.is_some() && about.is_searched {
        // The books say that no node has a place, but that is not known.
        return Some(Said::new(WAITING, tier_word(Tier::Search), &of_devices().join("; ")));
    }
    reasons.extend(of_others.map(|(_, text)| text.to_owned()));
    if lacks_any_devices(asks_for_devices, explanation, about.place.as_deref()) {
        reasons.extend(of_devices());
    }
    reasons.extend(about_our_devices(asks_for_devices, explanation, &devices.ill, &devices.idle));
    let help = changes_worth_saying(explanation).next().map(|change| format!("; this would help: {change}"));
    let calls_for_nodes = of_others.is_some() || explanation.reasons.iter().any(|reason| reason.calls_for_nodes());
    let reason = if calls_for_nodes { UNSCHEDULABLE } else { WAITING };
    Some(Said::new(reason, tier, &format!("{}{}", reasons.join("; "), help.unwrap_or_default())))
}

/// What is said of devices of our driver for a pod that waits for room on devices: of those that get nothing new, and of
/// parts whose room is kept.
pub(crate) fn about_our_devices(
    asks_for_devices: bool,
    explanation: &Explanation,
    ill: &[IllDevice],
    idle: &[KeptPart],
) -> impl Iterator<Item = String> {
    let lacks_devices = lacks_devices(asks_for_devices, explanation);
    [about_ill_devices(ill), about_idle_parts(idle)].into_iter().flatten().filter(move |_| lacks_devices)
}

/// What is said of devices that get nothing new.
fn about_ill_devices(ill: &[IllDevice]) -> Option<String> {
    let first = ill.first()?;
    let others = match ill.len() {
        1 => String::new(),
        2 => "; the same goes for another device or node".to_owned(),
        all => format!("; the same goes for {} other devices or nodes", all - 1),
    };
    let IllDevice { node, uuid, problem } = first;
    Some(match uuid {
        Some(uuid) => format!("device {uuid} of node {node} gets nothing new: {problem}{others}"),
        None => format!("no device of node {node} is given out: {problem}{others}"),
    })
}

/// What is said of parts whose room is kept though no pod uses them.
fn about_idle_parts(idle: &[KeptPart]) -> Option<String> {
    let KeptPart { of, node, part } = idle.first()?;
    let (bytes, percent) = (part.memory.get(), part.core.get() / 10);
    let others = match idle.len() {
        1 => String::new(),
        all => format!("; so are {} other parts", all - 1),
    };
    Some(format!(
        "{bytes} bytes and {percent} % of device {} of node {node} are kept for {of}, which no pod uses now{others}",
        part.uuid
    ))
}

/// Whether a pod asks for devices that the books know.
pub(crate) fn asks_for_devices(view: &View, uid: &ClaimUid) -> bool {
    let claim = view.claim_id(uid).and_then(|id| view.cluster().claim(id));
    claim.is_some_and(|claim| claim.request.device_count() > 0)
}

/// Whether a pod waits for room on devices.
fn lacks_devices(asks_for_devices: bool, explanation: &Explanation) -> bool {
    let is_matter_of_room =
        explanation.reasons.iter().any(|reason| matches!(reason.tier(), Tier::Device | Tier::Model | Tier::Size));
    is_matter_of_room && asks_for_devices
}

/// Whether a pod waits for devices of our driver or of others. `place`: as for [`about_other_devices`].
pub(crate) fn lacks_any_devices(asks_for_devices: bool, explanation: &Explanation, place: Option<&str>) -> bool {
    lacks_devices(asks_for_devices, explanation) || about_other_devices(explanation, place).is_some()
}

/// What is said of other drivers' devices, if a pod lacks them, with the tier of the reason that says so. `place`: the
/// name in the books of a place with such devices for it. The books know the devices that are free, and those of pods
/// that this leader has bound.
pub(crate) fn about_other_devices(explanation: &Explanation, place: Option<&str>) -> Option<(Tier, &'static str)> {
    let place = place?;
    let lacking = explanation.reasons.iter().find(|reason| reason.to_string().contains(place))?;
    Some((lacking.tier(), ALLOCATED_DO_NOT_COUNT))
}

/// The changes that would let something be placed, and keep it working.
pub(crate) fn changes_worth_saying(explanation: &Explanation) -> impl Iterator<Item = &Change> {
    // A pod asks for a device plugin's devices by asking in units. Nobody writes this attribute.
    let is_about_units = |change: &Change| matches!(change, Change::DropAttribute { key, .. } if key == BY_PLUGIN);
    explanation.changes.iter().filter(move |change| !is_about_the_node(change) && !is_about_units(change))
}

/// Whether a change would only hide that a node cannot run the pod now.
fn is_about_the_node(change: &Change) -> bool {
    let of_kubernetes =
        |toleration: &Toleration| toleration.key.as_ref().is_some_and(|key| key.starts_with(NODE_TAINTS));
    matches!(change, Change::Tolerate(toleration) if of_kubernetes(toleration))
}
