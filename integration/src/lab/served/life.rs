//! The life of volumes that a driver makes: written, cut, restored, cloned, grown and deleted, with
//! every byte compared on the node.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_try::client::CLONE;
use tonic::Status;

use super::settings::{dataset, shown};
use super::{Served, grouped, storage};
use crate::lab::calls::{Node, within};
use crate::lab::content;
use crate::lab::fixture::{Access, Fixture, capability};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, size, step, write};
use crate::place::Place;
use crate::reads;
use crate::server::log_of;
use crate::volume;

/// The source of a volume.
type Source = Option<csi::VolumeContentSource>;

/// The whole life.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn whole(served: Served) {
    let place = Place::new();
    let node = Node::start_with(served.start_on(&place)).await;
    let before = (Leftovers::read(), storage());

    step("make");
    let first = make(&node, served, "first", served.sizes().0, None).await;
    attached(&node, &first).await;
    lived(&node, served, &first).await;
    copied(&node, served).await;
    if served.is_device() && served.access != Access::Block {
        used_in_the_other_mode(&node, served).await;
    }
    if served.takes_groups() {
        grouped::taken_and_restored(&node, served).await;
    }
    // Node and storage host are one machine: its own mounts and zvols go with the volumes.
    Leftovers::back_to(&before.0, "the whole life").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    let log = log_of(&node.place);
    let offered = node.server.client().offered().await;
    for call in offered.expect("what it offers") {
        assert!(
            call == CLONE || log.contains(&format!("{call} succeeded")),
            "{call} is offered and was not tried"
        );
    }
    for secret in secrets_of(&node.place) {
        assert!(
            !log.contains(&secret),
            "a secret of the login is in the log"
        );
    }
    node.end().await;
}

/// The password of the API in a configuration, and the private key of SSH, of which the first line is the same in
/// every key.
fn secrets_of(place: &Place) -> Vec<String> {
    let text = std::fs::read_to_string(place.config()).expect("a configuration");
    let password = text.split("password: ").nth(1);
    let password = password.and_then(|rest| rest.split([',', '}']).next());
    let key = text.lines().map(str::trim);
    let key = key.skip_while(|line| !line.contains("BEGIN"));
    let key = key.take_while(|line| !line.contains("END")).skip(2);
    key.chain(password).map(str::to_owned).collect()
}

/// The life of a volume, until it is deleted.
pub(in crate::lab) async fn lived(node: &Node, served: Served, first: &Fixture) {
    let (old, new) = (content::bytes(1, LENGTH), content::bytes(2, LENGTH));

    step("stage, write");
    let pod = used(node, first).await;
    write(first, &pod, &old);

    step("cut, and write again");
    let cut = cut(node, first, &[]).await;
    all_read(node, served, first, &cut).await;
    node.stats(first, &pod).await.expect("what it uses");
    let client = node.server.client();
    let offered = client.offered().await.expect("what it offers");
    let staging = node.staging(first);
    all_ended_well(reads::of_a_node(&client, &offered, &first.volume, &staging, &pod).await);
    write(first, &pod, &new);

    step("restore");
    let source = volume::from_snapshot(&cut);
    let restored = make(node, served, "restored", served.sizes().0, source).await;
    same(node, &restored, &old, "what was restored").await;

    step("clone");
    let source = volume::from_volume(&first.volume.volume_id);
    let cloned = make(node, served, "cloned", served.sizes().0, source).await;
    same(node, &cloned, &new, "the clone").await;

    step("grow");
    grow(node, served, first, &pod).await;
    content::same(&new, &read(first, &pod), "after growing");

    step("take away");
    node.take_away(first, &[&pod]).await;
    for fixture in [&cloned, &restored] {
        delete(node, fixture).await;
    }
    remove_snapshot(node, &cut).await;
    delete(node, first).await;
}

/// Attached and detached again, where that is offered: every node is let in, so that nothing depends on it.
async fn attached(node: &Node, fixture: &Fixture) {
    let client = node.server.client();
    let offered = client.offered().await.expect("what it offers");
    if !offered.contains("ControllerPublishVolume") {
        return;
    }
    let node_id = node.id().await;
    node.attach(fixture, &node_id).await.expect("attached");
    node.detach(fixture, &node_id).await.expect("detached");
}

