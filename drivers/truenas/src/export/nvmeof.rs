//! Zvols as namespaces of NVMe-oF subsystems, from 25.10 on: one subsystem, one namespace, named after the
//! volume.

use csi_types::Attachment;
use csi_types::attachment::{FieldError, Listed, Nqn, Nsid, Nvmeof, Transport};
use driver_core::{AccessRules, Call, Error, Kind, NodeId};
use driver_zfs::export::{Act, Export, ExportName, ExportNaming, Subject};
use driver_zfs::nodes::Form;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;

use super::access::{self, Access, Allowed};
use super::{enabled, gone, number, problems, remember, rules_of_disks, unread};
use crate::api::nvmet::{
    CreateNamespace, CreateSubsystem, DeleteNvme, HostLink, LinkPort, Namespace, PortLink,
    QueryNamespaces, QueryPortLinks, QuerySubsystems, Subsystem,
};
use crate::api::{Enable, Filter};
use crate::backend::Nas;
use crate::check::Needs;
use crate::command::{Answer, Change, Command, Look, NvmeState, NvmeWish};
use crate::error::{Error as ApiError, Kind as ApiKind};

/// Exports zvols by NVMe-oF.
#[derive(Debug)]
pub(crate) struct NvmeExport {
    /// Whether datasets go through the API, too.
    pub(crate) by_api: bool,
    /// Where nodes find subsystems.
    pub(crate) transports: Listed<Transport>,
    /// How subsystems are named.
    pub(crate) naming: ExportNaming,
    /// Through which ports they are reachable.
    pub(crate) ports: Vec<i64>,
    /// What subsystems are like, but for their names.
    pub(crate) subsystem: CreateSubsystem,
    /// The number of the namespace, if it is said.
    pub(crate) nsid: Option<u32>,
    /// What nodes are called, if access is per node.
    pub(crate) access: Option<Access>,
}

/// The longest name of a subsystem that leaves room for what its NQN begins with.
const LONGEST: usize = 150;
/// About what an NQN begins with on a NAS.
const BASENAME: &str = "nqn.2011-06.com.truenas:uuid:00000000-0000-0000-0000-000000000000";

fn device(zvol: &str) -> String {
    format!("zvol/{zvol}")
}

// === impl NvmeState ===

impl NvmeState {
    pub(super) fn subsystem(&self, name: &str) -> Option<&Subsystem> {
        let mut all = self.subsystems.iter();
        all.find(|subsystem| subsystem.name == name)
    }

    fn namespace(&self, zvol: &str) -> Option<&Namespace> {
        let device = device(zvol);
        let mut all = self.namespaces.iter();
        all.find(|namespace| namespace.device_path == device)
    }

    fn lacks(&self, port: i64) -> bool {
        !self.ports.iter().any(|link| link.port.id == port)
    }
}

// === impl NvmeExport ===

impl NvmeExport {
    fn refused(subject: &Subject<'_>, kind: Kind) -> Error {
        Error::new(kind, format!("export volume `{}` by NVMe-oF", subject.id))
    }

    fn attach(&self, nqn: &str, nsid: &str) -> Result<Attachment, FieldError> {
        Ok(Attachment::Nvmeof(Nvmeof {
            nqn: Nqn::parse(nqn)?,
            nsid: Nsid::parse(nsid)?,
            transports: self.transports.clone(),
            device_id: None,
        }))
    }

    fn look(&self, subject: &Subject<'_>, name: &ExportName, links: bool) -> Command {
        Command::Look(Look::Nvme {
            name: name.to_string(),
            zvol: subject.dataset.to_string(),
            links,
            nodes: self.access.is_some(),
        })
    }

    fn wish(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
        hosts: Option<Vec<String>>,
    ) -> NvmeWish {
        NvmeWish {
            zvol: subject.dataset.to_string(),
            subsystem: CreateSubsystem {
                name: name.to_string(),
                allow_any_host: hosts.is_none(),
                ..self.subsystem.clone()
            },
            nsid: self.nsid,
            ports: self.ports.clone(),
            hosts,
            had_nodes: access::is_remembered(subject),
            out: Vec::new(),
            seen: facts.clone(),
        }
    }

    /// The hosts that the subsystem has to let in, if access is per node.
    fn listed(&self, subject: &Subject<'_>) -> Result<Option<Vec<String>>, Error> {
        let access = self.access.as_ref();
        access.map(|access| access.names(subject)).transpose()
    }

