//! `explain`: the first broken link of a volume, and none of a sound one.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::harness::{PROGRAM, Place};

/// A place with the volume `pvc-1` in `base`, alone and as the connection `disk` of a proxy.
fn places() -> (Place, Place) {
    let (alone, proxy) = (Place::new(), Place::new());
    for place in [&alone, &proxy] {
        fs::create_dir_all(place.path("base/v/pvc-1")).unwrap();
        fs::create_dir(place.path("kubelet")).unwrap();
    }
    let (main, folder) = (proxy.path("config.yaml"), proxy.path("connections"));
    fs::create_dir(&folder).unwrap();
    fs::rename(&main, folder.join("disk.yaml")).unwrap();
    let text = format!(
        "driver: proxy\nproxy:\n  configFolder: {}\n  nodeTopology: {{type: [node]}}\n",
        folder.display()
    );
    fs::write(main, text).unwrap();
    (alone, proxy)
}

fn arguments(place: &Place, handle: &str, more: &[&str]) -> Vec<String> {
    let (file, kubelet) = (place.path("config.yaml"), place.path("kubelet"));
    let named = [
        "explain".to_owned(),
        format!("--driver-config-file={}", file.display()),
        format!("--kubelet-dir={}", kubelet.display()),
        handle.to_owned(),
    ];
    let more = more.iter().map(|word| (*word).to_owned());
    named.into_iter().chain(more).collect()
}

fn explain(place: &Place, handle: &str, more: &[&str]) -> (i32, String) {
    let mut command = Command::new(PROGRAM);
    let output = command
        .env_clear()
        .args(arguments(place, handle, more))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), text)
}

/// The links as JSON; the exit code says the same.
fn links(place: &Place, handle: &str) -> Value {
    let (code, text) = explain(place, handle, &["--json"]);
    let chain: Value = serde_json::from_str(&text).expect(&text);
    let expected = match chain["state"].as_str() {
        Some("holds") => 0,
        Some("broken") => 1,
        _ => 2,
    };
    assert_eq!(code, expected, "{text}");
    chain
}

/// Checks that this link is named as the first that is broken, with something to do.
fn breaks(place: &Place, handle: &str, link: &str) -> Value {
    let chain = links(place, handle);
    assert_eq!(chain["broken"], link, "{handle}: {chain:#}");
    let all = chain["links"].as_array().unwrap();
    let broken = all.iter().find(|one| one["link"] == link).unwrap();
    assert!(broken["remedy"].is_string(), "{broken:#}");
    broken.clone()
}

#[test]
fn a_sound_volume_has_no_broken_link_and_is_left_as_it_was() {
    let (alone, proxy) = places();
    for (place, handle) in [(&alone, "pvc-1"), (&proxy, "v:disk/pvc-1")] {
        let changed = || {
            let of = |name| fs::metadata(place.path(name)).unwrap().modified().unwrap();
            (of("base"), of("base/v"), of("base/v/pvc-1"))
        };
        let before = changed();
        let chain = links(place, handle);
        assert_eq!(chain["broken"], Value::Null, "{chain:#}");
        let names = chain["links"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|link| link["link"].as_str().unwrap()).collect();
        let expected = [
            "handle",
            "connection",
            "storage",
            "parent",
            "volume",
            "export",
            "staged",
        ];
        assert_eq!(names, expected);
        let (code, text) = explain(place, handle, &[]);
        assert_eq!(code, 0, "{text}");
        assert!(
            text.is_ascii() && text.ends_with("\nall links hold\n"),
            "{text}"
        );
        assert_eq!(changed(), before);
    }
}

