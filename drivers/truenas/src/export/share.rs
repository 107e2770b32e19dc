//! Filesystems as NFS and SMB shares.

use std::net::IpAddr;

use csi_types::Attachment;
use csi_types::attachment::{NetworkShare, Server, Share};
use driver_core::template::Template;
use driver_core::{AccessRules, Call, Error, Kind, NodeId};
use driver_zfs::context;
use driver_zfs::export::{Act, Export, Subject};
use driver_zfs::nodes::{ListedNodes, NamedNode};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;

use super::access::{self, Access, Allowed};
use super::choices::{self, NfsChoices};
use super::share_change::{NfsChange, SmbChange};
use super::users::{Connections, Noted, users};
use super::{comment, enabled, number, problems, remember, unread};
use crate::Dialect;
use crate::api::nfs::{CreateNfsShare, FindNfsShares, NfsOptions, NfsShare, UpdateNfsShare};
use crate::api::smb::{CreateSmbShare, QuerySmbShares, SmbOptions, SmbShare};
use crate::api::{Enable, Filter};
use crate::backend::Nas;
use crate::check::Needs;
use crate::command::{Answer, Command, Look, Shares, act, share_of, task};
use crate::error::Error as ApiError;

/// Exports filesystems by NFS.
#[derive(Debug)]
pub(crate) struct NfsExport {
    /// Whether datasets go through the API, too.
    pub(crate) by_api: bool,
    /// The server where nodes find the NAS.
    pub(crate) server: Server,
    /// The options of shares, but for the comment.
    pub(crate) options: NfsOptions,
    /// Whether directories below can be mounted, where that can be chosen.
    pub(crate) all_dirs: bool,
    /// Makes the comment.
    pub(crate) comment: Template,
    /// The options that classes may choose instead.
    pub(crate) choices: NfsChoices,
    /// The names of nodes, if access is per node.
    pub(crate) access: Option<Access>,
    /// Whether it was said that the NAS does not know who uses a share.
    pub(crate) noted: Noted,
}

/// Exports filesystems by SMB.
#[derive(Debug)]
pub(crate) struct SmbExport {
    /// Whether datasets go through the API, too.
    pub(crate) by_api: bool,
    /// The server where nodes find the NAS.
    pub(crate) server: Server,
    /// The options of shares, but for the comment and those that come from a template.
    pub(crate) options: SmbOptions,
    /// The way shares are named.
    pub(crate) naming: SmbNaming,
    /// Makes more lines of the share.
    pub(crate) auxiliary: Option<Template>,
    /// Makes the comment.
    pub(crate) comment: Template,
    /// Whether it was said that the NAS does not know who uses a share.
    pub(crate) noted: Noted,
}

/// The way SMB shares are named.
#[derive(Debug, Clone, Default)]
pub(crate) struct SmbNaming {
    /// Makes the name; without it, it is the volume id.
    pub(crate) template: Option<Template>,
    /// Comes before it.
    pub(crate) prefix: String,
    /// Comes after it.
    pub(crate) suffix: String,
}

/// The host of an NFS share that lets in no node, for without any it lets in all: an address of the NAS itself,
/// which nothing there uses.
const NO_NODE: &str = "127.255.255.254";
/// The name of the step that makes a share.
const SHARE: &str = "share";
/// The longest name of an SMB share.
const LONGEST: usize = 80;

/// The SMB shares of this name, in capitals or not.
pub(super) fn called(dialect: &Dialect, name: &str) -> Filter {
    if dialect.has_filters_without_case() {
        return Filter::same_text("name", name);
    }
    // Another spelling of a foreign share is found when ours is made.
    let spellings = [name.to_owned(), name.to_lowercase(), name.to_uppercase()];
    Filter::any_of("name", spellings)
}

/// The path where a filesystem is mounted on TrueNAS.
fn mountpoint(subject: &Subject<'_>) -> String {
    let volume = subject.volume.and_then(|volume| volume.mountpoint());
    volume.map_or_else(|| format!("/mnt/{}", subject.dataset), str::to_owned)
}

fn share(server: &Server, share: &str) -> Result<NetworkShare, Error> {
    let share = Share::parse(share)
        .map_err(|error| Error::new(Kind::Internal, "describe a share").because(error))?;
    Ok(NetworkShare {
        server: server.clone(),
        share,
    })
}

