//! The contract of exports, which make a dataset reachable from a node: NFS, SMB, iSCSI and
//! NVMe-oF.
//!
//! An export does nothing by itself: given the observed state, it returns the acts that are missing
//! until the export exists, or is gone. The driver adds these acts to its plans, applies them in
//! the same exchange as the changes of the dataset, observes and asks again, until nothing is
//! missing. So "is it there?", "create it" and "repair it" are one function.

mod erased;
mod name;

use std::fmt::Debug;
use std::net::IpAddr;

use csi_types::Attachment;
use driver_core::{AccessRules, Error, NodeId, Parameters, VolumeId, VolumeName};

pub use erased::{AnyExport, ExportStatus, Opaque};
pub use name::{ExportName, ExportNaming};

use crate::name::DatasetName;
use crate::nodes::{ListedNodes, NamedNode};
use crate::observed::{Dataset, VolumeKind};
use crate::property::{Property, PropertyName};
use crate::step::Of;

/// One way to make datasets reachable.
///
/// All methods are pure: same arguments, same answer, no clock and no network. The life of a
/// volume, and the calls of the driver:
///
/// 1. [`Export::export_name`] comes first. A volume that cannot be exported (a name that is too
///    long, a template with an empty result) is rejected here, before anything is created.
/// 2. [`Export::observe`] runs in the same exchange as the queries of the pool; the answers go to
///    [`Export::facts`]. At the first observation of a volume its properties are not known yet, so
///    the `export_name` is a guess; if the record has another one, the driver observes again.
/// 3. Creation: the dataset is created with [`Export::properties`]. Then [`Export::ensure`] gets
///    the dataset as it was observed after that (size, mountpoint), its acts are applied, and it is
///    called again with the next observation. This takes a few rounds at most; an export whose acts
///    never lead to an empty list is a defect. To create a volume in three exchanges it must return
///    all missing acts at once; an act that needs the result of another one (the number of a new
///    share) names it: [`Act::Record`], [`Task::after`].
/// 4. [`Export::attachment`] as soon as the dataset exists. If it is known before the acts are
///    applied, it is recorded in the same exchange right after them, otherwise in the next one.
/// 5. Growth: after the dataset has grown, [`Export::resize`].
/// 6. Deletion: [`Export::remove`] only when the dataset can be destroyed and no node is
///    [connected](Export::connected), in the same plan right before it; and also if the dataset is
///    already gone, for the leftovers of a killed process.
///
/// Rules for an implementation:
/// - **Any state is possible.** A process is killed, or a connection cut, between any two commands
///   of a batch: targets without LUN, backstores without target, objects of another volume under
///   our name. `ensure` and `remove` reach their goal from every such state, or return an error
///   that names the obstacle. An object that is not provably of this dataset (by its device or
///   path) is never changed.
/// - **Acts may be repeated.** Each act is harmless if it was already applied: the leftover command
///   of a cut connection may have done so between observation and act. Steps of one volume hold its
///   lock already (`exec::Lock`); an act that changes shared state (the saved configuration of a
///   target stack, an `exports` file) must hold that stack's lock on the host, as briefly as
///   possible, by `exec::Lock::stack` and `exec::Lock::around`.
/// - **A failed command is an error at once**, as `Internal`, because only the export can parse the
///   output of its tool. So a command whose work is done already, or that only needs another
///   observation, must exit with success, and a script must check every part of it that can fail or
///   be killed: a pipe only reports its last part. The exception is a timeout while waiting for the
///   lock of a stack: the driver then observes and plans again, until the deadline of the call.
/// - **It survives a reboot of the host**: if the stack does not save its state by itself, saving
///   is part of `ensure`, `remove` and `resize`, and `facts` includes whether it is saved.
/// - **Nothing is lost with the process**: data that is needed to find the export again and is not
///   in the configuration is an [`Act::Remember`] property. compat: "ZFS".
/// - **No command strings**: requests are built from checked values ([`ExportName`], `Iqn`, `Nqn`,
///   [`DatasetName`]); configuration text is validated when it is read. Secrets go into secret
///   arguments or secret input, never into a property or an error.
pub trait Export: Send + Sync + Debug + 'static {
    /// The request to its backend; for a host an `exec::Command`.
    ///
    /// A command of an observation must not change anything, and declares with `exec::Accept` which
    /// exit codes are answers: any other fails the whole exchange. The standard error of an
    /// accepted one is in its `exec::Output`.
    type Command: Clone + Debug + Send + Sync + 'static;
    /// The answer; for a host an `exec::Output`.
    type Output: Clone + Debug + Send + Sync + 'static;
    /// The name of the export on its server; `()` where the dataset is enough.
    type Name: Clone + Debug + PartialEq + Send + Sync;
    /// The observed state of the export.
    type Facts: Clone + Debug + PartialEq + Send + Sync;

    /// The kind of volumes that it exports.
    fn kind(&self) -> VolumeKind;

    /// The capabilities of an exported volume.
    fn access_rules(&self) -> AccessRules;

    /// The properties of the dataset that it reads: its own records, or native ones such as
    /// `sharenfs`. `subject.volume` only has these and [`ALWAYS`](crate::observed::ALWAYS).
    fn reads(&self) -> Vec<PropertyName> {
        Vec::new()
    }

    /// The name of this volume's export: as recorded, or else by the request and the configuration;
    /// without a request (delete, expand) by the configuration alone.
    ///
    /// `Invalid` if there is no valid name; for a volume that is being created this comes before
    /// any change.
    fn export_name(&self, subject: &Subject<'_>) -> Result<Self::Name, Error>;

    /// Properties that the dataset has from its first moment, such as `sharenfs`.
    fn properties(&self, _subject: &Subject<'_>, _asset: &Self::Name) -> Vec<Property> {
        Vec::new()
    }

    /// The queries, in addition to the properties of the dataset, that show the state of the
    /// export.
    fn observe(&self, subject: &Subject<'_>, export_name: &Self::Name) -> Vec<Self::Command>;

    /// The same for a removal: less may be enough, and [`Export::connected`] needs to be answered.
    fn observe_to_remove(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
    ) -> Vec<Self::Command> {
        self.observe(subject, export_name)
    }

    /// The same for an adoption: [`Export::other_users`] needs to be answered.
    fn observe_to_adopt(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
    ) -> Vec<Self::Command> {
        self.observe(subject, export_name)
    }

    /// Interprets the answers: one for each query, in order. `Internal` for an answer that cannot
    /// be parsed.
    fn facts(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
        answers: &[Self::Output],
    ) -> Result<Self::Facts, Error>;

    /// The acts that are missing until the dataset is exported; none if it is. Here
    /// `subject.volume` is always present.
    fn ensure(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
        facts: &Self::Facts,
    ) -> Result<Vec<Act<Self::Command>>, Error>;

    /// Those of them that another node waits for, before [`Export::allow`] lets it in. What only concerns nodes that have
    /// access already may be left out: a fault of one of them is not that of the other.
    fn prepare(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
        facts: &Self::Facts,
    ) -> Result<Vec<Act<Self::Command>>, Error> {
        self.ensure(subject, export_name, facts)
    }

    /// The acts that are missing until the export is gone; none if it is. The dataset may not
    /// exist. Properties of the dataset need not be removed: it is destroyed right after.
    fn remove(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
        facts: &Self::Facts,
    ) -> Result<Vec<Act<Self::Command>>, Error>;

    /// The acts that announce a grown dataset to the stack. Called on every expansion, even if the
    /// dataset is large enough already: an earlier call may have ended just before this step.
    /// Without `facts` the state of the export is unknown: then the acts must be harmless if there
    /// is no export, or if it belongs to another volume.
    fn resize(
        &self,
        _subject: &Subject<'_>,
        _asset: &Self::Name,
        _facts: Option<&Self::Facts>,
    ) -> Result<Vec<Act<Self::Command>>, Error> {
        Ok(Vec::new())
    }

    /// Whether an act that succeeds needs no observation: the answer says what there is now. If so, a volume is
    /// complete after the acts of [`Export::ensure`].
    fn is_proved_by_acts(&self) -> bool {
        false
    }

    /// Whether a volume that grows restores its export if that is lost. `false` where the host keeps exports by
    /// itself, and looking for one costs more than growth: then the periodic check alone restores it.
    fn is_restored_by_growth(&self) -> bool {
        true
    }

    /// Whether access is granted per node. If so, no node reaches a volume before
    /// [`Export::allow`].
    fn is_per_node(&self) -> bool {
        false
    }

    /// Whether a node that loses access is proved to be cut off, also while others have the volume. Only then can
    /// networks be fenced.
    fn cuts_off(&self) -> bool {
        false
    }

    /// The queries that show whether this host can do so; none where each can.
    fn ask_to_cut_off(&self) -> Vec<Self::Command> {
        Vec::new()
    }

    /// Why it cannot, by the answers.
    fn refuses_to_cut_off(&self, _answers: &[Self::Output]) -> Result<Option<String>, Error> {
        Ok(None)
    }

    /// Whether the dataset remembers that this node has access, by the name that it has now. By [`Export::reads`] alone.
    fn lets_in(&self, _subject: &Subject<'_>, _node: &NodeId) -> bool {
        true
    }

    /// A node with what [`Export::listed`] needs of it.
    fn named(&self, node: &NodeId) -> NamedNode {
        NamedNode::nameless(node)
    }

    /// The nodes among these that the dataset remembers, and its names of the others. By [`Export::reads`] alone.
    fn listed(&self, _subject: &Subject<'_>, _nodes: &[NamedNode]) -> ListedNodes {
        ListedNodes::default()
    }

    /// Whether it has a name for this node.
    fn names(&self, _node: &NodeId) -> bool {
        true
    }

    /// Fails if the configuration lacks what this node needs to get in, besides a name. Then it can still be revoked.
    fn admits(&self, _node: &NodeId) -> Result<(), Error> {
        Ok(())
    }

    /// The addresses by which it knows this node, or that its configuration gives it.
    fn addresses(&self, _node: &NodeId) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Whether every node reaches it although access is per node: it was made before, and no access list is
    /// remembered yet. It then stays as it is until one is.
    fn is_open(&self, _subject: &Subject<'_>, _asset: &Self::Name, _facts: &Self::Facts) -> bool {
        false
    }

    /// Whether a missing export can be created. `false` if an administrator must repair the host
    /// first, for example if the key of an encrypted dataset is not loaded: a volume then grows
    /// without its export.
    fn can_be_restored(&self, _facts: &Self::Facts) -> bool {
        true
    }

    /// The acts that are missing until these nodes have access. Their plan, like that of
    /// [`Export::revoke`], does nothing if one of the properties of [`Export::reads`] has changed
    /// since the observation.
    fn allow(
        &self,
        _subject: &Subject<'_>,
        _asset: &Self::Name,
        _facts: &Self::Facts,
        _nodes: &[&NodeId],
    ) -> Result<Vec<Act<Self::Command>>, Error> {
        Ok(Vec::new())
    }

    /// The acts that are missing until this node, or without one every node, provably has no
    /// access: its sessions have ended, too.
    fn revoke(
        &self,
        _subject: &Subject<'_>,
        _asset: &Self::Name,
        _facts: &Self::Facts,
        _node: Option<&NodeId>,
    ) -> Result<Vec<Act<Self::Command>>, Error> {
        Ok(Vec::new())
    }

    /// The nodes that are connected to it now, as its server names them: a deletion waits until there is none. Empty
    /// where the server cannot tell. `Unreachable` if it can, and the question failed: that says nothing of nodes.
    fn connected(
        &self,
        _subject: &Subject<'_>,
        _asset: &Self::Name,
        _facts: &Self::Facts,
    ) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// The users of a dataset that is no volume yet, as its host shows them: exports of others, mounts, devices on top of
    /// it. Never this export itself, which an interrupted adoption has made. Empty where the host cannot tell.
    fn other_users(&self, _facts: &Self::Facts) -> Vec<String> {
        Vec::new()
    }

    /// The part of those that its host did not show, or was not asked for, and why.
    fn unseen_users(&self, _facts: &Self::Facts) -> Vec<String> {
        Vec::new()
    }

    /// The queries that show whether the storage is set up for this export: for operators.
    fn examine(&self) -> Vec<Self::Command> {
        Vec::new()
    }

    /// The problems that the answers show.
    fn problems(&self, _answers: &[Self::Output]) -> Vec<Error> {
        Vec::new()
    }

    /// The way a node reaches the volume once [`Export::ensure`] returns no acts; `None` while this
    /// depends on an act that is still missing. `Internal` if it is unknown even when nothing is
    /// missing.
    fn attachment(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
        facts: &Self::Facts,
    ) -> Result<Option<Attachment>, Error>;

    /// The way a node reaches a complete volume, if the dataset and the configuration are enough to
    /// know.
    fn current_attachment(&self, _subject: &Subject<'_>) -> Option<Attachment> {
        None
    }

    /// The longest attachment of [`Export::attachment`], as far as it is known without a host.
    /// `longest` has the longest id, and the longest dataset, of a volume of this connection;
    /// nothing more is known of it.
    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment>;
}

/// The volume of an export.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its id.
    pub id: &'a VolumeId,
    /// The dataset that it is, or will be.
    pub dataset: &'a DatasetName,
    /// Its request, while it is being created.
    pub request: Option<Asked<'a>>,
    /// The choice of share options that the class of a request makes.
    pub chosen: Option<&'a str>,
    /// The dataset as observed; `None` if it does not exist or was not read yet.
    pub volume: Option<&'a Dataset>,
}

