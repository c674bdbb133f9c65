//! What a pod asks for by its claims: where those that are allocated can be used, and the devices of the others.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use aliquot_scheduler_core::{Constraints, DeviceRequest, FurtherRequest};
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;

use super::super::Mirror;
use super::others::AskedOf;
use super::pod_groups::First;
use super::{Claimed, USERS_MAX, containers};
use crate::dra::{self, Ask, ClaimFacts, DRIVER, DevicesAsk, Link, Linked, RequestAsk, Selection, USABLE};
use crate::placement;
use crate::pod::{EXTENDED_RESOURCES, PodFacts};
use crate::wanted::{Mark, Wanted, Wish};

impl Mirror {
    /// Limits a pod to the nodes where its allocated claims can be used. Returns what it has, or is to get, by claims.
    ///
    /// # Errors
    /// Why the pod cannot be scheduled with these claims now.
    pub(in super::super) fn constrain_by_claims(
        &self,
        facts: &PodFacts,
        constraints: &mut Constraints,
    ) -> Result<Claimed, String> {
        let mut claimed = Claimed::default();
        let (mut wishes, mut links) = (Vec::new(), Vec::new());
        let mut ours: Vec<containers::Divided<'_>> = Vec::new();
        let mut others: Vec<Ask> = Vec::new();
        let mut has_more_of_ours = false;
        // The wishes of claims for devices of both sorts.
        let mut of_both: Vec<Range<usize>> = Vec::new();
        let mut seen = BTreeSet::new();
        for of_pod in &facts.claims {
            let Some(name) = &of_pod.claim else {
                return Err(format!("the ResourceClaim for {:?} has not been made yet", of_pod.name));
            };
            if !seen.insert(name) {
                continue;
            }
            if !self.device_claims.is_served {
                return Err("it has resource claims, and this cluster does not serve resource.k8s.io/v1".into());
            }
            let claim = self.device_claims.claims.get(&(facts.namespace.clone(), name.clone()));
            let claim = claim.ok_or_else(|| format!("there is no ResourceClaim {name:?}"))?;
            let of_claim = |problem: &str| format!("ResourceClaim {name:?}: {problem}");
            if claim.is_leaving {
                return Err(of_claim("it is being deleted"));
            }
            let is_of_pod = claim.owner.as_deref() == Some(&facts.uid);
            let is_of_group = claim.group.as_ref().is_some_and(|group| self.is_group_of(facts, group));
            if of_pod.is_made_for_it && !is_of_pod && !is_of_group {
                return Err(of_claim("it was not made for this pod or its PodGroup"));
            }
            let user = self.user_of_claim(facts, of_pod, claim).map_err(|problem| of_claim(&problem))?;
            let check_division = |of_ours: &BTreeSet<&str>| match dra::is_group(&user) {
                true => {
                    self.check_is_divided_alike(facts, of_pod, claim, of_ours).map_err(|problem| of_claim(&problem))
                }
                false => Ok(()),
            };
            match &claim.allocation {
                Some(_) if self.is_left_over(claim) => {
                    return Err(of_claim(
                        "it is allocated, but no pod was bound with it; the allocation is given back first",
                    ));
                }
                Some(_) if claim.reserved_for.len() >= USERS_MAX && !claim.has_user(&user.uid) => {
                    return Err(of_claim("it is reserved for 256 others, and for more it cannot be"));
                }
                Some(allocation) => {
                    let terms = allocation.terms.as_ref().map_err(|problem| of_claim(problem))?;
                    constraints.node_terms = placement::both(std::mem::take(&mut constraints.node_terms), terms);
                    self.device_claims.check_allocated(allocation).map_err(|problem| of_claim(&problem))?;
                    claimed.reserve.push(name.clone());
                    let of_ours = allocation.results.iter().filter(|result| result.driver == DRIVER);
                    let of_ours = of_ours.map(|result| result.request.split('/').next().unwrap_or_default());
                    let of_ours: BTreeSet<&str> = of_ours.collect();
                    if !of_ours.is_empty() {
                        check_division(&of_ours)?;
                        ours.push(containers::Divided::of(&facts.spec, &of_pod.name, &of_ours));
                    }
                }
                None => {
                    let (ask, first) = self.askable(facts, claim, &user).map_err(|problem| of_claim(&problem))?;
                    let asked_of = self.device_claims.asked_of(ask);
                    let of_ours = match asked_of {
                        AskedOf::Others => BTreeSet::new(),
                        _ => self.requests_of_ours(ask, asked_of),
                    };
                    if !of_ours.is_empty() {
                        check_division(&of_ours)?;
                        ours.push(containers::Divided::of(&facts.spec, &of_pod.name, &of_ours));
                    }
                    if let Some(first) = first {
                        claimed.follows.push(Mirror::follow(first, claim));
                        continue;
                    }
                    if dra::is_group(&user) {
                        claimed.leads.push(name.clone());
                    }
                    let in_numbers = self.in_numbers(facts, ask, asked_of);
                    if asked_of != AskedOf::Ours {
                        self.device_claims.check_others(ask).map_err(|problem| of_claim(&problem))?;
                        others.push(in_numbers.as_ref().clone());
                        claimed.others.push(name.clone());
                    }
                    if asked_of == AskedOf::Others {
                        continue;
                    }
                    has_more_of_ours |= asked_of == AskedOf::Ours;
                    let of_requests = self.meant(&in_numbers, asked_of).map_err(|problem| of_claim(&problem))?;
                    let before = wishes.len();
                    let after = |of: &Linked| Linked { request: before + of.request, ..*of };
                    let moved =
                        |link: &Link| Link { requests: link.requests.iter().map(after).collect(), ..link.clone() };
                    links.extend(in_numbers.links.iter().map(moved));
                    let of = of_pod.name.as_str();
                    wishes.extend(of_requests.into_iter().map(|choices| Wish { of, choices }));
                    of_both.extend((asked_of == AskedOf::Both).then_some(before..wishes.len()));
                    claimed.allocate.push(name.clone());
                }
            }
        }
        claimed.extended = self.extended_of(facts)?;
        if let Some(made) = &claimed.extended {
            self.check_is_none_left(facts)?;
            let ask = made.claim.ask.as_ref().map_err(Clone::clone)?;
            self.check_rules()?;
            let of_them = |problem: String| format!("its {EXTENDED_RESOURCES}: {problem}");
            let asked_of = self.device_claims.asked_of(ask);
            if asked_of != AskedOf::Ours {
                self.device_claims.check_others(ask).map_err(of_them)?;
                others.push(ask.clone());
                claimed.others.push(made.claim.name.clone());
            }
            has_more_of_ours |= asked_of == AskedOf::Ours;
            if asked_of != AskedOf::Others {
                let of_requests = self.meant(ask, asked_of).map_err(of_them)?;
                let before = wishes.len();
                wishes.extend(of_requests.into_iter().map(|choices| Wish { of: EXTENDED_RESOURCES, choices }));
                of_both.extend((asked_of == AskedOf::Both).then_some(before..wishes.len()));
                claimed.allocate.push(made.claim.name.clone());
                let of_ours = self.requests_of_ours(ask, asked_of);
                ours.push(containers::Divided::by(&made.asked.mappings, EXTENDED_RESOURCES, &of_ours));
            }
        }
        containers::check(&facts.spec, &ours)?;
        claimed.has_ours = !ours.is_empty();
        if !others.is_empty() {
            claimed.place = Some(self.device_claims.place_for(&others, has_more_of_ours)?);
        }
        self.device_claims.check_marks(&others)?;
        let marks = |choices: &[usize]| {
            let of_both: Vec<usize> = of_both.iter().cloned().flatten().collect();
            let chosen: Vec<usize> = of_both.iter().filter_map(|wish| choices.get(*wish).copied()).collect();
            let marks = claimed.place.iter().flat_map(|place| self.device_claims.marks(&others, place, &chosen));
            // A mark counts only the wishes of claims for devices of both sorts. Here it gets the place among all wishes.
            marks.filter_map(|mark| Some(Mark { wish: *of_both.get(mark.wish)?, ..mark })).collect()
        };
        claimed.devices = Wanted::of(wishes, links, marks)?;
        Ok(claimed)
    }

