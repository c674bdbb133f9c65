//! Takes in queues, pod groups, namespaces, budgets and the topology.

use aliquot_scheduler_core::{Event, EventError, PodGroup};

use super::Engine;
use crate::observation::Observation;

impl Engine {
    /// Takes in a change of queues, pod groups, namespaces, budgets or the topology. A pod group that still has members
    /// is removed with the last of them. A group that the books refuse is tried again after each later change: its queue
    /// may be there then.
    pub(super) fn configured(&mut self, observation: Observation) -> Result<(), EventError> {
        match &observation {
            Observation::Group(spec) => {
                let group = (spec.namespace.clone(), spec.name.clone());
                self.ending_groups.remove(&group);
                self.refused_groups.remove(&group);
            }
            Observation::GroupRemoved(namespace, name) => {
                let group = (namespace.clone(), name.clone());
                self.refused_groups.remove(&group);
                if self.cluster.group_named(namespace, name).is_some() {
                    self.ending_groups.insert(group);
                    return self.end_group(namespace, name);
                }
            }
            _ => {}
        }
        let Some(event) = self.event_of(observation.clone()) else { return Ok(()) };
        let applied = self.apply(event).map(|_| ());
        match (&applied, observation) {
            (Err(why), Observation::Group(spec)) => self.note_refused_group(spec, why.clone()),
            (Err(_), _) => return applied,
            (Ok(()), _) => self.retry_refused_groups(),
        }
        self.unpark();
        applied
    }

    pub(super) fn note_refused_group(&mut self, spec: PodGroup, why: EventError) {
        self.refused_groups.insert((spec.namespace.clone(), spec.name.clone()), (spec, why));
    }

    fn retry_refused_groups(&mut self) {
        for (group, (spec, _)) in std::mem::take(&mut self.refused_groups) {
            let Some(event) = self.event_of(Observation::Group(spec.clone())) else { continue };
            if let Err(why) = self.apply(event) {
                self.refused_groups.insert(group, (spec, why));
            }
        }
    }

    /// Removes a pod group that was withdrawn, unless it still has members.
    pub(super) fn end_group(&mut self, namespace: &str, name: &str) -> Result<(), EventError> {
        let group = (namespace.to_owned(), name.to_owned());
        if !self.ending_groups.contains(&group) {
            return Ok(());
        }
        if let Some(id) = self.cluster.group_named(namespace, name) {
            self.apply(Event::PodGroupRemoved(id))?;
        }
        self.ending_groups.remove(&group);
        Ok(())
    }

    /// The event for an observation; `None` if it changes nothing.
    pub(super) fn event_of(&self, observation: Observation) -> Option<Event> {
        let cluster = &self.cluster;
        match observation {
            Observation::Queue(spec) => match cluster.queue_named(&spec.name).and_then(|id| cluster.queue(id)) {
                Some(known) if *known.spec() == spec => None,
                Some(_) => Some(Event::QueueChanged(spec)),
                None => Some(Event::QueueAdded(spec)),
            },
            Observation::QueueRemoved(name) => cluster.queue_named(&name).map(|_| Event::QueueRemoved(name)),
            Observation::Group(spec) => match cluster.group_named(&spec.namespace, &spec.name) {
                Some(id) if cluster.group(id).is_some_and(|known| *known.spec() == spec) => None,
                Some(id) => Some(Event::PodGroupChanged(id, spec)),
                None => Some(Event::PodGroupAdded(spec)),
            },
            Observation::GroupRemoved(namespace, name) => {
                cluster.group_named(&namespace, &name).map(Event::PodGroupRemoved)
            }
            Observation::Namespace(spec) if cluster.namespace(&spec.name) == Some(&spec) => None,
            Observation::Namespace(spec) => Some(Event::NamespaceChanged(spec)),
            Observation::NamespaceRemoved(name) => cluster.namespace(&name).map(|_| Event::NamespaceRemoved(name)),
            Observation::Budget(budget) => Some(Event::BudgetChanged(budget)),
            Observation::BudgetRemoved(namespace, name) => Some(Event::BudgetRemoved(namespace, name)),
            Observation::Topology(levels) if cluster.topology().levels() == levels => None,
            Observation::Topology(levels) => Some(Event::TopologyChanged(levels)),
            _ => None,
        }
    }
}
