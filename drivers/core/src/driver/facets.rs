//! The optional halves of a driver, each a trait of its own.
//!
//! The rules of [`Driver`](super::Driver) hold for every method here.

use std::fmt::Debug;
use std::time::SystemTime;

use async_trait::async_trait;
use csi_types::{AbsolutePath, Attachment, Conditions, Network, VolumeContext};

use crate::adopt::{AdoptVolume, Adoption};
use crate::call::Call;
use crate::error::Error;
use crate::fence::{FenceClient, FenceNetworks};
use crate::moves::{MoveSource, MoveState, Round};
use crate::orphan::Orphan;
use crate::request::{
    BlockRangesQuery, CreateGroup, DeleteSnapshot, ExpandVolume, GetSnapshot, GroupMembers,
    HealthQuery, ModifyVolume, PublishVolume, UnpublishVolume,
};
use crate::text::{GroupSnapshotId, NodeId, VolumeId};
use crate::transfer::{CopyTag, ExportStream, TransferFormat};
use crate::volume::{
    Capacity, CapacityQuery, CreateSnapshot, CreateVolume, Expanded, Page, PageRequest, Secrets,
    Snapshot, SnapshotFilter, Source, Volume,
};

/// Snapshots, and volumes from snapshots.
#[async_trait]
pub trait Snapshots: Send + Sync {
    /// Takes a snapshot. Idempotent by name and source. `Conflict`: the name is taken by a snapshot
    /// of another volume. `NotFound`: no such volume. It exists whole or not at all. One that is not
    /// `ready` is being made; a retry tells when it is, or makes it again if that work was lost.
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error>;

    /// Removes a snapshot. One that does not exist is removed. `Busy` while something needs it. `Invalid`: it is of
    /// a group, with which it goes.
    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error>;

    /// A snapshot by its id. `NotFound`.
    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error>;

    /// Snapshots, sorted like [`Lister::list_volumes`].
    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error>;
}

/// Volumes by id, and lists of them.
#[async_trait]
pub trait Lister: Send + Sync {
    /// A volume by its id. `NotFound`.
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error>;

    /// Volumes, sorted so that pages neither lose nor repeat one that exists all the time.
    /// `Pending` for a token that is not ours.
    async fn list_volumes(&self, call: &Call, page: &PageRequest) -> Result<Page<Volume>, Error>;
}

/// The space that volumes take. Only for those who look: no answer to an orchestrator depends on it.
#[async_trait]
pub trait UsageReporter: Send + Sync {
    /// The bytes that each volume takes on the storage, in the order of `ids`, by one question for all of them.
    /// `None` for one that does not exist, or whose use is not known.
    async fn used(&self, call: &Call, ids: &[VolumeId]) -> Result<Vec<Option<u64>>, Error>;
}

/// The health of volumes, as their storage sees it.
#[async_trait]
pub trait Health: Send + Sync {
    /// The conditions of each volume, in the order of the query; `None` for one that does not exist. By questions for
    /// all of them, and none for each. Nothing is ever taken for healthy that could not be looked at: a storage that
    /// does not answer is an error, `Unreachable` or `Timeout`.
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error>;

    /// The volumes to look at for those with which something is wrong: all of [`Lister::list_volumes`], sorted like them,
    /// and those that are not listed because something is wrong with them.
    async fn candidates(&self, call: &Call, page: &PageRequest) -> Result<Page<VolumeId>, Error>;
}

/// Growing volumes.
#[async_trait]
pub trait Expander: Send + Sync {
    /// Whether the node has to grow something after the backend did.
    fn node_expands(&self) -> bool;

    /// Whether volumes are storage of their node. They grow in `NodeExpandVolume`, which calls
    /// [`Expander::expand_volume`] on that node.
    fn is_node_local(&self) -> bool {
        false
    }

    /// Whether a volume that is not found here may be storage of another node: its id does not say that it is of this
    /// one.
    fn may_be_elsewhere(&self, _: &VolumeId) -> bool {
        self.is_node_local()
    }

    /// Grows a volume to at least the required size; one that is large enough stays as it is. Never
    /// shrinks. `NotFound`, `OutOfRange`.
    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error>;
}

/// Free space.
#[async_trait]
pub trait CapacityReporter: Send + Sync {
    /// Free space, without side effect.
    async fn capacity(&self, call: &Call, query: &CapacityQuery) -> Result<Capacity, Error>;
}

