//! Puts a canary into every field that is marked secret or sensitive, of every message, at every
//! depth, and looks for it in everything `Debug` prints. The fields are found by their markers in the
//! descriptor; the types come from the generated list, which is held against the same descriptor.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;

use csi_proto::ADDONS_DESCRIPTOR_SET;
use csi_proto::v1;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey};
use prost_reflect::{MessageDescriptor, Value};

include!("../gen/types.rs");
include!("../gen/addons.rs");

const CANARY: &str = "canary-8d1f";
/// Keys of secrets are hidden too; those of contexts are not.
const SECRET_KEY: &str = "canary-8d1f-key";
const PLAIN: &str = "shown-57c0";
/// No message of the contract nests deeper, and none contains itself.
const DEPTH: u32 = 8;

type Print = fn(&[u8]) -> Vec<String>;

macro_rules! printers {
    ($($name:literal => $type:ty,)*) => { &[$(($name, prints::<$type> as Print),)*] };
}

/// Of CSI, and of each package of csi-addons.
const PRINTERS: [&[(&str, Print)]; 4] = [
    with_every_message!(printers),
    with_every_message_of_identity!(printers),
    with_every_message_of_fence!(printers),
    with_every_message_of_reclaimspace!(printers),
];

fn printers() -> impl Iterator<Item = &'static (&'static str, Print)> {
    PRINTERS.into_iter().flatten()
}

/// All the ways in which a message ends up in a log line.
fn prints<M: Message + Default + Debug + Clone>(wire: &[u8]) -> Vec<String> {
    let message = M::decode(wire).unwrap();
    assert_eq!(
        message.encode_to_vec().len(),
        wire.len(),
        "the type dropped something"
    );
    let request = tonic::Request::new(message.clone());
    let response = tonic::Response::new(message.clone());
    let result: Result<(), M> = Err(message.clone());
    vec![
        format!("{message:?}"),
        format!("{message:#?}"),
        format!("{request:?}"),
        format!("{request:#?}"),
        format!("{response:?}"),
        format!("{result:#?}"),
        format!("{:?}", vec![Some(message)]),
    ]
}

fn pool() -> DescriptorPool {
    // With that of CSI, which it imports.
    DescriptorPool::decode(ADDONS_DESCRIPTOR_SET).unwrap()
}

fn is_marked(field: &FieldDescriptor, option: &str) -> bool {
    let pool = field.parent_message().parent_pool().clone();
    field
        .options()
        .get_extension(&pool.get_extension_by_name(option).unwrap())
        .as_bool()
        .unwrap()
}

/// A message with every field set; of a oneof, the member number `choice`, going round.
fn filled(descriptor: &MessageDescriptor, choice: usize, depth: u32) -> DynamicMessage {
    assert!(
        depth > 0,
        "{} nests deeper than expected",
        descriptor.full_name()
    );
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if let Some(oneof) = field.containing_oneof() {
            let members: Vec<_> = oneof.fields().collect();
            if members[choice % members.len()] != field {
                continue;
            }
        }
        message.set_field(&field, value(&field, choice, depth));
    }
    message
}

fn value(field: &FieldDescriptor, choice: usize, depth: u32) -> Value {
    let secret = is_marked(field, "csi.v1.csi_secret");
    let text = if secret || is_marked(field, "csi.v1.omnibus_sensitive") {
        CANARY
    } else {
        PLAIN
    };
    if field.is_map() {
        let key = MapKey::String(if secret { SECRET_KEY } else { PLAIN }.to_owned());
        return Value::Map(HashMap::from([(key, Value::String(text.to_owned()))]));
    }
    let one = match field.kind() {
        Kind::String => Value::String(text.to_owned()),
        Kind::Message(inner) => Value::Message(filled(&inner, choice, depth - 1)),
        Kind::Bool => Value::Bool(true),
        Kind::Int32 => Value::I32(1),
        Kind::Int64 => Value::I64(1),
        Kind::Enum(_) => Value::EnumNumber(1),
        other => panic!("{}: fill in {other:?} as well", field.full_name()),
    };
    if field.is_list() {
        Value::List(vec![one])
    } else {
        one
    }
}

/// One filled message for each way to choose the members of oneofs.
fn variants(descriptor: &MessageDescriptor) -> Vec<Vec<u8>> {
    let choices = descriptor.parent_pool().all_messages();
    let choices = choices
        .filter_map(|it| it.oneofs().map(|oneof| oneof.fields().len()).max())
        .max();
    (0..choices.unwrap())
        .map(|choice| filled(descriptor, choice, DEPTH).encode_to_vec())
        .collect()
}

fn contains(wire: &[u8], text: &str) -> bool {
    wire.windows(text.len())
        .any(|window| window == text.as_bytes())
}

