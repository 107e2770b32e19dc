//! Events of a pool in memory: verbs, other users, democratic-csi.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_types::NodeIdentity;
use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::{
    Call, CreateGroup, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, Error,
    ExpandVolume, Expander as _, GroupMembers, Groups as _, Kind, NodeId, Parameters,
    PublishVolume, Publisher as _, SizeRange, SnapshotId, SnapshotName, Snapshots as _, Source,
    TopologyRequirement, UnpublishVolume, VolumeId, VolumeName,
};
use driver_zfs::ZfsDriver;
use driver_zfs::id::GroupPlace;
use driver_zfs::name::{DatasetName, Object, SnapshotRef};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryExport, MemoryHost, Targets, settings};
use proptest::prelude::*;

pub(crate) type MemoryDriver = ZfsDriver;

/// An event of a pool.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Verb(Verb),
    /// democratic-csi created a volume, empty or as a clone of another one.
    Legacy(u8, Option<u8>),
    /// Another user takes a snapshot of a volume.
    Foreign(u8),
    /// A pod wrote to a volume.
    Write(u8),
    /// A helper snapshot of a volume that was never created, or is long gone.
    Stale(u8, u8),
    /// Another user holds a snapshot.
    Hold(u8, u8),
    /// Another user keeps files where detached snapshots of a volume would lie.
    Files(u8),
    /// Another user keeps files beside the volumes, and below one of them.
    Beside(u8),
    /// Another user clones a snapshot of the orchestrator.
    Elsewhere(u8, u8),
    /// democratic-csi created a detached snapshot, in a dataset without a mark.
    LegacyDetached(u8, u8),
    /// The host restarted, and lost unsaved state.
    Restart,
    /// The host lost all exports.
    Lost,
}

#[derive(Debug, Clone)]
pub(crate) enum Verb {
    Create {
        id: u8,
        source: From,
        copy: bool,
    },
    Delete(u8),
    Expand(u8, u8),
    Snapshot {
        id: u8,
        name: u8,
        detached: bool,
    },
    DeleteSnapshot {
        id: u8,
        name: u8,
        detached: bool,
    },
    /// A group of the volumes whose bits are set.
    Group {
        ids: u8,
        name: u8,
    },
    DeleteGroup {
        ids: u8,
        name: u8,
    },
    /// Node 0 shares a volume with others. Each other node asks for a volume of one node.
    Publish(u8, u8),
    /// From a node, or from all.
    Unpublish(u8, Option<u8>),
}

#[derive(Debug, Clone)]
pub(crate) enum From {
    Nothing,
    Volume(u8),
    Snapshot(u8, u8),
    Detached(u8, u8),
}

/// The ways of making a volume beside the first: new, as a clone, and as a copy.
pub(crate) const WAYS: [(From, bool); 3] = [
    (From::Nothing, false),
    (From::Volume(0), false),
    (From::Volume(0), true),
];

pub(crate) const SIZE: i64 = 64 << 20;
/// Few, so that they collide.
pub(crate) const IDS: std::ops::Range<u8> = 0..3;
pub(crate) const NAMES: std::ops::Range<u8> = 0..5;
const NODES: std::ops::Range<u8> = 0..3;

pub(crate) fn volume(id: u8) -> VolumeId {
    VolumeId::parse(&format!("v{id}")).unwrap()
}

pub(crate) fn dataset(id: u8) -> DatasetName {
    DatasetName::parse(&format!("tank/csi/v/v{id}")).unwrap()
}

pub(crate) fn node(of: u8) -> NodeId {
    NodeId::parse(&format!("node-{of}")).unwrap()
}

/// An attached snapshot.
pub(crate) fn attached(id: u8, name: u8) -> SnapshotRef {
    SnapshotRef::parse(&format!("{}@s{name}", dataset(id))).unwrap()
}

/// A detached snapshot.
pub(crate) fn detached(id: u8, name: u8) -> DatasetName {
    DatasetName::parse(&format!("tank/csi/s/v{id}/s{name}")).unwrap()
}

