//! The end of a volume's life, and the proof that it has left nothing.

use super::super::folder::Folder;
use super::super::journal::Outcome;
use super::super::made::{Made, Role};
use super::super::orchestrator::{Answer, Orchestrator};
use super::super::step::Step;
use super::super::story::{Stop, Story};
use super::super::trouble::Trouble;

pub(super) async fn end(
    story: &mut Story,
    cluster: &mut Orchestrator,
    folder: &Folder,
) -> Result<(), Stop> {
    if cluster.offers.create {
        let gone = async { from_node(cluster, Step::Unpublish).await };
        story.step(Step::Unpublish, gone).await?;
        for (step, offered) in [
            (Step::Unstage, cluster.offers.stage),
            (Step::Detach, cluster.offers.attach),
        ] {
            if offered {
                story
                    .step(step, async { from_node(cluster, step).await })
                    .await?;
            } else {
                story.leave_out(step, Outcome::NotOffered);
            }
        }
        delete(story, cluster).await?;
    }
    let nothing = async { Ok(((), nothing_left(cluster, folder).await?)) };
    story.step(Step::NothingLeft, nothing).await
}

async fn from_node(cluster: &mut Orchestrator, step: Step) -> Answer<((), String)> {
    let roles = cluster.made.backwards();
    for role in &roles {
        match step {
            Step::Unpublish => cluster.unpublish(*role).await?,
            Step::Unstage => cluster.unstage(*role).await?,
            _ => cluster.detach(*role).await?,
        }
    }
    Ok(((), volumes(roles.len())))
}

async fn delete(story: &mut Story, cluster: &mut Orchestrator) -> Result<(), Stop> {
    let copies = cluster.made.backwards();
    let copies: Vec<_> = copies
        .into_iter()
        .filter(|role| *role != Role::Original)
        .collect();
    if copies.is_empty() {
        story.leave_out(Step::DeleteCopies, Outcome::NotOffered);
    } else {
        let deleted = async {
            for role in &copies {
                cluster.delete(*role).await?;
            }
            Ok(((), volumes(copies.len())))
        };
        story.step(Step::DeleteCopies, deleted).await?;
    }
    if cluster.offers.snapshot {
        let deleted = async { Ok(((), cluster.delete_snapshot().await.map(|()| String::new())?)) };
        story.step(Step::DeleteSnapshot, deleted).await?;
    } else {
        story.leave_out(Step::DeleteSnapshot, Outcome::NotOffered);
    }
    let deleted = async {
        Ok((
            (),
            cluster
                .delete(Role::Original)
                .await
                .map(|()| String::new())?,
        ))
    };
    story.step(Step::DeleteVolume, deleted).await?;
    let again = async {
        let count = cluster.delete_again().await?;
        Ok(((), format!("{count} answers, all the same")))
    };
    story.step(Step::DeleteAgain, again).await
}

fn volumes(count: usize) -> String {
    match count {
        1 => "1 volume".to_owned(),
        _ => format!("{count} volumes"),
    }
}

/// Looks everywhere where something could be left.
async fn nothing_left(cluster: &Orchestrator, folder: &Folder) -> Answer<String> {
    let mut left = cluster.made.remains();
    left.extend(cluster.still_listed().await?);
    let seen = |error: std::io::Error| Trouble::seen(error.to_string());
    let show = |path: &std::path::PathBuf| path.display().to_string();
    left.extend(
        folder
            .mounts()
            .map_err(seen)?
            .iter()
            .map(show)
            .map(|path| format!("mount {path}")),
    );
    let mut looked = vec!["mounts"];
    if cluster.trial.config.is_none() {
        left.extend(folder.left_in_base().map_err(seen)?.iter().map(show));
        looked.push("files");
    }
    if cluster.offers.list {
        looked.push("volumes");
    }
    let Made { snapshot, .. } = &cluster.made;
    if snapshot.is_some() && cluster.offers.list_snapshots {
        looked.push("snapshots");
    }
    match left.as_slice() {
        [] => Ok(format!("no {}", looked.join(", "))),
        left => Err(Trouble::seen(format!("still there: {}", left.join(", ")))),
    }
}
