//! The one long-lived connection to a NAS, and calls over it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::sync::{OnceCell, watch};
use tokio_rustls::TlsConnector;

use crate::api::nfs::Nfs4Client;
use crate::api::{Call, Request};
use crate::backoff::LoginBackoff;
use crate::round::Rounds;
use crate::rows::RowBudget;
use crate::session::{Session, Silence};
use crate::settings::Credentials;
use crate::wire::{Answered, Unread};
use crate::{Dialect, Error, Kind, Settings, connect, login, rows, tls};

/// The times that things may take.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// To open a socket: TCP, TLS, websocket.
    pub connect: Duration,
    /// Until a NAS that does not answer a call of the login is given up.
    pub login: Duration,
    /// Until a NAS that does not answer a call is given up with its socket. Jobs take their own time.
    pub answer: Duration,
    /// Between two pings.
    pub ping: Duration,
    /// Until a silent NAS is given up.
    pub silence: Duration,
    /// The longest time that a call waits for the next attempt to connect. If that is farther away, the call fails
    /// at once with the cause of the last failure.
    pub patience: Duration,
}

/// A NAS. Clones share one socket.
///
/// The socket is opened by the first call that needs it and opened again by the first call after its
/// end. A call that is not answered ends its socket; a caller that gives up before drops the call. If it was
/// sent by then, its outcome is unknown.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// The clients of a process. Connections with equal settings share one, and with it its socket and
/// its login.
#[derive(Default)]
pub struct Clients {
    known: Mutex<HashMap<[u8; 32], Weak<Shared>>>,
}

struct Shared {
    settings: Settings,
    tls: TlsConnector,
    timing: Timing,
    state: Mutex<State>,
    rows: RowBudget,
    holders: Rounds<Vec<Nfs4Client>>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    attempt: Option<watch::Receiver<Option<Outcome>>>,
    backoff: LoginBackoff,
    failure: Option<Error>,
}

type Outcome = Result<Arc<Link>, Error>;

/// A socket after the login, and the dialect spoken on it.
pub(crate) struct Link {
    pub(crate) session: Session,
    pub(crate) dialect: Dialect,
    /// Whether the NAS reports jobs on this socket; asked once.
    pub(crate) reports_jobs: OnceCell<bool>,
    /// Counts the logins on this socket.
    logins: tokio::sync::Mutex<u64>,
}

// === impl Timing ===

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            login: Duration::from_secs(30),
            answer: Duration::from_secs(90),
            ping: Duration::from_secs(20),
            silence: Duration::from_secs(50),
            patience: Duration::from_secs(5),
        }
    }
}

// === impl Client ===

