//! The drivers `freenas-…` and `truenas-…`, built from one document: with `api` in the name all goes
//! through the API, without it datasets are made over SSH.

use std::sync::Arc;

use driver_core::config::{ConfigError, Document, Finding, Severity};
use driver_core::{BackendIdentity, Driver, DriverFactory};
use driver_ssh::Ssh;
use driver_zfs::observed::VolumeKind;
use driver_zfs::parameter::{ClassProperty, ShareChoices};
use driver_zfs::step::Permission;
use driver_zfs::{Export, Settings, ZfsConfig, ZfsDriver};
use driver_zfs_cli::{Cli, ZfsTools, ssh};

use crate::acl::Acl;
use crate::backend::{Api, Nas};
use crate::command::{Answer, Command};
use crate::composed::Composed;
use crate::config;

/// The values of `driver:` that are built here.
pub const KINDS: [&str; 16] = [
    "freenas-nfs",
    "freenas-smb",
    "freenas-iscsi",
    "freenas-nvmeof",
    "freenas-api-nfs",
    "freenas-api-smb",
    "freenas-api-iscsi",
    "freenas-api-nvmeof",
    "truenas-nfs",
    "truenas-smb",
    "truenas-iscsi",
    "truenas-nvmeof",
    "truenas-api-nfs",
    "truenas-api-smb",
    "truenas-api-iscsi",
    "truenas-api-nvmeof",
];

/// The smallest quota that TrueNAS sets by its API.
const SMALLEST: u64 = 1 << 30;

/// The drivers of TrueNAS.
pub const fn factory<C>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &KINDS,
        sections: &[
            "httpConnection",
            "iscsi",
            "nfs",
            "nvmeof",
            "smb",
            "sshConnection",
            "zfs",
        ],
        example,
        build: |document, _| from_document(document),
    }
}

fn example(kind: &str) -> String {
    let export = match kind.rsplit('-').next() {
        Some("nfs") => "nfs: {shareHost: nas.example}",
        Some("smb") => "smb: {shareHost: nas.example}",
        Some("iscsi") => {
            "iscsi: {targetPortal: 'nas.example:3260',
        targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1}]}"
        }
        _ => "nvmeof: {transports: ['tcp://nas.example:4420'], ports: [1]}",
    };
    let ssh = if kind.contains("-api-") {
        ""
    } else {
        "sshConnection: {host: nas.example, username: csi, password: x}"
    };
    format!(
        "driver: {kind}
zfs: {{datasetParentName: tank/v}}
httpConnection: {{protocol: https, host: nas.example, username: csi, apiKey: 1-x}}
{ssh}
{export}
"
    )
}

/// Reads a connection and builds its driver. Touches no storage.
pub fn from_document(document: &Document) -> Result<Arc<dyn Driver>, ConfigError> {
    let common = document.common()?;
    let (family, protocol) = common.driver.rsplit_once('-').unwrap_or_default();
    let api = family.ends_with("-api");
    let none = ShareChoices::default();
    match protocol {
        "nfs" => {
            let export = config::nfs(document)?;
            let choices = export.choices.offered().clone();
            build(document, api, export, "GENERIC", &choices)
        }
        "smb" => build(document, api, config::smb(document)?, "SMB", &none),
        "iscsi" => build(document, api, config::iscsi(document)?, "GENERIC", &none),
        "nvmeof" => build(document, api, config::nvmeof(document)?, "GENERIC", &none),
        _ => Err(ConfigError::at("driver", "is no driver of TrueNAS")),
    }
}

fn build<E>(
    document: &Document,
    api: bool,
    export: E,
    share_type: &'static str,
    choices: &ShareChoices,
) -> Result<Arc<dyn Driver>, ConfigError>
where
    E: Export<Command = Command, Output = Answer> + 'static,
{
    let mut zfs = ZfsConfig::read(document)?;
    zfs.offer(choices, document, "nfs.shareChoices");
    if api {
        over_api(document, &zfs, export, share_type)
    } else {
        over_ssh(document, &zfs, export)
    }
}

