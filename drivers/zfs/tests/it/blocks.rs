//! Records of `zfs send`, and what follows from them: an older snapshot with what differs is the newer one.

use async_trait::async_trait;
use driver_core::transfer::Bytes;
use driver_core::{
    BlockMetadata as _, BlockRange, BlockRanges, BlockRangesQuery, Call, CreateSnapshot, Driver,
    Error, Kind, SnapshotName, Snapshots as _,
};
use driver_zfs::blocks::{Before, Item, Malformed, Parser, RECORD, Records, Sent, changed, held};
use driver_zfs::name::SnapshotRef;
use driver_zfs::observed::Guid;
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::RecordWriter;
use driver_zfs::testing::{HostState, InMemory as _, MemoryHost};
use proptest::prelude::*;

use crate::short::create;
use crate::world::{
    From, MemoryDriver, Verb, dataset, driver, parameters, run, snapshot_id, volume,
};

const BLOCK: u64 = 16 << 10;
/// The most blocks of a disk.
const MOST: usize = 24;

/// A stream in pieces.
#[derive(Debug)]
struct Pieces {
    bytes: Vec<u8>,
    size: usize,
}

#[async_trait]
impl Bytes for Pieces {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let size = self.size.clamp(1, self.bytes.len().max(1));
        let rest = self.bytes.split_off(size.min(self.bytes.len()));
        let piece = std::mem::replace(&mut self.bytes, rest);
        Ok((!piece.is_empty()).then_some(piece))
    }
}

fn records(bytes: Vec<u8>, sent: Sent, size: usize) -> Records {
    let name = SnapshotRef::parse("tank/v/a@s").unwrap();
    Records::new(name, sent, Box::new(Pieces { bytes, size }))
}

async fn all(mut ranges: Box<dyn BlockRanges>, max: usize) -> Result<Vec<BlockRange>, Error> {
    let mut all = Vec::new();
    while let Some(piece) = ranges.next(max).await? {
        assert!(!piece.is_empty() && piece.len() <= max);
        all.extend(piece);
    }
    Ok(all)
}

/// A block: when it became what it is, and its content. What was never written is a hole without a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Block {
    born: u64,
    content: Option<u64>,
}

/// A disk as ZFS keeps it.
#[derive(Debug, Clone, Default)]
struct Disk {
    blocks: [Block; MOST],
    /// The end of all that was written since it became smaller.
    end: usize,
    size: usize,
}

#[derive(Debug, Clone)]
enum Event {
    Write(usize, usize),
    /// Zeros that are compressed away, or a discard.
    Free(usize, usize),
    Resize(usize),
    Snapshot,
    /// To one of the snapshots; later ones are gone.
    Rollback(prop::sample::Index),
}

fn event() -> impl Strategy<Value = Event> {
    let span = || (0..MOST, 1..8_usize);
    prop_oneof![
        4 => span().prop_map(|(at, length)| Event::Write(at, length)),
        3 => span().prop_map(|(at, length)| Event::Free(at, length)),
        1 => (1..=MOST).prop_map(Event::Resize),
        3 => Just(Event::Snapshot),
        1 => any::<prop::sample::Index>().prop_map(Event::Rollback),
    ]
}

impl Disk {
    fn set(&mut self, txg: u64, at: usize, length: usize, content: Option<u64>) {
        let end = (at + length).min(self.size);
        if content.is_some() {
            self.end = self.end.max(end);
        }
        for block in self.blocks.iter_mut().take(end).skip(at) {
            // What was never written stays so.
            if content.is_some() || block.content.is_some() {
                *block = Block { born: txg, content };
            }
        }
    }

    fn resize(&mut self, txg: u64, size: usize) {
        let freed = self.size.saturating_sub(size);
        self.set(txg, size, freed, None);
        self.end = self.end.min(size);
        self.size = size;
    }

