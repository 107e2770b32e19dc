//! The keys of running calls: one table of names and ids, so that two calls never change one object.
//!
//! A call takes all its keys at once or none, never waits, and returns them by dropping its guard.
//! Processes do not share the table: between them the backend decides.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi_types::{AbsolutePath, Network};
use driver_core::text::GroupSnapshotId;
use driver_core::{Error, Kind, SnapshotId, SnapshotName, VolumeId, VolumeName};
use tokio::time::Instant;

use crate::rpc::Rpc;

/// The object of a call, in one connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    connection: Arc<str>,
    object: Object,
}

/// An object that a call can lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    /// The name under which a volume is being made.
    VolumeName(VolumeName),
    /// A volume in its backend.
    Volume(VolumeId),
    /// The name under which a snapshot is being made.
    SnapshotName(SnapshotName),
    /// A snapshot in its backend.
    Snapshot(SnapshotId),
    /// The name under which a group of snapshots is being made.
    GroupName(SnapshotName),
    /// A group of snapshots in its backend.
    Group(GroupSnapshotId),
    /// A network that is shut out.
    Fence(Network),
    /// A volume as this node has it.
    OnNode(VolumeId),
    /// A place on this node.
    Path(AbsolutePath),
}

/// The way a key is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Shared with other calls that do not change it.
    Shared,
    /// Exclusive.
    Exclusive,
}

/// The keys of one call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys(Vec<(Key, Hold)>);

/// The table of all calls in progress. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    held: HashMap<Key, Holders>,
    last_call: u64,
}

/// Keys that are held until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    table: InFlight,
    call: u64,
    keys: Keys,
}

#[derive(Debug)]
struct Holders {
    hold: Hold,
    calls: Vec<Holder>,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    call: u64,
    rpc: Rpc,
    since: Instant,
}

// === impl Keys ===

impl Keys {
    /// Nothing to guard.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Adds `object` of `connection`. An object that a call names twice is held in the stronger
    /// way.
    #[must_use]
    pub(crate) fn and(mut self, connection: &Arc<str>, object: Object, hold: Hold) -> Self {
        let key = Key {
            connection: connection.clone(),
            object,
        };
        match self.0.iter_mut().find(|(held, _)| *held == key) {
            Some((_, held)) if hold == Hold::Exclusive => *held = hold,
            Some(_) => {}
            None => self.0.push((key, hold)),
        }
        self
    }

    /// These and those of another.
    #[must_use]
    pub(crate) fn with(self, other: Self) -> Self {
        other.0.into_iter().fold(self, |keys, (key, hold)| {
            keys.and(&key.connection, key.object, hold)
        })
    }
}

// === impl InFlight ===

impl InFlight {
    /// Takes all `keys` for `rpc`, or none: then `Pending`, with the name of the running call.
    pub(crate) fn take(&self, rpc: Rpc, keys: Keys) -> Result<Guard, Error> {
        let mut table = self.lock();
        for (key, hold) in &keys.0 {
            if let Some(holders) = table.held.get(key)
                && (*hold == Hold::Exclusive || holders.hold == Hold::Exclusive)
            {
                return Err(holders.refusal(&key.object));
            }
        }
        table.last_call += 1;
        let holder = Holder {
            call: table.last_call,
            rpc,
            since: Instant::now(),
        };
        for (key, hold) in &keys.0 {
            let holders = table.held.entry(key.clone()).or_insert_with(|| Holders {
                hold: *hold,
                calls: Vec::with_capacity(1),
            });
            holders.calls.push(holder);
        }
        drop(table);
        Ok(Guard {
            table: self.clone(),
            call: holder.call,
            keys,
        })
    }

    /// After a panic the table is still consistent: nothing below can panic between two related changes.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Holders ===

impl Holders {
    fn refusal(&self, object: &Object) -> Error {
        let busy = match self.calls.first() {
            Some(first) => {
                let age = first.since.elapsed().as_secs();
                format!("is being worked on by {}, since {age} s", first.rpc.name())
            }
            None => "is being worked on".to_owned(),
        };
        Error::new(Kind::Pending, format!("{object} {busy}"))
    }
}

// === impl Guard ===

impl Drop for Guard {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        for (key, _) in &self.keys.0 {
            if let Some(holders) = table.held.get_mut(key) {
                holders.calls.retain(|holder| holder.call != self.call);
                if holders.calls.is_empty() {
                    table.held.remove(key);
                }
            }
        }
    }
}

