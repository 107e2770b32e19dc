//! A storage host that has lost what it exported, as after a start without a saved configuration:
//! `omnibus-csi exports` says so, and each volume comes back with its content.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{ROOT, Served, folders, life, say, storage};
use crate::lab::calls::{Node, within};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::fixture::{Fixture, LARGER, SIZE};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, step, write};
use crate::lab::storage::configfs::{names, remove, set, unlink};
use crate::place::Place;
use crate::volume;

/// One volume comes back by being asked for again, one by growing, and all by the command.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn come_back(served: Served) {
    let place = Place::new();
    let mut node = Node::start_with(served.start_on(&place)).await;
    let before = (Leftovers::read(), storage());
    let mut all = Vec::new();
    for (seed, name) in (1..).zip(["again", "grown", "left"]) {
        let fixture = life::make(&node, served, name, SIZE, None).await;
        let pod = life::used(&node, &fixture).await;
        write(&fixture, &pod, &content::bytes(seed, LENGTH));
        node.take_away(&fixture, &[&pod]).await;
        all.push(fixture);
    }
    let grown = &all[1].volume.volume_id;
    expect_report(&node, &[], &[], "before anything is lost").await;

    step("lose all, ask for one again");
    // For a minute after its start it restores none by itself.
    node.crash().await;
    lose(served);
    let missing = |fixture: &Fixture| (fixture.volume.volume_id.clone(), "missing");
    let lost: Vec<_> = all.iter().map(missing).collect();
    expect_report(&node, &[], &lost, "after all is lost").await;
    life::make(&node, served, "again", SIZE, None).await;
    expect_report(&node, &[], &lost[1..], "after one was asked for again").await;

    step("grow another one");
    let larger = i64::try_from(LARGER).expect("a size");
    let mut controller = node.server.client().controller;
    let request = volume::expand(grown, larger);
    within("grow", controller.controller_expand_volume(request))
        .await
        .expect("grown");
    expect_report(&node, &[], &lost[2..], "after one was grown").await;

    step("lose all, put all back");
    node.crash().await;
    lose(served);
    let repaired = all.iter().map(|fixture| &fixture.volume.volume_id);
    let repaired: Vec<_> = repaired.map(|id| (id.clone(), "repaired")).collect();
    expect_report(&node, &["--repair"], &repaired, "the repair").await;
    expect_report(&node, &[], &[], "after the repair").await;

    step("read what was written");
    for (seed, fixture) in (1..).zip(&all) {
        let bytes = content::bytes(seed, LENGTH);
        life::same(&node, fixture, &bytes, &fixture.volume.volume_id).await;
        life::delete(&node, fixture).await;
    }
    Leftovers::back_to(&before.0, "what came back").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// Runs `omnibus-csi exports` beside the server and asserts which of three volumes it names, and how.
pub(super) async fn expect_report(
    node: &Node,
    flags: &[&str],
    expected: &[(String, &str)],
    what: &str,
) {
    let (ended, report) = say(node, "exports", flags).await;
    let rows = report["exports"].as_array().cloned().unwrap_or_default();
    let mut named: Vec<_> = rows
        .iter()
        .map(|row| json!([row["volume"], row["state"]]))
        .collect();
    named.sort_by_key(Value::to_string);
    let mut expected: Vec<_> = expected.iter().map(|row| json!(row)).collect();
    expected.sort_by_key(Value::to_string);
    assert_eq!(named, expected, "{what}: {report}");
    assert_eq!(report["problems"], json!([]), "{what}");
    assert_eq!(report["volumes"], json!(3), "{what}");
    let missing = report.to_string().contains("missing");
    assert_eq!(ended, !missing, "{what}: its exit code");
}

/// Takes everything back that this machine exports, and what it saved for its next start.
///
/// # Panics
/// If something of it is still there.
pub(super) fn lose(served: Served) {
    match served.kind {
        "zfs-generic-nfs" => {
            run(&["zfs", "unshare", "-a"]);
        }
        "zfs-generic-smb" => {
            for share in names(Path::new("/var/lib/samba/usershares")) {
                run(&["net", "usershare", "delete", &share]);
            }
        }
        "zfs-generic-iscsi" => lose_targets(),
        _ => lose_subsystems(),
    }
    for file in [
        "/etc/target/saveconfig.json",
        "/etc/rtslib-fb-target/saveconfig.json",
        "/etc/nvmet/config.json",
    ] {
        let _ = fs::remove_file(file);
    }
    let left = storage();
    let left: Vec<_> = left
        .iter()
        .filter(|line| !line.starts_with(ROOT) && line.contains("pvc"))
        .collect();
    assert!(left.is_empty(), "not lost: {left:?}");
}

/// As a kernel that just started has none.
fn lose_targets() {
    let root = Path::new("/sys/kernel/config/target");
    for target in folders(&root.join("iscsi")) {
        let group = target.join("tpgt_1");
        if !group.is_dir() {
            continue;
        }
        set(&group, "enable", "0");
        for lun in folders(&group.join("lun")) {
            for link in folders(&lun) {
                unlink(&link);
            }
            remove(&lun);
        }
        for portal in folders(&group.join("np")) {
            remove(&portal);
        }
        remove(&group);
        remove(&target);
    }
    for adapter in folders(&root.join("core")) {
        for store in folders(&adapter) {
            // Folders without this file exist from the start and are not removed.
            if store.join("udev_path").is_file() {
                remove(&store);
            }
        }
    }
}

/// The same of subsystems, and of the ports that led to them.
fn lose_subsystems() {
    let root = Path::new("/sys/kernel/config/nvmet");
    for port in folders(&root.join("ports")) {
        for link in folders(&port.join("subsystems")) {
            unlink(&link);
        }
        remove(&port);
    }
    for subsystem in folders(&root.join("subsystems")) {
        for namespace in folders(&subsystem.join("namespaces")) {
            remove(&namespace);
        }
        remove(&subsystem);
    }
}
