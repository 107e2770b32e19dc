//! The way back: from the pod, from the node, from the storage. Also after a failure.
//!
//! Each step undoes what was noted, and takes the note away once that is certain; what was never
//! asked for is not touched. Nothing is deleted but what a call of ours has made.

use std::time::Duration;

use csi_proto::v1;

use super::made::{MadeSnapshot, MadeVolume, Role, State};
use super::orchestrator::{Answer, Orchestrator, Pause};
use super::trouble::Trouble;

/// How long a storage that does not answer is asked again after a failure.
const PERSISTENCE: Duration = Duration::from_secs(15);

// === impl Orchestrator ===

impl Orchestrator {
    /// Takes a volume from its pod.
    pub(super) async fn unpublish(&mut self, role: Role) -> Answer<()> {
        let Some(made) = self.made.volume(role).filter(|made| made.published) else {
            return Ok(());
        };
        let (Some(volume), Some(points)) = (made.state.ever(), &made.points) else {
            return Ok(());
        };
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            target_path: points.target.to_string(),
        };
        let mut node = self.node();
        self.ask("NodeUnpublishVolume", node.node_unpublish_volume(request))
            .await?;
        self.note(role, |made| made.published = false);
        Ok(())
    }

    /// Takes a volume from this node.
    pub(super) async fn unstage(&mut self, role: Role) -> Answer<()> {
        let Some(made) = self.made.volume(role).filter(|made| made.staged) else {
            return Ok(());
        };
        let (Some(volume), Some(points)) = (made.state.ever(), &made.points) else {
            return Ok(());
        };
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path: points.staging.to_string(),
        };
        let mut node = self.node();
        self.ask("NodeUnstageVolume", node.node_unstage_volume(request))
            .await?;
        self.note(role, |made| made.staged = false);
        Ok(())
    }

    /// Lets this node in no longer.
    pub(super) async fn detach(&mut self, role: Role) -> Answer<()> {
        let Some(made) = self.made.volume(role).filter(|made| made.attached) else {
            return Ok(());
        };
        let Some(volume) = made.state.ever() else {
            return Ok(());
        };
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: self.node_id.clone(),
            secrets: self.trial.secrets(),
        };
        let mut controller = self.controller();
        let call = controller.controller_unpublish_volume(request);
        self.ask("ControllerUnpublishVolume", call).await?;
        self.note(role, |made| made.attached = false);
        Ok(())
    }

    /// Deletes a volume that is there.
    pub(super) async fn delete(&mut self, role: Role) -> Answer<()> {
        let Some(id) = self.made.id(role).map(str::to_owned) else {
            return Ok(());
        };
        self.delete_volume_call(&id).await?;
        self.note(role, |made| made.state.deleted());
        Ok(())
    }

    /// Deletes the snapshot if it is there.
    pub(super) async fn delete_snapshot(&mut self) -> Answer<()> {
        let snapshot = self.made.snapshot.as_ref();
        let Some(id) = snapshot
            .and_then(|snapshot| snapshot.state.there())
            .cloned()
        else {
            return Ok(());
        };
        self.delete_snapshot_call(&id).await?;
        if let Some(snapshot) = &mut self.made.snapshot {
            snapshot.state.deleted();
        }
        Ok(())
    }

    /// Deletes once more what was deleted; says how many things.
    pub(super) async fn delete_again(&self) -> Answer<usize> {
        let mut count = 0;
        for made in &self.made.volumes {
            if let State::Deleted(volume) = &made.state {
                self.delete_volume_call(&volume.volume_id).await?;
                count += 1;
            }
        }
        if let Some(State::Deleted(id)) = self.made.snapshot.as_ref().map(|s| &s.state) {
            self.delete_snapshot_call(id).await?;
            count += 1;
        }
        Ok(count)
    }

    async fn delete_volume_call(&self, volume_id: &str) -> Answer<()> {
        let request = v1::DeleteVolumeRequest {
            volume_id: volume_id.to_owned(),
            secrets: self.trial.secrets(),
        };
        let mut controller = self.controller();
        self.ask("DeleteVolume", controller.delete_volume(request))
            .await
            .map(drop)
    }

    async fn delete_snapshot_call(&self, snapshot_id: &str) -> Answer<()> {
        let request = v1::DeleteSnapshotRequest {
            snapshot_id: snapshot_id.to_owned(),
            secrets: self.trial.secrets(),
        };
        let mut controller = self.controller();
        self.ask("DeleteSnapshot", controller.delete_snapshot(request))
            .await
            .map(drop)
    }

    /// What of ours is still listed.
    pub(super) async fn still_listed(&self) -> Answer<Vec<String>> {
        let mut listed = Vec::new();
        if self.offers.list {
            let ids = self.volume_ids().await?;
            let ours = self
                .made
                .volumes
                .iter()
                .filter_map(|made| made.state.ever());
            let left = ours.filter(|volume| ids.contains(&volume.volume_id));
            listed.extend(left.map(|volume| format!("the volume `{}`", volume.volume_id)));
        }
        let snapshot = self
            .made
            .snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.state.ever());
        if let (true, Some(id)) = (self.offers.list_snapshots, snapshot) {
            let ids = self.snapshot_ids("").await?;
            listed.extend(ids.contains(id).then(|| format!("the snapshot `{id}`")));
        }
        Ok(listed)
    }

    /// Undoes everything that was asked for, as far as that can be done; says what could not be.
    pub(super) async fn clean_up(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut pause = Pause::new(PERSISTENCE);
        loop {
            problems.clear();
            let roles = self.made.backwards();
            for role in &roles {
                problems.extend(self.let_go(*role).await.err());
            }
            // Copies before the snapshot, the snapshot before its source.
            for role in roles.iter().filter(|role| **role != Role::Original) {
                problems.extend(self.remove(*role).await.err());
            }
            problems.extend(self.remove_snapshot().await.err());
            problems.extend(self.remove(Role::Original).await.err());
            if !problems.iter().any(Trouble::is_open) || !pause.wait().await {
                break;
            }
        }
        problems.into_iter().map(|trouble| trouble.what).collect()
    }

    async fn let_go(&mut self, role: Role) -> Answer<()> {
        self.unpublish(role).await?;
        self.unstage(role).await?;
        self.detach(role).await
    }

    async fn remove(&mut self, role: Role) -> Answer<()> {
        let in_use = |made: &MadeVolume| made.published || made.staged || made.attached;
        match self.made.volume(role) {
            // To delete what is in use could destroy more than it.
            Some(made) if made.state.there().is_some() && in_use(made) => return Ok(()),
            // The answer was lost: who asks again is told what there is.
            Some(made) if made.state == State::Unknown => {
                if let Err(trouble) = self.create_again(role).await
                    && trouble.is_open()
                {
                    if trouble.is_at_work() || self.is_perhaps_listed().await {
                        return Err(trouble);
                    }
                    self.note(role, |made| made.state = State::Never);
                }
            }
            _ => {}
        }
        self.delete(role).await
    }

    async fn remove_snapshot(&mut self) -> Answer<()> {
        let unknown = |made: &MadeSnapshot| made.state == State::Unknown;
        if self.made.snapshot.as_ref().is_some_and(unknown)
            && let Err(trouble) = self.snapshot_again().await
            && trouble.is_open()
        {
            if trouble.is_at_work() || self.is_snapshot_perhaps_listed().await {
                return Err(trouble);
            }
            self.made.snapshot = None;
        }
        self.delete_snapshot().await
    }

    /// Whether a volume whose id we do not know may be there: unless the list says otherwise.
    async fn is_perhaps_listed(&self) -> bool {
        if !self.offers.list {
            return true;
        }
        let known = |id: &String| {
            let mut ours = self
                .made
                .volumes
                .iter()
                .filter_map(|made| made.state.ever());
            self.foreign.contains(id) || ours.any(|volume| volume.volume_id == *id)
        };
        self.volume_ids()
            .await
            .map_or(true, |ids| !ids.iter().all(known))
    }

    /// Whether a snapshot whose id we do not know may be there.
    async fn is_snapshot_perhaps_listed(&self) -> bool {
        let source = self.made.id(Role::Original);
        match source.filter(|_| self.offers.list_snapshots) {
            Some(source) => self
                .snapshot_ids(source)
                .await
                .map_or(true, |ids| !ids.is_empty()),
            None => true,
        }
    }

    fn note(&mut self, role: Role, note: impl FnOnce(&mut MadeVolume)) {
        if let Some(made) = self.made.volume_mut(role) {
            note(made);
        }
    }
}
