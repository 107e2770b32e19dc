//! The verbs that a driver has, what never changes, and unknown ids.

use std::collections::HashSet;
use std::time::UNIX_EPOCH;

use super::{Fresh, call, expect_kind};
use csi_types::NodeIdentity;

use crate::driver::{Capabilities, Expansion};
use crate::error::{Error, Kind};
use crate::orphan::{Orphan, OrphanKind};
use crate::parameters::Parameters;
use crate::request::PublishVolume;
use crate::request::{
    DeleteSnapshot, DeleteVolume, ExpandVolume, FindVolume, GetSnapshot, UnpublishVolume,
};
use crate::size::SizeRange;
use crate::text::{MAX_STRING, NodeId, SnapshotId, VolumeId, VolumeName};
use crate::topology::TopologyRequirement;
use crate::volume::{CapacityQuery, CreateVolume, PageRequest, Secrets, SnapshotFilter, Source};

pub(super) async fn advertised_verbs_are_those_that_are_there(fresh: &Fresh) {
    let driver = &fresh.driver;
    let verbs = driver.capabilities();
    let missing = fresh.id("contract-missing");
    let snapshot = SnapshotId::parse("contract-missing").expect("an id");
    let node = NodeId::parse("contract-node").expect("a node");
    let identity = NodeIdentity::of(node);
    let size = SizeRange::new(super::SIZE, 0).expect("a size");
    let page = PageRequest::default();
    let filter = SnapshotFilter::default();
    let capability = fresh.capability();
    let call = call();

    let check = |verb: &str, advertised: bool, outcome: Result<(), Error>| {
        let there = !matches!(&outcome, Err(error) if error.kind() == Kind::Unsupported);
        assert_eq!(
            there, advertised,
            "{verb}: advertised is {advertised}, the method gives {outcome:?}"
        );
    };
    let outcome = driver.list_volumes(&call, &page).await.map(drop);
    check("list volumes", verbs.list_volumes, outcome);
    let outcome = driver.get_volume(&call, &missing).await.map(drop);
    check("get volume", verbs.get_volume, outcome);
    let outcome = driver.capacity(&call, &CapacityQuery::default()).await;
    check("capacity", verbs.capacity, outcome.map(drop));
    let outcome = fresh.try_snapshot(&missing, "contract").await.map(drop);
    check("create snapshot", verbs.snapshots, outcome);
    let outcome = driver
        .delete_snapshot(&call, DeleteSnapshot::new(&snapshot))
        .await;
    check("delete snapshot", verbs.snapshots, outcome);
    let outcome = driver.list_snapshots(&call, &filter, &page).await;
    check("list snapshots", verbs.list_snapshots, outcome.map(drop));
    let outcome = driver
        .get_snapshot(&call, GetSnapshot::new(&snapshot))
        .await
        .map(drop);
    check("get snapshot", verbs.get_snapshot, outcome);
    let outcome = driver
        .expand_volume(&call, ExpandVolume::new(&missing, size))
        .await
        .map(drop);
    check("expand", verbs.expand != Expansion::None, outcome);
    let outcome = driver
        .publish_volume(
            &call,
            PublishVolume::new(&missing, &identity, &capability, false),
        )
        .await;
    check("publish", verbs.publish, outcome.map(drop));
    let outcome = driver
        .unpublish_volume(&call, UnpublishVolume::new(&missing, Some(&identity)))
        .await;
    check("unpublish", verbs.publish, outcome);
    for (verb, outcome) in upkeep(fresh, &missing).await {
        let advertised = if verb.contains("orphan") {
            verbs.orphans
        } else {
            verbs.exports
        };
        check(verb, advertised, outcome);
    }

    let from_volume = Some(Source::Volume(missing.clone()));
    let outcome = fresh.try_create("contract-clone", from_volume).await;
    expect_kind("clone of nothing", outcome, source_kinds(verbs.clones));
    let from_snapshot = Some(Source::Snapshot(snapshot));
    let outcome = fresh.try_create("contract-restore", from_snapshot).await;
    expect_kind("restore of nothing", outcome, source_kinds(verbs.snapshots));
    for name in ["contract-clone", "contract-restore"] {
        let id = fresh.id(name);
        assert!(!fresh.exists(&id).await, "{id} was made of nothing");
    }
    let problems = driver.probe(&call).await;
    assert!(problems.is_empty(), "a working driver has {problems:?}");
    topology(fresh).await;
}

