//! Creating a volume: which connections are candidates, which one is used, and what fills the
//! volume.
//!
//! A class may name several connections. A volume that exists in one of them stays there, even if
//! that connection would not create it today. Otherwise a connection where an earlier attempt
//! started it is the only candidate. Without one, topology and capacity decide. A
//! part that was started elsewhere and never became a volume is left to its driver: nothing is
//! deleted here. compat: "The proxy".

mod choice;
mod filling;
mod unread;

use std::sync::Arc;

use csi_proto::v1;
use driver_core::{CreateVolume, Effect, Error, FindVolume, Found, Kind, Parameters, VolumeId};
use tracing::debug;

use super::volumes::only_mutable;
use super::{about_volume, offered};
use crate::csi::decode::CreateVolumeRequest;
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::connections::Connections;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Subject, Task};
use choice::in_order;
use filling::Filling;

/// One candidate connection of the class, and what the volume would be there.
#[derive(Debug)]
struct Candidate {
    connection: Arc<Connection>,
    id: VolumeId,
    keys: Keys,
    /// The content it would get there, or why it cannot be created there now.
    able: Result<Option<Filling>, Error>,
    /// Whether an earlier attempt has started it there.
    is_partial: bool,
    /// Whether another connection has a part of it as well.
    is_elsewhere: bool,
}

pub(super) async fn create(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::CreateVolumeRequest,
) -> Result<v1::CreateVolumeResponse, Error> {
    let named = Subject {
        volume: Some(request.name.clone()).filter(|name| !name.is_empty()),
        claim: claim(|key| request.parameters.get(key)),
        ..Subject::default()
    };
    named.record();
    offered(&plugin, "create volume", |can| can.volumes)?;
    let request = CreateVolumeRequest::try_from(request)?;
    let connections = plugin.connections.for_new(&request.parameters).await?;
    let candidates = candidates(&plugin.connections, connections, &request).await?;
    let subject = match candidates.as_slice() {
        [only] => about_volume(&only.connection, only.id.as_str()),
        _ => Subject {
            volume: Some(request.name.as_str().to_owned()),
            ..Subject::default()
        },
    };
    let subject = Subject {
        size: request.size.required(),
        source: request
            .source
            .as_ref()
            .map(|source| source.as_str().to_owned()),
        claim: named.claim,
        ..subject
    };
    let all = candidates.iter().map(|candidate| candidate.keys.clone());
    let keys = all.reduce(Keys::with).unwrap_or_default();
    let task = incoming.admit(subject, keys)?;
    let reads = |key: &str| {
        let mut drivers = candidates.iter().map(|one| one.connection.driver());
        drivers.any(|driver| driver.class_keys().contains(&key))
    };
    unread::warn(&request.parameters, plugin.connections.is_routed(), reads);
    let candidates = in_order(&task, candidates, &request).await?;
    make(&task, candidates, &request).await
}

/// The claim that the volume is for, if the provisioner runs with `--extra-create-metadata`.
fn claim<'a>(parameter: impl Fn(&str) -> Option<&'a String>) -> Option<String> {
    let of = |key: &str| parameter(&format!("csi.storage.k8s.io/pvc/{key}"));
    Some(format!("{}/{}", of("namespace")?, of("name")?))
}

/// The connections that may have the volume, whether they may create it or not.
async fn candidates(
    all: &Connections,
    connections: Vec<Arc<Connection>>,
    request: &CreateVolumeRequest,
) -> Result<Vec<Candidate>, Error> {
    let mut refusal = None;
    let mut found = Vec::with_capacity(connections.len());
    for connection in connections {
        match Candidate::new(all, connection, request).await {
            Ok(candidate) => found.push(candidate),
            Err(error) => drop(refusal.get_or_insert(error)),
        }
    }
    if found.is_empty() {
        let missing = || Error::invalid("request field `parameters`");
        return Err(refusal.unwrap_or_else(missing));
    }
    Ok(found)
}

