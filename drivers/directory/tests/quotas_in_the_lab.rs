//! Sizes that XFS and ext4 enforce, on filesystems in files with `prjquota`.
//!
//! It mounts, exports a directory and writes as another user, and leaves nothing behind. It needs root and a
//! kernel with project quotas: it is run in the lab, by
//! `cargo test -p driver-directory --test quotas_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "filesystems are made and written past the runner"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, Driver, Expander as _, Kind, NodeId, Parameters, SizeRange,
    SnapshotName, Snapshots as _, Source, TopologyRequirement, Volume, VolumeId, VolumeName,
};
use driver_directory::{DirectoryDriver, from_document};
use node_utils::projects;

const MIB: u64 = 1 << 20;
const FILESYSTEMS: [Filesystem; 2] = [
    Filesystem {
        name: "xfs",
        make: &["mkfs.xfs", "-q"],
    },
    Filesystem {
        name: "ext4",
        make: &[
            "mkfs.ext4",
            "-q",
            "-O",
            "quota,project",
            "-E",
            "quotatype=prjquota",
        ],
    },
];

#[derive(Debug, Clone, Copy)]
struct Filesystem {
    name: &'static str,
    make: &'static [&'static str],
}

/// A filesystem in a file, mounted until it is dropped.
struct Image {
    dir: tempfile::TempDir,
}

fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn run(program: &str, arguments: &[&str]) {
    let output = output(program, arguments);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Image {
    fn mount(filesystem: Filesystem, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { dir };
        let file = image.dir.path().join("image");
        File::create(&file).unwrap().set_len(512 * MIB).unwrap();
        let [program, arguments @ ..] = filesystem.make else {
            panic!("no program");
        };
        run(program, &[arguments, &[text(&file)]].concat());
        std::fs::create_dir(image.top()).unwrap();
        let options = format!("loop{options}");
        run("mount", &["-o", &options, text(&file), text(&image.top())]);
        image
    }

    fn with_quotas(filesystem: Filesystem) -> Self {
        Self::mount(filesystem, ",prjquota")
    }

    fn top(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    fn base(&self) -> PathBuf {
        self.top().join("base")
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.base().join("v").join(name)
    }

    fn driver(&self, keys: &str) -> DirectoryDriver {
        let base = self.base();
        let base = text(&base);
        driver(&format!(
            "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {base}\n  \
             controllerBasePath: {base}\n  dirPermissionsMode: '0777'\n{keys}"
        ))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        output("umount", &[text(&self.top())]);
    }
}

fn driver(text: &str) -> DirectoryDriver {
    let document = Document::parse(text, &NoEnvironment).unwrap();
    let node = NodeId::parse("node-1").unwrap();
    from_document(&document, &node, None, None).unwrap()
}

fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

fn id(name: &str) -> VolumeId {
    VolumeId::parse(name).unwrap()
}

fn size(bytes: u64) -> SizeRange {
    SizeRange::new(i64::try_from(bytes).unwrap(), 0).unwrap()
}

fn request(name: &str, bytes: u64, source: Option<Source>) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse(name).unwrap(),
        id: id(name),
        size: size(bytes),
        capabilities: Vec::new(),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source,
        topology: TopologyRequirement::default(),
    }
}

async fn create(driver: &DirectoryDriver, name: &str, bytes: u64) -> Volume {
    fill(driver, name, bytes, None).await
}

async fn fill(driver: &DirectoryDriver, name: &str, bytes: u64, source: Option<Source>) -> Volume {
    driver
        .create_volume(&call(), &request(name, bytes, source))
        .await
        .unwrap_or_else(|error| panic!("{}", error.chain()))
}

async fn grow(driver: &DirectoryDriver, name: &str, bytes: u64) {
    let grown = driver.expand_volume(&call(), &id(name), size(bytes)).await;
    assert_eq!(grown.unwrap().capacity, bytes);
}

async fn snapshot(driver: &DirectoryDriver, volume: &str, name: &str) -> Source {
    let request = CreateSnapshot {
        name: SnapshotName::parse(name).unwrap(),
        source: id(volume),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
    };
    let taken = driver.create_snapshot(&call(), &request).await.unwrap();
    Source::Snapshot(taken.id)
}