/// The answers of the verbs for operators about objects that do not exist.
async fn upkeep(fresh: &Fresh, id: &VolumeId) -> [(&'static str, Result<(), Error>); 4] {
    let (driver, call, page) = (&fresh.driver, call(), PageRequest::default());
    let orphans = driver.orphans(&call, UNIX_EPOCH, &page).await.map(drop);
    let removed = driver.remove_orphan(&call, UNIX_EPOCH, &nothing()).await;
    let looked = driver.is_exported(&call, id).await.map(drop);
    let repaired = driver.repair_export(&call, id).await;
    [
        ("list orphans", orphans),
        ("remove an orphan", removed),
        ("look at exports", looked),
        ("repair exports", repaired),
    ]
}

/// An orphan that does not exist.
fn nothing() -> Orphan {
    Orphan {
        kind: OrphanKind::HalfVolume,
        object: "contract-missing".to_owned(),
        identity: "0".to_owned(),
        created: UNIX_EPOCH,
    }
}

/// The answer to a creation from a source that does not exist. The id of the missing snapshot may
/// not even be one of this driver.
fn source_kinds(advertised: bool) -> &'static [Kind] {
    if advertised {
        &[Kind::NotFound, Kind::Invalid]
    } else {
        &[Kind::Unsupported, Kind::Invalid]
    }
}

async fn topology(fresh: &Fresh) {
    let advertised = fresh.driver.capabilities().topology;
    let volume = fresh.create("contract-topology").await;
    assert_eq!(!volume.topology.is_empty(), advertised, "{volume:?}");
    if let Some(node) = fresh.driver.node_topology() {
        let reaches = |place: &crate::topology::Topology| place.reaches(&node);
        assert!(volume.topology.is_empty() || volume.topology.iter().any(reaches));
    }
}

/// Volumes of such a driver are made by hand: every verb says so, and changes nothing.
pub(super) async fn a_driver_without_volumes_has_no_verb(fresh: &Fresh) {
    let driver = &fresh.driver;
    let id = VolumeId::parse("contract-missing").expect("an id");
    let size = SizeRange::new(super::SIZE, 0).expect("a size");
    let (page, filter, call) = (PageRequest::default(), SnapshotFilter::default(), call());
    let capability = fresh.capability();
    let name = Fresh::name("contract");
    let named = driver.name_volume(&name, &Parameters::default());
    let wanted = CreateVolume {
        name,
        id: id.clone(),
        size,
        capabilities: vec![capability.clone()],
        parameters: Parameters::default(),
        secrets: Secrets::new(),
        source: None,
        topology: TopologyRequirement::default(),
    };
    let query = CapacityQuery::default();
    let outcomes = [
        ("name", named.map(drop)),
        (
            "create",
            driver.create_volume(&call, &wanted).await.map(drop),
        ),
        ("get", driver.get_volume(&call, &id).await.map(drop)),
        ("list", driver.list_volumes(&call, &page).await.map(drop)),
        ("capacity", driver.capacity(&call, &query).await.map(drop)),
        (
            "snapshot",
            fresh.try_snapshot(&id, "contract").await.map(drop),
        ),
        (
            "list snapshots",
            driver.list_snapshots(&call, &filter, &page).await.map(drop),
        ),
    ];
    for (verb, outcome) in outcomes {
        expect_kind(verb, outcome, &[Kind::Unsupported]);
    }
    for (verb, outcome) in about_one(fresh, &id).await {
        expect_kind(verb, outcome, &[Kind::Unsupported]);
    }
    for (verb, outcome) in upkeep(fresh, &id).await {
        expect_kind(verb, outcome, &[Kind::Unsupported]);
    }
    let inline = driver.inline().is_some();
    assert_eq!(driver.capabilities(), of_no_controller(inline));
    assert!(
        driver.probe(&call).await.is_empty(),
        "a driver without a backend has trouble"
    );
    assert_eq!(driver.backend_identity(), driver.backend_identity());
    assert!(!driver.kind().is_empty());
}

