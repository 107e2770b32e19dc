//! The contract of a driver: the controller half of one kind of backend.
//!
//! A driver knows its storage and nothing of gRPC, connections or other drivers. Every method runs
//! to its end even if the caller goes away, may be called again with the same arguments at any
//! time, and finds all state in the backend: what a killed process left behind, a retry completes.

use std::fmt::Debug;
use std::time::SystemTime;

use async_trait::async_trait;
use csi_types::{Access, AccessMode, Attachment, VolumeCapability};

use crate::call::Call;
use crate::error::Error;
use crate::flow::{CopyTag, Form, Outflow};
use crate::orphan::Orphan;
use crate::parameters::Parameters;
use crate::text::{NodeId, SnapshotId, VolumeId, VolumeName};
use crate::topology::Topology;
use crate::volume::{
    BackendIdentity, Capacity, CapacityQuery, CreateSnapshot, CreateVolume, Expanded, Found, Page,
    PageRequest, Snapshot, SnapshotFilter, Source, Volume,
};

/// The verbs that a driver has; what is advertised to the orchestrator follows from this value.
///
/// The contract suite (`testing` feature) proves that a verb is in here exactly when its method is
/// not the default one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent yes-or-no facts"
)]
pub struct Capabilities {
    /// `create_volume`, `delete_volume`.
    pub volumes: bool,
    /// `list_volumes`.
    pub list_volumes: bool,
    /// `get_volume`.
    pub get_volume: bool,
    /// `capacity`.
    pub capacity: bool,
    /// `create_snapshot`, `delete_snapshot`, and volumes from snapshots.
    pub snapshots: bool,
    /// `list_snapshots`.
    pub list_snapshots: bool,
    /// `get_snapshot`.
    pub get_snapshot: bool,
    /// Volumes from volumes.
    pub clones: bool,
    /// `expand_volume`.
    pub expand: Expansion,
    /// `publish_volume`, `unpublish_volume`.
    pub publish: bool,
    /// Volumes of this driver are reachable from some nodes only.
    pub topology: bool,
    /// `orphans`, `remove_orphan`. No orchestrator is told.
    pub orphans: bool,
    /// `is_exported`, `repair_export`. No orchestrator is told.
    pub exports: bool,
}

/// Whether and where volumes grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// Not at all.
    None,
    /// In the backend, while in use.
    Controller,
    /// In the backend, while in use, and then on the node.
    ControllerAndNode,
}

/// The ways in which volumes of a driver can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRules {
    /// Whether they can be raw devices.
    pub block: bool,
    /// Whether they can be mounted.
    pub mount: bool,
    /// The filesystems that may be named; naming none is always right.
    pub fs_types: &'static [&'static str],
    /// The modes that are offered, for mounted volumes.
    pub mount_modes: Vec<AccessMode>,
    /// The modes that are offered, for raw devices.
    pub block_modes: Vec<AccessMode>,
}

/// The controller half of one kind of backend.
///
/// About every verb:
/// - it may return `Invalid`, `Unreachable`, `Timeout`, `Denied`, `Internal` besides what it names;
/// - it calls [`Call::changing`] before its first change and [`Call::check`] in long work;
/// - "already so" is success; an outcome that was not seen is never success.
///
/// About threads: what may block is done with [`node_utils::blocking::spawn_on_account`], in the task
/// that called the verb. Threads are counted by whom the task works for, and that is not known in a task
/// of its own (`tokio::spawn`), in `spawn_blocking` or in `tokio::fs`: there one connection that hangs
/// could take the threads of all. A task of its own may keep a session; it must not block.
///
/// A value is dropped on a thread that may block, outside of the runtime.
#[async_trait]
pub trait Driver: Send + Sync + Debug {
    /// The value of `driver:` in the configuration, verbatim.
    fn kind(&self) -> &str;

    /// The verbs it has. Fixed for the life of the value.
    fn capabilities(&self) -> Capabilities;

    /// The ways in which its volumes can be used.
    fn access_rules(&self) -> AccessRules;

    /// The same for volumes that reach a node in one way, where that makes a difference.
    fn access_rules_of(&self, _attachment: &Attachment) -> AccessRules {
        self.access_rules()
    }

    /// What is said about a verb that this driver does not have.
    fn unsupported(&self, verb: &'static str) -> Error {
        Error::unsupported(verb)
    }

