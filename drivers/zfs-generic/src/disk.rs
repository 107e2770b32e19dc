//! Zvols as disks of a target: what iSCSI and NVMe-oF have in common, whichever tool makes them.
//!
//! One volume is one target with one disk, named after the volume. The script of the stack observes the
//! host; the dataset remembers the name and the access list.
//! compat: "Exports of a ZFS host".

mod revocation;
mod uuid;

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::LazyLock;

use csi_types::attachment::{
    FieldError, Interface, Iqn, Iscsi, Listed, Lun, Nqn, Nsid, Nvmeof, Portal, Transport,
};
use csi_types::{AccessMode, Attachment};
use driver_core::{AccessRules, Error, Kind, NodeId};
use driver_zfs::Export;
use driver_zfs::export::{Act, ExportName, ExportNaming, Subject};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs_cli::exec::{Command, Output};

use crate::config::Basename;
use crate::facts::Facts;
use crate::scripts::{HostPaths, bare};
use driver_zfs::nodes::{AccessList, ListedNodes, NamedNode, NodeName, Nodes};
use revocation::Revocation;
use uuid::Uuid;

static USERS: LazyLock<String> = LazyLock::new(|| bare(include_str!("script/users.sh")));

/// The filesystems that a disk can be asked to hold. compat: "Exports of a ZFS host".
const FS_TYPES: &[&str] = &[
    "btrfs", "exfat", "ext3", "ext4", "ext4dev", "ntfs", "vfat", "xfs",
];

/// Exports zvols as disks.
#[derive(Debug)]
pub struct DiskExport {
    naming: ExportNaming,
    basename: Basename,
    protocol: Protocol,
    stack: Box<dyn Stack>,
    /// The names of nodes, if access is per node.
    nodes: Option<Nodes>,
}

/// The protocol that nodes use.
#[derive(Debug, Clone)]
pub(crate) enum Protocol {
    /// iSCSI.
    Iscsi(Listed<Portal>, Option<Interface>),
    /// NVMe over fabrics.
    Nvmeof(Listed<Transport>),
}

/// One target stack of a host, by one tool.
pub(crate) trait Stack: Debug + Send + Sync {
    /// The paths of its host.
    fn places(&self) -> &HostPaths;

