//! The client of one NAS: its APIs, the session, and the calls.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driver_core::Call;
use driver_core::byte_budget::{ByteBudget, SMALL_ANSWER};
use reqwest::header::{CONTENT_TYPE, COOKIE, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::answer::{self, Unread};
use crate::config::{Connection, Protocol};
use crate::error::{Code, Failure};
use crate::lenient;
use crate::login;

/// The time limit of one answer. compat: "Synology": as democratic-csi.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The time limit of a connection attempt. A disk that sleeps does not delay it, and a NAS that is off is known soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of changing operations that run at once without `serialize`. Sixteen creations at once were measured on
/// DSM 7.1.1 (jasoncheng7115/jt-pve-storage-synology, docs/TESTING.md), which does them one after the other.
const PARALLEL: usize = 16;
/// The largest answer before the login.
const LARGEST_AT_LOGIN: usize = 256 << 10;
/// The largest answer about one object.
const LARGEST: usize = 512 << 10;
/// The largest list: a LUN takes about 1 KiB of it, a snapshot half of that.
const LARGEST_LIST: usize = 8 << 20;
/// What a large list takes of the memory for answers: itself, and what it is read into.
const LARGE_ANSWER: usize = 3 * LARGEST_LIST;
/// The number of lists that are read at once: what one NAS sends takes no more memory than these.
const LISTS: usize = 4;
/// From this age on a session that has never worked may have ended, too: DSM ends one after 15 idle minutes.
const OLD: Duration = Duration::from_mins(10);

const AUTH: &str = "SYNO.API.Auth";
/// The APIs that are used, and the newest version of each that is known here.
const APIS: [(&str, u64); 8] = [
    (AUTH, 6),
    ("SYNO.Core.ISCSI.LUN", 1),
    ("SYNO.Core.ISCSI.Target", 1),
    ("SYNO.Core.Storage.Volume", 1),
    ("SYNO.Core.Share", 1),
    ("SYNO.Core.Share.Permission", 1),
    ("SYNO.Core.Share.Snapshot", 2),
    ("SYNO.Core.FileServ.NFS.SharePrivilege", 1),
];

/// A NAS. Clones are not needed: a driver has one.
pub(crate) struct Client {
    connection: Connection,
    http: reqwest::Client,
    /// One for each operation that changes anything.
    turns: Semaphore,
    /// One for each list that is being read.
    lists: Semaphore,
    /// For large answers.
    budget: ByteBudget,
    /// Held while rules of NFS are changed: DSM refuses some of several changes at once
    /// (SynologyOpenSource/synology-csi, issue 139).
    rules: Mutex<()>,
    session: Mutex<Option<Arc<Session>>>,
}

/// A session, and the APIs of the NAS at its start.
struct Session {
    sid: SecretString,
    token: Option<SecretString>,
    apis: BTreeMap<String, Api>,
    since: Instant,
    /// Where it was opened, and is closed.
    runtime: Handle,
    /// DSM has answered something else than "no permission" to it.
    has_worked: AtomicBool,
}

/// An API of the NAS.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Api {
    #[serde(default, deserialize_with = "lenient::text")]
    path: String,
    #[serde(default, deserialize_with = "lenient::number")]
    max_version: Option<u64>,
    #[serde(default, deserialize_with = "lenient::text")]
    request_format: String,
}

/// One call of the web API. Never prints a value.
pub(crate) struct Request {
    api: &'static str,
    method: &'static str,
    version: Option<u64>,
    largest: usize,
    params: BTreeMap<String, Value>,
}

/// The result of a login.
#[derive(Default, Deserialize)]
struct LoggedIn {
    #[serde(default, deserialize_with = "lenient::text")]
    sid: String,
    #[serde(default, deserialize_with = "lenient::text")]
    synotoken: String,
}

// === impl Request ===

impl Request {
    pub(crate) fn new(api: &'static str, method: &'static str) -> Self {
        Self {
            api,
            method,
            version: None,
            largest: LARGEST,
            params: BTreeMap::new(),
        }
    }

    /// Its answer is a list of everything that the NAS has.
    #[must_use]
    pub(crate) fn long(mut self) -> Self {
        self.largest = LARGEST_LIST;
        self
    }

