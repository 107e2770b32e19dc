//! What exports ask of the NAS, and what it answers.

use std::sync::Arc;

use csi_types::Attachment;
use driver_core::Error;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::Step;

use crate::api::Enable;
use crate::api::iscsi::{
    CreateExtent, CreateTarget, Extent, Global, Initiators, Target, TargetExtent,
};
use crate::api::nfs::{CreateNfsShare, NfsShare, UpdateNfsShare};
use crate::api::nvmet::{CreateSubsystem, HostLink, Namespace, PortLink, Subsystem};
use crate::api::smb::{CreateSmbShare, SmbShare};
use crate::check::Needs;

/// What an export asks of the NAS.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Looks, and changes nothing.
    Look(Look),
    /// Changes something.
    Change(Change),
}

/// A look at the exports of one volume: found by what they point at, and by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// The NFS shares of a directory.
    Nfs {
        /// The directory.
        path: String,
    },
    /// The SMB shares of a directory, and the share of this name.
    Smb {
        /// The directory.
        path: String,
        /// The name.
        name: String,
    },
    /// The target and the extents of this name, and those of the zvol.
    Iscsi {
        /// The name.
        name: String,
        /// The zvol, with its pool.
        zvol: String,
        /// Whether to look which extent is on which target, too, and how targets are called in full.
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
        /// Whether to look through which ports it is reachable, too.
        links: bool,
        /// Whether to look which hosts the subsystem lets in, too.
        nodes: bool,
    },
    /// What a connection relies on.
    Needs(Needs),
}

/// A change of the exports of one volume.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Makes an NFS share.
    CreateNfs(CreateNfsShare),
    /// Changes which clients an NFS share lets in.
    AdmitNfs(Box<UpdateNfsShare>),
    /// Removes one.
    DeleteNfs(i64),
    /// Makes an SMB share.
    CreateSmb(CreateSmbShare),
    /// Removes one.
    DeleteSmb(i64),
    /// Makes what is missing of a target with an extent.
    EnsureIscsi(Box<IscsiWish>),
    /// Changes which initiators an existing target lets in.
    AdmitIscsi(Box<IscsiWish>),
    /// Removes extents, and a target that no other extent is on.
    RemoveIscsi {
        /// The number of the target, if it is there and may be ours.
        target: Option<(i64, Proof)>,
        /// The numbers of the extents of the zvol.
        extents: Vec<i64>,
        /// The lists of initiators that go with the target.
        lists: Lists,
    },
    /// Makes what is missing of a subsystem with a namespace.
    EnsureNvme(Box<NvmeWish>),
    /// Changes which hosts an existing subsystem lets in.
    AdmitNvme(Box<NvmeWish>),
    /// Serves again what was disabled.
    Enable(Enable),
    /// Removes a subsystem with all that is in it, and the hosts that only it lets in.
    RemoveSubsystem {
        /// Its number.
        id: i64,
        /// The hosts that it lets in; `None` if that was not looked at.
        hosts: Option<Vec<HostLink>>,
        /// The hosts that the volume remembers.
        names: Vec<String>,
    },
    /// Removes a namespace.
    RemoveNamespace(i64),
}

/// Lists of initiators that may be of a volume: they are if their comment is this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    /// Their numbers.
    pub(crate) ids: Vec<i64>,
    /// The comment.
    pub(crate) comment: String,
}

/// What proves that a target is of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// It says so itself, also when the volume is gone.
    Mark,
    /// The volume remembers its number.
    Number,
    /// Nothing, unless an extent of the volume is on it.
    Extent,
}

/// A target with one extent as it should be, and what there is of it.
#[derive(Debug, Clone)]
pub(crate) struct IscsiWish {
    /// The zvol, with its pool.
    pub(crate) zvol: String,
    /// The target.
    pub(crate) target: CreateTarget,
    /// The extent.
    pub(crate) extent: CreateExtent,
    /// The initiators that the target lets in, in a list of its own; `None` if the groups say it.
    pub(crate) initiators: Option<Vec<String>>,
    /// What was seen.
    pub(crate) seen: IscsiState,
}

/// A subsystem with one namespace as it should be, and what there is of it.
#[derive(Debug, Clone)]
pub(crate) struct NvmeWish {
    /// The zvol, with its pool.
    pub(crate) zvol: String,
    /// The subsystem.
    pub(crate) subsystem: CreateSubsystem,
    /// The number of the namespace, if it is said.
    pub(crate) nsid: Option<u32>,
    /// The ports through which it has to be reachable.
    pub(crate) ports: Vec<i64>,
    /// The hosts that the subsystem lets in; any if `None`.
    pub(crate) hosts: Option<Vec<String>>,
    /// Whether the dataset remembers nodes, whatever the configuration says.
    pub(crate) had_nodes: bool,
    /// Hosts that lose access, and go themselves if they were made here and nothing else needs them.
    pub(crate) out: Vec<String>,
    /// What was seen.
    pub(crate) seen: NvmeState,
}

/// What the NAS answers to a look.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// NFS shares.
    Nfs(Vec<NfsShare>),
    /// SMB shares.
    Smb(Vec<SmbShare>),
    /// What belongs to a target.
    Iscsi(IscsiState),
    /// What belongs to a subsystem.
    Nvme(NvmeState),
    /// What is wrong with what a connection relies on.
    Problems(Vec<Arc<Error>>),
    /// Something was changed.
    Done,
}