    /// Refuses questions about so many pods that do not exist, if the books cannot answer for their claims.
    ///
    /// # Errors
    /// The text says which claim it is, and what can be asked instead.
    pub(in super::super) fn check_can_be_imagined(&self, facts: &PodFacts, count: u32) -> Result<(), String> {
        let mut asks: Vec<(String, &Ask)> = Vec::new();
        for of_pod in &facts.claims {
            let Some(name) = &of_pod.claim else {
                return Err(format!(
                    "the ResourceClaim for {:?} would be made from a template, which is not looked at here: name a \
                     ResourceClaim that exists, or ask for amounts of GPUs in place of the claim",
                    of_pod.name
                ));
            };
            let claim = self.device_claims.claims.get(&(facts.namespace.clone(), name.clone()));
            let Some(claim) = claim.filter(|claim| claim.allocation.is_none()) else { continue };
            if count > 1 {
                return Err(format!(
                    "{count} pods would share ResourceClaim {name:?}, which is not allocated: ask about one pod"
                ));
            }
            asks.extend(claim.ask.as_ref().ok().map(|ask| (format!("ResourceClaim {name:?}"), ask)));
        }
        let extended = self.extended_of(facts)?;
        let of_extended = extended.as_ref().and_then(|made| made.claim.ask.as_ref().ok());
        asks.extend(of_extended.map(|ask| (EXTENDED_RESOURCES.to_owned(), ask)));
        let is_unknown = |ask: &Ask| ask.choices().any(|choice| self.device_claims.selection(choice).is_err());
        let unknown = asks.into_iter().find(|(_, ask)| is_unknown(ask)).map(|(what, _)| what);
        let unknown = unknown.or_else(|| self.is_of_new_kind(facts).then(|| "its claims".to_owned()));
        match unknown {
            None => Ok(()),
            Some(what) => Err(format!(
                "{what}: the scheduler looks for such devices from the moment when a pod asks for them, and none has \
                 yet: create the pod, and have it explained"
            )),
        }
    }

