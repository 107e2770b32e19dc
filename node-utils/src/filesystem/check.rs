//! Checking a filesystem that is not mounted, where the operator wants that.

use exec::{Accept, Command, Program};
use tokio::time::Instant;

use super::{CheckOptions, FilesystemKind, tool_failed};
use crate::device::BlockDevice;
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::error::{Error, Kind};
use csi_types::filesystem::as_args;

/// Checks and, as far as that is safe, repairs the filesystem of a device that is not mounted.
///
/// `Precondition`-like refusals are `Busy`: errors were found that the tool did not repair.
pub async fn check(
    tools: &Tools,
    kernel: &Kernel,
    device: &BlockDevice,
    kind: FilesystemKind,
    options: &CheckOptions,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = || format!("check {kind} on {device}");
    let command = command(kernel, device, kind, options)?
        .accepting(Accept::AnyExit)
        .within(super::remaining(tools, deadline));
    let output = tools.here().run_checked(&command).await;
    let output = output.map_err(|error| tool_failed(doing(), error, kind.package()))?;
    match verdict(kind, output.status.code()) {
        Verdict::Clean => Ok(()),
        Verdict::Repaired => {
            tracing::warn!(%device, filesystem = %kind, "the check found errors and repaired them");
            Ok(())
        }
        Verdict::LogToReplay => {
            tracing::info!(%device, "the log of the filesystem is replayed when it is mounted");
            Ok(())
        }
        Verdict::Broken => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let error = Error::new(Kind::Busy, doing()).advise(
                "it has errors that are not repaired by themselves; repair it by hand while it is \
                 not in use",
            );
            let what = format!("{}: {said}", output.status);
            Err(error.because(what))
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Repaired,
    LogToReplay,
    Broken,
}

/// The meaning of an exit code: `fsck(8)`, `e2fsck(8)`, `xfs_repair(8)`.
fn verdict(kind: FilesystemKind, code: Option<i32>) -> Verdict {
    use FilesystemKind as K;
    match (kind, code) {
        (_, Some(0)) => Verdict::Clean,
        (K::Ext3 | K::Ext4 | K::Vfat | K::Exfat, Some(1)) => Verdict::Repaired,
        // The only safe repair is to mount it.
        (K::Xfs, Some(2)) => Verdict::LogToReplay,
        _ => Verdict::Broken,
    }
}

/// compat: "Filesystems".
fn command(
    kernel: &Kernel,
    device: &BlockDevice,
    kind: FilesystemKind,
    options: &CheckOptions,
) -> Result<Command, Error> {
    use FilesystemKind as K;
    let node = super::node(kernel, device)?;
    let own = as_args(&options.options);
    let of_filesystem = as_args(&options.filesystem_options);
    Ok(match kind {
        K::Ext3 | K::Ext4 => Command::new(Program::constant("fsck"))
            .args(own)
            .arg(node)
            .arg("--")
            .args(of_filesystem)
            .args(["-f", "-p"]),
        K::Xfs => Command::new(Program::constant("xfs_repair"))
            .args(["-o", "force_geometry"])
            .args(own)
            .arg(node),
        K::Btrfs => Command::new(Program::constant("btrfs"))
            .args(own)
            .arg("check")
            .arg(node),
        K::Vfat | K::Exfat => Command::new(Program::constant("fsck"))
            .args(own)
            .arg(node)
            .arg("--")
            .args(of_filesystem),
        K::Ntfs => Command::new(Program::constant("ntfsfix"))
            .args(own)
            .arg(node),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_repaired_is_mounted_and_what_was_not_is_not() {
        use FilesystemKind as K;
        for (kind, code, expected) in [
            (K::Ext4, 0, Verdict::Clean),
            (K::Ext4, 1, Verdict::Repaired),
            (K::Ext4, 4, Verdict::Broken),
            (K::Ext4, 8, Verdict::Broken),
            (K::Xfs, 1, Verdict::Broken),
            (K::Xfs, 2, Verdict::LogToReplay),
            (K::Btrfs, 1, Verdict::Broken),
            (K::Ntfs, 1, Verdict::Broken),
        ] {
            assert_eq!(verdict(kind, Some(code)), expected, "{kind} {code}");
        }
        assert_eq!(verdict(K::Ext4, None), Verdict::Broken);
    }
}