// === impl NfsExport ===

/// The hosts of a share for these nodes.
fn hosts(names: Vec<String>) -> Vec<String> {
    if names.is_empty() {
        vec![NO_NODE.to_owned()]
    } else {
        names
    }
}

impl NfsExport {
    /// Our share of the directory, if any.
    fn ours<'f>(subject: &Subject<'_>, facts: &'f [NfsShare]) -> Option<&'f NfsShare> {
        let known = number(subject, &PropertyName::FREENAS_NFS_SHARE);
        let ours = facts.iter().find(|share| Some(share.id) == known);
        let served = || facts.iter().find(|share| share.options.enabled);
        ours.or_else(served).or(facts.first())
    }

    /// The error where the choice of a class is needed, and is not in the configuration.
    fn choice_is_gone(subject: &Subject<'_>, name: &str) -> Error {
        let doing = format!("share volume `{}`", subject.id);
        Error::new(Kind::Invalid, doing)
            .because(format!("nfs.shareChoices has no `{name}`, which its class chose"))
            .advise("add it to the configuration again, or choose another one by a VolumeAttributesClass")
    }

    /// The options of a new share.
    fn new_options(&self, subject: &Subject<'_>) -> Result<NfsOptions, Error> {
        let chosen = self.choices.of(subject);
        if let (None, None, Some(name)) = (&self.access, chosen, subject.share_choice()) {
            // What the connection says of all others may let in more.
            return Err(Self::choice_is_gone(subject, name));
        }
        let mut options = NfsOptions {
            comment: comment(&self.comment, subject)?,
            ..chosen.unwrap_or(&self.options).clone()
        };
        if let Some(access) = &self.access {
            options.hosts = hosts(access.names(subject)?);
        }
        Ok(options)
    }

    /// The act that gives a share just these clients, unless it has them.
    fn admit(
        share: &NfsShare,
        hosts: Vec<String>,
        networks: Vec<String>,
    ) -> Result<Option<Act<Command>>, Error> {
        let [wanted, seen] =
            [&hosts, &share.options.hosts].map(|all| all.iter().map(String::as_str));
        if access::same(wanted, seen)
            && choices::are_same_networks(&networks, &share.options.networks)
        {
            return Ok(None);
        }
        let options = NfsOptions {
            hosts,
            networks,
            enabled: true,
            ..share.options.clone()
        };
        Self::update(share, options).map(Some)
    }

    /// The act that gives a share the options that a class chose, unless it has them.
    fn choose(share: &NfsShare, chosen: &NfsOptions) -> Result<Option<Act<Command>>, Error> {
        if choices::is_so(chosen, &share.options) {
            return Ok(None);
        }
        let options = NfsOptions {
            comment: share.options.comment.clone(),
            security: share.options.security.clone(),
            ..chosen.clone()
        };
        Self::update(share, options).map(Some)
    }

    fn update(share: &NfsShare, options: NfsOptions) -> Result<Act<Command>, Error> {
        if share.paths.len() > 1 {
            let why = "it is of other directories, too";
            return Err(Error::new(
                Kind::Busy,
                format!("change the clients of NFS share {}", share.id),
            )
            .because(why)
            .advise("take the directory out of that share on TrueNAS"));
        }
        let update = UpdateNfsShare {
            id: share.id,
            options,
        };
        Ok(act(NfsChange::Update(Box::new(update))))
    }

    /// The acts that give an existing share the clients that it has to let in, and the options that a class chose.
    fn lacks(&self, subject: &Subject<'_>, share: &NfsShare) -> Result<Vec<Act<Command>>, Error> {
        if let Some(access) = &self.access {
            let hosts = hosts(access.names(subject)?);
            return Ok(Self::admit(share, hosts, Vec::new())?.into_iter().collect());
        }
        // Of before `nodes` was removed from the configuration.
        let forget = access::forget(subject);
        if let Some(chosen) = self.choices.of(subject) {
            let chosen = Self::choose(share, chosen)?;
            return Ok(chosen.into_iter().chain(forget).collect());
        }
        if let Some(name) = subject.share_choice() {
            if share.options.hosts == [NO_NODE] {
                return Err(Self::choice_is_gone(subject, name));
            }
            // What the connection says of all others may let in more than the choice that is gone.
            return Ok(forget.into_iter().collect());
        }
        if forget.is_none() && share.options.hosts != [NO_NODE] {
            return Ok(Vec::new());
        }
        let NfsOptions {
            hosts, networks, ..
        } = self.options.clone();
        let admit = Self::admit(share, hosts, networks)?;
        Ok(admit.into_iter().chain(forget).collect())
    }
}