    /// The reason why it can never make this disk.
    fn refuses(&self, _disk: &Disk<'_>) -> Option<&'static str> {
        None
    }

    /// Fails if nodes have to prove who they are by keys, and the configuration has none for this one.
    fn admit(&self, _nodes: Option<&Nodes>, _node: &NodeId) -> Result<(), Error> {
        Ok(())
    }

    /// Whether the host can refuse a node for what that has to prove itself with.
    fn asks_for_keys(&self) -> bool {
        false
    }

    /// Asks which parts of the configuration the host does not know, for [`Facts`]. About no disk.
    fn examine(&self) -> Option<Command> {
        None
    }

    /// Asks why the host cannot end what a node has open while others have the disk, for [`Facts`]: as what it hides.
    /// About no disk. `None` if each host can.
    fn ask_to_cut_off(&self) -> Option<Command> {
        None
    }

    /// Observes the disk and prints lines that [`Facts`] parses.
    fn observe(&self, disk: &Disk<'_>) -> Command;

    /// Makes the missing parts, and saves them for the next start of the host, unless `save` does.
    fn make(&self, disk: &Disk<'_>, facts: &Facts) -> Command;

    /// Removes the existing parts, also from the saved configuration, unless `save` does.
    fn remove(&self, disk: &Disk<'_>, facts: &Facts) -> Command;

    /// Saves this change together with those of other disks, and waits for it. `None` if each change
    /// saves itself.
    fn save(&self) -> Option<Command> {
        None
    }

    /// Sets the access list of an existing target to the nodes of the disk. `None` if the stack has
    /// no access per node.
    fn set_access(&self, _disk: &Disk<'_>) -> Option<Command> {
        None
    }

    /// Waits until the revoked nodes are disconnected. `None` if `set_access` waits. It is a separate
    /// command because `set_access` runs for one disk of a host at a time.
    fn wait_for_disconnect(&self, _disk: &Disk<'_>) -> Option<Command> {
        None
    }

    /// Makes the target notice that the disk has grown, if it does not do so by itself.
    fn resize(&self, _disk: &Disk<'_>) -> Option<Command> {
        None
    }
}

/// A disk, as a stack needs to know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk<'a> {
    /// Its name.
    pub(crate) export_name: &'a ExportName,
    /// The name of its target or subsystem.
    pub(crate) target: &'a str,
    /// The device of the zvol on the host.
    pub(crate) device: &'a str,
    /// Its identifier on nodes. It stays the same when the disk is exported again.
    pub(crate) uuid: &'a str,
    /// The nodes with access; `None` if all nodes have it. An observation does not depend on it.
    pub(crate) nodes: Option<&'a [NodeName]>,
    /// The nodes that must lose access, whatever the host shows. None of them is in `nodes`.
    pub(crate) out: &'a [NodeName],
    /// The nodes for which the call is: if the host refuses what another one has to prove itself with, that one stays as
    /// it is. `None` if it is for all.
    pub(crate) concerned: Option<&'a [NodeName]>,
}

/// The nodes of a disk, as a change has them.
#[derive(Debug, Clone, Copy, Default)]
struct NodesOf<'a> {
    /// See [`Disk::nodes`].
    nodes: Option<&'a [NodeName]>,
    /// See [`Disk::out`].
    out: &'a [NodeName],
    /// See [`Disk::concerned`].
    concerned: Option<&'a [NodeName]>,
}

/// The message about an attribute that the host does not know: its key, the host and its kernel.
fn unknown(line: &str) -> Error {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or("-");
    let (key, host, kernel) = (word(), word(), word());
    let why = format!(
        "the kernel {kernel} of host `{host}` has no such attribute: volumes are made without it"
    );
    Error::new(Kind::Invalid, format!("set `{key}`"))
        .because(why)
        .advise("remove it from the configuration, or update the kernel of that host")
}

// === impl Disk ===

impl Disk<'_> {
    /// The nodes with access, as words of a script.
    pub(crate) fn node_words(&self) -> impl Iterator<Item = String> {
        let listed = self.nodes.map(|_| "nodes=listed".to_owned());
        let nodes = self.nodes.unwrap_or_default().iter();
        listed
            .into_iter()
            .chain(nodes.map(|node| format!("node={}", node.as_str())))
    }

    /// The revoked nodes, as words of a script.
    pub(crate) fn out_words(&self) -> impl Iterator<Item = String> {
        self.out.iter().map(|node| format!("out={}", node.as_str()))
    }
}

// === impl NodesOf ===

impl<'a> NodesOf<'a> {
    /// The disk with them.
    fn on(self, disk: Disk<'a>) -> Disk<'a> {
        Disk {
            nodes: self.nodes,
            out: self.out,
            concerned: self.concerned,
            ..disk
        }
    }
}

// === impl DiskExport ===

impl DiskExport {
    pub(crate) fn new(
        naming: ExportNaming,
        basename: Basename,
        protocol: Protocol,
        stack: impl Stack + 'static,
    ) -> Self {
        Self {
            naming,
            basename,
            protocol,
            stack: Box::new(stack),
            nodes: None,
        }
    }

    /// Gives access only to the nodes that a volume is published to, if they have names.
    pub(crate) fn for_nodes(mut self, nodes: Option<Nodes>) -> Self {
        self.nodes = nodes;
        self
    }

    fn property(&self) -> PropertyName {
        match self.protocol {
            Protocol::Iscsi(..) => PropertyName::ISCSI_ASSETS,
            Protocol::Nvmeof(_) => PropertyName::NVMEOF_ASSETS,
        }
    }

    /// The name of its target.
    fn target(&self, export_name: &ExportName) -> String {
        format!("{}:{export_name}", self.basename)
    }

