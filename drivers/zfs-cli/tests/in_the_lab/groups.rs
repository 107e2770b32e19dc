//! Groups of snapshots on real ZFS: one transaction, however many volumes there are and whatever writes to them.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use driver_core::{
    CreateGroup, DeleteSnapshot, Driver as _, GroupMembers, GroupSnapshot, Groups as _, Kind,
    Parameters, SnapshotName, Snapshots as _, Source, VolumeId,
};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;

use crate::ground::{Ground, RealDriver, zfs};
use crate::{call, request};

/// A name as external-snapshotter makes one.
fn unique(number: usize) -> SnapshotName {
    let name = format!("groupsnapshot-0aa4ba5c-6ee9-4d3b-9cf3-{number:012x}");
    SnapshotName::parse(&name).unwrap()
}

fn ids(names: &[&str]) -> Vec<VolumeId> {
    let ids = names.iter().map(|name| VolumeId::parse(name).unwrap());
    ids.collect()
}

async fn take(driver: &RealDriver, name: &SnapshotName, volumes: &[VolumeId]) -> GroupSnapshot {
    let parameters = Parameters::default();
    let request = CreateGroup::new(name, volumes, &parameters);
    driver.create_group(&call(), request).await.unwrap()
}

async fn delete(driver: &RealDriver, group: &GroupSnapshot) {
    let members: Vec<_> = group.snapshots.iter().map(|s| s.id.clone()).collect();
    let request = GroupMembers::new(&group.id, &members);
    driver.delete_group(&call(), request).await.unwrap();
}

fn snapshots(ground: &Ground) -> Vec<String> {
    let listed = zfs(&[
        "list",
        "-H",
        "-r",
        "-t",
        "snapshot",
        "-o",
        "name,createtxg",
        &ground.root,
    ]);
    listed.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn two_hundred_volumes_are_snapshotted_in_one_transaction() {
    const COUNT: usize = 200;
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Filesystem, "");
    let context = format!(
        "{}={{\"node_attach_driver\":\"zfs-local\",\"zfs_asset_name\":\"x\"}}",
        PropertyName::CONTEXT
    );
    // As the driver makes them, in fewer commands.
    let name = |n: usize| format!("pvc-0aa4ba5c-6ee9-4d3b-9cf3-{n:012x}");
    let volumes: Vec<_> = (0..COUNT).map(name).collect();
    zfs(&["create", &format!("{}/v", ground.root)]);
    for volume in &volumes {
        let dataset = format!("{}/v/{volume}", ground.root);
        zfs(&["create", "-u", "-o", &context, &dataset]);
    }
    let volumes: Vec<_> = volumes.iter().map(String::as_str).collect();
    let (name, volumes) = (unique(0), ids(&volumes));
    let group = take(&driver, &name, &volumes).await;
    assert_eq!(group.snapshots.len(), COUNT);
    let found = snapshots(&ground);
    let moments: BTreeSet<_> = found
        .iter()
        .filter_map(|row| row.split('\t').nth(1))
        .collect();
    assert_eq!((found.len(), moments.len()), (COUNT, 1), "{moments:?}");
    assert_eq!(
        take(&driver, &name, &volumes).await,
        group,
        "it was made once"
    );

    let alone = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&group.snapshots[0].id))
        .await;
    assert_eq!(alone.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(snapshots(&ground).len(), COUNT);
    for _ in 0..2 {
        delete(&driver, &group).await;
        assert_eq!(snapshots(&ground), [""; 0]);
    }
}

/// Writes a number to the first file, then to the second one, as long as it is to.
fn write(files: &[File; 2], goes_on: &AtomicBool) {
    let mut number = 0_u64;
    while goes_on.load(Ordering::Relaxed) {
        number += 1;
        for file in files {
            file.write_all_at(&number.to_be_bytes(), 0).unwrap();
            file.sync_data().unwrap();
        }
    }
}

/// Ends the writer, also when the test fails: its scope waits for it.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn number(path: impl AsRef<Path>) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// The number of rounds in which single snapshots are taken as well. More are if none of them is torn.
const CONTROLS: usize = 20;

