//! Growing a filesystem to the size of its device.
//!
//! Where the superblock tells the size, a filesystem that fills its device costs no program. A
//! filesystem never shrinks here.

use std::fs::File;

use exec::{Accept, Command, Program};
use tokio::time::Instant;

use super::{FilesystemKind, probe, superblock, tool, tool_failed};
use crate::device::{BlockDevice, look};
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// Less than this at the end of a device is no room for more filesystem.
const SLACK: u64 = 64 << 10;

/// Grows the filesystem of `device`, which is mounted at `path`, to the size of the device.
pub async fn grow_mounted(
    tools: &Tools,
    kernel: &Kernel,
    device: &BlockDevice,
    kind: FilesystemKind,
    path: &AbsolutePath,
    deadline: Instant,
) -> Result<(), Error> {
    use FilesystemKind as K;
    if !has_room(kernel, device, kind, deadline).await? {
        return Ok(());
    }
    let command = match kind {
        K::Ext3 | K::Ext4 => tool(Program::constant("resize2fs"), kernel, device)?,
        K::Xfs => Command::new(Program::constant("xfs_growfs")).arg(path.as_str()),
        K::Btrfs => Command::new(Program::constant("btrfs"))
            .args(["filesystem", "resize", "max"])
            .arg(path.as_str()),
        K::Vfat | K::Exfat | K::Ntfs => {
            let error = Error::new(
                Kind::Busy,
                format!("grow {kind} on {device} while it is mounted"),
            );
            return Err(error.advise(
                "this filesystem grows only while it is not mounted: stop the pods that use it; it \
                 grows when it is staged again, where its tools can do that",
            ));
        }
    };
    run(tools, command, kind, device, deadline).await
}

/// Grows the filesystem of a device that is not mounted, where it can grow only so.
pub async fn grow_unmounted(
    tools: &Tools,
    kernel: &Kernel,
    device: &BlockDevice,
    kind: FilesystemKind,
    deadline: Instant,
) -> Result<(), Error> {
    use FilesystemKind as K;
    let commands = match kind {
        K::Vfat => vec![
            Command::new(Program::constant("fatresize"))
                .args(["-s", "max"])
                .arg(super::node(kernel, device)?),
        ],
        K::Ntfs => {
            let with = |program, options: &[&str]| -> Result<Command, Error> {
                Ok(Command::new(program)
                    .args(options.iter().copied())
                    .arg(super::node(kernel, device)?))
            };
            let resize = Program::constant("ntfsresize");
            // Looks, tries without writing, and then writes.
            vec![
                with(resize.clone(), &["-c"])?,
                with(resize.clone(), &["-n"])?,
                with(resize, &["-P", "-f"])?,
                with(Program::constant("ntfsfix"), &["-d"])?,
            ]
        }
        // No tool grows exFAT; the others grow while they are mounted.
        K::Exfat | K::Ext3 | K::Ext4 | K::Xfs | K::Btrfs => return Ok(()),
    };
    for command in commands {
        run(tools, command, kind, device, deadline).await?;
    }
    Ok(())
}

async fn run(
    tools: &Tools,
    command: Command,
    kind: FilesystemKind,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<(), Error> {
    let command = command
        .accepting(Accept::Success)
        .within(super::remaining(tools, deadline));
    let done = tools.here().perform(&command).await;
    let doing = format!("grow {kind} on {device}");
    done.map_err(|error| {
        let denied = error
            .stderr()
            .contains("Permission denied to resize filesystem");
        let failed = tool_failed(doing, error, kind.package());
        if denied {
            failed.advise("growing a mounted ext filesystem needs the capability SYS_RESOURCE")
        } else {
            failed
        }
    })
}

/// Whether the device is larger than the filesystem thinks; `true` where only its tool can tell.
async fn has_room(
    kernel: &Kernel,
    device: &BlockDevice,
    kind: FilesystemKind,
    deadline: Instant,
) -> Result<bool, Error> {
    let (path, size) = probe::opened(kernel, device, deadline).await?;
    let doing = format!("read the superblock of {device}");
    look(deadline, &doing.clone(), move || {
        let known = File::open(&path)
            .and_then(|file| superblock::size(&file, kind))
            .map_err(|error| Error::new(Kind::Internal, doing).because(error))?;
        Ok(known.is_none_or(|known| known.saturating_add(SLACK) <= size))
    })
    .await
}
