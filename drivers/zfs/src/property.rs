//! Properties of datasets and snapshots: names, values, and where a value comes from.
//!
//! The source matters: snapshots and children inherit properties of a volume, so only an object's
//! own value says anything about that object. The names that begin with `democratic-csi:` are the
//! records of all volumes. compat: "ZFS".

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::name::SnapshotLeaf;

/// The longest value that ZFS keeps, in bytes.
pub const MAX_VALUE: usize = 8191;
/// The longest name of a property.
const MAX_NAME: usize = 255;

/// The properties that belong to a user, a group or a project.
const QUOTAS: [&str; 6] = [
    "userquota",
    "groupquota",
    "projectquota",
    "userobjquota",
    "groupobjquota",
    "projectobjquota",
];

/// The bytes that were written since a snapshot, which follows the `@`.
const WRITTEN: &str = "written";

/// The name of a property: a native one (`refquota`) or one of a user (`democratic-csi:…`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PropertyName(Cow<'static, str>);

/// A value to be set: any text of one line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PropertyValue(String);

/// A property to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: PropertyName,
    /// Its value.
    pub value: PropertyValue,
}

/// The properties of an object, as they were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties(BTreeMap<PropertyName, Value>);

/// A value as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The text.
    pub text: String,
    /// Its source.
    pub origin: Origin,
}

/// The source of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was set on this object, or came with the stream that it was received from.
    Own,
    /// From a dataset above, or for a snapshot from its dataset.
    Inherited,
    /// Not set: a default, or a fact such as `used`.
    Default,
}

/// Why a name or a value is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PropertyError {
    /// No property can have this name.
    #[error("is not the name of a property")]
    Name,
    /// Longer than ZFS keeps.
    #[error("is longer than {MAX_VALUE} bytes")]
    TooLong,
    /// A line end or another control character: it could not be read back reliably.
    #[error("holds a control character")]
    Control,
}

// === impl PropertyName ===

