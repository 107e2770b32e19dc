//! Lists in pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use csi_proto::v1 as csi;

use super::Target;
use super::world::World;
use crate::client::Client;
use crate::volume;

/// What exists all the while is listed exactly once in every round, whatever comes and goes.
pub async fn pages_neither_lose_nor_repeat_while_others_come_and_go(target: &dyn Target) {
    let stable = target.in_pages();
    let world = World::start(target).await;
    let mut volumes = Vec::new();
    let mut snapshots = Vec::new();
    for n in 0..stable {
        // Spread over the alphabet, so that what comes and goes falls between them.
        let name = format!("{:02x}-stable", n * 240 / stable);
        let volume = world.volume(&name).await;
        let snapshot = world.cut(&name, &volume.volume_id).await;
        volumes.push(volume.volume_id);
        snapshots.push(snapshot.snapshot_id);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let churn = tokio::spawn(come_and_go(
        world.client.clone(),
        world.create("x"),
        volumes[0].clone(),
        Arc::clone(&stop),
    ));
    for max in [1, 7, 30, 1000] {
        for _ in 0..3 {
            exactly_once(&volumes, &list_volumes(&world.client, max).await, max);
            exactly_once(&snapshots, &list_snapshots(&world.client, max).await, max);
        }
    }
    stop.store(true, Ordering::Release);
    churn.await.expect("no call failed");
    // At rest, nothing but them is listed.
    assert_eq!(list_volumes(&world.client, 7).await.len(), stable);
    assert_eq!(list_snapshots(&world.client, 7).await.len(), stable);
    for id in snapshots {
        world.remove_snapshot(&id).await;
    }
    for id in volumes {
        world.remove(&id).await;
    }
    world.end().await;
}

async fn come_and_go(
    mut client: Client,
    template: csi::CreateVolumeRequest,
    source: String,
    stop: Arc<AtomicBool>,
) {
    let mut n = 0_u32;
    while !stop.load(Ordering::Acquire) {
        n += 1;
        let name = format!("{:02x}-passing", (n * 37) % 256);
        let request = csi::CreateVolumeRequest {
            name: name.clone(),
            ..template.clone()
        };
        let made = client
            .controller
            .create_volume(request)
            .await
            .expect("created");
        let cut = client
            .controller
            .create_snapshot(volume::snapshot(&name, &source))
            .await;
        let cut = cut.expect("cut").into_inner().snapshot.expect("a snapshot");
        let id = made.into_inner().volume.expect("a volume").volume_id;
        client
            .controller
            .delete_volume(volume::delete(&id))
            .await
            .expect("deleted");
        let gone = client
            .controller
            .delete_snapshot(volume::delete_snapshot(&cut.snapshot_id))
            .await;
        gone.expect("deleted");
    }
    assert!(n > 0, "nothing came and went");
}

fn exactly_once(expected: &[String], listed: &[String], max: i32) {
    let mut times: BTreeMap<&String, usize> = BTreeMap::new();
    for id in listed {
        *times.entry(id).or_default() += 1;
    }
    let repeated: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(repeated.is_empty(), "pages of {max} repeat {repeated:?}");
    let lost: Vec<_> = expected
        .iter()
        .filter(|id| !times.contains_key(id))
        .collect();
    assert!(lost.is_empty(), "pages of {max} lose {lost:?}");
}

async fn list_volumes(client: &Client, max_entries: i32) -> Vec<String> {
    let mut listed = Vec::new();
    let mut starting_token = String::new();
    loop {
        let request = csi::ListVolumesRequest {
            max_entries,
            starting_token,
        };
        let page = client.clone().controller.list_volumes(request).await;
        let page = page.expect("a page").into_inner();
        assert!(page.entries.len() <= usize::try_from(max_entries).expect("positive"));
        let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
        listed.extend(volumes.map(|volume| volume.volume_id));
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return listed;
        }
    }
}

async fn list_snapshots(client: &Client, max_entries: i32) -> Vec<String> {
    let mut listed = Vec::new();
    let mut starting_token = String::new();
    loop {
        let request = csi::ListSnapshotsRequest {
            max_entries,
            starting_token,
            ..Default::default()
        };
        let page = client.clone().controller.list_snapshots(request).await;
        let page = page.expect("a page").into_inner();
        assert!(page.entries.len() <= usize::try_from(max_entries).expect("positive"));
        let snapshots = page.entries.into_iter().filter_map(|entry| entry.snapshot);
        listed.extend(snapshots.map(|snapshot| snapshot.snapshot_id));
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return listed;
        }
    }
}
