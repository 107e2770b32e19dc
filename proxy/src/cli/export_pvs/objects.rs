//! The objects of volumes and snapshots: without a cluster, and without storage.

use std::collections::{BTreeMap, BTreeSet};

use csi_types::Attachment;
use driver_core::topology::NODE_KEY;
use driver_core::{Claim, ObjectName, Volume};
use serde_json::{Map, Value, json};

use super::{Listed, ObjectFlags, ReclaimPolicy};
use crate::message::printable;
use crate::routing::connection::Connection;

/// The size of a volume that nothing limits: a claim has to ask for one, and it binds nothing.
const UNLIMITED: &str = "1Gi";

/// The label of a content that the snapshotter of one node cares for. It takes no other.
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The longest value of a label.
const LABEL: usize = 63;

/// The objects, and what they are.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) objects: Vec<Map<String, Value>>,
    pub(super) volumes: usize,
    pub(super) claims: usize,
    pub(super) snapshots: usize,
    /// Those of claims.
    pub(super) namespaces: BTreeSet<ObjectName>,
    /// What is not as it was wanted.
    pub(super) remarks: Vec<String>,
}

/// One volume.
struct Row<'a> {
    volume: &'a Volume,
    handle: String,
    connection: &'a Connection,
    claim: Option<&'a Claim>,
}

/// A name that no object of this file has: `wanted`, or that of a handle.
fn free(taken: &mut BTreeSet<String>, wanted: &str, handle: &str) -> String {
    if ObjectName::parse(wanted).is_some() && taken.insert(wanted.to_owned()) {
        return wanted.to_owned();
    }
    let plain = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '-',
    };
    let plain: String = handle.chars().map(plain).take(200).collect();
    let plain = plain.trim_matches('-');
    let base = if plain.is_empty() { "volume" } else { plain };
    let mut name = base.to_owned();
    for number in 2_u64.. {
        if taken.insert(name.clone()) {
            break;
        }
        name = format!("{base}-{number}");
    }
    name
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Whether several nodes may write it at once.
fn is_shared(attachment: &Attachment) -> bool {
    match attachment {
        Attachment::Nfs(_)
        | Attachment::Smb(_)
        | Attachment::Lustre(_)
        | Attachment::Objectivefs(_)
        | Attachment::Oneclient(_) => true,
        Attachment::Hostpath(_)
        | Attachment::Iscsi(_)
        | Attachment::Nvmeof(_)
        | Attachment::ZfsLocal(_) => false,
    }
}

/// The objects of what was listed. `named` are claims by the handles of their volumes.
pub(super) fn write(
    flags: &ObjectFlags,
    snapshot_class: Option<&ObjectName>,
    named: &[(String, Claim)],
    listed: &[Listed],
) -> Written {
    let mut written = Written::default();
    let rows = rows(named, listed, &mut written.remarks);
    let (mut taken, mut contents) = (BTreeSet::new(), BTreeSet::new());
    let mut claims = BTreeMap::new();
    // A name that is recorded is not given to a volume without one, whichever is listed first.
    let mut recorded = Vec::new();
    for row in &rows {
        let own = row.volume.made_for.persistent_volume.as_ref();
        let own = own.filter(|own| taken.insert(own.as_str().to_owned()));
        recorded.push(own);
    }
    for (row, own) in rows.iter().zip(recorded) {
        let name = match own {
            Some(own) => own.as_str().to_owned(),
            None => free(&mut taken, row.volume.id.as_str(), &row.handle),
        };
        written.objects.push(row.persistent_volume(flags, &name));
        written.volumes += 1;
        if let Some(claim) = row.claim {
            written.objects.push(row.claim_of(flags, &name, claim));
            written.claims += 1;
            written.namespaces.insert(claim.namespace.clone());
            claims.insert(row.handle.as_str(), (row, claim));
        }
    }
    let Some(class) = snapshot_class else {
        return written;
    };
    let (mut left_out, mut of_groups) = (0_usize, 0_usize);
    for (one, snapshot) in listed.iter().flat_map(Listed::all_snapshots) {
        // Without its group it would never be ready.
        if snapshot.group.is_some() {
            of_groups += 1;
            continue;
        }
        let source = one.connection.volume_handle(&snapshot.source);
        let Some((row, claim)) = claims.get(source.as_str()).filter(|_| snapshot.ready) else {
            left_out += 1;
            continue;
        };
        let handle = one.connection.snapshot_handle(&snapshot.id);
        let both = snapshot_of(flags, class, row, &claim.namespace, &handle, &mut contents);
        written.objects.extend(both);
        written.snapshots += 1;
    }
    if left_out > 0 {
        let why = "their volume has no claim here, or they are not ready";
        written
            .remarks
            .push(format!("{left_out} snapshots are left out: {why}"));
    }
    if of_groups > 0 {
        let why = "write the objects of their groups by hand";
        written
            .remarks
            .push(format!("{of_groups} snapshots are left out: {why}"));
    }
    written
}

