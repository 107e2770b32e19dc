//! The possible steps of a sequence, and how sequences are made from a seed.

use driver_core::Kind;
use driver_core::contract::fake::Verb;

use super::storage::{Condition, Did, Fault};

/// Names that files and requests use: four with files, another name of the first, and one that never
/// has a file.
pub(super) const NAMES: [&str; 6] = ["a", "b", "c", HAND, "old", "never"];
/// The connection whose volumes are made by hand.
pub(super) const HAND: &str = "d";
/// The number of storages that make volumes.
pub(super) const STORAGES: usize = 3;
/// The names of volumes.
pub(super) const VOLUMES: [&str; 4] = ["v0", "v1", "v2", "v3"];
const SNAPSHOTS: [&str; 2] = ["s0", "s1"];
const NODES: [&str; 2] = ["n1", "n2"];
const GIB: u64 = 1 << 30;

/// The constants of a sequence.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    /// Whether `c` is another name of the storage of `a`.
    pub(super) shared: bool,
    pub(super) bare: BareIs,
    pub(super) claims: Vec<Claim>,
}

/// The value of `proxy.legacyConnection`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BareIs {
    Unsaid,
    Nobodys,
    /// `b`.
    Of,
}

/// The part that every request for a volume of one name has.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) class: &'static [&'static str],
    pub(super) source: Option<Origin>,
}

/// The source of a volume.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    Volume(Handle),
    Snapshot(Handle),
}

/// A handle: the connection, if it names one, and the id there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) at: Option<&'static str>,
    pub(super) id: String,
}

/// The content of a valid file of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Content {
    pub(super) zone: Option<u8>,
    pub(super) closed: bool,
}

impl Content {
    /// All possible ones.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let zones = [None, Some(1), Some(2)].into_iter();
        zones.flat_map(|zone| [false, true].map(|closed| Self { zone, closed }))
    }
}

impl Call {
    /// The request, in words.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::Delete(_) => "delete",
            Self::Expand(..) => "expand",
            Self::Publish(..) => "publish",
            Self::Unpublish(..) => "unpublish",
            Self::Snapshot(..) => "snapshot",
            Self::DeleteSnapshot(_) => "delete snapshot",
            Self::Get(_) => "get",
            Self::GetSnapshot(_) => "get snapshot",
            Self::Validate(_) => "validate",
            Self::List(_) => "list",
            Self::ListSnapshots(_) => "list snapshots",
            Self::ListSnapshotsOf(_) => "list snapshots of one",
            Self::Room(Some(_)) => "room of a class",
            Self::Room(None) => "room",
        }
    }
}

/// The possible differences of two requests for the same volume.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) size: u64,
    /// An exact size.
    pub(super) exact: bool,
    pub(super) zones: Vec<u8>,
    /// With a capability that no storage here supports.
    pub(super) block: bool,
}

