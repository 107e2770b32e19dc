//! Zvols as disks of iSCSI targets: one target, one extent, LUN 0, all named after the volume.

use csi_types::Attachment;
use csi_types::attachment::{FieldError, Interface, Iqn, Iscsi, Listed, Lun, Portal};
use driver_core::template::Template;
use driver_core::{AccessRules, Call, Error, Kind, NodeId};
use driver_zfs::export::{Act, Export, ExportName, ExportNaming, Subject};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;

use super::access::{self, Access, Allowed};
use super::iscsi_lists::{comment_of_list, initiators, with_list};
use super::{comment, enabled, gone, number, problems, remember, rules_of_disks, unread};
use crate::api::iscsi::{
    CreateExtent, CreateTarget, CreateTargetExtent, DeleteExtent, DeleteTarget, Extent, GetGlobal,
    QueryExtents, QueryTargetExtents, QueryTargets, Target, TargetExtent, TargetGroup,
};
use crate::api::{Enable, Filter};
use crate::backend::Nas;
use crate::check::Needs;
use crate::command::{Answer, Change, Command, IscsiState, IscsiWish, Lists, Look, Proof};
use crate::error::Error as ApiError;

/// Exports zvols by iSCSI.
#[derive(Debug)]
pub(crate) struct IscsiExport {
    /// Whether datasets go through the API, too.
    pub(crate) by_api: bool,
    /// Where nodes find targets.
    pub(crate) portals: Listed<Portal>,
    /// Which interface of its own a node should use.
    pub(crate) interface: Option<Interface>,
    /// How targets are named.
    pub(crate) naming: ExportNaming,
    /// Where targets listen and which initiators they admit.
    pub(crate) groups: Vec<TargetGroup>,
    /// What extents are like, but for their names, zvols and comments.
    pub(crate) extent: CreateExtent,
    /// Makes the comment of an extent.
    pub(crate) comment: Option<Template>,
    /// What nodes are called, if access is per node.
    pub(crate) access: Option<Access>,
}

/// The longest name of an extent.
const LONGEST: usize = 64;
/// What the name of a target begins with, unless it is said otherwise on the NAS.
const BASENAME: &str = "iqn.2005-10.org.freenas.ctl";
const LUN: i64 = 0;
/// Whether a target has just the groups that would be written, in whatever order.
pub(super) fn listens(target: &Target, groups: &[TargetGroup]) -> bool {
    let in_order = |groups: &[TargetGroup]| {
        let mut groups = groups.to_vec();
        groups.sort();
        groups
    };
    in_order(&target.groups) == in_order(groups)
}