    fn content(&self, at: usize) -> Option<u64> {
        self.blocks.get(at).and_then(|block| block.content)
    }

    /// The stream since a moment; with `all_holes` also those without a time, as ZFS sends them.
    fn sent(&self, sent: Sent, since: u64, all_holes: bool) -> Vec<u8> {
        let mut writer = RecordWriter::new(sent.to, sent.from).other();
        writer = writer.object(self.end as u64 * BLOCK);
        for (at, block) in self.blocks.iter().enumerate().take(self.end) {
            let offset = at as u64 * BLOCK;
            writer = match block.content {
                Some(content) if block.born > since && content % 3 == 0 => {
                    writer.embedded(offset, BLOCK)
                }
                Some(content) if block.born > since => {
                    writer.write(offset, BLOCK, usize::try_from(content % 900).unwrap())
                }
                None if block.born > since || (all_holes && block.born == 0) => {
                    writer.free(offset, BLOCK)
                }
                _ => writer,
            };
        }
        writer.end()
    }

    fn guid(txg: u64) -> Guid {
        Guid(txg + (1 << 60))
    }
}

/// The snapshots that are there at the end, with their moments.
fn snapshots(events: &[Event]) -> Vec<(u64, Disk)> {
    let mut disk = Disk {
        size: MOST / 2,
        ..Disk::default()
    };
    let mut taken = Vec::new();
    for (txg, event) in (1_u64..).zip(events) {
        match event {
            Event::Write(at, length) => disk.set(txg, *at, *length, Some(txg)),
            Event::Free(at, length) => disk.set(txg, *at, *length, None),
            Event::Resize(size) => disk.resize(txg, *size),
            Event::Snapshot => taken.push((txg, disk.clone())),
            Event::Rollback(to) if !taken.is_empty() => {
                taken.truncate(to.index(taken.len()) + 1);
                disk = taken.last().unwrap().1.clone();
            }
            Event::Rollback(_) => {}
        }
    }
    taken
}

