//! Namespaces with a quota, which is a queue, or with bounds for each claim.

use super::Cluster;
use crate::claim::{Claim, ClaimId};
use crate::event::EventError;
use crate::namespace::NamespaceSpec;
use crate::queue::{DEFAULT_QUEUE, QueueId};

impl Cluster {
    /// Gives a namespace a quota and bounds, or others than it has. What was admitted before stays.
    pub(super) fn set_namespace(&mut self, spec: NamespaceSpec) -> Result<(), EventError> {
        spec.validate()?;
        let queue = spec.queue_spec();
        match self.queues.named(&queue.name) {
            Some(_) => self.queues.change(queue, &mut self.resources)?,
            None => {
                self.queues.add(queue, &mut self.resources, self.now_ms)?;
            }
        }
        self.namespaces.insert(spec.name.clone(), spec);
        Ok(())
    }

    /// Takes a namespace's quota and bounds away; nothing may be in its queue.
    pub(super) fn remove_namespace(&mut self, name: &str) -> Result<(), EventError> {
        let unknown = || EventError::UnknownNamespace(name.to_owned());
        let queue = self.namespaces.get(name).ok_or_else(unknown)?.queue_name();
        self.queues.remove(&queue)?;
        self.namespaces.remove(name);
        Ok(())
    }

    /// Adds a claim as its namespace lets it in: with the namespace's defaults for what it does not say.
    pub(super) fn admit(&mut self, mut claim: Claim) -> Result<ClaimId, EventError> {
        if let Some(namespace) = self.namespaces.get(&claim.namespace) {
            claim.request = namespace.apply(&claim.request, self.resources.memory_of(&claim.request))?;
        }
        let id = self.add_claim(claim)?;
        if let Some(state) = self.claims.get(id) {
            self.arrivals.note(&state.claim.request, self.now_ms);
        }
        Ok(id)
    }

    /// The leaf queue of who names `queue`: in a namespace with a quota its own, unless another one is named than that above it.
    pub(super) fn queue_for(&self, queue: &str, namespace: &str) -> Result<QueueId, EventError> {
        let own =
            self.namespaces.get(namespace).filter(|spec| queue.is_empty() || spec.queue.as_deref() == Some(queue));
        let found = match own {
            Some(spec) => self.queues.leaf(&spec.queue_name()),
            None if queue.is_empty() => self.queues.leaf(DEFAULT_QUEUE),
            None => self.queues.leaf(queue),
        };
        Ok(found?)
    }
}
