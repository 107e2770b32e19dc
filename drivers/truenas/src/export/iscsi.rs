//! Zvols as disks of iSCSI targets: one target, one extent, LUN 0, all named after the volume.

use csi_types::Attachment;
use csi_types::attachment::{FieldError, Interface, Iqn, Iscsi, Listed, Lun, Portal};
use driver_core::template::Template;
use driver_core::{AccessRules, Call, Error, Kind, NodeId};
use driver_zfs::export::{Act, Export, ExportName, ExportNaming, Subject};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;

use super::access::{self, Access, Allowed};
use super::connected::connected;
use super::iscsi_change::{EXTENT, IscsiChange, LINK, LIST, LUN, Lists, Proof, TARGET, removed};
use super::iscsi_lists::{comment_of_list, initiators, with_list};
use super::{comment, enabled, number, problems, remember, remember_id, rules_of_disks, unread};
use crate::api::iscsi::{
    CreateExtent, CreateInitiators, CreateTarget, Extent, GetGlobal, QueryExtents,
    QueryTargetExtents, QueryTargets, Target, TargetExtent, TargetGroup, UpdateInitiators,
    UpdateTarget,
};
use crate::api::{Enable, Filter};
use crate::backend::Nas;
use crate::check::Needs;
use crate::command::{Answer, Command, Id, IscsiState, Look, task};
use crate::error::Error as ApiError;

/// Exports zvols by iSCSI.
#[derive(Debug)]
pub(crate) struct IscsiExport {
    /// Whether datasets go through the API, too.
    pub(crate) by_api: bool,
    /// The portals where nodes find targets.
    pub(crate) portals: Listed<Portal>,
    /// The interface of its own that a node should use.
    pub(crate) interface: Option<Interface>,
    /// The way targets are named.
    pub(crate) naming: ExportNaming,
    /// The portals where targets listen and the initiators that they admit.
    pub(crate) groups: Vec<TargetGroup>,
    /// The settings of extents, but for their names, zvols and comments.
    pub(crate) extent: CreateExtent,
    /// Makes the comment of an extent.
    pub(crate) comment: Option<Template>,
    /// The names of nodes, if access is per node.
    pub(crate) access: Option<Access>,
}

/// The longest name of an extent.
const LONGEST: usize = 64;
/// The beginning of the name of a target, unless the NAS says another one.
const BASENAME: &str = "iqn.2005-10.org.freenas.ctl";
/// Whether a target has just the groups that would be written, in whatever order.
pub(super) fn listens(target: &Target, groups: &[TargetGroup]) -> bool {
    let in_order = |groups: &[TargetGroup]| {
        let mut groups = groups.to_vec();
        groups.sort();
        groups
    };
    in_order(&target.groups) == in_order(groups)
}

pub(super) fn disk(zvol: &str) -> String {
    format!("zvol/{zvol}")
}

// === impl IscsiState ===

impl IscsiState {
    pub(super) fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|target| target.name == name)
    }

    fn extent(&self, zvol: &str) -> Option<&Extent> {
        let disk = disk(zvol);
        let mut extents = self.extents.iter();
        extents.find(|extent| extent.disk.as_deref() == Some(&disk))
    }

    /// The row that puts the extent on the target.
    fn link(&self, target: &Id, extent: &Id) -> Option<&TargetExtent> {
        let (Id::Known(target), Id::Known(extent)) = (target, extent) else {
            return None;
        };
        let mut links = self.links.iter().flatten();
        links.find(|link| link.target == *target && link.extent == *extent)
    }

    /// The name of a target in full, where the settings of the service are known.
    fn iqn(&self, target: &str) -> Option<String> {
        if ["iqn.", "eui.", "naa."]
            .iter()
            .any(|form| target.starts_with(form))
        {
            return Some(target.to_owned());
        }
        let global = self.global.as_ref()?;
        Some(format!("{}:{target}", global.basename))
    }
}

// === impl IscsiExport ===