fn blocks(ranges: &[BlockRange]) -> impl Iterator<Item = usize> {
    let number = |byte: u64| usize::try_from(byte / BLOCK).unwrap();
    ranges
        .iter()
        .flat_map(move |r| number(r.offset)..number(r.offset + r.length))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_base_with_what_differs_is_the_target_and_no_block_too_many_is_read(
        events in prop::collection::vec(event(), 4..40),
        size in 1..2000_usize,
        max in 1..5_usize,
        from in 0..MOST,
        all_holes in any::<bool>(),
    ) {
        let taken = snapshots(&events);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for (nth, (now, target)) in taken.iter().enumerate() {
            let capacity = target.size as u64 * BLOCK;
            let sent = Sent { to: Disk::guid(*now), from: None };
            let full = || records(target.sent(sent, 0, all_holes), sent, size);
            let ranges = runtime.block_on(all(held(full(), capacity, 0), max)).unwrap();
            let found: Vec<usize> = blocks(&ranges).collect();
            let expected = (0..target.size).filter(|at| target.content(*at).is_some());
            prop_assert_eq!(&found, &expected.collect::<Vec<_>>());
            for (then, base) in &taken[..nth] {
                let sent = Sent { to: Disk::guid(*now), from: Some(Disk::guid(*then)) };
                let of_base = Sent { to: Disk::guid(*then), from: None };
                let delta = |offset| {
                    let differs = records(target.sent(sent, *then, all_holes), sent, size);
                    let base = records(base.sent(of_base, 0, all_holes), of_base, size);
                    changed(differs, Before::Records(Box::new(base)), capacity, offset)
                };
                let ranges = runtime.block_on(all(delta(0), max)).unwrap();
                let found: Vec<usize> = blocks(&ranges).collect();
                for at in 0..target.size {
                    let is_found = found.contains(&at);
                    let (old, new) = (base.content(at), target.content(at));
                    prop_assert!(is_found || old == new, "block {} differs: {:?}", at, ranges);
                    // A block that was written again counts, whatever it holds.
                    prop_assert!(!is_found || old != new, "block {} is as it was: {:?}", at, ranges);
                }
                // The base is gone: what was freed since then says the same.
                let freed = (0..MOST).filter(|at| {
                    let block = target.blocks[*at];
                    block.content.is_none() && block.born > *then
                });
                let freed = freed.map(|at| at as u64 * BLOCK..(at as u64 + 1) * BLOCK).collect();
                let later = Before::Later(Box::pin(async move { Ok(freed) }));
                let differs = records(target.sent(sent, *then, all_holes), sent, size);
                let marked = runtime.block_on(all(changed(differs, later, capacity, 0), max)).unwrap();
                let marked: Vec<usize> = blocks(&marked).collect();
                prop_assert!(found.iter().all(|at| marked.contains(at)));
                // Besides a block that came and went between the two.
                let went = |at: &usize| {
                    let block = target.blocks[*at];
                    block.content.is_none() && block.born > *then
                };
                prop_assert!(marked.iter().all(|at| found.contains(at) || went(at)));
                prop_assert!(found.is_sorted() && found.last().is_none_or(|at| *at < target.size));
                let offset = (from as u64 * BLOCK + 5).min(capacity);
                let rest = runtime.block_on(all(delta(offset), max)).unwrap();
                prop_assert!(rest.iter().all(|range| range.offset + range.length > offset));
                let rest: Vec<usize> = blocks(&rest).collect();
                let wanted = |at: &usize| (*at as u64 + 1) * BLOCK > offset;
                let expected: Vec<usize> = found.iter().copied().filter(wanted).collect();
                prop_assert!(expected.iter().all(|at| rest.contains(at)));
                prop_assert!(rest.iter().all(|at| found.contains(at)));
            }
        }
    }

    #[test]
    fn no_bytes_break_the_parser(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2000),
        valid in any::<bool>(),
        at in any::<prop::sample::Index>(),
        size in 1..700_usize,
    ) {
        let sent = Sent { to: Guid(7), from: Some(Guid(5)) };
        if valid {
            let writer = RecordWriter::new(sent.to, sent.from).object(1 << 20);
            let mut stream = writer.write(0, BLOCK, 400).free(BLOCK, BLOCK).end();
            if let Some(byte) = bytes.first() {
                *at.get_mut(&mut stream) = *byte;
            }
            bytes = stream;
        }
        let read = |size: usize| {
            let (mut parser, mut items) = (Parser::new(sent), Vec::new());
            let fed = bytes.chunks(size).try_for_each(|piece| parser.feed(piece, |item| items.push(item)));
            (fed.and_then(|()| parser.finish()), items)
        };
        let (outcome, items) = read(size);
        prop_assert_eq!(&read(bytes.len().max(1)), &(outcome, items.clone()));
        prop_assert!(items.len() <= bytes.len() / RECORD);
        let mut end = 0;
        for item in items {
            if let Item::Data(range) | Item::Hole(range) = item {
                prop_assert!(range.start >= end && range.end > range.start);
                end = range.end;
            }
        }
    }
}

fn read(bytes: &[u8]) -> Result<Vec<Item>, Malformed> {
    let (mut parser, mut items) = (Parser::new(PAIR), Vec::new());
    parser.feed(bytes, |item| items.push(item))?;
    parser.finish()?;
    Ok(items)
}

const PAIR: Sent = Sent {
    to: Guid(7),
    from: Some(Guid(5)),
};

#[test]
fn both_byte_orders_say_the_same() {
    for big in [false, true] {
        let writer = RecordWriter::in_order(PAIR.to, PAIR.from, big).object(5 * BLOCK);
        let writer = writer.other().write(0, BLOCK, 333).embedded(BLOCK, BLOCK);
        let bytes = writer.free(2 * BLOCK, BLOCK).other().end();
        let expected = [
            Item::End(5 * BLOCK),
            Item::Data(0..BLOCK),
            Item::Data(BLOCK..2 * BLOCK),
            Item::Hole(2 * BLOCK..3 * BLOCK),
        ];
        assert_eq!(read(&bytes).unwrap(), expected);
    }
}

