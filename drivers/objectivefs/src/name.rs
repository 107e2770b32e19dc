//! Names of volumes: `<pool>/<id>`, all in lower case, because the object store knows no other.

use csi_types::attachment::ObjectivefsName;
use driver_core::config::ConfigError;
use driver_core::naming::VolumeNaming;
use driver_core::{Error, Parameters, VolumeId, VolumeName};

/// The longest id: ObjectiveFS refuses names of 63 bytes and more.
pub(crate) const MAX_ID: usize = 62;

/// Upper-case letters, which would collide in lower case, and the separators of snapshot ids.
const BANNED: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ:.+";

/// The bucket, or the folder of one, that all volumes of a connection lie in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pool(String);

// === impl Pool ===

impl Pool {
    /// Reads the key `objectivefs.pool`, with or without the object store before it.
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigError> {
        let at = |problem: &str| ConfigError::at("objectivefs.pool", problem);
        let bare = text.split_once("://").map_or(text, |(_, bare)| bare);
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if bare.is_empty() {
            return Err(at("is empty").advise("the name of the bucket that volumes are made in"));
        }
        if bare.len() > 255 || !bare.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(at("is not the name of a bucket"));
        }
        if !bare.chars().all(fits) {
            let problem = "has a character that the name of a bucket cannot have";
            return Err(at(problem).advise("name the bucket alone, without a path below it"));
        }
        Ok(Self(bare.to_owned()))
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The filesystem that is a volume, as the tool takes it.
    pub(crate) fn filesystem(&self, id: &VolumeId) -> Result<ObjectivefsName, Error> {
        let doing = || format!("name the filesystem of volume `{id}`");
        if !is_id(id.as_str()) {
            return Err(Error::invalid(doing())
                .because("ids of this driver have lower-case letters, digits, `-` and `_`"));
        }
        ObjectivefsName::parse(&format!("{}/{id}", self.0))
            .map_err(|error| Error::invalid(doing()).because(error))
    }

    /// The volume that a name of the list is, if it is one of this pool: `store://pool/id`.
    pub(crate) fn volume(&self, listed: &str) -> Option<VolumeId> {
        let bare = listed.split_once("://").map_or(listed, |(_, bare)| bare);
        let id = bare.strip_prefix(self.as_str())?.strip_prefix('/')?;
        VolumeId::parse(id).ok().filter(|_| is_id(id))
    }
}

/// Whether this driver can have made such an id.
fn is_id(id: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    id.len() <= MAX_ID
        && id.starts_with(letter)
        && id.chars().all(|c| letter(c) || matches!(c, '-' | '_'))
}

/// The id of a volume. compat: "ObjectiveFS": one with upper-case letters gets an id of its own.
pub(crate) fn volume_id(
    naming: &VolumeNaming,
    name: &VolumeName,
    parameters: &Parameters,
) -> Result<VolumeId, Error> {
    naming.volume_id_without(name, parameters, BANNED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_filesystems_right_below_the_pool_are_volumes() {
        let pool = Pool::parse("s3://csi").expect("a pool");
        for (listed, id) in [
            ("s3://csi/pvc-1", Some("pvc-1")),
            ("csi/pvc-1", Some("pvc-1")),
            ("s3://csi/", None),
            ("s3://csi", None),
            ("s3://csi-2/pvc-1", None),
            ("s3://csi/a/b", None),
            ("s3://csi/PVC", None),
            ("s3://csi/-f", None),
            ("s3://csi/a@2026-01-01", None),
        ] {
            let found = pool.volume(listed);
            assert_eq!(found.as_ref().map(VolumeId::as_str), id, "{listed}");
        }
    }

    #[test]
    fn a_pool_is_one_bucket() {
        for bad in ["", "s3://", "a/b", "-f", "a b", "a\nb", "../a"] {
            let error = Pool::parse(bad).expect_err(bad);
            assert_eq!(error.path(), Some("objectivefs.pool"), "{bad:?}");
        }
        assert_eq!(Pool::parse("minio://ofs").expect("a pool").as_str(), "ofs");
    }
}
