//! Prepares the filesystem of a device for its mount: finds it, or makes it on a provably blank device,
//! checks it, and grows it to the size of its device.
//!
//! A disk with a partition table is used by its last partition, as democratic-csi does it. A device
//! with anything but a known filesystem, or that cannot be read, is never written to: [`filesystem`]
//! guarantees that, and this module only orders the steps.
//! compat: "Filesystems".

use std::sync::Arc;

use exec::{Accept, Command, Program};
use tokio::time::Instant;

use super::Context;
use crate::device::{BlockDevice, look};
use crate::filesystem::{self, Content, Ensured, FilesystemKind};
use crate::mount::{MountTable, as_listed};
use csi_types::attachment::AbsolutePath;
use csi_types::capability::FsType;
use csi_types::error::{Error, Kind};

/// Less space than this behind the last partition is ignored: partition tables reserve some and lose
/// some to alignment.
const SLACK: u64 = 4 << 20;

/// `growpart` has nothing to do.
const UNCHANGED: i32 = 1;

/// A filesystem on a device, ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ready {
    /// The device to mount: the disk, or a partition of it.
    pub(super) device: BlockDevice,
    /// Its filesystem, which may differ from the requested one.
    pub(super) kind: FilesystemKind,
}

/// Finds the filesystem on the device; makes the wanted one if there is provably nothing, and
/// checks it if the operator wants that.
pub(super) async fn prepare(
    context: &Arc<Context>,
    device: &BlockDevice,
    wanted: Option<&FsType>,
    deadline: Instant,
) -> Result<Ready, Error> {
    let wanted = FilesystemKind::wanted(wanted)?;
    let content = match ensure(context, device, wanted, deadline).await? {
        Ensured::Found(content) => content,
        Ensured::Made => {
            let (device, kind) = (device.clone(), wanted);
            return Ok(Ready { device, kind });
        }
    };
    // Checked before anything changes: a partition that is not ours is not resized.
    let ready = on(context, device, &content, deadline).await?;
    if ready.device != *device {
        let grown = grow_partition(context, &ready.device, deadline).await;
        if let Err(error) = grown {
            tracing::warn!(device = %ready.device, error = %error.chain(), "the partition did not grow to the size of its disk");
        }
    }
    let Ready { device, kind } = ready;
    let (tools, kernel, config) = (&context.tools, &context.kernel, &context.config);
    if let Some(options) = config.filesystem.check.get(&kind) {
        filesystem::check(tools, kernel, &device, kind, options, deadline).await?;
    }
    let grown = filesystem::grow_unmounted(tools, kernel, &device, kind, deadline).await;
    if let Err(error) = grown {
        tracing::warn!(%device, error = %error.chain(), "the filesystem did not grow to the size of its device");
    }
    Ok(Ready { device, kind })
}

