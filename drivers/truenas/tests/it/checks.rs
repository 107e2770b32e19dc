//! `check`, the least that a login needs, and secrets.

use std::sync::Arc;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, ExpandVolume, Kind, Parameters, Secrets,
    SizeRange, SnapshotName, Source,
};
use driver_truenas::from_document;
use serde_json::json;
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

use crate::costs::{call, create, request, snapshot};
use crate::nodes::{per_node, publish, unpublish};
use crate::secrets::Log;
use crate::volumes::{appliance, config, driver, set_up};

/// The roles of `docs/truenas.md`, from 25.10 on.
pub(crate) const OF_ALL: [&str; 7] = [
    "SERVICE_READ",
    "DATASET_WRITE",
    "DATASET_DELETE",
    "SNAPSHOT_WRITE",
    "SNAPSHOT_DELETE",
    "ZFS_RESOURCE_READ",
    "REPLICATION_TASK_WRITE",
];
const OF_FILES: [&str; 1] = ["FILESYSTEM_ATTRS_WRITE"];
const OF_ISCSI: [&str; 7] = [
    "SHARING_ISCSI_GLOBAL_READ",
    "SHARING_ISCSI_PORTAL_READ",
    "SHARING_ISCSI_INITIATOR_READ",
    "SHARING_ISCSI_AUTH_READ",
    "SHARING_ISCSI_TARGET_WRITE",
    "SHARING_ISCSI_EXTENT_WRITE",
    "SHARING_ISCSI_TARGETEXTENT_WRITE",
];

pub(crate) async fn with_roles(generation: Generation, roles: &[&str]) -> (Simulator, String) {
    let options = Options::new(generation).user("csi", "sesame", Some(roles));
    let nas = Simulator::start(options).await.expect("an appliance");
    set_up(&nas).await;
    let key = nas.add_api_key("csi", "csi");
    (nas, key)
}

pub(crate) fn with_key(nas: &Simulator, kind: &str, key: &str, zfs: &str) -> Arc<dyn Driver> {
    let text = config(nas, kind, zfs)
        .replace(nas.api_key(), key)
        .replace("username: root", "username: csi");
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    from_document(&document).unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_roles_of_the_documentation_are_enough() {
    for generation in [Generation::V25_10, Generation::V26Rc] {
        for (kind, files, more) in [
            ("truenas-api-nfs", true, ["SHARING_NFS_WRITE"].as_slice()),
            ("truenas-api-smb", true, &["SHARING_SMB_WRITE"]),
            ("truenas-api-iscsi", false, &OF_ISCSI),
            ("truenas-api-nvmeof", false, &["SHARING_NVME_TARGET_WRITE"]),
        ] {
            let mut roles = [OF_ALL.as_slice(), more].concat();
            let zfs = if files {
                roles.extend(OF_FILES);
                "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n"
            } else {
                ""
            };
            let (nas, key) = with_roles(generation, &roles).await;
            let driver = with_key(&nas, kind, &key, zfs);
            let volume = create(driver.as_ref(), "pvc-1").await;
            let taken = snapshot(driver.as_ref(), &volume, "s-1").await;
            let from = Some(Source::Snapshot(taken.id.clone()));
            let clone = request(driver.as_ref(), "pvc-2", from);
            let made = driver.create_volume(&call(), &clone).await;
            made.unwrap_or_else(|error| panic!("{kind} on {generation:?}: {}", error.chain()));
            let expander = driver.expander().expect("growth");
            let size = SizeRange::new(4 << 30, 0).expect("a size");
            let grown = expander
                .expand_volume(&call(), ExpandVolume::new(&volume.id, size))
                .await;
            grown.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
            for id in [&clone.id, &volume.id] {
                let snapshots = driver.snapshots().expect("snapshots");
                let gone = snapshots
                    .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
                    .await;
                gone.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
                let gone = driver.delete_volume(&call(), DeleteVolume::new(id)).await;
                gone.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
            }
            let said = said(driver.as_ref()).await;
            let lacks = said.iter().find(|problem| problem.contains("lacks"));
            assert!(lacks.is_none(), "{kind} on {generation:?}: {said:?}");
        }
    }
}

/// Without any one of them, a call for a volume or a look of `check` is denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_role_of_the_documentation_is_one_too_many() {
    for (kind, more) in [
        ("truenas-api-nfs", ["SHARING_NFS_WRITE"].as_slice()),
        ("truenas-api-smb", &["SHARING_SMB_WRITE"]),
        ("truenas-api-iscsi", &OF_ISCSI),
        ("truenas-api-nvmeof", &["SHARING_NVME_TARGET_WRITE"]),
    ] {
        let mut roles = [OF_ALL.as_slice(), more].concat();
        let mut zfs = "";
        if kind.ends_with("nfs") || kind.ends_with("smb") {
            roles.extend(OF_FILES);
            zfs = "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n";
        }
        for role in &roles {
            // For credentials, of which this configuration has none.
            if *role == "SHARING_ISCSI_AUTH_READ" {
                continue;
            }
            let others: Vec<_> = roles
                .iter()
                .filter(|other| *other != role)
                .copied()
                .collect();
            let (nas, key) = with_roles(Generation::V25_10, &others).await;
            let driver = with_key(&nas, kind, &key, zfs);
            let mut denied = said(driver.as_ref()).await;
            denied.retain(|problem| !problem.contains("it lacks"));
            denied.extend(life(driver.as_ref()).await);
            denied.retain(|problem| problem.contains("uthorized"));
            assert!(!denied.is_empty(), "{kind} does without {role}");
        }
    }
}

