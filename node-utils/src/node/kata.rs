//! Direct volumes of Kata Containers: the guest of a pod mounts the filesystem by itself.
//!
//! A stage is as for any device, so the filesystem is made, checked and grown by this node. A publication unmounts it
//! and tells the runtime the device. From then until the target is released nothing here may mount it: two kernels
//! would destroy it. The record says to which target it is handed, on the staging directory and on the target itself;
//! it holds as long as the target is covered or the runtime has an entry for it, so neither a crash nor a reboot has
//! to be cleaned up after. Beside that, the device is shown in the staging directory as a raw device is, so that
//! no detach takes it for unused.

mod entry;
mod shim;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::backing::{Backing, backing};
use super::mount_target::{MountTarget, Shape};
use super::publish::check_target;
use super::raw::{BLOCK_DEVICE, bind};
use super::release::release;
use super::request::{ExpandRequest, PublishRequest, StageRequest, VolumeStats};
use super::{Context, exclusive, expand as growth, group, health, mount_failed, record, stage};
use crate::blocking::{self, Doing, Limits};
use crate::device::{BlockDevice, DeviceNumber};
use crate::mount::{self, MountOptions, MountTable, Place, as_listed};
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::capability::{Access, MountAccess, VolumeCapability};
use csi_types::error::{Effect, Error, Kind};
use csi_types::health::Conditions;
use csi_types::secrets::StageSecrets;

use entry::Entry;
pub(super) use entry::Folders;

/// The source of what covers a target: an empty filesystem in which nothing can be made, so that a pod that is no guest
/// cannot take the folder for its volume and lose what it writes.
const COVER: &str = "omnibus-csi-kata";

/// Its options.
const COVERED: [&str; 6] = [
    "size=4k",
    "nr_inodes=1",
    "mode=0750",
    "nosuid",
    "nodev",
    "noexec",
];

/// The type of volume that both runtimes take a block device for.
const DIRECT: &str = "directvol";

/// The time in which a runtime answers: it asks an agent in the guest, which looks at one filesystem.
const ANSWER: Duration = Duration::from_secs(5);

/// The hand-over of a volume to the guest of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handed {
    /// The kernel's name of the device.
    device: String,
    fs_type: String,
    target: AbsolutePath,
}

/// The state of the staging path.
enum Staged {
    /// The volume is mounted there.
    Mounted(BlockDevice),
    /// The target of this request has it, or is about to get it.
    Held(Handed),
    /// An earlier guest had this disk.
    Bare(BlockDevice),
}

/// Whether the filesystem of a volume that is used like that is for guests.
pub(super) fn is_wanted(context: &Context, capability: &VolumeCapability) -> bool {
    context.config.kata && capability.access != Access::Block
}

/// Refuses what no guest can have.
pub(super) fn check(attachment: &Attachment, capability: &VolumeCapability) -> Result<(), Error> {
    let doing = || {
        format!(
            "hand a volume of the kind `{}` to a guest of Kata",
            attachment.kind()
        )
    };
    if !attachment.may_be_device() {
        return Err(no_device(doing()));
    }
    let mode = capability.mode;
    if !mode.has_one_target() {
        return Err(Error::invalid(format!("{} in the mode {mode}", doing())).advise(
            "two kernels that mount one filesystem destroy it: ask for ReadWriteOncePod, which is \
             SINGLE_NODE_SINGLE_WRITER",
        ));
    }
    Ok(())
}

fn no_device(doing: String) -> Error {
    Error::invalid(doing).advise(
        "a guest gets a device: iSCSI, NVMe over fabrics or a zvol; leave `node.kata` out for other volumes",
    )
}