/// Each call that only reads.
async fn all_read(node: &Node, served: Served, first: &Fixture, cut: &str) {
    let client = node.server.client();
    let offered = client.offered().await.expect("what it offers");
    let info = client.get_plugin_info(csi::GetPluginInfoRequest {}).await;
    info.expect("its name");
    let can = csi::GetPluginCapabilitiesRequest {};
    let can = client.get_plugin_capabilities(can).await;
    can.expect("its services");
    let of_node = client.node_get_info(csi::NodeGetInfoRequest {}).await;
    of_node.expect("the node");
    node.probe().await.expect("it is ready");
    let capability = capability(served.access, Mode::SingleNodeMultiWriter);
    let mut done = reads::of_a_volume(&client, &offered, &first.volume, capability).await;
    done.extend(reads::of_a_snapshot(&client, &offered, cut).await);
    all_ended_well(done);
}

fn all_ended_well(calls: Vec<(&str, reads::Outcome)>) {
    for (call, outcome) in calls {
        outcome.unwrap_or_else(|what| panic!("{call}: {what}"));
    }
}

/// Copies that stand on nothing: a snapshot that outlives its volume, and a volume of each sort of source.
async fn copied(node: &Node, served: Served) {
    step("copy in full");
    let content = content::bytes(3, LENGTH);
    let origin = make(node, served, "origin", served.sizes().0, None).await;
    let pod = used(node, &origin).await;
    write(&origin, &pod, &content);
    node.take_away(&origin, &[&pod]).await;
    let kept = cut(node, &origin, &[("detachedSnapshots", "true")]).await;
    let wishes = [
        ("detachedVolumesFromVolumes", "true"),
        ("detachedVolumesFromSnapshots", "true"),
    ];
    let source = volume::from_volume(&origin.volume.volume_id);
    let of_volume = make_as(node, served, "of-volume", served.sizes().0, source, &wishes).await;
    assert_eq!(shown("origin", &dataset(&of_volume)), "-");
    delete(node, &origin).await;
    let source = volume::from_snapshot(&kept);
    let of_snapshot = make_as(
        node,
        served,
        "of-snapshot",
        served.sizes().0,
        source,
        &wishes,
    )
    .await;
    assert_eq!(shown("origin", &dataset(&of_snapshot)), "-");
    remove_snapshot(node, &kept).await;
    for copy in [&of_volume, &of_snapshot] {
        same(node, copy, &content, "a copy whose source is gone").await;
        delete(node, copy).await;
    }
}

/// A raw device of the snapshot of a filesystem, and a filesystem of the snapshot of that device.
async fn used_in_the_other_mode(node: &Node, served: Served) {
    step("the other volumeMode");
    let content = content::bytes(6, LENGTH);
    let origin = make(node, served, "mode", served.sizes().0, None).await;
    let pod = used(node, &origin).await;
    write(&origin, &pod, &content);
    node.take_away(&origin, &[&pod]).await;
    let of_files = cut(node, &origin, &[]).await;

    let raw = Served {
        access: Access::Block,
        ..served
    };
    let source = volume::from_snapshot(&of_files);
    let device = make(node, raw, "mode-raw", raw.sizes().0, source).await;
    let pod = used(node, &device).await;
    let kind = std::fs::metadata(&pod).expect("it is there").file_type();
    assert!(kind.is_block_device(), "a raw device for the pod");
    node.take_away(&device, &[&pod]).await;

    let request = volume::snapshot("cut-of-a-device", &device.volume.volume_id);
    let mut controller = node.server.client().controller;
    let reply = within("cut", controller.create_snapshot(request)).await;
    let of_device = reply.expect("a snapshot").into_inner().snapshot;
    let of_device = of_device.expect("a snapshot").snapshot_id;
    let source = volume::from_snapshot(&of_device);
    let files = make(node, served, "mode-files", served.sizes().0, source).await;
    same(node, &files, &content, "a filesystem that was a raw device").await;

    delete(node, &files).await;
    remove_snapshot(node, &of_device).await;
    delete(node, &device).await;
    remove_snapshot(node, &of_files).await;
    delete(node, &origin).await;
}

/// A volume, asked for twice.
pub(in crate::lab) async fn make(
    node: &Node,
    served: Served,
    name: &str,
    bytes: u64,
    source: Source,
) -> Fixture {
    make_as(node, served, name, bytes, source, &[]).await
}

/// The same of a class with these parameters.
pub(super) async fn make_as(
    node: &Node,
    served: Served,
    name: &str,
    bytes: u64,
    source: Source,
    parameters: &[(&str, &str)],
) -> Fixture {
    served.fixture(asked_twice(node, served, name, bytes, source, parameters).await)
}

