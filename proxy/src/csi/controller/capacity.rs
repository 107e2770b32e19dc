//! Capacity for new volumes: of one connection, or the largest of several.

use std::sync::Arc;

use csi_proto::v1;
use driver_core::{CapacityQuery, Error};
use tokio::time::{Instant, timeout};

use super::pages::{silent, time_for};
use super::turns::in_turns;
use super::{about, offered};
use crate::csi::decode::CapacityRequest;
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::rpc::in_flight::Keys;
use crate::rpc::{Incoming, Task};

pub(super) async fn capacity(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::GetCapacityRequest,
) -> Result<v1::GetCapacityResponse, Error> {
    offered(&plugin, "capacity", |can| can.capacity)?;
    let request = CapacityRequest::try_from(request)?;
    let connections = plugin.connections.for_room(&request.query.parameters)?;
    let subject = match connections.as_slice() {
        [only] => about(Some(only.name())),
        _ => about(None),
    };
    let several = connections.len() > 1;
    let task = incoming.admit(subject, Keys::none())?;
    let began = Instant::now();
    let rooms = connections.iter().map(async |lazy| {
        let asked = async {
            let connection = lazy.look().await?;
            room(&task, &connection, several, &request).await
        };
        if !several {
            return asked.await;
        }
        // The others do not wait for one that does not answer.
        let limit = time_for(began.elapsed(), plugin.states.is_bad(lazy.name()));
        let answered = timeout(limit, asked).await;
        answered.unwrap_or_else(|_| Err(silent("ask for capacity", limit)))
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
    // A connection that does not answer does not reduce the capacity of the others.
    match (largest, trouble) {
        (None, Some(error)) => Err(error),
        (largest, _) => Ok(largest.unwrap_or_default()),
    }
}

/// The capacity of one connection for the request. A sum over several would promise a volume that
/// none of them can hold.
async fn room(
    task: &Task,
    connection: &Connection,
    several: bool,
    request: &CapacityRequest,
) -> Result<v1::GetCapacityResponse, Error> {
    let place = request.query.topology.as_ref();
    let none = v1::GetCapacityResponse::default;
    // No capacity where volumes are not reachable. compat: "Topology of the proxy".
    if place.is_some_and(|place| !connection.accessibility().fits(place)) {
        return Ok(none());
    }
    // No capacity in a connection that creates no volumes: it would look unlimited otherwise.
    if !connection.makes_new_volumes() || (several && !connection.can().volumes) {
        return Ok(none());
    }
    // No capacity for a volume that cannot be created. compat: "Capabilities".
    let refused = connection.refusal(&request.capabilities).is_some();
    if refused && connection.is_routed() {
        return Ok(none());
    }
    if connection.is_routed() && !connection.can().capacity {
        // compat: "The proxy": no limit is known.
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