/// Hands the staged volume to the guest of a pod. Idempotent.
pub(super) async fn publish(
    context: &Arc<Context>,
    limits: Limits,
    request: PublishRequest,
) -> Result<(), Error> {
    check(&request.attachment, &request.capability)?;
    check_target(&request)?;
    let doing = format!("publish at `{}` for a guest of Kata", request.target);
    let request = Arc::new(request);
    let look = {
        let (context, request) = (Arc::clone(context), Arc::clone(&request));
        move || staged(&context, &request)
    };
    let found = blocking::run(limits.clone(), Doing::reading(doing.clone()), look).await?;
    if let Staged::Bare(disk) = found {
        mount_again(context, &limits, &request, disk).await?;
    }
    let context = Arc::clone(context);
    let work = move || hand_over(&context, &request);
    blocking::run(limits, Doing::changing(doing), work).await
}

/// Mounts the staged volume of a request that is not for a guest, where an earlier guest has left it unmounted; whether
/// it did. The orchestrator does not stage it anew as long as it is staged.
pub(super) async fn return_to_node(
    context: &Arc<Context>,
    limits: &Limits,
    request: &PublishRequest,
) -> Result<bool, Error> {
    if request.capability.access == Access::Block || !request.attachment.may_be_device() {
        return Ok(false);
    }
    let doing = Doing::reading(format!("find who had the volume of `{}`", request.target));
    let look = {
        let (context, request) = (Arc::clone(context), request.clone());
        move || left_by_guest(&context, &request)
    };
    let Some(disk) = blocking::run(limits.clone(), doing, look).await? else {
        return Ok(false);
    };
    check_target(request)?;
    mount_again(context, limits, request, disk).await?;
    Ok(true)
}

/// The disk of the request, if an earlier guest had it and nothing has mounted it since. Fails if a guest may have it.
fn left_by_guest(
    context: &Context,
    request: &PublishRequest,
) -> Result<Option<BlockDevice>, Error> {
    let Some(handed) = handed_from(request.staging.path())? else {
        return Ok(None);
    };
    if handed.holds(context)? {
        let doing = format!(
            "publish at `{}`, while a guest of Kata may have the volume",
            request.target
        );
        return Err(Error::new(Kind::Busy, doing)
            .advise(format!("unpublish it at `{}` first", handed.target)));
    }
    let device = handed.device_of(context, &request.attachment)?;
    device.disk(&context.kernel).map(Some)
}

/// Mounts a disk that a guest had before: its filesystem is checked and grown, and gets its group, as after a stage.
async fn mount_again(
    context: &Arc<Context>,
    limits: &Limits,
    request: &PublishRequest,
    disk: BlockDevice,
) -> Result<(), Error> {
    let Access::Mount(access) = &request.capability.access else {
        return Err(super::no_device(&request.attachment));
    };
    let access = MountAccess {
        flags: access.flags.followed_by(&context.config.mount_flags),
        ..access.clone()
    };
    let request = StageRequest {
        staging: request.staging.clone(),
        attachment: request.attachment.clone(),
        capability: request.capability.clone(),
        secrets: StageSecrets::default(),
    };
    stage::mount_device(context, limits, &Arc::new(request), &access, disk).await
}

fn staged(context: &Context, request: &PublishRequest) -> Result<Staged, Error> {
    let staging = request.staging.path();
    let doing = || format!("use the volume that is staged at `{staging}`");
    let unusable = || {
        Error::new(Kind::Busy, doing())
            .advise("nothing usable of this volume is there; stage the volume first")
    };
    let place = Place::open(staging.as_path()).map_err(|errno| unusable().because(errno))?;
    if place.is_mount_point() {
        return match backing(&context.kernel, &place)? {
            Backing::Device(device)
                if context.devices.is_volume(&device, &request.attachment)? =>
            {
                Ok(Staged::Mounted(device))
            }
            Backing::Other => Err(no_device(doing())),
            Backing::Device(_) | Backing::Gone => Err(unusable()),
        };
    }
    let handed = handed_by(&place)?.ok_or_else(unusable)?;
    let device = handed.device_of(context, &request.attachment)?;
    if !handed.holds(context)? {
        return device.disk(&context.kernel).map(Staged::Bare);
    }
    if handed.target != *request.target.path() {
        return Err(exclusive::refused(request, handed.target.as_path()));
    }
    Ok(Staged::Held(handed))
}

