//! Changes of LIO are saved together with the changes that others made at the same time.

use crate::common::{Ask, Host, LIO, Volume};
use driver_core::NodeId;
use driver_zfs::Export as _;
use driver_zfs::export::Act;
use driver_zfs_cli::exec::Command;
use driver_zfs_generic::DiskExport;
use serde_json::{Value, json};

const WAITING: &str = "etc/saved.json.omnibus-waiting";
/// The portal group of the first volume.
const GROUP: &str = "cfg/target/iscsi/iqn.2003-01.org.example:pvc-1/tpgt_1";

/// A config without an access list: every initiator may log in.
fn open() -> String {
    let (start, _) = LIO.split_once("    nodes:").unwrap();
    start.to_owned()
}

fn volume(number: u64) -> Volume {
    Volume::new("tank/v", &format!("pvc-{number}"), number)
}

/// The acts for a volume: the change, and what saves it.
async fn acts(host: &Host, export: &DiskExport, volume: &Volume, made: bool) -> [Command; 2] {
    let facts = host.facts(export, volume).await;
    let subject = volume.subject();
    let export_name = export.export_name(&subject).unwrap();
    let acts = if made {
        export.ensure(&subject, &export_name, &facts).unwrap()
    } else {
        export.remove(&subject, &export_name, &facts).unwrap()
    };
    let commands = acts.into_iter().filter_map(|act| match act {
        Act::Do(command) => Some(command),
        _ => None,
    });
    commands.collect::<Vec<_>>().try_into().unwrap()
}

/// The names of the targets that are saved, in their order.
fn saved(host: &Host) -> Vec<String> {
    let config: Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
    let targets = config["targets"].as_array().unwrap().iter();
    let mut names: Vec<_> = targets
        .map(|target| target["wwn"].as_str().unwrap().to_owned())
        .map(|name| name.rsplit_once(':').unwrap().1.to_owned())
        .collect();
    names.sort();
    names
}

/// Adds to what waits.
fn wait(host: &Host, text: &str) {
    let before = std::fs::read_to_string(host.path(WAITING)).unwrap_or_default();
    std::fs::write(host.path(WAITING), before + text).unwrap();
}

/// Makes it, and is cut before it is saved; says what saves it.
async fn make(host: &Host, export: &DiskExport, volume: &Volume) -> Command {
    let [make, save] = acts(host, export, volume, true).await;
    drop(host.run(&make).await.unwrap());
    save
}

/// Removes it, and is cut before that is saved.
async fn remove(host: &Host, export: &DiskExport, volume: &Volume) {
    let [remove, _] = acts(host, export, volume, false).await;
    drop(host.run(&remove).await.unwrap());
}

#[tokio::test]
async fn one_save_writes_the_result_of_all_waiting_changes() {
    let host = Host::new();
    let export = host.export(&open());
    let mut saves = Vec::new();
    for number in 1..=4 {
        saves.push(make(&host, &export, &volume(number)).await);
    }
    for number in 2..=4 {
        remove(&host, &export, &volume(number)).await;
    }
    // Another dataset with the name of one that went, and the same one again.
    let again = Volume::new("tank/w", "pvc-3", 5);
    make(&host, &export, &again).await;
    make(&host, &export, &volume(4)).await;
    assert!(!host.path("etc/saved.json").exists());

    drop(host.run(&saves[0]).await.unwrap());
    assert_eq!(saved(&host), ["pvc-1", "pvc-3", "pvc-4"]);
    let text = host.text("etc/saved.json");
    assert!(text.contains("/dev/zvol/tank/w/pvc-3") && !text.contains("/dev/zvol/tank/v/pvc-3"));
    assert!(!host.path(WAITING).exists());
    host.counted();
    // Nothing is left to do.
    drop(host.run(&saves[1]).await.unwrap());
    assert_eq!(host.counted(), 0);
    for volume in [&volume(1), &again, &volume(4)] {
        assert_eq!(host.facts(&export, volume).await.missing, [""; 0]);
    }
    remove(&host, &export, &again).await;
    remove(&host, &export, &volume(1)).await;
    drop(host.run(&saves[0]).await.unwrap());
    assert_eq!(saved(&host), ["pvc-4"]);
}

