//! The content of a device.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use exec::{Accept, Command, Program};
use tokio::time::Instant;

use super::{FilesystemKind, blank, marker, superblock, tool_failed};
use crate::device::{BlockDevice, look};
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::error::{Error, Kind};

const BLKID: Program = Program::constant("blkid");
/// `blkid -p` knows nothing that is there.
const NOTHING: i32 = 2;
/// `blkid -p` found several things at once.
const AMBIVALENT: i32 = 8;

/// The content of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing: a filesystem may be made.
    Blank,
    /// A filesystem of ours that was never finished: it may be made again.
    Unfinished,
    /// A filesystem that can be mounted.
    Filesystem {
        /// Which.
        kind: FilesystemKind,
        /// Its UUID, as `blkid` prints it.
        uuid: Option<String>,
    },
    /// A partition table.
    Partitions(String),
    /// Something else that is known, by the name that `blkid` has for it.
    Other(String),
}

// === impl Content ===

impl Content {
    /// Whether a filesystem may be made there.
    pub fn is_ours_to_make(&self) -> bool {
        matches!(self, Self::Blank | Self::Unfinished)
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("nothing"),
            Self::Unfinished => f.write_str("a filesystem that was never finished"),
            Self::Filesystem { kind, .. } => kind.fmt(f),
            Self::Partitions(kind) => write!(f, "a partition table ({})", kind.escape_debug()),
            Self::Other(name) => write!(f, "`{}`", name.escape_debug()),
        }
    }
}

