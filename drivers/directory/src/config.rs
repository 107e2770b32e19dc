//! The section of the configuration that a directory driver reads, and what is made of it.
//!
//! compat: "Configuration of directory drivers". Reading YAML and reporting unknown keys is
//! driver-core's; here are the keys, their defaults and their meaning. [`Layout`] is the checked
//! form that the driver works with.

use node_utils::AbsolutePath;
use node_utils::attachment::PathError;
use serde::{Deserialize, Deserializer};

use crate::accounts::{self, AccountError};

/// The section `local-hostpath`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostpathConfig {
    /// The base directory as nodes see it.
    pub share_base_path: String,
    /// The same directory as the controller sees it.
    pub controller_base_path: String,
    /// The mode of new volumes, octal; without it 0755 less the umask.
    #[serde(default, deserialize_with = "scalar")]
    pub dir_permissions_mode: Option<String>,
    /// The owner of new volumes: a number or a name.
    #[serde(default, deserialize_with = "scalar")]
    pub dir_permissions_user: Option<String>,
    /// The group of new volumes: a number or a name.
    #[serde(default, deserialize_with = "scalar")]
    pub dir_permissions_group: Option<String>,
    /// How snapshots are made.
    #[serde(default)]
    pub snapshots: SnapshotsConfig,
}

/// The section `snapshots`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct SnapshotsConfig {
    /// The driver of snapshots whose class names none; `filecopy` if absent.
    #[serde(default)]
    pub default_driver: Option<String>,
}

/// Where volumes lie and how they are made: the checked form of a section.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The base directory as nodes see it.
    pub share: AbsolutePath,
    /// The same directory as this process sees it.
    pub base: AbsolutePath,
    /// What new volumes look like.
    pub permissions: Permissions,
}

/// What a new volume looks like from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Its mode; `None` leaves what the system gives, or what was copied.
    pub mode: Option<u32>,
    /// Its owner.
    pub user: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
}

/// Why a section cannot be used. The key is the full path in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A path that cannot be a base directory.
    #[error("`{section}.{key}` {reason}")]
    Path {
        /// The section.
        section: &'static str,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        reason: PathError,
    },
    /// A mode that is no octal number up to 7777.
    #[error("`{section}.dirPermissionsMode` is not an octal mode: `{value}`")]
    Mode {
        /// The section.
        section: &'static str,
        /// What it says.
        value: String,
    },
    /// An owner that does not exist.
    #[error("`{section}.{key}` names no account")]
    Account {
        /// The section.
        section: &'static str,
        /// The key.
        key: &'static str,
        /// Why.
        source: AccountError,
    },
    /// A way of making snapshots that this build does not have.
    #[error(
        "`{section}.snapshots.default_driver` is `{value}`; this build makes snapshots with \
         `filecopy` only"
    )]
    SnapshotDriver {
        /// The section.
        section: &'static str,
        /// What it says.
        value: String,
    },
}

/// A string, or a number as its digits: YAML makes numbers of unquoted modes and ids.
fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Scalar {
        Number(u64),
        Text(String),
    }
    Ok(
        Option::<Scalar>::deserialize(deserializer)?.map(|scalar| match scalar {
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text,
        }),
    )
}

// === impl HostpathConfig ===

impl HostpathConfig {
    /// The name of this section.
    pub const SECTION: &'static str = "local-hostpath";

    /// Checks every value, accounts included.
    pub fn layout(&self) -> Result<Layout, ConfigError> {
        let section = Self::SECTION;
        if let Some(value) = self.snapshots.default_driver.as_deref()
            && value != "filecopy"
        {
            return Err(ConfigError::SnapshotDriver {
                section,
                value: value.to_owned(),
            });
        }
        let path = |key, value: &str| {
            AbsolutePath::parse(value).map_err(|reason| ConfigError::Path {
                section,
                key,
                reason,
            })
        };
        let account = |key, source| ConfigError::Account {
            section,
            key,
            source,
        };
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let user = given(&self.dir_permissions_user)
            .map(|value| accounts::user(&value))
            .transpose()
            .map_err(|source| account("dirPermissionsUser", source))?;
        let group = given(&self.dir_permissions_group)
            .map(|value| accounts::group(&value))
            .transpose()
            .map_err(|source| account("dirPermissionsGroup", source))?;
        let mode = given(&self.dir_permissions_mode)
            .map(|value| parse_mode(&value).ok_or(ConfigError::Mode { section, value }))
            .transpose()?;
        Ok(Layout {
            share: path("shareBasePath", &self.share_base_path)?,
            base: path("controllerBasePath", &self.controller_base_path)?,
            permissions: Permissions { mode, user, group },
        })
    }
}

/// Octal digits, with or without the prefix `0o`, up to 7777.
fn parse_mode(value: &str) -> Option<u32> {
    let digits = value.strip_prefix("0o").unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
        return None;
    }
    u32::from_str_radix(digits, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> HostpathConfig {
        serde_json::from_str(json).expect("a section")
    }

    #[test]
    fn a_mode_is_octal_whether_it_is_quoted_or_not() {
        for (value, mode) in [
            ("\"0777\"", 0o777),
            ("777", 0o777),
            ("\"777\"", 0o777),
            ("1777", 0o1777),
            ("\"0o750\"", 0o750),
        ] {
            let json = format!(
                r#"{{"shareBasePath":"/s/","controllerBasePath":"/b","dirPermissionsMode":{value}}}"#
            );
            let layout = config(&json).layout().expect("layout");
            assert_eq!(layout.permissions.mode, Some(mode), "{value}");
            assert_eq!(layout.share.as_str(), "/s");
        }
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_its_key() {
        for (extra, needle) in [
            (r#""dirPermissionsMode":"888""#, "dirPermissionsMode"),
            (r#""dirPermissionsMode":"10000""#, "dirPermissionsMode"),
            (r#""dirPermissionsMode":"u+rwx""#, "dirPermissionsMode"),
            (r#""dirPermissionsUser":"no:one""#, "dirPermissionsUser"),
            (
                r#""dirPermissionsGroup":"no such group""#,
                "dirPermissionsGroup",
            ),
            (
                r#""snapshots":{"default_driver":"restic"}"#,
                "snapshots.default_driver",
            ),
            (
                r#""snapshots":{"default_driver":"kopia"}"#,
                "snapshots.default_driver",
            ),
        ] {
            let json = format!(r#"{{"shareBasePath":"/s","controllerBasePath":"/b",{extra}}}"#);
            let error = config(&json).layout().expect_err("must be refused");
            assert!(error.to_string().contains(needle), "{error}");
            assert!(error.to_string().contains("local-hostpath."), "{error}");
        }
        let relative = config(r#"{"shareBasePath":"s","controllerBasePath":"/b"}"#);
        assert!(matches!(
            relative.layout(),
            Err(ConfigError::Path {
                key: "shareBasePath",
                ..
            })
        ));
    }

    #[test]
    fn owner_zero_counts_and_an_empty_one_does_not() {
        let json = r#"{"shareBasePath":"/s","controllerBasePath":"/b",
                       "dirPermissionsUser":0,"dirPermissionsGroup":""}"#;
        let permissions = config(json).layout().expect("layout").permissions;
        assert_eq!((permissions.user, permissions.group), (Some(0), None));
    }
}
