//! Two nodes with a pool of the same name each: a volume of one is never reported as gone by the
//! other, and volumes of democratic-csi, whose ids have no mark, stay usable.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    BLOCK_RANGES, Call, CapacityQuery, CapacityReporter as _, CreateSnapshot, CreateVolume,
    DeleteSnapshot, DeleteVolume, Driver, Effect, ExpandVolume, Expander as _, FindVolume,
    GetSnapshot, Kind, Lister as _, NodeId, PageRequest, Parameters, SizeRange, SnapshotName,
    Snapshots as _, Source, Topology, TopologyRequirement, Volume, VolumeId, VolumeName,
};
use driver_zfs::name::{DatasetName, Object};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::Step;
use driver_zfs::testing::{HostState, MemoryHost, settings};
use driver_zfs_local::{KINDS, NodeMark, NodeZfs, from_document};
use node_utils::Tools;

use crate::InMemory as _;

type Local = NodeZfs;

const SIZE: i64 = 64 << 20;

fn id_of(node: &str) -> NodeId {
    NodeId::parse(node).unwrap()
}

fn on(node: &str, host: MemoryHost) -> Local {
    let zfs = "  datasetEnableQuotas: true\n";
    let settings = settings(VolumeKind::Filesystem, zfs).unwrap();
    NodeZfs::new(settings, host, &id_of(node))
}

fn fresh(node: &str) -> Local {
    on(node, MemoryHost::new())
}

/// The pool of a node, as another one finds it.
fn pool_of(driver: &Local) -> MemoryHost {
    let state: HostState = driver.backend().state().clone();
    MemoryHost::from_state(state)
}

fn call() -> Call {
    Call::within(Duration::from_mins(1))
}

fn request(id: VolumeId, name: &str) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse(name).unwrap(),
        id,
        size: SizeRange::new(SIZE, 0).unwrap(),
        capabilities: vec![VolumeCapability {
            access: Access::Mount(MountAccess::default()),
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source: None,
        topology: TopologyRequirement::default(),
    }
}

/// As the proxy asks for it.
fn named(driver: &Local, name: &str) -> CreateVolume {
    let volume = VolumeName::parse(name).unwrap();
    let id = driver.name_volume(&volume, &Parameters::default()).unwrap();
    request(id, name)
}

async fn make(driver: &Local, name: &str) -> Volume {
    let request = named(driver, name);
    driver.create_volume(&call(), &request).await.unwrap()
}

fn snapshot_of(volume: &Volume, parameters: &[(&str, &str)]) -> CreateSnapshot {
    let parameters: BTreeMap<_, _> = parameters
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    CreateSnapshot {
        name: SnapshotName::parse("snap-1").unwrap(),
        source: volume.id.clone(),
        parameters: Parameters::new(parameters),
        secrets: BTreeMap::new(),
    }
}

#[tokio::test]
async fn a_deletion_that_arrives_at_another_node_is_an_error_and_on_the_right_one_it_is_done_twice()
{
    let (one, other) = (fresh("one"), fresh("other"));
    let volume = make(&one, "pvc-1").await;
    let again = make(&other, "pvc-1").await;
    assert_ne!(volume.id, again.id, "each says where it is");
    let error = other
        .delete_volume(&call(), DeleteVolume::new(&volume.id))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Unreachable, Effect::None)
    );
    assert!(error.advice().unwrap().contains("--node-deployment"));
    for _ in 0..2 {
        one.delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await
            .unwrap();
    }
    assert!(other.get_volume(&call(), &again.id).await.is_ok());
}

