//! Snapshots in a repository of restic: the real tool, and a repository as democratic-csi makes it.

#![expect(
    clippy::disallowed_methods,
    reason = "what democratic-csi and other processes run is run past the runner"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use crate::common::{call, cannot, id, leftovers, listed, request, restore, snapshot, snapshot_id};
use csi_types::AbsolutePath;
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    DeleteSnapshot, DeleteVolume, Driver as _, GetSnapshot, Kind, Lister as _, NodeId,
    Snapshots as _, Source,
};
use driver_directory::{DirectoryDriver, from_document};
use node_utils::Tools;
use serde_json::Value;

use async_trait::async_trait;
use exec::{Local, Output, OutputStream, RunError, Runner, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PASSWORD: &str = "canary-of-the-repository";

struct Place {
    top: tempfile::TempDir,
}

impl Place {
    /// `None` where there is no restic.
    fn new() -> Option<Self> {
        if let Err(error) = Command::new("restic").arg("version").output() {
            cannot(&format!("restic: {error}"));
            return None;
        }
        let top = tempfile::tempdir().expect("folder");
        Some(Self { top })
    }

    fn base(&self) -> PathBuf {
        self.top.path().join("base")
    }

    fn repository(&self) -> PathBuf {
        self.top.path().join("repository")
    }

    fn driver(&self, keys: &str) -> DirectoryDriver {
        self.driver_with(keys, &Tools::of_this_machine())
    }

    fn driver_with(&self, keys: &str, tools: &Tools) -> DirectoryDriver {
        self.driver_at(&self.base(), keys, tools)
    }

    fn driver_at(&self, base: &Path, keys: &str, tools: &Tools) -> DirectoryDriver {
        let repository = self.repository();
        let (base, repository) = (base.display(), repository.display());
        let text = format!(
            "driver: local-hostpath\ninstance_id: here\nlocal-hostpath:\n  shareBasePath: {base}\n  \
             controllerBasePath: {base}\n  quotas: try\n  snapshots:\n    default_driver: restic\n    restic:\n      \
             prune: yes\n      tags: [nightly]\n      env:\n        RESTIC_REPOSITORY: {repository}\n        \
             RESTIC_PASSWORD: {PASSWORD}\n        RESTIC_CACHE_DIR: {base}-cache\n{keys}"
        );
        let document = Document::parse(&text, &NoEnvironment).expect("document");
        let node = NodeId::parse("node-1").expect("node");
        let records = self.top.path().join("records");
        std::fs::create_dir_all(&records).expect("folder");
        let records = AbsolutePath::parse(records.to_str().expect("text")).expect("path");
        let driver = from_document(&document, &node, Some(&records), Some(tools));
        let driver = driver.expect("driver");
        assert_eq!(document.findings(), []);
        driver
    }

    /// A command that another program runs on the repository.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("restic");
        command
            .args(arguments)
            .env("RESTIC_REPOSITORY", self.repository())
            .env("RESTIC_PASSWORD", PASSWORD)
            .env("RESTIC_CACHE_DIR", self.top.path().join("base-cache"));
        command
    }

    fn restic(&self, arguments: &[&str]) -> Value {
        let output = self.command(arguments).output().expect("restic");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        let text = String::from_utf8(output.stdout).expect("text");
        let last = text.lines().last().unwrap_or("null");
        serde_json::from_str(last).unwrap_or(Value::Null)
    }

    fn count(&self) -> usize {
        let all = self.restic(&["snapshots", "--json", "--no-lock"]);
        all.as_array().expect("a list").len()
    }

    async fn volume(&self, driver: &DirectoryDriver, name: &str) -> PathBuf {
        let made = driver.create_volume(&call(), &request(name)).await;
        made.expect("volume");
        let path = self.base().join("v").join(name);
        std::fs::create_dir(path.join("sub")).expect("folder");
        std::fs::write(path.join("sub/file"), b"content").expect("file");
        std::os::unix::fs::symlink("sub/file", path.join("link")).expect("link");
        let mode = std::fs::Permissions::from_mode(0o2751);
        std::fs::set_permissions(&path, mode).expect("mode");
        path
    }
}

