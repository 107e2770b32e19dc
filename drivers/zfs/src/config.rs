//! The section `zfs` of the configuration, which all drivers with datasets share.
//!
//! compat: "ZFS". This module has the keys and defaults; they become a [`Layout`] and a [`Policy`].
//! The backend that runs the programs of the host reads their section.

mod block;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use driver_core::Topology;
use driver_core::config::scalar::{Mode, Owner, unless_falsy};
use driver_core::config::{CommonConfig, ConfigError, DeleteStrategy, Document, Finding, Severity};
use driver_core::naming::VolumeNaming;
use driver_core::template::Template;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub use self::block::{BlockSize, BlockSizeError};
use crate::driver::Settings;
use crate::id::{Child, Layout};
use crate::name::DatasetName;
use crate::observed::VolumeKind;
use crate::parameter::{ClassProperties, ClassProperty, ShareChoices};
use crate::policy::Policy;
use crate::property::{PropertyName, PropertyValue};
use crate::step::Permission;

/// The section `zfs`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZfsConfig {
    /// The parent of volumes.
    pub dataset_parent_name: String,
    /// The datasets right below it that hold volumes, too, each by its last part; none unless given.
    #[serde(default)]
    pub dataset_children: Vec<String>,
    /// The parent of detached snapshots; without it there are none.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub detached_snapshots_dataset_parent_name: Option<String>,
    /// The programs of the host.
    #[serde(default)]
    pub cli: CliConfig,
    /// Properties of new volumes: templates that see `parameters`.
    #[serde(default)]
    pub dataset_properties: BTreeMap<String, Template>,
    /// Properties of new snapshots, likewise.
    #[serde(default)]
    pub snapshot_properties: BTreeMap<String, Template>,
    /// Whether the size of a filesystem is a quota.
    #[serde(default)]
    pub dataset_enable_quotas: bool,
    /// Whether the size of a filesystem is reserved.
    #[serde(default)]
    pub dataset_enable_reservation: bool,
    /// The mode of the root of a filesystem.
    #[serde(default, deserialize_with = "mode")]
    pub dataset_permissions_mode: Option<Mode>,
    /// Its owner: a number or a name of the storage host.
    #[serde(default, deserialize_with = "owner")]
    pub dataset_permissions_user: Option<Owner>,
    /// Its group.
    #[serde(default, deserialize_with = "owner")]
    pub dataset_permissions_group: Option<Owner>,
    /// Arguments of the tool for access control lists, one call each: `-m u:kube:rwx`.
    #[serde(default)]
    pub dataset_permissions_acls: Vec<String>,
    /// That tool; `setfacl` unless given.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub dataset_permissions_acls_binary: Option<String>,
    /// The size of the blocks of a zvol; 16K unless given.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub zvol_blocksize: Option<BlockSize>,
    /// Whether the size of a zvol is reserved.
    #[serde(default)]
    pub zvol_enable_reservation: bool,
    /// Deduplication of a zvol.
    #[serde(default, deserialize_with = "switch")]
    pub zvol_dedup: Option<String>,
    /// Compression of a zvol. democratic-csi reads it and forgets it.
    #[serde(default, deserialize_with = "switch")]
    pub zvol_compression: Option<String>,
    /// The properties that classes may set; none unless given.
    #[serde(default)]
    pub volume_parameters: Vec<String>,
    /// The objects that a deletion may delete as well.
    #[serde(default)]
    pub deletion: DeletionConfig,
    /// The choices of classes for shares. The export gives them: they are in its own section.
    #[serde(skip)]
    share_choices: ShareChoices,
}

/// `zfs.deletion`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionConfig {
    /// Whether a volume with snapshots that this driver did not take is kept. compat: "ZFS".
    #[serde(default)]
    pub keep_foreign_snapshots: bool,
}

/// `zfs.cli`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CliConfig {
    /// Whether `zfs` is run by sudo.
    #[serde(default)]
    pub sudo_enabled: bool,
    /// The paths of programs.
    #[serde(default)]
    pub paths: PathsConfig,
}

/// `zfs.cli.paths`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PathsConfig {
    /// `zfs`; without it, the host finds it.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub zfs: Option<String>,
    /// `zpool`; without it, the one beside `zfs`, or the one that the host finds.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub zpool: Option<String>,
    /// `sudo`; without it, the host finds it.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub sudo: Option<String>,
}

/// The value, unless it is absent or an empty text; zero is one.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let absent = value.is_null() || value.as_str() == Some("");
    Ok((!absent).then_some(value))
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    let mode = |value| Mode::deserialize(value).map_err(D::Error::custom);
    given(deserializer)?.map(mode).transpose()
}