/// The request of a volume.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The name that the orchestrator suggests.
    pub name: &'a VolumeName,
    /// The parameters of its class.
    pub parameters: &'a Parameters,
}

/// One change for an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act<R> {
    /// A request to the backend, after all acts before it.
    Do(R),
    /// A request to the backend that waits only for what it names.
    Task(Task<R>),
    /// Sets a property of the dataset.
    Remember(Property),
    /// Sets a property of the dataset to what a task was answered.
    Record(PropertyName, Of),
    /// Removes a property of the dataset.
    Forget(PropertyName),
}

/// A request to a backend that can do several at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task<R> {
    /// The request.
    pub request: R,
    /// The name of its result, if later acts need it.
    pub name: Option<Of>,
    /// The tasks that end before it begins. Those that are not in the plan are not waited for.
    pub after: Vec<Of>,
    /// Whether the dataset may be destroyed before it ends.
    pub is_loose: bool,
}

// === impl Task ===

impl<R> Task<R> {
    /// A request that waits for nothing.
    pub fn of(request: R) -> Self {
        Self {
            request,
            name: None,
            after: Vec::new(),
            is_loose: false,
        }
    }

    /// Names its result.
    #[must_use]
    pub fn named(mut self, name: impl Into<Of>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Waits for the task of this name.
    #[must_use]
    pub fn after(mut self, name: impl Into<Of>) -> Self {
        self.after.push(name.into());
        self
    }
}

// === impl Act ===

impl<R> Act<R> {
    /// Whether it asks something of the backend.
    pub fn is_request(&self) -> bool {
        matches!(self, Self::Do(_) | Self::Task(_))
    }
}

// === impl Subject ===

impl Subject<'_> {
    /// The record of the dataset in a property, if any.
    pub fn remembered(&self, name: &PropertyName) -> Option<&str> {
        self.volume?.properties.own(name)
    }

    /// The choice of share options that a class has made: this request, or the last one that did.
    pub fn share_choice(&self) -> Option<&str> {
        self.chosen
            .or_else(|| self.remembered(&PropertyName::SHARE_OPTIONS))
    }

    /// The path of the dataset as a disk of the host, if it is a zvol.
    pub fn device(&self) -> String {
        self.dataset.device()
    }
}
