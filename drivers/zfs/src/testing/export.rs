//! An export in memory: targets for one dataset each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csi_types::{AccessMode, Attachment, VolumeContext};
use driver_core::{AccessRules, Error, Kind, NodeId};

use crate::export::{Act, Export, ExportName, ExportNaming, Subject, Task};
use crate::name::DatasetName;
use crate::nodes::{ListedNodes, NamedNode};
use crate::observed::VolumeKind;
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::Of;

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
    /// The nodes that are connected to a target; an error if the host cannot say it.
    pub connected: BTreeMap<String, Result<BTreeSet<String>, String>>,
    /// The users of datasets of the host besides its targets.
    pub others: Vec<String>,
    /// The part of those that the host does not show.
    pub unseen: Vec<String>,
    /// Why a node that loses access may go on.
    pub goes_on: Option<String>,
    /// The numbers of targets. Each gets a new one, which depends on how many there were.
    pub numbers: Numbers,
}

/// Numbers of targets. Equal whatever they are: an interrupted call may take another one.
#[derive(Clone, Default)]
pub struct Numbers {
    last: u64,
    of: BTreeMap<String, u64>,
}

impl PartialEq for Numbers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Numbers {}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbers")
    }
}

/// A request to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryCommand {
    /// Shows a target.
    Show(String),
    /// Shows, instead of what is unseen, why a node that loses access may go on.
    ShowHost,
    /// Creates a target without a dataset; answers its number.
    Make(String),
    /// Sets the dataset of a target that is known by its number.
    Fill(Number, DatasetName),
    /// Removes a target.
    Remove(String),
    /// Announces an expansion to a target.
    Grow(String),
    /// Grants access to these nodes alone.
    LetIn(String, BTreeSet<String>),
    /// Saves the current state.
    Save,
}

/// The number of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Number {
    /// It exists.
    Known(u64),
    /// An earlier step makes it.
    Of(Of),
}

/// The answer of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOutput {
    /// The target, if it exists.
    pub target: Option<Option<DatasetName>>,
    /// Its number.
    pub number: Option<u64>,
    /// Whether it is saved.
    pub saved: bool,
    /// The nodes with access to it.
    pub inside: BTreeSet<String>,
    /// The nodes that are connected to it.
    pub connected: Result<BTreeSet<String>, String>,
    /// The other users of its dataset.
    pub others: Vec<String>,
    /// The part of those that the host does not show.
    pub unseen: Vec<String>,
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
    /// The number of times that a node was named.
    pub named: Arc<AtomicUsize>,
}

// === impl Targets ===

impl Targets {
    /// The result of an observation.
    pub fn answer(&self, request: &MemoryCommand) -> MemoryOutput {
        let MemoryCommand::Show(name) = request else {
            let is_asked = *request == MemoryCommand::ShowHost;
            let goes_on = self.goes_on.iter().filter(|_| is_asked);
            return MemoryOutput {
                target: None,
                number: None,
                saved: false,
                inside: BTreeSet::new(),
                connected: Ok(BTreeSet::new()),
                others: Vec::new(),
                unseen: goes_on.cloned().collect(),
            };
        };
        MemoryOutput {
            target: self.targets.get(name).cloned(),
            number: self.numbers.of.get(name).copied(),
            saved: self.saved.contains(name),
            inside: self.inside.get(name).cloned().unwrap_or_default(),
            connected: self
                .connected
                .get(name)
                .cloned()
                .unwrap_or(Ok(BTreeSet::new())),
            others: self.others.clone(),
            unseen: self.unseen.clone(),
        }
    }

    /// Applies a request. `made` has the numbers that earlier requests of the plan were answered.
    pub fn change(&mut self, request: &MemoryCommand, made: &BTreeMap<Of, u64>) -> Option<u64> {
        match request {
            MemoryCommand::Show(_) | MemoryCommand::ShowHost => {}
            MemoryCommand::Make(name) => {
                self.targets.entry(name.clone()).or_default();
                let next = self.numbers.last + 1;
                let number = *self.numbers.of.entry(name.clone()).or_insert(next);
                self.numbers.last = self.numbers.last.max(number);
                return Some(number);
            }
            MemoryCommand::Fill(number, dataset) => {
                let number = match number {
                    Number::Known(number) => Some(number),
                    Number::Of(name) => made.get(name),
                };
                let mut named = self.numbers.of.iter();
                let name = named.find(|(_, of)| Some(*of) == number);
                if let Some((name, _)) = name {
                    self.targets.insert(name.clone(), Some(dataset.clone()));
                }
            }
            MemoryCommand::Remove(name) => {
                self.targets.remove(name);
                self.inside.remove(name);
                self.numbers.of.remove(name);
            }
            MemoryCommand::Grow(name) => self.grown.push(name.clone()),
            MemoryCommand::LetIn(name, nodes) => {
                self.inside.insert(name.clone(), nodes.clone());
            }
            MemoryCommand::Save => self.saved = self.targets.keys().cloned().collect(),
        }
        None
    }

