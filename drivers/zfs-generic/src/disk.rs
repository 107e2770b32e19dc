//! Zvols as disks of a target: what iSCSI and NVMe-oF have in common, whichever tool makes them.
//!
//! One volume is one target with one disk, named after the volume. What there is on the host is
//! asked of the stack's script; what is remembered in the dataset is its name, and who gets in.
//! compat: "Exports of a ZFS host".

mod leaving;
mod uuid;

use std::fmt::Debug;

use csi_types::attachment::{
    FieldError, Interface, Iqn, Iscsi, Listed, Lun, Nqn, Nsid, Nvmeof, Portal, Transport,
};
use csi_types::{AccessMode, Attachment};
use driver_core::{AccessRules, Error, Kind, NodeId};
use driver_zfs::Export;
use driver_zfs::exec::{Command, Output};
use driver_zfs::export::{Act, AssetName, AssetNaming, Subject};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName, PropertyValue};

use crate::config::Basename;
use crate::facts::Facts;
use crate::nodes::{Guests, NodeName, Nodes};
use leaving::Leaving;
use uuid::Uuid;

/// The filesystems that a disk can be asked to hold. compat: "Exports of a ZFS host".
const FS_TYPES: &[&str] = &[
    "btrfs", "exfat", "ext3", "ext4", "ext4dev", "ntfs", "vfat", "xfs",
];

/// Exports zvols as disks.
#[derive(Debug)]
pub struct DiskExport {
    naming: AssetNaming,
    basename: Basename,
    way: Way,
    stack: Box<dyn Stack>,
    /// What nodes are called, if it tells them apart.
    nodes: Option<Nodes>,
}

/// How nodes get there.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// By iSCSI.
    Iscsi(Listed<Portal>, Option<Interface>),
    /// By NVMe over fabrics.
    Nvmeof(Listed<Transport>),
}