/// The errors in the life of a volume, its snapshots, a clone of it and a full copy.
async fn life(driver: &dyn Driver) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut add = |outcome: Result<(), driver_core::Error>| {
        wrong.extend(outcome.err().map(|error| error.chain()));
    };
    let asked = request(driver, "pvc-1", None);
    add(driver.create_volume(&call(), &asked).await.map(drop));
    let snapshots = driver.snapshots().expect("snapshots");
    let cut = async |name: &str, detached: &str| {
        let parameters = [("detachedSnapshots".to_owned(), detached.to_owned())];
        let cut = CreateSnapshot {
            name: SnapshotName::parse(name).expect("a name"),
            source: asked.id.clone(),
            parameters: Parameters::new(parameters.into()),
            secrets: Secrets::new(),
        };
        snapshots.create_snapshot(&call(), &cut).await
    };
    let first = cut("s-1", "false").await;
    let detached = cut("s-2", "true").await;
    let expander = driver.expander().expect("growth");
    let size = SizeRange::new(4 << 30, 0).expect("a size");
    add(expander
        .expand_volume(&call(), ExpandVolume::new(&asked.id, size))
        .await
        .map(drop));
    let clone = request(driver, "pvc-2", Some(Source::Volume(asked.id.clone())));
    add(driver.create_volume(&call(), &clone).await.map(drop));
    add(driver
        .delete_volume(&call(), DeleteVolume::new(&clone.id))
        .await);
    for taken in [first, detached] {
        match taken {
            Ok(taken) => add(snapshots
                .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
                .await),
            Err(error) => add(Err(error)),
        }
    }
    add(driver
        .delete_volume(&call(), DeleteVolume::new(&asked.id))
        .await);
    wrong
}

/// The problems that `check` reports.
async fn said(driver: &dyn Driver) -> Vec<String> {
    let problems = driver.examine(&call()).await;
    problems.iter().map(driver_core::Error::chain).collect()
}

