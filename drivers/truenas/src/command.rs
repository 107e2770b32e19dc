//! The commands of exports to the NAS, and its answers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use csi_types::Attachment;
use driver_core::{Call, Error};
use driver_zfs::export::{Act, Task};
use driver_zfs::step::{Of, Step};

use crate::api::iscsi::{Extent, Global, Initiators, Target, TargetExtent};
use crate::api::nfs::NfsShare;
use crate::api::nvmet::{Host, HostLink, Namespace, NvmeGlobal, PortLink, Subsystem};
use crate::api::smb::SmbShare;
use crate::backend::Nas;
use crate::check::Needs;
use crate::error::{Error as ApiError, Kind as ApiKind};

/// The command of an export to the NAS.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Looks, and changes nothing.
    Look(Look),
    /// Changes something.
    Change(Arc<dyn Change>),
}

/// A change of the export of one volume. Each export has its own.
#[async_trait]
pub(crate) trait Change: Debug + Send + Sync {
    /// For errors.
    fn doing(&self) -> String;

    /// Whether it is one call: one that is refused has done nothing then.
    fn is_one_call(&self) -> bool {
        true
    }

    /// Whether it takes something away.
    fn removes(&self) -> bool;

    /// Makes the change, and answers the number of what it makes. It is harmless if it was made already.
    async fn run(&self, nas: &Nas, call: &Call, made: &Made) -> Result<Option<i64>, ApiError>;
}

/// The number of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Id {
    /// It exists.
    Known(i64),
    /// An earlier step of the plan makes it.
    Of(Of),
}

/// The numbers that the steps of a plan were answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Made(BTreeMap<Of, i64>);

/// A look at the exports of one volume: found by what they point at, and by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// The NFS shares of a directory.
    Nfs {
        /// The directory.
        path: String,
        /// Whether to look who uses them, too. A removal needs to know it.
        users: bool,
    },
    /// The SMB shares of a directory, and the share of this name.
    Smb {
        /// The directory.
        path: String,
        /// The name.
        name: String,
        /// Whether to look who uses those of the directory, too. A removal needs to know it.
        users: bool,
    },
    /// The target and the extents of this name, and those of the zvol.
    Iscsi {
        /// The name.
        name: String,
        /// The zvol, with its pool.
        zvol: String,
        /// Whether to look which extent is on which target, too, and how targets are called in full. A removal needs
        /// to know neither, but who is connected.
        links: bool,
        /// Whether to look for the list of initiators of the volume, too.
        nodes: bool,
    },
    /// The subsystem of this name with its namespaces and ports, and the namespaces of the zvol.
    Nvme {
        /// The name.
        name: String,
        /// The zvol, with its pool.
        zvol: String,
        /// Whether to look through which ports it is reachable, too. A removal needs not, but to know who is connected.
        links: bool,
        /// Whether to look which hosts the subsystem lets in, too.
        nodes: bool,
        /// The hosts to look for whether or not it lets them in.
        keyed: Vec<String>,
        /// Whether to look what the NQN of a new subsystem begins with, too.
        is_new: bool,
    },
    /// The conditions that a connection relies on.
    Needs(Needs),
}

/// The answer of the NAS to a look.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// NFS shares.
    Nfs(Shares<NfsShare>),
    /// SMB shares.
    Smb(Shares<SmbShare>),
    /// The rows that belong to a target.
    Iscsi(IscsiState),
    /// The rows that belong to a subsystem.
    Nvme(NvmeState),
    /// Problems with the conditions that a connection relies on.
    Problems(Vec<Arc<Error>>),
    /// Something was changed.
    Done,
}

/// The shares of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shares<T> {
    /// The shares, and with SMB what else has the name.
    pub(crate) rows: Vec<T>,
    /// The nodes that use them; `None` if they were not looked for.
    pub(crate) connected: Option<Connected>,
}

