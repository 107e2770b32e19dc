//! Snapshots in a repository of kopia: the real tool, and a repository as democratic-csi makes it.

#![expect(
    clippy::disallowed_methods,
    reason = "what democratic-csi and other processes run is run past the runner"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::{call, cannot, id, leftovers, listed, request, restore, snapshot, snapshot_id};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    DeleteSnapshot, DeleteVolume, Driver as _, GetSnapshot, Kind, Lister as _, NodeId, PageRequest,
    SnapshotFilter, SnapshotId, Snapshots as _, Source,
};
use driver_directory::{DirectoryDriver, from_document};
use node_utils::Tools;
use serde_json::Value;

const PASSWORD: &str = "canary-of-the-repository";

/// A repository that was made by kopia, with the token that connects to it.
struct Place {
    top: tempfile::TempDir,
    kopia: PathBuf,
    token: String,
}

impl Place {
    /// `None` where there is no kopia.
    fn new() -> Option<Self> {
        let given = std::env::var_os("OMNIBUS_KOPIA").map(PathBuf::from);
        let kopia = given.unwrap_or_else(|| "kopia".into());
        if let Err(error) = Command::new(&kopia).arg("--version").output() {
            cannot(&format!("kopia: {error}"));
            return None;
        }
        let top = tempfile::tempdir().expect("folder");
        let mut place = Self {
            top,
            kopia,
            token: String::new(),
        };
        let repository = place.top.path().join("repository");
        let repository = repository.to_str().expect("text");
        place.kopia(&["repository", "create", "filesystem", "--path", repository]);
        let status = place.text(&["repository", "status", "-t", "-s"]);
        let token = status.lines().find_map(|line| {
            let (_, token) = line.split_once("from-config --token ")?;
            Some(token.trim().to_owned())
        });
        place.token = token.expect("a token");
        Some(place)
    }

    fn base(&self) -> PathBuf {
        self.top.path().join("base")
    }

    fn driver(&self, keys: &str) -> DirectoryDriver {
        let (base, token) = (self.base(), &self.token);
        let base = base.display();
        let text = format!(
            "driver: local-hostpath\ninstance_id: here\nlocal-hostpath:\n  shareBasePath: {base}\n  \
             controllerBasePath: {base}\n  quotas: try\n  snapshots:\n    default_driver: kopia\n    kopia:\n      \
             config_token: {token}\n      tags: ['kept:nightly']\n{keys}"
        );
        let document = Document::parse(&text, &NoEnvironment).expect("document");
        let node = NodeId::parse("node-1").expect("node");
        let own = self.kopia.parent().and_then(Path::to_str);
        let places = own.into_iter().chain(exec::DIRECTORIES);
        let tools = Tools::all_through(Arc::new(exec::Local::searching(places)));
        let driver = from_document(&document, &node, None, Some(&tools)).expect("driver");
        assert_eq!(document.findings(), []);
        driver
    }

    /// What another program runs on the repository.
    fn text(&self, arguments: &[&str]) -> String {
        let home = self.top.path().join("theirs");
        let output = Command::new(&self.kopia)
            .args(arguments)
            .env("KOPIA_CONFIG_PATH", home.join("repository.config"))
            .env("KOPIA_CACHE_DIRECTORY", home.join("cache"))
            .env("KOPIA_LOG_DIR", home.join("log"))
            .env("KOPIA_CHECK_FOR_UPDATES", "false")
            .env("KOPIA_PASSWORD", PASSWORD)
            .output()
            .expect("kopia");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn kopia(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(arguments)).unwrap_or(Value::Null)
    }

    fn all(&self) -> Vec<Value> {
        let all = self.kopia(&["snapshot", "list", "--json", "--all"]);
        all.as_array().expect("a list").clone()
    }

    async fn volume(&self, driver: &DirectoryDriver, name: &str) -> PathBuf {
        let made = driver.create_volume(&call(), &request(name)).await;
        made.expect("volume");
        let path = self.base().join("v").join(name);
        std::fs::create_dir(path.join("sub")).expect("folder");
        std::fs::write(path.join("sub/file"), b"content").expect("file");
        std::os::unix::fs::symlink("sub/file", path.join("link")).expect("link");
        path
    }

