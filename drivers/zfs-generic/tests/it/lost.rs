//! A host that has lost its exports: which are missing is seen, and they are put back, by the whole
//! driver over a `zfs` that only pretends and a configfs that is a folder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::common::Host;
use async_trait::async_trait;
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    BackendIdentity, Call, ExpandVolume, Expander as _, Exports as _, Kind, Lister as _,
    PageRequest, SizeRange, VolumeId,
};
use driver_zfs::observed::VolumeKind;
use driver_zfs::{ZfsConfig, ZfsDriver};
use driver_zfs_cli::Cli;
use driver_zfs_cli::ZfsTools;
use driver_zfs_cli::exec::testing::{OneByOne, RunOne};
use driver_zfs_cli::exec::{Command, Output, RunError};
use driver_zfs_generic::{Protocol, ShareExport};

const CONNECTION: &str = "driver: zfs-generic-iscsi
zfs: {datasetParentName: tank/v}
iscsi:
  targetPortal: 192.0.2.1
  namePrefix: csi-
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2003-01.org.example
    configPath: '{etc}/saveconfig.json'
";

/// Three volumes, complete and with names that they remember.
const ZFS: &str = include_str!("lost/three_volumes.sh");

/// Runs commands on a host.
struct On(Arc<Host>);

impl fmt::Debug for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("On")
    }
}

#[async_trait]
impl RunOne for On {
    async fn run_one(&self, command: &Command) -> Result<Output, RunError> {
        self.0.run(command).await
    }
}

type Lio = ZfsDriver;

fn driver(host: &Arc<Host>) -> Lio {
    host.program("zfs", ZFS);
    let text = CONNECTION.replace("{etc}", host.path("etc").to_str().unwrap());
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let zfs = ZfsConfig::read(&document).unwrap();
    let common = document.common().unwrap();
    let settings = zfs.settings(&common, VolumeKind::Zvol, None).unwrap();
    let program = host.path("bin/zfs");
    let tools = ZfsTools::new(program.to_str(), None, false).unwrap();
    let identity = BackendIdentity("test".to_owned());
    let locks = host.path("locks").to_str().unwrap().to_owned();
    let cli = Cli::new(OneByOne(On(host.clone())), tools, identity).locking_in(locks);
    ZfsDriver::new(settings, cli, host.export(CONNECTION))
}

fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

