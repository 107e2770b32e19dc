//! The driver reports no more than it knows: about a partial volume, about a failed deletion, and
//! about exports, which do not exist here.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::{
    Call, CreateVolume, DeleteVolume, Driver, FindVolume, Found, Kind, NodeId, Parameters,
    SizeRange, TopologyRequirement, VolumeId, VolumeName,
};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::VolumeKind;
use driver_zfs::step::Step;
use driver_zfs::testing::{HostState, MemoryHost, settings};
use driver_zfs_local::{NodeMark, NodeZfs};

use crate::InMemory as _;

type Local = NodeZfs;

fn on(node: &str, state: HostState) -> Local {
    let settings = settings(VolumeKind::Filesystem, "").unwrap();
    let node = NodeId::parse(node).unwrap();
    NodeZfs::new(settings, MemoryHost::from_state(state), &node)
}

fn fresh(node: &str) -> Local {
    on(node, MemoryHost::new().state().clone())
}

fn call() -> Call {
    Call::within(Duration::from_mins(1))
}

fn request(id: &VolumeId) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse("pvc-1").unwrap(),
        id: id.clone(),
        size: SizeRange::new(64 << 20, 0).unwrap(),
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

/// The id of `pvc-1` on a node.
fn marked(node: &str) -> VolumeId {
    let mark = NodeMark::of(&NodeId::parse(node).unwrap());
    VolumeId::parse(&format!("pvc-1{}", mark.as_str())).unwrap()
}

fn dataset(id: &VolumeId) -> DatasetName {
    DatasetName::parse(&format!("tank/csi/v/{id}")).unwrap()
}

#[tokio::test]
async fn an_interrupted_volume_is_found_also_by_its_id_without_a_mark() {
    for id in [marked("one"), VolumeId::parse("pvc-1").unwrap()] {
        let driver = fresh("one");
        let find = async || {
            driver
                .find_volume(&call(), FindVolume::new(&marked("one")))
                .await
        };
        assert_eq!(find().await.unwrap_err().kind(), Kind::NotFound);
        driver.backend().state().cut_after = Some(1);
        let cut = driver.create_volume(&call(), &request(&id)).await;
        assert_eq!(cut.unwrap_err().kind(), Kind::Unreachable);
        assert_eq!(find().await.unwrap_err().kind(), Kind::Unreachable);
        driver.backend().state().cut_after = None;
        assert_eq!(find().await.unwrap(), Found::Begun, "{id}");
        let again = request(&marked("one"));
        let made = driver.create_volume(&call(), &again).await.unwrap();
        assert_eq!(made.id, id, "no second one");
        assert_eq!(find().await.unwrap(), Found::Whole, "{id}");
    }
}

#[tokio::test]
async fn a_deletion_that_failed_is_not_remembered_as_done() {
    let one = fresh("one");
    let id = marked("one");
    one.create_volume(&call(), &request(&id)).await.unwrap();
    let renamed = on("renamed", one.backend().state().clone());
    let name = dataset(&id);
    renamed.backend().state().pool.refuse_destruction = true;
    let error = renamed
        .delete_volume(&call(), DeleteVolume::new(&id))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    // Its owner takes it to another node.
    let mut state = renamed.backend().state().clone();
    state.pool.refuse_destruction = false;
    let gone = Step::DestroyDataset(name);
    state.targets.targets.clear();
    state.pool.apply(&gone).unwrap();
    let renamed = on("renamed", state);
    let error = renamed
        .delete_volume(&call(), DeleteVolume::new(&id))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
}

#[tokio::test]
async fn there_are_no_exports_to_be_looked_at() {
    let driver = fresh("one");
    let driver: &dyn Driver = &driver;
    assert!(driver.exports().is_none());
    let id = marked("one");
    driver.create_volume(&call(), &request(&id)).await.unwrap();
    for refused in [
        driver.is_exported(&call(), &id).await.map(drop),
        driver.repair_export(&call(), &id).await,
    ] {
        assert_eq!(refused.unwrap_err().kind(), Kind::Unsupported);
    }
}