    fn with<T>(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        ask: impl FnOnce(&dyn Stack, &Disk<'_>) -> T,
    ) -> T {
        let disk = Disk {
            export_name,
            target: &self.target(export_name),
            device: &subject.device(),
            uuid: &Uuid::of(subject).to_string(),
            nodes: None,
            out: &[],
            concerned: None,
        };
        ask(self.stack.as_ref(), &disk)
    }

    /// Asks what else has its zvol.
    fn users(&self, subject: &Subject<'_>, export_name: &ExportName) -> Command {
        let target = self.target(export_name);
        let [subsystem, backstore] = match self.protocol {
            Protocol::Iscsi(..) => ["", export_name.as_str()],
            Protocol::Nvmeof(_) => [target.as_str(), ""],
        };
        Command::function(&USERS)
            .arg(self.stack.places().configfs.as_str())
            .args([subject.device().as_str(), subsystem, backstore])
    }

    /// A change, which is saved.
    fn change(&self, change: Command) -> impl Iterator<Item = Act<Command>> {
        std::iter::once(change)
            .chain(self.stack.save())
            .map(Act::Do)
    }

    /// Makes the missing parts, with access as `of` has it.
    fn make(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
        of: NodesOf<'_>,
    ) -> impl Iterator<Item = Act<Command>> {
        self.change(self.with(subject, export_name, |stack, disk| {
            stack.make(&of.on(*disk), facts)
        }))
    }

    /// The acts that are missing until the disk is exported. Without `all` only those that another node waits for.
    fn establish(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
        all: bool,
    ) -> Result<Vec<Act<Command>>, Error> {
        facts.refuse_foreign(&self.target(export_name))?;
        if !facts.unknown.is_empty() {
            let attributes = facts.unknown.join(", ");
            let volume = subject.id;
            tracing::warn!(%volume, attributes, "the kernel of the storage host has no such attributes: they are not set");
        }
        let mut acts = Vec::new();
        let property = self.property();
        // Before anything is made, so that it can be found again.
        if subject.remembered(&property) != Some(export_name.as_str()) {
            let value = PropertyValue::parse(export_name.as_str())
                .map_err(|error| Error::new(Kind::Internal, "remember a name").because(error))?;
            acts.push(Act::Remember(Property::new(property, value)));
        }
        let listed = self.listed(subject)?;
        let is_made = listed.as_ref().is_none_or(|nodes| {
            if all {
                facts.allows_exactly(nodes)
            } else {
                facts.allows_only(nodes)
            }
        });
        let lacks = if all {
            !facts.missing.is_empty()
        } else {
            facts.lacks_parts()
        };
        if lacks || !is_made {
            let none: &[NodeName] = &[];
            let of = NodesOf {
                nodes: listed.as_deref(),
                concerned: (!all).then_some(none),
                ..NodesOf::default()
            };
            acts.extend(self.make(subject, export_name, facts, of));
        }
        Ok(acts)
    }

    /// Removes the existing parts and revokes these nodes.
    fn remove(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
        out: &[NodeName],
    ) -> impl Iterator<Item = Act<Command>> {
        self.change(self.with(subject, export_name, |stack, disk| {
            stack.remove(&Disk { out, ..*disk }, facts)
        }))
    }

    /// Sets the access to exactly `access_list`, but for the nodes as `of` has it.
    fn set_access(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        access_list: &AccessList,
        of: NodesOf<'_>,
    ) -> Vec<Act<Command>> {
        let names = access_list.names();
        let of = NodesOf {
            nodes: Some(&names),
            ..of
        };
        let ask = |stack: &dyn Stack, disk: &Disk<'_>| {
            let disk = of.on(*disk);
            let wait = (!of.out.is_empty())
                .then(|| stack.wait_for_disconnect(&disk))
                .flatten();
            let changes = stack.set_access(&disk).into_iter();
            let saved = changes.flat_map(|change| self.change(change));
            saved.chain(wait.map(Act::Do)).collect()
        };
        self.with(subject, export_name, ask)
    }

    /// The nodes with access, as the dataset remembers them; `None` if all nodes have it.
    fn listed(&self, subject: &Subject<'_>) -> Result<Option<Vec<NodeName>>, Error> {
        let names = |nodes: &Nodes| {
            nodes
                .remembered(subject)
                .map(|access_list| access_list.names())
        };
        self.nodes.as_ref().map(names).transpose()
    }

    fn attach(&self, export_name: &ExportName) -> Result<Attachment, FieldError> {
        let target = self.target(export_name);
        Ok(match &self.protocol {
            Protocol::Iscsi(portals, interface) => Attachment::Iscsi(Iscsi {
                iqn: Iqn::parse(&target)?,
                lun: Lun::parse("0")?,
                portals: portals.clone(),
                interface: interface.clone(),
                device_id: None,
            }),
            Protocol::Nvmeof(transports) => Attachment::Nvmeof(Nvmeof {
                nqn: Nqn::parse(&target)?,
                nsid: Nsid::parse("1")?,
                transports: transports.clone(),
                device_id: None,
                is_fenced: false,
            }),
        })
    }
}

impl Export for DiskExport {
    type Command = Command;
    type Output = Output;
    type Name = ExportName;
    type Facts = Facts;

    fn kind(&self) -> VolumeKind {
        VolumeKind::Zvol
    }

    fn access_rules(&self) -> AccessRules {
        let all = AccessMode::ALL.into_iter();
        let one_writer = all.filter(|mode| *mode != AccessMode::MultiNodeMultiWriter);
        AccessRules {
            block: true,
            mount: true,
            fs_types: FS_TYPES,
            mount_modes: one_writer.collect(),
            block_modes: AccessMode::ALL.to_vec(),
        }
    }

