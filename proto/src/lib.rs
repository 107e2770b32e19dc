//! The wire types of the Container Storage Interface, and its gRPC clients (feature `client`) and
//! server traits (feature `server`). No behaviour lives here, except that `Debug` of a message never
//! shows a secret: fields marked `csi_secret` or `omnibus_sensitive` print masked. The truth is
//! `csi.proto`, `pluginregistration.proto` for the kubelet's registration of plugins, and `identity.proto`,
//! `fence.proto` and `reclaimspace.proto` for csi-addons; everything under `gen` is made from them by
//! `tests/it/bootstrap.rs`.

mod mask;

/// The version of the CSI specification that `csi.proto` follows.
pub const SPEC_VERSION: &str = "1.13.0";

/// The compiled `csi.proto` with its imports, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("gen/csi.v1.bin");

/// The compiled files of csi-addons with their imports, for gRPC reflection.
pub const ADDONS_DESCRIPTOR_SET: &[u8] = include_bytes!("gen/csi-addons.bin");

/// Package `csi.v1`: messages, and per service a module with its client and one with its server.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its shape is the generator's, its names are the specification's"
)]
pub mod v1 {
    include!("gen/csi.v1.rs");
    include!("gen/redact.rs");
}

/// Package `pluginregistration`: what the kubelet asks a plugin that registers itself.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its shape is the generator's, its names are the kubelet's"
)]
pub mod pluginregistration {
    include!("gen/pluginregistration.rs");
}

/// Package `identity` of csi-addons: who a driver is, and what it can of csi-addons.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its shape is the generator's, its names are those of csi-addons"
)]
pub mod identity {
    include!("gen/identity.rs");
}

/// Package `fence` of csi-addons: networks that are shut out from the storage.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its shape is the generator's, its names are those of csi-addons"
)]
pub mod fence {
    include!("gen/fence.rs");
    include!("gen/fence.redact.rs");
}

/// Package `reclaimspace` of csi-addons: space that goes back to the storage.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its shape is the generator's, its names are those of csi-addons"
)]
pub mod reclaimspace {
    include!("gen/reclaimspace.rs");
    include!("gen/reclaimspace.redact.rs");
}
