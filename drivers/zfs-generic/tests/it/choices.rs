//! Options of shares that classes choose: what a connection may offer, and which of them a volume has.

use driver_core::config::{ConfigError, Document, NoEnvironment};
use driver_zfs::property::PropertyName;
use driver_zfs::{Export, ZfsConfig};
use driver_zfs_cli::ZfsTools;
use driver_zfs_generic::{Facts, Protocol, ShareExport, from_document};

use crate::common::Volume;
use crate::share_lists::said;

const CHOICES: &str = "{readonly: {sharenfs: 'ro=@10.0.0.0/8'}}";

fn document(list: &str, properties: &str, more: &str) -> Document {
    let text = format!(
        "driver: zfs-generic-nfs
nfs:
  shareHost: 192.0.2.1
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    properties: {properties}
{more}
zfs: {{datasetParentName: tank/v, volumeParameters: [{list}]}}
sshConnection: {{host: nas, username: csi, password: x}}
"
    );
    Document::parse(&text, &NoEnvironment).unwrap()
}

fn offering(choices: &str) -> Document {
    let more = format!("    choices: {choices}");
    document("shareOptions", "{sharenfs: 'rw=@10.0.0.0/8'}", &more)
}

fn export(document: &Document) -> ShareExport {
    let tools = ZfsTools::from_config(&ZfsConfig::read(document).unwrap()).unwrap();
    ShareExport::from_document(document, Protocol::Nfs, tools).unwrap()
}

fn refused(document: &Document) -> ConfigError {
    from_document(document).unwrap_err()
}

#[test]
fn a_volume_has_the_options_of_its_choice_and_one_without_those_of_the_connection() {
    let export = export(&offering(CHOICES));
    assert!(export.reads().contains(&PropertyName::SHARE_OPTIONS));
    for (choice, shared, acts) in [
        ("", "rw=@10.0.0.0/8", vec![]),
        ("", "ro=@10.0.0.0/8", vec!["rw=@10.0.0.0/8"]),
        ("readonly", "ro=@10.0.0.0/8", vec![]),
        ("readonly", "rw=@10.0.0.0/8", vec!["ro=@10.0.0.0/8"]),
        // The configuration has it no more.
        ("office", "rw=@10.1.0.0/16", vec![]),
    ] {
        let mut volume = Volume::new("tank/v", "pvc-1", 7);
        volume = volume.remembering(PropertyName::SHARENFS, shared);
        if !choice.is_empty() {
            volume = volume.remembering(PropertyName::SHARE_OPTIONS, choice);
        }
        let ensured = export.ensure(&volume.subject(), &(), &Facts::default());
        assert_eq!(said(ensured.unwrap()), acts, "{choice}: {shared}");
    }
}

#[test]
fn what_a_connection_shares_beside_a_choice_stays() {
    let more = format!("    choices: {CHOICES}");
    let properties = "{share: 'name=x', sharenfs: 'rw=@10.0.0.0/8'}";
    let export = export(&document("shareOptions", properties, &more));
    let share = PropertyName::parse("share").unwrap();
    let volume = Volume::new("tank/v", "pvc-1", 7)
        .remembering(share.clone(), "name=x")
        .remembering(PropertyName::SHARENFS, "ro=@10.0.0.0/8")
        .remembering(PropertyName::SHARE_OPTIONS, "readonly");
    assert!(export.reads().contains(&share));
    let ensured = export.ensure(&volume.subject(), &(), &Facts::default());
    assert_eq!(said(ensured.unwrap()), [""; 0]);
}

#[test]
fn a_volume_keeps_the_options_of_a_choice_when_the_last_one_leaves_the_configuration() {
    let export = export(&document("sync", "{sharenfs: on}", ""));
    assert!(export.reads().contains(&PropertyName::SHARE_OPTIONS));
    let volume = Volume::new("tank/v", "pvc-1", 7)
        .remembering(PropertyName::SHARENFS, "ro=@10.0.0.0/8")
        .remembering(PropertyName::SHARE_OPTIONS, "readonly");
    let ensured = export.ensure(&volume.subject(), &(), &Facts::default());
    assert_eq!(said(ensured.unwrap()), [""; 0]);
}

#[test]
fn classes_may_choose_where_the_list_says_so() {
    let driver = from_document(&offering(CHOICES)).unwrap();
    assert_eq!(driver.class_keys(), ["shareOptions"]);
    assert_eq!(driver.modifier().unwrap().mutable_keys(), ["shareOptions"]);
    let more = format!("    choices: {CHOICES}");
    let unused = document("sync", "{sharenfs: on}", &more);
    let driver = from_document(&unused).unwrap();
    assert_eq!(driver.class_keys(), ["sync"]);
    let path = "nfs.shareStrategySetDatasetProperties.choices";
    let findings = unused.findings();
    assert!(
        findings.iter().any(|finding| finding.path == path),
        "{findings:?}"
    );
}

#[test]
fn choices_that_share_nothing_or_more_than_a_share_are_refused() {
    let at = "nfs.shareStrategySetDatasetProperties.choices";
    for (choices, key) in [
        ("{a: {}}", ".a"),
        ("{a: {share: 'on'}}", ".a"),
        (
            "{a: {sharenfs: on, share: 'name=x,path=/tank,prot=nfs'}}",
            ".a",
        ),
        ("{a: {sharenfs: off}}", ".a"),
        ("{a: {sharenfs: on, mountpoint: /}}", ".a"),
        ("{'a b': {sharenfs: on}}", ".a b"),
    ] {
        let error = refused(&offering(choices));
        assert_eq!(error.path(), Some(format!("{at}{key}").as_str()), "{error}");
    }
    let more = format!("    choices: {CHOICES}");
    let error = refused(&document("shareOptions", "{sharenfs: off}", &more));
    assert_eq!(error.path(), Some(at), "{error}");
    let more = format!("{more}\n    nodes: {{nameTemplate: '{{{{node}}}}'}}");
    let error = refused(&document(
        "shareOptions",
        "{sharenfs: no_root_squash}",
        &more,
    ));
    let nodes = "nfs.shareStrategySetDatasetProperties.nodes";
    assert_eq!(error.path(), Some(nodes), "{error}");
    let error = refused(&document("shareOptions", "{sharenfs: on}", ""));
    assert_eq!(error.path(), Some("zfs.volumeParameters"), "{error}");
}