/// The properties of the contract with democratic-csi. compat: "ZFS".
impl PropertyName {
    /// `true` on every object of ours.
    pub const MANAGED: Self = Self::constant("democratic-csi:managed_resource");
    /// The name that the orchestrator suggested.
    pub const VOLUME_NAME: Self = Self::constant("democratic-csi:csi_volume_name");
    /// The value of `driver:` that made the volume.
    pub const PROVISIONER: Self =
        Self::constant("democratic-csi:volume_context_provisioner_driver");
    /// The `instance_id` that made the volume.
    pub const INSTANCE: Self =
        Self::constant("democratic-csi:volume_context_provisioner_instance_id");
    /// `snapshot` or `volume`, on a volume that was made from one.
    pub const SOURCE_KIND: Self = Self::constant("democratic-csi:csi_volume_content_source_type");
    /// The id of that snapshot or volume.
    pub const SOURCE_ID: Self = Self::constant("democratic-csi:csi_volume_content_source_id");
    /// The volume context as JSON. Only complete volumes have it.
    pub const CONTEXT: Self = Self::constant("democratic-csi:csi_share_volume_context");
    /// `true` as the last step of making a volume or snapshot.
    pub const SUCCESS: Self = Self::constant("democratic-csi:provision_success");
    /// The name that the orchestrator gave to a snapshot.
    pub const SNAPSHOT_NAME: Self = Self::constant("democratic-csi:csi_snapshot_name");
    /// The volume that a snapshot is of.
    pub const SNAPSHOT_SOURCE: Self =
        Self::constant("democratic-csi:csi_snapshot_source_volume_id");
    /// The group that a snapshot was taken with. democratic-csi takes none. compat: "ZFS".
    pub const GROUP: Self = Self::constant("omnibus-csi:group_snapshot");
    /// `true` on a dataset that was created to hold detached snapshots, and is destroyed with the
    /// last of them. democratic-csi has no such mark. compat: "ZFS".
    pub const CONTAINER: Self = Self::constant("omnibus-csi:container");
    /// The claim that a volume was created for, `namespace/name`. democratic-csi has no such mark. compat: "ZFS".
    pub const CLAIM: Self = Self::constant("omnibus-csi:claim");
    /// The persistent volume that it was created as. compat: "ZFS".
    pub const PERSISTENT_VOLUME: Self = Self::constant("omnibus-csi:persistent_volume");
    /// The dataset that an operator adopted: its own name, so that a copy of the property says nothing of the dataset
    /// that has it. From before the adoption is complete. compat: "ZFS".
    pub const ADOPTED: Self = Self::constant("omnibus-csi:adopted");
    /// On a dataset that a move fills or has filled: `rounds`, and once it is made a volume the GUID of the snapshot
    /// whose content it has. From its first moment on. compat: "ZFS".
    pub const MOVE: Self = Self::constant("omnibus-csi:move");
    /// The nodes that a volume is published to, see [`PublishedNodes`](crate::published::PublishedNodes). compat: "ZFS".
    pub const PUBLISHED: Self = Self::constant("omnibus-csi:published");
    /// The networks that are shut out from the volumes of a parent, see [`Fenced`](crate::fenced::Fenced). compat: "ZFS".
    pub const FENCED: Self = Self::constant("omnibus-csi:fenced");
    /// The choice of share options that a class has made, by its name. compat: "ZFS".
    pub const SHARE_OPTIONS: Self = Self::constant("omnibus-csi:share_options");
    /// The name of an iSCSI target and its disk on a host with ZFS.
    pub const ISCSI_ASSETS: Self = Self::constant("democratic-csi:iscsi_assets_name");
    /// The number of the NFS share of a volume on TrueNAS.
    pub const FREENAS_NFS_SHARE: Self = Self::constant("democratic-csi:freenas_nfs_share_id");
    /// The number of its SMB share.
    pub const FREENAS_SMB_SHARE: Self = Self::constant("democratic-csi:freenas_smb_share_id");
    /// The number of its iSCSI target.
    pub const FREENAS_ISCSI_TARGET: Self = Self::constant("democratic-csi:freenas_iscsi_target_id");
    /// The number of its iSCSI extent.
    pub const FREENAS_ISCSI_EXTENT: Self = Self::constant("democratic-csi:freenas_iscsi_extent_id");
    /// The number of the association of the extent with the target.
    pub const FREENAS_ISCSI_LINK: Self =
        Self::constant("democratic-csi:freenas_iscsi_targettoextent_id");
    /// The name of its target and its extent.
    pub const FREENAS_ISCSI_ASSETS: Self =
        Self::constant("democratic-csi:freenas_iscsi_assets_name");
    /// The number of its NVMe-oF subsystem.
    pub const FREENAS_NVMEOF_SUBSYSTEM: Self =
        Self::constant("democratic-csi:freenas_nvmeof_subsystem_id");
    /// The number of its namespace.
    pub const FREENAS_NVMEOF_NAMESPACE: Self =
        Self::constant("democratic-csi:freenas_nvmeof_namespace_id");
    /// The name of its subsystem.
    pub const FREENAS_NVMEOF_ASSETS: Self =
        Self::constant("democratic-csi:freenas_nvmeof_assets_name");
    /// The name of an NVMe-oF subsystem on a host with ZFS.
    pub const NVMEOF_ASSETS: Self = Self::constant("democratic-csi:nvmeof_assets_name");
}

