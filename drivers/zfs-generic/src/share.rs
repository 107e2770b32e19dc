//! Filesystems as shares by ZFS itself: `sharenfs` and `sharesmb`.
//!
//! The dataset has the property from its creation. ZFS shares it when it is mounted and unshares it
//! when it is destroyed. An observation shows whether the host really shares it: an administrator may
//! have unshared it by hand. compat: "Exports of a ZFS host".

mod access;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use csi_types::Attachment;
use csi_types::attachment::{FieldError, NetworkShare, Server, Share};
use driver_core::config::scalar::unless_falsy;
use driver_core::config::{ConfigError, Document};
use driver_core::{AccessRules, Error, Kind, NodeId};
use driver_zfs::Export;
use driver_zfs::export::{Act, Subject};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::VolumeKind;
use driver_zfs::parameter::ShareChoices;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs_cli::ZfsTools;
use driver_zfs_cli::exec::{Command, Output};
use serde::Deserialize;

use crate::config::Scalar;
use crate::facts::Facts;
use crate::scripts::bare;
use access::Access;
use driver_zfs::nodes::{ListedNodes, NamedNode, Nodes, NodesConfig};

static SCRIPT: LazyLock<String> = LazyLock::new(|| bare(include_str!("script/share.sh")));
static CLIENTS: LazyLock<String> = LazyLock::new(|| bare(include_str!("script/clients.sh")));
static SHARED: LazyLock<String> = LazyLock::new(|| bare(include_str!("script/shared.sh")));

/// The protocol of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The section `nfs`.
    Nfs,
    /// The section `smb`.
    Smb,
}

/// Shares filesystems.
#[derive(Debug)]
pub struct ShareExport {
    protocol: Protocol,
    server: Server,
    properties: Vec<Property>,
    /// Others, which a class may choose instead of some of them.
    choices: ShareChoices,
    tools: ZfsTools,
    /// The access list, if access is per node.
    access: Option<Access>,
    /// Whether the log has it that the host cannot say who uses a share.
    is_noted: AtomicBool,
}

/// The section `nfs` or `smb` for a host with ZFS.
#[derive(Debug, Clone, Deserialize)]
struct ShareConfig {
    #[serde(rename = "shareHost")]
    host: String,
    #[serde(default, rename = "shareStrategy", deserialize_with = "unless_falsy")]
    strategy: Option<String>,
    #[serde(default, rename = "shareStrategySetDatasetProperties")]
    set_dataset_properties: Option<SetDatasetProperties>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct SetDatasetProperties {
    #[serde(default)]
    properties: BTreeMap<String, Scalar>,
    /// Others, by the name that a class chooses them by.
    #[serde(default)]
    choices: BTreeMap<String, BTreeMap<String, Scalar>>,
    /// The names of nodes, for access only by the nodes that a volume is published to. Only for NFS.
    #[serde(default)]
    nodes: Option<NodesConfig>,
}

/// Whether a property shares a dataset.
fn is_on(property: &Property) -> bool {
    property.value.as_str() != "off"
}

// === impl Protocol ===

impl Protocol {
    pub(crate) fn section(self) -> &'static str {
        match self {
            Self::Nfs => "nfs",
            Self::Smb => "smb",
        }
    }

    /// Reads properties that stand at `key`.
    fn read(
        self,
        given: BTreeMap<String, Scalar>,
        key: &str,
    ) -> Result<Vec<Property>, ConfigError> {
        let native = self.property();
        let mut properties = Vec::new();
        for (name, value) in given {
            let name = PropertyName::parse(&name)
                .ok()
                .filter(|name| *name == native || name.as_str() == "share")
                .ok_or_else(|| {
                    ConfigError::at(key, format!("may hold `share` and `{native}` alone"))
                })?;
            // YAML may have read the words of ZFS as truth values.
            let text = match value.as_str() {
                "1" => "on",
                "0" => "off",
                text => text,
            };
            if text.is_empty() {
                continue;
            }
            let value = PropertyValue::parse(text)
                .map_err(|error| ConfigError::at(key, error.to_string()))?;
            properties.push(Property::new(name, value));
        }
        Ok(properties)
    }

