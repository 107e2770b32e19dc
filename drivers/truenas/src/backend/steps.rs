//! A plan, done: steps in order, those that do not depend on each other at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use driver_core::{Call, Error, Kind};
use driver_zfs::export::Opaque;
use driver_zfs::name::{DatasetName, Object, SnapshotRef};
use driver_zfs::observed::{Query, State};
use driver_zfs::property::{Property, PropertyName};
use driver_zfs::step::{Failed, New, Next, Permission, Step};
use futures_util::future::join_all;
use serde_json::{Map, json};

use super::merged::with_copy;
use super::{Api, native};
use crate::acl::Acl;
use crate::api::dataset::{
    CreateDataset, CreateKind, Dataset, DeleteDataset, PromoteDataset, UpdateDataset,
};
use crate::api::filesystem::{FindFilesystem, GetAcl, ListDirectory, SetAcl, SetPermissions};
use crate::api::iscsi::DeleteTarget;
use crate::api::replication::CopySnapshot;
use crate::api::snapshot::{
    CloneSnapshot, CreateSnapshot, DeleteSnapshot, RenameSnapshot, Snapshot, UpdateSnapshot,
};
use crate::command::{Answer, Change, Command, Look};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::failed;
use crate::{Dialect, Generation};

/// From when a dataset that was busy may be free.
const FREE_AGAIN: Duration = Duration::from_secs(3);

/// What a plan has done so far, and what it was answered.
pub(super) struct Run<'a> {
    api: &'a Api,
    call: &'a Call,
    dialect: &'a Dialect,
    /// Whether anything was done, or is done beside what may fail.
    done: bool,
    datasets: BTreeMap<DatasetName, Dataset>,
    snapshots: BTreeMap<SnapshotRef, Snapshot>,
    answers: Vec<(Look, Answer)>,
    destroyed: BTreeSet<DatasetName>,
    /// A target that goes together with the next step.
    target: Option<i64>,
    /// The dataset that the plan is about, and what it has to remember of the exports that were made: it is
    /// set with what is set next on it.
    about: &'a DatasetName,
    notes: Vec<Property>,
    /// What the next step that sets properties of this object sets is set already.
    is_set: Option<Object>,
}

type Done = Result<(), Failed>;

fn tell(doing: impl Into<String>, kind: Kind, why: impl Into<String>) -> Failed {
    Failed::terminal(Error::new(kind, doing).because(why.into()))
}