fn owner<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Owner>, D::Error> {
    let owner = |value: Value| match value {
        Value::String(text) => text.trim().parse().map_err(D::Error::custom),
        Value::Number(number) => number.to_string().parse().map_err(D::Error::custom),
        _ => Err(D::Error::custom("expected a number or a name")),
    };
    given(deserializer)?.map(owner).transpose()
}

/// A ZFS keyword that YAML may have parsed as a boolean: `on` as true.
fn switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Bool(true) => Some("on".to_owned()),
        Value::Bool(false) => Some("off".to_owned()),
        Value::String(text) if !text.is_empty() => Some(text),
        Value::Null | Value::String(_) => None,
        _ => return Err(D::Error::custom("expected a word")),
    })
}

/// The argument of `chown`. compat: "ZFS": a user without a group brings the group of its login
/// along, which a numeric user does not have.
fn owner_of(user: Option<&Owner>, group: Option<&Owner>) -> Option<String> {
    let user = user.map(Owner::to_string);
    match (user, group) {
        (None, None) => None,
        (user, Some(group)) => Some(format!("{}:{group}", user.unwrap_or_default())),
        (Some(user), None) if user.bytes().all(|b| b.is_ascii_digit()) => Some(user),
        (Some(user), None) => Some(format!("{user}:")),
    }
}

// === impl ZfsConfig ===

impl ZfsConfig {
    /// The name of this section.
    pub const SECTION: &'static str = "zfs";

    /// Reads the section, and reports keys without effect.
    pub fn read(document: &Document) -> Result<Self, ConfigError> {
        document.without_effect(&[
            ("zfs.cli.paths.chroot", "`chroot` is never run"),
            (
                "zfs.datasetProperties.volblocksize",
                "zfs.zvolBlocksize sets the size of the blocks of zvols",
            ),
        ]);
        let config: Self = document.section(Self::SECTION)?;
        let name = ClassProperty::DatasetChild.name();
        if !config.dataset_children.is_empty() && !config.allows(name) {
            document.add(Finding {
                severity: Severity::Remark,
                path: "zfs.datasetChildren".to_owned(),
                message: format!(
                    "no class may choose one of them: zfs.volumeParameters has no `{name}`. Volumes that lie in them \
                     stay known"
                ),
                advice: None,
            });
        }
        let pool = |text: &str| text.split('/').next().map(str::to_owned);
        let detached = config.detached_snapshots_dataset_parent_name.as_deref();
        if let Some(detached) = detached.and_then(pool)
            // A name that is refused is in no pool.
            && DatasetName::parse(&config.dataset_parent_name).is_ok()
            && pool(&config.dataset_parent_name).is_some_and(|pool| pool != detached)
        {
            document.add(Finding {
                severity: Severity::Doubtful,
                path: "zfs.detachedSnapshotsDatasetParentName".to_owned(),
                message: format!("is in another pool than zfs.datasetParentName: `{detached}`"),
                advice: Some(
                    "leave it out, unless the storage host has that pool: detached snapshots need it"
                        .to_owned(),
                ),
            });
        }
        Ok(config)
    }

    /// Lets classes choose one of these, which stand at `key`. Reports them if no class may set that.
    pub fn offer(&mut self, choices: &ShareChoices, document: &Document, key: &str) {
        let name = ClassProperty::ShareOptions.name();
        if !choices.is_empty() && !self.allows(name) {
            document.add(Finding {
                severity: Severity::NoEffect,
                path: key.to_owned(),
                message: format!("has no effect: zfs.volumeParameters has no `{name}`"),
                advice: Some(format!("add `{name}` to it, or leave this out")),
            });
        }
        self.share_choices = choices.clone();
    }

    fn allows(&self, name: &str) -> bool {
        self.volume_parameters.iter().any(|one| one == name)
    }

    /// The layout of volumes of this kind.
    pub fn layout(&self, kind: VolumeKind) -> Result<Layout, ConfigError> {
        // compat: "ZFS": one `/` at the end is taken away.
        let name = |key: &str, text: &str| {
            DatasetName::parse(text.strip_suffix('/').unwrap_or(text))
                .map_err(|error| ConfigError::at(format!("zfs.{key}"), error.to_string()))
        };
        let volumes = name("datasetParentName", &self.dataset_parent_name)?;
        if kind == VolumeKind::Zvol && volumes.as_str().contains(' ') {
            let problem = "holds a blank, which the names of devices cannot";
            return Err(ConfigError::at("zfs.datasetParentName", problem));
        }
        let key = "detachedSnapshotsDatasetParentName";
        let detached = self.detached_snapshots_dataset_parent_name.as_deref();
        let detached = detached.map(|text| name(key, text)).transpose()?;
        if let Some(detached) = &detached {
            let apart = *detached != volumes
                && detached.below(&volumes).is_none()
                && volumes.below(detached).is_none();
            if !apart {
                let problem =
                    "has to be apart from zfs.datasetParentName: neither may hold the other";
                return Err(ConfigError::at(format!("zfs.{key}"), problem));
            }
        }
        Ok(Layout {
            children: self.children(&volumes)?,
            volumes,
            detached,
            kind,
        })
    }