/// Creates the volume in the first connection that has enough capacity.
async fn make(
    task: &Task,
    candidates: Vec<Candidate>,
    request: &CreateVolumeRequest,
) -> Result<v1::CreateVolumeResponse, Error> {
    let (mut full, several) = (None, candidates.len() > 1);
    for candidate in candidates {
        // Only a connection that already has the volume skipped this check.
        let filling = candidate
            .able
            .map_err(|refusal| choice::careful(refusal, Some(Found::Whole)))?;
        let connection = candidate.connection;
        let wanted = CreateVolume {
            name: request.name.clone(),
            id: candidate.id,
            size: request.size,
            capabilities: request.capabilities.clone(),
            parameters: request.parameters.clone(),
            secrets: request.secrets.clone(),
            source: filling.as_ref().map(Filling::source),
            topology: connection
                .accessibility()
                .for_driver(request.topology.clone()),
        };
        let object = choice::Sought {
            volume: FindVolume {
                id: &wanted.id,
                secrets: &wanted.secrets,
            },
            is_elsewhere: candidate.is_elsewhere,
        };
        if several {
            about_volume(&connection, wanted.id.as_str()).record();
            debug!("chose the connection for the volume");
        }
        let made = if let Some(filling) = &filling {
            filling.make(task, &connection, &wanted).await
        } else {
            let made = connection.driver().create_volume(&task.call, &wanted);
            task.ask(&connection, "create_volume", made).await
        };
        match made {
            Ok(volume) => {
                return encode::created_volume(&connection, &volume, request.source.as_ref());
            }
            // Nothing of it exists there, so another connection may have the capacity. A part of an
            // earlier attempt may be what filled the storage.
            Err(error) if candidate.is_partial && error.kind() == Kind::OutOfSpace => {
                return Err(choice::careful(error, Some(Found::Begun)));
            }
            Err(error)
                if error.kind() == Kind::OutOfSpace
                    && error.effect() == Effect::None
                    && task.call.effect() == Effect::None =>
            {
                let error = choice::unless_partial(task, &connection, object, error).await;
                if error.effect() == Effect::Possible {
                    return Err(error);
                }
                full = full.or(Some(error));
            }
            Err(error) => {
                return Err(choice::unless_partial(task, &connection, object, error).await);
            }
        }
    }
    Err(full.unwrap_or_else(|| Error::invalid("request field `parameters`")))
}

/// Whether volumes of the connection take these mutable parameters.
fn takes(connection: &Connection, id: &VolumeId, mutable: &Parameters) -> Result<(), Error> {
    match connection.driver().modifier() {
        _ if mutable.raw().is_empty() => Ok(()),
        Some(modifier) => {
            let doing = || format!("create volume `{id}`");
            let of_new = connection.driver().class_keys();
            only_mutable(modifier, of_new, mutable, doing)
        }
        None => Err(connection
            .lacks("take mutable parameters of a volume")
            .of_kind(Kind::Invalid)),
    }
}

// === impl Candidate ===

impl Candidate {
    async fn new(
        all: &Connections,
        connection: Arc<Connection>,
        request: &CreateVolumeRequest,
    ) -> Result<Self, Error> {
        if !connection.can().volumes {
            return Err(connection.lacks("create volume"));
        }
        let id = connection.name_volume(&request.name, &request.parameters)?;
        let here = connection.scope();
        let mut keys = Keys::none()
            .and(here, Object::Volume(id.clone()), Hold::Exclusive)
            .and(
                here,
                Object::VolumeName(request.name.clone()),
                Hold::Exclusive,
            )
            // The connection may get another storage under the same name during the call.
            .and(
                connection.name().text(),
                Object::VolumeName(request.name.clone()),
                Hold::Exclusive,
            );
        let mut able = connection
            .allow(&request.capabilities)
            .and_then(|()| connection.accessibility().accept(&request.topology))
            .and_then(|()| takes(&connection, &id, &request.mutable))
            .map(|()| None);
        if let (Ok(filled), Some(handle)) = (&mut able, &request.source) {
            match Filling::of(all, &connection, handle).await {
                Ok(filling) => {
                    keys = keys.and(filling.home().scope(), filling.object(), Hold::Shared);
                    *filled = Some(filling);
                }
                Err(error) => able = Err(error),
            }
        }
        Ok(Self {
            connection,
            id,
            keys,
            able,
            is_partial: false,
            is_elsewhere: false,
        })
    }
}