impl IscsiExport {
    fn refused(subject: &Subject<'_>, kind: Kind) -> Error {
        Error::new(kind, format!("export volume `{}` by iSCSI", subject.id))
    }

    /// A new extent.
    fn new_extent(&self, subject: &Subject<'_>, name: &ExportName) -> Result<CreateExtent, Error> {
        let template = self.comment.as_ref();
        let comment = template.map(|template| comment(template, subject));
        let comment = comment.transpose()?;
        Ok(CreateExtent {
            name: name.to_string(),
            zvol: subject.dataset.to_string(),
            comment: comment.unwrap_or_default(),
            ..self.extent.clone()
        })
    }

    /// The acts that are missing for a target that lets in these initiators, through a list of its own; with `None` the
    /// groups of the configuration say it. Its number, and the acts.
    fn target(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
        initiators: Option<Vec<String>>,
    ) -> (Id, Vec<Act<Command>>) {
        let zvol = subject.dataset.as_str();
        let mut acts = Vec::new();
        let of_nodes = initiators.is_some();
        let list = initiators.map(|initiators| match facts.lists.first() {
            None => {
                let comment = comment_of_list(zvol);
                let create = CreateInitiators {
                    initiators,
                    comment,
                };
                let create = task(IscsiChange::CreateList(create));
                acts.push(Act::Task(create.named(LIST)));
                Id::Of(LIST.into())
            }
            Some(list) => {
                let both =
                    [&initiators, &list.initiators].map(|all| all.iter().map(String::as_str));
                let [wanted, seen] = both;
                if !access::same(wanted, seen) {
                    let id = list.id;
                    let update = task(IscsiChange::UpdateList(UpdateInitiators { id, initiators }));
                    acts.push(Act::Task(update.named(LIST)));
                }
                Id::Known(list.id)
            }
        });
        let groups = match list {
            Some(Id::Known(list)) => with_list(&self.groups, list),
            _ => self.groups.clone(),
        };
        let is_new = matches!(list, Some(Id::Of(_)));
        let new_list = list.filter(|_| is_new);
        let Some(target) = facts.target(name.as_str()) else {
            let create = CreateTarget {
                name: name.to_string(),
                alias: Some(zvol.to_owned()),
                groups,
                queued_commands: None,
            };
            let create = task(IscsiChange::CreateTarget(create, new_list));
            acts.push(Act::Task(create.named(TARGET).after(LIST)));
            return (Id::Of(TARGET.into()), acts);
        };
        let id = target.id;
        if is_new || !listens(target, &groups) {
            let update = task(IscsiChange::UpdateTarget(
                UpdateTarget { id, groups },
                new_list,
            ));
            acts.push(Act::Task(update.named(TARGET).after(LIST)));
            if !of_nodes {
                // What it had may be a list of its own, of before `nodes` was removed.
                let before = target.groups.iter().filter_map(|group| group.initiator);
                let lists = Lists {
                    ids: before.collect(),
                    comment: comment_of_list(zvol),
                };
                if !lists.ids.is_empty() {
                    let remove = task(IscsiChange::RemoveLists(lists, None));
                    acts.push(Act::Task(remove.after(TARGET)));
                }
            }
        }
        (Id::Known(id), acts)
    }

    /// The initiators that the target has to list, if access is per node.
    fn listed(&self, subject: &Subject<'_>) -> Result<Option<Vec<String>>, Error> {
        let access = self.access.as_ref();
        let names = access.map(|access| access.names(subject)).transpose()?;
        Ok(names.map(initiators))
    }

