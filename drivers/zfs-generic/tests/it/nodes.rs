//! Targets that let in only the nodes that a volume was published to, on a configfs that pretends.

use crate::common::{Ask, Host, NVMET, Volume, pair};
use crate::share_lists::said;
use driver_core::NodeId;
use driver_core::config::{Document, NoEnvironment};
use driver_zfs::export::Act;
use driver_zfs::property::PropertyName;
use driver_zfs::{Export, ZfsConfig};
use driver_zfs_cli::ZfsTools;
use driver_zfs_generic::{DiskExport, Facts, Protocol, ShareExport};
use serde_json::{Value, json};

const LIO: &str = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2003-01.org.example
    configPath: '{etc}/saved.json'
    tpg: {auth: {userid: me, password: 'a\"b\\c $(x) `y`'}}
    nodes: {nameTemplate: 'iqn.2004-10.org.example:{{node}}'}
";

const GROUP: &str = "cfg/target/iscsi/iqn.2003-01.org.example:pvc-1/tpgt_1";
const SUBSYSTEM: &str = "cfg/nvmet/subsystems/nqn.2003-01.org.example:pvc-1";

fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

fn called(text: &str, name: &str) -> String {
    let form = if text == LIO {
        "iqn.2004-10"
    } else {
        "nqn.2014-08"
    };
    format!("{form}.org.example:{name}")
}

fn saved(host: &Host) -> Value {
    serde_json::from_str(&host.text("etc/saved.json")).unwrap()
}

fn remembered(volume: &Volume) -> String {
    let name = PropertyName::parse("omnibus-csi:nodes").unwrap();
    volume
        .subject()
        .remembered(&name)
        .unwrap_or_default()
        .to_owned()
}

async fn present(host: &Host, export: &DiskExport, volume: &mut Volume) {
    host.settle(export, volume, &Ask::Establish).await.unwrap();
}

async fn allow(host: &Host, export: &DiskExport, volume: &mut Volume, name: &str) {
    let allow = Ask::Allow(node(name));
    host.settle(export, volume, &allow).await.unwrap();
}

async fn revoke(host: &Host, export: &DiskExport, volume: &mut Volume, name: Option<&str>) -> bool {
    let revoke = Ask::Revoke(name.map(node));
    host.settle(export, volume, &revoke).await.is_ok()
}