    fn reads(&self) -> Vec<PropertyName> {
        let nodes = self.nodes.as_ref().and_then(|_| Nodes::property().ok());
        std::iter::once(self.property()).chain(nodes).collect()
    }

    fn export_name(&self, subject: &Subject<'_>) -> Result<ExportName, Error> {
        let export_name = self.naming.name(subject, &self.property())?;
        let refused = || Error::invalid(format!("name the export of volume `{}`", subject.id));
        self.attach(&export_name)
            .map_err(|error| refused().because(error))?;
        match self.with(subject, &export_name, |stack, disk| stack.refuses(disk)) {
            Some(why) => Err(refused().because(why)),
            None => Ok(export_name),
        }
    }

    fn observe(&self, subject: &Subject<'_>, export_name: &ExportName) -> Vec<Command> {
        vec![self.with(subject, export_name, |stack, disk| stack.observe(disk))]
    }

    fn observe_to_adopt(&self, subject: &Subject<'_>, export_name: &ExportName) -> Vec<Command> {
        let users = self.users(subject, export_name);
        let mut commands = Export::observe(self, subject, export_name);
        commands.push(users);
        commands
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _asset: &ExportName,
        answers: &[Output],
    ) -> Result<Facts, Error> {
        Facts::read(answers)
    }

    fn ensure(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
    ) -> Result<Vec<Act<Command>>, Error> {
        self.establish(subject, export_name, facts, true)
    }

    fn prepare(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
    ) -> Result<Vec<Act<Command>>, Error> {
        let all = !self.stack.asks_for_keys();
        self.establish(subject, export_name, facts, all)
    }

    fn remove(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
    ) -> Result<Vec<Act<Command>>, Error> {
        if facts.present.is_empty() {
            return Ok(Vec::new());
        }
        let access_list = self.nodes.as_ref().map(|nodes| nodes.remembered(subject));
        let out = access_list.transpose()?.unwrap_or_default().names_of(None);
        Ok(self.remove(subject, export_name, facts, &out).collect())
    }

    fn resize(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: Option<&Facts>,
    ) -> Result<Vec<Act<Command>>, Error> {
        if facts.is_some_and(|facts| facts.present.is_empty()) {
            return Ok(Vec::new());
        }
        let resize = self.with(subject, export_name, |stack, disk| stack.resize(disk));
        Ok(resize.map(Act::Do).into_iter().collect())
    }

    fn connected(
        &self,
        _subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
    ) -> Result<Vec<String>, Error> {
        if let Some(what) = facts.hidden.first() {
            let doing = format!("see who is connected to `{}`", self.target(export_name));
            return Err(Error::new(Kind::Unreachable, doing).because(format!(
                "the kernel of the storage host does not show {what}"
            )));
        }
        Ok(facts.connected.clone())
    }

    fn other_users(&self, facts: &Facts) -> Vec<String> {
        facts.used.clone()
    }

    fn examine(&self) -> Vec<Command> {
        self.stack.examine().into_iter().collect()
    }

    fn problems(&self, answers: &[Output]) -> Vec<Error> {
        match Facts::read(answers) {
            Ok(facts) => facts.unknown.iter().map(|line| unknown(line)).collect(),
            Err(error) => vec![error],
        }
    }

    fn is_per_node(&self) -> bool {
        self.nodes.is_some()
    }

    /// LIO ends the sessions of a node, and waits for that. Of nvmet only some kernels do while others have the disk.
    fn cuts_off(&self) -> bool {
        true
    }

    fn ask_to_cut_off(&self) -> Vec<Command> {
        self.stack.ask_to_cut_off().into_iter().collect()
    }

    fn refuses_to_cut_off(&self, answers: &[Output]) -> Result<Option<String>, Error> {
        let facts = Facts::read(answers)?;
        let why = facts.hidden.first();
        Ok(why.map(|why| {
            format!("what a node has open may go on after it has lost its access: {why}")
        }))
    }

    fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        let lets_in = |nodes: &Nodes| nodes.lets_in(subject, node);
        self.nodes.as_ref().is_none_or(lets_in)
    }

    fn named(&self, node: &NodeId) -> NamedNode {
        let nodes = self.nodes.as_ref();
        nodes.map_or_else(|| NamedNode::nameless(node), |nodes| nodes.named(node))
    }

