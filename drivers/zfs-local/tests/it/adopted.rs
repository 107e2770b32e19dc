//! A dataset or zvol of the node becomes a volume of it, unless something on the node uses it.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use driver_core::{
    AdoptVolume, Adopter as _, AdoptionState, Call, Claim, DeleteVolume, Driver, ExpandVolume,
    Expander as _, Kind, Lister as _, MadeFor, NodeId, PageRequest, SizeRange, Topology, VolumeId,
};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::testing::{HostState, MemoryHost, settings};
use driver_zfs_local::{NodeMark, NodeZfs};
use node_utils::kernel::Kernel;
use tempfile::TempDir;

use crate::InMemory as _;

const SIZE: u64 = 64 << 20;
const KINDS: [VolumeKind; 2] = [VolumeKind::Filesystem, VolumeKind::Zvol];

fn call() -> Call {
    Call::within(Duration::from_mins(1))
}

fn set(name: PropertyName, value: &str) -> Property {
    Property::new(name, PropertyValue::parse(value).unwrap())
}

fn dataset(leaf: &str) -> DatasetName {
    DatasetName::parse(&format!("tank/csi/v/{leaf}")).unwrap()
}

/// A pool with this dataset or zvol of others.
fn pool(kind: VolumeKind, leaf: &str, more: &[Property]) -> HostState {
    let mut state = MemoryHost::new().state().clone();
    let mut properties = more.to_vec();
    if kind == VolumeKind::Zvol {
        properties.push(set(PropertyName::VOLSIZE, &SIZE.to_string()));
    }
    state.pool.insert(&dataset(leaf), kind, &properties, None);
    state.pool.write(&dataset(leaf));
    state
}

/// The devices of a node that has the zvol `photos`.
fn devices() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    disk(root.path(), "zd0", "230:0");
    let links = root.path().join("dev/zvol/tank/csi/v");
    std::fs::create_dir_all(&links).unwrap();
    symlink("../../../../zd0", links.join("photos")).unwrap();
    root
}

