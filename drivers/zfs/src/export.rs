//! What makes a dataset reachable from a node: the contract of NFS, SMB, iSCSI and NVMe-oF exports.
//!
//! An export decides and does nothing by itself: asked with what was observed, it says which acts
//! are missing until its export is there, or gone. The driver puts these acts into its plans, does
//! them in the same exchange as the changes of the dataset, observes again and asks again, until
//! nothing is missing. So "is it there?", "make it" and "repair it" are one function.

mod name;

use std::fmt::Debug;

use csi_types::Attachment;
use driver_core::{AccessRules, Error, NodeId, Parameters, VolumeId, VolumeName};

pub use name::{ExportName, ExportNaming};

use crate::name::DatasetName;
use crate::observed::{Dataset, VolumeKind};
use crate::property::{Property, PropertyName};

/// One way to make datasets reachable.
///
/// All methods are pure: same arguments, same answer, no clock and no network. How a volume lives,
/// and what the driver calls when:
///
/// 1. [`Export::export_name`] before anything else. What cannot be exported (a name that is too long, a
///    template that gives nothing) is refused here, before anything was made.
/// 2. [`Export::observe`] goes into the same exchange as the looks at the pool; the answers go to
///    [`Export::facts`]. On the first look at a volume its properties are not known yet, so the
///    `export_name` is a guess; if what was remembered gives another one, the driver looks once more.
/// 3. Creation: the dataset is made with [`Export::properties`]. Then [`Export::ensure`] is
///    asked with the dataset as it was observed after that (size, mountpoint), its acts are done,
///    and it is asked again with what was observed after these. At most a few rounds; an export
///    whose acts do not lead to "nothing missing" is a defect. For a volume of three exchanges it
///    has to name everything that is missing at once; an act that needs the result of another one
///    (the number of a new share) costs a round.
/// 4. [`Export::attachment`] as soon as there is a dataset. Known before the acts are done, it is
///    recorded in the same exchange right after them, otherwise in the next one.
/// 5. Growth: after the dataset has grown, [`Export::resize`].
/// 6. Deletion: [`Export::remove`] only when the dataset can be destroyed, in the same plan right
///    before it; and also when there is no dataset any more, for what a killed process left behind.
///
/// What an implementation has to keep to:
/// - **Any state is possible.** A process is killed, and a connection cut, between any two commands
///   of a batch. Targets without LUN, backstores without target, things of another volume under our
///   name: `ensure` and `remove` get to the end from every one of them, or say in an error
///   what blocks. What is not provably of this dataset (its device, its path) is never changed.
/// - **Acts may be repeated.** Each one is harmless when it was done before: an orphan of a cut
///   connection may have done it between observation and act. Steps of one volume hold its lock
///   already (`exec::Lock`); whatever changes something that volumes share (the saved
///   configuration of a target stack, one `exports` file) has to hold that stack's lock on the host
///   itself, for as short as it can, by `exec::Lock::stack` and `exec::Lock::around`.
/// - **A failed command is an error at once**, as `Internal`, because only the export can parse the
///   output of its tool. So a command whose work is done already, or that only needs another
///   observation, must exit with success, and a script must check every part of it that can fail or
///   be killed: a pipe only reports its last part. The exception is a timeout while waiting for the
///   lock of a stack: the driver then observes and plans again, until the deadline of the call.
/// - **It survives a reboot of the host**: where the stack does not remember by itself, saving is
///   part of what `ensure`, `remove` and `resize` do, and `facts` says whether it is saved.
/// - **Nothing is lost with the process**: what is needed to find the export again and is not in
///   the configuration is an [`Act::Remember`] property. compat: "ZFS".
/// - **No strings of commands**: requests are built from checked values ([`ExportName`], `Iqn`,
///   `Nqn`, [`DatasetName`]); configuration text goes through a check of its own when it is read.
///   Secrets go into secret arguments or secret input, never into a property or an error.
pub trait Export: Send + Sync + Debug {
    /// What it asks of its backend; for a host an `exec::Command`.
    ///
    /// A command of a look must not change anything, and says with `exec::Accept` which exit codes
    /// are answers: one that is not accepted fails the whole exchange. The standard error of an
    /// accepted one is in its `exec::Output`.
    type Command: Clone + Debug + Send + Sync;
    /// What it is answered; for a host an `exec::Output`.
    type Output: Debug + Send + Sync;
    /// What the export is called on its server; `()` where the dataset says it all.
    type Name: Clone + Debug + PartialEq + Send + Sync;
    /// What its looks have shown.
    type Facts: Clone + Debug + PartialEq + Send + Sync;

    /// What it can export.
    fn kind(&self) -> VolumeKind;

    /// The ways in which what it exports can be used.
    fn access_rules(&self) -> AccessRules;

