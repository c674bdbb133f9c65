//! Whether the mirror shows what a cluster may lack, or may keep from the scheduler.

/// What the scheduler sees of a sort of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    /// The API server has no such resource.
    #[default]
    Absent,
    /// The scheduler has no right to read them.
    Forbidden,
    /// The mirror shows all of them.
    Read,
}