#[tokio::test]
async fn no_verb_says_of_a_volume_of_another_node_that_it_does_not_exist() {
    let (one, other) = (fresh("one"), fresh("other"));
    let volume = make(&one, "pvc-1").await;
    let (call, id) = (call(), &volume.id);
    let size = SizeRange::new(2 * SIZE, 0).unwrap();
    let mut kinds = vec![
        other.get_volume(&call, id).await.unwrap_err().kind(),
        other
            .find_volume(&call, FindVolume::new(id))
            .await
            .unwrap_err()
            .kind(),
        other
            .expand_volume(&call, ExpandVolume::new(id, size))
            .await
            .unwrap_err()
            .kind(),
    ];
    for detached in ["false", "true"] {
        let request = snapshot_of(&volume, &[("detachedSnapshots", detached)]);
        let refused = other.create_snapshot(&call, &request).await;
        kinds.push(refused.unwrap_err().kind());
        let taken = one.create_snapshot(&call, &request).await.unwrap().id;
        kinds.push(
            other
                .get_snapshot(&call, GetSnapshot::new(&taken))
                .await
                .unwrap_err()
                .kind(),
        );
        kinds.push(
            other
                .delete_snapshot(&call, DeleteSnapshot::new(&taken))
                .await
                .unwrap_err()
                .kind(),
        );
        for _ in 0..2 {
            one.delete_snapshot(&call, DeleteSnapshot::new(&taken))
                .await
                .unwrap();
        }
    }
    assert!(
        kinds.iter().all(|kind| *kind == Kind::Unreachable),
        "{kinds:?}"
    );
    let missing = VolumeId::parse("never-made").unwrap();
    let error = other.get_volume(&call, &missing).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[test]
fn a_volume_without_the_mark_of_this_node_may_be_on_another_one() {
    let (one, other) = (fresh("one"), fresh("other"));
    let own = named(&one, "pvc-1").id;
    assert!(!one.may_be_elsewhere(&own));
    assert!(other.may_be_elsewhere(&own));
    // As democratic-csi makes them.
    let plain = VolumeId::parse("pvc-1").unwrap();
    assert!(one.may_be_elsewhere(&plain));
}

#[tokio::test]
async fn a_copy_of_what_is_elsewhere_is_to_be_made_there() {
    let (one, other) = (fresh("one"), fresh("other"));
    let volume = make(&one, "pvc-1").await;
    let taken = one
        .create_snapshot(&call(), &snapshot_of(&volume, &[]))
        .await
        .unwrap();
    for source in [
        Source::Volume(volume.id.clone()),
        Source::Snapshot(taken.id),
    ] {
        let mut copy = named(&other, "pvc-2");
        copy.source = Some(source.clone());
        let error = other.create_volume(&call(), &copy).await.unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfSpace, "{source:?}");
        let mut copy = named(&one, "pvc-2");
        copy.source = Some(source);
        let made = one.create_volume(&call(), &copy).await.unwrap();
        one.delete_volume(&call(), DeleteVolume::new(&made.id))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn volumes_go_with_their_pool_to_a_node_of_another_name() {
    let one = fresh("one");
    let volume = make(&one, "pvc-1").await;
    let taken = one
        .create_snapshot(&call(), &snapshot_of(&volume, &[]))
        .await
        .unwrap();
    let renamed = on("renamed", pool_of(&one));
    assert!(renamed.get_volume(&call(), &volume.id).await.is_ok());
    // The second deletion is a retry, as after a lost answer.
    for _ in 0..2 {
        renamed
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await
            .unwrap();
    }
    for _ in 0..2 {
        renamed
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await
            .unwrap();
    }
    renamed
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await
        .unwrap();
    let page = PageRequest::default();
    let left = renamed.list_volumes(&call(), &page).await.unwrap();
    assert!(left.entries.is_empty());
}

#[tokio::test]
async fn a_volume_of_a_moved_pool_is_deleted_after_any_interruption() {
    let (one, third) = (fresh("one"), fresh("third"));
    let volume = make(&one, "pvc-1").await;
    let detached = snapshot_of(&volume, &[("detachedSnapshots", "true")]);
    let detached = one.create_snapshot(&call(), &detached).await.unwrap().id;
    let begin = one.backend().state().clone();
    let foreign = make(&third, "pvc-3").await.id;
    let sibling = make(&one, "pvc-4").await.id;
    let mut cuts = 0;
    for of_snapshot in [true, false] {
        let delete = async |driver: &Local| {
            if of_snapshot {
                driver
                    .delete_snapshot(&call(), DeleteSnapshot::new(&detached))
                    .await
            } else {
                driver
                    .delete_volume(&call(), DeleteVolume::new(&volume.id))
                    .await
            }
        };
        let whole = on("renamed", MemoryHost::from_state(begin.clone()));
        delete(&whole).await.unwrap();
        let steps = whole.backend().state().steps;
        for at in begin.steps..=steps {
            let cut = on("renamed", MemoryHost::from_state(begin.clone()));
            cut.backend().state().cut_after = Some(at);
            delete(&cut).await.unwrap_err();
            let mut state = cut.backend().state().clone();
            state.cut_after = None;
            let again = on("renamed", MemoryHost::from_state(state));
            for _ in 0..2 {
                delete(&again).await.unwrap();
            }
            // It still knows no others, not even those with the same mark.
            for elsewhere in [&foreign, &sibling] {
                let error = again
                    .delete_volume(&call(), DeleteVolume::new(elsewhere))
                    .await
                    .unwrap_err();
                assert_eq!(error.kind(), Kind::Unreachable, "{elsewhere}");
            }
            cuts += 1;
        }
    }
    assert!(cuts >= 4, "{cuts}");
}

#[tokio::test]
async fn an_id_that_only_seems_to_have_a_mark_is_deleted_twice() {
    let driver = fresh("one");
    let id = VolumeId::parse("backup-n20261121").unwrap();
    driver
        .create_volume(&call(), &request(id.clone(), "backup-n20261121"))
        .await
        .unwrap();
    // Another call deletes such a volume at the same time: both stay remembered.
    let other = VolumeId::parse("another-n00000001").unwrap();
    driver
        .create_volume(&call(), &request(other.clone(), "another-n00000001"))
        .await
        .unwrap();
    let second = on("one", pool_of(&driver));
    second
        .delete_volume(&call(), DeleteVolume::new(&other))
        .await
        .unwrap();
    let name = PropertyName::parse("omnibus-csi:deleted_of_others").unwrap();
    let parent = DatasetName::parse("tank/csi/v").unwrap();
    let list =
        second.backend().state().pool.things()[&Object::from(parent.clone())].own[&name].clone();
    driver.backend().before_next_plan(move |state| {
        let value = PropertyValue::parse(list.as_str()).unwrap();
        let step = Step::Set {
            object: parent.clone().into(),
            properties: vec![Property::new(name.clone(), value)],
        };
        state.pool.apply(&step).unwrap();
        let gone = DatasetName::parse("tank/csi/v/another-n00000001").unwrap();
        state.pool.apply(&Step::DestroyDataset(gone)).unwrap();
    });
    for _ in 0..2 {
        driver
            .delete_volume(&call(), DeleteVolume::new(&id))
            .await
            .unwrap();
    }
    driver
        .delete_volume(&call(), DeleteVolume::new(&other))
        .await
        .unwrap();
    // One with the same mark that was never here is on its node.
    let never = VolumeId::parse("never-n00000001").unwrap();
    let error = driver
        .delete_volume(&call(), DeleteVolume::new(&never))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
}

#[tokio::test]
async fn a_list_of_deletions_that_was_sent_to_another_pool_says_nothing_there() {
    let (one, other) = (fresh("one"), on("other", MemoryHost::empty()));
    let volume = make(&one, "pvc-1").await.id;
    let renamed = on("renamed", pool_of(&one));
    renamed
        .delete_volume(&call(), DeleteVolume::new(&volume))
        .await
        .unwrap();
    let name = PropertyName::parse("omnibus-csi:deleted_of_others").unwrap();
    let parent = DatasetName::parse("tank/csi/v").unwrap();
    let things = renamed.backend().state().pool.things();
    let list = things[&Object::from(parent.clone())].own[&name].clone();
    // So that the parent is another dataset there.
    let root = DatasetName::parse("tank").unwrap();
    other.backend().state().pool.write(&root);
    make(&other, "pvc-2").await;
    let mut state = other.backend().state().clone();
    let step = Step::Set {
        object: parent.into(),
        properties: vec![Property::new(name, PropertyValue::parse(list).unwrap())],
    };
    state.pool.apply(&step).unwrap();
    let other = on("other", MemoryHost::from_state(state));
    let error = other
        .delete_volume(&call(), DeleteVolume::new(&volume))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
}

#[tokio::test]
async fn an_unknown_snapshot_id_is_not_on_any_node() {
    let driver = fresh("one");
    for id in ["no-volume", "no-snapshot@", "gone-n00000000@s"] {
        let id = driver_core::SnapshotId::parse(id).unwrap();
        let deleted = driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&id))
            .await;
        let kind = deleted.map_err(|error| error.kind());
        // The last one has the mark of another node.
        let elsewhere = id.as_str().starts_with("gone");
        let expected = if elsewhere {
            Err(Kind::Unreachable)
        } else {
            Ok(())
        };
        assert_eq!(kind, expected, "{id}");
    }
}