// === impl Object ===

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VolumeName(name) => write!(f, "volume `{name}`"),
            Self::Volume(id) | Self::OnNode(id) => write!(f, "volume `{id}`"),
            Self::SnapshotName(name) => write!(f, "snapshot `{name}`"),
            Self::Snapshot(id) => write!(f, "snapshot `{id}`"),
            Self::GroupName(name) => write!(f, "group snapshot `{name}`"),
            Self::Group(id) => write!(f, "group snapshot `{id}`"),
            Self::Fence(network) => write!(f, "the fence of {network}"),
            Self::Path(path) => write!(f, "path `{path}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use super::*;

    fn volume(id: &str) -> Object {
        Object::Volume(VolumeId::parse(id).expect("id"))
    }

    fn keys(objects: &[(&str, Hold)]) -> Keys {
        let connection: Arc<str> = Arc::from("");
        objects.iter().fold(Keys::none(), |keys, (id, hold)| {
            keys.and(&connection, volume(id), *hold)
        })
    }

    #[test]
    fn a_second_call_for_the_same_object_is_pending_at_once_and_its_error_names_the_first() {
        let table = InFlight::default();
        let guard = table
            .take(Rpc::CreateVolume, keys(&[("a", Hold::Exclusive)]))
            .expect("free");
        let error = table
            .take(Rpc::DeleteVolume, keys(&[("a", Hold::Exclusive)]))
            .expect_err("taken");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::Pending, driver_core::Effect::None)
        );
        assert_eq!(
            error.to_string(),
            "volume `a` is being worked on by CreateVolume, since 0 s"
        );
        drop(guard);
        assert!(
            table
                .take(Rpc::DeleteVolume, keys(&[("a", Hold::Exclusive)]))
                .is_ok()
        );
        assert!(table.lock().held.is_empty());
    }

    #[test]
    fn a_source_is_shared_by_those_who_copy_it_and_not_with_who_deletes_it() {
        let table = InFlight::default();
        let copy = |to| keys(&[(to, Hold::Exclusive), ("source", Hold::Shared)]);
        let one = table.take(Rpc::CreateVolume, copy("1")).expect("free");
        let two = table.take(Rpc::CreateVolume, copy("2")).expect("shared");
        let delete = || table.take(Rpc::DeleteVolume, keys(&[("source", Hold::Exclusive)]));
        assert!(delete().is_err());
        drop(one);
        assert!(delete().is_err());
        drop(two);
        let deletion = delete().expect("free");
        assert!(table.take(Rpc::CreateVolume, copy("3")).is_err());
        drop(deletion);
    }

    #[test]
    fn a_call_that_is_refused_one_key_holds_none() {
        let table = InFlight::default();
        let guard = table
            .take(Rpc::CreateVolume, keys(&[("b", Hold::Exclusive)]))
            .expect("free");
        let both = keys(&[("a", Hold::Exclusive), ("b", Hold::Exclusive)]);
        assert!(table.take(Rpc::CreateVolume, both).is_err());
        assert!(
            table
                .take(Rpc::CreateVolume, keys(&[("a", Hold::Exclusive)]))
                .is_ok()
        );
        drop(guard);
        assert!(table.lock().held.is_empty());
    }

    #[test]
    fn of_two_calls_that_name_the_same_objects_in_opposite_orders_one_gets_them_each_time() {
        const ROUNDS: usize = 2_000;
        let table = InFlight::default();
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        let taken: Vec<AtomicU64> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for order in [["a", "b", "c"], ["c", "b", "a"]] {
                let (table, begin, end, taken) = (&table, &begin, &end, &taken);
                scope.spawn(move || {
                    let wanted = keys(&order.map(|id| (id, Hold::Exclusive)));
                    for round in taken {
                        begin.wait();
                        let guard = table.take(Rpc::DeleteVolumeGroupSnapshot, wanted.clone());
                        round.fetch_add(u64::from(guard.is_ok()), Ordering::Relaxed);
                        // Both have tried.
                        end.wait();
                        drop(guard);
                    }
                });
            }
        });
        let taken = taken.iter().map(|round| round.load(Ordering::Relaxed));
        assert_eq!(taken.filter(|winners| *winners == 1).count(), ROUNDS);
    }

    #[test]
    fn a_call_that_names_an_object_twice_is_not_in_its_own_way() {
        let table = InFlight::default();
        let twice = keys(&[
            ("a", Hold::Shared),
            ("a", Hold::Exclusive),
            ("a", Hold::Shared),
        ]);
        let guard = table.take(Rpc::CreateVolume, twice).expect("free");
        assert!(
            table
                .take(Rpc::CreateVolume, keys(&[("a", Hold::Shared)]))
                .is_err()
        );
        drop(guard);
        assert!(table.lock().held.is_empty());
    }

    #[test]
    fn the_same_id_in_another_connection_is_another_object() {
        let table = InFlight::default();
        let of = |connection: &str| {
            Keys::none().and(&Arc::from(connection), volume("a"), Hold::Exclusive)
        };
        let _one = table.take(Rpc::CreateVolume, of("one")).expect("free");
        assert!(table.take(Rpc::CreateVolume, of("two")).is_ok());
        assert!(table.take(Rpc::CreateVolume, of("one")).is_err());
    }

    #[test]
    fn under_stress_no_other_holder_is_inside_with_an_exclusive_one() {
        let table = InFlight::default();
        // Negative: one exclusive holder inside; positive: so many shared ones.
        let inside: Vec<AtomicI64> = (0..4).map(|_| AtomicI64::new(0)).collect();
        let entered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8_usize {
                let (table, inside, entered) = (&table, &inside, &entered);
                scope.spawn(move || {
                    let mut state = thread * 7919 + 1;
                    for _ in 0..20_000 {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let (own, source) = ((state >> 33) % 4, (state >> 40) % 4);
                        let wanted = keys(&[
                            (["0", "1", "2", "3"][own], Hold::Exclusive),
                            (["0", "1", "2", "3"][source], Hold::Shared),
                        ]);
                        let Ok(guard) = table.take(Rpc::CreateVolume, wanted) else {
                            continue;
                        };
                        entered.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(inside[own].fetch_sub(1, Ordering::SeqCst), 0);
                        if source != own {
                            assert!(inside[source].fetch_add(1, Ordering::SeqCst) >= 0);
                            inside[source].fetch_sub(1, Ordering::SeqCst);
                        }
                        inside[own].fetch_add(1, Ordering::SeqCst);
                        drop(guard);
                    }
                });
            }
        });
        assert!(entered.load(Ordering::Relaxed) > 20_000);
        assert!(table.lock().held.is_empty());
    }
}
