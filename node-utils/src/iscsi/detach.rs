//! Detaching: removes the disk of the volume, and closes a session with its last disk.

use tokio::time::Instant;
use tracing::{info, warn};

use super::disk::{mounts, user};
use super::facts::IscsiFacts;
use super::lookup::Place;
use super::session::{LunDisk, Session, sessions};
use super::tool::Tool;
use crate::device::{BlockDevice, DetachLock, look, multipath, scsi, until};
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::attachment::Portal;
use csi_types::error::{Error, Kind};

/// A session of the volume, and the facts that decide whether it is closed.
#[derive(Debug)]
struct Seen {
    session: Session,
    /// The disk of the volume.
    ours: Option<BlockDevice>,
    /// Maps of the multipath daemon over its other disks.
    maps: Vec<BlockDevice>,
    /// Why it has to stay.
    other: Option<String>,
}

/// Closes the sessions of a volume and removes their records; while other volumes of the target are in
/// use it removes only the disks. A volume in use is an error, a detached one a success. It is done
/// when the kernel shows neither session nor disk.
pub async fn detach(
    tools: &Tools,
    kernel: &Kernel,
    facts: &IscsiFacts,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("detach {facts}");
    let _lock = DetachLock::of(facts.iqn().as_str(), deadline).await?;
    let (seen, map) = look_around(kernel, facts, &doing, deadline).await?;
    if let Some(map) = map {
        // Before the last path is removed: otherwise the map would keep its writes, and block the processes that
        // wait for them.
        multipath::remove(tools.host(), kernel, &map, deadline).await?;
    }
    let tool = Tool::new(tools, facts, deadline);
    let mut stay: Vec<Portal> = Vec::new();
    let mut records: Vec<Portal> = facts.portals().to_vec();
    for one in seen {
        let portal = one.session.portal();
        match one.give_up(tools, kernel, tool, deadline).await? {
            Given::Session => records.extend(portal.filter(|portal| !records.contains(portal))),
            Given::Disk => stay.extend(portal),
        }
    }
    // Also the records of portals without a session for long: a session that was lost, or a call that was killed,
    // leaves its record.
    records.retain(|portal| !stay.iter().any(|other| other == portal));
    for portal in &records {
        tool.forget(portal).await?;
    }
    Ok(())
}

/// The removed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    Session,
    Disk,
}

/// The sessions of the volume and the multipath map over its disks. An error if it is in use.
async fn look_around(
    kernel: &Kernel,
    facts: &IscsiFacts,
    doing: &str,
    deadline: Instant,
) -> Result<(Vec<Seen>, Option<BlockDevice>), Error> {
    let all = sessions(kernel, facts, deadline).await?;
    let mut ours: Vec<Session> = Vec::new();
    for portal in facts.portals() {
        let place = Place::among(portal, &all, deadline).await;
        for session in &all {
            if session.is_through(&place) && !ours.contains(session) {
                ours.push(session.clone());
            }
        }
    }
    let (kernel, facts) = (kernel.clone(), facts.clone());
    let because = doing.to_owned();
    look(deadline, doing, move || {
        let mounts = mounts(&kernel)?;
        let mut all = Vec::new();
        let mut found = None;
        for session in ours {
            let disks = session.disks(&kernel)?;
            let (ours, others): (Vec<LunDisk>, Vec<LunDisk>) =
                disks.into_iter().partition(|disk| disk.is(facts.lun()));
            let mut seen = Seen {
                session,
                ours: ours.into_iter().next().map(|disk| disk.device),
                maps: Vec::new(),
                other: None,
            };
            if let Some(disk) = &seen.ours {
                let (map, usage) = user(&kernel, &mounts, disk)?;
                if let Some(usage) = usage {
                    let device = map.as_ref().unwrap_or(disk);
                    return Err(
                        Error::new(Kind::Busy, because).advise(format!("{device} is {usage}"))
                    );
                }
                found = found.or(map);
            }
            for disk in others {
                let (map, usage) = user(&kernel, &mounts, &disk.device)?;
                let reason = usage.map(|usage| format!("{} is {usage}", disk.device));
                seen.other = seen.other.or(reason);
                seen.maps.extend(map);
            }
            all.push(seen);
        }
        Ok((all, found))
    })
    .await
}

// === impl Seen ===

impl Seen {
    async fn give_up(
        mut self,
        tools: &Tools,
        kernel: &Kernel,
        tool: Tool<'_>,
        deadline: Instant,
    ) -> Result<Given, Error> {
        for map in std::mem::take(&mut self.maps) {
            if self.other.is_some() {
                break;
            }
            // A volume without users, or one that was just attached.
            if let Err(error) = multipath::remove(tools.host(), kernel, &map, deadline).await {
                self.other = Some(error.chain());
            }
        }
        let sid = self.session.sid;
        if let Some(other) = &self.other {
            info!(
                session = sid,
                because = other,
                "the session of another volume stays"
            );
            if let Some(disk) = &self.ours {
                scsi::remove(kernel, disk, deadline).await?;
            }
            return Ok(Given::Disk);
        }
        let answer = tool.logout(sid).await;
        if let Err(error) = &answer {
            warn!(session = sid, error = %error.chain(), "cannot log out");
        }
        self.is_gone(kernel, answer, deadline).await?;
        Ok(Given::Session)
    }

    /// Whatever a logout returned, the session is closed when the kernel does not have it any more.
    async fn is_gone(
        &self,
        kernel: &Kernel,
        answer: Result<(), Error>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let sid = self.session.sid;
        let doing = format!(
            "wait until session {sid} with {} is gone",
            self.session.target
        );
        let gone = {
            let kernel = kernel.clone();
            move || Ok(Session::by_sid(&kernel, sid)?.is_none().then_some(()))
        };
        let give_up_at = match answer {
            Ok(()) => deadline,
            Err(_) => deadline.min(Instant::now() + super::ENDS),
        };
        if until(give_up_at, &doing, gone).await?.is_some() {
            return Ok(());
        }
        Err(match answer {
            Err(error) => error,
            Ok(()) => Error::new(Kind::Timeout, doing).advise("the kernel still shows it"),
        })
    }
}