#[tokio::test]
async fn volumes_of_democratic_csi_are_found_by_name_and_deleted_by_their_ids() {
    let driver = fresh("one");
    // An id without a mark is what it gives.
    let theirs = request(VolumeId::parse("pvc-1").unwrap(), "pvc-1");
    driver.create_volume(&call(), &theirs).await.unwrap();
    let found = make(&driver, "pvc-1").await;
    assert_eq!(found.id, theirs.id, "no second volume of that name");
    let size = SizeRange::new(2 * SIZE, 0).unwrap();
    driver
        .expand_volume(&call(), ExpandVolume::new(&theirs.id, size))
        .await
        .unwrap();
    let taken = driver
        .create_snapshot(&call(), &snapshot_of(&found, &[]))
        .await
        .unwrap();
    assert!(taken.id.as_str().starts_with("pvc-1@"), "{}", taken.id);
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await
        .unwrap();
    for _ in 0..2 {
        driver
            .delete_volume(&call(), DeleteVolume::new(&theirs.id))
            .await
            .unwrap();
    }
    let made = make(&driver, "pvc-1").await;
    assert!(made.id.as_str().len() == "pvc-1".len() + NodeMark::LENGTH);
}

#[tokio::test]
async fn one_that_only_looks_like_the_volume_is_left_alone() {
    let driver = fresh("one");
    let other = request(VolumeId::parse("pvc-1").unwrap(), "another");
    driver.create_volume(&call(), &other).await.unwrap();
    let made = make(&driver, "pvc-1").await;
    assert_ne!(made.id, other.id);
}

