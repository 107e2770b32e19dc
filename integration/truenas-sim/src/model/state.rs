//! The tree of datasets and what ZFS does to it.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::{
    Destroy, Kind, NewDataset, NfsClient, Permissions, Problem, Property, Scope, Session,
    SmbConnection, Snapshot, Source,
};

type Answer<T> = Result<T, Problem>;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sizes: BTreeMap<String, u64>,
    /// The states of pools that are not `ONLINE`.
    pub(super) statuses: BTreeMap<String, String>,
    /// Filesystems that are not mounted, and have a loaded key.
    pub(super) unmounted: BTreeSet<String>,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) files: BTreeMap<String, Permissions>,
    pub(super) sessions: Vec<Session>,
    pub(super) clients: Vec<NfsClient>,
    pub(super) connections: Vec<SmbConnection>,
    txg: u64,
    devices: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) local: BTreeMap<String, String>,
    pub(super) user: BTreeMap<String, String>,
    /// The snapshot that it was cloned from.
    pub(super) origin: Option<String>,
    pub(super) created: u64,
    pub(super) referenced: u64,
    pub(super) key: Option<String>,
    pub(super) key_loaded: bool,
    pub(super) snapshots: Vec<SnapshotNode>,
}

#[derive(Debug, Clone)]
pub(super) struct SnapshotNode {
    pub(super) name: String,
    pub(super) txg: u64,
    pub(super) referenced: u64,
    pub(super) volsize: Option<String>,
    pub(super) user: BTreeMap<String, String>,
    pub(super) holds: BTreeMap<String, u64>,
    pub(super) deferred: bool,
}

/// Seconds of the epoch; transaction groups count up from here, so that order in time is order in txg.
const EPOCH: u64 = 1_795_000_000;

/// Others are mounted before the pools.
const FIRST_DEVICE: u64 = 49;

fn missing<T>(name: &str) -> Answer<T> {
    Err(Problem::Missing(name.to_owned()))
}

impl State {
    pub(super) fn add_pool(&mut self, name: &str, size: u64) {
        self.sizes.insert(name.to_owned(), size);
        let mut node = self.node(Kind::Filesystem);
        // What the installer of TrueNAS sets on the root of a pool.
        node.local
            .insert("compression".to_owned(), "lz4".to_owned());
        self.nodes.insert(name.to_owned(), node);
        self.mount(name);
    }

    fn tick(&mut self) -> u64 {
        self.txg += 1;
        EPOCH + self.txg
    }

    fn node(&mut self, kind: Kind) -> Node {
        Node {
            kind,
            local: BTreeMap::new(),
            user: BTreeMap::new(),
            origin: None,
            created: self.tick(),
            referenced: 98_304,
            key: None,
            key_loaded: true,
            snapshots: Vec::new(),
        }
    }

    fn mount(&mut self, name: &str) {
        self.devices += 1;
        let directory = Permissions {
            uid: 0,
            gid: 0,
            mode: 0o755,
            acl: None,
            mount_point: true,
            device: FIRST_DEVICE + self.devices,
        };
        self.files.insert(format!("/mnt/{name}"), directory);
    }

    pub(super) fn names(&self, scope: &Scope) -> Vec<String> {
        let known = |name: &&String| self.nodes.contains_key(*name) && self.is_imported(name);
        match scope {
            Scope::All => self.nodes.keys().filter(known).cloned().collect(),
            Scope::Exact(names) => names.iter().filter(known).cloned().collect(),
            Scope::Tree(roots) => {
                let tree = |root: &String| {
                    let own = std::iter::once(root.clone());
                    own.chain(self.subtree(root).cloned()).collect::<Vec<_>>()
                };
                roots.iter().filter(known).flat_map(tree).collect()
            }
        }
    }

    /// Whether the pool of a dataset is there. One that is suspended is.
    fn is_imported(&self, name: &str) -> bool {
        let pool = name.split('/').next().unwrap_or_default();
        let status = self.statuses.get(pool);
        status.is_none_or(|status| ["ONLINE", "DEGRADED", "SUSPENDED"].contains(&status.as_str()))
    }