fn hand_over(context: &Context, request: &PublishRequest) -> Result<(), Error> {
    let entry = own_entry(context, request.target.path())?;
    let handed = match staged(context, request)? {
        Staged::Held(handed) => handed,
        Staged::Mounted(device) => take_from_host(context, request, &device)?,
        Staged::Bare(_) => {
            let doing = format!("publish at `{}`", request.target);
            return Err(Error::new(Kind::Pending, doing)
                .advise("the volume was unmounted from this node at the same time"));
        }
    };
    let target = request.target.path();
    let slot = MountTarget::open(&context.kernel, target, Shape::Directory)?;
    show(context, request, &handed, &entry, &slot).map_err(|error| slot.undo(error))
}

/// The entry of a target, which is not there or is ours.
fn own_entry(context: &Context, target: &AbsolutePath) -> Result<Entry, Error> {
    let entry = Entry::of(&context.guests, target).ok_or_else(|| {
        let doing = format!("name the direct volume of `{target}`");
        Error::invalid(doing).advise("the path is too long: at most 189 bytes")
    })?;
    if !entry.exists()? || recorded_at(target)?.is_some() {
        return Ok(entry);
    }
    let doing = format!("publish at `{target}`");
    Err(Error::new(Kind::Conflict, doing).advise(format!(
        "another program has made a direct volume there; `{}` was not touched",
        entry.folder().display()
    )))
}

/// Takes the volume from this node. What is going to be done is recorded first, so that a retry knows the device.
fn take_from_host(
    context: &Context,
    request: &PublishRequest,
    device: &BlockDevice,
) -> Result<Handed, Error> {
    let staging = request.staging.path();
    let doing = || format!("hand {device}, staged at `{staging}`, to a guest of Kata");
    let failed = |error: std::io::Error| Error::new(Kind::Internal, doing()).because(error);
    let covered =
        mount::open_covered(staging.as_path()).map_err(|error| mount_failed(doing(), error))?;
    if let Some(earlier) = parse(record::handed(&covered)?.as_deref())?
        && earlier.holds(context)?
    {
        return Err(Error::new(Kind::Busy, doing()).advise(format!(
            "it is mounted on this node and in the guest of `{}` at the same time: stop that pod, \
             and check the filesystem",
            earlier.target
        )));
    }
    let place = Place::open(staging.as_path()).map_err(|errno| failed(errno.into()))?;
    let table = MountTable::read().map_err(failed)?;
    let entry = place
        .entry(&table)
        .ok_or_else(|| failed(Errno::NOENT.into()))?;
    if stage::is_elsewhere(&table, &entry) {
        return Err(Error::new(Kind::Busy, doing()).advise(
            "it is mounted at another path of this node, as for a pod that is no guest: stop every pod that uses it",
        ));
    }
    let handed = Handed {
        device: device.name().to_owned(),
        fs_type: entry.fs_type().into_owned(),
        target: request.target.path().clone(),
    };
    regroup(request, &place)?;
    drop(place);
    if !record::keep_handed(&covered, &handed.text())? {
        return Err(unrecorded(staging));
    }
    drop(covered);
    context.changed("hand-over recorded");
    unmount(context, staging, device, &doing())
        .map_err(|error| error.with_effect(Effect::Possible))?;
    Ok(handed)
}

/// Unmounts the volume, and makes sure that it is mounted nowhere else.
fn unmount(
    context: &Context,
    staging: &AbsolutePath,
    device: &BlockDevice,
    doing: &str,
) -> Result<(), Error> {
    mount::unmount_all_layers(staging.as_path())
        .map_err(|error| mount_failed(doing.to_owned(), error))?;
    context.changed("unmounted from the node");
    show_device(context, staging, device)?;
    context.changed("device shown to the node");
    is_alone(context, device).map_err(|why| {
        Error::new(Kind::Busy, doing)
            .because(why)
            .advise("a guest must be the only one that has it mounted; release it there")
    })
}

fn unrecorded(path: &AbsolutePath) -> Error {
    let doing = format!("record at `{path}` that a guest has the volume");
    Error::new(Kind::Unsupported, doing)
        .advise("the filesystem of that folder keeps no extended attributes")
}

