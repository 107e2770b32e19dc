//! The life of a volume, as a cluster makes its volumes live.

use csi_proto::v1;
use csi_proto::v1::volume_usage::Unit;

use super::content::{Edition, LENGTH};
use super::flags::AccessFlag;
use super::folder::Folder;
use super::journal::Outcome;
use super::made::Role;
use super::making::Origin;
use super::orchestrator::{Answer, Orchestrator};
use super::step::Step;
use super::story::{Stop, Story};
use super::trial::Size;
use super::trouble::Trouble;

/// Everything, from the first question to the proof that nothing is left.
pub(super) async fn live(
    story: &mut Story,
    cluster: &mut Orchestrator,
    folder: &Folder,
) -> Result<(), Stop> {
    meet(story, cluster).await?;
    begin(story, cluster, folder).await?;
    copy(story, cluster, folder).await?;
    grow(story, cluster).await?;
    if cluster.trial.keep {
        for step in Step::ALL
            .into_iter()
            .filter(|step| *step as usize >= Step::Unpublish as usize)
        {
            story.leave_out(step, Outcome::Kept);
        }
        return Ok(());
    }
    end(story, cluster, folder).await
}

async fn meet(story: &mut Story, cluster: &mut Orchestrator) -> Result<(), Stop> {
    let ready = async { cluster.probe().await.map(|()| ((), String::new())) };
    story.step(Step::Probe, ready).await?;
    let name = async { Ok(((), cluster.identify().await?)) };
    story.step(Step::Identify, name).await?;
    let offers = async {
        cluster.learn().await?;
        if cluster.offers.list {
            cluster.foreign = cluster.volume_ids().await?;
        }
        Ok(((), cluster.offers.summary()))
    };
    story.step(Step::Capabilities, offers).await?;
    if cluster.offers.capacity {
        let free = async { Ok(((), format!("{} free", cluster.capacity().await?))) };
        story.step(Step::Capacity, free).await
    } else {
        story.leave_out(Step::Capacity, Outcome::NotOffered);
        Ok(())
    }
}

async fn begin(story: &mut Story, cluster: &mut Orchestrator, folder: &Folder) -> Result<(), Stop> {
    if !cluster.offers.create {
        // Nothing else can be tried of a driver whose volumes are made elsewhere.
        let rest = Step::ALL
            .into_iter()
            .skip_while(|step| *step != Step::Create);
        for step in rest.take_while(|step| *step != Step::NothingLeft) {
            story.leave_out(step, Outcome::NotOffered);
        }
        return Ok(());
    }
    let created = async { Ok(((), cluster.create(Role::Original, Origin::Nothing).await?)) };
    story.step(Step::Create, created).await?;
    if cluster.offers.attach {
        let attached = async { Ok(((), attach(cluster, Role::Original).await?)) };
        story.step(Step::Attach, attached).await?;
    } else {
        story.leave_out(Step::Attach, Outcome::NotOffered);
    }
    if cluster.offers.stage {
        let staged = async { Ok(((), stage(cluster, folder, Role::Original).await?)) };
        story.step(Step::Stage, staged).await?;
    } else {
        story.leave_out(Step::Stage, Outcome::NotOffered);
    }
    let published = async { Ok(((), publish(cluster, folder, Role::Original).await?)) };
    story.step(Step::Publish, published).await?;
    let written = async { Ok(((), write(cluster, Role::Original, Edition::First).await?)) };
    story.step(Step::Write, written).await?;
    if cluster.offers.stats {
        let stats = async { Ok(((), stats(cluster).await?)) };
        story.step(Step::Stats, stats).await
    } else {
        story.leave_out(Step::Stats, Outcome::NotOffered);
        Ok(())
    }
}

async fn copy(story: &mut Story, cluster: &mut Orchestrator, folder: &Folder) -> Result<(), Stop> {
    if !cluster.offers.create {
        return Ok(());
    }
    if cluster.offers.snapshot {
        let taken = async { Ok(((), cluster.snapshot().await?)) };
        story.step(Step::Snapshot, taken).await?;
    } else {
        story.leave_out(Step::Snapshot, Outcome::NotOffered);
    }
    let changed = async { Ok(((), write(cluster, Role::Original, Edition::Second).await?)) };
    story.step(Step::Change, changed).await?;
    let restored = Copy {
        role: Role::Restored,
        origin: Origin::Snapshot,
        edition: Edition::First,
        steps: [Step::Restore, Step::UseRestored, Step::CompareRestored],
        offered: cluster.offers.snapshot,
    };
    restored.make(story, cluster, folder).await?;
    let clone = Copy {
        role: Role::Clone,
        origin: Origin::Original,
        edition: Edition::Second,
        steps: [Step::Clone, Step::UseClone, Step::CompareClone],
        offered: cluster.offers.clone,
    };
    clone.make(story, cluster, folder).await?;
    if cluster.offers.snapshot || cluster.offers.clone {
        let apart = async { Ok(((), independent(cluster).await?)) };
        story.step(Step::Independent, apart).await
    } else {
        story.leave_out(Step::Independent, Outcome::NotOffered);
        Ok(())
    }
}

