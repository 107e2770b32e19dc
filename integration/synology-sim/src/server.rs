//! Listening, and what a test may do to the NAS.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::dsm::{Carrier, Dsm, Held, Options, named};
use crate::faults::{Action, Cut, Fault, Loss};
use crate::tls;
use crate::version::Version;

type Body = Full<Bytes>;

/// A NAS that runs until it is dropped.
#[derive(Debug)]
pub struct Simulator {
    dsm: Arc<Mutex<Dsm>>,
    address: SocketAddr,
    task: JoinHandle<()>,
    certificate: Vec<u8>,
}

// === impl Simulator ===

impl Simulator {
    /// Starts a NAS on a free port of this machine.
    pub async fn start(options: Options) -> io::Result<Self> {
        Self::listen(options, ([127, 0, 0, 1], 0).into()).await
    }

    /// Starts a NAS there.
    pub async fn listen(options: Options, at: SocketAddr) -> io::Result<Self> {
        Self::serve(Dsm::new(options), at).await
    }

    /// Starts a NAS there whose storage is that of this machine, where it has to run as root: a pool of this
    /// name, LIO, nfsd and samba.
    pub async fn on_this_machine(options: Options, at: SocketAddr, pool: &str) -> io::Result<Self> {
        let dsm = Dsm::on_this_machine(options, pool).map_err(io::Error::other)?;
        Self::serve(dsm, at).await
    }

    async fn serve(dsm: Dsm, at: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at).await?;
        let address = listener.local_addr()?;
        let (acceptor, certificate) = if dsm.options.tls {
            let (acceptor, certificate) = tls::acceptor()?;
            (Some(acceptor), certificate)
        } else {
            (None, Vec::new())
        };
        let dsm = Arc::new(Mutex::new(dsm));
        let task = tokio::spawn(serve(Arc::clone(&dsm), listener, acceptor));
        Ok(Self {
            dsm,
            address,
            task,
            certificate,
        })
    }

    /// The address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its certificate in DER, which it has signed itself for `localhost`; empty without TLS.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Adds a fault.
    pub fn fault(&self, fault: Fault) {
        locked(&self.dsm).faults.add(fault);
    }

    /// Has these initiators, with their addresses, connected to a target and no others.
    pub fn connect(&self, target: &str, initiators: &[(&str, &str)]) {
        let owned = |(iqn, ip): &(&str, &str)| ((*iqn).to_owned(), (*ip).to_owned());
        let mut dsm = locked(&self.dsm);
        let targets = dsm.targets.iter_mut();
        for target in targets.filter(|known| known.iqn == target) {
            target.connected = initiators.iter().map(owned).collect();
        }
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        locked(&self.dsm).faults.clear();
    }

    /// A function that cuts the NAS off after so many more changes; `None` ends that.
    pub fn cutter(&self) -> impl Fn(Option<usize>) + Send + Sync + use<> {
        let dsm = Arc::clone(&self.dsm);
        move |left| locked(&dsm).faults.cut_after(left)
    }

    /// Loses one call, one answer, or all from a call on; `None` ends that.
    pub fn lose(&self, loss: Option<Loss>) {
        locked(&self.dsm).faults.lose(loss);
    }

    /// Ends all sessions.
    pub fn expire_sessions(&self) {
        locked(&self.dsm).expire_sessions();
    }

    /// Makes it another release; the state stays, the sessions end.
    pub fn upgrade(&self, version: Version) {
        let mut dsm = locked(&self.dsm);
        dsm.options.version = version;
        dsm.options.csrf = version.is_7();
        dsm.expire_sessions();
    }

    /// The number of times that a method was called, such as `SYNO.Core.ISCSI.LUN/create`.
    pub fn count(&self, call: &str) -> usize {
        locked(&self.dsm).counts.get(call).copied().unwrap_or(0)
    }

    /// Mistakes of the client that DSM might let pass.
    pub fn violations(&self) -> Vec<String> {
        locked(&self.dsm).violations.clone()
    }

    /// One call as the owner of the NAS, past sessions, faults and counts. A value that is no text goes
    /// as JSON.
    pub fn call(&self, api: &str, method: &str, params: &Value) -> Value {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("api", api).append_pair("method", method);
        let version = if api == "SYNO.Core.Share.Snapshot" && method == "list" {
            "2"
        } else {
            "1"
        };
        form.append_pair("version", version);
        for (key, value) in params.as_object().into_iter().flatten() {
            form.append_pair(key, &value.to_string());
        }
        locked(&self.dsm).as_owner(form.finish().as_bytes())
    }

    /// A volume, by its path, or a LUN, by its name, has this state from now on: `normal`, `crashed`, `read_only`, …
    pub fn set_status(&self, of: &str, status: &str) {
        let mut dsm = locked(&self.dsm);
        dsm.statuses.insert(of.to_owned(), status.to_owned());
    }

    /// A target is enabled, or is not, from now on.
    pub fn set_enabled(&self, target: &str, is_enabled: bool) {
        let mut dsm = locked(&self.dsm);
        if is_enabled {
            dsm.disabled.remove(target);
        } else {
            dsm.disabled.insert(target.to_owned());
        }
    }

    /// A package of the NAS, such as Snapshot Replication, keeps all snapshots of a LUN.
    pub fn keep_snapshots(&self, lun: &str, package: &str) {
        let mut dsm = locked(&self.dsm);
        for snapshot in dsm
            .lun_or_name(lun)
            .into_iter()
            .flat_map(|lun| &mut lun.snapshots)
        {
            snapshot.packages = vec![package.to_owned()];
        }
    }

    /// Adds an object of another package to a list: `luns`, `targets` or `shares`.
    pub fn add_foreign(&self, list: &str, object: &Value) {
        let foreign = (list.to_owned(), object.clone());
        locked(&self.dsm).foreign.push(foreign);
    }

    /// Delays each call by so much, as a NAS far away or a busy one does.
    pub fn slow_down(&self, by: Duration) {
        locked(&self.dsm).slowness = by;
    }

    /// Writes each call and the shape of its answer to a file, a line each, as `tests/it/recorded.rs` reads them.
    pub fn record(&self, path: &Path) -> io::Result<()> {
        locked(&self.dsm).record = Some(File::create(path)?);
        Ok(())
    }

    /// All calls since the start.
    pub fn calls(&self) -> usize {
        locked(&self.dsm).counts.values().sum()
    }

    /// The number of exchanges in a row: calls at once count as one. Slow the NAS down to see it.
    pub fn rounds(&self) -> usize {
        locked(&self.dsm).rounds
    }

    /// Removes all LUNs, targets and shared folders; why that failed, if it did.
    pub fn clear(&self) -> Result<(), String> {
        let cleared = locked(&self.dsm).clear();
        cleared.map_err(|failure| failure.strict.unwrap_or_default())
    }

    /// Everything that it holds: LUNs, targets, snapshots and shares.
    pub fn state(&self) -> Value {
        locked(&self.dsm).state()
    }

    /// The same, for [`Simulator::restore`].
    pub fn held(&self) -> Held {
        locked(&self.dsm).held()
    }

    /// Makes the model hold that again, and nothing else. It is not for storage of this machine.
    pub fn restore(&self, held: &Held) {
        locked(&self.dsm).restore(held.clone());
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.task.abort();
        // What it made of this machine's storage is of no use to another one.
        let _ = self.clear();
    }
}