    /// The properties of the dataset that it needs to see, be it those that it remembers things in
    /// or native ones such as `sharenfs`. Of what is neither here nor in
    /// [`ALWAYS`](crate::observed::ALWAYS), `subject.volume` knows nothing.
    fn reads(&self) -> Vec<PropertyName> {
        Vec::new()
    }

    /// What this volume's export is called: as it is remembered, or else as the request and the
    /// configuration name it; without a request (deleting, expanding) by the configuration alone.
    ///
    /// `Invalid` where it cannot be called anything; for a volume that is being created this comes
    /// before any change.
    fn export_name(&self, subject: &Subject<'_>) -> Result<Self::Name, Error>;

    /// Properties that the dataset has from its first moment, such as `sharenfs`.
    fn properties(&self, _subject: &Subject<'_>, _asset: &Self::Name) -> Vec<Property> {
        Vec::new()
    }

    /// The queries, in addition to the properties of the dataset, that show the state of the
    /// export.
    fn observe(&self, subject: &Subject<'_>, export_name: &Self::Name) -> Vec<Self::Command>;

    /// The same where it is only to be removed, if less will do.
    fn observe_to_remove(
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

    /// What is missing until the dataset is exported as it should be; nothing means that it is.
    /// Here `subject.volume` is always there.
    fn ensure(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
        facts: &Self::Facts,
    ) -> Result<Vec<Act<Self::Command>>, Error>;

    /// What is missing until nothing of the export is left; nothing means that it is gone. There
    /// may be no dataset. Properties of the dataset need not be taken away: it goes right after.
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

    /// Whether access is granted per node. If so, no node reaches a volume before
    /// [`Export::allow`].
    fn is_per_node(&self) -> bool {
        false
    }

    /// Whether a missing export can be created. `false` if an administrator must repair the host
    /// first, for example if the key of an encrypted dataset is not loaded: a volume then grows
    /// without its export.
    fn can_be_restored(&self, _facts: &Self::Facts) -> bool {
        true
    }

    /// What is missing until this node reaches the volume. Its plan, as that of [`Export::revoke`], does
    /// nothing if one of the properties of [`Export::reads`] has changed since they were looked at.
    fn allow(
        &self,
        _subject: &Subject<'_>,
        _asset: &Self::Name,
        _facts: &Self::Facts,
        _node: &NodeId,
    ) -> Result<Vec<Act<Self::Command>>, Error> {
        Ok(Vec::new())
    }

    /// What is missing until this node, or without one every node, provably does not reach the
    /// volume any more: its sessions have ended, too.
    fn revoke(
        &self,
        _subject: &Subject<'_>,
        _asset: &Self::Name,
        _facts: &Self::Facts,
        _node: Option<&NodeId>,
    ) -> Result<Vec<Act<Self::Command>>, Error> {
        Ok(Vec::new())
    }

    /// What has to be asked to find out whether the storage is set up for this export: for operators.
    fn examine(&self) -> Vec<Self::Command> {
        Vec::new()
    }

    /// What is wrong, by what was answered.
    fn problems(&self, _answers: &[Self::Output]) -> Vec<Error> {
        Vec::new()
    }

    /// How a node reaches the volume once [`Export::ensure`] misses nothing; `None` while that
    /// is not known, because something that has to be done first decides it. `Internal` if it is
    /// not known even when nothing is missing.
    fn attachment(
        &self,
        subject: &Subject<'_>,
        export_name: &Self::Name,
        facts: &Self::Facts,
    ) -> Result<Option<Attachment>, Error>;

    /// How a node reaches a complete volume, where the dataset and the configuration alone say it.
    fn current_attachment(&self, _subject: &Subject<'_>) -> Option<Attachment> {
        None
    }

    /// The longest that [`Export::attachment`] gives, as far as it is known without a host. `longest` has
    /// the longest id, and the longest dataset, that a volume of this connection can have; nothing more
    /// is known of it.
    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment>;
}

/// The volume that an export is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its id.
    pub id: &'a VolumeId,
    /// The dataset that it is, or will be.
    pub dataset: &'a DatasetName,
    /// How it was asked for, while it is being created.
    pub request: Option<Asked<'a>>,
    /// The dataset as it was observed; `None` where it does not exist or was not looked at yet.
    pub volume: Option<&'a Dataset>,
}

/// How a volume was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The name that the orchestrator suggests.
    pub name: &'a VolumeName,
    /// The parameters of its class.
    pub parameters: &'a Parameters,
}

/// One thing to be done for an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act<R> {
    /// Asks something of the backend.
    Do(R),
    /// Sets a property of the dataset.
    Remember(Property),
    /// Takes a property of the dataset away.
    Forget(PropertyName),
}

// === impl Subject ===

impl Subject<'_> {
    /// What the dataset remembers in a property, if anything.
    pub fn remembered(&self, name: &PropertyName) -> Option<&str> {
        self.volume?.properties.own(name)
    }

    /// Where the host shows the dataset as a disk, if it is a zvol.
    pub fn device(&self) -> String {
        self.dataset.device()
    }
}
