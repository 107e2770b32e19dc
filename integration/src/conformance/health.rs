//! The health of volumes, by the calls of 1.13.

use csi_proto::v1 as csi;
use tonic::Code;

use super::Target;
use super::concurrency::{at_once, only};
use super::optional::{Optional, SECRET, secrets, with};
use super::world::{World, code, ends_with};
use crate::requirement;
use crate::server::log_of;
use crate::wait;

fn question(volume_id: &str) -> csi::ControllerGetVolumeHealthRequest {
    csi::ControllerGetVolumeHealthRequest {
        volume_id: volume_id.to_owned(),
        secrets: secrets(),
    }
}

fn list(max_entries: i32, token: &str) -> csi::ControllerListVolumeHealthRequest {
    csi::ControllerListVolumeHealthRequest {
        max_entries,
        starting_token: token.to_owned(),
        secrets: secrets(),
    }
}

/// A new volume is healthy, alone and in the list of those that are not; wrong questions are refused.
pub async fn the_storage_tells_the_health_of_a_volume_however_many_ask_also_after_a_kill(
    target: &dyn Target,
) {
    let Some(mut world) = with(target, Optional::Health).await else {
        return;
    };
    let id = world.volume("healthy").await.volume_id;
    let before = world.backend();
    let healthy = csi::VolumeHealth {
        volume_id: id.clone(),
        ..Default::default()
    };
    for _ in 0..2 {
        let outcomes = at_once(&world, |mut client, _| {
            let request = question(&id);
            async move {
                client
                    .controller
                    .controller_get_volume_health(request)
                    .await
            }
        })
        .await;
        only(&outcomes, &[Code::Ok], "callers for health");
        for reply in outcomes.into_iter().flatten() {
            assert_eq!(reply.into_inner().volume_health.as_ref(), Some(&healthy));
        }
        let mut controller = world.client.controller.clone();
        let listed = controller.controller_list_volume_health(list(0, "")).await;
        let listed = listed.expect("a list").into_inner().entries;
        assert!(listed.is_empty(), "unhealthy: {listed:?}");
        for (wrong, expected) in [("", Code::InvalidArgument), ("ghost", Code::NotFound)] {
            let outcome = controller
                .controller_get_volume_health(question(wrong))
                .await;
            ends_with(outcome, &[expected], wrong);
        }
        for (request, expected) in [
            (list(-1, ""), Code::InvalidArgument),
            (list(0, "nonsense"), Code::Aborted),
        ] {
            let outcome = controller.controller_list_volume_health(request).await;
            ends_with(outcome, &[expected], "a wrong list");
        }
        world.unchanged(&before, "looking at health");
        world.crash().await;
    }
    world.remove(&id).await;
    assert!(
        !log_of(&world.place).contains(SECRET),
        "a secret in the log"
    );
    world.end().await;
}

/// A volume that is mounted is healthy at each of its paths; one that was taken away is not.
pub async fn the_node_tells_the_health_of_what_it_has(target: &dyn Target) {
    if !requirement::root("health on the node") {
        return;
    }
    let mut world = World::start(target).await;
    let mounted = world.volume("mounted").await;
    let pod = world.mount(&mounted).await;
    let text = |path: &std::path::Path| path.display().to_string();
    let whole = csi::NodeGetVolumeHealthRequest {
        volume_id: mounted.volume_id.clone(),
        volume_publish_path: text(&pod),
        staging_target_path: text(&world.staging(&mounted)),
    };
    let healthy = csi::VolumeHealth {
        volume_id: mounted.volume_id.clone(),
        ..Default::default()
    };
    for _ in 0..2 {
        // A look that takes over a second on a busy machine is no health.
        wait::until_answered("health of what is mounted", async || {
            let mut node = world.client.node.clone();
            let reply = node.node_get_volume_health(whole.clone()).await;
            let health = reply.expect("health").into_inner().volume_health;
            (health.as_ref() == Some(&healthy)).then_some(())
        })
        .await;
        world.crash().await;
    }
    world.unmount(&mounted).await;
    let mut node = world.client.node.clone();
    let gone = node.node_get_volume_health(whole.clone()).await;
    let is_well = gone
        .as_ref()
        .ok()
        .and_then(|reply| reply.get_ref().volume_health.as_ref());
    let is_well = is_well.is_some_and(|health| health.health_statuses.is_empty());
    assert!(!is_well, "what is not mounted is not well: {gone:?}");
    assert!(
        [Code::Ok, Code::NotFound].contains(&code(&gone)),
        "{gone:?}"
    );
    let nameless = csi::NodeGetVolumeHealthRequest {
        volume_id: String::new(),
        ..whole
    };
    let outcome = node.node_get_volume_health(nameless).await;
    ends_with(outcome, &[Code::InvalidArgument], "without a volume");
    world.remove(&mounted.volume_id).await;
    world.end().await;
}
