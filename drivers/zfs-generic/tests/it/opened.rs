//! A port of nvmet that listens again, on a configfs that pretends: it refuses nodes whose subsystem it does not
//! have, and they lose their disks. So all that was saved for it is there when it has its first link.

use std::path::Path;

use crate::common::{Ask, Host, NVMET, Volume};
use driver_core::NodeId;
use driver_zfs::Export as _;
use driver_zfs::export::Act;
use driver_zfs_cli::exec::Command;
use driver_zfs_generic::DiskExport;

const OLD: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

/// Counts the namespaces that are enabled when the port gets a link, a line for each command.
const LN: &str = "#!/bin/sh
for last; do :; done
case $last in */ports/*)
    cat \"${0%/bin/*}\"/cfg/nvmet/subsystems/*/namespaces/1/enable | tr -d '\\n' >>\"${0%/bin/*}/opened\"
    echo >>\"${0%/bin/*}/opened\" ;;
esac
";

/// Counts the seconds, and does not sleep them.
const SLEEP: &str =
    "#!/bin/sh\n[ \"$1\" != 0.05 ] || exec /bin/sleep 0.05\necho >>\"${0%/bin/*}/slept\"\n";

/// A command of this host, and then that of the fake kernel.
fn before(host: &Host, name: &str, text: &str) {
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
    let fake = fake.join(name).display().to_string();
    host.program(name, &format!("{text}exec '{fake}' \"$@\"\n"));
}

fn subsystem(number: u64) -> String {
    format!("cfg/nvmet/subsystems/nqn.2003-01.org.example:pvc-{number}")
}

fn is_linked(host: &Host, number: u64) -> bool {
    let link = format!("cfg/nvmet/ports/1/subsystems/nqn.2003-01.org.example:pvc-{number}");
    host.path(&link).is_symlink()
}

fn lets_in(host: &Host, number: u64, node: &str) -> bool {
    let link = format!(
        "{}/allowed_hosts/nqn.2014-08.org.example:{node}",
        subsystem(number)
    );
    host.path(&link).is_symlink()
}

/// ZFS shows a pool in this state.
fn has_pool(host: &Host, pool: &str, state: &str) {
    let folder = host.path("pools").join(pool);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("state"), format!("{state}\n")).unwrap();
}

async fn establish(host: &Host, export: &DiskExport, volume: &mut Volume) {
    host.settle(export, volume, &Ask::Establish).await.unwrap();
}

/// Volumes of these numbers, each published to these nodes.
async fn published(
    host: &Host,
    export: &DiskExport,
    numbers: &[u64],
    nodes: &[&str],
) -> Vec<Volume> {
    let mut volumes = Vec::new();
    for number in numbers {
        let mut volume = Volume::new("tank/k8s v", &format!("pvc-{number}"), *number);
        establish(host, export, &mut volume).await;
        for node in nodes {
            let allow = Ask::Allow(NodeId::parse(node).unwrap());
            host.settle(export, &mut volume, &allow).await.unwrap();
        }
        volumes.push(volume);
    }
    volumes
}