/// A volume, asked for twice.
pub(super) async fn asked_twice(
    node: &Node,
    served: Served,
    name: &str,
    bytes: u64,
    source: Source,
    parameters: &[(&str, &str)],
) -> csi::Volume {
    let request = request(served, name, bytes, source, parameters);
    let mut controller = node.server.client().controller;
    let mut made = Vec::new();
    for _ in 0..2 {
        let reply = within("create", controller.create_volume(request.clone())).await;
        let reply = reply.unwrap_or_else(|status| panic!("{name}: {status:?}"));
        made.push(reply.into_inner().volume.expect("a volume"));
    }
    let volume = made.remove(0);
    assert_eq!(made, std::slice::from_ref(&volume), "what was made is made");
    volume
}

/// The request for it.
pub(super) fn request(
    served: Served,
    name: &str,
    bytes: u64,
    source: Source,
    parameters: &[(&str, &str)],
) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: volume::at_least(i64::try_from(bytes).expect("a size")),
        volume_capabilities: vec![capability(served.access, Mode::SingleNodeMultiWriter)],
        volume_content_source: source,
        ..volume::create(&format!("pvc-{name}"), &volume::parameters(parameters))
    }
}

/// Staged, and published to a pod.
pub(in crate::lab) async fn used(node: &Node, fixture: &Fixture) -> PathBuf {
    let pod = node.pod(&fixture.volume.volume_id);
    node.stage(fixture).await.expect("staged");
    node.publish(fixture, &pod).await.expect("published");
    pod
}

/// Whether it holds what it should, seen by a pod.
pub(in crate::lab) async fn same(node: &Node, fixture: &Fixture, expected: &[u8], what: &str) {
    let pod = used(node, fixture).await;
    content::same(expected, &read(fixture, &pod), what);
    node.take_away(fixture, &[&pod]).await;
}

/// A snapshot of a class with these parameters.
pub(super) async fn cut(node: &Node, fixture: &Fixture, parameters: &[(&str, &str)]) -> String {
    cut_as(node, "cut", fixture, parameters).await
}

/// The same by a name of its own.
pub(super) async fn cut_as(
    node: &Node,
    name: &str,
    fixture: &Fixture,
    parameters: &[(&str, &str)],
) -> String {
    let request = csi::CreateSnapshotRequest {
        parameters: volume::parameters(parameters),
        ..volume::snapshot(name, &fixture.volume.volume_id)
    };
    let mut controller = node.server.client().controller;
    let reply = within("cut", controller.create_snapshot(request)).await;
    let snapshot = reply.expect("a snapshot").into_inner().snapshot;
    let snapshot = snapshot.expect("a snapshot");
    assert!(snapshot.ready_to_use);
    snapshot.snapshot_id
}

/// Growth by the controller, by the node, or by both, as the driver has it.
pub(super) async fn grow(node: &Node, served: Served, fixture: &Fixture, pod: &std::path::Path) {
    let (first, larger) = served.sizes();
    let small = size(fixture, pod);
    if !served.is_expanded_by_the_controller() || expanded(node, fixture, larger).await {
        node.expand(fixture, pod, larger).await.expect("grown");
    }
    let large = size(fixture, pod);
    match fixture.access {
        Access::Block => assert_eq!(large, larger),
        // What a filesystem keeps for itself does not grow with it.
        Access::Mount(_) => assert!(
            large >= small + (larger - first) * 9 / 10,
            "it had {small} bytes and now has {large}"
        ),
    }
}

/// Expands a volume by the controller; whether the node has to go on.
async fn expanded(node: &Node, fixture: &Fixture, bytes: u64) -> bool {
    let bytes = i64::try_from(bytes).expect("a size");
    let request = csi::ControllerExpandVolumeRequest {
        volume_capability: Some(fixture.capability.clone()),
        ..volume::expand(&fixture.volume.volume_id, bytes)
    };
    let mut controller = node.server.client().controller;
    let reply = within("grow", controller.controller_expand_volume(request)).await;
    let reply = reply.expect("grown").into_inner();
    assert_eq!(reply.capacity_bytes, bytes);
    reply.node_expansion_required
}

/// As often as an orchestrator would try; the last time it is gone already.
pub(in crate::lab) async fn delete(node: &Node, fixture: &Fixture) {
    let mut controller = node.server.client().controller;
    for _ in 0..2 {
        let request = volume::delete(&fixture.volume.volume_id);
        let reply: Result<_, Status> = within("delete", controller.delete_volume(request)).await;
        reply.expect("deleted");
    }
}

/// The same of a snapshot.
pub(in crate::lab) async fn remove_snapshot(node: &Node, id: &str) {
    let mut controller = node.server.client().controller;
    for _ in 0..2 {
        let request = volume::delete_snapshot(id);
        within("delete the snapshot", controller.delete_snapshot(request))
            .await
            .expect("deleted");
    }
}