    /// Refuses what is of another volume.
    fn check(subject: &Subject<'_>, name: &ExportName, facts: &NvmeState) -> Result<(), Error> {
        let refused = |why: String| Err(Self::refused(subject, Kind::Conflict).because(why));
        let ours = facts.namespace(subject.dataset.as_str());
        if let Some(other) = ours.filter(|ours| ours.subsys.name != name.as_str()) {
            return refused(format!("subsystem `{}` exports it", other.subsys.name));
        }
        let device = device(subject.dataset.as_str());
        let foreign = facts.namespaces.iter().find(|n| n.device_path != device);
        match foreign {
            Some(foreign) => refused(format!(
                "subsystem `{name}` exports {}",
                foreign.device_path
            )),
            None => Ok(()),
        }
    }
}

impl Export for NvmeExport {
    type Command = Command;
    type Output = Answer;
    type Name = ExportName;
    type Facts = NvmeState;

    fn kind(&self) -> VolumeKind {
        VolumeKind::Zvol
    }

    fn is_restored_by_growth(&self) -> bool {
        false
    }

    fn access_rules(&self) -> AccessRules {
        rules_of_disks()
    }

    fn reads(&self) -> Vec<PropertyName> {
        [
            PropertyName::FREENAS_NVMEOF_SUBSYSTEM,
            PropertyName::FREENAS_NVMEOF_NAMESPACE,
            PropertyName::FREENAS_NVMEOF_ASSETS,
        ]
        .into_iter()
        .chain(access::property())
        .collect()
    }

    fn export_name(&self, subject: &Subject<'_>) -> Result<ExportName, Error> {
        let name = self
            .naming
            .name(subject, &PropertyName::FREENAS_NVMEOF_ASSETS)?;
        if name.as_str().len() > LONGEST {
            let why = format!("`{name}` is longer than {LONGEST} characters");
            return Err(Self::refused(subject, Kind::Invalid).because(why));
        }
        Ok(name)
    }

    fn observe(&self, subject: &Subject<'_>, name: &ExportName) -> Vec<Command> {
        vec![self.look(subject, name, true)]
    }

    fn observe_to_remove(&self, subject: &Subject<'_>, name: &ExportName) -> Vec<Command> {
        vec![self.look(subject, name, false)]
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _name: &ExportName,
        answers: &[Answer],
    ) -> Result<NvmeState, Error> {
        match answers {
            [Answer::Nvme(state)] => Ok(state.clone()),
            _ => Err(unread()),
        }
    }

    fn ensure(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
    ) -> Result<Vec<Act<Command>>, Error> {
        Self::check(subject, name, facts)?;
        let subsystem = facts.subsystem(name.as_str());
        let namespace = facts.namespace(subject.dataset.as_str());
        let reachable = !self.ports.iter().any(|port| facts.lacks(*port));
        let listed = self.listed(subject)?;
        let had_nodes = access::is_remembered(subject);
        let subsystem = subsystem.filter(|one| facts.admits(one, listed.as_deref(), had_nodes));
        let (Some(subsystem), Some(namespace), true) = (subsystem, namespace, reachable) else {
            let wish = self.wish(subject, name, facts, listed);
            let change = Change::EnsureNvme(Box::new(wish));
            return Ok(vec![Act::Do(Command::Change(change))]);
        };
        let row = Enable::Namespace(namespace.id);
        let mut acts = Vec::from_iter(enabled(namespace.enabled, row));
        for (property, value) in [
            (PropertyName::FREENAS_NVMEOF_ASSETS, name.to_string()),
            (
                PropertyName::FREENAS_NVMEOF_SUBSYSTEM,
                subsystem.id.to_string(),
            ),
            (
                PropertyName::FREENAS_NVMEOF_NAMESPACE,
                namespace.id.to_string(),
            ),
        ] {
            acts.extend(remember(subject, &property, &value)?);
        }
        if listed.is_none() {
            acts.extend(access::forget(subject));
        }
        Ok(acts)
    }

