//! One portal: the record, the login, and the session and disk that the kernel made.

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;
use tracing::{debug, info};

use super::attach::Request;
use super::lookup::Place;
use super::record;
use super::session::{Session, State, sessions};
use super::tool::Tool;
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::attachment::Portal;
use csi_types::backoff::Backoff;
use csi_types::error::{Effect, Error, Kind};

/// The time that a login is retried: a new or restarting target takes a while to accept logins.
const LOGIN_PERIOD: Duration = Duration::from_mins(1);

/// The pauses between two logins. A target that starts again is back within seconds to a minute.
const LOGINS: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(4));

/// The time that a session may take to appear once the daemon has it. A retry by the daemon ends in this time, too.
const SHOWN: Duration = Duration::from_secs(20);

const NOT_KNOWN: &str = "this version of iscsiadm does not know a setting, or not its value";

/// The time that is reserved for a last check and for the cleanup. Both are commands to a daemon that answers in a
/// fraction of a second.
const MARGIN: Duration = Duration::from_secs(2);

/// The way a portal is connected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connector<'a> {
    pub(super) tools: &'a Tools,
    pub(super) kernel: &'a Kernel,
    pub(super) request: &'a Request,
    /// The settings of a record.
    pub(super) settings: &'a [(String, SecretString)],
    pub(super) deadline: Instant,
}

// === impl Connector ===

impl Connector<'_> {
    /// Opens the session of a portal that has none, and leaves no record behind if it cannot.
    pub(super) async fn connect(&self, portal: &Portal) -> Result<(), Error> {
        let until = self.last_try().min(Instant::now() + LOGIN_PERIOD);
        let mut backoff = LOGINS;
        let mut last: Option<Error> = None;
        let error = loop {
            let error = match self.try_once(portal).await {
                Ok(()) => return Ok(()),
                // The error of the attempt before says more than that of one cut by our own deadline.
                Err(error) => match last.take() {
                    Some(before) if error.kind() == Kind::Timeout => before,
                    _ => error,
                },
            };
            let next = Instant::now() + backoff.pause();
            let may_change = matches!(error.kind(), Kind::Unreachable | Kind::Timeout);
            if !may_change || next >= until {
                break error;
            }
            debug!(%portal, error = %error.chain(), "a portal is tried again");
            last = Some(error);
            tokio::time::sleep_until(next).await;
        };
        // Without a session the record is useless, and may hold a password. The answer shows if a session was
        // opened in the last moment.
        let tool = Tool::new(self.tools, &self.request.facts, self.deadline);
        if let Err(error) = tool.forget(portal).await {
            debug!(%portal, error = %error.chain(), "a record of no use stays");
        }
        Err(error)
    }

    fn tool(&self) -> Tool<'_> {
        Tool::new(self.tools, &self.request.facts, self.last_try())
    }

    fn last_try(&self) -> Instant {
        let now = Instant::now();
        let margin = MARGIN.min(self.deadline.saturating_duration_since(now) / 4);
        self.deadline.checked_sub(margin).unwrap_or(now)
    }

    async fn try_once(&self, portal: &Portal) -> Result<(), Error> {
        let facts = &self.request.facts;
        let tool = self.tool();
        tool.make(portal).await?;
        self.configure(portal).await?;
        info!(target = %facts.iqn(), %portal, "logging in");
        let answer = tool.login(portal).await;
        let shown = match &answer {
            // Opened by another process, or by an earlier attempt that timed out.
            Ok(true) => SHOWN,
            Ok(false) => SHOWN / 4,
            // Whatever the command returned, the kernel may have the session.
            Err(_) => Duration::ZERO,
        };
        if self.is_shown(portal, shown).await? {
            return Ok(());
        }
        Err(answer.err().unwrap_or_else(|| {
            let doing = format!("find the session with {} at {portal}", facts.iqn());
            Error::new(Kind::Unreachable, doing)
                .advise("the daemon says that there is one, but the kernel does not show it")
        }))
    }

    /// Writes the settings into the record. Secrets are never arguments.
    async fn configure(&self, portal: &Portal) -> Result<(), Error> {
        let tool = self.tool();
        let facts = &self.request.facts;
        if self.request.settings.is_empty() {
            let plain = self.settings.iter();
            let plain: Vec<_> = plain
                .map(|(name, value)| (name.clone(), value.expose_secret().to_owned()))
                .collect();
            return tool.update(portal, &plain).await;
        }
        let settings = self.settings.to_vec();
        record::write(self.tools, facts, portal, settings, self.deadline).await?;
        let doing = format!("set the `node-db.` secrets of {} at {portal}", facts.iqn());
        let misunderstood = |error: Error| error.with_effect(Effect::Possible);
        let shown = tool.show(portal, self.settings).await.map_err(|error| {
            match error.kind() {
                // Newer ones refuse to read a record with a line that they do not understand.
                Kind::Invalid | Kind::Internal => misunderstood(
                    Error::new(Kind::Invalid, doing.clone())
                        .because(error)
                        .advise(NOT_KNOWN),
                ),
                _ => error,
            }
        })?;
        match record::misunderstood(&shown, self.settings) {
            None => Ok(()),
            Some(name) => Err(misunderstood(
                Error::new(Kind::Invalid, doing).advise(format!("`{name}`: {NOT_KNOWN}")),
            )),
        }
    }

    /// Waits for a session of the portal that works.
    async fn is_shown(&self, portal: &Portal, wait: Duration) -> Result<bool, Error> {
        let until = self.deadline.min(Instant::now() + wait);
        let mut backoff = Backoff::of_polls();
        loop {
            let sessions = sessions(self.kernel, &self.request.facts, self.deadline).await?;
            let place = Place::among(portal, &sessions, self.deadline).await;
            let works = |session: &Session| session.state == State::LoggedIn;
            if sessions
                .iter()
                .any(|session| works(session) && session.is_through(&place))
            {
                return Ok(true);
            }
            let next = Instant::now() + backoff.pause();
            if next >= until {
                return Ok(false);
            }
            tokio::time::sleep_until(next).await;
        }
    }
}
