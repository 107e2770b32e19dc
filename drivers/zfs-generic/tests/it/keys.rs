//! Subsystems that ask nodes for their keys, on a configfs that pretends.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use driver_core::config::{ConfigError, Document, NoEnvironment};
use driver_core::{Kind, NodeId};
use driver_zfs::Export;
use driver_zfs::export::Act;
use driver_zfs_cli::exec::Command;
use driver_zfs_generic::{DiskExport, Facts, nvmeof};
use serde_json::{Value, json};

use crate::common::{Ask, Host, NVMET, Volume};

const OLD: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const NEW: &str = "DHHC-1:00:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:";

/// The subsystems of volumes, with these keys of nodes.
fn with_keys(keys: &[(&str, &str)]) -> String {
    let keys = keys.iter().map(|(node, key)| format!("{node}: '{key}'"));
    let keys: Vec<String> = keys.collect();
    format!("{NVMET}    dhchapKeys: {{{}}}\n", keys.join(", "))
}

/// The same, on a host that restores keys.
fn with_restored_keys(keys: &[(&str, &str)]) -> String {
    with_keys(keys) + "    nvmetcliRestoresKeys: true\n"
}

fn nqn(node: &str) -> String {
    format!("nqn.2014-08.org.example:{node}")
}

fn allow(node: &str) -> Ask {
    Ask::Allow(NodeId::parse(node).unwrap())
}

fn key_file(node: &str) -> String {
    format!("cfg/nvmet/hosts/{}/dhchap_key", nqn(node))
}

fn key(host: &Host, node: &str) -> String {
    host.text(&key_file(node)).trim().to_owned()
}

fn is_in(host: &Host, node: &str) -> bool {
    let subsystem = "cfg/nvmet/subsystems/nqn.2003-01.org.example:pvc-1";
    let link = format!("{subsystem}/allowed_hosts/{}", nqn(node));
    host.path(&link).is_symlink()
}

fn saved(host: &Host) -> Value {
    serde_json::from_str(&host.text("etc/saved.json")).unwrap()
}

/// A volume that these nodes have access to.
async fn reached_by(host: &Host, export: &DiskExport, nodes: &[&str]) -> Volume {
    let mut volume = Volume::new("tank/v", "pvc-1", 7);
    host.settle(export, &mut volume, &Ask::Establish)
        .await
        .unwrap();
    for node in nodes {
        host.settle(export, &mut volume, &allow(node))
            .await
            .unwrap();
    }
    volume
}

#[tokio::test]
async fn a_node_is_asked_for_its_key_and_is_not_saved_without_it() {
    let host = Host::new();
    let export = host.export(&with_keys(&[("a", OLD), ("b", NEW)]));
    let volume = reached_by(&host, &export, &["a", "b"]).await;
    assert_eq!([key(&host, "a"), key(&host, "b")], [OLD, NEW]);
    let file = host.path(&key_file("a")).metadata().unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    let facts = host.facts(&export, &volume).await;
    assert_eq!(facts.allowed, [nqn("a"), nqn("b")]);
    assert_eq!(facts.missing, [""; 0]);
    // A tool that restores no keys would let them in.
    assert_eq!(saved(&host)["subsystems"][0]["allowed_hosts"], json!([]));
    let text = host.text("etc/saved.json");
    assert!(
        !text.contains("DHHC") && !text.contains(&nqn("a")),
        "{text}"
    );
}