    /// A namespace is ours by its zvol. A subsystem of our name may be that of another: what proves that it
    /// is not is its number, or the namespace in it.
    fn remove(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
    ) -> Result<Vec<Act<Command>>, Error> {
        let device = device(subject.dataset.as_str());
        let (ours, others): (Vec<_>, Vec<_>) = facts
            .namespaces
            .iter()
            .partition(|namespace| namespace.device_path == device);
        let subsystem = facts.subsystem(name.as_str());
        let alone = |subsystem: &&Subsystem| !others.iter().any(|n| n.subsys.id == subsystem.id);
        let change = |change| Act::Do(Command::Change(change));
        let known = number(subject, &PropertyName::FREENAS_NVMEOF_SUBSYSTEM);
        let proved = |subsystem: &&Subsystem| {
            known == Some(subsystem.id) || ours.iter().any(|n| n.subsys.id == subsystem.id)
        };
        if subsystem.is_some_and(|subsystem| !proved(&subsystem)) {
            tracing::warn!(
                object = name.as_str(),
                "nothing proves that the NVMe-oF subsystem of this name is of the volume: it stays"
            );
        }
        let subsystem = subsystem.filter(alone).filter(proved);
        // They go with their subsystem.
        let left = ours
            .iter()
            .filter(|n| Some(n.subsys.id) != subsystem.map(|s| s.id));
        let left = left.map(|namespace| change(Change::RemoveNamespace(namespace.id)));
        let names = access::remembered(subject, Form::Host)?;
        let whole = subsystem.map(|subsystem| {
            change(Change::RemoveSubsystem {
                id: subsystem.id,
                hosts: facts.hosts.clone(),
                names,
            })
        });
        Ok(left.chain(whole).collect())
    }

    fn is_per_node(&self) -> bool {
        self.access.is_some()
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
        node: &NodeId,
    ) -> Result<Vec<Act<Command>>, Error> {
        let allowed = Access::allow(self.access.as_ref(), subject, node)?;
        let Some(Allowed { remember, names }) = allowed else {
            return Ok(Vec::new());
        };
        let mut acts = vec![remember];
        // Where more is missing, the next round makes it with the node in the list.
        if self.ensure(subject, name, facts)?.is_empty() {
            let wish = self.wish(subject, name, facts, Some(names));
            let change = Change::AdmitNvme(Box::new(wish));
            acts.push(Act::Do(Command::Change(change)));
        }
        Ok(acts)
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<Command>>, Error> {
        let revoked = Access::revoke(self.access.as_ref(), subject, node)?;
        let Some(revoked) = revoked else {
            return Ok(Vec::new());
        };
        let names = Some(revoked.names);
        let subsystem = facts.subsystem(name.as_str());
        let subsystem = subsystem.filter(|_| Self::check(subject, name, facts).is_ok());
        let is_so = subsystem.is_none_or(|one| facts.admits(one, names.as_deref(), true));
        // A node that is still remembered may be connected.
        let may_be_in = revoked.forget.is_some() && subsystem.is_some();
        let admit = (!is_so || may_be_in).then(|| {
            let wish = NvmeWish {
                out: revoked.out,
                ..self.wish(subject, name, facts, names)
            };
            Act::Do(Command::Change(Change::AdmitNvme(Box::new(wish))))
        });
        let acts = revoked.mark.into_iter().chain(admit);
        Ok(acts.chain(revoked.forget).collect())
    }

    fn examine(&self) -> Vec<Command> {
        vec![Command::Look(Look::Needs(Needs {
            service: "nvmet",
            datasets: self.by_api,
            ports: self.ports.clone(),
            ..Needs::default()
        }))]
    }

    fn problems(&self, answers: &[Answer]) -> Vec<Error> {
        problems(answers)
    }

    fn attachment(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
    ) -> Result<Option<Attachment>, Error> {
        let subsystem = facts.subsystem(name.as_str());
        let namespace = facts.namespace(subject.dataset.as_str());
        let reachable = !self.ports.iter().any(|port| facts.lacks(*port));
        let (Some(subsystem), Some(namespace), true) = (subsystem, namespace, reachable) else {
            return Ok(None);
        };
        let refused = || Self::refused(subject, Kind::Internal);
        let nqn = subsystem.subnqn.as_deref();
        let nqn = nqn.ok_or_else(|| refused().because("its subsystem has no NQN"))?;
        let nsid = namespace.nsid.unwrap_or(1).to_string();
        let attachment = self.attach(nqn, &nsid);
        attachment
            .map(Some)
            .map_err(|error| refused().because(error))
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        let name = self.naming.longest(longest)?;
        let name = name.shortened(|name| (name.as_str().len() <= LONGEST).then(|| name.clone()))?;
        self.attach(&format!("{BASENAME}:{name}"), "1").ok()
    }
}

impl Nas {
    pub(super) async fn nvme(
        &self,
        call: &Call,
        name: &str,
        zvol: &str,
        links: bool,
        nodes: bool,
    ) -> Result<Answer, ApiError> {
        let subsystems = QuerySubsystems(vec![Filter::eq("name", name)]);
        let either = [
            Filter::eq("device_path", device(zvol)),
            Filter::eq("subsys.name", name),
        ];
        let namespaces = QueryNamespaces(vec![Filter::either(either)]);
        let (subsystems, namespaces) =
            tokio::try_join!(self.read(call, &subsystems), self.read(call, &namespaces),)?;
        let id = subsystems.first().map(|one| one.id);
        // Who closed it is seen by its hosts.
        let closed = subsystems.iter().any(|one| !one.allow_any_host);
        let (ports, hosts) = self.nvme_links(call, id, links, nodes || closed).await?;
        Ok(Answer::Nvme(NvmeState {
            subsystems,
            namespaces,
            ports,
            hosts,
        }))
    }