#[tokio::test]
async fn what_was_taken_away_since_it_was_noted_is_not_saved() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = Host::new();
    let export = host.export(&open());
    make(&host, &export, &volume(1)).await;
    let mode = host.path(WAITING).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(host.facts(&export, &volume(1)).await.missing, ["saved"]);
    // Half of it.
    let enable = "cfg/target/iscsi/iqn.2003-01.org.example:pvc-3/tpgt_1/enable";
    let save = make(&host, &export, &volume(3)).await;
    std::fs::write(host.path(enable), "0\n").unwrap();
    drop(host.run(&save).await.unwrap());
    assert_eq!(saved(&host), ["pvc-1"]);
    std::fs::remove_file(host.path("etc/saved.json")).unwrap();
    // All of it.
    make(&host, &export, &volume(1)).await;
    host.starts_again();
    assert_eq!(host.facts(&export, &volume(1)).await.present, [""; 0]);
    host.ensure(&export, &volume(2)).await.unwrap().unwrap();
    assert_eq!(saved(&host), ["pvc-2"]);
}

#[tokio::test]
async fn what_is_saved_of_a_volume_stays_when_another_one_of_its_name_goes() {
    let host = Host::new();
    let export = host.export(&open());
    make(&host, &export, &volume(1)).await;
    let noted = host.text(WAITING);
    let theirs = noted
        .replace("|kept|", "|gone|")
        .replace("tank/v", "tank/w");
    wait(&host, &theirs);
    host.ensure(&export, &volume(2)).await.unwrap().unwrap();
    assert_eq!(saved(&host), ["pvc-1", "pvc-2"]);
    assert_eq!(host.facts(&export, &volume(1)).await.missing, [""; 0]);
    // Nor does it when it was saved before.
    wait(&host, &theirs);
    host.ensure(&export, &volume(3)).await.unwrap().unwrap();
    assert_eq!(saved(&host), ["pvc-1", "pvc-2", "pvc-3"]);
    assert_eq!(host.facts(&export, &volume(1)).await.missing, [""; 0]);
}

#[tokio::test]
async fn what_was_cut_while_it_was_noted_and_what_is_of_an_earlier_start_count_for_nothing() {
    let host = Host::new();
    let export = host.export(&open());
    make(&host, &export, &volume(8)).await;
    let line = host.text(WAITING).trim().to_owned();
    std::fs::remove_file(host.path(WAITING)).unwrap();
    make(&host, &export, &volume(9)).await;
    let cut = host
        .text(WAITING)
        .trim_end()
        .trim_end_matches('.')
        .to_owned();
    std::fs::remove_file(host.path(WAITING)).unwrap();
    make(&host, &export, &volume(1)).await;
    wait(&host, &format!("\n00000000-{}\n{cut}", &line[9..]));
    host.ensure(&export, &volume(2)).await.unwrap().unwrap();
    assert_eq!(saved(&host), ["pvc-1", "pvc-2"]);
    // Of a line that is whole nothing is missing but what ends it.
    let save = make(&host, &export, &volume(3)).await;
    let whole = host.text(WAITING).trim_end().to_owned();
    std::fs::write(host.path(WAITING), whole).unwrap();
    drop(host.run(&save).await.unwrap());
    assert_eq!(saved(&host), ["pvc-1", "pvc-2", "pvc-3"]);
}

/// A target with two nodes that is half there.
async fn half(host: &Host, export: &DiskExport, lost: &str) -> Volume {
    let mut half = volume(1);
    host.settle(export, &mut half, &Ask::Establish)
        .await
        .unwrap();
    for node in ["a", "b"] {
        let allow = Ask::Allow(NodeId::parse(node).unwrap());
        host.settle(export, &mut half, &allow).await.unwrap();
    }
    std::fs::write(host.path(GROUP).join("enable"), "0\n").unwrap();
    if !lost.is_empty() {
        std::fs::remove_dir_all(host.path(lost)).unwrap();
    }
    half
}

