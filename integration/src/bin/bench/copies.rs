//! Snapshots and restores of directories, beside `cp` and `rsync` on the same files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::client::Client;
use integration::place::Place;
use integration::server::Launch;
use integration::tree::Tree;
use integration::volume;

use crate::report::{Figures, median, row, title};

const FILES: u32 = 10_000;
const SPARSE: u64 = 2 << 30;
/// Data in the sparse file, at as many places.
const CHUNK: usize = 1 << 20;
const CHUNKS: u64 = 64;

/// The program that copies the source, and what it took in each round.
#[derive(Debug, Default)]
struct Times {
    snapshot: Vec<Duration>,
    restore: Vec<Duration>,
    cp: Vec<Duration>,
    rsync: Vec<Duration>,
}

/// Copies many small files, and one large sparse one.
pub(crate) async fn all(quick: bool) -> Result<()> {
    let place = Place::new();
    let server = Launch::local_hostpath(&place).start(&place).await;
    let bench = Bench {
        client: server.client(),
        place: &place,
        rounds: if quick { 1 } else { 5 },
    };
    let number = if quick { FILES / 10 } else { FILES };
    let files = format!("{number} files of 1 to 4 KiB");
    let plant = |top: &Path| plant_files(top, number);
    bench.source("files", &files, plant).await?;
    bench
        .source(
            "sparse",
            "a sparse file of 2 GiB, 64 MiB of data",
            plant_sparse,
        )
        .await
}

#[derive(Debug)]
struct Bench<'a> {
    client: Client,
    place: &'a Place,
    rounds: usize,
}

impl Bench<'_> {
    async fn source(
        &self,
        name: &str,
        what: &str,
        plant: impl Fn(&Path) -> Result<()>,
    ) -> Result<()> {
        let create = volume::create(name, &BTreeMap::new());
        let made = self.client.clone().controller.create_volume(create).await?;
        let made = made.into_inner().volume.context("a volume")?.volume_id;
        let source = self.volume(&made);
        plant(&source)?;
        rustix::fs::syncfs(File::open(&source)?)?;
        let mut times = Times::default();
        for round in 0..self.rounds {
            self.round(name, &made, round, &mut times).await?;
        }
        title(what);
        let floor = |series: &[Duration], floor: &[Duration]| {
            let ratio =
                |(ours, floor): (&Duration, &Duration)| ours.as_secs_f64() / floor.as_secs_f64();
            median(&mut series.iter().zip(floor).map(ratio).collect::<Vec<_>>())
        };
        for (call, series) in [
            ("CreateSnapshot", &times.snapshot),
            ("CreateVolume from it", &times.restore),
        ] {
            let middle = Figures::of(&mut series.clone()).p50.as_secs_f64();
            let (cp, rsync) = (floor(series, &times.cp), floor(series, &times.rsync));
            row(
                call,
                &format!("{middle:.2} s   over cp {cp:.2}   over rsync {rsync:.2}"),
            );
        }
        Ok(())
    }

    fn volume(&self, id: &str) -> PathBuf {
        self.place.base().join("v").join(id)
    }

    async fn round(&self, name: &str, id: &str, round: usize, times: &mut Times) -> Result<()> {
        let source = self.volume(id);
        let mut client = self.client.clone();
        let began = Instant::now();
        let taken = loop {
            let request = volume::snapshot(&format!("{name}-{round}"), id);
            let answer = client.controller.create_snapshot(request).await?;
            let taken = answer.into_inner().snapshot.context("a snapshot")?;
            if taken.ready_to_use {
                break taken.snapshot_id;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        times.snapshot.push(began.elapsed());
        let mut restore = volume::create(&format!("{name}-restored-{round}"), &BTreeMap::new());
        restore.volume_content_source = volume::from_snapshot(&taken);
        let began = Instant::now();
        let restored = client.controller.create_volume(restore).await?;
        times.restore.push(began.elapsed());
        let restored = restored.into_inner().volume.context("a volume")?.volume_id;
        same(&source, &self.volume(&restored))?;

        // Nothing is deleted before the end: ext4 is slow to make files where others were just deleted.
        for (program, arguments, series) in [
            ("cp", &["-a", "--reflink=auto"][..], &mut times.cp),
            ("rsync", &["-a"], &mut times.rsync),
        ] {
            let copy = self.place.base().join(format!("{program}-{name}-{round}"));
            let from = source.join(".");
            let began = Instant::now();
            fs::create_dir(&copy)?;
            run(program, arguments, &[&from, &copy])?;
            // The driver answers when all is on the disk.
            rustix::fs::syncfs(File::open(&copy)?)?;
            series.push(began.elapsed());
        }
        Ok(())
    }
}

fn plant_files(top: &Path, files: u32) -> Result<()> {
    for number in 0..files {
        let folder = top.join((number % 100).to_string());
        fs::create_dir_all(&folder)?;
        let file = folder.join(number.to_string());
        let length = 1024 + usize::try_from(number % 3073)?;
        fs::write(&file, vec![u8::try_from(number % 251)?; length])?;
        std::os::unix::fs::chown(&file, Some(1000 + number % 7), Some(2000))?;
        if number % 10 == 0 {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&file, "user.number", &number.to_le_bytes(), flags)?;
            fs::hard_link(&file, folder.join(format!("{number}-linked")))?;
        }
        if number % 100 == 0 {
            File::create(folder.join(format!("{number}-hole")))?.set_len(1 << 20)?;
        }
    }
    Ok(())
}

fn plant_sparse(top: &Path) -> Result<()> {
    let file = File::create(top.join("sparse"))?;
    file.set_len(SPARSE)?;
    for number in 0..CHUNKS {
        let content = vec![u8::try_from(number + 1)?; CHUNK];
        file.write_all_at(&content, number * (SPARSE / CHUNKS))?;
    }
    Ok(())
}

/// Owners, modes, times, attributes, hard links, contents and holes.
fn same(source: &Path, copy: &Path) -> Result<()> {
    let sparse = source.join("sparse");
    if sparse.exists() {
        run("cmp", &[], &[&sparse, &copy.join("sparse")])?;
    } else {
        let difference = Tree::read_content(source).difference(&Tree::read_content(copy));
        ensure!(difference.is_empty(), "the copy differs: {difference}");
    }
    let (source, copy) = (blocks(source)?, blocks(copy)?);
    ensure!(
        copy <= source + source / 20,
        "the source occupies {source} blocks, the copy {copy}"
    );
    Ok(())
}

/// The blocks that a folder and everything in it occupy.
fn blocks(path: &Path) -> Result<u64> {
    let metadata = fs::symlink_metadata(path)?;
    let mut blocks = metadata.blocks();
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            blocks += self::blocks(&entry?.path())?;
        }
    }
    Ok(blocks)
}

#[expect(
    clippy::disallowed_methods,
    reason = "what a copy is measured against is another program"
)]
fn run(program: &str, arguments: &[&str], paths: &[&Path]) -> Result<()> {
    let done = std::process::Command::new(program)
        .args(arguments)
        .args(paths)
        .output()
        .with_context(|| format!("run {program}"))?;
    ensure!(done.status.success(), "{program} {paths:?}: {done:?}");
    Ok(())
}
