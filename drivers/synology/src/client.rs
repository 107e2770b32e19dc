//! The client of one NAS: its APIs, the session, and the calls.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use driver_core::Call;
use reqwest::header::{CONTENT_TYPE, COOKIE, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::config::{Connection, Protocol};
use crate::error::{Code, Failure};

/// The time limit of one answer. compat: "Synology": as democratic-csi.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The time limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many calls run at once without `serialize`.
const PARALLEL: usize = 4;
/// The largest answer that is read.
const LARGEST: usize = 64 << 20;
/// The pause after a refused login: DSM blocks an address after a few refusals, by default 10 in 5
/// minutes, and some administrators allow 3.
const AFTER_REFUSAL: Duration = Duration::from_mins(3);

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
    permits: Semaphore,
    state: Mutex<State>,
}

/// State that is kept between calls and changes no answer.
#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    refused: Option<(Instant, Code)>,
}

/// A session, and the APIs of the NAS at its start.
struct Session {
    sid: SecretString,
    token: Option<SecretString>,
    apis: BTreeMap<String, Api>,
}

/// An API of the NAS.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Api {
    path: String,
    #[serde(default)]
    max_version: u64,
    #[serde(default)]
    request_format: Option<String>,
}

/// One call of the web API. Never prints a value.
pub(crate) struct Request {
    api: &'static str,
    method: &'static str,
    version: Option<u64>,
    params: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    data: Value,
    #[serde(default)]
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    code: i64,
}

// === impl Request ===

impl Request {
    pub(crate) fn new(api: &'static str, method: &'static str) -> Self {
        Self {
            api,
            method,
            version: None,
            params: BTreeMap::new(),
        }
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
        let json = entry.request_format.as_deref() == Some("JSON");
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
        let permits = Semaphore::new(if connection.serialize { 1 } else { PARALLEL });
        Ok(Self {
            connection,
            http,
            permits,
            state: Mutex::default(),
        })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> String {
        self.connection.address()
    }

    /// Sends a call, and logs in first if necessary. A session that has ended is replaced once: DSM
    /// refuses such a call before it does anything.
    pub(crate) async fn send(&self, call: &Call, request: &Request) -> Result<Value, Failure> {
        let permit = tokio::time::timeout_at(call.deadline(), self.permits.acquire()).await;
        let _permit = permit
            .map_err(|_| Failure::NoTime)?
            .map_err(|_| Failure::NoTime)?;
        let session = self.session(call, None).await?;
        let answer = self.ask(call, &session, request).await;
        match answer {
            Err(Failure::Refused(code)) if code.ends_session() => {
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
        let state = tokio::time::timeout_at(call.deadline(), self.state.lock()).await;
        let mut state = state.map_err(|_| Failure::NoTime)?;
        if let Some(session) = &state.session
            && ended.is_none_or(|ended| !Arc::ptr_eq(ended, session))
        {
            return Ok(Arc::clone(session));
        }
        state.session = None;
        if let Some((at, code)) = state.refused {
            if at.elapsed() < AFTER_REFUSAL {
                return Err(Failure::LoginRefusedBefore(code));
            }
            state.refused = None;
        }
        let session = match self.log_in(call).await {
            Ok(session) => Arc::new(session),
            Err(Failure::Refused(code)) => {
                // 407 and those below it are refusals of this account, whatever is asked.
                if (400..=410).contains(&code.0) {
                    state.refused = Some((Instant::now(), code));
                }
                return Err(Failure::Login(code));
            }
            Err(failure) => return Err(failure),
        };
        state.session = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Queries the APIs, and logs in.
    async fn log_in(&self, call: &Call) -> Result<Session, Failure> {
        let names: Vec<&str> = APIS.iter().map(|(name, _)| *name).collect();
        let info = Api {
            path: "query.cgi".to_owned(),
            max_version: 1,
            request_format: None,
        };
        let question = Request::new("SYNO.API.Info", "query").with("query", names.join(","));
        let found = self
            .post(call, &info, question.form(&info, 1), None)
            .await?;
        let apis: BTreeMap<String, Api> = serde_json::from_value(found)
            .map_err(|_| self.odd("its list of APIs has another form"))?;
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
        let form = login.form(auth, auth.max_version.min(6));
        let data = self.post(call, auth, form, None).await?;
        let text = |key: &str| data.get(key).and_then(Value::as_str).map(str::to_owned);
        let sid = text("sid").ok_or_else(|| self.odd("a login without a session"))?;
        Ok(Session {
            sid: sid.into(),
            token: text("synotoken").map(Into::into),
            apis,
        })
    }

    async fn ask(
        &self,
        call: &Call,
        session: &Session,
        request: &Request,
    ) -> Result<Value, Failure> {
        let entry = session
            .apis
            .get(request.api)
            .ok_or(Failure::NoApi(request.api))?;
        let newest = APIS.iter().find(|(name, _)| *name == request.api);
        let newest = newest.map_or(1, |(_, newest)| *newest);
        let version = request
            .version
            .unwrap_or_else(|| entry.max_version.clamp(1, newest));
        tracing::debug!(verb = ?request, version, "asking the NAS");
        let form = request.form(entry, version);
        let answer = self.post(call, entry, form, Some(session)).await;
        if let Err(failure) = &answer {
            tracing::debug!(verb = ?request, error = %failure, "the NAS has not done it");
        }
        answer
    }

    /// One exchange. Everything is in the body: what is in a URL stands in logs.
    async fn post(
        &self,
        call: &Call,
        entry: &Api,
        form: String,
        session: Option<&Session>,
    ) -> Result<Value, Failure> {
        let left = call.remaining();
        if left.is_zero() {
            return Err(Failure::NoTime);
        }
        let url = format!("{}/webapi/{}", self.address(), entry.path);
        let mut request = self
            .http
            .post(url)
            .timeout(left.min(ANSWER_TIMEOUT))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form);
        if let Some(session) = session {
            request = request.header(COOKIE, secret_header("id=", &session.sid)?);
            if let Some(token) = &session.token {
                request = request.header("X-SYNO-TOKEN", secret_header("", token)?);
            }
        }
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
        while let Some(part) = response.chunk().await.map_err(failed)? {
            body.extend_from_slice(&part);
            if body.len() > LARGEST {
                return Err(self.odd("it is too long"));
            }
        }
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| self.odd("it is not that of a web API"))?;
        match answer {
            Answer {
                success: true,
                data,
                ..
            } => Ok(data),
            Answer {
                error: Some(refusal),
                ..
            } => Err(Failure::Refused(Code(refusal.code))),
            Answer { .. } => Err(self.odd("a refusal without a code")),
        }
    }

    pub(crate) fn odd(&self, why: &'static str) -> Failure {
        Failure::Odd(self.address(), why)
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
            if !why.is_empty() {
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

fn secret_header(before: &str, secret: &SecretString) -> Result<HeaderValue, Failure> {
    let text = format!("{before}{}", secret.expose_secret());
    let mut value = HeaderValue::from_str(&text)
        .map_err(|_| Failure::Config("the NAS gave a session that is no header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}
