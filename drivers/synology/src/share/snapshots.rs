//! Snapshots of shared folders. Their id is `/share/<shared folder>/<time>`; their description says that
//! they are of CSI, the size, and the name.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use driver_core::naming::snapshot_leaf;
use driver_core::{
    Call, CreateSnapshot, Error, Kind, Page, PageRequest, Snapshot, SnapshotFilter, SnapshotId,
    Snapshots, VolumeId, civil,
};

use super::api::{Share, ShareSnapshot};
use super::{MIB, Shares, changed};
use crate::page::page;

const MARK: &str = "csi ";
/// The longest name; how long a description may be is not known.
const LONGEST_NAME: usize = 64;

/// What the description of a snapshot of ours says.
struct Described<'a> {
    mebibytes: u64,
    name: &'a str,
}

fn described(snapshot: &ShareSnapshot) -> Option<Described<'_>> {
    let (size, name) = snapshot.desc.strip_prefix(MARK)?.split_once(' ')?;
    let mebibytes = size.parse().ok()?;
    Some(Described { mebibytes, name })
}

/// Seconds since 1970 of a time such as `GMT+08-2022.01.14-19.18.29`.
fn seconds(time: &str) -> Option<u64> {
    let rest = time.strip_prefix("GMT")?;
    let (zone, rest) = rest.split_at_checked(3)?;
    let zone: i64 = zone.parse().ok()?;
    let (date, clock) = rest.strip_prefix('-')?.split_once('-')?;
    let numbers = |text: &str| -> Option<[i64; 3]> {
        let parsed: Vec<i64> = text
            .split('.')
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        parsed.try_into().ok()
    };
    civil::seconds(numbers(date)?, numbers(clock)?, zone * 3600)
}

fn parts(id: &SnapshotId) -> Option<(String, String)> {
    let (share, time) = id.as_str().strip_prefix("/share/")?.split_once('/')?;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_share = !share.is_empty() && share.chars().all(word);
    (is_share && seconds(time).is_some()).then(|| (share.to_owned(), time.to_owned()))
}

fn listed(source: VolumeId, share: &Share, snapshot: &ShareSnapshot) -> Result<Snapshot, Error> {
    let odd = || {
        Error::new(
            Kind::Internal,
            format!("read the snapshots of `{}`", share.name),
        )
    };
    let time =
        seconds(&snapshot.time).ok_or_else(|| odd().because("a time has an unknown form"))?;
    let created: SystemTime = UNIX_EPOCH + Duration::from_secs(time);
    let id = format!("/share/{}/{}", share.name, snapshot.time);
    Ok(Snapshot {
        id: SnapshotId::parse(&id).map_err(|error| odd().because(error))?,
        source,
        size: described(snapshot).map_or(0, |said| said.mebibytes * MIB),
        created,
        ready: true,
        topology: Vec::new(),
        group: None,
    })
}

// === impl Shares ===

impl Shares {
    async fn of(&self, call: &Call, share: &str, doing: &str) -> Result<Vec<ShareSnapshot>, Error> {
        let snapshots = self.client.share_snapshots(call, share).await;
        snapshots.map_err(|failure| failure.while_doing(call, doing))
    }

    /// A snapshot by its id, with the shared folder of a volume of ours.
    pub(super) async fn snapshot(
        &self,
        call: &Call,
        id: &SnapshotId,
        doing: &str,
    ) -> Result<(Share, ShareSnapshot), Error> {
        let missing = || Error::not_found(doing).because(format!("there is no snapshot `{id}`"));
        let (name, time) = parts(id).ok_or_else(missing)?;
        let shares = self.shares(call, doing).await?;
        let share = shares.into_iter().find(|share| share.name == name);
        let share = share.filter(|share| self.names.id(share).is_some());
        let share = share.ok_or_else(missing)?;
        let snapshots = self.of(call, &share.name, doing).await?;
        let found = snapshots.into_iter().find(|known| known.time == time);
        found.map(|found| (share, found)).ok_or_else(missing)
    }

