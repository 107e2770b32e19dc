//! The blocks of real zvols: an older snapshot with what differs is the newer one, byte for byte.
//!
//! It makes datasets in the pool `tank` and leaves none behind. It needs root and a pool that may be
//! changed: it is run in the lab, by
//! `cargo test -p driver-zfs-cli --all-features --test blocks_in_the_lab -- --ignored --test-threads 1`.
//! `OMNIBUS_ROUNDS` says how many rounds, `OMNIBUS_SEED` which.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what others do on the storage host is done past the runner"
)]

#[path = "common/bare.rs"]
mod bare;
#[expect(dead_code, reason = "the suite counts nothing")]
mod common;
#[path = "common/ground.rs"]
#[expect(dead_code, reason = "one zfs is enough")]
mod ground;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use csi_types::{Access, AccessMode, VolumeCapability};
use driver_core::{
    BlockMetadata as _, BlockRange, BlockRangesQuery, Call, CreateSnapshot, CreateVolume,
    DeleteSnapshot, Driver as _, ExpandVolume, Expander as _, Kind, Parameters, SizeRange,
    SnapshotId, SnapshotName, Snapshots as _, TopologyRequirement, VolumeId, VolumeName,
};
use driver_zfs::observed::VolumeKind;
use ground::{Ground, RealDriver, zfs};

const BLOCK: usize = 16 << 10;

/// The longest time until the first range that differs in a large disk, and until the last.
const FIRST: Duration = Duration::from_secs(2);
const WHOLE: Duration = Duration::from_secs(5);
/// The times that an emulated processor may take longer, beside other work of its host.
const EMULATED: u32 = 10;

fn call() -> Call {
    Call::within(Duration::from_mins(5))
}

fn run(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    output.stdout
}

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length.next_multiple_of(8)];
        // Word by word: without optimisation, on an emulated processor, each call counts.
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// A volume, and what its snapshots hold.
struct Disk {
    id: VolumeId,
    dataset: String,
    blocks: usize,
    taken: usize,
    /// Snapshots with their numbers and contents.
    snapshots: Vec<Taken>,
    /// Those that were deleted.
    gone: Vec<Taken>,
}

/// A snapshot.
struct Taken {
    id: SnapshotId,
    number: usize,
    content: Vec<u8>,
}

impl Disk {
    async fn make(driver: &RealDriver, ground: &Ground, size: usize) -> Self {
        let id = VolumeId::parse("disk").unwrap();
        let request = CreateVolume {
            name: VolumeName::parse(id.as_str()).unwrap(),
            id: id.clone(),
            size: SizeRange::new(i64::try_from(size).unwrap(), 0).unwrap(),
            capabilities: vec![VolumeCapability {
                access: Access::Block,
                mode: AccessMode::SingleNodeWriter,
            }],
            parameters: Parameters::default(),
            secrets: BTreeMap::new(),
            source: None,
            topology: TopologyRequirement::default(),
        };
        driver.create_volume(&call(), &request).await.unwrap();
        Self {
            dataset: format!("{}/v/{id}", ground.root),
            id,
            blocks: size / BLOCK,
            taken: 0,
            snapshots: Vec::new(),
            gone: Vec::new(),
        }
    }

    fn device(&self) -> String {
        format!("/dev/zvol/{}", self.dataset)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let (device, seek) = (format!("of={}", self.device()), format!("seek={at}"));
        let arguments = [
            &device,
            "bs=4k",
            &seek,
            "iflag=fullblock",
            "oflag=direct",
            "conv=notrunc,fsync",
        ];
        run("dd", &arguments, bytes);
    }

    fn discard(&self, at: usize, blocks: usize, zero: bool) {
        let (offset, length) = ((at * BLOCK).to_string(), (blocks * BLOCK).to_string());
        let device = self.device();
        let mut arguments = vec!["-f", "-o", &offset, "-l", &length, &device];
        if zero {
            arguments.insert(0, "-z");
        }
        run("blkdiscard", &arguments, &[]);
    }

    fn read(&self) -> Vec<u8> {
        run(
            "dd",
            &[&format!("if={}", self.device()), "bs=1M", "iflag=direct"],
            &[],
        )
    }

    async fn take(&mut self, driver: &RealDriver) -> SnapshotId {
        self.taken += 1;
        let request = CreateSnapshot {
            name: SnapshotName::parse(&format!("s{}", self.taken)).unwrap(),
            source: self.id.clone(),
            parameters: Parameters::default(),
            secrets: BTreeMap::new(),
        };
        driver.create_snapshot(&call(), &request).await.unwrap().id
    }

    async fn snapshot(&mut self, driver: &RealDriver) {
        let id = self.take(driver).await;
        self.snapshots.push(Taken {
            id,
            number: self.taken,
            content: self.read(),
        });
    }

    async fn grow(&mut self, driver: &RealDriver, blocks: usize) {
        let size = i64::try_from((self.blocks + blocks) * BLOCK).unwrap();
        let size = SizeRange::new(size, 0).unwrap();
        driver
            .expand_volume(&call(), ExpandVolume::new(&self.id, size))
            .await
            .unwrap();
        self.blocks += blocks;
    }

