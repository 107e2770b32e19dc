//! A deletion while a node is connected to the volume.

use std::collections::BTreeSet;
use std::time::Duration;

use driver_core::{Call, DeleteVolume, Driver as _, Effect, Kind};
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::InMemory as _;
use tokio::time::Instant;

use crate::short::*;
use crate::world::*;

type Connected = Result<BTreeSet<String>, String>;

fn nodes(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A volume with a snapshot of another program, to which these are connected.
async fn used(connected: Connected) -> MemoryDriver {
    let driver = fresh(VolumeKind::Zvol);
    well(&driver, &[create(0, From::Nothing)]).await;
    let mut state = driver.backend().state();
    let auto = snap(&format!("{}@auto", dataset(0)));
    state.pool.insert_snapshot(&auto, &[]);
    state.targets.connected.insert("v0".to_owned(), connected);
    drop(state);
    driver
}

#[tokio::test(start_paused = true)]
async fn a_volume_stays_whole_while_nodes_are_connected_and_the_error_names_them() {
    let driver = used(Ok(nodes(&["iqn.b", "iqn.a"]))).await;
    let (before, began) = (driver.backend().state().clone(), Instant::now());
    let error = driver
        .delete_volume(
            &Call::within(Duration::from_mins(5)),
            DeleteVolume::new(&volume(0)),
        )
        .await
        .unwrap_err();
    let text = error.chain();
    assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
    assert!(text.contains("connected is iqn.a, iqn.b"), "{text}");
    let advice = error.advice().unwrap_or_default();
    assert!(advice.contains("docs/troubleshooting.md"), "{advice}");
    // It waits, but no longer than a caller that asks again can bear, and less and less often.
    let (took, half) = (began.elapsed(), Duration::from_secs(30));
    assert!(took >= half && took < half * 3, "{took:?}");
    let state = driver.backend().state().clone();
    assert!(
        state.exchanges - before.exchanges < 12,
        "{}",
        state.exchanges
    );
    assert_eq!(
        (state.steps, &state.targets),
        (before.steps, &before.targets)
    );
    assert_eq!(state.pool.things(), before.pool.things());
}

#[tokio::test(start_paused = true)]
async fn the_wait_ends_before_the_call_does_so_that_its_caller_hears_the_reason() {
    let driver = used(Ok(nodes(&["iqn.a"]))).await;
    let began = Instant::now();
    let short = Call::within(Duration::from_secs(5));
    let error = driver
        .delete_volume(&short, DeleteVolume::new(&volume(0)))
        .await
        .unwrap_err();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
    assert!(error.chain().contains("iqn.a"), "{}", error.chain());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_during_the_wait_delays_the_deletion_only() {
    let driver = used(Ok(nodes(&["iqn.a"]))).await;
    let leaves = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        driver.backend().state().targets.connected.clear();
    };
    let call = Call::within(Duration::from_mins(1));
    let volume = volume(0);
    let (deleted, ()) = tokio::join!(
        driver.delete_volume(&call, DeleteVolume::new(&volume)),
        leaves
    );
    deleted.unwrap();
    assert_eq!(guid(&driver, "tank/csi/v/v0"), None);
    assert!(driver.backend().state().targets.targets.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_question_for_nodes_that_fails_is_no_answer() {
    let driver = used(Err("no such file".to_owned())).await;
    refused(&driver, &Verb::Delete(0), Kind::Unreachable, "no such file").await;
    assert!(guid(&driver, "tank/csi/v/v0").is_some());
    assert_eq!(driver.backend().state().targets.targets.len(), 1);
}