// === impl Dsm ===

impl Dsm {
    fn as_owner(&mut self, form: &[u8]) -> Value {
        let account = (self.options.account.clone(), self.options.password.clone());
        let login = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([
                ("api", "SYNO.API.Auth"),
                ("version", "6"),
                ("method", "login"),
                ("format", "sid"),
                ("enable_syno_token", "yes"),
                ("account", &account.0),
                ("passwd", &account.1),
            ])
            .finish();
        let path = if self.options.version.is_7() {
            "entry.cgi"
        } else {
            "auth.cgi"
        };
        let session = self.answer(path, login.as_bytes(), &Carrier::default());
        let text = |key: &str| session["data"][key].as_str().map(str::to_owned);
        let carrier = Carrier {
            cookie: text("sid"),
            token: text("synotoken"),
            in_url: None,
        };
        self.answer("entry.cgi", form, &carrier)
    }

    fn state(&self) -> Value {
        let luns = self.luns.iter().map(|lun| {
            json!({
                "name": lun.name, "uuid": lun.uuid, "lun_id": lun.id, "size": lun.size,
                "type": lun.kind, "location": lun.location, "description": lun.description,
                "dev_attribs": lun.attributes,
                "snapshots": lun.snapshots.iter().map(|one| json!({
                    "uuid": one.uuid, "description": one.description, "taken_by": one.taken_by,
                    "is_locked": one.locked,
                })).collect::<Vec<_>>(),
            })
        });
        let targets = self.targets.iter().map(|target| {
            json!({
                "name": target.name, "iqn": target.iqn, "auth_type": target.auth_type,
                "user": target.chap.0, "mutual_user": target.mutual_chap.0,
                "max_sessions": target.max_sessions,
                "mapped": target.mapped.iter().map(|(number, lun)| json!([number, lun])).collect::<Vec<_>>(),
            })
        });
        let shares = self.shares.iter().map(|share| {
            json!({
                "name": share.name, "vol_path": share.path, "desc": share.description,
                "quota": share.quota, "rules": share.rules, "permissions": share.permissions,
                "snapshots": share.snapshots.iter().map(|one| one.description.clone()).collect::<Vec<_>>(),
            })
        });
        json!({
            "luns": luns.collect::<Vec<_>>(),
            "targets": targets.collect::<Vec<_>>(),
            "shares": shares.collect::<Vec<_>>(),
        })
    }
}

