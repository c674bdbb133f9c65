//! Takes in claims, and withdrawals of claims.

use std::sync::Arc;

use aliquot_scheduler_core::{Claim, ClaimId, Event, EventError, Outcome, Peers, Request};

use super::Engine;
use crate::entries::{Entry, EntryId, Parked, Resize};
use crate::names::ClaimUid;
use crate::store::ClaimKey;

impl Engine {
    pub(super) fn claim_wanted(&mut self, uid: ClaimUid, claim: Claim) -> Result<(), EventError> {
        match self.entries.of_uid(&uid) {
            Some(id) => self.unpark_as(id, claim),
            None => {
                let id = self.entries.insert(Entry::new(ClaimKey { uid, stray: None }, self.now_ms));
                self.unsaved.entries.insert(id);
                self.changed();
                self.enter(id, claim)
            }
        }
    }

    /// Enters a claim into the books, or parks it if they reject it.
    pub(super) fn enter(&mut self, id: EntryId, claim: Claim) -> Result<(), EventError> {
        match self.apply(Event::ClaimAdded(claim.clone())) {
            Ok(Outcome::Claim(claim)) => {
                self.entries.note_claim(id, claim);
                self.parked.remove(&id);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(why) => {
                let why = self.why_refused(why);
                self.park(id, claim, why.clone());
                Err(why)
            }
        }
    }

    /// Why a claim is kept out: if its pod group is not there because the books refuse the group, it is for that reason.
    fn why_refused(&self, why: EventError) -> EventError {
        let EventError::UnknownGroup { namespace, name } = &why else { return why };
        let group = self.refused_groups.get(&(namespace.clone(), name.clone()));
        group.map_or(why, |(_, of_group)| of_group.clone())
    }

    pub(super) fn park(&mut self, id: EntryId, claim: Claim, why: EventError) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.parked = Some(Box::new(Parked { claim, why }));
            self.parked.insert(id);
        }
    }

    /// Takes in a claim that was told again. A parked claim may have changed.
    fn unpark_as(&mut self, id: EntryId, claim: Claim) -> Result<(), EventError> {
        match self.parked.contains(&id) {
            true => self.enter(id, claim),
            false => Ok(()),
        }
    }

    /// Tries again to enter the parked claims: what kept them out may have changed.
    pub(super) fn unpark(&mut self) {
        for id in self.parked.iter().copied().collect::<Vec<EntryId>>() {
            let parked = self.entries.get(id).and_then(|entry| entry.parked.as_ref());
            if let Some(claim) = parked.filter(|parked| self.may_enter(parked)).map(|parked| parked.claim.clone()) {
                // If the claim stays parked, the error is kept as its reason.
                let _ = self.enter(id, claim);
            }
        }
    }

    /// Whether what kept a claim out may have changed. A claim that waits for a pod group stays out until something is
    /// known of the group.
    fn may_enter(&self, parked: &Parked) -> bool {
        match &parked.why {
            EventError::UnknownGroup { namespace, name } => {
                let is_refused = || self.refused_groups.contains_key(&(namespace.clone(), name.clone()));
                self.cluster.group_named(namespace, name).is_some() || is_refused()
            }
            _ => true,
        }
    }

    pub(super) fn claim_resized(&mut self, uid: &ClaimUid, request: Request) -> Result<(), EventError> {
        let Some(id) = self.entries.of_uid(uid) else { return Ok(()) };
        let Some(entry) = self.entries.get(id) else { return Ok(()) };
        match (entry.id, &entry.parked) {
            _ if entry.is_ended => Ok(()),
            _ if entry.resize.as_ref().is_some_and(|resize| resize.command.is_some() && resize.to == request) => Ok(()),
            (Some(claim), _) if entry.resize.is_none() && self.asks_for(claim, &request) => Ok(()),
            (Some(claim), _) if entry.instance().is_some() => self.begin_resize(id, claim, request),
            (Some(claim), _) => self.resize_unstarted(claim, request),
            (None, Some(parked)) => {
                let claim = Claim { request, ..parked.claim.clone() };
                self.enter(id, claim)
            }
            (None, None) => Ok(()),
        }
    }

    /// Replaces how the claim's place depends on the places of other claims.
    pub(super) fn claim_peers(&mut self, uid: &ClaimUid, peers: Option<Arc<Peers>>) -> Result<(), EventError> {
        let Some(id) = self.entries.of_uid(uid) else { return Ok(()) };
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.is_ended) else { return Ok(()) };
        if let Some(Resize { from, held, to, .. }) = entry.resize.as_deref_mut() {
            [from, held, to].into_iter().for_each(|request| request.peers.clone_from(&peers));
            self.unsaved.entries.insert(id);
        }
        match (entry.id, &mut entry.parked) {
            (Some(claim), _) => self.apply(Event::ClaimPeersChanged(claim, peers)).map(|_| ()),
            (None, Some(parked)) => {
                parked.claim.request.peers = peers;
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Replaces the disruption budget that protects the claim.
    pub(super) fn claim_budget(&mut self, uid: &ClaimUid, budget: Option<String>) -> Result<(), EventError> {
        let Some(id) = self.entries.of_uid(uid) else { return Ok(()) };
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.is_ended) else { return Ok(()) };
        match (entry.id, &mut entry.parked) {
            (Some(claim), _) => self.apply(Event::ClaimBudgetChanged(claim, budget)).map(|_| ()),
            (None, Some(parked)) => {
                parked.claim.disruption_budget = budget;
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    fn asks_for(&self, claim: ClaimId, request: &Request) -> bool {
        self.cluster.claim(claim).is_some_and(|of| *of.request == *request)
    }

    pub(super) fn claim_ended(&mut self, uid: &ClaimUid) {
        let Some(id) = self.entries.of_uid(uid) else { return };
        let Some(entry) = self.entries.get_mut(id) else { return };
        if std::mem::replace(&mut entry.is_ended, true) {
            return;
        }
        self.unsaved.entries.insert(id);
        self.changed();
        let Some((claim, instance)) = self.entries.get(id).map(|entry| (entry.id, entry.instance())) else { return };
        match (claim, instance) {
            (_, None) => self.forget(id),
            (Some(claim), Some(_)) => {
                self.apply_sure(Event::ClaimWithdrawn(claim));
                self.touched.push_back(claim);
            }
            (None, Some(_)) => {}
        }
    }
}
