//! The orphans of calls whose script dies on the storage host and that are not retried: `omnibus-csi
//! orphans` finds all of them, nothing else, and removes them.

use std::collections::BTreeSet;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use node_utils::{CutMoment, Cutter};
use serde_json::{Value, json};
use tonic::Status;

use super::{Served, life, say, storage};
use crate::lab::calls::{Node, within};
use crate::lab::fixture::{SIZE, capability};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;
use crate::place::Place;
use crate::volume;

/// The operation that is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    Clone,
    Detach,
}

/// Each call that makes something is cut after each of its commands of `zfs`, under a name of its own.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn are_found_and_removed(served: Served) {
    let place = Place::new();
    let folder = place.path().join("cutter");
    let cutter = Cutter::new(&folder, "/usr/sbin/zfs", CutMoment::After);
    let cli = format!(
        "  cli: {{paths: {{zfs: {}}}}}\n",
        cutter.program().display()
    );
    let node = Node::start_with(served.launch_with(&place, &cli)).await;
    let before = (Leftovers::read(), storage());
    let source = life::make(&node, served, "source", SIZE, None).await;
    let (mut whole, mut cuts) = (Vec::new(), 0);
    for operation in [Operation::Create, Operation::Clone, Operation::Detach] {
        step(&format!("cut {operation:?}"));
        for number in 1.. {
            let name = format!("{operation:?}-{number}").to_lowercase();
            cutter.at(number);
            let made = make(&node, served, operation, &name, &source.volume.volume_id).await;
            let cut = cutter.is_done();
            cutter.at(0);
            whole.extend(made.ok());
            if !cut {
                break;
            }
            cuts += 1;
        }
    }
    assert!(cuts >= 9, "only {cuts} cuts");
    let left = storage();

    step("list");
    let (clean, report) = say(&node, "orphans", &[]).await;
    assert!(clean, "{report}");
    assert_eq!(report["orphans"], json!([]), "what is young is left out");
    let (clean, report) = say(&node, "orphans", &["--min-age=0s"]).await;
    assert!(!clean, "{report}");
    let kinds: BTreeSet<_> = column(&report, "kind").into_iter().collect();
    let expected = ["half-made snapshot", "half-made volume", "helper snapshot"];
    assert!(
        expected.iter().all(|kind| kinds.contains(*kind)),
        "{kinds:?}"
    );
    assert_eq!(storage(), left, "to list changes nothing");

    step("remove");
    let (clean, report) = say(&node, "orphans", &["--min-age=0s", "--remove"]).await;
    assert!(clean, "{report}");
    let states: BTreeSet<_> = column(&report, "state").into_iter().collect();
    assert_eq!(states, ["removed".to_owned()].into(), "{report}");
    // What held the detached snapshots that are gone may be empty now.
    let (_, report) = say(&node, "orphans", &["--min-age=0s", "--remove"]).await;
    let (clean, again) = say(&node, "orphans", &["--min-age=0s"]).await;
    assert!(clean, "{report}, then {again}");

    step("delete what is whole");
    // A call that was cut after its last change made a whole volume, although its answer was lost.
    let listed = listed(&node).await;
    assert!(
        whole.iter().all(|made| listed.contains(made)),
        "{whole:?} was made, {listed:?} is left"
    );
    for made in listed {
        if made == Made::Volume(source.volume.volume_id.clone()) {
            continue;
        }
        end(&node, &made)
            .await
            .unwrap_or_else(|status| panic!("{made:?}: {status:?}"));
    }
    life::delete(&node, &source).await;
    Leftovers::back_to(&before.0, "the orphans").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// Something that was made to its end.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Made {
    Volume(String),
    Snapshot(String),
}

async fn make(
    node: &Node,
    served: Served,
    operation: Operation,
    name: &str,
    source: &str,
) -> Result<Made, Status> {
    let mut controller = node.server.client().controller;
    if operation == Operation::Detach {
        let request = csi::CreateSnapshotRequest {
            parameters: volume::parameters(&[("detachedSnapshots", "true")]),
            ..volume::snapshot(name, source)
        };
        let reply = within("cut", controller.create_snapshot(request)).await?;
        let snapshot = reply.into_inner().snapshot.expect("a snapshot");
        return Ok(Made::Snapshot(snapshot.snapshot_id));
    }
    let request = csi::CreateVolumeRequest {
        capacity_range: volume::at_least(i64::try_from(SIZE).expect("a size")),
        volume_capabilities: vec![capability(served.access, Mode::SingleNodeMultiWriter)],
        volume_content_source: (operation == Operation::Clone)
            .then(|| volume::from_volume(source))
            .flatten(),
        ..volume::create(name, &[].into())
    };
    let reply = within("create", controller.create_volume(request)).await?;
    let made = reply.into_inner().volume.expect("a volume");
    Ok(Made::Volume(made.volume_id))
}

/// Everything that is whole, snapshots first.
pub(super) async fn listed(node: &Node) -> Vec<Made> {
    let mut controller = node.server.client().controller;
    let snapshots = controller.list_snapshots(csi::ListSnapshotsRequest::default());
    let snapshots = within("list", snapshots).await.expect("snapshots");
    let volumes = controller.list_volumes(csi::ListVolumesRequest::default());
    let volumes = within("list", volumes).await.expect("volumes");
    let snapshots = snapshots.into_inner().entries.into_iter();
    let snapshots = snapshots.filter_map(|entry| entry.snapshot);
    let snapshots = snapshots.map(|snapshot| Made::Snapshot(snapshot.snapshot_id));
    let volumes = volumes.into_inner().entries.into_iter();
    let volumes = volumes.filter_map(|entry| entry.volume);
    let volumes = volumes.map(|volume| Made::Volume(volume.volume_id));
    snapshots.chain(volumes).collect()
}

async fn end(node: &Node, made: &Made) -> Result<(), Status> {
    let mut controller = node.server.client().controller;
    match made {
        Made::Volume(id) => {
            let request = volume::delete(id);
            within("delete", controller.delete_volume(request)).await?;
        }
        Made::Snapshot(id) => {
            let request = volume::delete_snapshot(id);
            within("delete", controller.delete_snapshot(request)).await?;
        }
    }
    Ok(())
}

fn column(report: &Value, name: &str) -> Vec<String> {
    let rows = report["orphans"].as_array().into_iter().flatten();
    rows.filter_map(|row| row[name].as_str().map(str::to_owned))
        .collect()
}