    /// The host restarts: unsaved state is lost.
    pub fn restart(&mut self) {
        let saved = &self.saved;
        self.numbers.of.retain(|name, _| saved.contains(name));
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
            named: Arc::default(),
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

/// A node that is in [`Targets::inside`] where every node is.
pub const EVERY_NODE: &str = "*";

const ASSET: PropertyName = PropertyName::ISCSI_ASSETS;
/// The property with the number of the target.
const NUMBER: PropertyName = PropertyName::FREENAS_ISCSI_TARGET;
/// The name of the step that makes a target.
const MADE: &str = "target";

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
        [ASSET, NUMBER].into_iter().chain(nodes).collect()
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
            Some(None) | None => false,
        };
        let number = if let Some(number) = facts.number {
            if subject.remembered(&NUMBER) != Some(number.to_string().as_str()) {
                acts.push(Act::Remember(Property::new(NUMBER, number.into())));
            }
            Number::Known(number)
        } else {
            acts.push(Act::Task(Task::of(MemoryCommand::Make(name)).named(MADE)));
            acts.push(Act::Record(NUMBER, MADE.into()));
            Number::Of(MADE.into())
        };
        if !full {
            let fill = MemoryCommand::Fill(number, subject.dataset.clone());
            acts.push(Act::Task(Task::of(fill).after(MADE)));
        }
        let listed = remembered(subject)?;
        if self.nodes && !listed.is_empty() && facts.inside != listed {
            let let_in = MemoryCommand::LetIn(export_name.to_string(), listed);
            acts.push(Act::Do(let_in));
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

    fn cuts_off(&self) -> bool {
        true
    }

    fn ask_to_cut_off(&self) -> Vec<MemoryCommand> {
        vec![MemoryCommand::ShowHost]
    }

    fn refuses_to_cut_off(&self, answers: &[MemoryOutput]) -> Result<Option<String>, Error> {
        let mut all = answers.iter().flat_map(|answer| &answer.unseen);
        Ok(all.next().cloned())
    }

    fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        !self.nodes || remembered(subject).is_ok_and(|nodes| nodes.contains(node.as_str()))
    }

    fn named(&self, node: &NodeId) -> NamedNode {
        self.named.fetch_add(1, Ordering::Relaxed);
        NamedNode::nameless(node)
    }

    fn listed(&self, subject: &Subject<'_>, nodes: &[NamedNode]) -> ListedNodes {
        let mut others = remembered(subject).unwrap_or_default();
        let listed = nodes.iter().map(NamedNode::id);
        let listed = listed.filter(|node| others.remove(node.as_str()));
        ListedNodes {
            nodes: listed.cloned().collect(),
            others: others.into_iter().collect(),
        }
    }

    fn names(&self, node: &NodeId) -> bool {
        !node.as_str().contains("nameless")
    }

    fn admits(&self, node: &NodeId) -> Result<(), Error> {
        if self.nodes && node.as_str().contains("keyless") {
            return Err(Error::invalid("let a node in").because("it has no key"));
        }
        Ok(())
    }

    fn addresses(&self, node: &NodeId) -> Vec<IpAddr> {
        node.as_str().parse().into_iter().collect()
    }

    fn is_open(&self, subject: &Subject<'_>, _asset: &ExportName, facts: &MemoryOutput) -> bool {
        let is_unlisted = remembered(subject).is_ok_and(|nodes| nodes.is_empty());
        self.nodes && is_unlisted && facts.inside.contains(EVERY_NODE)
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &MemoryOutput,
        more: &[&NodeId],
    ) -> Result<Vec<Act<MemoryCommand>>, Error> {
        if !self.nodes {
            return Ok(Vec::new());
        }
        let mut nodes = remembered(subject)?;
        nodes.extend(more.iter().map(ToString::to_string));
        let_in(subject, export_name, facts, &nodes)
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        export_name: &ExportName,
        facts: &MemoryOutput,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<MemoryCommand>>, Error> {
        if !self.nodes {
            return Ok(Vec::new());
        }
        let mut nodes = remembered(subject)?;
        nodes.retain(|other| node.is_some_and(|node| node.as_str() != other));
        let_in(subject, export_name, facts, &nodes)
    }

    fn connected(
        &self,
        _subject: &Subject<'_>,
        _asset: &ExportName,
        facts: &MemoryOutput,
    ) -> Result<Vec<String>, Error> {
        match &facts.connected {
            Ok(nodes) => Ok(nodes.iter().cloned().collect()),
            Err(why) => Err(Error::new(Kind::Unreachable, "ask for nodes").because(why.clone())),
        }
    }

    fn other_users(&self, facts: &MemoryOutput) -> Vec<String> {
        facts.others.clone()
    }

    fn unseen_users(&self, facts: &MemoryOutput) -> Vec<String> {
        facts.unseen.clone()
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
