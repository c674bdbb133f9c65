//! Templates: everything that the claims of one template share, which is all but their names.

use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

use crate::state::class::ClassId;
use crate::vocabulary::claim::Claim;
use crate::vocabulary::request::Request;
use crate::vocabulary::shared::Shared;

/// A claim as a cluster keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownClaim {
    /// See [`Claim::name`].
    pub name: Box<str>,
    template: Arc<Template>,
}

/// All of a claim except its name. A job's tasks and a deployment's pods are equal in it, so they share one template.
#[derive(Clone, Debug)]
pub struct Template {
    pub(crate) class: ClassId,
    /// See [`Claim::request`]; it is shared with the class.
    pub request: Arc<Request>,
    /// See [`Claim::namespace`].
    pub namespace: String,
    /// See [`Claim::queue`].
    pub queue: String,
    /// See [`Claim::priority`].
    pub priority: i32,
    /// See [`Claim::preemptible`].
    pub preemptible: bool,
    /// See [`Claim::immovable`].
    pub immovable: bool,
    /// See [`Claim::min_runtime_ms`].
    pub min_runtime_ms: u64,
    /// See [`Claim::pod_group`].
    pub pod_group: Option<String>,
    /// See [`Claim::sub_group`].
    pub sub_group: Option<String>,
    /// See [`Claim::disruption_budget`].
    pub disruption_budget: Option<String>,
}

impl Deref for KnownClaim {
    type Target = Template;

    fn deref(&self) -> &Template {
        &self.template
    }
}

impl From<&KnownClaim> for Claim {
    fn from(known: &KnownClaim) -> Self {
        let template = Template::clone(known);
        Self {
            name: known.name.to_string(),
            request: Arc::unwrap_or_clone(template.request),
            namespace: template.namespace,
            queue: template.queue,
            priority: template.priority,
            preemptible: template.preemptible,
            immovable: template.immovable,
            min_runtime_ms: template.min_runtime_ms,
            pod_group: template.pod_group,
            sub_group: template.sub_group,
            disruption_budget: template.disruption_budget,
        }
    }
}

impl Template {
    /// Everything in which templates can differ. The class stands for the request, because it is quicker to compare.
    fn key(&self) -> impl Ord + '_ {
        let Self { class, priority, preemptible, immovable, min_runtime_ms, .. } = *self;
        let Self { namespace, queue, pod_group, sub_group, disruption_budget, .. } = self;
        // A processor may need hundreds of cycles to compare two texts without bytes.
        let [namespace, queue] = [namespace, queue].map(|text| Some(text).filter(|text| !text.is_empty()));
        let flags = (preemptible, immovable);
        (class, priority, flags, min_runtime_ms, (namespace, queue), (pod_group, sub_group, disruption_budget))
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Template {}

impl PartialOrd for Template {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Template {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The templates of all claims of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Templates {
    claims: Shared<Template>,
}

impl Templates {
    /// Adds a claim. `class` and `request` are those of the claim's request.
    pub(crate) fn join(&mut self, claim: Claim, class: ClassId, request: Arc<Request>) -> KnownClaim {
        let template = Template {
            class,
            request,
            namespace: claim.namespace,
            queue: claim.queue,
            priority: claim.priority,
            preemptible: claim.preemptible,
            immovable: claim.immovable,
            min_runtime_ms: claim.min_runtime_ms,
            pod_group: claim.pod_group,
            sub_group: claim.sub_group,
            disruption_budget: claim.disruption_budget,
        };
        KnownClaim { name: claim.name.into(), template: self.claims.join(template) }
    }

    /// Gives a claim another request, which is of this class.
    pub(crate) fn change_request(&mut self, known: &mut KnownClaim, class: ClassId, request: Arc<Request>) {
        self.change(known, Template { class, request, ..Template::clone(known) });
    }

    /// Gives a claim another disruption budget, or none.
    pub(crate) fn change_budget(&mut self, known: &mut KnownClaim, disruption_budget: Option<String>) {
        self.change(known, Template { disruption_budget, ..Template::clone(known) });
    }

    fn change(&mut self, known: &mut KnownClaim, template: Template) {
        let before = std::mem::replace(&mut known.template, self.claims.join(template));
        self.claims.leave(&before, 1);
    }

    /// Removes a claim. A template without claims is forgotten.
    pub(crate) fn leave(&mut self, known: &KnownClaim) {
        self.claims.leave(&known.template, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::class::Classes;
    use crate::state::resources::Resources;

    #[test]
    fn claims_that_differ_in_their_names_only_share_the_rest() {
        let (mut classes, mut templates) = (Classes::default(), Templates::default());
        let mut join = |name: &str, priority: i32| {
            let claim = Claim { name: name.to_owned(), priority, ..Claim::default() };
            let (class, request) = classes.join(&claim.request, &Resources::default());
            let known = templates.join(claim.clone(), class, request);
            assert_eq!(Claim::from(&known), claim);
            known
        };
        let (first, second, other) = (join("a", 1), join("b", 1), join("c", 2));
        assert!(Arc::ptr_eq(&first.template, &second.template));
        assert_ne!(first.template, other.template);
        [first, second, other].iter().for_each(|known| templates.leave(known));
        assert!(templates.claims.is_empty());
    }
}