/// The rounds of the writer: more take longer and prove more.
fn rounds() -> usize {
    let given = std::env::var("OMNIBUS_GROUP_ROUNDS").ok();
    given.map_or(20, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn what_was_written_second_is_never_there_without_what_was_written_first() {
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Filesystem, "");
    for id in ["a", "b"] {
        let made = request(id, 64 << 20, None);
        driver.create_volume(&call(), &made).await.unwrap();
    }
    let file = |volume: &str| format!("/{}/v/{volume}/number", ground.root);
    let files = ["a", "b"].map(|volume| {
        std::fs::write(file(volume), 0_u64.to_be_bytes()).unwrap();
        File::options().write(true).open(file(volume)).unwrap()
    });
    let of = |volume: &str, leaf: &str| {
        let path = format!("/{}/v/{volume}/.zfs/snapshot/{leaf}/number", ground.root);
        number(path)
    };
    let goes_on = AtomicBool::new(true);
    let (mut seen, mut controls, mut torn) = (BTreeSet::new(), 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&files, &goes_on));
        let _end = End(&goes_on);
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| {
            for round in 0..rounds() {
                let name = unique(round);
                let group = runtime.block_on(take(&driver, &name, &ids(&["b", "a"])));
                let (first, second) = (of("a", name.as_str()), of("b", name.as_str()));
                assert!(
                    first == second || first == second + 1,
                    "round {round}: {second} was written after {first}"
                );
                seen.insert(first);
                runtime.block_on(delete(&driver, &group));
                // One after the other they are torn: so the check would find it. Each such pair stays, and makes
                // every later round slower.
                if round >= CONTROLS && torn > 0 {
                    continue;
                }
                controls += 1;
                for volume in ["a", "b"] {
                    zfs(&[
                        "snapshot",
                        &format!("{}/v/{volume}@torn-{round}", ground.root),
                    ]);
                }
                let torn_one = format!("torn-{round}");
                torn += usize::from(of("b", &torn_one) > of("a", &torn_one));
            }
        });
    });
    println!(
        "{} groups, none of them torn; {torn} of {controls} pairs of single snapshots were",
        rounds()
    );
    assert!(seen.len() > rounds() / 2, "it hardly wrote: {seen:?}");
    assert!(torn > 0, "nothing was ever torn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn each_snapshot_of_a_group_of_zvols_is_restored_alone() {
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Zvol, "");
    let device = |volume: &str| format!("/dev/zvol/{}/v/{volume}", ground.root);
    let write = |volume: &str, number: u64| {
        let device = File::options().write(true).open(device(volume)).unwrap();
        device.write_all_at(&number.to_be_bytes(), 0).unwrap();
        device.sync_all().unwrap();
    };
    let read = |volume: &str| {
        let mut bytes = [0; 8];
        let device = File::open(device(volume)).unwrap();
        device.read_exact_at(&mut bytes, 0).unwrap();
        u64::from_be_bytes(bytes)
    };
    for (id, number) in [("a", 1), ("b", 2)] {
        let made = request(id, 64 << 20, None);
        driver.create_volume(&call(), &made).await.unwrap();
        write(id, number);
    }
    let group = take(&driver, &unique(0), &ids(&["a", "b"])).await;
    write("a", 3);
    write("b", 4);
    for (snapshot, restored) in group.snapshots.iter().zip(["c", "d"]) {
        let from = Some(Source::Snapshot(snapshot.id.clone()));
        let made = request(restored, 64 << 20, from);
        driver.create_volume(&call(), &made).await.unwrap();
    }
    assert_eq!((read("c"), read("d")), (1, 2));
    // Clones keep the snapshots, which are no longer those of a group.
    delete(&driver, &group).await;
    let members: Vec<_> = group.snapshots.iter().map(|s| s.id.clone()).collect();
    let found = driver
        .get_group(&call(), GroupMembers::new(&group.id, &members))
        .await;
    assert_eq!(found.unwrap_err().kind(), Kind::NotFound);
    assert_eq!((read("c"), read("d")), (1, 2));
}
