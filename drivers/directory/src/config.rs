//! The section of the configuration that a directory driver reads, and what is made of it.
//!
//! compat: "local-hostpath". Reading YAML and reporting unknown keys is
//! driver-core's; here are the keys, their defaults and their meaning. [`Layout`] is the checked
//! form that the driver works with.

use csi_types::attachment::Server;
use csi_types::{AbsolutePath, MountFlags};
use driver_core::config::ConfigError;
use driver_core::config::scalar::{Mode, Owner, unless_falsy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::accounts;
use crate::base::{BaseId, Creation};
use crate::id::Tool;
use crate::kind::{DirectoryKind, Location};
pub use crate::kopia::KopiaSection;
pub use crate::quota::{Enforce, ProjectIds, Quotas};
pub use crate::restic::ResticSection;

/// The way a snapshot is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SnapshotDriver {
    /// A copy of the directory, in the base.
    #[default]
    Filecopy,
    /// In the repository of a tool.
    Backup(Tool),
}

/// The section of a kind: `local-hostpath`, `nfs`, `smb` or `lustre`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryConfig {
    /// The server, as nodes reach it. Of a local directory there is none.
    #[serde(default)]
    pub share_host: Option<String>,
    /// The base directory as nodes see it.
    pub share_base_path: String,
    /// The same directory as the controller sees it. Without it the controller mounts the share in a folder
    /// of its own.
    #[serde(default)]
    pub controller_base_path: Option<String>,
    /// How the controller mounts the share; without it as nodes do, by `node.mount.mount_flags`.
    #[serde(default, deserialize_with = "mount_options")]
    pub mount_options: Option<MountFlags>,
    /// Whether the base directory is created if it does not exist; without it, if it was never used.
    #[serde(default)]
    pub create_base: Option<bool>,
    /// The id of the base: any other one is refused.
    #[serde(default)]
    pub base_id: Option<String>,
    /// The mode of new volumes; without it 0755 less the umask, or that of the source.
    #[serde(default, deserialize_with = "mode")]
    pub dir_permissions_mode: Option<Mode>,
    /// The owner of new volumes: a number or a name.
    #[serde(default, deserialize_with = "owner")]
    pub dir_permissions_user: Option<Owner>,
    /// The group of new volumes: a number or a name.
    #[serde(default, deserialize_with = "owner")]
    pub dir_permissions_group: Option<Owner>,
    /// Whether the sizes of new volumes are enforced, by project quotas or qgroups.
    #[serde(default)]
    pub quotas: Enforce,
    /// The project ids that volumes may have: `first-last`.
    #[serde(default)]
    pub quota_project_ids: ProjectIds,
    /// The way snapshots are made.
    #[serde(default)]
    pub snapshots: SnapshotsConfig,
}

/// The section `snapshots`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct SnapshotsConfig {
    /// The driver of snapshots whose class names none; `filecopy` if absent.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub default_driver: Option<String>,
    /// The repository of restic.
    #[serde(default)]
    pub restic: Option<ResticSection>,
    /// The repository of kopia.
    #[serde(default)]
    pub kopia: Option<KopiaSection>,
}

/// The place where volumes lie and how they are made: the checked form of a section.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The base directory as nodes see it.
    pub location: Location,
    /// The same directory as this process sees it, if an administrator has named one.
    pub base: Option<AbsolutePath>,
    /// When the base is created.
    pub creation: Creation,
    /// The id that it has to have.
    pub(crate) base_id: Option<BaseId>,
    /// The way a snapshot is made whose class does not say it.
    pub default_driver: SnapshotDriver,
    /// The permissions of new volumes.
    pub permissions: Permissions,
    /// Whether their sizes are enforced.
    pub quotas: Quotas,
}

/// The owner, group and mode of a new volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Its mode; `None` leaves what the system gives, or what was copied.
    pub mode: Option<u32>,
    /// Its owner.
    pub user: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
}

/// The value, unless it is absent or an empty text.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let absent = value.is_null() || value.as_str() == Some("");
    Ok((!absent).then_some(value))
}

fn mount_options<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<MountFlags>, D::Error> {
    driver_core::config::mount_flags(deserializer).map(Some)
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    given(deserializer)?
        .map(|value| Mode::deserialize(value).map_err(D::Error::custom))
        .transpose()
}

/// Unlike democratic-csi, which ignores it, the number 0 means root.
fn owner<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Owner>, D::Error> {
    given(deserializer)?
        .map(|value| {
            let text = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                _ => return Err(D::Error::custom("expected a number or a name")),
            };
            text.trim().parse().map_err(D::Error::custom)
        })
        .transpose()
}

// === impl SnapshotDriver ===

impl SnapshotDriver {
    /// The driver of that name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "filecopy" => Some(Self::Filecopy),
            _ => Tool::parse(name).map(Self::Backup),
        }
    }
}