impl Export for NfsExport {
    type Command = Command;
    type Output = Answer;
    /// The directory that is shared.
    type Name = String;
    type Facts = Shares<NfsShare>;

    fn kind(&self) -> VolumeKind {
        VolumeKind::Filesystem
    }

    fn is_restored_by_growth(&self) -> bool {
        false
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&["nfs"])
    }

    fn reads(&self) -> Vec<PropertyName> {
        let numbers = [PropertyName::FREENAS_NFS_SHARE];
        let choice = self.access.is_none().then_some(PropertyName::SHARE_OPTIONS);
        let others = access::property().into_iter().chain(choice);
        numbers.into_iter().chain(others).collect()
    }

    fn export_name(&self, subject: &Subject<'_>) -> Result<String, Error> {
        let path = mountpoint(subject);
        share(&self.server, &path).map_err(|error| {
            Error::invalid(format!("share volume `{}`", subject.id)).because(error)
        })?;
        Ok(path)
    }

    fn observe(&self, _subject: &Subject<'_>, path: &String) -> Vec<Command> {
        let (path, users) = (path.clone(), false);
        vec![Command::Look(Look::Nfs { path, users })]
    }

    fn observe_to_remove(&self, _subject: &Subject<'_>, path: &String) -> Vec<Command> {
        let (path, users) = (path.clone(), true);
        vec![Command::Look(Look::Nfs { path, users })]
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _path: &String,
        answers: &[Answer],
    ) -> Result<Shares<NfsShare>, Error> {
        match answers {
            [Answer::Nfs(shares)] => Ok(shares.clone()),
            _ => Err(unread()),
        }
    }

    fn ensure(
        &self,
        subject: &Subject<'_>,
        path: &String,
        facts: &Shares<NfsShare>,
    ) -> Result<Vec<Act<Command>>, Error> {
        let Some(ours) = Self::ours(subject, &facts.rows) else {
            let create = CreateNfsShare {
                path: path.clone(),
                all_dirs: self.all_dirs,
                options: self.new_options(subject)?,
            };
            return Ok(vec![
                Act::Task(task(NfsChange::Create(Box::new(create))).named(SHARE)),
                Act::Record(PropertyName::FREENAS_NFS_SHARE, SHARE.into()),
            ]);
        };
        let id = ours.id.to_string();
        let mut acts = self.lacks(subject, ours)?;
        // A change of its clients serves it, too.
        if acts.is_empty() {
            acts.extend(enabled(ours.options.enabled, Enable::NfsShare(ours.id)));
        }
        acts.extend(remember(subject, &PropertyName::FREENAS_NFS_SHARE, &id)?);
        Ok(acts)
    }

    fn remove(
        &self,
        _subject: &Subject<'_>,
        path: &String,
        facts: &Shares<NfsShare>,
    ) -> Result<Vec<Act<Command>>, Error> {
        if let Some(more) = facts.rows.iter().find(|share| share.paths.len() > 1) {
            let why = format!("NFS share {} is of other directories, too", more.id);
            return Err(Error::new(Kind::Busy, format!("unshare {path}"))
                .because(why)
                .advise("take the directory out of that share on TrueNAS"));
        }
        let remove = |share: &NfsShare| act(NfsChange::Delete(share.id));
        Ok(facts.rows.iter().map(remove).collect())
    }

    fn connected(
        &self,
        _subject: &Subject<'_>,
        path: &String,
        facts: &Shares<NfsShare>,
    ) -> Result<Vec<String>, Error> {
        users(path, facts.connected.clone(), &self.noted)
    }

    fn is_proved_by_acts(&self) -> bool {
        true
    }

    fn is_per_node(&self) -> bool {
        self.access.is_some()
    }

    /// The next request of the node is refused.
    fn cuts_off(&self) -> bool {
        true
    }

    fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        Access::lets_in(self.access.as_ref(), subject, node)
    }

    fn named(&self, node: &NodeId) -> NamedNode {
        Access::named(self.access.as_ref(), node)
    }

    fn listed(&self, subject: &Subject<'_>, nodes: &[NamedNode]) -> ListedNodes {
        Access::listed(self.access.as_ref(), subject, nodes)
    }

    fn names(&self, node: &NodeId) -> bool {
        Access::has_name(self.access.as_ref(), node)
    }

    fn addresses(&self, node: &NodeId) -> Vec<IpAddr> {
        Access::addresses(self.access.as_ref(), node)
    }

    fn is_open(&self, subject: &Subject<'_>, _path: &String, facts: &Shares<NfsShare>) -> bool {
        let lets_in_all = |share: &NfsShare| share.options.hosts.is_empty();
        Access::is_unlisted(self.access.as_ref(), subject)
            && Self::ours(subject, &facts.rows).is_some_and(lets_in_all)
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        path: &String,
        facts: &Shares<NfsShare>,
        nodes: &[&NodeId],
    ) -> Result<Vec<Act<Command>>, Error> {
        let allowed = Access::allow(self.access.as_ref(), subject, nodes)?;
        let Some(Allowed { remember, names }) = allowed else {
            return Ok(Vec::new());
        };
        let mut acts = vec![remember];
        // Where more is missing, the next round makes it with the node in the list.
        if self.ensure(subject, path, facts)?.is_empty()
            && let Some(ours) = Self::ours(subject, &facts.rows)
        {
            acts.extend(Self::admit(ours, hosts(names), Vec::new())?);
        }
        Ok(acts)
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        _path: &String,
        facts: &Shares<NfsShare>,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<Command>>, Error> {
        let Some(revoked) = Access::revoke(self.access.as_ref(), subject, node)? else {
            return Ok(Vec::new());
        };
        let ours = Self::ours(subject, &facts.rows);
        let admit = ours.map(|ours| Self::admit(ours, hosts(revoked.names), Vec::new()));
        let admit = admit.transpose()?.flatten();
        // Before the share changes: after an interruption no other call lets it in again.
        let mark = revoked.mark.filter(|_| admit.is_some());
        // After that: until then a fence finds the node by the list.
        let acts = mark.into_iter().chain(admit).chain(revoked.forget);
        Ok(acts.collect())
    }

    fn examine(&self) -> Vec<Command> {
        vec![Command::Look(Look::Needs(Needs {
            service: "nfs",
            datasets: self.by_api,
            files: true,
            ..Needs::default()
        }))]
    }

    fn problems(&self, answers: &[Answer]) -> Vec<Error> {
        problems(answers)
    }

    fn attachment(
        &self,
        _subject: &Subject<'_>,
        path: &String,
        _facts: &Shares<NfsShare>,
    ) -> Result<Option<Attachment>, Error> {
        share(&self.server, path).map(|share| Some(Attachment::Nfs(share)))
    }

    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment> {
        let share = share(&self.server, &mountpoint(subject)).ok()?;
        Some(Attachment::Nfs(share))
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        self.current_attachment(longest)
    }
}