/// Native properties.
impl PropertyName {
    /// The name of the object itself. ZFS shows it as a property that is never set.
    pub const NAME: Self = Self::constant("name");
    /// `filesystem`, `volume` or `snapshot`.
    pub const TYPE: Self = Self::constant("type");
    /// Distinguishes an object from a later one of the same name.
    pub const GUID: Self = Self::constant("guid");
    /// The transaction in which it was made: the order of lists.
    pub const CREATETXG: Self = Self::constant("createtxg");
    /// When it was made, in seconds.
    pub const CREATION: Self = Self::constant("creation");
    /// The snapshot that a clone is of.
    pub const ORIGIN: Self = Self::constant("origin");
    /// The clones of a snapshot.
    pub const CLONES: Self = Self::constant("clones");
    /// Whether a snapshot is destroyed with its last clone.
    pub const DEFER_DESTROY: Self = Self::constant("defer_destroy");
    /// The number of holds of a snapshot.
    pub const USERREFS: Self = Self::constant("userrefs");
    /// `1` while a stream is being received into a dataset: not all of its content is there.
    pub const INCONSISTENT: Self = Self::constant("inconsistent");
    /// The token to resume an interrupted stream, if it was received with `-s`.
    pub const RESUME_TOKEN: Self = Self::constant("receive_resume_token");
    /// The path where a filesystem is mounted.
    pub const MOUNTPOINT: Self = Self::constant("mountpoint");
    /// Whether ZFS mounts it.
    pub const CANMOUNT: Self = Self::constant("canmount");
    /// Whether it is mounted.
    pub const MOUNTED: Self = Self::constant("mounted");
    /// Whether the key of an encrypted dataset is loaded. ZFS before 0.8 does not know it.
    pub const KEYSTATUS: Self = Self::constant("keystatus");
    /// The number of bytes that a filesystem may refer to.
    pub const REFQUOTA: Self = Self::constant("refquota");
    /// The limit of a filesystem and all below it, its snapshots among it.
    pub const QUOTA: Self = Self::constant("quota");
    /// The space that is reserved for it.
    pub const REFRESERVATION: Self = Self::constant("refreservation");
    /// The bytes that it refers to.
    pub const REFERENCED: Self = Self::constant("referenced");
    /// The same before compression.
    pub const LOGICALREFERENCED: Self = Self::constant("logicalreferenced");
    /// The bytes that can be written.
    pub const AVAILABLE: Self = Self::constant("available");
    /// The size of a zvol.
    pub const VOLSIZE: Self = Self::constant("volsize");
    /// The size of its blocks.
    pub const VOLBLOCKSIZE: Self = Self::constant("volblocksize");
    /// Deduplication.
    pub const DEDUP: Self = Self::constant("dedup");
    /// Compression.
    pub const COMPRESSION: Self = Self::constant("compression");
    /// Whether reading a file changes the time of its last access.
    pub const ATIME: Self = Self::constant("atime");
    /// The purpose of synchronous writes.
    pub const LOGBIAS: Self = Self::constant("logbias");
    /// The largest block of a file.
    pub const RECORDSIZE: Self = Self::constant("recordsize");
    /// The handling of synchronous writes.
    pub const SYNC: Self = Self::constant("sync");
    /// NFS exports by ZFS.
    pub const SHARENFS: Self = Self::constant("sharenfs");
    /// SMB shares by ZFS.
    pub const SHARESMB: Self = Self::constant("sharesmb");
}

