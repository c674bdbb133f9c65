//! Namespaces with a quota (which is a queue) or with bounds for each claim.

use std::sync::Arc;

use super::Cluster;
use crate::vocabulary::claim::{Claim, ClaimId};
use crate::vocabulary::event::EventError;
use crate::vocabulary::namespace::NamespaceSpec;
use crate::vocabulary::queue_spec::{DEFAULT_QUEUE, QueueError, QueueId, QueueSpec};
use crate::vocabulary::request::Request;

impl Cluster {
    /// Sets a namespace's quota and bounds. Claims that were admitted before stay.
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

    /// Adds a queue that is not a namespace's quota.
    pub(super) fn add_queue(&mut self, spec: QueueSpec) -> Result<QueueId, EventError> {
        if spec.name.is_empty() {
            return Err(QueueError::Unnamed.into());
        }
        if NamespaceSpec::of_queue(&spec.name).is_some() {
            return Err(QueueError::Reserved(spec.name).into());
        }
        Ok(self.queues.add(spec, &mut self.resources, self.now_ms)?)
    }

    /// Removes a queue. Nothing may be in it or below it.
    pub(super) fn remove_queue(&mut self, name: &str) -> Result<(), EventError> {
        if let Some(namespace) = self.namespaces.values().find(|namespace| namespace.queue_name() == name) {
            return Err(QueueError::OfNamespace { queue: name.to_owned(), namespace: namespace.name.clone() }.into());
        }
        self.check_is_empty(name)?;
        Ok(self.queues.remove(name)?)
    }

    /// Refuses a queue that any claim is in, also one that is withdrawn: it cannot be restored without its queue.
    fn check_is_empty(&self, queue: &str) -> Result<(), QueueError> {
        let id = self.queues.named(queue);
        match self.groups().any(|(_, group)| Some(group.queue()) == id) {
            true => Err(QueueError::InUse(queue.to_owned())),
            false => Ok(()),
        }
    }

    /// Removes a namespace's quota and bounds. Nothing may be in its queue.
    pub(super) fn remove_namespace(&mut self, name: &str) -> Result<(), EventError> {
        let unknown = || EventError::UnknownNamespace(name.to_owned());
        let queue = self.namespaces.get(name).ok_or_else(unknown)?.queue_name();
        self.check_is_empty(&queue)?;
        self.queues.remove(&queue)?;
        self.namespaces.remove(name);
        Ok(())
    }

    /// Adds a claim, with its namespace's defaults for what it leaves out.
    pub(super) fn admit(&mut self, claim: Claim) -> Result<ClaimId, EventError> {
        let claim = self.as_let_in(Arc::new(claim))?;
        let id = self.add_claim(Arc::unwrap_or_clone(claim))?;
        if let Some(state) = self.claims.get(id) {
            self.arrivals.note(&state.claim.request, self.now_ms);
            self.turnover.note_coming(state.claim.request.total_core());
        }
        Ok(id)
    }

    /// The claim as it would be if it were added now, with its namespace's defaults for what it leaves out. The cluster
    /// stays unchanged.
    ///
    /// # Errors
    /// Those of [`Event::ClaimAdded`](crate::Event::ClaimAdded).
    pub fn admitted(&self, claim: Arc<Claim>) -> Result<Arc<Claim>, EventError> {
        let claim = self.as_let_in(claim)?;
        claim.request.validate()?;
        self.group_for(&claim)?;
        Ok(claim)
    }

    fn as_let_in(&self, mut claim: Arc<Claim>) -> Result<Arc<Claim>, EventError> {
        if self.namespaces.contains_key(&claim.namespace) {
            let request = self.bounded(&claim.namespace, claim.request.clone())?;
            if request != claim.request {
                Arc::make_mut(&mut claim).request = request;
            }
        }
        Ok(claim)
    }

    /// A request with the namespace's defaults, within the namespace's bounds.
    pub(super) fn bounded(&self, namespace: &str, request: Request) -> Result<Request, EventError> {
        let Some(namespace) = self.namespaces.get(namespace) else { return Ok(request) };
        Ok(namespace.apply(&request, self.resources.memory_of(&request))?)
    }

    /// The leaf queue of a claim that names `queue`. In a namespace with a quota this is the namespace's own queue,
    /// unless the claim names a queue other than the one above it.
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
