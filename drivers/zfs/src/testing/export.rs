//! An export in memory: targets for one dataset each.

use std::collections::{BTreeMap, BTreeSet};

use csi_types::{AccessMode, Attachment, VolumeContext};
use driver_core::{AccessRules, Error, Kind, NodeId};

use crate::export::{Act, Export, ExportName, ExportNaming, Subject};
use crate::name::DatasetName;
use crate::observed::VolumeKind;
use crate::property::{Property, PropertyName, PropertyValue};

/// The exports of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// The targets, and the dataset of each. A target is created in two steps: the first one
    /// without a dataset.
    pub targets: BTreeMap<String, Option<DatasetName>>,
    /// The targets that were saved for the next start of the host.
    pub saved: BTreeSet<String>,
    /// The targets that received a grow command.
    pub grown: Vec<String>,
    /// The nodes with access to a target.
    pub inside: BTreeMap<String, BTreeSet<String>>,
}

/// A request to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryCommand {
    /// Shows a target.
    Show(String),
    /// Creates a target without a dataset.
    Make(String),
    /// Sets the dataset of a target.
    Fill(String, DatasetName),
    /// Removes a target.
    Remove(String),
    /// Announces an expansion to a target.
    Grow(String),
    /// Grants access to these nodes alone.
    LetIn(String, BTreeSet<String>),
    /// Saves the current state.
    Save,
}

/// The answer of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOutput {
    /// The target, if it exists.
    pub target: Option<Option<DatasetName>>,
    /// Whether it is saved.
    pub saved: bool,
    /// The nodes with access to it.
    pub inside: BTreeSet<String>,
}

/// Exports datasets as targets.
#[derive(Debug)]
pub struct MemoryExport {
    /// The kind of volumes that it exports.
    pub kind: VolumeKind,
    /// The naming of targets.
    pub naming: ExportNaming,
    /// Whether the attachment is known only after the target exists.
    pub coy: bool,
    /// Whether targets need a grow command after an expansion.
    pub resizes: bool,
    /// Whether access is granted per node. The access list is recorded in one property.
    pub nodes: bool,
}

// === impl Targets ===

impl Targets {
    /// The result of an observation.
    pub fn answer(&self, request: &MemoryCommand) -> MemoryOutput {
        let MemoryCommand::Show(name) = request else {
            return MemoryOutput {
                target: None,
                saved: false,
                inside: BTreeSet::new(),
            };
        };
        MemoryOutput {
            target: self.targets.get(name).cloned(),
            saved: self.saved.contains(name),
            inside: self.inside.get(name).cloned().unwrap_or_default(),
        }
    }

    /// Applies a request.
    pub fn change(&mut self, request: &MemoryCommand) {
        match request {
            MemoryCommand::Show(_) => {}
            MemoryCommand::Make(name) => {
                self.targets.entry(name.clone()).or_default();
            }
            MemoryCommand::Fill(name, dataset) => {
                self.targets.insert(name.clone(), Some(dataset.clone()));
            }
            MemoryCommand::Remove(name) => {
                self.targets.remove(name);
                self.inside.remove(name);
            }
            MemoryCommand::Grow(name) => self.grown.push(name.clone()),
            MemoryCommand::LetIn(name, nodes) => {
                self.inside.insert(name.clone(), nodes.clone());
            }
            MemoryCommand::Save => self.saved = self.targets.keys().cloned().collect(),
        }
    }

    /// The host restarts: unsaved state is lost.
    pub fn restart(&mut self) {
        let saved = &self.saved;
        self.targets.retain(|name, _| saved.contains(name));
        self.inside.retain(|name, _| saved.contains(name));
    }

    /// Whether a target keeps a dataset open.
    pub fn holds(&self, name: &DatasetName) -> bool {
        self.targets
            .values()
            .flatten()
            .any(|dataset| dataset == name)
    }
}

// === impl MemoryExport ===

impl MemoryExport {
    /// An export of this kind whose targets are named like volumes.
    pub fn new(kind: VolumeKind) -> Self {
        Self {
            kind,
            naming: ExportNaming::default(),
            coy: false,
            resizes: false,
            nodes: false,
        }
    }
}

/// The property of a volume with the nodes that it was published to.
fn nodes_property() -> Result<PropertyName, Error> {
    PropertyName::parse("test:nodes")
        .map_err(|error| Error::new(Kind::Internal, "remember nodes").because(error))
}

fn remembered(subject: &Subject<'_>) -> Result<BTreeSet<String>, Error> {
    let text = subject.remembered(&nodes_property()?).unwrap_or_default();
    let nodes = text.split(',').filter(|node| !node.is_empty());
    Ok(nodes.map(str::to_owned).collect())
}

/// Records the access list, then grants access.
fn let_in(
    subject: &Subject<'_>,
    export_name: &ExportName,
    facts: &MemoryOutput,
    nodes: &BTreeSet<String>,
) -> Result<Vec<Act<MemoryCommand>>, Error> {
    let mut acts = Vec::new();
    if subject.volume.is_some() && remembered(subject)? != *nodes {
        let text: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let value = PropertyValue::parse(text.join(","))
            .map_err(|error| Error::invalid("remember nodes").because(error))?;
        acts.push(Act::Remember(Property::new(nodes_property()?, value)));
    }
    if facts.target.is_some() && facts.inside != *nodes {
        let request = MemoryCommand::LetIn(export_name.to_string(), nodes.clone());
        acts.push(Act::Do(request));
    }
    Ok(acts)
}