// === impl SmbNaming ===

impl SmbNaming {
    /// The name of a new share.
    fn name(&self, subject: &Subject<'_>) -> Result<String, Error> {
        let refused = || Error::invalid(format!("name the share of volume `{}`", subject.id));
        let middle = match (&self.template, subject.request) {
            (Some(template), Some(asked)) => {
                let data = serde_json::json!({
                    "name": asked.name.as_str(),
                    "parameters": asked.parameters.raw(),
                });
                template
                    .render(&data)
                    .map_err(|error| refused().because(error).advise("see smb.nameTemplate"))?
            }
            _ => subject.id.as_str().to_owned(),
        };
        let name = format!("{}{middle}{}", self.prefix, self.suffix).to_lowercase();
        let odd = |c: char| c.is_control() || "\\/[]:|<>+=;,*?\"".contains(c);
        if name.is_empty() || name.chars().count() > LONGEST || name.contains(odd) {
            let why = format!(
                "`{}` is no name of a share: 1 to {LONGEST} characters, none of \\/[]:|<>+=;,*?\"",
                name.escape_debug()
            );
            return Err(refused().because(why));
        }
        Ok(name)
    }
}

// === impl SmbExport ===

impl SmbExport {
    fn create(&self, subject: &Subject<'_>, name: &SmbName) -> Result<CreateSmbShare, Error> {
        let auxiliary = match (&self.auxiliary, subject.request) {
            (Some(template), Some(asked)) => {
                let data = serde_json::json!({
                    "name": asked.name.as_str(),
                    "parameters": asked.parameters.raw(),
                });
                Some(template.render(&data).map_err(|error| {
                    Error::invalid(format!("share volume `{}`", subject.id))
                        .because(error)
                        .advise("see smb.shareAuxiliaryConfigurationTemplate")
                })?)
            }
            _ => None,
        };
        Ok(CreateSmbShare {
            name: name.name.clone(),
            path: name.path.clone(),
            options: SmbOptions {
                comment: Some(comment(&self.comment, subject)?),
                auxiliary,
                ..self.options.clone()
            },
        })
    }
}