impl Client {
    /// Makes a client. Nothing is opened yet.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        Self::with_timing(settings, Timing::default())
    }

    /// Makes a client with other limits.
    pub fn with_timing(settings: Settings, timing: Timing) -> Result<Self, Error> {
        let tls = tls::connector(&settings)?;
        let state = Mutex::default();
        let shared = Arc::new(Shared {
            settings,
            tls,
            timing,
            state,
            rows: RowBudget::default(),
            holders: Rounds::default(),
        });
        Ok(Self { shared })
    }

    /// Whether the login is an API key.
    pub(crate) fn logs_in_by_key(&self) -> bool {
        matches!(self.shared.settings.credentials, Credentials::ApiKey { .. })
    }

    /// The question for clients of NFS 4 that hold anything open.
    pub(crate) fn holders(&self) -> &Rounds<Vec<Nfs4Client>> {
        &self.shared.holders
    }

    /// The dialect of the NAS as it answers now.
    pub async fn dialect(&self) -> Result<Dialect, Error> {
        Ok(self.link().await?.dialect.clone())
    }

    /// Sends a request and waits for its answer.
    ///
    /// Repeated is only what the NAS refused before it began: a session that had expired is renewed
    /// once.
    pub async fn call<R: Request>(&self, request: &R) -> Result<R::Answer, Error> {
        self.call_reading(request, Answered::read).await
    }

    /// The same for an answer that is read in another way.
    pub(crate) async fn call_reading<R: Request, T>(
        &self,
        request: &R,
        read: impl FnOnce(Answered, usize) -> Result<T, Unread>,
    ) -> Result<T, Error> {
        let link = self.link().await?;
        let call = request.encode(&link.dialect)?;
        let answered = self.send(&link, None, &call).await?;
        let _counted = self.shared.rows.count();
        let read = read(answered, request.largest());
        read.map_err(|error| {
            // What has no room now may have later.
            let kind = if rows::is_refused() {
                Kind::Overloaded
            } else {
                Kind::Protocol
            };
            let error = Error::new(kind, error.to_string()).possibly_done();
            error.of(&call.method)
        })
    }

    /// Sends a call on a socket, under an id of its own or a given one.
    pub(crate) async fn send(
        &self,
        link: &Link,
        id: Option<&str>,
        call: &Call,
    ) -> Result<Answered, Error> {
        let id = || id.map_or_else(|| link.session.request_id(), str::to_owned);
        let login = link.logins().await;
        let first = link.session.call_as(id(), &call.method, &call.params).await;
        let outcome = match first {
            Err(error) if error.kind() == Kind::NotAuthenticated => {
                self.renew(link, login, &error).await?;
                link.session.call_as(id(), &call.method, &call.params).await
            }
            outcome => outcome,
        };
        outcome.map_err(|error| self.cover(error, call))
    }

    /// The open connection; opens one if there is none.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Error> {
        let mut attempt = {
            let mut state = self.shared.state();
            if let Some(link) = state.link.take_if(|link| link.session.end().is_some()) {
                let why = link.session.end().map(|why| self.shared.cover(why));
                tracing::info!(
                    address = %self.shared.settings.address(),
                    why = ?why.map(|why| why.to_string()),
                    "the connection to TrueNAS ended"
                );
            }
            if let Some(link) = &state.link {
                return Ok(Arc::clone(link));
            }
            // An attempt that was lost with its runtime is none.
            let running = state
                .attempt
                .as_ref()
                .filter(|attempt| attempt.has_changed().is_ok());
            match running {
                Some(attempt) => attempt.clone(),
                None => self.begin(&mut state)?,
            }
        };
        let outcome = attempt.wait_for(Option::is_some).await;
        let lost = || Error::new(Kind::Unreachable, "the attempt to connect was interrupted");
        let outcome = outcome.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(lost()))
    }

    /// The address of the NAS, as a user would write it.
    pub(crate) fn address(&self) -> String {
        self.shared.settings.address()
    }

    /// The time until the next attempt to connect may begin.
    pub(crate) fn pause(&self) -> Duration {
        self.shared.state().backoff.wait()
    }

    /// Begins an attempt, in a task of its own: a caller that gives up must not waste a login.
    fn begin(&self, state: &mut State) -> Result<watch::Receiver<Option<Outcome>>, Error> {
        let wait = state.backoff.wait();
        if let Some(failure) = &state.failure
            && wait > self.shared.timing.patience
        {
            let seconds = wait.as_secs().max(1);
            return Err(failure
                .clone()
                .context(format!("not tried for another {seconds} s")));
        }
        let (done, attempt) = watch::channel(None);
        state.attempt = Some(attempt.clone());
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            shared.state().backoff.attempt();
            let outcome = shared.connect().await.map_err(|error| shared.cover(error));
            shared.finish(&outcome);
            done.send_replace(Some(outcome));
        });
        Ok(attempt)
    }

    /// Logs in again on a socket whose session ended.
    async fn renew(&self, link: &Link, seen: u64, why: &Error) -> Result<(), Error> {
        let mut logins = link.logins.lock().await;
        if *logins != seen {
            // Another call did it.
            return Ok(());
        }
        let wait = self.pause();
        if wait > self.shared.timing.patience {
            return Err(why.clone());
        }
        tokio::time::sleep(wait).await;
        self.shared.state().backoff.attempt();
        let outcome = login::log_in(&link.session, &self.shared.settings).await;
        let mut state = self.shared.state();
        match outcome {
            Ok(()) => {
                *logins += 1;
                state.backoff.succeeded();
                Ok(())
            }
            Err(error) => {
                state.backoff.refused_if(error.is_final());
                Err(self.shared.cover(error.before_the_call()))
            }
        }
    }

    fn cover(&self, error: Error, call: &Call) -> Error {
        let secrets = call.secrets.iter();
        let error = self.shared.cover(error);
        secrets.fold(error, |error, secret| error.without(secret.expose_secret()))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client")
            .field(&self.shared.settings.address())
            .finish()
    }
}

// === impl Clients ===

impl Clients {
    /// The client of these settings.
    pub fn get(&self, settings: Settings) -> Result<Client, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, client| client.strong_count() > 0);
        let identity = settings.identity();
        if let Some(shared) = known.get(&identity).and_then(Weak::upgrade) {
            return Ok(Client { shared });
        }
        let client = Client::new(settings)?;
        known.insert(identity, Arc::downgrade(&client.shared));
        Ok(client)
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Outcome {
        let (transport, socket, meter) =
            connect::open(&self.settings, &self.tls, self.timing.connect).await?;
        let silence = Silence {
            ping: self.timing.ping,
            limit: self.timing.silence,
            login: self.timing.login,
            answer: self.timing.answer,
        };
        let open = async {
            let session = Session::open(transport, socket, meter, silence).await?;
            login::log_in(&session, &self.settings).await?;
            let version = session.call("system.version", &[]).await?;
            let dialect = Dialect::choose(version.as_str().unwrap_or_default(), transport)?;
            tracing::info!(
                address = %self.settings.address(),
                version = dialect.version().text(),
                ?transport,
                "connected to TrueNAS"
            );
            Ok(Arc::new(Link {
                session,
                dialect,
                reports_jobs: OnceCell::new(),
                logins: tokio::sync::Mutex::default(),
            }))
        };
        open.await.map_err(Error::before_the_call)
    }

    fn finish(&self, outcome: &Outcome) {
        let mut state = self.state();
        state.attempt = None;
        match outcome {
            Ok(link) => {
                state.link = Some(Arc::clone(link));
                state.failure = None;
                state.backoff.succeeded();
            }
            Err(error) => {
                tracing::warn!(%error, "no connection to TrueNAS");
                state.failure = Some(error.clone());
                state.backoff.refused_if(error.is_final());
            }
        }
    }

    fn cover(&self, error: Error) -> Error {
        let secrets = self.settings.secrets();
        secrets
            .iter()
            .fold(error, |error, secret| error.without(secret.expose_secret()))
    }
}

// === impl Link ===

impl Link {
    async fn logins(&self) -> u64 {
        *self.logins.lock().await
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("session", &self.session)
            .field("dialect", &self.dialect)
            .finish_non_exhaustive()
    }
}
