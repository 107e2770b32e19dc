//! The disk of a volume in one session: waits for it and verifies its identity.
//!
//! The kernel scans for disks at the start of a session and later only on request, and it reads the
//! identity of a disk only once. So a number that the target has reassigned to another volume still
//! shows the old one, and a number without a volume still shows a disk, of size zero.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::{info, warn};

use super::facts::IscsiFacts;
use super::session::{Session, State, origin};
use crate::blocking::{self, Doing, Limits};
use crate::device::scsi::{self, Asked};
use crate::device::{BlockDevice, Usage, look, multipath, set, unreadable};
use crate::kernel::{self, Kernel};
use crate::mount::MountTable;
use crate::tools::Tools;
use csi_types::attachment::{Iqn, Lun};
use csi_types::backoff::Backoff;
use csi_types::error::{Error, Kind};

/// The time that a disk may take to appear once its session works: a target needs this long to export a new
/// volume.
const APPEAR: Duration = Duration::from_secs(30);

/// When the kernel scans for the disk of a new session: iscsid starts a scan first, and two scans at once wait for
/// each other. If `node.session.scan` is `manual`, only this scan happens.
const OWN_SCAN: Duration = Duration::from_secs(1);
/// The pauses between two such scans. A target exports a new volume within a second, a slow one in half a minute.
const SCANS: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(2));

/// A volume, as one session must show it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seeker<'a> {
    pub(super) tools: &'a Tools,
    pub(super) kernel: &'a Kernel,
    pub(super) facts: &'a IscsiFacts,
    pub(super) deadline: Instant,
}

/// The result of the identification of a disk.
#[derive(Debug, PartialEq, Eq)]
enum Shows {
    /// The same volume as before.
    TheSame,
    /// Nothing, or something that cannot be identified.
    Nothing,
    /// Certainly another volume.
    Another,
}

// === impl Seeker ===

impl Seeker<'_> {
    /// The disk of the volume in this session, once it exists and is up to date. `is_new`: the session was just
    /// opened, so the kernel has no old data.
    pub(super) async fn find(&self, sid: u32, is_new: bool) -> Result<BlockDevice, Error> {
        let doing = self.doing(sid);
        let give_up_at = self.deadline.min(Instant::now() + APPEAR);
        let mut asked = is_new;
        let mut scans = SCANS;
        let mut next_scan = Instant::now() + if is_new { OWN_SCAN } else { Duration::ZERO };
        let mut backoff = Backoff::of_polls();
        loop {
            let Some((session, disk)) = self.look(sid, &doing).await? else {
                return Err(Error::new(Kind::Unreachable, doing).advise("the session has ended"));
            };
            // A query to a disk whose session has no connection waits until it has one again.
            if session.state == State::LoggedIn {
                match disk {
                    Some(disk) if asked => return Ok(disk),
                    Some(disk) => match self.ask(&disk).await? {
                        Shows::TheSame => return Ok(disk),
                        shows => {
                            self.discard(&disk, &shows).await?;
                            asked = true;
                            next_scan = Instant::now();
                        }
                    },
                    None if Instant::now() >= next_scan => {
                        self.scan(&session).await?;
                        // A disk that is found now did not exist before.
                        asked = true;
                        next_scan = Instant::now() + scans.pause();
                        continue;
                    }
                    None => {}
                }
            }
            let next = Instant::now() + backoff.pause();
            if next >= give_up_at {
                return Err(
                    Error::new(Kind::Unreachable, doing).advise(match session.state {
                        State::LoggedIn => {
                            "the target does not show it: is it exported there, to this host's \
                             initiator name?"
                        }
                        _ => "the session has lost its connection, and the portal does not answer",
                    }),
                );
            }
            tokio::time::sleep_until(next).await;
        }
    }

    fn doing(&self, sid: u32) -> String {
        let (target, lun) = (self.facts.iqn(), self.facts.lun());
        format!("find disk {lun} of {target} in session {sid}")
    }

    async fn look(
        &self,
        sid: u32,
        doing: &str,
    ) -> Result<Option<(Session, Option<BlockDevice>)>, Error> {
        let (kernel, lun) = (self.kernel.clone(), self.facts.lun());
        look(self.deadline, doing, move || {
            let Some(session) = Session::by_sid(&kernel, sid)? else {
                return Ok(None);
            };
            let disk = session.disk(&kernel, lun)?;
            Ok(Some((session, disk)))
        })
        .await
    }

    /// Makes the kernel scan for this disk only, in this session only.
    async fn scan(&self, session: &Session) -> Result<(), Error> {
        let (path, words) = session.scan(self.kernel, self.facts.lun());
        let doing = self.doing(session.sid);
        let work = {
            let doing = doing.clone();
            move || {
                let written = kernel::write(&path, &words);
                written.map_err(|error| Error::new(Kind::Unreachable, doing).because(error))
            }
        };
        let limits = Limits::until(self.deadline);
        blocking::run(limits, Doing::changing(doing), work)
            .await
            .map(drop)
    }

    async fn ask(&self, disk: &BlockDevice) -> Result<Shows, Error> {
        let before = {
            let (kernel, disk) = (self.kernel.clone(), disk.clone());
            let doing = format!("read the state of {disk}");
            look(self.deadline, &doing, move || is_fenced(&kernel, &disk)).await?
        };
        if before {
            return Ok(Shows::Another);
        }
        let asked = scsi::ask(self.kernel, disk, self.deadline).await?;
        let shows = {
            let (kernel, disk) = (self.kernel.clone(), disk.clone());
            let doing = format!("read what {disk} shows");
            look(self.deadline, &doing, move || shows(&kernel, &disk, &asked)).await?
        };
        if shows != Shows::TheSame {
            warn!(%disk, volume = %self.facts, ?shows, "the number of the disk has another meaning now");
        }
        Ok(shows)
    }

    /// Removes a stale disk, unless it is in use.
    async fn discard(&self, disk: &BlockDevice, shows: &Shows) -> Result<(), Error> {
        let doing = format!("take away the old {disk} of {}", self.facts);
        let of = disk.clone();
        let kernel = self.kernel.clone();
        let (map, usage) = look(self.deadline, &doing, move || {
            let mounts = mounts(&kernel)?;
            user(&kernel, &mounts, &of)
        })
        .await?;
        if let Some(usage) = usage {
            if *shows == Shows::Another {
                fence(self.kernel, disk, self.deadline).await?;
            }
            return Err(Error::new(Kind::Busy, doing).advise(format!(
                "the target shows another volume in its place, but it is still {usage}"
            )));
        }
        info!(%disk, volume = %self.facts, "removing a disk that its target no longer has");
        if let Some(map) = map {
            multipath::remove(self.tools.host(), self.kernel, &map, self.deadline).await?;
        }
        scsi::remove(self.kernel, disk, self.deadline).await
    }
}

