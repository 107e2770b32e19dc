//! One backend with its configuration: its driver, its rules, and what the node does for it.
//!
//! Drivers are built here by name and nowhere else. No backend is touched: a connection exists
//! before its storage can be reached.

use std::sync::Arc;

use std::collections::BTreeMap;

use driver_core::config::{CommonConfig, ConfigError, DeleteStrategy, Document, NodeCapability};
use driver_core::text::MAX_STRING;
use driver_core::volume::Secrets;
use driver_core::{AccessRules, Driver, Error, NodeId, Parameters, VolumeId, VolumeName};
use driver_directory::LocalHostpath;
use node_utils::node::NodeConfig;
use node_utils::{Access, Attachment, MountFlags, Node, VolumeCapability, VolumeContext};
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
    advertised: Advertised,
    delete: DeleteStrategy,
    contexts: BTreeMap<String, VolumeContext>,
    honours_group: bool,
    mount_flags: MountFlags,
    node: Node,
}

/// Drivers of democratic-csi that this build does not have.
const NOT_YET: [&str; 33] = [
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
    "node-manual",
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
const BUILT: [&str; 1] = [LocalHostpath::KIND];

// === impl Connection ===

impl Connection {
    /// Builds the driver that `document` names, for the node that this process runs on.
    pub fn open(
        document: &Document,
        node: &NodeId,
        version: CsiVersion,
    ) -> Result<Self, ConfigError> {
        let config = document.common()?;
        let driver: Arc<dyn Driver> = match config.driver.as_str() {
            LocalHostpath::KIND => Arc::new(LocalHostpath::from_document(document, node)?),
            other => return Err(unknown(other)),
        };
        document.without_effect(&[
            ("node.csiProxy", "there is no Windows node here"),
            (
                "_private.csi.volume.volumeContext",
                "a volume without a context is looked up in `_private.volume_context` anyway",
            ),
        ]);
        Ok(Self::of(driver, &config, version))
    }

    /// A connection with a driver that is already built.
    pub fn of(driver: Arc<dyn Driver>, config: &CommonConfig, version: CsiVersion) -> Self {
        let mut access = driver.access_rules();
        if let Some(modes) = &config.csi.access_modes {
            access.mount_modes.clone_from(modes);
            access.block_modes.clone_from(modes);
        }
        let advertised = Advertised::new(driver.capabilities(), &access, config, version);
        let node = NodeConfig {
            mount_flags: config.node.mount.mount_flags.clone(),
            ..NodeConfig::default()
        };
        Self {
            name: Arc::from(""),
            instance: config.instance_id.clone(),
            driver,
            access,
            delete: config.private.csi.volume.delete_strategy,
            contexts: config.private.volume_context.clone(),
            honours_group: version >= CsiVersion::minor(5)
                && advertised.node.contains(&NodeCapability::VolumeMountGroup),
            mount_flags: node.mount_flags.clone(),
            advertised,
            node: Node::here(node),
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

    /// How a volume is reached: from its context, or from the configuration where the orchestrator
    /// sent none.
    pub(crate) fn attachment(
        &self,
        id: &VolumeId,
        context: &VolumeContext,
    ) -> Result<Attachment, Error> {
        let known = context.is_empty().then(|| self.contexts.get(id.as_str()));
        let context = known.flatten().unwrap_or(context);
        Attachment::parse(context)
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
        let made_by = |key| context.get(key).map(String::as_str);
        let driver = made_by("provisioner_driver").unwrap_or(self.driver.kind());
        let instance = made_by("provisioner_driver_instance_id").or(self.instance.as_deref());
        let flags = scoped(secrets, driver, instance, "mount_flags");
        MountFlags::parse(flags.map(ExposeSecret::expose_secret))
            .map_err(|error| Error::invalid("secret `mount_flags`").because(error))
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

#[cfg(test)]
mod tests {
    use driver_core::config::NoEnvironment;
    use node_utils::{AccessMode, MountAccess};

    use super::*;
    use crate::testing::Memory;

    fn open(yaml: &str) -> Result<Connection, ConfigError> {
        let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
        let node = NodeId::parse("node-1").expect("node");
        Connection::open(&document, &node, CsiVersion::NEWEST)
    }

    #[test]
    fn a_local_hostpath_connection_is_built_without_its_storage() {
        let connection = open(
            "
            driver: local-hostpath
            local-hostpath:
              shareBasePath: /no/such/place
              controllerBasePath: /no/such/place",
        )
        .expect("a connection");
        assert_eq!(connection.driver().kind(), "local-hostpath");
        assert_eq!(&**connection.name(), "");
    }

    #[test]
    fn an_unknown_driver_is_told_from_one_that_is_not_built_yet_and_from_a_misspelt_one() {
        let told = |name: &str| {
            open(&format!("driver: {name}"))
                .expect_err(name)
                .to_string()
        };
        let misspelt = told("local-hostpaht");
        assert!(
            misspelt.contains("misspelling of `local-hostpath`"),
            "{misspelt}"
        );
        let misspelt = told("zfs-generic-isci");
        assert!(
            misspelt.contains("misspelling of `zfs-generic-iscsi`"),
            "{misspelt}"
        );
        let foreign = told("carrier-pigeon");
        assert!(
            foreign.contains("there is no driver `carrier-pigeon`"),
            "{foreign}"
        );
        assert!(!foreign.contains("misspelling"), "{foreign}");
        for name in NOT_YET {
            let later = told(name);
            assert!(later.contains("does not have the driver"), "{later}");
            assert!(later.contains("it has: local-hostpath"), "{later}");
        }
        assert!(open("instance_id: x").is_err());
    }

    fn of(yaml: &str, minor: u8) -> Connection {
        let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
        let config = document.common().expect("configuration");
        Connection::of(Memory::new(), &config, CsiVersion::minor(minor))
    }

    fn with_group() -> VolumeCapability {
        VolumeCapability {
            access: Access::Mount(MountAccess {
                group: Some(1000),
                flags: MountFlags::parse(["noatime"]).expect("flags"),
                ..MountAccess::default()
            }),
            mode: AccessMode::SingleNodeWriter,
        }
    }

    fn group(capability: &VolumeCapability) -> Option<u32> {
        match &capability.access {
            Access::Mount(mount) => mount.group,
            Access::Block => None,
        }
    }

    #[test]
    fn a_group_counts_only_where_the_node_advertises_it_and_the_version_knows_it() {
        let listed = "{driver: x, service: {node: {capabilities: {rpc: [VOLUME_MOUNT_GROUP]}}}}";
        let hidden = "{driver: x, service: {node: {capabilities: {rpc: []}}}}";
        for (yaml, minor, counts) in [
            ("driver: x", 5, true),
            ("driver: x", 4, false),
            (listed, 13, true),
            (listed, 4, false),
            (hidden, 13, false),
        ] {
            let served = of(yaml, minor).on_node(with_group());
            assert_eq!(group(&served).is_some(), counts, "{yaml} in 1.{minor}");
        }
    }

    #[test]
    fn flags_for_staging_are_those_of_the_request_the_configuration_and_the_secret() {
        let yaml = "{driver: x, instance_id: i, node: {mount: {mount_flags: 'nodev,a'}}}";
        let connection = of(yaml, 13);
        let secrets: Secrets = [
            ("mount_flags", "a"),
            ("democratic-csi.org/memory/mount_flags", "b,c"),
            ("democratic-csi.org/other/mount_flags", "d"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned().into()))
        .into();
        let flags = |context: &VolumeContext, secrets: &Secrets| {
            let secret = connection.secret_flags(context, secrets).expect("flags");
            match connection.for_staging(with_group(), &secret).access {
                Access::Mount(mount) => mount.flags.iter().map(str::to_owned).collect(),
                Access::Block => Vec::new(),
            }
        };
        let here = VolumeContext::new();
        let first = ["noatime", "nodev", "a"];
        assert_eq!(flags(&here, &Secrets::default()), first);
        assert_eq!(flags(&here, &secrets), [&first[..], &["b", "c"]].concat());
        let made_by = [("provisioner_driver".to_owned(), "other".to_owned())].into();
        assert_eq!(flags(&made_by, &secrets), [&first[..], &["d"]].concat());
    }
}
