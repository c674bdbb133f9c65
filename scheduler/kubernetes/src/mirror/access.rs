//! Whether the mirror shows objects of a sort that a cluster may lack, or that the scheduler may have no right to read.

/// What the scheduler sees of a sort of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    /// The API server has no such resource.
    #[default]
    Absent,
    /// The scheduler has no right to read them.
    Forbidden,
    /// The API server does not say whether it has such a resource.
    Unanswered,
    /// The mirror shows all of them.
    Read,
}