/// What there is of a target and its extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IscsiState {
    /// The settings of the service; `None` if they were not looked at.
    pub(crate) global: Option<Global>,
    /// Targets of the name.
    pub(crate) targets: Vec<Target>,
    /// Extents of the name, and those of the zvol.
    pub(crate) extents: Vec<Extent>,
    /// Which of them are on which; `None` if that was not looked at.
    pub(crate) links: Option<Vec<TargetExtent>>,
    /// The lists of initiators of the volume, as far as they were looked for.
    pub(crate) lists: Vec<Initiators>,
}

/// What there is of a subsystem and its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NvmeState {
    /// Subsystems of the name.
    pub(crate) subsystems: Vec<Subsystem>,
    /// Namespaces of the subsystem, and those of the zvol.
    pub(crate) namespaces: Vec<Namespace>,
    /// Through which ports the subsystem is reachable.
    pub(crate) ports: Vec<PortLink>,
    /// Which hosts the subsystem lets in; `None` if that was not looked at.
    pub(crate) hosts: Option<Vec<HostLink>>,
}

// === impl Change ===

impl Change {
    /// The change that a step of an export is.
    pub(crate) fn of(step: &Step) -> Option<&Self> {
        let Step::Export(request) = step else {
            return None;
        };
        match request.get() {
            Ok(Command::Change(change)) => Some(change),
            Ok(Command::Look(_)) | Err(_) => None,
        }
    }

    /// Whether it makes something, and so may be done while the permissions of the dataset are set.
    pub(crate) fn makes(&self) -> bool {
        matches!(
            self,
            Self::CreateNfs(_)
                | Self::AdmitNfs(_)
                | Self::CreateSmb(_)
                | Self::EnsureIscsi(_)
                | Self::AdmitIscsi(_)
                | Self::EnsureNvme(_)
                | Self::AdmitNvme(_)
                | Self::Enable(_)
        )
    }

    /// Whether it is one call: one that is refused has done nothing then.
    pub(crate) fn is_one_call(&self) -> bool {
        !matches!(
            self,
            Self::EnsureIscsi(_)
                | Self::AdmitIscsi(_)
                | Self::EnsureNvme(_)
                | Self::AdmitNvme(_)
                | Self::RemoveIscsi { .. }
                | Self::RemoveSubsystem { .. }
        )
    }

    /// For errors.
    pub(crate) fn doing(&self) -> String {
        match self {
            Self::CreateNfs(share) => format!("share {} by NFS", share.path),
            Self::AdmitNfs(share) => format!("change the clients of NFS share {}", share.id),
            Self::CreateSmb(share) => format!("share {} by SMB", share.path),
            Self::EnsureIscsi(wish) => format!("export {} by iSCSI", wish.zvol),
            Self::EnsureNvme(wish) => format!("export {} by NVMe-oF", wish.zvol),
            Self::AdmitIscsi(wish) => {
                format!("change the initiators of target {}", wish.target.name)
            }
            Self::AdmitNvme(wish) => {
                format!("change the hosts of subsystem {}", wish.subsystem.name)
            }
            Self::Enable(row) => format!("enable {row}"),
            Self::DeleteNfs(id) => format!("remove NFS share {id}"),
            Self::DeleteSmb(id) => format!("remove SMB share {id}"),
            Self::RemoveIscsi { .. } => "remove an iSCSI target".to_owned(),
            Self::RemoveSubsystem { id, .. } => format!("remove NVMe-oF subsystem {id}"),
            Self::RemoveNamespace(id) => format!("remove NVMe-oF namespace {id}"),
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The numbers and the name of what was made, as democratic-csi keeps them.
    pub(crate) fn notes(&self) -> Vec<Property> {
        let number = |name: PropertyName, id: i64| {
            let value = PropertyValue::parse(id.to_string()).ok()?;
            Some(Property::new(name, value))
        };
        let text = |name: PropertyName, text: &str| {
            let value = PropertyValue::parse(text).ok()?;
            Some(Property::new(name, value))
        };
        let notes = match self {
            Self::Nfs(shares) => match shares.as_slice() {
                [share] => vec![number(PropertyName::FREENAS_NFS_SHARE, share.id)],
                _ => Vec::new(),
            },
            Self::Smb(shares) => match shares.as_slice() {
                [share] => vec![number(PropertyName::FREENAS_SMB_SHARE, share.id)],
                _ => Vec::new(),
            },
            Self::Iscsi(state) => {
                let links = state.links.as_deref().unwrap_or_default();
                match (state.targets.as_slice(), state.extents.as_slice(), links) {
                    ([target], [extent], [link]) => vec![
                        text(PropertyName::FREENAS_ISCSI_ASSETS, &target.name),
                        number(PropertyName::FREENAS_ISCSI_TARGET, target.id),
                        number(PropertyName::FREENAS_ISCSI_EXTENT, extent.id),
                        number(PropertyName::FREENAS_ISCSI_LINK, link.id),
                    ],
                    _ => Vec::new(),
                }
            }
            Self::Nvme(_) | Self::Problems(_) | Self::Done => Vec::new(),
        };
        notes.into_iter().flatten().collect()
    }
}

// === impl Look ===

impl Look {
    /// For errors.
    pub(crate) fn doing(&self) -> String {
        match self {
            Self::Nfs { path } => format!("look for the NFS share of {path}"),
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
