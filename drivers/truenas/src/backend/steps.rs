//! A plan, done: each step after those that it waits for, all others at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use driver_core::{Call, Error, Kind};
use driver_zfs::export::Opaque;
use driver_zfs::name::{DatasetName, Object, SnapshotRef};
use driver_zfs::observed::{Query, State};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::{Failed, Guard, New, Next, Of, Permission, Plan, Step, Still};
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::waves::{Job, jobs, waves, worst};
use super::{Api, native};
use crate::acl::Acl;
use crate::api::dataset::{
    CreateDataset, CreateKind, Dataset, DeleteDataset, PromoteDataset, UpdateDataset,
};
use crate::api::filesystem::{FindFilesystem, GetAcl, ListDirectory, SetAcl, SetPermissions};
use crate::api::replication::CopySnapshot;
use crate::api::snapshot::{
    CloneSnapshot, CreateSnapshot, DeleteSnapshot, RenameSnapshot, Snapshot, UpdateSnapshot,
};
use crate::command::{Command, Made};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::failed;
use crate::{Dialect, Generation};

/// From when a dataset that was busy may be free. The NAS itself looks at a new device for a second or two.
const FREE_AGAIN: Duration = Duration::from_secs(3);

/// Why a group of snapshots is refused. The call that takes several takes a dataset with all that is below it, less
/// what is excluded by name: volumes that are made at that time are in it, and no snapshot of it gets our marks.
pub(super) const NO_GROUPS: &str =
    "the API of TrueNAS makes no snapshots of just these datasets at one moment";

/// The progress of a plan so far, and the answers to it.
pub(super) struct Run<'a> {
    api: &'a Api,
    call: &'a Call,
    dialect: &'a Dialect,
    /// Whether anything was done, or is done beside what may fail.
    done: AtomicBool,
    answered: Mutex<Answered>,
}

/// The answers to the steps of a plan.
#[derive(Default)]
struct Answered {
    datasets: BTreeMap<DatasetName, Dataset>,
    snapshots: BTreeMap<SnapshotRef, Snapshot>,
    destroyed: BTreeSet<DatasetName>,
    made: Made,
}

type Done = Result<(), Failed>;

fn tell(doing: impl Into<String>, kind: Kind, why: impl Into<String>) -> Failed {
    Failed::terminal(Error::new(kind, doing).because(why.into()))
}

impl<'a> Run<'a> {
    pub(super) fn new(api: &'a Api, call: &'a Call, dialect: &'a Dialect) -> Self {
        Self {
            api,
            call,
            dialect,
            done: AtomicBool::new(false),
            answered: Mutex::default(),
        }
    }

