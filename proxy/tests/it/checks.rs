//! `check`.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::harness::{PROGRAM, Place};

fn check(place: &Place, more: &[&str]) -> (i32, String) {
    let mut command = Command::new(PROGRAM);
    command
        .env_clear()
        .args(["check", "--driver-config-file"])
        .arg(place.path("config.yaml"));
    let output = command.args(more).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn a_check_of_a_sound_configuration_finds_nothing_and_changes_nothing() {
    let place = Place::new();
    let before = fs::metadata(place.path("base"))
        .unwrap()
        .modified()
        .unwrap();
    let (code, text) = check(&place, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("the file and the storage were looked at"),
        "{text}"
    );
    assert_eq!(fs::read_dir(place.path("base")).unwrap().count(), 0);
    assert_eq!(
        fs::metadata(place.path("base"))
            .unwrap()
            .modified()
            .unwrap(),
        before
    );
}

/// The words for what a check cannot see of a base.
const UNSEEN: &str = "A check cannot tell whether another disk was mounted there since";

#[test]
fn a_check_of_a_base_says_what_only_the_server_beside_its_record_knows() {
    let place = Place::new();
    let (code, text) = check(&place, &["--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let about = |report: &Value| {
        let findings = report["findings"].as_array().unwrap().iter();
        let said = findings.filter(|one| one["message"].as_str().unwrap().contains(UNSEEN));
        said.map(|one| (one["weight"].clone(), one["about"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        about(&report),
        [("note".into(), "storage".into())],
        "{text}"
    );
    assert_eq!(code, 0, "{text}");
    // The storage was not looked at, or it cannot be used: then something else is said of it.
    let (_, offline) = check(&place, &["--offline"]);
    assert!(!offline.contains(UNSEEN), "{offline}");
    fs::remove_dir(place.path("base")).unwrap();
    fs::write(place.path("base"), "").unwrap();
    let (code, unusable) = check(&place, &[]);
    assert_ne!(code, 0, "{unusable}");
    assert!(!unusable.contains(UNSEEN), "{unusable}");
}

#[test]
fn a_base_folder_that_does_not_exist_yet_is_no_finding_alone_and_behind_the_proxy() {
    let place = Place::new();
    let base = place.path("base");
    fs::remove_dir(&base).unwrap();
    let alone = fs::read_to_string(place.path("config.yaml")).unwrap();
    let sound = |connections: usize| {
        let (code, text) = check(&place, &["--json"]);
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &report["online"]), (0, &true.into()), "{text}");
        assert!(!text.contains("\"error\""), "{text}");
        for name in ["one", "two"].iter().take(connections) {
            assert!(text.contains(name), "{text}");
        }
    };
    sound(0);
    let folder = place.path("connections");
    fs::create_dir(&folder).unwrap();
    let bases = ["one", "two"].map(|name| base.join(name));
    for (name, below) in ["one", "two"].iter().zip(&bases) {
        let (from, to) = (base.to_str().unwrap(), below.to_str().unwrap());
        fs::write(folder.join(format!("{name}.yaml")), alone.replace(from, to)).unwrap();
    }
    let proxy = format!(
        "driver: proxy\nproxy:\n  configFolder: {}\n  nodeTopology: {{type: [node]}}\n",
        folder.display()
    );
    fs::write(place.path("config.yaml"), proxy).unwrap();
    sound(2);
    assert!(!base.exists(), "a check makes nothing");
}

#[test]
fn every_example_file_can_be_used_as_it_stands() {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut drivers = std::collections::BTreeSet::new();
    for entry in fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(text.contains(&format!("\ndriver: {name}\n")), "{name}");
        let place = Place::new();
        let folder = place.path("connections");
        fs::create_dir(&folder).unwrap();
        // What comes from the environment: without it nothing would be an API key, or a private key.
        let text = text
            .replace("/etc/omnibus-csi/connections", folder.to_str().unwrap())
            .replace("${TRUENAS_API_KEY}", "1-key")
            .replace("privateKey: ${TRUENAS_SSH_KEY}", "password: x");
        fs::write(place.path("config.yaml"), text).unwrap();
        let (code, text) = check(&place, &["--offline"]);
        assert_eq!(code, 0, "{name}: {text}");
        // The id of a base is known once it has a first volume.
        let lacks = usize::from(["nfs-client", "smb-client", "lustre-client"].contains(&&*name));
        assert_eq!(
            text.matches("baseId: is missing").count(),
            lacks,
            "{name}: {text}"
        );
        let warnings = text.matches("WARNING").count();
        assert!(
            !text.contains("ERROR") && warnings == lacks,
            "{name}: {text}"
        );
        drivers.insert(name);
    }
    assert!(drivers.len() >= 12, "{drivers:?}");
}

#[test]
fn a_check_of_volumes_made_by_hand_claims_to_have_seen_no_storage() {
    let place = Place::new();
    fs::write(place.path("config.yaml"), "driver: node-manual\n").unwrap();
    let (code, text) = check(&place, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(!text.contains("the storage were looked at"), "{text}");
    assert!(text.contains("each volume names its own"), "{text}");
    let (_, text) = check(&place, &["--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["online"], false);
}

#[test]
fn a_check_is_stricter_than_the_server_and_says_what_to_do() {
    let place = Place::new();
    place.configure(
        "  dirPermissionMode: \"0770\"\nnode:\n  format:\n    ext4:\n      customOptions: []\n",
    );
    let (code, text) = check(&place, &["--offline", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &report["ok"], &report["online"]),
        (1, &false.into(), &false.into())
    );
    let findings = report["findings"].as_array().unwrap();
    let of = |about: &str| {
        findings
            .iter()
            .find(|f| f["about"].as_str().unwrap().contains(about))
    };
    let unknown = of("dirPermissionMode").expect("the unknown key is found");
    assert_eq!(unknown["weight"], "error");
    assert!(
        unknown["advice"]
            .as_str()
            .unwrap()
            .contains("dirPermissionsMode")
    );
    assert!(
        findings.iter().all(|finding| finding["advice"].is_string()),
        "{text}"
    );
}

#[test]
fn an_error_in_a_common_key_makes_no_other_key_unknown() {
    let place = Place::new();
    for wrong in [
        "_private: {csi: {volume: {idTemplate: '{{'}}}",
        "_private: {csi: {volume: {deleteStrategy: burn}}}",
        "service: {node: {capabilities: {rpc: [FLY]}}}",
        "csi: {access_modes: [NONE]}",
    ] {
        place.configure(&format!("{wrong}\n"));
        let (code, text) = check(&place, &["--offline", "--json"]);
        let report: Value = serde_json::from_str(&text).unwrap();
        let findings = report["findings"].as_array().unwrap();
        assert_eq!((code, findings.len()), (64, 1), "{text}");
    }
}

#[test]
fn a_check_tells_what_the_storage_lacks_and_what_no_server_would_accept() {
    let place = Place::new();
    fs::remove_dir(place.path("base")).unwrap();
    fs::write(place.path("base"), "a file").unwrap();
    let (code, text) = check(&place, &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("storage:"), "{text}");
    fs::write(place.path("config.yaml"), "driver: nonsense\n").unwrap();
    assert_eq!(check(&place, &[]).0, 64);
    fs::remove_file(place.path("config.yaml")).unwrap();
    assert_eq!(check(&place, &["--offline"]).0, 64);
}

#[test]
fn a_reader_that_leaves_early_does_not_break_an_answer() {
    for question in [&["version"][..], &["version", "--environment"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(PROGRAM);
        command.env_clear().args(question).stdout(writer);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let place = Place::new();
    let file = place.path("config.yaml");
    let file = file.to_str().unwrap();
    for (question, code) in [
        (&["check", "--offline", "--driver-config-file", file][..], 0),
        (&["check", "--driver-config-file", "/no/such/file"], 64),
        (&["try", "--json", "--size=nothing"], 64),
        (&["liveness-probe", "--csi-address=/no/such", "--x"], 1),
        (&["--csi-name=incomplete"], 64),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(PROGRAM);
        command.env_clear().args(question);
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let status = command.status().unwrap();
        assert_eq!(status.code(), Some(code), "{question:?}");
    }
}
