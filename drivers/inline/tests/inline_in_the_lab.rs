//! Datasets of pods on a real pool: made, mounted by the node, unmounted, removed.
//!
//! It needs root and the pool `tank`, which may be changed: it is run in the lab, by
//! `cargo test -p driver-inline --test inline_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what the machine says is asked past the runner"
)]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use csi_types::{
    AbsolutePath, Access, AccessMode, MountAccess, StageSecrets, VolumeCapability, VolumeContext,
};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, Driver, Error, InlineMount, InlineVolume, Kind, NodeId, Secrets, VolumeId,
};
use node_utils::blocking::Limits;
use node_utils::node::{NodeConfig, StageRequest, StagingPath, TargetPath};
use node_utils::{Node, Tools};
use tokio::time::Instant;

const PARENT: &str = "tank/inline-test";

fn zfs(arguments: &[&str]) -> String {
    let output = Command::new("zfs").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The datasets of the test. They are destroyed on drop.
struct TestDatasets;

impl Drop for TestDatasets {
    fn drop(&mut self) {
        let _ = Command::new("zfs")
            .args(["destroy", "-R", "-f", PARENT])
            .output();
    }
}

fn driver() -> Arc<dyn Driver> {
    let text = format!(
        "driver: zfs-local-ephemeral-inline\ninstance_id: lab\n\
         zfs: {{datasetParentName: {PARENT}, properties: {{refquota: {{value: 64M}}, exec: {{value: off}}}}}}\n"
    );
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let node = NodeId::parse("node-1").unwrap();
    driver_inline::from_document(&document, &node, &Tools::of_this_machine()).unwrap()
}

fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

fn limits() -> Limits {
    Limits::until(Instant::now() + Duration::from_mins(2))
}

/// Makes a volume and mounts it, as the program does.
async fn publish(
    id: &VolumeId,
    target: &AbsolutePath,
    readonly: bool,
    attributes: &[(&str, &str)],
) -> Result<(), Error> {
    let pairs = attributes.iter();
    let attributes: VolumeContext = pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let (driver, secrets) = (driver(), Secrets::new());
    let wanted = InlineVolume {
        id,
        target,
        readonly,
        attributes: &attributes,
        secrets: &secrets,
    };
    let made = driver
        .inline()
        .unwrap()
        .make_inline(&call(), &wanted)
        .await?;
    let InlineMount::Attachment(attachment) = made else {
        panic!("the node mounts it");
    };
    let stage = StageRequest {
        staging: StagingPath::new(target.clone()).unwrap(),
        attachment,
        capability: VolumeCapability {
            access: Access::Mount(MountAccess::default()),
            mode: AccessMode::SingleNodeWriter,
        },
        secrets: StageSecrets::default(),
    };
    Node::here(NodeConfig::default())
        .stage(limits(), stage)
        .await
}

async fn unpublish(id: &VolumeId, target: &AbsolutePath) -> Result<(), Error> {
    let path = TargetPath::new(target.clone()).unwrap();
    Node::here(NodeConfig::default())
        .unpublish(limits(), path)
        .await?;
    let driver = driver();
    let inline = driver.inline().unwrap();
    inline.remove_inline(&call(), id, target).await
}

#[tokio::test]
#[ignore = "it changes the pool `tank`: for the lab"]
async fn a_dataset_lives_and_dies_with_a_pod() {
    let _datasets = TestDatasets;
    let folder = tempfile::tempdir().unwrap();
    let volume = folder.path().join("pods/u-1/volumes/kubernetes.io~csi/s");
    std::fs::create_dir_all(&volume).unwrap();
    let target = AbsolutePath::parse(volume.join("mount").to_str().unwrap()).unwrap();
    let id = VolumeId::parse(&format!("csi-{}", "0a".repeat(32))).unwrap();
    let dataset = format!("{PARENT}/v/{id}");
    // What a pod may not choose makes nothing, and no value becomes another word.
    for (key, value) in [("property.exec", "on"), ("property.quota", "1G -o exec=on")] {
        publish(&id, &target, false, &[(key, value)])
            .await
            .unwrap_err();
    }
    for _ in 0..2 {
        publish(&id, &target, false, &[("property.recordsize", "16K")])
            .await
            .unwrap();
    }
    let asked = "recordsize,refquota,exec,mountpoint,omnibus-csi:target_path";
    let properties = zfs(&["get", "-Hp", "-o", "value", asked, &dataset]);
    let expected = format!("16384\n67108864\noff\nlegacy\n{target}\n");
    assert_eq!(properties, expected);
    std::fs::write(volume.join("mount/content"), "hello").unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.starts_with(&dataset))
        .unwrap();
    assert!(line.contains("noexec"), "{line}");
    let driver = driver();
    let inline = driver.inline().unwrap();
    let found = inline.list_inline(&call()).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0].id, &found[0].target), (&id, &target));
    // Something takes snapshots of everything.
    zfs(&["snapshot", &format!("{dataset}@daily")]);
    zfs(&[
        "clone",
        &format!("{dataset}@daily"),
        &format!("{PARENT}/clone"),
    ]);
    assert_eq!(
        unpublish(&id, &target).await.unwrap_err().kind(),
        Kind::Busy
    );
    zfs(&["destroy", &format!("{PARENT}/clone")]);
    for _ in 0..2 {
        unpublish(&id, &target).await.unwrap();
    }
    assert!(!volume.join("mount").exists());
    assert!(!zfs(&["list", "-H", "-o", "name", "-r", PARENT]).contains("csi-"));
    assert_eq!(inline.list_inline(&call()).await.unwrap(), []);
    publish(&id, &target, true, &[]).await.unwrap();
    std::fs::write(volume.join("mount/content"), "hello").unwrap_err();
    unpublish(&id, &target).await.unwrap();
    // As democratic-csi makes them: mounted by ZFS itself.
    std::fs::create_dir(volume.join("mount")).unwrap();
    let name = format!("democratic-csi:csi_volume_name={id}");
    let mountpoint = format!("mountpoint={target}");
    zfs(&[
        "create",
        "-p",
        "-o",
        "democratic-csi:managed_resource=true",
        "-o",
        &name,
        "-o",
        "democratic-csi:volume_context_provisioner_driver=zfs-local-ephemeral-inline",
        "-o",
        "democratic-csi:volume_context_provisioner_instance_id=lab",
        "-o",
        &mountpoint,
        &dataset,
    ]);
    assert_eq!(inline.list_inline(&call()).await.unwrap().len(), 1);
    unpublish(&id, &target).await.unwrap();
    assert!(!zfs(&["list", "-H", "-o", "name", "-r", PARENT]).contains("csi-"));
}
