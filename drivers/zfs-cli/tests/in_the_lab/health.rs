//! The health of volumes on real ZFS: a pool that lacks a device, one that is suspended, a quota that is full, a key
//! that is not loaded.
//!
//! What happens to a whole pool happens to one of its own, made of files. It is destroyed however its test ends.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use driver_core::{
    Call, ConditionKind, Driver as _, Health as _, HealthQuery, Lister as _, PageRequest, VolumeId,
};
use driver_zfs::observed::VolumeKind;
use tokio::time::timeout;

use crate::ground::{Ground, RealDriver, driver_below, zfs};
use crate::{call, request};

/// The longest that the driver may take for an answer, whatever the pool does. The processor of the machine may be
/// emulated.
const LOOK: Duration = Duration::from_secs(20);
/// The longest that the machine may take for a command, or to come to a state.
const SETTLING: Duration = Duration::from_mins(2);
/// The size of a device of a pool, in bytes. The files are sparse.
const SIZE: u64 = 256 << 20;
/// The conditions of a volume with which nothing is wrong.
const WELL: [(ConditionKind, String); 0] = [];

/// Runs a command of the machine, and returns what it says. It is not waited for without a limit: what waits for a pool
/// that is suspended cannot be killed.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let doing = format!("{program} {arguments:?}");
    let mut output = tempfile::tempfile().unwrap();
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output.try_clone().unwrap())
        .spawn()
        .map_err(|error| format!("{doing}: {error}"))?;
    let status = ended(&mut child).ok_or_else(|| format!("{doing} does not end"))?;
    let mut said = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut said).unwrap();
    if status.success() {
        Ok(said)
    } else {
        Err(format!("{doing}: {status}: {said}"))
    }
}

/// How a process ends, if it does in time.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < SETTLING {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    None
}

/// A disk that can be broken, for as long as it lives: a map over a loop device.
struct Disk {
    name: String,
    below: String,
}

impl Disk {
    /// A disk with this name over this file.
    fn new(name: String, file: &str) -> Self {
        let below = run("losetup", &["--find", "--show", file]).unwrap();
        let below = below.trim().to_owned();
        let disk = Self { name, below };
        let table = disk.table(true);
        run("dmsetup", &["create", &disk.name, "--table", &table]).unwrap();
        run("udevadm", &["wait", "--timeout=30", &disk.path()]).unwrap();
        disk
    }

    fn path(&self) -> String {
        format!("/dev/mapper/{}", self.name)
    }

    fn table(&self, works: bool) -> String {
        let sectors = SIZE / 512;
        if works {
            format!("0 {sectors} linear {} 0", self.below)
        } else {
            format!("0 {sectors} error")
        }
    }

    /// From now on it works, or every access to it fails.
    fn set_working(&self, works: bool) -> Result<(), String> {
        let table = self.table(works);
        run("dmsetup", &["load", &self.name, "--table", &table])?;
        run("dmsetup", &["resume", "--nolockfs", &self.name])?;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let removed = [
            run("dmsetup", &["remove", "--retry", &self.name]),
            run("losetup", &["--detach", &self.below]),
        ];
        let is_gone = removed.iter().all(Result::is_ok);
        assert!(is_gone || std::thread::panicking(), "{removed:?}");
    }
}

/// A pool of its own, for as long as it lives. What it stands on goes after it.
struct Pool {
    name: String,
    disk: Option<Disk>,
    folder: tempfile::TempDir,
}