    /// Reads the choices of classes, at `key`. Each shares a dataset, as these properties of all others do.
    fn choices(
        self,
        given: BTreeMap<String, BTreeMap<String, Scalar>>,
        properties: &[Property],
        key: &str,
    ) -> Result<ShareChoices, ConfigError> {
        let mut choices = ShareChoices::default();
        let native = self.property();
        if !given.is_empty() && !properties.iter().any(is_on) {
            let problem =
                "needs `properties` that share a dataset, for classes that choose nothing";
            return Err(ConfigError::at(key, problem));
        }
        for (name, options) in given {
            let key = format!("{key}.{name}");
            let options = self.read(options, &key)?;
            if options.iter().any(|option| option.name != native) {
                // Another choice would have to take it back.
                let problem = format!("may hold `{native}` alone: `share` is for `properties`");
                return Err(ConfigError::at(key, problem));
            }
            if !options
                .iter()
                .any(|option| option.name == native && is_on(option))
            {
                let problem = format!("has to share a dataset: it needs `{native}`, and not `off`");
                return Err(ConfigError::at(key, problem));
            }
            choices
                .add(&name, options)
                .map_err(|error| ConfigError::at(key, error.to_string()))?;
        }
        Ok(choices)
    }

    /// The property that shares a dataset, in addition to `share`.
    fn property(self) -> PropertyName {
        match self {
            Self::Nfs => PropertyName::SHARENFS,
            Self::Smb => PropertyName::SHARESMB,
        }
    }
}

// === impl ShareExport ===

impl ShareExport {
    /// Reads the section of this protocol. `tools` are the programs of the host.
    pub fn from_document(
        document: &Document,
        protocol: Protocol,
        tools: ZfsTools,
    ) -> Result<Self, ConfigError> {
        let section = protocol.section();
        let at = |key: &str, problem: &str| ConfigError::at(format!("{section}.{key}"), problem);
        let config: ShareConfig = document.section(section)?;
        if config.strategy.as_deref() != Some("setDatasetProperties") {
            let problem = "has to say how datasets are shared: setDatasetProperties";
            return Err(at("shareStrategy", problem));
        }
        let server =
            Server::parse(&config.host).map_err(|error| at("shareHost", &error.to_string()))?;
        let given = config.set_dataset_properties.unwrap_or_default();
        let key = format!("{section}.shareStrategySetDatasetProperties");
        let mut properties = protocol.read(given.properties, &format!("{key}.properties"))?;
        let choices = protocol.choices(given.choices, &properties, &format!("{key}.choices"))?;
        let access = match &given.nodes {
            None => None,
            Some(nodes) => {
                let key = format!("{key}.nodes");
                if protocol == Protocol::Smb {
                    let problem = "is of NFS: ZFS gives no lists of nodes to SMB";
                    return Err(ConfigError::at(key, problem));
                }
                if !choices.is_empty() {
                    let problem = "goes with no `choices`: each node has its place in the one list of options";
                    return Err(ConfigError::at(key, problem));
                }
                let access = Access::read(nodes, &properties, &key)?;
                // Until a node gets access.
                properties = vec![access.closed()];
                Some(access)
            }
        };
        Ok(Self {
            protocol,
            server,
            properties,
            choices,
            tools,
            access,
            is_noted: AtomicBool::new(false),
        })
    }

    /// The choices of classes.
    pub fn choices(&self) -> &ShareChoices {
        &self.choices
    }

    /// The properties of a volume: the options that its class chose count before those of the configuration. A volume whose
    /// choice is in no configuration any more keeps what it has: others may let in more.
    fn wanted(&self, subject: &Subject<'_>) -> Vec<Property> {
        let Some(name) = subject.share_choice() else {
            return self.properties.clone();
        };
        let Some(chosen) = self.choices.options(name) else {
            tracing::debug!(volume = %subject.id, "the choice of its share options is not in the configuration");
            return Vec::new();
        };
        let is_chosen = |one: &&Property| chosen.iter().any(|other| other.name == one.name);
        let others = self.properties.iter().filter(|one| !is_chosen(one));
        others.chain(chosen).cloned().collect()
    }

    /// Whether the host should share it.
    fn is_shared(&self) -> bool {
        // The property says which nodes, and the observation whether ZFS has shared it.
        self.access.is_some() || self.properties.iter().any(is_on)
    }

    /// Its name in SMB, as ZFS gives it. compat: "Exports of a ZFS host".
    fn share_name(dataset: &DatasetName) -> String {
        dataset.as_str().replace(['/', '-'], "_")
    }

