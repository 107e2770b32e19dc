//! How a node reaches a directory: the one thing besides the configuration that tells the kinds of
//! this family apart.

use csi_types::attachment::Hostpath;
use csi_types::{AbsolutePath, Attachment};

use crate::id::VolumeDir;

/// The way to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is a directory of the node itself.
    Hostpath,
}

// === impl Reach ===

impl Reach {
    /// The attachment of a volume below `share`. compat: "Volume context".
    pub(crate) fn attachment(self, share: &AbsolutePath, dir: &VolumeDir) -> Attachment {
        let path = share.child("v").child(dir.as_str());
        match self {
            Self::Hostpath => Attachment::Hostpath(Hostpath { path }),
        }
    }
}
