//! Concurrent calls. The proxy guards each volume, but a driver cannot rely on being alone: there
//! may be a second process.

use futures_util::future::{join, join_all};

use super::{Fresh, call};
use crate::error::Kind;
use crate::request::DeleteVolume;
use crate::volume::PageRequest;

/// The number of calls that run at once, unless said otherwise.
pub(super) const CALLERS: usize = 16;

pub(super) async fn equal_calls_at_once_make_one_volume(fresh: &Fresh) {
    let callers = (0..fresh.callers).map(|_| fresh.try_create("contract-one", None));
    let mut made = Vec::new();
    for outcome in join_all(callers).await {
        match outcome {
            Ok(volume) => made.push(volume),
            Err(error) => assert_eq!(error.kind(), Kind::Pending, "{}", error.chain()),
        }
    }
    let volume = fresh.create("contract-one").await;
    assert!(!made.is_empty() && made.iter().all(|other| *other == volume));
    if fresh.driver.capabilities().list_volumes {
        let listed = fresh.volumes(&PageRequest::default()).await;
        assert_eq!(listed.entries, [volume]);
    }
}

pub(super) async fn different_calls_at_once_do_not_disturb_each_other(fresh: &Fresh) {
    let names: Vec<_> = (0..fresh.callers)
        .map(|n| format!("contract-{n}"))
        .collect();
    let made = join_all(names.iter().map(|name| fresh.create(name))).await;
    for volume in &made {
        assert!(fresh.exists(&volume.id).await);
    }
    let halves = made.split_at(fresh.callers / 2);
    join_all(halves.0.iter().map(|volume| fresh.delete(&volume.id))).await;
    for volume in halves.0 {
        assert!(!fresh.exists(&volume.id).await);
    }
    for volume in halves.1 {
        assert!(fresh.exists(&volume.id).await);
    }
}

pub(super) async fn creating_against_deleting_converges(fresh: &Fresh) {
    let id = fresh.id("contract-race");
    for _ in 0..fresh.callers {
        let race = call();
        let (made, gone) = join(
            fresh.try_create("contract-race", None),
            fresh.driver.delete_volume(&race, DeleteVolume::new(&id)),
        )
        .await;
        for error in made.err().into_iter().chain(gone.err()) {
            let kinds = [Kind::Pending, Kind::Busy, Kind::Internal];
            assert!(kinds.contains(&error.kind()), "{}", error.chain());
        }
        let volume = fresh.create("contract-race").await;
        assert!(fresh.exists(&volume.id).await);
        fresh.delete(&volume.id).await;
        assert!(!fresh.exists(&volume.id).await);
    }
}
