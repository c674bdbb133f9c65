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
    /// Services that are never evicted for others, whatever they say.
    MlCritical,
    /// Work that a cluster cannot do without.
    SystemClusterCritical,
    /// Work that a node cannot do without.
    SystemNodeCritical,
}

impl PriorityClass {
    /// Claims with at least this priority are not evicted, unless they say that they may be.
    pub const NON_PREEMPTIBLE: i32 = 100;

    /// Claims with at least this priority are never evicted, even if they say that they may be.
    pub const NEVER_PREEMPTIBLE: i32 = 1_000_000;

    /// All classes, by ascending priority.
    pub const ALL: [Self; 7] = [
        Self::Train,
        Self::BuildPreemptible,
        Self::Build,
        Self::Inference,
        Self::MlCritical,
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
            Self::MlCritical => "ml-critical",
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
            Self::MlCritical => Self::NEVER_PREEMPTIBLE,
            Self::SystemClusterCritical => 2_000_000_000,
            Self::SystemNodeCritical => 2_000_001_000,
        }
    }

    /// Whether a claim of this priority may be evicted for others. `said`: what it says of that itself.
    #[must_use]
    pub fn is_preemptible(priority: i32, said: Option<bool>) -> bool {
        priority < Self::NEVER_PREEMPTIBLE && said.unwrap_or(priority < Self::NON_PREEMPTIBLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_values_that_others_give_them() {
        let values = PriorityClass::ALL.map(PriorityClass::value);
        assert_eq!(values, [50, 75, 100, 125, 1_000_000, 2_000_000_000, 2_000_001_000]);
        let preemptible = |said: Option<bool>| values.map(|value| PriorityClass::is_preemptible(value, said));
        assert_eq!(preemptible(None), [true, true, false, false, false, false, false]);
        assert_eq!(preemptible(Some(true)), [true, true, true, true, false, false, false]);
        assert_eq!(preemptible(Some(false)), [false; 7]);
    }

    #[test]
    fn a_class_is_found_by_its_name() {
        assert!(PriorityClass::ALL.into_iter().all(|class| PriorityClass::named(class.name()) == Some(class)));
        assert_eq!(PriorityClass::named("Train"), None, "names are as Kubernetes writes them");
    }
}
