//! The command line backend on real ZFS, on the machine this runs on.
//!
//! It makes datasets in the pool `tank`, and pools of files below `/var/tmp`, and leaves none behind. It
//! needs root and a pool that may be changed: it is run in the lab, by
//! `cargo test -p driver-zfs-cli --all-features --test zfs_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what others do on the storage host is done past the runner"
)]

#[path = "common/bare.rs"]
mod bare;
mod common;
#[path = "common/ground.rs"]
mod ground;
#[path = "in_the_lab/groups.rs"]
mod groups;
#[path = "in_the_lab/health.rs"]
mod health;
#[path = "in_the_lab/moved.rs"]
mod moved;
#[path = "in_the_lab/resumed.rs"]
mod resumed;
#[path = "in_the_lab/running.rs"]
mod running;

use std::time::Duration;

use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, ExpandVolume,
    Expander as _, GetSnapshot, Kind, Lister as _, PageRequest, Parameters, SizeRange,
    SnapshotName, Snapshots as _, Source, TopologyRequirement, VolumeId, VolumeName,
};
use driver_zfs::observed::VolumeKind;
use exec::testing::{CutMoment, Cutter};
use ground::{Ground, zfs};

fn call() -> Call {
    Call::within(Duration::from_mins(5))
}

fn request(id: &str, size: i64, source: Option<Source>) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse(id).unwrap(),
        id: VolumeId::parse(id).unwrap(),
        size: SizeRange::new(size, 0).unwrap(),
        capabilities: vec![VolumeCapability {
            access: Access::Mount(MountAccess::default()),
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters: Parameters::default(),
        secrets: std::collections::BTreeMap::new(),
        source,
        topology: TopologyRequirement::default(),
    }
}

fn with(mut request: CreateVolume, key: &str) -> CreateVolume {
    let raw = std::collections::BTreeMap::from([(key.to_owned(), "true".to_owned())]);
    request.parameters = Parameters::new(raw);
    request
}

fn snapshot(source: &str, name: &str, detached: bool) -> CreateSnapshot {
    let raw = [("detachedSnapshots".to_owned(), detached.to_string())];
    CreateSnapshot {
        name: SnapshotName::parse(name).unwrap(),
        source: VolumeId::parse(source).unwrap(),
        parameters: Parameters::new(raw.into()),
        secrets: std::collections::BTreeMap::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn each_verb_takes_as_many_exchanges_as_it_may() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        let ground = Ground::new();
        let driver = ground.driver(
            kind,
            "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0770'\n",
        );
        let counted = |most: u64, verb: &str| {
            let count = taken(&driver);
            assert!(count <= most, "{kind}: {verb} took {count} exchanges");
        };
        driver
            .create_volume(&call(), &request("a", 64 << 20, None))
            .await
            .unwrap();
        counted(3, "creating");
        driver
            .create_snapshot(&call(), &snapshot("a", "s", false))
            .await
            .unwrap();
        counted(2, "a snapshot");
        let size = SizeRange::new(128 << 20, 0).unwrap();
        driver
            .expand_volume(
                &call(),
                ExpandVolume::new(&VolumeId::parse("a").unwrap(), size),
            )
            .await
            .unwrap();
        counted(2, "expanding");
        let id = driver_core::SnapshotId::parse("a@s").unwrap();
        let from = Some(Source::Snapshot(id.clone()));
        driver
            .create_volume(&call(), &request("b", 64 << 20, from))
            .await
            .unwrap();
        counted(3, "restoring");
        driver
            .delete_volume(&call(), DeleteVolume::new(&VolumeId::parse("b").unwrap()))
            .await
            .unwrap();
        counted(2, "deleting");
        driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&id))
            .await
            .unwrap();
        counted(2, "deleting a snapshot");
        driver
            .list_volumes(&call(), &PageRequest::default())
            .await
            .unwrap();
        counted(1, "a list");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn copies_and_promotions_take_as_many_exchanges_as_they_may() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        let ground = Ground::new();
        let driver = ground.driver(kind, "  datasetEnableQuotas: true\n");
        let counted = |most: u64, verb: &str| {
            let count = taken(&driver);
            assert!(count <= most, "{kind}: {verb} took {count} exchanges");
        };
        let empty = request("a", 64 << 20, None);
        driver.create_volume(&call(), &empty).await.unwrap();
        counted(3, "creating");
        let taken = driver
            .create_snapshot(&call(), &snapshot("a", "d", true))
            .await
            .unwrap();
        counted(2, "a detached snapshot");
        let from = Some(Source::Snapshot(taken.id.clone()));
        driver
            .create_volume(&call(), &request("c", 64 << 20, from))
            .await
            .unwrap();
        counted(3, "restoring a detached snapshot");
        let from = Some(Source::Volume(VolumeId::parse("a").unwrap()));
        let copy = with(request("d", 64 << 20, from), "detachedVolumesFromVolumes");
        driver.create_volume(&call(), &copy).await.unwrap();
        counted(3, "copying a volume");
        driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await
            .unwrap();
        counted(3, "deleting a detached snapshot that something stands on");
        let from = Some(Source::Volume(VolumeId::parse("a").unwrap()));
        driver
            .create_volume(&call(), &request("e", 64 << 20, from))
            .await
            .unwrap();
        counted(3, "cloning a volume");
        driver
            .delete_volume(&call(), DeleteVolume::new(&VolumeId::parse("a").unwrap()))
            .await
            .unwrap();
        counted(3, "deleting a volume that something stands on");
    }
}

