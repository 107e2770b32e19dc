//! Names of generated Rust types. Follows prost's rules as far as `csi.proto` needs them; the
//! compiler is the judge, since every name ends up in code that is compiled.

use prost_reflect::MessageDescriptor;

/// `csi.v1.VolumeCapability.MountVolume` is `volume_capability::MountVolume` inside the module `v1`.
pub(crate) fn rust_path(message: &MessageDescriptor) -> String {
    let mut path = type_name(message.name());
    let mut outer = message.parent_message();
    while let Some(parent) = outer {
        path = format!("{}::{path}", module_name(parent.name()));
        outer = parent.parent_message();
    }
    path
}

pub(crate) fn type_name(proto: &str) -> String {
    words(proto)
        .iter()
        .map(|word| word[..1].to_uppercase() + &word[1..].to_lowercase())
        .collect()
}

fn module_name(proto: &str) -> String {
    words(proto).join("_").to_lowercase()
}

/// `RPC` is one word, `VolumeContentSource` three.
fn words(proto: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut after_capital = false;
    for c in proto.chars() {
        if c.is_uppercase() && !after_capital {
            words.push(String::new());
        }
        after_capital = c.is_uppercase();
        words
            .last_mut()
            .expect("message names begin with a capital")
            .push(c);
    }
    words
}