#[test]
fn a_dataset_has_no_blocks_and_is_refused_with_that_reason() {
    let said = fresh("one").unsupported(BLOCK_RANGES).chain();
    assert!(said.contains("a filesystem has no blocks"), "{said}");
}

#[tokio::test]
async fn volumes_and_free_space_are_those_of_the_node() {
    let driver = fresh("one");
    assert_eq!(driver.node_topology(), Some(Topology::node("one")));
    let volume = make(&driver, "pvc-1").await;
    assert_eq!(volume.topology, [Topology::node("one")]);
    let context = volume.attachment.to_context();
    assert_eq!(context["node_attach_driver"], "zfs-local");
    assert_eq!(
        context["zfs_asset_name"],
        format!("tank/csi/v/{}", volume.id)
    );
    let mut elsewhere = named(&driver, "pvc-2");
    elsewhere.topology.requisite = vec![Topology::node("other")];
    let error = driver.create_volume(&call(), &elsewhere).await.unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfSpace);
    let room = async |node: Option<&str>| {
        let query = CapacityQuery {
            parameters: Parameters::default(),
            topology: node.map(Topology::node),
        };
        driver.capacity(&call(), &query).await.unwrap().available
    };
    assert!(room(None).await > 0);
    assert_eq!(room(Some("one")).await, room(None).await);
    assert_eq!(room(Some("other")).await, 0);
}

