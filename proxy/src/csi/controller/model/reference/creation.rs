//! Making volumes: which connection makes one, and what is said if none does.

use driver_core::Kind;
use driver_core::contract::fake::Verb;
use tonic::Code;

use super::expected::is_judged_anew;
use super::store::{Act, Elsewhere, Source};
use super::work::ended;
use super::{Expected, Failure, Object, Reference, Served, code, makes, meant};
use crate::csi::controller::model::steps::{Ask, Content, Origin, VOLUMES};
use crate::csi::controller::model::storage::FORMS;

/// One connection that may make the volume.
#[derive(Debug)]
struct Candidate {
    name: &'static str,
    content: Content,
    at: usize,
    object: Object,
    /// Why it cannot create it now, in any order.
    refusals: Vec<Code>,
    /// The source of the volume.
    source: Option<Source>,
}

/// The answer of a storage about a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Partial,
    Whole,
}

impl Reference {
    pub(super) fn create(&mut self, volume: usize, ask: &Ask) -> Expected {
        let id = VOLUMES[volume];
        let names = match self.of_class(self.setup.claims[volume].class) {
            Ok(names) => names,
            Err(codes) => return Expected::failed(&codes),
        };
        let all: Vec<_> = names
            .into_iter()
            .filter(|(name, _)| makes(name))
            .map(|(name, content)| self.candidate(name, content, volume, ask))
            .collect();
        if all.is_empty() {
            return Expected::failed(&[Code::InvalidArgument]);
        }
        let (alone, shared) = held(&all);
        if self.is_locked(&alone, &shared) {
            return Expected::failed(&[Code::Aborted]);
        }
        if all.iter().all(|one| !one.refusals.is_empty()) {
            return self.refused_by_all(id, &all);
        }
        let keys = (&*alone, &*shared);
        if let [only] = &*all
            && !only.content.closed
        {
            return self.make(id, &[(only, 0)], ask, keys);
        }
        let (mut owners, mut partial, mut others) = (vec![], vec![], vec![]);
        let (mut silent, mut unheard) = (vec![], vec![]);
        for one in &all {
            match self.find(one.at, id) {
                Ok(Found::Whole) => owners.push(one),
                Ok(Found::Partial) => partial.push(one),
                Ok(Found::Nothing) => others.push(one),
                // It is not to be waited for.
                Err(kind @ (Kind::Timeout | Kind::Unreachable)) if one.content.closed => {
                    unheard.push(code(kind, true));
                }
                Err(kind) => silent.push(code(kind, true)),
            }
        }
        if !owners.is_empty() {
            return self.owned(id, &owners, ask, keys);
        }
        if !silent.is_empty() {
            return Expected::failed(&silent);
        }
        let many = partial.len();
        let may_finish = !partial.is_empty();
        let (able, unable): (Vec<_>, Vec<_>) = if may_finish {
            partial.into_iter().partition(|one| one.refusals.is_empty())
        } else {
            others
                .into_iter()
                .partition(|one| one.refusals.is_empty() && !one.content.closed)
        };
        if able.is_empty() {
            let codes = unable.iter().flat_map(|one| one.refusals.clone());
            if may_finish {
                let codes: Vec<_> = codes.collect();
                return refused(&codes, Some(Found::Partial));
            }
            if !unheard.is_empty() {
                return Expected::failed(&unheard);
            }
            let closed = unable.iter().filter(|one| one.content.closed);
            let closed = closed.map(|_| Code::FailedPrecondition);
            let codes: Vec<_> = codes.chain(closed).collect();
            return refused(&codes, None);
        }
        if !unheard.is_empty() && !may_finish {
            self.excused.insert(id.to_owned());
        }
        let ordered = self.in_order(able, ask);
        let order: Vec<_> = ordered.into_iter().map(|one| (one, many)).collect();
        self.make(id, &order, ask, keys)
    }

