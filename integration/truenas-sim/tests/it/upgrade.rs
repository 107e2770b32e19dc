//! A NAS that is upgraded while a client is connected.

use serde_json::json;
use truenas_sim::Generation;

use crate::client::{Client, nas};

#[tokio::test]
async fn volumes_live_through_every_upgrade_and_connections_do_not() {
    let nas = nas(Generation::V22_12).await;
    let mut client = Client::root(&nas).await;
    client
        .call("pool.dataset.create", json!([{"name": "tank/a"}]))
        .await
        .expect("a dataset");
    client
        .call(
            "sharing.nfs.create",
            json!([{"path": "/mnt/tank/a", "hosts": ["10.0.0.1"]}]),
        )
        .await
        .expect("a share");
    let smb = json!([{"path": "/mnt/tank/a", "name": "a", "ro": true, "purpose": "NO_PRESET"}]);
    client
        .call("sharing.smb.create", smb)
        .await
        .expect("a share");
    client
        .call(
            "zfs.snapshot.create",
            json!([{"dataset": "tank/a", "name": "s"}]),
        )
        .await
        .expect("a snapshot");
    for generation in Generation::ALL
        .into_iter()
        .filter(|generation| *generation > Generation::V22_12)
    {
        nas.upgrade(generation);
        client.end().await;
        client = Client::root(&nas).await;
        assert_eq!(
            client.call("system.version", json!([])).await,
            Ok(json!(generation.version()))
        );
        let shares = client
            .call("sharing.nfs.query", json!([]))
            .await
            .expect("shares");
        assert_eq!(shares[0]["hosts"], json!(["10.0.0.1"]), "{generation}");
        let shares = client
            .call("sharing.smb.query", json!([]))
            .await
            .expect("shares");
        let read_only = if generation >= Generation::V25_10 {
            "readonly"
        } else {
            "ro"
        };
        assert_eq!(shares[0][read_only], json!(true), "{generation}");
        let snapshots = if generation >= Generation::V25_10 {
            "pool.snapshot.query"
        } else {
            "zfs.snapshot.query"
        };
        let found = client
            .call(snapshots, json!([[["dataset", "=", "tank/a"]]]))
            .await
            .expect("snapshots");
        assert_eq!(found[0]["id"], "tank/a@s", "{generation}");
    }
}

#[tokio::test]
async fn a_share_of_core_with_two_paths_becomes_two_shares() {
    let nas = nas(Generation::Core13).await;
    let mut client = Client::root(&nas).await;
    for name in ["tank/a", "tank/b"] {
        client
            .call("pool.dataset.create", json!([{"name": name}]))
            .await
            .expect("a dataset");
    }
    client
        .call(
            "sharing.nfs.create",
            json!([{"paths": ["/mnt/tank/a", "/mnt/tank/b"]}]),
        )
        .await
        .expect("a share");
    nas.upgrade(Generation::V22_12);
    let mut client = Client::root(&nas).await;
    let shares = client
        .call("sharing.nfs.query", json!([[], {"select": ["path"]}]))
        .await;
    assert_eq!(
        shares,
        Ok(json!([{"path": "/mnt/tank/a"}, {"path": "/mnt/tank/b"}]))
    );
}