/// The volumes that the host does not export.
async fn missing(driver: &Lio) -> Vec<VolumeId> {
    let page = PageRequest::default();
    let listed = driver.list_volumes(&call(), &page).await.unwrap();
    assert_eq!(listed.entries.len(), 3);
    let mut missing = Vec::new();
    for volume in listed.entries {
        if !driver.is_exported(&call(), &volume.id).await.unwrap() {
            missing.push(volume.id);
        }
    }
    missing
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_has_lost_is_seen_and_put_back_one_by_one() {
    let host = Arc::new(Host::new());
    let driver = driver(&host);
    let nothing = host.tree("cfg");
    let all = missing(&driver).await;
    assert_eq!(all.len(), 3);
    assert_eq!(host.tree("cfg"), nothing, "a look changes nothing");
    for (done, id) in all.iter().enumerate() {
        driver.repair_export(&call(), id).await.unwrap();
        assert_eq!(missing(&driver).await, all[done + 1..]);
    }
    let whole = host.tree("cfg/target/iscsi");
    assert!(!whole.is_empty());
    // What is there is left as it is.
    driver.repair_export(&call(), &all[0]).await.unwrap();
    assert_eq!(host.tree("cfg/target/iscsi"), whole);

    host.starts_again();
    assert_eq!(missing(&driver).await, all);
    for id in &all {
        driver.repair_export(&call(), id).await.unwrap();
    }
    assert_eq!(missing(&driver).await, []);
    assert_eq!(host.tree("cfg/target/iscsi"), whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_there_and_not_saved_for_the_next_start_is_missing() {
    let host = Arc::new(Host::new());
    let driver = driver(&host);
    let id = VolumeId::parse("pvc-1").unwrap();
    driver.repair_export(&call(), &id).await.unwrap();
    assert!(driver.is_exported(&call(), &id).await.unwrap());
    std::fs::remove_file(host.path("etc/saveconfig.json")).unwrap();
    assert!(!driver.is_exported(&call(), &id).await.unwrap());
    driver.repair_export(&call(), &id).await.unwrap();
    assert!(driver.is_exported(&call(), &id).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_object_of_the_same_name_is_reported_and_left_alone() {
    let host = Arc::new(Host::new());
    let driver = driver(&host);
    let store = host.path("cfg/target/core/iblock_0/csi-pvc-1");
    std::fs::create_dir_all(&store).unwrap();
    std::fs::write(store.join("udev_path"), "/dev/zvol/tank/other").unwrap();
    let before = host.tree("cfg");
    let id = VolumeId::parse("pvc-1").unwrap();
    let look = driver.is_exported(&call(), &id).await.unwrap_err();
    let repair = driver.repair_export(&call(), &id).await.unwrap_err();
    assert_eq!(look.kind(), Kind::Conflict, "{}", look.chain());
    assert_eq!(repair.kind(), Kind::Conflict, "{}", repair.chain());
    assert_eq!(host.tree("cfg"), before);
    let other = VolumeId::parse("pvc-2").unwrap();
    driver.repair_export(&call(), &other).await.unwrap();
    assert!(driver.is_exported(&call(), &other).await.unwrap());
}

const SHARES: &str = "driver: zfs-generic-nfs
zfs: {datasetParentName: tank/v, datasetEnableQuotas: true}
nfs:
  shareHost: 192.0.2.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: on}}
";

/// A filesystem that is not mounted: where it would be, and whether its key is loaded, is in files.
const UNMOUNTED: &str = include_str!("lost/unmounted.sh");

fn unmounted(host: &Arc<Host>, path: &str, key: &str) -> ZfsDriver {
    host.program("zfs", UNMOUNTED);
    std::fs::write(host.path("mountpoint"), format!("{path}\n")).unwrap();
    std::fs::write(host.path("keystatus"), format!("{key}\n")).unwrap();
    let document = Document::parse(SHARES, &NoEnvironment).unwrap();
    let zfs = ZfsConfig::read(&document).unwrap();
    let common = document.common().unwrap();
    let settings = zfs.settings(&common, VolumeKind::Filesystem, None).unwrap();
    let program = host.path("bin/zfs");
    let tools = || ZfsTools::new(program.to_str(), None, false).unwrap();
    let export = ShareExport::from_document(&document, Protocol::Nfs, tools()).unwrap();
    let identity = BackendIdentity("test".to_owned());
    let locks = host.path("locks").to_str().unwrap().to_owned();
    let cli = Cli::new(OneByOne(On(host.clone())), tools(), identity).locking_in(locks);
    ZfsDriver::new(settings, cli, export)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filesystem_whose_key_is_not_loaded_grows_and_is_not_called_exported() {
    let host = Arc::new(Host::new());
    let id = VolumeId::parse("pvc-1").unwrap();
    let driver = unmounted(&host, "/tank/v/pvc-1", "unavailable");
    let size = SizeRange::new(2 << 20, 0).unwrap();
    for _ in 0..2 {
        let grown = driver
            .expand_volume(&call(), ExpandVolume::new(&id, size))
            .await
            .unwrap();
        assert_eq!(grown.capacity, 2 << 20);
        assert_eq!(host.text("quota"), "2097152\n");
    }
    assert!(!driver.is_exported(&call(), &id).await.unwrap());
    let error = driver.repair_export(&call(), &id).await.unwrap_err();
    let message = error.chain();
    assert!(message.contains("key not loaded"), "{message}");
    // One that is not mounted for another reason is put back before it grows, or that is an error.
    let driver = unmounted(&host, "/tank/v/pvc-1", "-");
    let size = SizeRange::new(4 << 20, 0).unwrap();
    driver
        .expand_volume(&call(), ExpandVolume::new(&id, size))
        .await
        .unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filesystem_that_zfs_does_not_mount_is_not_called_exported() {
    let id = VolumeId::parse("pvc-1").unwrap();
    for path in ["legacy", "none"] {
        let host = Arc::new(Host::new());
        let driver = unmounted(&host, path, "-");
        for outcome in [
            driver.is_exported(&call(), &id).await.map(drop),
            driver.repair_export(&call(), &id).await,
        ] {
            let error = outcome.unwrap_err();
            let message = error.chain();
            assert!(message.contains("mounted nowhere"), "{path}: {message}");
        }
    }
    // Mounted at another path than the volume context says.
    let host = Arc::new(Host::new());
    let driver = unmounted(&host, "/elsewhere", "-");
    let exported = driver.is_exported(&call(), &id).await;
    assert!(!exported.unwrap_or(false), "nodes look for /tank/v/pvc-1");
}