/// Gives the volume to the group of the request: the runtime in Rust does not.
fn regroup(request: &PublishRequest, staged: &Place) -> Result<(), Error> {
    let Access::Mount(MountAccess {
        group: Some(gid), ..
    }) = &request.capability.access
    else {
        return Ok(());
    };
    let flags = staged.attributes().map_err(|errno| {
        let doing = format!("read the mount flags of `{}`", request.staging);
        Error::new(Kind::Internal, doing).because(errno)
    })?;
    if request.readonly || flags.is_read_only() {
        return Ok(());
    }
    group::apply(staged, request.staging.path().as_str(), *gid)
        .map_err(|error| error.with_effect(Effect::Possible))
}

/// Shows the device in the staging directory, as that of a raw device: other volumes of its target see that it is used.
fn show_device(
    context: &Context,
    staging: &AbsolutePath,
    device: &BlockDevice,
) -> Result<(), Error> {
    let path = staging.child(BLOCK_DEVICE);
    let slot = MountTarget::open(&context.kernel, &path, Shape::File)?;
    if !slot.place.is_mount_point() {
        return bind(&context.kernel, device, &slot.place, &path).map_err(|error| slot.undo(error));
    }
    if slot.place.block_device() == Some(device.number()) {
        return Ok(());
    }
    Err(
        Error::new(Kind::Conflict, format!("show {device} at `{path}`"))
            .advise("another device is shown there; unstage the volume"),
    )
}

/// Fails if the device is still mounted somewhere, also in another namespace.
fn is_alone(context: &Context, device: &BlockDevice) -> Result<(), String> {
    let table = MountTable::read().map_err(|error| error.to_string())?;
    let mut entries = table.entries();
    if let Some(other) = entries.find(|entry| DeviceNumber::from(entry.device) == device.number()) {
        return Err(format!(
            "{device} is mounted at `{}`",
            other.point().display()
        ));
    }
    match device.is_claimed(&context.kernel) {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!(
            "{device} is claimed by the kernel or another process"
        )),
        Err(error) => Err(error.chain()),
    }
}

/// Covers the target, and writes the entry.
fn show(
    context: &Context,
    request: &PublishRequest,
    handed: &Handed,
    entry: &Entry,
    slot: &MountTarget<'_>,
) -> Result<(), Error> {
    let target = &handed.target;
    let conflict = |advice: &str| {
        Error::new(Kind::Conflict, format!("publish at `{target}`")).advise(advice.to_owned())
    };
    if slot.place.is_mount_point() {
        if !is_covered(target)? {
            return Err(conflict(
                "something else is mounted there; unpublish that first",
            ));
        }
    } else {
        slot.check_empty()?;
        if !record::keep_handed(&slot.place, &handed.text())? {
            return Err(unrecorded(target));
        }
        context.changed("target recorded");
        mount::mount_filesystem(
            Path::new(COVER),
            "tmpfs",
            &MountOptions::sort(COVERED),
            &slot.place,
        )
        .map_err(|error| mount_failed(format!("cover `{target}`"), error))?;
        context.changed("target covered");
    }
    let text = handed.entry(context, request)?;
    match entry.read()? {
        Some(there) if there == text => return Ok(()),
        Some(_) => {
            return Err(conflict(
                "the volume is there, with other options; unpublish it first",
            ));
        }
        None => {}
    }
    entry.write(&text)?;
    context.changed("entry written");
    Ok(())
}

/// Takes a target's volume from the runtime; whether it had one. Only an entry that this driver has recorded is
/// removed, and only if no guest is known to run that has it.
pub(super) fn withdraw(context: &Context, target: &AbsolutePath) -> Result<bool, Error> {
    let Some(entry) = Entry::of(&context.guests, target) else {
        return Ok(false);
    };
    let there = entry.exists();
    if matches!(there, Ok(false)) {
        return Ok(false);
    }
    if recorded_at(target)?.is_none() {
        if there.is_ok() {
            let folder = entry.folder();
            tracing::warn!(%target, path = %folder.display(), "the runtime of Kata has a direct volume there that this driver has not recorded; it was not touched");
        }
        return Ok(false);
    }
    there?;
    shim::check_ended(
        &context.guests,
        &entry,
        &format!("take the volume at `{target}` from a guest"),
    )?;
    entry.remove().map_err(|error| error.after_change(true))?;
    context.changed("entry removed");
    Ok(true)
}