fn content(volume: &Path) -> Vec<u8> {
    assert_eq!(
        std::fs::read_link(volume.join("link")).expect("link"),
        Path::new("sub/file")
    );
    std::fs::read(volume.join("sub/file")).expect("file")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_outlives_its_volume_and_is_restored_as_it_was() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    let before = SystemTime::now();
    let taken = snapshot(&driver, "pvc-1", "snapshot-a").await;
    let taken = taken.expect("snapshot");
    assert!(
        taken
            .id
            .as_str()
            .starts_with("snapshot_driver=restic&snapshot_id="),
        "{}",
        taken.id
    );
    assert!(taken.ready && taken.size == 7, "{taken:?}");
    assert!(taken.created >= before && taken.created <= SystemTime::now());
    let again = snapshot(&driver, "pvc-1", "snapshot-a").await;
    assert_eq!(again.expect("the same"), taken);
    assert_eq!(place.count(), 1);

    std::fs::write(path.join("sub/file"), b"changed").expect("file");
    driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await
        .expect("deleted");
    let got = driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await;
    assert_eq!(got.expect("found"), taken);
    let made = restore(&driver, &taken.id, "pvc-2").await.expect("volume");
    assert_eq!(made.capacity, Some(1 << 20));
    assert_eq!(made.source, Some(Source::Snapshot(taken.id.clone())));
    let restored = place.base().join("v/pvc-2");
    assert_eq!(content(&restored), b"content");
    let mode = std::fs::metadata(&restored)
        .expect("volume")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o2751);
    let again = restore(&driver, &taken.id, "pvc-2").await;
    assert_eq!(again.expect("the same"), made);
    let seen = driver.get_volume(&call(), &id("pvc-2")).await;
    assert_eq!(seen.expect("volume"), made);

    for _ in 0..2 {
        driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await
            .expect("deleted");
    }
    assert_eq!(place.count(), 0);
    let gone = driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await;
    assert_eq!(gone.expect_err("gone").kind(), Kind::NotFound);
    let gone = restore(&driver, &taken.id, "pvc-3").await;
    assert_eq!(gone.expect_err("gone").kind(), Kind::NotFound);
    assert!(!place.base().join("v/pvc-3").exists());
    assert_eq!(leftovers(&place.base()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_of_democratic_csi_is_taken_over_and_given_back() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    let path = path.to_str().expect("text");
    // The command lines of democratic-csi, with the tag of the instance glued to that of the volume. Its
    // `--group-by` of `backup` chooses a parent only, and restic before 0.16 does not know it.
    let tag = "source=democratic-csi,csi_volume_id=pvc-1csi_instance_id=here";
    place.restic(&["init", "--json"]);
    let backup = [
        "backup",
        "--json",
        "--host",
        "undefined",
        "--one-file-system",
        "--tag",
        tag,
        path,
    ];
    let made = place.restic(&backup);
    let made = made["snapshot_id"].as_str().expect("an id");
    // Before it has its name it is not a snapshot.
    assert_eq!(listed(&driver, 10).await, []);
    let named = "csi_snapshot_name=snapshot-a";
    place.restic(&[
        "tag",
        "--json",
        "--path",
        path,
        "--host",
        "undefined",
        "--add",
        named,
        made,
    ]);
    let named = format!("{tag},csi_snapshot_name=snapshot-a");
    let look = |named: &str| {
        let found = place.restic(&[
            "snapshots",
            "--json",
            "--no-lock",
            "--path",
            path,
            "--host",
            "undefined",
            "--group-by",
            "host,paths,tags",
            "--tag",
            named,
        ]);
        let groups = found.as_array().expect("groups").clone();
        groups.first().map(|group| {
            let id = group["snapshots"][0]["id"].as_str().expect("an id");
            snapshot_id(&format!("snapshot_driver=restic&snapshot_id={id}"))
        })
    };
    let theirs = look(&named).expect("its own");

    let taken = snapshot(&driver, "pvc-1", "snapshot-a").await;
    assert_eq!(taken.expect("the one that is there").id, theirs);
    assert_eq!(place.count(), 1);
    restore(&driver, &theirs, "pvc-2").await.expect("volume");
    assert_eq!(content(&place.base().join("v/pvc-2")), b"content");

    let ours = snapshot(&driver, "pvc-1", "snapshot-b")
        .await
        .expect("snapshot");
    let named = format!("{tag},csi_snapshot_name=snapshot-b,nightly");
    assert_eq!(look(&named), Some(ours.id.clone()));
    for max in [1, 2, 10] {
        assert_eq!(
            listed(&driver, max).await,
            [theirs.clone(), ours.id.clone()]
        );
    }
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&theirs))
        .await
        .expect("deleted");
    assert_eq!(listed(&driver, 10).await, [ours.id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_was_killed_is_never_a_snapshot_and_a_retry_replaces_it() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    place.restic(&["init", "--json"]);
    // Killed after the backup was written, before it got its name.
    let tags =
        "source=democratic-csi,csi_volume_id=pvc-1csi_instance_id=here,omnibus_csi_pending=s";
    let path = path.to_str().expect("text");
    place.restic(&[
        "backup",
        "--json",
        "--host",
        "undefined",
        "--tag",
        tags,
        path,
    ]);
    let all = place.restic(&["snapshots", "--json", "--no-lock"]);
    let cut = all[0]["id"].as_str().expect("an id");
    let cut = snapshot_id(&format!("snapshot_driver=restic&snapshot_id={cut}"));
    assert_eq!(listed(&driver, 10).await, []);
    for error in [
        driver
            .get_snapshot(&call(), GetSnapshot::new(&cut))
            .await
            .map(drop),
        restore(&driver, &cut, "pvc-2").await.map(drop),
    ] {
        assert_eq!(error.expect_err("no snapshot").kind(), Kind::NotFound);
    }
    // Killed while it was written: its lock stays.
    let mut killed = place.command(&["backup", "--stdin", "--json"]);
    let killed = killed.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut killed = killed.expect("restic");
    let locks = place.repository().join("locks");
    while std::fs::read_dir(&locks).expect("locks").count() == 0 {
        tokio::task::yield_now().await;
    }
    killed.kill().expect("kill");
    killed.wait().expect("end");
    assert_eq!(std::fs::read_dir(&locks).expect("locks").count(), 1);

    let taken = snapshot(&driver, "pvc-1", "s").await.expect("snapshot");
    assert_ne!(taken.id, cut);
    assert_eq!(place.count(), 1, "the one that was cut is forgotten");
    assert_eq!(listed(&driver, 10).await, [taken.id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_is_not_there_or_not_ours_is_no_empty_one() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let digits = "0123456789abcdef";
    let missing = snapshot_id(&format!("snapshot_driver=restic&snapshot_id={digits}"));
    let error = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&missing))
        .await;
    assert_eq!(error.expect_err("unknown").kind(), Kind::Unreachable);
    assert!(!place.repository().exists());

    // A backup of another program stays.
    place.restic(&["init", "--json"]);
    std::fs::create_dir_all(place.base()).expect("folder");
    place.restic(&["backup", "--json", place.base().to_str().expect("text")]);
    let all = place.restic(&["snapshots", "--json", "--no-lock"]);
    let other = all[0]["id"].as_str().expect("an id");
    let other = snapshot_id(&format!("snapshot_driver=restic&snapshot_id={other}"));
    let error = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&other))
        .await;
    assert_eq!(error.expect_err("another's").kind(), Kind::Busy);
    assert_eq!(place.count(), 1);
    for word in ["latest", "", "..%2Fx", "--prune"] {
        let bad = snapshot_id(&format!("snapshot_driver=restic&snapshot_id={word}"));
        let error = driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&bad))
            .await;
        assert_eq!(error.expect_err(word).kind(), Kind::Invalid);
    }
    // The password is in no text, also where it is refused.
    let wrong = place.driver("      global_flags: [--password-file=/dev/null]\n");
    place.volume(&wrong, "pvc-1").await;
    let error = snapshot(&wrong, "pvc-1", "s").await.expect_err("refused");
    let text = format!("{} {error:?} {wrong:?}", error.chain());
    assert!(!text.contains(PASSWORD), "{text}");
    let missing = snapshot(&driver, "pvc-9", "s").await;
    assert_eq!(missing.expect_err("no volume").kind(), Kind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_was_used_is_never_made_anew() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    place.volume(&driver, "pvc-1").await;
    let taken = snapshot(&driver, "pvc-1", "a").await.expect("snapshot");
    let away = place.top.path().join("away");
    std::fs::rename(place.repository(), &away).expect("unmounted");
    // The process that made it, one that was started since, and one of a new pod, which has nothing but the base.
    let of_new_pod = || {
        std::fs::remove_dir_all(place.top.path().join("records")).expect("records");
        std::fs::create_dir(place.top.path().join("records")).expect("records");
        place.driver("")
    };
    for driver in [driver, place.driver(""), of_new_pod()] {
        let error = snapshot(&driver, "pvc-1", "b").await;
        let error = error.expect_err("not there");
        assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        assert!(
            error
                .advice()
                .is_some_and(|advice| advice.contains("/.omnibus-csi-repository-"))
        );
        assert!(!place.repository().exists());
    }
    std::fs::rename(&away, place.repository()).expect("mounted");
    assert_eq!(listed(&place.driver(""), 10).await, [taken.id]);
    // Removed on purpose.
    std::fs::remove_dir_all(place.repository()).expect("removed");
    for record in std::fs::read_dir(place.base()).expect("base") {
        let record = record.expect("record").path();
        if record
            .to_string_lossy()
            .contains(".omnibus-csi-repository-")
        {
            std::fs::remove_file(record).expect("removed");
        }
    }
    snapshot(&place.driver(""), "pvc-1", "b")
        .await
        .expect("made again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_was_only_read_is_not_made_anew_nor_is_another_one_taken_for_it() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    place.volume(&driver, "pvc-1").await;
    let taken = snapshot(&driver, "pvc-1", "a").await.expect("snapshot");
    let forget_records = || {
        for record in std::fs::read_dir(place.base()).expect("base") {
            let record = record.expect("record").path();
            if record
                .to_string_lossy()
                .contains(".omnibus-csi-repository-")
            {
                std::fs::remove_file(record).expect("removed");
            }
        }
    };
    let away = place.top.path().join("away");
    for use_it in ["list", "restore"] {
        forget_records();
        let reader = place.driver("");
        match use_it {
            "list" => assert_eq!(listed(&reader, 10).await.len(), 1),
            _ => drop(restore(&reader, &taken.id, "pvc-2").await.expect("volume")),
        }
        std::fs::rename(place.repository(), &away).expect("unmounted");
        let error = snapshot(&place.driver(""), "pvc-1", "b").await;
        assert_eq!(error.expect_err(use_it).kind(), Kind::Unreachable);
        assert!(!place.repository().exists(), "{use_it}");
        // Another one of the same password is at its place.
        place.restic(&["init", "--json"]);
        let driver = place.driver("");
        let page = driver_core::PageRequest::default();
        let filter = driver_core::SnapshotFilter::default();
        for error in [
            driver
                .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
                .await
                .err(),
            driver
                .get_snapshot(&call(), GetSnapshot::new(&taken.id))
                .await
                .err(),
            driver.list_snapshots(&call(), &filter, &page).await.err(),
            snapshot(&driver, "pvc-1", "c").await.err(),
            restore(&driver, &taken.id, "pvc-3").await.err(),
        ] {
            let error = error.expect(use_it);
            assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        }
        assert_eq!(place.count(), 0, "{use_it}");
        std::fs::remove_dir_all(place.repository()).expect("removed");
        std::fs::rename(&away, place.repository()).expect("mounted");
    }
    let deleted = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await;
    deleted.expect("the right one");
    assert_eq!(place.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_found_whatever_the_path_of_its_base_was() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    place.volume(&driver, "pvc-1").await;
    let taken = snapshot(&driver, "pvc-1", "a").await.expect("snapshot");
    std::fs::rename(place.base(), place.top.path().join("moved")).expect("moved");
    let moved = Place { top: place.top };
    let base = moved.top.path().join("moved");
    let driver = moved.driver_at(&base, "", &Tools::of_this_machine());
    let again = snapshot(&driver, "pvc-1", "a").await.expect("the same");
    assert_eq!(again.id, taken.id);
    assert_eq!(moved.count(), 1);
}

/// The real tool, which cannot read every file.
#[derive(Debug)]
struct Unreadable {
    tool: Local,
    commands: AtomicUsize,
    measured: AtomicUsize,
}

/// Ends with the code that says so, after all that the real one prints.
#[derive(Debug)]
struct Incomplete {
    printed: Box<dyn OutputStream>,
    command: exec::Command,
}

fn keeps_secrets(command: &exec::Command) {
    let shown = command.arguments().iter().map(exec::Argument::expose);
    assert_eq!(shown.filter(|text| text.contains(PASSWORD)).count(), 0);
    assert!(!format!("{command} {command:?}").contains(PASSWORD));
}

#[async_trait]
impl Runner for Unreadable {
    async fn run(&self, command: &exec::Command) -> Result<Output, RunError> {
        keeps_secrets(command);
        self.commands.fetch_add(1, Ordering::SeqCst);
        let is_measure = |argument: &exec::Argument| argument.expose() == "stats";
        let measures = command.arguments().iter().any(is_measure);
        self.measured
            .fetch_add(usize::from(measures), Ordering::SeqCst);
        self.tool.run(command).await
    }

    async fn stream_output(
        &self,
        command: &exec::Command,
    ) -> Result<Box<dyn OutputStream>, RunError> {
        keeps_secrets(command);
        Ok(Box::new(Incomplete {
            printed: self.tool.stream_output(command).await?,
            command: command.clone(),
        }))
    }

    async fn run_all(&self, commands: &[exec::Command]) -> exec::Batch {
        exec::one_by_one(self, commands).await
    }

    async fn run_with_input(
        &self,
        command: &exec::Command,
        input: &mut dyn exec::InputStream,
    ) -> Result<Output, RunError> {
        keeps_secrets(command);
        self.tool.run_with_input(command, input).await
    }
}

#[async_trait]
impl OutputStream for Incomplete {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError> {
        if let Some(chunk) = self.printed.next().await? {
            return Ok(Some(chunk));
        }
        let ended = Output {
            status: Status::Exit(3),
            stdout: Vec::new(),
            stderr: b"error: open /a: permission denied".to_vec(),
        };
        ended.check(&self.command).map(|_| None)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_without_every_file_is_no_snapshot_and_no_secret_is_an_argument() {
    let Some(place) = Place::new() else { return };
    let tool = Arc::new(Unreadable {
        tool: Local::new(),
        commands: AtomicUsize::new(0),
        measured: AtomicUsize::new(0),
    });
    let driver = place.driver_with("", &Tools::all_through(Arc::clone(&tool) as _));
    place.volume(&driver, "pvc-1").await;
    let error = snapshot(&driver, "pvc-1", "s")
        .await
        .expect_err("incomplete");
    let text = error.chain();
    assert!(
        text.contains("could not read every file") && text.contains("permission denied"),
        "{text}"
    );
    assert!(tool.commands.load(Ordering::SeqCst) > 2);
    assert_eq!(place.count(), 0);
    assert_eq!(listed(&driver, 10).await, []);
    let whole = place.driver("");
    let taken = snapshot(&whole, "pvc-1", "s").await;
    let taken = taken.expect("a retry where all can be read");
    assert_eq!(place.count(), 1);
    // Its size is in a tag: a list measures nothing.
    assert_eq!(listed(&driver, 10).await, [taken.id]);
    assert_eq!((taken.size, tool.measured.load(Ordering::SeqCst)), (7, 0));
}
