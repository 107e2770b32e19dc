//! Writes `Debug` for every message with a field that must not be printed. Which fields those are is
//! asked of the descriptor (`csi_secret`, `omnibus_sensitive`), never of a list; how a mask looks is
//! in `src/mask.rs`.

use std::fmt::Write as _;

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use super::rust_names::{rust_path, type_name};

/// Messages whose derived `Debug` is replaced, in the order of the file.
pub(crate) fn masked_messages(pool: &DescriptorPool, package: &str) -> Vec<MessageDescriptor> {
    let masked: Vec<_> = pool
        .all_messages()
        .filter(|message| message.package_name() == package && !message.is_map_entry())
        .filter(|message| message.fields().any(|field| mask(&field).is_some()))
        .collect();
    for message in &masked {
        // prost's skip_debug reaches everything declared inside a message as well.
        let inner = message.child_messages().any(|inner| !inner.is_map_entry());
        assert!(
            !inner && message.child_enums().len() == 0 && message.oneofs().len() == 0,
            "{}: types declared inside would lose Debug; generate it for them too",
            message.full_name()
        );
    }
    masked
}

/// The masking type for a field, if it must not be printed as it is.
fn mask(field: &FieldDescriptor) -> Option<&'static str> {
    let secret = is_marked(field, "csi.v1.csi_secret");
    let sensitive = is_marked(field, "csi.v1.omnibus_sensitive");
    match (secret, sensitive) {
        (false, false) => None,
        (true, _) if field.is_map() || field.is_list() => Some("Count"),
        (false, true) if field.is_list() => Some("Count"),
        (false, true) if field.is_map() => Some("Keys"),
        _ => panic!(
            "{}: no mask for a single secret value yet",
            field.full_name()
        ),
    }
}

fn is_marked(field: &FieldDescriptor, option: &str) -> bool {
    let option = field
        .parent_file()
        .parent_pool()
        .get_extension_by_name(option)
        .unwrap();
    field.options().get_extension(&option).as_bool().unwrap()
}

pub(crate) fn debug_impls(masked: &[MessageDescriptor]) -> String {
    masked.iter().map(debug_impl).collect::<Vec<_>>().join("\n")
}

fn debug_impl(message: &MessageDescriptor) -> String {
    let (path, name) = (rust_path(message), type_name(message.name()));
    let mut names = Vec::new();
    let mut fields = String::new();
    for field in message.fields() {
        // An enum is an integer in the struct; the derived Debug would name it, this would not.
        let is_enum = matches!(field.kind(), Kind::Enum(_));
        assert!(!is_enum, "{}: print enums by name", field.full_name());
        let field_name = field.name();
        names.push(field_name.to_owned());
        let value = match mask(&field) {
            Some("Count") => format!("&crate::mask::Count({field_name}.len())"),
            Some(mask) => format!("&crate::mask::{mask}({field_name})"),
            None => field_name.to_owned(),
        };
        writeln!(fields, "            .field({field_name:?}, {value})").unwrap();
    }
    // The pattern names every field: one that is added and not printed does not compile.
    format!(
        "impl ::core::fmt::Debug for {path} {{
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
        let Self {{ {} }} = self;
        f.debug_struct({name:?})
{fields}            .finish()
    }}
}}
",
        names.join(", ")
    )
}
