//! The identifier of a disk on nodes, derived from the identity of its dataset.

use std::fmt;

use driver_zfs::export::Subject;
use sha2::{Digest, Sha256};

/// The identifier of a disk on a node. It is derived from the identity of the dataset, so that it is the
/// same after the target was lost, and different when the name is used again.
pub(super) struct Uuid([u8; 16]);

// === impl Uuid ===

impl Uuid {
    pub(super) fn of(subject: &Subject<'_>) -> Self {
        let guid = subject.volume.map_or(0, |volume| volume.guid.0);
        let digest = Sha256::digest(format!("omnibus-csi disk {guid}").as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        // Version 8: a vendor-specific method.
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