    pub(super) fn create(&mut self, new: NewDataset) -> Answer<()> {
        if self.nodes.contains_key(&new.name) {
            return Err(Problem::Exists(new.name));
        }
        let parent = new
            .name
            .rsplit_once('/')
            .map_or("", |(parent, _)| parent)
            .to_owned();
        if !self.nodes.contains_key(&parent) {
            if !new.ancestors || parent.is_empty() {
                return missing(&parent);
            }
            self.create(NewDataset {
                name: parent,
                kind: Kind::Filesystem,
                properties: BTreeMap::new(),
                user: BTreeMap::new(),
                key: None,
                ancestors: true,
            })?;
        }
        let mut node = self.node(new.kind);
        node.local = new.properties;
        node.user = new.user;
        node.key = new.key;
        self.nodes.insert(new.name.clone(), node);
        if self.overcommitted(&new.name) {
            self.nodes.remove(&new.name);
            return Err(Problem::NoSpace(new.name));
        }
        if new.kind == Kind::Filesystem {
            self.mount(&new.name);
        }
        Ok(())
    }

    pub(super) fn set(&mut self, name: &str, changes: Vec<(String, Option<String>)>) -> Answer<()> {
        let Some(node) = self.nodes.get_mut(name) else {
            return missing(name);
        };
        let before = node.clone();
        for (key, value) in changes {
            let target = if key.contains(':') {
                &mut node.user
            } else {
                &mut node.local
            };
            match value {
                Some(value) => target.insert(key, value),
                None => target.remove(&key),
            };
        }
        if self.overcommitted(name) {
            self.nodes.insert(name.to_owned(), before);
            return Err(Problem::NoSpace(name.to_owned()));
        }
        Ok(())
    }

    pub(super) fn destroy(&mut self, name: &str, how: Destroy) -> Answer<()> {
        if !self.nodes.contains_key(name) {
            return missing(name);
        }
        let mut doomed = self.names(&Scope::Tree(vec![name.to_owned()]));
        if !how.recursive {
            if doomed.len() > 1 {
                return Err(Problem::HasChildren(name.to_owned()));
            }
            if !self.nodes[name].snapshots.is_empty() {
                return Err(Problem::HasSnapshots(name.to_owned()));
            }
        }
        let mut index = 0;
        while index < doomed.len() {
            for snapshot in self.snapshots_of(&doomed[index]) {
                if !how.clones && !snapshot.holds.is_empty() {
                    return Err(Problem::Held(snapshot.name));
                }
                let outside: Vec<_> = snapshot
                    .clones
                    .iter()
                    .filter(|clone| !doomed.contains(clone))
                    .cloned()
                    .collect();
                if !outside.is_empty() && !how.clones {
                    return Err(Problem::HasClones(snapshot.name, outside));
                }
                for clone in outside {
                    doomed.extend(self.names(&Scope::Tree(vec![clone])));
                }
            }
            index += 1;
        }
        for each in &doomed {
            let origin = self.nodes.remove(each).and_then(|node| node.origin);
            self.files.retain(|path, _| {
                path != &format!("/mnt/{each}") && !below(path, &format!("/mnt/{each}"))
            });
            if let Some(origin) = origin {
                self.finish_deferred(&origin);
            }
        }
        Ok(())
    }

