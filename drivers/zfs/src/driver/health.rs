//! The health of volumes: of their pool, their dataset and their export.
//!
//! All of them are one exchange. A second one looks at exports that are recorded under another name than the
//! configuration gives, and a pool that does not answer is asked how it is. Both are for all volumes together.

use async_trait::async_trait;
use csi_types::said::{EXPORT_MISSING, NOT_EXPORTED};
use driver_core::{
    Call, Condition, ConditionKind, Conditions, Error, Health, HealthQuery, Kind, Lister, Page,
    PageRequest, Reason, VolumeId,
};

use super::ZfsDriver;
use crate::name::DatasetName;
use crate::observed::{Dataset, Observed, PoolState, Query, Request, State, VolumeKind};
use crate::plan::access::{Access, AccessChange};
use crate::plan::{Outcome, Verb, is_complete};
use crate::property::PropertyName;

/// The most volumes of one exchange. What a host runs for each of them then fits into one script.
const AT_ONCE: usize = 200;
/// The same without exports. Their names are arguments of one command, of which FreeBSD takes half a megabyte.
const NAMES_AT_ONCE: usize = 1_000;
/// With less than this left nothing of any size can be written, in bytes. ZFS keeps some room for itself.
const NO_ROOM: u64 = 1 << 20;
/// The number of looks at exports: one more for those that are recorded under another name.
const LOOKS: usize = 2;

const POOL_DEGRADED: Reason = Reason::constant("PoolDegraded");
const POOL_UNUSABLE: Reason = Reason::constant("PoolUnusable");
const POOL_FULL: Reason = Reason::constant("PoolFull");
const QUOTA_FULL: Reason = Reason::constant("QuotaFull");
const KEY_NOT_LOADED: Reason = Reason::constant("KeyNotLoaded");
const NOT_MOUNTED: Reason = Reason::constant("NotMountedOnStorage");
const EXPORT_UNKNOWN: Reason = Reason::constant("ExportUnknown");
const VOLUME_UNKNOWN: Reason = Reason::constant("VolumeUnknown");

/// A volume that is looked at.
struct Looked<'a> {
    id: &'a VolumeId,
    dataset: DatasetName,
    /// `None` as long as it is not known to exist.
    conditions: Option<Conditions>,
    /// Whether its export has to be looked at.
    asks: bool,
}

#[async_trait]
impl Health for ZfsDriver {
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let exports = query.depth.has_exports();
        let mut all = Vec::with_capacity(query.ids.len());
        let mut refused = Vec::new();
        for (place, id) in query.ids.iter().enumerate() {
            match self.layout().volume(id) {
                Ok(dataset) => all.push(Looked {
                    id,
                    dataset,
                    conditions: None,
                    asks: exports,
                }),
                // Beside others it must not hide them.
                Err(error) if query.ids.len() > 1 => refused.push((place, unknown(&error))),
                Err(error) => return Err(error),
            }
        }
        let mut found = Vec::with_capacity(query.ids.len());
        let most = if exports { AT_ONCE } else { NAMES_AT_ONCE };
        for some in all.chunks_mut(most) {
            found.extend(self.conditions_of(call, some).await?);
        }
        for (place, conditions) in refused {
            found.insert(place, Some(conditions));
        }
        Ok(found)
    }

    async fn candidates(&self, call: &Call, page: &PageRequest) -> Result<Page<VolumeId>, Error> {
        let listed = self.list_volumes(call, page).await?;
        Ok(listed.map(|volume| volume.id))
    }
}