    /// The answer about a volume that is there already.
    fn owned(
        &mut self,
        id: &str,
        owners: &[&Candidate],
        ask: &Ask,
        keys: (&[Object], &[Object]),
    ) -> Expected {
        let first = owners[0];
        if owners.iter().any(|other| other.at != first.at) {
            return Expected::failed(&[Code::Unavailable]);
        }
        let able = owners.iter().find(|one| one.refusals.is_empty());
        match able {
            Some(owner) => self.make(id, &[(*owner, 0)], ask, keys),
            None => refused(&first.refusals, Some(Found::Whole)),
        }
    }

    /// The connections that a class names, or what is said of one that cannot be asked.
    fn of_class(&self, class: &[&'static str]) -> Result<Vec<(&'static str, Content)>, Vec<Code>> {
        let (mut found, mut codes, mut missing) = (Vec::new(), Vec::new(), false);
        for name in class.iter().map(|name| meant(name)) {
            match self.served.get(name) {
                Some(Served::Well(_)) if self.unbuilt.contains(name) => {
                    codes.push(Code::Unavailable);
                }
                Some(Served::Well(content)) => {
                    if !found.iter().any(|(known, _)| *known == name) {
                        found.push((name, *content));
                    }
                }
                Some(Served::BeingRead) => codes.push(Code::Aborted),
                Some(Served::Refused) => codes.push(Code::Unavailable),
                None if self.unread => codes.push(Code::Unavailable),
                None => missing = true,
            }
        }
        // It may have started the volume.
        if missing && !(found.is_empty() && codes.is_empty()) {
            codes.push(Code::Unavailable);
        }
        if !codes.is_empty() {
            return Err(codes);
        }
        if found.is_empty() {
            return Err(vec![Code::InvalidArgument]);
        }
        Ok(found)
    }

    fn candidate(
        &self,
        name: &'static str,
        content: Content,
        volume: usize,
        ask: &Ask,
    ) -> Candidate {
        let at = self.storage(name);
        let mut refusals = Vec::new();
        if ask.block {
            refusals.push(Code::InvalidArgument);
        }
        if !ask.zones.is_empty() && content.zone.is_some_and(|zone| !ask.zones.contains(&zone)) {
            refusals.push(Code::ResourceExhausted);
        }
        let source = match &self.setup.claims[volume].source {
            Some(from) => self
                .filling(from, name, at, volume)
                .map_err(|code| refusals.push(code)),
            None => Err(()),
        };
        Candidate {
            name,
            content,
            at,
            object: Object::Volume(at, VOLUMES[volume].to_owned()),
            source: source.ok().filter(|_| refusals.is_empty()),
            refusals,
        }
    }

    /// What a volume of this connection is filled with, or why it cannot be.
    fn filling(&self, from: &Origin, name: &str, at: usize, volume: usize) -> Result<Source, Code> {
        let (handle, source) = match from {
            Origin::Volume(handle) => (handle, Source::Volume(handle.id.clone())),
            Origin::Snapshot(handle) => (handle, Source::Snapshot(handle.id.clone())),
        };
        let home = match self.home(handle, false) {
            Ok(home) if makes(home) => self.storage(home),
            // A volume made by hand is never provided by a call.
            Ok(_) => return Err(Code::InvalidArgument),
            // Its driver is not built.
            Err(Code::Internal) => return Err(Code::Aborted),
            Err(code) => return Err(code),
        };
        if home == at {
            return Ok(source);
        }
        if FORMS[home] != FORMS[at] {
            return Err(Code::InvalidArgument);
        }
        Ok(Source::Elsewhere(Elsewhere {
            at: home,
            what: Box::new(source),
            copy: format!("v:{name}/{}", VOLUMES[volume]),
        }))
    }

    fn find(&mut self, at: usize, id: &str) -> Result<Found, Kind> {
        self.look(at, Verb::FindVolume, true)?;
        let store = &self.stores[at];
        Ok(if store.volumes.contains_key(id) {
            Found::Whole
        } else if store.halves.contains(id) {
            Found::Partial
        } else {
            Found::Nothing
        })
    }

    /// Where it would be carried last, then too little room, then the first preferred place, then the free
    /// space, of which unknown comes after known, then the order in the list.
    fn in_order<'a>(&mut self, able: Vec<&'a Candidate>, ask: &Ask) -> Vec<&'a Candidate> {
        let mut ordered: Vec<_> = able
            .into_iter()
            .map(|one| {
                let room = self.look(one.at, Verb::Capacity, true);
                let room = room.ok().map(|()| self.stores[one.at].room);
                let short = room.is_some_and(|room| room < ask.size);
                let fits = |zone: &u8| one.content.zone.is_none_or(|own| own == *zone);
                let place = ask.zones.iter().position(fits);
                let place = place.unwrap_or(ask.zones.len());
                let free = room.map_or(u64::MAX, |room| u64::MAX - 1 - room);
                // Where nothing new is made is the last of those that may finish.
                let carried = matches!(one.source, Some(Source::Elsewhere(_)));
                ((one.content.closed, carried, short, place, free), one)
            })
            .collect();
        ordered.sort_by_key(|(key, _)| *key);
        ordered.into_iter().map(|(_, one)| one).collect()
    }

    /// Creates it in the first that has space, or in the one that may have started it. The number
    /// says how many may have.
    fn make(
        &mut self,
        id: &str,
        order: &[(&Candidate, usize)],
        ask: &Ask,
        keys: (&[Object], &[Object]),
    ) -> Expected {
        for (one, partial) in order {
            let act = Act::Create {
                id: id.to_owned(),
                size: ask.size,
                exact: ask.exact,
                source: one.source.clone(),
            };
            let made = match self.change(one.at, act, keys) {
                Err(Failure::Of(kind, false)) if is_judged_anew(kind) => {
                    let is_full = kind == Kind::OutOfSpace;
                    let possible = if *partial > 1 || (is_full && *partial > 0) {
                        true
                    } else {
                        match self.find(one.at, id) {
                            Ok(Found::Nothing) => false,
                            Ok(Found::Whole) => !is_full,
                            Ok(Found::Partial) | Err(_) => true,
                        }
                    };
                    // Another one may have the room.
                    if is_full && !possible {
                        continue;
                    }
                    Err(if possible {
                        Failure::Of(kind, true)
                    } else {
                        Failure::Absent(kind)
                    })
                }
                made => made,
            };
            let done = made.map(|size| format!("v:{}/{id} {size}", one.name));
            let answer = ended(true, done);
            return Expected::OneOf(vec![answer]);
        }
        Expected::failed(&[Code::ResourceExhausted])
    }

    /// What is said where none may make it: all are asked whether they have it.
    fn refused_by_all(&mut self, id: &str, all: &[Candidate]) -> Expected {
        let mut most = None;
        for one in all {
            let found = match self.find(one.at, id) {
                Ok(Found::Nothing) => None,
                Ok(found) => Some(found),
                Err(_) => Some(Found::Partial),
            };
            if most != Some(Found::Partial) {
                most = found.or(most);
            }
        }
        let codes: Vec<_> = all.iter().flat_map(|one| one.refusals.clone()).collect();
        refused(&codes, most)
    }
}

/// What the making of a volume holds: alone, and with others.
fn held(all: &[Candidate]) -> (Vec<Object>, Vec<Object>) {
    let source = |one: &Candidate| Some(one.source.as_ref()?.object(one.at));
    let alone = all.iter().map(|one| one.object.clone());
    (alone.collect(), all.iter().filter_map(source).collect())
}

/// What is said if none can make a volume of which there is so much: what might be forgotten by it is not
/// final.
fn refused(codes: &[Code], found: Option<Found>) -> Expected {
    let careful = |code: &Code| match (code, found) {
        (Code::Aborted, _) => Code::Aborted,
        // Who looks for another place finds it there.
        (Code::ResourceExhausted, Some(Found::Whole)) => Code::ResourceExhausted,
        (_, Some(Found::Partial | Found::Whole)) => Code::Unavailable,
        (code, _) => *code,
    };
    let codes: Vec<_> = codes.iter().map(careful).collect();
    Expected::failed(&codes)
}