    pub(super) fn promote(&mut self, name: &str) -> Answer<()> {
        let Some(node) = self.nodes.get(name) else {
            return missing(name);
        };
        let Some(origin) = node.origin.clone() else {
            return Err(Problem::NotAClone(name.to_owned()));
        };
        let (source, snapshot) = origin.split_once('@').unwrap_or((&origin, ""));
        let source_node = self
            .nodes
            .get_mut(source)
            .ok_or_else(|| Problem::Missing(source.to_owned()))?;
        let cut = source_node
            .snapshots
            .iter()
            .position(|each| each.name == snapshot)
            .map_or(0, |at| at + 1);
        let moved: Vec<SnapshotNode> = source_node.snapshots.drain(..cut).collect();
        let grandparent = source_node.origin.take();
        source_node.origin = Some(format!("{name}@{snapshot}"));
        let names: Vec<String> = moved.iter().map(|each| each.name.clone()).collect();
        for other in self.nodes.values_mut() {
            let moved_origin = other
                .origin
                .as_deref()
                .and_then(|origin| origin.split_once('@'));
            if let Some((dataset, snapshot)) = moved_origin
                && dataset == source
                && names.iter().any(|name| name == snapshot)
            {
                other.origin = Some(format!("{name}@{snapshot}"));
            }
        }
        let node = self.nodes.get_mut(name).expect("the clone");
        node.origin = grandparent;
        node.snapshots.splice(0..0, moved);
        Ok(())
    }