// === impl DirectoryConfig ===

impl DirectoryConfig {
    /// Checks every value, accounts included.
    pub fn layout(&self, kind: DirectoryKind) -> Result<Layout, ConfigError> {
        let key = |key: &str| format!("{}.{key}", kind.section());
        let account = |name: &str,
                       find: fn(&Owner) -> Result<u32, accounts::AccountError>,
                       owner: &Option<Owner>| {
            owner
                .as_ref()
                .map(find)
                .transpose()
                .map_err(|error| ConfigError::at(key(name), error.to_string()))
        };
        let default_driver = match self.snapshots.default_driver.as_deref() {
            None => SnapshotDriver::default(),
            Some(driver) => SnapshotDriver::parse(driver).ok_or_else(|| {
                // The text may have come out of the environment, and may be a secret.
                let problem = "there is no such driver of snapshots";
                ConfigError::at(key("snapshots.default_driver"), problem)
                    .advise("snapshots are made with `filecopy`, `restic` or `kopia`")
            })?,
        };
        let base_id = match self.base_id.as_deref() {
            None | Some("") => None,
            Some(id) => Some(BaseId::new(id).ok_or_else(|| {
                let problem = "expected 32 hexadecimal digits";
                ConfigError::at(key("baseId"), problem)
                    .advise("they are in the file `.omnibus-csi-base` of the base, after its first volume was made")
            })?),
        };
        Ok(Layout {
            default_driver,
            base_id,
            location: self.location(kind)?,
            base: self.base(kind)?,
            creation: match self.create_base {
                None => Creation::IfNeverUsed,
                Some(true) => Creation::Always,
                Some(false) => Creation::Never,
            },
            quotas: Quotas {
                enforce: self.quotas,
                ids: self.quota_project_ids,
            },
            permissions: Permissions {
                mode: self.dir_permissions_mode.map(Mode::bits),
                user: account(
                    "dirPermissionsUser",
                    accounts::user,
                    &self.dir_permissions_user,
                )?,
                group: account(
                    "dirPermissionsGroup",
                    accounts::group,
                    &self.dir_permissions_group,
                )?,
            },
        })
    }
}

impl DirectoryConfig {
    fn base(&self, kind: DirectoryKind) -> Result<Option<AbsolutePath>, ConfigError> {
        let at =
            |problem| ConfigError::at(format!("{}.controllerBasePath", kind.section()), problem);
        let given = self.controller_base_path.as_deref();
        match given.filter(|path| !path.is_empty()) {
            Some(path) => AbsolutePath::parse(path)
                .map(Some)
                .map_err(|error| at(error.to_string())),
            None if kind == DirectoryKind::LocalHostpath => {
                Err(at("is required and missing".to_owned()))
            }
            None if self.create_base == Some(true) => Err(at("is missing".to_owned()).advise(
                "without it the share is mounted, and `createBase: true` is for a base that is not",
            )),
            None => Ok(None),
        }
    }

