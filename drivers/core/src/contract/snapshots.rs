//! Snapshots: taken once, complete, and volumes from them.

use csi_types::capability::{Access, AccessMode, MountAccess, VolumeCapability};

use super::{Fresh, call, expect, expect_kind};
use crate::driver::AccessRules;
use crate::error::Kind;
use crate::request::{DeleteSnapshot, DeleteVolume, GetSnapshot};
use crate::text::MAX_STRING;
use crate::volume::{CreateVolume, PageRequest, Snapshot, Source, Volume};

async fn shown_everywhere(fresh: &Fresh, snapshot: &Snapshot) {
    let verbs = fresh.driver.capabilities();
    if verbs.get_snapshot {
        let got = fresh
            .driver
            .get_snapshot(&call(), GetSnapshot::new(&snapshot.id))
            .await;
        assert_eq!(expect("get snapshot", got), *snapshot);
    }
    if verbs.list_snapshots {
        for source in [None, Some(&snapshot.source)] {
            let listed = fresh.snapshots(source, &PageRequest::default()).await;
            let same: Vec<_> = listed
                .entries
                .iter()
                .filter(|s| s.id == snapshot.id)
                .collect();
            assert_eq!(same, [snapshot], "listed for {source:?}");
        }
    }
}

async fn gone(fresh: &Fresh, snapshot: &Snapshot) {
    let verbs = fresh.driver.capabilities();
    if verbs.get_snapshot {
        let got = fresh
            .driver
            .get_snapshot(&call(), GetSnapshot::new(&snapshot.id))
            .await;
        expect_kind("get snapshot", got, &[Kind::NotFound]);
    }
    if verbs.list_snapshots {
        let listed = fresh.snapshots(None, &PageRequest::default()).await;
        assert!(listed.entries.iter().all(|s| s.id != snapshot.id));
    }
}

async fn delete(fresh: &Fresh, snapshot: &Snapshot) {
    let outcome = fresh
        .driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&snapshot.id))
        .await;
    expect(&format!("delete snapshot {}", snapshot.id), outcome);
}

pub(super) async fn snapshots_are_idempotent_and_whole(fresh: &Fresh) {
    if !fresh.driver.capabilities().snapshots {
        return;
    }
    let missing = fresh.id("contract-never");
    let outcome = fresh.try_snapshot(&missing, "contract-s").await;
    expect_kind("snapshot of nothing", outcome, &[Kind::NotFound]);

    let volume = fresh.create("contract-a").await;
    let other = fresh.create("contract-b").await;
    let snapshot = fresh.snapshot(&volume.id, "contract-s").await;
    assert_eq!(snapshot.source, volume.id);
    assert!(snapshot.id.as_str().len() <= MAX_STRING);
    shown_everywhere(fresh, &snapshot).await;
    let again = fresh.snapshot(&volume.id, "contract-s").await;
    assert_eq!(again, snapshot, "a snapshot stays as it was cut");
    let outcome = fresh.try_snapshot(&other.id, "contract-s").await;
    expect_kind("the name of another's snapshot", outcome, &[Kind::Conflict]);
    let second = fresh.snapshot(&volume.id, "contract-s2").await;
    assert_ne!(second.id, snapshot.id);
    if fresh.driver.capabilities().list_snapshots {
        let of_other = fresh
            .snapshots(Some(&other.id), &PageRequest::default())
            .await;
        assert!(of_other.entries.is_empty(), "{of_other:?}");
        let of_missing = fresh
            .snapshots(Some(&missing), &PageRequest::default())
            .await;
        assert!(of_missing.entries.is_empty(), "{of_missing:?}");
    }
    for name in [
        "a.b:c+d_e-f",
        "a/b",
        "..",
        "a b",
        "é",
        &"s".repeat(MAX_STRING),
    ] {
        match fresh.try_snapshot(&volume.id, name).await {
            Ok(odd) => {
                assert!(odd.id.as_str().len() <= MAX_STRING, "{}", odd.id);
                assert_eq!(fresh.snapshot(&volume.id, name).await, odd);
                delete(fresh, &odd).await;
            }
            Err(error) => assert_eq!(error.kind(), Kind::Invalid, "{name:?}"),
        }
    }
    for snapshot in [&snapshot, &second, &snapshot] {
        delete(fresh, snapshot).await;
        gone(fresh, snapshot).await;
    }
    assert!(fresh.exists(&volume.id).await);
    let moved = fresh.snapshot(&other.id, "contract-s").await;
    assert_eq!(
        moved.source, other.id,
        "a name is free again after deletion"
    );
}