/// What a refreshed disk shows.
fn shows(kernel: &Kernel, disk: &BlockDevice, asked: &Asked) -> Result<Shows, Error> {
    // A removed volume keeps its identifier, but has the size zero.
    if disk.size(kernel)? == 0 {
        return Ok(Shows::Nothing);
    }
    let now = match asked {
        Asked::Same(now) => now,
        // The page tells the way too: a controller that took over from another one shows it.
        Asked::Changed { before, now } if before.is_some() && before == now => now,
        Asked::Changed { before, now } if before.is_some() && now.is_some() => {
            return Ok(Shows::Another);
        }
        Asked::Changed { .. } => return Ok(Shows::Nothing),
    };
    // Another process may have refreshed it since, but the map was made of the old data.
    let map = multipath::map_over(kernel, std::slice::from_ref(disk))?;
    let made_of = match map {
        Some(map) => map.attribute(kernel, "dm/uuid")?,
        None => None,
    };
    Ok(match (made_of, now) {
        (Some(uuid), Some(now)) if !may_be_of(&uuid, now.as_str()) => Shows::Another,
        _ => Shows::TheSame,
    })
}

/// Whether a map may have been made of a disk with this identifier. Of the ways to make a uuid of
/// an identifier only the usual one can be compared: a 3, which is the type, and its digits.
fn may_be_of(uuid: &str, identity: &str) -> bool {
    let made_of = uuid.strip_prefix("mpath-3");
    let is = identity.strip_prefix("naa.");
    match (made_of, is) {
        (Some(made_of), Some(is)) if made_of.len() == is.len() => made_of.eq_ignore_ascii_case(is),
        _ => true,
    }
}

/// Prevents writes through a disk that now shows another volume. The disk stays offline until it is removed, which
/// marks it for later calls.
async fn fence(kernel: &Kernel, disk: &BlockDevice, deadline: Instant) -> Result<(), Error> {
    // The kernel takes no word without its line end.
    warn!(%disk, "taking a disk offline: its number was given to another volume while it was in use");
    set(
        disk.directory(kernel).join("device/state"),
        "offline\n",
        deadline,
    )
    .await
    .map(drop)
}