#[tokio::test]
async fn a_port_that_opens_again_gets_all_that_was_saved_for_it_at_once() {
    let open = NVMET.replace(
        "    nodes: {nameTemplate: 'nqn.2014-08.org.example:{{node}}'}\n",
        "",
    );
    assert_ne!(open, NVMET);
    for (text, nodes) in [(NVMET, &["a", "b"][..]), (open.as_str(), &[])] {
        let host = Host::new();
        let export = host.export(text);
        let mut volumes = published(&host, &export, &[1, 2, 3], nodes).await;
        let (tree, etc) = (host.tree("cfg/nvmet"), host.tree("etc"));
        host.starts_again();
        before(&host, "ln", LN);
        establish(&host, &export, &mut volumes[1]).await;
        assert_eq!(host.text("opened"), "111\n");
        assert_eq!((host.tree("cfg/nvmet"), host.tree("etc")), (tree, etc));
        for volume in &volumes {
            assert_eq!(host.facts(&export, volume).await.missing, [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_port_that_listens_gets_only_what_is_asked_for() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2, 3], &[]).await;
    // By hand, and the file still has it.
    let link = "cfg/nvmet/ports/1/subsystems/nqn.2003-01.org.example:pvc-";
    for number in [1, 3] {
        std::fs::remove_file(host.path(&format!("{link}{number}"))).unwrap();
    }
    establish(&host, &export, &mut volumes[0]).await;
    assert_eq!([1, 2, 3].map(|n| is_linked(&host, n)), [true, true, false]);
}

#[tokio::test]
async fn wherever_the_opening_of_a_port_is_cut_the_retry_restores_all() {
    let (mut steps, mut cut) = (0, 0);
    while cut <= steps {
        let mut host = Host::new();
        let export = host.export(NVMET);
        let mut volumes = published(&host, &export, &[1, 2], &["a"]).await;
        let tree = host.tree("cfg/nvmet");
        host.starts_again();
        host.program("sleep", SLEEP);
        host.counted();
        host.cut = (cut > 0).then_some(cut);
        let done = host
            .settle(&export, &mut volumes[1], &Ask::Establish)
            .await
            .is_ok();
        if cut == 0 {
            steps = host.counted();
            assert!(done);
        }
        // The port has both, or none.
        assert_eq!(is_linked(&host, 1), is_linked(&host, 2), "cut {cut}");
        host.cut = None;
        establish(&host, &export, &mut volumes[1]).await;
        assert_eq!(host.tree("cfg/nvmet"), tree, "cut {cut}");
        cut += 1;
    }
    assert!(steps > 6, "{steps}");
}

#[tokio::test]
async fn what_cannot_be_made_is_waited_for_and_then_left_out() {
    for comes in [true, false] {
        let host = Host::new();
        let export = host.export(NVMET);
        let mut volumes = published(&host, &export, &[1, 2, 3], &["a"]).await;
        host.starts_again();
        // The disk is there after three seconds, or never.
        let until = if comes { 3 } else { 100 };
        let mkdir = format!(
            "#!/bin/sh\ncase $* in */subsystems/*:pvc-1/namespaces/1)\n\
             [ \"$(cat \"${{0%/bin/*}}/slept\" 2>/dev/null | wc -l)\" -ge {until} ] || exit 1 ;;\nesac\n"
        );
        before(&host, "mkdir", &mkdir);
        host.program("sleep", SLEEP);
        establish(&host, &export, &mut volumes[1]).await;
        assert_eq!([1, 2, 3].map(|n| is_linked(&host, n)), [comes, true, true]);
        assert_eq!(host.path(&subsystem(1)).exists(), comes);
        let slept = host.text("slept").lines().count();
        assert_eq!(slept, if comes { 3 } else { 10 });
        assert!(lets_in(&host, 3, "a"));
        let why = "left out: nqn.2003-01.org.example:pvc-1 of port 1: cannot make subsystems/";
        assert_eq!(host.said().contains(why), !comes, "{}", host.said());
        // What was left out is restored in its turn.
        before(&host, "mkdir", "#!/bin/sh\n");
        establish(&host, &export, &mut volumes[0]).await;
        assert!(is_linked(&host, 1) && lets_in(&host, 1, "a"));
    }
}

#[tokio::test]
async fn a_port_stays_closed_while_what_was_saved_for_it_cannot_be_read() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &["a"]).await;
    let file = host.path("etc/saved.json");
    let (tree, saved) = (host.tree("cfg/nvmet"), host.text("etc/saved.json"));
    for text in [
        &saved[..saved.len() / 2],
        "{\"ports\": [",
        "no configuration\n",
        "\n",
        "",
    ] {
        host.starts_again();
        std::fs::write(&file, text).unwrap();
        let done = host.settle(&export, &mut volumes[1], &Ask::Establish).await;
        let error = done.unwrap_err();
        let named = format!("port 1 stays closed, as {} cannot be read", file.display());
        assert!(error.stderr().contains(&named), "{text:?}: {error}");
        assert_eq!([1, 2].map(|n| is_linked(&host, n)), [false; 2], "{text:?}");
        assert_eq!(host.text("etc/saved.json"), text);
    }
    // The filesystem that a link leads to is not mounted.
    host.starts_again();
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("../kept/saved.json", &file).unwrap();
    let done = host.settle(&export, &mut volumes[1], &Ask::Establish).await;
    let error = done.unwrap_err();
    assert!(error.stderr().contains("leads nowhere"), "{error}");
    assert!(!is_linked(&host, 2) && !host.path("kept").exists());
    // It is mounted, and what was half made is completed.
    std::fs::create_dir(host.path("kept")).unwrap();
    std::fs::write(host.path("kept/saved.json"), &saved).unwrap();
    establish(&host, &export, &mut volumes[1]).await;
    assert_eq!(host.tree("cfg/nvmet"), tree);
}

