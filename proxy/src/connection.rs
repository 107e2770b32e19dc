//! One backend with its configuration: its driver, its rules, and what the node does for it.
//!
//! Drivers are built here by name and nowhere else. No backend is touched: a connection exists
//! before its storage can be reached.

mod stage_secrets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use driver_core::config::{CommonConfig, ConfigError, DeleteStrategy, Document, NodeCapability};
use driver_core::text::MAX_STRING;
use driver_core::volume::Secrets;
use driver_core::{AccessRules, Driver, Error, NodeId, Parameters, VolumeId, VolumeName};
use driver_directory::LocalHostpath;
use driver_node_manual::NodeManual;
use node_utils::kernel::Kernel;
use node_utils::node::NodeConfig;
use node_utils::{
    Access, AccessMode, Attachment, MountFlags, Node, StageSecrets, Tools, VolumeCapability,
    VolumeContext,
};
use secrecy::ExposeSecret;

use crate::advertise::Advertised;
use crate::csi_version::CsiVersion;
use crate::scope::scoped;

/// One backend with its configuration.
#[derive(Debug)]
pub struct Connection {
    name: Arc<str>,
    instance: Option<String>,
    driver: Arc<dyn Driver>,
    access: AccessRules,
    modes: Option<Vec<AccessMode>>,
    advertised: Advertised,
    delete: DeleteStrategy,
    contexts: BTreeMap<String, VolumeContext>,
    honours_group: bool,
    mount_flags: MountFlags,
    node: Node,
}

/// Drivers of democratic-csi that this build does not have.
const NOT_YET: [&str; 32] = [
    "containerd-oci-ephemeral-inline",
    "freenas-api-iscsi",
    "freenas-api-nfs",
    "freenas-api-nvmeof",
    "freenas-api-smb",
    "freenas-iscsi",
    "freenas-nfs",
    "freenas-nvmeof",
    "freenas-smb",
    "lustre-client",
    "nfs-client",
    "objectivefs",
    "smb-client",
    "synology-iscsi",
    "synology-nfs",
    "synology-smb",
    "truenas-api-iscsi",
    "truenas-api-nfs",
    "truenas-api-nvmeof",
    "truenas-api-smb",
    "truenas-iscsi",
    "truenas-nfs",
    "truenas-nvmeof",
    "truenas-smb",
    "vhd-ephemeral-inline",
    "zfs-generic-iscsi",
    "zfs-generic-nfs",
    "zfs-generic-nvmeof",
    "zfs-generic-smb",
    "zfs-local-dataset",
    "zfs-local-ephemeral-inline",
    "zfs-local-zvol",
];

/// The drivers that this build has.
const BUILT: [&str; 2] = [LocalHostpath::KIND, NodeManual::KIND];

// === impl Connection ===

impl Connection {
    /// Builds the driver that `document` names, for the node that this process runs on and whose
    /// programs are `tools`.
    pub fn open(
        document: &Document,
        node: &NodeId,
        version: CsiVersion,
        tools: &Tools,
    ) -> Result<Self, ConfigError> {
        let mut config = document.common()?;
        let mut here = NodeConfig {
            mount_flags: config.node.mount.mount_flags.clone(),
            ..NodeConfig::default()
        };
        let driver: Arc<dyn Driver> = match config.driver.as_str() {
            LocalHostpath::KIND => Arc::new(LocalHostpath::from_document(document, node)?),
            NodeManual::KIND => {
                let driver = NodeManual::from_document(document)?;
                here.filesystem = config.filesystems(document)?;
                // compat: "node-manual".
                config.csi.access_modes = None;
                Arc::new(driver)
            }
            other => return Err(unknown(other)),
        };
        document.without_effect(&[
            ("node.csiProxy", "there is no Windows node here"),
            (
                "_private.csi.volume.volumeContext",
                "a volume without a context is looked up in `_private.volume_context` anyway",
            ),
        ]);
        let node = Node::new(here, tools.clone(), Kernel::here());
        Ok(Self::of(driver, &config, version, node))
    }

    /// A connection with a driver and a node that are already built.
    pub fn of(
        driver: Arc<dyn Driver>,
        config: &CommonConfig,
        version: CsiVersion,
        node: Node,
    ) -> Self {
        let modes = config.csi.access_modes.clone();
        let access = restricted(driver.access_rules(), modes.as_deref());
        let advertised = Advertised::new(driver.capabilities(), &access, config, version);
        Self {
            name: Arc::from(""),
            instance: config.instance_id.clone(),
            driver,
            access,
            modes,
            delete: config.private.csi.volume.delete_strategy,
            contexts: config.private.volume_context.clone(),
            honours_group: version >= CsiVersion::minor(5)
                && advertised.node.contains(&NodeCapability::VolumeMountGroup),
            mount_flags: config.node.mount.mount_flags.clone(),
            advertised,
            node,
        }
    }

    /// Its name; empty for the only one of a process.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// What is advertised for it.
    pub fn advertised(&self) -> &Advertised {
        &self.advertised
    }

    /// The node half of its volumes.
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Whether deleting a volume leaves it where it is.
    pub(crate) fn retains(&self) -> bool {
        self.delete == DeleteStrategy::Retain
    }

    /// Why a volume cannot be used in one of these ways, or `None`.
    pub(crate) fn refusal(&self, capabilities: &[VolumeCapability]) -> Option<String> {
        capabilities.iter().find_map(|c| self.access.refusal(c))
    }

    /// Refuses ways in which a volume cannot be used.
    pub(crate) fn allow(&self, capabilities: &[VolumeCapability]) -> Result<(), Error> {
        match self.refusal(capabilities) {
            Some(reason) => Err(Error::invalid(format!("invalid capability: {reason}"))),
            None => Ok(()),
        }
    }