    /// Refuses what is of another volume.
    fn check(subject: &Subject<'_>, name: &ExportName, facts: &IscsiState) -> Result<(), Error> {
        let refused = |why: String| Err(Self::refused(subject, Kind::Conflict).because(why));
        let extent = facts.extent(subject.dataset.as_str());
        if extent.is_none()
            && let Some(other) = facts.extents.iter().find(|e| e.name == name.as_str())
        {
            let of = other.disk.as_deref().unwrap_or("a file");
            return refused(format!("extent `{name}` is of {of}"));
        }
        let taken = |target: &Target| {
            let mut links = facts.links.iter().flatten();
            links.any(|link| link.target == target.id && extent.is_none_or(|e| e.id != link.extent))
        };
        if facts.target(name.as_str()).is_some_and(taken) {
            return refused(format!("there is another extent on target `{name}`"));
        }
        Ok(())
    }

    /// The acts that give an existing target of the volume just these initiators, unless it has them.
    fn admit(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
        names: Vec<String>,
    ) -> Vec<Act<Command>> {
        let target = facts.target(name.as_str());
        if target.is_none() || Self::check(subject, name, facts).is_err() {
            return Vec::new();
        }
        self.target(subject, name, facts, Some(initiators(names))).1
    }

    /// The lists of initiators that go with the target: those of the volume, and what the target has that the
    /// configuration does not say, for it may be one of before `nodes` was removed.
    fn lists(&self, subject: &Subject<'_>, target: Option<&Target>, facts: &IscsiState) -> Lists {
        let known = |id: &i64| self.groups.iter().any(|group| group.initiator == Some(*id));
        let of_target = target.iter().flat_map(|target| &target.groups);
        let of_target = of_target.filter_map(|group| group.initiator);
        let of_volume = facts.lists.iter().map(|list| list.id);
        let mut ids: Vec<i64> = of_target.chain(of_volume).filter(|id| !known(id)).collect();
        ids.sort_unstable();
        ids.dedup();
        Lists {
            ids,
            comment: comment_of_list(subject.dataset.as_str()),
        }
    }

    fn attach(&self, iqn: &str, lun: &str) -> Result<Attachment, FieldError> {
        Ok(Attachment::Iscsi(Iscsi {
            iqn: Iqn::parse(iqn)?,
            lun: Lun::parse(lun)?,
            portals: self.portals.clone(),
            interface: self.interface.clone(),
            device_id: None,
        }))
    }
}

