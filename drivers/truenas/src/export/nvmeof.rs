//! Zvols as namespaces of NVMe-oF subsystems, from 25.10 on: one subsystem, one namespace, named after the
//! volume.

use std::sync::Arc;

use csi_types::Attachment;
use csi_types::attachment::{FieldError, Listed, Nqn, Nsid, Nvmeof, Transport};
use driver_core::{AccessRules, Call, Error, Kind, NodeId};
use driver_zfs::export::{Act, Export, ExportName, ExportNaming, Subject};
use driver_zfs::nodes::{Form, NodeKeys};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;

use super::access::{self, Access, Allowed};
use super::connected::connected;
use super::nvmeof_change::{HOSTS, NAMESPACE, NvmeChange, SUBSYSTEM};
use super::nvmeof_hosts::Admission;
use super::{enabled, number, problems, remember, remember_id, rules_of_disks, unread};
use crate::api::nvmet::{
    CreateSubsystem, GetNvmeGlobal, HostLink, Namespace, PortLink, QueryNamespaces, QueryPortLinks,
    QuerySubsystems, Subsystem,
};
use crate::api::{Enable, Filter};
use crate::backend::Nas;
use crate::check::Needs;
use crate::command::{Answer, Command, Id, Look, NvmeState, act, task};
use crate::error::Error as ApiError;

/// Exports zvols by NVMe-oF.
#[derive(Debug)]
pub(crate) struct NvmeExport {
    /// Whether datasets go through the API, too.
    pub(crate) by_api: bool,
    /// The addresses where nodes find subsystems.
    pub(crate) transports: Listed<Transport>,
    /// The way subsystems are named.
    pub(crate) naming: ExportNaming,
    /// Through which ports they are reachable.
    pub(crate) ports: Vec<i64>,
    /// The settings of subsystems, but for their names.
    pub(crate) subsystem: CreateSubsystem,
    /// The number of the namespace, if it is said.
    pub(crate) nsid: Option<u32>,
    /// The names of nodes, if access is per node.
    pub(crate) access: Option<Access>,
    /// The keys by which nodes prove who they are.
    pub(crate) keys: Arc<NodeKeys>,
}

/// The longest name of a subsystem that leaves room for what its NQN begins with.
const LONGEST: usize = 150;
/// The longest NQN.
const LONGEST_NQN: usize = 223;
/// The beginning of an NQN of a UUID. Nothing may follow that, so TrueNAS takes no longer one, and makes such itself.
const OF_UUID: &str = "nqn.2014-08.org.nvmexpress:uuid:";
/// About what an NQN begins with on a NAS.
const BASENAME: &str = "nqn.2011-06.com.truenas:uuid:00000000-0000-0000-0000-000000000000";