#[tokio::test]
async fn who_has_to_be_out_is_put_out_whatever_is_missing() {
    for lost in ["", GROUP, "cfg/target/core/iblock_0"] {
        let host = Host::new();
        let export = host.export(LIO);
        let mut half = half(&host, &export, lost).await;
        if lost.starts_with("cfg/target/core") {
            // What leads to a disk that is gone is gone.
            for lun in ["lun/lun_0", "acls/iqn.2004-10.org.example:a/lun_0"] {
                for link in std::fs::read_dir(host.path(GROUP).join(lun)).unwrap() {
                    let link = link.unwrap();
                    if link.file_type().unwrap().is_symlink() {
                        std::fs::remove_file(link.path()).unwrap();
                    }
                }
            }
        }
        let all = Ask::Revoke(None);
        host.settle(&export, &mut half, &all).await.unwrap();
        let text = host.text("etc/saved.json");
        assert!(
            !text.contains("org.example:a") && !text.contains("org.example:b"),
            "{lost}: {text}"
        );
        let config: Value = serde_json::from_str(&text).unwrap();
        // Its disk is known by what it was known by.
        let uuid = config["storage_objects"][0]["wwn"].as_str().unwrap();
        assert_eq!(uuid.len(), 36, "{lost}: {uuid}");
        host.settle(&export, &mut half, &Ask::Establish)
            .await
            .unwrap();
        assert_eq!(host.facts(&export, &half).await.missing, [""; 0], "{lost}");
    }
}

#[tokio::test]
async fn what_is_half_made_waits_where_the_saved_file_cannot_be_read() {
    let host = Host::new();
    let export = host.export(LIO);
    let mut half = half(&host, &export, "").await;
    let before = host.text("etc/saved.json");
    std::fs::write(host.path("etc/saved.json"), "{\"targets\":[").unwrap();
    let all = Ask::Revoke(None);
    let failed = host.settle(&export, &mut half, &all).await;
    assert!(failed.unwrap_err().stderr().contains("nothing was saved"));
    std::fs::write(host.path("etc/saved.json"), before).unwrap();
    // The next save includes that change.
    host.ensure(&export, &volume(2)).await.unwrap().unwrap();
    assert!(!host.text("etc/saved.json").contains("org.example:a"));
}

#[tokio::test]
async fn portals_that_cannot_be_read_are_not_lost() {
    let host = Host::new();
    let export = host.export(LIO);
    let mut half = half(&host, &export, "").await;
    let before = host.text("etc/saved.json");
    host.program(
        "awk",
        "#!/bin/sh\ncase $* in *mode=portals*) kill -9 $$ ;; esac\nexec /usr/bin/awk \"$@\"\n",
    );
    let failed = host.settle(&export, &mut half, &Ask::Revoke(None)).await;
    assert!(failed.unwrap_err().stderr().contains("awk"));
    assert_eq!(host.text("etc/saved.json"), before);
}

