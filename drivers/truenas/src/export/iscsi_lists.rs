//! The lists of initiators of targets with access per node: each target has one of its own, whose comment names
//! the zvol.
//!
//! A list without initiators lets in all, and so does a target whose list was deleted: a list is never empty, and
//! goes after the extents.

use driver_core::Call;

use super::gone;
use super::iscsi_change::Lists;
use crate::api::Filter;
use crate::api::iscsi::{DeleteInitiators, Initiators, QueryInitiators, TargetGroup};
use crate::backend::Nas;
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
