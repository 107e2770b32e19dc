//! Sessions, their connections and the disks behind them, as sysfs shows them now.
//!
//! Nothing here asks the daemon that owns the sessions: the state in the kernel decides. The source is
//! the kernel's `scsi_transport_iscsi`.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tokio::time::Instant;

use super::facts::{IscsiFacts, shown};
use super::lookup::Place;
use crate::device::{BlockDevice, look, unreadable};
use crate::kernel::{self, Kernel};
use csi_types::attachment::{Lun, Portal};
use csi_types::error::Error;

/// The numbers from which a target may write the number of a disk in another way than below, and
/// the mark of that way: "flat space" in the SCSI architecture model.
const FLAT_FROM: u64 = 256;
const FLAT: u64 = 0x4000;

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It works.
    LoggedIn,
    /// Its connection was lost; the daemon tries to get it back.
    Recovering,
    /// It is on its way in or out.
    Other,
}

/// One session of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    /// Its number, which is never used again until the machine is started anew.
    pub(super) sid: u32,
    pub(super) target: String,
    pub(super) state: State,
    /// This machine proves itself by a password.
    pub(super) has_password: bool,
    /// The host adapter it belongs to; each session by software has its own.
    host: u32,
    /// Its number among the targets of the adapter.
    target_id: u32,
    /// The place where it was asked to go, and where it went: a name and its address, or after a redirection
    /// two addresses.
    places: Vec<Portal>,
}

/// A disk of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LunDisk {
    /// Its number on the target.
    pub(super) lun: u64,
    pub(super) device: BlockDevice,
}

/// The session that a disk came by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSession {
    /// Its target.
    pub target: String,
    /// The session works.
    pub is_logged_in: bool,
    /// The kernel has not given up the disk.
    pub is_offered: bool,
}

// === impl Session ===

impl Session {
    /// The sessions with a target, in the order in which they were opened.
    pub(super) fn of(kernel: &Kernel, target: &str) -> Result<Vec<Self>, Error> {
        let class = kernel.sys("class/iscsi_session");
        let mut sessions = Vec::new();
        for name in kernel::list(&class).map_err(|error| unreadable(&class, error))? {
            let number = name
                .strip_prefix("session")
                .and_then(|rest| rest.parse().ok());
            if let Some(sid) = number {
                sessions.extend(Self::by_sid(kernel, sid)?);
            }
        }
        sessions.retain(|session| session.target == target);
        sessions.sort_unstable_by_key(|session| session.sid);
        Ok(sessions)
    }

    /// The session with this number, if it is there.
    pub(super) fn by_sid(kernel: &Kernel, sid: u32) -> Result<Option<Self>, Error> {
        let class = kernel.sys(format!("class/iscsi_session/session{sid}"));
        let attribute = |name: &str| {
            let path = class.join(name);
            kernel::read(&path).map_err(|error| unreadable(&path, error))
        };
        let Some(target) = attribute("targetname")? else {
            return Ok(None);
        };
        let state = match attribute("state")?.as_deref() {
            Some("LOGGED_IN") => State::LoggedIn,
            Some("FAILED") => State::Recovering,
            _ => State::Other,
        };
        let device = class.join("device");
        let home = match std::fs::canonicalize(&device) {
            Err(error) if kernel::is_absence(&error) => return Ok(None),
            result => result.map_err(|error| unreadable(&device, error))?,
        };
        let host = home.components().rev().find_map(|part| {
            let name = part.as_os_str().to_str()?;
            name.strip_prefix("host")?.parse().ok()
        });
        // Its adapter is gone, and so is it.
        let Some(host) = host else { return Ok(None) };
        // The kernel prints a name that is not set. No other use of a session needs it, so it may be unreadable.
        let user = attribute("username").unwrap_or_else(|_| Some("unreadable".to_owned()));
        let user = user.unwrap_or_default();
        let target_id = attribute("target_id")?.and_then(|id| id.parse().ok());
        Ok(Some(Self {
            sid,
            target,
            state,
            has_password: !matches!(&*user, "" | "(null)" | "<NULL>"),
            host,
            target_id: target_id.unwrap_or(0),
            places: places(&home)?,
        }))
    }

    /// Whether this is the session of a portal.
    pub(super) fn is_through(&self, place: &Place) -> bool {
        self.places.iter().any(|portal| place.is(portal))
    }

    /// The place where it was asked to go.
    pub(super) fn portal(&self) -> Option<Portal> {
        self.places.first().cloned()
    }

