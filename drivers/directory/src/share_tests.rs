//! A share that comes and goes: what is mounted is renamed into place, and away.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateVolume, DeleteVolume, Driver as _, Error, Kind, Lister as _, NodeId, PageRequest,
    Parameters, SizeRange, TopologyRequirement, VolumeId, VolumeName,
};
use node_utils::Tools;
use tokio::time::Instant;

use crate::base::{BaseError, MARKER};
use crate::driver::{DirectoryDriver, from_document};
use crate::share::KeepMounted;

/// A server with one share, and the folder at which it is mounted.
#[derive(Debug)]
struct Share {
    top: tempfile::TempDir,
    is_away: AtomicBool,
    mounts: AtomicUsize,
}

#[derive(Debug)]
struct Keeper(Arc<Share>);

impl Share {
    /// A share with a base that is in use.
    async fn new() -> Arc<Self> {
        let top = tempfile::tempdir().expect("folder");
        let share = Arc::new(Self {
            top,
            is_away: AtomicBool::new(false),
            mounts: AtomicUsize::new(0),
        });
        std::fs::create_dir(share.base()).expect("folder");
        let on_the_server = driver(&share, "createBase: true", None);
        create(&on_the_server, "pvc-1").await.expect("volume");
        share.unmount();
        share
    }

    fn base(&self) -> PathBuf {
        self.top.path().join("base")
    }

    fn unmount(&self) {
        std::fs::rename(self.base(), self.top.path().join("share")).expect("unmount");
        std::fs::create_dir(self.base()).expect("folder");
    }

    fn is_mounted(&self) -> bool {
        !self.top.path().join("share").exists()
    }

    fn mount(&self) {
        // Fails if anything was written to where the share is not mounted.
        std::fs::remove_dir(self.base()).expect("an empty folder");
        std::fs::rename(self.top.path().join("share"), self.base()).expect("mount");
        self.mounts.fetch_add(1, SeqCst);
    }
}

#[async_trait]
impl KeepMounted for Keeper {
    fn is_kept(&self) -> bool {
        self.0.mounts.load(SeqCst) > 0
    }

    async fn ensure(&self, _: Instant) -> Result<(), Error> {
        if self.0.is_away.load(SeqCst) {
            return Err(Error::new(Kind::Unreachable, "mount the share").because("no server"));
        }
        if !self.0.is_mounted() {
            self.0.mount();
        }
        Ok(())
    }
}

fn document(share: &Share, key: &str) -> Document {
    let base = share.base();
    let text = format!(
        "driver: nfs-client\nnfs:\n  shareHost: nas\n  shareBasePath: /share\n  \
         controllerBasePath: {}\n  {key}\n",
        base.display()
    );
    Document::parse(&text, &NoEnvironment).expect("document")
}

fn driver(share: &Share, key: &str, keeper: Option<Keeper>) -> DirectoryDriver {
    let node = NodeId::parse("node-1").expect("node");
    let mut driver = from_document(&document(share, key), &node, None, None).expect("driver");
    driver.share = keeper.map(|keeper| Arc::new(keeper) as _);
    driver
}

fn call() -> Call {
    Call::within(Duration::from_secs(20))
}

fn id(name: &str) -> VolumeId {
    VolumeId::parse(name).expect("id")
}

async fn create(driver: &DirectoryDriver, name: &str) -> Result<(), Error> {
    let request = CreateVolume {
        name: VolumeName::parse(name).expect("name"),
        id: id(name),
        size: SizeRange::new(1 << 20, 0).expect("range"),
        capabilities: Vec::new(),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source: None,
        topology: TopologyRequirement::default(),
    };
    driver.create_volume(&call(), &request).await.map(drop)
}

#[tokio::test]
async fn a_share_is_mounted_by_the_first_call_that_uses_it_and_again_after_it_was_lost() {
    let share = Share::new().await;
    let driver = driver(&share, "", Some(Keeper(Arc::clone(&share))));
    assert!(!share.is_mounted(), "a driver touches no storage");
    driver
        .get_volume(&call(), &id("pvc-1"))
        .await
        .expect("volume");
    create(&driver, "pvc-2").await.expect("volume");
    share.unmount();
    driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await
        .expect("deleted");
    let listed = driver.list_volumes(&call(), &PageRequest::default()).await;
    let listed = listed.expect("list").entries;
    let ids: Vec<_> = listed.iter().map(|volume| volume.id.as_str()).collect();
    assert_eq!((ids, share.mounts.load(SeqCst)), (vec!["pvc-2"], 2));
}

