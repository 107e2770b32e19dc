//! The list of nodes that a share has: who stays in it, who leaves it, and when it is full.

use crate::common::{Volume, pair};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{Error, Kind, NodeId};
use driver_zfs::export::Act;
use driver_zfs::property::PropertyName;
use driver_zfs::{Export, ZfsConfig};
use driver_zfs_cli::ZfsTools;
use driver_zfs_generic::{Facts, Protocol, ShareExport};

fn export(nodes: &str) -> ShareExport {
    let text = format!(
        "nfs:
  shareHost: 192.0.2.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    properties: {{sharenfs: 'no_root_squash'}}
    nodes: {nodes}
zfs: {{datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}}
"
    );
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let tools = ZfsTools::from_config(&ZfsConfig::read(&document).unwrap()).unwrap();
    ShareExport::from_document(&document, Protocol::Nfs, tools).unwrap()
}

fn property() -> PropertyName {
    PropertyName::parse("omnibus-csi:nodes").unwrap()
}

/// A volume that has these, or nothing where they are empty.
fn volume(shared: &str, remembered: &str) -> Volume {
    let volume = Volume::new("tank/v", "pvc-1", 7);
    let volume = volume.remembering(PropertyName::SHARENFS, shared);
    if remembered.is_empty() {
        return volume;
    }
    volume.remembering(property(), remembered)
}

pub(crate) fn said<R: std::fmt::Debug>(acts: Vec<Act<R>>) -> Vec<String> {
    let said = acts.into_iter().map(|act| match act {
        Act::Remember(property) => property.value.to_string(),
        Act::Forget(name) => format!("no {name}"),
        other => panic!("{other:?}"),
    });
    said.collect()
}

fn revoke(export: &ShareExport, volume: &Volume, node: &str) -> Result<Vec<String>, Error> {
    let node = NodeId::parse(node).unwrap();
    let acts = export.revoke(&volume.subject(), &(), &Facts::default(), Some(&node));
    acts.map(said)
}

fn allow(export: &ShareExport, volume: &Volume, node: &str) -> Result<Vec<String>, Error> {
    let node = NodeId::parse(node).unwrap();
    let acts = export.allow(&volume.subject(), &(), &Facts::default(), &[&node]);
    acts.map(said)
}

#[test]
fn a_node_whose_name_is_gone_from_the_config_leaves_beside_a_name_written_by_hand() {
    let export = export("{names: {b: b.lan}}");
    let list = "rw=x.lan:gone.lan:b.lan,no_root_squash";
    let before = [pair("gone.lan", "gone"), pair("b.lan", "b")].join(",");
    let acts = revoke(&export, &volume(list, &before), "gone").unwrap();
    assert_eq!(acts[0], "rw=x.lan:b.lan,no_root_squash");
    // What is asked again, by this call or the next one, is done.
    assert_eq!(acts.len(), 2);
    let after = volume(&acts[0], &acts[1]);
    assert_eq!(revoke(&export, &after, "gone").unwrap(), [""; 0]);
    // The name written by hand may belong to a node that was never recorded.
    let refused = revoke(&export, &after, "unknown").unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    // Nothing of it is left when every name is known again.
    let after = volume("rw=b.lan,no_root_squash", &acts[1]);
    let acts = revoke(&export, &after, "gone").unwrap();
    assert_eq!(acts, [pair("b.lan", "b")]);
}

#[test]
fn a_node_whose_id_has_changed_leaves_and_one_that_shares_its_address_stays() {
    let list = "rw=gate.lan,no_root_squash";
    let before = volume(list, &pair("gate.lan", "a"));
    let moved = export("{nameTemplate: '{{node}}.lan'}");
    let acts = revoke(&moved, &before, "gate").unwrap();
    assert_eq!(acts, ["off", "no omnibus-csi:nodes"]);
    let both = [pair("gate.lan", "a"), pair("gate.lan", "b")].join(",");
    for nodes in [
        "{nameTemplate: gate.lan}",
        "{names: {a: gate.lan, b: gate.lan}}",
    ] {
        let shared = export(nodes);
        assert_eq!(allow(&shared, &before, "b").unwrap(), [both.as_str()]);
        let acts = revoke(&shared, &volume(list, &both), "a").unwrap();
        assert_eq!(acts, [pair("gate.lan", "b")], "{nodes}");
    }
}

#[test]
fn a_full_list_is_reported_before_any_change_and_listed_nodes_can_still_leave() {
    let export = export("{nameTemplate: '10.10.{{node}}'}");
    let (mut list, mut remembered) = (String::from("off"), String::new());
    let mut count = 0;
    let error = loop {
        let node = format!("{}.{}", 100 + count / 100, 100 + count % 100);
        match allow(&export, &volume(&list, &remembered), &node) {
            Ok(acts) => {
                remembered.clone_from(&acts[0]);
                list.clone_from(&acts[1]);
                count += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::OutOfSpace);
    let chain = error.chain();
    assert!(chain.contains(&format!("{} names", count + 1)), "{chain}");
    assert!(count > 250 && list.len() < 4096, "{count}");
    // One that a newer ZFS has kept is longer, and gets shorter.
    let longer = list.replace("rw=", &format!("rw={}:", "x".repeat(60)));
    let acts = revoke(&export, &volume(&longer, &remembered), "100.100").unwrap();
    assert_eq!(acts[0], longer.replace("10.10.100.100:", ""));
}
