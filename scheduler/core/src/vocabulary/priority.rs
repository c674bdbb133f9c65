//! Names for priorities.

/// A priority by the name that users know: the names of KAI's workloads, and those of Kubernetes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PriorityClass {
    /// Training that can be evicted. This is the class of a claim that names none.
    Train,
    /// Interactive work that can be evicted.
    BuildPreemptible,
    /// Interactive work that cannot be evicted.
    Build,
    /// Inference services, which cannot be evicted.
    Inference,
    /// Work that a cluster cannot do without.
    SystemClusterCritical,
    /// Work that a node cannot do without.
    SystemNodeCritical,
}

impl PriorityClass {
    /// Claims with at least this priority are not evicted, unless they say that they may be.
    pub const NON_PREEMPTIBLE: i32 = 100;

    /// All classes, by ascending priority.
    pub const ALL: [Self; 6] = [
        Self::Train,
        Self::BuildPreemptible,
        Self::Build,
        Self::Inference,
        Self::SystemClusterCritical,
        Self::SystemNodeCritical,
    ];

    /// Its name in Kubernetes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::BuildPreemptible => "build-preemptible",
            Self::Build => "build",
            Self::Inference => "inference",
            Self::SystemClusterCritical => "system-cluster-critical",
            Self::SystemNodeCritical => "system-node-critical",
        }
    }

    /// The class of this name, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Its value: the greater goes first.
    #[must_use]
    pub const fn value(self) -> i32 {
        match self {
            Self::Train => 50,
            Self::BuildPreemptible => 75,
            Self::Build => Self::NON_PREEMPTIBLE,
            Self::Inference => 125,
            Self::SystemClusterCritical => 2_000_000_000,
            Self::SystemNodeCritical => 2_000_001_000,
        }
    }

    /// Whether a claim of this priority may be evicted if it does not say so itself.
    #[must_use]
    pub const fn is_preemptible(priority: i32) -> bool {
        priority < Self::NON_PREEMPTIBLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_values_that_others_give_them() {
        let values = PriorityClass::ALL.map(PriorityClass::value);
        assert_eq!(values, [50, 75, 100, 125, 2_000_000_000, 2_000_001_000]);
        let preemptible = values.map(PriorityClass::is_preemptible);
        assert_eq!(preemptible, [true, true, false, false, false, false]);
    }

    #[test]
    fn a_class_is_found_by_its_name() {
        assert!(PriorityClass::ALL.into_iter().all(|class| PriorityClass::named(class.name()) == Some(class)));
        assert_eq!(PriorityClass::named("Train"), None, "names are as Kubernetes writes them");
    }
}
