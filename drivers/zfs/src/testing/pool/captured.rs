//! A pool of a real host, parsed from the output of `zfs get`.

use std::collections::BTreeMap;

use driver_core::{Error, Kind};

use super::{Held, MemoryPool, own};
use crate::name::{Object, SnapshotRef};
use crate::observed::VolumeKind;
use crate::property::{Property, PropertyName, PropertyValue};

/// The output for one object: its own properties, and facts.
#[derive(Debug, Default)]
struct Shown {
    own: Vec<Property>,
    facts: BTreeMap<PropertyName, String>,
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(Kind::Internal, "read a pool that was captured").because(why.into())
}

fn unread(why: &dyn std::fmt::Display) -> Error {
    refused(why.to_string())
}

fn missing(object: &Object, name: &PropertyName) -> Error {
    refused(format!("{object} shows no {name}"))
}

impl Shown {
    fn fact(&self, object: &Object, name: &PropertyName) -> Result<&str, Error> {
        let fact = self.facts.get(name).map(String::as_str);
        fact.ok_or_else(|| missing(object, name))
    }

    fn number(&self, object: &Object, name: &PropertyName) -> Result<u64, Error> {
        let fact = self.fact(object, name)?;
        fact.parse()
            .map_err(|_| refused(format!("{name} of {object} is {fact}")))
    }
}

/// Lines of `zfs get -Hp -o name,property,value,source`; `#` starts a comment.
fn read(text: &str) -> Result<BTreeMap<Object, Shown>, Error> {
    let mut all: BTreeMap<Object, Shown> = BTreeMap::new();
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in lines {
        let fields: Vec<_> = line.split('\t').collect();
        let [object, name, value, source] = fields[..] else {
            return Err(refused(format!("{line:?} has not four columns")));
        };
        let object = Object::parse(object).map_err(|why| unread(&why))?;
        let name = PropertyName::parse(name).map_err(|why| unread(&why))?;
        let shown = all.entry(object).or_default();
        if matches!(source, "local" | "received") {
            let value = PropertyValue::parse(value).map_err(|why| unread(&why))?;
            shown.own.push(Property::new(name, value));
        } else if !source.starts_with("inherited") {
            shown.facts.insert(name, value.to_owned());
        }
    }
    Ok(all)
}

impl MemoryPool {
    /// The pool of the output of `zfs get -Hp -o name,property,value,source` for all its datasets
    /// and snapshots. Each needs `type` and `createtxg`, a zvol `volblocksize`, a clone `origin`, a
    /// copied snapshot `guid`, and all need their own properties.
    pub fn captured(text: &str) -> Result<Self, Error> {
        let shown = read(text)?;
        let mut order = Vec::new();
        for (object, shown) in &shown {
            order.push((
                shown.number(object, &PropertyName::CREATETXG)?,
                object,
                shown,
            ));
        }
        // A snapshot has an older dataset, and so has a clone an older snapshot.
        order.sort_by_key(|(txg, object, _)| (*txg, matches!(object, Object::Snapshot(_))));
        let mut pool = Self::default();
        for (txg, object, shown) in &order {
            match object {
                Object::Snapshot(name) => {
                    pool.insert_snapshot(name, &shown.own);
                    let Some(cut) = pool.snapshots.get_mut(name) else {
                        return Err(refused(format!("{object} is of no dataset")));
                    };
                    // A copied snapshot has the GUID of its source.
                    if shown.facts.contains_key(&PropertyName::GUID) {
                        cut.guid = shown.number(object, &PropertyName::GUID)?;
                    }
                }
                Object::Dataset(name) => {
                    let held = pool.shown(object, shown, *txg)?;
                    pool.datasets.insert(name.clone(), held);
                }
            }
        }
        for (_, object, shown) in order {
            let doomed = shown.facts.get(&PropertyName::DEFER_DESTROY);
            if let (Object::Snapshot(name), Some("on")) = (object, doomed.map(String::as_str))
                && let Some(cut) = pool.snapshots.get_mut(name)
            {
                cut.doomed = true;
            }
        }
        Ok(pool)
    }