    fn answered(&self) -> MutexGuard<'_, Answered> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything was done: then no failure says that nothing was.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn note_done(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    fn failed(&self, doing: impl Into<String>, error: &ApiError) -> Failed {
        failed(doing, error, !self.is_done())
    }

    /// The failure of an attempt to destroy a dataset. While nfsd keeps a filesystem busy that was just used, each
    /// attempt is two more changes of exports, each of which delays the moment from which it is free by a second.
    fn not_destroyed(&self, doing: impl Into<String>, error: &ApiError) -> Failed {
        let failed = self.failed(doing, error);
        match failed.next {
            Next::Wait if error.kind() == ApiKind::Busy => Failed {
                next: Next::WaitFrom(FREE_AGAIN),
                ..failed
            },
            _ => failed,
        }
    }

    /// Does the steps of a plan: all at once that wait for nothing more, until one of them fails. Its guards are
    /// known to hold since `checked`.
    pub(super) async fn all(&self, plan: &Plan, checked: Instant) -> Done {
        for wave in waves(jobs(plan), |job| (&job.places, &job.after)) {
            let doing = wave[0].steps[0].to_string();
            self.call.check(&doing).map_err(Failed::terminal)?;
            self.check_doomed(plan, &wave, checked).await?;
            if wave.len() > 1 {
                self.note_done();
            }
            let done = join_all(wave.iter().map(|job| self.job(job))).await;
            worst(done)?;
            self.note_done();
        }
        Ok(())
    }

    /// Whether what these steps destroy is still what was looked at, if that is long ago.
    async fn check_doomed(&self, plan: &Plan, wave: &[Job<'_>], checked: Instant) -> Done {
        let doomed: Vec<Object> = wave.iter().filter_map(Job::destroys).collect();
        let guards = plan.guards.iter();
        let guards = guards.filter(|guard| matches!(guard.still, Still::Itself(_)));
        let guards: Vec<Guard> = guards
            .filter(|guard| doomed.contains(&guard.object))
            .cloned()
            .collect();
        if guards.is_empty() {
            return Ok(());
        }
        // Connecting may take long, and the destruction would wait for that.
        let dialect = self.api.dialect(self.call).await;
        let dialect = dialect.map_err(Failed::terminal)?;
        let held = self.api.check(self.call, &dialect, &guards, Some(checked));
        held.await.map(drop)
    }

    async fn job(&self, job: &Job<'_>) -> Done {
        match job.steps[0] {
            Step::Set { object, .. }
            | Step::Inherit { object, .. }
            | Step::Record { object, .. } => self.set(object, &job.steps).await,
            Step::Permit { .. } => self.permit(&job.steps).await,
            Step::Copy {
                from,
                to,
                properties,
            } => {
                let more = job.steps.iter().flat_map(|step| match step {
                    Step::Set { properties, .. } => properties.as_slice(),
                    _ => &[],
                });
                let all: Vec<Property> = properties.iter().chain(more).cloned().collect();
                let doing = job.steps[0].to_string();
                self.copy(&doing, from, to, &all).await
            }
            step => self.one(step, job.name).await,
        }
    }

    async fn one(&self, step: &Step, name: Option<&Of>) -> Done {
        let doing = step.to_string();
        match step {
            Step::Create {
                dataset,
                new,
                properties,
            } => self.create(&doing, dataset, new, properties).await,
            Step::Snapshot {
                snapshots,
                properties,
            } => match snapshots.as_slice() {
                [snapshot] => self.snapshot(&doing, snapshot, properties).await,
                _ => Err(tell(doing, Kind::Unsupported, NO_GROUPS)),
            },
            Step::Clone {
                origin,
                dataset,
                properties,
            } => self.clone_of(&doing, origin, dataset, properties).await,
            Step::Copy {
                from,
                to,
                properties,
            } => self.copy(&doing, from, to, properties).await,
            Step::GoOn { .. } => Err(tell(
                doing,
                Kind::Internal,
                "TrueNAS says of no copy that it can go on",
            )),
            Step::Abandon(_) => Err(tell(
                doing,
                Kind::Internal,
                "nothing is received by the API of TrueNAS",
            )),
            Step::Rename { snapshot, to } => {
                // Without it, what is moved by a promotion keeps its name.
                if !self.dialect.has_snapshot_rename() {
                    return Ok(());
                }
                let rename = RenameSnapshot {
                    id: snapshot.to_string(),
                    name: to.as_str().to_owned(),
                };
                let renamed = self.api.nas.write(self.call, &rename).await;
                renamed.map(drop).map_err(|e| self.failed(doing, &e))
            }
            Step::Promote(name) => {
                let promote = PromoteDataset {
                    id: name.to_string(),
                };
                let promoted = self.api.nas.write(self.call, &promote).await;
                promoted.map(drop).map_err(|e| self.failed(doing, &e))
            }
            Step::DestroyDataset(name) => {
                let destroyed = self.destroy(name).await;
                destroyed.map_err(|e| self.not_destroyed(doing, &e))?;
                self.ended(name);
                Ok(())
            }
            Step::DestroyEmpty(name) => self.destroy_empty(&doing, name).await,
            Step::DestroySnapshot(snapshot) => self.destroy_snapshot(snapshot).await,
            Step::Export(request) => self.export(request, name).await,
            Step::Set { .. }
            | Step::Inherit { .. }
            | Step::Record { .. }
            | Step::Permit { .. }
            | Step::Mount(_)
            | Step::Settle(_)
            | Step::Mark(..)
            | Step::DestroyMark(_) => Ok(()),
        }
    }

    /// A change of an export.
    async fn export(&self, request: &Opaque, name: Option<&Of>) -> Done {
        let Command::Change(change) = request.get().map_err(Failed::terminal)? else {
            return Ok(());
        };
        let made = self.answered().made.clone();
        let changed = change.run(&self.api.nas, self.call, &made).await;
        let number = changed.map_err(|error| {
            failed(
                change.doing(),
                &error,
                !self.is_done() && change.is_one_call(),
            )
        })?;
        self.answered().made.note(name, number);
        Ok(())
    }

    async fn create(
        &self,
        doing: &str,
        name: &DatasetName,
        new: &New,
        properties: &[Property],
    ) -> Done {
        let mut spelled = native::spelled(properties)
            .map_err(|error| tell(doing, Kind::Invalid, error.to_string()))?;
        let kind = match new {
            New::Filesystem => {
                spelled.native.remove("share_type");
                let share_type = self.share_type(properties).unwrap_or("GENERIC");
                CreateKind::Filesystem {
                    share_type: Some(share_type.to_ascii_uppercase()),
                }
            }
            New::Zvol { size, block } => {
                let sparse = spelled.native.get("refreservation") == Some(&json!(0));
                CreateKind::Volume {
                    size: *size,
                    block_size: block.map(native::short),
                    sparse,
                    // What nothing is kept free for may be larger than what is free.
                    force_size: sparse,
                }
            }
        };
        let create = CreateDataset {
            name: name.to_string(),
            kind,
            create_ancestors: true,
            properties: spelled.native,
            user_properties: spelled.user.clone(),
        };
        let api = self.api;
        let _making = api.makings.begin(name);
        let made = api.nas.write(self.call, &create).await;
        let made = made.map_err(|error| self.failed(doing, &error))?;
        self.note_done();
        self.keep(doing, name, made, spelled.user).await
    }

    /// Sees to it that a dataset that was made has the properties that it was made with: some generations
    /// drop them.
    async fn keep(
        &self,
        doing: &str,
        name: &DatasetName,
        made: Dataset,
        wanted: BTreeMap<String, String>,
    ) -> Done {
        let has =
            |(key, value): &(&String, &String)| made.user_properties.get(*key) == Some(*value);
        if wanted.iter().all(|property| has(&property)) {
            self.answered().datasets.insert(name.clone(), made);
            return Ok(());
        }
        let update = UpdateDataset {
            id: name.to_string(),
            properties: Map::new(),
            user_properties: wanted
                .iter()
                .map(|(key, value)| (key.clone(), Some(value.clone())))
                .collect(),
        };
        let kept = self.api.nas.write(self.call, &update).await;
        let kept = kept.map_err(|error| self.failed(doing, &error))?;
        let has = |(key, value): (&String, &String)| kept.user_properties.get(key) == Some(value);
        if !wanted.iter().all(has) {
            return Err(tell(
                doing,
                Kind::Internal,
                "TrueNAS does not keep its properties of users",
            ));
        }
        self.answered().datasets.insert(name.clone(), kept);
        Ok(())
    }

    async fn snapshot(&self, doing: &str, snapshot: &SnapshotRef, properties: &[Property]) -> Done {
        let spelled = native::spelled(properties)
            .map_err(|error| tell(doing, Kind::Invalid, error.to_string()))?;
        if let Some(name) = spelled.native.keys().next() {
            let why = format!("a snapshot has no property `{name}` to set");
            return Err(tell(doing, Kind::Invalid, why));
        }
        let create = CreateSnapshot {
            dataset: snapshot.dataset.to_string(),
            name: snapshot.leaf.as_str().to_owned(),
            user_properties: spelled.user.clone(),
            ..CreateSnapshot::default()
        };
        let made = self.api.nas.write(self.call, &create).await;
        let mut made = made.map_err(|error| self.failed(doing, &error))?;
        if self.dialect.has_resource_destroy() {
            // They are not in its answer.
            made.user_properties = spelled.user;
        }
        // A snapshot that was just made has no holds.
        made.holds.get_or_insert_default();
        // 26 answers when it was made, and not what it holds.
        if made.properties.contains_key("referenced") {
            self.answered().snapshots.insert(snapshot.clone(), made);
        }
        Ok(())
    }

    /// The share type of a filesystem, if it has one.
    fn share_type<'p>(&self, properties: &'p [Property]) -> Option<&'p str> {
        let value = |name: &str| {
            let found = properties.iter().find(|one| one.name.as_str() == name);
            found.map(|one| one.value.as_str())
        };
        let is_volume = value(PropertyName::VOLUME_NAME.as_str()).is_some();
        let own = self.api.share_type.filter(|_| is_volume);
        value("share_type").or(own)
    }

    /// The properties that a clone or copy can take. Among them is the kind of access control lists that its share type
    /// gives a new filesystem, whatever else is asked for: it has that of its parent otherwise.
    fn taken_over(&self, properties: &[Property]) -> Vec<Property> {
        let share_type = self.share_type(properties).unwrap_or_default();
        let mode = match share_type.to_ascii_uppercase().as_str() {
            // On CORE all lists are those of NFS 4.
            _ if self.dialect.generation() == Generation::Core => None,
            "SMB" => Some("restricted"),
            "APPS" | "MULTIPROTOCOL" | "NFS" => Some("passthrough"),
            _ => None,
        };
        let is_left_out = |name: &PropertyName| match name.as_str() {
            "share_type" => true,
            "acltype" | "aclmode" => mode.is_some(),
            _ => name.is_for_new_only(),
        };
        let others = properties.iter().filter(|one| !is_left_out(&one.name));
        let lists = mode.map(|mode| [("acltype", "nfsv4"), ("aclmode", mode)]);
        let lists = lists.into_iter().flatten().filter_map(|(name, text)| {
            let (name, text) = (PropertyName::parse(name), PropertyValue::parse(text));
            Some(Property::new(name.ok()?, text.ok()?))
        });
        others.cloned().chain(lists).collect()
    }

    async fn clone_of(
        &self,
        doing: &str,
        origin: &SnapshotRef,
        name: &DatasetName,
        properties: &[Property],
    ) -> Done {
        let taken = self.taken_over(properties);
        // The API itself mounts it.
        let fit = taken
            .iter()
            .filter(|property| property.name != PropertyName::CANMOUNT);
        if !self.dialect.has_clone_properties() {
            return self.clone_bare(doing, origin, name, fit).await;
        }
        // ZFS itself takes them, so they are as it spells them.
        let raw = |property: &Property| {
            let name = native::zfs_name(property.name.as_str()).to_owned();
            let text = property.value.to_string();
            let word = !property.name.is_user() && name != "acltype";
            (name, if word { text.to_lowercase() } else { text })
        };
        let clone = CloneSnapshot {
            snapshot: origin.to_string(),
            dataset: name.to_string(),
            properties: fit.map(raw).collect(),
        };
        let made = self.api.nas.write(self.call, &clone).await;
        made.map(drop).map_err(|error| self.failed(doing, &error))
    }

    /// Copies on the NAS. What it is to have is set when it is whole: until then its missing marks say
    /// that it is none.
    async fn copy(
        &self,
        doing: &str,
        from: &SnapshotRef,
        to: &DatasetName,
        properties: &[Property],
    ) -> Done {
        let taken = self.taken_over(properties);
        let spelled = native::spelled(&taken)
            .map_err(|error| tell(doing, Kind::Invalid, error.to_string()))?;
        let copy = CopySnapshot {
            source: from.dataset.to_string(),
            snapshot: from.leaf.as_str().to_owned(),
            target: to.to_string(),
            properties: false,
            only_from_scratch: true,
        };
        let copied = self.api.nas.run(self.call, &copy).await;
        copied.map_err(|error| self.failed(doing, &error))?;
        self.note_done();
        self.mark_made(doing, to, spelled).await
    }

    /// A clone without properties, then all of them at once. Between the two it is known by what it stands on.
    async fn clone_bare<'p>(
        &self,
        doing: &str,
        origin: &SnapshotRef,
        name: &DatasetName,
        properties: impl Iterator<Item = &'p Property>,
    ) -> Done {
        let spelled = native::spelled(properties)
            .map_err(|error| tell(doing, Kind::Invalid, error.to_string()))?;
        let clone = CloneSnapshot {
            snapshot: origin.to_string(),
            dataset: name.to_string(),
            properties: BTreeMap::new(),
        };
        let api = self.api;
        let _making = api.makings.begin(name);
        let made = api.nas.write(self.call, &clone).await;
        made.map_err(|error| self.failed(doing, &error))?;
        self.note_done();
        self.mark_made(doing, name, spelled).await
    }

    /// Gives what was just made without properties all of them.
    async fn mark_made(&self, doing: &str, name: &DatasetName, spelled: native::Spelled) -> Done {
        let user = spelled.user.into_iter();
        let user = user.map(|(key, value)| (key, Some(value))).collect();
        self.update(doing, name, spelled.native, user).await
    }

    /// One update of a dataset.
    async fn update(
        &self,
        doing: &str,
        name: &DatasetName,
        properties: Map<String, Value>,
        user_properties: BTreeMap<String, Option<String>>,
    ) -> Done {
        let update = UpdateDataset {
            id: name.to_string(),
            properties,
            user_properties,
        };
        let set = self.api.nas.write(self.call, &update).await;
        let set = set.map_err(|error| self.failed(doing, &error))?;
        self.answered().datasets.insert(name.clone(), set);
        Ok(())
    }

    /// Properties of one object, set and inherited in one call.
    async fn set(&self, object: &Object, steps: &[&Step]) -> Done {
        let doing = format!("set properties of {object}");
        let mut all = Vec::new();
        for step in steps {
            match step {
                Step::Set { properties, .. } => all.extend(properties.iter().cloned()),
                Step::Record { property, of, .. } => {
                    let number = self.answered().made.get(of);
                    let number = number.and_then(|n| PropertyValue::parse(n.to_string()).ok());
                    all.extend(number.map(|number| Property::new(property.clone(), number)));
                }
                _ => {}
            }
        }
        if let Object::Dataset(name) = object {
            self.with_room(&doing, name, &mut all).await?;
        }
        let mut spelled = native::spelled(&all)
            .map_err(|error| tell(&doing, Kind::Invalid, error.to_string()))?;
        let mut user: BTreeMap<_, _> = spelled
            .user
            .into_iter()
            .map(|(key, value)| (key, Some(value)))
            .collect();
        for step in steps {
            if let Step::Inherit { property, .. } = step {
                if property.is_user() {
                    user.insert(property.as_str().to_owned(), None);
                } else {
                    let name = native::api_name(property.as_str()).to_owned();
                    spelled.native.insert(name, json!("INHERIT"));
                }
            }
        }
        match object {
            Object::Dataset(name) => {
                if spelled.native.contains_key("volsize") {
                    spelled.native.insert("force_size".to_owned(), json!(true));
                    // An update is not atomic: the size may grow where there is no room to reserve. The next call would
                    // find that size, and initiators would never hear of it.
                    let reserved = spelled.native.remove_entry("refreservation");
                    let reserved: Map<_, _> = reserved.into_iter().collect();
                    if !reserved.is_empty() {
                        self.update(&doing, name, reserved, BTreeMap::new()).await?;
                        self.note_done();
                    }
                }
                self.update(&doing, name, spelled.native, user).await?;
            }
            Object::Snapshot(name) if !self.dialect.has_resource_destroy() => {
                let update = UpdateSnapshot {
                    id: name.to_string(),
                    user_properties: user,
                };
                let set = self.api.nas.write(self.call, &update).await;
                set.map_err(|error| self.failed(doing, &error))?;
            }
            // It cannot be changed any more, and is whole by itself.
            Object::Snapshot(_) => {}
        }
        Ok(())
    }

    /// The space that is kept free for a zvol is its size: the API has no word for that.
    async fn with_room(
        &self,
        doing: &str,
        name: &DatasetName,
        properties: &mut [Property],
    ) -> Done {
        let auto = |property: &&mut Property| {
            property.name == PropertyName::REFRESERVATION && property.value.as_str() == "auto"
        };
        let size = properties
            .iter()
            .find(|property| property.name == PropertyName::VOLSIZE)
            .map(|property| property.value.clone());
        let Some(property) = properties.iter_mut().find(auto) else {
            return Ok(());
        };
        if let Some(size) = size {
            property.value = size;
            return Ok(());
        }
        let query = crate::api::dataset::QueryDatasets {
            properties: vec!["volsize".to_owned()],
            ..crate::api::dataset::QueryDatasets::by_id(name.as_str())
        };
        let found = self.api.nas.read(self.call, &query).await;
        let found = found.map_err(|error| self.failed(doing, &error))?;
        let size = found.first().and_then(|found| found.number("volsize"));
        property.value = size.unwrap_or_default().into();
        Ok(())
    }

    async fn permit(&self, steps: &[&Step]) -> Done {
        let permissions = steps.iter().filter_map(|step| match step {
            Step::Permit { path, permission } => Some((path.as_str(), permission)),
            _ => None,
        });
        let permissions: Vec<_> = permissions.collect();
        let Some((path, _)) = permissions.first() else {
            return Ok(());
        };
        let doing = format!("set permissions of {path}");
        let mut set = SetPermissions {
            path: (*path).to_owned(),
            ..SetPermissions::default()
        };
        for (_, permission) in &permissions {
            match permission {
                Permission::Mode(mode) => {
                    set.mode = Some(format!("{mode:03o}"));
                    set.strip_acl = true;
                }
                Permission::Owner(owner) => {
                    let (user, group) = owner.split_once(':').unwrap_or((owner, ""));
                    let number = |text: &str| match text {
                        "" => Ok(None),
                        text => text.parse().map(Some),
                    };
                    let odd = || tell(&doing, Kind::Invalid, "the owner is no number");
                    set.uid = number(user).map_err(|_| odd())?;
                    set.gid = number(group).map_err(|_| odd())?;
                }
                Permission::Acl(_) => {}
            }
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            let permitted = self.api.nas.run(self.call, &set).await;
            permitted.map_err(|error| self.failed(doing, &error))?;
            self.note_done();
        }
        for (path, permission) in &permissions {
            if let Permission::Acl(arguments) = permission
                && let Some(acl) = Acl::parse(arguments)
            {
                self.list_access(path, &acl).await?;
            }
        }
        Ok(())
    }

    /// Sets entries of an access control list, unless they are there.
    async fn list_access(&self, path: &str, acl: &Acl) -> Done {
        let doing = format!("set the access control list of {path}");
        let get = GetAcl {
            path: path.to_owned(),
            names: acl.has_names(),
        };
        let found = self.api.nas.read(self.call, &get).await;
        let found = found.map_err(|error| self.failed(&doing, &error))?;
        if found.acltype != acl.kind.name() {
            let why = format!(
                "it is one of {}, and zfs.datasetPermissionsAcls has entries of {}",
                found.acltype,
                acl.kind.name()
            );
            return Err(tell(&doing, Kind::Invalid, why));
        }
        if acl.has_names() && self.dialect.generation() < Generation::V25_04 {
            let why =
                "zfs.datasetPermissionsAcls has names, and before 25.04 the API takes only numbers";
            return Err(tell(&doing, Kind::Invalid, why));
        }
        let current = found.acl.unwrap_or_default();
        let set = SetAcl {
            path: path.to_owned(),
            kind: acl.kind,
            entries: Acl::sent(acl.over(&current)),
            uid: None,
            gid: None,
            recursive: false,
        };
        let listed = self.api.nas.run(self.call, &set).await;
        listed.map_err(|error| self.failed(doing, &error))
    }

    async fn destroy_snapshot(&self, snapshot: &SnapshotRef) -> Done {
        let delete = DeleteSnapshot {
            id: snapshot.to_string(),
            defer: true,
        };
        // One that is not there any more is looked for: what is not found may be something else.
        let destroyed = self.api.nas.write_now(self.call, &delete).await;
        destroyed
            .map(drop)
            .map_err(|error| self.failed(format!("destroy {snapshot}"), &error))
    }

    /// Destroys a dataset. `NotFound` is no proof that it is gone: TrueNAS takes its shares away first, and one of
    /// these may be what it does not find.
    async fn destroy(&self, name: &DatasetName) -> Result<(), ApiError> {
        let delete = DeleteDataset {
            id: name.to_string(),
            recursive: false,
            force: true,
        };
        self.api.nas.write_now(self.call, &delete).await.map(drop)
    }

    /// Destroys a filesystem without files in it; leaves any other one, and one that cannot be looked into:
    /// an empty directory where it is not mounted says nothing of what it holds.
    async fn destroy_empty(&self, doing: &str, name: &DatasetName) -> Done {
        let path = format!("/mnt/{name}");
        let list = ListDirectory {
            path: path.clone(),
            limit: 1,
        };
        let find = FindFilesystem { path };
        let looked = tokio::try_join!(
            self.api.nas.read(self.call, &list),
            self.api.nas.read(self.call, &find),
        );
        match looked {
            Ok((files, mounted)) if files.is_empty() && mounted.source == name.as_str() => {}
            Ok(_) => return Ok(()),
            Err(error) => match error.kind() {
                ApiKind::NotFound | ApiKind::Unsupported | ApiKind::Denied | ApiKind::Locked => {
                    return Ok(());
                }
                _ => return Err(self.failed(doing, &error)),
            },
        }
        match self.destroy(name).await {
            Err(error) if matches!(error.kind(), ApiKind::Dependents | ApiKind::NotFound) => {
                return Ok(());
            }
            outcome => outcome.map_err(|error| self.failed(doing, &error))?,
        }
        self.ended(name);
        Ok(())
    }

    /// Datasets as they are now, by what was answered to their last change.
    pub(super) fn datasets(&self) -> Vec<Dataset> {
        self.answered().datasets.values().cloned().collect()
    }

    /// A snapshot that was taken, as it was answered.
    pub(super) fn snapshot_row(&self, name: &SnapshotRef) -> Option<Snapshot> {
        self.answered().snapshots.get(name).cloned()
    }

    /// Whether a dataset is gone. What 26 says of that is looked at: its betas say so also where it is in use.
    pub(super) fn has_ended(&self, name: &DatasetName) -> bool {
        !self.dialect.has_resource_destroy() && self.answered().destroyed.contains(name)
    }

    /// A dataset was destroyed, by what TrueNAS says: what was answered about it before counts no more.
    fn ended(&self, name: &DatasetName) {
        let mut answered = self.answered();
        answered.datasets.remove(name);
        answered.destroyed.insert(name.clone());
    }

    /// The datasets that were destroyed, and are looked at for that: see [`Run::has_ended`].
    pub(super) fn not_proved_gone(&self) -> Vec<Query> {
        let destroyed = self.answered().destroyed.clone().into_iter();
        let destroyed = destroyed.filter(|name| !self.has_ended(name));
        destroyed.map(Query::Dataset).collect()
    }

    /// Whether what was destroyed is gone: the betas of 26 say so also where it is in use, and stays.
    pub(super) fn are_gone(&self, pool: &State) -> Done {
        let stays = |name: &&DatasetName| pool.dataset(name).is_some();
        let destroyed = self.answered().destroyed.clone();
        match destroyed.iter().find(stays) {
            None => Ok(()),
            Some(name) => Err(Failed {
                next: Next::Wait,
                error: Error::new(Kind::Busy, format!("destroy {name}"))
                    .because("TrueNAS says that it is done, and it is still there: it is in use"),
            }),
        }
    }
}