#[tokio::test]
async fn what_restores_keys_finds_them_saved_with_the_node() {
    let host = Host::new();
    let text = with_restored_keys(&[("a", OLD)]);
    let export = host.export(&text);
    let volume = reached_by(&host, &export, &["a"]).await;
    let config = saved(&host);
    assert_eq!(config["subsystems"][0]["allowed_hosts"], json!([nqn("a")]));
    let dhchap = json!({
        "ctrl_key": "", "dhgroup": "null", "hash": "hmac(sha256)", "key": OLD,
    });
    assert_eq!(
        config["hosts"],
        json!([{"nqn": nqn("a"), "dhchap": dhchap}])
    );
    // A key that was saved and changed since is saved again.
    let text = text.replace(OLD, NEW);
    let export = host.export(&text);
    assert!(host.ensure(&export, &volume).await.unwrap().unwrap() > 0);
    assert_eq!(saved(&host)["hosts"][0]["dhchap"]["key"], NEW);
    assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_host_that_lost_all_lets_no_node_in_without_its_key() {
    let host = Host::new();
    let export = host.export(&with_keys(&[("a", OLD)]));
    let mut volume = reached_by(&host, &export, &["a"]).await;
    host.starts_again();
    host.settle(&export, &mut volume, &Ask::Establish)
        .await
        .unwrap();
    assert!(is_in(&host, "a"));
    assert_eq!(key(&host, "a"), OLD);
    // Something else has let it in.
    std::fs::write(host.path(&key_file("a")), "\n").unwrap();
    let missing = format!("hosts/{}/dhchap_key", nqn("a"));
    assert_eq!(host.facts(&export, &volume).await.missing, [missing]);
    for ask in [Ask::Establish, allow("a")] {
        std::fs::write(host.path(&key_file("a")), "\n").unwrap();
        host.settle(&export, &mut volume, &ask).await.unwrap();
        assert_eq!(key(&host, "a"), OLD);
    }
}

#[tokio::test]
async fn a_key_that_every_user_of_the_host_can_read_is_hidden_by_what_comes_next() {
    let host = Host::new();
    let export = host.export(&with_restored_keys(&[("a", OLD)]));
    let mut volume = reached_by(&host, &export, &["a"]).await;
    let file = host.path(&key_file("a"));
    let mode = || file.metadata().unwrap().permissions().mode() & 0o777;
    for ask in [Ask::Establish, allow("a")] {
        // As after a start of the host, which has restored it.
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let missing = format!("hosts/{}/dhchap_key", nqn("a"));
        assert_eq!(host.facts(&export, &volume).await.missing, [missing]);
        host.settle(&export, &mut volume, &ask).await.unwrap();
        assert_eq!((mode(), key(&host, "a")), (0o600, OLD.to_owned()));
    }
}

#[tokio::test]
async fn a_changed_key_is_put_in_the_place_of_the_old_one_and_sessions_go_on() {
    let host = Host::new();
    host.shows_controllers();
    let mut volume = reached_by(&host, &host.export(&with_keys(&[("a", OLD)])), &["a"]).await;
    let target = "nqn.2003-01.org.example:pvc-1";
    host.connect(target, &nqn("a"), 1);
    let export = host.export(&with_keys(&[("a", NEW)]));
    host.settle(&export, &mut volume, &Ask::Establish)
        .await
        .unwrap();
    assert_eq!(key(&host, "a"), NEW);
    assert!(is_in(&host, "a") && host.is_connected(target, &nqn("a")));
}

#[tokio::test]
async fn at_no_step_is_a_node_in_without_its_key() {
    let (mut steps, mut cut) = (0, 0);
    while cut <= steps {
        let mut host = Host::new();
        let export = host.export(&with_keys(&[("a", OLD)]));
        let mut volume = reached_by(&host, &export, &[]).await;
        host.counted();
        host.cut = (cut > 0).then_some(cut);
        let done = host.settle(&export, &mut volume, &allow("a")).await.is_ok();
        if cut == 0 {
            steps = host.counted();
        }
        assert_eq!(done, cut == 0);
        assert!(!is_in(&host, "a") || key(&host, "a") == OLD, "cut {cut}");
        host.cut = None;
        host.settle(&export, &mut volume, &allow("a"))
            .await
            .unwrap();
        assert!(is_in(&host, "a") && key(&host, "a") == OLD, "cut {cut}");
        cut += 1;
    }
    assert!(steps >= 2, "{steps}");
}

#[tokio::test]
async fn a_node_without_a_key_is_refused_where_it_is_published_and_put_out_like_any_other() {
    let host = Host::new();
    let export = host.export(&with_keys(&[("a", OLD)]));
    let [a, b] = ["a", "b"].map(|id| NodeId::parse(id).unwrap());
    let error = export.admits(&b).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.chain().contains(&nqn("b")), "{}", error.chain());
    assert!(error.chain().contains("dhchapKeys"), "{}", error.chain());
    assert!(export.names(&b) && export.admits(&a).is_ok());
    assert!(host.export(NVMET).admits(&b).is_ok());
    // A volume that was open is closed with the node that is revoked in its list.
    let mut volume = reached_by(&host, &export, &["a", "b"]).await;
    let revoke = Ask::Revoke(Some(b));
    host.settle(&export, &mut volume, &revoke).await.unwrap();
    assert_eq!([is_in(&host, "a"), is_in(&host, "b")], [true, false]);
    assert_eq!(key(&host, "a"), OLD);
}

