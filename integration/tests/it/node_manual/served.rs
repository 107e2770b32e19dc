//! The answers of the services: no controller, and a whole life of a volume on the node.

use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::v1 as csi;
use csi_proto::v1::node_service_capability::Type;
use csi_proto::v1::node_service_capability::rpc::Type as Rpc;
use csi_proto::v1::volume_capability::access_mode::Mode;
use integration::machine::Machine;
use integration::volume;
use tonic::Code;

use super::Bench;

const WHAT: &str = "the services of node-manual";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_controller_and_its_calls_fail_with_an_advice() {
    let Some(bench) = Bench::new(WHAT, "", &[]).await else {
        return;
    };
    let mut client = bench.server.client();
    let plugin = client
        .identity
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
        .await;
    assert_eq!(plugin.expect("a list").into_inner().capabilities, []);
    let probed = client.identity.probe(csi::ProbeRequest {}).await;
    assert_eq!(probed.expect("an answer").into_inner().ready, Some(true));
    let mut controller = client.controller;
    let can = controller
        .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
        .await;
    assert_eq!(can.expect("a list").into_inner().capabilities, []);
    let created = controller
        .create_volume(volume::create("a", &std::collections::BTreeMap::new()))
        .await;
    let listed = controller
        .list_volumes(csi::ListVolumesRequest::default())
        .await;
    let gone = controller.delete_volume(volume::delete("a/b c")).await;
    let cut = controller.create_snapshot(volume::snapshot("s", "a")).await;
    let grown = controller
        .controller_expand_volume(volume::expand("a", 1))
        .await;
    let room = controller
        .get_capacity(csi::GetCapacityRequest::default())
        .await;
    let valid = controller
        .validate_volume_capabilities(csi::ValidateVolumeCapabilitiesRequest {
            volume_id: "a".into(),
            volume_capabilities: vec![volume::mounted(Mode::SingleNodeWriter)],
            ..Default::default()
        })
        .await;
    for status in [
        created.expect_err("create"),
        listed.expect_err("list"),
        gone.expect_err("delete"),
        cut.expect_err("snapshot"),
        grown.expect_err("expand"),
        room.expect_err("capacity"),
        valid.expect_err("validate"),
    ] {
        assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
        assert!(
            status.message().contains("write a PersistentVolume"),
            "{status:?}"
        );
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_advertises_what_it_does_for_every_kind() {
    let Some(bench) = Bench::new(WHAT, "", &[]).await else {
        return;
    };
    let mut node = bench.server.client().node;
    let can = node
        .node_get_capabilities(csi::NodeGetCapabilitiesRequest {})
        .await
        .expect("a list");
    let types: Vec<Rpc> = can
        .into_inner()
        .capabilities
        .into_iter()
        .filter_map(|one| one.r#type)
        .map(|Type::Rpc(rpc)| rpc.r#type())
        .collect();
    assert_eq!(
        types,
        [
            Rpc::StageUnstageVolume,
            Rpc::GetVolumeStats,
            Rpc::SingleNodeMultiWriter,
            Rpc::GetVolumeHealth,
            Rpc::GetStorageHealth
        ]
    );
    let info = node.node_get_info(csi::NodeGetInfoRequest {}).await;
    let info = info.expect("an answer").into_inner();
    assert_eq!(
        (info.node_id.as_str(), info.accessible_topology),
        ("node-a", None)
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ways_of_use_are_those_of_the_kind() {
    let Some(bench) = Bench::new(WHAT, "", &[]).await else {
        return;
    };
    let share = "nfs server=nas share=/a";
    let disk = "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org:a lun=0";
    let shared = Mode::MultiNodeMultiWriter;
    for (text, capability, refused) in [
        (share, volume::block(Mode::SingleNodeWriter), true),
        (share, volume::mounted(shared), false),
        (disk, volume::mounted(shared), true),
        (disk, volume::block(shared), false),
        ("carrier-pigeon", volume::mounted(shared), true),
        ("", volume::mounted(shared), true),
    ] {
        let mut request = bench.stage_request(text);
        request.volume_capability = Some(capability);
        let staged = bench.send(request).await;
        let status = staged.answer.expect_err("recorders mount nothing");
        let invalid = status.code() == Code::InvalidArgument;
        assert_eq!(invalid, refused, "{text}: {status:?}");
        assert_eq!(
            staged.lines.is_empty(),
            refused,
            "{text}: {:?}",
            staged.lines
        );
    }
    bench.end().await;
}

/// The mounts of the server below the folder of the node.
fn mounted(bench: &Bench) -> Vec<String> {
    let table = PathBuf::from(format!("/proc/{}/mountinfo", bench.server.process().0));
    let table = fs::read_to_string(table).expect("mountinfo");
    let node = bench.machine.place.node().display().to_string();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .filter(|point| point.starts_with(&node))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_lives_its_life_mounted_and_as_a_raw_device_under_any_handle() {
    let Some(mut machine) = Machine::new(WHAT) else {
        return;
    };
    for name in ["tank/mounted", "tank/raw"] {
        machine.add_zvol(name);
    }
    let bench = Bench::of(machine, "", &[]).await.expect("a server");
    let by_name = |name: &str, capability| {
        let mut request = bench.stage_request(&format!("zfs-local zfs_asset_name={name}"));
        request.volume_id = "../any text/ïs a händle; $(id)".into();
        request.volume_capability = Some(capability);
        request
    };
    for request in [
        by_name("tank/mounted", volume::mounted(Mode::SingleNodeMultiWriter)),
        by_name("tank/raw", volume::block(Mode::MultiNodeMultiWriter)),
    ] {
        live(&bench, &request).await;
        assert_eq!(mounted(&bench), [""; 0], "mounts are left");
    }
    bench.end().await;
}

async fn live(bench: &Bench, request: &csi::NodeStageVolumeRequest) {
    let mut node = bench.server.client().node;
    let staged = bench.send(request.clone()).await;
    staged
        .answer
        .unwrap_or_else(|status| panic!("stage: {status:?}"));
    let pods = ["one", "two"].map(|name| bench.machine.place.node().join(name));
    let text = |path: &Path| path.display().to_string();
    for pod in &pods {
        let publish = csi::NodePublishVolumeRequest {
            volume_id: request.volume_id.clone(),
            staging_target_path: request.staging_target_path.clone(),
            target_path: text(pod),
            volume_capability: request.volume_capability.clone(),
            volume_context: request.volume_context.clone(),
            ..Default::default()
        };
        let published = node.node_publish_volume(publish).await;
        published.unwrap_or_else(|status| panic!("publish: {status:?}"));
        let stats = csi::NodeGetVolumeStatsRequest {
            volume_id: request.volume_id.clone(),
            volume_path: text(pod),
            ..Default::default()
        };
        let stats = node.node_get_volume_stats(stats).await.expect("statistics");
        assert!(!stats.into_inner().usage.is_empty(), "no statistics");
    }
    for pod in &pods {
        let unpublish = csi::NodeUnpublishVolumeRequest {
            volume_id: request.volume_id.clone(),
            target_path: text(pod),
        };
        let gone = node.node_unpublish_volume(unpublish).await;
        gone.unwrap_or_else(|status| panic!("unpublish: {status:?}"));
    }
    let unstage = csi::NodeUnstageVolumeRequest {
        volume_id: request.volume_id.clone(),
        staging_target_path: request.staging_target_path.clone(),
    };
    let gone = node.node_unstage_volume(unstage).await;
    gone.unwrap_or_else(|status| panic!("unstage: {status:?}"));
}
