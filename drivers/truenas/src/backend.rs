//! Datasets, zvols and snapshots through the API of one NAS.
//!
//! A question is one exchange: all its calls are sent at once. A plan is as many as its steps depend on
//! each other; what follows it is answered by what the steps answered, or looked at while they run where
//! they do not touch it. Nothing is listed to answer a question about one volume.
//!
//! The NAS has no locks for us: plans of one dataset take their turn within this process. Whatever another process
//! does is found by a guard, by the call that fails, or by the look after it.

mod guards;
mod known;
mod list;
mod making;
pub(crate) mod native;
mod pool_rows;
mod pool_states;
mod reads;
mod steps;
mod touched;
mod waves;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Instant;

use async_trait::async_trait;
use driver_core::config::Finding;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Error, Kind};
use driver_zfs::backend::{
    Backend, Base, Incoming, Interrupted, ListQuery, Listed, Serves, Tried, lists_no_blocks,
    receives_nothing, sends_nothing, without_first_try,
};
use driver_zfs::export::Opaque;
use driver_zfs::name::{DatasetName, Since, SnapshotRef};
use driver_zfs::observed::{Observed, Query, Request, VolumeKind};
use driver_zfs::step::{Failed, FirstTry, Plan};
use tokio::sync::OwnedMutexGuard;

use crate::Dialect;
use crate::api::nfs::Nfs4Client;
use crate::api::{self, JobRequest};
use crate::client::{Client, Clients};
use crate::command::{Answer, Command};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::export::Many;
use crate::failure;
use crate::round::Rounds;
use crate::settings::Settings;
use crate::wire::Answered;

use known::Known;
use making::Makings;
use reads::Reads;
use steps::Run;
pub(crate) use waves::{waves, worst};

/// The sockets of this process: connections with the same NAS and login share one.
static CLIENTS: LazyLock<Clients> = LazyLock::new(Clients::default);

/// The locks of changes that run, by NAS and dataset.
static LOCKS: LazyLock<Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>> =
    LazyLock::new(Mutex::default);

/// The storage of a NAS, through its API.
#[derive(Debug)]
pub(crate) struct Api {
    nas: Nas,
    identity: BackendIdentity,
    /// The kind of share of new volumes, as the NAS wants to know it.
    share_type: Option<&'static str>,
    makings: Makings,
}

/// A NAS, and calls with the time of a verb.
#[derive(Debug, Clone)]
pub(crate) struct Nas {
    client: Client,
    address: String,
    /// The log has it that the login may not look at pools.
    hides_pools: Arc<AtomicBool>,
}

/// The rows of a list that are kept.
pub(crate) trait Keep<T> {
    /// Takes a row, and says whether it stays.
    fn keep(&mut self, row: T) -> bool;
}

// === impl Nas ===

impl Nas {
    /// A NAS. Nothing is opened yet.
    pub(crate) fn new(settings: Settings) -> Result<Self, ApiError> {
        let address = settings.address();
        let client = CLIENTS.get(settings)?;
        Ok(Self {
            client,
            address,
            hides_pools: Arc::default(),
        })
    }

    /// Its address, as a user would write it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Whether the login is an API key.
    pub(crate) fn logs_in_by_key(&self) -> bool {
        self.client.logs_in_by_key()
    }

    /// The dialect of the NAS.
    pub(crate) async fn dialect(&self, call: &Call) -> Result<Dialect, Error> {
        let doing = || format!("connect to {}", self.address);
        match tokio::time::timeout(call.remaining(), self.client.dialect()).await {
            Ok(Ok(dialect)) => Ok(dialect),
            // Which address it is stands in the error.
            Ok(Err(error)) => Err(failure::understood("reach the NAS", &error)),
            Err(_) => Err(Error::new(Kind::Timeout, doing())),
        }
    }

    /// The release that answers, its address and its dialect.
    pub(crate) async fn describe(&self, call: &Call) -> Vec<Finding> {
        let Ok(dialect) = self.dialect(call).await else {
            return Vec::new();
        };
        vec![Finding::remark(format!(
            "{} answers at {} by {}, as the generation {}",
            dialect.version().text(),
            self.address,
            dialect.transport(),
            dialect.generation()
        ))]
    }

    /// The turn of a change of something, within this process.
    pub(crate) async fn turn(
        &self,
        call: &Call,
        of: &str,
    ) -> Result<OwnedMutexGuard<()>, ApiError> {
        let lock = lock_of(&format!("{} {of}", self.address));
        let turn = tokio::time::timeout(call.remaining(), lock.lock_owned()).await;
        turn.map_err(|_| ApiError::new(ApiKind::Busy, format!("others are changing {of}")))
    }

