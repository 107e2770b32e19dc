//! What was changed of LIO, and is saved with what others have changed meanwhile.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod common;

use std::io::Write as _;

use common::{Host, LIO, Volume};
use driver_zfs::Export as _;
use driver_zfs::exec::Command;
use driver_zfs::export::Act;
use driver_zfs_generic::DiskExport;
use serde_json::Value;

const WAITING: &str = "etc/saved.json.omnibus-waiting";

/// Everybody gets in.
fn open() -> String {
    let (start, _) = LIO.split_once("    nodes:").unwrap();
    start.to_owned()
}

fn volume(number: u64) -> Volume {
    Volume::new("tank/v", &format!("pvc-{number}"), number)
}

/// What is done to a volume: the change, and what saves it.
async fn acts(host: &Host, export: &DiskExport, volume: &Volume, made: bool) -> [Command; 2] {
    let facts = host.facts(export, volume).await;
    let subject = volume.subject();
    let asset = export.asset(&subject).unwrap();
    let acts = if made {
        export.establish(&subject, &asset, &facts).unwrap()
    } else {
        export.withdraw(&subject, &asset, &facts).unwrap()
    };
    let commands = acts.into_iter().filter_map(|act| match act {
        Act::Do(command) => Some(command),
        Act::Remember(_) | Act::Forget(_) => None,
    });
    commands.collect::<Vec<_>>().try_into().unwrap()
}

/// The names of the targets that are saved.
fn saved(host: &Host) -> Vec<String> {
    let config: Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
    let targets = config["targets"].as_array().unwrap().iter();
    targets
        .map(|target| target["wwn"].as_str().unwrap().to_owned())
        .map(|name| name.rsplit_once(':').unwrap().1.to_owned())
        .collect()
}

#[tokio::test]
async fn whoever_saves_saves_all_that_waits_and_the_last_change_counts() {
    let host = Host::new();
    let export = host.export(&open());
    let mut saves = Vec::new();
    for number in 1..=3 {
        let [make, save] = acts(&host, &export, &volume(number), true).await;
        drop(host.run(&make).await.unwrap());
        saves.push(save);
    }
    let [remove, _] = acts(&host, &export, &volume(2), false).await;
    drop(host.run(&remove).await.unwrap());
    let [remove, _] = acts(&host, &export, &volume(3), false).await;
    drop(host.run(&remove).await.unwrap());
    // Another dataset with the name of one that went.
    let again = Volume::new("tank/w", "pvc-3", 4);
    let [make, _] = acts(&host, &export, &again, true).await;
    drop(host.run(&make).await.unwrap());
    assert!(!host.path("etc/saved.json").exists());

    drop(host.run(&saves[0]).await.unwrap());
    assert_eq!(saved(&host), ["pvc-1", "pvc-3"]);
    assert!(
        host.text("etc/saved.json")
            .contains("/dev/zvol/tank/w/pvc-3")
    );
    assert!(!host.path(WAITING).exists());
    host.counted();
    // Nothing is left to do.
    drop(host.run(&saves[1]).await.unwrap());
    assert_eq!(host.counted(), 0);
    assert_eq!(host.facts(&export, &volume(1)).await.missing, [""; 0]);
    assert_eq!(host.facts(&export, &again).await.missing, [""; 0]);
}

#[tokio::test]
async fn what_waits_when_somebody_is_cut_is_seen_and_is_for_root_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = Host::new();
    let export = host.export(&open());
    let [make, _] = acts(&host, &export, &volume(1), true).await;
    drop(host.run(&make).await.unwrap());
    let mode = host.path(WAITING).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let facts = host.facts(&export, &volume(1)).await;
    assert_eq!(facts.missing, ["saved"]);
    // Whatever became of the target meanwhile, it would be saved by the next one.
    host.starts_again();
    let facts = host.facts(&export, &volume(1)).await;
    assert_eq!(facts.present, ["saved"]);
    host.withdraw(&export, &volume(1)).await.unwrap();
    assert_eq!(host.facts(&export, &volume(1)).await.present, [""; 0]);
    host.establish(&export, &volume(2)).await.unwrap().unwrap();
    assert_eq!(saved(&host), ["pvc-2"]);
}

#[tokio::test]
async fn what_was_cut_while_it_was_written_and_what_is_of_an_earlier_start_count_for_nothing() {
    let host = Host::new();
    let export = host.export(&open());
    let [make, _] = acts(&host, &export, &volume(1), true).await;
    drop(host.run(&make).await.unwrap());
    let whole = host.text(WAITING);
    let line = whole.trim().to_owned();
    let (boot, elements) = line.split_once(' ').unwrap();
    let other = elements.replace("pvc-1", "pvc-8");
    let earlier = format!("\n00000000-{} {other}\n", &boot[9..]);
    let cut = format!("\n{boot} {}", &elements.replace("pvc-1", "pvc-9")[..200]);
    let mut file = std::fs::File::options()
        .append(true)
        .open(host.path(WAITING))
        .unwrap();
    file.write_all((earlier + &cut).as_bytes()).unwrap();
    host.establish(&export, &volume(2)).await.unwrap().unwrap();
    assert_eq!(saved(&host), ["pvc-1", "pvc-2"]);
}

#[tokio::test]
async fn what_cannot_be_saved_waits_once_however_often_it_is_tried() {
    let host = Host::new();
    let export = host.export(&open());
    std::fs::write(host.path("etc/saved.json"), "{\"targets\": [").unwrap();
    let mut lengths = Vec::new();
    for _ in 0..4 {
        for number in 1..=2 {
            let done = host.establish(&export, &volume(number)).await.unwrap();
            let error = done.unwrap_err();
            assert!(error.stderr().contains("nothing was saved"), "{error}");
        }
        lengths.push(host.text(WAITING).lines().count());
    }
    assert_eq!(lengths[1..], [lengths[0]; 3], "{lengths:?}");
    std::fs::remove_file(host.path("etc/saved.json")).unwrap();
    host.establish(&export, &volume(3)).await.unwrap().unwrap();
    let mut all = saved(&host);
    all.sort();
    assert_eq!(all, ["pvc-1", "pvc-2", "pvc-3"]);
    assert!(!host.path(WAITING).exists());
}