/// The state of a target and its extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IscsiState {
    /// The settings of the service; `None` if they were not looked at.
    pub(crate) global: Option<Global>,
    /// Targets of the name.
    pub(crate) targets: Vec<Target>,
    /// Extents of the name, and those of the zvol.
    pub(crate) extents: Vec<Extent>,
    /// The links between them; `None` if those were not looked at.
    pub(crate) links: Option<Vec<TargetExtent>>,
    /// The lists of initiators of the volume, as far as they were looked for.
    pub(crate) lists: Vec<Initiators>,
    /// The initiators that are connected to the targets; `None` if they were not looked for.
    pub(crate) connected: Option<Connected>,
}

/// The state of a subsystem and its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NvmeState {
    /// The settings of the service; `None` if they were not looked at.
    pub(crate) global: Option<NvmeGlobal>,
    /// Subsystems of the name.
    pub(crate) subsystems: Vec<Subsystem>,
    /// Namespaces of the subsystem, and those of the zvol.
    pub(crate) namespaces: Vec<Namespace>,
    /// Through which ports the subsystem is reachable.
    pub(crate) ports: Vec<PortLink>,
    /// The links to hosts that the subsystem lets in; `None` if those were not looked at.
    pub(crate) hosts: Option<Vec<HostLink>>,
    /// The hosts that were looked for by their names.
    pub(crate) keyed: Vec<Host>,
    /// The hosts that are connected to the subsystem; `None` if they were not looked for.
    pub(crate) connected: Option<Connected>,
}

/// The nodes that are connected to the export of a volume, by name and address. A question that failed is kept as it is:
/// it concerns a removal alone.
pub(crate) type Connected = Result<Vec<String>, ApiError>;

// === impl Command ===

impl Command {
    /// The change that a step of an export is.
    pub(crate) fn change_of(step: &Step) -> Option<&Arc<dyn Change>> {
        let Step::Export(request) = step else {
            return None;
        };
        match request.get() {
            Ok(Self::Change(change)) => Some(change),
            Ok(Self::Look(_)) | Err(_) => None,
        }
    }
}

/// A change that waits for no other one, unless it says so.
pub(crate) fn task(change: impl Change + 'static) -> Task<Command> {
    Task::of(Command::Change(Arc::new(change)))
}

/// The same as an act.
pub(crate) fn act(change: impl Change + 'static) -> Act<Command> {
    Act::Task(task(change))
}

// === impl Made ===

impl Made {
    /// Notes what a step was answered, if it has a name and was answered a number.
    pub(crate) fn note(&mut self, step: Option<&Of>, number: Option<i64>) {
        self.0.extend(step.cloned().zip(number));
    }

    /// The answer to a step, if it was answered anything.
    pub(crate) fn get(&self, step: &Of) -> Option<i64> {
        self.0.get(step).copied()
    }

    /// The number of a row.
    pub(crate) fn id(&self, id: &Id) -> Result<i64, ApiError> {
        match id {
            Id::Known(id) => Ok(*id),
            Id::Of(step) => self.get(step).ok_or_else(|| {
                let why = format!("no number is known of the {step} that was made");
                ApiError::new(ApiKind::Protocol, why)
            }),
        }
    }
}

// === impl Look ===

impl Look {
    /// For errors.
    pub(crate) fn doing(&self) -> String {
        match self {
            Self::Nfs { path, .. } => format!("look for the NFS share of {path}"),
            Self::Smb { path, .. } => format!("look for the SMB share of {path}"),
            Self::Iscsi { zvol, .. } => format!("look for the iSCSI target of {zvol}"),
            Self::Nvme { zvol, .. } => format!("look for the NVMe-oF subsystem of {zvol}"),
            Self::Needs(_) => "check what the connection relies on".to_owned(),
        }
    }
}

/// The share that an attachment names.
pub(crate) fn share_of(attachment: &Attachment) -> Option<&str> {
    match attachment {
        Attachment::Nfs(share) | Attachment::Smb(share) => Some(share.share.as_str()),
        _ => None,
    }
}