    /// The same, if nothing has it.
    fn turn_at_once(&self, of: &str) -> Option<OwnedMutexGuard<()>> {
        let lock = lock_of(&format!("{} {of}", self.address));
        lock.try_lock_owned().ok()
    }

    /// The same, however long it takes to come.
    pub(crate) fn turn_in_the_end(
        &self,
        of: &str,
    ) -> impl Future<Output = OwnedMutexGuard<()>> + Send + use<> {
        lock_of(&format!("{} {of}", self.address)).lock_owned()
    }

    /// The question for clients of NFS 4 that hold anything open, which all callers with this login share.
    pub(crate) fn holders(&self) -> &Rounds<Vec<Nfs4Client>> {
        self.client.holders()
    }

    /// The answers to looks. Many of one kind are asked in as few calls as one.
    pub(crate) async fn answers(
        &self,
        call: &Call,
        dialect: &Dialect,
        commands: &[Opaque],
    ) -> Result<Vec<Opaque>, Error> {
        if let Some(many) = Many::of(commands)? {
            let answers = self.look_at_many(call, dialect, &many).await?;
            return Ok(answers.into_iter().map(Opaque::new).collect());
        }
        let looks = commands.iter().map(|command| async move {
            let answer = match command.get()? {
                Command::Look(look) => self.look(call, dialect, look).await?,
                Command::Change(_) => Answer::Done,
            };
            Ok(Opaque::new(answer))
        });
        futures_util::future::try_join_all(looks).await
    }

    /// A call that changes nothing: it is repeated once where its answer was lost.
    pub(crate) async fn read<R: api::Request>(
        &self,
        call: &Call,
        request: &R,
    ) -> Result<R::Answer, ApiError> {
        match self.within(call, self.client.call(request)).await {
            Err(error) if matches!(error.kind(), ApiKind::NotSent | ApiKind::UnknownOutcome) => {
                self.within(call, self.client.call(request)).await
            }
            outcome => outcome,
        }
        .map_err(ApiError::nothing_done)
    }

    /// A list that is read row by row. `keep` says of each whether it stays in memory; it begins anew where the
    /// call is repeated.
    pub(crate) async fn read_rows<R, T, K>(
        &self,
        call: &Call,
        request: &R,
        keep: impl Fn() -> K,
    ) -> Result<K, ApiError>
    where
        R: api::Request<Answer = Vec<T>>,
        T: serde::de::DeserializeOwned,
        K: Keep<T>,
    {
        let read = |answered: Answered, largest: usize| {
            let mut kept = keep();
            answered.read_rows(largest, &mut |row| kept.keep(row))?;
            Ok(kept)
        };
        match self
            .within(call, self.client.call_reading(request, read))
            .await
        {
            Err(error) if matches!(error.kind(), ApiKind::NotSent | ApiKind::UnknownOutcome) => {
                let again = self.client.call_reading(request, read);
                self.within(call, again).await
            }
            outcome => outcome,
        }
        .map_err(ApiError::nothing_done)
    }

    /// The same for an answer that takes the NAS long: as long as the socket allows.
    pub(crate) async fn read_rows_slowly<R, T, K>(&self, request: &R) -> Result<K, ApiError>
    where
        R: api::Request<Answer = Vec<T>>,
        T: serde::de::DeserializeOwned,
        K: Keep<T> + Default,
    {
        let read = |answered: Answered, largest: usize| {
            let mut kept = K::default();
            answered.read_rows(largest, &mut |row| kept.keep(row))?;
            Ok(kept)
        };
        match self.client.call_reading(request, read).await {
            Err(error) if matches!(error.kind(), ApiKind::NotSent | ApiKind::UnknownOutcome) => {
                self.client.call_reading(request, read).await
            }
            outcome => outcome,
        }
        .map_err(ApiError::nothing_done)
    }

    /// A call that changes something: it is repeated once where it was never sent.
    pub(crate) async fn write<R: api::Request>(
        &self,
        call: &Call,
        request: &R,
    ) -> Result<R::Answer, ApiError> {
        match self.within(call, self.client.call(request)).await {
            Err(error) if error.kind() == ApiKind::NotSent => {
                self.within(call, self.client.call(request)).await
            }
            outcome => outcome,
        }
    }

    /// The same for what was true a moment ago: it is not repeated, as there may be a new connection only much later.
    pub(crate) async fn write_now<R: api::Request>(
        &self,
        call: &Call,
        request: &R,
    ) -> Result<R::Answer, ApiError> {
        self.within(call, self.client.call(request)).await
    }

    /// A job, to its end.
    pub(crate) async fn run<R: JobRequest>(
        &self,
        call: &Call,
        request: &R,
    ) -> Result<(), ApiError> {
        self.within(call, self.client.run(request)).await
    }

