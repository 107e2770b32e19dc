//! Exports without their types: the algorithm is compiled once for all of them.
//!
//! An export and its backend share types of requests and answers that nothing between them knows.
//! [`ZfsDriver::new`](crate::ZfsDriver::new) takes only a pair that has the same ones.

use std::any::{Any, type_name};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use csi_types::Attachment;
use driver_core::{AccessRules, Error, Kind, NodeId};

use super::{Act, Export, Subject, Task};
use crate::nodes::{ListedNodes, NamedNode};
use crate::observed::VolumeKind;
use crate::plan::is_complete;
use crate::property::{Property, PropertyName};

/// A request of an export to its backend, or the answer.
#[derive(Clone)]
pub struct Opaque(Arc<dyn Value>);

trait Value: Any + fmt::Debug + Send + Sync {}

impl<T: Any + fmt::Debug + Send + Sync> Value for T {}

/// The methods of an export that the algorithm calls.
pub trait AnyExport: Send + Sync + fmt::Debug {
    /// See [`Export::kind`].
    fn kind(&self) -> VolumeKind;
    /// See [`Export::access_rules`].
    fn access_rules(&self) -> AccessRules;
    /// See [`Export::reads`].
    fn reads(&self) -> Vec<PropertyName>;
    /// See [`Export::properties`].
    fn properties(&self, subject: &Subject<'_>) -> Result<Vec<Property>, Error>;
    /// See [`Export::observe`].
    fn observe(&self, subject: &Subject<'_>) -> Result<Vec<Opaque>, Error>;
    /// See [`Export::observe_to_remove`].
    fn observe_to_remove(&self, subject: &Subject<'_>) -> Result<Vec<Opaque>, Error>;
    /// See [`Export::observe_to_adopt`].
    fn observe_to_adopt(&self, subject: &Subject<'_>) -> Result<Vec<Opaque>, Error>;
    /// The status of the export of `subject`; `None` if the answers are about another name than the
    /// recorded one. `asked` is the subject that was asked for: its record still counts when the volume is
    /// deleted.
    fn status<'a>(
        &'a self,
        asked: &Subject<'_>,
        subject: Subject<'a>,
        answers: &[Opaque],
    ) -> Result<Option<Box<dyn ExportStatus + 'a>>, Error>;
    /// See [`Export::resize`], where the state of the export is unknown.
    fn resize_unseen(&self, subject: &Subject<'_>) -> Result<Vec<Act<Opaque>>, Error>;
    /// See [`Export::is_proved_by_acts`].
    fn is_proved_by_acts(&self) -> bool;
    /// See [`Export::is_restored_by_growth`].
    fn is_restored_by_growth(&self) -> bool;
    /// See [`Export::is_per_node`].
    fn is_per_node(&self) -> bool;
    /// See [`Export::cuts_off`].
    fn cuts_off(&self) -> bool;
    /// See [`Export::ask_to_cut_off`].
    fn ask_to_cut_off(&self) -> Vec<Opaque>;
    /// See [`Export::refuses_to_cut_off`].
    fn refuses_to_cut_off(&self, answers: &[Opaque]) -> Result<Option<String>, Error>;
    /// See [`Export::lets_in`].
    fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool;
    /// See [`Export::named`].
    fn named(&self, node: &NodeId) -> NamedNode;
    /// See [`Export::listed`].
    fn listed(&self, subject: &Subject<'_>, nodes: &[NamedNode]) -> ListedNodes;
    /// See [`Export::names`].
    fn names(&self, node: &NodeId) -> bool;
    /// See [`Export::admits`].
    fn admits(&self, node: &NodeId) -> Result<(), Error>;
    /// See [`Export::addresses`].
    fn addresses(&self, node: &NodeId) -> Vec<IpAddr>;
    /// See [`Export::examine`].
    fn examine(&self) -> Vec<Opaque>;
    /// See [`Export::problems`].
    fn problems(&self, answers: &[Opaque]) -> Result<Vec<Error>, Error>;
    /// See [`Export::current_attachment`].
    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment>;
    /// See [`Export::longest_attachment`].
    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment>;
}

/// The export of one volume, as observed.
pub trait ExportStatus {
    /// See [`Export::properties`].
    fn properties(&self) -> Vec<Property>;
    /// See [`Export::ensure`]. None while [it is open](Self::is_open): it is not closed before nodes are listed.
    fn ensure(&self) -> Result<Vec<Act<Opaque>>, Error>;
    /// See [`Export::prepare`].
    fn prepare(&self) -> Result<Vec<Act<Opaque>>, Error>;
    /// See [`Export::remove`].
    fn remove(&self) -> Result<Vec<Act<Opaque>>, Error>;
    /// See [`Export::resize`].
    fn resize(&self) -> Result<Vec<Act<Opaque>>, Error>;
    /// See [`Export::can_be_restored`].
    fn can_be_restored(&self) -> bool;
    /// See [`Export::is_open`].
    fn is_open(&self) -> bool;
    /// See [`Export::allow`].
    fn allow(&self, nodes: &[&NodeId]) -> Result<Vec<Act<Opaque>>, Error>;
    /// See [`Export::revoke`].
    fn revoke(&self, node: Option<&NodeId>) -> Result<Vec<Act<Opaque>>, Error>;
    /// See [`Export::connected`].
    fn connected(&self) -> Result<Vec<String>, Error>;
    /// See [`Export::other_users`].
    fn other_users(&self) -> Vec<String>;
    /// See [`Export::unseen_users`].
    fn unseen_users(&self) -> Vec<String>;
    /// See [`Export::attachment`].
    fn attachment(&self) -> Result<Option<Attachment>, Error>;
}

/// The status of an export of a known type.
struct Status<'a, E: Export> {
    export: &'a E,
    subject: Subject<'a>,
    export_name: E::Name,
    facts: E::Facts,
}

// === impl Opaque ===

impl Opaque {
    /// Hides the type of a value.
    pub fn new<T: fmt::Debug + Send + Sync + 'static>(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// The value. `Internal` if it is of another type: an export was given to a backend that does not serve it.
    pub fn get<T: 'static>(&self) -> Result<&T, Error> {
        let value: &dyn Any = self.0.as_ref();
        value.downcast_ref().ok_or_else(|| {
            let why = format!("{:?} is no {}", self.0, type_name::<T>());
            Error::new(Kind::Internal, "exchange values of an export").because(why)
        })
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn hidden<C: fmt::Debug + Send + Sync + 'static>(commands: Vec<C>) -> Vec<Opaque> {
    commands.into_iter().map(Opaque::new).collect()
}

fn acts<C: fmt::Debug + Send + Sync + 'static>(acts: Vec<Act<C>>) -> Vec<Act<Opaque>> {
    let act = |act| match act {
        Act::Do(command) => Act::Do(Opaque::new(command)),
        Act::Task(task) => Act::Task(Task {
            request: Opaque::new(task.request),
            name: task.name,
            after: task.after,
            is_loose: task.is_loose,
        }),
        Act::Remember(property) => Act::Remember(property),
        Act::Record(property, of) => Act::Record(property, of),
        Act::Forget(property) => Act::Forget(property),
    };
    acts.into_iter().map(act).collect()
}

fn shown<A: Clone + 'static>(answers: &[Opaque]) -> Result<Vec<A>, Error> {
    answers.iter().map(|answer| answer.get().cloned()).collect()
}

impl<E: Export> AnyExport for E {
    fn kind(&self) -> VolumeKind {
        Export::kind(self)
    }

    fn access_rules(&self) -> AccessRules {
        Export::access_rules(self)
    }

    fn reads(&self) -> Vec<PropertyName> {
        Export::reads(self)
    }

    fn properties(&self, subject: &Subject<'_>) -> Result<Vec<Property>, Error> {
        let name = self.export_name(subject)?;
        Ok(Export::properties(self, subject, &name))
    }

    fn observe(&self, subject: &Subject<'_>) -> Result<Vec<Opaque>, Error> {
        let name = self.export_name(subject)?;
        Ok(hidden(Export::observe(self, subject, &name)))
    }

    fn observe_to_remove(&self, subject: &Subject<'_>) -> Result<Vec<Opaque>, Error> {
        let name = self.export_name(subject)?;
        Ok(hidden(Export::observe_to_remove(self, subject, &name)))
    }

    fn observe_to_adopt(&self, subject: &Subject<'_>) -> Result<Vec<Opaque>, Error> {
        let name = self.export_name(subject)?;
        Ok(hidden(Export::observe_to_adopt(self, subject, &name)))
    }

    fn status<'a>(
        &'a self,
        asked: &Subject<'_>,
        subject: Subject<'a>,
        answers: &[Opaque],
    ) -> Result<Option<Box<dyn ExportStatus + 'a>>, Error> {
        let export_name = self.export_name(asked)?;
        if subject.volume.is_some() && self.export_name(&subject)? != export_name {
            return Ok(None);
        }
        let facts = self.facts(&subject, &export_name, &shown(answers)?)?;
        Ok(Some(Box::new(Status {
            export: self,
            subject,
            export_name,
            facts,
        })))
    }

