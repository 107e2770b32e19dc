//! The drivers `freenas-api-…` and `truenas-api-…`, built from one document.

use std::sync::Arc;

use driver_core::Driver;
use driver_core::config::{ConfigError, Document};
use driver_zfs::observed::VolumeKind;
use driver_zfs::step::Permission;
use driver_zfs::{Export, Settings, ZfsConfig, ZfsDriver};

use crate::backend::{Api, Nas};
use crate::command::{Answer, Command};
use crate::config;

/// The values of `driver:` that are built here.
pub const KINDS: [&str; 8] = [
    "freenas-api-nfs",
    "freenas-api-smb",
    "freenas-api-iscsi",
    "freenas-api-nvmeof",
    "truenas-api-nfs",
    "truenas-api-smb",
    "truenas-api-iscsi",
    "truenas-api-nvmeof",
];

/// The smallest quota that TrueNAS sets by its API.
const SMALLEST: u64 = 1 << 30;

/// Reads a connection and builds its driver. Touches no storage.
pub fn from_document(document: &Document) -> Result<Arc<dyn Driver>, ConfigError> {
    let common = document.common()?;
    let (_, protocol) = common.driver.rsplit_once('-').unwrap_or_default();
    match protocol {
        "nfs" => {
            let export = config::nfs(document)?;
            over_api(document, export, "GENERIC")
        }
        "smb" => {
            let export = config::smb(document)?;
            over_api(document, export, "SMB")
        }
        "iscsi" => over_api(document, config::iscsi(document)?, "GENERIC"),
        "nvmeof" => over_api(document, config::nvmeof(document)?, "GENERIC"),
        _ => Err(ConfigError::at("driver", "is no driver of TrueNAS")),
    }
}

/// Datasets and exports through the API.
fn over_api<E>(
    document: &Document,
    export: E,
    share_type: &'static str,
) -> Result<Arc<dyn Driver>, ConfigError>
where
    E: Export<Command = Command, Output = Answer> + 'static,
{
    document.without_effect(&[
        (
            "sshConnection",
            "this driver needs the API alone; the one without `api` in its name uses both",
        ),
        ("zfs.cli", "nothing is run on the NAS"),
        (
            "zfs.datasetPermissionsAcls",
            "they are arguments of a program, and nothing is run on the NAS",
        ),
    ]);
    let nas = nas(document)?;
    let settings = settings(document, export.kind(), SMALLEST)?;
    let identity = settings.layout.identity(&format!("truenas {}", nas.address()));
    let backend = Api::new(nas, identity).sharing_by(share_type);
    Ok(Arc::new(ZfsDriver::new(settings, backend, export)))
}

fn nas(document: &Document) -> Result<Nas, ConfigError> {
    Nas::new(config::connection(document)?)
        .map_err(|error| ConfigError::at("httpConnection", error.message().to_owned()))
}

/// What a driver of this kind is configured to be. `smallest` is that of a filesystem.
fn settings(
    document: &Document,
    kind: VolumeKind,
    smallest: u64,
) -> Result<Settings, ConfigError> {
    let common = document.common()?;
    let zfs = ZfsConfig::read(document)?;
    let mut settings = zfs.settings(&common, kind, None)?;
    let policy = &mut settings.policy;
    if kind == VolumeKind::Filesystem && (policy.quota || policy.reservation) {
        policy.smallest = smallest;
    }
    let mut permissions = policy.permissions.iter();
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let named = |permission: &&Permission| match permission {
        Permission::Owner(owner) => !owner.split(':').all(is_number),
        _ => false,
    };
    if permissions.any(|permission| named(&permission)) {
        let problem = "and datasetPermissionsGroup have to be numbers: TrueNAS takes no names";
        return Err(ConfigError::at("zfs.datasetPermissionsUser", problem));
    }
    let large = |permission: &Permission| matches!(permission, Permission::Mode(bits) if *bits > 0o777);
    if policy.permissions.iter().any(large) {
        let problem = "may have three digits: TrueNAS sets no others by its API";
        return Err(ConfigError::at("zfs.datasetPermissionsMode", problem));
    }
    policy
        .permissions
        .retain(|permission| !matches!(permission, Permission::Acl(_)));
    Ok(settings)
}