    fn location(&self, kind: DirectoryKind) -> Result<Location, ConfigError> {
        let key = |key: &str| format!("{}.{key}", kind.section());
        let server = match (kind, self.share_host.as_deref()) {
            (DirectoryKind::LocalHostpath, _) => None,
            (_, None | Some("")) => {
                return Err(ConfigError::at(key("shareHost"), "is missing")
                    .advise("the name or address of the server, as the nodes reach it"));
            }
            (_, Some(host)) => Some(
                Server::parse(host)
                    .map_err(|error| ConfigError::at(key("shareHost"), error.to_string()))?,
            ),
        };
        // The path of an SMB share begins with its name, and a slash before that means nothing.
        let slash = match kind {
            DirectoryKind::SmbClient => "/",
            _ => "",
        };
        let path = format!("{slash}{}", self.share_base_path);
        let refuse = |why: String| ConfigError::at(key("shareBasePath"), why);
        let path = AbsolutePath::parse(&path).map_err(|error| refuse(error.to_string()))?;
        if kind == DirectoryKind::SmbClient && path.as_str() == "/" {
            return Err(refuse("it begins with the name of a share".to_owned()));
        }
        Location::new(kind, server, path)
            .ok_or_else(|| refuse("it is too long for the paths of volumes below it".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::VolumeDir;
    use driver_core::config::{Document, NoEnvironment};

    const LOCAL: DirectoryKind = DirectoryKind::LocalHostpath;

    fn section(extra: &str) -> Result<Layout, ConfigError> {
        layout(LOCAL, &format!("shareBasePath: /s/\n  {extra}"))
    }

    fn layout(kind: DirectoryKind, keys: &str) -> Result<Layout, ConfigError> {
        let (name, section) = (kind.name(), kind.section());
        let text = format!("driver: {name}\n{section}:\n  controllerBasePath: /b\n  {keys}\n");
        Document::parse(&text, &NoEnvironment)?
            .section::<DirectoryConfig>(section)?
            .layout(kind)
    }

    #[test]
    fn each_kind_makes_the_address_of_a_volume_that_democratic_csi_makes() {
        let volume = VolumeDir::new("pvc-1").expect("id");
        for (kind, base, wanted) in [
            (
                DirectoryKind::NfsClient,
                "/srv/a/",
                "nfs nas /srv/a/v/pvc-1",
            ),
            (DirectoryKind::NfsClient, "/", "nfs nas /v/pvc-1"),
            (
                DirectoryKind::SmbClient,
                "/share/a",
                "smb nas share/a/v/pvc-1",
            ),
            (DirectoryKind::SmbClient, "share", "smb nas share/v/pvc-1"),
            (
                DirectoryKind::LustreClient,
                "/fs/a",
                "lustre nas /fs/a/v/pvc-1",
            ),
        ] {
            let layout = layout(kind, &format!("shareHost: nas\n  shareBasePath: {base}"));
            let context = layout
                .expect(wanted)
                .location
                .attachment(&volume)
                .to_context();
            let words = ["node_attach_driver", "server", "share"].map(|key| context[key].as_str());
            assert_eq!(words.join(" "), wanted);
        }
    }

    #[test]
    fn a_share_without_a_server_or_a_name_is_refused() {
        let long = format!("/{}", "s/".repeat(2000));
        for (keys, key) in [
            ("shareBasePath: /a".to_owned(), "smb.shareHost"),
            (
                "shareBasePath: /a\n  shareHost: ''".to_owned(),
                "smb.shareHost",
            ),
            (
                "shareBasePath: /a\n  shareHost: 'a b'".to_owned(),
                "smb.shareHost",
            ),
            (
                "shareBasePath: /\n  shareHost: nas".to_owned(),
                "smb.shareBasePath",
            ),
            (
                "shareBasePath: a/../b\n  shareHost: nas".to_owned(),
                "smb.shareBasePath",
            ),
            (
                format!("shareBasePath: {long}\n  shareHost: nas"),
                "smb.shareBasePath",
            ),
        ] {
            let error = layout(DirectoryKind::SmbClient, &keys).expect_err(key);
            assert_eq!(error.path(), Some(key), "{error}");
        }
    }

    #[test]
    fn a_mode_is_octal_whether_it_is_quoted_or_not() {
        for (value, mode) in [
            ("\"0777\"", 0o777),
            ("0777", 0o777),
            ("777", 0o777),
            ("\"1777\"", 0o1777),
            ("\"0750\"", 0o750),
        ] {
            let layout = section(&format!("dirPermissionsMode: {value}")).expect("layout");
            assert_eq!(layout.permissions.mode, Some(mode), "{value}");
            assert_eq!(layout.location.identity(), "/s");
        }
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_its_key() {
        for (extra, key) in [
            ("baseId: base-1", "baseId"),
            ("dirPermissionsMode: \"888\"", "dirPermissionsMode"),
            ("dirPermissionsMode: u+rwx", "dirPermissionsMode"),
            ("dirPermissionsUser: \"no:one\"", "dirPermissionsUser"),
            ("dirPermissionsGroup: no-such-group", "dirPermissionsGroup"),
            (
                "snapshots: {default_driver: tape}",
                "snapshots.default_driver",
            ),
        ] {
            let error = section(extra).expect_err("must be refused");
            let path = format!("local-hostpath.{key}");
            assert_eq!(error.path(), Some(path.as_str()), "{error}");
        }
        let text = "driver: local-hostpath\nlocal-hostpath: {shareBasePath: /s}\n";
        let document = Document::parse(text, &NoEnvironment).expect("document");
        let section = document.section::<DirectoryConfig>(LOCAL.section());
        let missing = section.expect("a section").layout(LOCAL);
        let missing = missing.expect_err("required");
        assert_eq!(missing.path(), Some("local-hostpath.controllerBasePath"));
    }

    #[test]
    fn relative_paths_are_refused() {
        let config: DirectoryConfig =
            serde_json::from_str(r#"{"shareBasePath":"s","controllerBasePath":"/b"}"#)
                .expect("section");
        let error = config.layout(LOCAL).expect_err("relative");
        assert_eq!(error.path(), Some("local-hostpath.shareBasePath"));
    }

    #[test]
    fn owner_zero_counts_and_an_empty_one_does_not() {
        let layout = section("dirPermissionsUser: 0\n  dirPermissionsGroup: \"\"").expect("layout");
        let permissions = layout.permissions;
        assert_eq!((permissions.user, permissions.group), (Some(0), None));
        let named = section("dirPermissionsUser: root").expect("layout");
        assert_eq!(named.permissions.user, Some(0));
    }
}
