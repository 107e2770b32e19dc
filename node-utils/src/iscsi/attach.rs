//! Attaching: reuses existing sessions, opens the missing ones, and verifies that the disk is the
//! volume.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::connect::Connector;
use super::disk::Seeker;
use super::facts::IscsiFacts;
use super::gather::{Gathered, gather};
use super::lookup::Place;
use super::session::{Session, State, sessions};
use super::settings::Settings;
use crate::device::multipath::{self, Daemon};
use crate::device::{Attached, BlockDevice, StageLock, look};
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::attachment::{DeviceId, Iscsi, Portal};
use csi_types::error::{Effect, Error, Kind};
use csi_types::secrets::StageSecrets;

/// The time that the other portals may take once the volume can be used. One that answers takes a
/// fraction of a second.
const OTHERS: Duration = Duration::from_secs(5);

/// Makes the volume a device of this machine. Existing sessions are reused without any command,
/// even if another program opened them. Portals without a session are logged in to concurrently.
/// One working portal is enough: the others are warnings and are retried by the next call. The caller drops the lock
/// once the device is in use, so that no detach takes it away before.
///
/// A failed call keeps the sessions that it opened, and the caller closes them: another volume of
/// the target may be about to be mounted through them, and only the caller knows that order.
pub async fn attach(
    tools: &Tools,
    kernel: &Kernel,
    volume: &Iscsi,
    secrets: &StageSecrets,
    deadline: Instant,
) -> Result<(Attached, StageLock), Error> {
    let request = &Request {
        facts: IscsiFacts::of(volume),
        identity: volume.device_id.clone(),
        settings: Settings::of(secrets)?,
    };
    let facts = &request.facts;
    if facts.portals().is_empty() {
        return Err(Error::invalid(format!("attach {facts}")).advise("the volume names no portal"));
    }
    let lock = StageLock::of(facts.iqn().as_str(), deadline).await?;
    let attaching = Attaching {
        tools,
        kernel,
        request,
        deadline,
    };
    let Opened {
        sessions,
        new,
        problems,
    } = attaching.open(&lock).await?;
    match attaching.find(&sessions, &new, problems).await {
        Ok(attached) => Ok((attached, lock)),
        Err(error) if new.is_empty() => Err(error),
        Err(error) => Err(error.with_effect(Effect::Possible)),
    }
}

/// The portals of a volume in use that have no session, beside one that works. None that counts without a multipath map,
/// which would take up the new disk, and where a session proves itself by a password, which is not kept on the node. One
/// that the kernel has given up, below a map after seconds, is still that of the daemon, which opens no second one.
pub async fn lacking(
    kernel: &Kernel,
    device: &BlockDevice,
    volume: &Iscsi,
    deadline: Instant,
) -> Result<Vec<String>, Error> {
    let facts = &IscsiFacts::of(volume);
    let is_map = {
        let (kernel, device) = (kernel.clone(), device.clone());
        let doing = format!("look for the multipath map of {facts}");
        look(deadline, &doing, move || {
            device.disk(&kernel)?.is_multipath_map(&kernel)
        })
        .await?
    };
    let sessions = sessions(kernel, facts, deadline).await?;
    let works = sessions
        .iter()
        .any(|session| session.state == State::LoggedIn);
    if !is_map || !works || sessions.iter().any(|session| session.has_password) {
        return Ok(Vec::new());
    }
    let missing = without_session(facts, &sessions, |_| true, deadline).await;
    Ok(missing.into_iter().map(ToString::to_string).collect())
}

/// The portals of a volume that none of these sessions goes through, of those that count.
async fn without_session<'a>(
    facts: &'a IscsiFacts,
    sessions: &[Session],
    counts: impl Fn(&Session) -> bool,
    deadline: Instant,
) -> Vec<&'a Portal> {
    let mut missing = Vec::new();
    for portal in facts.portals() {
        let place = Place::among(portal, sessions, deadline).await;
        let has = |session: &Session| counts(session) && session.is_through(&place);
        if !sessions.iter().any(has) {
            missing.push(portal);
        }
    }
    missing
}

/// The requested volume.
#[derive(Debug)]
pub(super) struct Request {
    /// The target, its portals and the number of the volume there.
    pub(super) facts: IscsiFacts,
    /// The identifier that the disk must have.
    identity: Option<DeviceId>,
    /// The settings of its sessions in the volume's secrets.
    pub(super) settings: Settings,
}

#[derive(Debug, Clone, Copy)]
struct Attaching<'a> {
    tools: &'a Tools,
    kernel: &'a Kernel,
    request: &'a Request,
    deadline: Instant,
}

/// The sessions of the volume.
#[derive(Debug)]
struct Opened {
    /// In the order of the portals.
    sessions: Vec<Session>,
    /// Those that were not there before.
    new: Vec<u32>,
    /// Why portals have none.
    problems: Vec<Error>,
}

// === impl Attaching ===

