//! Writes `tests/gen/types.rs`: a macro that names every generated message type next to its protobuf
//! name, so that a test can go through all of them and none can be forgotten.

use std::fmt::Write as _;

use prost_reflect::DescriptorPool;

use super::rust_names::rust_path;

pub(crate) fn type_list(pool: &DescriptorPool, package: &str) -> String {
    let mut entries = String::new();
    for message in pool.all_messages() {
        if message.package_name() == package && !message.is_map_entry() {
            let (name, path) = (message.full_name(), rust_path(&message));
            writeln!(entries, "            {name:?} => csi_proto::v1::{path},").unwrap();
        }
    }
    format!(
        "/// Calls the given macro with `\"protobuf name\" => RustType,` for every message.
macro_rules! with_every_message {{
    ($call:ident) => {{
        $call! {{
{entries}        }}
    }};
}}
"
    )
}
