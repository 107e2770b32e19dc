//! All calls except the creation of volumes.

use driver_core::contract::fake::Verb;
use tonic::Code;

use super::store::Act;
use super::work::ended;
use super::{Expected, List, Object, Reference, Served, code, makes, meant};
use crate::csi::controller::model::requests::Answer;
use crate::csi::controller::model::steps::{BareIs, Call, HAND, Handle};

/// The largest number on the wire.
const ENDLESS: u64 = 0x7fff_ffff_ffff_ffff;

impl Reference {
    pub(super) fn call(&mut self, call: &Call) -> Expected {
        match call {
            Call::Create(volume, ask) => self.create(*volume, ask),
            Call::Delete(handle) => {
                let act = Act::Delete(handle.id.clone());
                self.one(handle, true, act, |_| String::new())
            }
            Call::Expand(handle, size) => {
                let act = Act::Expand(handle.id.clone(), *size);
                self.one(handle, true, act, |size| size.to_string())
            }
            Call::Publish(handle, _, by_hand) if *by_hand && handle.at.is_none() => {
                Expected::done("")
            }
            Call::Publish(handle, node, _) => {
                let act = Act::Publish(handle.id.clone(), node);
                self.one(handle, false, act, |_| String::new())
            }
            Call::Unpublish(handle, _) if self.is_stray(handle) => match self.setup.bare {
                BareIs::Nobodys => Expected::done(""),
                _ => Expected::failed(&[Code::FailedPrecondition]),
            },
            Call::Unpublish(handle, node) => {
                let act = Act::Unpublish(handle.id.clone(), *node);
                self.one(handle, false, act, |_| String::new())
            }
            Call::Snapshot(name, source) => self.snapshot(name, source),
            Call::DeleteSnapshot(handle) => self.delete_snapshot(handle),
            Call::Get(handle) => self.about(handle, Verb::GetVolume, |store, wanted| {
                let (size, _) = store.volumes.get(&wanted.id)?;
                Some(format!("{} {size}", wanted.volume()))
            }),
            Call::Validate(handle) => self.about(handle, Verb::FindVolume, |store, wanted| {
                store
                    .volumes
                    .contains_key(&wanted.id)
                    .then(|| "true".to_owned())
            }),
            Call::GetSnapshot(handle) => {
                let home = self.home(handle, false);
                self.about(handle, Verb::GetSnapshot, |store, wanted| {
                    let found = store.all_snapshots().find(|(id, _)| *id == wanted.id);
                    let (_, of) = found?;
                    let at = home.unwrap_or_default();
                    Some(format!("{} of v:{at}/{of}", wanted.snapshot()))
                })
            }
            Call::List(_) => self.list(Verb::ListVolumes, |store, name| {
                let all = store.volumes.iter();
                all.map(|(id, (size, _))| format!("v:{name}/{id} {size}"))
                    .collect()
            }),
            Call::ListSnapshots(_) => self.list(Verb::ListSnapshots, |store, name| {
                let all = store.all_snapshots();
                all.map(|(id, of)| format!("s:{name}/{id} of v:{name}/{of}"))
                    .collect()
            }),
            Call::ListSnapshotsOf(handle) => self.snapshots_of(handle),
            Call::Room(class) => self.room(*class),
        }
    }

    /// A call that changes one volume.
    fn one(
        &mut self,
        handle: &Handle,
        strict: bool,
        act: Act,
        answer: impl Fn(u64) -> String,
    ) -> Expected {
        let home = match self.home(handle, strict) {
            Ok(home) => home,
            Err(code) => return Expected::failed(&[code]),
        };
        if !makes(home) {
            // Every node may reach a volume made by hand.
            return match act {
                Act::Publish(..) | Act::Unpublish(..) => Expected::done(""),
                _ => Expected::failed(&[Code::InvalidArgument]),
            };
        }
        let at = self.storage(home);
        let object = Object::Volume(at, handle.id.clone());
        let alone = std::slice::from_ref(&object);
        if self.is_locked(alone, &[]) {
            return Expected::failed(&[Code::Aborted]);
        }
        let result = self.change(at, act, (alone, &[])).map(answer);
        Expected::OneOf(vec![ended(false, result)])
    }

    fn snapshot(&mut self, name: &'static str, source: &Handle) -> Expected {
        let home = match self.home(source, false) {
            Ok(home) if makes(home) => home,
            Ok(_) => return Expected::failed(&[Code::InvalidArgument]),
            // Its driver is not built: an earlier call may have taken the snapshot.
            Err(Code::Internal) => return Expected::failed(&[Code::Unavailable]),
            Err(code) => return Expected::failed(&[code]),
        };
        let at = self.storage(home);
        let object = Object::SnapshotName(at, name);
        let alone = std::slice::from_ref(&object);
        let shared = [Object::Volume(at, source.id.clone())];
        if self.is_locked(alone, &shared) {
            return Expected::failed(&[Code::Aborted]);
        }
        let act = Act::Snapshot(name, source.id.clone());
        let result = self.change(at, act, (alone, &shared));
        let answer_of = |_| format!("s:{home}/{}@{name} of {}", source.id, source.volume());
        let answer = ended(true, result.map(answer_of));
        Expected::OneOf(vec![answer])
    }