impl Export for IscsiExport {
    type Command = Command;
    type Output = Answer;
    type Name = ExportName;
    type Facts = IscsiState;

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
            PropertyName::FREENAS_ISCSI_TARGET,
            PropertyName::FREENAS_ISCSI_EXTENT,
            PropertyName::FREENAS_ISCSI_LINK,
            PropertyName::FREENAS_ISCSI_ASSETS,
        ]
        .into_iter()
        .chain(access::property())
        .collect()
    }

    fn export_name(&self, subject: &Subject<'_>) -> Result<ExportName, Error> {
        let name = self
            .naming
            .name(subject, &PropertyName::FREENAS_ISCSI_ASSETS)?
            .within(LONGEST);
        if name.as_str().contains('_') {
            return Err(Self::refused(subject, Kind::Invalid)
                .because(format!("`{name}` holds `_`, which no target can"))
                .advise("see iscsi.nameTemplate, and _private.csi.volume.idHash"));
        }
        Ok(name)
    }

    fn observe(&self, subject: &Subject<'_>, name: &ExportName) -> Vec<Command> {
        vec![Command::Look(Look::Iscsi {
            name: name.to_string(),
            zvol: subject.dataset.to_string(),
            links: true,
            nodes: self.access.is_some(),
        })]
    }

    fn observe_to_remove(&self, subject: &Subject<'_>, name: &ExportName) -> Vec<Command> {
        vec![Command::Look(Look::Iscsi {
            name: name.to_string(),
            zvol: subject.dataset.to_string(),
            links: false,
            nodes: self.access.is_some(),
        })]
    }

    fn facts(
        &self,
        _subject: &Subject<'_>,
        _name: &ExportName,
        answers: &[Answer],
    ) -> Result<IscsiState, Error> {
        match answers {
            [Answer::Iscsi(state)] => Ok(state.clone()),
            _ => Err(unread()),
        }
    }

    fn ensure(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
    ) -> Result<Vec<Act<Command>>, Error> {
        Self::check(subject, name, facts)?;
        let zvol = subject.dataset.as_str();
        let listed = self.listed(subject)?;
        let is_open = listed.is_none();
        let (target, mut acts) = self.target(subject, name, facts, listed);
        let extent = if let Some(extent) = facts.extent(zvol) {
            acts.extend(enabled(extent.enabled, Enable::Extent(extent.id)));
            Id::Known(extent.id)
        } else {
            let create = task(IscsiChange::CreateExtent(self.new_extent(subject, name)?));
            acts.push(Act::Task(create.named(EXTENT)));
            Id::Of(EXTENT.into())
        };
        let link = if let Some(link) = facts.link(&target, &extent) {
            Id::Known(link.id)
        } else {
            let create = task(IscsiChange::Link(target.clone(), extent.clone()));
            let create = create.named(LINK).after(TARGET).after(EXTENT);
            acts.push(Act::Task(create));
            Id::Of(LINK.into())
        };
        let assets = PropertyName::FREENAS_ISCSI_ASSETS;
        acts.extend(remember(subject, &assets, name.as_str())?);
        for (property, id) in [
            (PropertyName::FREENAS_ISCSI_TARGET, target),
            (PropertyName::FREENAS_ISCSI_EXTENT, extent),
            (PropertyName::FREENAS_ISCSI_LINK, link),
        ] {
            acts.extend(remember_id(subject, property, &id)?);
        }
        if is_open {
            acts.extend(access::forget(subject));
        }
        Ok(acts)
    }

    /// An extent is ours by its zvol. A target of our name may be that of another: what proves that it is not
    /// is its alias, its number, or the extent that is on it.
    fn remove(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
    ) -> Result<Vec<Act<Command>>, Error> {
        let disk = disk(subject.dataset.as_str());
        let ours = facts.extents.iter();
        let ours = ours.filter(|extent| extent.disk.as_deref() == Some(disk.as_str()));
        let extents: Vec<i64> = ours.map(|extent| extent.id).collect();
        let target = facts.target(name.as_str()).map(|target| {
            let known = number(subject, &PropertyName::FREENAS_ISCSI_TARGET);
            let proof = if target.alias.as_deref() == Some(subject.dataset.as_str()) {
                Proof::Mark
            } else if known == Some(target.id) {
                Proof::Number
            } else {
                Proof::Extent
            };
            (target.id, proof)
        });
        let proved = target.filter(|(_, proof)| *proof != Proof::Extent || !extents.is_empty());
        if target.is_some() && proved.is_none() {
            tracing::warn!(
                object = name.as_str(),
                "nothing proves that the iSCSI target of this name is of the volume: it stays"
            );
        }
        let lists = self.lists(subject, facts.target(name.as_str()), facts);
        if proved.is_none() && extents.is_empty() && facts.lists.is_empty() {
            return Ok(Vec::new());
        }
        Ok(removed(proved, &extents, lists))
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

    fn is_open(&self, subject: &Subject<'_>, name: &ExportName, facts: &IscsiState) -> bool {
        let is_there = facts.target(name.as_str()).is_some();
        Access::is_unlisted(self.access.as_ref(), subject) && is_there && facts.lists.is_empty()
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
        nodes: &[&NodeId],
    ) -> Result<Vec<Act<Command>>, Error> {
        let allowed = Access::allow(self.access.as_ref(), subject, nodes)?;
        let Some(Allowed { remember, names }) = allowed else {
            return Ok(Vec::new());
        };
        let mut acts = vec![remember];
        // Where more is missing, the next round makes it with the node in the list.
        if self.ensure(subject, name, facts)?.is_empty() {
            acts.extend(self.admit(subject, name, facts, names));
        }
        Ok(acts)
    }

    fn revoke(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<Command>>, Error> {
        let revoked = Access::revoke(self.access.as_ref(), subject, node)?;
        let Some(revoked) = revoked else {
            return Ok(Vec::new());
        };
        let admit = self.admit(subject, name, facts, revoked.names);
        // Before the list changes: after an interruption no other call lets it in again.
        let mark = revoked.mark.filter(|_| !admit.is_empty());
        // After that: while the target lets it in, the volume is held by it.
        let acts = mark.into_iter().chain(admit).chain(revoked.forget);
        Ok(acts.collect())
    }

    fn connected(
        &self,
        _subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
    ) -> Result<Vec<String>, Error> {
        connected(name.as_str(), facts.connected.as_ref())
    }

    fn examine(&self) -> Vec<Command> {
        vec![Command::Look(Look::Needs(Needs {
            service: "iscsitarget",
            datasets: self.by_api,
            portals: self.groups.iter().map(|group| group.portal).collect(),
            initiators: self
                .groups
                .iter()
                .filter_map(|group| group.initiator)
                .collect(),
            auths: self.groups.iter().filter_map(|group| group.auth).collect(),
            nodes: self.access.is_some(),
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
        facts: &IscsiState,
    ) -> Result<Option<Attachment>, Error> {
        let extent = facts.extent(subject.dataset.as_str());
        let pair = facts.target(name.as_str()).zip(extent);
        let pair = pair.map(|(target, extent)| [target.id, extent.id].map(Id::Known));
        let link = pair.and_then(|[target, extent]| facts.link(&target, &extent));
        // What is made gets this one.
        let lun = link.and_then(|link| link.lunid).unwrap_or(LUN).to_string();
        let Some(iqn) = facts.iqn(name.as_str()) else {
            return Ok(None);
        };
        let attachment = self.attach(&iqn, &lun);
        attachment
            .map(Some)
            .map_err(|error| Self::refused(subject, Kind::Internal).because(error))
    }

    fn longest_attachment(&self, longest: &Subject<'_>) -> Option<Attachment> {
        let name = self.naming.longest(longest)?;
        let name = name.shortened(|name| (name.as_str().len() <= LONGEST).then(|| name.clone()))?;
        self.attach(&format!("{BASENAME}:{name}"), "0").ok()
    }
}

impl Nas {
    pub(super) async fn iscsi(
        &self,
        call: &Call,
        name: &str,
        zvol: &str,
        links: bool,
        nodes: bool,
    ) -> Result<Answer, ApiError> {
        let targets = QueryTargets(vec![Filter::eq("name", name)]);
        let either = [Filter::eq("name", name), Filter::eq("disk", disk(zvol))];
        let extents = QueryExtents(vec![Filter::either(either)]);
        let lists = async {
            if nodes {
                self.lists_of(call, zvol).await
            } else {
                Ok(Vec::new())
            }
        };
        let global = async {
            if links {
                self.read(call, &GetGlobal).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let connected = async {
            if links {
                Ok(None)
            } else {
                Ok(Some(Box::pin(self.initiators_at(call, name)).await))
            }
        };
        let (global, targets, extents, lists, connected) = tokio::try_join!(
            global,
            self.read(call, &targets),
            self.read(call, &extents),
            lists,
            connected,
        )?;
        let mut state = IscsiState {
            global,
            targets,
            extents,
            links: None,
            lists,
            connected,
        };
        if links {
            state.links = Some(self.links(call, &state).await?);
        }
        Ok(Answer::Iscsi(state))
    }

    async fn links(&self, call: &Call, state: &IscsiState) -> Result<Vec<TargetExtent>, ApiError> {
        let targets = state.targets.iter().map(|target| target.id);
        let targets = targets.map(|id| Filter::eq("target", id));
        let extents = state.extents.iter().map(|extent| extent.id);
        let filters: Vec<Filter> = targets
            .chain(extents.map(|id| Filter::eq("extent", id)))
            .collect();
        if filters.is_empty() {
            return Ok(Vec::new());
        }
        let query = QueryTargetExtents(vec![Filter::either(filters)]);
        self.read(call, &query).await
    }
}