/// The one command of these acts.
fn only(acts: Vec<Act<Command>>) -> Command {
    let commands = acts.into_iter().filter_map(|act| match act {
        Act::Do(command) => Some(command),
        _ => None,
    });
    let [command]: [Command; 1] = commands.collect::<Vec<_>>().try_into().unwrap();
    command
}

#[tokio::test]
async fn a_file_that_cannot_be_looked_at_is_not_one_that_does_not_exist() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &["a"]).await;
    let (etc, kept) = (host.path("etc"), host.path("kept"));
    let (tree, saved) = (host.tree("cfg/nvmet"), host.text("etc/saved.json"));
    let unseen = format!("cannot see whether {}/saved.json is there", etc.display());
    // Its folder is a link to itself, and cannot be looked into.
    let hide = || {
        std::fs::rename(&etc, &kept).unwrap();
        std::os::unix::fs::symlink("etc", &etc).unwrap();
    };
    let show = || {
        std::fs::remove_file(&etc).unwrap();
        std::fs::rename(&kept, &etc).unwrap();
    };
    for makes in [true, false] {
        if makes {
            host.starts_again();
        }
        let facts = host.facts(&export, &volumes[1]).await;
        let subject = volumes[1].subject();
        let name = export.export_name(&subject).unwrap();
        let command = only(if makes {
            export.ensure(&subject, &name, &facts).unwrap()
        } else {
            export.remove(&subject, &name, &facts).unwrap()
        });
        hide();
        for look in export.observe(&subject, &name) {
            let error = host.run(&look).await.unwrap_err();
            assert!(error.stderr().contains(&unseen), "{error}");
        }
        let error = host.run(&command).await.unwrap_err();
        assert!(error.stderr().contains(&unseen), "{error}");
        show();
        assert_eq!(host.text("etc/saved.json"), saved);
        if makes {
            assert!(error.stderr().contains("port 1 stays closed"), "{error}");
            assert_eq!([1, 2].map(|n| is_linked(&host, n)), [false; 2]);
            establish(&host, &export, &mut volumes[1]).await;
            assert_eq!(host.tree("cfg/nvmet"), tree);
        } else {
            // The next call forgets it.
            host.remove(&export, &volumes[1]).await.unwrap();
            assert!(!host.text("etc/saved.json").contains("pvc-2"));
        }
    }
}

#[tokio::test]
async fn a_node_that_was_let_in_and_not_saved_is_not_put_out() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2, 3], &[]).await;
    // A call was cut after it had let in a node.
    let node = host.path("cfg/nvmet/hosts/nqn.2014-08.org.example:a");
    std::fs::create_dir(&node).unwrap();
    let allowed = format!("{}/allowed_hosts/nqn.2014-08.org.example:a", subsystem(1));
    std::os::unix::fs::symlink(&node, host.path(&allowed)).unwrap();
    for number in 1..=3 {
        let link = "cfg/nvmet/ports/1/subsystems/nqn.2003-01.org.example:pvc-";
        std::fs::remove_file(host.path(&format!("{link}{number}"))).unwrap();
    }
    before(&host, "ln", LN);
    establish(&host, &export, &mut volumes[1]).await;
    assert_eq!(host.text("opened"), "111\n");
    assert!(lets_in(&host, 1, "a"));
}

#[tokio::test]
async fn an_attribute_that_another_kernel_has_saved_keeps_no_disk_out() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &["a"]).await;
    let saved = host.text("etc/saved.json");
    let newer = saved.replace("\"allow_any_host\"", "\"newer\": \"1\", \"allow_any_host\"");
    assert_ne!(newer, saved);
    std::fs::write(host.path("etc/saved.json"), newer).unwrap();
    host.starts_again();
    host.program("sleep", SLEEP);
    establish(&host, &export, &mut volumes[1]).await;
    assert!(is_linked(&host, 1) && lets_in(&host, 1, "a"));
    assert!(!host.path("slept").exists(), "it was waited for");
    assert!(!host.said().contains("left out"), "{}", host.said());
}

