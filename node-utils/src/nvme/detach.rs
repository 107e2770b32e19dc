//! Detaching: closes the connections of a subsystem with the last of its volumes.

use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::{info, warn};

use super::NvmeFacts;
use super::controller::{Controller, State};
use super::namespace::Namespace;
use crate::device::{BlockDevice, DetachLock, Usage, look, multipath, set, unreadable, until};
use crate::kernel::Kernel;
use crate::mount::MountTable;
use crate::tools::Tools;
use csi_types::error::{Error, Kind};

/// The facts that decide about a disconnect.
#[derive(Debug)]
struct Seen {
    controllers: Vec<Controller>,
    /// Maps of the multipath daemon over the namespaces.
    maps: Vec<BlockDevice>,
    /// The usage of our namespace.
    ours: Option<(BlockDevice, Usage)>,
    /// The usage of another namespace of the subsystem.
    others: Option<(BlockDevice, Usage)>,
}

// === impl Seen ===

impl Seen {
    fn look(kernel: &Kernel, facts: &NvmeFacts) -> Result<Self, Error> {
        let mounts = MountTable::read();
        let mounts = mounts.map_err(|error| unreadable(&kernel.proc("self/mountinfo"), error))?;
        let mut seen = Self {
            controllers: Controller::of(kernel, facts.nqn())?,
            maps: Vec::new(),
            ours: None,
            others: None,
        };
        if seen.controllers.is_empty() {
            return Ok(seen);
        }
        for disk in Namespace::of(kernel, facts.nqn())? {
            // A path holds nothing but its map, which is asked itself.
            let map = multipath::map_over(kernel, std::slice::from_ref(&disk.device))?;
            let device = map.clone().unwrap_or(disk.device);
            let usage = device.in_use(kernel, &mounts)?.map(|usage| (device, usage));
            if disk.nsid == facts.nsid().get() {
                seen.ours = seen.ours.or(usage);
            } else {
                seen.others = seen.others.or(usage);
            }
            seen.maps.extend(map.filter(|map| !seen.maps.contains(map)));
        }
        Ok(seen)
    }
}

/// Closes the connections of the volume's subsystem. While another volume of it is in use they stay,
/// which is not an error: the last volume closes them. A volume in use is an error, a detached one a
/// success. It is done when sysfs shows neither connection nor disk.
pub async fn detach(
    tools: &Tools,
    kernel: &Kernel,
    facts: &NvmeFacts,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("detach {facts}");
    let _lock = DetachLock::of(facts.nqn().as_str(), deadline).await?;
    let seen = {
        let (kernel, facts) = (kernel.clone(), facts.clone());
        look(deadline, &doing, move || Seen::look(&kernel, &facts)).await?
    };
    if let Some((device, usage)) = seen.ours {
        return Err(Error::new(Kind::Busy, doing).advise(format!("{device} is {usage}")));
    }
    if let Some((device, usage)) = seen.others {
        info!(volume = %facts, %device, %usage, "another volume of the subsystem is in use: it stays connected");
        return Ok(());
    }
    for map in &seen.maps {
        multipath::remove(tools.host(), kernel, map, deadline).await?;
    }
    let going = seen
        .controllers
        .iter()
        .filter(|one| one.state != State::Going);
    let deleted = join_all(going.map(|controller| async move {
        let path = controller.directory(kernel).join("delete_controller");
        set(path, "1", deadline).await
    }));
    for error in deleted.await.into_iter().filter_map(Result::err) {
        // It may be gone all the same, and is seen below if not.
        warn!(volume = %facts, error = %error.chain(), "cannot delete a connection");
    }
    let gone = {
        let (kernel, nqn) = (kernel.clone(), facts.nqn().clone());
        move || {
            let nothing = Controller::of(&kernel, &nqn)?.is_empty();
            // The namespaces of a local disk with this NQN stay, so they do not count.
            let local = Controller::all(&kernel)?
                .iter()
                .any(|one| one.is_local(&nqn));
            Ok((nothing && (local || Namespace::of(&kernel, &nqn)?.is_empty())).then_some(()))
        }
    };
    // A target that has stopped to answer is waited for by the kernel, for a minute at most; it goes
    // on when we are gone, and a retry finds it done.
    let result = until(deadline, &doing, gone).await;
    result?.ok_or_else(|| {
        Error::new(Kind::Timeout, doing)
            .advise("the kernel still shows a connection to its subsystem")
    })
}