#[test]
fn the_list_of_types_is_every_message_of_the_package() {
    let pool = pool();
    let listed: BTreeSet<_> = printers().map(|(name, _)| *name).collect();
    let messages: Vec<_> = pool
        .all_messages()
        .filter(|it| !it.package_name().starts_with("google."))
        .collect();
    let wanted = messages
        .iter()
        .filter(|it| !it.is_map_entry())
        .map(MessageDescriptor::full_name);
    assert_eq!(listed, wanted.collect());
}

#[test]
fn no_message_prints_a_secret_however_it_is_wrapped() {
    let pool = pool();
    let mut with_canary = BTreeSet::new();
    for (name, print) in printers() {
        for wire in variants(&pool.get_message_by_name(name).unwrap()) {
            let has_canary = contains(&wire, CANARY);
            if has_canary {
                with_canary.insert(*name);
            }
            for printed in print(&wire) {
                assert!(!printed.contains(CANARY), "{name} leaks: {printed}");
                assert_eq!(
                    printed.contains("redacted>"),
                    has_canary,
                    "{name}: {printed}"
                );
            }
        }
    }
    // Directly, through a field, through a oneof, in a list.
    for name in [
        "DeleteVolumeRequest",
        "VolumeCapability",
        "CreateVolumeResponse",
    ] {
        assert!(
            with_canary.contains(format!("csi.v1.{name}").as_str()),
            "{name} has no canary"
        );
    }
    assert!(with_canary.contains("csi.v1.ListVolumesResponse"));
}

#[test]
fn every_field_that_is_marked_is_masked_by_itself() {
    let mut masked = 0;
    for (name, print) in printers() {
        let descriptor = pool().get_message_by_name(name).unwrap();
        for field in descriptor.fields() {
            let marked = ["csi.v1.csi_secret", "csi.v1.omnibus_sensitive"];
            if !marked.iter().any(|option| is_marked(&field, option)) {
                continue;
            }
            let mut message = DynamicMessage::new(descriptor.clone());
            message.set_field(&field, value(&field, 0, DEPTH));
            for printed in print(&message.encode_to_vec()) {
                assert!(
                    !printed.contains(CANARY),
                    "{} leaks: {printed}",
                    field.full_name()
                );
                assert!(
                    printed.contains("redacted>"),
                    "{}: {printed}",
                    field.full_name()
                );
            }
            masked += 1;
        }
    }
    let tables = [
        include_str!("../wire.txt"),
        include_str!("../wire-csi-addons.txt"),
    ];
    let lines = tables.iter().flat_map(|table| table.lines());
    let wanted = lines
        .filter(|line| !line.starts_with('#'))
        .filter(|it| it.contains("[secret]") || it.contains("[sensitive]"))
        .count();
    assert_eq!(masked, wanted);
}

#[test]
fn what_is_no_secret_is_still_printed() {
    let pool = pool();
    for (name, print) in printers() {
        for wire in variants(&pool.get_message_by_name(name).unwrap()) {
            let printed = print(&wire).swap_remove(0);
            assert_eq!(
                printed.matches(PLAIN).count(),
                matches(&wire, PLAIN),
                "{name}: {printed}"
            );
        }
    }
}

fn matches(wire: &[u8], text: &str) -> usize {
    wire.windows(text.len())
        .filter(|window| *window == text.as_bytes())
        .count()
}

#[test]
fn masks_show_the_number_of_secrets_and_the_keys_of_contexts() {
    let pair = |key: &str| (key.to_owned(), CANARY.to_owned());
    let request = v1::NodeStageVolumeRequest {
        volume_id: "vol".to_owned(),
        secrets: [pair("user"), pair("password")].into(),
        volume_context: [pair("share"), pair("server")].into(),
        volume_capability: Some(v1::VolumeCapability {
            access_type: Some(v1::volume_capability::AccessType::Mount(
                v1::volume_capability::MountVolume {
                    fs_type: "cifs".to_owned(),
                    mount_flags: vec!["noatime".to_owned(), format!("password={CANARY}")],
                    volume_mount_group: String::new(),
                },
            )),
            access_mode: None,
        }),
        ..Default::default()
    };
    assert_eq!(
        format!("{request:?}"),
        "NodeStageVolumeRequest { volume_id: \"vol\", publish_context: {}, \
         staging_target_path: \"\", volume_capability: Some(VolumeCapability { access_mode: None, \
         access_type: Some(Mount(MountVolume { fs_type: \"cifs\", mount_flags: <2 redacted>, \
         volume_mount_group: \"\" })) }), secrets: <2 redacted>, \
         volume_context: {\"server\": <redacted>, \"share\": <redacted>} }"
    );
}