/// Finds the filesystem on the device and changes nothing. One that a mount would write to is refused: each of several
/// nodes would do so, and see only its own writes.
pub(super) async fn find(
    context: &Arc<Context>,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<Ready, Error> {
    let content = probe(context, device, deadline).await?;
    let ready = on(context, device, &content, deadline).await?;
    let Ready { device, kind } = &ready;
    if filesystem::has_to_be_recovered(&context.kernel, device, *kind, deadline).await? {
        let doing = format!("use the filesystem of {device}, which was not unmounted");
        return Err(Error::new(Kind::Busy, doing).advise(
            "in a mode in which several nodes read, nothing is written to it, and its journal would \
             have to be replayed: stage it for writing once (a pod with a ReadWriteOnce claim), and \
             unstage it",
        ));
    }
    Ok(ready)
}

/// The filesystem of a device that holds this: there, or in its last partition.
async fn on(
    context: &Arc<Context>,
    device: &BlockDevice,
    content: &Content,
    deadline: Instant,
) -> Result<Ready, Error> {
    let Content::Partitions(_) = content else {
        let (device, kind) = (device.clone(), usable(device, content)?);
        return Ok(Ready { device, kind });
    };
    let device = partition(context, device, content, deadline).await?;
    let kind = made_by_others(&device, &probe(context, &device, deadline).await?)?;
    Ok(Ready { device, kind })
}

/// Grows the filesystem that is mounted at `path` to the size of its device, and before that the
/// partition it may be on to the size of its disk.
pub(super) async fn grow(
    context: &Arc<Context>,
    device: &BlockDevice,
    path: &AbsolutePath,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("find which filesystem is at `{path}`");
    let kind = {
        let (doing, path) = (doing.clone(), path.clone());
        look(deadline, &doing.clone(), move || mounted_at(doing, &path)).await?
    };
    grow_partition(context, device, deadline).await?;
    let (tools, kernel) = (&context.tools, &context.kernel);
    filesystem::grow_mounted(tools, kernel, device, kind, path, deadline).await
}

async fn probe(
    context: &Arc<Context>,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<Content, Error> {
    filesystem::probe(&context.tools, &context.kernel, device, deadline).await
}

async fn ensure(
    context: &Arc<Context>,
    device: &BlockDevice,
    wanted: FilesystemKind,
    deadline: Instant,
) -> Result<Ensured, Error> {
    let settings = &context.config.filesystem;
    let (tools, kernel) = (&context.tools, &context.kernel);
    filesystem::ensure(tools, kernel, device, wanted, settings, deadline).await
}

/// The filesystem, if the content is one that can be mounted.
fn usable(device: &BlockDevice, content: &Content) -> Result<FilesystemKind, Error> {
    if let Content::Filesystem { kind, .. } = content {
        return Ok(*kind);
    }
    let doing = format!("use the filesystem of {device}, which holds {content}");
    Err(Error::new(Kind::Busy, doing).advise(match content {
        Content::Blank | Content::Unfinished => {
            "in a mode in which several nodes read, nothing is written to it: stage it for writing \
             once, so that a filesystem is made"
        }
        _ => "it is neither formatted nor mounted; empty it, or use it as a raw device",
    }))
}

/// A filesystem in a partition is used, but none is made there: the partition table was made for a purpose.
fn made_by_others(device: &BlockDevice, content: &Content) -> Result<FilesystemKind, Error> {
    if !content.is_ours_to_make() {
        return usable(device, content);
    }
    let doing = format!("use the partition {device}, which holds {content}");
    Err(Error::new(Kind::Busy, doing).advise(format!(
        "a disk with a partition table is not formatted: make a filesystem in the partition by \
         hand; or, if nothing on the disk is of use, {}",
        filesystem::HOW_TO_EMPTY
    )))
}

/// The partition to use, once its node is there.
async fn partition(
    context: &Arc<Context>,
    disk: &BlockDevice,
    content: &Content,
    deadline: Instant,
) -> Result<BlockDevice, Error> {
    let doing = format!("find the partitions of {disk}");
    let (kernel, of) = (context.kernel.clone(), disk.clone());
    let mut partitions = look(deadline, &doing, move || of.partitions(&kernel)).await?;
    let Some(last) = partitions.pop() else {
        return usable(disk, content).map(|_| disk.clone());
    };
    last.wait_for_node(&context.kernel, deadline).await?;
    Ok(last)
}

/// Grows a partition to the size of its disk; a whole disk has nothing to grow.
async fn grow_partition(
    context: &Arc<Context>,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("grow the partition {device}");
    let look_at = {
        let (kernel, device) = (context.kernel.clone(), device.clone());
        move || room_behind(&kernel, &device)
    };
    let Some((disk, number)) = look(deadline, &doing, look_at).await? else {
        return Ok(());
    };
    let node = disk.node(&context.kernel);
    let node = node.to_str().ok_or_else(|| {
        Error::new(Kind::Internal, doing.clone()).advise("the name of its disk is no text")
    })?;
    let left = deadline.saturating_duration_since(Instant::now());
    let command = Command::new(Program::constant("growpart"))
        .args([node, &number.to_string()])
        .accepting(Accept::Codes(vec![UNCHANGED]))
        .within(left.min(context.tools.timeouts().filesystem));
    let done = context.tools.here().perform(&command).await;
    done.map_err(|error| {
        let failed = error.while_doing(Kind::Internal, doing);
        failed.advise("`growpart` is in the package `cloud-guest-utils`; it grows the last partition of a disk only")
    })
}

/// The disk and the number of a partition behind which there is room.
fn room_behind(
    kernel: &crate::kernel::Kernel,
    device: &BlockDevice,
) -> Result<Option<(BlockDevice, u32)>, Error> {
    let Some(number) = device.partition_number(kernel)? else {
        return Ok(None);
    };
    let disk = device.disk(kernel)?;
    let start = device.attribute(kernel, "start")?;
    let Some(start) = start.and_then(|start| start.trim().parse::<u64>().ok()) else {
        // A partition map of multipath, which kpartx looks after.
        return Ok(None);
    };
    let end = start
        .saturating_mul(512)
        .saturating_add(device.size(kernel)?);
    let room = disk.size(kernel)?.saturating_sub(end);
    Ok((room > SLACK).then_some((disk, number)))
}

fn mounted_at(doing: String, path: &AbsolutePath) -> Result<FilesystemKind, Error> {
    let table = MountTable::read()
        .map_err(|error| Error::new(Kind::Internal, doing.clone()).because(error))?;
    let point = as_listed(path.as_path());
    let entry = table.layers(&point).last();
    let name = entry.map(|entry| entry.fs_type().into_owned());
    let known = name.as_deref().and_then(|name| match name {
        "ntfs3" | "fuseblk" => Some(FilesystemKind::Ntfs),
        name => FilesystemKind::named(name),
    });
    known.ok_or_else(|| {
        let name = name.as_deref().unwrap_or("nothing").escape_debug();
        Error::new(Kind::Unsupported, doing).advise(format!("it is {name}, which cannot be grown"))
    })
}

// === impl Ready ===

impl Ready {
    /// Its name in the kernel.
    pub(super) fn in_kernel(&self) -> &'static str {
        match self.kind {
            FilesystemKind::Ntfs => "ntfs3",
            kind => kind.name(),
        }
    }

    /// Whether its files have no owner, so that a mount option sets the group.
    pub(super) fn takes_group(&self) -> bool {
        use FilesystemKind as K;
        matches!(self.kind, K::Vfat | K::Exfat | K::Ntfs)
    }

    /// Whether a mount writes to its log even where there is nothing to replay, unless an option forbids that.
    pub(super) fn clears_its_log(&self) -> bool {
        self.kind == FilesystemKind::Xfs
    }

    /// Whether a copy may be mounted beside it only with an option.
    pub(super) fn minds_its_twin(&self) -> bool {
        self.kind == FilesystemKind::Xfs
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use exec::testing::{Reply, Scripted};

    use super::*;
    use crate::kernel::testing::Tree;
    use crate::node::{Node, NodeConfig};
    use crate::tools::Tools;
    use csi_types::error::Effect;

    #[test]
    fn an_empty_partition_is_not_given_a_filesystem() {
        let tree = Tree::new();
        tree.disk("x", "sda", "8:0", 1 << 14)
            .partition("x", "sda", 1, "8:1");
        let device = BlockDevice::by_name(&tree.kernel(), "sda1").expect("look");
        let device = device.expect("partition");
        for content in [Content::Blank, Content::Unfinished] {
            let error = made_by_others(&device, &content).expect_err("refused");
            assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
            assert!(
                error.chain().contains("partition table"),
                "{}",
                error.chain()
            );
        }
    }

    #[tokio::test]
    async fn a_partition_that_holds_something_else_is_not_made_larger() {
        let tree = Tree::new();
        tree.disk("x", "sda", "8:0", 1 << 14)
            .partition("x", "sda", 1, "8:1")
            .file("sys/devices/x/block/sda/sda1/start", "2048\n");
        let (disk, last) = (tree.path("dev/sda"), tree.path("dev/sda1"));
        // As large as they say, and not blank: the pretended kernel reads a number there.
        for (node, sectors) in [(&disk, 1 << 14), (&last, 2048)] {
            let mut text = std::fs::read(node).expect("a node");
            text.resize(sectors * 512, b'\n');
            std::fs::write(node, text).expect("its size");
        }
        let blkid = |path: &std::path::Path| format!("blkid -p -o export {}", path.display());
        let script = Scripted::new()
            .expect(blkid(&disk), Reply::printing("PTTYPE=gpt\n"))
            .expect(blkid(&last), Reply::printing("TYPE=LVM2_member\n"));
        let script = Arc::new(script);
        let tools = Tools::all_through(Arc::clone(&script) as _);
        let node = Node::new(NodeConfig::default(), tools, tree.kernel());
        let device = BlockDevice::by_name(&tree.kernel(), "sda").expect("look");
        let soon = Instant::now() + Duration::from_mins(1);
        let prepared = prepare(&node.context, &device.expect("disk"), None, soon).await;
        let error = prepared.expect_err("another program uses it");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::Busy, Effect::None),
            "{}",
            error.chain()
        );
        script.finish();
    }
}
