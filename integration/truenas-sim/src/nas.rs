//! One simulated NAS: its release, its state, and the way of a call through it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::accounts::Accounts;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::failure::{EACCES, EBUSY, ENOTAUTHENTICATED, Failure};
use crate::faults::{Action, Faults};
use crate::jobs::Jobs;
use crate::methods::{self, Call, keys_have_lists};
use crate::rows::Rows;
use crate::session::{Login, Out, Protocol, Session};
use crate::table::{Access, Method, Table};
use crate::{Generation, migrate, random, validate};

/// A session of the normal level ends after 30 days, with the connection open.
const SESSION_AGE: Duration = Duration::from_hours(30 * 24);
/// 20 calls without login in 60 seconds, for each method and address.
const RATE: (usize, Duration) = (20, Duration::from_mins(1));

pub(crate) struct Nas {
    generation: RwLock<Generation>,
    pub(crate) backend: Arc<dyn Backend>,
    rows: Mutex<Rows>,
    /// Held while exports are made as the rows say, so that no older rows come after newer ones.
    pub(crate) exporting: tokio::sync::Mutex<()>,
    accounts: Mutex<Accounts>,
    pub(crate) jobs: Jobs,
    pub(crate) faults: Faults,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    sessions: Mutex<Vec<Weak<Session>>>,
    /// Counts up when every connection is to be cut.
    cuts: watch::Sender<u64>,
    boot: Mutex<String>,
    /// The binding of a login of 26: the certificate.
    pub(crate) end_point: Vec<u8>,
    rates: Mutex<BTreeMap<(String, IpAddr), VecDeque<Duration>>>,
    connections: AtomicU64,
}

impl std::fmt::Debug for Nas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nas")
            .field("generation", &self.generation())
            .finish_non_exhaustive()
    }
}

impl Nas {
    pub(crate) fn new(
        generation: Generation,
        backend: Arc<dyn Backend>,
        accounts: Accounts,
        end_point: Vec<u8>,
    ) -> Self {
        Self {
            generation: RwLock::new(generation),
            backend,
            rows: Mutex::new(migrate::first_rows(generation)),
            exporting: tokio::sync::Mutex::default(),
            accounts: Mutex::new(accounts),
            jobs: Jobs::default(),
            faults: Faults::default(),
            counters: Counters::default(),
            clock: Clock::default(),
            sessions: Mutex::default(),
            cuts: watch::Sender::new(0),
            boot: Mutex::new(random::uuid()),
            end_point,
            rates: Mutex::default(),
            connections: AtomicU64::new(0),
        }
    }

