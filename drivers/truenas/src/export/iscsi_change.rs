//! Changes of targets, extents and lists of initiators, each a step of a plan.

use async_trait::async_trait;
use driver_core::Call;
use driver_zfs::export::Act;
use driver_zfs::step::Of;

use super::gone;
use super::iscsi_lists::with_list;
use crate::api::Filter;
use crate::api::iscsi::{
    CreateExtent, CreateInitiators, CreateTarget, CreateTargetExtent, DeleteExtent, DeleteTarget,
    QueryTargetExtents, UpdateInitiators, UpdateTarget,
};
use crate::backend::Nas;
use crate::command::{Change, Command, Id, Made, task};
use crate::error::Error as ApiError;

/// The names of the steps that make, or change, what belongs to a target.
pub(super) const LIST: &str = "list of initiators";
pub(super) const TARGET: &str = "target";
pub(super) const EXTENT: &str = "extent";
pub(super) const LINK: &str = "target extent";
/// The name of the step that finds whether a target may go.
const FREE: &str = "free target";
/// The name of the step that removes lists of initiators.
const LISTS: &str = "lists of initiators";

/// The LUN of the extent of a volume.
pub(super) const LUN: i64 = 0;

/// A change of what belongs to a target.
#[derive(Debug)]
pub(super) enum IscsiChange {
    /// Makes a list of initiators.
    CreateList(CreateInitiators),
    /// Changes one.
    UpdateList(UpdateInitiators),
    /// Makes a target, with this list if it is a new one.
    CreateTarget(CreateTarget, Option<Id>),
    /// Changes the groups of one, with this list if it is a new one.
    UpdateTarget(UpdateTarget, Option<Id>),
    /// Makes an extent.
    CreateExtent(CreateExtent),
    /// Puts an extent on a target.
    Link(Id, Id),
    /// Removes an extent.
    DeleteExtent(i64),
    /// Answers the number of a target if it has nothing on it but these extents, and is proved to be of the
    /// volume.
    FindFree(i64, Proof, Vec<i64>),
    /// Removes lists of initiators, with `Some` only if that step was answered.
    RemoveLists(Lists, Option<Of>),
    /// Removes the target that was found to be free.
    DeleteTarget(i64),
}

/// Lists of initiators that may be of a volume: they are if their comment is this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lists {
    /// Their numbers.
    pub(super) ids: Vec<i64>,
    /// The comment.
    pub(super) comment: String,
}

/// The proof that a target is of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// It says so itself, also when the volume is gone.
    Mark,
    /// The volume remembers its number.
    Number,
    /// Nothing, unless an extent of the volume is on it.
    Extent,
}

/// Removes the extents, and a target that is ours and has nothing else on it. One that proves itself that it
/// is ours can go beside its zvol.
pub(super) fn removed(
    target: Option<(i64, Proof)>,
    extents: &[i64],
    lists: Lists,
) -> Vec<Act<Command>> {
    let mut acts = Vec::new();
    if let Some((id, proof)) = target {
        let find = IscsiChange::FindFree(id, proof, extents.to_vec());
        acts.push(Act::Task(task(find).named(FREE)));
    }
    for id in extents {
        let delete = task(IscsiChange::DeleteExtent(*id)).named(EXTENT);
        acts.push(Act::Task(match target {
            // What is on the target goes with the extents.
            Some((_, Proof::Extent)) => delete.after(FREE),
            _ => delete,
        }));
    }
    if !lists.ids.is_empty() {
        let free = target.map(|_| FREE.into());
        let remove = task(IscsiChange::RemoveLists(lists, free)).named(LISTS);
        acts.push(Act::Task(remove.after(EXTENT).after(FREE)));
    }
    if let Some((id, proof)) = target {
        let delete = task(IscsiChange::DeleteTarget(id));
        let mut delete = delete.after(EXTENT).after(FREE).after(LISTS);
        delete.is_loose = proof == Proof::Mark;
        acts.push(Act::Task(delete));
    }
    acts
}

#[async_trait]
impl Change for IscsiChange {
    fn doing(&self) -> String {
        match self {
            Self::CreateList(list) => format!("make the list of initiators `{}`", list.comment),
            Self::UpdateList(list) => format!("change the list of initiators {}", list.id),
            Self::CreateTarget(target, _) => format!("make iSCSI target `{}`", target.name),
            Self::UpdateTarget(target, _) => format!("change iSCSI target {}", target.id),
            Self::CreateExtent(extent) => format!("export {} by iSCSI", extent.zvol),
            Self::Link(..) => "put an extent on an iSCSI target".to_owned(),
            Self::DeleteExtent(id) => format!("remove iSCSI extent {id}"),
            Self::FindFree(id, ..) => format!("look what is on iSCSI target {id}"),
            Self::RemoveLists(lists, _) => {
                format!("remove lists of initiators `{}`", lists.comment)
            }
            Self::DeleteTarget(id) => format!("remove iSCSI target {id}"),
        }
    }

    fn is_one_call(&self) -> bool {
        !matches!(self, Self::RemoveLists(..))
    }

    fn removes(&self) -> bool {
        matches!(
            self,
            Self::DeleteExtent(_) | Self::RemoveLists(..) | Self::DeleteTarget(_)
        )
    }

    async fn run(&self, nas: &Nas, call: &Call, made: &Made) -> Result<Option<i64>, ApiError> {
        match self {
            Self::CreateList(list) => nas.write(call, list).await.map(|made| Some(made.id)),
            Self::UpdateList(list) => nas.write(call, list).await.map(|_| None),
            Self::CreateTarget(target, list) => {
                let mut target = target.clone();
                if let Some(list) = list {
                    target.groups = with_list(&target.groups, made.id(list)?);
                }
                nas.write(call, &target).await.map(|made| Some(made.id))
            }
            Self::UpdateTarget(target, list) => {
                let mut target = target.clone();
                if let Some(list) = list {
                    target.groups = with_list(&target.groups, made.id(list)?);
                }
                nas.write(call, &target).await.map(|_| None)
            }
            Self::CreateExtent(extent) => nas.write(call, extent).await.map(|made| Some(made.id)),
            Self::Link(target, extent) => {
                let create = CreateTargetExtent {
                    target: made.id(target)?,
                    extent: made.id(extent)?,
                    lun: Some(LUN),
                };
                nas.write(call, &create).await.map(|made| Some(made.id))
            }
            Self::DeleteExtent(id) => {
                let (id, force) = (*id, false);
                gone(nas.write(call, &DeleteExtent { id, force }).await)
            }
            Self::FindFree(id, proof, extents) => {
                let query = QueryTargetExtents(vec![Filter::eq("target", *id)]);
                let links = nas.read(call, &query).await?;
                let is_shared = links.iter().any(|link| !extents.contains(&link.extent));
                let is_ours = *proof != Proof::Extent || !links.is_empty();
                if is_shared || !is_ours {
                    tracing::warn!(object = *id, "the iSCSI target of this number stays");
                    return Ok(None);
                }
                Ok(Some(*id))
            }
            Self::RemoveLists(_, Some(step)) if made.get(step).is_none() => Ok(None),
            Self::RemoveLists(lists, _) => nas.remove_lists(call, lists).await.map(|()| None),
            Self::DeleteTarget(id) if made.get(&FREE.into()) == Some(*id) => {
                let (id, force) = (*id, false);
                gone(nas.write(call, &DeleteTarget { id, force }).await)
            }
            Self::DeleteTarget(_) => Ok(None),
        }
    }
}
