//! A descriptor as lines of text, in the words of `wire.txt`. Only what goes over the wire or marks a
//! secret; comments and file options are left out.

use std::collections::BTreeSet;

use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, Kind,
    MessageDescriptor, ReflectMessage, ServiceDescriptor,
};

pub(crate) fn of_package(pool: &DescriptorPool, package: &str) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for extension in pool
        .all_extensions()
        .filter(|it| it.package_name() == package)
    {
        facts.insert(extension_fact(&extension));
    }
    for service in pool.services().filter(|it| it.package_name() == package) {
        service_facts(&service, &mut facts);
    }
    for enumeration in pool.all_enums().filter(|it| it.package_name() == package) {
        enum_facts(&enumeration, &mut facts);
    }
    for message in pool
        .all_messages()
        .filter(|it| it.package_name() == package)
    {
        if !message.is_map_entry() {
            message_facts(&message, &mut facts);
        }
    }
    facts
}

fn extension_fact(extension: &ExtensionDescriptor) -> String {
    let (name, number) = (extension.full_name(), extension.number());
    let of = extension.containing_message();
    format!(
        "extension {name} {number} {} of {}",
        kind_name(&extension.kind()),
        of.full_name()
    )
}

fn service_facts(service: &ServiceDescriptor, facts: &mut BTreeSet<String>) {
    let block = format!("service {}", service.name());
    facts.insert(format!(
        "{block}{}",
        tag("alpha", is_set(&service.options(), "alpha_service"))
    ));
    for method in service.methods() {
        facts.insert(format!(
            "{block} rpc {} {} -> {}{}{}{}",
            method.name(),
            short(method.input().full_name()),
            short(method.output().full_name()),
            tag("client stream", method.is_client_streaming()),
            tag("stream", method.is_server_streaming()),
            tag("alpha", is_set(&method.options(), "alpha_method")),
        ));
    }
}

fn enum_facts(enumeration: &EnumDescriptor, facts: &mut BTreeSet<String>) {
    let block = format!("enum {}", short(enumeration.full_name()));
    facts.insert(format!(
        "{block}{}",
        tag("alpha", is_set(&enumeration.options(), "alpha_enum"))
    ));
    for value in enumeration.values() {
        let alpha = tag("alpha", is_set(&value.options(), "alpha_enum_value"));
        facts.insert(format!(
            "{block} value {} {}{alpha}",
            value.number(),
            value.name()
        ));
    }
}

fn message_facts(message: &MessageDescriptor, facts: &mut BTreeSet<String>) {
    let block = format!("message {}", short(message.full_name()));
    facts.insert(format!(
        "{block}{}",
        tag("alpha", is_set(&message.options(), "alpha_message"))
    ));
    for field in message.fields() {
        facts.insert(format!("{block} {}", field_fact(&field)));
    }
}

fn field_fact(field: &FieldDescriptor) -> String {
    let oneof = field
        .containing_oneof()
        .filter(|oneof| !oneof.is_synthetic());
    let optional = field
        .containing_oneof()
        .is_some_and(|oneof| oneof.is_synthetic());
    let options = field.options();
    format!(
        "field {} {} {}{}{}{}{}{}{}",
        field.number(),
        field.name(),
        type_name(field),
        tag("repeated", field.is_list()),
        tag("optional", optional),
        oneof
            .map(|oneof| format!(" [oneof {}]", oneof.name()))
            .unwrap_or_default(),
        tag("secret", is_set(&options, "csi_secret")),
        tag("sensitive", is_set(&options, "omnibus_sensitive")),
        tag("alpha", is_set(&options, "alpha_field")),
    )
}

fn type_name(field: &FieldDescriptor) -> String {
    let kind = field.kind();
    match kind.as_message() {
        Some(entry) if field.is_map() => format!(
            "map<{},{}>",
            kind_name(&entry.map_entry_key_field().kind()),
            kind_name(&entry.map_entry_value_field().kind())
        ),
        _ => kind_name(&kind),
    }
}

fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => short(message.full_name()).to_owned(),
        Kind::Enum(enumeration) => short(enumeration.full_name()).to_owned(),
        // `Int64` is `int64` in a .proto file, and so on.
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

fn short(full_name: &str) -> &str {
    full_name.strip_prefix("csi.v1.").unwrap_or(full_name)
}

fn tag(name: &str, present: bool) -> String {
    if present {
        format!(" [{name}]")
    } else {
        String::new()
    }
}

fn is_set(options: &DynamicMessage, option: &str) -> bool {
    let pool = options.descriptor().parent_pool().clone();
    let extension = pool
        .get_extension_by_name(&format!("csi.v1.{option}"))
        .unwrap();
    options.get_extension(&extension).as_bool().unwrap()
}