/// All volumes, each claim with one of them.
fn rows<'a>(
    named: &'a [(String, Claim)],
    listed: &'a [Listed],
    remarks: &mut Vec<String>,
) -> Vec<Row<'a>> {
    let named: BTreeMap<&str, &Claim> = named
        .iter()
        .map(|(handle, claim)| (handle.as_str(), claim))
        .collect();
    let row = |(one, volume): (&'a Listed, &'a Volume)| Row {
        handle: one.connection.volume_handle(&volume.id),
        connection: &one.connection,
        claim: None,
        volume,
    };
    let mut rows: Vec<Row<'_>> = listed
        .iter()
        .flat_map(Listed::all_volumes)
        .map(row)
        .collect();
    let mut of_claim: BTreeMap<&Claim, Vec<usize>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        if let Some(claim) = &row.volume.made_for.claim
            && !named.contains_key(row.handle.as_str())
            && !named.values().any(|named| *named == claim)
        {
            of_claim.entry(claim).or_default().push(at);
        }
    }
    for (claim, found) in of_claim {
        if let [at] = found[..] {
            rows[at].claim = Some(claim);
            continue;
        }
        let handles: Vec<_> = found
            .iter()
            .map(|at| printable(&rows[*at].handle))
            .collect();
        let handles = handles.join(", ");
        remarks.push(format!(
            "claim {claim}: {handles} were made for it; name the right one by --claim"
        ));
    }
    for (handle, claim) in named {
        if let Some(row) = rows.iter_mut().find(|row| row.handle == handle) {
            row.claim = Some(claim);
        } else {
            let handle = printable(handle);
            remarks.push(format!(
                "--claim: there is no volume `{handle}` for {claim}"
            ));
        }
    }
    rows
}

/// A snapshot in the namespace of the claim of its volume, and its content.
fn snapshot_of(
    flags: &ObjectFlags,
    class: &ObjectName,
    row: &Row<'_>,
    namespace: &ObjectName,
    handle: &str,
    taken: &mut BTreeSet<String>,
) -> [Map<String, Value>; 2] {
    let own = handle.rsplit(['@', '/', ':']).next().unwrap_or(handle);
    let name = free(taken, own, handle);
    let mut metadata = object(json!({"name": name}));
    if let Some(node) = row.node() {
        metadata.insert("labels".into(), json!({MANAGED_BY: node}));
    }
    let content = object(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": metadata,
        "spec": {
            "deletionPolicy": "Retain",
            "driver": flags.csi_name.as_str(),
            "source": {"snapshotHandle": handle},
            "sourceVolumeMode": row.volume_mode(flags),
            "volumeSnapshotClassName": class.as_str(),
            "volumeSnapshotRef": {"name": name, "namespace": namespace.as_str()},
        },
    }));
    let snapshot = object(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": namespace.as_str()},
        "spec": {
            "source": {"volumeSnapshotContentName": name},
            "volumeSnapshotClassName": class.as_str(),
        },
    }));
    [content, snapshot]
}

