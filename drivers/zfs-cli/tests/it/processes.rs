//! The number of calls of `zfs`, and of exchanges, a call of the driver costs, on a host with a `zfs` that pretends.

use std::collections::BTreeMap;
use std::path::Path;

use crate::bare::{Bare, settings};
use crate::fake::{FakeCli, call, host};
use driver_core::{
    CreateGroup, CreateSnapshot, DeleteSnapshot, ExpandVolume, Expander as _, GroupMembers,
    Groups as _, Kind, Parameters, SizeRange, SnapshotId, SnapshotName, Snapshots as _, VolumeId,
};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;

/// One volume of 1 GiB, and a snapshot where it was taken. Only the kernel looks through volumes.
const ONE_VOLUME: &str = include_str!("processes/one_volume.sh");

fn driver(folder: &Path) -> ZfsDriver {
    let kind = VolumeKind::Zvol;
    let settings = settings(kind, "tank/v", "tank/s", "");
    ZfsDriver::new(settings, host(folder, ONE_VOLUME), Bare { kind })
}

/// The number of times that `zfs` was called since the last time. Each call names what it looks at and never all that
/// is below the parents: so the number of volumes, of which the host here says nothing, has no part in it.
fn calls(folder: &Path) -> usize {
    let path = folder.join("calls");
    let calls = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    for line in calls.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let walks = words[0] == "list" || words.contains(&"-r") || words.contains(&"-d");
        // Of one volume: a volume has nothing else below it.
        let is_of_one = words.contains(&"bookmark");
        assert!(
            !walks || words[0] == "destroy" || is_of_one,
            "it walks over volumes: {line}"
        );
    }
    calls.lines().count()
}

/// The number of exchanges since the last time.
fn exchanges(driver: &ZfsDriver) -> u64 {
    let cli: &FakeCli = driver.storage().of().unwrap();
    cli.runner().take()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_about_one_volume_needs_more_than_a_few_calls_of_zfs() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, id) = (folder.path(), VolumeId::parse("pvc-1").unwrap());
    let driver = driver(folder);

    let size = SizeRange::new(2 << 30, 0).unwrap();
    let grown = driver
        .expand_volume(&call(), ExpandVolume::new(&id, size))
        .await
        .unwrap();
    assert_eq!(grown.capacity, 2 << 30);
    // A look and the size, by the first try of the verb.
    assert_eq!((calls(folder), exchanges(&driver)), (2, 1));

    // A look at both, the snapshot, a look; and one for other snapshots of a name that others may have.
    let unique = "snapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
    for (name, to_take) in [(unique, 3), ("s1", 4)] {
        let request = CreateSnapshot {
            name: SnapshotName::parse(name).unwrap(),
            source: id.clone(),
            parameters: Parameters::default(),
            secrets: BTreeMap::new(),
        };
        let taken = driver.create_snapshot(&call(), &request).await.unwrap();
        assert_eq!((calls(folder), exchanges(&driver)), (to_take, 2), "{name}");

        driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await
            .unwrap();
        // A look at the snapshot and one at the bookmarks, the guard, a bookmark that is refused, the end.
        assert_eq!((calls(folder), exchanges(&driver)), (5, 2), "{name}");
    }
}

/// A filesystem of 1 GiB, and any snapshot of it. Lines in a file `look`, `set` or `program` beside it run before that.
/// A file `answer` has the answer of the program.
pub(crate) const A_FILESYSTEM: &str = include_str!("processes/a_filesystem.sh");

/// The answer of `zfs program` to a user that is not root.
const NO_ROOT: &str = "printf '%s\\n' 'Channel program execution failed:' \\
    'Permission denied. Channel programs must be run as root.' >&2; exit 1\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_growth_and_the_deletion_of_a_snapshot_are_one_exchange_each() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let kind = VolumeKind::Filesystem;
    let settings = settings(kind, "tank/v", "tank/s", "  datasetEnableQuotas: true\n");
    let driver = ZfsDriver::new(settings, host(folder, A_FILESYSTEM), Bare { kind });
    let id = VolumeId::parse("pvc-1").unwrap();
    let growth = ExpandVolume::new(&id, SizeRange::new(2 << 30, 0).unwrap());
    let grown = driver.expand_volume(&call(), growth).await.unwrap();
    assert_eq!(grown.capacity, 2 << 30);
    assert_eq!(exchanges(&driver), 1);

    let unique = "pvc-1@snapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
    // A host that runs no channel program is asked for one once.
    for (id, is_root, most) in [
        (unique, true, 1),
        ("pvc-1@s1", true, 1),
        ("pvc-1@s2", false, 2),
        ("pvc-1@s3", false, 1),
    ] {
        if !is_root {
            std::fs::write(folder.join("program"), NO_ROOT).unwrap();
        }
        let snapshot = SnapshotId::parse(id).unwrap();
        let request = DeleteSnapshot::new(&snapshot);
        driver.delete_snapshot(&call(), request).await.unwrap();
        assert_eq!(exchanges(&driver), most, "{id}");
    }
}

/// Volumes, and the snapshots of one group while it is there. The kernel finds that a snapshot is of a group.
const A_GROUP: &str = include_str!("processes/a_group.sh");

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_two_hundred_is_one_snapshot_and_its_members_go_with_it_alone() {
    const COUNT: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let kind = VolumeKind::Filesystem;
    let settings = settings(kind, "tank/v", "tank/s", "");
    let driver = ZfsDriver::new(settings, host(folder, A_GROUP), Bare { kind });
    let id = |n| VolumeId::parse(&format!("pvc-{n:032x}")).unwrap();
    let volumes: Vec<_> = (0..COUNT).map(id).collect();
    let unique = "groupsnapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
    let (name, parameters) = (SnapshotName::parse(unique).unwrap(), Parameters::default());
    let request = CreateGroup::new(&name, &volumes, &parameters);
    let group = driver.create_group(&call(), request).await.unwrap();
    assert_eq!(group.snapshots.len(), COUNT);
    // A look at all, the snapshot of all, a look.
    assert_eq!(calls(folder), 3);
    let again = driver.create_group(&call(), request).await.unwrap();
    assert_eq!((again, calls(folder)), (group.clone(), 1));

    let members: Vec<_> = group.snapshots.iter().map(|s| s.id.clone()).collect();
    let alone = DeleteSnapshot::new(&members[0]);
    let refused = driver.delete_snapshot(&call(), alone).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.chain());
    let asked = std::fs::read_to_string(folder.join("calls")).unwrap();
    let destroys = |line: &str| line.starts_with("destroy ");
    assert!(!asked.lines().any(destroys), "{asked}");
    std::fs::remove_file(folder.join("calls")).unwrap();

    let request = GroupMembers::new(&group.id, &members);
    driver.delete_group(&call(), request).await.unwrap();
    // A look, whether they are still those, and each of them.
    assert_eq!(calls(folder), 2 + COUNT);
}
