//! Attaching: reuses existing connections to the namespace, and adds the missing ones.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::{info, warn};

use super::NvmeFacts;
use super::authenticated::{self, own_key};
use super::connect::{Resolved, endurance, ready};
use super::controller::{Controller, State};
use super::host_identity::HostIdentity;
use super::namespace::{Namespace, ask_all};
use super::request_size;
use crate::blocking::{self, Doing, Limits};
use crate::device::{Attached, BlockDevice, StageLock, look, multipath, unreadable, until};
use crate::kernel::Kernel;
use crate::mount::MountTable;
use crate::tools::Tools;
use csi_types::attachment::Nvmeof;
use csi_types::error::{Effect, Error, Kind};

/// The time that a connection may take to work, and its namespace to appear, after the command ended.
const APPEAR: Duration = Duration::from_secs(30);

/// The time that the other routes may take once the volume can be used: a dead one takes the kernel
/// three seconds.
const OTHERS: Duration = Duration::from_secs(5);

/// The state of the volume in sysfs.
#[derive(Debug)]
struct Seen {
    controllers: Vec<Controller>,
    disks: Vec<Namespace>,
}

// === impl Seen ===

impl Seen {
    fn look(kernel: &Kernel, facts: &NvmeFacts) -> Result<Self, Error> {
        let controllers = Controller::of(kernel, facts.nqn())?;
        let mut disks = Namespace::of(kernel, facts.nqn())?;
        disks.retain(|disk| disk.nsid == facts.nsid().get());
        Ok(Self { controllers, disks })
    }

    async fn now(kernel: &Kernel, facts: &NvmeFacts, deadline: Instant) -> Result<Self, Error> {
        let (kernel, of) = (kernel.clone(), facts.clone());
        let work = move || Self::look(&kernel, &of);
        look(deadline, &format!("look for {facts}"), work).await
    }

    fn live(&self) -> usize {
        let live = |controller: &&Controller| controller.state == State::Live;
        self.controllers.iter().filter(live).count()
    }

    /// Whether the namespace can be used by at least one connection.
    fn is_usable(&self) -> bool {
        self.live() > 0 && !self.disks.is_empty()
    }

    /// Whether each connection that works has shown its disk.
    fn is_complete(&self) -> bool {
        let joined = self.disks.iter().any(|disk| disk.is_joined);
        self.is_usable() && (joined || self.disks.len() >= self.live())
    }
}

/// Makes the namespace a device of this machine. Existing connections are reused, even if another
/// program made them. Routes without a connection are connected concurrently. One working route is
/// enough: the others are warnings and are retried by the next call. The caller drops the lock once the device is in
/// use, so that no detach takes it away before.
pub async fn attach(
    tools: &Tools,
    kernel: &Kernel,
    volume: &Nvmeof,
    deadline: Instant,
) -> Result<(Attached, StageLock), Error> {
    let facts = &NvmeFacts::of(volume);
    let lock = StageLock::of(facts.nqn().as_str(), deadline).await?;
    let attached = {
        let _turn = lock.turn(facts.nqn().as_str(), deadline).await?;
        open(tools, kernel, volume, facts, deadline).await?
    };
    Ok((attached, lock))
}

/// The places of a namespace in use to which there is no connection, beside one that works. None that counts where the
/// kernel does not join the paths: one that is new would not be used.
pub async fn lacking(
    kernel: &Kernel,
    volume: &Nvmeof,
    deadline: Instant,
) -> Result<Vec<String>, Error> {
    let facts = &NvmeFacts::of(volume);
    let seen = Seen::now(kernel, facts, deadline).await?;
    let is_joined = seen.disks.iter().any(|disk| disk.is_joined);
    // No name is looked up where nothing can be missing.
    if !seen.is_usable() || !is_joined || seen.controllers.len() >= volume.transports.len() {
        return Ok(Vec::new());
    }
    let (routes, _) = resolve(volume, deadline).await;
    let lacking = routes
        .iter()
        .filter(|route| route.find(&seen.controllers).is_none());
    Ok(lacking.map(Resolved::place).collect())
}