// === impl Row ===

impl Row<'_> {
    fn access_modes(&self) -> [&'static str; 1] {
        if is_shared(&self.volume.attachment) {
            ["ReadWriteMany"]
        } else {
            ["ReadWriteOnce"]
        }
    }

    /// The node that has it, for storage of a node.
    fn node(&self) -> Option<&str> {
        let [place] = &self.volume.topology[..] else {
            return None;
        };
        let node = place.segments().get(NODE_KEY)?;
        (node.len() <= LABEL).then_some(node.as_str())
    }

    fn volume_mode(&self, flags: &ObjectFlags) -> &'static str {
        if flags.block && self.volume.attachment.may_be_device() {
            "Block"
        } else {
            "Filesystem"
        }
    }

    fn size(&self) -> String {
        let size = self.volume.capacity;
        size.map_or_else(|| UNLIMITED.to_owned(), |size| size.to_string())
    }

    fn persistent_volume(&self, flags: &ObjectFlags, name: &str) -> Map<String, Value> {
        let mut csi = object(json!({
            "driver": flags.csi_name.as_str(),
            "volumeAttributes": self.connection.context(&self.volume.attachment),
            "volumeHandle": self.handle,
        }));
        if let Some(fs_type) = &flags.fs_type
            && self.volume.attachment.may_be_device()
        {
            csi.insert("fsType".into(), json!(fs_type.as_str()));
        }
        if let Some(secret) = &flags.node_secret {
            let reference = json!({
                "name": secret.name.as_str(), "namespace": secret.namespace.as_str(),
            });
            csi.insert("nodePublishSecretRef".into(), reference.clone());
            csi.insert("nodeStageSecretRef".into(), reference);
        }
        let mut spec = object(json!({
            "accessModes": self.access_modes(),
            "capacity": {"storage": self.size()},
            "csi": csi,
            "persistentVolumeReclaimPolicy": match flags.reclaim_policy {
                ReclaimPolicy::Retain => "Retain",
                ReclaimPolicy::Delete => "Delete",
            },
            "volumeMode": self.volume_mode(flags),
        }));
        // Without a claim it has no class either: else the next new claim of the class would get it, with what is in it.
        if let (Some(class), Some(_)) = (&flags.storage_class, self.claim) {
            spec.insert("storageClassName".into(), json!(class.as_str()));
        }
        if !flags.mount_option.is_empty() {
            spec.insert("mountOptions".into(), json!(flags.mount_option));
        }
        if let Some(claim) = self.claim {
            let reference = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "name": claim.name.as_str(), "namespace": claim.namespace.as_str(),
            });
            spec.insert("claimRef".into(), reference);
        }
        // Any of the places, each with all of its segments.
        let places = self.connection.accessibility();
        let terms: Vec<Value> = places
            .of_volume(&self.volume.topology)
            .iter()
            .map(|place| {
                let expressions = place
                    .segments()
                    .iter()
                    .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
                json!({"matchExpressions": expressions.collect::<Vec<_>>()})
            })
            .collect();
        if !terms.is_empty() {
            let required = json!({"required": {"nodeSelectorTerms": terms}});
            spec.insert("nodeAffinity".into(), required);
        }
        object(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "annotations": {"pv.kubernetes.io/provisioned-by": flags.csi_name.as_str()},
                "name": name,
            },
            "spec": spec,
        }))
    }

    fn claim_of(&self, flags: &ObjectFlags, volume: &str, claim: &Claim) -> Map<String, Value> {
        // An empty class keeps the default one away.
        let class = flags.storage_class.as_ref().map_or("", ObjectName::as_str);
        object(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim.name.as_str(), "namespace": claim.namespace.as_str()},
            "spec": {
                "accessModes": self.access_modes(),
                "resources": {"requests": {"storage": self.size()}},
                "storageClassName": class,
                "volumeMode": self.volume_mode(flags),
                "volumeName": volume,
            },
        }))
    }
}
