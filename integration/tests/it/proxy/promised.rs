//! The set-ups that the documents of democratic-csi's proxy show, in their shape: a main file of two
//! keys, a Secret with two files, storage of one zone. Where they name a driver that this build does
//! not have, local storage stands in, with the one key more that it needs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use csi_proto::v1::{
    CreateVolumeRequest, GetCapacityRequest, ListVolumesRequest, NodeGetInfoRequest, Topology,
    TopologyRequirement, Volume,
};
use integration::client::Client;
use integration::place::Place;
use integration::server::{Launch, log_of};
use integration::{tools, volume, wait};
use tonic::{Code, Status};

use super::{connections, put};

async fn made(client: &Client, request: CreateVolumeRequest) -> Result<Volume, Status> {
    let reply = client.controller.clone().create_volume(request).await?;
    Ok(reply.into_inner().volume.expect("a volume"))
}

fn folder(place: &Place) -> String {
    fs::create_dir_all(connections(place)).expect("a folder");
    connections(place).display().to_string()
}

fn local(base: &Path) -> String {
    format!(
        "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {base}\n  controllerBasePath: {base}\n",
        base = base.display()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_keys_and_an_empty_folder_are_a_deployment_that_makes_nothing() {
    let place = Place::new();
    let main = format!(
        "driver: proxy\nproxy:\n  configFolder: {}/\n",
        folder(&place)
    );
    let mut server = Launch::new(main).start(&place).await;
    let mut client = server.client();
    let request = volume::create(
        "pvc-1",
        &volume::parameters(&[("connection", "example-nfs"), ("fsType", "nfs")]),
    );
    let refused = made(&client, request).await.expect_err("there is none");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("example-nfs"),
        "{}",
        refused.message()
    );
    let listed = client
        .controller
        .list_volumes(ListVolumesRequest::default());
    assert!(
        listed
            .await
            .expect("a list")
            .into_inner()
            .entries
            .is_empty()
    );
    let room = client
        .controller
        .get_capacity(GetCapacityRequest::default());
    assert_eq!(
        room.await
            .expect("an answer")
            .into_inner()
            .available_capacity,
        0
    );
    assert!(server.terminate().await.success());
}

/// The files of a Secret as kubelet writes them: all of them new, behind one link.
fn secret(folder: &Path, version: &str, files: &[(&str, String)]) {
    let data = folder.join(version);
    fs::create_dir(&data).expect("a folder");
    for (name, text) in files {
        fs::write(data.join(name), text).expect("a file");
        let link = folder.join(name);
        if !link.exists() {
            symlink(Path::new("..data").join(name), link).expect("a link");
        }
    }
    symlink(version, folder.join("..data_tmp")).expect("a link");
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("swapped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classes_with_other_names_than_their_connections_get_volumes_from_a_swapped_secret() {
    let place = Place::new();
    let main = format!(
        "driver: proxy\nproxy:\n  configFolder: {}/\n  nodeTopology:\n    type: node\n",
        folder(&place)
    );
    let mut server = Launch::new(main).start(&place).await;
    let client = server.client();
    let at = |name: &str| {
        let base = place.path().join(name);
        fs::create_dir_all(&base).expect("a folder");
        base
    };
    let files = |iscsi: &str| {
        [
            ("example-nfs.yaml", local(&at("nfs"))),
            ("example-iscsi.yaml", local(&at(iscsi))),
        ]
    };
    secret(&connections(&place), "..1", &files("iscsi"));
    for name in ["example-nfs", "example-iscsi"] {
        wait_for_log(&place, "\"added\"", name).await;
    }
    let of_nfs = volume::parameters(&[("connection", "example-nfs"), ("fsType", "nfs")]);
    let of_iscsi = volume::parameters(&[("connection", "example-iscsi"), ("fsType", "ext4")]);
    let one = made(&client, volume::create("pvc-1", &of_nfs)).await;
    assert_eq!(one.expect("made").volume_id, "v:example-nfs/pvc-1");
    let other = made(&client, volume::create("pvc-2", &of_iscsi)).await;
    assert_eq!(other.expect("made").volume_id, "v:example-iscsi/pvc-2");
    assert!(at("nfs").join("v/pvc-1").is_dir() && at("iscsi").join("v/pvc-2").is_dir());
    // The Secret is made again, with all files and a change to one.
    secret(&connections(&place), "..2", &files("moved"));
    wait_for_log(&place, "\"changed\"", "example-iscsi").await;
    let third = made(&client, volume::create("pvc-3", &of_iscsi)).await;
    third.expect("made");
    assert!(at("moved").join("v/pvc-3").is_dir());
    assert!(server.terminate().await.success());
}

/// Waits until the log says so about a connection.
async fn wait_for_log(place: &Place, words: &str, name: &str) {
    wait::until(words, || {
        let log = log_of(place);
        let found = log
            .lines()
            .any(|line| line.contains(words) && line.contains(name));
        found.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_volumes_made_by_hand_are_a_connection_too() {
    let place = Place::new();
    let main = format!(
        "driver: proxy\nproxy:\n  configFolder: {}/\n",
        folder(&place)
    );
    put(&place, "by-hand", "driver: node-manual\n");
    let mut server = Launch::new(main).start(&place).await;
    let client = server.client();
    let request = volume::create("pvc-1", &volume::parameters(&[("connection", "by-hand")]));
    let refused = made(&client, request)
        .await
        .expect_err("there is no controller");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("by-hand"),
        "{}",
        refused.message()
    );
    assert!(server.terminate().await.success());
}

const PREFIX: &str = "org.democratic-csi.topology";

fn segments(pairs: &[(&str, &str)]) -> Topology {
    let pair = |(key, value): &(&str, &str)| (format!("{PREFIX}/{key}"), (*value).to_owned());
    Topology {
        segments: pairs.iter().map(pair).collect(),
    }
}

/// A proxy on a node of zone1, with one connection that only nodes of that zone reach.
fn zoned(place: &Place) -> Launch {
    let main = format!(
        "driver: proxy
proxy:
  configFolder: {}/
  nodeTopology:
    type: [node, zone]
    fromRegexp:
    - topologyKey: zone
      source: nodeName
      regex: (zone[0-9]+)-.*
      template: \"{{match:1}}\"
    - topologyKey: region
      source: env
      envName: REGION
    - topologyKey: rack
      source: nodeName
      regex: rack-(.*)
      template: \"{{match:1}}\"
",
        folder(place)
    );
    let file = format!(
        "{}proxy:
  perDriver:
    topology:
    - requirements:
        region: region1
        zone: zone1
      extra:
        custom.prefix/custom.name: custom.value
",
        local(&place.base())
    );
    put(place, "c1", &file);
    Launch::new(main)
        .env("CSI_NODE_ID", "zone1-a")
        .env("REGION", "region1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_of_one_zone_is_made_for_its_nodes_and_refused_for_others() {
    let place = Place::new();
    let mut server = zoned(&place).start(&place).await;
    let mut client = server.client();
    let here = segments(&[
        ("node", "zone1-a"),
        ("region", "region1"),
        ("zone", "zone1"),
    ]);
    let info = client.node.node_get_info(NodeGetInfoRequest {}).await;
    let topology = info.expect("an answer").into_inner().accessible_topology;
    assert_eq!(
        topology.as_ref(),
        Some(&here),
        "a rule that does not match is left out"
    );

    let wanted = |name: &str, at: Option<&Topology>| {
        let mut request = volume::create(name, &volume::parameters(&[("connection", "c1")]));
        request.accessibility_requirements = at.map(|at| TopologyRequirement {
            requisite: vec![at.clone()],
            preferred: vec![at.clone()],
        });
        request
    };
    for (name, at) in [("pvc-1", None), ("pvc-2", Some(&here))] {
        let volume = made(&client, wanted(name, at)).await.expect(name);
        let [shown] = &volume.accessible_topology[..] else {
            panic!("{:?}", volume.accessible_topology);
        };
        for (key, value) in &here.segments {
            assert_eq!(shown.segments.get(key), Some(value), "{shown:?}");
        }
        assert_eq!(shown.segments["custom.prefix/custom.name"], "custom.value");
    }
    let other = segments(&[
        ("node", "zone2-a"),
        ("region", "region1"),
        ("zone", "zone2"),
    ]);
    let refused = made(&client, wanted("pvc-3", Some(&other))).await;
    let refused = refused.expect_err("another zone");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(server.terminate().await.success());

    let config = format!("--driver-config-file={}", place.config().display());
    let checked = tools::omnibus(&["check", &config], &[]).await;
    let report = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        checked.status.success() && !report.contains("WARNING"),
        "{report}"
    );
}
