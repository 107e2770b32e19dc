//! A name of ZFS on this node: a dataset is mounted by a system call, a zvol is a disk.
//!
//! Only what the kernel cannot tell is asked of `zfs`: what the name stands for, whether ZFS leaves
//! mounting it to us, and what its properties ask of a mount. A killed call has mounted or it has not, and the look at the staging
//! path tells the next one. compat: "Shares and daemons".

use std::sync::Arc;

use rustix::io::Errno;
use tokio::time::Instant;

use super::super::mount_target::{MountTarget, Shape};
use super::super::overdue::OverdueReads;
use super::super::share as of_volume;
use super::super::{Context, mount_access, mount_failed};
use super::{device, share};
use crate::blocking::{self, Doing, Limits};
use crate::mount::{self, MountError, MountOptions, Place};
use crate::mounting::{self, Asset};
use crate::node::StageRequest;
use csi_types::attachment::{AbsolutePath, Attachment, ZfsLocal};
use csi_types::capability::{Access, MountAccess};
use csi_types::error::{Effect, Error, Kind};

/// The kernel's name for the filesystem of a dataset.
const ZFS: &str = "zfs";

pub(super) async fn stage(
    context: &Arc<Context>,
    overdue: &OverdueReads,
    limits: Limits,
    zfs: &ZfsLocal,
    request: Arc<StageRequest>,
) -> Result<(), Error> {
    if request.capability.access == Access::Block || is_disk(context, &limits, zfs).await? {
        return device::stage(context, overdue, limits, request).await;
    }
    let share::Found::Empty { made } = share::look(context, &limits, &request).await? else {
        return Ok(());
    };
    let staged = match mountable(context, zfs, &request, limits.deadline()).await {
        Ok(Some(mountable)) => mount(context, &limits, zfs, &request, mountable).await,
        Ok(None) => return device::stage(context, overdue, limits, request).await,
        Err(error) => Err(error),
    };
    match staged {
        Ok(()) => Ok(()),
        // The outcome is unknown: the next call looks.
        Err(error) if error.kind() == Kind::Timeout => Err(error),
        Err(error) => Err(share::take_back(&limits, &request, made, error).await),
    }
}

/// Whether this machine has a disk of that name; then no command is needed.
async fn is_disk(context: &Arc<Context>, limits: &Limits, zfs: &ZfsLocal) -> Result<bool, Error> {
    let seen = {
        let (context, zfs) = (Arc::clone(context), zfs.clone());
        move || context.devices.shows_zvol(&zfs)
    };
    let doing = Doing::reading(format!("look for the device of `{}`", zfs.asset));
    blocking::run(limits.clone(), doing, seen).await
}

/// A dataset that is left to us.
struct Mountable {
    options: MountOptions,
    /// Whether it was left to us just now, which stays so.
    changed: bool,
}

/// Sees to it that the dataset can be mounted; `None` for a zvol.
async fn mountable(
    context: &Arc<Context>,
    zfs: &ZfsLocal,
    request: &StageRequest,
    deadline: Instant,
) -> Result<Option<Mountable>, Error> {
    let name = &zfs.asset;
    let asset = mounting::asset(&context.tools, name, deadline).await?;
    let Asset::Dataset { legacy, options } = asset else {
        return Ok(None);
    };
    let access = mount_access(&request.capability, &request.attachment)?;
    let options = sorted(zfs, &options, access, request.staging.path())?;
    if !legacy {
        mounting::make_legacy(&context.tools, name, deadline).await?;
        context.changed("mount point left to us");
    }
    Ok(Some(Mountable {
        options,
        changed: !legacy,
    }))
}

/// The options of the dataset, and then what the request says, which wins. compat: "Mount flags".
fn sorted(
    zfs: &ZfsLocal,
    of_dataset: &[String],
    access: &MountAccess,
    staging: &AbsolutePath,
) -> Result<MountOptions, Error> {
    let refused = || Error::invalid(format!("mount `{}`", zfs.asset));
    if let Some(asked) = &access.fs_type
        && asked.as_str() != ZFS
    {
        let advice = format!("it is a dataset, whose filesystem is `{ZFS}`, not `{asked}`");
        return Err(refused().advise(advice));
    }
    for flag in access.flags.iter() {
        mounting::check(flag)?;
    }
    // A label is not overruled by a later one: the kernel refuses two.
    let name = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
    let named: Vec<String> = access.flags.iter().map(name).collect();
    let words = of_dataset.iter().map(String::as_str);
    let words = words.filter(|word| !word.contains('=') || !named.contains(&name(word)));
    let mut options = MountOptions::sort(words.chain(access.flags.iter()));
    super::only_mounts(&options).map_err(|advice| refused().advise(advice))?;
    if let Some(strange) = options.data.iter().find(|option| is_unknown(option)) {
        // It may be secret, so its place tells which it is.
        let place = access.flags.iter().position(|flag| flag == strange);
        let number = place.map_or(0, |place| place + 1);
        return Err(refused().advise(format!(
            "mount option {number} is not known to ZFS, whose kernel module would ignore it"
        )));
    }
    overrule(of_dataset, &mut options);
    // Where it is mounted, as mount.zfs(8) says it: the folder `.zfs` finds its snapshots by that.
    // No mark protects a comma there.
    let staging = staging.as_str();
    if !staging.contains(',') {
        options.data.push(format!("mntpoint={staging}"));
    }
    Ok(options)
}

