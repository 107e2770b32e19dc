//! Facts that an operator should know of a connection before there are volumes: whether the service runs, whether
//! the numbers in the configuration are there, and which roles the login lacks.

use driver_core::{Call, Error, Kind};

use crate::api::Filter;
use crate::api::iscsi::{
    QueryAuths, QueryInitiators, QueryPortals, QuerySessions, QueryTargetExtents,
};
use crate::api::nvmet::{QueryHosts, QueryNvmeSessions, QueryPorts};
use crate::api::service::QueryServices;
use crate::api::system::GetRoles;
use crate::backend::Nas;
use crate::command::Look;
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::understood;
use crate::{Dialect, Generation};

/// A NAS that has no list of its sessions is asked for none.
fn known<T>(sessions: Result<T, ApiError>) -> Result<(), ApiError> {
    match sessions {
        Err(error) if error.kind() != ApiKind::Unsupported => Err(error),
        _ => Ok(()),
    }
}

/// The conditions that a connection relies on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The service that nodes reach volumes by.
    pub(crate) service: &'static str,
    /// Whether datasets go through the API, too.
    pub(crate) datasets: bool,
    /// Whether volumes are filesystems.
    pub(crate) files: bool,
    /// Numbers of iSCSI portals.
    pub(crate) portals: Vec<i64>,
    /// Numbers of groups of initiators.
    pub(crate) initiators: Vec<i64>,
    /// Tags of credentials.
    pub(crate) auths: Vec<i64>,
    /// Numbers of NVMe-oF ports.
    pub(crate) ports: Vec<i64>,
    /// Whether access is per node.
    pub(crate) nodes: bool,
}

/// The roles that a login needs, from 24.04 on. In one that ends with `WRITE` the one with `READ` is
/// included.
pub(crate) fn roles(generation: Generation, needs: &Needs) -> Vec<&'static str> {
    if generation < Generation::V24_04 {
        return Vec::new();
    }
    let mut roles = vec!["SERVICE_READ"];
    if needs.datasets {
        roles.extend([
            "DATASET_WRITE",
            "DATASET_DELETE",
            "SNAPSHOT_WRITE",
            "SNAPSHOT_DELETE",
        ]);
        if needs.files {
            roles.push("FILESYSTEM_ATTRS_WRITE");
        }
        if generation >= Generation::V25_10 {
            roles.extend(["ZFS_RESOURCE_READ", "REPLICATION_TASK_WRITE"]);
        }
    } else if !needs.files {
        // A zvol grows through the API, so that the NAS notifies the initiators.
        roles.push("DATASET_WRITE");
    }
    roles.extend_from_slice(match needs.service {
        "nfs" => &["SHARING_NFS_WRITE"],
        "cifs" => &["SHARING_SMB_WRITE"],
        "iscsitarget" => &[
            "SHARING_ISCSI_GLOBAL_READ",
            "SHARING_ISCSI_PORTAL_READ",
            "SHARING_ISCSI_INITIATOR_READ",
            "SHARING_ISCSI_AUTH_READ",
            "SHARING_ISCSI_TARGET_WRITE",
            "SHARING_ISCSI_EXTENT_WRITE",
            "SHARING_ISCSI_TARGETEXTENT_WRITE",
        ],
        _ => &["SHARING_NVME_TARGET_WRITE"],
    });
    if needs.nodes && needs.service == "iscsitarget" {
        roles.push("SHARING_ISCSI_INITIATOR_WRITE");
    }
    roles
}

/// The role to remove the empty parents of detached snapshots of disks, and to know who uses a share of NFS without
/// datasets by the API. `check` does not ask for it.
pub(crate) const LOOKS: &str = "FILESYSTEM_ATTRS_READ";

/// The role for the health of volumes where datasets go through the API, from 25.04 on: it shows the state of a pool.
/// `check` has a note about it, and no error.
pub(crate) const POOLS: &str = "POOL_READ";

/// Whether these roles hold another one.
fn hold(roles: &[String], role: &str) -> bool {
    let has = |name: &str| roles.iter().any(|known| known == name);
    let write = role.replace("_READ", "_WRITE");
    let all_of_iscsi = role.starts_with("SHARING_ISCSI_") && has("SHARING_ISCSI_WRITE");
    let all_of_sharing =
        role.starts_with("SHARING_") && (has("SHARING_WRITE") || has("SHARING_ADMIN"));
    has("FULL_ADMIN") || has(role) || has(&write) || all_of_iscsi || all_of_sharing
}

