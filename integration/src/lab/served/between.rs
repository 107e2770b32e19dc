//! Copies of volumes and snapshots from one connection of the node's own ZFS to another one, by the program that is
//! served: two connections on two pools, in both directions. The data go by `zfs send` and `zfs receive` where the
//! node's data are read and written, through the runner that observes commands.

use std::sync::OnceLock;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;

use super::life::{asked_twice, delete, remove_snapshot, same, used};
use super::{Served, storage};
use crate::lab::calls::{Node, within};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::fixture::{Backing, Export, Fixture, SIZE, capability};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, step, write};
use crate::lab::storage::zfs::Dataset;
use crate::place::Place;
use crate::server::Launch;
use crate::volume;

/// A second pool, on a file of the lab's disk.
const POOL: &str = "second";
const FILE: &str = "/var/tmp/second-pool";
/// The connections, and below which dataset each makes its volumes.
const CONNECTIONS: [(&str, &str); 2] = [("here", "tank/csi/here"), ("there", "second/there")];

/// The whole cell.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn copied(served: Served) {
    run(&["truncate", "-s", "2G", FILE]);
    run(&["zpool", "create", "-O", "mountpoint=/second", POOL, FILE]);
    let place = Place::new();
    let files: Vec<_> = CONNECTIONS
        .into_iter()
        .map(|(name, root)| (name, config(served, root)))
        .collect();
    let files = files.iter().map(|(name, text)| (*name, text.as_str()));
    let launch = Launch::proxy(&place.path().join("connections"), "here", files);
    let node = Node::start_with(launch.set("--log-level", "debug")).await;
    let before = (Leftovers::read(), everything());
    for [from, to] in [["here", "there"], ["there", "here"]] {
        from_one_to_another(&node, served, from, to).await;
        Leftovers::back_to(&before.0, &format!("copies from {from} to {to}")).await;
        assert_eq!(everything(), before.1, "the storage is as before");
    }
    node.end().await;
    run(&["zpool", "destroy", POOL]);
    run(&["rm", FILE]);
}

/// A volume of `to` from a snapshot of `from`, and one from a volume that has been written since.
async fn from_one_to_another(node: &Node, served: Served, from: &str, to: &str) {
    let (old, new) = (content::bytes(1, LENGTH), content::bytes(2, LENGTH));
    step(&format!("make at {from}, write, cut, write again"));
    let first = make(node, served, from, "first", None).await;
    let pod = used(node, &first).await;
    write(&first, &pod, &old);
    let request = volume::snapshot("cut", &first.volume.volume_id);
    let mut controller = node.server.client().controller;
    let cut = within("cut", controller.create_snapshot(request)).await;
    let cut = cut.expect("a snapshot").into_inner().snapshot;
    let cut = cut.expect("a snapshot").snapshot_id;
    write(&first, &pod, &new);

    step(&format!("copy the snapshot and the volume to {to}"));
    let source = volume::from_snapshot(&cut);
    let of_snapshot = make(node, served, to, "of-snapshot", source).await;
    let source = volume::from_volume(&first.volume.volume_id);
    let of_volume = make(node, served, to, "of-volume", source).await;
    same(node, &of_snapshot, &old, "the copy of the snapshot").await;
    same(node, &of_volume, &new, "the copy of the volume").await;

    step("what is copied goes, the copies stay");
    node.take_away(&first, &[&pod]).await;
    remove_snapshot(node, &cut).await;
    delete(node, &first).await;
    same(node, &of_snapshot, &old, "the copy of the snapshot").await;
    for copy in [&of_snapshot, &of_volume] {
        delete(node, copy).await;
    }
}

/// A connection with a dataset of its own, which is made.
fn config(served: Served, root: &str) -> String {
    for name in ["v", "s"] {
        run(&["zfs", "create", "-p", &format!("{root}/{name}")]);
    }
    format!(
        "driver: {}\nzfs:\n  datasetParentName: {root}/v\n  detachedSnapshotsDatasetParentName: {root}/s\n  \
         datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n",
        served.kind
    )
}

/// A volume of a connection, asked for twice.
async fn make(
    node: &Node,
    served: Served,
    connection: &str,
    name: &str,
    source: Option<csi::VolumeContentSource>,
) -> Fixture {
    let parameters = [("connection", connection)];
    let volume = asked_twice(node, served, name, SIZE, source, &parameters).await;
    let of_connection = format!("v:{connection}/");
    assert!(volume.volume_id.starts_with(&of_connection), "{volume:?}");
    let root = CONNECTIONS.iter().find(|(name, _)| *name == connection);
    let (_, root) = root.expect("one of the two");
    let id = volume.volume_id.trim_start_matches(&*of_connection);
    Fixture {
        secrets: [].into(),
        capability: capability(served.access, Mode::SingleNodeMultiWriter),
        access: served.access,
        backing: Backing::Dataset(Dataset {
            name: format!("{root}/v/{id}"),
        }),
        export: Export::None,
        published: OnceLock::new(),
        volume,
    }
}

/// What is in both pools, and what this machine exports.
fn everything() -> Vec<String> {
    let second = run(&["zfs", "list", "-H", "-r", "-t", "all", "-o", "name", POOL]);
    let second = second.lines().map(str::to_owned);
    storage().into_iter().chain(second).collect()
}