const ASSET: PropertyName = PropertyName::ISCSI_ASSETS;

impl Export for MemoryExport {
    type Command = MemoryCommand;
    type Output = MemoryOutput;
    type Name = ExportName;
    type Facts = MemoryOutput;

    fn kind(&self) -> VolumeKind {
        self.kind
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules {
            block: self.kind == VolumeKind::Zvol,
            block_modes: AccessMode::ALL.to_vec(),
            ..AccessRules::filesystem(&[])
        }
    }

    fn reads(&self) -> Vec<PropertyName> {
        let nodes = self.nodes.then(nodes_property).and_then(Result::ok);
        std::iter::once(ASSET).chain(nodes).collect()
    }

    fn export_name(&self, subject: &Subject<'_>) -> Result<ExportName, Error> {
        self.naming.name(subject, &ASSET)
    }

    fn observe(&self, _subject: &Subject<'_>, export_name: &ExportName) -> Vec<MemoryCommand> {
        vec![MemoryCommand::Show(export_name.to_string())]
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _asset: &ExportName,
        answers: &[MemoryOutput],
    ) -> Result<MemoryOutput, Error> {
        let answer = answers.first().cloned();
        answer.ok_or_else(|| Error::new(Kind::Internal, "read the answer of the host in memory"))
    }

    fn ensure(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &MemoryOutput,
    ) -> Result<Vec<Act<MemoryCommand>>, Error> {
        let mut acts = Vec::new();
        if subject.remembered(&ASSET) != Some(export_name.as_str()) {
            let value = PropertyValue::parse(export_name.as_str())
                .map_err(|error| Error::invalid("remember a target").because(error))?;
            acts.push(Act::Remember(Property::new(ASSET, value)));
        }
        let name = export_name.to_string();
        let full = match &facts.target {
            Some(Some(dataset)) if dataset != subject.dataset => {
                let why = format!("target {name} is of {dataset}");
                return Err(Error::new(Kind::Conflict, "export a volume").because(why));
            }
            Some(Some(_)) => true,
            Some(None) => false,
            None => {
                acts.push(Act::Do(MemoryCommand::Make(name.clone())));
                false
            }
        };
        if !full {
            acts.push(Act::Do(MemoryCommand::Fill(name, subject.dataset.clone())));
        }
        if !full || !facts.saved {
            acts.push(Act::Do(MemoryCommand::Save));
        }
        Ok(acts)
    }

    fn remove(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &MemoryOutput,
    ) -> Result<Vec<Act<MemoryCommand>>, Error> {
        let ours = match &facts.target {
            Some(of) => of.as_ref().is_none_or(|of| of == subject.dataset),
            None => false,
        };
        let mut acts = Vec::new();
        if ours {
            acts.push(Act::Do(MemoryCommand::Remove(export_name.to_string())));
        }
        if ours || (facts.saved && facts.target.is_none()) {
            acts.push(Act::Do(MemoryCommand::Save));
        }
        Ok(acts)
    }

    fn resize(
        &self,
        _subject: &Subject<'_>,
        export_name: &ExportName,
        _facts: Option<&MemoryOutput>,
    ) -> Result<Vec<Act<MemoryCommand>>, Error> {
        let grow = || Act::Do(MemoryCommand::Grow(export_name.to_string()));
        Ok(self.resizes.then(grow).into_iter().collect())
    }

    fn is_per_node(&self) -> bool {
        self.nodes
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &MemoryOutput,
        node: &NodeId,
    ) -> Result<Vec<Act<MemoryCommand>>, Error> {
        let mut nodes = remembered(subject)?;
        nodes.insert(node.to_string());
        let_in(subject, export_name, facts, &nodes)
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &MemoryOutput,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<MemoryCommand>>, Error> {
        let mut nodes = remembered(subject)?;
        nodes.retain(|other| node.is_some_and(|node| node.as_str() != other));
        let_in(subject, export_name, facts, &nodes)
    }

    fn attachment(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &MemoryOutput,
    ) -> Result<Option<Attachment>, Error> {
        if self.coy && facts.target != Some(Some(subject.dataset.clone())) {
            return Ok(None);
        }
        self.describe(subject, export_name).map(Some)
    }

    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment> {
        self.describe(subject, &self.export_name(subject).ok()?)
            .ok()
            .filter(|_| !self.coy)
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        let export_name = self.naming.longest(longest)?;
        self.describe(longest, &export_name).ok()
    }
}

impl MemoryExport {
    fn describe(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
    ) -> Result<Attachment, Error> {
        let text = match self.kind {
            VolumeKind::Filesystem => vec![
                ("node_attach_driver", "nfs".to_owned()),
                ("server", "192.0.2.1".to_owned()),
                ("share", format!("/{}", subject.dataset)),
            ],
            VolumeKind::Zvol => vec![
                ("node_attach_driver", "iscsi".to_owned()),
                ("portal", "192.0.2.1:3260".to_owned()),
                ("iqn", format!("iqn.2026-01.example:{export_name}")),
                ("lun", "0".to_owned()),
            ],
        };
        let context: VolumeContext = text.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let attachment = Attachment::parse(&context);
        attachment.map_err(|error| Error::new(Kind::Internal, "describe a target").because(error))
    }
}
