//! The keys that all drivers have in common.
//!
//! Names and forms are those of democratic-csi, see `docs/compatibility.md`, "Configuration". A
//! driver reports keys that it does not use with
//! [`Document::without_effect`](super::Document::without_effect).

mod capability;
mod filesystems;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use csi_types::{AccessMode, FsType, MountFlags};
use serde::de::{self, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub use self::capability::{
    ControllerCapability, NodeCapability, PluginCapability, VolumeExpansion,
};
use super::scalar::unless_falsy;
use crate::template::Template;
use crate::text::MAX_STRING;

/// The keys that all drivers have in common.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct CommonConfig {
    /// The kind of backend.
    pub driver: String,
    /// Distinguishes several installations on one backend: names a scope of parameters.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub instance_id: Option<String>,
    /// The way volumes may be used.
    #[serde(default)]
    pub csi: CsiConfig,
    /// The advertised services.
    #[serde(default)]
    pub service: ServiceConfig,
    /// Names of volumes, and what happens on deletion.
    #[serde(default, rename = "_private")]
    pub private: PrivateConfig,
    /// What the node does.
    #[serde(default)]
    pub node: NodeConfig,
    /// The longest id of this connection. Not a key: it follows from the form of handles.
    #[serde(skip)]
    pub id_room: IdRoom,
}

/// The longest id that a driver may issue, in bytes: the limit of the specification for a string,
/// less what a handle needs to name the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRoom(usize);

/// `csi`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct CsiConfig {
    /// Replaces the access modes that the driver offers, if given.
    #[serde(default, deserialize_with = "access_modes")]
    pub access_modes: Option<Vec<AccessMode>>,
}

/// `service`: each list replaces the default one, if given.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ServiceConfig {
    /// The identity service.
    #[serde(default)]
    pub identity: IdentityService,
    /// The controller service.
    #[serde(default)]
    pub controller: ControllerService,
    /// The node service.
    #[serde(default)]
    pub node: NodeService,
}

/// `service.identity`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct IdentityService {
    /// The advertised capabilities.
    #[serde(default)]
    pub capabilities: IdentityCapabilities,
}

/// `service.identity.capabilities`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct IdentityCapabilities {
    /// The capabilities of the plugin.
    pub service: Option<Vec<PluginCapability>>,
    /// The way volumes grow.
    pub volume_expansion: Option<Vec<VolumeExpansion>>,
}

/// `service.controller`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ControllerService {
    /// The advertised capabilities.
    #[serde(default)]
    pub capabilities: ControllerCapabilities,
}

/// `service.controller.capabilities`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ControllerCapabilities {
    /// The capabilities of the controller.
    pub rpc: Option<Vec<ControllerCapability>>,
}

/// `service.node`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct NodeService {
    /// The advertised capabilities.
    #[serde(default)]
    pub capabilities: NodeCapabilities,
}

/// `service.node.capabilities`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct NodeCapabilities {
    /// The capabilities of the node.
    pub rpc: Option<Vec<NodeCapability>>,
}

/// `_private`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PrivateConfig {
    /// Names of volumes, and what happens on deletion.
    #[serde(default)]
    pub csi: PrivateCsi,
    /// Volume contexts by volume id, for orchestrators that send none.
    #[serde(default)]
    pub volume_context: BTreeMap<String, BTreeMap<String, String>>,
}

/// `_private.csi`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PrivateCsi {
    /// Names of volumes, and what happens on deletion.
    #[serde(default)]
    pub volume: PrivateVolume,
}

/// `_private.csi.volume`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrivateVolume {
    /// Makes the id of a volume from `name` and `parameters`. An empty one is none.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub id_template: Option<Template>,
    /// Makes the id short.
    #[serde(default)]
    pub id_hash: IdHashConfig,
    /// The effect of deleting a volume. `delete` unless given.
    #[serde(default)]
    pub delete_strategy: DeleteStrategy,
    /// The source of volume contexts if the orchestrator sends none.
    #[serde(default)]
    pub volume_context: VolumeContextConfig,
}

/// `_private.csi.volume.idHash`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct IdHashConfig {
    /// The hash that makes an id of a name; none unless given.
    #[serde(default, deserialize_with = "id_hash")]
    pub strategy: Option<IdHash>,
}

/// The hash that makes an id of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdHash {
    /// MD5, as hexadecimal text.
    Md5,
    /// CRC-8, as decimal text.
    Crc8,
    /// CRC-16/ARC, as decimal text.
    Crc16,
    /// CRC-32, as decimal text.
    Crc32,
}

/// The effect of deleting a volume.
///
/// compat: "Configuration": democratic-csi deletes for every word except `retain`; here any other
/// word than the two is an error, because it may be a misspelt `retain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeleteStrategy {
    /// The volume is deleted.
    #[default]
    Delete,
    /// The volume is kept, and the call succeeds.
    Retain,
}

/// `_private.csi.volume.volumeContext`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct VolumeContextConfig {
    /// The place where they are looked up.
    pub driver: Option<VolumeContextSource>,
}