/// Whether a guest has the volume of a stage: then nothing is to be done. What an earlier guest has left is removed.
pub(super) fn settle(
    context: &Context,
    request: &StageRequest,
    place: &Place,
) -> Result<bool, Error> {
    let Some(handed) = handed_by(place)? else {
        return Ok(false);
    };
    if handed.holds(context)? {
        handed.device_of(context, &request.attachment)?;
        return Ok(true);
    }
    release(&request.staging.path().child(BLOCK_DEVICE))?;
    record::forget_handed(place)?;
    Ok(false)
}

/// The hand-over of a volume whose staging directory this is, as far as nothing is mounted there.
fn handed_from(staging: &AbsolutePath) -> Result<Option<Handed>, Error> {
    match Place::open(staging.as_path()) {
        Ok(place) if place.is_directory() && !place.is_mount_point() => handed_by(&place),
        // The caller looks closer at anything else.
        _ => Ok(None),
    }
}

/// Refuses to take what is shown in a staging directory for a raw device: it is there for a guest.
pub(super) fn check_raw(staging: &AbsolutePath, doing: &str) -> Result<(), Error> {
    let Some(handed) = handed_from(staging)? else {
        return Ok(());
    };
    Err(Error::new(Kind::Busy, doing).advise(format!(
        "its filesystem is for guests of Kata: ask at the target, which was `{}`",
        handed.target
    )))
}

/// Refuses to take the device from a guest.
pub(super) fn check_unstage(context: &Context, staging: &AbsolutePath) -> Result<(), Error> {
    let Some(handed) = handed_from(staging)? else {
        return Ok(());
    };
    if !handed.holds(context)? {
        return Ok(());
    }
    let doing = format!("unstage `{staging}`, whose volume a guest of Kata has");
    let entry = Entry::of(&context.guests, &handed.target).map(|entry| entry.folder());
    let entry = entry.unwrap_or_default();
    Err(Error::new(Kind::Busy, doing).advise(format!(
        "unpublish it at `{}` first; if that was done, no guest runs, and `{}` is still there, remove that",
        handed.target,
        entry.display()
    )))
}

/// The hand-over of the volume at a target; `None` for all other volumes.
pub(super) async fn find(
    context: &Arc<Context>,
    limits: &Limits,
    path: &AbsolutePath,
) -> Result<Option<Handed>, Error> {
    // The folder is in memory, so this answers at once, and for most volumes it is all.
    let Some(there) = Entry::of(&context.guests, path).map(|entry| entry.exists()) else {
        return Ok(None);
    };
    if matches!(there, Ok(false)) {
        return Ok(None);
    }
    let doing = Doing::reading(format!("find the guest of `{path}`"));
    let path = path.clone();
    blocking::run(limits.clone(), doing, move || recorded(there, &path)).await
}

/// The record of a target, with what was found out about its entry. A node whose folder of the runtime cannot be read
/// has volumes without a record all the same.
fn recorded(there: Result<bool, Error>, target: &AbsolutePath) -> Result<Option<Handed>, Error> {
    if matches!(there, Ok(false)) {
        return Ok(None);
    }
    match recorded_at(target)? {
        Some(handed) => there.map(|_| Some(handed)),
        None => Ok(None),
    }
}

/// The conditions of the device of a volume that a guest has; `None` for all other volumes.
pub(super) fn conditions(
    context: &Context,
    path: &AbsolutePath,
) -> Result<Option<Conditions>, Error> {
    let Some(entry) = Entry::of(&context.guests, path) else {
        return Ok(None);
    };
    let Some(handed) = recorded(entry.exists(), path)? else {
        return Ok(None);
    };
    match BlockDevice::by_name(&context.kernel, &handed.device)? {
        Some(device) => health::of_device(&context.kernel, &device).map(Some),
        None => Ok(Some([health::gone()].into_iter().collect())),
    }
}