/// The names of everything in an answer, and no value; of a list its first entry.
pub fn shape(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let shapes = map.iter().map(|(key, value)| (key.clone(), shape(value)));
            shapes.collect()
        }
        Value::Array(all) => all.iter().take(1).map(shape).collect(),
        _ => Value::Null,
    }
}

impl Dsm {
    /// Records a call, if it is asked to.
    fn note(&mut self, path: &str, form: &[u8], carrier: &Carrier, answer: &Value) {
        let Some(file) = &mut self.record else {
            return;
        };
        let form: Map<String, Value> = form_urlencoded::parse(form)
            .map(|(key, text)| (key.into_owned(), Value::from(text.into_owned())))
            .collect();
        let line = json!({
            "path": path, "form": form, "cookie": carrier.cookie, "in_url": carrier.in_url,
            "error": answer["error"], "shape": shape(answer),
        });
        // A record that ends too early is seen when it is replayed.
        let _ = writeln!(file, "{line}");
    }
}

fn locked(dsm: &Mutex<Dsm>) -> MutexGuard<'_, Dsm> {
    dsm.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(dsm: Arc<Mutex<Dsm>>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    while let Ok((stream, _)) = listener.accept().await {
        drop(stream.set_nodelay(true));
        let (dsm, tls) = (Arc::clone(&dsm), tls.clone());
        // A client that goes away in the middle is no event.
        tokio::spawn(async move {
            let Some(tls) = tls else {
                return drop(connection(dsm, stream).await);
            };
            if let Ok(stream) = tls.accept(stream).await {
                drop(connection(dsm, stream).await);
            }
        });
    }
}

async fn connection<S>(dsm: Arc<Mutex<Dsm>>, stream: S) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let dsm = Arc::clone(&dsm);
        async move { handle(dsm, request).await }
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn handle(
    dsm: Arc<Mutex<Dsm>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let path = parts.uri.path();
    if let Some(control) = path.strip_prefix("/sim/") {
        return Ok(controlled(&dsm, control, &body));
    }
    let Some(path) = path.strip_prefix("/webapi/") else {
        return Ok(answered(
            StatusCode::NOT_FOUND,
            "text/html",
            "<html></html>",
        ));
    };
    let query = parts.uri.query().unwrap_or_default();
    if !query.is_empty() {
        let mut dsm = locked(&dsm);
        // A secret in a URL stands in the log of every proxy: no client of ours may send one there.
        if dsm.options.strict {
            let why = "parameters stand in the URL".to_owned();
            dsm.violations.push(why);
        }
    }
    let (form, in_url) = merged(query, &body);
    let text = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let cookie = text(header::COOKIE).and_then(|cookie| {
        let mut pairs = cookie.split(';');
        pairs.find_map(|pair| pair.trim().strip_prefix("id="))
    });
    let token = parts.headers.get("x-syno-token");
    let carrier = Carrier {
        cookie: cookie.map(str::to_owned),
        token: token
            .and_then(|token| token.to_str().ok())
            .map(str::to_owned),
        in_url,
    };
    let path = path.to_owned();
    let _busy = Busy::begin(&dsm);
    let dsm = Arc::clone(&dsm);
    // Storage of this machine takes its time, and keeps the state locked.
    let replied = tokio::task::spawn_blocking(move || reply(&dsm, &path, &form, &carrier)).await;
    let reply = replied.map_err(io::Error::other)?;
    if let Some(delay) = reply.delay {
        tokio::time::sleep(delay).await;
    }
    match reply.answer {
        Answer::Cut => Err(io::Error::other("cut by a fault")),
        Answer::BadGateway => {
            let page = "<html><head><title>502 Bad Gateway</title></head></html>";
            Ok(answered(StatusCode::BAD_GATEWAY, "text/html", page))
        }
        Answer::Of(value) => {
            let text = value.to_string();
            let mut answer = answered(StatusCode::OK, "application/json; charset=\"UTF-8\"", &text);
            if let Some(sid) = reply.cookie {
                let cookie = format!("id={sid}; path=/; HttpOnly").parse();
                let cookie = cookie.map_err(io::Error::other)?;
                answer.headers_mut().insert(header::SET_COOKIE, cookie);
            }
            Ok(answer)
        }
    }
}

/// The parameters of the URL and of the body as one form, and `_sid` of the URL.
fn merged(query: &str, body: &[u8]) -> (Vec<u8>, Option<String>) {
    let mut in_url = None;
    let mut form = form_urlencoded::Serializer::new(String::new());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if key == "_sid" {
            in_url = Some(value.into_owned());
        } else {
            form.append_pair(&key, &value);
        }
    }
    for (key, value) in form_urlencoded::parse(body) {
        form.append_pair(&key, &value);
    }
    (form.finish().into_bytes(), in_url)
}