/// Writes to a file of the directory, as a pod without privileges, until `bytes` are there or no more can be;
/// gives what there is, and what was said.
fn write(dir: &Path, name: &str, bytes: u64) -> (u64, String) {
    let file = dir.join(name);
    let script = format!(
        "dd if=/dev/zero of={} bs=64k count={} conv=fsync",
        text(&file),
        bytes / 65_536
    );
    let output = output(
        "setpriv",
        &[
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            &script,
        ],
    );
    let written = file.metadata().map_or(0, |file| file.len());
    (written, String::from_utf8(output.stderr).unwrap())
}

/// Asserts that `write` was stopped at about that many bytes: some are for the directory itself.
fn assert_stopped(written: (u64, String), at: u64, what: &str) {
    let (bytes, said) = written;
    assert!(
        said.contains("No space left on device") || said.contains("Disk quota exceeded"),
        "{what}: {said}"
    );
    assert!(bytes <= at, "{what}: {bytes} of {at}");
    assert!(bytes > at - MIB, "{what}: {bytes} of {at}");
}

/// What `df` shows of a directory, as `NodeGetVolumeStats` does.
fn shown(dir: &Path) -> (u64, u64) {
    let stat = rustix::fs::statvfs(dir).unwrap();
    let total = stat.f_blocks * stat.f_frsize;
    (total, total - stat.f_bfree * stat.f_frsize)
}

fn project(path: &Path) -> u32 {
    projects::project(File::open(path).unwrap()).unwrap().id
}

