//! How everything is undone: in the steps of the end, after a failure, and after a run that was killed.

use std::mem;

use csi_proto::v1;
use tokio::time::Instant;

use super::{Cluster, PERSISTENCE, client_of, pause};
use crate::Program;
use crate::client::{Answer, Failure};
use crate::folder::Folder;
use crate::journal::{Journal, Made, Role};
use crate::requests;
use crate::step::Step;

// === impl Cluster ===

impl<P: Program> Cluster<P> {
    /// Cleans up after runs that were killed: of the same storage, and of one in its own folder.
    pub(super) async fn recover(&mut self) -> Answer<String> {
        let mut count = 0;
        for folder in Folder::all() {
            match Journal::of_the_dead(&folder) {
                Some(journal) if journal.config.is_none() => {}
                Some(journal) if journal.config == self.journal.config => {
                    self.clean_up_after(folder.clone(), journal).await?;
                }
                _ => continue,
            }
            folder.remove().map_err(Failure::seen)?;
            count += 1;
        }
        Ok(match count {
            0 => "there are none".to_owned(),
            1 => "1 run".to_owned(),
            count => format!("{count} runs"),
        })
    }

    async fn clean_up_after(&mut self, folder: Folder, journal: Journal) -> Answer<()> {
        let own = mem::replace(&mut self.journal, journal);
        let own_folder = mem::replace(&mut self.folder, folder);
        let problems = self.clean_up().await.join("; ");
        let journal = mem::replace(&mut self.journal, own);
        let folder = mem::replace(&mut self.folder, own_folder);
        match journal.remains(folder.name()).as_slice() {
            [] => Ok(()),
            left => {
                let left = left.join(", ");
                let what = format!("{} still has {left}: {problems}", folder.path());
                Err(Failure::seen(what))
            }
        }
    }

    /// Takes all volumes from where this step says.
    pub(super) async fn withdraw_all(&self, step: Step) -> Answer<String> {
        for role in self.journal.backwards() {
            self.withdraw(role, step).await?;
        }
        Ok(String::new())
    }

    /// Takes a volume from its pod, from this node, or lets this node in no longer. What was not done is
    /// undone as well: a lost answer may have been a success.
    async fn withdraw(&self, role: Role, step: Step) -> Answer<()> {
        let made = self.journal.there(role).ok();
        let made = made.filter(|made| made.role != Role::Snapshot && !made.id.is_empty());
        let Some(volume_id) = made.map(|made| made.id) else {
            return Ok(());
        };
        let (staging, target) = self.paths(role);
        if step == Step::Unpublish {
            let target_path = target.to_string();
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id,
                target_path,
            };
            self.client.node_unpublish_volume(request).await?;
        } else if step == Step::Unstage && self.offered.contains("NodeUnstageVolume") {
            let staging_target_path = staging.to_string();
            let request = v1::NodeUnstageVolumeRequest {
                volume_id,
                staging_target_path,
            };
            self.client.node_unstage_volume(request).await?;
        } else if step == Step::Detach && self.offered.contains("ControllerUnpublishVolume") {
            let (node_id, secrets) = (self.node_id.clone(), self.flags.secrets());
            let request = v1::ControllerUnpublishVolumeRequest {
                volume_id,
                node_id,
                secrets,
            };
            self.client.controller_unpublish_volume(request).await?;
        }
        Ok(())
    }

    /// Deletes what is there.
    pub(super) async fn delete(&mut self, roles: &[Role]) -> Answer<String> {
        for role in roles.iter().copied() {
            if let Ok(made) = self.journal.there(role) {
                self.delete_made(&made).await?;
                self.journal.note(role, |made| made.gone = true)?;
            }
        }
        Ok(String::new())
    }

    async fn delete_made(&self, made: &Made) -> Answer<()> {
        let secrets = self.flags.secrets();
        if made.role == Role::Snapshot {
            let request = requests::delete_snapshot(&made.id);
            let request = v1::DeleteSnapshotRequest { secrets, ..request };
            return self.client.delete_snapshot(request).await.map(drop);
        }
        let request = requests::delete(&made.id);
        let request = v1::DeleteVolumeRequest { secrets, ..request };
        self.client.delete_volume(request).await.map(drop)
    }

    /// Deletes once more what was deleted.
    pub(super) async fn delete_again(&self) -> Answer<String> {
        for made in self.journal.known() {
            self.delete_made(made).await?;
        }
        let count = self.journal.known().count();
        Ok(format!("{count} answers, all the same"))
    }

    /// Looks everywhere where something could be left.
    pub(super) async fn nothing_left(&self) -> Answer<String> {
        let name = self.folder.name();
        let mut left = self.journal.remains(name);
        let mounts = self.folder.mounts().map_err(Failure::seen)?;
        let mounts = mounts.iter().map(|path| path.display());
        left.extend(mounts.map(|path| format!("the mount {path}")));
        let listed = self.listed().await?;
        let ours = self.journal.known();
        let ours = ours.filter(|made| listed.contains(&made.id));
        left.extend(ours.map(|made| made.in_words(name)));
        match left.as_slice() {
            [] => Ok("no mounts, volumes, snapshots".to_owned()),
            left => Err(Failure::seen(format!("still there: {}", left.join(", ")))),
        }
    }

    /// Stops the server, and removes the folder unless the next run needs it to clean up.
    pub(crate) async fn stop(&mut self) -> Answer<String> {
        // The server waits for its clients to leave.
        self.client = client_of(&self.folder, self.client.patience)?;
        self.program.stop().await.map_err(Failure::seen)?;
        let left = self.journal.remains(self.folder.name());
        if left.is_empty() || self.journal.config.is_none() {
            self.folder.remove().map_err(Failure::seen)?;
        }
        Ok(String::new())
    }

    /// Undoes everything that was asked for, as far as that can be done; says what stood in the way.
    pub(crate) async fn clean_up(&mut self) -> Vec<String> {
        let end = Instant::now() + PERSISTENCE;
        loop {
            let mut problems = Vec::new();
            // Copies before the snapshot, the snapshot before its source.
            for role in self.journal.backwards() {
                problems.extend(self.undo(role).await.err());
            }
            let again = problems.iter().any(Failure::is_open);
            if !again || pause(end, "").await.is_err() {
                return problems.into_iter().map(|failure| failure.what).collect();
            }
        }
    }

    /// Undoes one thing. What is in use is not deleted: that could destroy more than it.
    async fn undo(&mut self, role: Role) -> Answer<()> {
        for step in [Step::Unpublish, Step::Unstage, Step::Detach] {
            self.withdraw(role, step).await?;
        }
        let unknown = self
            .journal
            .there(role)
            .is_ok_and(|made| made.id.is_empty());
        // The answer was lost: to ask again tells what there is.
        if unknown
            && let Err(failure) = self.ask_for(role).await
            && failure.is_open()
        {
            return Err(failure);
        }
        self.delete(&[role]).await.map(drop)
    }
}