    fn resize_unseen(&self, subject: &Subject<'_>) -> Result<Vec<Act<Opaque>>, Error> {
        let name = self.export_name(subject)?;
        self.resize(subject, &name, None).map(acts)
    }

    fn is_proved_by_acts(&self) -> bool {
        Export::is_proved_by_acts(self)
    }

    fn is_restored_by_growth(&self) -> bool {
        Export::is_restored_by_growth(self)
    }

    fn is_per_node(&self) -> bool {
        Export::is_per_node(self)
    }

    fn cuts_off(&self) -> bool {
        Export::cuts_off(self)
    }

    fn ask_to_cut_off(&self) -> Vec<Opaque> {
        hidden(Export::ask_to_cut_off(self))
    }

    fn refuses_to_cut_off(&self, answers: &[Opaque]) -> Result<Option<String>, Error> {
        Export::refuses_to_cut_off(self, &shown(answers)?)
    }

    fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        Export::lets_in(self, subject, node)
    }

    fn named(&self, node: &NodeId) -> NamedNode {
        Export::named(self, node)
    }

    fn listed(&self, subject: &Subject<'_>, nodes: &[NamedNode]) -> ListedNodes {
        Export::listed(self, subject, nodes)
    }

    fn names(&self, node: &NodeId) -> bool {
        Export::names(self, node)
    }

    fn admits(&self, node: &NodeId) -> Result<(), Error> {
        Export::admits(self, node)
    }

    fn addresses(&self, node: &NodeId) -> Vec<IpAddr> {
        Export::addresses(self, node)
    }

    fn examine(&self) -> Vec<Opaque> {
        hidden(Export::examine(self))
    }

    fn problems(&self, answers: &[Opaque]) -> Result<Vec<Error>, Error> {
        Ok(Export::problems(self, &shown(answers)?))
    }

    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment> {
        Export::current_attachment(self, subject)
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        Export::longest_attachment(self, longest)
    }
}