    /// A volume stays because of snapshots of CSI, and of those that someone has locked.
    pub(super) async fn refuse_snapshots(
        &self,
        call: &Call,
        share: &Share,
        doing: &str,
    ) -> Result<(), Error> {
        let client = &self.client;
        let snapshots = client.snapshots_of_listed_share(call, &share.name).await;
        let snapshots = snapshots.map_err(|failure| failure.of_listed(call, doing))?;
        let kept: Vec<String> = snapshots
            .iter()
            .filter(|known| known.lock || described(known).is_some())
            .take(5)
            .map(|known| {
                format!(
                    "`{}`",
                    described(known).map_or(&*known.time, |said| said.name)
                )
            })
            .collect();
        if kept.is_empty() {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, doing)
            .because(format!("it has snapshots: {}", kept.join(", ")))
            .advise("delete the snapshots first"))
    }
}

#[async_trait]
impl Snapshots for Shares {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let source = &request.source;
        let name = snapshot_leaf(&request.name, LONGEST_NAME);
        let doing = format!("take snapshot `{name}` of volume `{source}`");
        let share = self.whole(call, source, &doing).await?;
        let named = |snapshots: &[ShareSnapshot]| {
            let mut snapshots = snapshots.iter();
            let is_named =
                |known: &&ShareSnapshot| described(known).is_some_and(|said| said.name == name);
            snapshots.find(is_named).cloned()
        };
        for other in self.shares(call, &doing).await? {
            if self.names.id(&other).is_none() {
                continue;
            }
            let Some(found) = named(&self.of(call, &other.name, &doing).await?) else {
                continue;
            };
            if other.name == share.name {
                return listed(source.clone(), &share, &found);
            }
            let why = format!(
                "the shared folder `{}` has a snapshot of that name",
                other.name
            );
            return Err(Error::new(Kind::Conflict, doing).because(why));
        }
        call.check(&doing)?;
        let note = format!("{MARK}{} {name}", share.quota_value);
        let taken = self
            .client
            .take_share_snapshot(call, &share.name, &note)
            .await;
        match (named(&self.of(call, &share.name, &doing).await?), taken) {
            (Some(found), _) => listed(source.clone(), &share, &found),
            (None, Err(failure)) => Err(failure.while_doing(call, doing)),
            (None, Ok(())) => Err(changed(call, &doing)),
        }
    }

    async fn delete_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<(), Error> {
        let doing = format!("delete snapshot `{id}`");
        call.check(&doing)?;
        let (share, snapshot) = match self.snapshot(call, id, &doing).await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let (client, name) = (&self.client, &share.name);
        let deleted = client
            .delete_share_snapshot(call, name, &snapshot.time)
            .await;
        let left = self.of(call, name, &doing).await?;
        if left.iter().all(|known| known.time != snapshot.time) {
            return Ok(());
        }
        deleted.map_err(|failure| failure.while_doing(call, doing.clone()))?;
        Err(changed(call, &doing))
    }

    async fn get_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<Snapshot, Error> {
        let doing = format!("get snapshot `{id}`");
        let (share, snapshot) = self.snapshot(call, id, &doing).await?;
        let source = self
            .names
            .id(&share)
            .ok_or_else(|| Error::not_found(doing))?;
        listed(source, &share, &snapshot)
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        request: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let mut found = Vec::new();
        for share in self.shares(call, "list snapshots").await? {
            let Some(id) = self.names.id(&share) else {
                continue;
            };
            if filter.source.as_ref().is_some_and(|source| *source != id) {
                continue;
            }
            let snapshots = self.of(call, &share.name, "list snapshots").await?;
            for snapshot in snapshots.iter().filter(|known| described(known).is_some()) {
                found.push(listed(id.clone(), &share, snapshot)?);
            }
        }
        page(found, |snapshot| snapshot.id.as_str(), 's', request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_dsm_are_read_in_their_zone() {
        for (text, expected) in [
            ("GMT+00-1970.01.01-00.00.00", Some(0)),
            ("GMT+08-2022.01.14-19.18.29", Some(1_642_159_109)),
            ("GMT-05-2024.02.29-23.59.59", Some(1_709_269_199)),
            ("GMT+08-2022.13.14-19.18.29", None),
            ("GMT+08-2022.01.14", None),
            ("2022.01.14-19.18.29", None),
            ("GMT+08-../x", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
