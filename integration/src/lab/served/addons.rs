//! The services of csi-addons, by the second socket of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_proto::fence::fence_controller_client::FenceControllerClient;
use csi_proto::fence::{
    Cidr, FenceClusterNetworkRequest, ListClusterFenceRequest, UnfenceClusterNetworkRequest,
};
use csi_proto::reclaimspace::reclaim_space_controller_client::ReclaimSpaceControllerClient;
use csi_proto::reclaimspace::reclaim_space_node_client::ReclaimSpaceNodeClient;
use csi_proto::reclaimspace::{ControllerReclaimSpaceRequest, NodeReclaimSpaceRequest};
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::access::called;
use super::connected::{is_unknown, note_unknown};
use super::life::{delete, make, used};
use super::settings::{dataset, shown};
use super::{Served, storage};
use crate::client::Client;
use crate::lab::calls::{Node, until_done_within, within};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::faults::writer::Writer;
use crate::lab::fixture::Fixture;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, write};
use crate::place::Place;
use crate::server::Launch;

/// The id of this machine's node, which does not say its address: `nodes` does.
const NODE: &str = "node-1";
/// The network of its address alone.
const NETWORK: &str = "127.0.0.1/32";
/// The batches that show that a pod writes, and the time that they may take.
const BATCHES: usize = 20;
const PATIENCE: Duration = Duration::from_mins(1);
/// The time from an answer until the writer has noted what was on the storage before it.
const NOTED: Duration = Duration::from_secs(3);
/// The time in which nothing more is written.
const SILENCE: Duration = Duration::from_secs(30);
/// The time in which a node that was cut off from a disk has it again, or gives it up after 11 minutes.
const CUT_OFF: Duration = Duration::from_mins(15);
/// The length of a file that is deleted, and the least of it that the storage gets back.
const DELETED: usize = 64 << 20;
const GIVEN_BACK: u64 = 48 << 20;

const NFS: &str = "nfs:
  shareHost: 127.0.0.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    nodes: {names: {node-1: 127.0.0.1}}
    properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}
";
const LIO: &str = "iscsi:
  targetPortal: 127.0.0.1:3260
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2026-01.lab.served
    nodes: {names: {node-1: '${LAB_NODE}'}, addresses: {node-1: 127.0.0.1}}
";
const NVMET: &str = "nvmeof:
  transport: tcp://127.0.0.1:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2026-01.lab.served
    ports: [{id: 1, traddr: 0.0.0.0}]
    nodes: {names: {node-1: '${LAB_NODE}'}, addresses: {node-1: 127.0.0.1}}
";

/// Those whose exports let in nodes by name.
pub fn of_nodes() -> impl Iterator<Item = Served> {
    super::one_of_each_stack().filter_map(|served| {
        let section = match served.kind {
            "zfs-generic-nfs" => NFS,
            "zfs-generic-iscsi" => LIO,
            "zfs-generic-nvmeof" => NVMET,
            _ => return None,
        };
        Some(Served { section, ..served })
    })
}