/// A call that is not answered yet.
struct Busy(Arc<Mutex<Dsm>>);

impl Busy {
    fn begin(dsm: &Arc<Mutex<Dsm>>) -> Self {
        let mut now = locked(dsm);
        now.rounds += usize::from(now.in_flight == 0);
        now.in_flight += 1;
        drop(now);
        Self(Arc::clone(dsm))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        locked(&self.0).in_flight -= 1;
    }
}

/// The reply to a client, and how much later.
struct Reply {
    answer: Answer,
    delay: Option<Duration>,
    /// The session of a login that asked for a cookie, which is the default (guide).
    cookie: Option<String>,
}

enum Answer {
    Of(Value),
    Cut,
    BadGateway,
}

/// Does one call, with the faults that were asked for.
fn reply(dsm: &Mutex<Dsm>, path: &str, body: &[u8], carrier: &Carrier) -> Reply {
    let mut dsm = locked(dsm);
    let (api, method, _) = named(body).unwrap_or_default();
    *dsm.counts.entry(format!("{api}/{method}")).or_default() += 1;
    let verdict = dsm.faults.judge(&api, &method, Dsm::changes(&method));
    let refused = |code: i64| json!({"error": {"code": code}, "success": false});
    let at_once = |answer: Answer| Reply {
        answer,
        delay: None,
        cookie: None,
    };
    if verdict.cut == Cut::Before {
        return at_once(Answer::Cut);
    }
    let answer = match verdict.action {
        Some(Action::CutBefore) => return at_once(Answer::Cut),
        Some(Action::BadGateway) => return at_once(Answer::BadGateway),
        Some(Action::Refuse(code)) => refused(code),
        Some(Action::RefuseInside(code)) => {
            let object = object(body);
            json!({"success": true, "data": [{ object: code }]})
        }
        Some(Action::ExpireSessions) => {
            dsm.expire_sessions();
            refused(119)
        }
        _ => dsm.answer(path, body, carrier),
    };
    dsm.note(path, body, carrier, &answer);
    if verdict.cut == Cut::After || verdict.action == Some(Action::CutAfter) {
        return at_once(Answer::Cut);
    }
    let answer = match verdict.action {
        Some(Action::RefuseAfter(code)) => refused(code),
        _ => answer,
    };
    let delay = verdict.action.and_then(Action::delay);
    let slowness = Some(dsm.slowness).filter(|slowness| !slowness.is_zero());
    let sid = answer["data"]["sid"].as_str();
    let cookie = sid.filter(|_| form_urlencoded::parse(body).all(|pair| pair != FORMAT_SID));
    Reply {
        cookie: cookie.map(str::to_owned),
        answer: Answer::Of(answer),
        delay: delay.or(slowness),
    }
}

const FORMAT_SID: (Cow<'_, str>, Cow<'_, str>) = (Cow::Borrowed("format"), Cow::Borrowed("sid"));

/// The object that a call to delete a snapshot names.
fn object(body: &[u8]) -> String {
    let mut pairs = form_urlencoded::parse(body);
    let found = pairs.find(|(key, _)| matches!(&**key, "snapshot_uuid" | "snapshots"));
    found.map_or_else(|| "object".to_owned(), |(_, text)| text.replace('"', ""))
}

/// The control endpoint: `/sim/faults`, `/sim/counts`, `/sim/state`, `/sim/version`, `/sim/sessions`.
fn controlled(dsm: &Mutex<Dsm>, control: &str, body: &[u8]) -> Response<Body> {
    let mut dsm = locked(dsm);
    let bad = |why: String| answered(StatusCode::BAD_REQUEST, "text/plain", &why);
    let json = |value: &Value| answered(StatusCode::OK, "application/json", &value.to_string());
    match control {
        "faults" if body.is_empty() => dsm.faults.clear(),
        "faults" => match serde_json::from_slice::<Fault>(body) {
            Ok(fault) => dsm.faults.add(fault),
            Err(error) => return bad(error.to_string()),
        },
        "sessions" => dsm.expire_sessions(),
        "version" => match String::from_utf8_lossy(body).trim().parse::<Version>() {
            Ok(version) => dsm.options.version = version,
            Err(why) => return bad(why),
        },
        "counts" => return json(&json!(dsm.counts)),
        "violations" => return json(&json!(dsm.violations)),
        "state" => return json(&dsm.state()),
        _ => return answered(StatusCode::NOT_FOUND, "text/plain", "no such control"),
    }
    json(&Value::Null)
}

fn answered(status: StatusCode, kind: &str, body: &str) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}
