//! The scripts of the target stacks, run by the shell of this machine on a configfs that pretends:
//! made, looked at, cut before each command, taken over, removed; with values that a shell, JSON or
//! a tree of files could misread.

use std::sync::Arc;

use crate::common::{Host, Volume};
use driver_core::Kind;
use driver_zfs::Export;
use driver_zfs::property::PropertyName;
use proptest::prelude::*;
use serde_json::{Value, json};

const LIO: &str = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 192.0.2.1
  targetPortals: ['192.0.2.2:3261', '[2001:db8::1]']
  namePrefix: csi-
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2003-01.org.example:k8s
    configPath: '{etc}/saveconfig.json'
    listen: ['0.0.0.0:3260', '[::1]:3261']
    tpg:
      attributes: {cache_dynamic_acls: false}
      auth: {userid: me, password: 'a\"b\\c $(x) `y` '}
    block: {attributes: {emulate_tpu: 1}}
";

const NVMET: &str = "driver: zfs-generic-nvmeof
nvmeof:
  transports: ['tcp://192.0.2.1:4420', 'rdma://192.0.2.1']
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2003-01.org.example:k8s
    configPath: '{etc}/config.json'
    ports: [{id: 1, traddr: 0.0.0.0}, {id: 2, traddr: '::', trsvcid: 4421}]
    subsystem: {attributes: {model: csi}}
";

fn lio() -> String {
    LIO.replace("`y` '", "`y`'")
}

fn saved(host: &Host, file: &str) -> Value {
    serde_json::from_str(&host.text(&format!("etc/{file}"))).unwrap()
}

fn volume() -> Volume {
    Volume::new("tank/k8s v", "pvc-1", 7)
}

#[tokio::test]
async fn a_target_is_made_once_seen_and_removed_without_a_trace() {
    let host = Host::new();
    let (export, volume) = (host.export(&lio()), volume());
    let before = host.tree("cfg/target/core");
    assert_eq!(host.facts(&export, &volume).await.present, [""; 0]);
    // It is made, and saved.
    assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 2);
    let facts = host.facts(&export, &volume).await;
    assert_eq!(facts.missing, [""; 0]);
    assert_eq!(facts.present, ["backstore", "target", "saved"]);
    assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 0);

    let target = "cfg/target/iscsi/iqn.2003-01.org.example:k8s:csi-pvc-1/tpgt_1";
    let secret = "a\"b\\c $(x) `y`";
    assert_eq!(host.text(&format!("{target}/auth/password")), secret);
    assert_eq!(
        host.text(&format!("{target}/attrib/authentication")).trim(),
        "1"
    );
    assert_eq!(
        host.text(&format!("{target}/attrib/cache_dynamic_acls"))
            .trim(),
        "0"
    );
    let store = host.path("cfg/target/core/iblock_0/csi-pvc-1");
    let device = std::fs::read_to_string(store.join("udev_path")).unwrap();
    assert_eq!(device, "/dev/zvol/tank/k8s v/pvc-1");

    let config = saved(&host, "saveconfig.json");
    let group = &config["targets"][0]["tpgs"][0];
    assert_eq!(group["chap_password"], secret);
    assert_eq!(group["attributes"]["authentication"], 1);
    assert_eq!(
        group["luns"][0]["storage_object"],
        "/backstores/block/csi-pvc-1"
    );
    assert_eq!(group["portals"][1]["ip_address"], "[::1]");
    assert_eq!(group["portals"][1]["port"], 3261);
    assert_eq!(
        config["storage_objects"][0]["dev"],
        "/dev/zvol/tank/k8s v/pvc-1"
    );

    assert_eq!(host.remove(&export, &volume).await.unwrap(), 2);
    assert_eq!(host.remove(&export, &volume).await.unwrap(), 0);
    assert_eq!(host.tree("cfg/target/core"), before);
    assert_eq!(host.tree("cfg/target/iscsi"), []);
    let empty = json!({"storage_objects": [], "targets": []});
    assert_eq!(saved(&host, "saveconfig.json"), empty);
}

