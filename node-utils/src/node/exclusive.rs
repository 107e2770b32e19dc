//! Whether a volume that may have one target only is published somewhere else.
//!
//! Read from the mount table: any other mount of the same directory of the same filesystem is a publication.
//! One mount is listed twice if the folder around it is mounted twice: the root of the host at `/host`, or
//! `/var/lib/kubelet` as a bind mount of a folder on a data disk. Such entries are recognised by the directory
//! that they are mounted on.

use std::path::{Path, PathBuf};

use super::request::PublishRequest;
use crate::mount::{Location, MountEntry, MountTable, Place};
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

/// The error for a volume that is published at `other`.
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
    let mut known = Vec::new();
    for place in [Some(staged), Some(target), source].into_iter().flatten() {
        known.push(Known {
            path: place.canonical()?,
            location: table.location_of(place),
        });
    }
    Ok(elsewhere(&table, &entry, &known))
}

/// A path where the volume may be mounted.
#[derive(Debug)]
struct Known {
    path: PathBuf,
    location: Option<Location>,
}

/// The first mount that shows the same as `staged` and is at none of the `known` paths.
fn elsewhere(table: &MountTable, staged: &MountEntry<'_>, known: &[Known]) -> Option<PathBuf> {
    let is_known = |entry: &MountEntry<'_>| {
        known.iter().any(|known| {
            let location = known.location.as_ref();
            entry.is_at(&known.path)
                || location.is_some_and(|location| table.is_mounted_at(entry, location))
        })
    };
    table
        .entries()
        .filter(|entry| entry.shows_the_same_as(staged) && !is_known(entry))
        .map(|entry| entry.point().into_owned())
        .next()
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

    const KUBELET: &str = "\
50 20 8:1 /data/kubelet /var/lib/kubelet rw - ext4 /dev/sda1 rw
60 50 8:5 / /var/lib/kubelet/stage rw - ext4 /dev/sde rw
61 20 8:5 / /data/kubelet/stage rw - ext4 /dev/sde rw
62 21 8:5 / /host/data/kubelet/stage rw - ext4 /dev/sde rw
";

    /// The mount points of these mounts, and the paths below `/`.
    fn known(table: &MountTable, mounts: &[u64], paths: &[&str]) -> Vec<Known> {
        let mounts = mounts.iter().map(|id| {
            let entry = table.by_id(*id).expect("entry");
            Known {
                path: entry.point().into_owned(),
                location: table.location(&entry),
            }
        });
        let paths = paths.iter().map(|path| Known {
            path: PathBuf::from(path),
            location: table.by_id(20).expect("root").locate(Path::new(path)),
        });
        mounts.chain(paths).collect()
    }

    fn found(text: &str, staged: u64) -> Option<PathBuf> {
        let table = MountTable::from_text(text);
        let known = known(&table, &[staged], &["/data/v/a", "/k/t1"]);
        let staged = table.by_id(staged).expect("entry");
        elsewhere(&table, &staged, &known)
    }

    #[test]
    fn the_staging_mount_seen_through_the_hosts_root_is_no_publication() {
        assert_eq!(found(TABLE, 30), None);
    }

    #[test]
    fn another_mount_of_the_same_directory_is_one() {
        let text = format!("{TABLE}40 20 8:1 /data/v/a /k/t2 ro - ext4 /dev/sda1 rw\n");
        assert_eq!(found(&text, 30), Some(PathBuf::from("/k/t2")));
        let text = format!("{TABLE}40 20 8:1 /data/v/a /kk/t1 ro - ext4 /dev/sda1 rw\n");
        assert_eq!(found(&text, 30), Some(PathBuf::from("/kk/t1")));
    }

    #[test]
    fn another_directory_of_the_same_nfs_export_is_another_volume() {
        let text = "\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
90 20 0:60 / /k/stage rw - nfs4 nas:/srv/v/a rw
91 20 0:60 / /shares/1 rw - nfs4 nas:/srv rw
92 20 0:60 / /k/other rw - nfs4 nas:/srv/v/b rw
";
        assert_eq!(found(text, 90), None);
        let text = format!("{text}93 20 0:60 / /k/pod rw - nfs4 nas:/srv/v/a rw\n");
        assert_eq!(found(&text, 90), Some(PathBuf::from("/k/pod")));
    }

    #[test]
    fn the_staging_mount_seen_in_a_bound_kubelet_folder_is_no_publication() {
        let text = format!("{TABLE}{KUBELET}");
        for staged in 60..=62 {
            assert_eq!(found(&text, staged), None, "{staged}");
        }
        let text = format!("{text}70 20 8:5 / /data/kubelet/pod rw - ext4 /dev/sde rw\n");
        let pod = Some(PathBuf::from("/data/kubelet/pod"));
        assert_eq!(found(&text, 60), pod);
    }

    #[test]
    fn a_staging_mount_with_a_second_layer_is_still_no_publication() {
        let layers = "\
80 60 8:5 / /var/lib/kubelet/stage rw - ext4 /dev/sde rw
81 62 8:5 / /host/data/kubelet/stage rw - ext4 /dev/sde rw
";
        assert_eq!(found(&format!("{TABLE}{KUBELET}{layers}"), 80), None);
    }
}
