//! How pods stand among others: their priority, and whether others are evicted for them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{Access, Mirror};
use crate::gang::{GangFacts, GroupPriority};
use crate::pod::PodFacts;

/// What is known of priority classes, by name.
#[derive(Debug, Default)]
pub(super) struct PriorityClasses {
    classes: BTreeMap<String, ClassFacts>,
    access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClassFacts {
    value: i32,
    never_preempts: bool,
}

/// How the pods of a group stand among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Precedence {
    pub(super) priority: i32,
    pub(super) never_preempts: bool,
}

impl Mirror {
    pub(crate) fn priority_class(&mut self, class: PriorityClass) {
        let never_preempts = class.preemption_policy.as_deref() == Some("Never");
        let facts = ClassFacts { value: class.value.unwrap_or_default(), never_preempts };
        let name = class.metadata.name.unwrap_or_default();
        if self.priority_classes.classes.get(&name) != Some(&facts) {
            self.groups_of_class_changed(&name);
            self.priority_classes.classes.insert(name, facts);
        }
    }

    /// Tells whether all priority classes are known.
    pub(crate) fn priority_classes_are(&mut self, access: Access) {
        let before = std::mem::replace(&mut self.priority_classes.access, access);
        if before != access && [before, access].contains(&Access::Forbidden) {
            self.all_changed();
        }
    }

    pub(crate) fn priority_class_gone(&mut self, name: &str) {
        if self.priority_classes.classes.remove(name).is_some() {
            self.groups_of_class_changed(name);
        }
    }

    pub(crate) fn priority_class_names(&self) -> BTreeSet<String> {
        self.priority_classes.classes.keys().cloned().collect()
    }

    /// How a pod stands that is in no group, or in one that says nothing of it: as a PriorityClass that a label of its
    /// owner or its own label names, and otherwise as the pod says itself. Like KAI, this takes no notice of a label that
    /// names no PriorityClass.
    pub(super) fn own_precedence(&self, facts: &PodFacts) -> Precedence {
        let labelled = self.labelled_classes(facts).find_map(|class| self.precedence_of_class(facts, class));
        labelled.unwrap_or(Precedence { priority: facts.priority, never_preempts: facts.never_preempts })
    }

    fn precedence_of_class(&self, facts: &PodFacts, class: &str) -> Option<Precedence> {
        let ClassFacts { value, never_preempts } = self.priority_classes.classes.get(class)?;
        Some(Precedence { priority: *value, never_preempts: *never_preempts || facts.never_preempts })
    }

    /// How the pods of a group stand: as the group says, and where it does not, as its label says, the label of the pod,
    /// or the pod itself.
    ///
    /// # Errors
    /// The class that the group names does not exist, or may not be read.
    pub(super) fn precedence(&self, facts: &PodFacts, of_gang: &GangFacts) -> Result<Precedence, String> {
        let own = Precedence { priority: facts.priority, never_preempts: facts.never_preempts };
        let labelled = || of_gang.labelled_class.as_deref().and_then(|class| self.precedence_of_class(facts, class));
        let of_group = match &of_gang.priority {
            None => labelled().unwrap_or_else(|| self.own_precedence(facts)),
            Some(GroupPriority::Value(priority)) => Precedence { priority: *priority, ..own },
            Some(GroupPriority::Class(name)) => match self.precedence_of_class(facts, name) {
                Some(of_class) => of_class,
                // A bound pod stays in its group whatever becomes of the class.
                None if facts.node.is_some() => own,
                None if self.priority_classes.access == Access::Forbidden => {
                    return Err(format!(
                        "its priorityClassName is {name:?}, and the scheduler has no right to read PriorityClasses; \
                         apply the scheduler's manifests, which give it the right"
                    ));
                }
                None => {
                    return Err(format!(
                        "its priorityClassName is {name:?}, and there is no such PriorityClass; create that, or create \
                         the group with another one"
                    ));
                }
            },
        };
        let never_preempts = of_gang.never_preempts.unwrap_or(of_group.never_preempts);
        Ok(Precedence { never_preempts, ..of_group })
    }
}