    /// The storage it stands on.
    fn backend_identity(&self) -> BackendIdentity;

    /// The id that it gives to a volume of this name. Pure; the same for ever.
    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error>;

    /// Whether the backend can be used, found out without changing it. Each problem is one error.
    async fn probe(&self, call: &Call) -> Vec<Error>;

    /// Makes a volume. Idempotent by `request.id`.
    ///
    /// `Conflict`: it exists and was made from another request. `NotFound`: the source does not
    /// exist. `OutOfRange`, `OutOfSpace`. After any error a retry with the same request converges;
    /// a volume that is not complete is never returned and never listed.
    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error>;

    /// The forms in which it gives its volumes and snapshots to other connections. Fixed for the life of
    /// the value; empty where it has no [`Driver::outflow`].
    fn gives(&self) -> &'static [Form] {
        &[]
    }

    /// The forms in which it takes the content of other connections; empty where it has no
    /// [`Driver::inflow`].
    fn takes(&self) -> &'static [Form] {
        &[]
    }

    /// The content of one of its own for the copy `tag` in another connection. Touches nothing, and says
    /// nothing yet of whether the source exists.
    fn outflow(&self, _source: &Source, _tag: &CopyTag) -> Result<Box<dyn Outflow + '_>, Error> {
        Err(self.unsupported("give content to another connection"))
    }

    /// Makes a volume of what another connection holds: `request.source` names that, `from` gives it.
    /// All of [`Driver::create_volume`] holds. A volume that is there already and whole is answered for
    /// without a look at `from`; one that is not has its name only once the whole stream was taken and
    /// both ends have said so. What was cut off goes on at the next call, or begins again; a deletion
    /// takes it away.
    async fn inflow(
        &self,
        _call: &Call,
        _request: &CreateVolume,
        _from: &dyn Outflow,
    ) -> Result<Volume, Error> {
        Err(self.unsupported("fill a volume from another connection"))
    }

    /// Removes a volume. One that does not exist is removed. Snapshots survive, or `Busy`, and then
    /// the volume is unaltered.
    async fn delete_volume(&self, call: &Call, id: &VolumeId) -> Result<(), Error>;

    /// A volume by its id. `NotFound`.
    async fn get_volume(&self, _call: &Call, _id: &VolumeId) -> Result<Volume, Error> {
        Err(self.unsupported("get volume"))
    }

    /// Whether a volume exists: what `ValidateVolumeCapabilities`, and a class over several connections,
    /// need of every driver. `NotFound` says that nothing will ever come of its name unless somebody
    /// makes it: a driver whose cut creations leave something under it, or go on by themselves, answers
    /// [`Found::Begun`] for those, or else they would be made a second time elsewhere.
    async fn find_volume(&self, call: &Call, id: &VolumeId) -> Result<Found, Error> {
        self.get_volume(call, id).await.map(|_| Found::Whole)
    }

    /// Volumes, sorted so that pages neither lose nor repeat one that exists all the while.
    /// `Pending` for a token that is not ours.
    async fn list_volumes(&self, _call: &Call, _page: &PageRequest) -> Result<Page<Volume>, Error> {
        Err(self.unsupported("list volumes"))
    }

    /// Grows a volume to at least the required size; one that is large enough stays as it is. Never
    /// shrinks. `NotFound`, `OutOfRange`.
    async fn expand_volume(
        &self,
        _call: &Call,
        _id: &VolumeId,
        _size: crate::size::SizeRange,
    ) -> Result<Expanded, Error> {
        Err(self.unsupported("expand volume"))
    }

    /// Free space, without side effect.
    async fn capacity(&self, _call: &Call, _query: &CapacityQuery) -> Result<Capacity, Error> {
        Err(self.unsupported("capacity"))
    }

    /// Takes a snapshot. Idempotent by name and source. `Conflict`: the name is taken by a snapshot
    /// of another volume. `NotFound`: no such volume. It exists whole or not at all.
    async fn create_snapshot(
        &self,
        _call: &Call,
        _request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        Err(self.unsupported("create snapshot"))
    }

    /// Removes a snapshot. One that does not exist is removed. `Busy` while something needs it.
    async fn delete_snapshot(&self, _call: &Call, _id: &SnapshotId) -> Result<(), Error> {
        Err(self.unsupported("delete snapshot"))
    }

    /// A snapshot by its id. `NotFound`.
    async fn get_snapshot(&self, _call: &Call, _id: &SnapshotId) -> Result<Snapshot, Error> {
        Err(self.unsupported("get snapshot"))
    }

    /// Snapshots, sorted like [`Driver::list_volumes`].
    async fn list_snapshots(
        &self,
        _call: &Call,
        _filter: &SnapshotFilter,
        _page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        Err(self.unsupported("list snapshots"))
    }

    /// Lets a node reach a volume. Idempotent by both.
    async fn publish_volume(
        &self,
        _call: &Call,
        _id: &VolumeId,
        _node: &NodeId,
        _capability: &VolumeCapability,
    ) -> Result<(), Error> {
        Err(self.unsupported("publish volume"))
    }

    /// Stops a node (or, without one, every node) from reaching a volume; returns once that is
    /// proved.
    async fn unpublish_volume(
        &self,
        _call: &Call,
        _id: &VolumeId,
        _node: Option<&NodeId>,
    ) -> Result<(), Error> {
        Err(self.unsupported("unpublish volume"))
    }

    /// What was made before that time, is provably ours, and that nobody owns: no volume or snapshot that
    /// was ever returned, nothing that one of these needs, and nothing that is being made, as far as the
    /// backend shows it. Sorted like [`Driver::list_volumes`]; a page may be empty before the last one.
    async fn orphans(
        &self,
        _call: &Call,
        _before: SystemTime,
        _page: &PageRequest,
    ) -> Result<Page<Orphan>, Error> {
        Err(self.unsupported("list orphans"))
    }

    /// Removes an orphan. One that does not exist is removed. `Conflict`: it is none, or none any more,
    /// and nothing was changed. `Busy`: something needs it.
    async fn remove_orphan(
        &self,
        _call: &Call,
        _before: SystemTime,
        _orphan: &Orphan,
    ) -> Result<(), Error> {
        Err(self.unsupported("remove orphans"))
    }

    /// Whether the backend still exports a volume as it should, found out without changing anything.
    /// `NotFound`: also one that another connection exports.
    async fn is_exported(&self, _call: &Call, _id: &VolumeId) -> Result<bool, Error> {
        Err(self.unsupported("look at exports"))
    }

    /// Puts back what the backend has lost of a volume's export: after it started anew without a saved
    /// configuration, say. `NotFound`: also one that another connection exports.
    async fn repair_export(&self, _call: &Call, _id: &VolumeId) -> Result<(), Error> {
        Err(self.unsupported("repair exports"))
    }

    /// The longest way to a volume that this driver may give out, if it knows: a context has little room,
    /// and one that would not fit is refused before there is a volume.
    fn longest_attachment(&self) -> Option<Attachment> {
        None
    }

    /// The topology that a node reports for this driver's sake, `None` without one.
    fn node_topology(&self) -> Option<Topology> {
        None
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// No verb at all: volumes are made by hand.
    pub const NONE: Self = Self {
        volumes: false,
        list_volumes: false,
        get_volume: false,
        capacity: false,
        snapshots: false,
        list_snapshots: false,
        get_snapshot: false,
        clones: false,
        expand: Expansion::None,
        publish: false,
        topology: false,
        orphans: false,
        exports: false,
    };
}

// === impl AccessRules ===

impl AccessRules {
    /// Every mode for mounted volumes and no raw devices: directories and shares.
    pub fn filesystem(fs_types: &'static [&'static str]) -> Self {
        Self {
            block: false,
            mount: true,
            fs_types,
            mount_modes: AccessMode::ALL.to_vec(),
            block_modes: Vec::new(),
        }
    }

    /// Why a volume cannot be used in this way, or `None`.
    pub fn refusal(&self, capability: &VolumeCapability) -> Option<String> {
        let modes = match &capability.access {
            Access::Block if !self.block => return Some("block access is not supported".into()),
            Access::Mount(_) if !self.mount => return Some("mount access is not supported".into()),
            Access::Block => &self.block_modes,
            Access::Mount(mount) => {
                if let Some(fs_type) = &mount.fs_type
                    && !self.fs_types.contains(&fs_type.as_str())
                {
                    return Some(format!("filesystem {fs_type} is not supported"));
                }
                &self.mount_modes
            }
        };
        let mode = capability.mode;
        (!modes.contains(&mode)).then(|| format!("access mode {mode} is not supported"))
    }
}