impl Nas {
    /// The problems; none if all is well.
    pub(crate) async fn check(&self, call: &Call, dialect: &Dialect, needs: &Needs) -> Vec<Error> {
        let mut problems = self.lacks(call, dialect, needs).await;
        problems.extend(self.service(call, needs.service).await);
        if needs.service == "nvmet" && !dialect.has_nvmet() {
            return vec![
                Error::new(Kind::Unsupported, "export by NVMe-oF")
                    .because(format!("{} has no NVMe-oF", dialect.version().text()))
                    .advise("TrueNAS has it from 25.10 on"),
            ];
        }
        let by_id = |ids: &[i64]| vec![Filter::any_of("id", ids.iter().copied())];
        if !needs.portals.is_empty() {
            let found = self.read(call, &QueryPortals(by_id(&needs.portals))).await;
            let found = found.map(|rows| rows.into_iter().map(|row| row.id).collect());
            let key = "iscsi.targetGroups: portal";
            problems.extend(missing(key, &needs.portals, found));
        }
        if !needs.initiators.is_empty() {
            let query = QueryInitiators(by_id(&needs.initiators));
            let found = self.read(call, &query).await;
            let found = found.map(|rows| rows.into_iter().map(|row| row.id).collect());
            let key = "iscsi.targetGroups: group of initiators";
            problems.extend(missing(key, &needs.initiators, found));
        }
        if !needs.auths.is_empty() {
            let tags = needs.auths.iter().copied();
            let query = QueryAuths(vec![Filter::any_of("tag", tags)]);
            let found = self.read(call, &query).await;
            let found = found.map(|rows| rows.into_iter().map(|row| row.tag).collect());
            let key = "iscsi.targetGroups: group of credentials";
            problems.extend(missing(key, &needs.auths, found));
        }
        if !needs.ports.is_empty() {
            let found = self.read(call, &QueryPorts(by_id(&needs.ports))).await;
            let found = found.map(|rows| rows.into_iter().map(|row| row.id).collect());
            problems.extend(missing("nvmeof.ports: port", &needs.ports, found));
        }
        problems.extend(self.looks(call, dialect, needs).await.err());
        if needs.datasets {
            let looked = Box::pin(self.looks_of_datasets(call, dialect)).await;
            problems.extend(looked.err());
        }
        problems
    }

    /// Makes the calls by which the exports of volumes are looked for, of a volume that there is not: a NAS that
    /// refuses one of them refuses it for every volume.
    async fn looks(&self, call: &Call, dialect: &Dialect, needs: &Needs) -> Result<(), Error> {
        let (name, dataset) = ("omnibus-csi-check".to_owned(), "omnibus-csi/check");
        let (path, zvol) = (format!("/mnt/{dataset}"), dataset.to_owned());
        let nodes = needs.nodes;
        let look = match needs.service {
            "nfs" => Look::Nfs { path, users: false },
            "cifs" => Look::Smb {
                path,
                name,
                users: false,
            },
            "iscsitarget" => Look::Iscsi {
                name,
                zvol,
                links: true,
                nodes,
            },
            _ => Look::Nvme {
                name,
                zvol,
                links: true,
                nodes,
                keyed: Vec::new(),
                is_new: true,
            },
        };
        Box::pin(self.look(call, dialect, &look)).await?;
        // What is looked for by the number of something that is there. There is no number 0.
        let links = match needs.service {
            "iscsitarget" => self.iscsi_looks(call).await,
            "nvmet" => self.nvme_looks(call).await,
            _ => Ok(()),
        };
        links.map_err(|error| understood(look.doing(), &error))
    }

    async fn iscsi_looks(&self, call: &Call) -> Result<(), ApiError> {
        let either = [Filter::eq("target", 0), Filter::eq("extent", 0)];
        let links = QueryTargetExtents(vec![Filter::either(either)]);
        self.read(call, &links).await?;
        let sessions = QuerySessions(vec![Filter::eq("target", "omnibus-csi-check")]);
        known(self.read(call, &sessions).await)
    }

