//! The drivers on real ZFS, LIO, nvmet, nfsd and samba, on the machine this runs on.
//!
//! It makes datasets in the pool `tank` and exports them, and leaves nothing behind. It needs root and
//! a machine whose targets may be changed: it is run in the lab, by
//! `cargo test -p driver-zfs-generic --test exports_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what others do on the storage host is done past the runner"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use csi_types::NodeIdentity;
use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateVolume, DeleteVolume, Driver, ExpandVolume, NodeId, Parameters, PublishVolume,
    SizeRange, TopologyRequirement, UnpublishVolume, VolumeId, VolumeName,
};
use driver_zfs_generic::from_document;
use node_utils::host::run;

const ROOT: &str = "tank/driver-zfs-generic-test";
const MIB: i64 = 1 << 20;

const LIO: &str = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 127.0.0.1
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2026-01.example.lab
    listen: ['0.0.0.0:3260', '[::1]:3261']
    tpg: {auth: {userid: me, password: 'a\"b $(touch /canary) `x` \\c'}}
    block: {attributes: {emulate_tpu: 1}}
";
const TARGETCLI: &str = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 127.0.0.1
  shareStrategy: targetCli
  shareStrategyTargetCli:
    basename: iqn.2026-01.example.lab
    tpg:
      attributes: {authentication: 1, generate_node_acls: 1, demo_mode_write_protect: 0}
      auth: {userid: me, password: 's3cret$(x)&*!'}
    block: {attributes: {emulate_tpu: 1}}
";
const NVMET: &str = "driver: zfs-generic-nvmeof
nvmeof:
  transport: tcp://127.0.0.1:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2026-01.example.lab
    ports: [{id: 7, traddr: 0.0.0.0}]
";
const NFS: &str = "driver: zfs-generic-nfs
nfs:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharenfs: 'rw,no_subtree_check'}}
";
const SMB: &str = "driver: zfs-generic-smb
smb:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharesmb: on}}
";

fn driver(section: &str) -> Arc<dyn Driver> {
    let _ = Command::new("zfs").args(["destroy", "-R", ROOT]).output();
    run("zfs", &["create", "-p", &format!("{ROOT}/v")]);
    let text = format!(
        "{section}zfs:\n  datasetParentName: {ROOT}/v\n  datasetEnableQuotas: true\n  \
         detachedSnapshotsDatasetParentName: {ROOT}/s\n"
    );
    from_document(&Document::parse(&text, &NoEnvironment).unwrap()).unwrap()
}

fn request(id: &str, size: i64) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse(id).unwrap(),
        id: VolumeId::parse(id).unwrap(),
        size: SizeRange::new(size, 0).unwrap(),
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

fn call() -> Call {
    Call::within(Duration::from_mins(5))
}

/// Makes a volume twice, loses its export, makes it again, grows it, removes it twice. `there` says
/// whether it is exported, `lose` takes the export away behind the driver's back.
async fn lives(
    section: &str,
    there: impl Fn() -> bool,
    lose: impl Fn(),
) -> BTreeMap<String, String> {
    let driver = driver(section);
    assert!(!there());
    let made = driver
        .create_volume(&call(), &request("pvc-1", 64 * MIB))
        .await
        .unwrap();
    assert!(there());
    let again = driver
        .create_volume(&call(), &request("pvc-1", 64 * MIB))
        .await
        .unwrap();
    assert_eq!(made.attachment, again.attachment);
    lose();
    assert!(!there());
    driver
        .create_volume(&call(), &request("pvc-1", 64 * MIB))
        .await
        .unwrap();
    assert!(there());
    let id = VolumeId::parse("pvc-1").unwrap();
    let size = SizeRange::new(128 * MIB, 0).unwrap();
    driver
        .expand_volume(&call(), ExpandVolume::new(&id, size))
        .await
        .unwrap();
    driver
        .delete_volume(&call(), DeleteVolume::new(&id))
        .await
        .unwrap();
    driver
        .delete_volume(&call(), DeleteVolume::new(&id))
        .await
        .unwrap();
    assert!(!there());
    assert_eq!(
        run(
            "zfs",
            &["list", "-H", "-r", "-o", "name", &format!("{ROOT}/v")]
        )
        .trim(),
        format!("{ROOT}/v")
    );
    run("zfs", &["destroy", "-r", ROOT]);
    assert!(!Path::new("/canary").exists());
    made.attachment.to_context()
}

