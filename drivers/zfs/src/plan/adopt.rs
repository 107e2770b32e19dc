//! Making a volume of a dataset that exists.
//!
//! First a mark of its own, which no other verb reads, and the size, where nothing limits it yet; then the export;
//! and last the marks of a volume. Until then nothing takes the dataset for a volume, whole or partial: what is
//! partial may be removed as an orphan, and this has the data of others. compat: "ZFS".

use csi_types::Attachment;
use driver_core::{CreateVolume, Error, Kind, MadeFor, SizeRange};

use super::{ExportRef, Outcome, Verb, is_complete, listed};
use crate::context;
use crate::export::{Act, ExportStatus};
use crate::id::Layout;
use crate::name::DatasetName;
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::parameter::ClassChoice;
use crate::policy::{Policy, value_of};
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::{Plan, Step};

/// The records of tns-csi.
const TNS: [&str; 3] = [
    "tns-csi:capacity_bytes",
    "tns-csi:pvc_namespace",
    "tns-csi:pvc_name",
];

/// The shares that ZFS itself makes of a filesystem.
static SHARES: [PropertyName; 2] = [PropertyName::SHARENFS, PropertyName::SHARESMB];

/// Makes a volume of a dataset.
#[derive(Debug)]
pub struct Adopt<'a> {
    /// The layout of volumes.
    pub layout: &'a Layout,
    /// The policy for volumes.
    pub policy: &'a Policy,
    /// The volume and its export.
    pub export_ref: ExportRef<'a>,
    /// The request that would have created it.
    pub request: &'a CreateVolume,
    /// The size that the operator gives.
    pub size: Option<u64>,
}

/// The records on a dataset of the volume that it is to become.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// The objects that it was made for.
    pub made_for: MadeFor,
    /// The size that another driver records.
    pub size: Option<u64>,
}

/// The properties that say it, besides those that every query shows.
pub fn reads() -> Vec<PropertyName> {
    let tns = TNS.iter().filter_map(|name| PropertyName::parse(name).ok());
    [PropertyName::ADOPTED, PropertyName::QUOTA]
        .into_iter()
        .chain(tns)
        .collect()
}

/// Whether an adoption of this dataset was started, or is complete.
pub fn is_adopted(dataset: &Dataset) -> bool {
    dataset.properties.own(&PropertyName::ADOPTED) == Some(dataset.name.as_str())
}

// === impl Known ===

impl Known {
    /// The records: of an earlier adoption, or else of another driver.
    pub fn of(dataset: &Dataset) -> Self {
        let own = |name: &PropertyName| dataset.properties.own(name);
        let [size, namespace, name] = TNS.map(|name| {
            let name = PropertyName::parse(name).ok()?;
            own(&name)
        });
        let ours = MadeFor::read(
            own(&PropertyName::CLAIM),
            own(&PropertyName::PERSISTENT_VOLUME),
        );
        let theirs = namespace
            .zip(name)
            .map(|(namespace, name)| format!("{namespace}/{name}"));
        let theirs = MadeFor::read(theirs.as_deref(), None);
        Self {
            made_for: MadeFor {
                claim: ours.claim.or(theirs.claim),
                persistent_volume: ours.persistent_volume,
            },
            size: size
                .and_then(|size| size.parse().ok())
                .filter(|size| *size > 0),
        }
    }
}

// === impl Adopt ===

