//! Snapshots, restores and clones; ids that lead nowhere.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::common::{Place, call, id, leftovers, parameters, request, snapshot_id, tree};
use driver_core::{
    Call, CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, Effect, ExpandVolume,
    Expander as _, FindVolume, GetSnapshot, Kind, Lister as _, PageRequest, SizeRange,
    SnapshotFilter, SnapshotName, Snapshots as _, Source,
};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("file")
}

#[tokio::test]
async fn a_snapshot_keeps_what_the_volume_was_and_a_restore_brings_it_back() {
    let place = Place::new();
    let path = place.volume("pvc-1").await;
    std::fs::write(path.join("file"), "before").expect("file");
    let taken = place
        .snapshot("pvc-1", "snapshot-a")
        .await
        .expect("snapshot");
    assert_eq!(
        taken.id.as_str(),
        "snapshot_driver=filecopy&snapshot_id=pvc-1-snapshot-a"
    );
    assert!(taken.ready && taken.size > 0);
    std::fs::write(path.join("file"), "after").expect("file");
    std::fs::write(path.join("more"), "more").expect("file");
    let again = place.snapshot("pvc-1", "snapshot-a").await.expect("again");
    assert_eq!(again, taken, "the same time on every reply");
    for handle in [taken.id.as_str(), "pvc-1-snapshot-a"] {
        let name = format!("restored-{}", handle.len());
        place
            .restore(&snapshot_id(handle), &name)
            .await
            .expect("restore");
        let restored = place.base().join("v").join(name);
        assert_eq!(read(&restored.join("file")), "before");
        assert!(!restored.join("more").exists());
    }
    place
        .driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await
        .expect("delete");
    let found = place
        .driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await
        .expect("survives");
    assert_eq!(found, taken);
    for _ in 0..2 {
        place
            .driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await
            .expect("delete");
    }
    let gone = place
        .driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await;
    assert_eq!(gone.expect_err("gone").kind(), Kind::NotFound);
    assert!(leftovers(&place.base()).is_empty());
}

#[tokio::test]
async fn a_restore_can_be_asked_for_again_in_either_form_of_the_handle() {
    let place = Place::new();
    place.volume("pvc-1").await;
    place.snapshot("pvc-1", "s").await.expect("snapshot");
    let first = place
        .restore(&snapshot_id("pvc-1-s"), "pvc-2")
        .await
        .expect("restore");
    let handle = snapshot_id("snapshot_driver=filecopy&snapshot_id=pvc-1-s");
    assert_eq!(place.restore(&handle, "pvc-2").await.expect("again"), first);
    let plain = place
        .create(&request("pvc-2"))
        .await
        .expect_err("another source");
    assert_eq!(plain.kind(), Kind::Conflict);
}

#[tokio::test]
async fn a_directory_that_may_be_half_a_copy_of_another_program_is_not_passed_off_as_one() {
    let place = Place::new();
    place.volume("pvc-1").await;
    std::fs::create_dir(place.base().join("v/half")).expect("folder");
    let mut wanted = request("half");
    wanted.source = Some(Source::Volume(id("pvc-1")));
    let error = place.create(&wanted).await.expect_err("half of one?");
    assert_eq!(
        (error.kind(), error.advice().is_some()),
        (Kind::Conflict, true)
    );
    place
        .create(&request("half"))
        .await
        .expect("nothing can be missing from one without a source");
}

#[tokio::test]
async fn a_clone_is_a_copy_of_the_present_and_independent() {
    let place = Place::new();
    let path = place.volume("pvc-1").await;
    std::fs::write(path.join("file"), "one").expect("file");
    let mut wanted = request("pvc-2");
    wanted.source = Some(Source::Volume(id("pvc-1")));
    wanted.size = SizeRange::new(1, 0).expect("range");
    let clone = place.create(&wanted).await.expect("clone");
    assert_eq!(clone.capacity, Some(1 << 20), "not smaller than its source");
    assert_eq!(clone.source, wanted.source);
    std::fs::write(path.join("file"), "two").expect("file");
    assert_eq!(read(&place.base().join("v/pvc-2/file")), "one");
    wanted.name = driver_core::VolumeName::parse("pvc-3").expect("name");
    wanted.id = id("pvc-3");
    wanted.size = SizeRange::new(0, 100).expect("range");
    let small = place.create(&wanted).await.expect_err("too small");
    assert_eq!(small.kind(), Kind::OutOfRange);
    assert!(!place.base().join("v/pvc-3").exists());
}

