//! Quotas where the filesystem has none. Where it has some, they are tested in the lab: `quotas_in_the_lab.rs`.
use driver_core::config::{Document, NoEnvironment};
use driver_core::{DeleteVolume, Driver as _, Kind};
use driver_directory::DirectoryConfig;

use crate::common::{Place, call, driver, request};

/// A folder in memory, whose filesystem never has quotas that the driver uses.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("folder")
}

#[tokio::test]
async fn a_required_quota_that_cannot_be_is_an_error_of_each_new_volume_and_of_the_check() {
    let dir = in_memory();
    let base = dir.path().join("base");
    let require = driver(&base, "  quotas: require\n");
    let problems = require.probe(&call()).await;
    assert_eq!(problems.len(), 1, "before the base is made: {problems:?}");
    let error = require
        .create_volume(&call(), &request("one"))
        .await
        .expect_err("no quota");
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.chain().contains("project quotas"), "{error:?}");
    let advice = error.advice().unwrap_or_default();
    let ways = ["prjquota", "btrfs quota enable"];
    assert!(ways.iter().all(|way| advice.contains(way)), "{advice}");
    assert_eq!(std::fs::read_dir(base.join("v")).expect("list").count(), 0);
    let problems = require.probe(&call()).await;
    assert_eq!(problems.len(), 1, "{problems:?}");

    let attempt = driver(&base, "  quotas: try\n");
    assert!(attempt.probe(&call()).await.is_empty());
    let made = attempt.create_volume(&call(), &request("one")).await;
    made.expect("without a quota");
    attempt
        .delete_volume(&call(), DeleteVolume::new(&request("one").id))
        .await
        .expect("deleted");
}

#[tokio::test]
async fn without_the_key_nothing_is_asked_of_the_filesystem() {
    let dir = in_memory();
    let plain = driver(&dir.path().join("base"), "");
    assert!(plain.probe(&call()).await.is_empty());
    let made = plain.create_volume(&call(), &request("one")).await;
    made.expect("volume");
    let place = Place::with("  quotas: none\n");
    place.volume("one").await;
}

#[test]
fn a_range_of_ids_that_is_too_narrow_or_none_is_refused() {
    let read = |keys: &str| {
        let text = format!("local-hostpath: {{shareBasePath: /x, {keys}}}\n");
        let document = Document::parse(&text, &NoEnvironment).expect("document");
        document
            .section::<DirectoryConfig>("local-hostpath")
            .map(drop)
    };
    read("quotas: require, quotaProjectIds: 100000-200000").expect("a range");
    for keys in [
        "quotas: always",
        "quotas: true",
        "quotaProjectIds: 5",
        "quotaProjectIds: 100000-100100",
        "quotaProjectIds: 200000-100000",
        "quotaProjectIds: 0-100000",
        "quotaProjectIds: 1-4294967295",
        "quotaProjectIds: a-b",
    ] {
        read(keys).expect_err(keys);
    }
}