pub(super) async fn snapshots_outlive_their_volume_or_keep_it(fresh: &Fresh) {
    if !fresh.driver.capabilities().snapshots {
        return;
    }
    let volume = fresh.create("contract-a").await;
    let snapshot = fresh.snapshot(&volume.id, "contract-s").await;
    match fresh
        .driver
        .delete_volume(&call(), DeleteVolume::new(&volume.id))
        .await
    {
        Ok(()) => assert!(!fresh.exists(&volume.id).await),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
            assert!(fresh.exists(&volume.id).await);
        }
    }
    shown_everywhere(fresh, &snapshot).await;
    let from = Some(Source::Snapshot(snapshot.id.clone()));
    let restored = expect("restore", fresh.try_create("contract-r", from).await);
    fresh.delete(&restored.id).await;
    delete(fresh, &snapshot).await;
    fresh.delete(&volume.id).await;
}

pub(super) async fn snapshots_become_volumes(fresh: &Fresh) {
    if !fresh.driver.capabilities().snapshots {
        return;
    }
    let volume = fresh.create("contract-a").await;
    let snapshot = fresh.snapshot(&volume.id, "contract-s").await;
    let from = Some(Source::Snapshot(snapshot.id.clone()));
    let restored = expect(
        "restore",
        fresh.try_create("contract-r", from.clone()).await,
    );
    assert!(restored.source.is_none() || restored.source == from);
    let again = expect(
        "restore again",
        fresh.try_create("contract-r", from.clone()).await,
    );
    assert_eq!(again, restored);
    let empty = fresh.try_create("contract-r", None).await;
    expect_kind("the same name without a source", empty, &[Kind::Conflict]);

    match fresh
        .driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&snapshot.id))
        .await
    {
        Ok(()) => gone(fresh, &snapshot).await,
        Err(error) => {
            assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
            shown_everywhere(fresh, &snapshot).await;
        }
    }
    assert!(fresh.exists(&restored.id).await);
    fresh.delete(&restored.id).await;
    delete(fresh, &snapshot).await;
    let late = fresh.try_create("contract-r2", from).await;
    expect_kind("restore of what is gone", late, &[Kind::NotFound]);
    assert!(!fresh.exists(&fresh.id("contract-r2")).await);
}

/// A capability of that access, in a mode that is offered for it.
fn used_as(rules: &AccessRules, access: Access) -> VolumeCapability {
    let modes = match &access {
        Access::Block => &rules.block_modes,
        Access::Mount(_) => &rules.mount_modes,
    };
    let known = |mode: &&AccessMode| **mode != AccessMode::Unknown;
    let mode = *modes.iter().find(known).expect("some mode is offered");
    VolumeCapability { access, mode }
}

async fn create_twice(fresh: &Fresh, request: &CreateVolume) -> Volume {
    let doing = format!("create {}", request.id);
    let driver = &fresh.driver;
    let made = expect(&doing, driver.create_volume(&call(), request).await);
    let again = expect(&doing, driver.create_volume(&call(), request).await);
    assert_eq!(again, made);
    made
}

/// Content that was a filesystem becomes a raw device, and the way back: whether a caller may do that is judged above the
/// driver.
pub(super) async fn content_may_be_used_in_the_other_way(fresh: &Fresh) {
    let rules = fresh.driver.access_rules();
    let verbs = fresh.driver.capabilities();
    if !rules.block || !rules.mount {
        return;
    }
    let mount = || Access::Mount(MountAccess::default());
    for (round, from, to) in [("b", mount(), Access::Block), ("m", Access::Block, mount())] {
        let mut request = fresh.request(&format!("contract-{round}"), None);
        request.capabilities = vec![used_as(&rules, from)];
        let volume = create_twice(fresh, &request).await;
        let mut sources = Vec::new();
        let mut cut = None;
        if verbs.snapshots {
            let snapshot = fresh
                .snapshot(&volume.id, &format!("contract-s{round}"))
                .await;
            sources.push(Source::Snapshot(snapshot.id.clone()));
            cut = Some(snapshot);
        }
        if verbs.clones {
            sources.push(Source::Volume(volume.id.clone()));
        }
        for (number, source) in sources.into_iter().enumerate() {
            let name = format!("contract-{round}{number}");
            let mut request = fresh.request(&name, Some(source));
            request.capabilities = vec![used_as(&rules, to.clone())];
            let made = create_twice(fresh, &request).await;
            fresh.delete(&made.id).await;
        }
        if let Some(cut) = &cut {
            delete(fresh, cut).await;
        }
        fresh.delete(&volume.id).await;
    }
}
