//! Lets containers in beside a holder that pauses.
//!
//! A program that works on its host between short kernels leaves the device empty most of the time. While the device is
//! empty, another such container is let in beside the holder, as a **guest**, then one more, and so on. They all stay
//! for as long as their work does not meet. Where it meets, the device gives each process the same time, and each
//! container pays its part. If that goes on for [`MEETING_MAX_NS`], the container that is furthest ahead in virtual time
//! leaves, and waits for its turn.
//!
//! A container that is always busy is never a guest, because its work would be in the way of the holder's for too long.
//! Nor is a container with several devices, which needs them together.

use super::{Arbiter, GateCommand, PollOutcome};
use crate::container::{Container, ContainerId};
use crate::fair::{self, Class, Contender};
use crate::lease;
#[cfg(doc)]
use crate::timing::MEETING_MAX_NS;
use crate::timing::{GUEST_GRACE_NS, GUEST_POLL_NS, TICK_NS};

impl Arbiter {
    /// Lets guests in and out. Returns when to look at them again; `None`: there are none, and none could be let in.
    pub(super) fn look_after_guests(
        &mut self,
        holder: ContainerId,
        now_ns: u64,
        outcome: &mut PollOutcome,
    ) -> Option<u64> {
        let is_host = self.containers.get(&holder).is_some_and(|container| container.siblings.is_none());
        let is_watched = is_host && self.contending().any(|container| container.id != holder);
        if !is_watched && self.guests().next().is_none() {
            self.containers.get_mut(&holder)?.pauses.resume();
            return None;
        }
        let same_priority = self.same_priority();
        let present = self.present_in_order(holder, same_priority);
        self.end_visits(&present, same_priority, now_ns, outcome);
        let quiet_from_ns = self.quiet_from_ns(&present, now_ns, outcome);
        let candidates = self.contending().filter(|other| is_host && other.id != holder && other.may_be_guest());
        let next = candidates.map(|other| fair::contender(other, same_priority)).min();
        let is_quiet = quiet_from_ns.is_some_and(|from_ns| from_ns <= now_ns);
        if let Some(container) = next.filter(|_| is_quiet).and_then(|next| self.containers.get_mut(&next.container)) {
            container.invite(now_ns);
            outcome.commands.push(GateCommand::Open { container: container.id });
        } else if !is_quiet && quiet_from_ns.is_some() {
            return quiet_from_ns;
        }
        let pauses_soon = next.is_some() && self.containers.get(&holder)?.pauses.are_usual();
        (pauses_soon || self.guests().next().is_some()).then(|| now_ns.saturating_add(GUEST_POLL_NS))
    }

    /// The containers whose gates are open beside the holder's.
    pub(super) fn guests(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().filter(|container| container.is_guest())
    }

    /// The holder, then the guests in the order in which they would be let in.
    fn present_in_order(&self, holder: ContainerId, same_priority: bool) -> Vec<ContainerId> {
        let mut guests: Vec<Contender> = self.guests().map(|guest| fair::contender(guest, same_priority)).collect();
        guests.sort_unstable();
        [holder].into_iter().chain(guests.into_iter().map(|guest| guest.container)).collect()
    }

    /// Closes the gates of guests that do nothing, have no budget left, or are in the way of those before them in the
    /// order. Work of a higher class need not bear with them at all.
    fn end_visits(&mut self, present: &[ContainerId], same_priority: bool, now_ns: u64, outcome: &mut PollOutcome) {
        let mut at_work: Option<Class> = None;
        for container in present {
            let Some(container) = self.containers.get_mut(container) else { continue };
            let class = fair::class(container, same_priority);
            let met = at_work.filter(|_| container.in_flight > 0);
            let met_for_long = container.pauses.meet(met.is_some(), now_ns);
            if container.in_flight > 0 {
                at_work = Some(at_work.map_or(class, |other| other.min(class)));
            }
            if !container.is_guest() {
                continue;
            }
            let is_spent = lease::budget_spent_ns(container, now_ns).is_none_or(|spent_ns| spent_ns <= now_ns);
            if container.has_not_come(now_ns) {
                container.stay_away(now_ns);
            } else if is_spent
                || met_for_long
                || met.is_some_and(|met| met < class)
                || container.last_active_ns.saturating_add(GUEST_GRACE_NS) <= now_ns
            {
                container.close(now_ns);
            } else {
                continue;
            }
            outcome.commands.push(GateCommand::Close { container: container.id });
        }
    }

    /// From when on the device is open to one more guest, if nobody submits work until then; `None`: there is work on
    /// it, or about to come.
    fn quiet_from_ns(&mut self, present: &[ContainerId], now_ns: u64, outcome: &mut PollOutcome) -> Option<u64> {
        let mut from_ns = self.containers.values().all(|container| container.in_flight == 0).then_some(0);
        for container in present {
            let Some(container) = self.containers.get_mut(container).filter(|container| container.is_open()) else {
                continue;
            };
            let begins_to_rest = if container.is_at_work() {
                container.pauses.resume();
                false
            } else {
                container.pauses.rest(now_ns)
            };
            if begins_to_rest || container.is_guest() && container.ticks_again_ns() <= now_ns {
                container.note_tick(now_ns);
                outcome.commands.push(GateCommand::Tick { container: container.id });
            }
            from_ns = from_ns.zip(container.pauses.open_to_others_ns()).map(|(all, own)| all.max(own));
        }
        from_ns
    }

    /// Whether the holder, whose lease ends because it does nothing or because `next` goes first, becomes a guest.
    pub(super) fn steps_aside(&self, holder: &Container, next: Option<Contender>) -> bool {
        let next = next.and_then(|next| self.containers.get(&next.container));
        let has_company = next.map_or(self.guests().next().is_some(), Container::is_patient);
        has_company && holder.may_be_guest() && !holder.unused
    }

    /// To be called while nobody holds the lease. Gives it to the first guest, if that goes before `first`, the first of
    /// those that wait. Otherwise the guests leave, unless `first` pauses too. Returns whether a guest has the lease now.
    pub(super) fn promote_guest(&mut self, first: Option<Contender>, now_ns: u64, outcome: &mut PollOutcome) -> bool {
        let same_priority = self.same_priority();
        // While others wait, the lease is no use to a guest that does nothing.
        let guests = self.guests().filter(|guest| first.is_none() || guest.is_at_work());
        let best = guests.map(|guest| fair::contender(guest, same_priority)).min();
        if let Some(guest) = best.filter(|&guest| first.is_none_or(|first| guest < first))
            && let Some(container) = self.containers.get_mut(&guest.container)
        {
            container.promote(now_ns);
            return true;
        }
        if first.and_then(|first| self.containers.get(&first.container)).is_some_and(Container::is_patient) {
            return false;
        }
        for container in self.containers.values_mut().filter(|container| container.is_guest()) {
            container.close(now_ns);
            outcome.commands.push(GateCommand::Close { container: container.id });
        }
        false
    }
}

impl Container {
    pub(super) fn is_guest(&self) -> bool {
        self.guest_since_ns().is_some()
    }

    /// Whether it may be let in beside a holder that pauses.
    fn may_be_guest(&self) -> bool {
        self.siblings.is_none() && self.pauses.make_a_guest()
    }

    /// Whether guests may stay when it becomes the holder.
    fn is_patient(&self) -> bool {
        self.siblings.is_none() && self.pauses.are_usual()
    }

    /// When the gate is to be ticked next.
    fn ticks_again_ns(&self) -> u64 {
        self.ticked_ns().saturating_add(TICK_NS)
    }
}
