//! The health of volumes as their storage sees it, in both dialects of the specification.
//!
//! A volume of a connection whose storage does not tell is not called unhealthy, and nothing of it is known. What could
//! not be looked at is never called healthy; in a list that had no time for it, it is not called unhealthy either.

use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use driver_core::{
    Capabilities, Conditions, Error, FindVolume, Found, HealthQuery, Kind, Page, PageRequest,
    Secrets, Volume, VolumeId,
};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::pages::{self, Listed, Listing, silent};
use super::{about, about_volume, offered_by_any, record_volume};
use crate::csi::decode;
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::message;
use crate::routing::connection::Connection;
use crate::rpc::in_flight::Keys;
use crate::rpc::{Incoming, Task};

/// The time for which a list of volumes waits for their conditions. The attacher asks for such lists every minute and gives up after
/// fifteen seconds, and needs no condition.
const IN_A_LIST: Duration = Duration::from_secs(1);
/// The time for which one volume waits for its condition. The external-health-monitor gives up after fifteen seconds, and others
/// need no condition.
const OF_ONE: Duration = Duration::from_secs(5);
/// The doing of a look.
const LOOK: &str = "look at the health of volumes";

pub(super) async fn get(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ControllerGetVolumeHealthRequest,
) -> Result<v1::ControllerGetVolumeHealthResponse, Error> {
    record_volume(&request.volume_id);
    offered_by_any(&plugin, LOOK, |can| can.health)?;
    let (handle, secrets) = decode::volume_health(request)?;
    let (connection, id) = plugin.connections.of_volume(&handle).await?;
    let subject = about_volume(&connection, handle.as_str());
    let task = incoming.admit(subject, Keys::none())?;
    let conditions = if connection.can().health {
        conditions(&task, &connection, &id).await?
    } else {
        // Volumes that were written by hand cannot be looked for.
        if connection.can().volumes {
            exists(&task, &connection, &id, &secrets).await?;
        }
        Conditions::default()
    };
    Ok(v1::ControllerGetVolumeHealthResponse {
        volume_health: Some(encode::health(handle.as_str().to_owned(), &conditions)),
    })
}

/// The conditions of a volume. `NotFound`.
async fn conditions(
    task: &Task,
    connection: &Connection,
    id: &VolumeId,
) -> Result<Conditions, Error> {
    let query = HealthQuery::of_one(id);
    let asked = connection.driver().conditions(&task.call, query);
    only(id, task.ask(connection, "conditions", asked).await?)
}

fn only(id: &VolumeId, found: Vec<Option<Conditions>>) -> Result<Conditions, Error> {
    let missing = || Error::not_found(format!("volume `{id}`"));
    found.into_iter().next().flatten().ok_or_else(missing)
}

/// The condition of a volume that was found, in the dialect up to 1.12. The volume is answered also where this is not known;
/// without a condition it would be taken for healthy. `NotFound`: it was deleted just now.
pub(super) async fn of_one(
    task: &Task,
    connection: &Connection,
    id: &VolumeId,
) -> Result<v1::VolumeCondition, Error> {
    if !connection.can().health {
        return Ok(encode::not_examined());
    }
    let query = HealthQuery::of_one(id);
    let asked = within(OF_ONE, connection.driver().conditions(&task.call, query));
    match task.ask(connection, "conditions", asked).await {
        Ok(found) => Ok(encode::condition(&only(id, found)?)),
        Err(error) if error.kind() == Kind::NotFound => Err(error),
        Err(error) => Ok(unknown(connection, &error)),
    }
}

/// The answer to a look, or that there is none in time.
async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let asked = timeout(limit, asked).await;
    asked.unwrap_or_else(|_| Err(silent(LOOK, limit)))
}

fn unknown(connection: &Connection, error: &Error) -> v1::VolumeCondition {
    let error = message::of(error);
    warn!(connection = %connection.name(), error, "the health of volumes is not known");
    encode::unknown(&error)
}

async fn exists(
    task: &Task,
    connection: &Connection,
    id: &VolumeId,
    secrets: &Secrets,
) -> Result<(), Error> {
    let asked = connection
        .driver()
        .find_volume(&task.call, FindVolume { id, secrets });
    match task.ask(connection, "find_volume", asked).await? {
        Found::Whole => Ok(()),
        Found::Begun => {
            Err(Error::not_found(format!("volume `{id}`")).because("it is not complete"))
        }
    }
}

pub(super) async fn list(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ControllerListVolumeHealthRequest,
) -> Result<v1::ControllerListVolumeHealthResponse, Error> {
    offered_by_any(&plugin, "list unhealthy volumes", lists)?;
    let page = decode::volume_healths(request)?;
    let task = incoming.admit(about(None), Keys::none())?;
    let listed = if let Some(only) = plugin.connections.sole().await? {
        pages::of_one(&task, &only, page, &Unhealthy).await?
    } else {
        let all = plugin.connections.listed();
        pages::of_all(&task, all, page, &Unhealthy, &plugin.states).await?
    };
    let Listed {
        entries,
        next_token,
    } = listed;
    Ok(v1::ControllerListVolumeHealthResponse {
        entries,
        next_token,
    })
}

fn lists(can: &Capabilities) -> bool {
    can.health && can.list_volumes
}

/// The volumes with which something is wrong.
struct Unhealthy;

impl Listing for Unhealthy {
    type Found = (VolumeId, Conditions);
    type Entry = v1::VolumeHealth;

    fn has(&self, can: &Capabilities) -> bool {
        lists(can)
    }

    async fn ask(
        &self,
        task: &Task,
        connection: &Connection,
        page: &PageRequest,
    ) -> Result<Page<Self::Found>, Error> {
        let listing = connection.driver().list_unhealthy(&task.call, page);
        task.ask_patiently(connection, "list_unhealthy", listing)
            .await
    }

    fn entry(&self, connection: &Connection, (id, found): &Self::Found) -> Self::Entry {
        encode::health(connection.volume_handle(id), found)
    }
}

/// The condition of each volume of a list, in its order, in the dialect up to 1.12: without a look at exports, which takes
/// long for many.
pub(super) async fn in_a_list(
    task: &Task,
    connection: &Connection,
    volumes: &[Volume],
) -> Vec<v1::VolumeCondition> {
    if !connection.can().health || volumes.is_empty() {
        return vec![encode::not_examined(); volumes.len()];
    }
    let ids: Vec<VolumeId> = volumes.iter().map(|volume| volume.id.clone()).collect();
    let query = HealthQuery::of_storage(&ids);
    let asked = within(IN_A_LIST, connection.driver().conditions(&task.call, query));
    match task.ask(connection, "conditions", asked).await {
        Ok(found) => {
            let one = |found: Option<Conditions>| match found {
                Some(found) => encode::condition(&found),
                // It was deleted just now.
                None => encode::not_examined(),
            };
            found.into_iter().map(one).collect()
        }
        // Nothing is known to be wrong: many volumes, or a storage far away, take longer than a list has.
        Err(error) if error.kind() == Kind::Timeout => {
            let error = message::of(&error);
            debug!(connection = %connection.name(), error, "a list has no time for conditions");
            vec![encode::not_examined_in_time(); volumes.len()]
        }
        Err(error) => vec![unknown(connection, &error); volumes.len()],
    }
}