    async fn within<T>(
        &self,
        call: &Call,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        match tokio::time::timeout(call.remaining(), work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ApiError::new(
                ApiKind::UnknownOutcome,
                "it was not answered within the time of this call",
            )),
        }
    }
}

// === impl Api ===

impl Api {
    /// The storage of `nas`.
    pub(crate) fn new(nas: Nas, identity: BackendIdentity) -> Self {
        Self {
            nas,
            identity,
            share_type: None,
            makings: Makings::default(),
        }
    }

    /// Says by what new volumes are shared: `SMB` sets their permissions up for it.
    #[must_use]
    pub(crate) fn sharing_by(mut self, share_type: &'static str) -> Self {
        self.share_type = Some(share_type);
        self
    }

    /// The dialect of the NAS. A NAS that keeps no properties of users cannot hold volumes.
    async fn dialect(&self, call: &Call) -> Result<Dialect, Error> {
        let dialect = self.nas.dialect(call).await?;
        if dialect.has_user_properties() {
            return Ok(dialect);
        }
        let doing = format!("use {} by its API alone", self.nas.address);
        let why = format!("{} keeps no properties of users", dialect.version().text());
        Err(Error::new(Kind::Unsupported, doing)
            .because(why)
            .advise("use the driver of the same name without `api`, with an sshConnection"))
    }

    /// The turn of a plan, and whether it had to wait for it.
    async fn turn(
        &self,
        call: &Call,
        plan: &DatasetName,
    ) -> Result<(OwnedMutexGuard<()>, bool), Failed> {
        if let Some(turn) = self.nas.turn_at_once(plan.as_str()) {
            return Ok((turn, false));
        }
        let turn = self.nas.turn(call, plan.as_str()).await;
        let turn = turn.map_err(|_| {
            Failed::terminal(Error::new(
                Kind::Timeout,
                format!("wait for others at {plan}"),
            ))
        })?;
        Ok((turn, true))
    }
}

fn lock_of(name: &str) -> Arc<tokio::sync::Mutex<()>> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lock) = locks.get(name).and_then(Weak::upgrade) {
        return lock;
    }
    locks.retain(|_, lock| lock.strong_count() > 0);
    let lock = Arc::default();
    locks.insert(name.to_owned(), Arc::downgrade(&lock));
    lock
}

/// The commands that are not answered yet.
fn lacking(commands: &[Opaque], answers: &[Option<Opaque>]) -> Vec<Opaque> {
    let pairs = commands.iter().zip(answers);
    let lacking = pairs.filter(|(_, answer)| answer.is_none());
    lacking.map(|(command, _)| command.clone()).collect()
}

/// All answers, with those that were looked for in the places of the missing ones.
fn filled(answers: Vec<Option<Opaque>>, looked: Vec<Opaque>) -> Vec<Opaque> {
    let mut looked = looked.into_iter();
    let answers = answers.into_iter();
    answers
        .filter_map(|answer| answer.or_else(|| looked.next()))
        .collect()
}

impl Serves for Api {
    type Command = Command;
    type Output = Answer;
}

#[async_trait]
impl Backend for Api {
    fn identity(&self) -> BackendIdentity {
        self.identity.clone()
    }

    async fn describe(&self, call: &Call, _kind: VolumeKind) -> Vec<Finding> {
        let mut all = self.nas.describe(call).await;
        if !all.is_empty() {
            all.extend(self.nas.remark_on_pools(call).await);
        }
        all
    }

    async fn observe(&self, call: &Call, request: &Request) -> Result<Observed, Error> {
        let dialect = self.dialect(call).await?;
        let look = self.makings.look();
        let mut known = Known::of(request);
        let queries = known.missing(&request.queries);
        let wanted = Reads::of(&queries, &request.properties, request.is_new);
        let wanted = wanted.without(&known.rows);
        let answers = known.exports(&request.export);
        let commands = lacking(&request.export, &answers);
        let (rows, looked, states) = tokio::try_join!(
            self.nas.pool_rows(call, &dialect, &wanted, &known.rows),
            self.nas.answers(call, &dialect, &commands),
            self.nas.pool_states(call, &dialect, &request.queries),
        )?;
        known.lay(&queries, rows);
        // By now it may have its marks, and a moment ago it had none.
        let mut made = look.made();
        made.retain(|name| known.rows.may_be_a_part(name));
        let copying = made.iter().map(ToString::to_string);
        known.rows.copying.extend(copying);
        let mut pool = known.rows.state(&request.queries)?;
        for (of, state) in states {
            pool.set_pool(&of, state);
        }
        let export = filled(answers, looked);
        known.lay_exports(&request.export, &export);
        Ok(Observed {
            pool,
            export,
            kept: Some(Opaque::new(known)),
        })
    }