    fn content(&self, volume: &str) -> Vec<u8> {
        std::fs::read(self.base().join("v").join(volume).join("link")).expect("file")
    }
}

fn handle(printed: &Value) -> SnapshotId {
    let id = printed["id"].as_str().expect("an id");
    snapshot_id(&format!("snapshot_driver=kopia&snapshot_id={id}"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn a_snapshot_outlives_its_volume_and_is_restored_as_it_was() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    let taken = snapshot(&driver, "pvc-1", "snapshot-a").await;
    let taken = taken.expect("snapshot");
    assert_eq!(taken.id, handle(&place.all()[0]));
    assert!(taken.ready && taken.size == 7, "{taken:?}");
    let again = snapshot(&driver, "pvc-1", "snapshot-a").await;
    assert_eq!(again.expect("the same"), taken);
    let all = place.all();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["tags"]["tag:kept"], "nightly");

    std::fs::write(path.join("sub/file"), b"changed").expect("file");
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await;
    deleted.expect("deleted");
    let got = driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await;
    assert_eq!(got.expect("found"), taken);
    let made = restore(&driver, &taken.id, "pvc-2").await.expect("volume");
    assert_eq!(made.source, Some(Source::Snapshot(taken.id.clone())));
    assert_eq!(place.content("pvc-2"), b"content");
    let seen = driver.get_volume(&call(), &id("pvc-2")).await;
    assert_eq!(seen.expect("volume"), made);

    for _ in 0..2 {
        let deleted = driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await;
        deleted.expect("deleted");
    }
    assert_eq!(place.all(), Vec::<Value>::new());
    let gone = restore(&driver, &taken.id, "pvc-3").await;
    assert_eq!(gone.expect_err("gone").kind(), Kind::NotFound);
    assert_eq!(leftovers(&place.base()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn a_repository_of_democratic_csi_is_taken_over_and_given_back() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    let path = path.to_str().expect("text");
    // The command lines of democratic-csi, after it has connected with a host and a user of its own.
    let token = &place.token;
    place.text(&[
        "repository",
        "connect",
        "--override-hostname",
        "org.example-node-1",
        "--override-username",
        "democratic-csi",
        "from-config",
        "--token",
        token,
    ]);
    let tags = |name: &str| {
        [
            "source:democratic-csi",
            "csi_volume_id:pvc-1",
            "csi_instance_id:here",
        ]
        .into_iter()
        .map(str::to_owned)
        .chain([format!("csi_snapshot_name:{name}")])
        .flat_map(|tag| ["--tags".to_owned(), tag])
        .collect::<Vec<_>>()
    };
    let tagged = |words: &[&str], name: &str, last: &str| {
        let tags = tags(name);
        let words = words.iter().copied().chain(tags.iter().map(String::as_str));
        place.kopia(&words.chain([last]).collect::<Vec<_>>())
    };
    let theirs = tagged(&["snapshot", "create", "--json"], "snapshot-a", path);
    let theirs = handle(&theirs);

    let taken = snapshot(&driver, "pvc-1", "snapshot-a").await;
    assert_eq!(taken.expect("the one that is there").id, theirs);
    assert_eq!(place.all().len(), 1);
    restore(&driver, &theirs, "pvc-2").await.expect("volume");
    assert_eq!(place.content("pvc-2"), b"content");

    let ours = snapshot(&driver, "pvc-1", "snapshot-b").await;
    let ours = ours.expect("snapshot");
    // As democratic-csi finds the source of a restore.
    assert!(place.all().iter().any(|one| handle(one) == ours.id));
    for max in [1, 2, 10] {
        let both = [theirs.clone(), ours.id.clone()];
        assert_eq!(listed(&driver, max).await, both, "{max}");
    }
    let deleted = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&theirs))
        .await;
    deleted.expect("deleted");
    assert_eq!(listed(&driver, 10).await, [ours.id]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn snapshots_stay_however_few_the_policy_keeps_and_others_are_not_touched() {
    let Some(place) = Place::new() else { return };
    let policy = ["policy", "set", "--global", "--keep-latest", "1"];
    let ages = [
        "--keep-hourly",
        "--keep-daily",
        "--keep-weekly",
        "--keep-monthly",
        "--keep-annual",
    ];
    let none = ages.iter().flat_map(|age| [*age, "0"]);
    place.text(&policy.into_iter().chain(none).collect::<Vec<_>>());
    let driver = place.driver("");
    place.volume(&driver, "pvc-1").await;
    let mut taken = Vec::new();
    for name in ["a", "b", "c"] {
        let made = snapshot(&driver, "pvc-1", name).await;
        taken.push(made.expect("snapshot").id);
    }
    assert_eq!(listed(&driver, 10).await, taken);

    let other = place.base();
    let other = [
        "snapshot",
        "create",
        "--json",
        other.to_str().expect("text"),
    ];
    let other = handle(&place.kopia(&other));
    let error = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&other))
        .await;
    assert_eq!(error.expect_err("another's").kind(), Kind::Busy);
    assert_eq!(place.all().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn a_snapshot_that_was_cut_is_none_and_a_retry_replaces_it() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    // Two sizes above the limit, of bytes that cannot be compressed.
    let random = std::fs::read("/proc/self/exe").expect("bytes");
    for number in 0..4 {
        std::fs::write(path.join(format!("large-{number}")), &random[number..]).expect("file");
    }
    let cut = |name: &str| {
        let name = format!("csi_snapshot_name:{name}");
        let words = ["snapshot", "create", "--json", "--upload-limit-mb", "1"];
        let tags = [
            "--tags",
            "source:democratic-csi",
            "--tags",
            "csi_volume_id:pvc-1",
            "--tags",
            "csi_instance_id:here",
            "--tags",
            &name,
        ];
        let path = [path.to_str().expect("text")];
        let made = place.kopia(
            &words
                .iter()
                .chain(&tags)
                .chain(&path)
                .copied()
                .collect::<Vec<_>>(),
        );
        assert!(made["incomplete"].is_string(), "{made}");
        handle(&made)
    };
    let (first, second) = (cut("s"), cut("t"));
    assert_eq!(listed(&driver, 10).await, []);
    for error in [
        driver
            .get_snapshot(&call(), GetSnapshot::new(&first))
            .await
            .map(drop),
        restore(&driver, &first, "pvc-2").await.map(drop),
    ] {
        assert_eq!(error.expect_err("no snapshot").kind(), Kind::NotFound);
    }
    let taken = snapshot(&driver, "pvc-1", "s").await.expect("snapshot");
    assert_ne!(taken.id, first);
    assert_eq!(place.all().len(), 2, "the one of this name is gone");
    // democratic-csi reports it as ready, so it has to be deleted by its id.
    let deleted = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&second))
        .await;
    deleted.expect("deleted");
    assert_eq!(listed(&driver, 10).await, [taken.id]);
    assert_eq!(place.all().len(), 1);
}