const TARGET: &str = "/sys/kernel/config/target/iscsi/iqn.2026-01.example.lab:pvc-1";
const SUBSYSTEM: &str = "/sys/kernel/config/nvmet/subsystems/nqn.2026-01.example.lab:pvc-1";
const SAVED: &str = "/etc/rtslib-fb-target/saveconfig.json";

fn serial() -> String {
    let folder = std::fs::read_dir("/sys/kernel/config/target/core").unwrap();
    let files = folder.map(|entry| entry.unwrap().path().join("pvc-1/wwn/vpd_unit_serial"));
    files
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .collect()
}

#[tokio::test]
#[ignore = "changes targets: for the lab"]
async fn lio_by_configfs() {
    run("modprobe", &["iscsi_target_mod"]);
    let serials = std::sync::Mutex::new(Vec::new());
    let context = lives(
        LIO,
        || Path::new(TARGET).join("tpgt_1/lun/lun_0").is_dir(),
        || {
            serials.lock().unwrap().push(serial());
            // What targetcli saved is what it restores.
            let saved = std::fs::read_to_string(SAVED).unwrap();
            run("targetcli", &["clearconfig", "confirm=True"]);
            std::fs::write("/root/saved.json", &saved).unwrap();
            run("targetcli", &["restoreconfig", "/root/saved.json"]);
            assert!(Path::new(TARGET).join("tpgt_1/np/[::1]:3261").is_dir());
            serials.lock().unwrap().push(serial());
            run("targetcli", &["clearconfig", "confirm=True"]);
        },
    )
    .await;
    let serials = serials.into_inner().unwrap();
    assert!(serials[0].contains(": "), "{serials:?}");
    assert_eq!(serials[0], serials[1]);
    let expected = [
        ("interface", ""),
        ("iqn", "iqn.2026-01.example.lab:pvc-1"),
        ("lun", "0"),
        ("node_attach_driver", "iscsi"),
        ("portal", "127.0.0.1"),
        ("portals", ""),
    ];
    assert_eq!(
        context,
        expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    assert!(!std::fs::read_to_string(SAVED).unwrap().contains("pvc-1"));
}

#[tokio::test]
#[ignore = "changes targets: for the lab"]
async fn lio_by_targetcli() {
    run("modprobe", &["iscsi_target_mod"]);
    lives(
        TARGETCLI,
        || Path::new(TARGET).join("tpgt_1/lun/lun_0").is_dir(),
        || {
            let password = std::fs::read_to_string(Path::new(TARGET).join("tpgt_1/auth/password"));
            assert_eq!(password.unwrap().trim(), "s3cret$(x)&*!");
            run(
                "targetcli",
                &[
                    "/iscsi/iqn.2026-01.example.lab:pvc-1/tpg1/luns",
                    "delete",
                    "lun0",
                ],
            );
        },
    )
    .await;
    assert!(!std::fs::read_to_string(SAVED).unwrap().contains("pvc-1"));
}

#[tokio::test]
#[ignore = "changes targets: for the lab"]
async fn nvmet_by_configfs() {
    run("modprobe", &["nvmet-tcp"]);
    let link =
        Path::new("/sys/kernel/config/nvmet/ports/7/subsystems/nqn.2026-01.example.lab:pvc-1");
    let context = lives(
        NVMET,
        || link.exists() && Path::new(SUBSYSTEM).join("namespaces/1").is_dir(),
        || {
            std::fs::remove_file(link).unwrap();
            std::fs::remove_dir(Path::new(SUBSYSTEM).join("namespaces/1")).unwrap();
        },
    )
    .await;
    assert_eq!(context["nqn"], "nqn.2026-01.example.lab:pvc-1");
    assert_eq!(context["transport"], "tcp://127.0.0.1:4420");
    assert_eq!(context["transports"], "");
    let saved = std::fs::read_to_string("/etc/nvmet/config.json").unwrap();
    assert!(
        !saved.contains("pvc-1") && saved.contains("\"portid\": 7"),
        "{saved}"
    );
    std::fs::remove_dir("/sys/kernel/config/nvmet/ports/7").unwrap();
    std::fs::remove_file("/etc/nvmet/config.json").unwrap();
}

#[tokio::test]
#[ignore = "changes shares: for the lab"]
async fn nfs_by_zfs() {
    let path = format!("/{ROOT}/v/pvc-1");
    let context = lives(
        NFS,
        || run("exportfs", &["-s"]).contains(&path),
        || {
            run("zfs", &["unshare", &format!("{ROOT}/v/pvc-1")]);
        },
    )
    .await;
    assert_eq!(
        (&*context["server"], &*context["share"]),
        ("127.0.0.1", &*path)
    );
}

/// The last second that nfsd has taken to forget something, and how far from now it is past that.
fn nfsd_forgets() -> (u64, Duration) {
    let second = std::fs::read_to_string("/proc/net/rpc/nfsd.export/flush").unwrap();
    let second: u64 = second.trim().parse().unwrap();
    let past = UNIX_EPOCH + Duration::from_secs(second + 1);
    let away = past.duration_since(SystemTime::now());
    (second, away.unwrap_or_default())
}

#[tokio::test]
#[ignore = "changes shares: for the lab"]
async fn what_nfsd_keeps_is_waited_for_and_not_tried_before() {
    let driver = volume(NFS).await;
    let name = format!("{ROOT}/v/pvc-1");
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    for _ in 0..25 {
        run("exportfs", &["-f"]);
    }
    run("mount", &["-t", "nfs", &format!("127.0.0.1:/{name}"), at]);
    run("ls", &[at]);
    run("umount", &[at]);
    // As ZFS says it.
    let busy = Command::new("zfs").args(["destroy", &name]).output();
    let busy = String::from_utf8(busy.unwrap().stderr).unwrap();
    assert!(busy.contains("is busy"), "nothing keeps it: {busy}");

    let id = VolumeId::parse("pvc-1").unwrap();
    let (second, away) = nfsd_forgets();
    assert!(
        away > Duration::from_secs(4),
        "the machine is too slow: {away:?}"
    );
    let short = Call::within(Duration::from_secs(2));
    let error = driver
        .delete_volume(&short, DeleteVolume::new(&id))
        .await
        .unwrap_err();
    let why = error.chain();
    assert!(why.contains("nfsd keeps it for"), "{why}");
    assert_eq!(nfsd_forgets().0, second, "it was tried");

    let (began, away) = (Instant::now(), nfsd_forgets().1);
    driver
        .delete_volume(&call(), DeleteVolume::new(&id))
        .await
        .unwrap();
    let took = began.elapsed();
    assert!(
        took >= away && took < away + Duration::from_secs(20),
        "{took:?} of {away:?}"
    );
    remove(&driver).await;
}

#[tokio::test]
#[ignore = "changes shares: for the lab"]
async fn smb_by_zfs() {
    let name = "tank_driver_zfs_generic_test_v_pvc_1";
    let context = lives(
        SMB,
        || run("net", &["usershare", "list"]).contains(name),
        || {
            run("net", &["usershare", "delete", name]);
        },
    )
    .await;
    assert_eq!(context["share"], name);
}

const A: &str = "2026-01.example.lab:node-a";

/// A section with names for nodes.
fn for_nodes(section: &str, form: &str) -> String {
    let nodes = format!("    nodes: {{nameTemplate: '{form}.2026-01.example.lab:{{{{node}}}}'}}\n");
    let basename = section.find("    basename:").unwrap();
    format!("{}{nodes}{}", &section[..basename], &section[basename..])
}

async fn publish(driver: &Arc<dyn Driver>, name: &str) {
    let id = VolumeId::parse("pvc-1").unwrap();
    let mut capability = request("pvc-1", MIB).capabilities.remove(0);
    capability.mode = AccessMode::MultiNodeReaderOnly;
    let node = NodeIdentity::of(NodeId::parse(name).unwrap());
    let request = PublishVolume::new(&id, &node, &capability, false);
    driver.publish_volume(&call(), request).await.unwrap();
}

async fn unpublish(driver: &Arc<dyn Driver>, name: &str) {
    let (id, node) = (
        VolumeId::parse("pvc-1").unwrap(),
        NodeIdentity::of(NodeId::parse(name).unwrap()),
    );
    for _ in 0..2 {
        driver
            .unpublish_volume(&call(), UnpublishVolume::new(&id, Some(&node)))
            .await
            .unwrap();
    }
}

async fn volume(section: &str) -> Arc<dyn Driver> {
    let driver = driver(section);
    let request = request("pvc-1", 64 * MIB);
    driver.create_volume(&call(), &request).await.unwrap();
    driver
}

async fn remove(driver: &Arc<dyn Driver>) {
    let id = VolumeId::parse("pvc-1").unwrap();
    driver
        .delete_volume(&call(), DeleteVolume::new(&id))
        .await
        .unwrap();
    run("zfs", &["destroy", "-r", ROOT]);
}

#[tokio::test]
#[ignore = "changes targets: for the lab"]
async fn lio_lets_in_a_node_by_name_and_ends_its_session() {
    run("modprobe", &["iscsi_target_mod"]);
    let open = LIO.replace(
        "    tpg: {auth: {userid: me, password: 'a\"b $(touch /canary) `x` \\c'}}\n",
        "",
    );
    let driver = volume(&for_nodes(&open, "iqn")).await;
    let (target, portal) = ("iqn.2026-01.example.lab:pvc-1", "127.0.0.1:3260");
    let admin = |arguments: &[&str]| {
        let output = Command::new("iscsiadm").args(arguments).output().unwrap();
        output.status.success()
    };
    let initiator = format!("iqn.{A}");
    let update = ["-m", "iface", "-I", "lab", "-o", "update", "-n"];
    assert!(admin(&["-m", "iface", "-I", "lab", "-o", "new"]));
    assert!(admin(
        &[&update[..], &["iface.initiatorname", "-v", &initiator]].concat()
    ));
    let record = ["-m", "node", "-T", target, "-p", portal, "-I", "lab"];
    assert!(admin(&[&record[..], &["-o", "new"]].concat()));
    for (name, value) in [
        ("node.session.initial_login_retry_max", "1"),
        ("node.conn[0].timeo.login_timeout", "5"),
        ("node.session.timeo.replacement_timeout", "5"),
    ] {
        assert!(admin(
            &[&record[..], &["-o", "update", "-n", name, "-v", value]].concat()
        ));
    }
    let log = |way: &str| admin(&[&record[..], &[way]].concat());
    assert!(!log("--login"), "no node was let in");
    publish(&driver, "node-b").await;
    assert!(!log("--login"), "another one was let in");
    publish(&driver, "node-a").await;
    assert!(log("--login"));
    let acl = Path::new(TARGET).join(format!("tpgt_1/acls/{initiator}"));
    let info = std::fs::read_to_string(acl.join("info")).unwrap();
    assert!(info.contains("LOGGED_IN"), "{info}");
    unpublish(&driver, "node-a").await;
    assert!(!acl.exists());
    log("--logout");
    assert!(!log("--login"), "it was put out");
    let saved = std::fs::read_to_string(SAVED).unwrap();
    assert!(
        saved.contains("node-b") && !saved.contains("node-a"),
        "{saved}"
    );
    admin(&[&record[..], &["-o", "delete"]].concat());
    admin(&["-m", "iface", "-I", "lab", "-o", "delete"]);
    remove(&driver).await;
}

const NQN: &str = "nqn.2026-01.example.lab:pvc-1";

/// Connects to the subsystem as the node of this letter.
fn connect(letter: char) -> bool {
    let host = format!("nqn.2026-01.example.lab:node-{letter}");
    // A host NQN has an id of its own, or the kernel refuses it.
    let id = format!("c5c3a3e6-5b6c-4a55-9d65-0c8f3f3b7a0{letter}");
    let (address, who) = (
        ["-t", "tcp", "-a", "127.0.0.1", "-s", "4420", "-n", NQN],
        ["--hostnqn", &host, "--hostid", &id, "--ctrl-loss-tmo", "60"],
    );
    let connect = Command::new("nvme")
        .arg("connect")
        .args(address)
        .args(who)
        .output();
    connect.unwrap().status.success()
}

/// The controllers of the node of this letter that are live.
fn live(letter: char) -> Vec<String> {
    let host = format!("nqn.2026-01.example.lab:node-{letter}");
    let all = std::fs::read_dir("/sys/class/nvme").unwrap();
    let all = all.map(|entry| entry.unwrap().path());
    let is = |path: &Path, name: &str, text: &str| {
        std::fs::read_to_string(path.join(name)).is_ok_and(|found| found.trim() == text)
    };
    all.filter(|path| is(path, "subsysnqn", NQN) && is(path, "hostnqn", &host))
        .filter(|path| is(path, "state", "live"))
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect()
}

async fn until_gone(letter: char) {
    let soon = std::time::Instant::now() + Duration::from_secs(30);
    while !live(letter).is_empty() && std::time::Instant::now() < soon {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(live(letter).is_empty(), "{letter} was put out");
}

#[tokio::test]
#[ignore = "changes targets: for the lab"]
async fn nvmet_lets_in_a_node_by_name_and_ends_its_session() {
    for module in ["nvmet-tcp", "nvme-tcp"] {
        run("modprobe", &[module]);
    }
    let driver = volume(&for_nodes(NVMET, "nqn")).await;
    // A port with another subsystem stays open, whatever becomes of this one.
    let other = request("pvc-2", 64 * MIB);
    driver.create_volume(&call(), &other).await.unwrap();
    assert!(!connect('a'), "no node was let in");
    publish(&driver, "node-b").await;
    assert!(!connect('a'), "another one was let in");
    publish(&driver, "node-a").await;
    assert!(connect('a') && connect('b'));
    assert_eq!((live('a').len(), live('b').len()), (1, 1));
    let (first, second) = (live('a'), live('b'));
    unpublish(&driver, "node-a").await;
    let shown = Path::new("/sys/kernel/debug/nvmet").join(NQN);
    eprintln!("the kernel shows controllers: {}", shown.is_dir());
    // One that was cut would be without a connection for longer than this.
    let soon = std::time::Instant::now() + Duration::from_secs(3);
    while std::time::Instant::now() < soon {
        assert_eq!(live('b'), second, "another node was put out");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if shown.is_dir() {
        until_gone('a').await;
    } else {
        assert_eq!(live('a'), first, "nothing there ends it alone");
    }
    for controller in &first {
        let _ = Command::new("nvme")
            .args(["disconnect", "-d", controller])
            .output();
    }
    assert!(!connect('a'), "it was put out");
    let enabled = std::fs::read_to_string(Path::new(SUBSYSTEM).join("namespaces/1/enable"));
    assert_eq!(enabled.unwrap().trim(), "1");
    let saved = std::fs::read_to_string("/etc/nvmet/config.json").unwrap();
    let (subsystems, _) = saved
        .split_once("\"subsystems\": [\n    {")
        .map_or((&*saved, ""), |(_, all)| (all, ""));
    assert!(
        subsystems.contains("node-b") && !subsystems.contains("node-a"),
        "{saved}"
    );
    // The last one goes on every kernel.
    unpublish(&driver, "node-b").await;
    until_gone('b').await;
    let _ = Command::new("nvme")
        .args(["disconnect", "-n", NQN])
        .output();
    assert!(!connect('b'), "it was put out");
    driver
        .delete_volume(&call(), DeleteVolume::new(&other.id))
        .await
        .unwrap();
    remove(&driver).await;
    std::fs::remove_dir("/sys/kernel/config/nvmet/ports/7").unwrap();
    std::fs::remove_file("/etc/nvmet/config.json").unwrap();
}

#[tokio::test]
#[ignore = "changes shares: for the lab"]
async fn nfs_by_zfs_is_for_the_nodes_that_it_names() {
    let section = NFS.replace(
        "{properties:",
        "{nodes: {names: {a: 192.0.2.7, b: 192.0.2.8}}, properties:",
    );
    let driver = volume(&section).await;
    let path = format!("/{ROOT}/v/pvc-1");
    let exported = || -> Vec<String> {
        let all = run("exportfs", &["-s"]);
        let ours = all.lines().filter(|line| line.contains(&path));
        ours.map(str::to_owned).collect()
    };
    assert_eq!(exported(), [""; 0]);
    publish(&driver, "a").await;
    publish(&driver, "b").await;
    assert_eq!(exported().len(), 2);
    unpublish(&driver, "a").await;
    let left = exported();
    assert!(left.len() == 1 && left[0].contains("192.0.2.8"), "{left:?}");
    remove(&driver).await;
}
