//! What real ZFS shows of a copy that is still running, and what goes with a detached snapshot.

use std::time::Duration;

use driver_core::{DeleteSnapshot, DeleteVolume, Driver, Kind, Snapshots as _, Source, VolumeId};
use driver_zfs::observed::VolumeKind;

use crate::ground::{Ground, zfs};
use crate::{call, request, snapshot, with};

/// The stream of `$1` to `$2` stops after its first block, until a process opens `$3`.
const SLOW_COPY: &str = "\
zfs send \"$1\" | { dd bs=512 count=1 iflag=fullblock 2>/dev/null; cat \"$3\"; cat; } | zfs receive \"$2\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_copy_that_is_still_running_is_waited_for_and_then_taken_up() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        let ground = Ground::new();
        let driver = ground.driver(kind, "");
        let made = request("a", 64 << 20, None);
        driver.create_volume(&call(), &made).await.unwrap();
        let taken = driver
            .create_snapshot(&call(), &snapshot("a", "s", false))
            .await
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate").display().to_string();
        let pipe = std::process::Command::new("mkfifo").arg(&gate).status();
        assert!(pipe.unwrap().success());
        let (from, to) = (
            format!("{}/v/a@s", ground.root),
            format!("{}/v/b", ground.root),
        );
        let mut copy = std::process::Command::new("sh")
            .args(["-c", SLOW_COPY, "sh", &from, &to, &gate])
            .spawn()
            .unwrap();
        let running = async {
            let words = ["get", "-H", "-o", "value", "inconsistent", to.as_str()];
            loop {
                let shown = std::process::Command::new("zfs").args(words).output();
                if shown.unwrap().stdout == b"1\n" {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_mins(1), running).await;
        assert!(seen.is_ok(), "{kind}: the copy does not begin");
        let source = Some(Source::Snapshot(taken.id.clone()));
        let restore = with(
            request("b", 32 << 20, source),
            "detachedVolumesFromSnapshots",
        );
        let error = driver.create_volume(&call(), &restore).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Pending, "{kind}: {}", error.chain());
        let b = VolumeId::parse("b").unwrap();
        // Without a mark it is not ours, so the driver must not delete it.
        let error = driver
            .delete_volume(&call(), DeleteVolume::new(&b))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{kind}: {}", error.chain());
        std::fs::write(&gate, "").unwrap();
        assert!(copy.wait().unwrap().success());
        driver.create_volume(&call(), &restore).await.unwrap();
        if kind == VolumeKind::Zvol {
            let size = zfs(&["get", "-Hp", "-o", "value", "volsize", &to]);
            assert_eq!(size.trim(), (64 << 20).to_string());
        }
        assert!(!ground.list().contains("/b@"), "{}", ground.list());
        driver
            .delete_volume(&call(), DeleteVolume::new(&b))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn what_holds_detached_snapshots_goes_with_the_last_of_them() {
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Filesystem, "");
    let made = request("a", 64 << 20, None);
    driver.create_volume(&call(), &made).await.unwrap();
    for name in ["s", "t"] {
        let asked = snapshot("a", name, true);
        driver.create_snapshot(&call(), &asked).await.unwrap();
    }
    let id = |text: &str| driver_core::SnapshotId::parse(text).unwrap();
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&id("a/s")))
        .await
        .unwrap();
    assert!(ground.list().contains("/s/a/t"), "{}", ground.list());
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&id("a/t")))
        .await
        .unwrap();
    assert!(!ground.list().contains("/s/a"), "{}", ground.list());
    // A foreign dataset there stays.
    let photos = format!("{}/s/photos", ground.root);
    zfs(&["create", &photos]);
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&id("photos/x")))
        .await
        .unwrap();
    assert!(ground.list().contains("/s/photos"), "{}", ground.list());
}
