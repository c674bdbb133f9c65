//! Why a pod waits, or where it is.

use aliquot_api_server::questions::{PodAnswer, PodState, Reason};
use aliquot_scheduler_core::explain::Tier;
use aliquot_scheduler_engine::{ClaimUid, Phase, View, Whereabouts};
use aliquot_telemetry::tier_word;

use super::{Refusal, reasons};
use crate::mirror::{IllDevice, KeptPart, Known};
use crate::report::{
    about_other_devices, about_our_devices, asks_for_devices, changes_worth_saying, lacks_any_devices,
};
use crate::serve::Shared;

/// What is known of a pod.
///
/// # Errors
/// There is no such pod.
pub(super) fn pod(shared: &Shared, view: &View, namespace: &str, name: &str) -> Result<PodAnswer, Refusal> {
    let known = shared.read(|mirror| mirror.pod_named(namespace, name));
    let Some(known) = known else {
        return Err(Refusal::not_found(format!("the scheduler knows no pod {namespace}/{name}")));
    };
    let (ill, idle) = shared.read(|mirror| (mirror.ill_devices(), mirror.idle_parts()));
    Ok(of_known(known, view, &ill, &idle))
}

fn of_known(known: Known, view: &View, ill: &[IllDevice], idle: &[KeptPart]) -> PodAnswer {
    let answer = PodAnswer { queue: known.queue, ..PodAnswer::default() };
    let reason = |tier: &str, text: String| Reason { tier: tier.to_owned(), text };
    if let Some(problem) = known.problem {
        let reasons = vec![reason("not-supported", problem)];
        return PodAnswer { state: PodState::NotSupported, reasons, ..answer };
    }
    if known.is_gated || !known.is_ours {
        let state = if known.is_gated { PodState::Gated } else { PodState::NotOurs };
        return PodAnswer { state, ..answer };
    }
    let uid = ClaimUid::from(known.uid.as_str());
    // The engine hears of it in a moment.
    let Some(claim) = view.claim(&uid) else { return answer };
    let (state, node) = match &claim.whereabouts {
        Whereabouts::Refused(_) | Whereabouts::Waiting => (PodState::Waiting, None),
        Whereabouts::Placed(node) => (PodState::Placed, Some(node)),
        Whereabouts::There { node, phase, .. } => {
            let state = match phase {
                Phase::Starting => PodState::Binding,
                Phase::Running => PodState::Bound,
                Phase::Stopping => PodState::Leaving,
            };
            (state, Some(node))
        }
    };
    let mut answer = PodAnswer { state, node: node.map(ToString::to_string), ..answer };
    let explanation = view.explain(&uid);
    let lacks_others = explanation.as_ref().is_some_and(|of| about_other_devices(of, known.place.as_deref()).is_some());
    if lacks_others && known.is_searched {
        // The books say that no node has a place, but that is not known. What is searched is named first.
        let tiers = std::iter::once(Tier::Search).chain(std::iter::repeat(Tier::Device));
        answer.reasons =
            known.of_devices.into_iter().zip(tiers).map(|(text, of)| reason(tier_word(of), text)).collect();
    } else if let Some(explanation) = explanation {
        answer.reasons = known.follows.map(|text| reason("claim", text)).into_iter().collect();
        answer.reasons.extend(reasons(&explanation));
        let asks_for_devices = asks_for_devices(view, &uid);
        let of_others = about_other_devices(&explanation, known.place.as_deref());
        answer.reasons.extend(of_others.map(|(tier, text)| reason(tier_word(tier), text.to_owned())));
        let lacks_devices = lacks_any_devices(asks_for_devices, &explanation, known.place.as_deref());
        let of_devices = if lacks_devices { known.of_devices } else { Vec::new() };
        let of_ours = about_our_devices(asks_for_devices, &explanation, ill, idle);
        answer.reasons.extend(of_devices.into_iter().chain(of_ours).map(|text| reason(tier_word(Tier::Device), text)));
        answer.changes = changes_worth_saying(&explanation).map(ToString::to_string).collect();
        answer.evictions = explanation.evictions.iter().map(ToString::to_string).collect();
    }
    if let Whereabouts::Refused(why) = claim.whereabouts {
        answer.reasons.push(reason("refused", why.to_string()));
    }
    if let Some(complaint) = claim.complaint {
        answer.reasons.push(reason("binding", format!("it could not be bound or evicted: {complaint}")));
    }
    answer
}