    fn listed(&self, subject: &Subject<'_>, some: &[NamedNode]) -> ListedNodes {
        let listed = |nodes: &Nodes| {
            let list = nodes.remembered(subject).unwrap_or_default();
            nodes.listed(&list, some)
        };
        self.nodes.as_ref().map(listed).unwrap_or_default()
    }

    fn names(&self, node: &NodeId) -> bool {
        let names = |nodes: &Nodes| nodes.name(node).is_ok();
        self.nodes.as_ref().is_none_or(names)
    }

    fn admits(&self, node: &NodeId) -> Result<(), Error> {
        self.stack.admit(self.nodes.as_ref(), node)
    }

    fn addresses(&self, node: &NodeId) -> Vec<IpAddr> {
        let addresses = |nodes: &Nodes| nodes.addresses(node);
        self.nodes.as_ref().map(addresses).unwrap_or_default()
    }

    fn is_open(&self, subject: &Subject<'_>, _asset: &ExportName, facts: &Facts) -> bool {
        let is_unlisted = |nodes: &Nodes| nodes.remembered(subject).is_ok_and(|l| l.is_empty());
        self.nodes.as_ref().is_some_and(is_unlisted) && facts.lets_in_all()
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
        allowed: &[&NodeId],
    ) -> Result<Vec<Act<Command>>, Error> {
        let Some(nodes) = &self.nodes else {
            return Ok(Vec::new());
        };
        let before = nodes.remembered(subject)?;
        let mut access_list = before.clone();
        let names = nodes.admit(&mut access_list, allowed)?;
        let mut acts = Vec::new();
        if access_list != before {
            // Before it gets access, so that a later call can revoke it.
            acts.push(Nodes::remember_new(&access_list)?);
        }
        let is_in = |name: &NodeName| facts.allowed.iter().any(|text| text == name.as_str());
        if !names.iter().all(is_in) || names.iter().any(|name| facts.lacks_key_of(name)) {
            let of = NodesOf {
                concerned: Some(&names),
                ..NodesOf::default()
            };
            acts.extend(self.set_access(subject, export_name, &access_list, of));
        }
        Ok(acts)
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &Facts,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<Command>>, Error> {
        let Some(nodes) = &self.nodes else {
            return Ok(Vec::new());
        };
        let revocation = Revocation::plan(nodes, subject, facts, node)?;
        let is_there = facts.is_present("target") || facts.is_present("subsystem");
        let is_saved = !is_there && facts.is_present("saved");
        let mut acts = Vec::new();
        if let Some(marked) = &revocation.marked
            && (is_there || is_saved)
            && subject.volume.is_some()
        {
            // Before the revocation: after an interruption no other call gives it access again.
            acts.push(Nodes::remember(marked)?);
        }
        if revocation.was_in && is_saved {
            // The host has lost it, and must not get it back with this node in it.
            acts.extend(self.remove(subject, export_name, facts, &revocation.out));
        }
        if is_there && revocation.is_in {
            let of = NodesOf {
                out: &revocation.out,
                ..NodesOf::default()
            };
            acts.extend(self.set_access(subject, export_name, &revocation.left, of));
        }
        if revocation.was_in && subject.volume.is_some() {
            // After the revocation: after an interruption the next call still knows the node.
            acts.push(Nodes::remember(&revocation.left)?);
        }
        // Restores what the remaining nodes need. If the host must be corrected first, they wait for
        // that, and the revocation does not; nor does it for a key that the kernel refuses.
        let can_be_made = facts.lacks_parts() && facts.blocked.is_empty();
        if !revocation.left.is_empty() && subject.volume.is_some() && can_be_made {
            let names = revocation.left.names();
            let mut out = revocation.out;
            // Also of a retry, which remembers it no longer.
            let name = node.and_then(|node| nodes.name(node).ok());
            out.extend(name.filter(|name| !names.contains(name)));
            let of = NodesOf {
                nodes: Some(&names),
                out: &out,
                ..NodesOf::default()
            };
            acts.extend(self.make(subject, export_name, facts, of));
        }
        Ok(acts)
    }

    fn attachment(
        &self,
        _subject: &Subject<'_>,
        export_name: &ExportName,
        _facts: &Facts,
    ) -> Result<Option<Attachment>, Error> {
        let attachment = self.attach(export_name);
        attachment
            .map(Some)
            .map_err(|error| Error::new(Kind::Internal, "describe a target").because(error))
    }

    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment> {
        self.attach(&self.export_name(subject).ok()?).ok()
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        // Not every base name leaves room for the longest one.
        let fits = |export_name: &ExportName| self.attach(export_name).ok();
        self.naming.longest(longest)?.shortened(fits)
    }
}