#[tokio::test]
async fn only_the_nodes_that_were_let_in_get_in_and_that_is_saved() {
    for text in [LIO, NVMET] {
        let host = Host::new();
        let export = host.export(text);
        assert!(export.is_per_node());
        let mut volume = Volume::new("tank/v", "pvc-1", 7);
        present(&host, &export, &mut volume).await;
        assert_eq!(host.facts(&export, &volume).await.allowed, [""; 0]);
        allow(&host, &export, &mut volume, "a").await;
        allow(&host, &export, &mut volume, "b").await;
        let (a, b) = (called(text, "a"), called(text, "b"));
        let facts = host.facts(&export, &volume).await;
        assert_eq!(facts.allowed, [&a, &b].map(String::as_str));
        assert_eq!((facts.missing, facts.partial), (vec![], vec![]));
        let both = [pair(&a, "a"), pair(&b, "b")].join(",");
        assert_eq!(remembered(&volume), both);

        assert!(revoke(&host, &export, &mut volume, Some("a")).await);
        assert_eq!(host.facts(&export, &volume).await.allowed, [b.as_str()]);
        assert_eq!(remembered(&volume), pair(&b, "b"));
        let config = saved(&host);
        if text == LIO {
            let file = |name: &str| host.text(&format!("{GROUP}/{name}")).trim().to_owned();
            assert_eq!(file("attrib/generate_node_acls"), "0");
            assert_eq!(file("attrib/cache_dynamic_acls"), "0");
            assert_eq!(
                file(&format!("acls/{b}/auth/password")),
                r#"a"b\c $(x) `y`"#
            );
            let acl = &config["targets"][0]["tpgs"][0]["node_acls"];
            assert_eq!(acl.as_array().unwrap().len(), 1);
            assert_eq!(acl[0]["node_wwn"], b);
            assert_eq!(acl[0]["chap_password"], r#"a"b\c $(x) `y`"#);
            assert_eq!(acl[0]["mapped_luns"][0]["tpg_lun"], 0);
        } else {
            let any = host.text(&format!("{SUBSYSTEM}/attr_allow_any_host"));
            assert_eq!(any.trim(), "0");
            assert_eq!(config["subsystems"][0]["allowed_hosts"], json!([b]));
            let hosts = config["hosts"].as_array().unwrap();
            assert!(hosts.contains(&json!({"nqn": b})), "{hosts:?}");
        }
        assert!(revoke(&host, &export, &mut volume, None).await);
        assert_eq!(host.facts(&export, &volume).await.allowed, [""; 0]);
        assert_eq!(remembered(&volume), "");
        host.remove(&export, &volume).await.unwrap();
        assert_eq!(host.facts(&export, &volume).await.present, [""; 0]);
    }
}

#[tokio::test]
async fn a_host_that_lost_all_admits_the_published_nodes_again_and_no_revoked_one() {
    for text in [LIO, NVMET] {
        let host = Host::new();
        let export = host.export(text);
        let mut volume = Volume::new("tank/v", "pvc-1", 7);
        present(&host, &export, &mut volume).await;
        allow(&host, &export, &mut volume, "a").await;
        allow(&host, &export, &mut volume, "b").await;
        host.starts_again();
        present(&host, &export, &mut volume).await;
        let both = [called(text, "a"), called(text, "b")];
        assert_eq!(host.facts(&export, &volume).await.allowed, both);

        // What was saved would let it in again when the tool restores it.
        host.starts_again();
        assert!(revoke(&host, &export, &mut volume, Some("a")).await);
        let config = saved(&host);
        let left = if text == LIO {
            assert!(!host.text("etc/saved.json").contains(&both[0]));
            config["targets"][0]["tpgs"][0]["node_acls"][0]["node_wwn"].clone()
        } else {
            config["subsystems"][0]["allowed_hosts"][0].clone()
        };
        assert_eq!(left, Value::from(both[1].as_str()));
        present(&host, &export, &mut volume).await;
        assert_eq!(
            host.facts(&export, &volume).await.allowed,
            [both[1].as_str()]
        );
    }
}

#[tokio::test]
async fn if_admitting_a_node_is_interrupted_the_retry_admits_it() {
    for text in [LIO, NVMET] {
        let (mut steps, mut cut) = (0, 0);
        while cut <= steps {
            let mut host = Host::new();
            let export = host.export(text);
            let mut volume = Volume::new("tank/v", "pvc-1", 7);
            present(&host, &export, &mut volume).await;
            host.counted();
            host.cut = (cut > 0).then_some(cut);
            let ask = Ask::Allow(node("a"));
            let done = host.settle(&export, &mut volume, &ask).await.is_ok();
            if cut == 0 {
                steps = host.counted();
            }
            assert_eq!(done, cut == 0);
            host.cut = None;
            allow(&host, &export, &mut volume, "a").await;
            present(&host, &export, &mut volume).await;
            let facts = host.facts(&export, &volume).await;
            assert_eq!(facts.allowed, [called(text, "a")], "cut {cut}");
            assert_eq!(
                (facts.missing, facts.partial),
                (vec![], vec![]),
                "cut {cut}"
            );
            cut += 1;
        }
        assert!(steps > 2, "{steps}");
    }
}

/// The nodes that the host knows, apart from any subsystem.
fn known(host: &Host) -> Vec<String> {
    let all = std::fs::read_dir(host.path("cfg/nvmet/hosts")).unwrap();
    let mut names: Vec<_> = all
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn who_is_put_out_of_the_last_subsystem_is_forgotten() {
    let host = Host::new();
    let export = host.export(NVMET);
    let (a, b) = (called(NVMET, "a"), called(NVMET, "b"));
    let mut volumes = [1, 2].map(|number| Volume::new("tank/v", &format!("pvc-{number}"), number));
    for volume in &mut volumes {
        present(&host, &export, volume).await;
        allow(&host, &export, volume, "a").await;
        allow(&host, &export, volume, "b").await;
    }
    assert!(revoke(&host, &export, &mut volumes[0], Some("a")).await);
    assert_eq!(known(&host), [a.as_str(), &b]);
    assert!(revoke(&host, &export, &mut volumes[1], Some("a")).await);
    assert_eq!(known(&host), [b.as_str()]);
    // Its keys were set by an administrator.
    let key = host.path(&format!("cfg/nvmet/hosts/{b}/dhchap_key"));
    std::fs::write(&key, "DHHC-1:00:key:\n").unwrap();
    assert!(revoke(&host, &export, &mut volumes[0], Some("b")).await);
    assert!(revoke(&host, &export, &mut volumes[1], Some("b")).await);
    assert_eq!(known(&host), [b.as_str()]);
    std::fs::write(&key, "\n").unwrap();
    allow(&host, &export, &mut volumes[0], "b").await;
    host.remove(&export, &volumes[0]).await.unwrap();
    assert_eq!(known(&host), [""; 0]);
}

#[tokio::test]
async fn if_revoking_nodes_is_interrupted_the_retry_leaves_none_known() {
    for removed in [false, true] {
        let (mut steps, mut cut) = (0, 0);
        while cut <= steps {
            let mut host = Host::new();
            let export = host.export(NVMET);
            let mut volume = Volume::new("tank/v", "pvc-1", 7);
            present(&host, &export, &mut volume).await;
            allow(&host, &export, &mut volume, "a").await;
            allow(&host, &export, &mut volume, "b").await;
            host.counted();
            host.cut = (cut > 0).then_some(cut);
            let done = if removed {
                host.remove(&export, &volume).await.is_ok()
            } else {
                let ask = Ask::Revoke(None);
                host.settle(&export, &mut volume, &ask).await.is_ok()
            };
            if cut == 0 {
                steps = host.counted();
            }
            assert_eq!(done, cut == 0);
            host.cut = None;
            if !removed {
                revoke(&host, &export, &mut volume, None).await;
                assert_eq!(known(&host), [""; 0], "cut {cut}");
            }
            host.remove(&export, &volume).await.unwrap();
            assert_eq!(known(&host), [""; 0], "cut {cut}");
            cut += 1;
        }
        assert!(steps > 4, "{steps}");
    }
}

#[tokio::test]
async fn where_nodes_have_no_names_those_that_others_let_in_stay_and_are_saved() {
    let open = LIO.replace(
        "    nodes: {nameTemplate: 'iqn.2004-10.org.example:{{node}}'}\n",
        "",
    );
    let host = Host::new();
    let export = host.export(&open);
    assert!(!export.is_per_node());
    let mut volume = Volume::new("tank/v", "pvc-1", 7);
    present(&host, &export, &mut volume).await;
    let acl = host.path(&format!("{GROUP}/acls/iqn.foreign"));
    std::fs::create_dir_all(acl.join("lun_0")).unwrap();
    present(&host, &export, &mut volume).await;
    assert!(acl.exists());
    let node_acls = &saved(&host)["targets"][0]["tpgs"][0]["node_acls"];
    assert_eq!(node_acls[0]["node_wwn"], "iqn.foreign");
    assert!(revoke(&host, &export, &mut volume, None).await);
    assert!(acl.exists());
}

/// Without the line that names nodes.
fn without_nodes(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("nodes:"));
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_target_of_before_access_per_node_is_open_until_nodes_are_listed_and_they_get_in_at_once()
{
    for text in [LIO, NVMET] {
        let host = Host::new();
        let open = host.export(&without_nodes(text));
        assert!(!open.is_per_node());
        let export = host.export(text);
        let mut volume = Volume::new("tank/v", "pvc-1", 7);
        let is_open = async |volume: &Volume| {
            let facts = host.facts(&export, volume).await;
            let subject = volume.subject();
            let name = export.export_name(&subject).unwrap();
            export.is_open(&subject, &name, &facts)
        };
        assert!(!is_open(&volume).await, "there is none");
        present(&host, &open, &mut volume).await;
        assert!(is_open(&volume).await, "{text}");
        // First the list, then what follows from it.
        let facts = host.facts(&export, &volume).await;
        let subject = volume.subject();
        let name = export.export_name(&subject).unwrap();
        let (a, b) = (node("a"), node("b"));
        let acts = export.allow(&subject, &name, &facts, &[&a, &b]).unwrap();
        let list = acts.into_iter().find_map(|act| match act {
            Act::Remember(property) => Some(property),
            _ => None,
        });
        let list = list.expect("a list");
        let mut volume = volume.remembering(list.name, list.value.as_str());
        assert!(!is_open(&volume).await);
        let lets_in = |name: &str| export.lets_in(&volume.subject(), &node(name));
        assert_eq!(["a", "b", "c"].map(lets_in), [true, true, false]);
        present(&host, &export, &mut volume).await;
        let facts = host.facts(&export, &volume).await;
        let both = ["a", "b"].map(|name| called(text, name));
        assert_eq!(facts.allowed, both);
        assert_eq!(facts.missing, [""; 0]);
    }
}

#[test]
fn a_target_knows_the_addresses_that_are_listed_for_its_nodes() {
    for text in [LIO, NVMET] {
        let listed = text.replace("{{node}}'}", "{{node}}', addresses: {a: 192.0.2.7}}");
        assert_ne!(listed, text);
        let export = Host::new().export(&listed);
        let addresses = |name: &str| {
            let all = export.addresses(&node(name)).into_iter();
            all.map(|address| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(addresses("a"), ["192.0.2.7"]);
        assert_eq!(addresses("b"), [""; 0]);
    }
}

fn share_with_nodes() -> ShareExport {
    share_in_mode("")
}

/// `mode` is that of its list, with a comma before it.
fn share_in_mode(mode: &str) -> ShareExport {
    let text = "nfs:
  shareHost: 192.0.2.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    properties: {sharenfs: 'rw,no_root_squash'}
    nodes: {nameTemplate: '{{node}}.lan', names: {six: '[2001:db8::6]'}MODE}
zfs: {datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}
";
    let document = Document::parse(&text.replace("MODE", mode), &NoEnvironment).unwrap();
    let tools = ZfsTools::from_config(&ZfsConfig::read(&document).unwrap()).unwrap();
    ShareExport::from_document(&document, Protocol::Nfs, tools).unwrap()
}

fn shared(text: &str) -> Volume {
    Volume::new("tank/v", "pvc-1", 7).remembering(PropertyName::SHARENFS, text)
}

fn nodes() -> PropertyName {
    PropertyName::parse("omnibus-csi:nodes").unwrap()
}

#[test]
fn a_share_is_for_the_nodes_that_it_names() {
    let export = share_with_nodes();
    assert!(export.is_per_node());
    let facts = Facts::default();
    let established = |text: &str| {
        let volume = shared(text);
        said(export.ensure(&volume.subject(), &(), &facts).unwrap())
    };
    let allowed = |text: &str, name: &str| {
        let volume = shared(text);
        said(
            export
                .allow(&volume.subject(), &(), &facts, &[&node(name)])
                .unwrap(),
        )
    };
    let revoked = |text: &str, name: Option<&str>| {
        let (volume, node) = (shared(text), name.map(node));
        said(
            export
                .revoke(&volume.subject(), &(), &facts, node.as_ref())
                .unwrap(),
        )
    };
    let none: [&str; 0] = [];
    let made = export.properties(&shared("off").subject(), &());
    assert_eq!(made[0].value.as_str(), "off");
    assert_eq!(established("off"), none);
    // A host that is listed with other options stays listed. A wildcard for all hosts is removed.
    assert_eq!(established("rw=a.lan,ro_x"), ["rw=a.lan,no_root_squash"]);
    assert_eq!(established("rw,no_root_squash"), ["off"]);
    let a = pair("a.lan", "a");
    assert_eq!(allowed("off", "a"), [a.as_str(), "rw=a.lan,no_root_squash"]);
    let both = "rw=a.lan:[2001:db8::6],no_root_squash";
    let six = pair("[2001:db8::6]", "six");
    assert_eq!(
        allowed("rw=a.lan,no_root_squash", "six"),
        [six.as_str(), both]
    );
    assert_eq!(established(both), none);
    assert_eq!(allowed(both, "six"), [six]);
    assert_eq!(
        revoked(both, Some("a")),
        ["rw=[2001:db8::6],no_root_squash"]
    );
    assert_eq!(revoked(both, Some("b")), none);
    assert_eq!(revoked(both, None), ["off"]);
    assert_eq!(revoked("off", Some("a")), none);
    // What it was called when it was let in counts.
    let text = [pair("old.lan", "a"), pair("a.lan", "b")].join(",");
    let volume = shared("rw=old.lan:a.lan,no_root_squash");
    let volume = volume.remembering(nodes(), &text);
    let left = export.revoke(&volume.subject(), &(), &facts, Some(&node("a")));
    assert_eq!(said(left.unwrap()), ["off", "no omnibus-csi:nodes"]);
    let left = export.revoke(&volume.subject(), &(), &facts, None);
    assert_eq!(said(left.unwrap()), ["off", "no omnibus-csi:nodes"]);
    let hostile = node("a,rw=*");
    assert!(
        export
            .allow(&shared("off").subject(), &(), &facts, &[&hostile])
            .is_err()
    );
}

#[test]
fn names_that_others_have_written_stay_unless_the_list_is_strict() {
    let by_hand = "rw=a.lan:by-hand.lan,no_root_squash";
    let volume = shared(by_hand).remembering(nodes(), &pair("a.lan", "a"));
    let subject = volume.subject();
    let facts = Facts::default();
    for mode in ["", ", mode: additive"] {
        let export = share_in_mode(mode);
        let made = export.ensure(&subject, &(), &facts).unwrap();
        assert_eq!(said(made), [""; 0], "{mode}");
        let six = export.allow(&subject, &(), &facts, &[&node("six")]);
        let six = said(six.unwrap()).pop().unwrap();
        assert_eq!(six, "rw=a.lan:by-hand.lan:[2001:db8::6],no_root_squash");
        let left = export.revoke(&subject, &(), &facts, Some(&node("a")));
        assert_eq!(said(left.unwrap())[0], "rw=by-hand.lan,no_root_squash");
    }
    let strict = share_in_mode(", mode: strict");
    let ours = "rw=a.lan,no_root_squash";
    let made = strict.ensure(&subject, &(), &facts).unwrap();
    assert_eq!(said(made), [ours]);
    let six = strict.allow(&subject, &(), &facts, &[&node("six")]);
    let six = said(six.unwrap()).pop().unwrap();
    assert_eq!(six, "rw=a.lan:[2001:db8::6],no_root_squash");
    for gone in [Some("never"), None] {
        let left = strict.revoke(&subject, &(), &facts, gone.map(node).as_ref());
        let wanted = if gone.is_some() { ours } else { "off" };
        assert_eq!(said(left.unwrap())[0], wanted);
    }
    // A fence has to see the nodes that it lets in until then, and a list of others alone is not open to all.
    let named = [strict.named(&node("a"))];
    assert_eq!(strict.listed(&subject, &named).others, ["by-hand.lan"]);
    let volume = shared("rw=by-hand.lan,no_root_squash");
    assert!(!strict.is_open(&volume.subject(), &(), &facts));
    let made = strict.ensure(&volume.subject(), &(), &facts).unwrap();
    assert_eq!(said(made), ["off"]);
}

#[test]
fn a_share_is_open_that_lets_in_every_client_and_is_for_those_of_its_list_then() {
    let (export, facts) = (share_with_nodes(), Facts::default());
    for (text, is_open) in [
        ("rw,no_root_squash", true),
        ("on", true),
        ("off", false),
        ("rw=a.lan,no_root_squash", false),
    ] {
        let volume = shared(text);
        assert_eq!(
            export.is_open(&volume.subject(), &(), &facts),
            is_open,
            "{text}"
        );
    }
    let nodes_of =
        |volume: &Volume| ["a", "six"].map(|n| export.lets_in(&volume.subject(), &node(n)));
    let volume = shared("rw=a.lan,no_root_squash");
    assert_eq!(nodes_of(&volume), [false, false], "its id is not known");
    let volume = volume.remembering(nodes(), &pair("a.lan", "a"));
    assert_eq!(nodes_of(&volume), [true, false]);
    let [a, six] = ["a", "six"].map(node);
    let acts = export.allow(&shared("rw").subject(), &(), &facts, &[&a, &six]);
    let both = "rw=a.lan:[2001:db8::6],no_root_squash";
    assert_eq!(said(acts.unwrap()).last().map(String::as_str), Some(both));
}
