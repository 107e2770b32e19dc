//! The digests that stand for names.

use csi_types::hex;
use sha2::{Digest, Sha256};

/// Stands for `name` in `collection` where the name itself may not: entries of the trash begin with it.
pub(crate) fn object_digest(collection: &str, name: &str) -> String {
    hex(&Sha256::digest(format!("{collection}/{name}"))[..16])
}
