//! The work of this node for volumes of all connections.
//!
//! The context of a volume contains its attachment and the node options of its connection. The
//! configuration file of this process decides what the context leaves open. No connection is needed
//! here: a node also mounts and unmounts volumes of a connection that was removed.

mod stage_secrets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_types::{
    Access, AccessMode, Attachment, MountFlags, StageSecrets, VolumeCapability, VolumeContext,
};
use driver_core::config::{CommonConfig, ConfigError, Document, NodeOptions};
use driver_core::secrets::scoped;
use driver_core::volume::Secrets;
use driver_core::{Driver, Error, VolumeId};
use driver_node_manual::NodeManual;
use node_utils::kernel::Kernel;
use node_utils::node::{NodeConfig, OrchestratorDirs};
use node_utils::{Node, Tools};
use secrecy::ExposeSecret;

use crate::routing::connection::restricted;

/// The node service for volumes. Clones share the node.
#[derive(Debug, Clone)]
pub struct NodeService {
    /// Decides how volumes may be used: the driver of the process, or that of volumes made by hand.
    judge: Arc<dyn Driver>,
    instance: Option<String>,
    modes: Option<Vec<AccessMode>>,
    contexts: BTreeMap<String, VolumeContext>,
    honours_group: bool,
    node: Node,
}

/// The mark of an inline volume: its attributes come from the author of the pod.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

// === impl NodeService ===

impl NodeService {
    /// The node of a process whose configuration is `document` and whose volumes `judge` judges.
    pub fn open(
        document: &Document,
        judge: Arc<dyn Driver>,
        tools: &Tools,
        honours_group: bool,
    ) -> Result<Self, ConfigError> {
        let config = document.common()?;
        let mut here = NodeConfig {
            mount_flags: config.node.mount.mount_flags.clone(),
            ..NodeConfig::default()
        };
        if judge.access_rules().block {
            here.filesystem = config.filesystems(document)?;
            here.kata = config.node.kata.direct_volumes;
        }
        let node = Node::new(here, tools.clone(), Kernel::here());
        Ok(Self::of(judge, &config, node, honours_group))
    }

    /// The same with a node that is already built.
    pub fn of(
        judge: Arc<dyn Driver>,
        config: &CommonConfig,
        node: Node,
        honours_group: bool,
    ) -> Self {
        // compat: "node-manual".
        let by_hand = judge.kind() == NodeManual::KIND;
        Self {
            instance: config.instance_id.clone(),
            modes: config.csi.access_modes.clone().filter(|_| !by_hand),
            contexts: config.private.volume_context.clone(),
            honours_group,
            judge,
            node,
        }
    }

    /// The same, which honours groups or does not.
    pub(crate) fn honouring_groups(&self, honours_group: bool) -> Self {
        Self {
            honours_group,
            ..self.clone()
        }
    }

    /// Sets the folders in which the orchestrator places volumes.
    pub(crate) fn use_dirs(&mut self, dirs: OrchestratorDirs) {
        self.node = self.node.with_dirs(dirs);
    }

    /// The verbs, with the options of the node's own configuration.
    pub(crate) fn verbs(&self) -> &Node {
        &self.node
    }

    /// The verbs for one volume: the options of its connection come before those of this node's own
    /// configuration. compat: "The proxy".
    pub(crate) fn verbs_for(&self, id: &VolumeId, context: &VolumeContext) -> Result<Node, Error> {
        let theirs = context
            .get(NodeOptions::KEY)
            .filter(|_| !is_ephemeral(id, context));
        let Some(text) = theirs else {
            return Ok(self.node.clone());
        };
        let theirs = NodeOptions::read(text).map_err(|error| {
            Error::invalid(format!(
                "key `{}` of the volume's context",
                NodeOptions::KEY
            ))
            .because(error)
        })?;
        let mut config = self.node.config().clone();
        if let Some(flags) = theirs.mount_flags {
            config.mount_flags = flags;
        }
        if let Some(kata) = theirs.kata {
            config.kata = kata;
        }
        config.filesystem.format.extend(theirs.filesystems.format);
        config
            .filesystem
            .check
            .retain(|kind, _| !theirs.unchecked.contains(kind));
        config.filesystem.check.extend(theirs.filesystems.check);
        Ok(self.node.with_config(config))
    }