async fn open(
    tools: &Tools,
    kernel: &Kernel,
    volume: &Nvmeof,
    facts: &NvmeFacts,
    deadline: Instant,
) -> Result<Attached, Error> {
    let (routes, mut problems) = resolve(volume, deadline).await;
    settle(kernel, facts, deadline).await?;
    let seen = Seen::now(kernel, facts, deadline).await?;
    if routes.is_empty() && !seen.is_usable() {
        return Err(problems.into_iter().next().unwrap_or_else(|| {
            Error::invalid(format!("attach {facts}")).advise("the volume names no transport")
        }));
    }
    let missing: Vec<&Resolved> = routes
        .iter()
        .filter(|route| route.find(&seen.controllers).is_none())
        .collect();
    if !missing.is_empty() {
        let connecting = connect(tools, kernel, facts, missing, deadline);
        let usable = appear(kernel, facts, deadline);
        tokio::pin!(connecting, usable);
        tokio::select! {
            failed = &mut connecting => problems.extend(failed),
            result = &mut usable => {
                result?;
                if let Ok(failed) = tokio::time::timeout(OTHERS, connecting).await {
                    problems.extend(failed);
                } else {
                    warn!(volume = %facts, "a route is still being connected; the volume goes without it");
                }
            }
        }
    }
    for problem in &problems {
        warn!(volume = %facts, error = %problem.chain(), "a route to the volume does not work");
    }
    let seen = Seen::now(kernel, facts, deadline).await?;
    hide_keys(kernel, facts, seen.controllers.clone(), deadline).await;
    if seen.controllers.iter().all(|one| one.state == State::Going) {
        return Err(problems.into_iter().next().unwrap_or_else(|| {
            Error::new(Kind::Unreachable, format!("connect to {}", facts.nqn()))
        }));
    }
    if !seen.is_usable() {
        appear(kernel, facts, deadline).await?;
    }
    finish(kernel, volume, facts, deadline).await
}

/// Looks up all hosts at once; those that are not found are problems, which the volume may not
/// have if it is connected already.
async fn resolve(volume: &Nvmeof, deadline: Instant) -> (Vec<Resolved>, Vec<Error>) {
    let endurance = endurance(volume);
    let lookups = volume.transports.iter().cloned();
    let lookups = join_all(lookups.map(|route| Resolved::of(route, endurance, deadline))).await;
    let (mut routes, mut problems) = (Vec::new(), Vec::new());
    for result in lookups {
        match result {
            Ok(route) => routes.push(route),
            Err(error) => problems.push(error),
        }
    }
    (routes, problems)
}

/// Waits for connections that are being removed: the kernel would mistake them for the requested ones.
async fn settle(kernel: &Kernel, facts: &NvmeFacts, deadline: Instant) -> Result<(), Error> {
    let doing = format!("wait until an old connection to {} is gone", facts.nqn());
    let (kernel, nqn) = (kernel.clone(), facts.nqn().clone());
    let quiet = move || {
        let controllers = Controller::of(&kernel, &nqn)?;
        let going = |controller: &Controller| controller.state == State::Going;
        Ok((!controllers.iter().any(going)).then_some(()))
    };
    let gone = until(deadline, &doing, quiet).await?;
    gone.ok_or_else(|| Error::new(Kind::Timeout, doing))
}

/// Connects these routes and returns what went wrong.
async fn connect(
    tools: &Tools,
    kernel: &Kernel,
    facts: &NvmeFacts,
    routes: Vec<&Resolved>,
    deadline: Instant,
) -> Vec<Error> {
    let prepared = async {
        let (with_own, others): (Vec<_>, Vec<_>) =
            routes.into_iter().partition(|route| route.has_key());
        let key = if others.is_empty() {
            Ok(None)
        } else {
            own_key(tools, deadline).await
        };
        // A fault of the key of this node is none of the routes with their own.
        let (key, problem) = match key {
            Ok(key) => (key, None),
            Err(error) if with_own.is_empty() => return Err(error),
            Err(error) => (None, Some(error)),
        };
        let others = others.into_iter().filter(|_| problem.is_none());
        let routes: Vec<&Resolved> = with_own.into_iter().chain(others).collect();
        ready(tools, kernel, deadline).await?;
        let (kernel, nqn) = (kernel.clone(), facts.nqn().clone());
        let choose = move || {
            let mounts = MountTable::read();
            let path = kernel.proc("self/mountinfo");
            let mounts = mounts.map_err(|error| unreadable(&path, error))?;
            HostIdentity::choose(&kernel, &mounts, &nqn)
        };
        let host = look(deadline, "find an NVMe name for this machine", choose).await?;
        Ok::<_, Error>((host, key, routes, problem))
    };
    let (host, key, routes, problem) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => return vec![error],
    };
    info!(volume = %facts, host = %host.nqn, routes = routes.len(), "connecting");
    let routes = routes.into_iter();
    let identity = (&host, key.as_ref());
    let attempts = routes.map(|route| route.connect(tools, kernel, facts, identity, deadline));
    let failed = join_all(attempts).await.into_iter();
    let failed = failed.filter_map(Result::err);
    problem.into_iter().chain(failed).collect()
}

