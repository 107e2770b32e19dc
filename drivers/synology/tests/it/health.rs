//! The health of volumes: of the volume of the NAS, the LUN, its target, and the clients of a shared folder.

use std::slice;

use driver_core::{Condition, ConditionKind, Conditions, HealthQuery, PageRequest, VolumeId};
use serde_json::json;
use synology_sim::Version;

use crate::nas::{LUN, MODES, Nas, TARGET, call, id};

const PRIVILEGE: &str = "SYNO.Core.FileServ.NFS.SharePrivilege";

type Reasons = Vec<Option<Vec<&'static str>>>;

fn reasons(found: Vec<Option<Conditions>>) -> Reasons {
    let one = |found: Conditions| found.iter().map(|one| one.reason().as_str()).collect();
    found.into_iter().map(|found| found.map(one)).collect()
}

/// The reasons of each of these volumes; `None` for one that does not exist.
async fn health(nas: &Nas, ids: &[VolumeId]) -> Reasons {
    let found = nas
        .driver
        .conditions(&call(), HealthQuery::whole(ids))
        .await;
    reasons(found.unwrap_or_else(|error| panic!("health: {}", error.chain())))
}

async fn health_of(nas: &Nas, id: &VolumeId) -> Vec<&'static str> {
    let found = conditions_of(nas, id).await;
    found.iter().map(|one| one.reason().as_str()).collect()
}