fn quota(image: &Image, project: u32) -> projects::Quota {
    projects::quota(File::open(image.top()).unwrap(), project).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with project quotas: run it in the lab"]
async fn a_pod_that_writes_more_than_the_size_of_its_volume_is_stopped() {
    for filesystem in FILESYSTEMS {
        let name = filesystem.name;
        let image = Image::with_quotas(filesystem);
        let driver = image.driver("  quotas: require\n");
        assert!(driver.probe(&call()).await.is_empty(), "{name}");
        create(&driver, "one", 24 * MIB).await;
        create(&driver, "two", 8 * MIB).await;
        let one = image.volume("one");
        assert_eq!(shown(&one).0, 24 * MIB, "{name}");
        assert!(driver.probe(&call()).await.is_empty(), "{name}");

        assert_stopped(write(&one, "file", 64 * MIB), 24 * MIB, name);
        let (total, used) = shown(&one);
        assert!(used > 23 * MIB && used <= total, "{name}: {used}");
        // The other one has its own size.
        assert_stopped(write(&image.volume("two"), "file", 64 * MIB), 8 * MIB, name);

        grow(&driver, "one", 48 * MIB).await;
        assert_eq!(shown(&one).0, 48 * MIB, "{name}");
        let (mut more, said) = write(&one, "more", 64 * MIB);
        more += one.join("file").metadata().unwrap().len();
        assert_stopped((more, said), 48 * MIB, name);

        // As the kubelet sees it: by a bind mount.
        let target = image.dir.path().join("target");
        std::fs::create_dir(&target).unwrap();
        run("mount", &["--bind", text(&one), text(&target)]);
        assert_eq!(shown(&target).0, 48 * MIB, "{name}");
        run("umount", &[text(&target)]);

        // A retry that finds a limit which was raised, and a record which was not.
        let top = File::open(image.top()).unwrap();
        projects::set_limit(&top, project(&one), 96 * MIB).unwrap();
        grow(&driver, "one", 96 * MIB).await;
        assert_eq!(shown(&one).0, 96 * MIB, "{name}");
        // It grows where new volumes get no limit, too.
        let plain = image.driver("");
        grow(&plain, "one", 128 * MIB).await;
        assert_eq!(shown(&one).0, 128 * MIB, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with project quotas: run it in the lab"]
async fn what_is_made_of_a_volume_has_a_limit_of_its_own_and_a_snapshot_has_none() {
    for filesystem in FILESYSTEMS {
        let name = filesystem.name;
        let image = Image::with_quotas(filesystem);
        let driver = image.driver("  quotas: require\n");
        create(&driver, "src", 16 * MIB).await;
        let src = image.volume("src");
        std::fs::create_dir_all(src.join("a/b")).unwrap();
        std::fs::write(src.join("a/b/file"), vec![7; 3 << 20]).unwrap();
        std::fs::hard_link(src.join("a/b/file"), src.join("linked")).unwrap();
        let taken = snapshot(&driver, "src", "one").await;
        fill(&driver, "restored", 16 * MIB, Some(taken)).await;
        fill(&driver, "clone", 32 * MIB, Some(Source::Volume(id("src")))).await;
        let mut ids = BTreeSet::new();
        for (volume, bytes) in [("src", 16), ("restored", 16), ("clone", 32)] {
            let path = image.volume(volume);
            assert!(ids.insert(project(&path)), "{name}: {volume}");
            assert_eq!(shown(&path).0, bytes * MIB, "{name}: {volume}");
            assert!(shown(&path).1 >= 3 * MIB, "{name}: {volume}");
            for below in ["a", "a/b", "a/b/file", "linked"] {
                assert_eq!(
                    project(&path.join(below)),
                    project(&path),
                    "{name}: {below}"
                );
            }
            let used = std::fs::metadata(path.join("linked")).unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::nlink(&used), 2, "{name}");
        }
        assert_eq!(project(&image.base().join("s/src-one/a")), 0, "{name}");
        let (more, said) = write(&image.volume("restored"), "more", 64 * MIB);
        assert_stopped((more + 3 * MIB, said), 16 * MIB, name);

        // What has more than its size, as its size was not enforced, is copied all the same.
        let plain = image.driver("");
        create(&plain, "full", 4 * MIB).await;
        std::fs::write(image.volume("full").join("file"), vec![7; 12 << 20]).unwrap();
        let full = Some(Source::Volume(id("full")));
        fill(&driver, "less", 4 * MIB, full).await;
        let less = image.volume("less");
        assert_eq!(less.join("file").metadata().unwrap().len(), 12 * MIB);
        assert_eq!(write(&less, "more", MIB).0, 0, "{name}");
        let small = driver
            .expand_volume(&call(), &id("less"), size(8 * MIB))
            .await;
        assert_eq!(small.unwrap_err().kind(), Kind::OutOfRange, "{name}");
        grow(&driver, "less", 13 * MIB + MIB / 2).await;
        assert_stopped(write(&less, "more", 4 * MIB), 3 * MIB / 2, name);
        std::fs::remove_file(less.join("more")).unwrap();
        std::fs::remove_file(less.join("file")).unwrap();
        assert_eq!(write(&less, "more", MIB).0, MIB, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with project quotas: run it in the lab"]
async fn a_deleted_volume_gives_its_limit_back_and_that_of_no_other_volume() {
    for filesystem in FILESYSTEMS {
        let name = filesystem.name;
        let image = Image::with_quotas(filesystem);
        let driver = image.driver("  quotas: require\n");
        for volume in ["empty", "full", "cut", "kept", "forger"] {
            create(&driver, volume, 8 * MIB).await;
        }
        for volume in ["full", "cut", "kept", "forger"] {
            std::fs::write(image.volume(volume).join("file"), "x").unwrap();
        }
        let limit = |id| quota(&image, id).limit;
        for volume in ["empty", "full"] {
            let own = project(&image.volume(volume));
            assert_eq!(limit(own), 8 * MIB, "{name}: {volume}");
            driver.delete_volume(&call(), &id(volume)).await.unwrap();
            assert_eq!(limit(own), 0, "{name}: {volume}");
        }
        // A call that ends when the volume has lost its name: the next one finishes.
        let own = project(&image.volume("cut"));
        let none = Call::within(Duration::ZERO);
        driver.delete_volume(&none, &id("cut")).await.unwrap_err();
        driver.delete_volume(&call(), &id("cut")).await.unwrap();
        assert_eq!(limit(own), 0, "{name}");

        // The owner of files may give them any project.
        let kept = project(&image.volume("kept"));
        let forger = File::open(image.volume("forger")).unwrap();
        projects::assign(&forger, kept).unwrap();
        grow(&driver, "forger", 64 * MIB).await;
        drop(forger);
        driver.delete_volume(&call(), &id("forger")).await.unwrap();
        assert_eq!(limit(kept), 8 * MIB, "{name}");
        assert_eq!(shown(&image.volume("kept")).0, 8 * MIB, "{name}");

        // A limit that a killed process left is no obstacle, and not taken over.
        let top = File::open(image.top()).unwrap();
        create(&driver, "again", 8 * MIB).await;
        let own = project(&image.volume("again"));
        driver.delete_volume(&call(), &id("again")).await.unwrap();
        projects::set_limit(&top, own, 3 * MIB).unwrap();
        create(&driver, "again", 16 * MIB).await;
        assert_eq!(shown(&image.volume("again")).0, 16 * MIB, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with project quotas: run it in the lab"]
async fn no_two_volumes_have_one_project() {
    for filesystem in FILESYSTEMS {
        let image = Image::with_quotas(filesystem);
        // The narrowest range: the ids of 1500 volumes meet.
        let keys = "  quotas: require\n  quotaProjectIds: 100000-165535\n";
        let drivers = [image.driver(keys), image.driver(keys)];
        let make = async |driver: &DirectoryDriver, from: u32| {
            for number in from..from + 750 {
                create(driver, &format!("pvc-{number}"), MIB).await;
            }
        };
        tokio::join!(make(&drivers[0], 0), make(&drivers[1], 750));
        let ids: BTreeSet<u32> = (0..1500)
            .map(|number| project(&image.volume(&format!("pvc-{number}"))))
            .collect();
        assert_eq!(ids.len(), 1500, "{}", filesystem.name);
        assert!(ids.iter().all(|id| (100_000..=165_535).contains(id)));
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with project quotas: run it in the lab"]
async fn a_filesystem_that_does_not_enforce_limits_is_refused_or_served_without() {
    let reason = async |driver: &DirectoryDriver, name: &str| {
        let problems = driver.probe(&call()).await;
        assert_eq!(problems.len(), 1, "{problems:?}");
        let error = driver
            .create_volume(&call(), &request(name, MIB, None))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        format!("{} {}", error.chain(), error.advice().unwrap_or_default())
    };
    for filesystem in FILESYSTEMS {
        let name = filesystem.name;
        let image = Image::mount(filesystem, "");
        let require = image.driver("  quotas: require\n");
        let said = reason(&require, "one").await;
        assert!(said.contains("mounted without project quotas"), "{said}");
        assert!(said.contains("prjquota"), "{said}");
        let attempt = image.driver("  quotas: try\n");
        create(&attempt, "one", MIB).await;
        assert_eq!(write(&image.volume("one"), "file", 4 * MIB).0, 4 * MIB);
        assert_eq!(project(&image.volume("one")), 0, "{name}");

        // A base that passes on a project: on such a filesystem, nothing can be moved into it.
        let image = Image::with_quotas(filesystem);
        std::fs::create_dir(image.base()).unwrap();
        projects::assign(File::open(image.base()).unwrap(), 5).unwrap();
        let require = image.driver("  quotas: require\n");
        let said = reason(&require, "one").await;
        assert!(said.contains("chattr -P"), "{name}: {said}");
        let attempt = image.driver("  quotas: try\n");
        create(&attempt, "one", MIB).await;
        assert_eq!(project(&image.volume("one")), 5, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nfsd and project quotas: run it in the lab"]
async fn a_client_of_a_share_whose_server_enforces_sizes_is_stopped() {
    for filesystem in FILESYSTEMS {
        let name = filesystem.name;
        let image = Image::with_quotas(filesystem);
        std::fs::create_dir(image.base()).unwrap();
        let base = image.base();
        let base = text(&base);
        let driver = driver(&format!(
            "driver: nfs-client\nnfs:\n  shareHost: 127.0.0.1\n  shareBasePath: {base}\n  \
             controllerBasePath: {base}\n  createBase: true\n  dirPermissionsMode: '0777'\n  \
             quotas: require\n"
        ));
        create(&driver, "one", 16 * MIB).await;
        let export = format!("127.0.0.1:{base}");
        run("exportfs", &["-o", "rw,no_subtree_check,fsid=78", &export]);
        let mount = image.dir.path().join("nfs");
        std::fs::create_dir(&mount).unwrap();
        let share = format!("127.0.0.1:{base}/v/one");
        run(
            "mount",
            &["-t", "nfs", "-o", "nfsvers=4.2", &share, text(&mount)],
        );
        let total = shown(&mount).0;
        let stopped = write(&mount, "file", 64 * MIB);
        run("umount", &[text(&mount)]);
        run("exportfs", &["-u", &export]);
        assert_eq!(total, 16 * MIB, "{name}");
        assert!(
            stopped.1.contains("No space left on device") || stopped.1.contains("quota exceeded"),
            "{name}: {}",
            stopped.1
        );
        let used = quota(&image, project(&image.volume("one"))).bytes;
        assert!(used > 14 * MIB && used <= 16 * MIB, "{name}: {used}");
    }
}
