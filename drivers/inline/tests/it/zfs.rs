//! `zfs-local-ephemeral-inline` on a pool in memory, which can be cut between any two steps.

use std::time::Duration;

use csi_types::{AbsolutePath, Attachment, VolumeContext};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, Driver as _, Error, InlineFound, InlineMount, InlineVolume, InlineVolumes as _, Kind,
    Secrets, VolumeId,
};
use driver_inline::ZfsInline;
use driver_inline::zfs::Settings;
use driver_zfs::name::{DatasetName, SnapshotRef};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::testing::{HostState, MemoryHost};

const TARGET: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/scratch/mount";

type Driver = ZfsInline<MemoryHost>;

fn driver_on(state: HostState, more: &str) -> Driver {
    let text = format!(
        "driver: zfs-local-ephemeral-inline\ninstance_id: lab\nzfs: {{datasetParentName: tank/inline, {more}}}\n"
    );
    let document = Document::parse(&text, &NoEnvironment).expect("yaml");
    let settings = Settings::read(&document, &document.common().expect("keys"));
    ZfsInline::new(settings.expect("settings"), MemoryHost::from_state(state))
}

fn fresh() -> HostState {
    MemoryHost::new().state().clone()
}

fn driver() -> Driver {
    driver_on(fresh(), "properties: {refquota: {value: 10M}}")
}

/// As the kubelet calls them.
fn id(digit: char) -> VolumeId {
    let digits: String = std::iter::repeat_n(digit, 64).collect();
    VolumeId::parse(&format!("csi-{digits}")).expect("an id")
}

fn target() -> AbsolutePath {
    AbsolutePath::parse(TARGET).expect("a path")
}

fn dataset(digit: char) -> DatasetName {
    DatasetName::parse(&format!("tank/inline/v/{}", id(digit))).expect("a name")
}

fn call() -> Call {
    Call::within(Duration::from_mins(1))
}

async fn make_at(
    driver: &Driver,
    id: &VolumeId,
    target: &AbsolutePath,
    attributes: &[(&str, &str)],
) -> Result<InlineMount, Error> {
    let pairs = attributes.iter();
    let attributes: VolumeContext = pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let secrets = Secrets::new();
    let wanted = InlineVolume {
        id,
        target,
        readonly: false,
        attributes: &attributes,
        secrets: &secrets,
    };
    driver.make_inline(&call(), &wanted).await
}

async fn make(driver: &Driver, attributes: &[(&str, &str)]) -> Result<InlineMount, Error> {
    make_at(driver, &id('a'), &target(), attributes).await
}

async fn remove(driver: &Driver) -> Result<(), Error> {
    driver.remove_inline(&call(), &id('a'), &target()).await
}

fn own(driver: &Driver, name: &str) -> Option<String> {
    let things = driver.backend().state().pool.things();
    let thing = things.get(&dataset('a').into())?;
    thing
        .own
        .get(&PropertyName::parse(name).expect("a name"))
        .cloned()
}

fn has(driver: &Driver) -> bool {
    let things = driver.backend().state().pool.things();
    things.contains_key(&dataset('a').into())
}

fn property(name: &str, value: &str) -> Property {
    Property::new(
        PropertyName::parse(name).expect("a name"),
        PropertyValue::parse(value).expect("a value"),
    )
}

#[tokio::test]
async fn a_volume_lives_as_a_dataset_with_what_the_pod_may_choose() {
    let driver = driver();
    let pod = [
        ("property.compression", "zstd"),
        ("csi.storage.k8s.io/ephemeral", "true"),
    ];
    let made = make(&driver, &pod).await.expect("made");
    let InlineMount::Attachment(Attachment::ZfsLocal(zfs)) = made else {
        panic!("the node mounts it");
    };
    assert_eq!(zfs.asset.as_str(), dataset('a').as_str());
    let name = id('a');
    for (property, value) in [
        ("compression", "zstd"),
        ("refquota", "10M"),
        ("mountpoint", "legacy"),
        ("omnibus-csi:target_path", TARGET),
        ("democratic-csi:managed_resource", "true"),
        ("democratic-csi:provision_success", "true"),
        ("democratic-csi:csi_volume_name", name.as_str()),
        (
            "democratic-csi:volume_context_provisioner_driver",
            "zfs-local-ephemeral-inline",
        ),
        (
            "democratic-csi:volume_context_provisioner_instance_id",
            "lab",
        ),
    ] {
        assert_eq!(own(&driver, property).as_deref(), Some(value), "{property}");
    }
    let before = driver.backend().state().steps;
    make(&driver, &pod).await.expect("there already");
    assert_eq!(
        driver.backend().state().steps,
        before,
        "nothing was done twice"
    );
    let found = driver.list_inline(&call()).await.expect("a list");
    let expected = InlineFound {
        id: id('a'),
        target: target(),
    };
    assert_eq!(found, [expected]);
    remove(&driver).await.expect("gone");
    remove(&driver).await.expect("gone already");
    assert!(!has(&driver));
    assert_eq!(driver.list_inline(&call()).await.expect("a list"), []);
    assert!(driver.probe(&call()).await.is_empty());
}