    /// What links ports and hosts to a subsystem. TrueNAS looks for these rows in its database, where only the
    /// number of the subsystem is a column.
    pub(crate) async fn nvme_links(
        &self,
        call: &Call,
        subsystem: Option<i64>,
        ports: bool,
        hosts: bool,
    ) -> Result<(Vec<PortLink>, Option<Vec<HostLink>>), ApiError> {
        let Some(id) = subsystem else {
            return Ok((Vec::new(), hosts.then(Vec::new)));
        };
        let links = async {
            if hosts {
                self.host_links(call, id).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let ports = async {
            if ports {
                self.port_links(call, id).await
            } else {
                Ok(Vec::new())
            }
        };
        tokio::try_join!(ports, links)
    }

    /// Through which ports a subsystem is reachable.
    pub(super) async fn port_links(
        &self,
        call: &Call,
        subsystem: i64,
    ) -> Result<Vec<PortLink>, ApiError> {
        let of_it = Filter::eq("subsys.id", subsystem);
        self.read(call, &QueryPortLinks(vec![of_it])).await
    }

    /// Makes what is missing: the subsystem with its hosts, then its namespace and its ports at once.
    pub(super) async fn make_nvme(
        &self,
        call: &Call,
        wish: &NvmeWish,
    ) -> Result<(Look, Answer), ApiError> {
        let name = wish.subsystem.name.as_str();
        let subsystem = match wish.seen.subsystem(name) {
            Some(subsystem) => subsystem.clone(),
            None => self.write(call, &wish.subsystem).await?,
        };
        let (subsystem, hosts) = self.hosts(call, wish, &subsystem).await?;
        let namespace = async {
            if let Some(namespace) = wish.seen.namespace(&wish.zvol) {
                Ok(namespace.clone())
            } else {
                let create = CreateNamespace {
                    subsystem: subsystem.id,
                    zvol: wish.zvol.clone(),
                    nsid: wish.nsid,
                };
                self.write(call, &create).await
            }
        };
        let missing = wish.ports.iter().filter(|port| wish.seen.lacks(**port));
        let links = missing.map(|port| {
            let link = LinkPort {
                port: *port,
                subsystem: subsystem.id,
            };
            async move {
                match self.write(call, &link).await {
                    Err(error) if error.kind() == ApiKind::Exists => Ok(None),
                    outcome => outcome.map(Some),
                }
            }
        });
        let (namespace, links) = tokio::join!(namespace, futures_util::future::join_all(links));
        let made: Vec<_> = links.into_iter().collect::<Result<_, ApiError>>()?;
        let mut state = NvmeState {
            namespaces: vec![namespace?],
            subsystems: vec![subsystem],
            ports: wish.seen.ports.clone(),
            hosts,
        };
        state.ports.extend(made.into_iter().flatten());
        let look = Look::Nvme {
            name: name.to_owned(),
            zvol: wish.zvol.clone(),
            links: true,
            nodes: wish.hosts.is_some(),
        };
        Ok((look, Answer::Nvme(state)))
    }

    pub(super) async fn remove_namespace(&self, call: &Call, id: i64) -> Result<(), ApiError> {
        gone(self.write(call, &DeleteNvme::Namespace(id)).await)
    }
}
