//! Writes `tests/gen/types.rs` and `tests/gen/addons.rs`: macros that name every generated message type next to its
//! protobuf name, so that a test can go through all of them and none can be forgotten.

use std::fmt::Write as _;

use prost_reflect::DescriptorPool;

use super::rust_names::rust_path;

pub(crate) fn type_list(pool: &DescriptorPool, package: &str, module: &str) -> String {
    let mut entries = String::new();
    for message in pool.all_messages() {
        if message.package_name() == package && !message.is_map_entry() {
            let (name, path) = (message.full_name(), rust_path(&message));
            writeln!(
                entries,
                "            {name:?} => csi_proto::{module}::{path},"
            )
            .unwrap();
        }
    }
    let macro_name = match module {
        "v1" => "with_every_message".to_owned(),
        module => format!("with_every_message_of_{module}"),
    };
    format!(
        "/// Calls the given macro with `\"protobuf name\" => RustType,` for every message.
macro_rules! {macro_name} {{
    ($call:ident) => {{
        $call! {{
{entries}        }}
    }};
}}
"
    )
}