impl ZfsDriver {
    async fn conditions_of(
        &self,
        call: &Call,
        all: &mut [Looked<'_>],
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let mut asked = State::default();
        for look in 0..LOOKS {
            let (request, counts) = self.health_request(&asked, all, look == 0)?;
            let seen = match self.backend.observe(call, &request).await {
                Ok(seen) => seen,
                Err(error) if look == 0 => return self.of_silent_pool(call, all, error).await,
                Err(error) => return Err(error),
            };
            self.heard();
            if look == 0 {
                let common = self.of_pool(&seen.pool)?;
                for volume in all.iter_mut() {
                    self.look_at_dataset(volume, &seen.pool, &common);
                }
            }
            asked = self.look_at_exports(all, &asked, seen, &counts);
            if all.iter().all(|volume| !volume.asks) {
                break;
            }
        }
        for volume in all.iter_mut().filter(|volume| volume.asks) {
            let why = "its record keeps changing".to_owned();
            add(
                volume,
                Condition::new(ConditionKind::Degraded, EXPORT_UNKNOWN, why),
            );
        }
        let conditions = all.iter_mut().map(|volume| volume.conditions.take());
        Ok(conditions.collect())
    }

    /// The request for the volumes, all of them the first time, and the number of its commands for each volume's export.
    fn health_request(
        &self,
        asked: &State,
        all: &[Looked<'_>],
        is_first: bool,
    ) -> Result<(Request, Vec<usize>), Error> {
        let shown = all.iter().filter(|volume| is_first || volume.asks);
        let datasets = shown.map(|volume| Query::Dataset(volume.dataset.clone()));
        let pool = Query::Pool(self.layout().volumes.clone());
        let mut request = Request::of(std::iter::once(pool).chain(datasets));
        request.properties = self.export.reads();
        let key = PropertyName::KEYSTATUS;
        if !request.properties.contains(&key) {
            request.properties.push(key);
        }
        let mut counts = Vec::with_capacity(all.len());
        for volume in all {
            if !volume.asks {
                counts.push(0);
                continue;
            }
            let export_ref = self.export_ref(volume.id, &volume.dataset);
            match export_ref.commands(asked) {
                Ok(commands) => {
                    counts.push(commands.len());
                    request.export.extend(commands);
                }
                // It may be recorded under a name that the configuration no longer gives.
                Err(error) if error.kind() == Kind::Invalid => counts.push(0),
                Err(error) => return Err(error),
            }
        }
        Ok((request, counts))
    }

    /// The answer where the pool, or its host, does not answer.
    async fn of_silent_pool(
        &self,
        call: &Call,
        all: &[Looked<'_>],
        error: Error,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let may_be_the_pool = matches!(
            error.kind(),
            Kind::Unreachable | Kind::Timeout | Kind::Internal
        );
        if !may_be_the_pool {
            return Err(error);
        }
        let volumes = &self.layout().volumes;
        let request = Request::of([Query::Pool(volumes.clone())]);
        let Ok(seen) = self.backend.observe(call, &request).await else {
            return Err(error);
        };
        if !seen.pool.pool(volumes).is_some_and(PoolState::is_unusable) {
            return Err(error);
        }
        let conditions = self.of_pool(&seen.pool)?;
        // Which of them exist cannot be seen, and all that do have it.
        Ok(vec![Some(conditions); all.len()])
    }

    /// The condition of the pool, which all volumes share.
    fn of_pool(&self, seen: &State) -> Result<Conditions, Error> {
        let volumes = &self.layout().volumes;
        let pool = volumes.pool();
        let condition = match seen.pool(volumes) {
            // Of a login that may not look at it the backend says so, once. What else can be seen is judged.
            Some(PoolState::Online | PoolState::Unknown) => None,
            Some(PoolState::Degraded) => Some(Condition::new(
                ConditionKind::Degraded,
                POOL_DEGRADED,
                format!("pool `{pool}` is degraded: see `zpool status` on the storage"),
            )),
            Some(PoolState::Unusable(how)) => Some(Condition::new(
                ConditionKind::Inaccessible,
                POOL_UNUSABLE,
                format!("pool `{pool}` is {how}: see `zpool status` on the storage"),
            )),
            None => {
                let doing = format!("look at the health of pool `{pool}`");
                return Err(Error::new(Kind::Unreachable, doing)
                    .because("the storage does not say how it is"));
            }
        };
        Ok(condition.into_iter().collect())
    }

    /// Judges the dataset. One that is missing, or not complete, is no volume.
    fn look_at_dataset(&self, volume: &mut Looked<'_>, seen: &State, common: &Conditions) {
        let found = seen.dataset(&volume.dataset);
        let found = found.filter(|found| is_complete(found) && found.kind == self.kind());
        let Some(found) = found else {
            volume.asks = false;
            return;
        };
        let mut conditions = common.clone();
        // Storage of a node is mounted where it is used, and there only.
        let is_served = self.settings.place.is_none();
        conditions.extend(unreadable(found, is_served));
        conditions.extend(full(found));
        volume.conditions = Some(conditions);
    }

    /// Judges the exports that were looked at, and returns what was seen of the pool.
    fn look_at_exports(
        &self,
        all: &mut [Looked<'_>],
        asked: &State,
        seen: Observed,
        counts: &[usize],
    ) -> State {
        let Observed { pool, export, .. } = seen;
        let mut answers = export.into_iter();
        let mut one = Observed {
            pool,
            export: Vec::new(),
            kept: None,
        };
        let owner = self.settings.policy.owner();
        for (volume, count) in all.iter_mut().zip(counts) {
            one.export = answers.by_ref().take(*count).collect();
            if !volume.asks {
                continue;
            }
            let verb = Access {
                kind: self.kind(),
                export_ref: self.export_ref(volume.id, &volume.dataset),
                change: AccessChange::Present(owner),
                fenced_by: None,
                is_strict: false,
            };
            let judged = match verb.plan(asked, &one, 0) {
                Ok(Outcome::Ask) => continue,
                Err(_) if *count == 0 && asked.dataset(&volume.dataset).is_none() => continue,
                judged => judged,
            };
            volume.asks = false;
            if let Some(condition) = of_export(judged) {
                add(volume, condition);
            }
        }
        one.pool
    }
}

fn add(volume: &mut Looked<'_>, condition: Condition) {
    if let Some(conditions) = &mut volume.conditions {
        conditions.add(condition);
    }
}

/// The condition of a volume that cannot be looked at.
fn unknown(error: &Error) -> Conditions {
    let condition = Condition::new(ConditionKind::Degraded, VOLUME_UNKNOWN, error.chain());
    std::iter::once(condition).collect()
}

/// The condition of an export by what would have to be done to it.
fn of_export(judged: Result<Outcome<()>, Error>) -> Option<Condition> {
    let missing = |why: String| Condition::new(ConditionKind::Inaccessible, EXPORT_MISSING, why);
    match judged {
        Ok(Outcome::Done(())) => None,
        Ok(_) => Some(missing(format!(
            "{NOT_EXPORTED}: the controller repairs it within ten minutes"
        ))),
        Err(error) => match error.kind() {
            // Another connection exports it.
            Kind::NotFound => None,
            Kind::Busy | Kind::Conflict | Kind::Invalid => Some(missing(error.chain())),
            _ => Some(Condition::new(
                ConditionKind::Degraded,
                EXPORT_UNKNOWN,
                error.chain(),
            )),
        },
    }
}

/// Why nothing of a dataset can be read: its key, or a filesystem that is not mounted.
fn unreadable(dataset: &Dataset, is_served: bool) -> Option<Condition> {
    let is = |name: PropertyName, text: &str| dataset.properties.get(&name) == Some(text);
    let name = &dataset.name;
    if is(PropertyName::KEYSTATUS, "unavailable") {
        return Some(Condition::new(
            ConditionKind::Inaccessible,
            KEY_NOT_LOADED,
            format!("the key of `{name}` is not loaded: `zfs load-key`, then `zfs mount`"),
        ));
    }
    let should_be = dataset.mountpoint().is_some() && is(PropertyName::CANMOUNT, "on");
    let is_filesystem = dataset.kind == VolumeKind::Filesystem;
    let is_missing = is_filesystem && should_be && is(PropertyName::MOUNTED, "no");
    (is_served && is_missing).then(|| {
        Condition::new(
            ConditionKind::Inaccessible,
            NOT_MOUNTED,
            format!("`{name}` is not mounted on the storage: see `zfs mount`"),
        )
    })
}

/// Whether nothing more can be written to a dataset, and why.
fn full(dataset: &Dataset) -> Option<Condition> {
    let number = |name| dataset.properties.number(&name);
    if number(PropertyName::AVAILABLE)? >= NO_ROOM {
        return None;
    }
    let used = number(PropertyName::REFERENCED).unwrap_or_default();
    let reserved = number(PropertyName::REFRESERVATION).unwrap_or_default();
    let degraded = |reason, text: String| Condition::new(ConditionKind::Degraded, reason, text);
    match dataset.size() {
        // What it may hold is reserved for it.
        Some(size) if dataset.kind == VolumeKind::Zvol && reserved >= size => None,
        Some(size) if dataset.kind == VolumeKind::Filesystem && used + NO_ROOM > size => {
            Some(degraded(
                QUOTA_FULL,
                format!(
                    "it holds {used} of the {size} bytes that it may: delete something, or let it grow"
                ),
            ))
        }
        _ => Some(degraded(
            POOL_FULL,
            format!(
                "pool `{}`, or a quota above the volume, has no room left",
                dataset.name.pool()
            ),
        )),
    }
}
