//! Making a filesystem on a device that holds nothing.

use std::fs::File;

use exec::{Command, Program};
use tokio::time::Instant;

use super::{Content, FilesystemKind, FilesystemSettings, marker, probe, tool_failed};
use crate::device::{BlockDevice, look};
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::error::{Effect, Error, Kind};
use csi_types::filesystem::as_args;

/// The outcome of ensuring a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ensured {
    /// The wanted one was made.
    Made,
    /// The device is not empty, and was not touched.
    Found(Content),
}

/// Makes the wanted filesystem if the device is proved, right before, to hold nothing. A call that
/// was killed half-way is taken up by the next one.
pub async fn ensure(
    tools: &Tools,
    kernel: &Kernel,
    device: &BlockDevice,
    wanted: FilesystemKind,
    settings: &FilesystemSettings,
    deadline: Instant,
) -> Result<Ensured, Error> {
    let again = match probe(tools, kernel, device, deadline).await? {
        Content::Blank => false,
        Content::Unfinished => true,
        found => return Ok(Ensured::Found(found)),
    };
    mark(kernel, device, true, deadline).await?;
    let command =
        command(kernel, device, wanted, settings, again)?.within(super::remaining(tools, deadline));
    if let Err(error) = tools.here().perform(&command).await {
        // What never began has left nothing, and so nothing is to be taken up.
        if error.effect() == Effect::None && !again {
            mark(kernel, device, false, deadline).await?;
        }
        let doing = format!("make {wanted} on {device}");
        return Err(tool_failed(doing, error, wanted.package()));
    }
    mark(kernel, device, false, deadline).await?;
    Ok(Ensured::Made)
}

/// Removes the mark of an unfinished filesystem from a device that a pod uses raw: what the pod writes must never
/// be taken for a leftover of `mkfs`. Costs one read if there is no mark.
pub async fn forget_unfinished(
    kernel: &Kernel,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<(), Error> {
    let (path, size) = probe::opened(kernel, device, deadline).await?;
    let doing = format!("look for a mark on {device}");
    let marked = look(deadline, &doing.clone(), move || {
        File::open(&path)
            .and_then(|file| marker::is_set(&file, size))
            .map_err(|error| Error::new(Kind::Internal, doing).because(error))
    })
    .await?;
    if marked {
        mark(kernel, device, false, deadline).await?;
    }
    Ok(())
}

/// compat: "Filesystems".
fn command(
    kernel: &Kernel,
    device: &BlockDevice,
    kind: FilesystemKind,
    settings: &FilesystemSettings,
    again: bool,
) -> Result<Command, Error> {
    use FilesystemKind as K;
    let (program, first): (_, &[&str]) = match kind {
        // Only root could use reserved blocks. Discarding a blank device would only discard the mark.
        K::Ext3 => (
            Program::constant("mkfs.ext3"),
            &["-m", "0", "-E", "nodiscard"],
        ),
        K::Ext4 => (
            Program::constant("mkfs.ext4"),
            &["-m", "0", "-E", "nodiscard"],
        ),
        K::Xfs => (Program::constant("mkfs.xfs"), &["-K"]),
        K::Btrfs => (Program::constant("mkfs.btrfs"), &["-K"]),
        K::Vfat => (Program::constant("mkfs.vfat"), &[]),
        K::Exfat => (Program::constant("mkfs.exfat"), &[]),
        // Without it every block is written.
        K::Ntfs => (Program::constant("mkfs.ntfs"), &["--quick"]),
    };
    let wanted = settings.format.get(&kind).map_or(&[][..], Vec::as_slice);
    // What is left of the first attempt is known to be worthless; these two ask otherwise.
    let force: &[&str] = match kind {
        K::Xfs | K::Btrfs if again => &["-f"],
        // A whole disk, as it is meant.
        K::Vfat => &["-I"],
        _ => &[],
    };
    Ok(Command::new(program)
        .args(first.iter().copied())
        .args(as_args(wanted))
        .args(force.iter().copied())
        .arg(super::node(kernel, device)?))
}

/// Says on the device that its filesystem is being made, or that it is made.
async fn mark(
    kernel: &Kernel,
    device: &BlockDevice,
    being_made: bool,
    deadline: Instant,
) -> Result<(), Error> {
    let (path, size) = probe::opened(kernel, device, deadline).await?;
    let doing = format!("mark {device}");
    look(deadline, &doing.clone(), move || {
        let written = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .and_then(|file| {
                if being_made {
                    marker::set(&file, size)
                } else {
                    marker::clear(&file, size)
                }
            });
        written.map_err(|error| Error::new(Kind::Internal, doing).because(error))
    })
    .await
}