/// The exchanges of a driver since the last time.
fn taken(driver: &ground::RealDriver) -> u64 {
    let cli: &driver_zfs_cli::Cli<common::Counting<exec::Local>> = driver.storage().of().unwrap();
    cli.runner().take()
}

fn is_clone(ground: &Ground, volume: &str) -> bool {
    let name = format!("{}/v/{volume}", ground.root);
    zfs(&["get", "-H", "-o", "value", "origin", &name]) != "-\n"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn copies_hold_what_was_there_and_depend_on_nothing() {
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Filesystem, "  datasetEnableQuotas: true\n");
    let made = request("a", 64 << 20, None);
    driver.create_volume(&call(), &made).await.unwrap();
    let file = |volume: &str| format!("/{}/v/{volume}/file", ground.root);
    std::fs::write(file("a"), "first").unwrap();
    let taken = driver
        .create_snapshot(&call(), &snapshot("a", "d", true))
        .await
        .unwrap();
    assert_eq!(taken.id.as_str(), "a/d");
    let again = driver
        .create_snapshot(&call(), &snapshot("a", "d", true))
        .await
        .unwrap();
    assert_eq!(again, taken);
    let clash = driver
        .create_snapshot(&call(), &snapshot("a", "d", false))
        .await
        .unwrap_err();
    assert_eq!(clash.kind(), Kind::Conflict, "{}", clash.chain());
    std::fs::write(file("a"), "second").unwrap();

    let from = |id: &str| {
        Some(Source::Snapshot(
            driver_core::SnapshotId::parse(id).unwrap(),
        ))
    };
    let of_a = || Some(Source::Volume(VolumeId::parse("a").unwrap()));
    let size = 64 << 20;
    let copy = with(request("copy", size, of_a()), "detachedVolumesFromVolumes");
    driver.create_volume(&call(), &copy).await.unwrap();
    driver
        .create_volume(&call(), &request("clone", size, of_a()))
        .await
        .unwrap();
    driver
        .create_volume(&call(), &request("restored", size, from("a/d")))
        .await
        .unwrap();
    let whole = with(
        request("whole", size, from("a/d")),
        "detachedVolumesFromSnapshots",
    );
    driver.create_volume(&call(), &whole).await.unwrap();
    for (volume, text) in [
        ("copy", "second"),
        ("clone", "second"),
        ("restored", "first"),
        ("whole", "first"),
    ] {
        assert_eq!(
            std::fs::read_to_string(file(volume)).unwrap(),
            text,
            "{volume}"
        );
    }

    let origins = ["copy", "clone", "restored", "whole"].map(|volume| is_clone(&ground, volume));
    assert_eq!(
        origins,
        [false, true, true, false],
        "what stands on something"
    );

    // What clones stand on goes all the same.
    let id = VolumeId::parse("a").unwrap();
    let gone = DeleteVolume::new(&id);
    driver.delete_volume(&call(), gone).await.unwrap();
    let gone = DeleteSnapshot::new(&taken.id);
    driver.delete_snapshot(&call(), gone).await.unwrap();
    assert_eq!(std::fs::read_to_string(file("clone")).unwrap(), "second");
    assert_eq!(std::fs::read_to_string(file("restored")).unwrap(), "first");
    for volume in ["copy", "clone", "restored", "whole"] {
        let id = VolumeId::parse(volume).unwrap();
        let gone = DeleteVolume::new(&id);
        driver.delete_volume(&call(), gone).await.unwrap();
    }
    let root = &ground.root;
    assert_eq!(
        ground.list(),
        format!("{root}\t-\t-\n{root}/s\t-\t-\n{root}/v\t-\t-\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn what_others_made_is_protected_and_named() {
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Filesystem, "");
    driver
        .create_volume(&call(), &request("a", 1 << 20, None))
        .await
        .unwrap();
    let volume = format!("{}/v/a", ground.root);
    let id = VolumeId::parse("a").unwrap();
    let child = format!("{volume}/child");
    let auto = format!("{volume}@auto");
    for (make, object, unmake) in [
        (
            ["create", &child].as_slice(),
            &child,
            ["destroy", &child].as_slice(),
        ),
        (&["hold", "keep", &auto], &auto, &["release", "keep", &auto]),
    ] {
        if object == &auto {
            zfs(&["snapshot", &auto]);
        }
        zfs(make);
        let error = driver
            .delete_volume(&call(), DeleteVolume::new(&id))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
        assert!(error.chain().contains(object), "{}", error.chain());
        zfs(unmake);
    }
    let foreign = format!("{}/v/foreign", ground.root);
    zfs(&["create", &foreign]);
    let error = driver
        .delete_volume(
            &call(),
            DeleteVolume::new(&VolumeId::parse("foreign").unwrap()),
        )
        .await;
    assert_eq!(error.unwrap_err().kind(), Kind::Busy);
    let error = driver
        .create_volume(&call(), &request("foreign", 1 << 20, None))
        .await;
    assert_eq!(error.unwrap_err().kind(), Kind::Conflict);
    // A snapshot that neither CSI nor a hold protects goes with its volume.
    driver
        .delete_volume(&call(), DeleteVolume::new(&id))
        .await
        .unwrap();
    assert!(!ground.list().contains("/v/a"), "{}", ground.list());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_deleted_snapshot_that_a_clone_keeps_frees_its_name() {
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Zvol, "");
    driver
        .create_volume(&call(), &request("a", 64 << 20, None))
        .await
        .unwrap();
    let taken = driver
        .create_snapshot(&call(), &snapshot("a", "s", false))
        .await
        .unwrap();
    let from = Some(Source::Snapshot(taken.id.clone()));
    driver
        .create_volume(&call(), &request("r", 64 << 20, from))
        .await
        .unwrap();
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await
        .unwrap();
    let gone = driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await
        .unwrap_err();
    assert_eq!(gone.kind(), Kind::NotFound);
    driver
        .create_snapshot(&call(), &snapshot("a", "s", false))
        .await
        .unwrap();
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await
        .unwrap();
    driver
        .delete_volume(&call(), DeleteVolume::new(&VolumeId::parse("a").unwrap()))
        .await
        .unwrap();
    driver
        .delete_volume(&call(), DeleteVolume::new(&VolumeId::parse("r").unwrap()))
        .await
        .unwrap();
    assert_eq!(ground.list().lines().count(), 2, "{}", ground.list());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_copy_whose_script_dies_at_any_of_its_commands_is_completed_by_the_retry() {
    let (ground, folder) = (Ground::new(), tempfile::tempdir().unwrap());
    let cutter = Cutter::new(folder.path(), "/usr/sbin/zfs", CutMoment::Before);
    let program = cutter.program();
    let driver = ground.driver_with(program.to_str(), VolumeKind::Filesystem, "");
    driver
        .create_volume(&call(), &request("a", 64 << 20, None))
        .await
        .unwrap();
    std::fs::write(format!("/{}/v/a/file", ground.root), "content").unwrap();
    let before = ground.list();
    let of_a = Some(Source::Volume(VolumeId::parse("a").unwrap()));
    let copy = with(request("c", 64 << 20, of_a), "detachedVolumesFromVolumes");
    let mut cuts = 0;
    loop {
        // The first three calls only look, each by itself and not in a script.
        cutter.at(cuts + 4);
        let outcome = driver.create_volume(&call(), &copy).await;
        cutter.at(0);
        if outcome.is_ok() {
            break;
        }
        cuts += 1;
        // Until the orphan ends, the retry gets `Pending`.
        let mut made = driver.create_volume(&call(), &copy).await;
        while made
            .as_ref()
            .is_err_and(|error| error.kind() == Kind::Pending)
        {
            made = driver.create_volume(&call(), &copy).await;
        }
        made.unwrap_or_else(|error| panic!("after cut {cuts}: {}", error.chain()));
        let file = format!("/{}/v/c/file", ground.root);
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            "content",
            "cut {cuts}"
        );
        driver
            .delete_volume(&call(), DeleteVolume::new(&copy.id))
            .await
            .unwrap();
        assert_eq!(ground.list(), before, "cut {cuts}");
    }
    assert!(cuts >= 6, "cut at {cuts} commands only");
}