    fn delete_snapshot(&mut self, handle: &Handle) -> Expected {
        let home = match self.home(handle, true) {
            Ok(home) if makes(home) => home,
            Ok(_) => return Expected::failed(&[Code::InvalidArgument]),
            Err(code) => return Expected::failed(&[code]),
        };
        let at = self.storage(home);
        let object = Object::Snapshot(at, handle.id.clone());
        let alone = std::slice::from_ref(&object);
        if self.is_locked(alone, &[]) {
            return Expected::failed(&[Code::Aborted]);
        }
        let act = Act::DeleteSnapshot(handle.id.clone());
        let result = self.change(at, act, (alone, &[]));
        let answer = result.map(|_| String::new());
        Expected::OneOf(vec![ended(false, answer)])
    }

    /// A query for one object.
    fn about(
        &mut self,
        handle: &Handle,
        verb: Verb,
        answer: impl Fn(&super::Store, &Handle) -> Option<String>,
    ) -> Expected {
        let home = match self.home(handle, false) {
            Ok(home) if makes(home) => home,
            Ok(_) => return Expected::failed(&[Code::InvalidArgument]),
            Err(code) => return Expected::failed(&[code]),
        };
        let at = self.storage(home);
        if let Err(kind) = self.look(at, verb, false) {
            return Expected::failed(&[code(kind, false)]);
        }
        match answer(&self.stores[at], handle) {
            Some(text) => Expected::done(text),
            None => Expected::failed(&[Code::NotFound]),
        }
    }

    fn list(&mut self, verb: Verb, of: impl Fn(&super::Store, &str) -> Vec<String>) -> Expected {
        let mut list = List {
            broken: self.unread,
            ..List::default()
        };
        for (name, served) in &self.served {
            match served {
                Served::Well(_) if self.unbuilt.contains(name) => list.broken = true,
                Served::Well(_) if !makes(name) => {}
                Served::Well(_) => {
                    let at = self.storage(name);
                    let fails =
                        matches!(self.armed, Some((armed, of, _)) if (armed, of) == (at, verb));
                    let entries = of(&self.stores[at], name);
                    if self.stores[at].down {
                        list.broken = true;
                    } else if fails {
                        list.fails = true;
                        list.may.extend(entries);
                    } else {
                        list.must.extend(entries);
                    }
                }
                Served::Refused | Served::BeingRead => list.broken = true,
            }
        }
        Expected::Listed(list)
    }

    fn snapshots_of(&mut self, handle: &Handle) -> Expected {
        let nothing = |code| Expected::OneOf(vec![Answer::Listed(Vec::new(), code)]);
        if self.is_stray(handle) {
            return nothing(None);
        }
        let home = match self.home(handle, false) {
            Ok(home) if makes(home) => home,
            Ok(_) => return nothing(Some(Code::InvalidArgument)),
            Err(code) => return nothing(Some(code)),
        };
        let at = self.storage(home);
        if let Err(kind) = self.look(at, Verb::ListSnapshots, true) {
            return nothing(Some(code(kind, false)));
        }
        let all = self.stores[at].all_snapshots();
        let of_it = all.filter(|(_, of)| **of == handle.id);
        let snapshots = of_it.map(|(id, _)| format!("s:{home}/{id} of {}", handle.volume()));
        let mut snapshots: Vec<_> = snapshots.collect();
        snapshots.sort_unstable();
        Expected::OneOf(vec![Answer::Listed(snapshots, None)])
    }

    /// The largest capacity of the connections that answer and accept new volumes.
    fn room(&mut self, class: Option<&'static [&'static str]>) -> Expected {
        let (mut names, mut codes) = (Vec::new(), Vec::new());
        if let Some(class) = class {
            for name in class.iter().map(|name| meant(name)) {
                if self.served.contains_key(name) {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                } else if self.unread {
                    codes.push(Code::FailedPrecondition);
                } else {
                    codes.push(Code::InvalidArgument);
                }
            }
            if !codes.is_empty() {
                return Expected::failed(&codes);
            }
        } else {
            let well = |name: &&'static str| matches!(self.served[name], Served::Well(_));
            names = self.served.keys().copied().filter(well).collect();
        }
        let several = names.len() > 1;
        let mut largest = None;
        for name in &names {
            let room = match self.served[name] {
                Served::Well(_) if self.unbuilt.contains(name) => Err(Code::Internal),
                Served::Well(content) if content.closed || (several && *name == HAND) => Ok(0),
                Served::Well(_) if *name == HAND => Ok(ENDLESS),
                Served::Well(_) => {
                    let at = self.storage(name);
                    let looked = self.look(at, Verb::Capacity, true);
                    let capacity = looked.map(|()| self.stores[at].room);
                    capacity.map_err(|kind| code(kind, false))
                }
                Served::Refused => Err(Code::FailedPrecondition),
                Served::BeingRead => Err(Code::Aborted),
            };
            match room {
                Ok(room) => largest = largest.max(Some(room)),
                Err(code) => codes.push(code),
            }
        }
        match largest {
            None if !codes.is_empty() => Expected::failed(&codes),
            largest => Expected::done(largest.unwrap_or_default().to_string()),
        }
    }
}