#[tokio::test]
async fn a_target_without_names_and_passwords_lets_nodes_in() {
    let host = Host::new();
    let (start, _) = LIO.split_once("    tpg:").unwrap();
    let (export, volume) = (host.export(start), volume());
    host.ensure(&export, &volume).await.unwrap().unwrap();
    let target = "cfg/target/iscsi/iqn.2003-01.org.example:k8s:csi-pvc-1/tpgt_1";
    assert_eq!(
        host.text(&format!("{target}/attrib/authentication")).trim(),
        "0"
    );
    let config = saved(&host, "saveconfig.json");
    assert_eq!(
        config["targets"][0]["tpgs"][0]["attributes"]["authentication"],
        0
    );
}

#[tokio::test]
async fn a_subsystem_is_made_once_seen_and_removed_without_a_trace() {
    let host = Host::new();
    let (export, volume) = (host.export(NVMET), volume());
    assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 1);
    let facts = host.facts(&export, &volume).await;
    assert_eq!(facts.missing, [""; 0]);
    assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 0);
    let config = saved(&host, "config.json");
    let subsystem = &config["subsystems"][0];
    assert_eq!(subsystem["nqn"], "nqn.2003-01.org.example:k8s:pvc-1");
    assert_eq!(subsystem["attr"]["allow_any_host"], "1");
    assert_eq!(subsystem["attr"]["model"], "csi");
    let space = &subsystem["namespaces"][0];
    assert_eq!(space["device"]["path"], "/dev/zvol/tank/k8s v/pvc-1");
    assert_eq!(space["device"]["uuid"], space["device"]["nguid"]);
    assert_eq!((&space["enable"], &space["nsid"]), (&json!(1), &json!(1)));
    assert_eq!(config["ports"][1]["addr"]["traddr"], "::");
    assert_eq!(config["ports"][1]["addr"]["adrfam"], "ipv6");
    assert_eq!(config["ports"][1]["subsystems"], json!([subsystem["nqn"]]));

    assert_eq!(host.remove(&export, &volume).await.unwrap(), 1);
    assert_eq!(host.remove(&export, &volume).await.unwrap(), 0);
    assert_eq!(host.tree("cfg/nvmet/subsystems"), []);
    let config = saved(&host, "config.json");
    assert_eq!(config["subsystems"], json!([]));
    assert_eq!(config["ports"][0]["subsystems"], json!([]));
}

#[tokio::test]
async fn whatever_is_cut_before_any_command_the_retry_leads_to_the_same_end() {
    for (text, tree, file) in [
        (lio(), "cfg/target", "saveconfig.json"),
        (NVMET.to_owned(), "cfg/nvmet", "config.json"),
    ] {
        let (mut cut, mut visited) = (1, 0);
        let whole = Host::new();
        let (export, volume) = (whole.export(&text), volume());
        whole.ensure(&export, &volume).await.unwrap().unwrap();
        let steps = whole.counted();
        assert!(steps > 5, "{steps}");
        let shape = |host: &Host| -> Vec<String> {
            let root = host.path("").display().to_string();
            let tree = host.tree(tree).into_iter();
            tree.map(|(path, text)| format!("{path}={text}").replace(&root, ""))
                .collect()
        };
        while cut <= steps {
            let mut host = Host::new();
            let export = host.export(&text);
            host.cut = Some(cut);
            let first = host.ensure(&export, &volume).await.unwrap();
            visited += usize::from(first.is_err());
            host.cut = None;
            host.counted();
            host.ensure(&export, &volume).await.unwrap().unwrap();
            assert_eq!(
                host.facts(&export, &volume).await.missing,
                [""; 0],
                "cut {cut}"
            );
            assert_eq!(shape(&host), shape(&whole), "cut {cut}");
            assert_eq!(saved(&host, file), saved(&whole, file), "cut {cut}");
            cut += 1;
        }
        assert_eq!(visited, usize::try_from(steps).unwrap());

        whole.remove(&export, &volume).await.unwrap();
        let (steps, gone) = (whole.counted(), shape(&whole));
        for cut in 1..=steps {
            let mut host = Host::new();
            let export = host.export(&text);
            host.ensure(&export, &volume).await.unwrap().unwrap();
            host.counted();
            host.cut = Some(cut);
            assert!(host.remove(&export, &volume).await.is_err(), "cut {cut}");
            host.cut = None;
            host.remove(&export, &volume).await.unwrap();
            assert_eq!(
                host.facts(&export, &volume).await.present,
                [""; 0],
                "cut {cut}"
            );
            // An adapter without a backstore has no owner, and the next backstore takes it.
            let mut left = shape(&host);
            left.retain(|line| !line.ends_with("/iblock_0="));
            assert_eq!(left, gone, "cut {cut}");
        }
    }
}