    fn attach(&self, share: &str) -> Result<Attachment, FieldError> {
        let share = NetworkShare {
            server: self.server.clone(),
            share: Share::parse(share)?,
        };
        Ok(match self.protocol {
            Protocol::Nfs => Attachment::Nfs(share),
            Protocol::Smb => Attachment::Smb(share),
        })
    }

    fn script(&self, mode: &str, dataset: &DatasetName) -> Command {
        Command::function(&SCRIPT)
            .args([mode, self.protocol.section()])
            .args([dataset.as_str(), &Self::share_name(dataset)])
            .arg(self.tools.sudo.as_str())
            .args(self.tools.words())
    }

    /// Asks what else shares it.
    fn shared(&self, dataset: &DatasetName) -> Command {
        Command::function(&SHARED)
            .args([self.protocol.section(), dataset.as_str()])
            .arg(Self::share_name(dataset))
            .args(self.tools.words())
    }

    /// Asks who uses it.
    fn clients(&self, dataset: &DatasetName) -> Command {
        Command::function(&CLIENTS)
            .args([self.protocol.section(), dataset.as_str()])
            .arg(Self::share_name(dataset))
    }

    /// Notes once that the host cannot say who uses a share.
    fn note_unseen(&self, why: &str) {
        if !self.is_noted.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why,
                "the storage host does not say who uses a share: volumes are deleted as if no node did"
            );
        }
    }
}

impl Export for ShareExport {
    type Command = Command;
    type Output = Output;
    type Name = ();
    type Facts = Facts;