    /// Whether it goes to this port of any address.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.places.iter().any(|place| place.port == port)
    }

    /// Its disks, by number.
    pub(super) fn disks(&self, kernel: &Kernel) -> Result<Vec<LunDisk>, Error> {
        let home = kernel.sys(format!("class/iscsi_session/session{}/device", self.sid));
        let mut disks = Vec::new();
        for (at, target) in entries(&home)? {
            if !target.starts_with("target") {
                continue;
            }
            for (at, name) in entries(&at)? {
                let Some(lun) = lun_of(&name) else { continue };
                for (_, name) in entries(&at.join("block"))? {
                    let device = BlockDevice::by_name(kernel, &name)?;
                    disks.extend(device.map(|device| LunDisk { lun, device }));
                }
            }
        }
        disks.sort_unstable_by_key(|disk| disk.lun);
        Ok(disks)
    }

    /// The disk with this number.
    pub(super) fn disk(&self, kernel: &Kernel, lun: Lun) -> Result<Option<BlockDevice>, Error> {
        let found = self.disks(kernel)?.into_iter().find(|disk| disk.is(lun));
        Ok(found.map(|disk| disk.device))
    }

    /// The scan file of the kernel, and what to write to it for this disk.
    pub(super) fn scan(&self, kernel: &Kernel, lun: Lun) -> (PathBuf, String) {
        let path = kernel.sys(format!("class/scsi_host/host{}/scan", self.host));
        // Which of its two numbers a large one has is for the target to say, when it is asked for
        // all.
        let lun = if u64::from(lun.get()) < FLAT_FROM {
            lun.to_string()
        } else {
            "-".to_owned()
        };
        (path, format!("0 {} {lun}", self.target_id))
    }
}

/// The sessions with the target of a volume.
pub(super) async fn sessions(
    kernel: &Kernel,
    facts: &IscsiFacts,
    deadline: Instant,
) -> Result<Vec<Session>, Error> {
    let (kernel, target) = (kernel.clone(), facts.iqn().as_str().to_owned());
    let doing = format!("look for sessions with {target}");
    look(deadline, &doing, move || Session::of(&kernel, &target)).await
}

/// The session that a disk belongs to, and its number there; `None` if it came another way.
pub(super) fn origin(kernel: &Kernel, disk: &BlockDevice) -> Result<Option<(Session, Lun)>, Error> {
    let directory = disk.directory(kernel);
    let home = match std::fs::canonicalize(&directory) {
        Err(error) if kernel::is_absence(&error) => return Ok(None),
        result => result.map_err(|error| unreadable(&directory, error))?,
    };
    let names = || {
        home.components()
            .filter_map(|part| part.as_os_str().to_str())
    };
    let sid = names().find_map(|name| name.strip_prefix("session")?.parse().ok());
    let (Some(sid), Some(lun)) = (sid, names().find_map(lun_of)) else {
        return Ok(None);
    };
    // The number as people and drivers know it, however the target has written it.
    let lun = if lun & 0xc000 == FLAT {
        lun & !FLAT
    } else {
        lun
    };
    let Ok(lun) = Lun::parse(&lun.to_string()) else {
        return Ok(None);
    };
    Ok(Session::by_sid(kernel, sid)?.map(|session| (session, lun)))
}

/// The session that a disk came by; `None` if it came another way.
pub fn session_of(kernel: &Kernel, disk: &BlockDevice) -> Result<Option<DiskSession>, Error> {
    let Some((session, _)) = origin(kernel, disk)? else {
        return Ok(None);
    };
    // The kernel gives up a disk some time after its session, and says so here.
    let state = disk.attribute(kernel, "device/state")?;
    Ok(Some(DiskSession {
        is_logged_in: session.state == State::LoggedIn,
        target: session.target,
        is_offered: state.is_none_or(|state| state == "running"),
    }))
}

// === impl LunDisk ===

impl LunDisk {
    /// Whether this is the disk with this number, in either way of writing it.
    pub(super) fn is(&self, lun: Lun) -> bool {
        let lun = u64::from(lun.get());
        self.lun == lun || (lun >= FLAT_FROM && self.lun == lun | FLAT)
    }
}

/// The place where the connections of a session were asked to go, then where they went.
fn places(home: &Path) -> Result<Vec<Portal>, Error> {
    let mut asked = Vec::new();
    let mut went = Vec::new();
    for (at, name) in entries(home)? {
        if !name.starts_with("connection") {
            continue;
        }
        let at = at.join("iscsi_connection").join(&name);
        for (host, port, places) in [
            ("persistent_address", "persistent_port", &mut asked),
            ("address", "port", &mut went),
        ] {
            let read = |name: &str| {
                let path = at.join(name);
                match kernel::read(&path) {
                    // A connection that is not up has no address; some kernels say so by an error.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => Ok(None),
                    result => result.map_err(|error| unreadable(&path, error)),
                }
            };
            if let (Some(host), Some(port)) = (read(host)?, read(port)?) {
                places.extend(shown(&host, &port));
            }
        }
    }
    asked.append(&mut went);
    asked.dedup();
    Ok(asked)
}

fn entries(directory: &Path) -> Result<Vec<(PathBuf, String)>, Error> {
    let names = kernel::list(directory).map_err(|error| unreadable(directory, error))?;
    let with_path = |name: String| (directory.join(&name), name);
    Ok(names.into_iter().map(with_path).collect())
}

/// The last number of `host:channel:target:lun`.
fn lun_of(name: &str) -> Option<u64> {
    let mut numbers = name.split(':').map(str::parse::<u64>);
    let all = [
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
    ];
    numbers.next().is_none().then_some(all[3])
}