    /// A pool with the same datasets as this one down to two levels below its root, without their
    /// content: the state before anything was created there.
    #[must_use]
    pub fn roots(&self) -> Self {
        let deep = |name: &str| name.split('/').count() > 2;
        let all = self.datasets.iter();
        let roots = all.filter(|(name, _)| !deep(name.as_str()));
        Self {
            txg: self.txg,
            datasets: roots
                .map(|(name, held)| (name.clone(), held.clone()))
                .collect(),
            ..Self::default()
        }
    }

    fn shown(&mut self, object: &Object, shown: &Shown, txg: u64) -> Result<Held, Error> {
        self.txg = self.txg.max(txg) + 1;
        let kind = match shown.fact(object, &PropertyName::TYPE)? {
            "filesystem" => VolumeKind::Filesystem,
            "volume" => VolumeKind::Zvol,
            other => return Err(refused(format!("{object} is a {other}"))),
        };
        let block = match kind {
            VolumeKind::Filesystem => 0,
            VolumeKind::Zvol => shown.number(object, &PropertyName::VOLBLOCKSIZE)?,
        };
        let origin = shown.facts.get(&PropertyName::ORIGIN);
        let origin = origin.filter(|origin| *origin != "-");
        let origin = origin.map(|name| SnapshotRef::parse(name).map_err(|why| unread(&why)));
        Ok(Held {
            kind,
            txg: self.txg,
            origin: origin.transpose()?,
            own: own(&shown.own),
            content: self.txg,
            used: 1 << 10,
            block,
            mounted: kind == VolumeKind::Filesystem,
            files: false,
            receiving: false,
            arrived: None,
            beside: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Guid;

    const TEXT: &str = "# invented output
tank\ttype\tfilesystem\t-
tank\tcreatetxg\t1\t-
tank\tcompression\tlz4\tlocal
tank/b\ttype\tvolume\t-
tank/b\tcreatetxg\t9\t-
tank/b\torigin\ttank/a@s\t-
tank/b\tvolblocksize\t8192\t-
tank/b\tvolsize\t65536\tlocal
tank/b\tx:y\tz\tinherited from tank
tank/a\ttype\tvolume\t-
tank/a\tcreatetxg\t5\t-
tank/a\torigin\t-\t-
tank/a\tvolblocksize\t8192\tdefault
tank/a\tvolsize\t65536\tlocal
tank/a\tx:y\ta b\treceived
tank/a@s\ttype\tsnapshot\t-
tank/a@s\tcreatetxg\t7\t-
tank/a@s\tguid\t4711\t-
tank/a@s\tdefer_destroy\ton\t-
";

    #[test]
    fn a_pool_is_what_was_printed_of_it() {
        let pool = MemoryPool::captured(TEXT).unwrap();
        let cut = Object::parse("tank/a@s").unwrap();
        assert_eq!(pool.guid(&cut), Some(Guid(4711)));
        let shape: Vec<_> = pool.shape().into_iter().collect();
        let seen: Vec<_> = shape
            .iter()
            .map(|(name, shape)| (name.as_str(), shape.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("tank", r#"filesystem None {"compression": "lz4"}"#),
                (
                    "tank/a",
                    r#"volume None {"volsize": "65536", "x:y": "a b"}"#
                ),
                ("tank/a@s", "doomed true {}"),
                ("tank/b", r#"volume Some("tank/a@s") {"volsize": "65536"}"#),
            ]
        );
    }

    #[test]
    fn what_zfs_does_not_print_is_refused() {
        for text in [
            "tank\ttype\tfilesystem",
            "tank\ttype\tfilesystem\t-",
            "tank\ttype\tvolume\t-\ntank\tcreatetxg\t1\t-",
            "tank\tcreatetxg\t1\t-",
            "tank@s\ttype\tsnapshot\t-\ntank@s\tcreatetxg\t1\t-",
            "tank\ttype\tbookmark\t-\ntank\tcreatetxg\t1\t-",
        ] {
            assert!(MemoryPool::captured(text).is_err(), "{text}");
        }
    }
}
