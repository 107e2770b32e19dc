//! The two sorts of objects in a base, and the names that stand for them.

/// A sort of objects, with a directory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collection {
    Volumes,
    Snapshots,
}

// === impl Collection ===

impl Collection {
    /// Its directory in the base.
    pub(crate) fn dir(self) -> &'static str {
        match self {
            Self::Volumes => "v",
            Self::Snapshots => "s",
        }
    }

    /// The noun for an object there, for messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Volumes => "volume",
            Self::Snapshots => "snapshot",
        }
    }
}
