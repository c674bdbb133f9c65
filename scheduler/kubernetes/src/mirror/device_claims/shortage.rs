//! What other schedulers' pods wait for: claims for which no node has enough of our driver's devices free.
//!
//! Kubernetes' own scheduler only says that it cannot allocate all claims.

use std::collections::BTreeMap;

use super::turns::Users;
use super::{DeviceClaims, Mirror, Name};
use crate::dra::{ClaimFacts, DevicesAsk, Free, PoolKey, Selection, Taken, device_specs};

/// Devices that are named with what is free of them.
const NAMED: usize = 3;

/// A claim that waits, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// What it asks for, what is free where, and what comes nearest.
    pub(crate) text: String,
}

/// The selections of the last look. As long as the pools are the same, expressions are not evaluated again.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    changes_of_pools: u64,
    selections: BTreeMap<String, Selection>,
}

/// A device that would do, if enough of it were free.
struct Candidate<'a> {
    node: &'a str,
    /// The pool and the name.
    uuid: String,
    takes: &'a Taken,
    free: Free,
}

impl Candidate<'_> {
    fn is_enough(&self) -> bool {
        self.free.is_enough_for(self.takes)
    }
}

impl Mirror {
    /// The claims that pods of other schedulers wait for, and that fit nowhere now.
    pub(crate) fn shortages(&self, looked: &mut Looked) -> Vec<Shortage> {
        let claims = &self.device_claims;
        let changes_of_pools = claims.pools.changes();
        let last = std::mem::replace(looked, Looked { changes_of_pools, ..Looked::default() });
        if !claims.pools.has_ours() {
            return Vec::new();
        }
        let mut before = if last.changes_of_pools == changes_of_pools { last.selections } else { BTreeMap::new() };
        // Claims of one workload ask for the same.
        let selections = &mut looked.selections;
        let mut shortages = Vec::new();
        for (name, claim) in &claims.claims {
            let ask = claim.ask.as_ref().ok().filter(|ask| ask.choices().all(|request| !request.is_all));
            let Some(ask) = ask.filter(|_| self.is_waited_for_by_others(name, claim)) else {
                continue;
            };
            let is_only_one = matches!(&ask.requests[..], [request] if request.choices.len() == 1);
            let mut of_choice = |request: &DevicesAsk| {
                // Problems with a class, and claims for another driver's devices, are not reported here.
                let criteria = claims.criteria(request).ok()?;
                let key = criteria.key();
                let known = before.remove(&key);
                let selection = selections.entry(key).or_insert_with(|| {
                    known.unwrap_or_else(|| {
                        let mut selection = Selection::new(criteria, 0);
                        selection.look_at(&claims.pools, claims.pools.all().map(|(key, _)| key));
                        selection
                    })
                });
                selection.part().ok()?;
                let of_request = claims.shortage(request, selection)?;
                Some(match is_only_one {
                    true => of_request,
                    false => format!("request {:?}: {of_request}", request.name),
                })
            };
            // A request fits nowhere if no entry of its list does.
            let text = ask.requests.iter().find_map(|request| {
                let of_choices: Option<Vec<String>> = request.choices.iter().map(&mut of_choice).collect();
                of_choices.map(|texts| texts.join("; "))
            });
            shortages.extend(text.map(|text| Shortage {
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                uid: claim.uid.clone(),
                text,
            }));
        }
        shortages
    }

    fn is_waited_for_by_others(&self, name: &Name, claim: &ClaimFacts) -> bool {
        let users = self.device_claims.users.get(name).into_iter().flat_map(Users::uids);
        let users = users.filter_map(|uid| self.pods.get(uid));
        let mut waiting =
            users.map(|pod| &pod.facts).filter(|pod| pod.scheduler != self.own_name && pod.node.is_none());
        claim.allocation.is_none()
            && !claim.is_leaving
            && waiting.any(|pod| !pod.has_ended && !pod.is_leaving && !pod.is_gated)
    }
}

impl DeviceClaims {
    /// Why a request fits nowhere; `None`: it does, as far as its devices are concerned.
    fn shortage(&self, ask: &DevicesAsk, selection: &Selection) -> Option<String> {
        let mut candidates: Vec<Candidate<'_>> =
            self.pools.all().flat_map(|(key, _)| self.candidates(key, selection)).collect();
        let mut enough_on: BTreeMap<&str, u16> = BTreeMap::new();
        for candidate in candidates.iter().filter(|candidate| candidate.is_enough()) {
            *enough_on.entry(candidate.node).or_default() += 1;
        }
        let best_node = enough_on.iter().max_by_key(|(_, devices)| **devices);
        if best_node.is_some_and(|(_, devices)| *devices >= ask.count) {
            return None;
        }
        let class = &ask.class;
        let Some(takes) = candidates.first().map(|candidate| candidate.takes) else {
            return Some(format!("no node has a device of DeviceClass {class:?} that can fulfil the request"));
        };
        let wanted = match ask.count {
            1 => format!("{takes} of a device"),
            count => format!("{takes} of each of {count} devices of one node"),
        };
        let start = format!("the claim asks for {wanted} of DeviceClass {class:?}, and no node has that free");
        if let Some((node, devices)) = best_node {
            return Some(format!("{start}; nearest is {node}, where {devices} of the {} are free", ask.count));
        }
        candidates.sort_by_key(|candidate| (candidate.free.shortfall(candidate.takes), candidate.uuid.clone()));
        let named = candidates.iter().take(NAMED).map(|candidate| format!("{} has {}", candidate.uuid, candidate.free));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = candidates.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(", and {more} others are further from it") };
        Some(format!("{start}; nearest: {named}{more}"))
    }

    /// The devices of a pool that would do.
    fn candidates<'a>(&'a self, key: &'a PoolKey, selection: &'a Selection) -> Vec<Candidate<'a>> {
        let Some(pool) = self.pools.get(key) else { return Vec::new() };
        let Some(node) = pool.node.as_deref() else { return Vec::new() };
        let candidates = device_specs(&key.1, &pool.devices, |_| BTreeMap::new()).into_iter().filter_map(|device| {
            let name = device.uuid.strip_prefix(key.1.as_str())?.strip_prefix('/')?;
            let takes = selection.taken(key, name)?;
            let held = self.held.get(&device.uuid).into_iter().flat_map(BTreeMap::values).copied();
            let free = Free::of(device.memory, held);
            Some(Candidate { node, uuid: device.uuid, takes, free })
        });
        candidates.collect()
    }
}
