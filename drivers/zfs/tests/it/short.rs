//! Verbs in short form.

use driver_core::Kind;
use driver_zfs::ZfsDriver;
use driver_zfs::name::{DatasetName, Object, SnapshotRef};
use driver_zfs::observed::{Guid, VolumeKind};
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryExport, MemoryHost, settings};

use crate::world::*;

pub(crate) const KINDS: [VolumeKind; 2] = [VolumeKind::Filesystem, VolumeKind::Zvol];

pub(crate) fn fresh(kind: VolumeKind) -> MemoryDriver {
    let state = MemoryHost::new().state().clone();
    driver(kind, false, state)
}

/// A cluster that shares the pool with others, which have other instance ids.
pub(crate) fn cluster(instance: &str, kind: VolumeKind, state: HostState) -> MemoryDriver {
    let mut settings = settings(kind, "").unwrap();
    settings.policy.instance = Some(instance.to_owned());
    let export = MemoryExport::new(kind);
    ZfsDriver::new(settings, MemoryHost::from_state(state), export)
}

/// A driver that keeps volumes with snapshots of other programs.
pub(crate) fn keeping(kind: VolumeKind) -> MemoryDriver {
    let settings = settings(kind, "  deletion: {keepForeignSnapshots: true}\n").unwrap();
    ZfsDriver::new(settings, MemoryHost::new(), MemoryExport::new(kind))
}

pub(crate) fn create(id: u8, source: From) -> Verb {
    Verb::Create {
        id,
        source,
        copy: false,
    }
}

pub(crate) fn snapshot(id: u8, name: u8) -> Verb {
    Verb::Snapshot {
        id,
        name,
        detached: false,
    }
}

pub(crate) fn delete_snapshot(id: u8, name: u8) -> Verb {
    Verb::DeleteSnapshot {
        id,
        name,
        detached: false,
    }
}

pub(crate) async fn well(driver: &MemoryDriver, verbs: &[Verb]) {
    for verb in verbs {
        let result = run(driver, verb).await;
        let why = result.as_ref().err().map(driver_core::Error::chain);
        assert!(result.is_ok(), "{verb:?}: {why:?}");
    }
}

pub(crate) async fn refused(driver: &MemoryDriver, verb: &Verb, kind: Kind, words: &str) {
    let error = run(driver, verb).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{}", error.chain());
    assert!(error.chain().contains(words), "{}", error.chain());
}

pub(crate) fn copy(id: u8, source: From) -> Verb {
    Verb::Create {
        id,
        source,
        copy: true,
    }
}

pub(crate) fn snapshot_detached(id: u8, name: u8) -> Verb {
    Verb::Snapshot {
        id,
        name,
        detached: true,
    }
}

pub(crate) fn delete_detached(id: u8, name: u8) -> Verb {
    Verb::DeleteSnapshot {
        id,
        name,
        detached: true,
    }
}

pub(crate) fn name(text: &str) -> DatasetName {
    DatasetName::parse(text).unwrap()
}

pub(crate) fn snap(text: &str) -> SnapshotRef {
    SnapshotRef::parse(text).unwrap()
}

/// The GUID, which tells an object from another one of its name, if it is there.
pub(crate) fn guid(driver: &MemoryDriver, text: &str) -> Option<Guid> {
    let object = Object::parse(text).unwrap();
    driver.backend().state().pool.guid(&object)
}

/// Changes the pool as others do.
pub(crate) fn others_do(state: &mut HostState, step: &Step) {
    state.pool.apply(step).unwrap();
}