    /// Rejects a capability that a volume with this attachment cannot have.
    pub(crate) fn allow_attached(
        &self,
        attachment: &Attachment,
        capability: &VolumeCapability,
    ) -> Result<(), Error> {
        let rules = self.judge.access_rules_of(attachment);
        match restricted(rules, self.modes.as_deref()).refusal(capability) {
            Some(reason) => Err(Error::invalid(format!("invalid capability: {reason}"))),
            None => Ok(()),
        }
    }

    /// The same without a known attachment.
    pub(crate) fn allow(&self, capability: &VolumeCapability) -> Result<(), Error> {
        let rules = restricted(self.judge.access_rules(), self.modes.as_deref());
        match rules.refusal(capability) {
            Some(reason) => Err(Error::invalid(format!("invalid capability: {reason}"))),
            None => Ok(()),
        }
    }

    /// The context of a volume, and how that says it is reached: the one that the orchestrator sent, or that of the
    /// configuration if it sent none. A context from the orchestrator must be one that the driver of this process
    /// writes: any user who may create a `PersistentVolume` chooses its text.
    pub(crate) fn attachment<'a>(
        &'a self,
        id: &VolumeId,
        sent: &'a VolumeContext,
    ) -> Result<(&'a VolumeContext, Attachment), Error> {
        let known = sent.is_empty().then(|| self.contexts.get(id.as_str()));
        let context = known.flatten().unwrap_or(sent);
        let attachment = Attachment::parse(context)
            .map_err(|error| Error::invalid(format!("volume `{id}`")).because(error))?;
        if !sent.is_empty() {
            self.judge.check_attachment(id, &attachment)?;
        }
        Ok((context, attachment))
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
        let (driver, instance) = self.made_by(context);
        let flags = scoped(secrets, driver, instance, "mount_flags");
        MountFlags::parse(flags.map(ExposeSecret::expose_secret))
            .map_err(|error| Error::invalid("secret `mount_flags`").because(error))
    }

    /// Settings and credentials for the storage of a volume, from a stage secret. Keys of other
    /// attachments are ignored. compat: "Secrets".
    pub(crate) fn stage_secrets(
        &self,
        attachment: &Attachment,
        context: &VolumeContext,
        secrets: &Secrets,
    ) -> Result<StageSecrets, Error> {
        let (driver, instance) = self.made_by(context);
        stage_secrets::of(attachment, secrets, driver, instance)
    }

    /// The kind of driver, and the instance, that made a volume.
    fn made_by<'a>(&'a self, context: &'a VolumeContext) -> (&'a str, Option<&'a str>) {
        let said = |key| context.get(key).map(String::as_str);
        let driver = said("provisioner_driver").unwrap_or(self.judge.kind());
        let instance = said("provisioner_driver_instance_id").or(self.instance.as_deref());
        (driver, instance)
    }
}

/// A capability with every option that counts for staging: those of the request, of the
/// configuration, of the secret. compat: "Mount flags".
pub(crate) fn for_staging(
    verbs: &Node,
    mut capability: VolumeCapability,
    secret: &MountFlags,
) -> VolumeCapability {
    if let Access::Mount(mount) = &mut capability.access {
        let configured = mount.flags.followed_by(&verbs.config().mount_flags);
        mount.flags = configured.followed_by(secret);
    }
    capability
}

/// Whether the attributes of a volume come from the author of the pod. If kubelet adds the mark, it
/// overwrites the author's; if it does not, it still generates the handle itself.
pub(super) fn is_ephemeral(id: &VolumeId, context: &VolumeContext) -> bool {
    context.get(EPHEMERAL).is_some_and(|value| value != "false") || is_inline(id)
}

/// `csi-` and a SHA-256 in hexadecimal, as kubelet calls volumes that are part of a pod.
pub(super) fn is_inline(id: &VolumeId) -> bool {
    let digest = id.as_str().strip_prefix("csi-");
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()))
}
