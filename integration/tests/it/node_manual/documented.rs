//! The examples of the documentation: every key is one that the program knows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use csi_types::secrets::SettingName;
use csi_types::{
    Access, AccessMode, Attachment, FsType, MountAccess, MountFlags, VolumeCapability,
};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{Driver as _, VolumeId};
use driver_node_manual::NodeManual;
use node_utils::tools::Variable;
use serde::Deserialize;

/// The part of a `PersistentVolume`, of a claim or of a secret that says something to us.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    access_modes: Vec<String>,
    storage_class_name: Option<String>,
    persistent_volume_reclaim_policy: String,
    volume_mode: String,
    volume_name: String,
    mount_options: Vec<String>,
    csi: Option<Csi>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Csi {
    driver: String,
    volume_handle: String,
    fs_type: Option<String>,
    node_stage_secret_ref: Option<Metadata>,
    volume_attributes: BTreeMap<String, String>,
}

/// The YAML documents of the page, with what they begin with.
fn documents() -> Vec<(String, Document)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/node-manual.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks = page.split("```yaml\n").skip(1);
    let texts = blocks.filter_map(|block| block.split("```").next());
    let all = texts.flat_map(|text| text.split("\n---\n").map(str::to_owned).collect::<Vec<_>>());
    all.map(|text| {
        let document = Document::parse(&text, &NoEnvironment);
        let document = document.unwrap_or_else(|error| panic!("{error} in\n{text}"));
        (text, document)
    })
    .collect()
}

fn is(text: &str, kind: &str) -> bool {
    text.lines().any(|line| line == format!("kind: {kind}"))
}

fn metadata(document: &Document) -> Metadata {
    document.section("metadata").expect("metadata")
}

fn spec(document: &Document) -> Spec {
    document.section("spec").expect("spec")
}

#[test]
fn configurations_of_the_page_are_right_to_the_last_key() {
    let mut found = 0;
    for (text, document) in documents() {
        if !text.starts_with("driver: ") {
            continue;
        }
        found += 1;
        NodeManual::from_document(&document).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let common = document.common().expect("keys");
        let filesystems = common.filesystems(&document);
        filesystems.unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(document.findings(), [], "{text}");
    }
    assert!(found >= 3, "{found}");
}

#[test]
fn volumes_of_the_page_say_what_a_node_understands_and_there_is_one_of_each_kind() {
    let mut kinds = BTreeSet::new();
    let mut handles = BTreeSet::new();
    for (text, document) in documents() {
        if !is(&text, "PersistentVolume") {
            continue;
        }
        let spec = spec(&document);
        assert_eq!(spec.storage_class_name.as_deref(), Some(""), "{text}");
        assert_eq!(spec.persistent_volume_reclaim_policy, "Retain", "{text}");
        let csi = spec.csi.as_ref().expect("a CSI volume");
        assert_eq!(csi.driver, "org.example.manual", "{text}");
        VolumeId::parse(&csi.volume_handle).expect("a handle");
        assert!(handles.insert(csi.volume_handle.clone()), "twice: {text}");
        let attachment = Attachment::parse(&csi.volume_attributes);
        let attachment = attachment.unwrap_or_else(|error| panic!("{error}\n{text}"));
        kinds.insert(attachment.kind());
        // What is not read would not be written either.
        let known = attachment.to_context();
        for key in csi.volume_attributes.keys() {
            assert!(known.contains_key(key), "nothing reads `{key}`:\n{text}");
        }
        let flags = MountFlags::parse(spec.mount_options.iter()).expect("mount options");
        let fs_type = csi
            .fs_type
            .as_deref()
            .map(|name| FsType::parse(name).expect("a name"));
        for mode in &spec.access_modes {
            let capability = VolumeCapability {
                access: if spec.volume_mode == "Block" {
                    Access::Block
                } else {
                    Access::Mount(MountAccess {
                        fs_type: fs_type.clone(),
                        flags: flags.clone(),
                        ..MountAccess::default()
                    })
                },
                mode: match mode.as_str() {
                    "ReadWriteOnce" => AccessMode::SingleNodeMultiWriter,
                    "ReadWriteMany" => AccessMode::MultiNodeMultiWriter,
                    "ReadOnlyMany" => AccessMode::MultiNodeReaderOnly,
                    other => panic!("{other} is no mode of a claim"),
                },
            };
            let refusal = NodeManual.access_rules_of(&attachment).refusal(&capability);
            assert_eq!(refusal, None, "{text}");
        }
    }
    assert_eq!(kinds, Attachment::KINDS.into_iter().collect(), "kinds");
}

#[test]
fn secrets_of_the_page_are_those_that_its_volumes_name_and_hold_keys_that_are_read() {
    let (mut there, mut named) = (BTreeSet::new(), BTreeSet::new());
    for (text, document) in documents() {
        if is(&text, "Secret") {
            let Metadata { name, namespace } = metadata(&document);
            there.insert((name, namespace));
            let data: BTreeMap<String, String> = document.section("stringData").expect("data");
            for key in data.keys() {
                let known = match (key.strip_prefix("node-db."), key.strip_prefix("env.")) {
                    (Some(setting), _) => SettingName::parse(setting).is_ok(),
                    (_, Some(variable)) => Variable::parse(variable).is_ok(),
                    _ => ["mount_flags", "token"].contains(&key.as_str()),
                };
                assert!(known, "nothing reads `{key}`:\n{text}");
            }
        } else if is(&text, "PersistentVolume")
            && let Some(secret) = spec(&document)
                .csi
                .and_then(|csi| csi.node_stage_secret_ref)
        {
            named.insert((secret.name, secret.namespace));
        }
    }
    assert_eq!(there, named);
    assert!(there.len() >= 4, "{there:?}");
}

#[test]
fn the_claim_of_the_page_asks_for_its_volume() {
    let all = documents();
    let claim = all
        .iter()
        .find(|(text, _)| is(text, "PersistentVolumeClaim"));
    let claim = spec(&claim.expect("a claim").1);
    let volume = all.iter().find(|(text, document)| {
        is(text, "PersistentVolume") && metadata(document).name == claim.volume_name
    });
    let volume = spec(&volume.expect("its volume").1);
    assert_eq!(volume.access_modes, claim.access_modes);
    assert_eq!(volume.storage_class_name, claim.storage_class_name);
}