#[test]
fn each_fault_of_a_configuration_or_a_directory_names_its_own_link() {
    let (alone, proxy) = places();
    breaks(&alone, "pvc-2", "volume");
    for malformed in ["v:", "v:disk", "v:disk/", "v:../pvc-1"] {
        breaks(&proxy, malformed, "handle");
    }
    breaks(&alone, "", "handle");
    let removed = breaks(&proxy, "v:gone/pvc-1", "connection");
    let remedy = removed["remedy"].as_str().unwrap();
    assert!(remedy.contains("put its file back"), "{remedy}");
    let whose = breaks(&proxy, "pvc-1", "connection");
    let remedy = whose["remedy"].as_str().unwrap();
    assert!(remedy.contains("proxy.legacyConnection"), "{remedy}");
    breaks(&proxy, "v:disk/pvc-2", "volume");
    let file = proxy.path("connections/disk.yaml");
    fs::write(&file, "driver: local-hostpth\n").unwrap();
    let invalid = breaks(&proxy, "v:disk/pvc-1", "connection");
    assert!(invalid["text"].as_str().unwrap().contains("local-hostpth"));
    fs::remove_dir_all(proxy.path("connections")).unwrap();
    let unread = breaks(&proxy, "v:disk/pvc-1", "connection");
    let remedy = unread["remedy"].as_str().unwrap();
    assert!(remedy.contains("proxy.configFolder"), "{remedy}");
    fs::remove_dir_all(alone.path("base")).unwrap();
    breaks(&alone, "pvc-1", "volume");
    fs::write(alone.path("base"), "a file").unwrap();
    let (_, text) = explain(&alone, "pvc-1", &[]);
    assert!(text.contains("\nbroken: storage: "), "{text}");
    assert!(text.contains("\ndo: "), "{text}");
    breaks(&alone, "pvc-1", "storage");
}

#[test]
fn a_volume_made_by_hand_has_no_storage_that_could_be_broken() {
    let place = Place::new();
    fs::write(place.path("config.yaml"), "driver: node-manual\n").unwrap();
    let chain = links(&place, "by-hand");
    assert_eq!(chain["links"][2]["state"], "absent", "{chain:#}");
}

#[test]
fn a_configuration_that_no_server_would_take_is_exit_code_64() {
    let place = Place::new();
    fs::write(place.path("config.yaml"), "driver: nonsense\n").unwrap();
    assert_eq!(explain(&place, "pvc-1", &[]).0, 64);
    let mut command = Command::new(PROGRAM);
    let output = command.env_clear().args(["explain", "pvc-1"]).output();
    assert_eq!(output.unwrap().status.code(), Some(64));
}

#[test]
fn a_directory_that_was_moved_behind_a_link_is_named_and_not_given_up() {
    let (alone, _) = places();
    fs::rename(alone.path("base/v/pvc-1"), alone.path("moved")).unwrap();
    std::os::unix::fs::symlink(alone.path("moved"), alone.path("base/v/pvc-1")).unwrap();
    let volume = breaks(&alone, "pvc-1", "volume");
    let said = |key: &str| volume[key].as_str().unwrap();
    assert!(said("text").contains("it is a symbolic link"), "{volume:#}");
    let remedy = said("remedy");
    assert!(
        remedy.find("put it back") < remedy.find("delete the claim"),
        "{volume:#}"
    );
}

/// The link of that name.
fn named<'a>(chain: &'a Value, name: &str) -> &'a Value {
    let mut all = chain["links"].as_array().unwrap().iter();
    let found = all.find(|one| one["link"] == name);
    found.unwrap_or_else(|| panic!("{name}: {chain:#}"))
}