    async fn apply(&self, call: &Call, plan: &Plan, then: &Request) -> Result<Observed, Failed> {
        let dialect = self.dialect(call).await.map_err(Failed::terminal)?;
        call.changing();
        let (_turn, has_waited) = self.turn(call, &plan.lock).await?;
        let looked = Known::began(then).filter(|_| !has_waited);
        let checked = self.check(call, &dialect, &plan.guards, looked).await?;
        let run = Run::new(self, call, &dialect);
        let applied = Box::pin(self.applied(call, &dialect, &run, plan, (then, checked))).await;
        applied.map_err(|failed| failed.after_change(run.is_done()))
    }

    async fn try_first(
        &self,
        call: &Call,
        request: &Request,
        _first: &FirstTry,
    ) -> Result<Tried, Failed> {
        without_first_try(self, call, request).await
    }

    fn asks_one_by_one(&self) -> bool {
        true
    }

    fn reserves_by_size(&self) -> bool {
        true
    }

    fn refuses_groups(&self) -> Option<&'static str> {
        Some(steps::NO_GROUPS)
    }

    fn streams(&self) -> bool {
        false
    }

    async fn send(
        &self,
        _call: &Call,
        _of: &SnapshotRef,
        _since: Option<&Base>,
        _resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        Err(sends_nothing())
    }

    fn lists_blocks(&self) -> bool {
        false
    }

    async fn send_records(
        &self,
        _call: &Call,
        _of: &SnapshotRef,
        _since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error> {
        Err(lists_no_blocks())
    }

    async fn freed_since(
        &self,
        _call: &Call,
        _of: &SnapshotRef,
        _txg: u64,
        _block: u64,
    ) -> Result<Vec<Range<u64>>, Error> {
        Err(lists_no_blocks())
    }

    async fn receive(
        &self,
        _call: &Call,
        _incoming: &Incoming,
        _stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        Err(receives_nothing())
    }

    async fn list(&self, call: &Call, query: &ListQuery) -> Result<Listed, Error> {
        let dialect = self.dialect(call).await?;
        Box::pin(self.listed(call, &dialect, query)).await
    }
}

impl Api {
    /// Does the steps, and looks at what they do not touch while they run, where that is not known. The guards are
    /// known to hold since `checked`.
    async fn applied(
        &self,
        call: &Call,
        dialect: &Dialect,
        run: &Run<'_>,
        plan: &Plan,
        (then, checked): (&Request, Instant),
    ) -> Result<Observed, Failed> {
        // An empty plan is there to look at all of it in turn.
        let mut known = if plan.is_empty() {
            Known::new()
        } else {
            Known::of(then)
        };
        let looks = |known: &Known, queries: &[Query], is_new: bool| {
            Reads::of(queries, &then.properties, is_new).without(&known.rows)
        };
        let changes_exports = touched::exports(plan);
        let mut answers = known.exports(&then.export);
        let commands = if changes_exports {
            Vec::new()
        } else {
            lacking(&then.export, &answers)
        };
        let mut early = known.missing(&then.queries);
        early.retain(|query| !touched::is_touched(plan, query));
        let wanted = looks(&known, &early, then.is_new);
        let (done, rows, looked) = tokio::join!(
            run.all(plan, checked),
            self.nas.pool_rows(call, dialect, &wanted, &known.rows),
            self.nas.answers(call, dialect, &commands),
        );
        done?;
        let rows = rows.map_err(Failed::terminal)?;
        let looked = looked.map_err(Failed::terminal)?;
        known.lay(&early, rows);
        known.follow(plan, run);
        answers = if changes_exports {
            vec![None; then.export.len()]
        } else {
            filled(answers, looked).into_iter().map(Some).collect()
        };
        let commands = lacking(&then.export, &answers);
        let doomed = run.not_proved_gone();
        let queries = [then.queries.as_slice(), &doomed].concat();
        let late = known.missing(&queries);
        let wanted = looks(&known, &late, false);
        let (rows, looked) = tokio::try_join!(
            self.nas.pool_rows(call, dialect, &wanted, &known.rows),
            self.nas.answers(call, dialect, &commands),
        )
        .map_err(Failed::terminal)?;
        known.lay(&late, rows);
        let left = known.rows.state(&doomed).map_err(Failed::terminal)?;
        run.are_gone(&left)?;
        let export = filled(answers, looked);
        known.lay_exports(&then.export, &export);
        let pool = known.rows.state(&then.queries).map_err(Failed::terminal)?;
        let kept = Some(Opaque::new(known));
        Ok(Observed { pool, export, kept })
    }
}
