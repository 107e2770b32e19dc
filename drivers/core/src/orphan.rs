//! Orphans: objects of ours in a backend that no caller asks for any more.
//!
//! A call that was killed and is never retried leaves objects behind that no orchestrator knows: no
//! list contains them, and no call names them. The driver decides what proves that an object is an
//! orphan; the caller decides how old it must be.

use std::fmt;
use std::time::SystemTime;

/// One orphan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Its kind.
    pub kind: OrphanKind,
    /// Its name in the backend.
    pub object: String,
    /// Distinguishes it from a later one of that name: only this one is ever removed.
    pub identity: String,
    /// When it was made.
    pub created: SystemTime,
}

/// The kind of an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OrphanKind {
    /// A partial volume: no call has ever returned it.
    HalfVolume,
    /// A partial snapshot.
    HalfSnapshot,
    /// A snapshot that was taken for a copy or a clone, and that nothing depends on.
    Helper,
    /// An empty container of snapshots.
    Container,
}

// === impl OrphanKind ===

impl OrphanKind {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::HalfVolume,
        Self::HalfSnapshot,
        Self::Helper,
        Self::Container,
    ];

    /// A few words for a table; never changed, because programs read them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HalfVolume => "half-made volume",
            Self::HalfSnapshot => "half-made snapshot",
            Self::Helper => "helper snapshot",
            Self::Container => "empty container",
        }
    }
}

impl fmt::Display for OrphanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