    /// The children of the parent of volumes.
    fn children(&self, parent: &DatasetName) -> Result<Vec<Child>, ConfigError> {
        let mut children: Vec<Child> = Vec::new();
        for name in &self.dataset_children {
            let child = Child::of(parent, name).map_err(|error| {
                let problem = format!("`{}` {error}", name.escape_debug());
                ConfigError::at("zfs.datasetChildren", problem)
            })?;
            let alike = |other: &&Child| other.name().eq_ignore_ascii_case(child.name());
            match children.iter().find(alike) {
                None => children.push(child),
                Some(other) if *other == child => {}
                // Names of targets and shares have no capitals.
                Some(other) => {
                    let problem =
                        format!("`{}` and `{name}` differ in capitals alone", other.name());
                    return Err(ConfigError::at("zfs.datasetChildren", problem));
                }
            }
        }
        Ok(children)
    }

    /// The policy for volumes of this kind.
    pub fn policy(&self, common: &CommonConfig, kind: VolumeKind) -> Result<Policy, ConfigError> {
        let properties = |section: &str, templates: &BTreeMap<String, Template>| {
            let one = |(key, template): (&String, &Template)| {
                let name = PropertyName::parse(key).map_err(|error| {
                    ConfigError::at(format!("zfs.{section}"), format!("`{key}` {error}"))
                })?;
                Ok((name, template.clone()))
            };
            templates
                .iter()
                .map(one)
                .collect::<Result<Vec<_>, ConfigError>>()
        };
        let word = |key: &str, text: &Option<String>| {
            let parse = |text: &String| {
                PropertyValue::parse(text.clone())
                    .map_err(|error| ConfigError::at(format!("zfs.{key}"), error.to_string()))
            };
            text.as_ref().map(parse).transpose()
        };
        Ok(Policy {
            provisioner: common.driver.clone(),
            instance: common.instance_id.clone(),
            dataset_properties: properties("datasetProperties", &self.dataset_properties)?,
            snapshot_properties: properties("snapshotProperties", &self.snapshot_properties)?,
            quota: self.dataset_enable_quotas,
            reservation: self.dataset_enable_reservation,
            smallest: 0,
            block: self.zvol_blocksize.unwrap_or(BlockSize::DEFAULT).bytes(),
            thin: !self.zvol_enable_reservation,
            dedup: word("zvolDedup", &self.zvol_dedup)?,
            compression: word("zvolCompression", &self.zvol_compression)?,
            permissions: self.permissions()?,
            class: self.class(kind)?,
        })
    }

    /// The list of all that classes may set.
    fn class(&self, kind: VolumeKind) -> Result<ClassProperties, ConfigError> {
        let children = self.layout(kind)?.children;
        let (names, shares) = (&self.volume_parameters, &self.share_choices);
        let allowed = ClassProperties::allow(names, kind, shares, &children);
        allowed.map_err(|(name, why)| {
            ConfigError::at("zfs.volumeParameters", format!("`{name}` {why}"))
        })
    }

    fn permissions(&self) -> Result<Vec<Permission>, ConfigError> {
        let mut all = Vec::new();
        all.extend(
            self.dataset_permissions_mode
                .map(|mode| Permission::Mode(mode.bits())),
        );
        let owner = (
            &self.dataset_permissions_user,
            &self.dataset_permissions_group,
        );
        all.extend(owner_of(owner.0.as_ref(), owner.1.as_ref()).map(Permission::Owner));
        for entry in &self.dataset_permissions_acls {
            if entry.contains(['"', '\'', '\\']) {
                let problem = "holds a quote or a backslash: no shell reads it, and its words are \
                               separated by blanks alone";
                return Err(ConfigError::at("zfs.datasetPermissionsAcls", problem));
            }
            let arguments = entry.split_whitespace().map(str::to_owned);
            all.push(Permission::Acl(arguments.collect()));
        }
        Ok(all)
    }

    /// The complete configuration of a driver of this kind.
    pub fn settings(
        &self,
        common: &CommonConfig,
        kind: VolumeKind,
        place: Option<Topology>,
    ) -> Result<Settings, ConfigError> {
        Ok(Settings {
            kind: common.driver.clone(),
            instance: common.instance_id.clone(),
            naming: VolumeNaming::new(common),
            id_room: common.id_room,
            layout: self.layout(kind)?,
            policy: self.policy(common, kind)?,
            keep_foreign_snapshots: self.deletion.keep_foreign_snapshots,
            retain: common.private.csi.volume.delete_strategy == DeleteStrategy::Retain,
            place,
        })
    }
}