/// The source of volume contexts if the orchestrator sends none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeContextSource {
    /// From `_private.volume_context`.
    Memory,
    /// From the cluster.
    Kubernetes,
}

/// `node`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfig {
    /// Mounting.
    #[serde(default)]
    pub mount: MountConfig,
    /// Making filesystems, by type.
    #[serde(default, deserialize_with = "by_fs_type")]
    pub format: HashMap<FsType, FilesystemFormat>,
    /// Guests of Kata Containers.
    #[serde(default)]
    pub kata: KataConfig,
    /// The CSI proxy of Windows nodes.
    #[serde(default)]
    pub csi_proxy: CsiProxy,
}

/// `node.mount`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct MountConfig {
    /// Options that follow those of the request.
    #[serde(default, deserialize_with = "mount_flags")]
    pub mount_flags: MountFlags,
    /// Checks before the first mount, by type.
    #[serde(default, rename = "checkFilesystem", deserialize_with = "by_fs_type")]
    pub check_filesystem: HashMap<FsType, FilesystemCheck>,
}

/// `node.kata`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KataConfig {
    /// Whether the guest of a pod mounts the filesystem of its volume, not the node. No unless given.
    pub direct_volumes: bool,
}

/// `node.mount.checkFilesystem.<type>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FilesystemCheck {
    /// Whether it is checked. No unless given.
    pub enabled: bool,
    /// Arguments before the device.
    pub custom_options: Vec<String>,
    /// Arguments after the device, for the checker of the filesystem itself.
    pub custom_filesystem_options: Vec<String>,
}

/// `node.format.<type>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FilesystemFormat {
    /// Arguments before the device.
    pub custom_options: Vec<String>,
}

/// `node.csiProxy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiProxy {
    /// Whether it is used.
    pub enabled: Option<bool>,
    /// Its services by name.
    pub services: BTreeMap<String, CsiProxyService>,
}

/// `node.csiProxy.services.<name>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiProxyService {
    /// The version of its interface.
    pub version: Option<String>,
    /// The place where it listens.
    pub connection: Option<String>,
}

// === impl IdRoom ===

impl IdRoom {
    /// The limit minus `taken` bytes.
    pub fn behind(taken: usize) -> Self {
        Self(MAX_STRING.saturating_sub(taken))
    }

    /// The number of bytes.
    pub fn bytes(self) -> usize {
        self.0
    }
}

impl Default for IdRoom {
    fn default() -> Self {
        Self(MAX_STRING)
    }
}

fn access_modes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<AccessMode>>, D::Error> {
    const NAMES: &[&str] = &[
        "UNKNOWN",
        "SINGLE_NODE_WRITER",
        "SINGLE_NODE_READER_ONLY",
        "MULTI_NODE_READER_ONLY",
        "MULTI_NODE_SINGLE_WRITER",
        "MULTI_NODE_MULTI_WRITER",
        "SINGLE_NODE_SINGLE_WRITER",
        "SINGLE_NODE_MULTI_WRITER",
    ];
    let names = Option::<Vec<String>>::deserialize(deserializer)?;
    let mode = |name: String| {
        name.parse()
            .map_err(|()| D::Error::unknown_variant(&name, NAMES))
    };
    names
        .map(|names| names.into_iter().map(mode).collect())
        .transpose()
}

fn id_hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IdHash>, D::Error> {
    let Some(name) = unless_falsy::<D, String>(deserializer)? else {
        return Ok(None);
    };
    match name.to_ascii_lowercase().as_str() {
        "md5" => Ok(Some(IdHash::Md5)),
        "crc8" => Ok(Some(IdHash::Crc8)),
        "crc16" => Ok(Some(IdHash::Crc16)),
        "crc32" => Ok(Some(IdHash::Crc32)),
        _ => Err(D::Error::unknown_variant(
            &name,
            &["md5", "crc8", "crc16", "crc32"],
        )),
    }
}

fn by_fs_type<'de, D, T>(deserializer: D) -> Result<HashMap<FsType, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    BTreeMap::<String, T>::deserialize(deserializer)?
        .into_iter()
        .map(|(name, value)| match FsType::parse(&name) {
            Ok(fs_type) => Ok((fs_type, value)),
            Err(error) => Err(D::Error::custom(format!(
                "the key `{}` {error}",
                name.escape_debug()
            ))),
        })
        .collect()
}

/// Reads mount options: a string with commas, or a list.
pub fn mount_flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MountFlags, D::Error> {
    struct Flags;

    impl<'de> Visitor<'de> for Flags {
        type Value = MountFlags;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("mount options separated by commas")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<MountFlags, E> {
            MountFlags::parse([text]).map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<MountFlags, A::Error> {
            let mut entries = Vec::<String>::new();
            while let Some(entry) = access.next_element()? {
                entries.push(entry);
            }
            MountFlags::parse(entries).map_err(A::Error::custom)
        }
    }

    deserializer.deserialize_any(Flags)
}
