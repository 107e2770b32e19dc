//! The clients on real nfsd and samba, over the wire, with shares that they mount themselves.
//!
//! It exports a directory of this machine and stops its servers, and leaves nothing behind. It needs root and
//! a machine whose servers may be stopped: it is run in the lab, by
//! `cargo test -p driver-directory --test shares_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what others do on the storage host is done past the runner"
)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use csi_types::AbsolutePath;
use driver_core::config::{Document, NoEnvironment};
use driver_core::contract::{Fresh, keep_contract};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, DeleteVolume, Driver, Error, Kind, Lister as _, NodeId,
    Parameters, SizeRange, Snapshot, SnapshotName, Snapshots as _, TopologyRequirement, VolumeId,
    VolumeName,
};
use driver_directory::{DirectoryDriver, from_document};
use node_utils::Tools;
use node_utils::host::run;
use node_utils::mount::MountTable;

const SHARED: &str = "/srv/omnibus-shares";
const SMB_SHARE: &str = "omnibus";
const GRACE: &str = "/etc/nfs.conf.d/omnibus.conf";

/// A protocol, and the keys with which the lab's server lets this machine in.
#[derive(Debug, Clone, Copy)]
struct Client {
    section: &'static str,
    base: &'static str,
    login: &'static str,
}

const NFS: Client = Client {
    section: "nfs",
    base: SHARED,
    login: "nfsvers=4.2",
};
const SMB: Client = Client {
    section: "smb",
    base: SMB_SHARE,
    login: "username=csi,password=lab-password",
};

/// The folders that the server shares, until it is dropped.
struct Server;

/// Also after a start of the server, which forgets it.
fn export() {
    let options = "rw,no_root_squash,no_subtree_check,fsid=77";
    let export = format!("127.0.0.1:{SHARED}");
    run("exportfs", &["-o", options, &export]);
}

impl Server {
    fn start() -> Self {
        let _ = std::fs::remove_dir_all(SHARED);
        std::fs::create_dir_all(SHARED).unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(SHARED, all).unwrap();
        export();
        let add = ["usershare", "add", SMB_SHARE, SHARED, "", "S-1-1-0:F"];
        run("net", &[&add[..], &["guest_ok=n"]].concat());
        Self
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let export = format!("127.0.0.1:{SHARED}");
        for command in [
            &["exportfs", "-u", &export][..],
            &["net", "usershare", "delete", SMB_SHARE],
        ] {
            let _ = Command::new(command[0]).args(&command[1..]).output();
        }
        let _ = std::fs::remove_dir_all(SHARED);
        let _ = std::fs::remove_file(GRACE);
    }
}

/// A driver whose base is the directory `below` of the share, and its own folder for mounts.
fn driver(client: Client, below: &str, login: &str, records: &Path, keys: &str) -> DirectoryDriver {
    let on_the_server = Path::new(SHARED).join(below);
    std::fs::create_dir_all(&on_the_server).unwrap();
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&on_the_server, all).unwrap();
    let Client { section, base, .. } = client;
    let text = format!(
        "driver: {section}-client\n{section}:\n  shareHost: 127.0.0.1\n  \
         shareBasePath: {base}/{below}\n  mountOptions: '{login}'\n{keys}"
    );
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let node = NodeId::parse("node-1").unwrap();
    let records = AbsolutePath::parse(records.to_str().unwrap()).unwrap();
    let tools = Tools::of_this_machine();
    from_document(&document, &node, Some(&records), Some(&tools)).unwrap()
}

fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

fn id(name: &str) -> VolumeId {
    VolumeId::parse(name).unwrap()
}

async fn create(driver: &DirectoryDriver, name: &str) -> Result<(), Error> {
    let request = CreateVolume {
        name: VolumeName::parse(name).unwrap(),
        id: id(name),
        size: SizeRange::new(1 << 20, 0).unwrap(),
        capabilities: Vec::new(),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source: None,
        topology: TopologyRequirement::default(),
    };
    driver.create_volume(&call(), &request).await.map(drop)
}

