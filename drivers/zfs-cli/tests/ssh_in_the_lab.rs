//! The command line backend over SSH, as a user that is not root: with sudo, and without.
//!
//! It logs in to the machine that it runs on, as the user `csi`, with a key that it makes and takes
//! away again. It needs root, an SSH server, and a pool that may be changed: it is run in the lab, by
//! `cargo test -p driver-zfs-cli --all-features --test ssh_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what an administrator does is done past the runner"
)]

#[path = "common/bare.rs"]
mod bare;
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bare::{Bare, settings};
use common::Counting;
use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::{
    BackendIdentity, Call, CreateVolume, DeleteVolume, Driver, Error, Kind, Parameters, SizeRange,
    Source, TopologyRequirement, Volume, VolumeId, VolumeName,
};
use driver_ssh::{Key, Settings, Ssh};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs_cli::Cli;
use driver_zfs_cli::ZfsTools;

const HOME: &str = "/home/csi";

/// A key that the user `csi` is logged in with, and datasets, for as long as this lives.
struct Ground {
    root: &'static str,
    key: String,
    before: String,
}

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

impl Ground {
    fn new(root: &'static str) -> Self {
        let authorized = format!("{HOME}/.ssh/authorized_keys");
        let before = std::fs::read_to_string(&authorized).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        sh(&format!(
            "ssh-keygen -q -t ed25519 -N '' -f {}",
            key.display()
        ));
        let public = std::fs::read_to_string(folder.path().join("key.pub")).unwrap();
        std::fs::write(&authorized, format!("{before}{public}")).unwrap();
        sh(&format!(
            "zfs destroy -R {root} 2>/dev/null || :; zfs create -p {root}/v; zfs create {root}/s"
        ));
        Self {
            root,
            key: std::fs::read_to_string(key).unwrap(),
            before,
        }
    }

    fn driver(&self, kind: VolumeKind, raise: bool, section: &str) -> ZfsDriver {
        let mut ssh = Settings::new("127.0.0.1", "csi");
        ssh.key = Some(Key::parse(&self.key.as_str().into(), None).unwrap());
        ssh.connect_within = Duration::from_mins(1);
        let (volumes, detached) = (format!("{}/v", self.root), format!("{}/s", self.root));
        let tools = ZfsTools::new(None, None, raise).unwrap();
        let identity = BackendIdentity("lab".into());
        let cli = Cli::new(Counting::new(Ssh::new(ssh)), tools, identity);
        let settings = settings(kind, &volumes, &detached, section);
        ZfsDriver::new(settings, cli, Bare { kind })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{HOME}/.ssh/authorized_keys"), &self.before);
        let script = format!("zfs destroy -R {}; zfs unallow -r csi tank", self.root);
        let _ = Command::new("sh").args(["-c", &script]).output();
    }
}

/// The host of a driver.
fn host(driver: &ZfsDriver) -> &Cli<Counting<Ssh>> {
    driver.storage().of().unwrap()
}

async fn create<D: Driver>(driver: &D, id: &str, source: Option<Source>) -> Result<Volume, Error> {
    let request = CreateVolume {
        name: VolumeName::parse(id).unwrap(),
        id: VolumeId::parse(id).unwrap(),
        size: SizeRange::new(64 << 20, 0).unwrap(),
        capabilities: vec![VolumeCapability {
            access: Access::Mount(MountAccess::default()),
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source,
        topology: TopologyRequirement::default(),
    };
    driver.create_volume(&call(), &request).await
}

fn call() -> Call {
    Call::within(Duration::from_mins(5))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool and a user of this machine"]
async fn a_user_with_sudo_makes_clones_and_deletes_and_each_exchange_is_one_script() {
    let ground = Ground::new("tank/driver-zfs-ssh");
    let section = "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0751'\n  \
                   datasetPermissionsUser: 1234\n";
    let driver = ground.driver(VolumeKind::Filesystem, true, section);
    create(&driver, "a", None).await.unwrap();
    assert_eq!(host(&driver).runner().take(), 3);
    let seen = sh(&format!("stat -c '%a %u' /{}/v/a", ground.root));
    assert_eq!(seen.trim(), "751 1234");
    assert!(
        Path::new(HOME).join(".omnibus-csi").is_dir(),
        "where locks are"
    );
    let of_a = Some(Source::Volume(VolumeId::parse("a").unwrap()));
    create(&driver, "b", of_a).await.unwrap();
    assert_eq!(host(&driver).runner().take(), 3);
    // That `b` stands on a snapshot of `a` is only known once `a` was looked at; `b`, which is promoted,
    // is looked at then, so that it is that clone and no other.
    for (id, exchanges) in [("a", 3), ("b", 2)] {
        driver
            .delete_volume(&call(), DeleteVolume::new(&VolumeId::parse(id).unwrap()))
            .await
            .unwrap();
        assert_eq!(host(&driver).runner().take(), exchanges, "{id}");
    }
    assert_eq!(
        sh(&format!("zfs list -H -r -t all -o name {}/v", ground.root))
            .lines()
            .count(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool and a user of this machine"]
async fn without_sudo_zfs_allow_decides() {
    let ground = Ground::new("tank/driver-zfs-allow");
    let driver = ground.driver(VolumeKind::Zvol, false, "");
    let error = create(&driver, "a", None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
    assert!(error.chain().contains("zfs allow"), "{}", error.chain());
    let permissions = "create,destroy,mount,snapshot,clone,promote,rename,userprop,canmount,volsize,\
                       volblocksize,refreservation,send,receive";
    sh(&format!("zfs allow csi {permissions} {}", ground.root));
    create(&driver, "a", None).await.unwrap();
    let of_a = Some(Source::Volume(VolumeId::parse("a").unwrap()));
    create(&driver, "b", of_a).await.unwrap();
    for id in ["a", "b"] {
        driver
            .delete_volume(&call(), DeleteVolume::new(&VolumeId::parse(id).unwrap()))
            .await
            .unwrap();
    }
    assert_eq!(
        sh(&format!("zfs list -H -r -t all -o name {}/v", ground.root))
            .lines()
            .count(),
        1
    );
}