/// Whether ZFS does not know an option. Its kernel module passes over such a one in silence.
fn is_unknown(option: &str) -> bool {
    const WORDS: [&str; 6] = [
        "xattr", "noxattr", "saxattr", "dirxattr", "nbmand", "nonbmand",
    ];
    let known = match option.split_once('=') {
        Some((name, _)) => mounting::LABELS.contains(&name),
        None => WORDS.contains(&option),
    };
    !known
}

/// Tells ZFS, too, where the request does not want what the dataset says: it applies these
/// properties by itself, after it was mounted.
fn overrule(of_dataset: &[String], options: &mut MountOptions) {
    let lacks = |word: &str| {
        let wanted = MountOptions::sort([word]).attributes;
        of_dataset.iter().any(|option| option == word)
            && !wanted.beyond(options.attributes).is_empty()
    };
    let words = [("ro", "rw"), ("noatime", "atime")];
    let missing = words.into_iter().filter(|(word, _)| lacks(word));
    let opposites: Vec<String> = missing.map(|(_, opposite)| opposite.to_owned()).collect();
    options.data.extend(opposites);
}

async fn mount(
    context: &Arc<Context>,
    limits: &Limits,
    zfs: &ZfsLocal,
    request: &Arc<StageRequest>,
    mountable: Mountable,
) -> Result<(), Error> {
    let Mountable { options, changed } = mountable;
    let doing = Doing::changing(format!("mount `{}` at `{}`", zfs.asset, request.staging));
    let work = {
        let (context, zfs, request) = (Arc::clone(context), zfs.clone(), Arc::clone(request));
        move || mount_at(&context, &zfs, request.staging.path(), &options)
    };
    // A suspended pool blocks every mount without an error.
    let unmount_timeout = context.tools.timeouts().mount;
    let limits = limits.no_later_than(Instant::now() + unmount_timeout);
    let done = blocking::run(limits, doing, work).await;
    done.map_err(|error| match (error.kind(), changed) {
        (Kind::Timeout, _) => error.advise("does the pool still work? See `zpool status`"),
        (_, true) => error.with_effect(Effect::Possible),
        _ => error,
    })
}

/// Mounts, and checks the result.
fn mount_at(
    context: &Context,
    zfs: &ZfsLocal,
    staging: &AbsolutePath,
    options: &MountOptions,
) -> Result<(), Error> {
    let doing = || format!("mount `{}` at `{staging}`", zfs.asset);
    let slot = MountTarget::open(&context.kernel, staging, Shape::Directory)?;
    let attachment = Attachment::ZfsLocal(zfs.clone());
    if slot.place.is_mount_point() {
        if of_volume::is_at(&slot.place, &attachment)? {
            return Ok(());
        }
        let error = Error::new(Kind::Conflict, doing());
        return Err(error.advise("something else was mounted there at the same time"));
    }
    mount::mount_filesystem(zfs.asset.as_str().as_ref(), ZFS, options, &slot.place)
        .map_err(|error| slot.undo(to_error(doing(), error)))?;
    drop(slot);
    context.changed("mounted");
    let place = Place::open(staging.as_path())
        .map_err(|errno| Error::new(Kind::Internal, doing()).because(errno))?;
    if place.is_mount_point() && of_volume::is_at(&place, &attachment)? {
        return Ok(());
    }
    let error = Error::new(Kind::Internal, doing());
    Err(error.advise("the kernel says that it did, and shows something else there"))
}

/// The error of a failed mount of a dataset, from the source of OpenZFS 2.3 (`zpl_super.c`,
/// `zfs_vfsops.c`, `dmu_objset.c`).
fn to_error(doing: String, error: MountError) -> Error {
    let (kind, advice) = match error.errno() {
        Errno::NOENT => (
            Kind::NotFound,
            "this node has no such dataset: the volume lives on another one, or was deleted",
        ),
        Errno::NODEV => (
            Kind::Internal,
            "the kernel of this node has no ZFS; load the module `zfs`",
        ),
        Errno::ACCESS => (
            Kind::Internal,
            "it is encrypted and its key is not loaded, see `zfs load-key`; or a security policy \
             forbids mounting",
        ),
        Errno::BUSY => (
            Kind::Busy,
            "it is mounted elsewhere in the other way, read-only or not, see `findmnt -t zfs`; or \
             it is being received or rolled back",
        ),
        Errno::NOTSUP => (
            Kind::Internal,
            "the dataset is newer than the ZFS of this node",
        ),
        Errno::IO | Errno::AGAIN => (Kind::Internal, "see `zpool status` on this node"),
        _ => return mount_failed(doing, error),
    };
    Error::new(kind, doing).because(error).advise(advice)
}