impl PropertyName {
    /// A name known when this is compiled.
    const fn constant(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// The number of bytes written since a snapshot of the same dataset: `-` where there is none of that name.
    pub fn written_since(snapshot: &SnapshotLeaf) -> Self {
        Self(Cow::Owned(format!("{WRITTEN}@{snapshot}")))
    }

    /// Checks a name: lower-case letters, digits and `:-._`; a native one without the colon. Those
    /// of quotas end with the user or group: `userquota@joe`.
    pub fn parse(text: &str) -> Result<Self, PropertyError> {
        let allowed = |c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, ':' | '-' | '.' | '_')
        };
        let person = |c: char| c.is_ascii_alphanumeric() || "-_.@\\".contains(c);
        let plain = match text.split_once('@') {
            Some((quota, whose)) => {
                let known = quota == WRITTEN || QUOTAS.contains(&quota);
                known && !whose.is_empty() && whose.chars().all(person)
            }
            None => text.chars().all(allowed),
        };
        let begin = |c: char| c.is_ascii_alphanumeric() || c == ':';
        if plain && text.len() <= MAX_NAME && text.starts_with(begin) {
            Ok(Self(Cow::Owned(text.to_owned())))
        } else {
            Err(PropertyError::Name)
        }
    }

    /// Whether ZFS treats it as plain text.
    pub fn is_user(&self) -> bool {
        self.0.contains(':')
    }

    /// Whether it can only be set when an empty dataset is created: not on a clone, a copy, or an
    /// existing dataset.
    pub fn is_for_new_only(&self) -> bool {
        [
            "casesensitivity",
            "normalization",
            "utf8only",
            "volblocksize",
            "encryption",
            "keyformat",
            "keylocation",
            "pbkdf2iters",
        ]
        .contains(&self.as_str())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl PropertyValue ===

impl PropertyValue {
    /// Checks a value.
    pub fn parse(text: impl Into<String>) -> Result<Self, PropertyError> {
        let text = text.into();
        if text.len() > MAX_VALUE {
            return Err(PropertyError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(PropertyError::Control);
        }
        Ok(Self(text))
    }

    /// The value of a flag of the contract.
    pub fn yes() -> Self {
        Self("true".to_owned())
    }

    /// The reservation of a zvol that is enough for all of it. ZFS makes it a number.
    pub(crate) fn auto() -> Self {
        Self("auto".to_owned())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<u64> for PropertyValue {
    fn from(number: u64) -> Self {
        Self(number.to_string())
    }
}

// === impl Property ===

impl Property {
    /// A property that has this value.
    pub fn new(name: PropertyName, value: PropertyValue) -> Self {
        Self { name, value }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

// === impl Properties ===

impl Properties {
    /// Adds a value; a later one of the same name replaces it.
    pub fn insert(&mut self, name: PropertyName, value: Value) {
        self.0.insert(name, value);
    }

    /// Removes a value.
    pub fn remove(&mut self, name: &PropertyName) {
        self.0.remove(name);
    }

    /// The value, from any source. An empty one and `-` count as none, as with democratic-csi.
    pub fn get(&self, name: &PropertyName) -> Option<&str> {
        let value = self.0.get(name)?;
        (!matches!(value.text.as_str(), "" | "-")).then_some(value.text.as_str())
    }

    /// The object's own value.
    pub fn own(&self, name: &PropertyName) -> Option<&str> {
        let own = self.0.get(name)?.origin == Origin::Own;
        if own { self.get(name) } else { None }
    }

    /// A number; `None` also where ZFS says `none`.
    pub fn number(&self, name: &PropertyName) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// Whether a property already has this value of its own.
    pub fn has(&self, property: &Property) -> bool {
        self.own(&property.name) == Some(property.value.as_str())
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&PropertyName, &Value)> {
        self.0.iter()
    }
}

impl FromIterator<(PropertyName, Value)> for Properties {
    fn from_iter<I: IntoIterator<Item = (PropertyName, Value)>>(properties: I) -> Self {
        Self(properties.into_iter().collect())
    }
}

// === impl Value ===

impl Value {
    /// A value that the object has of its own.
    pub fn own(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            origin: Origin::Own,
        }
    }
}

macro_rules! text {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    )*};
}

text!(PropertyName PropertyValue);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_object_has_of_its_own_is_its_own() {
        let inherited = Value {
            text: "true".into(),
            origin: Origin::Inherited,
        };
        let mut properties = Properties::from_iter([(PropertyName::MANAGED, inherited)]);
        assert_eq!(properties.get(&PropertyName::MANAGED), Some("true"));
        assert_eq!(properties.own(&PropertyName::MANAGED), None);
        properties.insert(PropertyName::MANAGED, Value::own("-"));
        assert_eq!(properties.own(&PropertyName::MANAGED), None);
        properties.insert(PropertyName::MANAGED, Value::own("true"));
        assert!(properties.has(&Property::new(PropertyName::MANAGED, PropertyValue::yes())));
    }

    #[test]
    fn names_and_values_that_could_not_be_read_back_are_refused() {
        for name in [
            "",
            "a=b",
            "a b",
            "-o",
            "A",
            "userused@1",
            "userquota@",
            "userquota@a=b",
            "a\nb",
            "a/b",
        ] {
            assert!(PropertyName::parse(name).is_err(), "{name:?}");
        }
        for name in [
            "sharenfs",
            "org.x:y",
            "democratic-csi:managed_resource",
            ":a",
            "userquota@joe",
            "groupobjquota@EXAMPLE\\users",
            "written@volume-source-for-copy-1",
        ] {
            assert!(PropertyName::parse(name).is_ok(), "{name:?}");
        }
        assert_eq!(PropertyValue::parse("a\tb"), Err(PropertyError::Control));
        assert_eq!(
            PropertyValue::parse("v".repeat(8192)),
            Err(PropertyError::TooLong)
        );
        assert!(PropertyValue::parse("rw=@10.0.0.0/8,'\"$(x)").is_ok());
    }
}
