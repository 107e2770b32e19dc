//! Directories of a share: nfs-client, smb-client, lustre-client. A local directory stands for the share.

use std::path::Path;
use std::sync::Arc;

use crate::common::{call, id, request};
use driver_core::config::{Document, NoEnvironment};
use driver_core::contract::{Fresh, keep_contract};
use driver_core::{DeleteVolume, Driver, Kind, Lister as _, NodeId};
use driver_directory::{BaseError, DirectoryDriver, DirectoryKind, from_document};

const CLIENTS: [DirectoryKind; 3] = [
    DirectoryKind::NfsClient,
    DirectoryKind::SmbClient,
    DirectoryKind::LustreClient,
];

fn document(kind: DirectoryKind, base: &Path, extra: &str) -> Document {
    let (name, section, base) = (kind.name(), kind.section(), base.display());
    let text = format!(
        "driver: {name}\n{section}:\n  shareHost: nas.example\n  shareBasePath: /share/csi\n  \
         controllerBasePath: {base}\n{extra}"
    );
    Document::parse(&text, &NoEnvironment).expect("document")
}

fn client(kind: DirectoryKind, base: &Path, extra: &str) -> DirectoryDriver {
    let node = NodeId::parse("node-1").expect("node");
    from_document(&document(kind, base, extra), &node, None, None).expect("driver")
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_keep_the_contract_of_a_driver() {
    for kind in CLIENTS {
        keep_contract(move || async move {
            let dir = tempfile::tempdir().expect("folder");
            let driver = client(kind, &dir.path().join("base"), "  createBase: true\n");
            Fresh::new(Arc::new(driver), dir).grouping(&[("consistency", "none")])
        })
        .await;
    }
}

#[tokio::test]
async fn a_volume_is_reachable_from_every_node_by_its_share() {
    for (kind, share) in CLIENTS.into_iter().zip([
        "/share/csi/v/pvc-1",
        "share/csi/v/pvc-1",
        "/share/csi/v/pvc-1",
    ]) {
        let dir = tempfile::tempdir().expect("folder");
        let driver = client(kind, dir.path(), "  createBase: true\n");
        let made = driver.create_volume(&call(), &request("pvc-1")).await;
        let made = made.expect("volume");
        assert!(made.topology.is_empty() && driver.node_topology().is_none());
        let context = made.attachment.to_context();
        assert_eq!(
            (&*context["server"], &*context["share"]),
            ("nas.example", share)
        );
        assert!(dir.path().join("v/pvc-1").is_dir());
    }
}

#[tokio::test]
async fn nothing_is_made_or_deleted_where_no_share_is_mounted() {
    for kind in CLIENTS {
        for below in ["", "new"] {
            let dir = tempfile::tempdir().expect("folder");
            // What a program that did not look has made on the disk of the controller.
            std::fs::create_dir_all(dir.path().join("v/pvc-1")).expect("folder");
            let driver = client(kind, &dir.path().join(below), "");
            let (call, id) = (call(), id("pvc-1"));
            for error in [
                driver.create_volume(&call, &request("pvc-2")).await.err(),
                driver
                    .delete_volume(&call, DeleteVolume::new(&id))
                    .await
                    .err(),
                driver.get_volume(&call, &id).await.err(),
                driver.probe(&call).await.pop(),
            ] {
                let error = error.expect("refused");
                assert_eq!(error.kind(), Kind::Unreachable);
                let cause = std::error::Error::source(&error).expect("a cause");
                assert_eq!(cause.downcast_ref(), Some(&BaseError::NoShare));
            }
            assert!(!dir.path().join("new").exists());
            assert!(!dir.path().join("v/pvc-2").exists());
        }
    }
}

#[tokio::test]
async fn a_marked_base_may_be_on_the_server_itself() {
    let dir = tempfile::tempdir().expect("folder");
    let marked = client(CLIENTS[0], dir.path(), "  createBase: true\n");
    let made = marked.create_volume(&call(), &request("pvc-1")).await;
    made.expect("volume");
    let driver = client(CLIENTS[0], dir.path(), "");
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await;
    deleted.expect("the base is known by its marker");
}

#[test]
fn the_example_of_democratic_csi_is_read_and_every_key_has_an_effect() {
    for kind in CLIENTS {
        let extra = "  dirPermissionsMode: \"0777\"\n  dirPermissionsUser: 0\n  \
                     dirPermissionsGroup: 0\n  snapshots:\n    default_driver: filecopy\n    \
                     restic: {global_flags: [\"-o\"], prune: true}\n    kopia: {config_token: x}\n";
        let document = document(kind, Path::new("/storage"), extra);
        let node = NodeId::parse("node-1").expect("node");
        from_document(&document, &node, None, None).expect("driver");
        assert_eq!(document.findings(), []);
    }
}