pub(crate) fn snapshot_id(id: u8, name: u8, detached: bool) -> SnapshotId {
    let mark = if detached { '/' } else { '@' };
    SnapshotId::parse(&format!("v{id}{mark}s{name}")).unwrap()
}

/// The volumes of a group.
pub(crate) fn volumes(ids: u8) -> Vec<VolumeId> {
    let all = IDS.filter(|id| ids & (1 << id) != 0);
    all.map(volume).collect()
}

/// A group, which need not exist.
pub(crate) fn group(ids: u8, name: u8) -> GroupPlace {
    let settings = settings(VolumeKind::Zvol, "").unwrap();
    let name = SnapshotName::parse(&format!("s{name}")).unwrap();
    let (volumes, room) = (volumes(ids), settings.id_room.bytes());
    settings.layout.new_group(&name, &volumes, room).unwrap()
}

/// The ids of its snapshots.
pub(crate) fn members(group: &GroupPlace) -> Vec<SnapshotId> {
    let places = group.members.iter().map(|(_, place)| place);
    places.map(|place| place.id().unwrap()).collect()
}

pub(crate) fn parameters(flags: &[(&str, bool)]) -> Parameters {
    let text = |(key, flag): &(&str, bool)| ((*key).to_owned(), flag.to_string());
    Parameters::new(flags.iter().map(text).collect())
}

pub(crate) fn capability(mode: AccessMode) -> VolumeCapability {
    VolumeCapability {
        access: Access::Mount(MountAccess::default()),
        mode,
    }
}

pub(crate) fn request(id: u8, source: &From, copy: bool) -> CreateVolume {
    let source = match source {
        From::Nothing => None,
        From::Volume(of) => Some(Source::Volume(volume(*of))),
        From::Snapshot(of, name) => Some(Source::Snapshot(snapshot_id(*of, *name, false))),
        From::Detached(of, name) => Some(Source::Snapshot(snapshot_id(*of, *name, true))),
    };
    CreateVolume {
        name: VolumeName::parse(volume(id).as_str()).unwrap(),
        id: volume(id),
        size: SizeRange::new(SIZE, 0).unwrap(),
        capabilities: vec![capability(AccessMode::SingleNodeWriter)],
        parameters: parameters(&[
            ("detachedVolumesFromVolumes", copy),
            ("detachedVolumesFromSnapshots", copy),
        ]),
        secrets: BTreeMap::new(),
        source,
        topology: TopologyRequirement::default(),
    }
}

pub(crate) async fn run(driver: &MemoryDriver, verb: &Verb) -> Result<(), Error> {
    run_within(&Call::within(Duration::from_mins(10)), driver, verb).await
}

/// The same within this call.
pub(crate) async fn run_within(
    call: &Call,
    driver: &MemoryDriver,
    verb: &Verb,
) -> Result<(), Error> {
    match verb {
        Verb::Create { id, source, copy } => {
            let request = request(*id, source, *copy);
            driver.create_volume(call, &request).await.map(drop)
        }
        Verb::Delete(id) => {
            driver
                .delete_volume(call, DeleteVolume::new(&volume(*id)))
                .await
        }
        Verb::Expand(id, factor) => {
            let size = SizeRange::new(SIZE * i64::from(*factor), 0).unwrap();
            driver
                .expand_volume(call, ExpandVolume::new(&volume(*id), size))
                .await
                .map(drop)
        }
        Verb::Snapshot { id, name, detached } => {
            let request = CreateSnapshot {
                name: SnapshotName::parse(&format!("s{name}")).unwrap(),
                source: volume(*id),
                parameters: parameters(&[("detachedSnapshots", *detached)]),
                secrets: BTreeMap::new(),
            };
            driver.create_snapshot(call, &request).await.map(drop)
        }
        Verb::DeleteSnapshot { id, name, detached } => {
            let id = snapshot_id(*id, *name, *detached);
            driver.delete_snapshot(call, DeleteSnapshot::new(&id)).await
        }
        Verb::Group { ids, name } => {
            let (name, volumes) = (format!("s{name}"), volumes(*ids));
            let name = SnapshotName::parse(&name).unwrap();
            let parameters = Parameters::default();
            let request = CreateGroup::new(&name, &volumes, &parameters);
            driver.create_group(call, request).await.map(drop)
        }
        Verb::DeleteGroup { ids, name } => {
            let group = group(*ids, *name);
            let members = members(&group);
            let request = GroupMembers::new(&group.id, &members);
            driver.delete_group(call, request).await
        }
        Verb::Publish(id, of) => {
            let capability = match of {
                0 => capability(AccessMode::MultiNodeMultiWriter),
                _ => capability(AccessMode::SingleNodeWriter),
            };
            let (id, node) = (volume(*id), NodeIdentity::of(node(*of)));
            let request = PublishVolume::new(&id, &node, &capability, false);
            driver.publish_volume(call, request).await.map(drop)
        }
        Verb::Unpublish(id, of) => {
            let node = of.map(node).map(NodeIdentity::of);
            driver
                .unpublish_volume(call, UnpublishVolume::new(&volume(*id), node.as_ref()))
                .await
        }
    }
}