/// What a controller leaves that ended between the backup and the look at its locks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn a_whole_backup_that_was_never_found_good_is_no_snapshot_and_a_retry_replaces_it() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    let mut words = vec![
        "snapshot",
        "create",
        "--json",
        "--pin",
        "omnibus-csi-pending",
    ];
    for tag in [
        "source:democratic-csi",
        "csi_volume_id:pvc-1",
        "csi_instance_id:here",
        "csi_snapshot_name:s",
    ] {
        words.extend(["--tags", tag]);
    }
    words.push(path.to_str().expect("text"));
    let made = place.kopia(&words);
    assert!(made["incomplete"].is_null(), "it is whole: {made}");
    let pending = handle(&made);
    assert_eq!(listed(&driver, 10).await, []);
    for error in [
        driver
            .get_snapshot(&call(), GetSnapshot::new(&pending))
            .await
            .map(drop),
        restore(&driver, &pending, "pvc-2").await.map(drop),
    ] {
        assert_eq!(error.expect_err("no snapshot").kind(), Kind::NotFound);
    }
    std::fs::write(path.join("sub/file"), b"later").expect("file");
    let taken = snapshot(&driver, "pvc-1", "s").await.expect("snapshot");
    assert_ne!(taken.id, pending);
    assert_eq!(listed(&driver, 10).await, std::slice::from_ref(&taken.id));
    let all = place.all();
    assert_eq!(all.len(), 1, "the one of before is gone: {all:?}");
    assert_eq!(all[0]["pins"], serde_json::json!(["csi"]), "{all:?}");
    restore(&driver, &taken.id, "pvc-2")
        .await
        .expect("restored");
    assert_eq!(place.content("pvc-2"), b"later");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn a_snapshot_has_what_the_volume_or_the_policy_would_leave_out() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    let path = place.volume(&driver, "pvc-1").await;
    let tag = "Signature: 8a477f597d28d172789f06886806bc55";
    std::fs::write(path.join("sub/CACHEDIR.TAG"), tag).expect("tag");
    std::fs::write(path.join(".kopiaignore"), "sub").expect("list");
    let identical = [
        "policy",
        "set",
        "--global",
        "--ignore-identical-snapshots",
        "true",
    ];
    place.text(&identical);
    snapshot(&driver, "pvc-1", "a").await.expect("snapshot");
    let taken = snapshot(&driver, "pvc-1", "b").await.expect("snapshot");
    restore(&driver, &taken.id, "pvc-2").await.expect("volume");
    assert_eq!(place.content("pvc-2"), b"content");
    let restored = place.base().join("v/pvc-2");
    for name in [".kopiaignore", "sub/CACHEDIR.TAG"] {
        assert!(restored.join(name).exists(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn a_repository_that_cannot_be_opened_is_no_empty_one_and_no_secret_is_shown() {
    let Some(place) = Place::new() else { return };
    let driver = place.driver("");
    place.volume(&driver, "pvc-1").await;
    let taken = snapshot(&driver, "pvc-1", "a").await.expect("snapshot").id;
    let repository = place.top.path().join("repository");
    let away = place.top.path().join("elsewhere");
    std::fs::rename(&repository, &away).expect("moved");
    // What is left where a disk is not mounted.
    std::fs::create_dir(&repository).expect("folder");
    // One that is connected, and one that is not.
    for driver in [&driver, &place.driver("")] {
        let (page, filter) = (PageRequest::default(), SnapshotFilter::default());
        let all = driver.list_snapshots(&call(), &filter, &page).await;
        for error in [
            all.map(drop),
            driver
                .delete_snapshot(&call(), DeleteSnapshot::new(&taken))
                .await,
            snapshot(driver, "pvc-1", "s").await.map(drop),
            driver
                .get_snapshot(&call(), GetSnapshot::new(&taken))
                .await
                .map(drop),
            restore(driver, &taken, "pvc-2").await.map(drop),
        ] {
            let error = error.expect_err("unknown");
            assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
            let text = format!("{} {error:?} {driver:?}", error.chain());
            let is_shown = text.contains(&place.token) || text.contains(PASSWORD);
            assert!(!is_shown, "{text}");
        }
    }
    // kopia writes how it names its files, and no data.
    let left = std::fs::read_dir(&repository).expect("list");
    let left = left.map(|entry| entry.expect("entry").file_name());
    let left = left.filter(|name| name != ".shards").collect::<Vec<_>>();
    assert_eq!(left, Vec::<std::ffi::OsString>::new());
    std::fs::remove_dir_all(&repository).expect("removed");
    std::fs::rename(&away, &repository).expect("mounted");
    assert_eq!(listed(&driver, 10).await, [taken]);
    for keys in [
        "      global_flags: [--no-such-flag]\n",
        "      env: {KOPIA_SNAPSHOT_FAIL_FAST: neither}\n",
    ] {
        let refused = snapshot(&place.driver(keys), "pvc-1", "s").await;
        refused.expect_err(keys);
    }
    snapshot(&driver, "pvc-1", "s").await.expect("without them");
    for word in ["latest", "", "..%2Fx", "--delete", "k0123456789"] {
        let bad = snapshot_id(&format!("snapshot_driver=kopia&snapshot_id={word}"));
        let error = driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&bad))
            .await;
        assert_eq!(error.expect_err(word).kind(), Kind::Invalid);
    }
}