/// A node that is shut out while a pod writes there: nothing more is written, the next process shuts it out as well,
/// and it gets in again when the fence is lifted. Where the kernel shows no controllers of nvmet: that is said, and the
/// pod writes on.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn a_writing_node_is_fenced(served: Served) {
    let place = Place::new();
    let (variable, name) = called(served);
    let launch = served.start_on(&place).env(variable, &name);
    let mut node = Node::start_with(with_socket(launch, &place)).await;
    let addons = connected(&place).await;
    let before = (Leftovers::read(), storage());
    let (old, new) = (content::bytes(1, LENGTH), content::bytes(2, LENGTH));

    step("make, publish, write");
    let volume = make(&node, served, "first", served.sizes().0, None).await;
    let pod = let_in(&node, &volume).await;
    write(&volume, &pod, &old);
    let writer = Writer::start(&pod, 7);
    writes(&writer).await;

    step("fence");
    if is_unknown(served) {
        let refused = fence(&addons).await.expect_err("it cannot");
        step(refused.message());
        assert_eq!(refused.code(), Code::Unimplemented, "{refused:?}");
        assert!(fences(&addons).await.is_empty(), "nothing was changed");
        writes(&writer).await;
        writer.end().await;
        note_unknown("the fence was refused");
    } else {
        for _ in 0..2 {
            fence(&addons).await.expect("fenced");
        }
        is_silent(&writer).await;
        writer.abandon();
        node.crash().await;
        let addons = connected(&place).await;
        assert_eq!(fences(&addons).await, [NETWORK]);
        stays_out(&node, &volume).await;

        step("lift the fence");
        for _ in 0..2 {
            unfence(&addons).await.expect("lifted");
        }
        assert!(fences(&addons).await.is_empty(), "it is lifted");
    }
    node.attach(&volume, NODE).await.expect("published");
    taken_away(&node, &volume, &pod).await;
    let pod = let_in(&node, &volume).await;
    content::same(&old, &read(&volume, &pod), "what was written before");
    write(&volume, &pod, &new);
    content::same(&new, &read(&volume, &pod), "what was written after");

    step("take away, delete");
    taken_away(&node, &volume, &pod).await;
    let detached = node.detach(&volume, NODE).await;
    detached.expect("unpublished");
    clients_end();
    delete(&node, &volume).await;
    Leftovers::back_to(&before.0, "the fence").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// The blocks of a deleted file go back to the storage, and another file stays as it is.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn space_is_given_back(served: Served) {
    let place = Place::new();
    let launch = served.start_on(&place);
    let node = Node::start_with(with_socket(launch, &place)).await;
    let addons = connected(&place).await;
    let before = (Leftovers::read(), storage());
    let kept = content::bytes(1, LENGTH);

    step("make, write, delete a file");
    let volume = make(&node, served, "first", served.sizes().0, None).await;
    let pod = used(&node, &volume).await;
    write(&volume, &pod, &kept);
    let file = pod.join("deleted");
    fs::write(&file, content::bytes(2, DELETED)).expect("a file");
    sync(&pod);
    fs::remove_file(&file).expect("it is deleted");
    sync(&pod);
    let full = takes(&volume);

    step("give back");
    for _ in 0..2 {
        reclaimed(&node, &addons, &volume).await.expect("trimmed");
    }
    let given_back = full.saturating_sub(takes(&volume));
    step(&format!("{given_back} bytes of {full}"));
    assert!(given_back >= GIVEN_BACK, "{given_back} bytes of {full}");
    controller_says_nothing(&addons, &volume).await;
    // What the node remembers is no proof.
    fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
    content::same(&kept, &read(&volume, &pod), "the other file");

    step("take away, delete");
    node.take_away(&volume, &[&pod]).await;
    let gone = reclaimed(&node, &addons, &volume).await;
    let gone = gone.expect_err("nothing is mounted");
    assert_eq!(gone.code(), Code::NotFound, "{gone:?}");
    delete(&node, &volume).await;
    Leftovers::back_to(&before.0, "the space").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

fn socket(place: &Place) -> PathBuf {
    place.path().join("addons.sock")
}

fn with_socket(launch: Launch, place: &Place) -> Launch {
    let address = format!("unix://{}", socket(place).display());
    let launch = launch.set("--csi-addons-address", &address);
    launch.env("CSI_NODE_ID", NODE)
}

async fn connected(place: &Place) -> Channel {
    let client = Client::connect(&socket(place)).await;
    client.expect("a second socket").channel
}

/// Attached, staged and published to a pod.
async fn let_in(node: &Node, volume: &Fixture) -> PathBuf {
    node.attach(volume, NODE).await.expect("published");
    used(node, volume).await
}

/// Unpublished and unstaged, once the node has its disk again or has given it up.
async fn taken_away(node: &Node, volume: &Fixture, pod: &Path) {
    until_done_within(CUT_OFF, "unpublish", || node.unpublish(volume, pod)).await;
    until_done_within(CUT_OFF, "unstage", || node.unstage(volume)).await;
}

