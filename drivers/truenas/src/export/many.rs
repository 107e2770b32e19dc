//! The exports of many volumes, looked at in as few calls as that of one: each call asks for all of them.

use std::collections::BTreeSet;

use driver_core::{Call, Error};
use driver_zfs::export::Opaque;

use super::iscsi::disk;
use super::iscsi_lists::comment_of_list;
use super::nvmeof::device;
use super::share::called;
use crate::Dialect;
use crate::api::Filter;
use crate::api::iscsi::{
    GetGlobal, QueryExtents, QueryInitiators, QueryTargetExtents, QueryTargets,
};
use crate::api::nfs::FindManyNfsShares;
use crate::api::nvmet::{
    GetNvmeGlobal, HostLink, PortLink, QueryHostLinks, QueryNamespaces, QueryPortLinks,
    QuerySubsystems,
};
use crate::api::smb::QuerySmbShares;
use crate::backend::Nas;
use crate::command::{Answer, Command, IscsiState, Look, NvmeState, Shares};
use crate::error::Error as ApiError;
use crate::failure::understood;

/// The most volumes of one call. Its answer has a few rows of a kilobyte for each, and may have a megabyte.
const AT_ONCE: usize = 50;

/// Looks of one kind at the exports of several volumes, without who uses them.
#[derive(Debug)]
pub(crate) enum Many<'a> {
    /// The directories.
    Nfs(Vec<&'a str>),
    /// The directories, and the names of their shares.
    Smb(Vec<(&'a str, &'a str)>),
    /// Disks of iSCSI.
    Iscsi {
        /// The names of targets, and the zvols.
        disks: Vec<(&'a str, &'a str)>,
        /// Whether to look for the lists of initiators, too.
        nodes: bool,
    },
    /// Disks of NVMe-oF.
    Nvme {
        /// The names of subsystems, and the zvols.
        disks: Vec<(&'a str, &'a str)>,
        /// Whether to look which hosts are let in, too.
        nodes: bool,
        /// The hosts to look for whether or not they are let in.
        keyed: &'a [String],
        /// Whether to look what the NQN of a new subsystem begins with, too.
        is_new: bool,
    },
}

// === impl Many ===

impl<'a> Many<'a> {
    /// These commands as one look; none where there is one of them, or where they differ in kind.
    pub(crate) fn of(commands: &'a [Opaque]) -> Result<Option<Self>, Error> {
        let mut looks = Vec::with_capacity(commands.len());
        for command in commands {
            match command.get()? {
                Command::Look(look) => looks.push(look),
                Command::Change(_) => return Ok(None),
            }
        }
        Ok(if looks.len() > 1 {
            Self::of_looks(&looks)
        } else {
            None
        })
    }

    fn of_looks(looks: &[&'a Look]) -> Option<Self> {
        let any = |is: fn(&Look) -> bool| looks.iter().any(|look| is(look));
        let has_nodes = any(|look| {
            matches!(
                look,
                Look::Iscsi { nodes: true, .. } | Look::Nvme { nodes: true, .. }
            )
        });
        let all = looks.iter().copied();
        match looks.first()? {
            Look::Nfs { .. } => {
                let paths = all.map(|look| match look {
                    Look::Nfs { path, users: false } => Some(path.as_str()),
                    _ => None,
                });
                Some(Self::Nfs(paths.collect::<Option<_>>()?))
            }
            Look::Smb { .. } => {
                let shares = all.map(|look| match look {
                    Look::Smb {
                        path,
                        name,
                        users: false,
                    } => Some((path.as_str(), name.as_str())),
                    _ => None,
                });
                Some(Self::Smb(shares.collect::<Option<_>>()?))
            }
            Look::Iscsi { .. } => {
                let disks = all.map(|look| match look {
                    Look::Iscsi {
                        name,
                        zvol,
                        links: true,
                        ..
                    } => Some((name.as_str(), zvol.as_str())),
                    _ => None,
                });
                Some(Self::Iscsi {
                    disks: disks.collect::<Option<_>>()?,
                    nodes: has_nodes,
                })
            }
            Look::Nvme { .. } => {
                let disks = all.map(|look| match look {
                    Look::Nvme {
                        name,
                        zvol,
                        links: true,
                        ..
                    } => Some((name.as_str(), zvol.as_str())),
                    _ => None,
                });
                Some(Self::Nvme {
                    disks: disks.collect::<Option<_>>()?,
                    nodes: has_nodes,
                    keyed: looks.iter().copied().find_map(keyed).unwrap_or_default(),
                    is_new: any(|look| matches!(look, Look::Nvme { is_new: true, .. })),
                })
            }
            Look::Needs(_) => None,
        }
    }

    /// For errors.
    fn doing(&self) -> &'static str {
        match self {
            Self::Nfs(_) => "look for the NFS shares of volumes",
            Self::Smb(_) => "look for the SMB shares of volumes",
            Self::Iscsi { .. } => "look for the iSCSI targets of volumes",
            Self::Nvme { .. } => "look for the NVMe-oF subsystems of volumes",
        }
    }
}