/// The directory that is shared, and under which name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SmbName {
    path: String,
    name: String,
}

impl Export for SmbExport {
    type Command = Command;
    type Output = Answer;
    type Name = SmbName;
    type Facts = Shares<SmbShare>;

    fn kind(&self) -> VolumeKind {
        VolumeKind::Filesystem
    }

    fn is_restored_by_growth(&self) -> bool {
        false
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&["cifs"])
    }

    fn reads(&self) -> Vec<PropertyName> {
        vec![PropertyName::FREENAS_SMB_SHARE]
    }

    /// The recorded volume context, which nodes use, takes precedence over everything else.
    fn export_name(&self, subject: &Subject<'_>) -> Result<SmbName, Error> {
        let recorded = subject.remembered(&PropertyName::CONTEXT);
        let recorded = recorded.and_then(|text| context::from_json(text).ok());
        let name = match recorded.as_ref().and_then(share_of) {
            Some(name) => name.to_owned(),
            None => self.naming.name(subject)?,
        };
        Ok(SmbName {
            path: mountpoint(subject),
            name,
        })
    }

    fn observe(&self, _subject: &Subject<'_>, name: &SmbName) -> Vec<Command> {
        vec![Command::Look(Look::Smb {
            path: name.path.clone(),
            name: name.name.clone(),
            users: false,
        })]
    }

    fn observe_to_remove(&self, _subject: &Subject<'_>, name: &SmbName) -> Vec<Command> {
        vec![Command::Look(Look::Smb {
            path: name.path.clone(),
            name: name.name.clone(),
            users: true,
        })]
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _name: &SmbName,
        answers: &[Answer],
    ) -> Result<Shares<SmbShare>, Error> {
        match answers {
            [Answer::Smb(shares)] => Ok(shares.clone()),
            _ => Err(unread()),
        }
    }

    fn ensure(
        &self,
        subject: &Subject<'_>,
        name: &SmbName,
        facts: &Shares<SmbShare>,
    ) -> Result<Vec<Act<Command>>, Error> {
        if let Some(ours) = ours(subject, name, &facts.rows) {
            let id = ours.id.to_string();
            let enabled = enabled(ours.enabled, Enable::SmbShare(ours.id));
            let remembered = remember(subject, &PropertyName::FREENAS_SMB_SHARE, &id)?;
            return Ok(enabled.into_iter().chain(remembered).collect());
        }
        if let Some(other) = facts.rows.iter().find(|share| share.path != name.path) {
            let why = format!("share `{}` is of {}", other.name, other.path);
            return Err(
                Error::new(Kind::Conflict, format!("share volume `{}`", subject.id))
                    .because(why)
                    .advise("see smb.namePrefix, smb.nameSuffix and smb.nameTemplate"),
            );
        }
        let create = self.create(subject, name)?;
        Ok(vec![
            Act::Task(task(SmbChange::Create(create)).named(SHARE)),
            Act::Record(PropertyName::FREENAS_SMB_SHARE, SHARE.into()),
        ])
    }

    fn remove(
        &self,
        _subject: &Subject<'_>,
        name: &SmbName,
        facts: &Shares<SmbShare>,
    ) -> Result<Vec<Act<Command>>, Error> {
        let ours = facts.rows.iter().filter(|share| share.path == name.path);
        let remove = |share: &SmbShare| act(SmbChange::Delete(share.id));
        Ok(ours.map(remove).collect())
    }

    fn connected(
        &self,
        _subject: &Subject<'_>,
        name: &SmbName,
        facts: &Shares<SmbShare>,
    ) -> Result<Vec<String>, Error> {
        users(&name.name, facts.connected.clone(), &self.noted)
    }

    fn is_proved_by_acts(&self) -> bool {
        true
    }

    fn examine(&self) -> Vec<Command> {
        vec![Command::Look(Look::Needs(Needs {
            service: "cifs",
            datasets: self.by_api,
            files: true,
            ..Needs::default()
        }))]
    }

    fn problems(&self, answers: &[Answer]) -> Vec<Error> {
        problems(answers)
    }

    fn attachment(
        &self,
        subject: &Subject<'_>,
        name: &SmbName,
        facts: &Shares<SmbShare>,
    ) -> Result<Option<Attachment>, Error> {
        let ours = ours(subject, name, &facts.rows);
        let name = ours.map_or(&name.name, |ours| &ours.name);
        share(&self.server, name).map(|share| Some(Attachment::Smb(share)))
    }

    fn current_attachment(&self, subject: &Subject<'_>) -> Option<Attachment> {
        let name = self.export_name(subject).ok()?;
        let share = share(&self.server, &name.name).ok()?;
        Some(Attachment::Smb(share))
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        let name = if self.naming.template.is_some() {
            "x".repeat(LONGEST)
        } else {
            let SmbNaming { prefix, suffix, .. } = &self.naming;
            format!("{prefix}{}{suffix}", longest.id)
        };
        let name: String = name.chars().take(LONGEST).collect();
        share(&self.server, &name).ok().map(Attachment::Smb)
    }
}