/// The numbers of the filesystem in the guest.
pub(super) async fn stats(
    context: &Arc<Context>,
    limits: Limits,
    path: AbsolutePath,
    handed: Handed,
) -> Result<VolumeStats, Error> {
    let limits = limits.no_later_than(Instant::now() + ANSWER);
    let deadline = limits.deadline();
    let doing = Doing::reading(format!("ask the guest of `{path}`"));
    let context = Arc::clone(context);
    let ask = move || {
        let entry = entry_of(&context, &path)?;
        let node = handed.device(&context)?.node(&context.kernel);
        shim::stats(&context.guests, &entry, &node, deadline)
    };
    blocking::run(limits, doing, ask).await
}

/// Grows the device on this node, and has the guest grow the filesystem.
pub(super) async fn expand(
    context: &Arc<Context>,
    limits: Limits,
    request: ExpandRequest,
    handed: Handed,
) -> Result<Option<u64>, Error> {
    let doing = format!("expand `{}` in its guest", request.path);
    let find = {
        let (context, handed) = (Arc::clone(context), handed);
        move || handed.device(&context)
    };
    let device = blocking::run(limits.clone(), Doing::reading(doing.clone()), find).await?;
    let rescanned = context
        .devices
        .rescan(&device, request.required, limits.deadline());
    rescanned.await?;
    growth::wait(context, &limits, &device, &request).await?;
    let limits = limits.no_later_than(Instant::now() + ANSWER);
    let deadline = limits.deadline();
    let context = Arc::clone(context);
    let grow = move || {
        let entry = entry_of(&context, &request.path)?;
        let (size, node) = (device.size(&context.kernel)?, device.node(&context.kernel));
        shim::grow(&context.guests, &entry, &node, size, deadline)?;
        Ok(Some(size))
    };
    blocking::run(limits, Doing::changing(doing), grow).await
}

fn entry_of(context: &Context, path: &AbsolutePath) -> Result<Entry, Error> {
    Entry::of(&context.guests, path)
        .ok_or_else(|| Error::not_found(format!("direct volume of `{path}`")))
}

/// Whether our cover is mounted at a target.
fn is_covered(target: &AbsolutePath) -> Result<bool, Error> {
    let table = MountTable::read().map_err(|error| unreadable(target, error))?;
    let listed = as_listed(target.as_path());
    let mut layers = table.layers(&listed);
    Ok(layers.any(|layer| layer.fs_type() == "tmpfs" && layer.source() == COVER))
}

/// The record of a target, also below what covers it. Nothing that is mounted there is touched.
fn recorded_at(target: &AbsolutePath) -> Result<Option<Handed>, Error> {
    let table = MountTable::read().map_err(|error| unreadable(target, error))?;
    let listed = as_listed(target.as_path());
    if table.layers(&listed).next().is_some() {
        let covered = mount::open_covered(&listed)
            .map_err(|error| mount_failed(format!("find the guest of `{target}`"), error))?;
        return parse(record::handed(&covered)?.as_deref());
    }
    match Place::open(target.as_path()) {
        Ok(place) => handed_by(&place),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(unreadable(target, errno.into())),
    }
}

/// The record of an opened directory.
fn handed_by(place: &Place) -> Result<Option<Handed>, Error> {
    parse(record::handed(place)?.as_deref())
}

/// Unknown is not nothing: a guest may have the volume.
fn parse(text: Option<&str>) -> Result<Option<Handed>, Error> {
    let Some(text) = text else { return Ok(None) };
    let handed = Handed::parse(text).ok_or_else(|| {
        Error::new(Kind::Internal, "read which guest has the volume")
            .because("its record is damaged, or was written by a newer driver")
    })?;
    Ok(Some(handed))
}

fn unreadable(target: &AbsolutePath, error: std::io::Error) -> Error {
    Error::new(Kind::Internal, format!("find the guest of `{target}`")).because(error)
}