    pub(crate) fn generation(&self) -> Generation {
        *self
            .generation
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn boot_id(&self) -> String {
        self.boot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The NAS is upgraded: it restarts with another release and the same state.
    pub(crate) fn upgrade(&self, generation: Generation) {
        let before = self.generation();
        migrate::rows(&mut self.rows(), before, generation);
        if keys_have_lists(before) && !keys_have_lists(generation) {
            // `alembic/versions/25.04/2024-10-08_18-48_user_api_key.py` of TS-25.10.6.
            for key in self.accounts().keys.values_mut() {
                key.revoked |= key.allowed.is_some();
            }
        }
        *self
            .generation
            .write()
            .unwrap_or_else(PoisonError::into_inner) = generation;
        self.restart();
    }

    /// The middleware restarts: connections and jobs are gone, and job ids start again at 1.
    pub(crate) fn restart(&self) {
        self.jobs.clear();
        *self.boot.lock().unwrap_or_else(PoisonError::into_inner) = random::uuid();
        self.cut_connections();
    }

    pub(crate) fn cut_connections(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    pub(crate) fn cuts(&self) -> watch::Receiver<u64> {
        self.cuts.subscribe()
    }

    /// Every login of every open connection ends, as if it had become too old.
    pub(crate) fn expire_sessions(&self) {
        for session in self.open_sessions() {
            session.set_login(None);
        }
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn register(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|each| each.strong_count() > 0);
        sessions.push(Arc::downgrade(session));
    }

    pub(crate) fn open_sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter_map(Weak::upgrade).collect()
    }

    /// Sends an event to every session that may see it.
    pub(crate) fn emit(
        &self,
        kind: &str,
        collection: &str,
        id: &Value,
        fields: Option<&Value>,
        owner: Option<&str>,
    ) {
        for session in self.open_sessions() {
            let Some(login) = session.login() else {
                continue;
            };
            let own = owner.is_none_or(|owner| login.roles.is_none() || login.user == owner);
            if own {
                session.event(kind, collection, id, fields);
            }
        }
    }

    /// Runs one call as it came from a client.
    pub(crate) async fn call(
        self: &Arc<Self>,
        session: &Arc<Session>,
        name: &str,
        params: Vec<Value>,
        message_id: Value,
    ) -> Result<Value, Failure> {
        let generation = self.generation();
        let table = Table::of(generation);
        let method = match table.method(name) {
            Some(method) => method,
            None => self.leftover(session, table, name)?,
        };
        self.authorize(session, method).await?;
        let action = match session.protocol {
            Protocol::Local => None,
            _ => self.faults.take(name, &params),
        };
        if let Some(early) = self.before(session, action.as_ref()).await {
            return early;
        }
        let result = self
            .execute(session, method, params, message_id, action.clone())
            .await;
        after(action, result)
    }

    /// A method that was public in an older release, and is still there for those who may do everything.
    fn leftover(
        &self,
        session: &Session,
        table: &'static Table,
        name: &str,
    ) -> Result<&'static Method, Failure> {
        let unknown = || Failure::NoMethod(name.to_owned());
        let login = self.valid_login(session).ok_or_else(unknown)?;
        let generation = self.generation();
        match name.rsplit_once('.') {
            Some(("zfs.snapshot", verb)) if generation == Generation::V25_10 => {
                let method = table.method(&format!("pool.snapshot.{verb}"));
                match method {
                    Some(_) if login.roles.is_some() => {
                        Err(Failure::call(EACCES, "Not authorized"))
                    }
                    found => found.ok_or_else(unknown),
                }
            }
            // Its arguments are others now.
            Some(("service", verb @ ("start" | "stop" | "restart"))) if generation.is_26() => {
                Err(Failure::Exception {
                    class: "TypeError".to_owned(),
                    text: format!(
                        "ServiceService.{verb}() missing 1 required positional argument: 'options'"
                    ),
                })
            }
            _ => Err(unknown()),
        }
    }

    /// A call without login, faults or counting, for tests that prepare or look at the state.
    pub(crate) async fn local_call(
        self: &Arc<Self>,
        name: &str,
        params: Vec<Value>,
    ) -> Result<Value, Failure> {
        let (session, _events) = Session::new(
            random::uuid(),
            Protocol::Local,
            IpAddr::from([127, 0, 0, 1]),
            true,
        );
        session.set_login(Some(Login {
            user: "root".to_owned(),
            key: None,
            roles: None,
            at: self.clock.now(),
        }));
        session.legacy_jobs.store(false, Ordering::Relaxed);
        self.call(&Arc::new(session), name, params, Value::Null)
            .await
    }

    async fn execute(
        self: &Arc<Self>,
        session: &Arc<Session>,
        method: &'static Method,
        params: Vec<Value>,
        message_id: Value,
        action: Option<Action>,
    ) -> Result<Value, Failure> {
        let generation = self.generation();
        let call = Call {
            nas: Arc::clone(self),
            session: Arc::clone(session),
            generation,
            method,
            params,
            job: None,
        };
        if method.job.is_none() {
            let params = validate::arguments(generation, method, &call.params)?;
            self.pay_for_datasets(&method.name).await;
            let result = methods::run(Call { params, ..call }).await?;
            return Ok(self.odd(result));
        }
        // 25.10 and later: the call itself waits for the job, and wrong arguments are refused at once.
        let waits = session.waits_for_jobs();
        if waits {
            validate::arguments(generation, method, &call.params)?;
        }
        let id = self.jobs.start(call, &message_id, action)?;
        if waits {
            self.jobs.wait(id).await
        } else {
            Ok(json!(id))
        }
    }

    async fn pay_for_datasets(&self, method: &str) {
        let each = self.faults.settings().per_dataset_us;
        if each > 0 && method.starts_with("pool.dataset.") {
            let datasets = self
                .backend
                .datasets(&crate::backend::Scope::All)
                .await
                .unwrap_or_default();
            tokio::time::sleep(Duration::from_micros(each * datasets.len() as u64)).await;
        }
    }

    /// Adds an undocumented field with a `$date` object to every result that is an object.
    fn odd(&self, mut result: Value) -> Value {
        if self.faults.settings().oddities {
            let rows: Vec<&mut Value> = match &mut result {
                Value::Array(rows) => rows.iter_mut().collect(),
                one => vec![one],
            };
            for row in rows.into_iter().filter(|row| row.is_object()) {
                row["field_of_a_later_release"] = json!({"seen": self.clock.date()});
            }
        }
        result
    }

    async fn before(
        &self,
        session: &Session,
        action: Option<&Action>,
    ) -> Option<Result<Value, Failure>> {
        match action? {
            Action::Delay(milliseconds) => {
                tokio::time::sleep(Duration::from_millis(*milliseconds)).await;
            }
            Action::Hold => {
                let boot = self.boot_id();
                self.faults.hold().await;
                // A restart forgets the calls that it interrupts.
                if self.boot_id() != boot {
                    return Some(Err(Failure::Cut));
                }
            }
            Action::Fail { errno, reason } => return Some(Err(Failure::call(*errno, reason))),
            Action::Answer(value) => return Some(Ok(value.clone())),
            Action::Raw(text) => return Some(Err(Failure::Raw(text.clone()))),
            Action::CutBefore => {
                session.send(Out::Cut);
                return Some(Err(Failure::Cut));
            }
            Action::NotAuthenticated => return Some(Err(not_authenticated())),
            Action::ExpireSession => {
                session.set_login(None);
                return Some(Err(not_authenticated()));
            }
            Action::TooManyCalls => return Some(Err(Failure::TooManyCalls)),
            Action::HttpStatus(status) => return Some(Err(Failure::Http(*status))),
            Action::RateLimit => return Some(Err(Failure::call(EBUSY, "Rate Limit Exceeded"))),
            _ => {}
        }
        None
    }

    /// `middlewared/main.py`, `authorize_method_call`.
    async fn authorize(&self, session: &Session, method: &Method) -> Result<(), Failure> {
        let generation = self.generation();
        let login = self.valid_login(session);
        if let Some(login) = &login
            && !matches!(method.access, Access::NoLogin)
            && !self.key_allows(login, "CALL", &method.name)
        {
            return Err(Failure::call(EACCES, "Not authorized"));
        }
        let roles = match (&method.access, &login) {
            (Access::NoLogin, None) => return self.rate_limit(session, &method.name).await,
            (Access::NoLogin | Access::Login, Some(_)) => return Ok(()),
            (_, None) if generation.is_core() => {
                return Err(Failure::call(EACCES, "Not authenticated"));
            }
            (_, None) => return Err(not_authenticated()),
            (Access::Roles(needed), Some(login)) => (needed, login.roles.as_ref()),
        };
        let (needed, Some(given)) = roles else {
            return Ok(());
        };
        let given = Table::of(generation).expand_roles(given);
        if given.contains("FULL_ADMIN") || needed.iter().any(|role| given.contains(role)) {
            return Ok(());
        }
        Err(Failure::call(EACCES, "Not authorized"))
    }

    /// Whether the list of a key, which it has up to 24.10, covers this. REST is taken for calls of the same
    /// methods, which is not how a list names them there.
    pub(crate) fn key_allows(&self, login: &Login, method: &str, resource: &str) -> bool {
        let (Some(id), true) = (login.key, keys_have_lists(self.generation())) else {
            return true;
        };
        let accounts = self.accounts();
        let list = accounts.keys.get(&id).and_then(|key| key.allowed.as_ref());
        list.is_none_or(|list| list.iter().any(|entry| entry.covers(method, resource)))
    }

    /// A login that is too old, or whose key was revoked, is no login any more; the connection stays.
    fn valid_login(&self, session: &Session) -> Option<Login> {
        let login = session.login()?;
        let now = self.clock.now();
        let too_old =
            self.generation() >= Generation::V25_04 && now.saturating_sub(login.at) > SESSION_AGE;
        let accounts = self.accounts();
        let revoked = login.key.is_some_and(|id| {
            accounts
                .keys
                .get(&id)
                .is_none_or(|key| key.revoked || key.expires.is_some_and(|end| end <= now))
        });
        if session.protocol != Protocol::Local && (too_old || revoked) {
            session.set_login(None);
            return None;
        }
        Some(login)
    }

    async fn rate_limit(&self, session: &Session, method: &str) -> Result<(), Failure> {
        if self.generation() < Generation::V25_04 || method == "core.set_options" {
            return Ok(());
        }
        let exceeded = {
            let now = self.clock.now();
            let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
            let calls = rates.entry((method.to_owned(), session.peer)).or_default();
            while calls
                .front()
                .is_some_and(|at| now.saturating_sub(*at) > RATE.1)
            {
                calls.pop_front();
            }
            let exceeded = calls.len() >= RATE.0;
            if !exceeded {
                calls.push_back(now);
            }
            exceeded
        };
        if exceeded {
            tokio::time::sleep(Duration::from_millis(self.faults.settings().rate_limit_ms)).await;
            return Err(Failure::call(EBUSY, "Rate Limit Exceeded"));
        }
        Ok(())
    }
}

fn not_authenticated() -> Failure {
    Failure::call(ENOTAUTHENTICATED, "Not authenticated")
}

fn after(action: Option<Action>, result: Result<Value, Failure>) -> Result<Value, Failure> {
    match action {
        Some(Action::FailAfter { errno, reason }) => Err(Failure::call(errno, reason)),
        Some(Action::CutAfter) => Err(Failure::Cut),
        Some(Action::HttpStatusAfter(status)) => Err(Failure::Http(status)),
        _ => result,
    }
}
