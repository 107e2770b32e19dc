//! `containerd-oci-ephemeral-inline` on a containerd of the test's own, with images that the test makes.

#![expect(
    clippy::disallowed_methods,
    reason = "a daemon of the test, which no runner can keep"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_types::{AbsolutePath, VolumeContext};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, Driver, Error, InlineMount, InlineVolume, Kind, NodeId, Secrets, VolumeId,
};
use exec::testing::requirement;
use node_utils::Tools;
use node_utils::mount::MountTable;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::image::{Image, MANIFEST};

const REFERENCE: &str = "registry.example/csi/hello:1";

/// A containerd, and the folder of a pod. Gone with the value.
struct Containerd {
    folder: tempfile::TempDir,
    daemon: Child,
}

/// One that answers, or nothing where that cannot be.
fn containerd() -> Option<Containerd> {
    if !rustix::process::geteuid().is_root() {
        requirement::this_test_could_not_run("it needs root");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display();
    let config = format!(
        "version = 2\nroot = \"{path}/root\"\nstate = \"{path}/state\"\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = \"{path}/socket\"\n"
    );
    fs::write(folder.path().join("config.toml"), config).expect("a file");
    let wrapper = format!("#!/bin/sh\necho \"$*\" >>{path}/argv\nexec ctr \"$@\"\n");
    fs::write(folder.path().join("ctr"), wrapper).expect("a file");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path().join("ctr"), mode).expect("a mode");
    fs::create_dir_all(folder.path().join("pods/u-1")).expect("a folder");
    let daemon = Command::new("containerd")
        .arg("--config")
        .arg(folder.path().join("config.toml"))
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.path().join("log")).expect("a log"))
        .spawn();
    let Ok(daemon) = daemon else {
        requirement::this_test_could_not_run("containerd is not installed");
        return None;
    };
    let this = Containerd { folder, daemon };
    let start = Instant::now();
    while !this.ctr(&["version"]).0 {
        assert!(start.elapsed() < Duration::from_mins(1), "{}", this.log());
    }
    Some(this)
}

// === impl Containerd ===

impl Containerd {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Every command of the driver so far.
    fn argv(&self) -> String {
        fs::read_to_string(self.path("argv")).unwrap_or_default()
    }