fn open(text: &str) -> Result<(), String> {
    let document = Document::parse(text, &NoEnvironment).unwrap();
    let tools = Tools::of_this_machine();
    match from_document(&document, &id_of("one"), &tools) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.path().unwrap_or_default().to_owned()),
    }
}

#[test]
fn connections_of_democratic_csi_are_accepted_and_unused_keys_are_reported() {
    for kind in KINDS {
        let text = format!(
            "driver: {kind}\nzfs:\n  datasetParentName: tank/k8s/local/v\n  \
             detachedSnapshotsDatasetParentName: tank/k8s/local/s\n  datasetEnableQuotas: true\n  \
             zvolCompression: ''\n  zvolDedup: ''\n  zvolEnableReservation: false\n  \
             zvolBlocksize: ''\n  cli: {{paths: {{zfs: /usr/local/bin/zfs}}}}\n"
        );
        open(&text).unwrap();
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        from_document(&document, &id_of("one"), &Tools::of_this_machine()).unwrap();
        let paths: Vec<_> = document.findings().into_iter().map(|f| f.path).collect();
        assert_eq!(paths, ["zfs.cli.paths.zfs"], "{kind}");
    }
    let refused = open("driver: zfs-local-dataset").unwrap_err();
    assert!(refused.starts_with("zfs"), "{refused}");
}

#[test]
fn ids_leave_room_for_what_stands_before_them() {
    let name = VolumeName::parse(&"n".repeat(128)).unwrap();
    for taken in [0, 20, 60] {
        let text = "driver: zfs-local-zvol\nzfs: {datasetParentName: tank/v}\n";
        let document = Document::parse(text, &NoEnvironment).unwrap();
        let document = document.with_ids_behind(taken);
        let driver = from_document(&document, &id_of("one"), &Tools::of_this_machine()).unwrap();
        let id = driver.name_volume(&name, &Parameters::default()).unwrap();
        assert!(id.as_str().len() + taken <= 128, "{taken}: {id}");
    }
}

#[tokio::test]
async fn a_volume_in_a_child_of_the_parent_says_where_it_is_and_is_in_one_place_alone() {
    let with_children = |node: &str| {
        let zfs = "  datasetEnableQuotas: true\n  datasetChildren: [fast, bulk]\n  \
                   volumeParameters: [datasetChild]\n";
        let settings = settings(VolumeKind::Filesystem, zfs).unwrap();
        NodeZfs::new(settings, MemoryHost::new(), &id_of(node))
    };
    let (one, other) = (with_children("one"), with_children("other"));
    let in_child = |child: &str| {
        let class = BTreeMap::from([("datasetChild".to_owned(), child.to_owned())]);
        let parameters = Parameters::new(class);
        let name = VolumeName::parse("pvc-1").unwrap();
        CreateVolume {
            parameters: parameters.clone(),
            ..request(one.name_volume(&name, &parameters).unwrap(), "pvc-1")
        }
    };
    let made = one.create_volume(&call(), &in_child("fast")).await.unwrap();
    let plain = named(&one, "pvc-1").id;
    assert_eq!(made.id.as_str(), format!("fast.{plain}"));
    let twins = [in_child("bulk"), named(&one, "pvc-1")];
    for twin in &twins {
        let error = one.create_volume(&call(), twin).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    }
    let deletion = DeleteVolume::new(&made.id);
    let error = other.delete_volume(&call(), deletion).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    one.delete_volume(&call(), deletion).await.unwrap();
}