    pub(super) fn rename(&mut self, name: &str, new_name: &str) -> Answer<()> {
        if !self.nodes.contains_key(name) {
            return missing(name);
        }
        if self.nodes.contains_key(new_name) {
            return Err(Problem::Exists(new_name.to_owned()));
        }
        let parent = new_name.rsplit_once('/').map_or("", |(parent, _)| parent);
        if !self.nodes.contains_key(parent) {
            return missing(parent);
        }
        let renamed = |old: &str| format!("{new_name}{}", &old[name.len()..]);
        for old in self.names(&Scope::Tree(vec![name.to_owned()])) {
            let node = self.nodes.remove(&old).expect("a listed dataset");
            self.nodes.insert(renamed(&old), node);
        }
        for node in self.nodes.values_mut() {
            let origin = node.origin.as_deref().filter(|origin| {
                origin
                    .split_once('@')
                    .is_some_and(|(dataset, _)| dataset == name || below(dataset, name))
            });
            if let Some(origin) = origin {
                node.origin = Some(renamed(origin));
            }
        }
        let (old_root, new_root) = (format!("/mnt/{name}"), format!("/mnt/{new_name}"));
        let files = std::mem::take(&mut self.files);
        self.files = files
            .into_iter()
            .map(|(path, file)| match path.strip_prefix(&old_root) {
                Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                    (format!("{new_root}{rest}"), file)
                }
                _ => (path, file),
            })
            .collect();
        Ok(())
    }

    pub(super) fn set_key(&mut self, name: &str, key: Option<&str>) -> Answer<bool> {
        let Some(node) = self.nodes.get_mut(name) else {
            return missing(name);
        };
        let right = key.is_none() || node.key.as_deref() == key;
        if right {
            node.key_loaded = key.is_some();
        }
        Ok(right)
    }

    pub(super) fn snapshots_of(&self, dataset: &str) -> Vec<Snapshot> {
        let Some(node) = self.nodes.get(dataset) else {
            return Vec::new();
        };
        node.snapshots
            .iter()
            .map(|each| self.describe(dataset, each))
            .collect()
    }

    fn describe(&self, dataset: &str, snapshot: &SnapshotNode) -> Snapshot {
        let name = format!("{dataset}@{}", snapshot.name);
        let fixed = |raw: String| Property {
            raw,
            source: Source::None,
        };
        let mut properties = BTreeMap::from([
            ("used".to_owned(), fixed("0".to_owned())),
            (
                "referenced".to_owned(),
                fixed(snapshot.referenced.to_string()),
            ),
            ("creation".to_owned(), fixed(snapshot.txg.to_string())),
            ("createtxg".to_owned(), fixed(snapshot.txg.to_string())),
            (
                "guid".to_owned(),
                fixed((snapshot.txg ^ 0x5eed_0000_0000).to_string()),
            ),
            (
                "defer_destroy".to_owned(),
                fixed(if snapshot.deferred { "on" } else { "off" }.to_owned()),
            ),
            (
                "userrefs".to_owned(),
                fixed(snapshot.holds.len().to_string()),
            ),
        ]);
        if let Some(volsize) = &snapshot.volsize {
            properties.insert("volsize".to_owned(), fixed(volsize.clone()));
        }
        let clones = self
            .nodes
            .iter()
            .filter(|(_, node)| node.origin.as_deref() == Some(&name));
        let clones: Vec<String> = clones.map(|(clone, _)| clone.clone()).collect();
        properties.insert("clones".to_owned(), fixed(clones.join(",")));
        Snapshot {
            clones,
            createtxg: snapshot.txg,
            properties,
            user: snapshot.user.clone(),
            holds: snapshot.holds.clone(),
            name,
        }
    }

    pub(super) fn snapshot(
        &mut self,
        datasets: &[String],
        name: &str,
        user: &BTreeMap<String, String>,
    ) -> Answer<()> {
        for dataset in datasets {
            let Some(node) = self.nodes.get(dataset) else {
                return missing(dataset);
            };
            if node.snapshots.iter().any(|each| each.name == name) {
                return Err(Problem::Exists(format!("{dataset}@{name}")));
            }
        }
        let txg = self.tick();
        for dataset in datasets {
            let node = self.nodes.get_mut(dataset).expect("checked above");
            node.snapshots.push(SnapshotNode {
                name: name.to_owned(),
                txg,
                referenced: node.referenced,
                volsize: node.local.get("volsize").cloned(),
                user: user.clone(),
                holds: BTreeMap::new(),
                deferred: false,
            });
        }
        Ok(())
    }

    pub(super) fn find_snapshot(&mut self, name: &str) -> Answer<&mut SnapshotNode> {
        let (dataset, snapshot) = name.split_once('@').unwrap_or((name, ""));
        let node = self.nodes.get_mut(dataset);
        let found =
            node.and_then(|node| node.snapshots.iter_mut().find(|each| each.name == snapshot));
        found.ok_or_else(|| Problem::Missing(name.to_owned()))
    }

    pub(super) fn destroy_snapshot(&mut self, name: &str, defer: bool) -> Answer<()> {
        let clones: Vec<String> = self.clones_of(name);
        let snapshot = self.find_snapshot(name)?;
        let held = !snapshot.holds.is_empty();
        if defer && (held || !clones.is_empty()) {
            snapshot.deferred = true;
            return Ok(());
        }
        if held {
            return Err(Problem::Held(name.to_owned()));
        }
        if !clones.is_empty() {
            return Err(Problem::HasClones(name.to_owned(), clones));
        }
        self.remove_snapshot(name);
        Ok(())
    }

    fn clones_of(&self, snapshot: &str) -> Vec<String> {
        let clones = self
            .nodes
            .iter()
            .filter(|(_, node)| node.origin.as_deref() == Some(snapshot));
        clones.map(|(name, _)| name.clone()).collect()
    }

    fn remove_snapshot(&mut self, name: &str) {
        let (dataset, snapshot) = name.split_once('@').unwrap_or((name, ""));
        if let Some(node) = self.nodes.get_mut(dataset) {
            node.snapshots.retain(|each| each.name != snapshot);
        }
    }

    fn finish_deferred(&mut self, name: &str) {
        let unused = self.clones_of(name).is_empty();
        let gone = self
            .find_snapshot(name)
            .is_ok_and(|each| each.deferred && each.holds.is_empty() && unused);
        if gone {
            self.remove_snapshot(name);
        }
    }

    pub(super) fn clone_snapshot(
        &mut self,
        snapshot: &str,
        target: &str,
        properties: BTreeMap<String, String>,
    ) -> Answer<()> {
        let (mut node, _) = self.node_of(snapshot)?;
        node.origin = Some(snapshot.to_owned());
        self.place(target, node, properties)
    }

    pub(super) fn copy(
        &mut self,
        snapshot: &str,
        target: &str,
        properties: &BTreeMap<String, String>,
        snapshot_user: bool,
    ) -> Answer<()> {
        let (mut node, mut copied) = self.node_of(snapshot)?;
        copied.holds.clear();
        if !snapshot_user {
            copied.user.clear();
        }
        copied.deferred = false;
        node.snapshots.push(copied);
        self.place(target, node, properties.clone())
    }

    /// A new dataset with the content of a snapshot.
    fn node_of(&mut self, snapshot: &str) -> Answer<(Node, SnapshotNode)> {
        let source = self.find_snapshot(snapshot)?.clone();
        let dataset = snapshot.split_once('@').map_or("", |(dataset, _)| dataset);
        let kind = self.nodes[dataset].kind;
        let volblocksize = self.nodes[dataset].local.get("volblocksize").cloned();
        let mut node = self.node(kind);
        node.referenced = source.referenced;
        if let Some(volsize) = &source.volsize {
            node.local.insert("volsize".to_owned(), volsize.clone());
        }
        if let Some(volblocksize) = volblocksize {
            node.local.insert("volblocksize".to_owned(), volblocksize);
        }
        Ok((node, source))
    }

    fn place(
        &mut self,
        target: &str,
        mut node: Node,
        properties: BTreeMap<String, String>,
    ) -> Answer<()> {
        if self.nodes.contains_key(target) {
            return Err(Problem::Exists(target.to_owned()));
        }
        let parent = target.rsplit_once('/').map_or("", |(parent, _)| parent);
        if !self.nodes.contains_key(parent) {
            return missing(parent);
        }
        for (key, value) in properties {
            let place = if key.contains(':') {
                &mut node.user
            } else {
                &mut node.local
            };
            place.insert(key, value);
        }
        let kind = node.kind;
        self.nodes.insert(target.to_owned(), node);
        if kind == Kind::Filesystem {
            self.mount(target);
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, snapshot: &str, tag: Option<&str>, set: bool) -> Answer<()> {
        let now = self.tick();
        let node = self.find_snapshot(snapshot)?;
        match (tag, set) {
            (Some(tag), true) => {
                node.holds.insert(tag.to_owned(), now);
            }
            (Some(tag), false) => {
                node.holds.remove(tag);
            }
            (None, _) => node.holds.clear(),
        }
        self.finish_deferred(snapshot);
        Ok(())
    }

    pub(super) fn rollback(&mut self, snapshot: &str, newer: bool) -> Answer<()> {
        let (dataset, name) = snapshot.split_once('@').unwrap_or((snapshot, ""));
        self.find_snapshot(snapshot)?;
        let node = self.nodes.get_mut(dataset).expect("checked above");
        let at = node
            .snapshots
            .iter()
            .position(|each| each.name == name)
            .unwrap_or_default();
        if at + 1 < node.snapshots.len() && !newer {
            let names = node.snapshots[at + 1..]
                .iter()
                .map(|each| format!("{dataset}@{}", each.name));
            return Err(Problem::NewerSnapshots(names.collect()));
        }
        node.snapshots.truncate(at + 1);
        node.referenced = node.snapshots[at].referenced;
        if let Some(volsize) = node.snapshots[at].volsize.clone() {
            node.local.insert("volsize".to_owned(), volsize);
        }
        Ok(())
    }

    pub(super) fn rename_snapshot(&mut self, snapshot: &str, new_name: &str) -> Answer<()> {
        let (_, new) = new_name.split_once('@').unwrap_or(("", new_name));
        if self.find_snapshot(new_name).is_ok() {
            return Err(Problem::Exists(new_name.to_owned()));
        }
        new.clone_into(&mut self.find_snapshot(snapshot)?.name);
        for node in self
            .nodes
            .values_mut()
            .filter(|node| node.origin.as_deref() == Some(snapshot))
        {
            node.origin = Some(new_name.to_owned());
        }
        Ok(())
    }
}

pub(super) fn below(name: &str, root: &str) -> bool {
    name.strip_prefix(root)
        .is_some_and(|rest| rest.starts_with('/'))
}
