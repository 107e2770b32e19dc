//! Volumes: created once, deleted once, expanded, copied.

use std::time::Duration;

use csi_types::Attachment;

use super::{Fresh, SIZE, call, expect, expect_kind};
use crate::call::Call;
use crate::driver::Expansion;
use crate::error::{Effect, Error, Kind};
use crate::request::{DeleteVolume, ExpandVolume};
use crate::size::SizeRange;
use crate::text::{MAX_MAP, VolumeId};
use crate::volume::{PageRequest, Source, Volume};

/// Proves that every verb returns the same volume.
async fn shown_everywhere(fresh: &Fresh, volume: &Volume) {
    let verbs = fresh.driver.capabilities();
    assert!(fresh.exists(&volume.id).await);
    if verbs.get_volume {
        let got = expect("get", fresh.driver.get_volume(&call(), &volume.id).await);
        assert_eq!(got, *volume);
    }
    if verbs.list_volumes {
        let listed = fresh.volumes(&PageRequest::default()).await.entries;
        let same: Vec<_> = listed.iter().filter(|v| v.id == volume.id).collect();
        assert_eq!(same, [volume], "listed");
    }
    let context = volume.attachment.to_context();
    let size: usize = context.iter().map(|(k, v)| k.len() + v.len()).sum();
    assert!(size <= MAX_MAP, "the volume context is too large");
    assert_eq!(Attachment::parse(&context).as_ref(), Ok(&volume.attachment));
}

pub(super) async fn creating_is_idempotent_and_conflicts_are_reported(fresh: &Fresh) {
    let request = fresh.request("contract-once", None);
    let first = call();
    let volume = expect("create", fresh.driver.create_volume(&first, &request).await);
    assert_eq!(volume.id, request.id);
    assert_eq!(
        first.effect(),
        Effect::Possible,
        "a change was not reported"
    );
    assert!(volume.capacity.is_none_or(|size| request.size.holds(size)));
    shown_everywhere(fresh, &volume).await;
    let again = expect(
        "create again",
        fresh.driver.create_volume(&call(), &request).await,
    );
    assert_eq!(again, volume);

    if let Some(size) = volume.capacity.and_then(|size| i64::try_from(size).ok()) {
        for (required, limit) in [(size * 2, 0), (0, size / 2)] {
            let mut other = request.clone();
            other.size = SizeRange::new(required, limit).expect("a size");
            let outcome = fresh.driver.create_volume(&call(), &other).await;
            let text = outcome.as_ref().err().map(Error::chain);
            expect_kind("create with another size", outcome, &[Kind::Conflict]);
            for bytes in [size, required.max(limit)] {
                let named = text.iter().any(|text| text.contains(&bytes.to_string()));
                assert!(named, "{bytes} bytes are not named: {text:?}");
            }
        }
    }
    if fresh.driver.capabilities().clones {
        let source = fresh.create("contract-source").await;
        let from = Some(Source::Volume(source.id));
        let outcome = fresh.try_create("contract-once", from).await;
        expect_kind("create from another source", outcome, &[Kind::Conflict]);
    }
    shown_everywhere(fresh, &volume).await;
}

pub(super) async fn deleting_is_idempotent(fresh: &Fresh) {
    let missing = fresh.id("contract-never");
    fresh.delete(&missing).await;
    let volume = fresh.create("contract-gone").await;
    let other = fresh.create("contract-gone-2").await;
    fresh.delete(&volume.id).await;
    assert!(!fresh.exists(&volume.id).await);
    if fresh.driver.capabilities().get_volume {
        let got = fresh.driver.get_volume(&call(), &volume.id).await;
        expect_kind("get", got, &[Kind::NotFound]);
    }
    if fresh.driver.capabilities().list_volumes {
        let listed = fresh.volumes(&PageRequest::default()).await.entries;
        assert!(listed.iter().all(|listed| listed.id != volume.id));
    }
    fresh.delete(&volume.id).await;
    shown_everywhere(fresh, &other).await;
    let again = fresh.create("contract-gone").await;
    assert_eq!(again.id, volume.id, "a name has one id for ever");
}

pub(super) async fn a_call_without_time_leaves_what_a_retry_completes(fresh: &Fresh) {
    let request = fresh.request("contract-late", None);
    let late = Call::within(Duration::ZERO);
    if let Err(error) = fresh.driver.create_volume(&late, &request).await {
        assert_eq!(error.kind(), Kind::Timeout, "{}", error.chain());
        assert_eq!(error.effect(), late.effect());
        let reported = error.effect() == Effect::Possible;
        assert!(
            reported || !fresh.exists(&request.id).await,
            "made, and said otherwise"
        );
    }
    let volume = fresh.create("contract-late").await;
    shown_everywhere(fresh, &volume).await;
    let late = Call::within(Duration::ZERO);
    if let Err(error) = fresh
        .driver
        .delete_volume(&late, DeleteVolume::new(&volume.id))
        .await
    {
        assert_eq!(error.kind(), Kind::Timeout, "{}", error.chain());
    }
    fresh.delete(&volume.id).await;
    assert!(!fresh.exists(&volume.id).await);
}

