//! Changes of subsystems, namespaces and hosts, each a step of a plan.

use std::sync::Arc;

use async_trait::async_trait;
use csi_types::DhchapKey;
use driver_core::Call;
use driver_zfs::nodes::NodeKeys;

use super::gone;
use crate::api::nvmet::{
    CreateNamespace, CreateSubsystem, DeleteNvme, Host, HostLink, LinkPort, UpdateSubsystem,
};
use crate::backend::Nas;
use crate::command::{Change, Id, Made};
use crate::error::{Error as ApiError, Kind as ApiKind};

/// The name of the step that makes a subsystem, or closes it for hosts that are not listed.
pub(super) const SUBSYSTEM: &str = "subsystem";
/// The name of the steps that let hosts in or out.
pub(super) const HOSTS: &str = "hosts";
/// The name of the step that makes a namespace.
pub(super) const NAMESPACE: &str = "namespace";

/// A change of what belongs to a subsystem.
#[derive(Debug)]
pub(super) enum NvmeChange {
    /// Makes a subsystem.
    CreateSubsystem(CreateSubsystem),
    /// Changes whether hosts need a link.
    UpdateSubsystem(UpdateSubsystem),
    /// Makes a namespace of a zvol.
    CreateNamespace {
        /// The subsystem.
        subsystem: Id,
        /// The zvol, with its pool.
        zvol: String,
        /// Its number in the subsystem, if it is said.
        nsid: Option<u32>,
    },
    /// Makes a subsystem reachable through a port.
    LinkPort(i64, Id),
    /// Lets a host in, which is made if there is none. It gets its key before.
    LetIn(String, Option<DhchapKey>, Id),
    /// Gives a host another key.
    SetKey(Host, DhchapKey),
    /// Removes the link of a host, and the host if it was made here and no other subsystem lets it in.
    LetOut(HostLink, Arc<NodeKeys>),
    /// Removes those of these hosts that were made here and that no subsystem lets in.
    RemoveHosts(Vec<String>, Arc<NodeKeys>),
    /// Ends the connections to a subsystem that lets in no host.
    Disconnect(i64),
    /// Removes a subsystem with all that is in it.
    RemoveSubsystem(i64),
    /// Removes a namespace.
    RemoveNamespace(i64),
}

#[async_trait]
impl Change for NvmeChange {
    fn doing(&self) -> String {
        match self {
            Self::CreateSubsystem(subsystem) => {
                format!("make NVMe-oF subsystem `{}`", subsystem.name)
            }
            Self::UpdateSubsystem(subsystem) => {
                format!("change the hosts of NVMe-oF subsystem {}", subsystem.id)
            }
            Self::CreateNamespace { zvol, .. } => format!("export {zvol} by NVMe-oF"),
            Self::LinkPort(port, _) => format!("export by port {port} of NVMe-oF"),
            Self::LetIn(nqn, ..) => format!("let in host {nqn}"),
            Self::SetKey(host, _) => format!("change the key of host {}", host.hostnqn),
            Self::LetOut(link, _) => format!("let out host {}", link.host.hostnqn),
            Self::RemoveHosts(..) => "remove hosts of NVMe-oF".to_owned(),
            Self::Disconnect(id) => format!("disconnect the hosts of NVMe-oF subsystem {id}"),
            Self::RemoveSubsystem(id) => format!("remove NVMe-oF subsystem {id}"),
            Self::RemoveNamespace(id) => format!("remove NVMe-oF namespace {id}"),
        }
    }

    fn is_one_call(&self) -> bool {
        !matches!(
            self,
            Self::LetIn(..) | Self::LetOut(..) | Self::RemoveHosts(..) | Self::Disconnect(_)
        )
    }

    fn removes(&self) -> bool {
        matches!(
            self,
            Self::LetOut(..)
                | Self::RemoveHosts(..)
                | Self::RemoveSubsystem(_)
                | Self::RemoveNamespace(_)
        )
    }

    async fn run(&self, nas: &Nas, call: &Call, made: &Made) -> Result<Option<i64>, ApiError> {
        match self {
            Self::CreateSubsystem(create) => {
                nas.write(call, create).await.map(|made| Some(made.id))
            }
            Self::UpdateSubsystem(update) => nas.write(call, update).await.map(|_| None),
            Self::CreateNamespace {
                subsystem,
                zvol,
                nsid,
            } => {
                let create = CreateNamespace {
                    subsystem: made.id(subsystem)?,
                    zvol: zvol.clone(),
                    nsid: *nsid,
                };
                nas.write(call, &create).await.map(|made| Some(made.id))
            }
            Self::LinkPort(port, subsystem) => {
                let link = LinkPort {
                    port: *port,
                    subsystem: made.id(subsystem)?,
                };
                match nas.write(call, &link).await {
                    Err(error) if error.kind() == ApiKind::Exists => Ok(None),
                    outcome => outcome.map(|_| None),
                }
            }
            Self::LetIn(nqn, key, subsystem) => {
                let subsystem = made.id(subsystem)?;
                let let_in = nas.let_in(call, nqn, key.as_ref(), subsystem);
                let_in.await.map(|_| None)
            }
            Self::SetKey(host, key) => nas.set_key(call, host, key).await.map(|()| None),
            Self::LetOut(link, keys) => nas.let_out(call, link, keys).await.map(|()| None),
            Self::RemoveHosts(names, keys) => {
                nas.remove_hosts(call, names, keys).await.map(|()| None)
            }
            Self::Disconnect(id) => nas.disconnect(call, *id).await.map(|()| None),
            Self::RemoveSubsystem(id) => {
                let (id, force) = (*id, true);
                gone(nas.write(call, &DeleteNvme::Subsystem { id, force }).await)
            }
            Self::RemoveNamespace(id) => gone(nas.write(call, &DeleteNvme::Namespace(*id)).await),
        }
    }
}