#[tokio::test]
async fn a_missing_source_is_not_found_and_leaves_nothing() {
    let place = Place::new();
    place.volume("pvc-1").await;
    let before = tree(&place.base().join("v"));
    let mut clone = request("pvc-2");
    clone.source = Some(Source::Volume(id("missing")));
    let missing = [
        place.snapshot("missing", "s").await.map(drop),
        place
            .restore(&snapshot_id("pvc-1-missing"), "pvc-2")
            .await
            .map(drop),
        place.create(&clone).await.map(drop),
    ];
    for outcome in missing {
        assert_eq!(outcome.expect_err("missing").kind(), Kind::NotFound);
    }
    assert_eq!(tree(&place.base().join("v")), before);
    assert!(leftovers(&place.base()).is_empty());
}

#[tokio::test]
async fn a_name_belongs_to_one_volume() {
    let place = Place::new();
    for name in ["a", "b", "a-b"] {
        place.volume(name).await;
    }
    place.snapshot("a", "s").await.expect("snapshot");
    let other = place.snapshot("b", "s").await.expect_err("taken");
    assert_eq!(
        (other.kind(), other.effect()),
        (Kind::Conflict, Effect::None)
    );
    place.snapshot("a-b", "c").await.expect("snapshot");
    // The same directory name by another pair.
    let same = place.snapshot("a", "b-c").await.expect_err("taken");
    assert_eq!(same.kind(), Kind::Conflict);
}

#[tokio::test]
async fn snapshots_are_listed_in_pages_and_by_volume() {
    let place = Place::new();
    for volume in ["a", "a-b"] {
        place.volume(volume).await;
        for number in 0..7 {
            place
                .snapshot(volume, &format!("{volume}.{number}"))
                .await
                .expect("snapshot");
        }
    }
    for (source, count) in [
        (None, 14),
        (Some("a"), 7),
        (Some("a-b"), 7),
        (Some("none"), 0),
    ] {
        let filter = SnapshotFilter {
            source: source.map(id),
            ..SnapshotFilter::default()
        };
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = PageRequest {
                max: Some(3),
                after,
            };
            let page = place
                .driver
                .list_snapshots(&call(), &filter, &page)
                .await
                .expect("page");
            assert!(page.entries.len() <= 3);
            seen.extend(
                page.entries
                    .into_iter()
                    .map(|snapshot| snapshot.id.to_string()),
            );
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let distinct = seen.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!((seen.len(), distinct), (count, count), "{source:?}");
    }
}

#[tokio::test]
async fn snapshots_of_democratic_csi_are_served_with_what_their_names_tell() {
    let place = Place::new();
    place.volume("pvc-1").await;
    let shelf = place.base().join("s");
    for name in ["pvc-1-x-y", "gone-1-snapshot-2-3", "odd"] {
        std::fs::create_dir_all(shelf.join(name)).expect("folder");
    }
    for (name, source) in [("pvc-1-x-y", "pvc-1"), ("gone-1-snapshot-2-3", "gone-1")] {
        let found = place
            .driver
            .get_snapshot(&call(), GetSnapshot::new(&snapshot_id(name)))
            .await
            .expect("found");
        assert_eq!((found.source, found.size), (id(source), 0), "{name}");
        assert!(found.created.elapsed().expect("past") < Duration::from_mins(1));
    }
    let again = place.snapshot("pvc-1", "x-y").await;
    let again = again.expect_err("half of one?");
    assert_eq!(
        (again.kind(), again.advice().is_some()),
        (Kind::Conflict, true)
    );
    let odd = place
        .driver
        .get_snapshot(&call(), GetSnapshot::new(&snapshot_id("odd")))
        .await;
    assert_eq!(odd.expect_err("no pair makes that").kind(), Kind::NotFound);
    place
        .driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&snapshot_id("odd")))
        .await
        .expect("no such snapshot");
    assert!(shelf.join("odd").exists());
}

#[tokio::test]
async fn a_class_that_asks_for_another_snapshot_driver_is_refused() {
    let place = Place::new();
    place.volume("pvc-1").await;
    for (key, driver, fine) in [
        ("driver", "filecopy", true),
        ("democratic-csi.org/driver", "restic", false),
        ("driver", "restic", false),
        ("driver", "kopia", false),
        ("driver", "", false),
    ] {
        let request = CreateSnapshot {
            name: SnapshotName::parse("s").expect("name"),
            source: id("pvc-1"),
            parameters: parameters(&[(key, driver)]),
            secrets: std::collections::BTreeMap::new(),
        };
        let taken = place.driver.create_snapshot(&call(), &request).await;
        assert_eq!(taken.is_ok(), fine, "{driver}");
        if let Err(error) = taken {
            assert_eq!(error.kind(), Kind::Invalid);
        }
    }
}

