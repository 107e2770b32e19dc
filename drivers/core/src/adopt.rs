//! Adoption: what lies on the storage already becomes a volume. An operator asks for it, no orchestrator does.

use crate::made_for::MadeFor;
use crate::text::VolumeId;

/// The object that is to become a volume.
#[derive(Debug, Clone)]
pub struct AdoptVolume {
    /// Its name, as an operator gives it: a dataset or zvol by its whole name, a directory by its path.
    pub source: String,
    /// Its size, if nothing on the storage says it.
    pub size: Option<u64>,
    /// The objects that it becomes. What is not named here is kept as it is recorded.
    pub made_for: MadeFor,
}

/// The plan of an adoption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// The volume.
    pub id: VolumeId,
    /// Its progress.
    pub state: AdoptionState,
    /// The changes, in order, one in a line. The mark that makes it a volume is the last, and is not among them.
    pub steps: Vec<String>,
    /// Notes for the operator, who reads them before.
    pub remarks: Vec<String>,
}

/// The progress of an adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptionState {
    /// Nothing was done, or not all.
    Open,
    /// It is a volume, by an adoption.
    Done,
    /// It is a volume, and no adoption made it one.
    Volume,
}