/// Hides the keys of all connections, also of those that were late, or that another program made.
async fn hide_keys(
    kernel: &Kernel,
    facts: &NvmeFacts,
    controllers: Vec<Controller>,
    deadline: Instant,
) {
    let limits = Limits::until(deadline.min(Instant::now() + OTHERS));
    let doing = Doing::changing(format!("hide the keys of {}", facts.nqn()));
    let kernel = kernel.clone();
    let work = move || {
        authenticated::hide(&kernel, &controllers);
        Ok(())
    };
    if let Err(error) = blocking::run(limits, doing, work).await {
        warn!(volume = %facts, error = %error.chain(), "every user of this machine may read its NVMe keys");
    }
}

/// Waits until the namespace can be used; asks for it once if it is not there although a
/// connection works.
async fn appear(kernel: &Kernel, facts: &NvmeFacts, deadline: Instant) -> Result<(), Error> {
    let soon = deadline.min(Instant::now() + APPEAR);
    let doing = format!("wait for {facts}");
    let live = {
        let (kernel, facts) = (kernel.clone(), facts.clone());
        move || {
            let seen = Seen::look(&kernel, &facts)?;
            Ok((seen.live() > 0).then_some(seen))
        }
    };
    let Some(seen) = until(soon, &doing, live).await? else {
        return Err(Error::new(Kind::Unreachable, doing)
            .advise("no connection to its target works; the kernel keeps trying"));
    };
    if !seen.is_usable() {
        // A connection that was there before may not have noticed a new namespace.
        ask_all(kernel, &seen.controllers, deadline).await?;
    }
    let usable = {
        let (kernel, facts) = (kernel.clone(), facts.clone());
        move || Ok(Seen::look(&kernel, &facts)?.is_usable().then_some(()))
    };
    until(soon, &doing, usable).await?.ok_or_else(|| {
        Error::new(Kind::NotFound, doing)
            .with_effect(Effect::Possible)
            .advise("the subsystem does not show it: is it enabled there, and allowed to us?")
    })
}

/// Chooses the device, and verifies that it is the requested volume.
async fn finish(
    kernel: &Kernel,
    volume: &Nvmeof,
    facts: &NvmeFacts,
    deadline: Instant,
) -> Result<Attached, Error> {
    let doing = format!("find the device of {facts}");
    let complete = {
        let (kernel, facts) = (kernel.clone(), facts.clone());
        move || {
            let seen = Seen::look(&kernel, &facts)?;
            Ok(seen.is_complete().then_some(seen))
        }
    };
    let seen = match until(deadline.min(Instant::now() + OTHERS), &doing, complete).await? {
        Some(seen) => seen,
        None => Seen::now(kernel, facts, deadline).await?,
    };
    let joined = seen.disks.iter().find(|disk| disk.is_joined);
    let paths: Vec<BlockDevice> = match joined {
        Some(disk) => vec![disk.device.clone()],
        None => seen.disks.iter().map(|disk| disk.device.clone()).collect(),
    };
    let Some(first) = paths.first().cloned() else {
        return Err(Error::new(Kind::Unreachable, doing).advise("it was there a moment ago"));
    };
    let identity = {
        let (kernel, paths) = (kernel.clone(), paths.clone());
        look(deadline, &doing, move || {
            multipath::identity_of(&kernel, &paths)
        })
        .await?
    };
    if let Some(expected) = &volume.device_id
        && !identity
            .as_ref()
            .is_some_and(|identity| identity.is(expected.as_str()))
    {
        let found = identity.map_or("nothing".to_owned(), |identity| identity.to_string());
        return Err(Error::new(Kind::Internal, doing).advise(format!(
            "its identifier is {found}, but {} is wanted: another volume has its place",
            expected.as_str()
        )));
    }
    let device = match joined {
        Some(_) => first,
        None => multipath::assemble(kernel, &paths, deadline).await?,
    };
    request_size::limit(kernel, facts, &device, deadline).await;
    device.wait_for_node(kernel, deadline).await?;
    Ok(Attached {
        device,
        paths,
        identity,
    })
}
