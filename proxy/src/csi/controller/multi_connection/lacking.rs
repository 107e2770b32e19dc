//! The answer of each call that its connection does not support: the table of the documentation.

use csi_proto::v1::node_server::Node;
use driver_core::Capabilities;

use super::*;
use crate::csi::node::NodeHandler;
use crate::testing::multi_under;

#[tokio::test]
async fn what_a_connection_lacks_is_answered_as_the_documentation_says() {
    let page = include_str!("../../../../../docs/proxy-reference.md");
    let (_, table) = page
        .split_once("| call | answer where its connection lacks it |")
        .expect("the table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let documented: BTreeMap<String, String> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let cell = |cell: Option<&str>| cell.expect("a cell").trim_matches('`').to_owned();
            (cell(cells.next()), cell(cells.next()))
        })
        .collect();
    assert_eq!(answers().await, documented);
}

const SILENT: &str = "service: {controller: {capabilities: {rpc: []}}}";

fn code_of(status: Option<Status>) -> String {
    let code = status.map_or(Code::Ok, |status| status.code());
    crate::calls::code_name(code).to_owned()
}

async fn answers() -> BTreeMap<String, String> {
    let driver = Memory::with(Capabilities::NONE);
    let all = [("a", &driver, "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    let capacity = v1::GetCapacityRequest {
        parameters: parameters(&[("connection", "a")]),
        ..Default::default()
    };
    let room = service
        .get_capacity(Request::new(capacity))
        .await
        .expect("room");
    assert_eq!(room.into_inner().available_capacity, i64::MAX);
    let mut all = about_volumes(&service).await;
    all.extend(about_snapshots(&service).await);
    all.push(("GetCapacity", code_of(None)));
    all.push(("NodeExpandVolume", expanded_on_node(&service).await));
    all.into_iter()
        .map(|(call, answer)| (call.to_owned(), answer))
        .collect()
}

/// Expanding a volume without a device: here a filesystem of the kernel, like a share.
async fn expanded_on_node(service: &ControllerHandler) -> String {
    let request = v1::NodeExpandVolumeRequest {
        volume_id: "v:a/v".into(),
        volume_path: "/proc".into(),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: 1 << 30,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let node = NodeHandler(service.0.clone());
    code_of(node.node_expand_volume(Request::new(request)).await.err())
}

async fn about_volumes(s: &ControllerHandler) -> Vec<(&'static str, String)> {
    let volume_id = "v:a/v".to_owned();
    let publish = v1::ControllerPublishVolumeRequest {
        volume_id: volume_id.clone(),
        node_id: "n=node-1".into(),
        volume_capability: Some(mounted()),
        ..Default::default()
    };
    let unpublish = v1::ControllerUnpublishVolumeRequest {
        volume_id: volume_id.clone(),
        ..Default::default()
    };
    let expand = v1::ControllerExpandVolumeRequest {
        volume_id: volume_id.clone(),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: 1,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let validate = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_capabilities: vec![mounted()],
        ..Default::default()
    };
    let modify = v1::ControllerModifyVolumeRequest::default();
    let create = made(s, create("v", &[("connection", "a")])).await.err();
    let delete = deleted(s, &volume_id).await.err();
    let get = v1::ControllerGetVolumeRequest { volume_id };
    let publish = s
        .controller_publish_volume(Request::new(publish))
        .await
        .err();
    let unpublish = s
        .controller_unpublish_volume(Request::new(unpublish))
        .await
        .err();
    let validate = s
        .validate_volume_capabilities(Request::new(validate))
        .await
        .err();
    let list = listed(s, 0).await.err().map(|(_, status)| status);
    let expand = s.controller_expand_volume(Request::new(expand)).await.err();
    let get = s.controller_get_volume(Request::new(get)).await.err();
    let modify = s.controller_modify_volume(Request::new(modify)).await.err();
    let all = [
        ("CreateVolume", create),
        ("DeleteVolume", delete),
        ("ControllerPublishVolume", publish),
        ("ControllerUnpublishVolume", unpublish),
        ("ValidateVolumeCapabilities", validate),
        ("ListVolumes", list),
        ("ControllerExpandVolume", expand),
        ("ControllerGetVolume", get),
        ("ControllerModifyVolume", modify),
    ];
    all.map(|(call, status)| (call, code_of(status))).to_vec()
}

async fn about_snapshots(s: &ControllerHandler) -> Vec<(&'static str, String)> {
    let snapshot_id = "s:a/s".to_owned();
    let create = v1::CreateSnapshotRequest {
        source_volume_id: "v:a/v".into(),
        name: "s".into(),
        ..Default::default()
    };
    let list = v1::ListSnapshotsRequest {
        snapshot_id: snapshot_id.clone(),
        ..Default::default()
    };
    let delete = v1::DeleteSnapshotRequest {
        snapshot_id: snapshot_id.clone(),
        ..Default::default()
    };
    let get = v1::GetSnapshotRequest {
        snapshot_id,
        ..Default::default()
    };
    let create = s.create_snapshot(Request::new(create)).await.err();
    let delete = s.delete_snapshot(Request::new(delete)).await.err();
    let list = s.list_snapshots(Request::new(list)).await.err();
    let get = s.get_snapshot(Request::new(get)).await.err();
    let all = [
        ("CreateSnapshot", create),
        ("DeleteSnapshot", delete),
        ("ListSnapshots", list),
        ("GetSnapshot", get),
    ];
    all.map(|(call, status)| (call, code_of(status))).to_vec()
}

pub(super) fn publication(node: &str) -> v1::ControllerPublishVolumeRequest {
    v1::ControllerPublishVolumeRequest {
        volume_id: "v:a/v".into(),
        node_id: node.into(),
        volume_capability: Some(mounted()),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_node_that_no_node_of_ours_is_called_like_is_not_found() {
    let driver = Memory::with(Capabilities {
        publish: true,
        ..crate::testing::EVERYTHING
    });
    let all = [("a", &driver, "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    let request = publication("ia=1");
    let status = service
        .controller_publish_volume(Request::new(request.clone()))
        .await;
    assert_eq!(status.expect_err("no such node").code(), Code::NotFound);
    let unasked = ControllerHandler(multi_under(SILENT, &all, Names::default()));
    let status = unasked
        .controller_publish_volume(Request::new(request))
        .await;
    assert_eq!(
        status.expect_err("not advertised").code(),
        Code::Unimplemented
    );
}

#[tokio::test]
async fn an_id_from_before_the_proxy_names_a_node_and_one_that_cannot_be_read_is_out_of_what_is_gone()
 {
    let plain = Memory::new();
    let guarded = Memory::with(Capabilities {
        publish: true,
        ..crate::testing::EVERYTHING
    });
    let yaml = "proxy: {perDriver: {nodeIdType: nodeName}}";
    let both = [("a", &plain, yaml), ("b", &guarded, yaml)];
    let service = ControllerHandler(multi_connection(&both, Names::default()));
    let unpublished = async |volume: &str, node: &str| {
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let request = Request::new(request);
        code_of(service.controller_unpublish_volume(request).await.err())
    };
    for node in ["n=node-1", "node-1", "ia=1"] {
        let request = Request::new(publication(node));
        let published = service.controller_publish_volume(request).await.err();
        assert_eq!(code_of(published), "OK", "{node}: it has no effect there");
        assert_eq!(unpublished("v:a/v", node).await, "OK", "{node}");
        assert_eq!(unpublished("v:b/v", node).await, "OK", "{node}");
    }
    let changes = guarded.nodes();
    // A missing volume has no access left for any node, whatever its name.
    assert_eq!(changes, ["-node-1", "-node-1", "-*"]);
    let mut request = publication("node-1");
    request.volume_id = "v:b/v".to_owned();
    let published = service.controller_publish_volume(Request::new(request));
    published.await.expect("an id from before");
    assert_eq!(guarded.nodes().last().expect("one"), "+node-1");
}

#[tokio::test]
async fn a_node_whose_name_is_not_known_any_more_is_never_said_to_be_out() {
    let driver = Memory::with(Capabilities {
        publish: true,
        ..crate::testing::EVERYTHING
    });
    driver.fill(["v".to_owned()], "/v");
    let with = |map: &str| {
        let yaml = format!("proxy: {{perDriver: {{nodeIdType: local, nodeIdMap: [{map}]}}}}");
        let all = [("a", &driver, yaml.as_str())];
        ControllerHandler(multi_connection(&all, Names::default()))
    };
    let mut request = publication("n=node-1");
    request.volume_id = "v:a/v".to_owned();
    let before = with("{nodeName: node-1, value: x1}");
    let published = before.controller_publish_volume(Request::new(request));
    published.await.expect("let in");
    let unpublish = async |service: &ControllerHandler, node: &str| {
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: "v:a/v".to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let answer = service.controller_unpublish_volume(Request::new(request));
        answer.await.map(drop)
    };
    let after = with("{nodeName: node-2, value: x2}");
    for node in ["n=node-1", "ia=1"] {
        let status = unpublish(&after, node).await.expect_err(node);
        assert_eq!(status.code(), Code::FailedPrecondition, "{node}");
        assert!(status.message().contains(node), "{}", status.message());
        assert!(
            status.message().contains("nodeIdMap"),
            "{}",
            status.message()
        );
    }
    assert_eq!(driver.nodes(), ["+x1"], "no other node lost access for it");
    unpublish(&before, "n=node-1").await.expect("put back");
    assert_eq!(driver.nodes(), ["+x1", "-x1"]);
    // All nodes need no name.
    unpublish(&after, "").await.expect("all nodes");
    assert_eq!(driver.nodes().last().expect("one"), "-*");
}
