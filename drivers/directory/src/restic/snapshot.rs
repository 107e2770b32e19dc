//! The report of restic about its snapshots.

use serde::Deserialize;

use crate::backup::{Backup, INSTANCE, NAME, VOLUME, time};
use crate::id::VolumeDir;

/// The tag of every snapshot of this program and of democratic-csi.
pub(super) const CREATED_BY: &str = "source=democratic-csi";
/// The name that a backup gets if it is whole. Only one that was cut still has this tag.
pub(super) const PENDING: &str = "omnibus_csi_pending";
/// The bytes that a restore writes. restic measures a snapshot without it each time.
pub(super) const SIZE: &str = "omnibus_csi_size";

/// The form in which restic prints it.
#[derive(Debug, Deserialize)]
struct Printed {
    id: String,
    time: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    tags: Option<Vec<String>>,
}

impl Printed {
    /// The snapshot, if its instance `fits`.
    fn named(self, fits: impl Fn(Option<&str>) -> bool) -> Option<Backup> {
        let tags = self.tags.unwrap_or_default();
        let value = |key: &str| {
            let mut tags = tags.iter();
            tags.find_map(|tag| tag.strip_prefix(key)?.strip_prefix('='))
        };
        if !tags.iter().any(|tag| tag == CREATED_BY) {
            return None;
        }
        let volume = value(VOLUME)?;
        // compat: "restic": the instance may be glued to the volume.
        let glue = format!("{INSTANCE}=");
        let (volume, of) = match volume.split_once(&glue) {
            Some((volume, of)) => (volume, Some(of)),
            None => (volume, value(INSTANCE)),
        };
        if !fits(of) {
            return None;
        }
        Some(Backup {
            volume: VolumeDir::new(volume)?,
            name: value(NAME)?.to_owned(),
            time: time(&self.time)?,
            path: self.paths.into_iter().next()?,
            id: self.id,
            size: value(SIZE).and_then(|size| size.parse().ok()),
        })
    }
}

/// The snapshots among those that are printed whose instance `fits`.
pub(super) fn read(
    text: &[u8],
    fits: impl Fn(Option<&str>) -> bool,
) -> Result<Vec<Backup>, serde_json::Error> {
    let printed = printed(text)?.into_iter();
    Ok(printed.filter_map(|printed| printed.named(&fits)).collect())
}

/// The ids of all that are printed.
pub(super) fn ids(text: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    let printed = printed(text)?.into_iter();
    Ok(printed.map(|printed| printed.id).collect())
}

fn printed(text: &[u8]) -> Result<Vec<Printed>, serde_json::Error> {
    let printed: Option<Vec<Printed>> = serde_json::from_slice(text)?;
    Ok(printed.unwrap_or_default())
}