#[tokio::test]
async fn what_the_host_lost_is_made_again_with_the_same_identity() {
    for (text, trees, file, commands) in [
        (lio(), ["target/core", "target/iscsi"], "saveconfig.json", 2),
        (
            NVMET.to_owned(),
            ["nvmet/subsystems", "nvmet/ports"],
            "config.json",
            1,
        ),
    ] {
        let host = Host::new();
        let (export, volume) = (host.export(&text), volume());
        host.ensure(&export, &volume).await.unwrap().unwrap();
        let before = host.text(&format!("etc/{file}"));
        for tree in trees {
            std::fs::remove_dir_all(host.path("cfg").join(tree)).unwrap();
            std::fs::create_dir(host.path("cfg").join(tree)).unwrap();
        }
        let done = host.ensure(&export, &volume).await.unwrap();
        assert_eq!(done.unwrap(), commands);
        assert_eq!(host.text(&format!("etc/{file}")), before);
        std::fs::remove_file(host.path("etc").join(file)).unwrap();
        assert_eq!(host.facts(&export, &volume).await.missing, ["saved"]);
        let done = host.ensure(&export, &volume).await.unwrap();
        assert_eq!(done.unwrap(), commands);
        assert_eq!(host.text(&format!("etc/{file}")), before);
        // The same name, used again by another dataset.
        let later = Volume::new("tank/k8s v", "pvc-1", 8);
        host.remove(&export, &volume).await.unwrap();
        host.ensure(&export, &later).await.unwrap().unwrap();
        assert_ne!(host.text(&format!("etc/{file}")), before);
    }
}

#[tokio::test]
async fn what_is_of_another_dataset_is_neither_taken_nor_removed() {
    for text in [lio(), NVMET.to_owned()] {
        let host = Host::new();
        let (export, ours) = (host.export(&text), volume());
        let theirs = Volume::new("tank/other", "pvc-1", 9);
        host.ensure(&export, &theirs).await.unwrap().unwrap();
        let (tree, etc) = (host.tree("cfg"), host.tree("etc"));
        let error = host.ensure(&export, &ours).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{error}");
        host.remove(&export, &ours).await.unwrap();
        assert_eq!((host.tree("cfg"), host.tree("etc")), (tree, etc));
    }
}

