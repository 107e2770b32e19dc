//! The lists of initiators of targets with access per node: each target has one of its own, whose comment names
//! the zvol.
//!
//! A list without initiators lets in all, and so does a target whose list was deleted: a list is never empty, and
//! goes after the extents.

use driver_core::Call;

use super::access;
use super::gone;
use super::iscsi::listens;
use crate::api::Filter;
use crate::api::iscsi::{
    CreateInitiators, CreateTarget, DeleteInitiators, Initiators, QueryInitiators, Target,
    TargetGroup, UpdateInitiators, UpdateTarget,
};
use crate::backend::Nas;
use crate::command::{IscsiWish, Lists};
use crate::error::Error as ApiError;

/// The initiator of a list that lets in no node. No initiator has this name.
const NO_NODE: &str = "iqn.2004-10.invalid.omnibus-csi:no-node";

/// The groups, each with this list of initiators.
pub(super) fn with_list(groups: &[TargetGroup], list: i64) -> Vec<TargetGroup> {
    let one = |group: &TargetGroup| TargetGroup {
        initiator: Some(list),
        ..group.clone()
    };
    groups.iter().map(one).collect()
}

/// The comment of the list of initiators of a volume.
pub(super) fn comment_of_list(zvol: &str) -> String {
    format!("omnibus-csi: {zvol}")
}

/// The initiators of a list of these nodes.
pub(super) fn initiators(names: Vec<String>) -> Vec<String> {
    if names.is_empty() {
        vec![NO_NODE.to_owned()]
    } else {
        names
    }
}

impl Nas {
    /// The lists of a volume.
    pub(super) async fn lists_of(
        &self,
        call: &Call,
        zvol: &str,
    ) -> Result<Vec<Initiators>, ApiError> {
        let query = QueryInitiators(vec![Filter::eq("comment", comment_of_list(zvol))]);
        self.read(call, &query).await
    }

    /// Makes the target with its list of initiators, or what is missing of them.
    pub(super) async fn target(
        &self,
        call: &Call,
        wish: &IscsiWish,
    ) -> Result<(Target, Vec<Initiators>), ApiError> {
        let lists = self.initiators(call, wish).await?;
        let groups = match lists.first() {
            Some(list) => with_list(&wish.target.groups, list.id),
            None => wish.target.groups.clone(),
        };
        let target = match wish.seen.target(&wish.target.name) {
            None => {
                let create = CreateTarget {
                    groups,
                    ..wish.target.clone()
                };
                self.write(call, &create).await?
            }
            Some(target) if listens(target, &groups) => target.clone(),
            Some(target) => {
                let id = target.id;
                let updated = self.write(call, &UpdateTarget { id, groups }).await?;
                if wish.initiators.is_none() {
                    // What it had may be a list of its own, of before `nodes` was removed.
                    let before = target.groups.iter().filter_map(|group| group.initiator);
                    let comment = comment_of_list(&wish.zvol);
                    let ids = before.collect();
                    self.remove_lists(call, &Lists { ids, comment }).await?;
                }
                updated
            }
        };
        Ok((target, lists))
    }

    /// The list of initiators as it should be; none if the groups of the configuration say it.
    async fn initiators(&self, call: &Call, wish: &IscsiWish) -> Result<Vec<Initiators>, ApiError> {
        let Some(initiators) = wish.initiators.clone() else {
            return Ok(Vec::new());
        };
        let mut lists = wish.seen.lists.clone();
        let Some(list) = lists.first_mut() else {
            let comment = comment_of_list(&wish.zvol);
            let create = CreateInitiators {
                initiators,
                comment,
            };
            return Ok(vec![self.write(call, &create).await?]);
        };
        let both = [&initiators, &list.initiators].map(|all| all.iter().map(String::as_str));
        let [wanted, seen] = both;
        if !access::same(wanted, seen) {
            let id = list.id;
            *list = self
                .write(call, &UpdateInitiators { id, initiators })
                .await?;
        }
        Ok(lists)
    }

    /// Removes those of these lists that have the comment of the volume.
    pub(super) async fn remove_lists(&self, call: &Call, lists: &Lists) -> Result<(), ApiError> {
        if lists.ids.is_empty() {
            return Ok(());
        }
        let ours = vec![
            Filter::any_of("id", lists.ids.iter().copied()),
            Filter::eq("comment", lists.comment.as_str()),
        ];
        for list in self.read(call, &QueryInitiators(ours)).await? {
            gone(self.write(call, &DeleteInitiators { id: list.id }).await)?;
        }
        Ok(())
    }
}
