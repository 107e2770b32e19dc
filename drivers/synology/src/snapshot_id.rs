//! Ids of snapshots: `/lun/<uuid of the LUN>/<uuid of the snapshot>`. compat: "Synology".

use driver_core::{Error, SnapshotId};

/// The parts of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LunSnapshotId {
    pub(crate) lun: LunRef,
    pub(crate) snapshot: String,
}

/// The LUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LunRef {
    /// By its uuid.
    Uuid(String),
    /// By its number, as early releases of democratic-csi wrote it.
    Number(u64),
}

fn is_uuid(text: &str) -> bool {
    (8..=64).contains(&text.len())
        && text.contains('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

// === impl LunSnapshotId ===

impl LunSnapshotId {
    /// Reads an id; `None` for one that was never given.
    pub(crate) fn parse(id: &SnapshotId) -> Option<Self> {
        let (lun, snapshot) = id.as_str().strip_prefix("/lun/")?.split_once('/')?;
        let lun = if is_uuid(lun) {
            LunRef::Uuid(lun.to_owned())
        } else {
            let digits = !lun.is_empty() && lun.bytes().all(|byte| byte.is_ascii_digit());
            LunRef::Number(lun.parse().ok().filter(|_| digits)?)
        };
        is_uuid(snapshot).then(|| Self {
            lun,
            snapshot: snapshot.to_owned(),
        })
    }
}

/// Writes an id. What DSM calls uuids is checked: it becomes a part of handles.
pub(crate) fn write(lun: &str, snapshot: &str) -> Result<SnapshotId, Error> {
    let refused = || Error::new(driver_core::Kind::Internal, "read the uuid of a snapshot");
    if !is_uuid(lun) || !is_uuid(snapshot) {
        return Err(refused().because("DSM gave something else"));
    }
    SnapshotId::parse(&format!("/lun/{lun}/{snapshot}")).map_err(|error| refused().because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<LunSnapshotId> {
        LunSnapshotId::parse(&SnapshotId::parse(text).expect("a text"))
    }

    #[test]
    fn ids_of_both_forms_are_read_and_others_are_not() {
        let uuid = "f699bc85-3be4-4eb0-9332-020b47143169";
        let id = write(uuid, uuid).expect("written");
        assert_eq!(
            LunSnapshotId::parse(&id).expect("read").lun,
            LunRef::Uuid(uuid.to_owned())
        );
        let old = parse(&format!("/lun/7/{uuid}")).expect("read");
        assert_eq!(old.lun, LunRef::Number(7));
        for text in [
            "x",
            "/lun/7",
            "/lun//x",
            "/lun/7/..",
            "/lun/+7/f699bc85-3be4",
            "/lun/../f699bc85-3be4",
            "lun/7/f699bc85-3be4",
            "/lun/7/f699bc85-3be4/x",
            "/lun/7/f699bc85-3be4\"",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(write("a", uuid).is_err());
    }
}