async fn start(nas: &Simulator, service: &str) {
    let modern = nas.generation() >= Generation::V25_10;
    let (method, params) = if modern {
        ("service.control", vec![json!("START"), json!(service)])
    } else {
        ("service.start", vec![json!(service)])
    };
    nas.call(method, params).await.expect("started");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_of_what_is_set_up_finds_nothing() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        for (kind, service) in [
            ("truenas-api-nfs", "nfs"),
            ("truenas-api-smb", "cifs"),
            ("truenas-api-iscsi", "iscsitarget"),
        ] {
            let driver = driver(&nas, kind, "");
            let stopped = said(driver.as_ref()).await;
            assert_eq!(stopped.len(), 1, "{stopped:?}");
            assert!(stopped[0].contains(service), "{stopped:?}");
            start(&nas, service).await;
            assert_eq!(said(driver.as_ref()).await, Vec::<String>::new(), "{kind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_names_numbers_that_are_not_there_and_roles_that_are_missing() {
    let (nas, key) = with_roles(Generation::V25_10, &["DATASET_READ", "ZFS_RESOURCE_READ"]).await;
    let driver = with_key(&nas, "truenas-api-nfs", &key, "");
    let found = said(driver.as_ref()).await.join("\n");
    for role in ["DATASET_WRITE", "SHARING_NFS_WRITE", "SERVICE_READ"] {
        assert!(found.contains(role), "{found}");
    }
    let nas = appliance(Generation::V25_10).await;
    start(&nas, "iscsitarget").await;
    let text = config(&nas, "truenas-api-iscsi", "").replace(
        "targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1",
        "targetGroupPortalGroup: 7, targetGroupInitiatorGroup: 8",
    );
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    let driver = from_document(&document).expect("a driver");
    let found = said(driver.as_ref()).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("portal 7"), "{found:?}");
    assert!(found[1].contains("initiators 8"), "{found:?}");
    let text = config(&nas, "truenas-api-nfs", "").replace("tank/csi", "nowhere/csi");
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    let driver = from_document(&document).expect("a driver");
    let found = said(driver.as_ref()).await;
    assert!(found[0].contains("nowhere"), "{found:?}");
}

#[tokio::test]
async fn nvmeof_and_core_are_refused_where_they_cannot_be() {
    let nas = appliance(Generation::V24_10).await;
    let driver = driver(&nas, "truenas-api-nvmeof", "");
    let found = said(driver.as_ref()).await;
    assert!(found[0].contains("25.10"), "{found:?}");
    let asked = request(driver.as_ref(), "pvc-1", None);
    let refused = driver
        .create_volume(&call(), &asked)
        .await
        .expect_err("none");
    assert_eq!(refused.kind(), Kind::Unsupported, "{}", refused.chain());
    let nas = appliance(Generation::Core13).await;
    let driver = crate::volumes::driver(&nas, "freenas-api-nfs", "");
    let found = said(driver.as_ref()).await;
    assert!(found[0].contains("sshConnection"), "{found:?}");
}

#[tokio::test]
async fn no_key_is_in_a_log_an_error_or_a_driver() {
    let (log, _guard) = Log::kept();
    let nas = appliance(Generation::V25_10).await;
    let key = nas.api_key().to_owned();
    let (_, canary) = key.split_once('-').expect("a key");
    let driver = driver(&nas, "truenas-api-iscsi", "");
    let mut said = vec![format!("{driver:?}")];
    create(driver.as_ref(), "pvc-1").await;
    for action in [
        Action::Fail {
            errno: 14,
            reason: format!("no {key} here"),
        },
        Action::CutAfter,
    ] {
        nas.faults()
            .add(Rule::new("pool.dataset.create", action).times(1));
        let asked = request(driver.as_ref(), "pvc-2", None);
        let error = driver
            .create_volume(&call(), &asked)
            .await
            .expect_err("a fault");
        said.push(format!("{error:?} {}", error.chain()));
    }
    nas.revoke_api_key(1);
    nas.cut_connections();
    for problem in driver.examine(&call()).await {
        said.push(format!("{problem:?} {}", problem.chain()));
    }
    said.push(log.text());
    assert!(
        said.iter().all(|text| !text.contains(canary)),
        "a key was printed"
    );
    assert!(said.len() > 3);
}

/// The questions of the calls since the last reset, without those that belong to a connection.
fn read(nas: &Simulator) -> Vec<String> {
    let all = nas.counts().methods.into_keys();
    let reads = |name: &String| {
        let verb = name.rsplit('.').next().unwrap_or_default();
        ["query", "sessions", "get_jobs"].contains(&verb)
    };
    all.filter(reads).collect()
}

/// The questions that a volume, its copies and, where access is per node, its nodes have asked of the NAS.
async fn observed(nas: &Simulator, driver: &dyn Driver) -> Vec<String> {
    nas.reset_counts();
    assert_eq!(life(driver).await, Vec::<String>::new());
    if driver.publisher().is_some() {
        let volume = create(driver, "pvc-3").await;
        for done in [
            publish(driver, &volume.id, "a").await,
            unpublish(driver, &volume.id, Some("a")).await,
            driver
                .delete_volume(&call(), DeleteVolume::new(&volume.id))
                .await,
        ] {
            done.unwrap_or_else(|error| panic!("{}", error.chain()));
        }
    }
    read(nas)
}

/// A query that the NAS refuses would be refused for every volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_calls_of_an_observation_are_made_by_check() {
    let api = Generation::ALL
        .into_iter()
        .filter(|generation| !generation.is_core());
    for generation in api {
        for (kind, service, nodes) in [
            ("truenas-api-nfs", "nfs", false),
            ("truenas-api-nfs", "nfs", true),
            ("truenas-api-smb", "cifs", false),
            ("truenas-api-iscsi", "iscsitarget", false),
            ("truenas-api-iscsi", "iscsitarget", true),
            ("truenas-api-nvmeof", "nvmet", false),
            ("truenas-api-nvmeof", "nvmet", true),
        ] {
            if service == "nvmet" && generation < Generation::V25_10 {
                continue;
            }
            let what = format!("{kind} on {generation}, per node {nodes}");
            let nas = appliance(generation).await;
            start(&nas, service).await;
            let driver = if nodes {
                per_node(&nas, kind)
            } else {
                driver(&nas, kind, "")
            };
            assert_eq!(said(driver.as_ref()).await, Vec::<String>::new(), "{what}");
            let methods = observed(&nas, driver.as_ref()).await;
            assert!(methods.len() > 2, "{what}: {methods:?}");
            for method in methods {
                nas.faults().clear();
                let refused = Action::Fail {
                    errno: 22,
                    reason: "'name'".to_owned(),
                };
                nas.faults().add(Rule::new(&method, refused));
                let said = said(driver.as_ref()).await;
                assert!(
                    said.iter().any(|why| why.contains(&method)),
                    "{what}: {method}: {said:?}"
                );
            }
        }
    }
}