#[tokio::test]
async fn what_others_have_saved_stays_and_what_is_no_json_is_not_touched() {
    let host = Host::new();
    let (export, volume) = (host.export(&lio()), volume());
    let others = json!({
        "fabric_modules": [{"name": "iscsi", "userid": "x{\"[,"}],
        "storage_objects": [{"name": "csi-pvc-1", "plugin": "fileio", "dev": "/x"}],
        "targets": [{"fabric": "iscsi", "wwn": "iqn.theirs", "tpgs": [{"luns": []}]}],
    });
    std::fs::write(host.path("etc/saveconfig.json"), others.to_string()).unwrap();
    host.ensure(&export, &volume).await.unwrap().unwrap();
    assert_eq!(
        saved(&host, "saveconfig.json")["targets"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    host.remove(&export, &volume).await.unwrap();
    assert_eq!(saved(&host, "saveconfig.json"), others);

    std::fs::write(host.path("etc/saveconfig.json"), "{\"targets\": [").unwrap();
    let error = host.ensure(&export, &volume).await.unwrap().unwrap_err();
    assert!(error.stderr().contains("nothing was saved"), "{error}");
    assert_eq!(host.text("etc/saveconfig.json"), "{\"targets\": [");
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_are_made_at_the_same_time_are_all_saved_and_seen_at_once() {
    for (text, file, lists) in [
        (
            lio(),
            "saveconfig.json",
            &["targets", "storage_objects"][..],
        ),
        (NVMET.to_owned(), "config.json", &["subsystems"]),
    ] {
        let host = Arc::new(Host::new());
        let tasks: Vec<_> = (0..8)
            .map(|number| {
                let (host, text) = (Arc::clone(&host), text.clone());
                tokio::spawn(async move {
                    let export = host.export(&text);
                    let volume = Volume::new("tank/v", &format!("pvc-{number}"), number);
                    host.ensure(&export, &volume).await.unwrap().unwrap();
                    // While others are made and not saved yet.
                    assert_eq!(host.facts(&export, &volume).await.missing, [""; 0]);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let config = saved(&host, file);
        for list in lists {
            assert_eq!(config[list].as_array().unwrap().len(), 8);
        }
    }
}

#[tokio::test]
async fn only_an_existing_namespace_revalidates_its_size() {
    let host = Host::new();
    let (export, volume) = (host.export(NVMET), volume());
    let subject = volume.subject();
    let export_name = export.export_name(&subject).unwrap();
    let facts = host.facts(&export, &volume).await;
    assert!(
        export
            .resize(&subject, &export_name, Some(&facts))
            .unwrap()
            .is_empty()
    );
    let tell = async |facts: Option<&driver_zfs_generic::Facts>| {
        let acts = export.resize(&subject, &export_name, facts).unwrap();
        assert!(!acts.is_empty());
        for act in acts {
            let driver_zfs::export::Act::Do(command) = act else {
                panic!("{act:?}")
            };
            let _ = host.run(&command).await.unwrap();
        }
    };
    // Before the first observation: nothing is made.
    tell(None).await;
    assert_eq!(host.facts(&export, &volume).await, facts);
    host.ensure(&export, &volume).await.unwrap().unwrap();
    let facts = host.facts(&export, &volume).await;
    let space = "cfg/nvmet/subsystems/nqn.2003-01.org.example:k8s:pvc-1/namespaces/1";
    let revalidate = format!("{space}/revalidate_size");
    for facts in [Some(&facts), None] {
        std::fs::write(host.path(&revalidate), "").unwrap();
        tell(facts).await;
        assert_eq!(host.text(&revalidate).trim(), "1");
    }
    // A namespace that shows a foreign disk is not touched.
    std::fs::write(host.path(&revalidate), "").unwrap();
    let device = host.path(&format!("{space}/device_path"));
    std::fs::write(device, "/dev/zvol/tank/theirs").unwrap();
    tell(None).await;
    assert_eq!(host.text(&revalidate).trim(), "");
}

#[tokio::test]
async fn targetcli_gets_what_is_missing_and_its_result_is_verified() {
    let host = Host::new();
    let text = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: targetCli
  shareStrategyTargetCli:
    basename: iqn.2003-01.org.example
    tpg:
      attributes: {authentication: 1, generate_node_acls: 1}
      auth: {userid: me, password: secret-word}
    block: {attributes: {emulate_tpu: 1}}
";
    host.program(
        "targetcli",
        "#!/bin/sh\ncat >\"${0%/bin/*}/input\"\necho \"password is now secret-word\"\n",
    );
    let export = host.export(text);
    let volume = Volume::new("tank/v", "pvc-1", 7).remembering(PropertyName::ISCSI_ASSETS, "old-1");
    let error = host.ensure(&export, &volume).await.unwrap().unwrap_err();
    assert!(!error.stderr().contains("secret-word"), "{error}");
    assert!(error.stderr().contains("missing backstore"), "{error}");
    let input = host.text("input");
    let uuid = input.split("wwn=").nth(1).unwrap().lines().next().unwrap();
    let expected = format!(
        "/iscsi create iqn.2003-01.org.example:old-1
/iscsi/iqn.2003-01.org.example:old-1/tpg1 set attribute authentication=1
/iscsi/iqn.2003-01.org.example:old-1/tpg1 set attribute generate_node_acls=1
/iscsi/iqn.2003-01.org.example:old-1/tpg1 set auth password=secret-word userid=me
/backstores/block create name=old-1 dev=/dev/zvol/tank/v/pvc-1 wwn={uuid}
/backstores/block/old-1 set attribute emulate_tpu=1
/iscsi/iqn.2003-01.org.example:old-1/tpg1/luns create /backstores/block/old-1 0
exit
"
    );
    assert_eq!(input, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn secrets_reach_the_kernel_and_the_file_unchanged(secret in "[ -~é]{1,40}") {
        let secret = secret.trim().to_owned();
        prop_assume!(!secret.is_empty() && !secret.starts_with("NULL"));
        let quoted = secret.replace('\'', "''");
        let text = lio().replace("'a\"b\\c $(x) `y`'", &format!("'{quoted}'"));
        prop_assume!(!secret.contains("${"));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let host = Host::new();
            let (export, volume) = (host.export(&text), volume());
            host.ensure(&export, &volume).await.unwrap().unwrap();
            let target = "cfg/target/iscsi/iqn.2003-01.org.example:k8s:csi-pvc-1/tpgt_1";
            assert_eq!(host.text(&format!("{target}/auth/password")), secret);
            let config = saved(&host, "saveconfig.json");
            assert_eq!(config["targets"][0]["tpgs"][0]["chap_password"], secret);
            assert_eq!(host.facts(&export, &volume).await.missing, [""; 0]);
            assert!(host.tree("").iter().all(|(path, _)| !path.contains("canary")));
        });
    }
}

#[tokio::test]
async fn a_serial_number_that_the_kernel_pads_with_blanks_is_the_one_that_is_wanted() {
    let host = Host::new();
    let text = NVMET.replace("{model: csi}", "{model: csi, serial: short}");
    let (export, volume) = (host.export(&text), volume());
    host.ensure(&export, &volume).await.unwrap().unwrap();
    let serial = "cfg/nvmet/subsystems/nqn.2003-01.org.example:k8s:pvc-1/attr_serial";
    assert_eq!(host.text(serial).trim_end(), "short");
    std::fs::write(host.path(serial), format!("{:<20}\n", "short")).unwrap();
    assert_eq!(host.facts(&export, &volume).await.missing, [""; 0]);
    assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn attributes_that_the_kernel_of_the_host_does_not_have_stop_no_volume_and_are_named() {
    let targetcli = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: targetCli
  shareStrategyTargetCli:
    basename: iqn.2003-01.org.example
    tpg: {attributes: {a_newer: 2, authentication: 0, generate_node_acls: 1}}
    block: {attributes: {a_new: 1, emulate_tpu: 1}}
";
    let by_lio = lio()
        .replace("{emulate_tpu: 1}", "{a_new: 1, emulate_tpu: 1}")
        .replace(
            "{cache_dynamic_acls: false}",
            "{a_newer: 2, cache_dynamic_acls: false}",
        );
    for text in [targetcli, &by_lio] {
        let host = Host::new();
        let (export, volume) = (host.export(text), Volume::new("tank/v", "pvc-1", 7));
        let examined = async || {
            let mut answers = Vec::new();
            for command in export.examine() {
                answers.push(host.run(&command).await.unwrap());
            }
            let problems = export.problems(&answers);
            let chains = problems.iter().map(driver_core::Error::chain);
            chains.collect::<Vec<_>>()
        };
        // As long as there is no target, the host does not say what it knows.
        assert_eq!(examined().await, [""; 0]);
        host.ensure(&export, &volume).await.unwrap().unwrap();
        let facts = host.facts(&export, &volume).await;
        assert_eq!(facts.missing, [""; 0]);
        let unknown = facts.unknown.iter();
        let unknown: Vec<_> = unknown.filter_map(|name| name.rsplit('/').next()).collect();
        assert_eq!(unknown, ["a_new", "a_newer"]);
        let mut problems = examined().await;
        problems.sort();
        assert_eq!(problems.len(), 2, "{problems:?}");
        let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        for (problem, key) in problems.iter().zip(["block", "tpg"]) {
            assert!(
                problem.contains(&format!("{key}.attributes.a_new")),
                "{problem}"
            );
            assert!(problem.contains(kernel.trim()), "{problem}");
        }
    }
}
