//! `orphans` and `exports`: a host whose `zfs` is a script, which has volumes that were never completed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use super::harness::{PROGRAM, Place};

/// One half-made volume of long ago, one that is being made, and a helper snapshot.
pub(super) const ZFS: &str = include_str!("upkeep/zfs.sh");

/// Configures a host whose `zfs` is this script.
pub(super) fn host(place: &Place, script: &str) {
    let zfs = place.path("zfs");
    fs::write(&zfs, script).unwrap();
    fs::set_permissions(&zfs, fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!(
        "driver: zfs-generic-iscsi
zfs:
  datasetParentName: tank/v
  cli: {{paths: {{zfs: {}}}}}
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: lio
  shareStrategyLio: {{basename: iqn.2003-01.org.example}}
",
        zfs.display()
    );
    fs::write(place.path("config.yaml"), text).unwrap();
}

/// The exit code of a command, what it said, and what it complained about.
fn run(place: &Place, command: &str, more: &[&str]) -> (i32, String, String) {
    let output = Command::new(PROGRAM)
        .env_clear()
        .args([command, "--driver-config-file"])
        .arg(place.path("config.yaml"))
        .args(more)
        .output()
        .unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn orphans_are_listed_with_their_age_and_young_ones_are_not() {
    let place = Place::new();
    host(&place, ZFS);
    let (code, text, complaint) = run(&place, "orphans", &[]);
    assert_eq!(code, 1, "{text} {complaint}");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[1].contains("half-made volume") && lines[1].ends_with("  tank/v/pvc-1"));
    let helper = "  tank/v/whole@volume-source-for-volume-pvc-9";
    assert!(lines[2].contains("helper snapshot") && lines[2].ends_with(helper));
    assert_eq!(lines[3], "2 found; `--remove` removes them");
    let (code, text, _) = run(&place, "orphans", &["--min-age=0s", "--json"]);
    assert_eq!(code, 1);
    let found: Value = serde_json::from_str(&text).unwrap();
    let orphans = found["orphans"].as_array().unwrap();
    assert_eq!(orphans.len(), 3, "{text}");
    assert_eq!(orphans[0]["object"], "tank/v/pvc-1");
    assert_eq!(orphans[0]["kind"], "half-made volume");
    assert_eq!(orphans[0]["identity"], "101");
    assert_eq!(orphans[0]["created"], 1000);
    assert_eq!(orphans[0]["state"], "found");
    assert_eq!(orphans[1]["object"], "tank/v/pvc-2");
}

#[test]
fn what_is_to_be_removed_is_shown_first_also_beside_the_answer_for_a_program() {
    let place = Place::new();
    // One half-made volume, which cannot be looked at once more.
    let broken = r#"*" -d 1 -t "*" tank/v/pvc-1")
    echo "cannot open 'tank/v/pvc-1': I/O error" >&2; exit 1 ;;
"get -Hp -o "*)"#;
    let script = ZFS.replace("\"get -Hp -o \"*)", broken);
    let script = script.replace("whole@volume-source-for-volume-pvc-9", "whole@auto");
    host(&place, &script);
    let (code, text, shown) = run(&place, "orphans", &["--remove", "--json"]);
    assert_eq!(code, 1, "{text} {shown}");
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["orphans"].as_array().unwrap().len(), 1, "{text}");
    assert_eq!(found["orphans"][0]["state"], "failed", "{text}");
    let lines = [
        "half-made volume",
        "1 found, to be removed one by one",
        "not removed tank/v/pvc-1: ",
    ];
    let places: Vec<_> = lines.map(|line| shown.find(line)).to_vec();
    assert!(places.iter().all(Option::is_some), "{shown}");
    assert!(places.is_sorted(), "{shown}");
}

#[test]
fn a_host_that_does_not_answer_is_no_host_without_orphans_or_with_all_exports() {
    let place = Place::new();
    let silent = "#!/bin/sh\necho 'cannot open: pool I/O is currently suspended' >&2; exit 1\n";
    host(&place, silent);
    for command in ["orphans", "exports"] {
        let (code, text, _) = run(&place, command, &[]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("unknown: "), "{text}");
        assert!(!text.contains("no orphans were found"), "{text}");
        assert!(text.contains("suspended"), "{text}");
    }
}

#[test]
fn a_driver_that_cannot_tell_is_named_and_nothing_of_it_is_claimed() {
    let place = Place::new();
    for command in ["orphans", "exports"] {
        let (code, text, _) = run(&place, command, &[]);
        assert_eq!(code, 0, "{text}");
        let expected = format!("no {command} to look at: local-hostpath: ");
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn a_connection_that_does_not_exist_is_a_wrong_command_line() {
    let place = Place::new();
    let only = "is one connection without a name";
    fs::create_dir(place.path("connections")).unwrap();
    let folder = format!(
        "driver: proxy\nproxy: {{configFolder: {}}}\n",
        place.path("connections").display()
    );
    for (text, expected) in [
        (None, only),
        (Some(&folder), "there is no connection `nas`"),
    ] {
        if let Some(text) = text {
            fs::write(place.path("config.yaml"), text).unwrap();
        }
        for command in ["orphans", "exports"] {
            let (code, said, complaint) = run(&place, command, &["--connection=nas"]);
            assert_eq!((code, said.as_str()), (64, ""), "{complaint}");
            assert!(complaint.contains(expected), "{complaint}");
        }
    }
}