impl Attaching<'_> {
    /// Opens the missing session of each portal, as far as possible.
    async fn open(&self, lock: &StageLock) -> Result<Opened, Error> {
        let facts = &self.request.facts;
        // Only here: waiting for the disk does not block attaching another one.
        let _turn = lock.turn(facts.iqn().as_str(), self.deadline).await?;
        let before = sessions(self.kernel, facts, self.deadline).await?;
        let counts = |session: &Session| session.state != State::Other;
        let missing = without_session(facts, &before, counts, self.deadline).await;
        if missing.is_empty() {
            let sessions = self.ours(before).await;
            return Ok(Opened {
                sessions,
                new: Vec::new(),
                problems: Vec::new(),
            });
        }
        let problems = self
            .connect(&missing, missing.len() < facts.portals().len())
            .await?;
        let known: Vec<u32> = before.iter().map(|session| session.sid).collect();
        let after = sessions(self.kernel, facts, self.deadline).await?;
        let sessions = self.ours(after).await;
        let new = sessions.iter().map(|session| session.sid);
        let new = new.filter(|sid| !known.contains(sid)).collect();
        Ok(Opened {
            sessions,
            new,
            problems,
        })
    }

    /// Logs in to these portals, and returns what went wrong.
    async fn connect(&self, portals: &[&Portal], enough: bool) -> Result<Vec<Error>, Error> {
        let daemon = if self.request.facts.portals().len() > 1 {
            let kernel = self.kernel.clone();
            let doing = "look for the multipath daemon";
            Some(look(self.deadline, doing, move || Daemon::find(&kernel)).await?)
        } else {
            None
        };
        let settings = self.request.settings.complete(daemon.as_ref());
        let connector = Connector {
            tools: self.tools,
            kernel: self.kernel,
            request: self.request,
            settings: &settings,
            deadline: self.deadline,
        };
        let attempts = portals.iter().map(|portal| connector.connect(portal));
        let Gathered { failed, left, .. } = gather(attempts.collect(), enough, OTHERS).await;
        self.mention(left);
        Ok(failed)
    }

    fn mention(&self, left: usize) {
        if left > 0 {
            warn!(volume = %self.request.facts, portals = left, "portals that do not answer; the volume goes without them");
        }
    }

    /// The sessions that go through portals of the volume, in the order of the portals.
    async fn ours(&self, all: Vec<Session>) -> Vec<Session> {
        let mut ours: Vec<Session> = Vec::new();
        for portal in self.request.facts.portals() {
            let place = Place::among(portal, &all, self.deadline).await;
            for session in &all {
                if session.is_through(&place) && !ours.contains(session) {
                    ours.push(session.clone());
                }
            }
        }
        ours
    }

    /// Finds the disk in each session, and the one device to use.
    async fn find(
        &self,
        sessions: &[Session],
        new: &[u32],
        mut problems: Vec<Error>,
    ) -> Result<Attached, Error> {
        let facts = &self.request.facts;
        let seeker = Seeker {
            tools: self.tools,
            kernel: self.kernel,
            facts,
            deadline: self.deadline,
        };
        let attempts = sessions
            .iter()
            .enumerate()
            .map(|(place, session)| async move {
                let disk = seeker.find(session.sid, new.contains(&session.sid)).await?;
                Ok((place, disk))
            });
        let Gathered {
            mut done,
            failed,
            left,
        } = gather(attempts.collect(), false, OTHERS).await;
        problems.extend(failed);
        self.mention(left);
        done.sort_unstable();
        let paths: Vec<BlockDevice> = done.into_iter().map(|(_, disk)| disk).collect();
        if paths.is_empty() {
            return Err(worst(problems).unwrap_or_else(|| {
                Error::new(Kind::Unreachable, format!("attach {facts}"))
                    .advise("its sessions have ended")
            }));
        }
        for problem in &problems {
            warn!(volume = %facts, error = %problem.chain(), "a portal of the volume does not work");
        }
        self.finish(paths).await
    }

    /// Verifies that all paths lead to the requested volume, and chooses the device.
    async fn finish(&self, paths: Vec<BlockDevice>) -> Result<Attached, Error> {
        let facts = &self.request.facts;
        let doing = format!("find the device of {facts}");
        let identity = {
            let (kernel, paths) = (self.kernel.clone(), paths.clone());
            look(self.deadline, &doing, move || {
                multipath::identity_of(&kernel, &paths)
            })
            .await?
        };
        if let Some(expected) = &self.request.identity
            && !identity
                .as_ref()
                .is_some_and(|identity| identity.is(expected.as_str()))
        {
            let found = identity.map_or("nothing".to_owned(), |identity| identity.to_string());
            return Err(Error::new(Kind::Internal, doing).advise(format!(
                "its identifier is {found}, but {} is wanted: another volume has its \
                     place",
                expected.as_str()
            )));
        }
        let device = multipath::assemble(self.kernel, &paths, self.deadline).await?;
        device.wait_for_node(self.kernel, self.deadline).await?;
        info!(volume = %facts, %device, paths = paths.len(), "attached");
        Ok(Attached {
            device,
            paths,
            identity,
        })
    }
}

/// The problem to report when nothing works: preferably one that a retry does not solve.
fn worst(mut problems: Vec<Error>) -> Option<Error> {
    let mends = |error: &Error| matches!(error.kind(), Kind::Unreachable | Kind::Timeout);
    let worst = problems.iter().position(|error| !mends(error)).unwrap_or(0);
    (!problems.is_empty()).then(|| problems.swap_remove(worst))
}