#[tokio::test]
async fn a_readonly_volume_is_readonly() {
    let driver = driver();
    let (attributes, secrets) = (VolumeContext::new(), Secrets::new());
    let wanted = InlineVolume {
        id: &id('a'),
        target: &target(),
        readonly: true,
        attributes: &attributes,
        secrets: &secrets,
    };
    driver.make_inline(&call(), &wanted).await.expect("made");
    assert_eq!(own(&driver, "readonly").as_deref(), Some("on"));
}

#[tokio::test]
async fn nothing_is_made_of_what_a_pod_may_not_choose() {
    let driver = driver();
    for (key, value) in [
        ("property.mountpoint", "/etc"),
        ("property.exec", "on"),
        ("property.setuid", "on"),
        ("property.devices", "on"),
        ("property.sharenfs", "rw"),
        ("property.democratic-csi:managed_resource", "false"),
        ("property.quota", "1G\nmountpoint=/"),
        ("property.", "x"),
    ] {
        let error = make(&driver, &[(key, value)]).await.expect_err(key);
        assert_eq!(error.kind(), Kind::Invalid, "{key}");
        assert!(error.chain().contains("property."), "{}", error.chain());
    }
    for hostile in ["..", "../v", "a/b", "a@b", "-r", "a b", "csi-\n"] {
        let hostile = VolumeId::parse(hostile).expect("an id");
        let error = make_at(&driver, &hostile, &target(), &[]).await;
        assert_eq!(
            error.expect_err("refused").kind(),
            Kind::Invalid,
            "{hostile}"
        );
        let removed = driver.remove_inline(&call(), &hostile, &target()).await;
        removed.expect("it is nowhere");
    }
    assert_eq!(driver.backend().state().steps, 0, "nothing was changed");
}

#[tokio::test]
async fn a_crash_at_any_step_leaves_what_a_retry_or_a_removal_finishes() {
    // The parents are made with the volume: one step.
    for cut in 0..3 {
        for then_removed in [false, true] {
            let driver = driver();
            driver.backend().state().cut_after = Some(cut);
            let made = make(&driver, &[]).await;
            driver.backend().state().cut_after = None;
            // Another process, which remembers nothing.
            let driver = driver_on(driver.backend().state().clone(), "");
            if then_removed {
                remove(&driver).await.expect("removed");
                assert!(!has(&driver), "cut after {cut}: {made:?}");
            } else {
                make(&driver, &[]).await.expect("made");
                assert!(has(&driver));
            }
        }
    }
    for cut in 0..4 {
        let driver = driver();
        make(&driver, &[]).await.expect("made");
        let snapshot = SnapshotRef::parse(&format!("{}@daily", dataset('a'))).expect("a name");
        driver
            .backend()
            .state()
            .pool
            .insert_snapshot(&snapshot, &[]);
        let steps = driver.backend().state().steps;
        driver.backend().state().cut_after = Some(steps + cut);
        let removed = remove(&driver).await;
        assert!(
            removed.is_err() || !has(&driver),
            "a removal that was not seen is no success"
        );
        driver.backend().state().cut_after = None;
        let driver = driver_on(driver.backend().state().clone(), "");
        remove(&driver).await.expect("removed");
        assert!(!has(&driver), "cut after {cut}");
    }
}

