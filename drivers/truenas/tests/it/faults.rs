//! Connections that are cut before and after each change: a retry converges, and nothing is left.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use driver_core::{
    Call, DeleteSnapshot, DeleteVolume, Kind, PageRequest, SnapshotFilter, SnapshotId, Source,
};
use serde_json::{Value, json};
use truenas_sim::{Action, Generation, Rule, Simulator, exports};

use crate::costs::{call, create, request, snapshot};
use crate::volumes::{appliance, driver};

/// The methods that change a filesystem and its root, or a zvol.
const FILES: [&str; 4] = [
    "pool.dataset.create",
    "pool.dataset.update",
    "pool.dataset.delete",
    "filesystem.setperm",
];

/// The methods that change an export.
fn changes(kind: &str) -> Vec<&'static str> {
    match kind.rsplit('-').next() {
        Some("nfs") => [
            FILES.as_slice(),
            &["sharing.nfs.create", "sharing.nfs.delete"],
        ]
        .concat(),
        Some("smb") => [
            FILES.as_slice(),
            &["sharing.smb.create", "sharing.smb.delete"],
        ]
        .concat(),
        Some("iscsi") => vec![
            "pool.dataset.create",
            "pool.dataset.delete",
            "iscsi.target.create",
            "iscsi.target.delete",
            "iscsi.extent.create",
            "iscsi.extent.delete",
            "iscsi.targetextent.create",
        ],
        _ => vec![
            "pool.dataset.update",
            "nvmet.subsys.create",
            "nvmet.subsys.delete",
            "nvmet.namespace.create",
            "nvmet.port_subsys.create",
        ],
    }
}

/// All that there is on a NAS.
pub(crate) async fn everything(nas: &Simulator, generation: Generation) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for service in ["pool.dataset"]
        .into_iter()
        .chain(exports::services(generation))
    {
        let extra = json!({"extra": {"properties": [], "retrieve_user_props": false}});
        let params = if service == "pool.dataset" {
            vec![json!([]), extra]
        } else {
            vec![]
        };
        let rows = nas.call(&format!("{service}.query"), params).await;
        let rows = rows.unwrap_or_else(|failure| panic!("{service}: {failure:?}"));
        for row in rows.as_array().expect("rows") {
            let id: &Value = &row["id"];
            all.insert(format!("{service} {id}"));
        }
    }
    all
}

/// Tries until it works, as the orchestrator does.
pub(crate) async fn retried<T>(
    what: &str,
    attempt: impl AsyncFn() -> Result<T, driver_core::Error>,
) {
    let mut last = None;
    for _ in 0..4 {
        match attempt().await {
            Ok(_) => return,
            Err(error) => {
                assert!(
                    matches!(error.kind(), Kind::Unreachable | Kind::Pending | Kind::Busy),
                    "{what}: {:?}: {}",
                    error.kind(),
                    error.chain()
                );
                last = Some(error.chain());
            }
        }
    }
    panic!("{what} does not converge: {last:?}");
}

async fn life_with_cuts(generation: Generation, kind: &str, zfs: &str) {
    let nas = appliance(generation).await;
    nas.faults().set(|settings| settings.idle_timeout = false);
    create(driver(&nas, kind, zfs).as_ref(), "other").await;
    let before = everything(&nas, generation).await;
    for method in changes(kind) {
        for action in [Action::CutBefore, Action::CutAfter] {
            let what = format!("{kind}: {method} {action:?}");
            // A driver of its own does not wait longer for each cut, nor does the NAS count its logins.
            nas.clock().advance(Duration::from_mins(2));
            let driver = driver(&nas, kind, zfs);
            let asked = request(driver.as_ref(), "pvc-cut", None);
            nas.faults().add(Rule::new(method, action).times(1));
            retried(&what, async || driver.create_volume(&call(), &asked).await).await;
            let exports = driver.exports().expect("exports");
            let is_exported = exports.is_exported(&call(), &asked.id).await;
            assert!(is_exported.expect("seen"), "{what}: made, and not exported");
            retried(&what, async || {
                driver
                    .delete_volume(&call(), DeleteVolume::new(&asked.id))
                    .await
            })
            .await;
            let rules = nas.faults().rules();
            assert!(
                rules.iter().all(|rule| rule.times == Some(0)),
                "{what}: never"
            );
            nas.faults().clear();
            assert_eq!(everything(&nas, generation).await, before, "{what}");
        }
    }
}