/// Ends what nfsd knows of clients. One that was shut out could not close its files, and nfsd would keep them open for
/// a day: `docs/troubleshooting.md` says what to do.
fn clients_end() {
    let clients = fs::read_dir("/proc/fs/nfsd/clients").into_iter();
    for client in clients.flatten().flatten() {
        let _ = fs::write(client.path().join("ctl"), "expire\n");
    }
}

async fn writes(writer: &Writer) {
    let went_on = writer.goes_on(Instant::now(), BATCHES, PATIENCE).await;
    went_on.expect("the pod writes");
}

/// Nothing that the pod writes reaches the storage any more: it meets an error, or waits.
async fn is_silent(writer: &Writer) {
    sleep(NOTED).await;
    let written = writer.goes_on(Instant::now(), 1, SILENCE).await;
    assert!(written.is_none(), "the pod writes behind the fence");
}

async fn stays_out(node: &Node, volume: &Fixture) {
    let refused = node.attach(volume, NODE).await;
    let refused = refused.expect_err("it is shut out");
    step(refused.message());
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("fenced"), "{refused:?}");
}

fn cidrs() -> Vec<Cidr> {
    vec![Cidr {
        cidr: NETWORK.to_owned(),
    }]
}

async fn fence(addons: &Channel) -> Result<(), Status> {
    let request = FenceClusterNetworkRequest {
        cidrs: cidrs(),
        ..FenceClusterNetworkRequest::default()
    };
    let mut client = FenceControllerClient::new(addons.clone());
    let call = client.fence_cluster_network(request);
    within("fence", call).await.map(drop)
}

async fn unfence(addons: &Channel) -> Result<(), Status> {
    let request = UnfenceClusterNetworkRequest {
        cidrs: cidrs(),
        ..UnfenceClusterNetworkRequest::default()
    };
    let mut client = FenceControllerClient::new(addons.clone());
    let call = client.unfence_cluster_network(request);
    within("unfence", call).await.map(drop)
}

/// The networks that are shut out; none of a driver that cannot.
async fn fences(addons: &Channel) -> Vec<String> {
    let mut client = FenceControllerClient::new(addons.clone());
    let call = client.list_cluster_fence(ListClusterFenceRequest::default());
    match within("list", call).await {
        Ok(reply) => {
            let cidrs = reply.into_inner().cidrs.into_iter();
            cidrs.map(|one| one.cidr).collect()
        }
        Err(status) => {
            assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
            Vec::new()
        }
    }
}

async fn reclaimed(node: &Node, addons: &Channel, volume: &Fixture) -> Result<(), Status> {
    let request = NodeReclaimSpaceRequest {
        volume_id: volume.volume.volume_id.clone(),
        staging_target_path: node.staging(volume).display().to_string(),
        volume_capability: Some(volume.capability.clone()),
        ..NodeReclaimSpaceRequest::default()
    };
    let mut client = ReclaimSpaceNodeClient::new(addons.clone());
    let call = client.node_reclaim_space(request);
    within("reclaim", call).await.map(drop)
}

/// Numbers that are equal would be shown as nothing reclaimed.
async fn controller_says_nothing(addons: &Channel, volume: &Fixture) {
    let request = ControllerReclaimSpaceRequest {
        volume_id: volume.volume.volume_id.clone(),
        ..ControllerReclaimSpaceRequest::default()
    };
    let mut client = ReclaimSpaceControllerClient::new(addons.clone());
    let call = client.controller_reclaim_space(request);
    let said = within("reclaim", call).await.expect("an answer");
    let said = said.into_inner();
    assert!(said.pre_usage.is_none() && said.post_usage.is_none());
}

/// Everything in the filesystem of a pod reaches the storage.
fn sync(pod: &Path) {
    run(&["sync", "-f", &pod.display().to_string()]);
}

/// The bytes that a volume takes, when the pool is done with what it was given.
fn takes(volume: &Fixture) -> u64 {
    run(&["zpool", "sync", "tank"]);
    let bytes = shown("referenced", &dataset(volume));
    bytes.parse().expect("a number")
}
