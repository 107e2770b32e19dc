//! Whether what is mounted is the share, dataset or FUSE filesystem of a volume.

use crate::mount::{MountTable, Place, as_listed};
use crate::mounting;
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::error::{Error, Kind};

/// Whether the mount at an opened path is this volume, by what the mount table says of it.
pub(super) fn is_at(place: &Place, attachment: &Attachment) -> Result<bool, Error> {
    let table = table()?;
    let entry = place.entry(&table);
    Ok(entry.is_some_and(|entry| mounting::is_mount_of(attachment, &entry)))
}

/// Whether the topmost mount at a path is this volume. It does not touch the mounted filesystem.
pub(super) fn is_topmost(path: &AbsolutePath, attachment: &Attachment) -> Result<bool, Error> {
    let table = table()?;
    let point = as_listed(path.as_path());
    let top = table.layers(&point).last();
    Ok(top.is_some_and(|entry| mounting::is_mount_of(attachment, &entry)))
}

fn table() -> Result<MountTable, Error> {
    MountTable::read()
        .map_err(|error| Error::new(Kind::Internal, "find out what is mounted").because(error))
}