/// The share of the directory: that of the name if there are several.
fn ours<'f>(subject: &Subject<'_>, name: &SmbName, facts: &'f [SmbShare]) -> Option<&'f SmbShare> {
    let known = number(subject, &PropertyName::FREENAS_SMB_SHARE);
    let of_it = || facts.iter().filter(|share| share.path == name.path);
    let named = of_it().find(|share| share.name.eq_ignore_ascii_case(&name.name));
    let known = || of_it().find(|share| Some(share.id) == known);
    named.or_else(known).or_else(|| of_it().next())
}

impl Nas {
    pub(super) async fn nfs_shares(
        &self,
        call: &Call,
        path: &str,
        users: bool,
    ) -> Result<Answer, ApiError> {
        let find = FindNfsShares {
            path: path.to_owned(),
        };
        let connected = async {
            Ok(if users {
                Some(Box::pin(self.nfs_clients_at(call, path)).await)
            } else {
                None
            })
        };
        let (rows, connected) = tokio::try_join!(self.read(call, &find), connected)?;
        Ok(Answer::Nfs(Shares { rows, connected }))
    }

    pub(super) async fn smb_shares(
        &self,
        call: &Call,
        dialect: &Dialect,
        (path, name): (&str, &str),
        users: bool,
    ) -> Result<Answer, ApiError> {
        let either = [Filter::eq("path", path), called(dialect, name)];
        let query = QuerySmbShares(vec![Filter::either(either)]);
        let connections = async {
            Ok(if users {
                Some(Box::pin(self.smb_connections(call)).await)
            } else {
                None
            })
        };
        let (rows, connections) = tokio::try_join!(self.read(call, &query), connections)?;
        let of_it = |connections: Connections| {
            let ours = rows.iter().filter(|share| share.path == path);
            let machines = ours.filter_map(|share| connections.get(&share.name.to_lowercase()));
            machines.flatten().cloned().collect()
        };
        let connected = connections.map(|connections| connections.map(of_it));
        Ok(Answer::Smb(Shares { rows, connected }))
    }
}
