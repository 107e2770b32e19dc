//! Objects that a verb must never remove or change, even if it is interrupted.
//!
//! Everything that existed before exists afterwards, with its name, identity, content and own
//! properties, except the object of the verb and orphans. The origin of a clone may change, because
//! clones are promoted. What is exported stays exported, and saved.

use driver_zfs::name::{Object, SnapshotRef};
use driver_zfs::property::PropertyName;
use driver_zfs::testing::{HostState, Thing};

use crate::world::*;

/// The part of an object that must be unchanged.
#[derive(Debug, PartialEq, Eq)]
enum Stays {
    /// All of it.
    As,
    /// It may have other properties.
    Itself,
    /// Nothing: it may be gone.
    Not,
}

fn has(thing: &Thing, name: &PropertyName) -> bool {
    thing.own.contains_key(name)
}

/// Whether a snapshot only came with the copy of its volume.
fn came_with_copy(begin: &HostState, snapshot: &SnapshotRef, thing: &Thing) -> bool {
    let volume = begin.pool.things();
    let volume = volume.get(&Object::from(snapshot.dataset.clone()));
    let source = volume.and_then(|volume| volume.own.get(&PropertyName::SOURCE_ID));
    let leaf = format!("@{}", snapshot.leaf);
    !has(thing, &PropertyName::SNAPSHOT_NAME) && source.is_some_and(|id| id.ends_with(&leaf))
}

fn of_snapshot(begin: &HostState, verb: &Verb, name: &SnapshotRef, thing: &Thing) -> Stays {
    let helper = name.leaf.as_str().starts_with("volume-source-for-");
    if thing.doomed || (helper && !has(thing, &PropertyName::SNAPSHOT_NAME)) {
        return Stays::Not;
    }
    let keeps = |(other, thing): (&Object, &Thing)| match other {
        Object::Snapshot(other) => {
            other.dataset == name.dataset
                && !thing.doomed
                && (thing.held || has(thing, &PropertyName::SNAPSHOT_NAME))
        }
        Object::Dataset(other) => other.parent().as_ref() == Some(&name.dataset),
    };
    match verb {
        // It is destroyed with its volume, unless it has clones or holds.
        Verb::Delete(id)
            if name.dataset == dataset(*id) && !begin.pool.things().iter().any(keeps) =>
        {
            Stays::Not
        }
        Verb::Delete(id) | Verb::Create { id, .. }
            if name.dataset == dataset(*id) && came_with_copy(begin, name, thing) =>
        {
            Stays::Not
        }
        Verb::DeleteSnapshot {
            id,
            name: leaf,
            detached: false,
        } if *name == attached(*id, *leaf)
            && has(thing, &PropertyName::SNAPSHOT_NAME)
            && !has(thing, &PropertyName::GROUP) =>
        {
            Stays::Not
        }
        Verb::DeleteGroup { ids, name: leaf } => {
            let group = group(*ids, *leaf);
            let of_it = thing.own.get(&PropertyName::GROUP).map(String::as_str);
            if of_it == Some(group.id.as_str()) {
                Stays::Not
            } else {
                Stays::As
            }
        }
        Verb::Snapshot {
            id,
            name: leaf,
            detached: false,
        } if *name == attached(*id, *leaf) => Stays::Itself,
        _ => Stays::As,
    }
}

fn of_dataset(begin: &HostState, verb: &Verb, text: &str, thing: &Thing) -> Stays {
    let ours = [
        PropertyName::MANAGED,
        PropertyName::VOLUME_NAME,
        PropertyName::CONTEXT,
        PropertyName::SNAPSHOT_NAME,
    ];
    let ours = ours.iter().any(|name| has(thing, name));
    match verb {
        Verb::Delete(id) if ours && text == dataset(*id).as_str() => Stays::Not,
        Verb::Create { id, .. }
        | Verb::Expand(id, _)
        | Verb::Publish(id, _)
        | Verb::Unpublish(id, _)
            if text == dataset(*id).as_str() =>
        {
            Stays::Itself
        }
        Verb::Snapshot {
            id,
            name,
            detached: true,
        } if text == detached(*id, *name).as_str() => Stays::Itself,
        Verb::DeleteSnapshot {
            id,
            name,
            detached: true,
        } => {
            let snapshot = detached(*id, *name);
            let container = snapshot.parent().unwrap();
            if text == snapshot.as_str() && ours {
                return Stays::Not;
            }
            if text != container.as_str() {
                return Stays::As;
            }
            // A container of snapshots without files.
            let files = begin.pool.used(&container) > Some(1 << 20);
            // democratic-csi sets no mark; its snapshot identifies the container.
            let of_snapshot = begin
                .pool
                .things()
                .contains_key(&Object::from(snapshot.clone()));
            if (has(thing, &PropertyName::CONTAINER) || of_snapshot) && !files {
                Stays::Not
            } else {
                Stays::As
            }
        }
        _ => Stays::As,
    }
}

/// Fails if the verb, or the done part of it, has removed an unrelated object.
pub(crate) fn assert_kept(begin: &HostState, now: &HostState, verb: &Verb) {
    let after = now.pool.things();
    for (object, thing) in begin.pool.things() {
        let stays = match &object {
            Object::Snapshot(name) => of_snapshot(begin, verb, name, &thing),
            Object::Dataset(name) => of_dataset(begin, verb, name.as_str(), &thing),
        };
        let there = after.get(&object);
        let identity = |thing: &Thing| (thing.guid, thing.content, thing.doomed);
        let kept = match stays {
            Stays::As => there == Some(&thing),
            Stays::Itself => there.map(identity) == Some(identity(&thing)),
            // The existing one is the same, or one that was created after it.
            Stays::Not => true,
        };
        assert!(kept, "{verb:?}: {object} was {thing:?} and is {there:?}");
    }
    let own = match verb {
        Verb::Create { id, .. } | Verb::Delete(id) => Some(format!("v{id}")),
        _ => None,
    };
    assert_exported(begin, now, own.as_deref(), &format!("{verb:?}"));
    let accessed = match verb {
        Verb::Publish(id, _) | Verb::Unpublish(id, _) => Some(format!("v{id}")),
        _ => own,
    };
    for (name, nodes) in &begin.targets.inside {
        if accessed.as_ref() != Some(name) {
            assert_eq!(
                now.targets.inside.get(name),
                Some(nodes),
                "{verb:?}: {name}"
            );
        }
    }
}

/// Fails if an object is no longer exported, or the export not saved. `but` may be gone.
pub(crate) fn assert_exported(begin: &HostState, now: &HostState, but: Option<&str>, what: &str) {
    let (before, after) = (&begin.targets, &now.targets);
    for (name, of) in &before.targets {
        if but == Some(name.as_str()) {
            continue;
        }
        assert_eq!(after.targets.get(name), Some(of), "{what}: target {name}");
        let saved = !before.saved.contains(name) || after.saved.contains(name);
        assert!(saved, "{what}: target {name} is not saved any more");
    }
}
