//! Copies from one connection to another.

use std::fs;
use std::path::Path;

use csi_proto::v1::volume_content_source::SnapshotSource;
use driver_core::config::{Document, NoEnvironment};
use driver_core::{Driver, NodeId};
use driver_zfs::ZfsDriver;
use driver_zfs::name::DatasetName;
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost, settings};

use super::*;
use crate::testing::multi_of;

pub(super) type Host = Arc<ZfsDriver>;

/// A connection whose volumes are directories below `base`.
pub(super) fn directories(base: &Path) -> Arc<dyn Driver> {
    let base = base.to_str().expect("text");
    let text = format!(
        "driver: local-hostpath\nlocal-hostpath: \
         {{shareBasePath: {base}, controllerBasePath: {base}}}"
    );
    let document = Document::parse(&text, &NoEnvironment).expect("yaml");
    let node = NodeId::parse("node-1").expect("a node");
    Arc::new(driver_directory::from_document(&document, &node, None, None).expect("a driver"))
}

/// A separate host.
pub(super) fn host(kind: VolumeKind) -> Host {
    let settings = settings(kind, "").expect("settings");
    Arc::new(ZfsDriver::new(
        settings,
        MemoryHost::new(),
        MemoryExport::new(kind),
    ))
}

pub(super) fn dataset(id: &str) -> DatasetName {
    DatasetName::parse(&format!("tank/csi/v/{id}")).expect("a name")
}

pub(super) fn of_volume(name: &str, connection: &str, source: &str) -> v1::CreateVolumeRequest {
    let mut request = create(name, &[("connection", connection)]);
    request.volume_content_source = Some(v1::VolumeContentSource {
        r#type: Some(Content::Volume(VolumeSource {
            volume_id: source.into(),
        })),
    });
    request
}

/// The content of a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry").file_name();
        name.into_string().expect("text")
    };
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn directories_are_copied_from_one_connection_to_another() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [a, b] = folders.each_ref().map(tempfile::TempDir::path);
    let service = ControllerHandler(multi_of(&[("a", directories(a)), ("b", directories(b))]));
    made(&service, create("x", &[("connection", "a")]))
        .await
        .expect("made");
    fs::write(a.join("v/x/file"), "content").expect("written");
    let request = of_volume("copy", "b", "v:a/x");
    let volume = made(&service, request.clone()).await.expect("copied");
    assert_eq!(volume.volume_id, "v:b/copy");
    assert_eq!(volume.content_source, request.volume_content_source);
    let read = |path: &str| fs::read_to_string(b.join(path)).expect("a file");
    assert_eq!(read("v/copy/file"), "content");
    // A retry returns the same volume, whatever happened to the source; with another source it is a
    // conflict.
    let again = made(&service, request.clone()).await.expect("the same");
    assert_eq!(again, volume);
    let other = made(&service, of_volume("copy", "b", "v:a/y")).await;
    assert_eq!(other.expect_err("taken").code(), Code::AlreadyExists);
    // Its source is recorded, with its handle.
    let get = v1::ControllerGetVolumeRequest {
        volume_id: "v:b/copy".into(),
    };
    let found = service.controller_get_volume(Request::new(get)).await;
    let found = found.expect("found").into_inner().volume.expect("a volume");
    assert_eq!(found.content_source, request.volume_content_source);
    // A snapshot likewise.
    let snapshot = v1::CreateSnapshotRequest {
        source_volume_id: "v:a/x".into(),
        name: "s".into(),
        ..Default::default()
    };
    let taken = service.create_snapshot(Request::new(snapshot)).await;
    let taken = taken.expect("taken").into_inner().snapshot.expect("one");
    fs::write(a.join("v/x/file"), "changed").expect("written");
    let mut restore = create("restored", &[("connection", "b")]);
    restore.volume_content_source = Some(v1::VolumeContentSource {
        r#type: Some(Content::Snapshot(SnapshotSource {
            snapshot_id: taken.snapshot_id,
        })),
    });
    made(&service, restore).await.expect("restored");
    assert_eq!(read("v/restored/file"), "content");
    deleted(&service, "v:a/x").await.expect("deleted");
    assert_eq!(read("v/copy/file"), "content");
    let gone = made(&service, of_volume("none", "b", "v:a/x")).await;
    assert_eq!(gone.expect_err("no source").code(), Code::NotFound);
    assert_eq!(names(&b.join("v")), ["copy", "restored"]);
}