/// Letting nodes reach a volume, and stopping them.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Whether the storage knows nodes. If not, every node reaches every volume, and publishing only records:
    /// it then does not matter what the backend calls a node.
    fn knows_nodes(&self) -> bool {
        true
    }

    /// Whether the nodes of a volume are recorded on the storage, so that
    /// [`Volume::published_to`](crate::Volume::published_to) has every node that needs no further call, and no other.
    fn records(&self) -> bool {
        false
    }

    /// Lets a node reach a volume. Idempotent by both. Where only nodes that were let in reach it, and the capability is of
    /// one node, it is [`Kind::Busy`](crate::Kind::Busy) while another node has the volume, and the error names that node.
    async fn publish_volume(&self, call: &Call, request: PublishVolume<'_>) -> Result<(), Error>;

    /// Stops a node (or, without one, every node) from reaching a volume; returns once that is
    /// proved.
    async fn unpublish_volume(
        &self,
        call: &Call,
        request: UnpublishVolume<'_>,
    ) -> Result<(), Error>;

    /// Stops a node from reaching any volume of this driver; returns once that is proved.
    async fn fence_node(&self, _call: &Call, _node: &NodeId) -> Result<(), Error> {
        Err(Error::unsupported("fence a node"))
    }
}

/// Shutting networks out: a node with an address in one of them reaches no volume, and gets access to none, until the
/// fence is lifted. What is shut out is kept on the storage.
#[async_trait]
pub trait Fencer: Send + Sync {
    /// Shuts out networks. Idempotent. They are recorded first; from then on
    /// [`Publisher::publish_volume`] is `Busy` for their nodes, whichever process is asked. Then each node that is
    /// recorded and has an address there is stopped from reaching any volume, which is proved as
    /// [`Publisher::unpublish_volume`] proves it. An error after the record leaves that, and what was done.
    /// `Busy`, after all else: the address of a node that is let in is not known, or a node may go on that has connected
    /// in the meantime. `Unsupported`, before all else: see [`Fencer::check_fence`].
    async fn fence_networks(&self, call: &Call, request: FenceNetworks<'_>) -> Result<(), Error>;

    /// Lifts the fence of these networks. One that is not shut out is lifted. Gives no access back: nodes are published
    /// to anew.
    async fn unfence_networks(&self, call: &Call, request: FenceNetworks<'_>) -> Result<(), Error>;

    /// The networks that are shut out, as the storage has them now.
    async fn fenced_networks(&self, call: &Call) -> Result<Vec<Network>, Error>;

    /// The nodes that any volume is published to.
    async fn fence_clients(&self, call: &Call) -> Result<Vec<FenceClient>, Error>;

    /// Asks the storage whether a node that loses access is cut off there, where the driver alone cannot know it.
    /// `Unsupported` if it is not. For a fence of several connections, of which none is changed if one refuses.
    async fn check_fence(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }
}

/// Changing volumes that exist.
#[async_trait]
pub trait Modifier: Send + Sync {
    /// The parameters that can be changed; never none. They count at the creation of a volume as well: one that exists
    /// whole with another value is a `Conflict` there.
    fn mutable_keys(&self) -> &[&'static str];

    /// Changes a volume as the parameters, which hold nothing but mutable keys, say. Idempotent.
    /// `NotFound`; `Invalid` for a value that cannot be: then nothing was changed.
    async fn modify_volume(&self, call: &Call, request: ModifyVolume<'_>) -> Result<(), Error>;
}

/// Snapshots of several volumes, taken as a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// Its id.
    pub id: GroupSnapshotId,
    /// One snapshot for each volume.
    pub snapshots: Vec<Snapshot>,
    /// When they were taken; the same on every reply.
    pub created: SystemTime,
    /// Whether volumes can be made of all of them now.
    pub ready: bool,
}

/// The verb of [`Groups::create_group`].
pub const CREATE_GROUP: &str = "create group snapshot";
/// The verb of [`Groups::delete_group`].
pub const DELETE_GROUP: &str = "delete group snapshot";
/// The verb of [`Groups::get_group`].
pub const GET_GROUP: &str = "get group snapshot";

/// The error of a driver without [`Groups`] for any verb: for one of groups it says why.
pub fn without_groups(verb: &'static str, why: &'static str) -> Error {
    let error = Error::unsupported(verb);
    if [CREATE_GROUP, DELETE_GROUP, GET_GROUP].contains(&verb) {
        error.because(why)
    } else {
        error
    }
}

/// Snapshots of several volumes at one moment, or one after the other where the parameters say that this is enough.
#[async_trait]
pub trait Groups: Send + Sync {
    /// Takes a snapshot of each volume, all or none: at one moment, unless the parameters ask for less. Where they are taken one
    /// after the other, what a killed call has taken is completed by a retry. Idempotent by name and volumes, in
    /// any order; no volume is named twice. `Invalid`: the storage cannot do what the parameters ask for. `Conflict`: the name is taken by a group of other volumes.
    /// `NotFound`: a volume is missing. `Busy`: these volumes cannot be cut at one moment.
    async fn create_group(
        &self,
        call: &Call,
        request: CreateGroup<'_>,
    ) -> Result<GroupSnapshot, Error>;

    /// Removes a group with its snapshots, which are listed in any order. One that does not exist is
    /// removed. `Invalid`: the snapshots are not those of the group. `Busy`: something needs one of them.
    async fn delete_group(&self, call: &Call, request: GroupMembers<'_>) -> Result<(), Error>;

    /// A group by its id. `NotFound`. `Invalid`: the snapshots are not those of the group.
    async fn get_group(
        &self,
        call: &Call,
        request: GroupMembers<'_>,
    ) -> Result<GroupSnapshot, Error>;
}

/// A range of a block volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Ranges piece by piece, sorted by offset; no two overlap and none is empty. May be dropped at any
/// time, also while [`BlockRanges::next`] is at work.
#[async_trait]
pub trait BlockRanges: Send + Debug {
    /// The size of the snapshot in bytes.
    fn capacity(&self) -> u64;

    /// The next ranges, at most `max`, never none; `None` at the end.
    async fn next(&mut self, max: usize) -> Result<Option<Vec<BlockRange>>, Error>;
}

/// The verb of [`BlockMetadata::block_ranges`].
pub const BLOCK_RANGES: &str = "list block ranges";

/// The ranges of a snapshot that hold data, and those that differ from an older one.
#[async_trait]
pub trait BlockMetadata: Send + Sync {
    /// The ranges that hold data and end after `offset`; those that differ from `base`, if one is
    /// given. `NotFound`; `OutOfRange` for an offset beyond the end. `Invalid`: `base` is newer. `Busy`:
    /// what differs between the two is not known, also since `base` is of another volume, or of none.
    async fn block_ranges(
        &self,
        call: &Call,
        request: BlockRangesQuery<'_>,
    ) -> Result<Box<dyn BlockRanges>, Error>;
}

/// Content to and from other connections.
#[async_trait]
pub trait Transfer: Send + Sync {
    /// The formats in which it exports its volumes and snapshots. Fixed for the life of the value.
    fn export_formats(&self) -> &'static [TransferFormat];

    /// The formats in which it imports the content of other connections.
    fn import_formats(&self) -> &'static [TransferFormat];

    /// The content of one of its own for the copy `tag` in another connection. Touches nothing, and
    /// does not say yet whether the source exists.
    fn export(&self, source: &Source, tag: &CopyTag) -> Result<Box<dyn ExportStream + '_>, Error>;

    /// Makes a volume of what another connection holds: `request.source` names that, `from` is the
    /// stream of it. All of [`Driver::create_volume`](super::Driver::create_volume) holds. A volume
    /// that is complete already is answered for without a look at `from`; one that is not gets its
    /// name only once the whole stream was taken and both ends confirmed it. An interrupted copy
    /// goes on at the next call, or starts anew; a deletion removes it.
    async fn import(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error>;
}

/// What the backend holds of ours that no call asks for any more.
#[async_trait]
pub trait Maintenance: Send + Sync {
    /// What was made before that time, is provably ours, and has no owner: no volume or snapshot
    /// that was ever returned, nothing that one of these needs, and nothing in the making, as far
    /// as the backend shows it. Sorted like [`Lister::list_volumes`]; a page may be empty before
    /// the last one.
    async fn orphans(
        &self,
        call: &Call,
        before: SystemTime,
        page: &PageRequest,
    ) -> Result<Page<Orphan>, Error>;

    /// Removes an orphan. One that does not exist is removed. `Conflict`: it is not an orphan, or no
    /// longer, and nothing was changed. `Busy`: something needs it.
    async fn remove_orphan(
        &self,
        call: &Call,
        before: SystemTime,
        orphan: &Orphan,
    ) -> Result<(), Error>;
}

/// Exports that the backend may have lost.
#[async_trait]
pub trait Exports: Send + Sync {
    /// Whether the backend still exports a volume as it should, found out without changing anything.
    /// `NotFound`: also one that another connection exports.
    async fn is_exported(&self, call: &Call, id: &VolumeId) -> Result<bool, Error>;

    /// Puts back what the backend has lost of a volume's export: after a restart without a saved
    /// configuration, for example. `NotFound`: also one that another connection exports.
    async fn repair_export(&self, call: &Call, id: &VolumeId) -> Result<(), Error>;
}

/// Making volumes of what lies on the storage already. Content is never changed by it.
#[async_trait]
pub trait Adopter: Send + Sync {
    /// The plan of [`Adopter::adopt_volume`], found out without changing anything; the errors are the same, but
    /// for what is a volume already.
    async fn plan_adoption(&self, call: &Call, request: &AdoptVolume) -> Result<Adoption, Error>;

    /// Makes it a volume, as [`Driver::create_volume`](super::Driver::create_volume) leaves one: marked and exported.
    /// Idempotent by its source: an interrupted adoption goes on at the next one, and until its end no verb takes
    /// the object for a volume, whole or partial. `NotFound`. `Invalid`: it can be no volume of this connection.
    /// `Conflict`: it is a volume that no adoption made, or something else of ours.
    async fn adopt_volume(&self, call: &Call, request: &AdoptVolume) -> Result<Volume, Error>;
}

/// Volumes that move to other connections and come from them, in rounds while they are in use.
///
/// The request of a target is the same at each call: its source is a volume
/// [elsewhere](crate::Elsewhere). Until the end nothing takes what has come for a volume: it is not listed and not
/// exported, and counts as an orphan a week after its first round.
#[async_trait]
pub trait Mover: Send + Sync {
    /// The formats in which it sends and receives. Fixed for the life of the value; none: it does neither.
    fn move_formats(&self) -> &'static [TransferFormat];

    /// A volume of its own as the source of the move `tag`. Touches nothing, and does not say yet whether it exists.
    fn move_out(&self, volume: &VolumeId, tag: &CopyTag)
    -> Result<Box<dyn MoveSource + '_>, Error>;

    /// The progress of the move to the volume of this request, found out without changing anything. `Conflict`:
    /// something else has its name.
    async fn move_state(&self, call: &Call, request: &CreateVolume) -> Result<MoveState, Error>;

    /// One round: receives all, or what was written since the newest moment that both ends have. An interrupted round
    /// goes on at the next call, or starts anew if its source is gone. `Conflict`: it is a volume, whichever made it;
    /// or what has come was changed. `NotFound`: the source no longer has that moment. After either only
    /// [`Mover::give_up_move`] helps, but for a snapshot that others took of what has come: it can be destroyed.
    async fn move_in(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn MoveSource,
    ) -> Result<Round, Error>;

    /// Makes a volume of what has come, as [`Driver::create_volume`](super::Driver::create_volume) leaves one.
    /// Idempotent; no round can follow once it was started. `Conflict`: no round has ended, or one was interrupted.
    async fn moved_in(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error>;

    /// Removes what a move has left here. Idempotent. `Conflict`: it is a volume, or nothing of a move.
    async fn give_up_move(&self, call: &Call, request: &CreateVolume) -> Result<(), Error>;
}

/// A volume that a pod describes itself: it lives and dies with the pod, on the node of the pod.
#[derive(Debug, Clone)]
pub struct InlineVolume<'a> {
    /// The handle, which the orchestrator makes of the pod.
    pub id: &'a VolumeId,
    /// The path where the pod sees it.
    pub target: &'a AbsolutePath,
    /// Whether the pod may only read it.
    pub readonly: bool,
    /// What the author of the pod wrote, and what the orchestrator says of the pod.
    pub attributes: &'a VolumeContext,
    /// The secrets that the pod names.
    pub secrets: &'a Secrets,
}

/// What is left to be done for an inline volume once its driver is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InlineMount {
    /// The node mounts this at the target.
    Attachment(Attachment),
    /// Nothing: it is mounted there.
    Mounted,
}

/// An inline volume that exists on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlineFound {
    /// Its handle.
    pub id: VolumeId,
    /// The path where its pod sees it, or saw it.
    pub target: AbsolutePath,
}

/// Volumes that live and die with a pod. All that is known of them is on the node.
#[async_trait]
pub trait InlineVolumes: Send + Sync {
    /// Makes a volume. Idempotent by id and target. `Conflict`: it exists for another target, or
    /// something else has its name. `Invalid`: attributes that this driver does not take; nothing was
    /// done then.
    async fn make_inline(
        &self,
        call: &Call,
        wanted: &InlineVolume<'_>,
    ) -> Result<InlineMount, Error>;

    /// Removes a volume with all that is in it. One that does not exist is removed. Nothing is mounted
    /// at the target any more. `Busy`: something stands on it.
    async fn remove_inline(
        &self,
        call: &Call,
        id: &VolumeId,
        target: &AbsolutePath,
    ) -> Result<(), Error>;

    /// All that exist here, whether their pods do or not.
    async fn list_inline(&self, call: &Call) -> Result<Vec<InlineFound>, Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_of_groups_and_no_others_are_refused_with_the_reason() {
        let says_why = |verb| {
            without_groups(verb, "one by one")
                .chain()
                .contains("one by one")
        };
        for verb in [CREATE_GROUP, DELETE_GROUP, GET_GROUP] {
            assert!(says_why(verb), "{verb}");
        }
        for verb in ["create snapshot", "measure a group snapshot"] {
            assert!(!says_why(verb), "{verb}");
        }
    }
}