/// Whether something waits for nothing that another such step does.
fn is_beside(step: &Step) -> bool {
    match step {
        Step::Mount(_) | Step::Permit { .. } | Step::Settle(_) | Step::DestroySnapshot(_) => true,
        step => Change::of(step).is_some_and(Change::makes),
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(
        api: &'a Api,
        call: &'a Call,
        dialect: &'a Dialect,
        about: &'a DatasetName,
    ) -> Self {
        Self {
            about,
            notes: Vec::new(),
            is_set: None,
            api,
            call,
            dialect,
            done: false,
            datasets: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            answers: Vec::new(),
            destroyed: BTreeSet::new(),
            target: None,
        }
    }

    fn failed(&self, doing: impl Into<String>, error: &ApiError) -> Failed {
        failed(doing, error, !self.done)
    }

    /// Where nfsd keeps a filesystem busy that was just used, each attempt to destroy it is two more changes of
    /// exports, each of which delays the moment from which it is free by a second.
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

    /// Does all of them, and none after one that failed.
    pub(super) async fn all(&mut self, steps: &[Step]) -> Done {
        let mut rest = steps;
        while let Some(first) = rest.first() {
            self.call
                .check(&first.to_string())
                .map_err(Failed::terminal)?;
            let beside = rest.iter().take_while(|step| is_beside(step)).count();
            let taken = match first {
                _ if beside > 0 => {
                    self.beside(&rest[..beside]).await?;
                    beside
                }
                Step::Set { object, .. } if self.is_set.as_ref() == Some(object) => {
                    self.is_set = None;
                    1
                }
                Step::Set { object, .. } | Step::Inherit { object, .. } => {
                    let same = |step: &&Step| match step {
                        Step::Set { object: other, .. } | Step::Inherit { object: other, .. } => {
                            other == object
                        }
                        _ => false,
                    };
                    let same = rest.iter().take_while(same).count();
                    self.set(object, &rest[..same]).await?;
                    same
                }
                step => {
                    let copy = with_copy(step, &rest[1..]);
                    if let Some(Step::Copy { to, .. }) = &copy {
                        self.is_set = Some(to.clone().into());
                    }
                    self.one(copy.as_ref().unwrap_or(step)).await?;
                    1
                }
            };
            self.done = true;
            rest = &rest[taken..];
        }
        self.remove_target().await
    }

    async fn one(&mut self, step: &Step) -> Done {
        let doing = step.to_string();
        match step {
            Step::Create {
                dataset,
                new,
                properties,
            } => self.create(&doing, dataset, new, properties).await,
            Step::Snapshot {
                snapshot,
                properties,
            } => self.snapshot(&doing, snapshot, properties).await,
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
                let (destroyed, removed) = tokio::join!(self.destroy(name), self.without_target());
                removed?;
                self.target = None;
                destroyed.map_err(|e| self.not_destroyed(doing, &e))?;
                self.ended(name);
                Ok(())
            }
            Step::DestroyEmpty(name) => self.destroy_empty(&doing, name).await,
            Step::Export(request) => match request.get().map_err(Failed::terminal)? {
                Command::Change(change) => self.change(change).await,
                Command::Look(_) => Ok(()),
            },
            Step::Set { .. }
            | Step::Inherit { .. }
            | Step::DestroySnapshot(_)
            | Step::Mount(_)
            | Step::Permit { .. }
            | Step::Settle(_) => Ok(()),
        }
    }

    /// Steps that do not wait for each other. All of them end before the first failure is returned.
    async fn beside(&mut self, steps: &[Step]) -> Done {
        self.done |= steps.len() > 1;
        let permissions: Vec<_> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Permit { path, permission } => Some((path.as_str(), permission)),
                _ => None,
            })
            .collect();
        let changes = steps.iter().filter_map(Change::of);
        let snapshots = steps.iter().filter_map(|step| match step {
            Step::DestroySnapshot(snapshot) => Some(snapshot),
            _ => None,
        });
        let (permitted, made, destroyed) = tokio::join!(
            self.permit(&permissions),
            join_all(changes.map(|change| self.make(change))),
            join_all(snapshots.map(|snapshot| self.destroy_snapshot(snapshot))),
        );
        permitted?;
        for made in made {
            if let Some((look, answer)) = made? {
                self.notes.extend(answer.notes());
                self.answers.push((look, answer));
            }
        }
        destroyed.into_iter().collect()
    }

    async fn create(
        &mut self,
        doing: &str,
        name: &DatasetName,
        new: &New,
        properties: &[Property],
    ) -> Done {
        let mut spelled = native::spelled(properties)
            .map_err(|error| tell(doing, Kind::Invalid, error.to_string()))?;
        let kind = match new {
            New::Filesystem => {
                let given = spelled.native.remove("share_type");
                let given = given.and_then(|given| given.as_str().map(str::to_owned));
                let is_volume = spelled
                    .user
                    .contains_key(PropertyName::VOLUME_NAME.as_str());
                let own = self.api.share_type.filter(|_| is_volume);
                let share_type = given.or(own.map(str::to_owned));
                CreateKind::Filesystem {
                    share_type: Some(share_type.unwrap_or_else(|| "GENERIC".to_owned())),
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
        let _making = api.seen.making(name);
        let made = api.nas.write(self.call, &create).await;
        let made = made.map_err(|error| self.failed(doing, &error))?;
        self.done = true;
        self.keep(doing, name, made, spelled.user).await
    }

    /// Sees to it that a dataset that was made has the properties that it was made with: some generations
    /// drop them.
    async fn keep(
        &mut self,
        doing: &str,
        name: &DatasetName,
        made: Dataset,
        wanted: BTreeMap<String, String>,
    ) -> Done {
        let has =
            |(key, value): &(&String, &String)| made.user_properties.get(*key) == Some(*value);
        if wanted.iter().all(|property| has(&property)) {
            self.datasets.insert(name.clone(), made);
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
        self.datasets.insert(name.clone(), kept);
        Ok(())
    }

    async fn snapshot(
        &mut self,
        doing: &str,
        snapshot: &SnapshotRef,
        properties: &[Property],
    ) -> Done {
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
        let whole = made.properties.contains_key("creation");
        if whole {
            self.snapshots.insert(snapshot.clone(), made);
        }
        Ok(())
    }

    async fn clone_of(
        &mut self,
        doing: &str,
        origin: &SnapshotRef,
        name: &DatasetName,
        properties: &[Property],
    ) -> Done {
        let fit = properties.iter().filter(|property| {
            let name = &property.name;
            let of_api = *name == PropertyName::CANMOUNT || name.as_str() == "share_type";
            !name.is_for_new_only() && !of_api
        });
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
        &mut self,
        doing: &str,
        from: &SnapshotRef,
        to: &DatasetName,
        properties: &[Property],
    ) -> Done {
        let fit = properties.iter();
        let fit = fit.filter(|property| !property.name.is_for_new_only());
        let spelled =
            native::spelled(fit).map_err(|error| tell(doing, Kind::Invalid, error.to_string()))?;
        let copy = CopySnapshot {
            source: from.dataset.to_string(),
            snapshot: from.leaf.as_str().to_owned(),
            target: to.to_string(),
            properties: false,
            only_from_scratch: true,
        };
        let copied = self.api.nas.run(self.call, &copy).await;
        copied.map_err(|error| self.failed(doing, &error))?;
        self.done = true;
        self.mark_made(doing, to, spelled).await
    }

    /// A clone without properties, then all of them at once. Between the two it is known by what it stands on.
    async fn clone_bare<'p>(
        &mut self,
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
        let _making = api.seen.making(name);
        let made = api.nas.write(self.call, &clone).await;
        made.map_err(|error| self.failed(doing, &error))?;
        self.done = true;
        self.mark_made(doing, name, spelled).await
    }

    /// Gives what was just made without properties all of them.
    async fn mark_made(
        &mut self,
        doing: &str,
        name: &DatasetName,
        spelled: native::Spelled,
    ) -> Done {
        let user = spelled.user.into_iter();
        let update = UpdateDataset {
            id: name.to_string(),
            properties: spelled.native,
            user_properties: user.map(|(key, value)| (key, Some(value))).collect(),
        };
        let set = self.api.nas.write(self.call, &update).await;
        let set = set.map_err(|error| self.failed(doing, &error))?;
        self.datasets.insert(name.clone(), set);
        Ok(())
    }

    /// Properties of one object, set and inherited in one call.
    async fn set(&mut self, object: &Object, steps: &[Step]) -> Done {
        let doing = format!("set properties of {object}");
        let properties = steps.iter().flat_map(|step| match step {
            Step::Set { properties, .. } => properties.as_slice(),
            _ => &[],
        });
        let mut all: Vec<Property> = properties.cloned().collect();
        if let Object::Dataset(name) = object {
            if name == self.about {
                all.append(&mut self.notes);
            }
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
                }
                let update = UpdateDataset {
                    id: name.to_string(),
                    properties: spelled.native,
                    user_properties: user,
                };
                let set = self.api.nas.write(self.call, &update).await;
                let set = set.map_err(|error| self.failed(doing, &error))?;
                self.datasets.insert(name.clone(), set);
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

    /// What is kept free for a zvol is its size: the API has no word for that.
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

    async fn permit(&self, permissions: &[(&str, &Permission)]) -> Done {
        let Some((path, _)) = permissions.first() else {
            return Ok(());
        };
        let doing = format!("set permissions of {path}");
        let mut set = SetPermissions {
            path: (*path).to_owned(),
            ..SetPermissions::default()
        };
        for (_, permission) in permissions {
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
        }
        for (path, permission) in permissions {
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
        match self.api.nas.write(self.call, &delete).await {
            Err(error) if error.kind() != ApiKind::NotFound => {
                Err(self.failed(format!("destroy {snapshot}"), &error))
            }
            _ => Ok(()),
        }
    }

    async fn destroy(&self, name: &DatasetName) -> Result<(), ApiError> {
        let delete = DeleteDataset {
            id: name.to_string(),
            recursive: false,
            force: true,
        };
        match self.api.nas.write(self.call, &delete).await {
            Err(error) if error.kind() != ApiKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Destroys a filesystem without files in it; leaves any other one, and one that cannot be looked into:
    /// an empty directory where it is not mounted says nothing of what it holds.
    async fn destroy_empty(&mut self, doing: &str, name: &DatasetName) -> Done {
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
            Err(error) if error.kind() == ApiKind::Dependents => return Ok(()),
            outcome => outcome.map_err(|error| self.failed(doing, &error))?,
        }
        self.ended(name);
        Ok(())
    }

    fn not_changed(&self, change: &Change, error: &ApiError) -> Failed {
        failed(change.doing(), error, !self.done && change.is_one_call())
    }

    /// A change that makes something, and what a look at it would see now.
    async fn make(&self, change: &Change) -> Result<Option<(Look, Answer)>, Failed> {
        let made = self.api.nas.make(self.call, change).await;
        made.map_err(|error| self.not_changed(change, &error))
    }

    /// A change that removes something.
    async fn change(&mut self, change: &Change) -> Done {
        self.remove_target().await?;
        let removed = self.api.nas.remove(self.call, change).await;
        self.target = removed.map_err(|error| self.not_changed(change, &error))?;
        Ok(())
    }

    async fn without_target(&self) -> Done {
        let Some(id) = self.target else { return Ok(()) };
        let delete = DeleteTarget { id, force: false };
        match self.api.nas.write(self.call, &delete).await {
            Err(error) if error.kind() != ApiKind::NotFound => {
                Err(self.failed(format!("remove iSCSI target {id}"), &error))
            }
            _ => Ok(()),
        }
    }

    async fn remove_target(&mut self) -> Done {
        self.without_target().await?;
        self.target = None;
        Ok(())
    }

    /// Datasets as they are now, by what was answered to their last change.
    pub(super) fn datasets(&self) -> &BTreeMap<DatasetName, Dataset> {
        &self.datasets
    }

    /// All rows of snapshots that were answered.
    pub(super) fn snapshot_rows(&self) -> Vec<Snapshot> {
        self.snapshots.values().cloned().collect()
    }

    /// A snapshot that was taken, as it was answered.
    pub(super) fn snapshot_row(&self, name: &SnapshotRef) -> Option<&Snapshot> {
        self.snapshots.get(name)
    }

    /// Whether a dataset is gone. What 26 says of that is looked at: its betas say so also where it is in use.
    pub(super) fn has_ended(&self, name: &DatasetName) -> bool {
        self.destroyed.contains(name) && !self.dialect.has_resource_destroy()
    }

    /// What was answered to a look that is asked for after the plan.
    pub(super) fn answer(&self, command: &Opaque) -> Option<Answer> {
        let Ok(Command::Look(look)) = command.get() else {
            return None;
        };
        let found = self.answers.iter().rev().find(|(known, _)| known == look);
        found.map(|(_, answer)| answer.clone())
    }

    /// A dataset was destroyed, by what TrueNAS says: what was answered about it before counts no more.
    fn ended(&mut self, name: &DatasetName) {
        self.datasets.remove(name);
        self.destroyed.insert(name.clone());
    }

    /// What was destroyed, and is looked at for that: see [`Run::has_ended`].
    pub(super) fn not_proved_gone(&self) -> Vec<Query> {
        let destroyed = self.destroyed.iter().filter(|name| !self.has_ended(name));
        destroyed.cloned().map(Query::Dataset).collect()
    }

    /// Whether what was destroyed is gone: the betas of 26 say so also where it is in use, and stays.
    pub(super) fn are_gone(&self, pool: &State) -> Done {
        let stays = |name: &&DatasetName| pool.dataset(name).is_some();
        match self.destroyed.iter().find(stays) {
            None => Ok(()),
            Some(name) => Err(Failed {
                next: Next::Wait,
                error: Error::new(Kind::Busy, format!("destroy {name}"))
                    .because("TrueNAS says that it is done, and it is still there: it is in use")
                    .with_effect(driver_core::Effect::Possible),
            }),
        }
    }
}
