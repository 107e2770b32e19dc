//! A program that is killed while it copies a snapshot that it has reported as not ready.
//!
//! A copy waits before it gets its name as long as the test holds the lock for that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use csi_proto::v1::{ListSnapshotsRequest, Snapshot};
use integration::client::Client;
use integration::place::Place;
use integration::server::Launch;
use integration::tree::Tree;
use integration::{volume, wait};
use rustix::fs::{FlockOperation, flock};

/// The lock that a copy takes at its end, held.
fn hold_names(base: &Path) -> File {
    let folder = base.join(".omnibus-csi/makers");
    fs::create_dir_all(&folder).expect("a folder");
    let lock = File::create(folder.join("names")).expect("a lock");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    lock
}

async fn snapshot(client: &Client, volume: &str) -> Snapshot {
    let request = volume::snapshot("one", volume);
    let answer = client.clone().controller.create_snapshot(request).await;
    let answer = answer.expect("a snapshot").into_inner().snapshot;
    answer.expect("a snapshot")
}

async fn snapshots(client: &Client) -> Vec<Snapshot> {
    let request = ListSnapshotsRequest::default();
    let answer = client.clone().controller.list_snapshots(request).await;
    let entries = answer.expect("a list").into_inner().entries;
    entries
        .into_iter()
        .filter_map(|entry| entry.snapshot)
        .collect()
}

fn paths(base: &Path) -> BTreeSet<PathBuf> {
    Tree::read(base).0.into_keys().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_killed_after_the_answer_is_never_a_snapshot_and_is_made_again() {
    let place = Place::new();
    let base = place.base();
    let launch = Launch::local_hostpath(&place);
    let mut server = launch.start(&place).await;
    let mut client = server.client();
    let create = volume::create("source", &BTreeMap::new());
    let made = client.controller.create_volume(create).await;
    let made = made
        .expect("a volume")
        .into_inner()
        .volume
        .expect("a volume");
    let source = base.join("v").join(&made.volume_id);
    fs::create_dir(source.join("folder")).expect("a folder");
    fs::write(source.join("folder/file"), "content").expect("a file");
    // What the driver keeps for itself is there from the first snapshot on.
    let first = wait::until_answered("a snapshot that is ready", async || {
        let taken = snapshot(&client, &made.volume_id).await;
        taken.ready_to_use.then_some(taken)
    })
    .await;
    let gone = volume::delete_snapshot(&first.snapshot_id);
    client
        .controller
        .delete_snapshot(gone.clone())
        .await
        .expect("deleted");
    let before = paths(&base);

    for deleted in [false, true] {
        let lock = hold_names(&base);
        let taken = snapshot(&client, &made.volume_id).await;
        assert!(!taken.ready_to_use, "the copy waits for its name");
        assert_eq!(snapshots(&client).await, std::slice::from_ref(&taken));
        server.kill().await;
        drop(lock);

        server = launch.start(&place).await;
        client = server.client();
        assert_eq!(snapshots(&client).await, []);
        assert!(!base.join("s").join(&taken.snapshot_id).exists());
        if deleted {
            let gone = volume::delete_snapshot(&taken.snapshot_id);
            client
                .controller
                .delete_snapshot(gone)
                .await
                .expect("deleted");
        }
        let again = wait::until_answered("a snapshot that is ready", async || {
            let taken = snapshot(&client, &made.volume_id).await;
            taken.ready_to_use.then_some(taken)
        })
        .await;
        assert_eq!(again.snapshot_id, taken.snapshot_id);
        let mut restore = volume::create("restored", &BTreeMap::new());
        restore.volume_content_source = volume::from_snapshot(&again.snapshot_id);
        let restored = client.controller.create_volume(restore).await;
        let restored = restored.expect("restored").into_inner().volume;
        let restored = restored.expect("a volume").volume_id;
        let copy = base.join("v").join(&restored).join("folder/file");
        assert_eq!(fs::read(copy).expect("a file"), b"content");
        let restored = volume::delete(&restored);
        client
            .controller
            .delete_volume(restored)
            .await
            .expect("deleted");
        let again = volume::delete_snapshot(&again.snapshot_id);
        client
            .controller
            .delete_snapshot(again)
            .await
            .expect("deleted");
        assert_eq!(
            paths(&base),
            before,
            "nothing is left of the copy that was killed"
        );
    }
}