    fn kind(&self) -> VolumeKind {
        VolumeKind::Filesystem
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&["nfs", "cifs"])
    }

    fn reads(&self) -> Vec<PropertyName> {
        let names = self.properties.iter().map(|property| property.name.clone());
        let others = match &self.access {
            Some(_) => Nodes::property().ok(),
            None => Some(PropertyName::SHARE_OPTIONS),
        };
        let of_choices = (!self.choices.is_empty()).then(|| self.protocol.property());
        names.chain(others).chain(of_choices).collect()
    }

    fn export_name(&self, _subject: &Subject<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn properties(&self, _subject: &Subject<'_>, _asset: &()) -> Vec<Property> {
        self.properties.clone()
    }

    fn observe(&self, subject: &Subject<'_>, _asset: &()) -> Vec<Command> {
        if self.is_shared() {
            vec![self.script("look", subject.dataset)]
        } else {
            Vec::new()
        }
    }

    /// Who uses it is asked of what is shared in another way, too.
    fn observe_to_remove(&self, subject: &Subject<'_>, _asset: &()) -> Vec<Command> {
        let clients = self.clients(subject.dataset);
        self.observe(subject, &())
            .into_iter()
            .chain([clients])
            .collect()
    }

    fn observe_to_adopt(&self, subject: &Subject<'_>, _asset: &()) -> Vec<Command> {
        let shared = self.shared(subject.dataset);
        self.observe(subject, &())
            .into_iter()
            .chain([shared])
            .collect()
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _asset: &(),
        answers: &[Output],
    ) -> Result<Facts, Error> {
        Facts::read(answers)
    }

    fn ensure(
        &self,
        subject: &Subject<'_>,
        _asset: &(),
        facts: &Facts,
    ) -> Result<Vec<Act<Command>>, Error> {
        if let Some(other) = facts.foreign.first() {
            let name = Self::share_name(subject.dataset);
            let doing = format!("share volume `{}`", subject.id);
            return Err(Error::new(Kind::Conflict, doing)
                .because(format!("share `{name}` is of {other}"))
                .advise(
                    "names of shares ignore case, and have `_` for each `/` and `-`: give the volume another name",
                ));
        }
        if let Some(access) = &self.access {
            let listed = access.listed(subject);
            return Ok(if !listed.is_so {
                vec![Act::Remember(access.to(&listed.names)?)]
            } else if !facts.missing.is_empty() && !listed.names.is_empty() {
                vec![Act::Do(self.script("make", subject.dataset))]
            } else {
                Vec::new()
            });
        }
        let has = |property: &&Property| {
            let volume = subject.volume;
            volume.is_some_and(|volume| volume.properties.has(property))
        };
        let unset = self.wanted(subject).into_iter();
        let unset = unset.filter(|property| !has(&property));
        let mut acts: Vec<_> = unset.map(Act::Remember).collect();
        if acts.is_empty() && !facts.missing.is_empty() {
            acts.push(Act::Do(self.script("make", subject.dataset)));
        }
        Ok(acts)
    }

    fn can_be_restored(&self, facts: &Facts) -> bool {
        facts.blocked.is_empty()
    }

    /// ZFS unshares the dataset when it destroys it.
    fn remove(
        &self,
        _subject: &Subject<'_>,
        _asset: &(),
        _facts: &Facts,
    ) -> Result<Vec<Act<Command>>, Error> {
        Ok(Vec::new())
    }

    fn connected(
        &self,
        subject: &Subject<'_>,
        _asset: &(),
        facts: &Facts,
    ) -> Result<Vec<String>, Error> {
        // The share of that name is of another dataset, and so are those who use it.
        if !facts.foreign.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(what) = facts.hidden.first() {
            let doing = format!("see who uses the share of volume `{}`", subject.id);
            return Err(Error::new(Kind::Unreachable, doing)
                .because(format!("the storage host does not show {what}")));
        }
        if let Some(why) = facts.unseen.first() {
            self.note_unseen(why);
        }
        Ok(facts.connected.clone())
    }

    fn other_users(&self, facts: &Facts) -> Vec<String> {
        facts.used.clone()
    }

    fn unseen_users(&self, facts: &Facts) -> Vec<String> {
        facts.unseen.clone()
    }

    fn is_per_node(&self) -> bool {
        self.access.is_some()
    }

    /// The next request of the node is refused.
    fn cuts_off(&self) -> bool {
        true
    }

    fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        let lets_in = |access: &Access| access.lets_in(subject, node);
        self.access.as_ref().is_none_or(lets_in)
    }

    fn named(&self, node: &NodeId) -> NamedNode {
        let access = self.access.as_ref();
        access.map_or_else(|| NamedNode::nameless(node), |access| access.named(node))
    }

    fn listed(&self, subject: &Subject<'_>, some: &[NamedNode]) -> ListedNodes {
        let listed = |access: &Access| access.listed_nodes(subject, some);
        self.access.as_ref().map(listed).unwrap_or_default()
    }

    fn names(&self, node: &NodeId) -> bool {
        let names = |access: &Access| access.names(node);
        self.access.as_ref().is_none_or(names)
    }

    fn addresses(&self, node: &NodeId) -> Vec<IpAddr> {
        let addresses = |access: &Access| access.addresses(node);
        self.access.as_ref().map(addresses).unwrap_or_default()
    }

    fn is_open(&self, subject: &Subject<'_>, _asset: &(), _facts: &Facts) -> bool {
        let is_open = |access: &Access| access.is_open(subject);
        self.access.as_ref().is_some_and(is_open)
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        _asset: &(),
        _facts: &Facts,
        nodes: &[&NodeId],
    ) -> Result<Vec<Act<Command>>, Error> {
        match &self.access {
            Some(access) => access.allow(subject, nodes),
            None => Ok(Vec::new()),
        }
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        _asset: &(),
        _facts: &Facts,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<Command>>, Error> {
        // A dataset that is gone has no share.
        match (&self.access, subject.volume) {
            (Some(access), Some(_)) => access.revoke(subject, node),
            _ => Ok(Vec::new()),
        }
    }

    fn attachment(
        &self,
        subject: &Subject<'_>,
        _asset: &(),
        _facts: &Facts,
    ) -> Result<Option<Attachment>, Error> {
        let share = match self.protocol {
            Protocol::Smb => Self::share_name(subject.dataset),
            Protocol::Nfs => match subject.volume.map(|volume| volume.mountpoint()) {
                None => return Ok(None),
                Some(Some(path)) => path.to_owned(),
                Some(None) => {
                    return Err(Error::new(Kind::Internal, "describe a share")
                        .because("the dataset is mounted nowhere")
                        .advise("a volume needs a mountpoint: see zfs.datasetProperties"));
                }
            },
        };
        self.attach(&share)
            .map(Some)
            .map_err(|error| Error::new(Kind::Internal, "describe a share").because(error))
    }

    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment> {
        self.attachment(subject, &(), &Facts::default()).ok()?
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        let share = match self.protocol {
            Protocol::Smb => Self::share_name(longest.dataset),
            // Where ZFS mounts it unless a parent on the host says otherwise.
            Protocol::Nfs => format!("/{}", longest.dataset),
        };
        self.attach(&share).ok()
    }
}