#[tokio::test]
async fn a_copy_past_its_deadline_leaves_nothing() {
    let place = Place::new();
    let path = place.volume("pvc-1").await;
    std::fs::write(path.join("file"), "x").expect("file");
    let request = CreateSnapshot {
        name: SnapshotName::parse("s").expect("name"),
        source: id("pvc-1"),
        parameters: parameters(&[]),
        secrets: std::collections::BTreeMap::new(),
    };
    let late = Call::within(Duration::ZERO);
    let error = place
        .driver
        .create_snapshot(&late, &request)
        .await
        .expect_err("late");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Timeout, Effect::None)
    );
    let found = place
        .driver
        .get_snapshot(&call(), GetSnapshot::new(&snapshot_id("pvc-1-s")))
        .await;
    assert_eq!(found.expect_err("nothing").kind(), Kind::NotFound);
    place
        .snapshot("pvc-1", "s")
        .await
        .expect("a retry converges");
    assert!(leftovers(&place.base()).is_empty());
}

/// Longer than any id of a volume.
const LONG: usize = 129;

fn hostile() -> Vec<String> {
    let mut texts: Vec<String> = [
        "..",
        ".",
        "../s",
        "../v/pvc-1",
        "pvc-1/..",
        "pvc-1/file",
        "pvc-1/",
        "/pvc-1",
        "/",
        "v:../../canary",
        "a/b",
        "../../canary",
        "..%2Fcanary",
        "link/sub",
        "./pvc-1",
        "-rf",
        "~",
        "$HOME",
        "`id`",
        "a;b",
        "a|b",
        "a b",
        "a\tb",
        "a\nb",
        ".omnibus-csi",
        "*",
        "pvc-?",
        "\u{202e}pvc",
        "pvc\u{301}",
        "a\\b",
        "file:///etc",
        "%2e%2e",
        "pvc-1\r",
        "{}",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.push("v".repeat(LONG));
    texts.push("é".repeat(60));
    texts
}

/// The verbs on snapshots with `text` as, and in, an id.
async fn with_snapshot_id(
    place: &Place,
    text: &str,
) -> Vec<(&'static str, Result<(), driver_core::Error>)> {
    let mut results = Vec::new();
    let long = "v".repeat(2 * LONG);
    let encoded = format!("snapshot_driver=filecopy&snapshot_id={text}");
    for form in [format!("x{long}{text}"), encoded, format!("../{text}")] {
        let snapshot = snapshot_id(&form);
        // What is valid as a snapshot's name is none of this test's business.
        if form.len() <= 255 && form.starts_with("snapshot_driver") && text.len() > 128 {
            continue;
        }
        let deleted = place
            .driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&snapshot))
            .await;
        results.push(("delete snapshot", deleted));
        let found = place
            .driver
            .get_snapshot(&call(), GetSnapshot::new(&snapshot))
            .await;
        results.push(("get snapshot", found.map(drop)));
        results.push(("restore", place.restore(&snapshot, "new").await.map(drop)));
    }
    results
}

#[tokio::test]
async fn ids_that_we_could_never_have_made_change_nothing_on_disk() {
    let place = Place::new();
    let path = place.volume("pvc-1").await;
    std::fs::write(path.join("file"), "x").expect("file");
    place.snapshot("pvc-1", "s").await.expect("snapshot");
    let canary = place.dir.path().join("canary");
    std::fs::create_dir_all(canary.join("sub")).expect("folder");
    std::fs::write(canary.join("sub/file"), "canary").expect("file");
    symlink(&canary, place.base().join("v/link")).expect("link");
    let before = tree(place.dir.path());
    for text in &hostile() {
        let volume = id(text);
        let mut results = vec![
            (
                "delete",
                place
                    .driver
                    .delete_volume(&call(), DeleteVolume::new(&volume))
                    .await
                    .map(drop),
            ),
            (
                "get",
                place.driver.get_volume(&call(), &volume).await.map(drop),
            ),
            (
                "find",
                place
                    .driver
                    .find_volume(&call(), FindVolume::new(&volume))
                    .await
                    .map(drop),
            ),
        ];
        let size = SizeRange::new(1 << 40, 0).expect("range");
        let grown = place
            .driver
            .expand_volume(&call(), ExpandVolume::new(&volume, size))
            .await;
        results.push(("expand", grown.map(drop)));
        let mut made = request("new");
        made.id = volume.clone();
        results.push(("create", place.create(&made).await.map(drop)));
        let mut clone = request("new");
        clone.source = Some(Source::Volume(volume));
        results.push(("clone", place.create(&clone).await.map(drop)));
        results.push(("snapshot", place.snapshot(text, "s2").await.map(drop)));
        results.extend(with_snapshot_id(&place, text).await);
        for (verb, result) in results {
            let error = result.expect_err(verb);
            assert_eq!(
                error.kind(),
                Kind::Invalid,
                "{verb} {text:?}: {}",
                error.chain()
            );
        }
    }
    assert_eq!(tree(place.dir.path()), before);
}
