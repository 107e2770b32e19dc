//! Volumes in children of the parent of volumes, where classes place them, and one right below the parent: all are found,
//! reported and repaired, and copies go from any of them to any other.

use csi_proto::v1::VolumeContentSource;
use tonic::Code;

use super::exports::{expect_report, lose};
use super::life::{cut_as, delete, grow, make_as, remove_snapshot, request, same, used};
use super::orphans::{Made, listed};
use super::settings::{dataset, shown};
use super::{ROOT, Served, say, storage};
use crate::lab::calls::{Node, refused, within};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::fixture::Fixture;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, write};
use crate::place::Place;
use crate::volume;

const CONFIG: &str = "  datasetChildren: [fast, bulk]
  volumeParameters: [datasetChild]
";
/// The children, of which none is there before its first volume.
const CHILDREN: [&str; 2] = ["fast", "bulk"];
/// The place of a class without the key.
const PARENT: &str = "";

/// The lives of all of them.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn hold_volumes(served: Served) {
    let place = Place::new();
    let mut node = Node::start_with(served.launch_with(&place, CONFIG)).await;
    let before = (Leftovers::read(), storage());
    let [first, second, third] = originals(&node, served).await;
    if served.is_remote() {
        lost_and_repaired(&mut node, served, [&first, &second, &third]).await;
    }

    step("cut, write again, copy from each to another one");
    let [old, of_second, of_third, new] = [1, 2, 3, 4].map(|seed| content::bytes(seed, LENGTH));
    let pod = used(&node, &first).await;
    let cut = cut_as(&node, "cut", &first, &[]).await;
    write(&first, &pod, &new);
    let kept = cut_as(&node, "kept", &second, &[("detachedSnapshots", "true")]).await;
    let mut copies = Vec::new();
    let [from_cut, from_kept] = [&cut, &kept].map(|id| volume::from_snapshot(id));
    for (name, child, source, expected) in [
        ("restored", "bulk", from_cut, &old),
        ("of-kept", "fast", from_kept, &of_second),
        ("cloned", PARENT, of_volume(&first), &new),
        ("of-third", "fast", of_volume(&third), &of_third),
    ] {
        let copy = made(&node, served, name, child, source).await;
        same(&node, &copy, expected, name).await;
        copies.push(copy);
    }

    step("grow");
    grow(&node, served, &first, &pod).await;
    content::same(&new, &read(&first, &pod), "after growing");
    node.take_away(&first, &[&pod]).await;

    step("list all, ask for one elsewhere");
    let originals = [&first, &second, &third];
    let volumes = originals.into_iter().chain(&copies);
    let volumes = volumes.map(|fixture| Made::Volume(fixture.volume.volume_id.clone()));
    let snapshots = [&cut, &kept].map(|id| Made::Snapshot(id.clone()));
    let mut expected: Vec<_> = volumes.chain(snapshots).collect();
    expected.sort();
    let mut all = listed(&node).await;
    all.sort();
    assert_eq!(all, expected, "each is listed once");
    refused_elsewhere(&node, served, "first", ["bulk", PARENT]).await;
    let (clean, report) = say(&node, "orphans", &["--min-age=0s"]).await;
    assert!(clean, "nothing is left behind: {report}");

    step("take away");
    for copy in &copies {
        delete(&node, copy).await;
    }
    for id in [&cut, &kept] {
        remove_snapshot(&node, id).await;
    }
    for original in originals {
        delete(&node, original).await;
    }
    let children = CHILDREN.map(|child| format!("{ROOT}/v/{child}"));
    let mut with_children = [&before.1[..], &children].concat();
    with_children.sort();
    assert_eq!(storage(), with_children, "the children alone stay");
    // A destruction without `-r`, which takes what is empty alone.
    for child in &children {
        run(&["zfs", "destroy", child]);
    }
    Leftovers::back_to(&before.0, "volumes in children").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// A volume in each place, with content of its own.
async fn originals(node: &Node, served: Served) -> [Fixture; 3] {
    step("make, write");
    let all = [
        made(node, served, "first", "fast", None).await,
        made(node, served, "second", "bulk", None).await,
        made(node, served, "third", PARENT, None).await,
    ];
    for (seed, fixture) in (1..).zip(&all) {
        let pod = used(node, fixture).await;
        write(fixture, &pod, &content::bytes(seed, LENGTH));
        node.take_away(fixture, &[&pod]).await;
    }
    all
}

/// The exports of all three are lost, seen to be, and put back by the command, with their contents.
async fn lost_and_repaired(node: &mut Node, served: Served, all: [&Fixture; 3]) {
    step("lose all, put all back");
    let rows = |state| all.map(|fixture| (fixture.volume.volume_id.clone(), state));
    expect_report(node, &[], &[], "before anything is lost").await;
    // For a minute after its start it restores none by itself.
    node.crash().await;
    lose(served);
    expect_report(node, &[], &rows("missing"), "after all is lost").await;
    expect_report(node, &["--repair"], &rows("repaired"), "the repair").await;
    expect_report(node, &[], &[], "after the repair").await;
    for (seed, fixture) in (1..).zip(all) {
        let bytes = content::bytes(seed, LENGTH);
        same(node, fixture, &bytes, &fixture.volume.volume_id).await;
    }
}

/// A volume of a class that names this child, if it does, and its dataset there.
async fn made(
    node: &Node,
    served: Served,
    name: &str,
    child: &str,
    source: Option<VolumeContentSource>,
) -> Fixture {
    let (bytes, class) = (served.sizes().0, class(child));
    let fixture = make_as(node, served, name, bytes, source, &class).await;
    let dataset = dataset(&fixture);
    let (parent, _) = dataset.rsplit_once('/').expect("a dataset in another one");
    assert_eq!(parent, format!("{ROOT}/v/{child}").trim_end_matches('/'));
    let kind = if served.is_device() {
        "volume"
    } else {
        "filesystem"
    };
    assert_eq!(shown("type", &dataset), kind);
    fixture
}

fn class(child: &str) -> Vec<(&str, &str)> {
    let key = (child != PARENT).then_some(("datasetChild", child));
    key.into_iter().collect()
}

fn of_volume(fixture: &Fixture) -> Option<VolumeContentSource> {
    volume::from_volume(&fixture.volume.volume_id)
}

/// A volume that exists in one place is not made in others.
async fn refused_elsewhere(node: &Node, served: Served, name: &str, others: [&str; 2]) {
    for child in others {
        let request = request(served, name, served.sizes().0, None, &class(child));
        let mut controller = node.server.client().controller;
        let outcome = within("create", controller.create_volume(request)).await;
        let said = refused(outcome, &[Code::AlreadyExists], "the same name elsewhere");
        assert!(said.contains("is the volume of this name"), "{said}");
    }
}
