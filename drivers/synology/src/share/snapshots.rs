//! Snapshots of shared folders. Their id is `/share/<shared folder>/<time>`; their description says that
//! they are of CSI, the size, and the name.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use driver_core::naming::snapshot_leaf;
use driver_core::{
    Call, CreateSnapshot, DeleteSnapshot, Error, GetSnapshot, Kind, Page, PageRequest, Snapshot,
    SnapshotFilter, SnapshotId, Snapshots, VolumeId, civil,
};
use futures_util::FutureExt as _;
use futures_util::future::try_join;

use super::api::{Share, ShareSnapshot};
use super::{MIB, Shares, changed};
use crate::api::few_at_once;
use crate::error::{Failure, unless_done};
use crate::page::page;

const MARK: &str = "csi ";
/// The longest name; how long a description may be is not known.
const LONGEST_NAME: usize = 64;

/// The text of the description of a snapshot of ours.
struct Described<'a> {
    mebibytes: u64,
    name: &'a str,
}

fn described(snapshot: &ShareSnapshot) -> Option<Described<'_>> {
    let (size, name) = snapshot.desc.strip_prefix(MARK)?.split_once(' ')?;
    let mebibytes = size.parse().ok()?;
    Some(Described { mebibytes, name })
}

/// Seconds since 1970 of a time such as `GMT+08-2022.01.14-19.18.29`. How DSM writes a zone with half an hour is not
/// known: `+05:30`, `+05.30` and `+0530` are read.
fn seconds(time: &str) -> Option<u64> {
    let rest = time.strip_prefix("GMT")?;
    let (sign, rest) = rest.split_at_checked(1)?;
    let sign = match sign {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (zone, rest) = rest.split_once('-')?;
    let (hours, minutes) = zone.split_at_checked(2)?;
    let minutes = minutes.trim_start_matches([':', '.']);
    let minutes = if minutes.is_empty() { "0" } else { minutes };
    let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
    let zone = sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60);
    let (date, clock) = rest.split_once('-')?;
    let numbers = |text: &str| -> Option<[i64; 3]> {
        let parsed: Vec<i64> = text
            .split('.')
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        parsed.try_into().ok()
    };
    civil::seconds(numbers(date)?, numbers(clock)?, zone)
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
        match self.find_snapshot(call, id, doing).await? {
            (Some(share), Some(found)) => Ok((share, found)),
            _ => Err(missing()),
        }
    }

    async fn find_snapshot(
        &self,
        call: &Call,
        id: &SnapshotId,
        doing: &str,
    ) -> Result<(Option<Share>, Option<ShareSnapshot>), Error> {
        let Some((name, time)) = parts(id) else {
            return Ok((None, None));
        };
        let both = try_join(
            self.client.share(call, &name),
            self.client.share_snapshots(call, &name),
        );
        let (share, snapshots) = both
            .await
            .map_err(|failure| failure.while_doing(call, doing))?;
        let share = share.filter(|share| share.name == name && self.names.id(share).is_some());
        let mut snapshots = snapshots.into_iter().filter(|_| share.is_some());
        let found = snapshots.find(|known| known.time == time);
        Ok((share, found))
    }

    /// The snapshots of each of these shared folders, a few at once.
    async fn of_each<'a>(
        &self,
        call: &Call,
        shares: impl IntoIterator<Item = &'a Share>,
        doing: &str,
    ) -> Result<Vec<(&'a Share, Vec<ShareSnapshot>)>, Error> {
        let mut asked = Vec::new();
        for share in shares {
            let answer = async move {
                let snapshots = self.client.share_snapshots(call, &share.name).await?;
                Ok::<_, Failure>((share, snapshots))
            };
            asked.push(answer.boxed());
        }
        let all = few_at_once(asked).await;
        all.map_err(|failure| failure.while_doing(call, doing))
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
        let snapshots = snapshots.map_err(|failure| failure.while_doing(call, doing))?;
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
        let _turn = self.turn(call, &doing).await?;
        let shares = self.shares(call, &doing).await?;
        let ours = shares.iter().filter(|share| self.names.id(share).is_some());
        let ours: Vec<&Share> = ours.collect();
        let mut sources = ours.iter().filter(|share| share.is_whole());
        let share = sources.find(|share| self.names.id(share).as_ref() == Some(source));
        let share = *share.ok_or_else(|| {
            Error::not_found(&doing).because(format!("there is no volume `{source}`"))
        })?;
        let named = |snapshots: &[ShareSnapshot]| {
            let mut snapshots = snapshots.iter();
            let is_named =
                |known: &&ShareSnapshot| described(known).is_some_and(|said| said.name == name);
            snapshots.find(is_named).cloned()
        };
        if let Some(found) = named(&self.of(call, &share.name, &doing).await?) {
            return listed(source.clone(), share, &found);
        }
        // DSM knows snapshots by folder; a name is that of one volume only, so a new one is looked for in all.
        let others = ours.into_iter().filter(|other| other.name != share.name);
        for (other, snapshots) in self.of_each(call, others, &doing).await? {
            if named(&snapshots).is_some() {
                let why = format!(
                    "the shared folder `{}` has a snapshot of that name",
                    other.name
                );
                return Err(Error::new(Kind::Conflict, doing).because(why));
            }
        }
        call.check(&doing)?;
        let note = format!("{MARK}{} {name}", share.quota());
        let taken = self
            .client
            .take_share_snapshot(call, &share.name, &note)
            .await;
        match (named(&self.of(call, &share.name, &doing).await?), taken) {
            (Some(found), _) => listed(source.clone(), share, &found),
            (None, Err(failure)) => Err(failure.while_doing(call, doing)),
            (None, Ok(())) => Err(changed(&doing)),
        }
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let id = request.id;
        let doing = format!("delete snapshot `{id}`");
        if parts(id).is_none() {
            return Ok(());
        }
        let _turn = self.turn(call, &doing).await?;
        call.check(&doing)?;
        let (share, snapshot) = match self.find_snapshot(call, id, &doing).await? {
            (Some(share), Some(snapshot)) => (share, snapshot),
            (Some(_), None) => return Ok(()),
            (None, _) => return self.check_nas(call, &doing).await,
        };
        let (client, name) = (&self.client, &share.name);
        let deleted = client.delete_share_snapshot(call, name, &snapshot.time);
        let deleted = deleted.await;
        let look = async {
            let left = client.share_snapshots(call, name).await?;
            Ok::<_, Failure>(left.iter().all(|known| known.time != snapshot.time))
        };
        unless_done(call, &doing, deleted, look).await
    }

    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let id = request.id;
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
        let doing = "list snapshots";
        let mut shares = self.shares(call, doing).await?;
        shares.retain(|share| self.names.id(share).is_some());
        if shares.is_empty() {
            self.check_nas(call, doing).await?;
        }
        if let Some(source) = &filter.source {
            shares.retain(|share| self.names.id(share).as_ref() == Some(source));
        }
        let mut found = Vec::new();
        for (share, snapshots) in self.of_each(call, &shares, doing).await? {
            let Some(id) = self.names.id(share) else {
                continue;
            };
            for snapshot in snapshots.iter().filter(|known| described(known).is_some()) {
                found.push(listed(id.clone(), share, snapshot)?);
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
            ("GMT+05:30-2022.01.14-16.48.29", Some(1_642_159_109)),
            ("GMT+0530-2022.01.14-16.48.29", Some(1_642_159_109)),
            ("GMT+08-2022.13.14-19.18.29", None),
            ("GMT+08-2022.01.14", None),
            ("2022.01.14-19.18.29", None),
            ("GMT+08-../x", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
