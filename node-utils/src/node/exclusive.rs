//! Whether a volume that may have one target only is published somewhere else.
//!
//! The mount table is the memory: any other mount of the same directory of the same filesystem is a
//! publication, whoever made it. Where the host's root is also mounted inside the container, each
//! mount shows up twice; a path that merely ends with a known one is that one seen again.

use std::path::{Path, PathBuf};

use super::request::PublishRequest;
use crate::mount::{MountEntry, MountTable, Place};
use csi_types::error::{Error, Kind};

use rustix::io::Errno;

/// Fails if the staged volume is published at another path than `target`, naming it.
pub(super) fn check(
    request: &PublishRequest,
    staged: &Place,
    source: Option<&Place>,
    target: &Place,
) -> Result<(), Error> {
    let other = other_target(staged, source, target).map_err(|error| {
        let doing = format!("find where `{}` is published", request.staging);
        Error::new(Kind::Internal, doing).because(error)
    })?;
    match other {
        Some(other) => Err(refused(request, &other)),
        None => Ok(()),
    }
}

/// Somebody else has the volume, at `other`.
pub(super) fn refused(request: &PublishRequest, other: &Path) -> Error {
    let mode = request.capability.mode;
    let doing = format!(
        "publish at `{}`: the volume is published at `{}` and {mode} allows one place",
        request.target,
        other.display(),
    );
    Error::new(Kind::Busy, doing).advise("wait until the other pod is gone")
}

fn other_target(
    staged: &Place,
    source: Option<&Place>,
    target: &Place,
) -> Result<Option<PathBuf>, std::io::Error> {
    let table = MountTable::read()?;
    let entry = staged.entry(&table).ok_or(Errno::NOENT)?;
    let mut known = vec![staged.canonical()?, target.canonical()?];
    if let Some(source) = source {
        known.push(source.canonical()?);
    }
    Ok(elsewhere(&table, &entry, &known))
}

/// The first mount that shows the same as `staged` and is none of the `known` paths.
fn elsewhere(table: &MountTable, staged: &MountEntry<'_>, known: &[PathBuf]) -> Option<PathBuf> {
    table
        .entries()
        .filter(|entry| entry.shows_the_same_as(staged))
        .map(|entry| entry.point().into_owned())
        .find(|point| !known.iter().any(|known| is_seen_again(point, known)))
}

/// Whether the path `point` is `known`, maybe below the root of the host.
pub(super) fn is_seen_again(point: &Path, known: &Path) -> bool {
    known
        .strip_prefix("/")
        .is_ok_and(|relative| point.ends_with(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:1 / /host rw - ext4 /dev/sda1 rw
30 20 8:1 /data/v/a /k/stage rw - ext4 /dev/sda1 rw
31 21 8:1 /data/v/a /host/k/stage rw - ext4 /dev/sda1 rw
32 20 8:1 /data/v/a/sub /k/subpath rw - ext4 /dev/sda1 rw
33 20 8:1 /data/v/b /k/other rw - ext4 /dev/sda1 rw
34 20 8:2 /data/v/a /k/device rw - ext4 /dev/sda2 rw
";

    fn known() -> Vec<PathBuf> {
        ["/k/stage", "/data/v/a", "/k/t1"].map(PathBuf::from).into()
    }

    #[test]
    fn the_staging_mount_seen_through_the_hosts_root_is_no_publication() {
        let table = MountTable::from_text(TABLE);
        let staged = table.by_id(30).expect("entry");
        assert_eq!(elsewhere(&table, &staged, &known()), None);
    }

    #[test]
    fn another_mount_of_the_same_directory_is_one() {
        let text = format!("{TABLE}40 20 8:1 /data/v/a /k/t2 ro - ext4 /dev/sda1 rw\n");
        let table = MountTable::from_text(text);
        let staged = table.by_id(30).expect("entry");
        assert_eq!(
            elsewhere(&table, &staged, &known()),
            Some(PathBuf::from("/k/t2"))
        );
    }

    #[test]
    fn a_name_that_only_ends_alike_is_another_place() {
        assert!(is_seen_again(Path::new("/host/k/t1"), Path::new("/k/t1")));
        assert!(!is_seen_again(Path::new("/kk/t1"), Path::new("/k/t1")));
    }
}