/// One target stack of a host, by one tool.
pub(crate) trait Stack: Debug + Send + Sync {
    /// Why it can never make this disk.
    fn refuses(&self, _disk: &Disk<'_>) -> Option<&'static str> {
        None
    }

    /// Looks, and prints what [`Facts`] read.
    fn look(&self, disk: &Disk<'_>) -> Command;

    /// Makes what is missing, and saves it for the next start of the host, unless `save` does.
    fn make(&self, disk: &Disk<'_>, facts: &Facts) -> Command;

    /// Removes what is present, also from what is saved, unless `save` does.
    fn remove(&self, disk: &Disk<'_>, facts: &Facts) -> Command;

    /// Saves what was changed, with what was changed of other disks and waits for that; `None` where
    /// whoever changes something saves it.
    fn save(&self) -> Option<Command> {
        None
    }

    /// Lets in the nodes of the disk and nobody else, into a target that is there; `None` where the
    /// stack does not tell nodes apart.
    fn let_in(&self, _disk: &Disk<'_>) -> Option<Command> {
        None
    }

    /// Waits until those that have to be out are; `None` where letting in has done so. Apart from that,
    /// since all disks of a host have their turn at that one after the other.
    fn await_out(&self, _disk: &Disk<'_>) -> Option<Command> {
        None
    }

    /// Tells the target that the disk has grown, where it does not see that by itself.
    fn resize(&self, _disk: &Disk<'_>) -> Option<Command> {
        None
    }
}

/// A disk, as a stack needs to know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk<'a> {
    /// What it is called.
    pub(crate) asset: &'a AssetName,
    /// What its target or subsystem is called.
    pub(crate) target: &'a str,
    /// Where the host shows the zvol.
    pub(crate) device: &'a str,
    /// What nodes know it by, the same whenever it is made again.
    pub(crate) uuid: &'a str,
    /// Who gets in; `None` where everybody does. A look does not depend on it.
    pub(crate) nodes: Option<&'a [NodeName]>,
    /// Who has to be out, whatever the host says of them. Nobody of these is in `nodes`.
    pub(crate) out: &'a [NodeName],
}

// === impl Disk ===

impl Disk<'_> {
    /// Who gets in, as words of a script.
    pub(crate) fn node_words(&self) -> impl Iterator<Item = String> {
        let listed = self.nodes.map(|_| "nodes=listed".to_owned());
        let nodes = self.nodes.unwrap_or_default().iter();
        listed
            .into_iter()
            .chain(nodes.map(|node| format!("node={}", node.as_str())))
    }

    /// Who has to be out, as words of a script.
    pub(crate) fn out_words(&self) -> impl Iterator<Item = String> {
        self.out.iter().map(|node| format!("out={}", node.as_str()))
    }
}

// === impl DiskExport ===

impl DiskExport {
    pub(crate) fn new(
        naming: AssetNaming,
        basename: Basename,
        way: Way,
        stack: impl Stack + 'static,
    ) -> Self {
        Self {
            naming,
            basename,
            way,
            stack: Box::new(stack),
            nodes: None,
        }
    }

    /// Lets in only the nodes that a volume is published to, if they have names.
    pub(crate) fn for_nodes(mut self, nodes: Option<Nodes>) -> Self {
        self.nodes = nodes;
        self
    }

    fn property(&self) -> PropertyName {
        match self.way {
            Way::Iscsi(..) => PropertyName::ISCSI_ASSETS,
            Way::Nvmeof(_) => PropertyName::NVMEOF_ASSETS,
        }
    }

    /// What its target is called.
    fn target(&self, asset: &AssetName) -> String {
        format!("{}:{asset}", self.basename)
    }

    fn with<T>(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        ask: impl FnOnce(&dyn Stack, &Disk<'_>) -> T,
    ) -> T {
        let disk = Disk {
            asset,
            target: &self.target(asset),
            device: &subject.device(),
            uuid: &Uuid::of(subject).to_string(),
            nodes: None,
            out: &[],
        };
        ask(self.stack.as_ref(), &disk)
    }

    /// A change, which is saved.
    fn change(&self, change: Command) -> impl Iterator<Item = Act<Command>> {
        std::iter::once(change)
            .chain(self.stack.save())
            .map(Act::Do)
    }

    /// Makes what is missing, with these nodes let in.
    fn make(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        facts: &Facts,
        nodes: Option<&[NodeName]>,
    ) -> impl Iterator<Item = Act<Command>> {
        self.change(self.with(subject, asset, |stack, disk| {
            stack.make(&Disk { nodes, ..*disk }, facts)
        }))
    }

    /// Removes what is present; these nodes have to be out.
    fn remove(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        facts: &Facts,
        out: &[NodeName],
    ) -> impl Iterator<Item = Act<Command>> {
        self.change(self.with(subject, asset, |stack, disk| {
            stack.remove(&Disk { out, ..*disk }, facts)
        }))
    }

    /// Lets in these guests and nobody else, least of all those that have to be out.
    fn let_in(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        guests: &Guests,
        out: &[NodeName],
    ) -> Vec<Act<Command>> {
        let names = guests.names();
        let nodes = Some(names.as_slice());
        let ask = |stack: &dyn Stack, disk: &Disk<'_>| {
            let disk = Disk {
                nodes,
                out,
                ..*disk
            };
            let wait = (!out.is_empty()).then(|| stack.await_out(&disk)).flatten();
            let changes = stack.let_in(&disk).into_iter();
            let saved = changes.flat_map(|change| self.change(change));
            saved.chain(wait.map(Act::Do)).collect()
        };
        self.with(subject, asset, ask)
    }

    /// Who gets in, as the dataset remembers it; `None` where everybody does.
    fn listed(&self, subject: &Subject<'_>) -> Result<Option<Vec<NodeName>>, Error> {
        let names = |nodes: &Nodes| nodes.remembered(subject).map(|guests| guests.names());
        self.nodes.as_ref().map(names).transpose()
    }

    fn attach(&self, asset: &AssetName) -> Result<Attachment, FieldError> {
        let target = self.target(asset);
        Ok(match &self.way {
            Way::Iscsi(portals, interface) => Attachment::Iscsi(Iscsi {
                iqn: Iqn::parse(&target)?,
                lun: Lun::parse("0")?,
                portals: portals.clone(),
                interface: interface.clone(),
                device_id: None,
            }),
            Way::Nvmeof(transports) => Attachment::Nvmeof(Nvmeof {
                nqn: Nqn::parse(&target)?,
                nsid: Nsid::parse("1")?,
                transports: transports.clone(),
                device_id: None,
            }),
        })
    }
}

impl Export for DiskExport {
    type Request = Command;
    type Answer = Output;
    type Asset = AssetName;
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

    fn asset(&self, subject: &Subject<'_>) -> Result<AssetName, Error> {
        let asset = self.naming.name(subject, &self.property())?;
        let refused = || Error::invalid(format!("name the export of volume `{}`", subject.id));
        self.attach(&asset)
            .map_err(|error| refused().because(error))?;
        match self.with(subject, &asset, |stack, disk| stack.refuses(disk)) {
            Some(why) => Err(refused().because(why)),
            None => Ok(asset),
        }
    }

    fn look(&self, subject: &Subject<'_>, asset: &AssetName) -> Vec<Command> {
        vec![self.with(subject, asset, |stack, disk| stack.look(disk))]
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _asset: &AssetName,
        answers: &[Output],
    ) -> Result<Facts, Error> {
        Facts::read(answers)
    }

    fn establish(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        facts: &Facts,
    ) -> Result<Vec<Act<Command>>, Error> {
        facts.refuse_foreign(&self.target(asset))?;
        let mut acts = Vec::new();
        let property = self.property();
        // Before anything is made, so that it can be found again.
        if subject.remembered(&property) != Some(asset.as_str()) {
            let value = PropertyValue::parse(asset.as_str())
                .map_err(|error| Error::new(Kind::Internal, "remember a name").because(error))?;
            acts.push(Act::Remember(Property::new(property, value)));
        }
        let listed = self.listed(subject)?;
        let as_listed = listed.as_ref().is_none_or(|nodes| facts.lets_in(nodes));
        if !facts.missing.is_empty() || !as_listed {
            acts.extend(self.make(subject, asset, facts, listed.as_deref()));
        }
        Ok(acts)
    }

    fn withdraw(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        facts: &Facts,
    ) -> Result<Vec<Act<Command>>, Error> {
        if facts.present.is_empty() {
            return Ok(Vec::new());
        }
        let guests = self.nodes.as_ref().map(|nodes| nodes.remembered(subject));
        let out = guests.transpose()?.unwrap_or_default().names_of(None);
        Ok(self.remove(subject, asset, facts, &out).collect())
    }

    fn resize(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        facts: Option<&Facts>,
    ) -> Result<Vec<Act<Command>>, Error> {
        if facts.is_some_and(|facts| facts.present.is_empty()) {
            return Ok(Vec::new());
        }
        let told = self.with(subject, asset, |stack, disk| stack.resize(disk));
        Ok(told.map(Act::Do).into_iter().collect())
    }

    fn knows_nodes(&self) -> bool {
        self.nodes.is_some()
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        facts: &Facts,
        node: &NodeId,
    ) -> Result<Vec<Act<Command>>, Error> {
        let Some(nodes) = &self.nodes else {
            return Ok(Vec::new());
        };
        let name = nodes.name(node)?;
        let before = nodes.remembered(subject)?;
        let mut guests = before.clone();
        nodes.admit(&mut guests, node, &name);
        let mut acts = Vec::new();
        if guests != before {
            // Before it gets in, so that it can be put out again.
            acts.push(Nodes::remember_new(&guests)?);
        }
        if !facts.allowed.iter().any(|allowed| allowed == name.as_str()) {
            acts.extend(self.let_in(subject, asset, &guests, &[]));
        }
        Ok(acts)
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        asset: &AssetName,
        facts: &Facts,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<Command>>, Error> {
        let Some(nodes) = &self.nodes else {
            return Ok(Vec::new());
        };
        let leaving = Leaving::plan(nodes, subject, facts, node)?;
        let is_there = facts.is_present("target") || facts.is_present("subsystem");
        let is_saved = !is_there && facts.is_present("saved");
        let mut acts = Vec::new();
        if let Some(marked) = &leaving.marked
            && (is_there || is_saved)
            && subject.volume.is_some()
        {
            // Before it is put out: whoever is cut from here on leaves nobody behind who lets it in again.
            acts.push(Nodes::remember(marked)?);
        }
        if leaving.was_in && is_saved {
            // The host has lost it, and must not get it back with this node in it.
            acts.extend(self.remove(subject, asset, facts, &[]));
        }
        if is_there && leaving.is_in {
            acts.extend(self.let_in(subject, asset, &leaving.left, &leaving.out));
        }
        if leaving.was_in && subject.volume.is_some() {
            // After it is out: whoever is cut before that has to know whom to put out.
            acts.push(Nodes::remember(&leaving.left)?);
        }
        // What those that stay need, whoever took it away. Where it cannot be made they have to wait for
        // somebody who puts that right, and whoever leaves has not.
        let can_be_made = !facts.missing.is_empty() && facts.blocked.is_empty();
        if !leaving.left.is_empty() && subject.volume.is_some() && can_be_made {
            let names = leaving.left.names();
            acts.extend(self.make(subject, asset, facts, Some(&names)));
        }
        Ok(acts)
    }

    fn attachment(
        &self,
        _subject: &Subject<'_>,
        asset: &AssetName,
        _facts: &Facts,
    ) -> Result<Option<Attachment>, Error> {
        let attachment = self.attach(asset);
        attachment
            .map(Some)
            .map_err(|error| Error::new(Kind::Internal, "describe a target").because(error))
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        // Not every base name leaves room for the longest one.
        let fits = |asset: &AssetName| self.attach(asset).ok();
        self.naming.longest(longest)?.shortened(fits)
    }
}
