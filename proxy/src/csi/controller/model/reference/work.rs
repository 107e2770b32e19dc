//! How work on a storage runs and ends: its faults and its locks.

use driver_core::Kind;
use driver_core::contract::fake::Verb;

use super::expected::{code, is_passing};
use super::store::{Act, Elsewhere, Source};
use super::{Object, Reference};
use crate::csi::controller::model::requests::Answer;
use crate::csi::controller::model::storage::{Did, Fault};

/// How a verb failed: the kind, and whether it may have an effect.
#[derive(Debug, Clone, Copy)]
pub(super) enum Failure {
    Of(Kind, bool),
    /// It failed so, and the storage has nothing of what was to be made.
    Absent(Kind),
    /// The whole call panicked before its first change.
    Broken,
    /// It hangs, and the client did not wait.
    Left,
}

/// Work that hangs.
#[derive(Debug)]
pub(super) struct Hung {
    pub(super) at: usize,
    /// Its change, and how much of it is done.
    pub(super) work: Option<(Act, Did)>,
    alone: Vec<Object>,
    shared: Vec<Object>,
}

impl Reference {
    /// Whether a hanging call locks any of these.
    pub(super) fn is_locked(&self, alone: &[Object], shared: &[Object]) -> bool {
        self.hung.iter().any(|hung| {
            let any = |object| hung.alone.contains(object) || hung.shared.contains(object);
            alone.iter().any(any) || shared.iter().any(|object| hung.alone.contains(object))
        })
    }

    /// The fault that a verb of a storage meets.
    fn fault(&mut self, at: usize, verb: Verb) -> Result<Option<Fault>, Failure> {
        if self.stores[at].down {
            return Err(Failure::Of(Kind::Unreachable, false));
        }
        let met = self
            .armed
            .take_if(|(armed, of, _)| (*armed, *of) == (at, verb));
        Ok(met.map(|(_, _, fault)| fault))
    }

    /// A reading verb. Unless `patient`, it is abandoned early.
    pub(super) fn look(&mut self, at: usize, verb: Verb, patient: bool) -> Result<(), Kind> {
        match self.fault(at, verb) {
            Err(_) => Err(Kind::Unreachable),
            Ok(None) => Ok(()),
            Ok(Some(Fault::Fail(kind) | Fault::Cut(kind, ..))) => Err(kind),
            Ok(Some(Fault::Panic(_))) => Err(Kind::Internal),
            Ok(Some(Fault::Hang(_))) => {
                if !patient {
                    self.hung.push(Hung {
                        at,
                        work: None,
                        alone: Vec::new(),
                        shared: Vec::new(),
                    });
                }
                Err(Kind::Timeout)
            }
        }
    }

    /// A verb that changes something, by a call that holds these exclusively or shared.
    pub(super) fn change(
        &mut self,
        at: usize,
        act: Act,
        (alone, shared): (&[Object], &[Object]),
    ) -> Result<u64, Failure> {
        match self.fault(at, act.verb())? {
            None => {
                let done = self.apply(at, &act);
                if done.is_ok() {
                    self.close(&act);
                }
                done
            }
            Some(Fault::Fail(kind)) => Err(Failure::Of(kind, false)),
            Some(Fault::Cut(kind, did, reported)) => {
                self.part(at, &act, did);
                Err(Failure::Of(kind, reported || is_passing(kind)))
            }
            Some(Fault::Panic(None)) => Err(Failure::Broken),
            Some(Fault::Panic(Some(did))) => {
                self.part(at, &act, did);
                Err(Failure::Of(Kind::Internal, true))
            }
            Some(Fault::Hang(did)) => {
                self.stores[at].begin(&act, did);
                self.hung.push(Hung {
                    at,
                    work: Some((act, did)),
                    alone: alone.to_vec(),
                    shared: shared.to_vec(),
                });
                if self.leaves {
                    return Err(Failure::Left);
                }
                Err(Failure::Of(Kind::Timeout, true))
            }
        }
    }

    /// Does so much of a change. Its outcome is not reported.
    fn part(&mut self, at: usize, act: &Act, did: Did) {
        self.stores[at].begin(act, did);
        if did == Did::All {
            // Its result is known only at the end.
            let _ = self.apply(at, act);
        }
    }

    /// Applies a change, and returns the resulting size.
    fn apply(&mut self, at: usize, act: &Act) -> Result<u64, Failure> {
        if let Some((id, from)) = act.copies()
            && !self.stores[at].volumes.contains_key(id)
            && !self.stores[at].full
        {
            self.open(from)?;
        }
        let done = self.stores[at].apply(act);
        done.map_err(|kind| Failure::Of(kind, false))
    }

    /// Opens the source of a copy at another storage, which keeps something until it is closed.
    fn open(&mut self, from: &Elsewhere) -> Result<(), Failure> {
        let verb = match *from.what {
            Source::Snapshot(_) => Verb::GetSnapshot,
            Source::Volume(_) | Source::Elsewhere(_) => Verb::GetVolume,
        };
        let met = self.fault(from.at, verb)?;
        match met {
            None => {}
            Some(Fault::Panic(_)) => return Err(Failure::Broken),
            Some(Fault::Fail(kind) | Fault::Cut(kind, ..)) => return Err(Failure::Of(kind, false)),
            Some(Fault::Hang(_)) => return Err(Failure::Of(Kind::Timeout, false)),
        }
        let store = &mut self.stores[from.at];
        if !store.has(&from.what) {
            return Err(Failure::Of(Kind::NotFound, false));
        }
        store.opened.insert(from.copy.clone());
        Ok(())
    }

    /// A copy is complete, and the process has got that answer.
    fn close(&mut self, act: &Act) {
        let Some((_, from)) = act.copies() else {
            return;
        };
        self.has_copied = true;
        if !self.stores[from.at].down {
            self.stores[from.at].opened.remove(&from.copy);
        }
    }

    /// Hanging calls continue, and no caller sees their outcome.
    pub(in crate::csi::controller::model) fn release(&mut self) {
        let mut hung = std::mem::take(&mut self.hung);
        hung.sort_by_key(|hung| hung.at);
        for hung in hung {
            let Some((act, Did::All)) = &hung.work else {
                continue;
            };
            if self.apply(hung.at, act).is_ok() {
                self.close(act);
            }
        }
    }
}

/// The answer of a call. A passing failure of one that makes something is final only if the storage has nothing
/// of it: an earlier call may have started it.
pub(super) fn ended(makes: bool, result: Result<String, Failure>) -> Answer {
    match result {
        Ok(text) => Answer::Done(text),
        Err(Failure::Left) => Answer::Left,
        Err(Failure::Of(kind, possible)) => {
            Answer::Failed(code(kind, possible || (makes && is_passing(kind))))
        }
        Err(Failure::Absent(kind)) => Answer::Failed(code(kind, false)),
        Err(Failure::Broken) => Answer::Failed(code(Kind::Internal, makes)),
    }
}