fn keyed(look: &Look) -> Option<&[String]> {
    match look {
        Look::Nvme { keyed, .. } => Some(keyed),
        _ => None,
    }
}

fn names<'a>(of: &[(&'a str, &'a str)]) -> impl Iterator<Item = &'a str> {
    of.iter().map(|(name, _)| *name)
}

impl Nas {
    /// Looks at the exports of several volumes. One answer for each, in their order.
    pub(crate) async fn look_at_many(
        &self,
        call: &Call,
        dialect: &Dialect,
        many: &Many<'_>,
    ) -> Result<Vec<Answer>, Error> {
        let found = match many {
            Many::Nfs(paths) => self.many_nfs(call, paths).await,
            Many::Smb(shares) => self.many_smb(call, dialect, shares).await,
            Many::Iscsi { disks, nodes } => self.many_iscsi(call, disks, *nodes).await,
            Many::Nvme {
                disks,
                nodes,
                keyed,
                is_new,
            } => {
                let of = (*nodes, *is_new);
                self.many_nvme(call, disks, keyed, of).await
            }
        };
        found.map_err(|error| understood(many.doing(), &error))
    }

    async fn many_nfs(&self, call: &Call, paths: &[&str]) -> Result<Vec<Answer>, ApiError> {
        let mut answers = Vec::with_capacity(paths.len());
        for paths in paths.chunks(AT_ONCE) {
            let find = FindManyNfsShares {
                paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            };
            let found = self.read(call, &find).await?;
            for path in paths {
                let rows = found
                    .iter()
                    .filter(|share| share.paths.iter().any(|shared| shared == path));
                answers.push(Answer::Nfs(Shares {
                    rows: rows.cloned().collect(),
                    connected: None,
                }));
            }
        }
        Ok(answers)
    }

    async fn many_smb(
        &self,
        call: &Call,
        dialect: &Dialect,
        shares: &[(&str, &str)],
    ) -> Result<Vec<Answer>, ApiError> {
        let mut answers = Vec::with_capacity(shares.len());
        for shares in shares.chunks(AT_ONCE) {
            let of_paths = Filter::any_of("path", shares.iter().map(|(path, _)| *path));
            let named = shares.iter().map(|(_, name)| called(dialect, name));
            let either = std::iter::once(of_paths).chain(named);
            let query = QuerySmbShares(vec![Filter::either(either)]);
            let found = self.read(call, &query).await?;
            for (path, name) in shares {
                let name = name.to_lowercase();
                let rows = found
                    .iter()
                    .filter(|share| share.path == *path || share.name.to_lowercase() == name);
                answers.push(Answer::Smb(Shares {
                    rows: rows.cloned().collect(),
                    connected: None,
                }));
            }
        }
        Ok(answers)
    }

    async fn many_iscsi(
        &self,
        call: &Call,
        disks: &[(&str, &str)],
        nodes: bool,
    ) -> Result<Vec<Answer>, ApiError> {
        let mut answers = Vec::with_capacity(disks.len());
        let global = self.read(call, &GetGlobal).await?;
        for disks in disks.chunks(AT_ONCE) {
            let mut all = self.some_iscsi(call, disks, nodes).await?;
            all.global = Some(global.clone());
            let one = |(name, zvol): &(&str, &str)| Answer::Iscsi(all.of(name, zvol));
            answers.extend(disks.iter().map(one));
        }
        Ok(answers)
    }

    /// The rows that belong to any of these targets.
    async fn some_iscsi(
        &self,
        call: &Call,
        disks: &[(&str, &str)],
        nodes: bool,
    ) -> Result<IscsiState, ApiError> {
        let targets = QueryTargets(vec![Filter::any_of("name", names(disks))]);
        let either = [
            Filter::any_of("name", names(disks)),
            Filter::any_of("disk", disks.iter().map(|(_, zvol)| disk(zvol))),
        ];
        let extents = QueryExtents(vec![Filter::either(either)]);
        let lists = async {
            if !nodes {
                return Ok(Vec::new());
            }
            let comments = disks.iter().map(|(_, zvol)| comment_of_list(zvol));
            let query = QueryInitiators(vec![Filter::any_of("comment", comments)]);
            self.read(call, &query).await
        };
        let (targets, extents, lists) =
            tokio::try_join!(self.read(call, &targets), self.read(call, &extents), lists,)?;
        let mut links = Vec::new();
        if !targets.is_empty() || !extents.is_empty() {
            let either = [
                Filter::any_of("target", targets.iter().map(|target| target.id)),
                Filter::any_of("extent", extents.iter().map(|extent| extent.id)),
            ];
            let query = QueryTargetExtents(vec![Filter::either(either)]);
            links = self.read(call, &query).await?;
        }
        Ok(IscsiState {
            global: None,
            targets,
            extents,
            links: Some(links),
            lists,
            connected: None,
        })
    }