/// One step.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// A valid file appears.
    Good(&'static str, Content),
    /// An invalid file appears.
    Bad(&'static str),
    /// A file was found, and is not read yet.
    Found(&'static str),
    /// A file is gone for good.
    Gone(&'static str),
    /// A folder cannot be read, or can again.
    Unread(bool),
    /// Drivers are dropped and cannot be built, or can again.
    Unbuilt(bool),
    Storage(usize, Condition),
    /// Hanging work continues.
    Release,
    /// This process ends, and another one starts: after all hanging work has ended, or at once.
    Restart(Ends),
    Call {
        call: Call,
        fault: Option<(usize, Verb, Fault)>,
        /// The client does not wait for an answer if one hangs.
        leaves: bool,
    },
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Well,
    Killed,
}

/// The request.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Create(usize, Ask),
    Delete(Handle),
    Expand(Handle, u64),
    /// Whether its context was written by hand.
    Publish(Handle, &'static str, bool),
    Unpublish(Handle, Option<&'static str>),
    Snapshot(&'static str, Handle),
    DeleteSnapshot(Handle),
    Get(Handle),
    GetSnapshot(Handle),
    Validate(Handle),
    /// The number of entries of a page.
    List(i32),
    ListSnapshots(i32),
    ListSnapshotsOf(Handle),
    /// Of a class, or of everything.
    Room(Option<&'static [&'static str]>),
}

/// The cases that every run must cover.
pub(super) const KINDS: [(&str, &[&str]); 16] = [
    ("create", &["done", "failed", "left"]),
    ("copy", &["done"]),
    ("delete", &["done", "failed"]),
    ("expand", &["done", "failed"]),
    ("publish", &["done", "failed"]),
    ("unpublish", &["done", "failed"]),
    ("snapshot", &["done", "failed"]),
    ("delete snapshot", &["done", "failed"]),
    ("get", &["done", "failed"]),
    ("get snapshot", &["done", "failed"]),
    ("validate", &["done", "failed"]),
    ("list", &["listed", "cut"]),
    ("list snapshots", &["listed", "cut"]),
    ("list snapshots of one", &["listed", "cut"]),
    ("room of a class", &["done", "failed"]),
    ("room", &["done"]),
];

/// The names of classes of one and of several connections.
const CLASSES: [&[&str]; 14] = [
    &["a"],
    &["a"],
    &["b"],
    &["c"],
    &["old"],
    &["d"],
    &["never"],
    &["a", "b"],
    &["a", "b"],
    &["b", "c"],
    &["a", "b", "c"],
    &["c", "never", "a"],
    &["a", "d"],
    &["old", "a", "b"],
];

/// A stream of numbers from a seed.
#[derive(Debug, Clone)]
pub(super) struct Dice {
    at: u64,
    /// The last requested snapshot: a random one rarely exists.
    taken: Option<Handle>,
}

// === impl Dice ===

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            at: seed,
            taken: None,
        }
    }

    /// `SplitMix64`.
    pub(super) fn next(&mut self) -> u64 {
        self.at = self.at.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.at ^ (self.at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a small number");
        usize::try_from(self.next() % bound).expect("a small number")
    }

    /// True with this probability in percent.
    fn percent(&mut self, of_hundred: usize) -> bool {
        self.below(100) < of_hundred
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn handle(&mut self) -> Handle {
        let at = self.one(&["a", "a", "a", "b", "b", "b", "c", "c", "old", "d", "never"]);
        Handle {
            at: (!self.percent(7)).then_some(at),
            id: self.one(&VOLUMES).to_owned(),
        }
    }

    fn snapshot(&mut self) -> Handle {
        let (volume, name) = (self.handle(), self.one(&SNAPSHOTS));
        let last = self.taken.clone().filter(|_| self.percent(50));
        last.unwrap_or_else(|| snapshot_of(&volume, name))
    }

    pub(super) fn setup(&mut self) -> Setup {
        let claims = VOLUMES.map(|_| Claim {
            class: self.one(&CLASSES),
            source: match self.below(10) {
                0..2 => Some(Origin::Volume(self.handle())),
                2 => Some(Origin::Snapshot(self.snapshot())),
                _ => None,
            },
        });
        Setup {
            shared: self.percent(30),
            bare: self.one(&[BareIs::Unsaid, BareIs::Nobodys, BareIs::Of, BareIs::Of]),
            claims: claims.into(),
        }
    }

    fn content(&mut self) -> Content {
        Content {
            zone: self.one(&[None, None, None, Some(1), Some(2)]),
            closed: self.percent(15),
        }
    }

    pub(super) fn steps(&mut self, many: usize) -> Vec<Step> {
        let files = ["a", "b", "c", "d"];
        let mut steps: Vec<_> = files
            .into_iter()
            .filter_map(|name| {
                let content = Content {
                    zone: None,
                    closed: false,
                };
                (!self.percent(10)).then_some(Step::Good(name, content))
            })
            .collect();
        while steps.len() < many {
            let step = self.step();
            steps.push(step);
        }
        steps
    }

    fn step(&mut self) -> Step {
        let file = self.one(&["a", "b", "c", "d", "old"]);
        match self.below(100) {
            0..7 => Step::Good(file, self.content()),
            7..9 => Step::Bad(file),
            9 => Step::Found(file),
            10..12 => Step::Gone(file),
            12 => Step::Unread(self.percent(50)),
            13 => Step::Unbuilt(self.percent(50)),
            14..20 => Step::Storage(self.below(STORAGES), self.condition()),
            20..24 => Step::Release,
            24..26 => Step::Restart(self.one(&[Ends::Well, Ends::Killed])),
            _ => self.call(),
        }
    }

    fn condition(&mut self) -> Condition {
        match self.below(10) {
            0..3 => Condition::Full(true),
            3..5 => Condition::Full(false),
            5 => Condition::Down(true),
            6..8 => Condition::Down(false),
            _ => Condition::Room(self.one(&[GIB / 2, GIB, 2 * GIB, 5 * GIB])),
        }
    }

    fn ask(&mut self) -> Ask {
        Ask {
            size: GIB * if self.percent(90) { 1 } else { 2 },
            exact: self.percent(5),
            zones: self.one(&[vec![], vec![], vec![], vec![], vec![1], vec![2], vec![1, 2]]),
            block: self.percent(3),
        }
    }

    fn call(&mut self) -> Step {
        let (call, verb) = match self.below(100) {
            0..40 => {
                let ask = self.ask();
                let look = self.one(&[
                    Verb::FindVolume,
                    Verb::FindVolume,
                    Verb::Capacity,
                    Verb::GetVolume,
                ]);
                let verb = if self.percent(65) {
                    Verb::CreateVolume
                } else {
                    look
                };
                (Call::Create(self.below(VOLUMES.len()), ask), verb)
            }
            40..54 => (Call::Delete(self.handle()), Verb::DeleteVolume),
            54..59 => {
                let size = GIB * self.one(&[1, 2, 3]);
                (Call::Expand(self.handle(), size), Verb::ExpandVolume)
            }
            59..65 => {
                let (handle, node) = (self.handle(), self.one(&NODES));
                let by_hand = self.percent(40);
                (Call::Publish(handle, node, by_hand), Verb::PublishVolume)
            }
            65..70 => {
                let node = (!self.percent(25)).then_some(self.one(&NODES));
                (Call::Unpublish(self.handle(), node), Verb::UnpublishVolume)
            }
            70..77 => {
                let (name, volume) = (self.one(&SNAPSHOTS), self.handle());
                self.taken = Some(snapshot_of(&volume, name));
                (Call::Snapshot(name, volume), Verb::CreateSnapshot)
            }
            77..81 => (Call::DeleteSnapshot(self.snapshot()), Verb::DeleteSnapshot),
            81..84 => (Call::Get(self.handle()), Verb::GetVolume),
            84..86 => (Call::GetSnapshot(self.snapshot()), Verb::GetSnapshot),
            86..88 => (Call::Validate(self.handle()), Verb::FindVolume),
            88..92 => (Call::List(self.one(&[0, 1, 2, 3])), Verb::ListVolumes),
            92..94 => {
                let max = self.one(&[0, 1, 2]);
                (Call::ListSnapshots(max), Verb::ListSnapshots)
            }
            94..96 => (Call::ListSnapshotsOf(self.handle()), Verb::ListSnapshots),
            _ => {
                let class = (!self.percent(30)).then_some(self.one(&CLASSES));
                (Call::Room(class), Verb::Capacity)
            }
        };
        let fault = self.percent(35).then(|| {
            let fault = match (self.fault(verb), &call) {
                // A source that hangs is a target that hangs.
                (Fault::Hang(_), Call::Create(..)) if verb == Verb::GetVolume => {
                    Fault::Fail(Kind::Unreachable)
                }
                (fault, _) => fault,
            };
            (self.below(STORAGES), verb, fault)
        });
        let hangs = matches!(fault, Some((_, verb, Fault::Hang(_))) if changes(verb));
        Step::Call {
            call,
            fault,
            leaves: hangs && self.percent(50),
        }
    }

    fn fault(&mut self, verb: Verb) -> Fault {
        let passing = self.one(&[Kind::Unreachable, Kind::Denied, Kind::Internal]);
        let parts: &[Did] = match verb {
            Verb::CreateVolume => &[Did::Nothing, Did::Half, Did::Half, Did::All],
            _ => &[Did::Nothing, Did::All],
        };
        let did = self.one(parts);
        let roll = self.below(10);
        match roll {
            0..3 => {
                let judged = match verb {
                    Verb::CreateVolume => self.one(&[
                        Kind::OutOfSpace,
                        Kind::OutOfSpace,
                        Kind::Invalid,
                        Kind::NotFound,
                        Kind::Busy,
                    ]),
                    Verb::FindVolume => self.one(&[Kind::Pending, Kind::Busy]),
                    _ => self.one(&[passing, Kind::Busy]),
                };
                Fault::Fail(self.one(&[passing, judged, Kind::Timeout]))
            }
            3..8 if changes(verb) => Fault::Cut(passing, did, self.percent(60)),
            8 => Fault::Panic(self.percent(50).then_some(did)),
            9 => Fault::Hang(did),
            _ => Fault::Fail(passing),
        }
    }
}

fn snapshot_of(volume: &Handle, name: &str) -> Handle {
    Handle {
        at: volume.at,
        id: format!("{}@{name}", volume.id),
    }
}

/// Whether a verb changes something.
pub(super) fn changes(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::CreateVolume
            | Verb::DeleteVolume
            | Verb::ExpandVolume
            | Verb::CreateSnapshot
            | Verb::DeleteSnapshot
            | Verb::PublishVolume
            | Verb::UnpublishVolume
    )
}
