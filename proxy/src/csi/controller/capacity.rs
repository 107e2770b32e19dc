//! Room for new volumes: of one connection, or of the roomiest of several.

use std::sync::Arc;

use csi_proto::v1;
use driver_core::{CapacityQuery, Error};

use super::turns::in_turns;
use super::{about, offered};
use crate::csi::decode::CapacityRequest;
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::rpc::in_flight::Keys;
use crate::rpc::{Job, Task};

pub(super) fn capacity(
    plugin: &Arc<Plugin>,
    request: v1::GetCapacityRequest,
) -> Result<Job<v1::GetCapacityResponse>, Error> {
    offered(plugin, "capacity", |can| can.capacity)?;
    let request = CapacityRequest::try_from(request)?;
    let connections = plugin.connections.for_room(&request.query.parameters)?;
    let subject = match connections.as_slice() {
        [only] => about(Some(only.name())),
        _ => about(None),
    };
    let several = connections.len() > 1;
    Ok(Job::new(subject, Keys::none(), async move |task| {
        let rooms = connections.iter().map(async |lazy| {
            let connection = lazy.look().await?;
            room(&task, &connection, several, &request).await
        });
        let (mut largest, mut trouble) = (None, None);
        for room in in_turns(rooms).await {
            match room {
                Ok(room) => {
                    let more = |known: &v1::GetCapacityResponse| {
                        room.available_capacity > known.available_capacity
                    };
                    if largest.as_ref().is_none_or(more) {
                        largest = Some(room);
                    }
                }
                Err(error) => trouble = Some(error),
            }
        }
        // What the others have is no less for one that does not answer.
        match (largest, trouble) {
            (None, Some(error)) => Err(error),
            (largest, _) => Ok(largest.unwrap_or_default()),
        }
    }))
}

/// The room of one connection for what is asked. A sum of several would promise a volume that none
/// of them can hold.
async fn room(
    task: &Task,
    connection: &Connection,
    several: bool,
    request: &CapacityRequest,
) -> Result<v1::GetCapacityResponse, Error> {
    let place = request.query.topology.as_ref();
    let none = v1::GetCapacityResponse::default;
    // There is no room at all where volumes are not reached. compat: "Topology of the proxy".
    if place.is_some_and(|place| !connection.accessibility().fits(place)) {
        return Ok(none());
    }
    // Nor where none can be made: the room of others must not look endless because of it.
    if !connection.makes_new_volumes() || (several && !connection.can().volumes) {
        return Ok(none());
    }
    // Nor for a volume that cannot be made. compat: "Capabilities".
    let refused = connection.refusal(&request.capabilities).is_some();
    if refused && connection.name().is_named() {
        return Ok(none());
    }
    if connection.name().is_named() && !connection.can().capacity {
        // compat: "The proxy": nothing is known that would stop a volume.
        return Ok(v1::GetCapacityResponse {
            available_capacity: i64::MAX,
            ..v1::GetCapacityResponse::default()
        });
    }
    let query = CapacityQuery {
        parameters: request.query.parameters.clone(),
        topology: place.map(|place| connection.accessibility().place_for_driver(place)),
    };
    let room = connection.driver().capacity(&task.call, &query);
    let room = task.ask_patiently(connection, "capacity", room).await?;
    // After the query, so that a failure of the storage is always reported.
    if refused {
        return Ok(none());
    }
    Ok(v1::GetCapacityResponse {
        available_capacity: encode::bytes(room.available),
        maximum_volume_size: room.maximum_volume_size.map(encode::bytes),
        minimum_volume_size: room.minimum_volume_size.map(encode::bytes),
    })
}