    /// The name of the call, such as `SYNO.Core.ISCSI.LUN list`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.api, self.method)
    }

    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.params.insert(key.to_owned(), value.into());
        self
    }

    /// At this version, where a newer one is another method.
    #[must_use]
    pub(crate) fn at_version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    fn form(&self, entry: &Api, version: u64) -> String {
        let json = entry.request_format == "JSON";
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("api", self.api);
        form.append_pair("version", &version.to_string());
        form.append_pair("method", self.method);
        for (key, value) in &self.params {
            match value {
                // A text that looks like a number would be read as one.
                Value::String(text) if !json => form.append_pair(key, text),
                value => form.append_pair(key, &value.to_string()),
            };
        }
        form.finish()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&String> = self.params.keys().collect();
        write!(f, "{} {} {keys:?}", self.api, self.method)
    }
}

// === impl Client ===

impl Client {
    pub(crate) fn new(connection: Connection) -> Result<Self, Failure> {
        let config = |why: String| Failure::Config(why);
        let tls = connection
            .tls
            .client_config(connection.allow_insecure)
            .map_err(|error| config(error.to_string()))?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent("omnibus-csi")
            .connect_timeout(CONNECT_TIMEOUT)
            // DSM closes idle connections; a call on one that is just being closed would be cut.
            .pool_idle_timeout(Duration::from_secs(4))
            .build()
            .map_err(|error| config(format!("httpConnection: {error}")))?;
        if connection.protocol == Protocol::Http {
            tracing::warn!(
                address = %connection.address(),
                "the password of the NAS travels in plain text: set httpConnection.protocol to https"
            );
        }
        let turns = Semaphore::new(if connection.serialize { 1 } else { PARALLEL });
        Ok(Self {
            connection,
            http,
            turns,
            lists: Semaphore::new(LISTS),
            budget: ByteBudget::of_connection(LARGE_ANSWER),
            rules: Mutex::default(),
            session: Mutex::default(),
        })
    }

    /// Its address.
    pub(crate) fn address(&self) -> String {
        self.connection.address()
    }