#[test]
fn a_path_for_nodes_to_another_directory_is_broken_and_a_second_name_of_the_base_is_not() {
    let (alone, _) = places();
    let base = alone.path("base");
    let look_in = |path: &Path| {
        let text = format!(
            "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {}\n  controllerBasePath: {}\n",
            path.display(),
            base.display()
        );
        fs::write(alone.path("config.yaml"), text).unwrap();
    };
    let warned = || {
        let file = format!(
            "--driver-config-file={}",
            alone.path("config.yaml").display()
        );
        let mut command = Command::new(PROGRAM);
        let output = command.env_clear().args(["check", &file]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains("WARNING  local-hostpath.shareBasePath: volumes are made in ")
    };
    let second = alone.path("second");
    std::os::unix::fs::symlink(&base, &second).unwrap();
    for right in [&base, &second] {
        look_in(right);
        assert_eq!(links(&alone, "pvc-1")["broken"], Value::Null);
        assert!(!warned(), "{}", right.display());
    }
    for (wrong, why) in [
        (base.join("v"), "which is another directory"),
        (alone.path("none"), "which is not there"),
    ] {
        look_in(&wrong);
        let volume = breaks(&alone, "pvc-1", "volume");
        let text = volume["text"].as_str().unwrap();
        let place = format!("but nodes look for it in {}/v/pvc-1: ", wrong.display());
        assert!(text.contains(&place) && text.ends_with(why), "{text}");
        assert!(warned(), "{}", wrong.display());
    }
    // Where no pods are served, it may be right.
    fs::remove_dir(alone.path("kubelet")).unwrap();
    assert_eq!(links(&alone, "pvc-1")["broken"], Value::Null);
}

#[test]
fn a_filesystem_without_inodes_is_named_by_explain_check_and_connections() {
    if !rustix::process::geteuid().is_root() {
        node_utils::requirement::this_test_could_not_run("it mounts, and needs root");
        return;
    }
    let (alone, proxy) = places();
    record(&alone.path(STAGED), "pvc-1");
    let staging = alone.path(STAGED).join("globalmount");
    fs::create_dir(&staging).unwrap();
    let used_up = |place: &Place, words: &[String], code: i32| {
        let script = "mount -t tmpfs -o size=8m,nr_inodes=16 t \"$BASE\" && mkdir -p \"$BASE/v/pvc-1\" || exit 99\n\
                      mount --bind \"$BASE/v/pvc-1\" \"$STAGING\" || exit 99\n\
                      i=0; while touch \"$STAGING/$i\" 2>/dev/null; do i=$((i+1)); done\n\
                      \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.args([script, "sh", PROGRAM]).args(words);
        command
            .env("BASE", place.path("base"))
            .env("STAGING", &staging);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        serde_json::from_str::<Value>(&text).expect(&text)
    };
    let chain = used_up(&alone, &arguments(&alone, "pvc-1", &["--json"]), 1);
    assert_eq!(chain["broken"], "parent", "{chain:#}");
    let sentence = "no inodes are left (16 of 16 files)";
    for name in ["parent", "mount"] {
        let link = named(&chain, name);
        assert_eq!(link["state"], "broken", "{link:#}");
        assert!(
            link["text"].as_str().unwrap().contains(sentence),
            "{link:#}"
        );
    }
    let facts = &named(&chain, "mount")["facts"];
    assert_eq!(facts["inodes_total"], 16, "{facts}");
    assert_eq!(facts["inodes_free"], 0, "{facts}");
    assert_eq!(facts["reason"], "NoInodesLeft", "{facts}");
    let of = |command: &str, place: &Place, code: i32| {
        let file = format!(
            "--driver-config-file={}",
            place.path("config.yaml").display()
        );
        used_up(
            place,
            &[command.to_owned(), file, "--json".to_owned()],
            code,
        )
    };
    let report = of("check", &alone, 1);
    assert!(
        report["findings"].to_string().contains(sentence),
        "{report:#}"
    );
    // It still serves what is there.
    let listed = of("connections", &proxy, 0);
    assert_eq!(listed["connections"][0]["health"], "good", "{listed:#}");
    let error = listed["connections"][0]["error"].as_str().unwrap();
    assert!(error.contains(sentence), "{error}");
}

/// What the kubelet writes beside a path of a volume.
fn record(folder: &Path, handle: &str) {
    fs::create_dir_all(folder).unwrap();
    let text = json!({"driverName": "org.example", "volumeHandle": handle, "specVolID": "pv"});
    fs::write(folder.join("vol_data.json"), text.to_string()).unwrap();
}

const STAGED: &str = "kubelet/plugins/kubernetes.io/csi/org.example/0a1b";
const PUBLISHED: &str = "kubelet/pods/1234/volumes/kubernetes.io~csi/pv";

#[test]
fn on_a_node_a_staging_or_target_path_without_its_mount_is_the_broken_link() {
    let (alone, _) = places();
    record(&alone.path(STAGED), "another");
    assert_eq!(links(&alone, "pvc-1")["broken"], Value::Null);
    record(&alone.path(PUBLISHED), "pvc-1");
    let published = breaks(&alone, "pvc-1", "published");
    assert_eq!(published["pod"], Value::Null);
    assert_eq!(published["facts"]["pod"], "1234");
    record(&alone.path(STAGED), "pvc-1");
    fs::create_dir(alone.path(STAGED).join("globalmount")).unwrap();
    breaks(&alone, "pvc-1", "mount");
    // What the storage lacks comes first.
    fs::remove_dir(alone.path("base/v/pvc-1")).unwrap();
    breaks(&alone, "pvc-1", "volume");
    let (code, text) = explain(&alone, "pvc-1", &["--node-only"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("broken: mount: nothing is mounted at"),
        "{text}"
    );
}

#[test]
fn on_a_node_what_is_mounted_is_judged_and_stays_mounted() {
    if !rustix::process::geteuid().is_root() {
        node_utils::requirement::this_test_could_not_run("it mounts, and needs root");
        return;
    }
    let (alone, _) = places();
    record(&alone.path(STAGED), "pvc-1");
    record(&alone.path(PUBLISHED), "pvc-1");
    let staging = alone.path(STAGED).join("globalmount");
    let target = alone.path(PUBLISHED).join("mount");
    fs::create_dir(&staging).unwrap();
    fs::create_dir(&target).unwrap();
    let mounted = |then: &str| {
        let script = "mount --bind \"$VOLUME\" \"$STAGING\" && mount --bind \"$STAGING\" \"$TARGET\" || exit 99\n";
        let count = "\nmountpoint -q \"$STAGING\" && mountpoint -q \"$TARGET\" || exit 98\n";
        let script = format!("{script}{then}\n\"$@\"; code=$?{count}exit $code");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.args([&script, "sh", PROGRAM]);
        command.args(arguments(&alone, "pvc-1", &["--json"]));
        command
            .env("VOLUME", alone.path("base/v/pvc-1"))
            .env("STAGING", &staging)
            .env("TARGET", &target);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let chain: Value = serde_json::from_str(&text).expect(&text);
        (output.status.code().unwrap(), chain)
    };
    let (code, chain) = mounted("true");
    assert_eq!(code, 0, "{chain:#}");
    let all = chain["links"].as_array().unwrap();
    let used = |link: &str| {
        let link = all.iter().find(|one| one["link"] == link).unwrap();
        link["facts"]["used_bytes"].is_u64()
    };
    assert!(used("mount") && used("published"), "{chain:#}");
    // Moved away while a pod has it, and another one put in its place.
    let (code, chain) = mounted("mv \"$VOLUME\" \"$VOLUME-old\" && mkdir \"$VOLUME\"");
    assert_eq!((code, &chain["broken"]), (1, &json!("mount")), "{chain:#}");
    for name in ["mount", "published"] {
        let link = named(&chain, name);
        assert_eq!(link["facts"]["reason"], "AnotherDirectory", "{link:#}");
        let remedy = link["remedy"].as_str().unwrap();
        assert!(remedy.contains("/pvc-1-old of that"), "{remedy}");
    }
    // Deleted on the storage while a pod has it: the volume is the first link, and the mount is one, too.
    let (code, chain) = mounted("rmdir \"$VOLUME\"");
    assert_eq!((code, &chain["broken"]), (1, &json!("volume")), "{chain:#}");
    let all = chain["links"].as_array().unwrap();
    let mount = all.iter().find(|one| one["link"] == "mount").unwrap();
    assert_eq!(mount["facts"]["reason"], "DirectoryDeleted", "{chain:#}");
}