#[tokio::test]
async fn who_was_put_out_of_what_is_half_made_is_not_saved() {
    let host = Host::new();
    let export = host.export(LIO);
    let mut half = volume(1);
    let [a, b] = ["a", "b"].map(|name| NodeId::parse(name).unwrap());
    let hand_made = host.path(GROUP).join("np/192.0.2.9:3260");
    host.settle(&export, &mut half, &Ask::Establish)
        .await
        .unwrap();
    std::fs::create_dir(&hand_made).unwrap();
    for node in [a, b] {
        let allow = Ask::Allow(node);
        host.settle(&export, &mut half, &allow).await.unwrap();
    }
    assert!(host.text("etc/saved.json").contains("org.example:a"));
    // A call was interrupted.
    std::fs::write(host.path(GROUP).join("enable"), "0\n").unwrap();
    std::fs::remove_dir_all(&hand_made).unwrap();
    host.settle(&export, &mut half, &Ask::Revoke(None))
        .await
        .unwrap();
    let config: Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
    let group = &config["targets"][0]["tpgs"][0];
    assert_eq!(group["node_acls"], json!([]));
    assert_eq!(group["enable"], false);
    assert_eq!(group["luns"][0]["index"], 0);
    // It is put right with the portals that it had.
    host.settle(&export, &mut half, &Ask::Establish)
        .await
        .unwrap();
    assert!(hand_made.exists());
    let config: Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
    let group = &config["targets"][0]["tpgs"][0];
    assert_eq!(group["enable"], true);
    assert_eq!(group["portals"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_cannot_be_saved_waits_once_however_often_it_is_tried() {
    let host = Host::new();
    let export = host.export(&open());
    std::fs::write(host.path("etc/saved.json"), "{\"targets\": [").unwrap();
    let mut lengths = Vec::new();
    for _ in 0..4 {
        for number in 1..=2 {
            let done = host.ensure(&export, &volume(number)).await.unwrap();
            let error = done.unwrap_err();
            assert!(error.stderr().contains("nothing was saved"), "{error}");
        }
        lengths.push(host.text(WAITING).lines().count());
    }
    assert_eq!(lengths, [lengths[0]; 4]);
    std::fs::remove_file(host.path("etc/saved.json")).unwrap();
    host.ensure(&export, &volume(3)).await.unwrap().unwrap();
    assert_eq!(saved(&host), ["pvc-1", "pvc-2", "pvc-3"]);
    assert!(!host.path(WAITING).exists());
}

#[tokio::test]
async fn what_waits_lies_beside_the_file_that_a_link_leads_to() {
    let host = Host::new();
    let export = host.export(&open());
    std::fs::create_dir(host.path("kept")).unwrap();
    std::fs::write(host.path("kept/real.json"), "{}").unwrap();
    std::os::unix::fs::symlink("../kept/real.json", host.path("etc/saved.json")).unwrap();
    let save = make(&host, &export, &volume(1)).await;
    assert!(!host.path(WAITING).exists());
    assert!(host.path("kept/real.json.omnibus-waiting").exists());
    drop(host.run(&save).await.unwrap());
    assert_eq!(saved(&host), ["pvc-1"]);
    assert!(!host.path("kept/real.json.omnibus-waiting").exists());
}

#[tokio::test]
async fn a_file_that_cannot_be_looked_at_is_not_one_that_does_not_exist() {
    let host = Host::new();
    let (folder, kept) = (host.path("saves"), host.path("kept"));
    std::fs::create_dir(&folder).unwrap();
    let export = host.export(&open().replace("{etc}", folder.to_str().unwrap()));
    host.ensure(&export, &volume(1)).await.unwrap().unwrap();
    let before = host.text("saves/saved.json");
    let [remove, _] = acts(&host, &export, &volume(1), false).await;
    // Its folder is a link to itself, and cannot be looked into.
    std::fs::rename(&folder, &kept).unwrap();
    std::os::unix::fs::symlink("saves", &folder).unwrap();
    let error = host.run(&remove).await.unwrap_err();
    let unseen = format!("cannot see whether {}/saved.json", folder.display());
    assert!(error.stderr().contains(&unseen), "{error}");
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&kept, &folder).unwrap();
    assert_eq!(host.text("saves/saved.json"), before);
    // The next call forgets it.
    host.remove(&export, &volume(1)).await.unwrap();
    assert!(!host.text("saves/saved.json").contains("pvc-1"));
}

#[tokio::test]
async fn a_disk_that_is_full_costs_nothing_that_was_saved() {
    let host = Host::new();
    let export = host.export(&open());
    host.ensure(&export, &volume(1)).await.unwrap().unwrap();
    let before = host.text("etc/saved.json");
    // Not every awk says that it could not write.
    host.program(
        "awk",
        "#!/bin/sh\ncase $* in *mode=merge*) exit 0 ;; esac\nexec /usr/bin/awk \"$@\"\n",
    );
    let failed = host.remove(&export, &volume(1)).await;
    assert!(failed.unwrap_err().stderr().contains("nothing was saved"));
    assert_eq!(host.text("etc/saved.json"), before);
    std::fs::remove_file(host.path("bin/awk")).unwrap();
    host.remove(&export, &volume(1)).await.unwrap();
    assert_eq!(saved(&host), [""; 0]);
}

#[tokio::test]
async fn what_others_saved_stays_as_it_is_and_is_not_taken_for_whole_where_it_was_cut() {
    let host = Host::new();
    let export = host.export(&open());
    let odd = [
        "plain", "}", "{ [", "a\"b\\", "\": \"", "    },", "\\\\\"", ": ",
    ];
    let stores: Vec<_> = (1..)
        .zip(odd)
        .map(|(number, text)| {
            json!({"alua_tpgs": [{"name": text, "preferred": 0}], "attributes": {},
                "dev": "/dev/sdx", "name": format!("theirs-{number}"), "plugin": "block"})
        })
        .collect();
    let targets: Vec<_> = (1..)
        .zip(odd)
        .map(|(number, text)| {
            json!({"fabric": "iscsi", "parameters": {}, "tpgs": [{"node_acls": [
                {"chap_password": text, "node_wwn": "iqn.2003-01.org.example:x"}], "tag": 1}],
                "wwn": format!("iqn.2003-01.org.example:theirs-{number}")})
        })
        .collect();
    let theirs = json!({"fabric_modules": [], "storage_objects": stores, "targets": targets});
    let before = format!("{theirs:#}\n");
    // As a tool writes it, in one line, and edited by hand.
    let by_hand = before.replace("\"tag\": 1\n", "\"tag\" :1 \n");
    for text in [&before, &theirs.to_string(), &by_hand] {
        std::fs::write(host.path("etc/saved.json"), text).unwrap();
        host.ensure(&export, &volume(1)).await.unwrap().unwrap();
        assert_eq!(saved(&host).len(), odd.len() + 1);
        host.remove(&export, &volume(1)).await.unwrap();
        assert_eq!(host.text("etc/saved.json"), before);
    }
    for end in [
        "\"attributes\": {}",
        "\"name\": \"theirs-3\"",
        "\n    }",
        "\"tag\": 1",
    ] {
        let (start, _) = before.split_once(end).unwrap();
        let cut = format!("{start}{end}");
        std::fs::write(host.path("etc/saved.json"), &cut).unwrap();
        let done = host.ensure(&export, &volume(2)).await.unwrap();
        let error = done.unwrap_err();
        assert!(error.stderr().contains("nothing was saved"), "{error}");
        assert_eq!(host.text("etc/saved.json"), cut);
    }
}

#[tokio::test]
async fn who_gets_no_turn_changes_nothing_and_says_who_has_it() {
    let host = Host::new();
    let export = host.export(&open());
    let [make, _] = acts(&host, &export, &volume(1), true).await;
    let before = host.tree("cfg");
    host.program("flock", "#!/bin/sh\n[ \"$1\" != -w ] || exit 75\n");
    let error = host.run(&make).await.unwrap_err();
    let said = error.stderr();
    // This text distinguishes a busy lock from a failure, so the caller keeps waiting.
    assert!(said.starts_with("no turn within 30 s: "), "{error}");
    assert!(said.contains("targetcli.lock"), "{error}");
    assert_eq!(host.tree("cfg"), before);
}

#[tokio::test]
async fn a_tool_that_cannot_wait_for_a_turn_asks_for_it_again() {
    let host = Host::new();
    let export = host.export(&open());
    let tried = host.path("tried");
    host.program("flock", include_str!("saving/flock.sh"));
    host.ensure(&export, &volume(1)).await.unwrap().unwrap();
    assert!(tried.exists());
    assert_eq!(saved(&host), ["pvc-1"]);
}

#[tokio::test]
async fn all_that_change_and_save_at_once_do_so_one_by_one() {
    let host = Host::new();
    let export = host.export(&open());
    // Each of them makes a link, and each that saves moves a file.
    for name in ["ln", "mv"] {
        host.program(name, include_str!("saving/alone.sh"));
    }
    let mut acts_of = Vec::new();
    for number in 1..=3 {
        acts_of.push(acts(&host, &export, &volume(number), true).await);
    }
    let whole = async |[make, save]: &[Command; 2]| {
        drop(host.run(make).await?);
        host.run(save).await
    };
    let [one, two, three] = [0, 1, 2].map(|number| whole(&acts_of[number]));
    let outputs = tokio::try_join!(one, two, three);
    drop(outputs.unwrap());
    assert!(!host.path("met").exists(), "two were at it at once");
    assert_eq!(saved(&host), ["pvc-1", "pvc-2", "pvc-3"]);
    assert!(!host.path(WAITING).exists());
}