impl Pool {
    /// A name and a place for a pool.
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            name: format!("omnibus-health-{}-{number}", std::process::id()),
            disk: None,
            // Not `/tmp`, which may be in memory.
            folder: tempfile::tempdir_in("/var/tmp").unwrap(),
        }
    }

    fn file(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Makes it of these devices, with the parent of its volumes.
    fn create(&self, devices: &[&str]) {
        let arguments = [
            "create",
            "-f",
            "-o",
            "ashift=12",
            "-o",
            "cachefile=none",
            "-o",
            "failmode=wait",
            &self.name,
        ];
        run("zpool", &[&arguments[..], devices].concat()).unwrap();
        zfs(&["create", &format!("{}/v", self.name)]);
    }

    fn driver(&self) -> RealDriver {
        driver_below(&self.name, None, VolumeKind::Filesystem, "")
    }

    /// How it is, as `zpool` calls that.
    fn state(&self) -> Result<String, String> {
        let state = run("zpool", &["list", "-H", "-o", "health", &self.name])?;
        Ok(state.trim().to_owned())
    }

    /// Lets the disk below it work again, and then the pool.
    fn repair(&self) -> Result<(), String> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        disk.set_working(true)?;
        let began = Instant::now();
        loop {
            let cleared = run("zpool", &["clear", &self.name]);
            let state = self.state()?;
            if state == "ONLINE" {
                return Ok(());
            }
            if began.elapsed() > SETTLING {
                return Err(format!("it is {state}: {cleared:?}"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // What destroys a pool waits for it as long as it is suspended.
        let repaired = self.repair();
        let began = Instant::now();
        let destroyed = loop {
            let destroyed = run("zpool", &["destroy", "-f", &self.name]);
            // What waited to write to it may not have ended yet.
            let is_busy = destroyed.as_ref().is_err_and(|said| said.contains("busy"));
            if !is_busy || began.elapsed() > SETTLING {
                break destroyed;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        let is_gone = repaired.is_ok() && destroyed.is_ok();
        let said = [repaired, destroyed.map(drop)];
        assert!(is_gone || std::thread::panicking(), "{said:?}");
    }
}

/// The conditions of the volume that is asked for, each as its reason and its text.
async fn asked(driver: &RealDriver, query: HealthQuery<'_>) -> Vec<(ConditionKind, String)> {
    let now = Call::within(LOOK);
    let found = timeout(LOOK, driver.conditions(&now, query)).await;
    let mut found = found.expect("its health is not known in time").unwrap();
    let conditions = found.pop().flatten().expect("it does not exist");
    let text = |reason: &str, message: &str| format!("{reason}: {message}");
    conditions
        .iter()
        .map(|one| (one.kind(), text(one.reason().as_str(), one.message())))
        .collect()
}

/// All that is known to be wrong with a volume.
async fn health(driver: &RealDriver, id: &str) -> Vec<(ConditionKind, String)> {
    let id = VolumeId::parse(id).unwrap();
    asked(driver, HealthQuery::of_one(&id)).await
}

/// Waits until a volume has this condition and no other one, or none at all.
async fn comes_to(driver: &RealDriver, id: &str, reason: Option<(ConditionKind, &str)>) {
    let began = Instant::now();
    loop {
        let found = health(driver, id).await;
        let is_there = match (found.as_slice(), reason) {
            ([], None) => true,
            ([(kind, text)], Some((wanted, reason))) => {
                *kind == wanted && text.starts_with(&format!("{reason}: "))
            }
            _ => false,
        };
        if is_there {
            return;
        }
        assert!(began.elapsed() < SETTLING, "{found:?}, not {reason:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn make(driver: &RealDriver, id: &str, size: i64) {
    let made = request(id, size, None);
    driver.create_volume(&call(), &made).await.unwrap();
    comes_to(driver, id, None).await;
}

/// Writes to a file until there is no more room.
fn fill(path: &str) {
    let to = format!("of={path}");
    let said = run("dd", &["if=/dev/urandom", &to, "bs=128k"]).unwrap_err();
    assert!(said.contains("Disk quota exceeded"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_pool_that_lacks_a_device_is_a_condition_until_it_is_back() {
    let pool = Pool::new();
    let devices = [pool.file("a"), pool.file("b")];
    pool.create(&["mirror", &devices[0], &devices[1]]);
    let driver = pool.driver();
    make(&driver, "v", 64 << 20).await;

    run("zpool", &["offline", &pool.name, &devices[0]]).unwrap();
    assert_eq!(pool.state().unwrap(), "DEGRADED");
    let found = health(&driver, "v").await;
    let text = format!(
        "PoolDegraded: pool `{}` is degraded: see `zpool status` on the storage",
        pool.name
    );
    assert_eq!(found, [(ConditionKind::Degraded, text)]);
    // It can still be used.
    std::fs::write(format!("/{}/v/v/file", pool.name), "content").unwrap();

    run("zpool", &["online", &pool.name, &devices[0]]).unwrap();
    comes_to(&driver, "v", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_volume_without_room_is_full_by_its_quota_or_by_one_above() {
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Filesystem, "  datasetEnableQuotas: true\n");
    let parent = format!("{}/v", ground.root);
    let file = |id: &str| format!("/{parent}/{id}/file");
    make(&driver, "a", 16 << 20).await;
    make(&driver, "b", 64 << 20).await;

    fill(&file("a"));
    let full = Some((ConditionKind::Degraded, "QuotaFull"));
    comes_to(&driver, "a", full).await;
    assert_eq!(health(&driver, "b").await, WELL);
    std::fs::remove_file(file("a")).unwrap();
    comes_to(&driver, "a", None).await;

    zfs(&["set", "quota=24M", &parent]);
    fill(&file("b"));
    let full = Some((ConditionKind::Degraded, "PoolFull"));
    comes_to(&driver, "b", full).await;
    comes_to(&driver, "a", full).await;
    zfs(&["set", "quota=none", &parent]);
    comes_to(&driver, "b", None).await;
    comes_to(&driver, "a", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_key_that_is_not_loaded_is_a_condition_and_then_that_nothing_is_mounted() {
    let ground = Ground::new();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key").display().to_string();
    std::fs::write(&key, "a phrase of a test").unwrap();
    let parent = format!("{}/v", ground.root);
    let place = format!("keylocation=file://{key}");
    zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        // The fewest that there may be: they take a while on an emulated processor.
        "-o",
        "pbkdf2iters=100000",
        "-o",
        &place,
        &parent,
    ]);
    let driver = ground.driver(VolumeKind::Filesystem, "");
    make(&driver, "a", 64 << 20).await;
    let volume = format!("{parent}/a");
    let file = format!("/{volume}/file");
    std::fs::write(&file, "content").unwrap();

    zfs(&["unmount", &volume]);
    zfs(&["unmount", &parent]);
    zfs(&["unload-key", &parent]);
    let text = format!(
        "KeyNotLoaded: the key of `{volume}` is not loaded: `zfs load-key`, then `zfs mount`"
    );
    let found = health(&driver, "a").await;
    assert_eq!(found, [(ConditionKind::Inaccessible, text)]);

    zfs(&["load-key", &parent]);
    let text =
        format!("NotMountedOnStorage: `{volume}` is not mounted on the storage: see `zfs mount`");
    let found = health(&driver, "a").await;
    assert_eq!(found, [(ConditionKind::Inaccessible, text)]);
    zfs(&["mount", &parent]);
    zfs(&["mount", &volume]);
    assert_eq!(health(&driver, "a").await, WELL);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_pool_that_is_suspended_is_a_condition_in_time_and_another_pool_answers() {
    const WRITTEN: u64 = 8 << 20;
    let ground = Ground::new();
    let beside = ground.driver(VolumeKind::Filesystem, "");
    make(&beside, "b", 64 << 20).await;
    let mut pool = Pool::new();
    let disk = Disk::new(pool.name.clone(), &pool.file("disk"));
    let path = disk.path();
    pool.disk = Some(disk);
    pool.create(&[&path]);
    let driver = pool.driver();
    make(&driver, "a", 64 << 20).await;
    let file = format!("/{}/v/a/file", pool.name);
    std::fs::write(&file, [1; 4096]).unwrap();
    run("zpool", &["sync", &pool.name]).unwrap();

    pool.disk.as_ref().unwrap().set_working(false).unwrap();
    // It waits for the pool, so this process does not wait for it.
    let mut writer = Command::new("dd")
        .args(["if=/dev/urandom", &format!("of={file}")])
        .args(["bs=1M", "count=8", "conv=notrunc,fsync"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    loop {
        let state = pool.state().unwrap();
        if state == "SUSPENDED" {
            break;
        }
        assert!(began.elapsed() < SETTLING, "the pool is {state}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    let text = format!(
        "PoolUnusable: pool `{}` is SUSPENDED: see `zpool status` on the storage",
        pool.name
    );
    let suspended = [(ConditionKind::Inaccessible, text)];
    let id = VolumeId::parse("a").unwrap();
    for _ in 0..3 {
        let began = Instant::now();
        assert_eq!(health(&driver, "a").await, suspended);
        let list = HealthQuery::of_storage(std::slice::from_ref(&id));
        assert_eq!(asked(&driver, list).await, suspended);
        println!("asked twice in {:?}", began.elapsed());
        let began = Instant::now();
        assert_eq!(health(&beside, "b").await, WELL);
        assert_eq!(listed(&beside).await.unwrap(), ["b"]);
        println!("another pool answered twice in {:?}", began.elapsed());
    }
    let own = listed(&driver).await;
    println!("its own list: {own:?}");
    assert!(writer.try_wait().unwrap().is_none(), "it waits");

    pool.repair().unwrap();
    comes_to(&driver, "a", None).await;
    assert_eq!(listed(&driver).await.unwrap(), ["a"]);
    // What waited for the pool is written.
    let status = ended(&mut writer).expect("it does not go on");
    assert!(status.success(), "{status}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), WRITTEN);
}

/// The volumes of a list, or why there is none. It ends in time.
async fn listed(driver: &RealDriver) -> Result<Vec<String>, String> {
    let (now, page) = (Call::within(LOOK / 2), PageRequest::default());
    let listed = timeout(LOOK, driver.list_volumes(&now, &page)).await;
    let page = listed
        .expect("a list does not end")
        .map_err(|error| error.chain())?;
    let ids = page.entries.iter().map(|volume| volume.id.to_string());
    Ok(ids.collect())
}