#[tokio::test]
async fn without_its_server_nothing_is_written_or_declared_deleted() {
    let share = Share::new().await;
    share.is_away.store(true, SeqCst);
    let driver = driver(&share, "", Some(Keeper(Arc::clone(&share))));
    for error in [
        create(&driver, "pvc-2").await.err(),
        driver
            .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
            .await
            .err(),
        driver.get_volume(&call(), &id("pvc-1")).await.err(),
        driver.probe(&call()).await.pop(),
    ] {
        let error = error.expect("refused");
        assert_eq!(error.kind(), Kind::Unreachable);
        assert!(error.chain().contains("no server"), "{}", error.chain());
    }
    let left = std::fs::read_dir(share.base()).expect("folder").count();
    assert_eq!(left, 0);
    share.is_away.store(false, SeqCst);
    driver
        .get_volume(&call(), &id("pvc-1"))
        .await
        .expect("volume");
}

#[tokio::test]
async fn what_is_mounted_without_being_a_share_is_not_the_base() {
    let share = Share::new().await;
    std::fs::remove_file(share.top.path().join("share").join(MARKER)).expect("marker");
    let driver = driver(&share, "", Some(Keeper(Arc::clone(&share))));
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await;
    let error = deleted.expect_err("refused");
    let cause = std::error::Error::source(&error).expect("a cause");
    assert_eq!(cause.downcast_ref(), Some(&BaseError::NoShare));
    assert!(share.base().join("v/pvc-1").exists());
}

#[tokio::test]
async fn a_base_with_its_marker_is_used_as_the_administrator_has_mounted_it() {
    let share = Share::new().await;
    share.mount();
    share.mounts.store(0, SeqCst);
    share.is_away.store(true, SeqCst);
    let driver = driver(&share, "", Some(Keeper(Arc::clone(&share))));
    driver
        .get_volume(&call(), &id("pvc-1"))
        .await
        .expect("volume");
}

#[test]
fn without_a_path_for_the_controller_the_share_gets_a_folder_of_its_own() {
    let node = NodeId::parse("node-1").expect("node");
    let records = csi_types::AbsolutePath::parse("/run/csi").expect("path");
    let tools = Tools::of_this_machine();
    let base = |user: &str| {
        let text = format!(
            "driver: smb-client\nsmb:\n  shareHost: nas\n  shareBasePath: share\n  \
             mountOptions: [username={user}, password=canary]\n"
        );
        let document = Document::parse(&text, &NoEnvironment).expect("document");
        let driver = from_document(&document, &node, Some(&records), Some(&tools));
        let driver = driver.expect("driver");
        assert!(driver.share.as_ref().is_some_and(|share| share.is_kept()));
        assert!(!format!("{driver:?}").contains("canary"));
        driver.directories.store.base.path().to_string()
    };
    let (one, two) = (base("one"), base("two"));
    assert!(!one.starts_with("/run/csi/") && one != two, "{one} {two}");
    assert_eq!(one, base("one"), "found again after a kill");
    let text = "driver: nfs-client\nnfs: {shareHost: nas, shareBasePath: /s, controllerBasePath: /run/csi/s}\n";
    let document = Document::parse(text, &NoEnvironment).expect("document");
    let refused = from_document(&document, &node, Some(&records), None).expect_err("refused");
    assert_eq!(refused.path(), Some("nfs.controllerBasePath"));
    from_document(&document, &node, None, None).expect("another folder");
    let text = "driver: nfs-client\nnfs: {shareHost: nas, shareBasePath: /s, createBase: true}\n";
    let document = Document::parse(text, &NoEnvironment).expect("document");
    let refused = from_document(&document, &node, None, None).expect_err("refused");
    assert_eq!(refused.path(), Some("nfs.controllerBasePath"));
}