    /// Runs `ctr` as a person would.
    fn ctr(&self, words: &[&str]) -> (bool, String) {
        let ran = Command::new("ctr")
            .arg("--address")
            .arg(self.path("socket"))
            .args(["--namespace", "pods"])
            .args(words)
            .output()
            .expect("ctr");
        let text = [ran.stdout, ran.stderr].concat();
        (
            ran.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn import(&self, hello: &str) {
        let archive = self.path("image.tar");
        Image::saying(hello).write(&archive, REFERENCE);
        let (done, said) = self.ctr(&["images", "import", archive.to_str().expect("text")]);
        assert!(done, "{said}");
    }

    fn target(&self) -> AbsolutePath {
        let volume = self.path("pods/u-1/volumes/kubernetes.io~csi/hello");
        fs::create_dir_all(&volume).expect("a folder");
        AbsolutePath::parse(volume.join("mount").to_str().expect("text")).expect("a path")
    }

    fn driver(&self) -> Arc<dyn Driver> {
        let path = self.folder.path().display();
        let text = format!(
            "driver: containerd-oci-ephemeral-inline\n\
             containerd: {{address: {path}/socket, namespace: pods, cli: {{paths: {{ctr: {path}/ctr}}}}}}\n"
        );
        let document = Document::parse(&text, &NoEnvironment).expect("yaml");
        let node = NodeId::parse("node-1").expect("a node");
        let driver = driver_inline::from_document(&document, &node, &Tools::of_this_machine());
        let driver = driver.expect("a driver");
        assert_eq!(document.findings(), []);
        driver
    }

    fn layers(&self) -> usize {
        let table = MountTable::read().expect("a table");
        table.layers(self.target().as_path()).count()
    }

    /// As the node does before it has a volume removed.
    fn unmount(&self) {
        node_utils::mount::unmount_all_layers(self.target().as_path()).expect("unmounted");
    }

    fn snapshots(&self) -> String {
        let (done, keys) = self.ctr(&["snapshots", "ls"]);
        assert!(done, "{keys}");
        keys
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        drop(node_utils::mount::unmount_all_layers(
            self.target().as_path(),
        ));
        drop(self.daemon.kill());
        drop(self.daemon.wait());
    }
}

fn id() -> VolumeId {
    VolumeId::parse(&format!("csi-{}", "c0".repeat(32))).expect("an id")
}

fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

async fn make_as(
    containerd: &Containerd,
    attributes: &[(&str, &str)],
    secrets: &Secrets,
    readonly: bool,
) -> Result<(), Error> {
    let attributes: VolumeContext = map(attributes);
    let wanted = InlineVolume {
        id: &id(),
        target: &containerd.target(),
        readonly,
        attributes: &attributes,
        secrets,
    };
    let driver = containerd.driver();
    let inline = driver.inline().expect("inline volumes");
    let made = inline.make_inline(&call(), &wanted).await?;
    assert_eq!(made, InlineMount::Mounted);
    Ok(())
}

async fn make(containerd: &Containerd, pull: &str) -> Result<(), Error> {
    let attributes = [("image.reference", REFERENCE), ("image.pullPolicy", pull)];
    make_as(containerd, &attributes, &Secrets::new(), false).await
}

async fn remove(containerd: &Containerd) -> Result<(), Error> {
    let driver = containerd.driver();
    let inline = driver.inline().expect("inline volumes");
    inline
        .remove_inline(&call(), &id(), &containerd.target())
        .await
}

fn read(containerd: &Containerd) -> String {
    let path = containerd.target();
    fs::read_to_string(path.as_path().join("hello")).expect("the content of the image")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_content_of_an_image_lives_and_goes_with_the_pod() {
    let Some(containerd) = containerd() else {
        return;
    };
    assert!(containerd.driver().probe(&call()).await.is_empty());
    containerd.import("hello");
    for round in 0..2 {
        make(&containerd, "IfNotPresent").await.expect("made");
        assert_eq!(
            read(&containerd),
            "hello",
            "what the last pod wrote is gone"
        );
        make(&containerd, "Never").await.expect("there already");
        assert_eq!(containerd.layers(), 1, "it is mounted once");
        fs::write(containerd.target().as_path().join("hello"), "bye")
            .expect("it can be written to");
        let (_, info) = containerd.ctr(&["snapshots", "info", containerd.target().as_str()]);
        assert!(
            info.contains("containerd.io/gc.root"),
            "containerd would forget it: {info}"
        );
        let driver = containerd.driver();
        let inline = driver.inline().expect("inline volumes");
        let found = inline.list_inline(&call()).await.expect("a list");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (&found[0].id, &found[0].target),
            (&id(), &containerd.target())
        );
        containerd.unmount();
        remove(&containerd).await.expect("gone");
        remove(&containerd).await.expect("gone already");
        assert!(!containerd.snapshots().contains("/mount"), "round {round}");
        let (_, leases) = containerd.ctr(&["leases", "ls"]);
        assert!(!leases.contains("/mount"), "{leases}");
        assert_eq!(inline.list_inline(&call()).await.expect("a list"), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_step_leaves_what_a_retry_or_a_removal_finishes() {
    let Some(containerd) = containerd() else {
        return;
    };
    containerd.import("hello");
    let target = containerd.target();
    let half = |unmounted: bool| {
        fs::create_dir_all(target.as_path()).expect("a folder");
        let (done, said) = containerd.ctr(&["images", "mount", "--rw", REFERENCE, target.as_str()]);
        assert!(done, "{said}");
        if unmounted {
            containerd.unmount();
        }
    };
    // Killed before the label, and after a reboot.
    for unmounted in [false, true] {
        half(unmounted);
        make(&containerd, "Never").await.expect("the retry");
        assert_eq!(
            (read(&containerd).as_str(), containerd.layers()),
            ("hello", 1)
        );
        let (_, info) = containerd.ctr(&["snapshots", "info", target.as_str()]);
        assert!(info.contains(id().as_str()), "{info}");
        containerd.unmount();
        remove(&containerd).await.expect("gone");
        half(unmounted);
        containerd.unmount();
        remove(&containerd).await.expect("gone without a retry");
        assert!(!containerd.snapshots().contains("/mount"));
    }
    // A removal that was killed between the snapshot and what kept it.
    half(true);
    let (done, said) = containerd.ctr(&["snapshots", "rm", target.as_str()]);
    assert!(done, "{said}");
    remove(&containerd).await.expect("gone");
    let (_, leases) = containerd.ctr(&["leases", "ls"]);
    assert!(!leases.contains("/mount"), "{leases}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_image_is_an_error_and_leaves_nothing() {
    let Some(mut containerd) = containerd() else {
        return;
    };
    let error = make(&containerd, "Never")
        .await
        .expect_err("there is no image");
    assert_eq!(error.kind(), Kind::NotFound, "{}", error.chain());
    for (key, value) in [
        ("image.reference", "--rw"),
        ("image.platform", "--all"),
        ("snapshot.label.omnibus-csi/volume", "x"),
    ] {
        let attributes = [("image.reference", REFERENCE), (key, value)];
        let error = make_as(&containerd, &attributes, &Secrets::new(), false).await;
        assert_eq!(error.expect_err(key).kind(), Kind::Invalid);
    }
    containerd.import("hello");
    let attributes = [("image.reference", REFERENCE), ("snapshot.label.team", "a")];
    make_as(&containerd, &attributes, &Secrets::new(), true)
        .await
        .expect("made");
    let written = fs::write(containerd.target().as_path().join("hello"), "bye");
    assert!(written.is_err(), "it was asked for read-only");
    let (_, info) = containerd.ctr(&["snapshots", "info", containerd.target().as_str()]);
    assert!(info.contains("\"team\": \"a\""), "{info}");
    let other = VolumeId::parse("csi-other").expect("an id");
    let driver = containerd.driver();
    let inline = driver.inline().expect("inline volumes");
    let taken = inline
        .remove_inline(&call(), &other, &containerd.target())
        .await;
    assert_eq!(taken.expect_err("another volume").kind(), Kind::Conflict);
    containerd.unmount();
    containerd.daemon.kill().expect("killed");
    containerd.daemon.wait().expect("ended");
    let error = remove(&containerd).await.expect_err("containerd is gone");
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    assert_eq!(driver.probe(&call()).await.len(), 1);
}

/// Serves one image to those who show `header`.
async fn registry(image: Image, header: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let image = Arc::new(image);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(answer(client, Arc::clone(&image), header));
        }
    });
    port
}

async fn answer(mut client: TcpStream, image: Arc<Image>, header: &'static str) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if client.read_exact(&mut byte).await.is_err() {
            return;
        }
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let mut words = request.split(' ');
    let (verb, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let last = path.rsplit('/').next().unwrap_or_default();
    let digest = if path.contains("/manifests/") && !last.starts_with("sha256:") {
        &image.manifest
    } else {
        last
    };
    let shown = request.lines().any(|line| {
        line.split_once(": ").is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("authorization") && value == header
        })
    });
    let (status, more, body) = match image.blobs.get(digest) {
        _ if !shown => (
            "401 Unauthorized",
            "WWW-Authenticate: Basic realm=\"x\"\r\n",
            &[][..],
        ),
        Some(blob) => ("200 OK", "", blob.as_slice()),
        None => ("404 Not Found", "", &[][..]),
    };
    let kind = if path.contains("/manifests/") {
        MANIFEST
    } else {
        "application/octet-stream"
    };
    let head = format!(
        "HTTP/1.1 {status}\r\n{more}Content-Type: {kind}\r\nDocker-Content-Digest: {digest}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if verb == "HEAD" { &[][..] } else { body };
    drop(client.write_all(&[head.as_bytes(), body].concat()).await);
}

/// Takes connections and says nothing.
async fn silent_registry() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut clients = Vec::new();
        while let Ok((client, _)) = listener.accept().await {
            clients.push(client);
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_silent_costs_no_more_than_the_call_and_leaves_no_secret() {
    let Some(containerd) = containerd() else {
        return;
    };
    let port = silent_registry().await;
    let reference = format!("127.0.0.1:{port}/csi/hello:1");
    let attributes = map(&[("image.reference", &reference)]);
    let secrets = secrets(&[("username", "joe"), ("password", "hunter2")]);
    let wanted = InlineVolume {
        id: &id(),
        target: &containerd.target(),
        readonly: false,
        attributes: &attributes,
        secrets: &secrets,
    };
    let driver = containerd.driver();
    let inline = driver.inline().expect("inline volumes");
    let short = Call::within(Duration::from_secs(13));
    let error = inline
        .make_inline(&short, &wanted)
        .await
        .expect_err("nothing comes");
    assert_eq!(error.kind(), Kind::Timeout, "{}", error.chain());
    let argv = containerd.argv();
    let (_, rest) = argv
        .split_once("--hosts-dir ")
        .expect("a folder with the secret");
    let folder = rest.split(' ').next().expect("a path");
    assert!(!PathBuf::from(folder).exists(), "{folder} is left");
}

fn secrets(pairs: &[(&str, &str)]) -> Secrets {
    map(pairs)
        .into_iter()
        .map(|(key, value)| (key, value.into()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_is_shown_the_secret_of_the_pod_and_no_log_or_process_list_is() {
    let Some(containerd) = containerd() else {
        return;
    };
    // `joe:hunter2`.
    let basic = registry(Image::saying("basic"), "Basic am9lOmh1bnRlcjI=").await;
    let bearer = registry(Image::saying("bearer"), "Bearer t0ken").await;
    for (port, says, good, bad) in [
        (
            basic,
            "basic",
            secrets(&[("username", "joe"), ("password", "hunter2")]),
            secrets(&[("username", "joe"), ("password", "hunter3")]),
        ),
        (
            bearer,
            "bearer",
            secrets(&[("democratic-csi.org/token", "t0ken")]),
            secrets(&[("token", "t0ken2")]),
        ),
    ] {
        let reference = format!("127.0.0.1:{port}/csi/hello:1");
        let attributes = [("image.reference", reference.as_str())];
        for secrets in [Secrets::new(), bad] {
            let error = make_as(&containerd, &attributes, &secrets, false).await;
            let error = error.expect_err("it is not let in");
            assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
            assert!(!error.chain().contains("hunter"), "{}", error.chain());
        }
        make_as(&containerd, &attributes, &good, false)
            .await
            .expect("made");
        assert_eq!(read(&containerd), says);
        containerd.unmount();
        remove(&containerd).await.expect("gone");
    }
    // As democratic-csi has it.
    let reference = format!("127.0.0.1:{basic}/csi/hello:2");
    let attributes = [
        ("image.reference", reference.as_str()),
        ("image.user", "joe:hunter2"),
    ];
    make_as(&containerd, &attributes, &Secrets::new(), false)
        .await
        .expect("made");
    let argv = containerd.argv();
    for secret in ["hunter", "t0ken", "am9lOmh1bnRlcjI="] {
        assert!(!argv.contains(secret), "{argv}");
    }
    let folders = argv
        .lines()
        .filter_map(|line| line.split_once("--hosts-dir "));
    let folders: Vec<_> = folders
        .filter_map(|(_, rest)| rest.split(' ').next())
        .collect();
    assert_eq!(folders.len(), 5, "{argv}");
    for folder in folders {
        assert!(!PathBuf::from(folder).exists(), "{folder} is left");
    }
    let half = secrets(&[("username", "joe")]);
    let error = make_as(&containerd, &[("image.reference", "a")], &half, false).await;
    assert_eq!(error.expect_err("half of it").kind(), Kind::Invalid);
}