    /// Refuses a way in which a volume that reaches the node like this cannot be used.
    pub(crate) fn allow_attached(
        &self,
        attachment: &Attachment,
        capability: &VolumeCapability,
    ) -> Result<(), Error> {
        let rules = self.driver.access_rules_of(attachment);
        match restricted(rules, self.modes.as_deref()).refusal(capability) {
            Some(reason) => Err(Error::invalid(format!("invalid capability: {reason}"))),
            None => Ok(()),
        }
    }

    /// The id of a new volume; one that no orchestrator could store is refused before it exists.
    pub(crate) fn name_volume(
        &self,
        name: &VolumeName,
        parameters: &Parameters,
    ) -> Result<VolumeId, Error> {
        let id = self.driver.name_volume(name, parameters)?;
        let length = id.as_str().len();
        if length > MAX_STRING {
            return Err(Error::invalid(format!(
                "name volume `{name}`: its id would be {length} bytes long, the limit is {MAX_STRING}"
            ))
            .advise("choose a shorter `_private.csi.volume.idTemplate` or an `idHash`"));
        }
        Ok(id)
    }

    /// The volume context of an attachment: what the node needs, and who made it.
    /// compat: "Volume context".
    pub(crate) fn context(&self, attachment: &Attachment) -> VolumeContext {
        let mut context = attachment.to_context();
        let kind = self.driver.kind().to_owned();
        context.insert("provisioner_driver".to_owned(), kind);
        if let Some(instance) = &self.instance {
            let key = "provisioner_driver_instance_id".to_owned();
            context.insert(key, instance.clone());
        }
        context
    }

    /// What is known of a volume: what the orchestrator sent, or what the configuration has where it
    /// sent nothing.
    pub(crate) fn context_of<'a>(
        &'a self,
        id: &VolumeId,
        sent: &'a VolumeContext,
    ) -> &'a VolumeContext {
        let known = sent.is_empty().then(|| self.contexts.get(id.as_str()));
        known.flatten().unwrap_or(sent)
    }

    /// How a volume is reached: from its context, or from the configuration where the orchestrator
    /// sent none.
    pub(crate) fn attachment(
        &self,
        id: &VolumeId,
        context: &VolumeContext,
    ) -> Result<Attachment, Error> {
        Attachment::parse(self.context_of(id, context))
            .map_err(|error| Error::invalid(format!("volume `{id}`")).because(error))
    }

    /// A capability as the node has to serve it: a group counts only where it was advertised.
    /// compat: "Mount flags".
    pub(crate) fn on_node(&self, mut capability: VolumeCapability) -> VolumeCapability {
        if let Access::Mount(mount) = &mut capability.access
            && !self.honours_group
        {
            mount.group = None;
        }
        capability
    }

    /// The mount options in a stage secret. compat: "Secrets".
    pub(crate) fn secret_flags(
        &self,
        context: &VolumeContext,
        secrets: &Secrets,
    ) -> Result<MountFlags, Error> {
        let (driver, instance) = self.maker(context);
        let flags = scoped(secrets, driver, instance, "mount_flags");
        MountFlags::parse(flags.map(ExposeSecret::expose_secret))
            .map_err(|error| Error::invalid("secret `mount_flags`").because(error))
    }

    /// What the storage of a volume asks for, from a stage secret. Keys of other ways to a volume
    /// are not looked at. compat: "Secrets".
    pub(crate) fn stage_secrets(
        &self,
        attachment: &Attachment,
        context: &VolumeContext,
        secrets: &Secrets,
    ) -> Result<StageSecrets, Error> {
        let (driver, instance) = self.maker(context);
        stage_secrets::of(attachment, secrets, driver, instance)
    }

    /// Whose scope counts: that of the driver and of the instance which made the volume.
    fn maker<'a>(&'a self, context: &'a VolumeContext) -> (&'a str, Option<&'a str>) {
        let made_by = |key| context.get(key).map(String::as_str);
        (
            made_by("provisioner_driver").unwrap_or(self.driver.kind()),
            made_by("provisioner_driver_instance_id").or(self.instance.as_deref()),
        )
    }

    /// A capability with every option that counts for staging: those of the request, of the
    /// configuration, of the secret. compat: "Mount flags".
    pub(crate) fn for_staging(
        &self,
        mut capability: VolumeCapability,
        secret: &MountFlags,
    ) -> VolumeCapability {
        if let Access::Mount(mount) = &mut capability.access {
            let configured = mount.flags.followed_by(&self.mount_flags);
            mount.flags = configured.followed_by(secret);
        }
        capability
    }
}

/// The rules with the modes of the configuration, if it has some.
fn restricted(mut rules: AccessRules, modes: Option<&[AccessMode]>) -> AccessRules {
    if let Some(modes) = modes {
        modes.clone_into(&mut rules.mount_modes);
        modes.clone_into(&mut rules.block_modes);
    }
    rules
}

/// What is wrong with the name of a driver, and which name may have been meant.
fn unknown(name: &str) -> ConfigError {
    let built = BUILT.join(", ");
    if NOT_YET.contains(&name) {
        return ConfigError::at(
            "driver",
            format!("this build does not have the driver `{name}` yet; it has: {built}"),
        );
    }
    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    let error = ConfigError::at(
        "driver",
        format!("there is no driver `{shown}`; this build has: {built}"),
    );
    let nearest = BUILT
        .iter()
        .chain(&NOT_YET)
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, known)| *distance <= known.len() / 3)
        .min();
    match nearest {
        Some((_, known)) => error.advise(format!("is it a misspelling of `{known}`?")),
        None => error,
    }
}