const SHARED: &str = "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nfs_volume_survives_a_cut_at_every_change() {
    life_with_cuts(Generation::V24_10, "freenas-api-nfs", SHARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_smb_volume_survives_a_cut_at_every_change() {
    life_with_cuts(Generation::V26Rc, "freenas-api-smb", SHARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_iscsi_volume_survives_a_cut_at_every_change() {
    life_with_cuts(Generation::V24_10, "freenas-api-iscsi", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nvmeof_volume_survives_a_cut_at_every_change() {
    life_with_cuts(Generation::V25_10, "freenas-api-nvmeof", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_that_is_in_use_is_deleted_once_it_is_free() {
    for generation in [Generation::V24_10, Generation::V26Beta, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", "");
        let volume = create(driver.as_ref(), "pvc-busy").await;
        nas.faults().busy("tank/csi/v/pvc-busy", 2);
        let gone = driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{generation:?}: {}", error.chain()));
        let left = everything(&nas, generation).await;
        assert!(!left.iter().any(|row| row.contains("pvc-busy")), "{left:?}");
        let shares = left.iter().filter(|row| row.starts_with("sharing")).count();
        assert_eq!(shares, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_live_through_an_upgrade() {
    let nas = appliance(Generation::V24_10).await;
    let driver = driver(&nas, "freenas-api-iscsi", "");
    let volume = create(driver.as_ref(), "pvc-old").await;
    for generation in [Generation::V25_04, Generation::V25_10, Generation::V26Rc] {
        nas.upgrade(generation);
        let asked = request(driver.as_ref(), "pvc-old", None);
        retried("create again", async || {
            driver.create_volume(&call(), &asked).await
        })
        .await;
        let lister = driver.lister().expect("lists");
        let shown = lister.get_volume(&call(), &volume.id).await;
        assert_eq!(shown.expect("shown"), volume, "{generation:?}");
        create(
            driver.as_ref(),
            &format!("pvc-{generation:?}")
                .to_lowercase()
                .replace('_', "-"),
        )
        .await;
    }
    let gone = driver
        .delete_volume(&call(), DeleteVolume::new(&volume.id))
        .await;
    gone.unwrap_or_else(|error| panic!("{}", error.chain()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_loses_a_dataset_while_it_is_read_is_not_taken_for_empty() {
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "truenas-api-nfs", SHARED);
    create(driver.as_ref(), "pvc-listed").await;
    let lister = driver.lister().expect("lists");
    // The middleware names the parent, whatever went away below it.
    let gone = Action::Fail {
        errno: 2,
        reason: "[ENOENT] 'tank/k8s/volumes': not found".to_owned(),
    };
    let list = Rule::new("zfs.resource.query", gone).times(1);
    nas.faults().add(list);
    let listed = lister.list_volumes(&call(), &PageRequest::default()).await;
    let error = listed.expect_err("nothing was read");
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    let page = lister.list_volumes(&call(), &PageRequest::default()).await;
    assert_eq!(page.expect("a list").entries.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_of_a_share_that_was_interrupted_before_its_marks_is_finished_or_removed() {
    interrupted_clone(Generation::V26Rc, "truenas-api-nfs", SHARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_of_an_iscsi_disk_that_was_interrupted_before_its_marks_is_finished_or_removed() {
    interrupted_clone(Generation::V26Rc, "truenas-api-iscsi", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_of_an_nvme_disk_that_was_interrupted_before_its_marks_is_finished_or_removed() {
    interrupted_clone(Generation::V26Beta, "truenas-api-nvmeof", "").await;
}

/// 26 takes no properties of users in a clone: it is made bare, and marked by a second call.
async fn interrupted_clone(generation: Generation, kind: &str, zfs: &str) {
    let nas = appliance(generation).await;
    let first = driver(&nas, kind, zfs);
    let volume = create(first.as_ref(), "pvc-1").await;
    let taken = snapshot(first.as_ref(), &volume, "s-1").await;
    for source in [
        Source::Snapshot(taken.id.clone()),
        Source::Volume(volume.id.clone()),
    ] {
        let before = everything(&nas, generation).await;
        let asked = request(first.as_ref(), "pvc-cut", Some(source));
        for removed in [false, true] {
            nas.clock().advance(Duration::from_mins(2));
            let interrupted = driver(&nas, kind, zfs);
            // Whatever comes after the clone fails, as in a process that is killed.
            nas.faults()
                .add(Rule::new("pool.dataset.update", Action::CutBefore));
            nas.reset_counts();
            let began = Instant::now();
            while !nas.counts().methods.contains_key("pool.snapshot.clone") {
                assert!(began.elapsed() < Duration::from_mins(2), "no clone");
                // It would try again until its time is over.
                let soon = Call::within(Duration::from_secs(8));
                let made = interrupted.create_volume(&soon, &asked).await;
                made.expect_err("interrupted");
            }
            nas.faults().clear();
            let clones = nas.counts().methods["pool.snapshot.clone"].calls;
            assert_eq!(clones, 1, "{kind}");
            nas.clock().advance(Duration::from_mins(2));
            let next = driver(&nas, kind, zfs);
            if !removed {
                let what = format!("{kind} on {generation}");
                retried(&what, async || next.create_volume(&call(), &asked).await).await;
                assert_eq!(nas.counts().methods["pool.snapshot.clone"].calls, 1);
            }
            retried("delete", async || {
                next.delete_volume(&call(), DeleteVolume::new(&asked.id))
                    .await
            })
            .await;
            let after = everything(&nas, generation).await;
            assert_eq!(after, before, "{kind} on {generation}, {removed}");
        }
    }
}

/// Another NAS behind the address, or a misspelt parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_in_a_parent_that_does_not_exist_is_not_taken_for_deleted() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", "");
        let snapshots = driver.snapshots().expect("snapshots");
        let lister = driver.lister().expect("lists");
        let (filter, page) = (SnapshotFilter::default(), PageRequest::default());
        let volume = request(driver.as_ref(), "pvc-gone", None).id;
        for missing in [false, true] {
            if missing {
                for parent in ["tank/csi/v", "tank/csi/s"] {
                    let parent = vec![json!(parent)];
                    nas.call("pool.dataset.delete", parent).await.expect("gone");
                }
            } else {
                let made = vec![json!({"name": "tank/csi/s"})];
                nas.call("pool.dataset.create", made).await.expect("made");
            }
            let mut all = vec![
                lister.list_volumes(&call(), &page).await.map(drop),
                snapshots
                    .list_snapshots(&call(), &filter, &page)
                    .await
                    .map(drop),
                driver
                    .delete_volume(&call(), DeleteVolume::new(&volume))
                    .await,
            ];
            for id in ["pvc-gone@s", "pvc-gone/s"] {
                let id = SnapshotId::parse(id).expect("an id");
                all.push(
                    snapshots
                        .delete_snapshot(&call(), DeleteSnapshot::new(&id))
                        .await,
                );
            }
            for (at, outcome) in all.into_iter().enumerate() {
                let kind = outcome.as_ref().err().map(driver_core::Error::kind);
                let expected = missing.then_some(Kind::Unreachable);
                assert_eq!(kind, expected, "{generation} {at}: {outcome:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_names_no_volume_is_no_proof_that_it_is_gone() {
    let nas = appliance(Generation::V25_10).await;
    let driver = driver(&nas, "truenas-api-nfs", SHARED);
    let volume = create(driver.as_ref(), "pvc-odd").await;
    for method in ["sharing.nfs.query", "zfs.resource.query"] {
        for reason in ["[ENOENT] no such file", "worker not found"] {
            let odd = Action::Fail {
                errno: 2,
                reason: reason.to_owned(),
            };
            nas.faults().add(Rule::new(method, odd));
            let asked = request(driver.as_ref(), "pvc-odd", None);
            let again = driver.create_volume(&call(), &asked).await;
            let deleted = driver
                .delete_volume(&call(), DeleteVolume::new(&volume.id))
                .await;
            for (verb, outcome) in [("create", again.map(drop)), ("delete", deleted)] {
                let error = outcome.expect_err(verb);
                assert_eq!(error.kind(), Kind::Internal, "{method}: {}", error.chain());
            }
            nas.faults().clear();
        }
    }
    let gone = driver
        .delete_volume(&call(), DeleteVolume::new(&volume.id))
        .await;
    gone.unwrap_or_else(|error| panic!("{}", error.chain()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_finds_something_else_missing_is_no_success() {
    // It is tried again until the call ends.
    let short = || Call::within(Duration::from_secs(5));
    for (generation, of_snapshots) in [
        (Generation::V24_10, "zfs.snapshot.delete"),
        (Generation::V25_10, "pool.snapshot.delete"),
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", SHARED);
        let volume = create(driver.as_ref(), "pvc-odd").await;
        let taken = snapshot(driver.as_ref(), &volume, "s-odd").await;
        let snapshots = driver.snapshots().expect("snapshots");
        let odd = || Action::Fail {
            errno: 2,
            reason: "[ENOENT] no such file".to_owned(),
        };
        nas.faults().add(Rule::new(of_snapshots, odd()));
        let kept = snapshots
            .delete_snapshot(&short(), DeleteSnapshot::new(&taken.id))
            .await;
        kept.expect_err("the snapshot is there");
        nas.faults().clear();
        let gone = snapshots
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
        nas.faults().add(Rule::new("pool.dataset.delete", odd()));
        let kept = driver
            .delete_volume(&short(), DeleteVolume::new(&volume.id))
            .await;
        kept.expect_err("the volume is there");
        nas.faults().clear();
        let gone = driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
}
