//! Sizes that XFS, ext4 and btrfs enforce, on filesystems in files with quotas.
//!
//! It mounts, exports a directory and writes as another user, and leaves nothing behind. It needs root and a
//! kernel with quotas: it is run in the lab, by
//! `cargo test -p driver-directory --test quotas_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "filesystems are made and written past the runner"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, DeleteVolume, Driver, ExpandVolume, Expander as _, Kind,
    NodeId, Parameters, SizeRange, SnapshotName, Snapshots as _, Source, TopologyRequirement,
    Volume, VolumeId, VolumeName,
};
use driver_directory::{DirectoryDriver, from_document};
use node_utils::host::run;
use node_utils::{projects, subvolumes};

const MIB: u64 = 1 << 20;
/// The group that the collection of volumes passes on, where it passes one on.
const GROUP: u32 = 1234;
const FILESYSTEMS: [Filesystem; 4] = [
    Filesystem {
        name: "xfs",
        make: &["mkfs.xfs", "-q"],
        limits: Limits::OfProjects,
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
        limits: Limits::OfProjects,
    },
    Filesystem {
        name: "btrfs",
        make: BTRFS,
        limits: Limits::OfSubvolumes { enable: &[] },
    },
    Filesystem {
        name: "btrfs with simple quotas",
        make: BTRFS,
        limits: Limits::OfSubvolumes {
            enable: &["--simple"],
        },
    },
];
const BTRFS: &[&str] = &["mkfs.btrfs", "-q", "-m", "single"];

#[derive(Debug, Clone, Copy)]
struct Filesystem {
    name: &'static str,
    make: &'static [&'static str],
    limits: Limits,
}

/// The way a filesystem limits volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limits {
    OfProjects,
    OfSubvolumes {
        /// Options with which quotas are enabled.
        enable: &'static [&'static str],
    },
}

/// A filesystem in a file, mounted until it is dropped.
struct Image {
    filesystem: Filesystem,
    dir: tempfile::TempDir,
}

/// A command that takes back what a test has done, also when it fails.
struct Undo(Vec<String>);

fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Image {
    fn mount(filesystem: Filesystem, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { filesystem, dir };
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
        if filesystem.limits == Limits::OfProjects {
            return Self::mount(filesystem, ",prjquota");
        }
        let image = Self::mount(filesystem, "");
        image.enable();
        image
    }

    fn enable(&self) {
        if let Limits::OfSubvolumes { enable } = self.filesystem.limits {
            let top = self.top();
            run(
                "btrfs",
                &[&["quota", "enable"], enable, &[text(&top)]].concat(),
            );
        }
    }

    /// The project or the subvolume that a directory is; 0 for none.
    fn number(&self, path: &Path) -> u64 {
        let dir = File::open(path).unwrap();
        match self.filesystem.limits {
            Limits::OfProjects => projects::project(dir).unwrap().id.into(),
            Limits::OfSubvolumes { .. } => subvolumes::id(dir).unwrap().unwrap_or_default(),
        }
    }

    /// The number that tells whose files are counted together; 0 for those of no volume.
    fn counted_with(&self, path: &Path) -> u64 {
        match self.filesystem.limits {
            Limits::OfProjects => self.number(path),
            Limits::OfSubvolumes { .. } => {
                let [own, top] = [path, &self.top()].map(|path| path.metadata().unwrap().dev());
                if own == top { 0 } else { own }
            }
        }
    }

    /// The bytes that a volume has as of now, and those that it may have.
    fn quota(&self, number: u64) -> (u64, u64) {
        let top = File::open(self.top()).unwrap();
        match self.filesystem.limits {
            Limits::OfProjects => {
                let found = projects::quota(top, u32::try_from(number).unwrap()).unwrap();
                (found.bytes, found.limit)
            }
            Limits::OfSubvolumes { .. } => {
                run("sync", &["-f", text(&self.top())]);
                let found = subvolumes::quota(top, number).unwrap_or_default();
                (found.bytes, found.limit)
            }
        }
    }

    fn limit(&self, volume: &str) -> u64 {
        self.quota(self.number(&self.volume(volume))).1
    }

    fn used(&self, volume: &str) -> u64 {
        self.quota(self.number(&self.volume(volume))).0
    }

    fn set_limit(&self, number: u64, bytes: u64) {
        let top = File::open(self.top()).unwrap();
        match self.filesystem.limits {
            Limits::OfProjects => {
                projects::set_limit(top, u32::try_from(number).unwrap(), bytes).unwrap();
            }
            Limits::OfSubvolumes { .. } => subvolumes::set_limit(top, number, bytes).unwrap(),
        }
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
        // A server that has shared it lets go a little later.
        for _ in 0..20 {
            let unmounted = output("umount", &[text(&self.top())]);
            let said = String::from_utf8_lossy(&unmounted.stderr);
            if !said.contains("busy") {
                break;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

// === impl Undo ===

impl Undo {
    fn by(command: &[&str]) -> Self {
        Self(command.iter().map(|part| (*part).to_owned()).collect())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let command: Vec<&str> = self.0.iter().map(String::as_str).collect();
        output(command[0], &command[1..]);
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
    let grown = driver
        .expand_volume(&call(), ExpandVolume::new(&id(name), size(bytes)))
        .await;
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

/// The numbers that `df` shows of a directory, as `NodeGetVolumeStats` does.
fn shown(dir: &Path) -> (u64, u64) {
    let stat = rustix::fs::statvfs(dir).unwrap();
    let total = stat.f_blocks * stat.f_frsize;
    (total, total - stat.f_bfree * stat.f_frsize)
}

fn project(path: &Path) -> u32 {
    projects::project(File::open(path).unwrap()).unwrap().id
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with quotas: run it in the lab"]
async fn a_pod_that_writes_more_than_the_size_of_its_volume_is_stopped() {
    for filesystem in FILESYSTEMS {
        let name = filesystem.name;
        let image = Image::with_quotas(filesystem);
        let driver = image.driver("  quotas: require\n");
        let problems = driver.probe(&call()).await;
        assert!(problems.is_empty(), "{name}: {problems:?}");
        create(&driver, "one", 24 * MIB).await;
        let volumes = image.base().join("v");
        std::os::unix::fs::chown(&volumes, None, Some(GROUP)).unwrap();
        std::fs::set_permissions(&volumes, std::fs::Permissions::from_mode(0o2755)).unwrap();
        run("setfacl", &["-d", "-m", "u:1234:rwx", text(&volumes)]);
        create(&driver, "two", 8 * MIB).await;
        let one = image.volume("one");
        assert_eq!(image.limit("one"), 24 * MIB, "{name}");
        assert!(driver.probe(&call()).await.is_empty(), "{name}");
        let made = image.volume("two").metadata().unwrap();
        assert_eq!((made.gid(), made.mode() & 0o777), (GROUP, 0o777), "{name}");
        let acl = run("getfacl", &["-cp", text(&image.volume("two"))]);
        for entry in ["\nuser:1234:rwx", "default:user:1234:rwx"] {
            assert!(acl.contains(entry), "{name}: {acl}");
        }
        let is_shown = filesystem.limits == Limits::OfProjects;
        assert_eq!(shown(&one).0 == 24 * MIB, is_shown, "{name}");

        assert_stopped(write(&one, "file", 64 * MIB), 24 * MIB, name);
        let used = image.used("one");
        assert!(used > 23 * MIB && used <= 24 * MIB, "{name}: {used}");
        // The other one has its own size.
        assert_stopped(write(&image.volume("two"), "file", 64 * MIB), 8 * MIB, name);

        grow(&driver, "one", 48 * MIB).await;
        assert_eq!(image.limit("one"), 48 * MIB, "{name}");
        let (mut more, said) = write(&one, "more", 64 * MIB);
        more += one.join("file").metadata().unwrap().len();
        assert_stopped((more, said), 48 * MIB, name);

        // As the kubelet sees it: by a bind mount.
        let target = image.dir.path().join("target");
        std::fs::create_dir(&target).unwrap();
        run("mount", &["--bind", text(&one), text(&target)]);
        let bound = Undo::by(&["umount", text(&target)]);
        assert_eq!(shown(&target), shown(&one), "{name}");
        drop(bound);

        // A retry that finds a limit which was raised, and a record which was not.
        image.set_limit(image.number(&one), 96 * MIB);
        grow(&driver, "one", 96 * MIB).await;
        assert_eq!(image.limit("one"), 96 * MIB, "{name}");
        // It grows where new volumes get no limit, too.
        let plain = image.driver("");
        grow(&plain, "one", 128 * MIB).await;
        assert_eq!(image.limit("one"), 128 * MIB, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with quotas: run it in the lab"]
async fn what_is_made_of_a_volume_has_a_limit_of_its_own_and_a_snapshot_has_none() {
    for filesystem in FILESYSTEMS {
        let name = filesystem.name;
        // Simple quotas count blocks that are shared where they were written first.
        let counts_shared = !name.contains("simple");
        let image = Image::with_quotas(filesystem);
        let driver = image.driver("  quotas: require\n");
        create(&driver, "src", 16 * MIB).await;
        let src = image.volume("src");
        std::fs::create_dir_all(src.join("a/b")).unwrap();
        std::fs::write(src.join("a/b/file"), vec![7; 3 << 20]).unwrap();
        std::fs::hard_link(src.join("a/b/file"), src.join("linked")).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_hours(1);
        let top = File::open(&src).unwrap();
        top.set_modified(long_ago).unwrap();
        let taken = snapshot(&driver, "src", "one").await;
        fill(&driver, "restored", 16 * MIB, Some(taken)).await;
        fill(&driver, "clone", 32 * MIB, Some(Source::Volume(id("src")))).await;
        let mut ids = BTreeSet::new();
        for (volume, bytes) in [("src", 16), ("restored", 16), ("clone", 32)] {
            let path = image.volume(volume);
            assert!(ids.insert(image.number(&path)), "{name}: {volume}");
            assert_eq!(image.limit(volume), bytes * MIB, "{name}: {volume}");
            let is_counted = image.used(volume) >= 3 * MIB;
            assert_eq!(
                is_counted,
                counts_shared || volume == "src",
                "{name}: {volume}"
            );
            for below in ["a", "a/b", "a/b/file", "linked"] {
                assert_eq!(
                    image.counted_with(&path.join(below)),
                    image.counted_with(&path),
                    "{name}: {below}"
                );
            }
            assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2, "{name}");
            let made = path.metadata().unwrap();
            assert_eq!(made.modified().unwrap(), long_ago, "{name}: {volume}");
            let used = std::fs::metadata(path.join("linked")).unwrap();
            assert_eq!(used.nlink(), 2, "{name}");
        }
        let in_snapshot = image.base().join("s/src-one/a");
        assert_eq!(image.counted_with(&in_snapshot), 0, "{name}");
        if !counts_shared {
            continue;
        }
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
            .expand_volume(&call(), ExpandVolume::new(&id("less"), size(8 * MIB)))
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
#[ignore = "needs a kernel with quotas: run it in the lab"]
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
        let limit = |number| image.quota(number).1;
        let mut deleted = Vec::new();
        for volume in ["empty", "full"] {
            let own = image.number(&image.volume(volume));
            assert_eq!(limit(own), 8 * MIB, "{name}: {volume}");
            driver
                .delete_volume(&call(), DeleteVolume::new(&id(volume)))
                .await
                .unwrap();
            assert_eq!(limit(own), 0, "{name}: {volume}");
            deleted.push(own);
        }
        // A call that ends when the volume has lost its name: the next one finishes.
        let own = image.number(&image.volume("cut"));
        let none = Call::within(Duration::ZERO);
        driver
            .delete_volume(&none, DeleteVolume::new(&id("cut")))
            .await
            .unwrap_err();
        driver
            .delete_volume(&call(), DeleteVolume::new(&id("cut")))
            .await
            .unwrap();
        assert_eq!(limit(own), 0, "{name}");
        deleted.push(own);
        if filesystem.limits != Limits::OfProjects {
            assert_no_qgroup(&image, &driver, &deleted).await;
            assert_eq!(image.limit("kept"), 8 * MIB, "{name}");
            continue;
        }

        // The owner of files may give them any project.
        let kept = project(&image.volume("kept"));
        let forger = File::open(image.volume("forger")).unwrap();
        projects::assign(&forger, kept).unwrap();
        grow(&driver, "forger", 64 * MIB).await;
        drop(forger);
        driver
            .delete_volume(&call(), DeleteVolume::new(&id("forger")))
            .await
            .unwrap();
        assert_eq!(image.limit("kept"), 8 * MIB, "{name}");
        assert_eq!(shown(&image.volume("kept")).0, 8 * MIB, "{name}");

        // A limit that a killed process left is no obstacle, and not taken over.
        create(&driver, "again", 8 * MIB).await;
        let own = image.number(&image.volume("again"));
        driver
            .delete_volume(&call(), DeleteVolume::new(&id("again")))
            .await
            .unwrap();
        image.set_limit(own, 3 * MIB);
        create(&driver, "again", 16 * MIB).await;
        assert_eq!(image.limit("again"), 16 * MIB, "{name}");
    }
}

/// Asserts that nothing counts deleted subvolumes, once the filesystem has freed their blocks.
async fn assert_no_qgroup(image: &Image, driver: &DirectoryDriver, deleted: &[u64]) {
    let name = image.filesystem.name;
    run("btrfs", &["subvolume", "sync", text(&image.top())]);
    // A later call removes those that the kernel does not.
    create(driver, "later", MIB).await;
    driver
        .delete_volume(&call(), DeleteVolume::new(&id("later")))
        .await
        .unwrap();
    let top = File::open(image.top()).unwrap();
    for number in deleted {
        let found = subvolumes::quota(&top, *number);
        assert_eq!(found, Err(rustix::io::Errno::NOENT), "{name}: {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with quotas: run it in the lab"]
async fn no_two_volumes_have_one_project() {
    for filesystem in FILESYSTEMS {
        let image = Image::with_quotas(filesystem);
        // The narrowest range: the ids of 1500 volumes meet. Those of subvolumes are the kernel's own.
        let each = match filesystem.limits {
            Limits::OfProjects => 750,
            Limits::OfSubvolumes { .. } => 50,
        };
        let keys = "  quotas: require\n  quotaProjectIds: 100000-165535\n";
        let drivers = [image.driver(keys), image.driver(keys)];
        let make = async |driver: &DirectoryDriver, from: usize| {
            for number in from..from + each {
                create(driver, &format!("pvc-{number}"), MIB).await;
            }
        };
        tokio::join!(make(&drivers[0], 0), make(&drivers[1], each));
        let ids: BTreeSet<u64> = (0..2 * each)
            .map(|number| image.number(&image.volume(&format!("pvc-{number}"))))
            .collect();
        assert_eq!(ids.len(), 2 * each, "{}", filesystem.name);
        let of_the_range = |id: &u64| (100_000..=165_535).contains(id);
        let is_project = filesystem.limits == Limits::OfProjects;
        assert!(ids.iter().all(|id| of_the_range(id) == is_project));
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kernel with quotas: run it in the lab"]
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
        let wanted = match filesystem.limits {
            Limits::OfProjects => ["mounted without project quotas", "prjquota"],
            Limits::OfSubvolumes { .. } => ["quotas are not enabled", "btrfs quota enable"],
        };
        assert!(wanted.iter().all(|text| said.contains(text)), "{said}");
        let attempt = image.driver("  quotas: try\n");
        create(&attempt, "one", MIB).await;
        assert_eq!(write(&image.volume("one"), "file", 4 * MIB).0, 4 * MIB);
        assert_eq!(image.counted_with(&image.volume("one")), 0, "{name}");
        if filesystem.limits != Limits::OfProjects {
            // A volume that is a plain directory stays one, and what it lies in gets no limit for it.
            image.enable();
            assert!(require.probe(&call()).await.is_empty(), "{name}");
            grow(&require, "one", 8 * MIB).await;
            let taken = create(&require, "two", MIB).await;
            assert_eq!(taken.capacity, Some(MIB), "{name}");
            assert_eq!(image.counted_with(&image.volume("one")), 0, "{name}");
            assert_eq!(image.quota(image.number(&image.top())).1, 0, "{name}");
            assert_eq!(image.limit("two"), MIB, "{name}");
            require
                .delete_volume(&call(), DeleteVolume::new(&id("one")))
                .await
                .unwrap();
            continue;
        }

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
#[ignore = "needs nfsd and quotas: run it in the lab"]
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
        let exported = Undo::by(&["exportfs", "-u", &export]);
        let mount = image.dir.path().join("nfs");
        std::fs::create_dir(&mount).unwrap();
        let share = format!("127.0.0.1:{base}/v/one");
        run(
            "mount",
            &["-t", "nfs", "-o", "nfsvers=4.2", &share, text(&mount)],
        );
        let mounted = Undo::by(&["umount", text(&mount)]);
        let is_shown = filesystem.limits == Limits::OfProjects;
        assert_eq!(shown(&mount).0 == 16 * MIB, is_shown, "{name}");
        let (_, said) = write(&mount, "file", 64 * MIB);
        assert!(
            said.contains("No space left on device") || said.contains("quota exceeded"),
            "{name}: {said}"
        );
        drop((mounted, exported));
        let used = image.used("one");
        // ext4 takes blocks for its own metadata beyond the limit.
        let most = 16 * MIB + (64 << 10);
        assert!(used > 14 * MIB && used <= most, "{name}: {used}");
    }
}