pub(crate) fn set(name: PropertyName, value: &str) -> Property {
    Property::new(name, PropertyValue::parse(value).unwrap())
}

/// A volume as democratic-csi leaves it: its helper is not marked for destruction, and no
/// `export_name` is recorded.
pub(crate) fn legacy(state: &mut HostState, kind: VolumeKind, id: u8, of: Option<u8>) {
    let name = dataset(id);
    let object = Object::from(name.clone());
    if state.pool.guid(&object).is_some() {
        return;
    }
    let context = match kind {
        VolumeKind::Filesystem => {
            format!(r#"{{"node_attach_driver":"nfs","server":"192.0.2.1","share":"/{name}"}}"#)
        }
        VolumeKind::Zvol => format!(
            r#"{{"node_attach_driver":"iscsi","portal":"192.0.2.1:3260","portals":"","interface":"","iqn":"iqn.2026-01.example:v{id}","lun":0}}"#
        ),
    };
    let mut properties = vec![
        set(PropertyName::MANAGED, "true"),
        set(PropertyName::VOLUME_NAME, &format!("v{id}")),
        set(PropertyName::PROVISIONER, "zfs-in-memory"),
        set(PropertyName::CONTEXT, &context),
        set(PropertyName::SUCCESS, "true"),
    ];
    if kind == VolumeKind::Zvol {
        properties.push(set(PropertyName::VOLSIZE, &SIZE.to_string()));
    }
    let Some(of) = of.filter(|of| state.pool.guid(&dataset(*of).into()).is_some()) else {
        state.pool.insert(&name, kind, &properties, None);
        return;
    };
    properties.push(set(PropertyName::SOURCE_KIND, "volume"));
    properties.push(set(PropertyName::SOURCE_ID, volume(of).as_str()));
    let helper = format!("{}@volume-source-for-volume-v{id}", dataset(of));
    let origin = SnapshotRef::parse(&helper).unwrap();
    if state.pool.guid(&origin.clone().into()).is_none() {
        state.pool.insert_snapshot(&origin, &[]);
        let clone = Step::Clone {
            origin,
            dataset: name,
            properties,
        };
        state.pool.apply(&clone).unwrap();
    }
}

/// Creates a filesystem with files in it, as a user without knowledge of this driver would.
fn foreign(state: &mut HostState, name: &DatasetName) {
    if is_there(state, name) {
        return;
    }
    let parent = name.parent().filter(|parent| !is_there(state, parent));
    for name in parent.iter().chain([name]) {
        state.pool.insert(name, VolumeKind::Filesystem, &[], None);
    }
    state.pool.write(name);
}

fn is_there(state: &HostState, name: &DatasetName) -> bool {
    state.pool.guid(&name.clone().into()).is_some()
}

/// A detached snapshot as democratic-csi leaves it.
pub(crate) fn legacy_detached(state: &mut HostState, kind: VolumeKind, id: u8, name: u8) {
    let snapshot = detached(id, name);
    let container = snapshot.parent().unwrap();
    if is_there(state, &snapshot) || !is_there(state, &dataset(id)) {
        return;
    }
    for name in [container.parent().unwrap(), container] {
        if !is_there(state, &name) {
            state.pool.insert(&name, VolumeKind::Filesystem, &[], None);
        }
    }
    let mut properties = vec![
        set(PropertyName::MANAGED, "true"),
        set(PropertyName::SNAPSHOT_NAME, &format!("s{name}")),
        set(PropertyName::SNAPSHOT_SOURCE, volume(id).as_str()),
        set(PropertyName::SUCCESS, "true"),
    ];
    if kind == VolumeKind::Zvol {
        properties.push(set(PropertyName::VOLSIZE, &SIZE.to_string()));
    }
    state.pool.insert(&snapshot, kind, &properties, None);
}

pub(crate) async fn happen(driver: &MemoryDriver, kind: VolumeKind, event: &Event) {
    match event {
        Event::Verb(verb) => drop(run(driver, verb).await),
        Event::Legacy(id, of) => legacy(&mut driver.backend().state(), kind, *id, *of),
        Event::Foreign(id) => {
            let name = SnapshotRef::parse(&format!("{}@auto", dataset(*id))).unwrap();
            driver.backend().state().pool.insert_snapshot(&name, &[]);
        }
        Event::Write(id) => driver.backend().state().pool.write(&dataset(*id)),
        Event::Stale(of, id) => {
            let helper = format!("{}@volume-source-for-volume-v{id}", dataset(*of));
            let name = SnapshotRef::parse(&helper).unwrap();
            let mut state = driver.backend().state();
            if state.pool.guid(&name.clone().into()).is_none() {
                state.pool.insert_snapshot(&name, &[]);
            }
        }
        Event::Hold(id, name) => {
            let name = SnapshotRef::parse(&format!("{}@s{name}", dataset(*id))).unwrap();
            driver.backend().state().pool.hold(&name);
        }
        Event::Files(id) => {
            let mut state = driver.backend().state();
            let container = detached(*id, 0).parent().unwrap();
            foreign(&mut state, &container);
        }
        Event::Beside(id) => {
            let mut state = driver.backend().state();
            let below = dataset(*id).child("theirs").unwrap();
            if state.pool.guid(&dataset(*id).into()).is_some() {
                foreign(&mut state, &below);
            }
            let beside = dataset(*id).parent().unwrap().child("theirs").unwrap();
            foreign(&mut state, &beside);
        }
        Event::Elsewhere(id, name) => {
            let mut state = driver.backend().state();
            let clone = Step::Clone {
                origin: attached(*id, *name),
                dataset: DatasetName::parse("tank/elsewhere").unwrap(),
                properties: Vec::new(),
            };
            drop(state.pool.apply(&clone));
        }
        Event::LegacyDetached(id, name) => {
            legacy_detached(&mut driver.backend().state(), kind, *id, *name);
        }
        Event::Restart => driver.backend().state().targets.restart(),
        Event::Lost => driver.backend().state().targets = Targets::default(),
    }
}

/// Whether access is per node. Each of these with and without the other one, except for one pair.
pub(crate) fn has_nodes(kind: VolumeKind, coy: bool) -> bool {
    !coy || kind == VolumeKind::Zvol
}

pub(crate) fn driver(kind: VolumeKind, coy: bool, state: HostState) -> MemoryDriver {
    let mut export = MemoryExport::new(kind);
    (export.coy, export.nodes) = (coy, has_nodes(kind, coy));
    let zfs = "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0770'\n";
    ZfsDriver::new(
        settings(kind, zfs).unwrap(),
        MemoryHost::from_state(state),
        export,
    )
}

/// All objects, without what differs between runs: the identities in names of renamed snapshots.
pub(crate) fn shape(state: &HostState) -> (Vec<(String, String)>, String) {
    // They are also in the origins of clones.
    let without_guid = |text: String| {
        let mut parts = text.split("volume-source-for-");
        let start = parts.next().unwrap_or_default().to_owned();
        parts.fold(start, |text, part| {
            let part = part.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{text}volume-source-for-{part}")
        })
    };
    let shape = state.pool.shape().into_iter();
    let mut objects: Vec<_> = shape
        .map(|(name, shape)| (without_guid(name), without_guid(shape)))
        .collect();
    objects.sort();
    (objects, format!("{:?}", state.targets))
}

pub(crate) fn outcome(result: &Result<(), Error>) -> Option<Kind> {
    result.as_ref().err().map(Error::kind)
}

/// The volumes of a group, which are often the same.
fn ids() -> impl Strategy<Value = u8> + Clone {
    prop_oneof![Just(3_u8), 1..8_u8]
}

pub(crate) fn verb() -> impl Strategy<Value = Verb> {
    let (id, name) = (IDS, NAMES);
    let from = prop_oneof![
        3 => Just(From::Nothing),
        3 => id.clone().prop_map(From::Volume),
        2 => (id.clone(), name.clone()).prop_map(|(of, name)| From::Snapshot(of, name)),
        2 => (id.clone(), name.clone()).prop_map(|(of, name)| From::Detached(of, name)),
    ];
    prop_oneof![
        4 => (id.clone(), from, any::<bool>())
            .prop_map(|(id, source, copy)| Verb::Create { id, source, copy }),
        3 => id.clone().prop_map(Verb::Delete),
        1 => (id.clone(), 1..4_u8).prop_map(|(id, factor)| Verb::Expand(id, factor)),
        3 => (id.clone(), name.clone(), any::<bool>())
            .prop_map(|(id, name, detached)| Verb::Snapshot { id, name, detached }),
        2 => (id.clone(), name.clone(), any::<bool>())
            .prop_map(|(id, name, detached)| Verb::DeleteSnapshot { id, name, detached }),
        2 => (ids(), name.clone()).prop_map(|(ids, name)| Verb::Group { ids, name }),
        2 => (ids(), name.clone()).prop_map(|(ids, name)| Verb::DeleteGroup { ids, name }),
        2 => (id.clone(), NODES).prop_map(|(id, node)| Verb::Publish(id, node)),
        1 => (id, prop::option::of(NODES)).prop_map(|(id, node)| Verb::Unpublish(id, node)),
    ]
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => verb().prop_map(Event::Verb),
        2 => (IDS, prop::option::of(IDS)).prop_map(|(id, of)| Event::Legacy(id, of)),
        1 => IDS.prop_map(Event::Foreign),
        2 => IDS.prop_map(Event::Write),
        1 => (IDS, IDS).prop_map(|(of, id)| Event::Stale(of, id)),
        1 => (IDS, NAMES).prop_map(|(id, name)| Event::Hold(id, name)),
        1 => IDS.prop_map(Event::Files),
        1 => IDS.prop_map(Event::Beside),
        1 => (IDS, NAMES).prop_map(|(id, name)| Event::Elsewhere(id, name)),
        1 => (IDS, NAMES).prop_map(|(id, name)| Event::LegacyDetached(id, name)),
        1 => Just(Event::Restart),
        1 => Just(Event::Lost),
    ]
}

/// In an empty pool most verbs have nothing to do.
pub(crate) fn beginning() -> [Event; 5] {
    let create = |id| Verb::Create {
        id,
        source: From::Nothing,
        copy: false,
    };
    let snapshot = |name, detached| Verb::Snapshot {
        id: 0,
        name,
        detached,
    };
    let group = Verb::Group { ids: 3, name: 4 };
    [
        create(0),
        create(1),
        snapshot(0, false),
        snapshot(1, true),
        group,
    ]
    .map(Event::Verb)
}

/// A host of disks, with access per node or without.
pub(crate) fn with_nodes(nodes: bool, state: HostState) -> MemoryDriver {
    let mut export = MemoryExport::new(VolumeKind::Zvol);
    export.nodes = nodes;
    let settings = settings(VolumeKind::Zvol, "").unwrap();
    ZfsDriver::new(settings, MemoryHost::from_state(state), export)
}
