//! The pods that name a claim, and whose turn it is: together with which of them the claim is allocated.
//!
//! What all pods of a claim need to know of each other is kept here. A change of one pod is a matter of that pod, unless it
//! changes this.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::Affinity;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;

use super::super::{KnownPod, Mirror};
use super::{Name, names_of};
use crate::dra::{ClaimFacts, is_group};
use crate::pod::PodFacts;

/// The pods that name a claim.
#[derive(Debug, Default)]
pub(super) struct Users {
    roles: BTreeMap<String, Role>,
    turns: BTreeSet<Turn>,
    /// How many of them wait for this scheduler.
    waiting: usize,
    /// How many of them have not ended, and are bound, on their way, or another scheduler's.
    busy: usize,
    /// By UID, those whose instances hold the claim's devices.
    holding: BTreeSet<String>,
    /// What the pods were looked at with.
    seen: Standing,
}

/// What a pod is for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Role {
    /// Its turn, if the claim can be allocated together with it.
    turn: Option<Turn>,
    is_waiting: bool,
    is_busy: bool,
    is_holding: bool,
}

/// The place of a pod among those that a claim can be allocated with. The least has its turn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// The claim is not being allocated with this pod now.
    is_later: bool,
    /// No node may take the pod, whatever is free.
    is_hopeless: bool,
    /// Groups come before pods by themselves, in the order of their names.
    is_by_itself: bool,
    group: String,
    /// Of the pods of a PodGroup the one comes first that the books have known for longest, of others the oldest one.
    number: u64,
    uid: String,
}

/// What the pods of a claim depend on of each other.
#[derive(Clone, Debug, Default, PartialEq)]
struct Standing {
    /// The pod whose turn it is, and where it must be, while the claim is not allocated.
    first: Option<(String, Option<Affinity>)>,
    do_several_wait: bool,
    /// The claim is allocated, and no pod has it.
    is_idle: bool,
}

impl Users {
    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.roles.keys()
    }

    /// The turns of several pods, if the claim can be allocated with several.
    pub(super) fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.turns.iter().filter(|_| self.turns.len() > 1)
    }

    pub(super) fn first(&self) -> Option<&Turn> {
        self.turns.first()
    }

    /// Whether none of them is bound or on its way, and all are this scheduler's.
    pub(super) fn are_idle(&self) -> bool {
        self.busy == 0
    }

    /// Whether the pod with this UID is one of them, and is neither bound nor on its way.
    pub(super) fn is_idle(&self, uid: &str) -> bool {
        self.roles.get(uid).is_some_and(|role| !role.is_busy)
    }

    /// One that is bound or on its way, other than the pod with this UID.
    pub(super) fn a_busy_one(&self, but: &str) -> Option<&str> {
        let busy = self.roles.iter().filter(|(uid, role)| role.is_busy && *uid != but);
        busy.map(|(uid, _)| uid.as_str()).next()
    }

    /// By UID, those whose instances hold the claim's devices.
    pub(super) fn holding(&self) -> impl Iterator<Item = &String> {
        self.holding.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }

    pub(super) fn add(&mut self, uid: &str) {
        self.roles.entry(uid.to_owned()).or_default();
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.change(uid, Role::default());
        self.roles.remove(uid);
    }

    fn change(&mut self, uid: &str, role: Role) {
        let Some(known) = self.roles.get_mut(uid) else { return };
        let before = std::mem::replace(known, role.clone());
        self.waiting = self.waiting + usize::from(role.is_waiting) - usize::from(before.is_waiting);
        self.busy = self.busy + usize::from(role.is_busy) - usize::from(before.is_busy);
        if before.turn != role.turn {
            if let Some(turn) = before.turn {
                self.turns.remove(&turn);
            }
            self.turns.extend(role.turn);
        }
        match role.is_holding {
            true => self.holding.insert(uid.to_owned()),
            false => self.holding.remove(uid),
        };
    }
}

impl Turn {
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// The name of the PodGroup for which the claim is reserved.
    pub(super) fn group(&self) -> Option<&str> {
        (!self.is_by_itself).then_some(&self.group)
    }

    pub(super) fn is_on_its_way(&self) -> bool {
        !self.is_later
    }
}