// === impl Handed ===

impl Handed {
    /// One line each.
    fn text(&self) -> String {
        format!("{}\n{}\n{}", self.device, self.fs_type, self.target)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let word = |line: &&str| !line.is_empty() && !line.contains('/');
        let handed = Self {
            device: lines.next().filter(word)?.to_owned(),
            fs_type: lines.next().filter(word)?.to_owned(),
            target: AbsolutePath::parse(lines.next()?).ok()?,
        };
        lines.next().is_none().then_some(handed)
    }

    /// Whether a guest may have the volume: its target is covered, or the runtime has the entry.
    fn holds(&self, context: &Context) -> Result<bool, Error> {
        if is_covered(&self.target)? {
            return Ok(true);
        }
        match Entry::of(&context.guests, &self.target) {
            Some(entry) => entry.exists(),
            None => Ok(false),
        }
    }

    fn device(&self, context: &Context) -> Result<BlockDevice, Error> {
        let found = BlockDevice::by_name(&context.kernel, &self.device)?;
        found.ok_or_else(|| {
            let doing = format!("find the device `{}` of a guest of Kata", self.device);
            Error::new(Kind::Unreachable, doing)
                .advise("it has disappeared from this node; delete the pod, so that the volume is staged again")
        })
    }

    /// The device, which has to be that of a volume.
    fn device_of(&self, context: &Context, volume: &Attachment) -> Result<BlockDevice, Error> {
        let device = self.device(context)?;
        if context.devices.is_volume(&device, volume)? {
            return Ok(device);
        }
        let doing = format!("use {device}, which the guest of `{}` has", self.target);
        Err(Error::new(Kind::Conflict, doing)
            .advise("it is another volume; unpublish and unstage that one first"))
    }

    /// The text for the runtime.
    fn entry(&self, context: &Context, request: &PublishRequest) -> Result<Vec<u8>, Error> {
        let device = self.device(context)?;
        let Access::Mount(access) = &request.capability.access else {
            return Err(super::no_device(&request.attachment));
        };
        let flags = access.flags.followed_by(&context.config.mount_flags);
        let kept = flags.iter().filter(|flag| is_for_kernel(flag));
        let mut options: Vec<Value> = kept.map(Value::from).collect();
        if request.readonly || device.read_only(&context.kernel)? {
            options.push(Value::from("ro"));
        }
        let node = device.node(&context.kernel);
        let mut text = Map::new();
        let mut put = |key: &str, value: Value| text.insert(key.to_owned(), value);
        put("volume-type", Value::from(DIRECT));
        put("device", Value::from(node.display().to_string()));
        put("fstype", Value::from(self.fs_type.as_str()));
        if !options.is_empty() {
            put("options", Value::Array(options));
        }
        Ok(Value::Object(text).to_string().into_bytes())
    }
}

/// Whether an option means anything to the kernel of a guest; the others are for programs of this node.
fn is_for_kernel(flag: &str) -> bool {
    flag != "defaults" && MountOptions::sort([flag]).user.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_not_understood_is_an_error_and_not_nothing() {
        let handed = Handed {
            device: "dm-3".to_owned(),
            fs_type: "xfs".to_owned(),
            target: AbsolutePath::parse("/k/a b/mount").expect("path"),
        };
        assert_eq!(Handed::parse(&handed.text()), Some(handed.clone()));
        assert_eq!(parse(None).expect("nothing"), None);
        for bad in [
            "",
            "sda\next4",
            "../sda\next4\n/k",
            "sda\n\n/k",
            "sda\next4\nk",
            "sda\next4\n/k\nmore",
        ] {
            assert!(parse(Some(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn options_for_programs_of_the_node_do_not_reach_the_guest() {
        for kept in ["noatime", "ro", "discard", "data=ordered"] {
            assert!(is_for_kernel(kept), "{kept}");
        }
        for dropped in ["defaults", "_netdev", "nofail", "x-systemd.automount"] {
            assert!(!is_for_kernel(dropped), "{dropped}");
        }
    }
}
