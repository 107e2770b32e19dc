//! The effects of the configuration of a connection, and of a change of it.

use csi_types::Attachment;
use driver_core::{
    Driver, Exports as _, Kind, Lister as _, MadeFor, PageRequest, Parameters, SnapshotFilter,
    Snapshots as _,
};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost, settings};

use crate::orphans::call;
use crate::short::*;
use crate::world::*;

/// A driver whose detached snapshots are in a pool that the host does not have.
fn without_detached_pool(kind: VolumeKind) -> MemoryDriver {
    let mut settings = settings(kind, "").unwrap();
    settings.layout.detached = Some(name("nosuch/csi/s"));
    ZfsDriver::new(settings, MemoryHost::new(), MemoryExport::new(kind))
}

#[tokio::test]
async fn plain_snapshots_and_lists_do_not_need_the_pool_of_detached_ones() {
    for kind in KINDS {
        let driver = without_detached_pool(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 1)]).await;
        let page = PageRequest::default();
        for source in [None, Some(volume(0))] {
            let filter = SnapshotFilter {
                source,
                ..SnapshotFilter::default()
            };
            let listed = driver.list_snapshots(&call(), &filter, &page).await;
            assert_eq!(listed.unwrap().entries.len(), 1);
        }
        let detached = snapshot_detached(0, 2);
        refused(&driver, &detached, Kind::Unreachable, "nosuch").await;
        well(&driver, &[delete_snapshot(0, 1), Verb::Delete(0)]).await;
    }
}

/// Records another text in place of a part of the context of a volume.
fn record(driver: &MemoryDriver, from: &str, to: &str) {
    let mut state = driver.backend().state();
    let object = dataset(0).into();
    let own = &state.pool.things()[&object].own;
    let text = own[&PropertyName::CONTEXT].replace(from, to);
    assert_ne!(text, own[&PropertyName::CONTEXT]);
    let properties = vec![set(PropertyName::CONTEXT, &text)];
    let step = driver_zfs::step::Step::Set { object, properties };
    others_do(&mut state, &step);
}

#[tokio::test]
async fn a_volume_keeps_the_claim_that_it_was_created_for_and_a_retry_may_name_another() {
    let of = |claim: &str| {
        let pairs = [
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/pvc/name", claim),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Parameters::new(pairs.into())
    };
    for kind in KINDS {
        let driver = fresh(kind);
        let own = |id: u8, name: &PropertyName| {
            let things = driver.backend().state().pool.things();
            things[&dataset(id).into()].own.get(name).cloned()
        };
        let mut first = request(0, &From::Nothing, false);
        first.parameters = of("data");
        driver.create_volume(&call(), &first).await.unwrap();
        first.parameters = of("other");
        driver.create_volume(&call(), &first).await.unwrap();
        let claim = own(0, &PropertyName::CLAIM);
        assert_eq!(claim.as_deref(), Some("shop/data"), "{kind}");
        let volume = own(0, &PropertyName::PERSISTENT_VOLUME);
        assert_eq!(volume.as_deref(), Some("pvc-1"), "{kind}");
        for copy in [false, true] {
            let id = 1 + u8::from(copy);
            let mut made = request(id, &From::Volume(0), copy);
            let pairs = made.parameters.raw().clone().into_iter();
            made.parameters = Parameters::new(pairs.chain(of("copy").raw().clone()).collect());
            driver.create_volume(&call(), &made).await.unwrap();
            let claim = own(id, &PropertyName::CLAIM);
            assert_eq!(claim.as_deref(), Some("shop/copy"), "{kind}");
        }
        let lister = driver.lister().unwrap();
        let found = lister.get_volume(&call(), &first.id).await.unwrap();
        assert_eq!(found.made_for, MadeFor::of(&of("data")), "{kind}");
        // A name that no claim can have is not kept.
        let mut odd = request(4, &From::Nothing, false);
        odd.parameters = of("data\n");
        driver.create_volume(&call(), &odd).await.unwrap();
        assert_eq!(own(4, &PropertyName::CLAIM), None, "{kind}");
        // Without metadata it is of no claim, whatever its source is of.
        let bare = request(3, &From::Volume(0), true);
        driver.create_volume(&call(), &bare).await.unwrap();
        assert_eq!(own(3, &PropertyName::CLAIM), None, "{kind}");
    }
}

fn server(attachment: &Attachment) -> String {
    attachment.to_context()["server"].clone()
}

#[tokio::test]
async fn a_context_is_that_of_the_configuration_and_is_recorded_when_a_volume_is_asked_for_again() {
    let driver = fresh(VolumeKind::Filesystem);
    well(&driver, &[create(0, From::Nothing)]).await;
    record(&driver, "192.0.2.1", "198.51.100.9");
    let shown = driver.get_volume(&call(), &volume(0)).await.unwrap();
    assert_eq!(server(&shown.attachment), "192.0.2.1");
    let page = PageRequest::default();
    let listed = driver.list_volumes(&call(), &page).await.unwrap();
    assert_eq!(server(&listed.entries[0].attachment), "192.0.2.1");
    let request = request(0, &From::Nothing, false);
    let again = driver.create_volume(&call(), &request).await.unwrap();
    assert_eq!(server(&again.attachment), "192.0.2.1");
    let things = driver.backend().state().pool.things();
    let recorded = &things[&dataset(0).into()].own[&PropertyName::CONTEXT];
    assert!(recorded.contains("192.0.2.1"), "{recorded}");
}

#[tokio::test]
async fn a_volume_that_nodes_look_for_elsewhere_is_not_exported_and_not_repaired() {
    for (kind, text) in [
        (VolumeKind::Filesystem, "/tank/csi/v/v0"),
        (VolumeKind::Zvol, "example:v0"),
    ] {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing)]).await;
        assert!(driver.is_exported(&call(), &volume(0)).await.unwrap());
        record(&driver, text, &format!("{text}-old"));
        for error in [
            driver.is_exported(&call(), &volume(0)).await.map(drop),
            driver.repair_export(&call(), &volume(0)).await,
        ] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), Kind::Busy);
            assert!(error.chain().contains("-old"), "{}", error.chain());
        }
    }
}