    /// The turn of an operation that changes anything, until it is dropped. An operation waits for it no longer
    /// than its own deadline.
    pub(crate) async fn turn(&self, call: &Call) -> Result<SemaphorePermit<'_>, Failure> {
        self.permit(call, &self.turns).await
    }

    async fn permit<'a>(
        &self,
        call: &Call,
        of: &'a Semaphore,
    ) -> Result<SemaphorePermit<'a>, Failure> {
        let permit = tokio::time::timeout_at(call.deadline(), of.acquire()).await;
        permit
            .map_err(|_| Failure::NoTime)?
            .map_err(|_| Failure::NoTime)
    }

    /// The turn to change rules of NFS.
    pub(crate) async fn turn_for_rules(&self, call: &Call) -> Result<MutexGuard<'_, ()>, Failure> {
        let turn = tokio::time::timeout_at(call.deadline(), self.rules.lock()).await;
        turn.map_err(|_| Failure::NoTime)
    }

    /// Sends a call, and logs in first if necessary. A session that has ended is replaced once: DSM
    /// refuses such a call before it does anything.
    pub(crate) async fn send<T>(&self, call: &Call, request: &Request) -> Result<T, Failure>
    where
        T: DeserializeOwned + Default,
    {
        let session = self.session(call, None).await?;
        let answer = self.ask(call, &session, request).await;
        match answer {
            Err(Failure::Refused(code)) if session.ended_with(code) => {
                tracing::debug!(code = code.0, "the session of the NAS has ended");
                let session = self.session(call, Some(&session)).await?;
                self.ask(call, &session, request).await
            }
            answer => answer,
        }
    }

    /// The session, a new one if there is none, or only the one that has ended.
    async fn session(
        &self,
        call: &Call,
        ended: Option<&Arc<Session>>,
    ) -> Result<Arc<Session>, Failure> {
        let known = tokio::time::timeout_at(call.deadline(), self.session.lock()).await;
        let mut known = known.map_err(|_| Failure::NoTime)?;
        if let Some(session) = &*known
            && ended.is_none_or(|ended| !Arc::ptr_eq(ended, session))
        {
            return Ok(Arc::clone(session));
        }
        *known = None;
        let gate = login::gate(&self.address(), &self.connection.username);
        let attempt = tokio::time::timeout_at(call.deadline(), gate.attempt()).await;
        let attempt = attempt.map_err(|_| Failure::NoTime)?;
        let mut attempt = attempt.map_err(Failure::LoginRefusedBefore)?;
        let session = match self.log_in(call).await {
            Ok(session) => Arc::new(session),
            Err(Failure::Refused(code)) => {
                // 407 and those below it are refusals of this account, whatever is asked.
                if (400..=410).contains(&code.0) {
                    attempt.refused(code);
                }
                return Err(Failure::Login(code));
            }
            Err(failure) => return Err(failure),
        };
        *known = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Queries the APIs, and logs in.
    async fn log_in(&self, call: &Call) -> Result<Session, Failure> {
        let names: Vec<&str> = APIS.iter().map(|(name, _)| *name).collect();
        let info = Api {
            path: "query.cgi".to_owned(),
            max_version: Some(1),
            request_format: String::new(),
        };
        let question = Request::new("SYNO.API.Info", "query").with("query", names.join(","));
        let form = question.form(&info, 1);
        let mut apis: BTreeMap<String, Api> =
            self.post(call, &info, form, None, LARGEST_AT_LOGIN).await?;
        apis.retain(|name, _| names.contains(&name.as_str()));
        if apis.values().any(|api| !is_path(&api.path)) {
            return Err(self.odd("an API has an odd path"));
        }
        let auth = apis.get(AUTH).ok_or(Failure::NoApi(AUTH))?;
        let connection = &self.connection;
        let login = Request::new(AUTH, "login")
            .with("account", connection.username.as_str())
            .with("passwd", connection.password.expose_secret())
            .with("session", connection.session.as_str())
            .with("format", "sid")
            .with("enable_syno_token", "yes");
        let form = login.form(auth, auth.max_version.unwrap_or(6).min(6));
        let given: LoggedIn = self.post(call, auth, form, None, LARGEST_AT_LOGIN).await?;
        if given.sid.is_empty() {
            return Err(self.odd("a login without a session"));
        }
        let token = Some(given.synotoken).filter(|token| !token.is_empty());
        Ok(Session {
            sid: given.sid.into(),
            token: token.map(Into::into),
            apis,
            since: Instant::now(),
            runtime: Handle::current(),
            has_worked: AtomicBool::new(false),
        })
    }

    async fn ask<T>(&self, call: &Call, session: &Session, request: &Request) -> Result<T, Failure>
    where
        T: DeserializeOwned + Default,
    {
        let entry = session
            .apis
            .get(request.api)
            .ok_or(Failure::NoApi(request.api))?;
        let newest = APIS.iter().find(|(name, _)| *name == request.api);
        let newest = newest.map_or(1, |(_, newest)| *newest);
        let version = request
            .version
            .unwrap_or_else(|| entry.max_version.unwrap_or(1).clamp(1, newest));
        let _list = match request.largest {
            LARGEST_LIST => Some(self.permit(call, &self.lists).await?),
            _ => None,
        };
        tracing::debug!(verb = ?request, version, "asking the NAS");
        let form = request.form(entry, version);
        let answer = self
            .post(call, entry, form, Some(session), request.largest)
            .await;
        let answer = answer.map_err(|failure| failure.naming(request));
        session.answered(answer.as_ref().err().and_then(Failure::code));
        if let Err(failure) = &answer {
            tracing::debug!(verb = ?request, error = %failure, "the NAS has not done it");
        }
        answer
    }

    /// One exchange. Everything is in the body: what is in a URL stands in logs.
    async fn post<T>(
        &self,
        call: &Call,
        entry: &Api,
        form: String,
        session: Option<&Session>,
        largest: usize,
    ) -> Result<T, Failure>
    where
        T: DeserializeOwned + Default,
    {
        let left = call.remaining();
        if left.is_zero() {
            return Err(Failure::NoTime);
        }
        let request = self.exchange(entry, form, session);
        let request = request.ok_or_else(|| self.odd("its session is no header"))?;
        let request = request.timeout(left.min(ANSWER_TIMEOUT));
        let late = left <= ANSWER_TIMEOUT;
        let failed = |error: reqwest::Error| self.failed(&error, late);
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        if status.is_redirection() {
            return Err(Failure::Redirect(self.address()));
        }
        if !status.is_success() {
            return Err(Failure::Status(self.address(), status.as_u16()));
        }
        let mut body = Vec::new();
        let mut room = None;
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > largest {
                return Err(self.odd(format!("it is longer than {largest} bytes")));
            }
            body.extend_from_slice(&part);
            if room.is_none() && body.len() > SMALL_ANSWER {
                let reserved = self.budget.clone().reserve(LARGE_ANSWER);
                let reserved = tokio::time::timeout_at(call.deadline(), reserved).await;
                room = Some(reserved.map_err(|_| Failure::NoTime)?);
            }
        }
        answer::read(&body).map_err(|unread| match unread {
            Unread::Refused(code) => Failure::Refused(code),
            Unread::Foreign => Failure::Foreign(self.address()),
            Unread::Odd(why) => self.odd(why),
        })
    }

    /// The HTTP request; `None` if what the NAS gave as its session cannot be sent back.
    fn exchange(
        &self,
        entry: &Api,
        form: String,
        session: Option<&Session>,
    ) -> Option<reqwest::RequestBuilder> {
        let url = format!("{}/webapi/{}", self.address(), entry.path);
        let mut request = self
            .http
            .post(url)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form);
        if let Some(session) = session {
            request = request.header(COOKIE, secret_header("id=", &session.sid)?);
            if let Some(token) = &session.token {
                request = request.header("X-SYNO-TOKEN", secret_header("", token)?);
            }
        }
        Some(request)
    }

    pub(crate) fn odd(&self, why: impl Into<String>) -> Failure {
        Failure::Odd(self.address(), why.into())
    }

    /// The cause of a failed exchange. The text of reqwest holds the URL, which holds no secret.
    fn failed(&self, error: &reqwest::Error, late: bool) -> Failure {
        if error.is_timeout() && !error.is_connect() {
            return if late {
                Failure::NoTime
            } else {
                Failure::Late(self.address(), ANSWER_TIMEOUT.as_secs())
            };
        }
        let mut why = String::new();
        let mut cause = error.source();
        while let Some(inner) = cause {
            if error.is_connect() {
                // The innermost cause: those around it say that it was met while connecting.
                why.clear();
            } else if !why.is_empty() {
                why.push_str(": ");
            }
            why.push_str(&inner.to_string());
            cause = inner.source();
        }
        if error.is_connect() {
            Failure::NoConnection(self.address(), why)
        } else {
            Failure::Cut(self.address(), why)
        }
    }
}

