//! Requests and answers of the node, in checked types.
//!
//! The proxy decodes a gRPC request into these once; no verb parses raw text again. Here only the
//! form of a path is checked. The verbs check what is at the path.

use crate::filesystem::FilesystemSettings;
use csi_types::attachment::{AbsolutePath, Attachment, PathError};
use csi_types::capability::{MountFlags, VolumeCapability};
use csi_types::health::Conditions;
use csi_types::secrets::StageSecrets;

/// The operator's settings for all volumes of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeConfig {
    /// Options for every volume: `node.mount.mount_flags`.
    pub mount_flags: MountFlags,
    /// The way filesystems are made and checked: `node.format` and `node.mount.checkFilesystem`.
    pub filesystem: FilesystemSettings,
    /// Whether filesystems are mounted by the guest of a pod, not by this node: `node.kata.directVolumes`.
    pub kata: bool,
}

/// The path where a volume is staged. Never the root directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StagingPath(AbsolutePath);

/// The path where a volume is published for one pod. Never the root directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TargetPath(AbsolutePath);

/// Makes a volume ready on this node.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// Where.
    pub staging: StagingPath,
    /// The volume.
    pub attachment: Attachment,
    /// The way it is going to be used.
    pub capability: VolumeCapability,
    /// The secrets for its storage.
    pub secrets: StageSecrets,
}

/// Shows a staged volume to one pod.
#[derive(Debug, Clone)]
pub struct PublishRequest {
    /// The place where it was staged.
    pub staging: StagingPath,
    /// The place where the pod wants it.
    pub target: TargetPath,
    /// The volume.
    pub attachment: Attachment,
    /// The way the pod uses it.
    pub capability: VolumeCapability,
    /// Whether the pod must not write.
    pub readonly: bool,
}

/// Grows the node part of a volume whose storage grew.
#[derive(Debug, Clone)]
pub struct ExpandRequest {
    /// The path where the volume is mounted: published or staged.
    pub path: AbsolutePath,
    /// The size that was asked for, in bytes.
    pub required: Option<u64>,
}

/// The known facts about a mounted volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStats {
    /// Space; `None` where the filesystem does not answer.
    pub bytes: Option<Usage>,
    /// Files; `None` where the filesystem does not answer or does not count.
    pub inodes: Option<Usage>,
    /// The conditions of what is mounted.
    pub conditions: Conditions,
}

/// How much of something there is. `total >= used`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All of it.
    pub total: u64,
    /// The used part.
    pub used: u64,
    /// The part that an ordinary user can still take.
    pub available: u64,
}

macro_rules! volume_path {
    ($name:ident) => {
        impl $name {
            /// Checks the form of a path.
            pub fn parse(path: &str) -> Result<Self, PathError> {
                Self::new(AbsolutePath::parse(path)?)
            }

            /// A path whose form was checked.
            pub fn new(path: AbsolutePath) -> Result<Self, PathError> {
                if path.as_str() == "/" {
                    return Err(PathError::Root);
                }
                Ok(Self(path))
            }

            /// The path.
            pub fn path(&self) -> &AbsolutePath {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

volume_path!(StagingPath);
volume_path!(TargetPath);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_directory_is_never_a_place_for_a_volume() {
        assert_eq!(TargetPath::parse("//"), Err(PathError::Root));
        assert_eq!(StagingPath::parse("a"), Err(PathError::Relative));
        assert!(StagingPath::parse("/a").is_ok());
    }
}