#[tokio::test]
async fn an_attribute_that_the_kernel_refuses_is_left_out_alone() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &["a"]).await;
    host.starts_again();
    host.program("sleep", SLEEP);
    // What is a folder takes no value.
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/mkdir");
    let refusing = format!(
        "#!/bin/sh\n'{}' \"$@\" || exit 1\ncase $1 in */subsystems/*:pvc-1)\n\
         /bin/rm \"$1/attr_model\" && /bin/mkdir \"$1/attr_model\" ;;\nesac\n",
        fake.display()
    );
    host.program("mkdir", &refusing);
    establish(&host, &export, &mut volumes[1]).await;
    assert!(is_linked(&host, 1) && lets_in(&host, 1, "a"));
    assert!(!host.path("slept").exists(), "it was waited for");
    let why = "left out: attr_model of nqn.2003-01.org.example:pvc-1 of port 1: the kernel refuses";
    assert!(host.said().contains(why), "{}", host.said());
}

#[tokio::test]
async fn a_pool_that_does_not_answer_keeps_no_port_closed() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2, 3], &["a"]).await;
    host.starts_again();
    // Whatever it is asked to open.
    host.program(
        "dd",
        "#!/bin/sh\necho >>\"${0%/bin/*}/opened\"\nexec /bin/sleep 30\n",
    );
    host.program("sleep", "#!/bin/sh\nexec /bin/sleep 0.02\n");
    establish(&host, &export, &mut volumes[1]).await;
    assert_eq!([1, 2, 3].map(|n| is_linked(&host, n)), [false, true, false]);
    // One device of the pool is opened, and not one of each volume.
    assert_eq!(host.text("opened"), "\n");
    for number in [1, 3] {
        let why = format!(
            "left out: nqn.2003-01.org.example:pvc-{number} of port 1: the pool tank does not answer"
        );
        assert!(host.said().contains(&why), "{}", host.said());
        assert!(!host.path(&subsystem(number)).exists());
    }
    // Later each is restored by itself.
    establish(&host, &export, &mut volumes[0]).await;
    assert!(is_linked(&host, 1) && lets_in(&host, 1, "a"));
}

#[tokio::test]
async fn a_pool_that_says_that_it_is_suspended_keeps_no_port_waiting() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &["a"]).await;
    let mut saved: serde_json::Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
    saved["subsystems"][0]["namespaces"][0]["device"]["path"] = "/dev/zvol/other/a".into();
    std::fs::write(host.path("etc/saved.json"), saved.to_string()).unwrap();
    host.starts_again();
    has_pool(&host, "other", "SUSPENDED");
    // ZFS may open a device of such a pool all the same.
    host.program("dd", "#!/bin/sh\necho >>\"${0%/bin/*}/opened\"\n");
    host.program("sleep", SLEEP);
    establish(&host, &export, &mut volumes[1]).await;
    assert_eq!([1, 2].map(|n| is_linked(&host, n)), [false, true]);
    assert!(!host.path("opened").exists(), "its disk was opened");
    assert!(!host.path("slept").exists(), "it was waited for");
    let why = "pvc-1 of port 1: the pool other does not answer";
    assert!(host.said().contains(why), "{}", host.said());
}

#[tokio::test]
async fn a_disk_of_a_suspended_pool_is_neither_opened_nor_let_go_and_its_call_ends_at_once() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &["a"]).await;
    let namespace = format!("{}/namespaces/1", subsystem(2));
    let enable = host.path(&format!("{namespace}/enable"));
    let why = ":pvc-2 stays as it is, as its pool is suspended: tank";
    has_pool(&host, "tank", "SUSPENDED");
    // A deletion, and the last node that leaves.
    let etc = host.tree("etc");
    let error = host.remove(&export, &volumes[1]).await.unwrap_err();
    assert!(error.stderr().contains(why), "{error}");
    let all = Ask::Revoke(None);
    let left = host.settle(&export, &mut volumes[1], &all).await;
    let error = left.unwrap_err();
    assert!(error.stderr().contains(why), "{error}");
    assert_eq!(std::fs::read_to_string(&enable).unwrap(), "1\n");
    assert_eq!([1, 2].map(|n| is_linked(&host, n)), [true; 2]);
    assert_eq!(host.tree("etc"), etc);
    // A disk that has to be opened.
    host.starts_again();
    let made = host.settle(&export, &mut volumes[1], &Ask::Establish).await;
    let error = made.unwrap_err();
    assert!(error.stderr().contains(why), "{error}");
    assert_eq!(std::fs::read_to_string(&enable).unwrap(), "0\n");
    // What is not opened yet goes.
    host.remove(&export, &volumes[1]).await.unwrap();
    assert!(!host.path(&subsystem(2)).exists());
    has_pool(&host, "tank", "ONLINE");
    establish(&host, &export, &mut volumes[1]).await;
    assert!(is_linked(&host, 2));
}