    async fn many_nvme(
        &self,
        call: &Call,
        disks: &[(&str, &str)],
        keyed: &[String],
        (nodes, is_new): (bool, bool),
    ) -> Result<Vec<Answer>, ApiError> {
        let mut answers = Vec::with_capacity(disks.len());
        let keyed = self.hosts_called(call, keyed).await?;
        let global = if is_new {
            Some(self.read(call, &GetNvmeGlobal).await?)
        } else {
            None
        };
        for disks in disks.chunks(AT_ONCE) {
            let mut all = self.some_nvme(call, disks, nodes).await?;
            all.global.clone_from(&global);
            all.keyed.clone_from(&keyed);
            let one = |(name, zvol): &(&str, &str)| Answer::Nvme(all.of(name, zvol));
            answers.extend(disks.iter().map(one));
        }
        Ok(answers)
    }

    /// The rows that belong to any of these subsystems.
    async fn some_nvme(
        &self,
        call: &Call,
        disks: &[(&str, &str)],
        nodes: bool,
    ) -> Result<NvmeState, ApiError> {
        let subsystems = QuerySubsystems(vec![Filter::any_of("name", names(disks))]);
        let either = [
            Filter::any_of("device_path", disks.iter().map(|(_, zvol)| device(zvol))),
            Filter::any_of("subsys.name", names(disks)),
        ];
        let namespaces = QueryNamespaces(vec![Filter::either(either)]);
        let (subsystems, namespaces) =
            tokio::try_join!(self.read(call, &subsystems), self.read(call, &namespaces),)?;
        let ids: Vec<i64> = subsystems.iter().map(|one| one.id).collect();
        // Who closed one is seen by its hosts.
        let closed = subsystems
            .iter()
            .filter(|one| nodes || !one.allow_any_host)
            .map(|one| one.id)
            .collect();
        let (ports, hosts) = tokio::try_join!(
            self.many_port_links(call, ids),
            self.many_host_links(call, closed),
        )?;
        Ok(NvmeState {
            global: None,
            subsystems,
            namespaces,
            ports,
            hosts: Some(hosts),
            keyed: Vec::new(),
            connected: None,
        })
    }

    async fn many_port_links(
        &self,
        call: &Call,
        subsystems: Vec<i64>,
    ) -> Result<Vec<PortLink>, ApiError> {
        if subsystems.is_empty() {
            return Ok(Vec::new());
        }
        let of_them = Filter::any_of("subsys.id", subsystems);
        self.read(call, &QueryPortLinks(vec![of_them])).await
    }

    async fn many_host_links(
        &self,
        call: &Call,
        subsystems: Vec<i64>,
    ) -> Result<Vec<HostLink>, ApiError> {
        if subsystems.is_empty() {
            return Ok(Vec::new());
        }
        let of_them = Filter::any_of("subsys.id", subsystems);
        self.read(call, &QueryHostLinks(vec![of_them])).await
    }
}

// === impl IscsiState ===

impl IscsiState {
    /// The part of it that belongs to one target.
    fn of(&self, name: &str, zvol: &str) -> Self {
        let (disk, comment) = (disk(zvol), comment_of_list(zvol));
        let targets = self.targets.iter().filter(|target| target.name == name);
        let targets: Vec<_> = targets.cloned().collect();
        let is_of_it =
            |extent_name: &str, of: Option<&str>| extent_name == name || of == Some(disk.as_str());
        let extents = self.extents.iter();
        let extents = extents.filter(|one| is_of_it(&one.name, one.disk.as_deref()));
        let extents: Vec<_> = extents.cloned().collect();
        let of_targets: BTreeSet<i64> = targets.iter().map(|target| target.id).collect();
        let of_extents: BTreeSet<i64> = extents.iter().map(|extent| extent.id).collect();
        let links =
            self.links.iter().flatten().filter(|link| {
                of_targets.contains(&link.target) || of_extents.contains(&link.extent)
            });
        let lists = self.lists.iter().filter(|list| list.comment == comment);
        Self {
            global: self.global.clone(),
            links: Some(links.copied().collect()),
            lists: lists.cloned().collect(),
            targets,
            extents,
            connected: None,
        }
    }
}

// === impl NvmeState ===

impl NvmeState {
    /// The part of it that belongs to one subsystem.
    fn of(&self, name: &str, zvol: &str) -> Self {
        let device = device(zvol);
        let subsystems = self.subsystems.iter().filter(|one| one.name == name);
        let subsystems: Vec<_> = subsystems.cloned().collect();
        let namespaces = self
            .namespaces
            .iter()
            .filter(|one| one.device_path == device || one.subsys.name == name);
        let id = subsystems.first().map(|one| one.id);
        let ports = self.ports.iter().filter(|link| Some(link.subsys.id) == id);
        let hosts = self.hosts.as_ref().map(|hosts| {
            let of_it = hosts.iter().filter(|link| Some(link.subsys.id) == id);
            of_it.cloned().collect()
        });
        Self {
            global: self.global.clone(),
            namespaces: namespaces.cloned().collect(),
            ports: ports.cloned().collect(),
            hosts,
            keyed: self.keyed.clone(),
            subsystems,
            connected: None,
        }
    }
}