impl Mirror {
    /// The turn of a pod for a claim. `user`: for whom it is reserved for this pod.
    pub(super) fn turn(&self, facts: &PodFacts, user: &ResourceClaimConsumerReference, claim: &str) -> Turn {
        let known = self.pods.get(&facts.uid);
        let told = known.and_then(|pod| pod.claim.as_ref());
        let is_on_its_way = |pod: &KnownPod| {
            let instance = pod.instance.as_ref();
            pod.binding_to.is_some() && instance.is_some_and(|instance| !instance.is_bound)
        };
        let allocates = told.map(|told| &told.means.claimed).is_some_and(|of| {
            let is_it = |name: &String| name == claim;
            of.allocate.iter().any(is_it) || of.others.iter().any(is_it)
        });
        let is_by_itself = !is_group(user);
        Turn {
            is_later: !(allocates && known.is_some_and(is_on_its_way)),
            is_hopeless: self.device_claims.hopeless.contains(&facts.uid),
            is_by_itself,
            group: if is_by_itself { String::new() } else { user.name.clone() },
            number: match is_by_itself {
                true => facts.created_ms,
                false => told.map_or(u64::MAX, |told| told.number),
            },
            uid: facts.uid.clone(),
        }
    }

    /// Notes what a pod is for its claims now.
    pub(in super::super) fn note_turns(&mut self, uid: &str) {
        let Some(pod) = self.pods.get(uid) else { return };
        let roles: Vec<(Name, Role)> = names_of(&pod.facts)
            .map(|name| {
                let role = self.role(pod, &name);
                (name, role)
            })
            .collect();
        for (name, role) in roles {
            if let Some(users) = self.device_claims.users.get_mut(&name)
                && users.roles.get(uid).is_some_and(|before| *before != role)
            {
                users.change(uid, role);
            }
            // A rule of the pod about other pods may have changed, too.
            self.device_claims.turned.insert(name);
        }
    }

    fn role(&self, pod: &KnownPod, name: &Name) -> Role {
        let facts = &pod.facts;
        let is_ours_unbound = facts.scheduler == self.own_name && facts.node.is_none();
        let is_waiting = is_ours_unbound && !facts.is_leaving && !facts.has_ended && !facts.is_gated;
        let is_idle = is_ours_unbound && pod.instance.is_none() && pod.binding_to.is_none();
        let claim = self.device_claims.claims.get(name);
        let of_pod = facts.claims.iter().find(|of| of.claim.as_ref() == Some(&name.1));
        let turn = claim.zip(of_pod).filter(|_| is_waiting).and_then(|(claim, of_pod)| {
            let user = self.user_of_claim(facts, of_pod, claim).ok()?;
            // A pod of a PodGroup that the books do not know is not waited for.
            (pod.claim.is_some() || !is_group(&user)).then(|| self.turn(facts, &user, &name.1))
        });
        let held = pod.instance.iter().flat_map(|instance| &instance.claims);
        Role {
            turn,
            is_waiting,
            is_busy: !facts.has_ended && !is_idle,
            is_holding: claim.is_some_and(|claim| held.into_iter().any(|held| held.uid == claim.uid)),
        }
    }

    /// The pods to be looked at again, because what they depend on of the other pods of a claim has changed.
    pub(in super::super) fn take_turned(&mut self) -> Vec<String> {
        let mut to_look_at = Vec::new();
        for name in std::mem::take(&mut self.device_claims.turned) {
            let Some(standing) = self.standing(&name) else { continue };
            let Some(users) = self.device_claims.users.get_mut(&name) else { continue };
            let before = std::mem::replace(&mut users.seen, standing.clone());
            // Where nobody had the turn, no pod has waited for it.
            let has_turned = before.first.is_some() && before.first != standing.first;
            let (several, idle) = (standing.do_several_wait, standing.is_idle);
            if has_turned || before.do_several_wait != several || before.is_idle != idle {
                let waiting = users.roles.iter().filter(|(_, role)| role.is_waiting);
                to_look_at.extend(waiting.map(|(uid, _)| uid.clone()));
            }
        }
        to_look_at
    }

    fn standing(&self, name: &Name) -> Option<Standing> {
        let users = self.device_claims.users.get(name)?;
        let is_allocated = self.device_claims.claims.get(name).is_some_and(|claim| claim.allocation.is_some());
        let first = users.first().filter(|_| !is_allocated).map(|first| {
            let peers = self.pods.get(&first.uid).and_then(|pod| pod.peers.as_deref());
            (first.uid.clone(), peers.and_then(|peers| peers.affinity.clone()))
        });
        Some(Standing { first, do_several_wait: users.waiting > 1, is_idle: is_allocated && users.are_idle() })
    }

    pub(super) fn do_several_wait(&self, claim: &ClaimFacts) -> bool {
        let users = self.device_claims.users.get(&(claim.namespace.clone(), claim.name.clone()));
        users.is_some_and(|users| users.waiting > 1)
    }

    /// The pods that wait for this scheduler and name a claim.
    pub(super) fn waiting_users(&self, name: &Name) -> impl Iterator<Item = &KnownPod> {
        let roles = self.device_claims.users.get(name).into_iter().flat_map(|users| &users.roles);
        roles.filter(|(_, role)| role.is_waiting).filter_map(|(uid, _)| self.pods.get(uid))
    }
}
