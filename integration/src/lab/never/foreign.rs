//! A device that holds anything, or cannot be read, is never formatted.

use std::path::{Path, PathBuf};

use tonic::Code;

use crate::lab::calls::{Node, refused};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::fixture::{Access, SIZE};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;
use crate::lab::storage::fabric::{Exporter, Fabric};
use crate::lab::storage::zfs::Zvol;

const MIB: u64 = 1 << 20;

/// The content of a device.
#[derive(Debug, Clone, Copy)]
enum Held {
    /// Swap space.
    Swap,
    /// A partition table.
    Partitions,
    /// The begin of an encrypted device.
    Encrypted,
    /// Bytes that no tool knows, at this offset.
    Bytes(u64),
}

const ALL: [Held; 5] = [
    Held::Swap,
    Held::Partitions,
    Held::Encrypted,
    Held::Bytes(3 * MIB),
    Held::Bytes(SIZE - 4096),
];

// === impl Held ===

impl Held {
    fn put(self, zvol: &Zvol) {
        let device = zvol.device().display().to_string();
        match self {
            Self::Swap => drop(run(&["mkswap", &device])),
            Self::Partitions => {
                let words = format!("printf 'label: gpt\\nsize=64M\\n' | sfdisk -q {device}");
                run(&["sh", "-c", &words]);
            }
            Self::Encrypted => zvol.put(0, b"LUKS\xba\xbe\x00\x02"),
            Self::Bytes(offset) => zvol.put(offset, &content::bytes(3, 512)),
        }
        run(&["udevadm", "settle"]);
    }
}

/// Asks for ext4 on devices that hold something else, over one kind of network.
///
/// # Panics
/// If one is staged, or changed.
pub async fn nothing_foreign_is_formatted(fabric: Fabric) {
    let exporter = fabric.exporter("foreign");
    let mut zvols = Vec::new();
    for (held, number) in ALL.into_iter().zip(1..) {
        let zvol = Zvol::create(&format!("foreign-{number}"), SIZE);
        held.put(&zvol);
        exporter.give(number, &zvol);
        zvols.push((held, number, zvol));
    }
    let before = Leftovers::read();
    let node = Node::start().await;
    for (held, number, zvol) in &zvols {
        step(&format!("{held:?}"));
        let seen = look(zvol);
        let name = format!("foreign-{number}");
        let fixture = exporter.fixture(&name, *number, zvol, Access::Mount("ext4"));
        let answer = node.stage(&fixture).await;
        refused(answer, &[Code::FailedPrecondition], &format!("{held:?}"));
        assert!(look(zvol) == seen, "{held:?}: the device was changed");
        node.unstage(&fixture).await.expect("taken away");
        Leftovers::back_to(&before, &format!("{held:?}")).await;
    }
    step("a filesystem that was not asked for is mounted as it is");
    let zvol = Zvol::create("foreign-xfs", SIZE);
    run(&["mkfs.xfs", "-q", &zvol.device().display().to_string()]);
    exporter.give(20, &zvol);
    let fixture = exporter.fixture("foreign-xfs", 20, &zvol, Access::Mount("ext4"));
    let before = Leftovers::read();
    node.stage(&fixture).await.expect("staged");
    let point = node.staging(&fixture).display().to_string();
    assert_eq!(run(&["findmnt", "-no", "FSTYPE", &point]).trim(), "xfs");
    node.take_away(&fixture, &[]).await;
    Leftovers::back_to(&before, "the other filesystem").await;
    node.end().await;
}

/// Asks for ext4 on a device of which parts cannot be read, and then can.
///
/// # Panics
/// If it is staged while it cannot be read, or changed.
pub async fn nothing_unreadable_is_formatted(fabric: Fabric) {
    let exporter = fabric.exporter("unreadable");
    let node = Node::start().await;
    for (number, (from, to)) in (1..).zip([(0, MIB), (2 * MIB, 3 * MIB), (SIZE - MIB, SIZE)]) {
        step(&format!("{from} to {to} cannot be read"));
        let name = format!("unreadable-{number}");
        let zvol = Zvol::create(&name, SIZE);
        // What is there, and the begin of which tells a reader nothing.
        zvol.put(from, &content::bytes(5, 4096));
        let seen = look(&zvol);
        give_broken(&exporter, number, &zvol, from, to);
        let before = Leftovers::read();
        let fixture = exporter.fixture(&name, number, &zvol, Access::Mount("ext4"));
        let answer = node.stage(&fixture).await;
        let codes = [Code::Internal, Code::FailedPrecondition, Code::Unavailable];
        refused(answer, &codes, "what cannot be read");
        assert!(look(&zvol) == seen, "the device was changed");
        node.unstage(&fixture).await.expect("taken away");
        Leftovers::back_to(&before, &name).await;
    }
    node.end().await;
}

/// Gives a number to a map over the zvol in which a part is broken.
fn give_broken(exporter: &Exporter, number: u32, zvol: &Zvol, from: u64, to: u64) {
    let sectors = |bytes: u64| bytes / 512;
    let device = zvol.device().display().to_string();
    let mut table = Vec::new();
    let mut part = |from: u64, to: u64, kind: &str| {
        if from < to {
            let (begin, length) = (sectors(from), sectors(to - from));
            let target = match kind {
                "error" => String::new(),
                _ => format!(" {device} {begin}"),
            };
            table.push(format!("{begin} {length} {kind}{target}"));
        }
    };
    part(0, from, "linear");
    part(from, to, "error");
    part(to, SIZE, "linear");
    let name = format!("lab-broken-{number}");
    let words = format!("printf '{}\\n' | dmsetup create {name}", table.join("\\n"));
    run(&["sh", "-c", &words]);
    let map: PathBuf = Path::new("/dev/mapper").join(&name);
    run(&[
        "udevadm",
        "wait",
        "--timeout=30",
        &map.display().to_string(),
    ]);
    exporter.give_over(number, zvol, &map);
}

/// Every part of a device where one of the contents lies, or a filesystem would.
fn look(zvol: &Zvol) -> Vec<u8> {
    let mut all = zvol.raw(0, 8 << 20);
    all.extend(zvol.raw(SIZE / 2, 1 << 20));
    all.extend(zvol.raw(SIZE - MIB, 1 << 20));
    all
}