/// Datasets and exports through the API.
fn over_api<E>(
    document: &Document,
    zfs: &ZfsConfig,
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
    ]);
    let nas = nas(document)?;
    let mut settings = zfs.settings(&document.common()?, export.kind(), None)?;
    fit_for_api(document, &mut settings)?;
    let backend = Api::new(nas.clone(), identity(&settings, &nas)).sharing_by(share_type);
    Ok(Arc::new(ZfsDriver::new(settings, backend, export)))
}

/// Datasets over SSH, exports through the API.
fn over_ssh<E>(
    document: &Document,
    zfs: &ZfsConfig,
    export: E,
) -> Result<Arc<dyn Driver>, ConfigError>
where
    E: Export<Command = Command, Output = Answer> + 'static,
{
    let host = ssh::settings(document)?.ok_or_else(|| {
        ConfigError::at("sshConnection", "is needed: datasets are made over SSH")
            .advise("give it, or use the driver with `api` in its name, which needs the API alone")
    })?;
    let nas = nas(document)?;
    let settings = zfs.settings(&document.common()?, export.kind(), None)?;
    let identity = identity(&settings, &nas);
    let keys = host.host_keys.clone();
    let cli = Cli::new(Ssh::new(host), ZfsTools::from_config(zfs)?, identity).known_by(keys);
    let backend = Composed::new(cli, nas);
    Ok(Arc::new(ZfsDriver::new(settings, backend, export)))
}

fn identity(settings: &Settings, nas: &Nas) -> BackendIdentity {
    settings
        .layout
        .identity(&format!("truenas {}", nas.address()))
}

fn nas(document: &Document) -> Result<Nas, ConfigError> {
    Nas::new(config::connection(document)?)
        .map_err(|error| ConfigError::at("httpConnection", error.message().to_owned()))
}

/// Fits the settings to the API, or refuses those that it does not take.
fn fit_for_api(document: &Document, settings: &mut Settings) -> Result<(), ConfigError> {
    let policy = &mut settings.policy;
    let has = |mode| policy.class.has(mode);
    let has_mode = has(ClassProperty::QuotaMode) || has(ClassProperty::ReservationMode);
    let may_be_limited = policy.quota || policy.reservation || has_mode;
    if settings.layout.kind == VolumeKind::Filesystem && may_be_limited {
        policy.smallest = SMALLEST;
    }
    if policy.class.has(ClassProperty::Logbias) {
        let problem = "`logbias` is none that the API of TrueNAS can set";
        return Err(ConfigError::at("zfs.volumeParameters", problem)
            .advise("leave it out, or use the driver without `api` in its name"));
    }
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let named = |permission: &Permission| match permission {
        Permission::Owner(owner) => !owner.split(':').all(is_number),
        _ => false,
    };
    if policy.permissions.iter().any(named) {
        let problem = "and datasetPermissionsGroup have to be numbers: the API takes no names";
        return Err(ConfigError::at("zfs.datasetPermissionsUser", problem));
    }
    let large =
        |permission: &Permission| matches!(permission, Permission::Mode(bits) if *bits > 0o777);
    if policy.permissions.iter().any(large) {
        let problem = "may have three digits: TrueNAS sets no others by its API";
        return Err(ConfigError::at("zfs.datasetPermissionsMode", problem));
    }
    policy.permissions.retain(|permission| {
        let Permission::Acl(arguments) = permission else {
            return true;
        };
        let is_known = Acl::parse(arguments).is_some();
        if !is_known {
            document.add(Finding {
                severity: Severity::NoEffect,
                path: "zfs.datasetPermissionsAcls".to_owned(),
                message: format!("`{}` has no effect", arguments.join(" ")),
                advice: Some(
                    "by the API only `-m` with entries of NFS 4 or POSIX is set, see docs/truenas.md"
                        .to_owned(),
                ),
            });
        }
        is_known
    });
    Ok(())
}