impl<E: Export> ExportStatus for Status<'_, E> {
    fn properties(&self) -> Vec<Property> {
        Export::properties(self.export, &self.subject, &self.export_name)
    }

    fn ensure(&self) -> Result<Vec<Act<Opaque>>, Error> {
        if self.is_open() {
            return Ok(Vec::new());
        }
        let Self { subject, facts, .. } = self;
        self.export
            .ensure(subject, &self.export_name, facts)
            .map(acts)
    }

    fn prepare(&self) -> Result<Vec<Act<Opaque>>, Error> {
        let Self { subject, facts, .. } = self;
        self.export
            .prepare(subject, &self.export_name, facts)
            .map(acts)
    }

    fn remove(&self) -> Result<Vec<Act<Opaque>>, Error> {
        let Self { subject, facts, .. } = self;
        self.export
            .remove(subject, &self.export_name, facts)
            .map(acts)
    }

    fn resize(&self) -> Result<Vec<Act<Opaque>>, Error> {
        let Self { subject, facts, .. } = self;
        self.export
            .resize(subject, &self.export_name, Some(facts))
            .map(acts)
    }

    fn can_be_restored(&self) -> bool {
        self.export.can_be_restored(&self.facts)
    }

    fn is_open(&self) -> bool {
        let Self { subject, facts, .. } = self;
        let is_complete = subject.volume.is_some_and(is_complete);
        is_complete && self.export.is_open(subject, &self.export_name, facts)
    }

    fn allow(&self, nodes: &[&NodeId]) -> Result<Vec<Act<Opaque>>, Error> {
        let Self { subject, facts, .. } = self;
        self.export
            .allow(subject, &self.export_name, facts, nodes)
            .map(acts)
    }

    fn revoke(&self, node: Option<&NodeId>) -> Result<Vec<Act<Opaque>>, Error> {
        let Self { subject, facts, .. } = self;
        self.export
            .revoke(subject, &self.export_name, facts, node)
            .map(acts)
    }

    fn connected(&self) -> Result<Vec<String>, Error> {
        let Self { subject, facts, .. } = self;
        self.export.connected(subject, &self.export_name, facts)
    }

    fn other_users(&self) -> Vec<String> {
        self.export.other_users(&self.facts)
    }

    fn unseen_users(&self) -> Vec<String> {
        self.export.unseen_users(&self.facts)
    }

    fn attachment(&self) -> Result<Option<Attachment>, Error> {
        let Self { subject, facts, .. } = self;
        self.export.attachment(subject, &self.export_name, facts)
    }
}