#[test]
fn a_stream_that_cannot_be_relied_on_is_refused() {
    let writer = || RecordWriter::new(PAIR.to, PAIR.from).object(4 * BLOCK);
    assert_eq!(read(b""), Err(Malformed::TooShort));
    assert_eq!(read(&[1; RECORD]), Err(Malformed::NoStream));
    assert_eq!(read(&writer().cut()), Err(Malformed::TooShort));
    let mut longer = writer().end();
    longer.push(0);
    assert_eq!(read(&longer), Err(Malformed::TooLong));
    let whole = writer().write(0, BLOCK, 100).end();
    assert_eq!(read(&whole[..whole.len() - 1]), Err(Malformed::TooShort));
    let other = RecordWriter::new(Guid(8), PAIR.from).end();
    assert_eq!(read(&other), Err(Malformed::Other));
    let full = RecordWriter::new(PAIR.to, None).end();
    assert_eq!(read(&full), Err(Malformed::Other));

    let patched = |at: usize, byte: u8| {
        let mut bytes = writer().end();
        bytes[at] = byte;
        read(&bytes)
    };
    assert_eq!(patched(16, 2), Err(Malformed::Compound));
    assert_eq!(patched(32, 2), Err(Malformed::NoZvol));
    // Redacted: bit 21 of the features.
    assert_eq!(patched(18, 0x84), Err(Malformed::Features(1 << 21)));
    assert_eq!(patched(7, 0xff), Err(Malformed::Payload(0xff00_0000)));

    let refused = |kind, words: &[(usize, u64)]| read(&writer().raw(kind, words).end());
    // WRITE_BYREF, REDACT, a second BEGIN, an unknown one.
    for kind in [6, 10, 0, 11, u32::MAX] {
        assert_eq!(refused(kind, &[]), Err(Malformed::Type(kind)));
    }
    for kind in [1, 2, 3, 4, 7, 8, 9] {
        assert_eq!(refused(kind, &[]), Err(Malformed::Astray), "{kind}");
    }
    let write = |offset, length| [(8, 1), (24, offset), (32, length), (40, 7)];
    assert_eq!(refused(3, &write(0, 0)), Err(Malformed::Range));
    assert_eq!(refused(3, &write(u64::MAX, 2)), Err(Malformed::Range));
    assert_eq!(
        refused(3, &write(0, 1 << 40)),
        Err(Malformed::Payload(1 << 40))
    );
    let free = [(8, 0), (16, 2), (24, 7)];
    assert_eq!(refused(2, &free), Err(Malformed::Freed));
    let back = writer().free(BLOCK, BLOCK).free(0, BLOCK).end();
    assert_eq!(read(&back), Err(Malformed::Order));
}

