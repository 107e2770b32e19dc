//! Access control lists of new volumes, as `datasetPermissionsAcls` has them.

use driver_core::config::{Document, NoEnvironment};
use driver_core::{Parameters, Source};
use driver_truenas::from_document;
use serde_json::{Value, json};
use truenas_sim::{Generation, Simulator};

use crate::costs::{call, create, request, snapshot};
use crate::taken_over::rows;
use crate::volumes::{appliance, config, driver};

async fn list(nas: &Simulator, volume: &str) -> Vec<Value> {
    let path = format!("/mnt/tank/csi/v/{volume}");
    let found = nas.call("filesystem.getacl", vec![json!(path)]).await;
    let found = found.expect("a list");
    assert_eq!(found["trivial"], false, "{found}");
    found["acl"].as_array().expect("entries").clone()
}

fn of<'a>(list: &'a [Value], tag: &str, id: i64) -> &'a Value {
    let found = list
        .iter()
        .find(|entry| entry["tag"] == tag && entry["id"] == id);
    found.unwrap_or_else(|| panic!("no {tag} {id} in {list:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_smb_gets_the_entries_of_nfs_4() {
    let zfs = "  datasetPermissionsAcls: ['-m everyone@:full_set:fd:allow', '-m u:1000:modify_set:allow', '-m group@:read_set:allow']\n";
    for generation in [
        Generation::V22_12,
        Generation::V24_10,
        Generation::V25_10,
        Generation::V26Rc,
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-smb", zfs);
        create(driver.as_ref(), "pvc-1").await;
        let all = list(&nas, "pvc-1").await;
        assert_eq!(all.len(), 4, "{generation}: {all:?}");
        let everyone = of(&all, "everyone@", -1);
        assert_eq!(everyone["perms"]["WRITE_OWNER"], true, "{generation}");
        assert_eq!(everyone["flags"]["FILE_INHERIT"], true);
        assert_eq!(of(&all, "USER", 1000)["perms"]["WRITE_OWNER"], false);
        // That of the group was replaced, that of the owner was kept.
        assert_eq!(of(&all, "group@", -1)["perms"]["WRITE_DATA"], false);
        assert_eq!(
            of(&all, "owner@", -1)["perms"],
            json!({"BASIC": "FULL_CONTROL"})
        );
    }
}

/// A clone or copy has the lists of its source, and not those that a share type gives a new filesystem.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_or_copy_for_smb_has_access_control_lists_as_its_source_has() {
    for (generation, zfs) in [
        (
            Generation::V22_12,
            "  datasetPermissionsAcls: ['-m everyone@:full_set:fd:allow']\n",
        ),
        (
            Generation::V24_10,
            "  datasetProperties: {share_type: SMB, aclmode: passthrough}\n",
        ),
        (
            Generation::V25_10,
            "  datasetPermissionsAcls: ['-m everyone@:full_set:fd:allow']\n",
        ),
        (Generation::V26Rc, ""),
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-smb", zfs);
        let driver = driver.as_ref();
        let first = create(driver, "first").await;
        let taken = snapshot(driver, &first, "snapshot-1").await;
        let mut copy = request(driver, "copy", Some(Source::Snapshot(taken.id.clone())));
        let detached = ("detachedVolumesFromSnapshots".to_owned(), "true".to_owned());
        copy.parameters = Parameters::new([detached].into());
        for asked in [
            request(driver, "restored", Some(Source::Snapshot(taken.id))),
            request(driver, "clone", Some(Source::Volume(first.id))),
            copy,
        ] {
            let what = format!("{} on {generation}", asked.name);
            let made = driver.create_volume(&call(), &asked).await;
            made.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        }
        let all = rows(&nas, "pool.dataset").await;
        for name in ["first", "restored", "clone", "copy"] {
            let name = format!("tank/csi/v/{name}");
            let found = all.iter().find(|row| row["id"] == name).expect("a dataset");
            assert_eq!(found["acltype"]["value"], "NFSV4", "{name} on {generation}");
            assert_eq!(
                found["aclmode"]["value"], "RESTRICTED",
                "{name} on {generation}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_nfs_gets_the_entries_of_posix_and_a_mode() {
    let zfs = "  datasetPermissionsMode: '0750'\n  datasetPermissionsUser: 1000\n  datasetPermissionsAcls: ['-m u:1001:rwx,d:u:1001:rwx']\n";
    for generation in [Generation::V22_12, Generation::V25_04, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-nfs", zfs);
        create(driver.as_ref(), "pvc-1").await;
        let all = list(&nas, "pvc-1").await;
        let named = all
            .iter()
            .filter(|entry| entry["tag"] == "USER" && entry["id"] == 1001);
        assert_eq!(named.count(), 2, "{generation}: {all:?}");
        let path = json!("/mnt/tank/csi/v/pvc-1");
        let stat = nas
            .call("filesystem.stat", vec![path])
            .await
            .expect("a folder");
        assert_eq!(
            (&stat["uid"], &stat["mode"]),
            (&json!(1000), &json!(0o040_750))
        );
    }
}

/// A name is a field of 25.04 and later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_given_where_the_release_takes_names() {
    let zfs = "  datasetPermissionsAcls: ['-m g:builtin_users:full_set:fd:allow']\n";
    for (generation, takes) in [
        (Generation::V24_10, false),
        (Generation::V25_04, true),
        (Generation::V26Rc, true),
    ] {
        let nas = appliance(generation).await;
        let driver = driver(&nas, "truenas-api-smb", zfs);
        let asked = request(driver.as_ref(), "pvc-1", None);
        let made = driver.create_volume(&call(), &asked).await;
        assert_eq!(made.is_ok(), takes, "{generation}");
        match made {
            Ok(_) => assert_eq!(
                of(&list(&nas, "pvc-1").await, "GROUP", 545)["type"],
                "ALLOW"
            ),
            Err(error) => assert!(error.chain().contains("numbers"), "{}", error.chain()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_the_other_kind_are_refused_and_say_why() {
    let nas = appliance(Generation::V25_10).await;
    let zfs = "  datasetPermissionsAcls: ['-m everyone@:full_set:allow']\n";
    let driver = driver(&nas, "truenas-api-nfs", zfs);
    let asked = request(driver.as_ref(), "pvc-1", None);
    let refused = driver
        .create_volume(&call(), &asked)
        .await
        .expect_err("refused");
    assert!(refused.chain().contains("POSIX1E"), "{}", refused.chain());
}

#[tokio::test]
async fn arguments_that_the_api_has_no_words_for_are_reported() {
    let nas = appliance(Generation::V25_10).await;
    let zfs = "  datasetPermissionsAcls: ['-m everyone@:full_set:allow', '-b']\n";
    let text = config(&nas, "truenas-api-nfs", zfs);
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    from_document(&document).expect("a driver");
    let findings: Vec<String> = document
        .findings()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        findings
            .iter()
            .filter(|text| text.contains("datasetPermissionsAcls"))
            .count(),
        1,
        "{findings:?}"
    );
    assert!(
        findings.iter().any(|text| text.contains("`-b`")),
        "{findings:?}"
    );
}
