//! What a trial has asked for, until it is gone again.

use std::collections::BTreeMap;

use csi_proto::v1::{CreateSnapshotRequest, CreateVolumeRequest, Volume};

use super::folder::MountPoints;

/// Which volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Original,
    Restored,
    Clone,
}

/// Everything that a trial has asked for, in this order.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) volumes: Vec<MadeVolume>,
    pub(super) snapshot: Option<MadeSnapshot>,
}

/// A volume that was asked for.
#[derive(Debug)]
pub(super) struct MadeVolume {
    pub(super) role: Role,
    /// What was asked; to ask it again finds the volume whose reply was lost.
    pub(super) request: CreateVolumeRequest,
    pub(super) state: State<Volume>,
    pub(super) points: Option<MountPoints>,
    pub(super) publish_context: BTreeMap<String, String>,
    pub(super) attached: bool,
    pub(super) staged: bool,
    pub(super) published: bool,
}

/// A snapshot that was asked for.
#[derive(Debug)]
pub(super) struct MadeSnapshot {
    pub(super) request: CreateSnapshotRequest,
    pub(super) state: State<String>,
}

/// What is known of something that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum State<T> {
    /// It may be there.
    Unknown,
    /// It is there.
    There(T),
    /// It was there, and was deleted.
    Deleted(T),
    /// It never was there, or it is not ours.
    Never,
}

// === impl Role ===

impl Role {
    /// What its name ends with, and its folder is called.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Original => "original",
            Self::Restored => "restored",
            Self::Clone => "clone",
        }
    }
}

// === impl Made ===

impl Made {
    /// The volume of that role, if it was asked for.
    pub(super) fn volume(&self, role: Role) -> Option<&MadeVolume> {
        self.volumes.iter().find(|volume| volume.role == role)
    }

    /// The same, to be changed.
    pub(super) fn volume_mut(&mut self, role: Role) -> Option<&mut MadeVolume> {
        self.volumes.iter_mut().find(|volume| volume.role == role)
    }

    /// Its id, if it is there.
    pub(super) fn id(&self, role: Role) -> Option<&str> {
        self.volume(role)
            .and_then(|volume| volume.state.there())
            .map(|v| v.volume_id.as_str())
    }

    /// The roles of what was asked for, the last one first: copies go before what they are of.
    pub(super) fn backwards(&self) -> Vec<Role> {
        self.volumes
            .iter()
            .rev()
            .map(|volume| volume.role)
            .collect()
    }

    /// What may be there still, in words.
    pub(super) fn remains(&self) -> Vec<String> {
        let volumes = self
            .volumes
            .iter()
            .filter_map(|volume| match &volume.state {
                State::Unknown => Some(format!("perhaps the volume `{}`", volume.request.name)),
                State::There(there) => Some(format!("the volume `{}`", there.volume_id)),
                State::Deleted(_) | State::Never => None,
            });
        let snapshot = self
            .snapshot
            .as_ref()
            .and_then(|snapshot| match &snapshot.state {
                State::Unknown => Some(format!("perhaps the snapshot `{}`", snapshot.request.name)),
                State::There(id) => Some(format!("the snapshot `{id}`")),
                State::Deleted(_) | State::Never => None,
            });
        volumes.chain(snapshot).collect()
    }
}

// === impl State ===

impl<T: Clone> State<T> {
    /// It, if it is there.
    pub(super) fn there(&self) -> Option<&T> {
        match self {
            Self::There(there) => Some(there),
            _ => None,
        }
    }

    /// It, if it was there once.
    pub(super) fn ever(&self) -> Option<&T> {
        match self {
            Self::There(it) | Self::Deleted(it) => Some(it),
            _ => None,
        }
    }

    /// It is deleted now.
    pub(super) fn deleted(&mut self) {
        if let Self::There(it) = self {
            *self = Self::Deleted(it.clone());
        }
    }
}