#[cfg(test)]
mod tests {
    use super::{Errno, sorted, to_error};
    use crate::mount::{Attributes, MountError, MountOptions};
    use csi_types::attachment::{AbsolutePath, DatasetName, ZfsLocal};
    use csi_types::capability::{FsType, MountAccess, MountFlags};
    use csi_types::error::{Error, Kind};

    fn options(
        of_dataset: &[&str],
        fs_type: Option<&str>,
        flags: &[&str],
    ) -> Result<MountOptions, Error> {
        let zfs = ZfsLocal {
            asset: DatasetName::parse("tank/a").expect("a name"),
        };
        let access = MountAccess {
            fs_type: fs_type.map(|name| FsType::parse(name).expect("a name")),
            flags: MountFlags::parse(flags.iter().map(|flag| (*flag).to_owned())).expect("flags"),
            ..MountAccess::default()
        };
        let of_dataset: Vec<String> = of_dataset.iter().map(|&word| word.to_owned()).collect();
        let path = AbsolutePath::parse("/node/staging").expect("a path");
        sorted(&zfs, &of_dataset, &access, &path)
    }

    fn attributes(options: &MountOptions) -> Vec<&'static str> {
        options.attributes.beyond(Attributes::default())
    }

    #[test]
    fn what_mount_understands_goes_to_mount_and_the_rest_to_zfs() {
        for fs_type in [None, Some("zfs")] {
            let flags = ["noatime,nodev", "nbmand", "_netdev"];
            let options = options(&[], fs_type, &flags).expect("options");
            assert_eq!(attributes(&options), ["nodev", "noatime"]);
            assert_eq!(options.data, ["nbmand", "mntpoint=/node/staging"]);
        }
    }

    #[test]
    fn the_dataset_decides_unless_the_request_does() {
        const POINT: &str = "mntpoint=/node/staging";
        let of_dataset = ["ro", "noatime", "nosuid", "context=\"a:b:c:d,e\""];
        let quiet = options(&of_dataset, None, &["noexec"]).expect("options");
        assert_eq!(attributes(&quiet), ["ro", "nosuid", "noexec", "noatime"]);
        assert_eq!(quiet.data, ["context=\"a:b:c:d,e\"", POINT]);
        let loud = options(&of_dataset, None, &["rw,suid,relatime"]).expect("options");
        assert_eq!(attributes(&loud), [""; 0]);
        assert_eq!(loud.data, ["context=\"a:b:c:d,e\"", "rw", "atime", POINT]);
        let labelled = options(&of_dataset, None, &["context=\"f:g:h:i\""]).expect("options");
        assert_eq!(labelled.data, ["context=\"f:g:h:i\"", POINT]);
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_advice() {
        for (fs_type, flags, advice) in [
            (Some("ext4"), &[][..], "`zfs`, not `ext4`"),
            (None, &["ro", "remount"], "another operation"),
            (None, &["ro", "nosuidd"], "mount option 2 is not known"),
            (None, &["mntpoint=/etc"], "mount option 1 is not known"),
            (None, &["xattr=sa"], "mount option 1 is not known"),
            (None, &["foo=\"a,b\""], "a comma or a quote"),
        ] {
            let error = options(&[], fs_type, flags).expect_err(advice);
            assert_eq!(error.kind(), Kind::Invalid);
            let said = error.advice().is_some_and(|text| text.contains(advice));
            assert!(said, "{advice}: {error:?}");
        }
    }

    #[test]
    fn what_the_kernel_answers_is_explained() {
        for (errno, kind, advice) in [
            (Errno::NOENT, Kind::NotFound, "no such dataset"),
            (Errno::NODEV, Kind::Internal, "load the module"),
            (Errno::ACCESS, Kind::Internal, "zfs load-key"),
            (Errno::BUSY, Kind::Busy, "mounted elsewhere"),
            (Errno::NOTSUP, Kind::Internal, "newer than the ZFS"),
            (Errno::IO, Kind::Internal, "zpool status"),
            (Errno::PERM, Kind::Internal, "SYS_ADMIN"),
        ] {
            let error = to_error("mount it".to_owned(), MountError::new("mount", errno));
            assert_eq!(error.kind(), kind, "{errno}");
            let said = error.advice().is_some_and(|text| text.contains(advice));
            assert!(said, "{errno}: {error:?}");
        }
    }
}
