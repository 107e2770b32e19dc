//! A driver on a temporary base, and shorthands for requests.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_types::{AbsolutePath, Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, Driver, Error, NodeId, PageRequest, Parameters, SizeRange,
    Snapshot, SnapshotFilter, SnapshotId, SnapshotName, Snapshots as _, Source,
    TopologyRequirement, Volume, VolumeId, VolumeName,
};
use driver_directory::{DirectoryDriver, from_document};
pub(crate) use node_utils::requirement::this_test_could_not_run as cannot;

/// Locks that processes take in turn: their files stay.
const STAYING_LOCKS: [&str; 5] = [
    ".omnibus-csi/makers/names",
    ".omnibus-csi/makers/projects",
    ".omnibus-csi/makers/marker",
    "v/.omnibus-csi.lock",
    "s/.omnibus-csi.lock",
];

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) driver: DirectoryDriver,
}

pub(crate) fn driver(base: &Path, extra: &str) -> DirectoryDriver {
    driver_with_records(base, extra, None)
}

pub(crate) fn driver_with_records(
    base: &Path,
    extra: &str,
    records: Option<&Path>,
) -> DirectoryDriver {
    let base = base.display();
    let text = format!(
        "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {base}\n  \
         controllerBasePath: {base}\n{extra}"
    );
    let document = Document::parse(&text, &NoEnvironment).expect("document");
    let node = NodeId::parse("node-1").expect("node");
    let text = |path: &Path| AbsolutePath::parse(path.to_str().expect("text")).expect("path");
    let records = records.map(text);
    from_document(&document, &node, records.as_ref(), None).expect("driver")
}

pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(1))
}

pub(crate) fn capability() -> VolumeCapability {
    VolumeCapability {
        access: Access::Mount(MountAccess::default()),
        mode: AccessMode::SingleNodeWriter,
    }
}

pub(crate) fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    Parameters::new(pairs.iter().map(own).collect::<BTreeMap<_, _>>())
}

pub(crate) fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).expect("text")
}

pub(crate) fn snapshot_id(text: &str) -> SnapshotId {
    SnapshotId::parse(text).expect("text")
}

pub(crate) fn request(name: &str) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse(name).expect("name"),
        id: id(name),
        size: SizeRange::new(1 << 20, 0).expect("range"),
        capabilities: vec![capability()],
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source: None,
        topology: TopologyRequirement::default(),
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    pub(crate) fn with(extra: &str) -> Self {
        let dir = tempfile::tempdir().expect("folder");
        let driver = driver(&dir.path().join("base"), extra);
        Self { dir, driver }
    }

    pub(crate) fn base(&self) -> PathBuf {
        self.dir.path().join("base")
    }

    pub(crate) async fn create(&self, request: &CreateVolume) -> Result<Volume, Error> {
        self.driver.create_volume(&call(), request).await
    }

    pub(crate) async fn volume(&self, name: &str) -> PathBuf {
        self.create(&request(name)).await.expect("volume");
        self.base().join("v").join(name)
    }

    /// A snapshot that is ready: on a busy machine it is answered before.
    pub(crate) async fn snapshot(&self, volume: &str, name: &str) -> Result<Snapshot, Error> {
        crate::pending::ready(&self.driver, volume, name).await
    }

    pub(crate) async fn restore(&self, snapshot: &SnapshotId, name: &str) -> Result<Volume, Error> {
        restore(&self.driver, snapshot, name).await
    }
}

/// Every path below `root` with type, mode, owner, size and time, sorted.
pub(crate) fn tree(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut lines = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        let meta = std::fs::symlink_metadata(&path).expect("look");
        lines.push(format!(
            "{} {:o} {}:{} {} {}.{} {}",
            path.display(),
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ino(),
        ));
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path).expect("list");
            pending.extend(entries.map(|entry| entry.expect("entry").path()));
        }
    }
    lines.sort();
    lines
}

/// What is being made, deleted or locked, by whatever name, without the locks that stay: has to be nothing after every
/// test.
pub(crate) fn leftovers(base: &Path) -> Vec<PathBuf> {
    let private = ["making", "trash", "makers"].map(|name| base.join(".omnibus-csi").join(name));
    let shelves = ["v", "s"].map(|name| base.join(name));
    let entries = |dir: &PathBuf| std::fs::read_dir(dir).ok();
    let passing = shelves
        .iter()
        .filter_map(entries)
        .flatten()
        .filter(|entry| {
            let name = entry.as_ref().expect("entry").file_name();
            name.as_encoded_bytes().starts_with(b".")
        });
    private
        .iter()
        .filter_map(entries)
        .flatten()
        .chain(passing)
        .map(|entry| entry.expect("entry").path())
        .filter(|path| !STAYING_LOCKS.iter().any(|lock| *path == base.join(lock)))
        .collect()
}

/// Takes a snapshot, by the default driver.
pub(crate) async fn snapshot(
    driver: &DirectoryDriver,
    volume: &str,
    name: &str,
) -> Result<Snapshot, Error> {
    snapshot_within(&call(), driver, (volume, name)).await
}

/// The same in the time of the call.
pub(crate) async fn snapshot_within(
    call: &Call,
    driver: &DirectoryDriver,
    (volume, name): (&str, &str),
) -> Result<Snapshot, Error> {
    let request = CreateSnapshot {
        name: SnapshotName::parse(name).expect("name"),
        source: id(volume),
        parameters: parameters(&[]),
        secrets: std::collections::BTreeMap::new(),
    };
    driver.create_snapshot(call, &request).await
}

/// Makes a volume of a snapshot.
pub(crate) async fn restore(
    driver: &DirectoryDriver,
    snapshot: &SnapshotId,
    name: &str,
) -> Result<Volume, Error> {
    let mut request = request(name);
    request.source = Some(Source::Snapshot(snapshot.clone()));
    driver.create_volume(&call(), &request).await
}

/// The ids of all snapshots, by pages.
pub(crate) async fn listed(driver: &DirectoryDriver, max: usize) -> Vec<SnapshotId> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = PageRequest {
            max: Some(max),
            after,
        };
        let filter = SnapshotFilter::default();
        let page = driver.list_snapshots(&call(), &filter, &page).await;
        let page = page.expect("a page");
        assert!(page.entries.len() <= max);
        ids.extend(page.entries.into_iter().map(|snapshot| snapshot.id));
        match page.next {
            Some(next) => after = Some(next),
            None => return ids,
        }
    }
}