#[tokio::test]
async fn a_disk_that_is_no_zvol_is_not_taken_for_one_of_a_pool_that_does_not_answer() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2, 3, 4], &[]).await;
    let mut saved: serde_json::Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
    let subsystems = saved["subsystems"].as_array_mut().unwrap();
    for (at, path) in [
        (0, "/dev/zvol/one/a"),
        (2, "/dev/zvol/two/b"),
        (3, "/dev/sdx"),
    ] {
        subsystems[at]["namespaces"][0]["device"]["path"] = path.into();
    }
    std::fs::write(host.path("etc/saved.json"), saved.to_string()).unwrap();
    host.starts_again();
    host.program(
        "dd",
        "#!/bin/sh\ncase $1 in if=/dev/zvol/*) exec /bin/sleep 30 ;; esac\n",
    );
    host.program("sleep", "#!/bin/sh\nexec /bin/sleep 0.02\n");
    establish(&host, &export, &mut volumes[1]).await;
    let linked = [1, 2, 3, 4].map(|n| is_linked(&host, n));
    assert_eq!(linked, [false, true, false, true], "{}", host.said());
}

#[tokio::test]
async fn what_the_driver_has_not_saved_so_is_named() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &[]).await;
    let mut saved: serde_json::Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
    let listed = saved["ports"][0]["subsystems"].as_array_mut().unwrap();
    listed.push("nqn.of-another-tool".into());
    let subsystems = saved["subsystems"].as_array_mut().unwrap();
    subsystems[0]["namespaces"][0]["nsid"] = 2.into();
    std::fs::write(host.path("etc/saved.json"), saved.to_string()).unwrap();
    host.starts_again();
    establish(&host, &export, &mut volumes[1]).await;
    assert_eq!([1, 2].map(|n| is_linked(&host, n)), [false, true]);
    for name in ["nqn.2003-01.org.example:pvc-1", "nqn.of-another-tool"] {
        let why = format!("left out: {name} of port 1: it is not saved as the driver makes it\n");
        assert!(host.said().contains(&why), "{}", host.said());
    }
}

#[tokio::test]
async fn a_disk_of_others_is_not_linked_by_a_name_that_was_saved() {
    let host = Host::new();
    let export = host.export(NVMET);
    let mut volumes = published(&host, &export, &[1, 2], &[]).await;
    host.starts_again();
    let theirs = host.path(&subsystem(1)).join("namespaces/1");
    std::fs::create_dir_all(&theirs).unwrap();
    std::fs::write(theirs.join("device_path"), "/dev/theirs\n").unwrap();
    let tree = host.tree(&subsystem(1));
    establish(&host, &export, &mut volumes[1]).await;
    assert_eq!([is_linked(&host, 1), is_linked(&host, 2)], [false, true]);
    assert_eq!(host.tree(&subsystem(1)), tree);
    let why = "pvc-1 of port 1: its name is in use for another disk";
    assert!(host.said().contains(why), "{}", host.said());
}

#[tokio::test]
async fn a_node_that_was_saved_with_a_key_gets_in_with_it_or_not_at_all() {
    let host = Host::new();
    let keys = format!("    dhchapKeys: {{a: '{OLD}'}}\n    nvmetcliRestoresKeys: true\n");
    let with_keys = host.export(&format!("{NVMET}{keys}"));
    let without = host.export(NVMET);
    let mut theirs = published(&host, &with_keys, &[1, 2], &["a"]).await;
    let mut ours = published(&host, &without, &[3], &["b"]).await;
    // By a connection that has no keys.
    host.starts_again();
    establish(&host, &without, &mut ours[0]).await;
    assert!(is_linked(&host, 1) && !lets_in(&host, 1, "a"));
    assert!(lets_in(&host, 3, "b"));
    // By the one that has them.
    host.starts_again();
    establish(&host, &with_keys, &mut theirs[1]).await;
    assert!(lets_in(&host, 1, "a") && lets_in(&host, 3, "b"));
    let key = host.text("cfg/nvmet/hosts/nqn.2014-08.org.example:a/dhchap_key");
    assert_eq!(key.trim(), OLD);
}
