//! The drivers `zfs-generic-nfs`, `-smb`, `-iscsi` and `-nvmeof`, built from one document.

use std::sync::Arc;

use driver_core::config::{ConfigError, Document};
use driver_core::{Driver, DriverFactory};
use driver_ssh::{HostKeys, Ssh};
use driver_zfs::observed::VolumeKind;
use driver_zfs::{Export, Settings, ZfsConfig, ZfsDriver};
use driver_zfs_cli::exec::{Command, Local, Output, Runner};
use driver_zfs_cli::{Cli, ZfsTools, ssh};

use crate::scripts::HostPaths;
use crate::share::{Protocol, ShareExport};
use crate::{iscsi, nvmeof};

/// The values of `driver:` that are built here.
pub const KINDS: [&str; 4] = [
    "zfs-generic-nfs",
    "zfs-generic-smb",
    "zfs-generic-iscsi",
    "zfs-generic-nvmeof",
];

/// The drivers of a host with ZFS.
pub const fn factory<C>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &KINDS,
        sections: &["iscsi", "nfs", "nvmeof", "smb", "sshConnection", "zfs"],
        example,
        build: |document, _| from_document(document),
    }
}

fn example(kind: &str) -> String {
    let export = match kind {
        "zfs-generic-nfs" => {
            "nfs: {shareHost: nas.example, shareStrategy: setDatasetProperties,
      shareStrategySetDatasetProperties: {properties: {sharenfs: rw}}}"
        }
        "zfs-generic-smb" => {
            "smb: {shareHost: nas.example, shareStrategy: setDatasetProperties,
      shareStrategySetDatasetProperties: {properties: {sharesmb: on}}}"
        }
        "zfs-generic-iscsi" => {
            "iscsi: {targetPortal: 'nas.example:3260', shareStrategy: lio,
        shareStrategyLio: {basename: iqn.2003-01.org.example}}"
        }
        _ => {
            "nvmeof: {transports: ['tcp://nas.example:4420'], shareStrategy: nvmet,
         shareStrategyNvmet: {basename: nqn.2003-01.org.example, ports: [1]}}"
        }
    };
    format!(
        "driver: {kind}
zfs: {{datasetParentName: tank/v}}
sshConnection: {{host: nas.example, username: csi, password: x}}
{export}
"
    )
}

/// Reads a connection and builds its driver. Touches no storage.
pub fn from_document(document: &Document) -> Result<Arc<dyn Driver>, ConfigError> {
    let common = document.common()?;
    let mut zfs = ZfsConfig::read(document)?;
    let places = HostPaths::default();
    match common.driver.as_str() {
        kind @ ("zfs-generic-nfs" | "zfs-generic-smb") => {
            let protocol = if kind.ends_with("nfs") {
                Protocol::Nfs
            } else {
                Protocol::Smb
            };
            let export =
                ShareExport::from_document(document, protocol, ZfsTools::from_config(&zfs)?)?;
            let key = format!(
                "{}.shareStrategySetDatasetProperties.choices",
                protocol.section()
            );
            zfs.offer(export.choices(), document, &key);
            let settings = zfs.settings(&common, VolumeKind::Filesystem, None)?;
            on_host(document, &zfs, settings, export)
        }
        "zfs-generic-iscsi" => {
            let export = iscsi::export(document, places)?;
            let settings = zfs.settings(&common, VolumeKind::Zvol, None)?;
            on_host(document, &zfs, settings, export)
        }
        "zfs-generic-nvmeof" => {
            let export = nvmeof::export(document, places)?;
            let settings = zfs.settings(&common, VolumeKind::Zvol, None)?;
            on_host(document, &zfs, settings, export)
        }
        _ => Err(ConfigError::at("driver", "is no driver of a host with ZFS")),
    }
}

/// Here, or on the host of `sshConnection`.
fn on_host<E>(
    document: &Document,
    zfs: &ZfsConfig,
    settings: Settings,
    export: E,
) -> Result<Arc<dyn Driver>, ConfigError>
where
    E: Export<Command = Command, Output = Output> + 'static,
{
    if let Some(host) = ssh::settings(document)? {
        let name = format!("ssh {}:{}", host.host.to_ascii_lowercase(), host.port);
        let keys = host.host_keys.clone();
        of(settings, zfs, Ssh::new(host), &name, Some(keys), export)
    } else {
        of(settings, zfs, Local::new(), "here", None, export)
    }
}

fn of<R, E>(
    settings: Settings,
    zfs: &ZfsConfig,
    runner: R,
    host: &str,
    keys: Option<HostKeys>,
    export: E,
) -> Result<Arc<dyn Driver>, ConfigError>
where
    R: Runner + 'static,
    E: Export<Command = Command, Output = Output> + 'static,
{
    let backend = Cli::new(
        runner,
        ZfsTools::from_config(zfs)?,
        settings.layout.identity(host),
    );
    let backend = match keys {
        Some(keys) => backend.known_by(keys),
        None => backend,
    };
    Ok(Arc::new(ZfsDriver::new(settings, backend, export)))
}