#[tokio::test]
async fn a_stream_that_ends_early_is_an_error_and_not_the_end() {
    let writer = || RecordWriter::new(PAIR.to, PAIR.from).object(4 * BLOCK);
    let of_base = Sent {
        to: Guid(5),
        from: None,
    };
    let base = || RecordWriter::new(Guid(5), None).object(4 * BLOCK);
    let outcome = async |differs: Vec<u8>, base: Vec<u8>| {
        let (differs, base) = (records(differs, PAIR, 100), records(base, of_base, 100));
        all(
            changed(differs, Before::Records(Box::new(base)), 4 * BLOCK, 0),
            10,
        )
        .await
    };
    let error = outcome(writer().cut(), base().end()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    // What the base held is not known.
    let freed = || writer().free(0, BLOCK).end();
    let error = outcome(freed(), base().cut()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    let none = outcome(freed(), base().end()).await.unwrap();
    assert_eq!(none, []);
}

/// Streams that `zfs send -w` and `zfs send -w -i` of OpenZFS 2.3.9 wrote of a zvol of 64 MiB: three blocks and an
/// embedded one in the base, and two further away; then one of the three was written again, one freed, a second
/// embedded one came, those further away were freed with all of their pointers, and one was written beyond.
const BASE: &[u8] = include_bytes!("blocks/base.zs");
const DELTA: &[u8] = include_bytes!("blocks/delta.zs");

#[tokio::test]
async fn a_stream_of_zfs_itself_is_read() {
    let (then, now) = (
        Guid(12_776_738_201_401_899_327),
        Guid(2_698_683_593_217_014_695),
    );
    let sent = Sent {
        to: now,
        from: Some(then),
    };
    let of_base = Sent {
        to: then,
        from: None,
    };
    let capacity = 64 << 20;
    let block = |at: u64| at * BLOCK..(at + 1) * BLOCK;
    let range = |at: u64, blocks: u64| BlockRange {
        offset: at * BLOCK,
        length: blocks * BLOCK,
    };
    for size in [1000, 1 << 16] {
        let base = || records(BASE.to_vec(), of_base, size);
        let all_of_it = all(held(base(), capacity, 0), 100).await.unwrap();
        assert_eq!(all_of_it, [range(3, 3), range(600, 1), range(1500, 2)]);
        let expected = [range(3, 2), range(601, 1), range(1500, 2), range(3000, 1)];
        let differs = || records(DELTA.to_vec(), sent, size);
        let found = changed(differs(), Before::Records(Box::new(base())), capacity, 0);
        assert_eq!(all(found, 100).await.unwrap(), expected);
        // Without the base, a pointer block that was freed counts as a whole: as zdb shows it.
        let freed = vec![block(4), 1024 * BLOCK..2048 * BLOCK];
        let later = Before::Later(Box::pin(async { Ok(freed) }));
        let found = changed(differs(), later, capacity, 0);
        let expected = [
            range(3, 2),
            range(601, 1),
            range(1024, 1024),
            range(3000, 1),
        ];
        assert_eq!(all(found, 100).await.unwrap(), expected);
    }
}

async fn found(driver: &MemoryDriver, of: u8, base: u8) -> Result<Vec<BlockRange>, Error> {
    let (of, base) = (snapshot_id(0, of, false), snapshot_id(0, base, false));
    let call = Call::within(std::time::Duration::from_mins(1));
    let query = BlockRangesQuery::new(&of, Some(&base), 0);
    all(driver.block_ranges(&call, query).await?, 10).await
}

async fn with_a_disk() -> MemoryDriver {
    let state: HostState = MemoryHost::new().state().clone();
    let driver = driver(VolumeKind::Zvol, false, state);
    run(&driver, &create(0, From::Nothing)).await.unwrap();
    driver
}

#[tokio::test]
async fn a_filesystem_has_no_blocks_and_is_refused_with_that_reason() {
    let state: HostState = MemoryHost::new().state().clone();
    let driver = driver(VolumeKind::Filesystem, false, state);
    let call = Call::within(std::time::Duration::from_mins(1));
    let of = snapshot_id(0, 0, false);
    let query = BlockRangesQuery::new(&of, None, 0);
    let refused = (&driver as &dyn Driver).block_ranges(&call, query).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    let said = refused.chain();
    assert!(said.contains("a filesystem has no blocks"), "{said}");
}

#[tokio::test]
async fn a_base_that_was_deleted_still_says_what_differs_until_its_volume_is_deleted() {
    let driver = with_a_disk().await;
    let (id, detached) = (0, false);
    let take = async |name| {
        let verb = Verb::Snapshot { id, name, detached };
        run(&driver, &verb).await.unwrap();
    };
    let forget = async |name| {
        let verb = Verb::DeleteSnapshot { id, name, detached };
        run(&driver, &verb).await.unwrap();
    };
    take(0).await;
    driver.backend().state().pool.write(&dataset(0));
    take(1).await;
    take(2).await;
    let block = [BlockRange {
        offset: 0,
        length: BLOCK,
    }];
    for _ in 0..2 {
        assert_eq!(found(&driver, 1, 0).await.unwrap(), block);
        assert_eq!(found(&driver, 2, 1).await.unwrap(), []);
        assert_eq!(
            found(&driver, 1, 2).await.unwrap_err().kind(),
            Kind::Invalid
        );
        assert_eq!(found(&driver, 1, 9).await.unwrap_err().kind(), Kind::Busy);
        forget(0).await;
        // Again.
        forget(0).await;
    }
    forget(1).await;
    assert_eq!(found(&driver, 2, 0).await.unwrap(), block);
    assert_eq!(found(&driver, 2, 1).await.unwrap(), []);
    take(3).await;
    forget(2).await;
    assert_eq!(found(&driver, 3, 2).await.unwrap(), []);
    forget(3).await;
    run(&driver, &Verb::Delete(0)).await.unwrap();
    run(&driver, &create(0, From::Nothing)).await.unwrap();
    take(4).await;
    assert_eq!(found(&driver, 4, 3).await.unwrap_err().kind(), Kind::Busy);
}

#[tokio::test]
async fn a_deleted_group_leaves_a_bookmark_of_each_of_its_snapshots() {
    let driver = with_a_disk().await;
    let (id, detached) = (0, false);
    run(&driver, &create(1, From::Nothing)).await.unwrap();
    let (ids, name) = (0b11, 0);
    run(&driver, &Verb::Group { ids, name }).await.unwrap();
    driver.backend().state().pool.write(&dataset(0));
    let delete = Verb::DeleteGroup { ids, name };
    // Again.
    for _ in 0..2 {
        run(&driver, &delete).await.unwrap();
    }
    let shape = driver.backend().state().pool.shape();
    let marks = shape.keys().filter(|name| name.contains('#')).count();
    assert_eq!(marks, 2);
    let name = 1;
    let later = Verb::Snapshot { id, name, detached };
    run(&driver, &later).await.unwrap();
    let block = [BlockRange {
        offset: 0,
        length: BLOCK,
    }];
    assert_eq!(found(&driver, 1, 0).await.unwrap(), block);
}

#[tokio::test]
async fn a_volume_keeps_a_bounded_number_of_bookmarks_and_the_oldest_go_first() {
    let driver = with_a_disk().await;
    let call = Call::within(std::time::Duration::from_mins(10));
    for name in 0..260 {
        let request = CreateSnapshot {
            name: SnapshotName::parse(&format!("s{name}")).unwrap(),
            source: volume(0),
            parameters: parameters(&[]),
            secrets: std::collections::BTreeMap::new(),
        };
        let taken = driver.create_snapshot(&call, &request).await.unwrap();
        if name < 259 {
            let gone = driver_core::DeleteSnapshot::new(&taken.id);
            driver.delete_snapshot(&call, gone).await.unwrap();
        }
    }
    let shape = driver.backend().state().pool.shape();
    let marks: Vec<_> = shape.keys().filter(|name| name.contains('#')).collect();
    assert_eq!(marks.len(), 256);
    let of = driver_core::SnapshotId::parse("v0@s259").unwrap();
    for (base, is_known) in [("s2", false), ("s3", true), ("s258", true)] {
        let base = driver_core::SnapshotId::parse(&format!("v0@{base}")).unwrap();
        let query = BlockRangesQuery::new(&of, Some(&base), 0);
        let outcome = driver.block_ranges(&call, query).await;
        assert_eq!(outcome.is_ok(), is_known, "{base}: {outcome:?}");
    }
}
