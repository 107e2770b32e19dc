//! Each kind of driver, and each option of snapshots, once through the program as it is served: configured by a file,
//! called over its socket. What is tried elsewhere, or cannot be tried, is a row that says so.
//!
//! Runners that are wrapped for serving were once tested only without the wrapper: snapshots by restic never worked. So
//! every call that a kind offers has to succeed here, or the row names the cell of the lab that makes it.

mod life;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};

use integration::lab::{self, cell};
use integration::place::Place;
use integration::server::Launch;
use integration::{requirement, tools, volume};

use integration::reads::Outcome;
use life::Life;
use storage::Storage;

/// The place where the calls of a row are made.
#[derive(Debug, Clone, Copy)]
enum How {
    /// Here, and the calls on the node so.
    Here(Storage, OnNode),
    /// In the lab, by the cell of this name.
    Lab(&'static str),
    /// In the cluster, by the cell of this name.
    Cluster(&'static str),
    /// As the kind that it is another name of.
    As(&'static str),
    /// Nowhere, because of this.
    Not(&'static str),
}

/// The place where the calls on a node are made.
#[derive(Debug, Clone, Copy)]
enum OnNode {
    /// Here.
    Same,
    /// In the lab, whose kernel they need, by the cell of this name.
    Lab(&'static str),
    /// Nowhere, because of this.
    Not(&'static str),
}

use How::{As, Cluster, Here, Lab, Not};
use Storage::{Directory, Disk, ObjectiveFs, Share, Synology, TrueNas};

/// The options of snapshots of a kind: each has a row.
fn options(kind: &str) -> &'static [&'static str] {
    match kind {
        "local-hostpath" | "nfs-client" | "smb-client" | "lustre-client" => {
            &["filecopy", "restic", "kopia"]
        }
        "synology-iscsi" | "synology-nfs" | "synology-smb" => &["native"],
        "node-manual"
        | "objectivefs"
        | "proxy"
        | "truenas-nfs"
        | "truenas-smb"
        | "truenas-iscsi"
        | "truenas-nvmeof"
        | "zfs-local-ephemeral-inline"
        | "containerd-oci-ephemeral-inline" => &[""],
        _ => {
            let of_zfs = ["zfs-generic-", "zfs-local-", "freenas-", "truenas-"];
            assert!(
                of_zfs.iter().any(|of| kind.starts_with(of)),
                "which options of snapshots has {kind}?"
            );
            &["native", "detached"]
        }
    }
}

/// How a kind is tried with an option.
fn how(kind: &str, snapshots: &str) -> How {
    match (kind, snapshots) {
        (_, "kopia") => {
            Not("kopia takes minutes to build: tried by a test of its own in make test-real")
        }
        ("local-hostpath", _) => Here(Directory, OnNode::Same),
        ("nfs-client", _) => Here(Share, OnNode::Lab("nfs-life")),
        ("smb-client", _) => Here(Share, OnNode::Lab("smb-life")),
        ("lustre-client", _) => Here(Share, OnNode::Not("there is no server of Lustre")),
        ("node-manual", _) => Here(Disk, OnNode::Same),
        ("zfs-generic-nfs", _) => Lab("served-zfs-generic-nfs-life"),
        ("zfs-generic-smb", _) => Lab("served-zfs-generic-smb-life"),
        ("zfs-generic-iscsi", _) => Lab("served-zfs-generic-iscsi-life"),
        ("zfs-generic-nvmeof", _) => Lab("served-zfs-generic-nvmeof-life"),
        ("zfs-local-dataset", _) => Lab("served-zfs-local-dataset-life"),
        ("zfs-local-zvol", _) => Lab("served-zfs-local-zvol-life"),
        ("freenas-api-nfs" | "truenas-api-nfs", _) => {
            Here(TrueNas, OnNode::Lab("truenas-nfs-life"))
        }
        ("freenas-api-smb" | "truenas-api-smb", _) => {
            Here(TrueNas, OnNode::Lab("truenas-smb-life"))
        }
        ("freenas-api-iscsi" | "truenas-api-iscsi", _) => {
            Here(TrueNas, OnNode::Lab("truenas-iscsi-life"))
        }
        ("freenas-api-nvmeof" | "truenas-api-nvmeof", _) => {
            Here(TrueNas, OnNode::Lab("truenas-nvmeof-life"))
        }
        ("freenas-nfs", _) => Lab("truenas-ssh-nfs-life"),
        ("freenas-smb", _) => Lab("truenas-ssh-smb-life"),
        ("freenas-iscsi", _) => Lab("truenas-ssh-iscsi-life"),
        ("freenas-nvmeof", _) => Lab("truenas-ssh-nvmeof-life"),
        ("truenas-nfs", _) => As("freenas-nfs"),
        ("truenas-smb", _) => As("freenas-smb"),
        ("truenas-iscsi", _) => As("freenas-iscsi"),
        ("truenas-nvmeof", _) => As("freenas-nvmeof"),
        ("synology-iscsi", _) => Here(Synology, OnNode::Lab("synology-iscsi-life")),
        ("synology-nfs", _) => Here(Synology, OnNode::Lab("synology-nfs-life")),
        ("synology-smb", _) => Here(Synology, OnNode::Lab("synology-smb-life")),
        ("objectivefs", _) => Here(
            ObjectiveFs,
            OnNode::Not("mount.objectivefs is proprietary, and its stand-in mounts nothing"),
        ),
        ("zfs-local-ephemeral-inline", _) => Cluster("inline_zfs"),
        ("containerd-oci-ephemeral-inline", _) => Cluster("inline_oci"),
        ("proxy", _) => Not(
            "it has no storage of its own: promised and csi_sanity call local-hostpath through it, flood TrueNAS and Synology",
        ),
        _ => panic!(
            "no row of {kind} with {snapshots}: it is tried through the served program, or the row says why not"
        ),
    }
}

/// The kinds of this build, as it names them itself.
async fn kinds() -> BTreeSet<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, "driver: no-such-driver\n").expect("a file");
    let flag = format!("--driver-config-file={}", file.display());
    let output = tools::omnibus(&["check", &flag], &[]).await;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let (_, kinds) = said
        .split_once("this build has: ")
        .expect("the kinds of this build");
    let kinds = kinds.lines().next().unwrap_or_default().split(", ");
    let kinds = kinds.map(|kind| kind.trim().to_owned());
    let kinds: BTreeSet<_> = kinds
        .filter(|kind| !kind.is_empty())
        .chain(["proxy".to_owned()])
        .collect();
    assert!(kinds.len() >= 27, "{said}");
    kinds
}

/// The cells of the cluster, a script each.
const CELLS: &str = include_str!("../../cluster/cells/table");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_does_what_it_offers_through_the_served_program() {
    let mut table = format!(
        "{:<32}{:<10}{}\n",
        "kind", "snapshots", "calls, and how they were tried"
    );
    let mut wrong = Vec::new();
    for kind in kinds().await {
        for snapshots in options(&kind) {
            let (tried, problems) = try_row(&kind, snapshots, how(&kind, snapshots)).await;
            let _ = writeln!(table, "{kind:<32}{snapshots:<10}{tried}");
            wrong.extend(
                problems
                    .into_iter()
                    .map(|what| format!("{kind} {snapshots}: {what}")),
            );
        }
    }
    // Past the test harness, which shows only what a failed test has printed.
    let _ = writeln!(io::stdout(), "{table}");
    assert!(wrong.is_empty(), "{table}\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "kopia takes minutes to build: a part of `make test-real`"]
async fn kopia_does_what_it_offers_through_the_served_program() {
    let of_node = OnNode::Not("it is the same as with other snapshots");
    for (kind, storage) in [
        ("local-hostpath", Directory),
        ("nfs-client", Share),
        ("smb-client", Share),
        ("lustre-client", Share),
    ] {
        let row = Here(storage, of_node);
        let (tried, problems) = try_row(kind, "kopia", row).await;
        let _ = writeln!(io::stdout(), "{kind}: {tried}");
        assert!(
            problems.is_empty(),
            "{kind}: {tried}\n{}",
            problems.join("\n")
        );
    }
}

/// What a row says, and what is wrong with it.
async fn try_row(kind: &str, snapshots: &str, how: How) -> (String, Vec<String>) {
    match how {
        Lab(name) => {
            let said = "each call that it offers, or the cell fails; in the lab";
            (format!("{said}: {name}"), unknown(name))
        }
        Cluster(name) => {
            let is_there = CELLS
                .lines()
                .any(|line| line.split_whitespace().next() == Some(name));
            let wrong = (!is_there).then(|| format!("the cluster has no cell {name}"));
            (format!("cluster: {name}"), wrong.into_iter().collect())
        }
        As(other) => {
            let has_rows = options(other)
                .iter()
                .all(|of| !matches!(self::how(other, of), As(_) | Not(_)));
            let wrong = (!has_rows).then(|| format!("{other} is not tried"));
            (
                format!("another name of {other}: see its rows"),
                wrong.into_iter().collect(),
            )
        }
        Not(why) => (format!("not here: {why}"), Vec::new()),
        Here(storage, of_node) => {
            let Some(bench) = storage.set_up(kind, snapshots).await else {
                return ("not here: see what could not run".to_owned(), Vec::new());
            };
            let here = matches!(of_node, OnNode::Same);
            let (life, mut wrong) = Life::of(bench, here).await;
            let mut tried = shown(&life);
            match of_node {
                OnNode::Same => {}
                OnNode::Lab(name) => {
                    let calls = lab::life::CALLS.join(" ");
                    let _ = write!(tried, "; {calls} in the lab: {name}");
                    wrong.extend(unknown(name));
                }
                OnNode::Not(why) => {
                    let _ = write!(tried, "; on the node not here: {why}");
                }
            }
            (tried, wrong)
        }
    }
}

fn unknown(name: &str) -> Vec<String> {
    let wrong = cell::find(name)
        .is_none()
        .then(|| format!("the lab has no cell {name}"));
    wrong.into_iter().collect()
}

/// The calls that did well, and what the others answered.
fn shown(life: &[(&'static str, Outcome)]) -> String {
    let (mut well, mut badly) = (Vec::new(), String::new());
    for (call, outcome) in life {
        match outcome {
            Ok(()) if well.contains(call) => {}
            Ok(()) => well.push(*call),
            Err(what) => {
                let _ = write!(badly, "; {call} FAILED: {what}");
            }
        }
    }
    format!("{}{badly}", well.join(" "))
}

/// A pod's event must not read like a loss of data when a disk is not mounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn staging_from_a_base_that_is_not_mounted_says_what_the_controller_says() {
    if !requirement::root("staging from a base that is not mounted") {
        return;
    }
    let place = Place::new();
    let text = format!(
        "driver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}}}\n",
        base = place.base().display()
    );
    let server = Launch::new(text).start(&place).await;
    let client = server.client();
    let made = client
        .volume(volume::create("pvc-1", &BTreeMap::new()))
        .await;
    let made = made.expect("a volume");
    std::fs::rename(place.base(), place.path().join("away")).expect("unmounted");
    std::fs::create_dir(place.base()).expect("the mount point");
    let staging = place.node().join("staging");
    std::fs::create_dir(&staging).expect("a folder");
    let staged = client
        .node_stage_volume(volume::stage(&made, &staging))
        .await;
    let refused = staged.expect_err("it is not there");
    let deleted = client.delete_volume(volume::delete(&made.volume_id)).await;
    let said = deleted.expect_err("nor is its base");
    assert_ne!(refused.code, Some(tonic::Code::NotFound), "{refused}");
    for failure in [&refused, &said] {
        assert!(failure.what.contains("may not be mounted"), "{failure}");
    }
    assert!(!refused.what.contains("was deleted"), "{refused}");
}
