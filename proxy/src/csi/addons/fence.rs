//! Fences over connections: a node that is lost must not write any more before its volumes are attached elsewhere.
//!
//! Success is a promise about all connections that the call is about, so one that cannot fence refuses it before anything is
//! changed. Storage of a node itself is passed over: it is lost with the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use csi_proto::fence as wire;
use csi_types::Network;
use driver_core::fence::FENCE;
use driver_core::{Effect, Error, FenceNetworks, Kind, NodeId, Parameters};
use futures_util::future::join_all;

use crate::csi::decode::{FenceRequest, fence_query};
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::connections::LazyConnection;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Subject, Task};

/// The advice where one of several connections refuses.
const NAME_OTHERS: &str = "name the connections that can in `parameters`: `connection`, or `connections` with \
                           commas between";

/// The connections that a call is about.
struct Meant {
    /// Those that can fence.
    able: Vec<Arc<Connection>>,
    /// Why others cannot be asked now.
    broken: Option<Error>,
}

/// The change of a fence.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// Shuts the networks out.
    Fence,
    /// Lets them in again.
    Unfence,
}

pub(super) async fn fence(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: wire::FenceClusterNetworkRequest,
) -> Result<wire::FenceClusterNetworkResponse, Error> {
    change(&plugin, incoming, request.try_into()?, Change::Fence).await?;
    Ok(wire::FenceClusterNetworkResponse {})
}

pub(super) async fn unfence(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: wire::UnfenceClusterNetworkRequest,
) -> Result<wire::UnfenceClusterNetworkResponse, Error> {
    change(&plugin, incoming, request.try_into()?, Change::Unfence).await?;
    Ok(wire::UnfenceClusterNetworkResponse {})
}

/// Changes the fences of all connections that are meant, at the same time.
async fn change(
    plugin: &Plugin,
    incoming: Incoming,
    request: FenceRequest,
    change: Change,
) -> Result<(), Error> {
    let FenceRequest {
        networks,
        parameters,
    } = request;
    let Meant { able, broken } = meant(plugin, &parameters).await?;
    let task = incoming.admit(about(&able), keys(&able, &networks))?;
    let (task, networks) = (&task, &networks);
    if let (Change::Fence, [_, _, ..]) = (change, able.as_slice()) {
        check(task, &able).await?;
    }
    let addresses_of = &|node: &NodeId| reported_addresses(plugin, node);
    let changed = able.iter().map(|connection| async move {
        let (driver, call) = (connection.driver(), &task.call);
        let request = FenceNetworks {
            networks,
            addresses_of,
        };
        match change {
            Change::Fence => {
                let work = driver.fence_networks(call, request);
                task.ask(connection, "fence_networks", work).await
            }
            Change::Unfence => {
                let work = driver.unfence_networks(call, request);
                task.ask(connection, "unfence_networks", work).await
            }
        }
    });
    let is_begun = !able.is_empty();
    all(able.iter().zip(join_all(changed).await), broken, is_begun)?;
    Ok(())
}

/// Fails if the storage of one of several connections cannot cut off a node: none of them is changed then. One that
/// does not answer does not hold up the others.
async fn check(task: &Task, able: &[Arc<Connection>]) -> Result<(), Error> {
    let checked = able.iter().map(|connection| async move {
        let work = connection.driver().check_fence(&task.call);
        task.ask_patiently(connection, "check_fence", work).await
    });
    let mut refused = join_all(checked).await.into_iter().filter_map(Result::err);
    let refused = refused.find(|error| matches!(error.kind(), Kind::Unsupported | Kind::Invalid));
    refused.map_or(Ok(()), |error| Err(error.advise(NAME_OTHERS)))
}

pub(super) async fn list(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: wire::ListClusterFenceRequest,
) -> Result<wire::ListClusterFenceResponse, Error> {
    let parameters = fence_query(request.parameters, request.secrets)?;
    let Meant { able, broken } = meant(&plugin, &parameters).await?;
    let task = incoming.admit(about(&able), Keys::none())?;
    let task = &task;
    let listed = able.iter().map(|connection| async move {
        let work = connection.driver().fenced_networks(&task.call);
        task.ask(connection, "fenced_networks", work).await
    });
    let lists = all(able.iter().zip(join_all(listed).await), broken, false)?;
    let networks: BTreeSet<Network> = lists.into_iter().flatten().collect();
    Ok(wire::ListClusterFenceResponse {
        cidrs: networks.iter().map(cidr).collect(),
    })
}