/// A copy of the volume: how it is made, and what it has to hold.
struct Copy {
    role: Role,
    origin: Origin,
    edition: Edition,
    steps: [Step; 3],
    offered: bool,
}

// === impl Copy ===

impl Copy {
    async fn make(
        self,
        story: &mut Story,
        cluster: &mut Orchestrator,
        folder: &Folder,
    ) -> Result<(), Stop> {
        if !self.offered {
            self.steps
                .into_iter()
                .for_each(|step| story.leave_out(step, Outcome::NotOffered));
            return Ok(());
        }
        let (role, [make, publish, compare]) = (self.role, self.steps);
        let made = async { Ok(((), cluster.create(role, self.origin).await?)) };
        story.step(make, made).await?;
        let usable = async { Ok(((), bring(cluster, folder, role).await?)) };
        story.step(publish, usable).await?;
        let same = async { Ok(((), look(cluster, role, self.edition).await?)) };
        story.step(compare, same).await
    }
}

async fn grow(story: &mut Story, cluster: &mut Orchestrator) -> Result<(), Stop> {
    if !cluster.offers.create {
        return Ok(());
    }
    if cluster.offers.expand {
        let from = cluster.trial.size;
        let grown = async {
            let size = cluster.expand().await?;
            look(cluster, Role::Original, Edition::Second).await?;
            Ok(((), format!("from {from} to {size}")))
        };
        story.step(Step::Expand, grown).await?;
    } else {
        story.leave_out(Step::Expand, Outcome::NotOffered);
    }
    if cluster.offers.get {
        let health = async { Ok(((), health(cluster).await?)) };
        story.step(Step::Health, health).await?;
    } else {
        story.leave_out(Step::Health, Outcome::NotOffered);
    }
    if cluster.offers.list {
        let listed = async { Ok(((), listed(cluster).await?)) };
        story.step(Step::ListVolumes, listed).await?;
    } else {
        story.leave_out(Step::ListVolumes, Outcome::NotOffered);
    }
    if cluster.offers.snapshot && cluster.offers.list_snapshots {
        let listed = async { Ok(((), snapshot_listed(cluster).await?)) };
        story.step(Step::ListSnapshots, listed).await
    } else {
        story.leave_out(Step::ListSnapshots, Outcome::NotOffered);
        Ok(())
    }
}

mod end;
use end::end;

async fn attach(cluster: &mut Orchestrator, role: Role) -> Answer<String> {
    cluster.attach(role).await?;
    Ok(cluster.node_id.clone())
}

async fn stage(cluster: &mut Orchestrator, folder: &Folder, role: Role) -> Answer<String> {
    let points = folder
        .mount_points(role.suffix())
        .map_err(|e| Trouble::seen(e.to_string()))?;
    cluster.stage(role, points).await?;
    Ok(String::new())
}

async fn publish(cluster: &mut Orchestrator, folder: &Folder, role: Role) -> Answer<String> {
    let points = folder
        .mount_points(role.suffix())
        .map_err(|e| Trouble::seen(e.to_string()))?;
    let target = points.target.to_string();
    cluster.publish(role, points).await?;
    Ok(target
        .strip_prefix(&format!("{}/", folder.path()))
        .map(str::to_owned)
        .unwrap_or(target))
}

/// The whole way of a volume to its pod.
async fn bring(cluster: &mut Orchestrator, folder: &Folder, role: Role) -> Answer<String> {
    if cluster.offers.attach {
        attach(cluster, role).await?;
    }
    if cluster.offers.stage {
        stage(cluster, folder, role).await?;
    }
    publish(cluster, folder, role).await
}

async fn write(cluster: &Orchestrator, role: Role, edition: Edition) -> Answer<String> {
    on_target(cluster, role, move |target, access| {
        edition.write(target, access)
    })
    .await?;
    let size = Size(i64::try_from(LENGTH).unwrap_or(i64::MAX));
    Ok(match cluster.trial.access {
        AccessFlag::Mount => format!("3 files, {size}, flushed"),
        AccessFlag::Block => format!("{size}, flushed"),
    })
}