/// Only for storage that a test can disconnect. A driver that started a volume reports it until it
/// is complete or gone: a caller that sees `NotFound` creates it elsewhere.
pub(super) async fn a_partial_creation_is_never_reported_as_absent(fresh: &Fresh) {
    let Some(cut) = &fresh.cut else { return };
    let (mut partial, mut parts) = (0, 0);
    loop {
        let name = format!("contract-cut-{parts}");
        let id = fresh.id(&name);
        cut(Some(parts));
        let made = fresh.try_create(&name, None).await;
        cut(None);
        let is_partial = fresh.is_partial(&id).await;
        if is_partial {
            shown_nowhere(fresh, &id).await;
        }
        partial += usize::from(is_partial);
        let there = is_partial || fresh.exists(&id).await;
        assert!(there || partial == 0, "{name}: less than after fewer parts");
        let is_made = made.is_ok();
        assert!(
            !(is_made && is_partial),
            "{name}: made, and reported as partial"
        );
        let volume = fresh.create(&name).await;
        shown_everywhere(fresh, &volume).await;
        fresh.delete(&id).await;
        assert!(!fresh.exists(&id).await && !fresh.is_partial(&id).await);
        if is_made {
            break;
        }
        parts += 1;
    }
    assert!(partial > 0, "none was cut in the middle in {parts} parts");
}

/// Proves that no verb returns a partial volume.
async fn shown_nowhere(fresh: &Fresh, id: &VolumeId) {
    let verbs = fresh.driver.capabilities();
    if verbs.get_volume {
        let got = fresh.driver.get_volume(&call(), id).await;
        expect_kind("get", got, &[Kind::NotFound]);
    }
    if verbs.list_volumes {
        let listed = fresh.volumes(&PageRequest::default()).await.entries;
        assert!(listed.iter().all(|listed| listed.id != *id));
    }
}

pub(super) async fn volumes_grow_and_never_shrink(fresh: &Fresh) {
    if fresh.driver.capabilities().expand == Expansion::None {
        return;
    }
    let grow = async |id, size: i64| {
        let size = SizeRange::new(size, 0).expect("a size");
        fresh
            .driver
            .expand_volume(&call(), ExpandVolume::new(id, size))
            .await
    };
    let missing = fresh.id("contract-never");
    expect_kind(
        "expand nothing",
        grow(&missing, SIZE).await,
        &[Kind::NotFound],
    );
    let volume = fresh.create("contract-grown").await;
    let wanted = u64::try_from(SIZE * 2).expect("a size");
    let grown = expect("expand", grow(&volume.id, SIZE * 2).await);
    assert!(grown.capacity >= wanted);
    let again = expect("expand again", grow(&volume.id, SIZE * 2).await);
    assert_eq!(again, grown, "the node part is asked for until it is done");
    if volume.capacity.is_some() {
        let smaller = expect("expand to less", grow(&volume.id, SIZE).await);
        assert_eq!(smaller.capacity, grown.capacity);
    }
}

pub(super) async fn clones_stand_on_their_own(fresh: &Fresh) {
    if !fresh.driver.capabilities().clones {
        return;
    }
    let source = fresh.create("contract-original").await;
    let from = Some(Source::Volume(source.id.clone()));
    let clone = expect(
        "clone",
        fresh.try_create("contract-copy", from.clone()).await,
    );
    assert!(clone.source.is_none() || clone.source == from);
    assert_ne!(clone.id, source.id);
    let again = expect(
        "clone again",
        fresh.try_create("contract-copy", from.clone()).await,
    );
    assert_eq!(again, clone);
    shown_everywhere(fresh, &clone).await;
    shown_everywhere(fresh, &source).await;

    match fresh
        .driver
        .delete_volume(&call(), DeleteVolume::new(&source.id))
        .await
    {
        Ok(()) => assert!(!fresh.exists(&source.id).await),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
            shown_everywhere(fresh, &source).await;
        }
    }
    shown_everywhere(fresh, &clone).await;
    fresh.delete(&clone.id).await;
    fresh.delete(&source.id).await;
    let late = fresh.try_create("contract-copy-2", from).await;
    expect_kind("clone of what is gone", late, &[Kind::NotFound]);
    assert!(!fresh.exists(&fresh.id("contract-copy-2")).await);
}