#[tokio::test]
async fn snapshots_of_others_go_with_the_pod_and_what_stands_on_them_keeps_it() {
    let driver = driver();
    make(&driver, &[]).await.expect("made");
    let snapshot = SnapshotRef::parse(&format!("{}@daily", dataset('a'))).expect("a name");
    driver
        .backend()
        .state()
        .pool
        .insert_snapshot(&snapshot, &[]);
    let clone = DatasetName::parse("tank/clone").expect("a name");
    let kind = VolumeKind::Filesystem;
    driver
        .backend()
        .state()
        .pool
        .insert(&clone, kind, &[], Some(snapshot));
    let error = remove(&driver).await.expect_err("a clone stands on it");
    assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
    assert!(has(&driver));
    let driver = self::driver();
    make(&driver, &[]).await.expect("made");
    let below = dataset('a').child("x").expect("a name");
    driver
        .backend()
        .state()
        .pool
        .insert(&below, kind, &[], None);
    assert_eq!(remove(&driver).await.expect_err("kept").kind(), Kind::Busy);
    assert!(has(&driver));
}

#[tokio::test]
async fn what_is_not_the_volume_is_neither_taken_nor_removed() {
    let driver = driver();
    let kind = VolumeKind::Filesystem;
    driver
        .backend()
        .state()
        .pool
        .insert(&dataset('a'), kind, &[], None);
    let error = make(&driver, &[]).await.expect_err("another dataset");
    assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    remove(&driver).await.expect("the volume is nowhere");
    assert!(has(&driver), "it was left alone");
    assert_eq!(driver.list_inline(&call()).await.expect("a list"), []);
    // Of another connection with the same parent.
    let driver = self::driver();
    let name = id('a');
    let marks = [
        property("democratic-csi:managed_resource", "true"),
        property("democratic-csi:csi_volume_name", name.as_str()),
        property(
            "democratic-csi:volume_context_provisioner_driver",
            "zfs-local-dataset",
        ),
    ];
    driver
        .backend()
        .state()
        .pool
        .insert(&dataset('a'), kind, &marks, None);
    assert_eq!(
        make(&driver, &[]).await.expect_err("another's").kind(),
        Kind::Conflict
    );
    remove(&driver).await.expect("the volume is nowhere");
    assert!(has(&driver), "it was left alone");
}

#[tokio::test]
async fn one_handle_has_one_target() {
    let driver = driver();
    make(&driver, &[]).await.expect("made");
    let other = AbsolutePath::parse("/var/lib/kubelet/pods/u-2/mount").expect("a path");
    let error = make_at(&driver, &id('a'), &other, &[])
        .await
        .expect_err("another pod");
    assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    assert!(error.chain().contains("/pods/u-1/"), "{}", error.chain());
}

#[tokio::test]
async fn volumes_of_democratic_csi_are_listed_and_removed() {
    let driver = driver();
    let name = id('a');
    let marks = [
        property("democratic-csi:managed_resource", "true"),
        property("democratic-csi:provision_success", "true"),
        property("democratic-csi:csi_volume_name", name.as_str()),
        property(
            "democratic-csi:volume_context_provisioner_driver",
            "zfs-local-ephemeral-inline",
        ),
        property(
            "democratic-csi:volume_context_provisioner_instance_id",
            "lab",
        ),
        property("mountpoint", TARGET),
    ];
    let kind = VolumeKind::Filesystem;
    driver
        .backend()
        .state()
        .pool
        .insert(&dataset('a'), kind, &marks, None);
    let found = driver.list_inline(&call()).await.expect("a list");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].target, target());
    make(&driver, &[]).await.expect("it is there");
    remove(&driver).await.expect("gone");
    assert!(!has(&driver));
}

#[tokio::test]
async fn a_pool_that_is_not_there_is_never_empty() {
    let driver = driver();
    make(&driver, &[]).await.expect("made");
    let state = driver.backend().state().clone();
    driver.backend().state().pool = driver_zfs::testing::MemoryPool::with_root("other");
    for error in [
        remove(&driver).await.expect_err("no pool"),
        make(&driver, &[]).await.map(drop).expect_err("no pool"),
        driver
            .list_inline(&call())
            .await
            .map(drop)
            .expect_err("no pool"),
    ] {
        assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    }
    assert_eq!(driver.probe(&call()).await.len(), 1);
    *driver.backend().state() = state;
    remove(&driver).await.expect("gone");
}

#[tokio::test(start_paused = true)]
async fn a_dataset_in_use_is_retried_and_then_an_error() {
    let driver = driver();
    make(&driver, &[]).await.expect("made");
    driver.backend().state().pool.occupy(&dataset('a'), true);
    let error = remove(&driver).await.expect_err("in use");
    assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
    driver.backend().state().pool.occupy(&dataset('a'), false);
    remove(&driver).await.expect("free now");
}