    /// Says which snapshots are gone for good by it.
    fn roll_back(&mut self, to: usize) -> Vec<Taken> {
        let name = self.snapshots[to].id.as_str().replace("disk@", "");
        zfs(&["rollback", "-r", &format!("{}@{name}", self.dataset)]);
        let mut lost = self.snapshots.split_off(to + 1);
        let number = self.snapshots[to].number;
        lost.extend(self.gone.extract_if(.., |gone| gone.number > number));
        self.blocks = self.snapshots[to].content.len() / BLOCK;
        run("blockdev", &["--flushbufs", &self.device()], &[]);
        lost
    }

    async fn forget(&mut self, driver: &RealDriver, at: usize) {
        let taken = self.snapshots.remove(at);
        driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await
            .unwrap();
        self.gone.push(taken);
    }

    /// Something happens to it.
    fn change(&mut self, numbers: &mut Numbers) {
        let at = numbers.below(self.blocks);
        let length = (1 + numbers.below(24)).min(self.blocks - at);
        match numbers.below(8) {
            // A part of a block.
            0 => self.write(at * 4 + numbers.below(4), &numbers.bytes(4096)),
            1 => self.write(at * 4, &vec![0; length * BLOCK]),
            2 => self.discard(at, length, false),
            3 => self.discard(at, length, true),
            // Much of it at once, as far as whole indirect blocks.
            4 => self.discard(
                at,
                (numbers.below(self.blocks) + 1).min(self.blocks - at),
                false,
            ),
            // Compressed into the pointer of the block.
            5 => {
                let mut text = vec![0; BLOCK];
                text[..8].copy_from_slice(&numbers.bytes(8));
                self.write(at * 4, &text);
            }
            _ => self.write(at * 4, &numbers.bytes(length * BLOCK)),
        }
    }
}

async fn ranges(
    driver: &RealDriver,
    of: &SnapshotId,
    base: Option<&SnapshotId>,
    offset: u64,
) -> (u64, Vec<BlockRange>) {
    let query = BlockRangesQuery::new(of, base, offset);
    let mut found = driver.block_ranges(&call(), query).await.unwrap();
    let mut all = Vec::new();
    while let Some(piece) = found.next(3).await.unwrap() {
        all.extend(piece);
    }
    (found.capacity(), all)
}

fn span(range: &BlockRange) -> std::ops::Range<usize> {
    let number = |number: u64| usize::try_from(number).unwrap();
    number(range.offset)..number(range.offset + range.length)
}

/// The old content with the ranges of the new one is the new one. Gives the bytes in ranges, those of them that are as before,
/// and those of these that are zeros.
fn check(old: &[u8], new: &[u8], ranges: &[BlockRange], what: &str) -> [usize; 3] {
    let mut copy = old.to_vec();
    copy.resize(new.len(), 0);
    let ([mut read, mut same, mut zeros], mut end) = ([0; 3], 0);
    for range in ranges.iter().map(span) {
        assert!(
            range.start >= end && range.end <= new.len(),
            "{what}: {ranges:?}"
        );
        end = range.end;
        read += range.len();
        for at in range.clone().step_by(BLOCK) {
            let block = at..(at + BLOCK).min(range.end);
            if copy[block.clone()] == new[block.clone()] {
                same += block.len();
                if new[block.clone()].iter().all(|byte| *byte == 0) {
                    zeros += block.len();
                }
            }
        }
        copy[range.clone()].copy_from_slice(&new[range]);
    }
    let wrong = (0..new.len()).step_by(BLOCK).filter(|at| {
        let block = *at..(at + BLOCK).min(new.len());
        copy[block.clone()] != new[block]
    });
    let wrong: Vec<usize> = wrong.map(|at| at / BLOCK).collect();
    assert!(
        wrong.is_empty(),
        "{what}: blocks {wrong:?} are missing in {ranges:?}"
    );
    [read, same, zeros]
}

/// QEMU names a processor that it emulates.
fn is_emulated() -> bool {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    processors.contains("QEMU TCG CPU")
}

fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_base_with_what_differs_is_the_target() {
    let (rounds, seed) = (setting("OMNIBUS_ROUNDS", 3), setting("OMNIBUS_SEED", 1));
    println!("{rounds} rounds, OMNIBUS_SEED={seed}");
    let mut numbers = Numbers(seed);
    let ground = Ground::new();
    let driver = ground.driver(VolumeKind::Zvol, "  zvolBlocksize: 16K\n");
    let mut disk = Disk::make(&driver, &ground, 24 << 20).await;
    disk.snapshot(&driver).await;
    let mut lost = Vec::new();
    // Bytes in ranges and those of them that are as before: since a snapshot, and since one that was deleted.
    let mut sums = [(0, 0); 2];
    for round in 0..rounds {
        for _ in 0..=numbers.below(4) {
            disk.change(&mut numbers);
        }
        match numbers.below(12) {
            0 if disk.blocks < 4096 => {
                let blocks = 1 + numbers.below(64);
                disk.grow(&driver, blocks).await;
            }
            1 if disk.snapshots.len() > 1 => {
                let to = numbers.below(disk.snapshots.len());
                lost = disk.roll_back(to);
                disk.change(&mut numbers);
            }
            _ => {}
        }
        disk.snapshot(&driver).await;
        let target = disk.snapshots.last().unwrap();
        let is_gone = !disk.gone.is_empty() && numbers.below(2) == 0;
        let base = if is_gone {
            &disk.gone[numbers.below(disk.gone.len())]
        } else {
            &disk.snapshots[numbers.below((disk.snapshots.len() - 1).max(1))]
        };
        let what = format!(
            "round {round}, {} to {}, gone: {is_gone}",
            base.id, target.id
        );
        let (capacity, found) = ranges(&driver, &target.id, Some(&base.id), 0).await;
        assert_eq!(
            usize::try_from(capacity).unwrap(),
            target.content.len(),
            "{what}"
        );
        let [read, same, zeros] = check(&base.content, &target.content, &found, &what);
        // Holes that were holes before count where only the pointers of the target are left to ask. They cost no reading.
        assert!(!is_gone || same == zeros, "{what}: {same} {zeros}");
        let sum = &mut sums[usize::from(is_gone)];
        *sum = (sum.0 + read, sum.1 + same);
        if round % 8 == 0 {
            let (_, held) = ranges(&driver, &target.id, None, 0).await;
            check(&[], &target.content, &held, &format!("{what}, all of it"));
            let offset = u64::try_from(numbers.below(target.content.len())).unwrap();
            let (_, rest) = ranges(&driver, &target.id, Some(&base.id), offset).await;
            let ends_after = |range: &&BlockRange| range.offset + range.length > offset;
            let expected = found.iter().filter(ends_after);
            let expected: Vec<_> = expected.map(|r| span(r).end).collect();
            let rest: Vec<_> = rest.iter().map(|r| span(r).end).collect();
            assert_eq!(rest, expected, "{what} from {offset}");
        }
        for lost in lost.drain(..) {
            let query = BlockRangesQuery::new(&target.id, Some(&lost.id), 0);
            let refused = driver.block_ranges(&call(), query).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Busy, "{what}: {}", lost.id);
        }
        if disk.snapshots.len() > 6 || (disk.snapshots.len() > 2 && numbers.below(3) == 0) {
            let at = numbers.below(disk.snapshots.len() - 1);
            disk.forget(&driver, at).await;
        }
        let old = disk.gone.len().saturating_sub(6);
        disk.gone.drain(..old);
    }
    let [(read, same), (marked_read, marked_same)] = sums;
    println!(
        "{rounds} rounds: since a snapshot {read} bytes in ranges, {same} of them as before; since a deleted one \
         {marked_read}, {marked_same} of them as before"
    );
    assert!(same * 100 <= read, "more than 1 % too many");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn what_differs_in_a_large_disk_is_known_without_reading_it() {
    let ground = Ground::new();
    let driver = ground.driver(
        VolumeKind::Zvol,
        "  zvolBlocksize: 16K\n  zvolEnableReservation: false\n",
    );
    let mut numbers = Numbers(7);
    let size = 100_usize << 30;
    let mut disk = Disk::make(&driver, &ground, size).await;
    let scatter = |disk: &Disk, numbers: &mut Numbers, writes: usize, length: usize| {
        for _ in 0..writes {
            let at = numbers.below(disk.blocks - length);
            disk.write(at * 4, &numbers.bytes(length * BLOCK));
        }
    };
    scatter(&disk, &mut numbers, 20, 16);
    let base = disk.take(&driver).await;
    scatter(&disk, &mut numbers, 40, 16);
    let target = disk.take(&driver).await;
    let since = Instant::now();
    let query = BlockRangesQuery::new(&target, Some(&base), 0);
    let mut found = driver.block_ranges(&call(), query).await.unwrap();
    let mut all = found.next(16_384).await.unwrap().unwrap();
    let first = since.elapsed();
    while let Some(piece) = found.next(16_384).await.unwrap() {
        all.extend(piece);
    }
    let whole = since.elapsed();
    let bytes: u64 = all.iter().map(|range| range.length).sum();
    let times = if is_emulated() { EMULATED } else { 1 };
    println!(
        "{} ranges of {bytes} bytes: the first after {first:?} of {:?}, all after {whole:?} of {:?}",
        all.len(),
        times * FIRST,
        times * WHOLE
    );
    assert!(
        (40 * 15 * 16384..=40 * 16 * 16384).contains(&bytes),
        "{bytes}"
    );
    // To read the disk would take minutes.
    assert!(first <= times * FIRST, "the first range after {first:?}");
    assert!(whole <= times * WHOLE, "all ranges after {whole:?}");
}
