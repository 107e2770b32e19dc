//! How a call is run: detached from its client, guarded, bounded in time, logged and measured.
//!
//! tonic drops a handler when its client leaves; work on storage must not be dropped half-way, so
//! it runs in a task of its own and the handler only waits for it. What the call does is not known
//! here. compat: "Calls in progress".

use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;

/// The calls that are served, by their names in the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub enum Rpc {
    GetPluginInfo,
    GetPluginCapabilities,
    Probe,
    CreateVolume,
    DeleteVolume,
    ControllerPublishVolume,
    ControllerUnpublishVolume,
    ValidateVolumeCapabilities,
    ListVolumes,
    GetCapacity,
    ControllerGetCapabilities,
    CreateSnapshot,
    DeleteSnapshot,
    ListSnapshots,
    GetSnapshot,
    ControllerExpandVolume,
    ControllerGetVolume,
    ControllerModifyVolume,
    NodeStageVolume,
    NodeUnstageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeGetVolumeStats,
    NodeExpandVolume,
    NodeGetCapabilities,
    NodeGetInfo,
}

/// How long work may take before it has to give up by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Work that may copy a whole volume. A copy that is cut begins anew, so that a short deadline
    /// would make large volumes impossible.
    pub copying: Duration,
    /// Other work that changes the backend.
    pub changing: Duration,
    /// Questions.
    pub reading: Duration,
    /// Work on a node.
    pub node: Duration,
}

/// Runs calls.
#[derive(Debug, Clone)]
pub struct Runner {
    tracker: TaskTracker,
    deadlines: Deadlines,
    metrics: Metrics,
}

// === impl Rpc ===

impl Rpc {
    /// Every call.
    pub const ALL: [Self; 26] = [
        Self::GetPluginInfo,
        Self::GetPluginCapabilities,
        Self::Probe,
        Self::CreateVolume,
        Self::DeleteVolume,
        Self::ControllerPublishVolume,
        Self::ControllerUnpublishVolume,
        Self::ValidateVolumeCapabilities,
        Self::ListVolumes,
        Self::GetCapacity,
        Self::ControllerGetCapabilities,
        Self::CreateSnapshot,
        Self::DeleteSnapshot,
        Self::ListSnapshots,
        Self::GetSnapshot,
        Self::ControllerExpandVolume,
        Self::ControllerGetVolume,
        Self::ControllerModifyVolume,
        Self::NodeStageVolume,
        Self::NodeUnstageVolume,
        Self::NodePublishVolume,
        Self::NodeUnpublishVolume,
        Self::NodeGetVolumeStats,
        Self::NodeExpandVolume,
        Self::NodeGetCapabilities,
        Self::NodeGetInfo,
    ];

    /// The name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetPluginInfo => "GetPluginInfo",
            Self::GetPluginCapabilities => "GetPluginCapabilities",
            Self::Probe => "Probe",
            Self::CreateVolume => "CreateVolume",
            Self::DeleteVolume => "DeleteVolume",
            Self::ControllerPublishVolume => "ControllerPublishVolume",
            Self::ControllerUnpublishVolume => "ControllerUnpublishVolume",
            Self::ValidateVolumeCapabilities => "ValidateVolumeCapabilities",
            Self::ListVolumes => "ListVolumes",
            Self::GetCapacity => "GetCapacity",
            Self::ControllerGetCapabilities => "ControllerGetCapabilities",
            Self::CreateSnapshot => "CreateSnapshot",
            Self::DeleteSnapshot => "DeleteSnapshot",
            Self::ListSnapshots => "ListSnapshots",
            Self::GetSnapshot => "GetSnapshot",
            Self::ControllerExpandVolume => "ControllerExpandVolume",
            Self::ControllerGetVolume => "ControllerGetVolume",
            Self::ControllerModifyVolume => "ControllerModifyVolume",
            Self::NodeStageVolume => "NodeStageVolume",
            Self::NodeUnstageVolume => "NodeUnstageVolume",
            Self::NodePublishVolume => "NodePublishVolume",
            Self::NodeUnpublishVolume => "NodeUnpublishVolume",
            Self::NodeGetVolumeStats => "NodeGetVolumeStats",
            Self::NodeExpandVolume => "NodeExpandVolume",
            Self::NodeGetCapabilities => "NodeGetCapabilities",
            Self::NodeGetInfo => "NodeGetInfo",
        }
    }
}

// === impl Deadlines ===

impl Default for Deadlines {
    fn default() -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Self {
            copying: minutes(24 * 60),
            changing: minutes(10),
            reading: minutes(1),
            node: minutes(5),
        }
    }
}

// === impl Runner ===

impl Runner {
    /// Runs calls within `deadlines`.
    pub fn new(deadlines: Deadlines, metrics: Metrics) -> Self {
        Self {
            tracker: TaskTracker::new(),
            deadlines,
            metrics,
        }
    }

    /// The work in progress: close it and wait for it before leaving the process.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }
}