async fn look(cluster: &Orchestrator, role: Role, edition: Edition) -> Answer<String> {
    on_target(cluster, role, move |target, access| {
        edition.compare(target, access)
    })
    .await?;
    Ok("every byte is the same".to_owned())
}

/// Works on a published volume, where that may block.
async fn on_target(
    cluster: &Orchestrator,
    role: Role,
    work: impl FnOnce(&std::path::Path, AccessFlag) -> Result<(), String> + Send + 'static,
) -> Answer<()> {
    let points = cluster
        .made
        .volume(role)
        .and_then(|made| made.points.clone());
    let target = points
        .ok_or_else(|| Trouble::seen("the volume is not published"))?
        .target;
    let access = cluster.trial.access;
    let work = tokio::task::spawn_blocking(move || work(target.as_path(), access));
    match work.await {
        Ok(done) => done.map_err(Trouble::seen),
        Err(error) => Err(Trouble::seen(error.to_string())),
    }
}

/// Writes to the copies and finds the original as it was.
async fn independent(cluster: &Orchestrator) -> Answer<String> {
    let copies = [Role::Restored, Role::Clone];
    let copies = copies
        .into_iter()
        .filter(|role| cluster.made.id(*role).is_some());
    for role in copies {
        write(cluster, role, Edition::Other).await?;
    }
    look(cluster, Role::Original, Edition::Second).await?;
    Ok("the original is unchanged".to_owned())
}

async fn stats(cluster: &mut Orchestrator) -> Answer<String> {
    let (volume, made) = cluster.there(Role::Original)?;
    let points = made
        .points
        .clone()
        .ok_or_else(|| Trouble::seen("it is not published"))?;
    let request = v1::NodeGetVolumeStatsRequest {
        volume_id: volume.volume_id,
        volume_path: points.target.to_string(),
        staging_target_path: points.staging.to_string(),
    };
    let mut node = cluster.node();
    let call = node.node_get_volume_stats(request);
    let answer = cluster.ask("NodeGetVolumeStats", call).await?;
    let condition = condition(answer.volume_condition.as_ref())?;
    let bytes = answer
        .usage
        .iter()
        .find(|usage| usage.unit() == Unit::Bytes);
    Ok(match bytes {
        Some(usage) => format!(
            "{} of {} used{condition}",
            Size(usage.used),
            Size(usage.total)
        ),
        None => format!("no figures{condition}"),
    })
}

async fn health(cluster: &Orchestrator) -> Answer<String> {
    let volume_id = cluster
        .made
        .id(Role::Original)
        .unwrap_or_default()
        .to_owned();
    let mut controller = cluster.controller();
    let call = controller.controller_get_volume(v1::ControllerGetVolumeRequest { volume_id });
    let answer = cluster.ask("ControllerGetVolume", call).await?;
    let status = answer.status.unwrap_or_default();
    let condition = condition(status.volume_condition.as_ref())?;
    Ok(format!("it is there{condition}"))
}

fn condition(condition: Option<&v1::VolumeCondition>) -> Answer<&'static str> {
    match condition {
        Some(bad) if bad.abnormal => Err(Trouble::seen(format!(
            "the volume is not healthy: {}",
            bad.message
        ))),
        Some(_) => Ok(", healthy"),
        None => Ok(""),
    }
}

async fn listed(cluster: &Orchestrator) -> Answer<String> {
    let ids = cluster.volume_ids().await?;
    let ours: Vec<_> = cluster
        .made
        .volumes
        .iter()
        .filter_map(|made| made.state.there())
        .collect();
    match ours.iter().find(|volume| !ids.contains(&volume.volume_id)) {
        Some(missing) => Err(Trouble::seen(format!(
            "the list does not have `{}`",
            missing.volume_id
        ))),
        None => Ok(format!("{} of ours among {}", ours.len(), ids.len())),
    }
}

async fn snapshot_listed(cluster: &Orchestrator) -> Answer<String> {
    let source = cluster.made.id(Role::Original).unwrap_or_default();
    let ids = cluster.snapshot_ids(source).await?;
    let snapshot = cluster
        .made
        .snapshot
        .as_ref()
        .and_then(|made| made.state.there());
    match snapshot.filter(|id| ids.contains(*id)) {
        Some(_) if ids.len() == 1 => Ok("the only one of this volume".to_owned()),
        Some(_) => Err(Trouble::seen(
            "the list of this volume's snapshots has others, too",
        )),
        None => Err(Trouble::seen("the list does not have it")),
    }
}