pub(super) fn device(zvol: &str) -> String {
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
            is_fenced: false,
        }))
    }

    /// The NQN of a new subsystem, if it is known: that which TrueNAS would give it.
    fn new_nqn(&self, name: &ExportName, facts: &NvmeState) -> Option<String> {
        let chosen = self.subsystem.subnqn.clone();
        chosen.or_else(|| {
            let nqn = format!("{}:{name}", facts.global.as_ref()?.basenqn);
            Some(nqn.chars().take(LONGEST_NQN).collect())
        })
    }

    fn look(&self, subject: &Subject<'_>, name: &ExportName, links: bool) -> Command {
        let keyed = self.keys.iter().filter(|_| links);
        Command::Look(Look::Nvme {
            name: name.to_string(),
            zvol: subject.dataset.to_string(),
            links,
            nodes: self.access.is_some(),
            keyed: keyed.map(|(name, _)| name.as_str().to_owned()).collect(),
            is_new: subject.request.is_some(),
        })
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
        let zvol = subject.dataset.as_str();
        let listed = self.listed(subject)?;
        let had_nodes = access::is_remembered(subject);
        let mut acts = Vec::new();
        let existing = facts.subsystem(name.as_str());
        let subsystem = if let Some(subsystem) = existing {
            Id::Known(subsystem.id)
        } else {
            let nqn = self.new_nqn(name, facts);
            let create = CreateSubsystem {
                name: name.to_string(),
                subnqn: nqn.filter(|nqn| !nqn.starts_with(OF_UUID)),
                allow_any_host: listed.is_none(),
                ..self.subsystem.clone()
            };
            let create = task(NvmeChange::CreateSubsystem(create));
            acts.push(Act::Task(create.named(SUBSYSTEM)));
            Id::Of(SUBSYSTEM.into())
        };
        let admission = Admission {
            hosts: listed.as_deref(),
            keys: &self.keys,
            had_nodes,
        };
        acts.extend(facts.admission(&subsystem, existing, admission));
        acts.extend(facts.new_keys(admission));
        let namespace = if let Some(namespace) = facts.namespace(zvol) {
            acts.extend(enabled(namespace.enabled, Enable::Namespace(namespace.id)));
            Id::Known(namespace.id)
        } else {
            let (zvol, nsid) = (zvol.to_owned(), self.nsid);
            let subsystem = subsystem.clone();
            let create = task(NvmeChange::CreateNamespace {
                subsystem,
                zvol,
                nsid,
            });
            let create = create.named(NAMESPACE).after(SUBSYSTEM).after(HOSTS);
            acts.push(Act::Task(create));
            Id::Of(NAMESPACE.into())
        };
        for port in self.ports.iter().filter(|port| facts.lacks(**port)) {
            let link = task(NvmeChange::LinkPort(*port, subsystem.clone()));
            acts.push(Act::Task(link.after(SUBSYSTEM).after(HOSTS)));
        }
        let assets = PropertyName::FREENAS_NVMEOF_ASSETS;
        acts.extend(remember(subject, &assets, name.as_str())?);
        for (property, id) in [
            (PropertyName::FREENAS_NVMEOF_SUBSYSTEM, subsystem),
            (PropertyName::FREENAS_NVMEOF_NAMESPACE, namespace),
        ] {
            acts.extend(remember_id(subject, property, &id)?);
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
        let left = left.map(|namespace| act(NvmeChange::RemoveNamespace(namespace.id)));
        let mut acts: Vec<_> = left.collect();
        if let Some(subsystem) = subsystem {
            let names = access::remembered(subject, Form::Host)?;
            acts.extend(facts.removal(subsystem.id, names, &self.keys));
        }
        Ok(acts)
    }

    fn is_proved_by_acts(&self) -> bool {
        true
    }

    fn is_per_node(&self) -> bool {
        self.access.is_some()
    }

    fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        Access::lets_in(self.access.as_ref(), subject, node)
    }

    fn names(&self, node: &NodeId) -> bool {
        Access::has_name(self.access.as_ref(), node)
    }

    fn admits(&self, node: &NodeId) -> Result<(), Error> {
        Access::admits(self.access.as_ref(), &self.keys, node)
    }

    fn is_open(&self, subject: &Subject<'_>, name: &ExportName, facts: &NvmeState) -> bool {
        let subsystem = facts.subsystem(name.as_str());
        Access::is_unlisted(self.access.as_ref(), subject)
            && subsystem.is_some_and(|subsystem| subsystem.allow_any_host)
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
        nodes: &[&NodeId],
    ) -> Result<Vec<Act<Command>>, Error> {
        // Where a volume is closed for several nodes at once, one of them must not keep out the others.
        if let [node] = nodes {
            let name = Access::name(self.access.as_ref(), node);
            let of_others = name.and_then(|name| facts.unprovable(&name, &self.keys));
            if let Some(host) = of_others {
                return Err(Self::refused(subject, Kind::Conflict)
                    .because(format!(
                        "host {} on TrueNAS was made by someone else, and has not the key of dhchapKeys",
                        host.hostnqn
                    ))
                    .advise("give it that key on TrueNAS, or delete it there, so that it is made anew"));
            }
        }
        let allowed = Access::allow(self.access.as_ref(), subject, nodes)?;
        let Some(Allowed { remember, names }) = allowed else {
            return Ok(Vec::new());
        };
        let mut acts = vec![remember];
        // Where more is missing, the next round makes it with the node in the list.
        if self.ensure(subject, name, facts)?.is_empty()
            && let Some(subsystem) = facts.subsystem(name.as_str())
        {
            let id = Id::Known(subsystem.id);
            let admission = Admission {
                hosts: Some(names.as_slice()),
                keys: &self.keys,
                had_nodes: true,
            };
            acts.extend(facts.admission(&id, Some(subsystem), admission));
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
        let subsystem = facts.subsystem(name.as_str());
        let subsystem = subsystem.filter(|_| Self::check(subject, name, facts).is_ok());
        let mut acts: Vec<_> = revoked.mark.into_iter().collect();
        if let Some(subsystem) = subsystem {
            let admission = Admission {
                hosts: Some(&revoked.names),
                keys: &self.keys,
                had_nodes: true,
            };
            let is_open = revoked.forget.is_some();
            acts.extend(facts.revocation(subsystem, admission, revoked.out, is_open));
        }
        Ok(acts.into_iter().chain(revoked.forget).collect())
    }

    fn connected(
        &self,
        _subject: &Subject<'_>,
        name: &ExportName,
        facts: &NvmeState,
    ) -> Result<Vec<String>, Error> {
        connected(name.as_str(), facts.connected.as_ref())
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
        let refused = || Self::refused(subject, Kind::Internal);
        let nqn = if let Some(subsystem) = facts.subsystem(name.as_str()) {
            let nqn = subsystem.subnqn.clone();
            nqn.ok_or_else(|| refused().because("its subsystem has no NQN"))?
        } else {
            let Some(nqn) = self.new_nqn(name, facts) else {
                return Ok(None);
            };
            nqn
        };
        let namespace = facts.namespace(subject.dataset.as_str());
        let nsid = namespace.map_or(self.nsid, |namespace| namespace.nsid);
        let attachment = self.attach(&nqn, &nsid.unwrap_or(1).to_string());
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
        (name, zvol): (&str, &str),
        keyed: &[String],
        (links, nodes, is_new): (bool, bool, bool),
    ) -> Result<Answer, ApiError> {
        let subsystems = QuerySubsystems(vec![Filter::eq("name", name)]);
        let either = [
            Filter::eq("device_path", device(zvol)),
            Filter::eq("subsys.name", name),
        ];
        let namespaces = QueryNamespaces(vec![Filter::either(either)]);
        let global = async {
            if is_new {
                self.read(call, &GetNvmeGlobal).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let (global, subsystems, namespaces, keyed) = tokio::try_join!(
            global,
            self.read(call, &subsystems),
            self.read(call, &namespaces),
            self.hosts_called(call, keyed),
        )?;
        let id = subsystems.first().map(|one| one.id);
        // Who closed it is seen by its hosts.
        let closed = subsystems.iter().any(|one| !one.allow_any_host);
        let connected = async {
            match id.filter(|_| !links) {
                Some(id) => Some(self.hosts_at(call, id).await),
                None => None,
            }
        };
        let linked = self.nvme_links(call, id, links, nodes || closed);
        let (linked, connected) = tokio::join!(linked, connected);
        let (ports, hosts) = linked?;
        Ok(Answer::Nvme(NvmeState {
            global,
            subsystems,
            namespaces,
            ports,
            hosts,
            keyed,
            connected,
        }))
    }

    /// The links of ports and hosts to a subsystem. TrueNAS looks for these rows in its database, where only the
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
}