/// Finds out what is on a device. It changes nothing except a stale mark.
///
/// Every doubt is an error: a device that cannot be read, with signatures of several formats, or
/// with unknown bytes.
pub async fn probe(
    tools: &Tools,
    kernel: &Kernel,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<Content, Error> {
    let doing = || format!("find out what is on {device}");
    let Bytes { are_zeros, marked } = bytes_of(kernel, device, deadline).await?;
    if are_zeros {
        if is_zoned(kernel, device, deadline).await? {
            return Err(Error::new(Kind::Busy, doing()).advise(
                "it is a zoned device, and a filesystem on it may have its label at a place that is \
                 not checked; it is not formatted. Make the filesystem by hand",
            ));
        }
        // Where every label would stand: a program could not say more.
        return Ok(if marked {
            Content::Unfinished
        } else {
            Content::Blank
        });
    }
    let command = Command::new(BLKID)
        .args(["-p", "-o", "export"])
        .arg(super::node(kernel, device)?)
        .accepting(Accept::Codes(vec![NOTHING, AMBIVALENT]))
        .within(super::remaining(tools, deadline));
    let output = tools.here().run_checked(&command).await;
    let output = output.map_err(|error| tool_failed(doing(), error, "util-linux"))?;
    match output.status.code() {
        Some(0) => {
            let content = known(&output.text());
            let content = content.ok_or_else(|| doubtful(doing(), "`blkid` names nothing"))?;
            settle(kernel, device, content, marked, deadline).await
        }
        Some(NOTHING) if marked => Ok(Content::Unfinished),
        Some(NOTHING) => Err(doubtful(
            doing(),
            "it holds bytes that are not zero and that `blkid` does not know",
        )),
        _ => Err(doubtful(
            doing(),
            "it bears the signatures of several things at once",
        )),
    }
}

/// Whether mounting the filesystem of this device would write to it, even read-only.
pub async fn has_to_be_recovered(
    kernel: &Kernel,
    device: &BlockDevice,
    kind: FilesystemKind,
    deadline: Instant,
) -> Result<bool, Error> {
    let doing = format!("read the journal of {device}");
    let (path, _) = opened(kernel, device, deadline).await?;
    look(deadline, &doing.clone(), move || {
        let file = File::open(&path).map_err(|error| unreadable(&doing, error))?;
        superblock::has_to_be_recovered(&file, kind).map_err(|error| unreadable(&doing, error))
    })
    .await
}

fn doubtful(doing: String, why: &str) -> Error {
    Error::new(Kind::Busy, doing).advise(format!(
        "{why}; it is neither formatted nor mounted. If nothing on it is of use, {}",
        blank::HOW_TO_EMPTY
    ))
}

/// The content that the lines of `blkid -o export` name.
fn known(text: &str) -> Option<Content> {
    let value = |key: &str| {
        let mut lines = text.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(found.trim().to_owned()).filter(|value| !value.is_empty())
    };
    if let Some(name) = value("TYPE") {
        return Some(match FilesystemKind::named(&name) {
            Some(kind) => Content::Filesystem {
                kind,
                uuid: value("UUID"),
            },
            None => Content::Other(name),
        });
    }
    value("PTTYPE").map(Content::Partitions)
}

/// A filesystem that was never finished is none; and where there is one, no mark has to stay.
async fn settle(
    kernel: &Kernel,
    device: &BlockDevice,
    content: Content,
    marked: bool,
    deadline: Instant,
) -> Result<Content, Error> {
    let Content::Filesystem { kind, .. } = content else {
        return Ok(content);
    };
    if !marked && kind != FilesystemKind::Xfs {
        return Ok(content);
    }
    let doing = format!("read the superblock of {device}");
    let (path, size) = opened(kernel, device, deadline).await?;
    look(deadline, &doing.clone(), move || {
        let file = File::open(&path).map_err(|error| unreadable(&doing, error))?;
        if kind == FilesystemKind::Xfs
            && superblock::is_unfinished_xfs(&file).map_err(|error| unreadable(&doing, error))?
        {
            return Ok(Content::Unfinished);
        }
        if marked {
            // A machine that lost its power may have written the superblock and not the rest. The
            // others write theirs when the rest is on the disk.
            let is_ext = matches!(kind, FilesystemKind::Ext3 | FilesystemKind::Ext4);
            if is_ext
                && superblock::is_unused_ext(&file).map_err(|error| unreadable(&doing, error))?
            {
                return Ok(Content::Unfinished);
            }
            let file = File::options()
                .write(true)
                .read(true)
                .open(&path)
                .map_err(|error| unreadable(&doing, error))?;
            marker::clear(&file, size).map_err(|error| unreadable(&doing, error))?;
        }
        Ok(content)
    })
    .await
}

/// The bytes that are read where the labels of every format stand.
struct Bytes {
    /// Zeros alone, but for the mark of a making.
    are_zeros: bool,
    /// Whether that mark is there.
    marked: bool,
}

async fn is_zoned(kernel: &Kernel, device: &BlockDevice, deadline: Instant) -> Result<bool, Error> {
    let (of, kernel) = (device.clone(), kernel.clone());
    let doing = format!("find out how {device} is written");
    look(deadline, &doing, move || of.is_zoned(&kernel)).await
}

async fn bytes_of(
    kernel: &Kernel,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<Bytes, Error> {
    let doing = format!("read {device}");
    let (path, size) = opened(kernel, device, deadline).await?;
    look(deadline, &doing.clone(), move || {
        let failed = |error| unreadable(&doing, error);
        let file = File::open(&path).map_err(failed)?;
        let marked = marker::is_set(&file, size).map_err(failed)?;
        let except = if marked { marker::place(size) } else { (0, 0) };
        let are_zeros = blank::is_blank(&file, size, except).map_err(failed)?;
        Ok(Bytes { are_zeros, marked })
    })
    .await
}

fn unreadable(doing: &str, error: std::io::Error) -> Error {
    Error::new(Kind::Internal, doing)
        .because(error)
        .advise("a device that cannot be read is never formatted; the log of the kernel says more")
}

/// The node of a device and its size, which is not zero.
pub(super) async fn opened(
    kernel: &Kernel,
    device: &BlockDevice,
    deadline: Instant,
) -> Result<(PathBuf, u64), Error> {
    let (of, kernel) = (device.clone(), kernel.clone());
    let doing = format!("read the size of {device}");
    look(deadline, &doing, move || {
        let size = of.size(&kernel)?;
        if size == 0 {
            let doing = format!("use {of}");
            return Err(Error::new(Kind::Internal, doing).advise("its size is zero"));
        }
        Ok((of.node(&kernel), size))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use exec::testing::Scripted;

    use super::*;
    use crate::kernel::testing::Tree;

    #[test]
    fn the_lines_of_blkid_are_distinguished() {
        // Captured from blkid of util-linux 2.38.1.
        let ext4 = "DEVNAME=/dev/loop0\nUUID=8e4e\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n";
        let kind = FilesystemKind::Ext4;
        let uuid = Some("8e4e".to_owned());
        assert_eq!(known(ext4), Some(Content::Filesystem { kind, uuid }));
        let lvm = "DEVNAME=/dev/loop0\nUUID=x\nTYPE=LVM2_member\nUSAGE=raid\n";
        assert_eq!(known(lvm), Some(Content::Other("LVM2_member".to_owned())));
        let gpt = "DEVNAME=/dev/loop0\nPTUUID=x\nPTTYPE=gpt\n";
        assert_eq!(known(gpt), Some(Content::Partitions("gpt".to_owned())));
        assert_eq!(known("DEVNAME=/dev/loop0\nTYPE=\n"), None);
        assert_eq!(known(""), None);
    }

    #[tokio::test]
    async fn a_disk_that_is_written_by_zones_is_never_blank() {
        const HOME: &str = "platform/host2/session1/target2:0:0/2:0:0:0";
        for (zones, blank) in [
            (None, true),
            (Some("none"), true),
            (Some("host-aware"), false),
        ] {
            let tree = Tree::new();
            tree.disk(HOME, "sda", "8:0", 32_768)
                .partition(HOME, "sda", 1, "8:1");
            if let Some(zones) = zones {
                let path = format!("sys/devices/{HOME}/block/sda/queue/zoned");
                tree.file(&path, &format!("{zones}\n"));
            }
            let kernel = tree.kernel();
            for name in ["sda", "sda1"] {
                let device = BlockDevice::by_name(&kernel, name).expect("look");
                let device = device.expect("a device");
                let node = tree
                    .file(&format!("dev/{name}"), "")
                    .path(&format!("dev/{name}"));
                let size = device.size(&kernel).expect("a size");
                let zeros = File::options().write(true).open(node).expect("a file");
                zeros.set_len(size).expect("a size");
                let tools = Tools::all_through(Arc::new(Scripted::new()));
                let soon = Instant::now() + Duration::from_mins(1);
                let found = probe(&tools, &kernel, &device, soon).await;
                assert_eq!(
                    matches!(found, Ok(Content::Blank)),
                    blank,
                    "{zones:?} {found:?}"
                );
                assert_eq!(found.is_err(), !blank);
            }
        }
    }
}
