//! Volumes whose properties are changed, by the whole program over its socket.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_proto::v1 as csi;
use csi_proto::v1::controller_service_capability::rpc::Type as Rpc;
use csi_proto::v1::controller_service_capability::{Rpc as OneRpc, Type};
use integration::client::Client;
use integration::place::Place;
use integration::server::Launch;
use integration::{volume, wait};
use serde_json::json;
use tonic::{Code, Status};
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

use crate::truenas::{by_key, config, nas};

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

/// A connection whose classes may set these properties.
fn allowing(nas: &Simulator, kind: &str, list: &[&str]) -> String {
    let mut config = config(nas, kind, by_key(nas));
    config["zfs"]["volumeParameters"] = json!(list);
    config.to_string()
}

async fn modify(client: &Client, volume: &str, class: &[(&str, &str)]) -> Result<(), Status> {
    let request = csi::ControllerModifyVolumeRequest {
        volume_id: volume.to_owned(),
        mutable_parameters: map(class).into_iter().collect(),
        ..Default::default()
    };
    let mut controller = client.controller.clone();
    controller.controller_modify_volume(request).await.map(drop)
}

async fn create(
    client: &Client,
    name: &str,
    class: &[(&str, &str)],
    mutable: &[(&str, &str)],
) -> Result<String, Status> {
    let request = csi::CreateVolumeRequest {
        mutable_parameters: map(mutable).into_iter().collect(),
        ..volume::create(name, &map(class))
    };
    let made = client.controller.clone().create_volume(request).await?;
    Ok(made.into_inner().volume.expect("a volume").volume_id)
}

async fn is_advertised(client: &Client) -> bool {
    let request = csi::ControllerGetCapabilitiesRequest {};
    let mut controller = client.controller.clone();
    let reply = controller.controller_get_capabilities(request);
    let all = reply.await.expect("an answer").into_inner().capabilities;
    let modify = OneRpc {
        r#type: Rpc::ModifyVolume.into(),
    };
    all.iter().any(|one| one.r#type == Some(Type::Rpc(modify)))
}

async fn shown(nas: &Simulator, dataset: &str, field: &str) -> String {
    let filter = json!([["id", "=", dataset]]);
    let rows = nas.call("pool.dataset.query", vec![filter]).await;
    let value = rows.expect("rows")[0][field]["rawvalue"].take();
    value.as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_changed_as_its_class_says_also_after_the_program_was_killed_amid_it() {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    let list = ["compression", "quotaMode", "sync"];
    let launch = Launch::new(allowing(&nas, "truenas-api-nfs", &list));
    let mut server = launch.start(&place).await;
    let client = server.client();
    assert!(is_advertised(&client).await);
    let id = create(
        &client,
        "pvc-1",
        &[("sync", "standard")],
        &[("sync", "always")],
    )
    .await;
    let id = id.expect("made");
    let dataset = format!("tank/csi/v/{id}");
    assert_eq!(shown(&nas, &dataset, "sync").await, "always");

    let class = [("compression", "zstd-9"), ("sync", "disabled")];
    nas.faults()
        .add(Rule::new("pool.dataset.update", Action::Hold));
    nas.reset_counts();
    let asked = modify(&client, &id, &class);
    let held = async {
        wait::until("the update", || {
            nas.counts()
                .methods
                .contains_key("pool.dataset.update")
                .then_some(())
        })
        .await;
        server.kill().await;
    };
    let (outcome, ()) = tokio::join!(asked, held);
    outcome.expect_err("it was killed");
    nas.faults().release();
    let mut server = launch.start(&place).await;
    let client = server.client();
    for _ in 0..2 {
        let changed = tokio::time::timeout(Duration::from_mins(1), modify(&client, &id, &class));
        changed.await.expect("an answer").expect("changed");
        assert_eq!(shown(&nas, &dataset, "compression").await, "zstd-9");
        assert_eq!(shown(&nas, &dataset, "sync").await, "disabled");
    }

    for (class, words) in [
        (
            ("recordsize", "1M"),
            "the mutable parameters are: compression, sync",
        ),
        (
            ("quotaMode", "none"),
            "a volume keeps what the StorageClass",
        ),
        (("sync", "off"), "standard, always, disabled"),
    ] {
        let wrong = [class, ("compression", "lz4")];
        let status = modify(&client, &id, &wrong).await.expect_err(words);
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(words), "{}", status.message());
        let status = create(&client, "pvc-2", &[], &wrong)
            .await
            .expect_err(words);
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
    assert_eq!(shown(&nas, &dataset, "compression").await, "zstd-9");
    let status = modify(&client, "pvc-3", &class)
        .await
        .expect_err("no such volume");
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_lets_classes_set_nothing_says_so_alone_and_behind_the_proxy() {
    let nas = nas(Options::new(Generation::V24_10)).await;
    let place = Place::new();
    let class = [("compression", "gzip")];
    let fixed = allowing(&nas, "truenas-api-iscsi", &["volblocksize"]);
    let mut server = Launch::new(fixed.clone()).start(&place).await;
    let client = server.client();
    assert!(!is_advertised(&client).await);
    let id = create(&client, "pvc-1", &[("volblocksize", "32K")], &[]).await;
    assert_eq!(id.as_deref().ok(), Some("pvc-1"), "{id:?}");
    assert_eq!(
        shown(&nas, "tank/csi/v/pvc-1", "volblocksize").await,
        "32768"
    );
    let status = modify(&client, "pvc-1", &class).await.expect_err("fixed");
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    assert!(server.terminate().await.success());

    let place = Place::new();
    let free = allowing(&nas, "truenas-api-nfs", &["compression"]);
    let folder = place.path().join("connections");
    let files = [("fixed", fixed.as_str()), ("free", free.as_str())];
    let mut server = Launch::proxy(&folder, "free", files).start(&place).await;
    let client = server.client();
    let fixed = async || {
        create(&client, "pvc-1", &[("connection", "fixed")], &[])
            .await
            .ok()
    };
    wait::until_answered("the other connection", fixed).await;
    let made = async || {
        create(&client, "pvc-2", &[("connection", "free")], &class)
            .await
            .ok()
    };
    let id = wait::until_answered("the connection", made).await;
    assert_eq!(shown(&nas, "tank/csi/v/pvc-2", "compression").await, "gzip");
    assert!(is_advertised(&client).await);
    modify(&client, &id, &[("compression", "lz4")])
        .await
        .expect("changed");
    assert_eq!(shown(&nas, "tank/csi/v/pvc-2", "compression").await, "lz4");
    for status in [
        modify(&client, "v:fixed/pvc-1", &class).await,
        create(&client, "pvc-3", &[("connection", "fixed")], &class)
            .await
            .map(drop),
    ] {
        let status = status.expect_err("it lets classes set nothing");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains("`fixed`"), "{}", status.message());
    }
    assert!(server.terminate().await.success());
}
