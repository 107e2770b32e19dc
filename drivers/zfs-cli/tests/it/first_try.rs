//! The first try of a verb on a host with a `zfs` that pretends: what is known of it after a failure.

use std::path::Path;

use driver_core::{
    Call, DeleteSnapshot, Effect, Error, ExpandVolume, Expander as _, Kind, SizeRange, SnapshotId,
    Snapshots as _, VolumeId,
};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs_cli::Cli;
use exec::testing::{Fault, Flaky};
use exec::{Local, Runner};

use crate::bare::{Bare, settings};
use crate::fake::{FakeCli, call, host, host_by};
use crate::processes::A_FILESYSTEM;

fn driver<R: Runner + 'static>(cli: Cli<R>) -> ZfsDriver {
    let kind = VolumeKind::Filesystem;
    let settings = settings(kind, "tank/v", "tank/s", "  datasetEnableQuotas: true\n");
    ZfsDriver::new(settings, cli, Bare { kind })
}

/// Lets `zfs` run these lines before it answers a question of this kind.
fn before(folder: &Path, question: &str, lines: &str) {
    std::fs::write(folder.join(question), lines).unwrap();
}

async fn grow(driver: &ZfsDriver, call: &Call) -> Result<u64, Error> {
    let id = VolumeId::parse("pvc-1").unwrap();
    let size = SizeRange::new(2 << 30, 0).unwrap();
    let grown = driver.expand_volume(call, ExpandVolume::new(&id, size));
    grown.await.map(|grown| grown.capacity)
}

async fn delete(driver: &ZfsDriver, call: &Call, snapshot: &str) -> Result<(), Error> {
    let id = SnapshotId::parse(&format!("pvc-1@{snapshot}")).unwrap();
    driver.delete_snapshot(call, DeleteSnapshot::new(&id)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_try_whose_answer_is_lost_may_have_changed_something() {
    for (fault, effect) in [
        (Fault::Before, Effect::None),
        (Fault::After, Effect::Possible),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (folder, set) = (folder.path(), folder.path().join("is-set"));
        before(folder, "set", &format!(": >'{}'\n", set.display()));
        let runner = Flaky::new(Local::new(), 0, fault);
        let (driver, call) = (driver(host_by(runner, folder, A_FILESYSTEM)), call());
        let error = grow(&driver, &call).await.unwrap_err();
        let why = error.chain();
        assert_eq!(error.kind(), Kind::Unreachable, "{why}");
        assert_eq!(set.exists(), fault == Fault::After, "{why}");
        assert_eq!((error.effect(), call.effect()), (effect, effect), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_fails_proves_that_nothing_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    before(folder.path(), "look", "exit 2\n");
    let (driver, call) = (driver(host(folder.path(), A_FILESYSTEM)), call());
    let error = grow(&driver, &call).await.unwrap_err();
    let effects = (error.effect(), call.effect());
    assert_eq!(effects, (Effect::None, Effect::None), "{}", error.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_program_that_has_not_answered_may_have_destroyed_its_snapshot() {
    for (killed, effect) in [(true, Effect::Possible), (false, Effect::None)] {
        let folder = tempfile::tempdir().unwrap();
        if killed {
            before(folder.path(), "program", "kill -9 $PPID\n");
        }
        std::fs::write(folder.path().join("answer"), "other\n").unwrap();
        before(folder.path(), "look", "exit 2\n");
        let (driver, call) = (driver(host(folder.path(), A_FILESYSTEM)), call());
        let error = delete(&driver, &call, "s1").await.unwrap_err();
        let effects = (error.effect(), call.effect());
        assert_eq!(effects, (effect, effect), "{killed}: {}", error.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_program_that_fails_once_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, asked) = (folder.path(), folder.path().join("asked"));
    let driver = driver(host(folder, A_FILESYSTEM));
    before(folder, "program", "kill -9 $PPID\n");
    delete(&driver, &call(), "s1").await.unwrap();
    before(folder, "program", &format!(": >'{}'\n", asked.display()));
    delete(&driver, &call(), "s2").await.unwrap();
    assert!(asked.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_try_is_done_whatever_its_command_prints() {
    for noise in ["echo 'a wrapper was here'\n", "printf 'and here'\n"] {
        let folder = tempfile::tempdir().unwrap();
        before(folder.path(), "set", noise);
        let driver = driver(host(folder.path(), A_FILESYSTEM));
        assert_eq!(grow(&driver, &call()).await.unwrap(), 2 << 30, "{noise}");
        let cli: &FakeCli = driver.storage().of().unwrap();
        assert_eq!(cli.runner().take(), 1, "{noise}");
    }
}