fn disk(root: &Path, name: &str, number: &str) {
    let of_sys = root.join("sys/class/block").join(name);
    for directory in [&of_sys, &root.join("sys/dev/block"), &root.join("dev")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(of_sys.join("dev"), format!("{number}\n")).unwrap();
    std::fs::write(root.join("dev").join(name), format!("{number}\n")).unwrap();
    let link = root.join("sys/dev/block").join(number);
    symlink(format!("../../class/block/{name}"), link).unwrap();
}

/// As if a volume group were on it.
fn hold(root: &Path) {
    disk(root, "dm-0", "253:0");
    let holders = root.join("sys/class/block/zd0/holders");
    std::fs::create_dir_all(&holders).unwrap();
    symlink("../../dm-0", holders.join("dm-0")).unwrap();
}

fn driver(kind: VolumeKind, state: HostState, root: &Path) -> NodeZfs {
    let settings = settings(kind, "  datasetEnableQuotas: true\n").unwrap();
    let node = NodeId::parse("one").unwrap();
    NodeZfs::new(settings, MemoryHost::from_state(state), &node).with_kernel(Kernel::at(root))
}

fn request(kind: VolumeKind, source: &str) -> AdoptVolume {
    AdoptVolume {
        source: source.to_owned(),
        size: (kind == VolumeKind::Filesystem).then_some(SIZE),
        made_for: MadeFor {
            claim: Claim::parse("shop/photos"),
            persistent_volume: None,
        },
    }
}

fn photos(kind: VolumeKind) -> AdoptVolume {
    request(kind, "tank/csi/v/photos")
}

/// Fails where the plan and the adoption differ, or anything was changed.
async fn refusal(driver: &NodeZfs, request: &AdoptVolume) -> (Kind, String) {
    let before = driver.backend().state().pool.shape();
    let planned = driver.plan_adoption(&call(), request).await.unwrap_err();
    let error = driver.adopt_volume(&call(), request).await.unwrap_err();
    assert_eq!(planned.chain(), error.chain());
    assert_eq!(driver.backend().state().pool.shape(), before);
    let advice = error.advice().unwrap_or_default();
    (error.kind(), format!("{}: {advice}", error.chain()))
}

#[tokio::test]
async fn what_the_node_has_becomes_a_volume_of_the_node() {
    for kind in KINDS {
        let root = devices();
        let driver = driver(kind, pool(kind, "photos", &[]), root.path());
        assert!((&driver as &dyn Driver).capabilities().adopt);
        let plan = driver.plan_adoption(&call(), &photos(kind)).await.unwrap();
        assert_eq!(plan.state, AdoptionState::Open);
        assert!(!plan.steps.contains(&"change the export".to_owned()));
        let is_said = plan
            .remarks
            .iter()
            .any(|note| note.contains("mountpoint=legacy"));
        assert_eq!(is_said, kind == VolumeKind::Filesystem, "{plan:?}");
        let made = driver.adopt_volume(&call(), &photos(kind)).await.unwrap();
        assert_eq!(made.id.as_str(), "photos");
        assert_eq!(made.topology, [Topology::node("one")]);
        assert_eq!(made.capacity, Some(SIZE));
        assert_eq!(made.made_for.claim, Claim::parse("shop/photos"));
        let context = made.attachment.to_context();
        assert_eq!(context["node_attach_driver"], "zfs-local");
        assert_eq!(context["zfs_asset_name"], "tank/csi/v/photos");
        let page = PageRequest::default();
        let listed = driver.list_volumes(&call(), &page).await.unwrap();
        assert_eq!(listed.entries, std::slice::from_ref(&made));
        let size = SizeRange::new(2 * SIZE.cast_signed(), 0).unwrap();
        let grown = ExpandVolume::new(&made.id, size);
        driver.expand_volume(&call(), grown).await.unwrap();
        for _ in 0..2 {
            let gone = DeleteVolume::new(&made.id);
            driver.delete_volume(&call(), gone).await.unwrap();
        }
        let end = driver
            .backend()
            .state()
            .pool
            .guid(&dataset("photos").into());
        assert_eq!(end, None);
    }
}

/// As its pods do: they have it mounted by `legacy`, or a filesystem on its disk.
#[tokio::test]
async fn an_adopted_volume_in_use_is_said_to_be_one_again() {
    for kind in KINDS {
        let root = devices();
        let first = driver(kind, pool(kind, "photos", &[]), root.path());
        let made = first.adopt_volume(&call(), &photos(kind)).await.unwrap();
        let mut state = first.backend().state().clone();
        if kind == VolumeKind::Filesystem {
            let step = driver_zfs::step::Step::Set {
                object: dataset("photos").into(),
                properties: vec![set(PropertyName::MOUNTPOINT, "legacy")],
            };
            state.pool.apply(&step).unwrap();
        }
        hold(root.path());
        let again = driver(kind, state, root.path());
        let plan = again.plan_adoption(&call(), &photos(kind)).await.unwrap();
        assert_eq!(plan.state, AdoptionState::Done);
        let known = again.adopt_volume(&call(), &photos(kind)).await.unwrap();
        assert_eq!(known, made);
    }
}

#[tokio::test]
async fn an_adoption_that_is_cut_anywhere_goes_on() {
    for kind in KINDS {
        let root = devices();
        let begin = pool(kind, "photos", &[]);
        let whole = driver(kind, begin.clone(), root.path());
        let made = whole.adopt_volume(&call(), &photos(kind)).await.unwrap();
        let end = whole.backend().state().steps;
        assert!(end >= begin.steps + 2, "{end}");
        for at in begin.steps..end {
            let cut = driver(kind, begin.clone(), root.path());
            cut.backend().state().cut_after = Some(at);
            let lost = cut.adopt_volume(&call(), &photos(kind)).await.unwrap_err();
            assert_eq!(lost.kind(), Kind::Unreachable, "{}", lost.chain());
            let mut state = cut.backend().state().clone();
            state.cut_after = None;
            let again = driver(kind, state, root.path());
            let known = again.adopt_volume(&call(), &photos(kind)).await.unwrap();
            assert_eq!(known, made, "{kind}, cut after {at}");
        }
    }
}

#[tokio::test]
async fn a_disk_that_something_on_the_node_has_is_refused() {
    let kind = VolumeKind::Zvol;
    let root = devices();
    let driver = driver(kind, pool(kind, "photos", &[]), root.path());
    hold(root.path());
    let (refused, said) = refusal(&driver, &photos(kind)).await;
    assert_eq!(refused, Kind::Busy, "{said}");
    assert!(said.contains("held by dm-0"), "{said}");
    // Without its device nothing is known of its users.
    std::fs::remove_file(root.path().join("dev/zvol/tank/csi/v/photos")).unwrap();
    let (refused, said) = refusal(&driver, &photos(kind)).await;
    assert_eq!(refused, Kind::NotFound, "{said}");
    assert!(said.contains("volmode"), "{said}");
}

#[tokio::test]
async fn a_dataset_that_is_mounted_by_hand_or_shared_is_refused() {
    let kind = VolumeKind::Filesystem;
    let root = devices();
    for (property, value, expected, words) in [
        (PropertyName::MOUNTPOINT, "legacy", Kind::Busy, "findmnt"),
        (PropertyName::SHARENFS, "on", Kind::Conflict, "sharenfs=off"),
        (PropertyName::SHARESMB, "on", Kind::Conflict, "sharesmb=off"),
    ] {
        let driver = driver(
            kind,
            pool(kind, "photos", &[set(property, value)]),
            root.path(),
        );
        let (refused, said) = refusal(&driver, &photos(kind)).await;
        assert_eq!(refused, expected, "{said}");
        assert!(said.contains(words), "{said}");
    }
    let legacy = [set(PropertyName::MOUNTPOINT, "legacy")];
    let mut state = pool(kind, "photos", &legacy);
    state.pool.unmount(&dataset("photos"));
    let driver = driver(kind, state, root.path());
    driver.adopt_volume(&call(), &photos(kind)).await.unwrap();
}

/// The same as on a host, and a name that says that its volume is elsewhere.
#[tokio::test]
async fn what_is_of_others_or_outside_of_the_parent_is_refused() {
    let kind = VolumeKind::Filesystem;
    let root = devices();
    let driver = driver(kind, pool(kind, "photos", &[]), root.path());
    let other = NodeId::parse("other").unwrap();
    let theirs = format!("pvc-1{}", NodeMark::of(&other).as_str());
    let own = format!(
        "pvc-1{}",
        NodeMark::of(&NodeId::parse("one").unwrap()).as_str()
    );
    {
        let pool = &mut driver.backend().state().pool;
        let instance = [set(PropertyName::INSTANCE, "another")];
        pool.insert(&dataset("instance"), kind, &instance, None);
        pool.insert(&dataset("disk"), VolumeKind::Zvol, &[], None);
        pool.insert(&dataset(&theirs), kind, &[], None);
        pool.insert(&dataset(&own), kind, &[], None);
        let outside = DatasetName::parse("tank/photos").unwrap();
        pool.insert(&outside, kind, &[], None);
    }
    for (source, expected, words) in [
        ("tank/photos", Kind::Invalid, "zfs rename tank/photos"),
        ("tank/csi/v/none", Kind::NotFound, "no such dataset"),
        ("tank/csi/v/instance", Kind::Conflict, "instance_id"),
        ("tank/csi/v/disk", Kind::Invalid, "it is a zvol"),
        (dataset(&theirs).as_str(), Kind::Invalid, "of another node"),
    ] {
        let (refused, said) = refusal(&driver, &request(kind, source)).await;
        assert_eq!(refused, expected, "{source}: {said}");
        assert!(said.contains(words), "{source}: {said}");
    }
    let source = dataset(&own);
    let made = driver
        .adopt_volume(&call(), &request(kind, source.as_str()))
        .await
        .unwrap();
    assert_eq!(made.id, VolumeId::parse(&own).unwrap());
}