impl Drop for Client {
    /// Ends the session, of which a NAS has so many only. Nothing waits for that: DSM ends one by itself that is idle.
    fn drop(&mut self) {
        let Some(session) = self.session.get_mut().take() else {
            return;
        };
        let Some(auth) = session.apis.get(AUTH) else {
            return;
        };
        let logout = Request::new(AUTH, "logout").with("session", self.connection.session.as_str());
        let form = logout.form(auth, auth.max_version.unwrap_or(6).min(6));
        if let Some(request) = self.exchange(auth, form, Some(&session)) {
            let sent = request.timeout(CONNECT_TIMEOUT).send();
            session.runtime.spawn(async move { drop(sent.await) });
        }
    }
}

// === impl Session ===

impl Session {
    /// Whether the answer says that it has ended. "No permission" is the answer to an account that is no
    /// administrator, too: a session that has never worked is not replaced because of it.
    fn ended_with(&self, code: Code) -> bool {
        if code == Code::NO_PERMISSION {
            return self.has_worked.load(Ordering::Relaxed) || self.since.elapsed() > OLD;
        }
        code.ends_session()
    }

    fn answered(&self, refused: Option<Code>) {
        if refused.is_none_or(|code| code != Code::NO_PERMISSION && !code.ends_session()) {
            self.has_worked.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.connection).finish()
    }
}

/// A path of the NAS's own list: a file below `/webapi/`.
fn is_path(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    !path.is_empty() && !path.contains("..") && path.chars().all(plain)
}

fn secret_header(before: &str, secret: &SecretString) -> Option<HeaderValue> {
    let text = format!("{before}{}", secret.expose_secret());
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