fn disk(zvol: &str) -> String {
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

    /// What puts the extent on the target.
    fn link(&self, target: &Target, extent: &Extent) -> Option<&TargetExtent> {
        let mut links = self.links.iter().flatten();
        links.find(|link| link.target == target.id && link.extent == extent.id)
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

    fn wish(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        seen: &IscsiState,
        initiators: Option<Vec<String>>,
    ) -> Result<IscsiWish, Error> {
        let template = self.comment.as_ref();
        let comment = template.map(|template| comment(template, subject));
        let comment = comment.transpose()?;
        Ok(IscsiWish {
            zvol: subject.dataset.to_string(),
            target: CreateTarget {
                name: name.to_string(),
                alias: Some(subject.dataset.to_string()),
                groups: self.groups.clone(),
                queued_commands: None,
            },
            extent: CreateExtent {
                name: name.to_string(),
                zvol: subject.dataset.to_string(),
                comment: comment.unwrap_or_default(),
                ..self.extent.clone()
            },
            initiators,
            seen: seen.clone(),
        })
    }

    /// The initiators that the target has to list, if access is per node.
    fn listed(&self, subject: &Subject<'_>) -> Result<Option<Vec<String>>, Error> {
        let access = self.access.as_ref();
        let names = access.map(|access| access.names(subject)).transpose()?;
        Ok(names.map(initiators))
    }

    /// Whether the target admits just these initiators, through the groups of the configuration.
    fn admits(&self, target: &Target, initiators: Option<&[String]>, facts: &IscsiState) -> bool {
        let Some(initiators) = initiators else {
            return listens(target, &self.groups);
        };
        facts.lists.first().is_some_and(|list| {
            let both = [initiators, &list.initiators];
            let [wanted, seen] = both.map(|names| names.iter().map(String::as_str));
            listens(target, &with_list(&self.groups, list.id)) && access::same(wanted, seen)
        })
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

    /// What gives an existing target of the volume just these initiators, unless it has them.
    fn admit(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
        names: Vec<String>,
    ) -> Result<Option<Act<Command>>, Error> {
        let initiators = initiators(names);
        let target = facts.target(name.as_str());
        let target = target.filter(|_| Self::check(subject, name, facts).is_ok());
        if target.is_none_or(|target| self.admits(target, Some(&initiators), facts)) {
            return Ok(None);
        }
        let wish = self.wish(subject, name, facts, Some(initiators))?;
        let change = Change::AdmitIscsi(Box::new(wish));
        Ok(Some(Act::Do(Command::Change(change))))
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
            .name(subject, &PropertyName::FREENAS_ISCSI_ASSETS)?;
        let refused = |why: String| {
            Self::refused(subject, Kind::Invalid)
                .because(why)
                .advise("see iscsi.nameTemplate, and _private.csi.volume.idHash")
        };
        if name.as_str().len() > LONGEST {
            let why = format!("`{name}` is longer than the {LONGEST} characters of an extent");
            return Err(refused(why));
        }
        if name.as_str().contains('_') {
            return Err(refused(format!("`{name}` holds `_`, which no target can")));
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
        let (target, extent) = (facts.target(name.as_str()), facts.extent(zvol));
        let listed = self.listed(subject)?;
        let make = || {
            let wish = self.wish(subject, name, facts, listed.clone())?;
            let change = Change::EnsureIscsi(Box::new(wish));
            Ok(vec![Act::Do(Command::Change(change))])
        };
        let (Some(target), Some(extent)) = (target, extent) else {
            return make();
        };
        let Some(link) = facts
            .link(target, extent)
            .filter(|_| self.admits(target, listed.as_deref(), facts))
        else {
            return make();
        };
        let mut acts = Vec::from_iter(enabled(extent.enabled, Enable::Extent(extent.id)));
        for (property, value) in [
            (PropertyName::FREENAS_ISCSI_ASSETS, name.to_string()),
            (PropertyName::FREENAS_ISCSI_TARGET, target.id.to_string()),
            (PropertyName::FREENAS_ISCSI_EXTENT, extent.id.to_string()),
            (PropertyName::FREENAS_ISCSI_LINK, link.id.to_string()),
        ] {
            acts.extend(remember(subject, &property, &value)?);
        }
        if listed.is_none() {
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
        let target = proved;
        let change = Change::RemoveIscsi {
            target,
            extents,
            lists,
        };
        Ok(vec![Act::Do(Command::Change(change))])
    }

    fn is_per_node(&self) -> bool {
        self.access.is_some()
    }

    fn allow(
        &self,
        subject: &Subject<'_>,
        name: &ExportName,
        facts: &IscsiState,
        node: &NodeId,
    ) -> Result<Vec<Act<Command>>, Error> {
        let allowed = Access::allow(self.access.as_ref(), subject, node)?;
        let Some(Allowed { remember, names }) = allowed else {
            return Ok(Vec::new());
        };
        let mut acts = vec![remember];
        // Where more is missing, the next round makes it with the node in the list.
        if self.ensure(subject, name, facts)?.is_empty() {
            acts.extend(self.admit(subject, name, facts, names)?);
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
        let admit = self.admit(subject, name, facts, revoked.names)?;
        Ok(revoked.forget.into_iter().chain(admit).collect())
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
        let link = pair.and_then(|(target, extent)| facts.link(target, extent));
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
        let (global, targets, extents, lists) = tokio::try_join!(
            global,
            self.read(call, &targets),
            self.read(call, &extents),
            lists,
        )?;
        let mut state = IscsiState {
            global,
            targets,
            extents,
            links: None,
            lists,
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

    /// Makes what is missing: target and extent at once, then what puts one on the other.
    pub(super) async fn make_iscsi(
        &self,
        call: &Call,
        wish: &IscsiWish,
    ) -> Result<(Look, Answer), ApiError> {
        let seen = &wish.seen;
        let extent = async {
            match seen.extent(&wish.zvol) {
                None => self.write(call, &wish.extent).await,
                Some(extent) => Ok(extent.clone()),
            }
        };
        let (target, extent) = tokio::join!(self.target(call, wish), extent);
        let (target, lists) = target?;
        let mut state = IscsiState {
            global: seen.global.clone(),
            targets: vec![target],
            extents: vec![extent?],
            links: seen.links.clone(),
            lists,
        };
        let fresh = seen.targets.is_empty() || seen.extents.is_empty();
        let mut links = match &seen.links {
            Some(links) => links.clone(),
            // Nothing is on what was just made.
            None if fresh => Vec::new(),
            None => self.links(call, &state).await?,
        };
        state.links = Some(links.clone());
        if state.link(&state.targets[0], &state.extents[0]).is_none() {
            let create = CreateTargetExtent {
                target: state.targets[0].id,
                extent: state.extents[0].id,
                lun: Some(LUN),
            };
            links.push(self.write(call, &create).await?);
            state.links = Some(links);
        }
        let look = Look::Iscsi {
            name: wish.target.name.clone(),
            zvol: wish.zvol.clone(),
            links: true,
            nodes: wish.initiators.is_some(),
        };
        Ok((look, Answer::Iscsi(state)))
    }

    /// Removes the extents, and a target that is ours and has nothing else on it. One that proves itself
    /// that it is ours can go beside its zvol, and is answered.
    pub(super) async fn remove_iscsi(
        &self,
        call: &Call,
        target: Option<(i64, Proof)>,
        extents: &[i64],
        lists: &Lists,
    ) -> Result<Option<i64>, ApiError> {
        let Some((id, proof)) = target else {
            self.remove_extents(call, extents).await?;
            self.remove_lists(call, lists).await?;
            return Ok(None);
        };
        let query = QueryTargetExtents(vec![Filter::eq("target", id)]);
        let links = if proof == Proof::Extent {
            // They go with the extents.
            let links = self.read(call, &query).await?;
            self.remove_extents(call, extents).await?;
            links
        } else {
            let removed = self.remove_extents(call, extents);
            let (links, removed) = tokio::join!(self.read(call, &query), removed);
            removed?;
            links?
        };
        let is_shared = links.iter().any(|link| !extents.contains(&link.extent));
        let is_ours = proof != Proof::Extent || !links.is_empty();
        if is_shared || !is_ours {
            tracing::warn!(object = id, "the iSCSI target of this number stays");
            return Ok(None);
        }
        self.remove_lists(call, lists).await?;
        if proof == Proof::Mark {
            return Ok(Some(id));
        }
        gone(self.write(call, &DeleteTarget { id, force: false }).await)?;
        Ok(None)
    }

    async fn remove_extents(&self, call: &Call, extents: &[i64]) -> Result<(), ApiError> {
        let removed = extents.iter().map(|id| {
            let delete = DeleteExtent {
                id: *id,
                force: false,
            };
            async move { gone(self.write(call, &delete).await) }
        });
        let removed = futures_util::future::join_all(removed).await;
        removed.into_iter().collect()
    }
}