/// The verbs about one volume or snapshot that exists.
async fn about_one(fresh: &Fresh, id: &VolumeId) -> [(&'static str, Result<(), Error>); 7] {
    let (driver, call) = (&fresh.driver, call());
    let snapshot = SnapshotId::parse("contract-missing").expect("an id");
    let node = NodeId::parse("contract-node").expect("a node");
    let identity = NodeIdentity::of(node);
    let capability = fresh.capability();
    let size = SizeRange::new(super::SIZE, 0).expect("a size");
    let find = driver.find_volume(&call, FindVolume::new(id)).await;
    let expand = ExpandVolume::new(id, size);
    let expand = driver.expand_volume(&call, expand).await;
    let get = GetSnapshot::new(&snapshot);
    let get = driver.get_snapshot(&call, get).await;
    let delete = DeleteSnapshot::new(&snapshot);
    let publish = PublishVolume::new(id, &identity, &capability, false);
    let publish = driver.publish_volume(&call, publish).await;
    let unpublish = UnpublishVolume::new(id, Some(&identity));
    [
        (
            "delete",
            driver.delete_volume(&call, DeleteVolume::new(id)).await,
        ),
        ("find", find.map(drop)),
        ("expand", expand.map(drop)),
        ("get snapshot", get.map(drop)),
        (
            "delete snapshot",
            driver.delete_snapshot(&call, delete).await,
        ),
        ("publish", publish.map(drop)),
        ("unpublish", driver.unpublish_volume(&call, unpublish).await),
    ]
}

/// The verbs of a driver that creates no volumes: at most inline volumes.
fn of_no_controller(inline: bool) -> Capabilities {
    Capabilities {
        inline,
        ..Capabilities::NONE
    }
}

pub(super) fn identity_and_names_stay_the_same(fresh: &Fresh) {
    let driver = &fresh.driver;
    assert_eq!(driver.backend_identity(), driver.backend_identity());
    assert_eq!(driver.capabilities(), driver.capabilities());
    assert!(!driver.kind().is_empty());
    let longest = "n".repeat(MAX_STRING);
    let names = [
        "a", "A-", "a_b", "a.b", "a b", "a/b", "a-b", "..", ".", "-a", "a[0]", "a[1]", "é", "è",
        "a\nb", "$(a)", "'a'", "v:a/b", "a@b", &longest,
    ];
    let mut ids = HashSet::new();
    for name in names {
        let parsed = VolumeName::parse(name).expect("a name");
        let named = || driver.name_volume(&parsed, &Parameters::default());
        match named() {
            Ok(id) => {
                assert_eq!(named().ok(), Some(id.clone()), "{name:?} has two ids");
                assert!(id.as_str().len() <= MAX_STRING, "{id} is too long");
                assert!(ids.insert(id), "{name:?} has the id of another name");
            }
            Err(error) => assert_eq!(error.kind(), Kind::Invalid, "{name:?}"),
        }
    }
}

pub(super) async fn foreign_ids_reach_nothing(fresh: &Fresh) {
    let kept = fresh.create("contract-kept").await;
    let call = call();
    for id in [
        "..",
        ".",
        "../contract",
        "a/b",
        "a\nb",
        "-rf",
        "a b",
        "$(a)",
        "a@b",
        "@",
        "é",
    ] {
        let id = VolumeId::parse(id).expect("an id");
        let gone = fresh
            .driver
            .delete_volume(&call, DeleteVolume::new(&id))
            .await;
        assert!(
            gone.as_ref()
                .map_or_else(|e| e.kind() == Kind::Invalid, |()| true),
            "delete {id:?}: {gone:?}"
        );
        let found = fresh.driver.find_volume(&call, FindVolume::new(&id)).await;
        expect_kind("find", found, &[Kind::Invalid, Kind::NotFound]);
        if fresh.driver.capabilities().snapshots {
            let snapshot = SnapshotId::parse(id.as_str()).expect("an id");
            let gone = fresh
                .driver
                .delete_snapshot(&call, DeleteSnapshot::new(&snapshot))
                .await;
            // Such an id may be one of another storage: see `missing`.
            let refused = |e: &Error| matches!(e.kind(), Kind::Invalid | Kind::Unreachable);
            assert!(
                gone.as_ref().map_or_else(refused, |()| true),
                "delete snapshot {id:?}: {gone:?}"
            );
            let cut = fresh.try_snapshot(&id, "contract").await;
            expect_kind("snapshot", cut, &[Kind::Invalid, Kind::NotFound]);
        }
    }
    assert!(fresh.exists(&kept.id).await);
}