async fn conditions_of(nas: &Nas, id: &VolumeId) -> Conditions {
    let query = HealthQuery::of_one(id);
    let found = nas.driver.conditions(&call(), query).await;
    let found = found.unwrap_or_else(|error| panic!("health: {}", error.chain()));
    found.into_iter().next().flatten().expect("it exists")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_the_volume_of_the_nas_is_a_condition_of_all_on_it() {
    for kind in ["iscsi", "nfs", "smb"] {
        let nas = match kind {
            "iscsi" => Nas::start(Version::V7_2, "").await,
            kind => Nas::of_shares(Version::V7_2, kind).await,
        };
        let one = nas.create("pvc-1", None).await.id;
        let two = nas.create("pvc-2", None).await.id;
        let ids = [one.clone(), id("pvc-3"), two];
        for (status, expected) in [
            ("normal", vec![]),
            ("has_acceptable_disk", vec![]),
            ("degrade", vec!["PoolDegraded"]),
            ("crashed", vec!["PoolUnusable"]),
            ("read_only", vec!["FilesystemReadOnly"]),
        ] {
            nas.sim.set_status("/volume1", status);
            let all = [Some(expected.clone()), None, Some(expected.clone())];
            assert_eq!(health(&nas, &ids).await, all, "{kind}: {status}");
            assert_eq!(health_of(&nas, &one).await, expected, "{kind}: {status}");
            let of_lists = HealthQuery::of_storage(&ids);
            let found = nas.driver.conditions(&call(), of_lists).await;
            assert_eq!(reasons(found.expect("health")), all, "{kind}: {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lun_that_is_ill_and_a_target_that_is_disabled_are_conditions_of_one_volume() {
    for mode in MODES {
        let nas = Nas::start(Version::V7_2, mode).await;
        let one = nas.create("pvc-1", None).await.id;
        let two = nas.create("pvc-2", None).await.id;
        let ids = [one.clone(), two];
        nas.sim.set_status("pvc-1", "crashed");
        let ill = [Some(vec!["LunUnusable"]), Some(vec![])];
        assert_eq!(health(&nas, &ids).await, ill);
        nas.sim.set_status("pvc-1", "normal");
        let state = nas.sim.state();
        let target = state["targets"][0]["name"].as_str().expect("a name");
        nas.sim.set_enabled(target, false);
        let disabled = Some(vec!["ExportMissing"]);
        let other = if mode.is_empty() {
            Some(vec![])
        } else {
            disabled.clone()
        };
        assert_eq!(health(&nas, &ids).await, [disabled, other], "{mode}");
        assert_eq!(health_of(&nas, &one).await, ["ExportMissing"], "{mode}");
        let page = PageRequest::default();
        let listed = nas.driver.list_unhealthy(&call(), &page).await;
        let listed = listed.expect("a list").entries;
        assert!(listed.iter().any(|(id, _)| *id == one), "{mode}");
        nas.sim.set_enabled(target, true);
        assert_eq!(health(&nas, &ids).await, [Some(vec![]), Some(vec![])]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lun_that_no_target_shows_is_in_the_list_of_what_is_ill() {
    for (prefix, is_listed) in [("namePrefix: k8s-", true), ("", false)] {
        let nas = Nas::start(Version::V7_2, prefix).await;
        let one = nas.create("pvc-1", None).await.id;
        nas.create("pvc-2", None).await;
        let well = [Some(vec![])];
        assert_eq!(health(&nas, slice::from_ref(&one)).await, well);
        let name = format!("{}pvc-1", if is_listed { "k8s-" } else { "" });
        let uuid = nas.lun(&name)["uuid"].clone();
        let targets = nas.sim.call(TARGET, "list", &json!({}));
        let targets = targets["data"]["targets"].as_array().cloned();
        let targets = targets.expect("targets").into_iter();
        let ids: Vec<_> = targets.map(|one| one["target_id"].clone()).collect();
        let unmap = json!({"uuid": uuid, "target_ids": ids});
        let unmapped = nas.sim.call(LUN, "unmap_target", &unmap);
        assert_eq!(unmapped["success"], true, "{unmapped}");
        assert_eq!(health_of(&nas, &one).await, ["ExportMissing"]);
        let page = PageRequest::default();
        let listed = nas.driver.list_unhealthy(&call(), &page).await;
        let listed = listed.expect("a list").entries.into_iter();
        let listed: Vec<VolumeId> = listed.map(|(id, _)| id).collect();
        let expected: &[VolumeId] = if is_listed {
            slice::from_ref(&one)
        } else {
            &[]
        };
        assert_eq!(listed, expected, "{prefix}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_without_its_clients_is_not_exported() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let volume = nas.create("pvc-1", None).await.id;
    assert!(health_of(&nas, &volume).await.is_empty());
    let state = nas.sim.state();
    let name = state["shares"][0]["name"].as_str().expect("a name");
    let rule = |client: &str| {
        json!({
            "client": client, "privilege": "rw", "async": true, "crossmnt": true, "insecure": true,
            "root_squash": "root",
            "security_flavor": {
                "kerberos": false, "kerberos_integrity": false, "kerberos_privacy": false, "sys": true,
            },
        })
    };
    for (clients, expected) in [
        (vec![], Some(ConditionKind::Inaccessible)),
        (vec!["10.0.0.0/24"], Some(ConditionKind::Degraded)),
        (
            vec!["10.9.0.0/24", "10.8.0.0/24"],
            Some(ConditionKind::Inaccessible),
        ),
        (vec!["10.0.0.0/24", "node-7"], None),
    ] {
        let rules: Vec<_> = clients.iter().map(|client| rule(client)).collect();
        let rules = json!({"share_name": name, "rule": rules});
        let saved = nas.sim.call(PRIVILEGE, "save", &rules);
        assert_eq!(saved["success"], true, "{saved}");
        let found = conditions_of(&nas, &volume).await;
        let found = found.worst();
        assert_eq!(found.map(Condition::kind), expected, "{clients:?}");
        let reason = found.map(|one| one.reason().as_str());
        assert!(reason.is_none_or(|reason| reason == "ExportMissing"));
        // Of several volumes a call for each is not made, nor of one in a list.
        let listed = health(&nas, slice::from_ref(&volume)).await;
        assert_eq!(listed, [Some(vec![])], "{clients:?}");
    }
}