#[tokio::test]
async fn a_copy_that_fails_on_its_way_leaves_nothing_under_its_name() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [a, b] = folders.each_ref().map(tempfile::TempDir::path);
    let service = ControllerHandler(multi_of(&[("a", directories(a)), ("b", directories(b))]));
    made(&service, create("x", &[("connection", "a")]))
        .await
        .expect("made");
    // A size that is too small for the source.
    let mut small = of_volume("copy", "b", "v:a/x");
    small.capacity_range = Some(v1::CapacityRange {
        required_bytes: 1,
        limit_bytes: 1,
    });
    let mut large = create("large", &[("connection", "a")]);
    large.capacity_range = Some(v1::CapacityRange {
        required_bytes: 1 << 30,
        limit_bytes: 0,
    });
    made(&service, large).await.expect("made");
    small.volume_content_source = of_volume("copy", "b", "v:a/large").volume_content_source;
    let status = made(&service, small).await.expect_err("too small");
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(!b.join("v/copy").exists());
}

#[tokio::test]
async fn datasets_are_sent_from_one_host_to_another() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        let hosts = [host(kind), host(kind)];
        let [a, b] = hosts.clone().map(|host| -> Arc<dyn Driver> { host });
        let service = ControllerHandler(multi_of(&[("a", a), ("b", b)]));
        let mut plain = create("x", &[("connection", "a")]);
        let mut copy = of_volume("copy", "b", "v:a/x");
        if kind == VolumeKind::Zvol {
            let block = Some(AccessType::Block(
                csi_proto::v1::volume_capability::BlockVolume {},
            ));
            plain.volume_capabilities[0].access_type = block.clone();
            copy.volume_capabilities[0].access_type = block;
        }
        made(&service, plain).await.expect("made");
        hosts[0].backend().state().pool.write(&dataset("x"));
        // The target is disconnected halfway, and afterwards reports a partial volume.
        {
            let mut state = hosts[1].backend().state();
            state.cut_after = Some(state.steps + 4);
        }
        let status = made(&service, copy.clone()).await.expect_err("cut off");
        assert_eq!(status.code(), Code::Unavailable);
        hosts[1].backend().state().cut_after = None;
        assert!(
            listed(&service, 0)
                .await
                .expect("a list")
                .iter()
                .all(|id| id != "v:b/copy")
        );
        let volume = made(&service, copy.clone()).await.expect("copied");
        assert_eq!(volume.content_source, copy.volume_content_source);
        let content = |host: &Host, id| host.backend().state().pool.content(&dataset(id));
        assert_eq!(content(&hosts[1], "copy"), content(&hosts[0], "x"));
        // Both are complete, and independent.
        deleted(&service, "v:a/x").await.expect("deleted");
        deleted(&service, "v:b/copy").await.expect("deleted");
        for host in &hosts {
            let shape = format!("{:?}", host.backend().state().pool.shape());
            assert!(!shape.contains("volume-source-for-"), "{shape}");
        }
    }
}

#[tokio::test]
async fn what_has_no_form_in_common_is_refused_and_it_is_said_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let files: Arc<dyn Driver> = host(VolumeKind::Filesystem);
    let disks: Arc<dyn Driver> = host(VolumeKind::Zvol);
    let memory = Memory::new();
    let other: Arc<dyn Driver> = memory.clone();
    memory.fill(["x".to_owned()], "/x");
    let service = ControllerHandler(multi_of(&[
        ("dirs", directories(folder.path())),
        ("files", files),
        ("disks", disks),
        ("memory", other),
    ]));
    for (from, to, why) in [
        ("disks", "files", "a disk cannot become a volume of files"),
        ("disks", "dirs", "a disk cannot become a volume of files"),
        ("dirs", "disks", "files cannot become a disk"),
        (
            "files",
            "dirs",
            "exports ZFS filesystems, and `dirs` imports directories",
        ),
        ("memory", "dirs", "`memory`, exports no content"),
        ("dirs", "memory", "`memory`, imports no content"),
    ] {
        let mut request = of_volume("copy", to, &format!("v:{from}/x"));
        if to == "disks" {
            let block = csi_proto::v1::volume_capability::BlockVolume {};
            request.volume_capabilities[0].access_type = Some(AccessType::Block(block));
        }
        let status = made(&service, request).await.expect_err("no way");
        assert_eq!(status.code(), Code::InvalidArgument, "{from} to {to}");
        assert!(status.message().contains(why), "{}", status.message());
        assert!(
            status
                .message()
                .contains(&format!("another connection, `{from}`"))
        );
    }
    assert!(!memory.has("copy"));
}

#[tokio::test]
async fn of_several_connections_the_one_with_the_source_is_the_first() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [a, b] = folders.each_ref().map(tempfile::TempDir::path);
    let service = ControllerHandler(multi_of(&[("a", directories(a)), ("b", directories(b))]));
    made(&service, create("x", &[("connection", "a")]))
        .await
        .expect("made");
    let mut request = of_volume("copy", "b", "v:a/x");
    request.parameters = parameters(&[("connections", "b,a")]);
    let volume = made(&service, request).await.expect("cloned");
    assert_eq!(
        volume.volume_id, "v:a/copy",
        "nothing is carried for nothing"
    );
}