    /// Refuses to give out devices whose taints are not known.
    fn check_rules(&self) -> Result<(), String> {
        match self.device_claims.are_rules_forbidden {
            false => Ok(()),
            true => Err("the scheduler may not read devicetaintrules, so it does not know which devices are tainted; apply the \
                         scheduler's manifests, which give it the right"
                .into()),
        }
    }

    /// What a claim asks for that is to be allocated with a pod, or with another one of its PodGroup, which is returned
    /// then.
    fn askable<'a>(
        &'a self,
        facts: &PodFacts,
        claim: &'a ClaimFacts,
        user: &ResourceClaimConsumerReference,
    ) -> Result<(&'a Ask, Option<&'a PodFacts>), String> {
        let ask = claim.ask.as_ref().map_err(Clone::clone)?;
        self.check_rules()?;
        match self.first_user(facts, claim, user) {
            First::OfGroup(first) => Ok((ask, Some(first))),
            First::Other(first) => {
                Err(format!("it will be allocated with the pod {}, which is first", first.full_name()))
            }
            First::Itself if dra::is_group(user) => Ok((ask, None)),
            First::Itself if facts.gang.is_some() && self.do_several_wait(claim) => Err(
                "several pods share it, and it is not allocated: Aliquot's scheduler does not allocate such a claim with a \
                 pod of a gang, unless it is a claim of their PodGroup"
                    .into(),
            ),
            First::Itself => Ok((ask, None)),
        }
    }

    /// The requests of a claim that may get devices of our driver.
    fn requests_of_ours<'a>(&self, ask: &'a Ask, asked_of: AskedOf) -> BTreeSet<&'a str> {
        let is_ours = |request: &&RequestAsk| {
            asked_of == AskedOf::Ours || request.choices.iter().any(|choice| self.device_claims.is_ours(choice))
        };
        ask.requests.iter().filter(is_ours).map(|request| request.name.as_str()).collect()
    }

    /// A claim with choices for the numbers of devices that nodes have, in place of choices for all devices of our driver on
    /// a node. The books know no other way to say "all".
    pub(super) fn in_numbers<'a>(&self, facts: &PodFacts, ask: &'a Ask, asked_of: AskedOf) -> Cow<'a, Ask> {
        let is_meant =
            |choice: &DevicesAsk| choice.is_all && (asked_of == AskedOf::Ours || self.device_claims.is_ours(choice));
        if !ask.choices().any(is_meant) {
            return Cow::Borrowed(ask);
        }
        // A node with more devices than the pod's gang may have of one node is not for it.
        let most = self.devices_per_node_max(facts).unwrap_or(u16::MAX);
        let numbers = |choice: &DevicesAsk| {
            let selection = self.device_claims.selection(choice).ok();
            let numbers = selection.into_iter().flat_map(Selection::numbers);
            is_meant(choice).then(|| numbers.filter(|number| *number <= most).collect())
        };
        Cow::Owned(ask.in_numbers(numbers))
    }

    /// The choices of each request of a claim, in the words of the books.
    fn meant(&self, ask: &Ask, asked_of: AskedOf) -> Result<Vec<Vec<FurtherRequest>>, String> {
        let claims = &self.device_claims;
        let of_choice = |choices: &[DevicesAsk], request: &DevicesAsk| {
            let selects_none = asked_of == AskedOf::Both && claims.selects_none_beside_ours(request, choices);
            if asked_of == AskedOf::Both && !claims.is_ours(request) && !selects_none {
                return Ok(FurtherRequest { name: request.name.clone(), ..FurtherRequest::default() });
            }
            let key = claims.criteria(request)?.key();
            let selection = claims.selections.get(&key).ok_or("its devices are not selected yet")?;
            // An entry that selects no device is for one that the books do not know, so another entry is taken.
            let (core, memory) = if selects_none { selection.wanted() } else { selection.part()? };
            let value = if request.is_all { request.count.to_string() } else { USABLE.to_owned() };
            Ok(FurtherRequest {
                name: request.name.clone(),
                devices: DeviceRequest { count: request.count.max(1), core, memory },
                models: BTreeSet::new(),
                attributes: BTreeMap::from([(selection.attribute.clone(), value)]),
            })
        };
        let is_only_one = matches!(&ask.requests[..], [request] if request.choices.len() == 1);
        let of_request = |RequestAsk { choices, .. }: &RequestAsk| {
            let named = |request: &DevicesAsk| {
                of_choice(choices, request).map_err(|problem: String| match is_only_one {
                    true => problem,
                    false => format!("request {:?}: {problem}", request.name),
                })
            };
            choices.iter().map(named).collect::<Result<_, _>>()
        };
        ask.requests.iter().map(of_request).collect()
    }
}