pub(super) async fn clients(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: wire::GetFenceClientsRequest,
) -> Result<wire::GetFenceClientsResponse, Error> {
    let parameters = fence_query(request.parameters, request.secrets)?;
    let Meant { able, broken } = meant(&plugin, &parameters).await?;
    let task = incoming.admit(about(&able), Keys::none())?;
    let task = &task;
    let listed = able.iter().map(|connection| async move {
        let work = connection.driver().fence_clients(&task.call);
        task.ask(connection, "fence_clients", work).await
    });
    let lists = all(able.iter().zip(join_all(listed).await), broken, false)?;
    let mut nodes: BTreeMap<NodeId, BTreeSet<Network>> = BTreeMap::new();
    for client in lists.into_iter().flatten() {
        let addresses = reported_addresses(&plugin, &client.node).into_iter();
        let addresses = addresses.chain(client.addresses).map(Network::of);
        nodes.entry(client.node).or_default().extend(addresses);
    }
    let client = |(node, addresses): (NodeId, BTreeSet<Network>)| wire::ClientDetails {
        id: node.as_str().to_owned(),
        addresses: addresses.iter().map(cidr).collect(),
    };
    Ok(wire::GetFenceClientsResponse {
        clients: nodes.into_iter().map(client).collect(),
    })
}

fn cidr(network: &Network) -> wire::Cidr {
    wire::Cidr {
        cidr: network.to_string(),
    }
}

/// The connections that the parameters name, or all. Each must be able to fence; one that cannot be opened may be, and does
/// not hold up the others.
async fn meant(plugin: &Plugin, parameters: &Parameters) -> Result<Meant, Error> {
    let (asked, are_named) = plugin.connections.for_fences(parameters)?;
    let opened = join_all(asked.iter().map(LazyConnection::open)).await;
    let (mut able, mut broken) = (Vec::new(), None);
    let mut passed_over = None;
    for opened in opened {
        let connection = match opened {
            Ok(connection) => connection,
            Err(error) => {
                broken = broken.or(Some(error));
                continue;
            }
        };
        if connection.can().fence {
            able.push(connection);
        } else if are_named || !connection.can().topology {
            return Err(cannot(&connection, are_named));
        } else {
            passed_over = Some(connection);
        }
    }
    match passed_over {
        Some(connection) if able.is_empty() && broken.is_none() => Err(cannot(&connection, true)),
        None if able.is_empty() && broken.is_none() => {
            Err(Error::new(Kind::Unreachable, FENCE).because("there is no connection"))
        }
        _ => Ok(Meant { able, broken }),
    }
}

fn cannot(connection: &Connection, is_named: bool) -> Error {
    let error = connection.lacks(FENCE);
    if is_named {
        return error;
    }
    error.advise(NAME_OTHERS)
}

/// The addresses that a node reports with its id.
fn reported_addresses(plugin: &Plugin, node: &NodeId) -> Vec<IpAddr> {
    let reported = plugin.info.ids().and_then(|ids| ids.read(node));
    match reported {
        Some(identity) => identity.addresses,
        None => node.as_str().parse().into_iter().collect(),
    }
}

fn about(able: &[Arc<Connection>]) -> Subject {
    let connection = match able {
        [one] => one.name().text().clone(),
        _ => Arc::default(),
    };
    Subject {
        connection,
        ..Subject::default()
    }
}

/// One network is not shut out and let in at once.
fn keys(able: &[Arc<Connection>], networks: &[Network]) -> Keys {
    let mut keys = Keys::none();
    for connection in able {
        for network in networks {
            keys = keys.and(connection.scope(), Object::Fence(*network), Hold::Exclusive);
        }
    }
    keys
}

/// All answers, or the first error with the connection that it is of. After others have started it is never final.
fn all<'a, T>(
    answers: impl Iterator<Item = (&'a Arc<Connection>, Result<T, Error>)>,
    broken: Option<Error>,
    is_begun: bool,
) -> Result<Vec<T>, Error> {
    let (mut good, mut several) = (Vec::new(), usize::from(broken.is_some()));
    let mut failed = broken;
    for (connection, answer) in answers {
        several += 1;
        match answer {
            Ok(answer) => good.push(answer),
            Err(error) if connection.name().is_named() => {
                let object = format!("connection `{}`", connection.name());
                failed = failed.or_else(|| Some(error.within(object)));
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        None => Ok(good),
        Some(error) if is_begun && several > 1 => Err(error.with_effect(Effect::Possible)),
        Some(error) => Err(error),
    }
}