/// The folders that drivers have mounted in folders of their own; the tests run one after the other.
fn mounted() -> Vec<PathBuf> {
    let table = MountTable::read().unwrap();
    let points = table.entries().map(|entry| entry.point().into_owned());
    points
        .filter(|point| point.starts_with("/run/omnibus-csi-shares"))
        .collect()
}

async fn keeps_the_contract(client: Client) {
    let _server = Server::start();
    let number = AtomicUsize::new(0);
    keep_contract(|| async {
        let records = tempfile::tempdir().unwrap();
        let below = number.fetch_add(1, Ordering::Relaxed).to_string();
        let driver = driver(client, &below, client.login, records.path(), "");
        // Nothing is reported as deleted from a base that was never used.
        create(&driver, "first").await.unwrap();
        driver
            .delete_volume(&call(), DeleteVolume::new(&id("first")))
            .await
            .unwrap();
        Fresh::new(Arc::new(driver), records).grouping(&[("consistency", "none")])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd: run it in the lab"]
async fn volumes_of_nfs_client_on_a_share_that_it_mounts_keep_the_contract() {
    keeps_the_contract(NFS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs samba: run it in the lab"]
async fn volumes_of_smb_client_on_a_share_that_it_mounts_keep_the_contract() {
    keeps_the_contract(SMB).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn a_share_that_keeps_locks_from_others_is_doubtful_as_the_kernel_mounted_it() {
    let _server = Server::start();
    // A folder for each: what NFS makes is of root, and the user of SMB may not write there.
    for (client, below, login, doubt) in [
        (NFS, "three", "nfsvers=3,nolock", Some("nolock")),
        (NFS, "four", "nfsvers=4.2", None),
        (
            SMB,
            "smb",
            "username=csi,password=lab-password,nobrl",
            Some("nobrl"),
        ),
    ] {
        let records = tempfile::tempdir().unwrap();
        let driver = driver(client, below, login, records.path(), "");
        create(&driver, "first").await.unwrap();
        let found = driver.describe(&call()).await;
        let locks = found.iter().find(|found| found.message.contains("locks"));
        let said = locks.map(|found| found.message.as_str());
        let expected = doubt.map(|option| said.is_some_and(|said| said.contains(option)));
        assert_eq!(expected, said.map(|_| true), "{login}: {found:?}");
        driver
            .delete_volume(&call(), DeleteVolume::new(&id("first")))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn connections_to_one_server_are_mounted_side_by_side_and_go_one_by_one() {
    let _server = Server::start();
    let records = tempfile::tempdir().unwrap();
    let other = "username=csi,password=lab-password,vers=3.0";
    let drivers = [
        driver(NFS, "a", NFS.login, records.path(), ""),
        driver(NFS, "b", NFS.login, records.path(), ""),
        driver(SMB, "c", SMB.login, records.path(), ""),
        driver(SMB, "c", other, records.path(), ""),
    ];
    assert!(mounted().is_empty());
    for (number, driver) in drivers.iter().enumerate() {
        create(driver, &format!("pvc-{number}")).await.unwrap();
    }
    assert_eq!(mounted().len(), 4);
    for path in ["a/v/pvc-0", "b/v/pvc-1", "c/v/pvc-2", "c/v/pvc-3"] {
        assert!(Path::new(SHARED).join(path).is_dir(), "{path}");
    }
    // No argument and no line of the mount table shows the password.
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains("lab-password"));
    let mut left = drivers.len();
    for driver in drivers {
        tokio::task::spawn_blocking(move || drop(driver))
            .await
            .unwrap();
        left -= 1;
        assert_eq!(mounted().len(), left);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs samba: run it in the lab"]
async fn a_wrong_password_or_a_missing_directory_is_no_empty_base() {
    let _server = Server::start();
    let records = tempfile::tempdir().unwrap();
    let wrong = driver(SMB, "a", "username=csi,password=wrong", records.path(), "");
    let missing = driver(NFS, "b", NFS.login, records.path(), "");
    std::fs::remove_dir(Path::new(SHARED).join("b")).unwrap();
    for driver in [wrong, missing] {
        let error = driver
            .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        assert!(!error.chain().contains("wrong,"), "{}", error.chain());
    }
    assert!(mounted().is_empty());
}

/// The server is stopped under a mounted share: calls of its connection get an error in time, calls of
/// another one are served, and after its return all is well.
async fn outlives_its_server(client: Client, other: Client, service: &str) {
    let _server = Server::start();
    let records = tempfile::tempdir().unwrap();
    let one = driver(client, "a", client.login, records.path(), "");
    let two = driver(other, "b", other.login, records.path(), "");
    create(&one, "pvc-1").await.unwrap();
    create(&two, "pvc-2").await.unwrap();
    // How long nfsd waits after its start for clients that knew it before.
    std::fs::create_dir_all("/etc/nfs.conf.d").unwrap();
    std::fs::write(GRACE, "[nfsd]\ngrace-time=5\n").unwrap();
    run("systemctl", &["stop", service]);
    // An answer counts for a second: a call in it would wait for the server, as long as its caller lets it.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let began = Instant::now();
    let short = Call::within(Duration::from_secs(50));
    let first = id("pvc-1");
    let absent = tokio::join!(one.get_volume(&short, &first), async {
        let began = Instant::now();
        two.get_volume(&call(), &id("pvc-2")).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "{began:?}");
    });
    let outcome = absent.0.map(drop);
    let took = began.elapsed();
    run("systemctl", &["start", service]);
    export();
    if let Err(error) = outcome {
        assert!(
            matches!(error.kind(), Kind::Unreachable | Kind::Timeout),
            "{}",
            error.chain()
        );
    }
    assert!(took < Duration::from_mins(1), "{took:?}");
    let back = Instant::now() + Duration::from_mins(3);
    while let Err(error) = create(&one, "pvc-3").await {
        assert!(Instant::now() < back, "{}", error.chain());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    one.get_volume(&call(), &id("pvc-1")).await.unwrap();
    assert!(Path::new(SHARED).join("a/v/pvc-3").is_dir());
    assert_eq!(mounted().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn nfs_client_outlives_its_server() {
    outlives_its_server(NFS, SMB, "nfs-server").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn smb_client_outlives_its_server() {
    outlives_its_server(SMB, NFS, "smbd").await;
}

/// Files of a volume.
const FILES: usize = 240;

/// A slow network, until it is dropped: a copy takes seconds.
struct Slow;

impl Slow {
    fn begin() -> Self {
        let netem = ["replace", "dev", "lo", "root", "netem", "delay", "20ms"];
        run("tc", &[&["qdisc"], &netem[..]].concat());
        Self
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        run("tc", &["qdisc", "del", "dev", "lo", "root"]);
    }
}

async fn snapshot(driver: &DirectoryDriver, volume: &str) -> Result<Snapshot, Error> {
    let request = CreateSnapshot {
        name: SnapshotName::parse("one").unwrap(),
        source: id(volume),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
    };
    let short = Call::within(Duration::from_secs(50));
    driver.create_snapshot(&short, &request).await
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

/// What a folder has, apart from the lock of its renames, which stays.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name != ".omnibus-csi.lock").collect()
}

/// Files of copies that are being made.
fn copied(base: &Path) -> usize {
    let Ok(copies) = std::fs::read_dir(base.join(".omnibus-csi/making")) else {
        return 0;
    };
    let copies = copies.flatten().map(|copy| copy.path());
    let folders = copies.flat_map(|copy| {
        let inner = std::fs::read_dir(&copy).into_iter().flatten().flatten();
        let inner: Vec<_> = inner.map(|entry| entry.path()).collect();
        inner.into_iter().chain([copy])
    });
    folders.map(|folder| files_in(&folder)).max().unwrap_or(0)
}

/// Something happens to the server or to the mount in the middle of a copy: what is not whole is never a
/// snapshot, the same call makes it in the end, and nothing is left of what was not.
async fn survives_in_mid_copy(client: Client, hurt: impl Fn(), heal: impl Fn()) {
    let _server = Server::start();
    let records = tempfile::tempdir().unwrap();
    let driver = driver(client, "a", client.login, records.path(), "");
    let base = Path::new(SHARED).join("a");
    create(&driver, "pvc-1").await.unwrap();
    for number in 0..FILES {
        std::fs::write(base.join(format!("v/pvc-1/{number}")), vec![7; 4096]).unwrap();
    }
    std::fs::create_dir_all("/etc/nfs.conf.d").unwrap();
    std::fs::write(GRACE, "[nfsd]\ngrace-time=5\n").unwrap();
    let slow = Slow::begin();
    let is_hurt = async {
        let deadline = Instant::now() + Duration::from_mins(1);
        while copied(&base) < FILES / 10 {
            assert!(Instant::now() < deadline, "the copy does not begin");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        hurt();
        let seen = copied(&base);
        assert!(seen < FILES, "the copy was over");
        assert!(!base.join("s/pvc-1-one").exists());
        drop(slow);
    };
    let began = Instant::now();
    let (taken, ()) = tokio::join!(snapshot(&driver, "pvc-1"), is_hurt);
    assert!(began.elapsed() < Duration::from_mins(2));
    let whole = base.join("s/pvc-1-one");
    if let Err(error) = taken {
        assert!(
            !matches!(error.kind(), Kind::NotFound | Kind::Conflict),
            "{}",
            error.chain()
        );
    }
    // A share that is unmounted serves what is open, so that the copy may be there: then it is whole.
    if whole.exists() {
        assert_eq!(files_in(&whole), FILES);
    }
    heal();
    let back = Instant::now() + Duration::from_mins(10);
    loop {
        match snapshot(&driver, "pvc-1").await {
            Ok(taken) if taken.ready => break,
            other => {
                let seen = other.map(|_| "not ready").map_err(|error| error.chain());
                assert!(Instant::now() < back, "{seen:?}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
    assert_eq!(files_in(&whole), FILES);
    assert_eq!(names_in(&base.join("s")), ["pvc-1-one"]);
    // What the copy that failed left is removed with the next work, if not at once.
    let deadline = Instant::now() + Duration::from_mins(2);
    while copied(&base) > 0 {
        assert!(Instant::now() < deadline, "the copy that failed is left");
        let _ = create(&driver, "pvc-2").await;
        let _ = driver
            .delete_volume(&call(), DeleteVolume::new(&id("pvc-2")))
            .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await
        .unwrap();
    assert!(!base.join("v/pvc-1").exists(), "what is deleted is gone");
}

fn restart(service: &'static str) -> (impl Fn(), impl Fn()) {
    let stop = move || drop(run("systemctl", &["stop", service]));
    let start = move || {
        run("systemctl", &["start", service]);
        export();
    };
    (stop, start)
}

fn unmount() {
    for point in mounted() {
        run("umount", &["--lazy", point.to_str().unwrap()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn a_copy_outlives_its_server_on_nfs() {
    let (stop, start) = restart("nfs-server");
    survives_in_mid_copy(NFS, stop, start).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn a_copy_outlives_its_server_on_smb() {
    let (stop, start) = restart("smbd");
    survives_in_mid_copy(SMB, stop, start).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn a_share_that_is_unmounted_in_mid_copy_is_never_taken_for_empty() {
    survives_in_mid_copy(NFS, unmount, || {}).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and samba: run it in the lab"]
async fn a_share_that_is_unmounted_under_a_driver_is_never_taken_for_empty() {
    let _server = Server::start();
    let records = tempfile::tempdir().unwrap();
    for client in [NFS, SMB] {
        let driver = driver(client, client.section, client.login, records.path(), "");
        create(&driver, "pvc-1").await.unwrap();
        unmount();
        let volume = Path::new(SHARED).join(client.section).join("v/pvc-1");
        let deadline = Instant::now() + Duration::from_mins(2);
        while let Err(error) = driver
            .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
            .await
        {
            assert!(volume.exists(), "{}", error.chain());
            assert!(Instant::now() < deadline, "{}", error.chain());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(!volume.exists(), "what is deleted is gone");
    }
}