impl Adopt<'_> {
    fn name(&self) -> &DatasetName {
        self.export_ref.dataset
    }

    fn refused(&self, kind: Kind, why: impl Into<String>) -> Error {
        Error::new(kind, self.doing()).because(why.into())
    }

    /// Rejects what cannot become a volume.
    fn check(&self, dataset: &Dataset, pool: &State) -> Result<(), Error> {
        let name = self.name();
        if dataset.kind != self.layout.kind {
            let why = match dataset.kind {
                VolumeKind::Filesystem => {
                    "it is a filesystem, and volumes of this connection are zvols"
                }
                VolumeKind::Zvol => "it is a zvol, and volumes of this connection are filesystems",
            };
            return Err(self
                .refused(Kind::Invalid, why)
                .advise("name a connection of that kind"));
        }
        if self.policy.owner().is_another(dataset) {
            let why = "it is of another driver or instance_id";
            return Err(self.refused(Kind::Conflict, why));
        }
        let own = |name| dataset.properties.own(&name).is_some();
        if !is_adopted(dataset) {
            if is_complete(dataset) {
                let why = format!("it is the volume `{}` already", self.export_ref.id);
                return Err(self
                    .refused(Kind::Conflict, why)
                    .advise("`omnibus-csi export-pvs` writes its objects"));
            }
            if dataset.is_managed() || own(PropertyName::VOLUME_NAME) {
                let why = "it is what an interrupted call left of a volume";
                return Err(self
                    .refused(Kind::Conflict, why)
                    .advise("`omnibus-csi orphans` lists such"));
            }
        }
        // A volume of pods is mounted so itself.
        if self.is_local(pool) && !is_complete(dataset) {
            self.check_users_here(dataset)?;
        }
        let detached = self.layout.detached.as_ref();
        let is_parent = detached.is_some_and(|parent| parent.with_ancestors().contains(name));
        if dataset.is_container() || is_parent || own(PropertyName::SNAPSHOT_NAME) {
            return Err(self.refused(Kind::Conflict, "it is for detached snapshots"));
        }
        // Before it is complete, such a clone looks like what a killed creation leaves, which a deletion takes along.
        if let Some(origin) = dataset.origin() {
            let why = format!("it is a clone of {origin}");
            return Err(self
                .refused(Kind::Conflict, why)
                .advise("make it independent: `zfs promote`"));
        }
        if dataset.is_receiving() {
            return Err(self.refused(Kind::Pending, "a copy into it is not complete"));
        }
        let children = pool.children_of(name);
        if !children.is_empty() {
            let names = listed(children.iter().map(|child| &child.name));
            let why = format!("there are datasets below it: {names}");
            return Err(self
                .refused(Kind::Conflict, why)
                .advise("a volume has none: move them away, or adopt each of them"));
        }
        Ok(())
    }

    /// Whether the node that has it uses it by itself: no export stands between them.
    fn is_local(&self, pool: &State) -> bool {
        let subject = self.export_ref.subject(pool);
        let shown = self.export_ref.export.current_attachment(&subject);
        matches!(shown, Some(Attachment::ZfsLocal(_)))
    }

    /// Rejects what others use on that node. What ZFS mounts by itself it gives up for the first pod, or that pod waits.
    fn check_users_here(&self, dataset: &Dataset) -> Result<(), Error> {
        let of = |name: &PropertyName| dataset.properties.get(name);
        if of(&PropertyName::MOUNTED) == Some("yes") && dataset.mountpoint().is_none() {
            return Err(self
                .refused(Kind::Busy, "it is mounted, and not by ZFS")
                .advise("see `findmnt -t zfs` on the node, end what uses it, and unmount it"));
        }
        let mut shares = SHARES.iter().filter_map(|name| Some((name, of(name)?)));
        match shares.find(|(_, value)| *value != "off") {
            None => Ok(()),
            Some((name, _)) => {
                let why = format!("the node shares it: {name} is not off");
                Err(self.refused(Kind::Conflict, why).advise(format!(
                    "end its clients, and run `zfs set {name}=off {}`",
                    dataset.name
                )))
            }
        }
    }

    /// The size that it gets, if none is set.
    fn resized(&self, dataset: &Dataset) -> Result<Vec<Property>, Error> {
        let limited = self.layout.kind == VolumeKind::Zvol || self.policy.quota;
        let asked = self.size.map(|size| self.chosen(size)).transpose()?;
        let shows_size = self.policy.shows_size(self.layout.kind);
        let current = dataset.size().filter(|_| shows_size);
        match (current, asked) {
            (Some(current), Some(asked)) if current != asked => {
                let why = format!("it has {current} bytes, and --size says {asked}");
                return Err(self
                    .refused(Kind::Invalid, why)
                    .advise("leave --size out; its claim can be expanded afterwards"));
            }
            (Some(_), _) => return Ok(Vec::new()),
            (None, _) => {}
        }
        if self.layout.kind == VolumeKind::Zvol {
            return Err(self.refused(Kind::Pending, "its size is not known yet"));
        }
        if !limited {
            return Ok(Vec::new());
        }
        let quota = dataset.properties.number(&PropertyName::QUOTA);
        let recorded = Known::of(dataset).size.or(quota.filter(|size| *size > 0));
        let recorded = recorded.map(|size| self.chosen(size)).transpose()?;
        let Some(size) = asked.or(recorded) else {
            let why = "nothing limits it: refquota and quota are none";
            return Err(self
                .refused(Kind::Invalid, why)
                .advise("say by --size how large it may become"));
        };
        let used = dataset.properties.number(&PropertyName::REFERENCED);
        if used > Some(size) {
            let used = used.unwrap_or_default();
            let why = format!("it holds {used} bytes, more than {size}");
            return Err(self
                .refused(Kind::OutOfRange, why)
                .advise("say a larger --size"));
        }
        let class = ClassChoice::default();
        Ok(self.policy.size_of_filesystem(size, &class))
    }

    fn chosen(&self, size: u64) -> Result<u64, Error> {
        let failed = |why| self.refused(Kind::Invalid, why);
        let range = i64::try_from(size).ok();
        let range = range.and_then(|size| SizeRange::new(size, 0).ok());
        let range = range.ok_or_else(|| failed(format!("no volume has {size} bytes")))?;
        let step = 1;
        let chosen = self.policy.choose(range, step, 0);
        chosen.map_err(|error| failed(error.to_string()))
    }

    /// A share is of what is mounted. The node that has a dataset mounts it itself.
    fn mounted(
        &self,
        dataset: &Dataset,
        attachment: Option<&Attachment>,
    ) -> Result<Option<Step>, Error> {
        let is_local = matches!(attachment, Some(Attachment::ZfsLocal(_)));
        if self.layout.kind == VolumeKind::Zvol || is_local {
            return Ok(None);
        }
        let is = |name, value| dataset.properties.get(&name) == Some(value);
        if is(PropertyName::MOUNTED, "yes") {
            return Ok(None);
        }
        if dataset.mountpoint().is_none() || is(PropertyName::CANMOUNT, "off") {
            return Err(self
                .refused(Kind::Invalid, "ZFS does not mount it")
                .advise("a share needs a mountpoint, and canmount other than off"));
        }
        Ok(Some(Step::Mount(self.name().clone())))
    }

    /// The marks of a volume. With the first of them it is one, and with the others it is known whose.
    fn marked(
        &self,
        dataset: &Dataset,
        attachment: &Attachment,
    ) -> Result<[Vec<Property>; 2], Error> {
        let missing = |all: Vec<Property>| -> Vec<Property> {
            let all = all.into_iter();
            all.filter(|mark| !dataset.properties.has(mark)).collect()
        };
        let recorded = dataset.properties.own(&PropertyName::CONTEXT);
        let recorded = recorded.and_then(|text| context::from_json(text).ok());
        let mut first = vec![Property::new(PropertyName::SUCCESS, PropertyValue::yes())];
        if recorded.as_ref() != Some(attachment) {
            let text = PropertyValue::parse(context::to_json(attachment));
            let text = text.map_err(|error| self.refused(Kind::Internal, error.to_string()))?;
            first.insert(0, Property::new(PropertyName::CONTEXT, text));
        }
        Ok([missing(first), missing(self.policy.contract(self.request))])
    }

    fn set(&self, properties: Vec<Property>) -> Step {
        Step::Set {
            object: self.name().clone().into(),
            properties,
        }
    }

    /// Rejects what others use by an export: it would go with the volume, or be opened to more clients.
    fn check_export(&self, dataset: &Dataset, status: &dyn ExportStatus) -> Result<(), Error> {
        if is_adopted(dataset) || status.remove()?.is_empty() {
            return Ok(());
        }
        let why = "it is exported already: by a share, a target or a subsystem";
        Err(self
            .refused(Kind::Conflict, why)
            .advise("end its clients, and remove that export first"))
    }

    /// Rejects what its host uses in another way: two would write, and neither know of the other. A volume is used by its
    /// pods.
    fn check_other_users(&self, dataset: &Dataset, status: &dyn ExportStatus) -> Result<(), Error> {
        let users = status.other_users();
        if is_complete(dataset) || users.is_empty() {
            return Ok(());
        }
        let why = format!("its host uses it already: {}", listed(users));
        Err(self.refused(Kind::Busy, why).advise(
            "end its clients, then unmount it, or remove that export, also from what the host restores at its start; \
             ZFS itself ends a share by `zfs set sharenfs=off` or `sharesmb=off`",
        ))
    }

    fn changes(&self, dataset: &Dataset, status: &dyn ExportStatus) -> Result<Plan, Error> {
        self.check_export(dataset, status)?;
        self.check_other_users(dataset, status)?;
        let attachment = status.attachment()?;
        let mut plan = Plan::about(self.name().clone());
        let mut first = vec![Property::new(
            PropertyName::ADOPTED,
            value_of(self.name().as_str()),
        )];
        first.extend(self.resized(dataset)?);
        first.retain(|property| !dataset.properties.has(property));
        if !first.is_empty() {
            plan.step(self.set(first));
        }
        plan.add(self.mounted(dataset, attachment.as_ref())?);
        let acts = status.ensure()?;
        if self.layout.kind == VolumeKind::Zvol && acts.iter().any(Act::is_request) {
            plan.step(Step::Settle(self.name().clone()));
        }
        let established = acts.is_empty();
        self.export_ref.add(&mut plan, acts);
        match &attachment {
            // Only what is mounted, sized and exported becomes a volume.
            Some(attachment) if plan.is_empty() => {
                let marks = self.marked(dataset, attachment)?;
                if let Some(marks) = marks.into_iter().find(|marks| !marks.is_empty()) {
                    plan.step(self.set(marks));
                }
            }
            None if established => {
                let why = "its export exists, but has no attachment";
                return Err(self.refused(Kind::Internal, why));
            }
            Some(_) | None => {}
        }
        if !plan.is_empty() {
            self.export_ref.guard(&mut plan, dataset);
            // Another connection or cluster may adopt it at the same time.
            for mark in [
                PropertyName::ADOPTED,
                PropertyName::PROVISIONER,
                PropertyName::INSTANCE,
                PropertyName::SUCCESS,
                PropertyName::CONTEXT,
            ] {
                plan.guard_property(dataset, &mark);
            }
        }
        Ok(plan)
    }

    /// The steps of a plan, as an operator reads them: not those that mark.
    pub fn explained(&self, plan: &Plan, dataset: &Dataset) -> Vec<String> {
        let marks = [
            PropertyName::ADOPTED,
            PropertyName::CONTEXT,
            PropertyName::SUCCESS,
        ];
        let contract = self.policy.contract(self.request);
        let is_mark = |property: &Property| {
            marks.contains(&property.name) || contract.iter().any(|mark| mark == property)
        };
        let mut all = Vec::new();
        for node in &plan.steps {
            match &node.step {
                Step::Set { properties, .. } => {
                    for property in properties.iter().filter(|property| !is_mark(property)) {
                        let was = dataset.properties.own(&property.name);
                        let was = was.map_or(String::new(), |was| format!(", instead of {was}"));
                        all.push(format!("set {property}{was}"));
                    }
                }
                // For one that waits there is nothing to be decided.
                Step::Settle(_) => {}
                Step::Export(_) => {
                    let line = "change the export";
                    if all.last().is_none_or(|last| last != line) {
                        all.push(line.to_owned());
                    }
                }
                step => all.push(step.to_string()),
            }
        }
        all
    }
}