#[tokio::test]
async fn a_key_goes_with_its_node_out_of_the_last_subsystem() {
    for (restored, removed) in [(false, false), (false, true), (true, false), (true, true)] {
        let host = Host::new();
        let keys = [("a", OLD)];
        let export = host.export(&if restored {
            with_restored_keys(&keys)
        } else {
            with_keys(&keys)
        });
        let mut volume = reached_by(&host, &export, &["a"]).await;
        assert_eq!(host.text("etc/saved.json").contains("DHHC"), restored);
        if removed {
            host.remove(&export, &volume).await.unwrap();
        } else {
            let all = Ask::Revoke(None);
            host.settle(&export, &mut volume, &all).await.unwrap();
        }
        assert!(!host.path(&key_file("a")).exists());
        let text = host.text("etc/saved.json");
        assert!(!text.contains("DHHC"), "{restored} {removed}: {text}");
        assert_eq!(saved(&host)["hosts"], json!([]));
    }
}

#[tokio::test]
async fn a_key_stays_saved_while_another_volume_needs_it() {
    let host = Host::new();
    let export = host.export(&with_restored_keys(&[("a", OLD), ("b", NEW)]));
    let mut volume = reached_by(&host, &export, &["a", "b"]).await;
    let mut other = Volume::new("tank/v", "pvc-2", 8);
    for ask in [Ask::Establish, allow("a")] {
        host.settle(&export, &mut other, &ask).await.unwrap();
    }
    let all = Ask::Revoke(None);
    host.settle(&export, &mut volume, &all).await.unwrap();
    let hosts = saved(&host)["hosts"].clone();
    assert_eq!(hosts[0]["nqn"], nqn("a"));
    assert_eq!(hosts[0]["dhchap"]["key"], OLD);
    assert_eq!(hosts[1], json!(null), "{hosts}");
    assert_eq!(host.ensure(&export, &other).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_host_that_lost_all_saves_no_key_of_a_node_that_is_revoked_there() {
    let host = Host::new();
    let export = host.export(&with_restored_keys(&[("a", OLD)]));
    let mut volume = reached_by(&host, &export, &["a"]).await;
    host.starts_again();
    let all = Ask::Revoke(None);
    host.settle(&export, &mut volume, &all).await.unwrap();
    assert!(!host.text("etc/saved.json").contains("DHHC"));
}

#[tokio::test]
async fn a_revocation_that_was_cut_leaves_no_key_saved() {
    let (mut steps, mut cut) = (0, 0);
    while cut <= steps {
        let mut host = Host::new();
        let export = host.export(&with_restored_keys(&[("a", OLD)]));
        let mut volume = reached_by(&host, &export, &["a"]).await;
        host.counted();
        host.cut = (cut > 0).then_some(cut);
        let all = Ask::Revoke(None);
        let _ = host.settle(&export, &mut volume, &all).await;
        if cut == 0 {
            steps = host.counted();
        }
        host.cut = None;
        host.settle(&export, &mut volume, &all).await.unwrap();
        let text = host.text("etc/saved.json");
        assert!(!text.contains("DHHC"), "cut {cut}: {text}");
        cut += 1;
    }
    assert!(steps >= 2, "{steps}");
}

#[tokio::test]
async fn keys_that_were_saved_go_where_none_are_restored() {
    let host = Host::new();
    let keys = [("a", OLD)];
    let mut volume = reached_by(&host, &host.export(&with_restored_keys(&keys)), &["a"]).await;
    let export = host.export(&with_keys(&keys));
    assert_eq!(host.facts(&export, &volume).await.missing, ["saved"]);
    host.settle(&export, &mut volume, &Ask::Establish)
        .await
        .unwrap();
    let config = saved(&host);
    assert_eq!(config["hosts"], json!([]));
    assert_eq!(config["subsystems"][0]["allowed_hosts"], json!([]));
    assert!(is_in(&host, "a"));
    assert_eq!(key(&host, "a"), OLD);
}

/// A kernel without DH-CHAP.
fn knows_no_keys(host: &Host) {
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/mkdir");
    let text = format!(
        "#!/bin/sh\n{} \"$@\" || exit\nfor path; do /bin/rm -f \"$path\"/dhchap_*; done\n",
        fake.display()
    );
    host.program("mkdir", &text);
}

#[tokio::test]
async fn a_kernel_that_cannot_ask_for_keys_is_named_and_lets_no_node_in() {
    let host = Host::new();
    knows_no_keys(&host);
    let export = host.export(&with_keys(&[("a", OLD)]));
    let mut volume = reached_by(&host, &export, &[]).await;
    let error = host.settle(&export, &mut volume, &allow("a")).await;
    let error = error.unwrap_err();
    assert!(error.stderr().contains("no DH-CHAP"), "{error}");
    assert!(!is_in(&host, "a"));
    assert!(!error.to_string().contains("DHHC"), "{error}");
}

#[tokio::test]
async fn a_kernel_that_cannot_ask_for_keys_keeps_no_node_from_being_put_out() {
    let host = Host::new();
    knows_no_keys(&host);
    let mut volume = reached_by(&host, &host.export(NVMET), &["a", "b"]).await;
    let export = host.export(&with_keys(&[("a", OLD), ("b", NEW)]));
    let facts = host.facts(&export, &volume).await;
    assert_eq!(facts.blocked.len(), 2, "{facts:?}");
    let revoke = Ask::Revoke(Some(NodeId::parse("b").unwrap()));
    host.settle(&export, &mut volume, &revoke).await.unwrap();
    assert_eq!([is_in(&host, "a"), is_in(&host, "b")], [true, false]);
}

/// A kernel that takes no key of the node `a`.
fn refuses_its_key(host: &Host) {
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/mkdir");
    let text = format!(
        "#!/bin/sh\n{} \"$@\" || exit\nfor path; do case $path in */nvmet/hosts/*:a)\n\
         /bin/rm -f \"$path/dhchap_key\" && /bin/mkdir \"$path/dhchap_key\" ;;\nesac; done\n",
        fake.display()
    );
    host.program("mkdir", &text);
}

#[tokio::test]
async fn a_key_that_the_kernel_refuses_keeps_no_other_node_from_being_put_out() {
    for lost in [false, true] {
        let host = Host::new();
        refuses_its_key(&host);
        let mut volume = reached_by(&host, &host.export(NVMET), &["a", "b", "c"]).await;
        let export = host.export(&with_restored_keys(&[("a", OLD), ("b", NEW), ("c", NEW)]));
        if lost {
            host.starts_again();
        }
        let revoke = Ask::Revoke(Some(NodeId::parse("b").unwrap()));
        // The second time as a retry, which finds it done.
        for _ in 0..2 {
            host.settle(&export, &mut volume, &revoke).await.unwrap();
            let inside = ["a", "b", "c"].map(|node| is_in(&host, node));
            assert_eq!(inside, [!lost, false, true]);
        }
        assert_eq!(key(&host, "c"), NEW);
        // Restored it would get in without one.
        let config = saved(&host);
        let listed = &config["subsystems"][0]["allowed_hosts"];
        assert_eq!(*listed, json!([nqn("c")]));
        let repaired = host.settle(&export, &mut volume, &Ask::Establish).await;
        let error = repaired.unwrap_err();
        assert!(error.stderr().contains("dhchap_key"), "{error}");
    }
}

#[tokio::test]
async fn a_key_that_the_kernel_refuses_keeps_no_other_node_from_being_let_in() {
    for (restored, lost) in [(false, false), (false, true), (true, false), (true, true)] {
        let host = Host::new();
        refuses_its_key(&host);
        let mut volume = reached_by(&host, &host.export(NVMET), &["a"]).await;
        let keys = [("a", OLD), ("b", NEW)];
        let export = host.export(&if restored {
            with_restored_keys(&keys)
        } else {
            with_keys(&keys)
        });
        if lost {
            host.starts_again();
        }
        let publish = |node: &str| Ask::Publish(NodeId::parse(node).unwrap());
        for _ in 0..2 {
            host.settle(&export, &mut volume, &publish("b"))
                .await
                .unwrap();
            assert_eq!([is_in(&host, "a"), is_in(&host, "b")], [!lost, true]);
            assert_eq!(key(&host, "b"), NEW);
        }
        let listed = saved(&host)["subsystems"][0]["allowed_hosts"].clone();
        let expected = if restored {
            json!([nqn("b")])
        } else {
            json!([])
        };
        assert_eq!(listed, expected);
        // It is refused itself, and so is what is for all of them.
        for ask in [publish("a"), Ask::Establish] {
            let refused = host.settle(&export, &mut volume, &ask).await;
            let error = refused.unwrap_err();
            assert!(error.stderr().contains("dhchap_key"), "{error}");
            assert!(is_in(&host, "b"));
        }
    }
}

/// Checks that the key goes to the command on its input alone. Says whether it goes there.
fn hides_key(command: &Command) -> bool {
    let mut shown = vec![command.to_string(), format!("{command:?}")];
    let words = command.arguments().iter();
    let words = words.chain(command.environment().iter().map(|(_, value)| value));
    shown.extend(words.map(|word| word.expose().to_owned()));
    let has = |text: &str| text.contains("AQIDBAUG");
    assert!(!shown.iter().any(|text| has(text)), "{shown:?}");
    let knows = has(&String::from_utf8_lossy(command.input().bytes()));
    assert!(!knows || !has(&command.scrub(OLD)), "{command}");
    knows
}

#[tokio::test]
async fn no_key_is_shown_where_a_command_is() {
    let host = Host::new();
    let text = with_keys(&[("a", OLD)]);
    let plain = host.export(&text);
    let volume = reached_by(&host, &plain, &["a"]).await;
    let there = host.facts(&plain, &volume).await;
    let gone = Facts {
        missing: vec!["subsystems".to_owned()],
        ..Facts::default()
    };
    let subject = volume.subject();
    let name = plain.export_name(&subject).unwrap();
    let a = NodeId::parse("a").unwrap();
    for export in [plain, host.export(&(text + "    sudoEnabled: true\n"))] {
        let changes = [
            export.ensure(&subject, &name, &gone),
            export.allow(&subject, &name, &gone, &[&a]),
            export.revoke(&subject, &name, &there, Some(&a)),
            export.revoke(&subject, &name, &there, None),
            Export::remove(&export, &subject, &name, &there),
        ];
        let commands = changes.map(|acts| {
            let acts = acts.unwrap().into_iter();
            let commands = acts.filter_map(|act| match act {
                Act::Do(command) => Some(command),
                _ => None,
            });
            commands.collect::<Vec<_>>()
        });
        let looks = export.observe(&subject, &name);
        for (number, commands) in commands.iter().chain([&looks]).enumerate() {
            let knowing = commands.iter().filter(|command| hides_key(command));
            assert!(knowing.count() > 0, "{number}");
        }
        assert!(!format!("{export:?}").contains("AQIDBAUG"));
    }
}

fn refused(text: &str) -> ConfigError {
    let text = text.replace("{etc}", "/etc/nvmet");
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    nvmeof::export(&document, Host::new().places()).unwrap_err()
}

#[test]
fn keys_that_cannot_be_right_are_refused_with_their_place_and_not_shown() {
    let at = "nvmeof.shareStrategyNvmet.dhchapKeys";
    let good = with_keys(&[("a", OLD)]);
    let with_tool = |text: &str| {
        text.replace("shareStrategy: nvmet", "shareStrategy: nvmetCli")
            .replace("shareStrategyNvmet:", "shareStrategyNvmetCli:")
            .replace("{id: 1, traddr: 0.0.0.0}", "1")
    };
    let nodes = "    nodes: {nameTemplate: 'nqn.2014-08.org.example:{{node}}'}\n";
    let tool = "nvmeof.shareStrategyNvmetCli";
    for (text, key) in [
        (good.replace("AQID", "AQIE"), at.to_owned()),
        (good.replace("DHHC-1", "AQIDBAUG"), at.to_owned()),
        (good.replace("a: ", "'a b': "), at.to_owned()),
        (good.replace(nodes, ""), at.to_owned()),
        (
            with_keys(&[("a", OLD), ("b", NEW)]).replace(":{{node}}", ":all"),
            at.to_owned(),
        ),
        (
            with_tool(&good.replace(nodes, "")),
            format!("{tool}.dhchapKeys"),
        ),
        (
            with_tool(&(NVMET.replace(nodes, "") + "    nvmetcliRestoresKeys: true\n")),
            format!("{tool}.nvmetcliRestoresKeys"),
        ),
    ] {
        let error = refused(&text);
        assert_eq!(error.path().unwrap_or_default(), key, "{error}");
        assert!(!error.to_string().contains("BAUGBwgJ"), "{error}");
    }
}