    async fn nvme_looks(&self, call: &Call) -> Result<(), ApiError> {
        self.nvme_links(call, Some(0), true, true).await?;
        let nqn = Filter::eq("hostnqn", "nqn.2014-08.invalid.omnibus-csi:check");
        self.read(call, &QueryHosts(vec![nqn])).await?;
        let sessions = QueryNvmeSessions(vec![Filter::eq("subsys_id", 0)]);
        known(self.read(call, &sessions).await)
    }

    async fn service(&self, call: &Call, name: &str) -> Option<Error> {
        let doing = || format!("find that the service `{name}` runs");
        let query = QueryServices {
            names: vec![name.to_owned()],
        };
        match self.read(call, &query).await {
            Ok(found) if found.iter().any(|service| service.state == "RUNNING") => None,
            Ok(_) => Some(
                Error::new(Kind::Unreachable, doing())
                    .because("it does not")
                    .advise("start it on TrueNAS, and let it start with the NAS"),
            ),
            Err(error) => Some(understood(doing(), &error)),
        }
    }

    async fn lacks(&self, call: &Call, dialect: &Dialect, needs: &Needs) -> Vec<Error> {
        let wanted = roles(dialect.generation(), needs);
        // Up to 24.10 a key has no user, and a list of methods of its own, which it may not read.
        let has_roles = dialect.generation() >= Generation::V25_04 || !self.logs_in_by_key();
        if wanted.is_empty() || !has_roles {
            return Vec::new();
        }
        let doing = "find that the login has the roles that it needs";
        let roles = match self.read(call, &GetRoles).await {
            Ok(roles) => roles.0,
            Err(error) => return vec![understood(doing, &error)],
        };
        let lacking: Vec<&str> = wanted
            .into_iter()
            .filter(|role| !hold(&roles, role))
            .collect();
        if lacking.is_empty() {
            return Vec::new();
        }
        let lacking = lacking.join(", ");
        vec![
            Error::new(Kind::Denied, doing)
                .because(format!("it lacks {lacking}"))
                .advise("give them to a privilege of the user's group: see docs/truenas.md"),
        ]
    }
}

fn missing(key: &str, wanted: &[i64], found: Result<Vec<i64>, ApiError>) -> Vec<Error> {
    match found {
        Err(error) => vec![understood(format!("look for {key}"), &error)],
        Ok(found) => wanted
            .iter()
            .filter(|id| !found.contains(id))
            .map(|id| {
                Error::new(Kind::Invalid, format!("find {key} {id}"))
                    .because("TrueNAS has none of this number")
                    .advise(
                        "the number is that of its row, which the web pages do not always show: see \
                         docs/truenas.md",
                    )
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use truenas_sim::Table;

    use super::*;

    const RELEASES: [(Generation, truenas_sim::Generation); 5] = [
        (Generation::V24_10, truenas_sim::Generation::V24_10),
        (Generation::V25_04, truenas_sim::Generation::V25_04),
        (Generation::V25_10, truenas_sim::Generation::V25_10),
        (Generation::V26, truenas_sim::Generation::V26Beta),
        (Generation::V26, truenas_sim::Generation::V26Rc),
    ];

    fn every_kind() -> Vec<Needs> {
        let mut all = Vec::new();
        for (service, files) in [
            ("nfs", true),
            ("cifs", true),
            ("iscsitarget", false),
            ("nvmet", false),
        ] {
            for datasets in [true, false] {
                for nodes in [true, false] {
                    all.push(Needs {
                        service,
                        datasets,
                        files,
                        nodes,
                        ..Needs::default()
                    });
                }
            }
        }
        all
    }

    #[test]
    fn each_role_is_one_of_its_release_and_is_on_the_page() {
        let page = include_str!("../../../docs/truenas.md");
        for (ours, theirs) in RELEASES {
            for needs in every_kind() {
                if needs.service == "nvmet" && ours < Generation::V25_10 {
                    continue;
                }
                let pools = (ours >= Generation::V25_04).then_some(POOLS);
                let all = roles(ours, &needs).into_iter().chain([LOOKS]);
                for role in all.chain(pools) {
                    assert!(Table::of(theirs).has_role(role), "{ours}: {role}");
                    assert!(page.contains(&format!("`{role}`")), "{role}");
                }
            }
        }
    }
}
