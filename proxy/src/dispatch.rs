//! Handles to connections: whose volume or snapshot it is that the orchestrator names.
//!
//! A process with one connection gives out the ids of its driver as they are; its handles carry no
//! name. Nothing here asks a backend.

use std::sync::Arc;

use driver_core::text::TextError;
use driver_core::{SnapshotId, VolumeId};

use crate::connection::Connection;

/// The id of a volume as the orchestrator has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeHandle(VolumeId);

/// The id of a snapshot as the orchestrator has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotHandle(SnapshotId);

/// The connections of this process: one, without a name.
#[derive(Debug, Clone)]
pub struct Connections {
    only: Arc<Connection>,
}

// === impl VolumeHandle ===

impl VolumeHandle {
    /// Checks what is true of every handle.
    pub(crate) fn parse(text: &str) -> Result<Self, TextError> {
        VolumeId::parse(text).map(Self)
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

// === impl SnapshotHandle ===

impl SnapshotHandle {
    /// Checks what is true of every handle.
    pub(crate) fn parse(text: &str) -> Result<Self, TextError> {
        SnapshotId::parse(text).map(Self)
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

// === impl Connections ===

impl Connections {
    /// A process with a single connection.
    pub fn single(connection: Connection) -> Self {
        Self {
            only: Arc::new(connection),
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Connection>> {
        std::iter::once(&self.only)
    }

    /// The connection whose answers count for the process as a whole, and where a volume is made
    /// whose parameters name none.
    pub(crate) fn leading(&self) -> &Arc<Connection> {
        &self.only
    }

    /// Where a volume is, and what it is called there.
    pub(crate) fn of_volume(&self, handle: &VolumeHandle) -> (Arc<Connection>, VolumeId) {
        (self.only.clone(), handle.0.clone())
    }

    /// Where a snapshot is, and what it is called there.
    pub(crate) fn of_snapshot(&self, handle: &SnapshotHandle) -> (Arc<Connection>, SnapshotId) {
        (self.only.clone(), handle.0.clone())
    }
}