fn is_fenced(kernel: &Kernel, disk: &BlockDevice) -> Result<bool, Error> {
    Ok(disk.attribute(kernel, "device/state")?.as_deref() == Some("offline"))
}

pub(super) fn mounts(kernel: &Kernel) -> Result<MountTable, Error> {
    MountTable::read().map_err(|error| unreadable(&kernel.proc("self/mountinfo"), error))
}

/// The map over a disk, and the usage of the disk or its map. A map alone is not a usage: the daemon
/// makes one for every disk that it finds.
pub(super) fn user(
    kernel: &Kernel,
    mounts: &MountTable,
    disk: &BlockDevice,
) -> Result<(Option<BlockDevice>, Option<Usage>), Error> {
    let map = multipath::map_over(kernel, std::slice::from_ref(disk))?;
    let usage = map.as_ref().unwrap_or(disk).in_use(kernel, mounts)?;
    Ok((map, usage))
}

/// The volume a device is, as far as sysfs shows; `None` for what did not come by iSCSI.
pub fn facts_of(kernel: &Kernel, device: &BlockDevice) -> Result<Option<IscsiFacts>, Error> {
    let disk = device.disk(kernel)?;
    let paths = if disk.is_multipath_map(kernel)? {
        disk.slaves(kernel)?
    } else {
        vec![disk]
    };
    let mut first: Option<(Session, Lun)> = None;
    for path in &paths {
        first = first.or(origin(kernel, path)?);
    }
    let Some((first, lun)) = first else {
        return Ok(None);
    };
    // With the sessions that show it although no map joins them.
    let identity = multipath::identity_of(kernel, &paths)?;
    let mut portals = Vec::new();
    for session in Session::of(kernel, &first.target)? {
        let shows = match session.disk(kernel, lun)? {
            Some(disk) => {
                paths.contains(&disk) || identity.is_some() && disk.wwid(kernel)? == identity
            }
            None => false,
        };
        if shows {
            portals.extend(session.portal());
        }
    }
    let iqn = Iqn::parse(&first.target).ok();
    Ok(iqn.map(|iqn| IscsiFacts::new(iqn, lun, portals)))
}

/// Makes the kernel notice that a disk has grown, on each of its paths and in its map.
///
/// A path that does not answer is no error as long as another one does, unless there is a map,
/// which cannot be larger than any of them.
pub async fn rescan(
    tools: &Tools,
    kernel: &Kernel,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("ask {device} for its size");
    let (map, paths) = {
        let (kernel, device) = (kernel.clone(), device.clone());
        look(deadline, &doing, move || {
            let disk = device.disk(&kernel)?;
            Ok(if disk.is_multipath_map(&kernel)? {
                let paths = disk.slaves(&kernel)?;
                (Some(disk), paths)
            } else {
                (None, vec![disk])
            })
        })
        .await?
    };
    let asked = join_all(paths.iter().map(|path| grown(kernel, path, deadline))).await;
    let many = asked.len();
    let mut failed: Vec<Error> = asked.into_iter().filter_map(Result::err).collect();
    if failed.len() == many
        && let Some(error) = failed.pop()
    {
        return Err(error);
    }
    for error in failed {
        warn!(%device, error = %error.chain(), "a path does not say how large the disk is");
    }
    match map {
        Some(map) => multipath::resize(tools.host(), kernel, &map, deadline).await,
        None => Ok(()),
    }
}

/// Refreshes the size of one path, and verifies that it is still the same disk.
async fn grown(kernel: &Kernel, path: &BlockDevice, deadline: Instant) -> Result<(), Error> {
    let asked = scsi::ask(kernel, path, deadline).await?;
    let doing = format!("ask {path} for its size");
    let shows = {
        let (kernel, path) = (kernel.clone(), path.clone());
        look(deadline, &doing, move || shows(&kernel, &path, &asked)).await?
    };
    match shows {
        Shows::TheSame => Ok(()),
        Shows::Nothing => {
            Err(Error::new(Kind::Unreachable, doing).advise("its target no longer shows it"))
        }
        Shows::Another => {
            fence(kernel, path, deadline).await?;
            Err(Error::new(Kind::Internal, doing)
                .advise("its number was given to another volume: it was taken offline"))
        }
    }
}