impl Verb for Adopt<'_> {
    type Done = Dataset;

    fn doing(&self) -> String {
        format!("adopt {}", self.name())
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let mut properties = self.export_ref.export.reads();
        properties.extend(reads());
        if self.is_local(pool) {
            properties.extend(SHARES.iter().cloned());
        }
        Ok(Request {
            queries: vec![Query::Family(self.name().clone())],
            properties,
            export: self.export_ref.commands_to_adopt(pool)?,
            ..Request::default()
        })
    }

    fn plan(
        &self,
        asked: &State,
        seen: &Observed,
        _done: usize,
    ) -> Result<Outcome<Dataset>, Error> {
        let Some(dataset) = seen.pool.dataset(self.name()) else {
            return Err(Error::not_found(self.doing()).because("there is no such dataset"));
        };
        // Before its export is read: what is no volume may have one that cannot be.
        self.check(dataset, &seen.pool)?;
        let Some(status) = self.export_ref.status(asked, seen)? else {
            return Ok(Outcome::Ask);
        };
        let plan = self.changes(dataset, &*status)?;
        Ok(if plan.is_empty() {
            Outcome::Done(dataset.clone())
        } else {
            Outcome::Do(plan)
        })
    }

    fn is_begun(&self, seen: &State) -> bool {
        seen.dataset(self.name()).is_some_and(is_adopted)
    }
}
