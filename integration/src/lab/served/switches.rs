//! Properties of a volume are changed again and again while fio writes to it. Each answer is what ZFS shows, a class
//! with a wrong value changes nothing, and each block is read as it was written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use csi_proto::v1 as csi;
use serde_json::Value;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::life::{delete, make, used};
use super::settings::dataset;
use super::{Served, storage};
use crate::lab::beside::Beside;
use crate::lab::calls::{Node, refused, within};
use crate::lab::command::run;
use crate::lab::content::Rng;
use crate::lab::fixture::{Fixture, SIZE};
use crate::lab::given;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;
use crate::place::Place;
use crate::volume;

/// The switches, unless the environment gives another number.
const ROUNDS: u64 = 200;
/// Of so many switches about one is preceded by a wrong class.
const WRONG_ONE_OF: u64 = 5;
/// The longest time of a pass of fio.
const PASS: Duration = Duration::from_mins(15);
/// The bytes of its file.
const BYTES: u64 = 32 << 20;

/// A key of a class that can be changed, with values that ZFS shows as they are.
struct Key {
    name: &'static str,
    property: &'static str,
    values: &'static [&'static str],
}

const fn key(name: &'static str, values: &'static [&'static str]) -> Key {
    Key {
        name,
        property: name,
        values,
    }
}

/// Zvols have the first of them, filesystems have all.
static KEYS: [Key; 6] = [
    key(
        "compression",
        &[
            "on",
            "off",
            "lz4",
            "lzjb",
            "zle",
            "gzip",
            "gzip-1",
            "gzip-9",
            "zstd",
            "zstd-9",
            "zstd-fast",
            "zstd-fast-10",
        ],
    ),
    key("sync", &["standard", "always", "disabled"]),
    key("logbias", &["latency", "throughput"]),
    Key {
        property: "refreservation",
        ..key("reservationMode", &["refreservation", "none"])
    },
    key(
        "recordsize",
        &["4096", "16384", "65536", "131072", "1048576"],
    ),
    key("atime", &["on", "off"]),
];
const OF_ZVOLS: usize = 4;

/// Each is refused, whatever else the class has: a value that there is not, or a key that is fixed or not allowed.
const WRONG: [(&str, &str); 8] = [
    ("compression", "zstd-20"),
    ("compression", "lz4 sync=disabled"),
    ("sync", "off"),
    ("logbias", "-o"),
    ("reservationMode", "auto"),
    ("quotaMode", "none"),
    ("volblocksize", "16K"),
    ("mountpoint", "/"),
];

/// The number of switches.
pub fn rounds() -> u64 {
    given::rounds().unwrap_or(ROUNDS)
}

/// Random switches of a volume under load, with wrong classes between them.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn change_no_byte(served: Served) {
    let (keys, fixed) = if served.is_device() {
        (&KEYS[..OF_ZVOLS], "volblocksize")
    } else {
        (&KEYS[..], "quotaMode")
    };
    let names: Vec<_> = keys.iter().map(|key| key.name).chain([fixed]).collect();
    let allowed = format!("  volumeParameters: [{}]\n", names.join(", "));
    let place = Place::new();
    let node = Node::start_with(served.launch_with(&place, &allowed)).await;
    let before = (Leftovers::read(), storage());

    step("make, stage, write");
    let volume = make(&node, served, "switched", SIZE, None).await;
    let pod = used(&node, &volume).await;
    let mut load = Load::start(&pod, 1);
    let mut switches = Switches::new(&node, &volume, keys);
    for number in 1..=rounds() {
        load.goes_on();
        if switches.rng.below(WRONG_ONE_OF) == 0 {
            switches.wrong().await;
        }
        switches.right(number).await;
        if number.is_multiple_of(20) {
            step(&format!("{number} of {} switches", rounds()));
        }
    }
    let wrong = switches.refused;
    let passes = load.end().await;
    step(&format!(
        "MEASURED {} switches and {wrong} refusals during {passes} passes, each of them read as written",
        rounds()
    ));

    step("stage again and compare");
    let digest = digest(&pod);
    node.take_away(&volume, &[&pod]).await;
    // What the node remembers is no proof.
    fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
    let pod = used(&node, &volume).await;
    assert_eq!(self::digest(&pod), digest, "after it was staged again");

    step("take away");
    node.take_away(&volume, &[&pod]).await;
    delete(&node, &volume).await;
    Leftovers::back_to(&before.0, "the switches").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// The switches of a volume.
struct Switches<'a> {
    node: &'a Node,
    volume: &'a Fixture,
    keys: &'static [Key],
    /// The values that ZFS has to show.
    expected: BTreeMap<&'static str, String>,
    refused: u64,
    rng: Rng,
}

// === impl Switches ===

impl<'a> Switches<'a> {
    fn new(node: &'a Node, volume: &'a Fixture, keys: &'static [Key]) -> Self {
        let seed = given::seed();
        step(&format!("seed {seed}"));
        Self {
            expected: shown(keys, volume),
            node,
            volume,
            keys,
            refused: 0,
            rng: Rng::new(seed),
        }
    }

    /// One to three keys with their values.
    fn class(&mut self) -> BTreeMap<&'static str, &'static str> {
        let mut class = BTreeMap::new();
        for _ in 0..=self.rng.below(3) {
            let key = pick(self.keys, &mut self.rng);
            class.insert(key.name, *pick(key.values, &mut self.rng));
        }
        class
    }

    async fn right(&mut self, number: u64) {
        let class = self.class();
        let what = format!("switch {number} to {class:?}");
        let changed = self.modify(&class).await;
        changed.unwrap_or_else(|status| panic!("{what}: {status:?}"));
        for (name, value) in class {
            self.expected.insert(name, value.to_owned());
        }
        assert_eq!(shown(self.keys, self.volume), self.expected, "{what}");
    }

    async fn wrong(&mut self) {
        let mut class = self.class();
        let (name, value) = *pick(&WRONG, &mut self.rng);
        class.insert(name, value);
        let what = format!("the wrong class {class:?}");
        refused(self.modify(&class).await, &[Code::InvalidArgument], &what);
        self.refused += 1;
        assert_eq!(shown(self.keys, self.volume), self.expected, "{what}");
    }

    async fn modify(&self, class: &BTreeMap<&str, &str>) -> Result<(), Status> {
        let class: Vec<_> = class.iter().map(|(name, value)| (*name, *value)).collect();
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: self.volume.volume.volume_id.clone(),
            mutable_parameters: volume::parameters(&class),
            ..Default::default()
        };
        let mut controller = self.node.server.client().controller;
        let reply = within("modify", controller.controller_modify_volume(request)).await;
        reply.map(drop)
    }
}

fn pick<'a, T>(all: &'a [T], rng: &mut Rng) -> &'a T {
    let number = rng.below(all.len().try_into().expect("a few"));
    &all[usize::try_from(number).expect("a few")]
}

/// The values of all keys, as `zfs get` shows them.
fn shown(keys: &[Key], volume: &Fixture) -> BTreeMap<&'static str, String> {
    let properties: Vec<_> = keys.iter().map(|key| key.property).collect();
    let (properties, dataset) = (properties.join(","), dataset(volume));
    let rows = run(&[
        "zfs",
        "get",
        "-Hp",
        "-o",
        "property,value",
        &properties,
        &dataset,
    ]);
    let rows = rows.lines().filter_map(|row| row.split_once('\t'));
    let rows: BTreeMap<_, _> = rows.collect();
    let value = |key: &Key| match (key.property, rows[key.property]) {
        ("refreservation", "0") => "none".to_owned(),
        ("refreservation", bytes) => {
            let bytes: u64 = bytes.parse().expect("a number of bytes");
            assert!(bytes >= SIZE, "{bytes} of {SIZE} bytes are reserved");
            "refreservation".to_owned()
        }
        (_, value) => value.to_owned(),
    };
    keys.iter().map(|key| (key.name, value(key))).collect()
}

/// A file of the volume that fio writes in passes: each block once, at random, then each block is read from the storage
/// and compared with its checksum.
///
/// Each odd pass makes the file anew, so that it has the record size of that moment; each even one writes over it, with
/// another kind of checksum, so that a block of the pass before is not taken for one of this.
struct Load {
    pod: PathBuf,
    pass: u64,
    fio: Beside,
}

// === impl Load ===

impl Load {
    const FILE: &'static str = "written-by-fio";
    const REPORT: &'static str = "report";

    fn start(pod: &Path, pass: u64) -> Self {
        let file = pod.join(Self::FILE);
        let is_odd = pass % 2 == 1;
        if is_odd && pass > 1 {
            fs::remove_file(&file).expect("the file of the passes before");
        }
        let folder = TempDir::with_prefix("fio-").expect("a temporary folder");
        let name = format!("--filename={}", file.display());
        let size = format!("--size={BYTES}");
        let checksum = if is_odd { "crc32c" } else { "crc32" };
        let verify = format!("--verify={checksum}");
        let seed = format!("--randseed={pass}");
        let report = folder.path().join(Self::REPORT);
        let report = format!("--output={}", report.display());
        let words = [
            "fio",
            "--name=passes",
            "--thread",
            "--ioengine=psync",
            "--direct=1",
            "--rw=randwrite",
            "--bs=16k",
            "--fallocate=none",
            "--buffer_compress_percentage=50",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--output-format=json",
            name.as_str(),
            size.as_str(),
            verify.as_str(),
            seed.as_str(),
            report.as_str(),
        ];
        let fio = Beside::start(folder, &words);
        let pod = pod.to_owned();
        Self { pod, pass, fio }
    }

    /// Begins the next pass if one is over.
    fn goes_on(&mut self) {
        if let Some(status) = self.fio.status() {
            self.is_whole(status);
            *self = Self::start(&self.pod, self.pass + 1);
        }
    }

    /// Waits for the end of the last pass; the number of passes.
    async fn end(mut self) -> u64 {
        let status = self.fio.ended(PASS).await;
        self.is_whole(status);
        self.pass
    }

    /// All was written, and all of it was read and right.
    fn is_whole(&self, status: ExitStatus) {
        let report = fs::read_to_string(self.fio.folder().join(Self::REPORT)).unwrap_or_default();
        let log = self.fio.log();
        let what = format!("pass {}: {status}\n{log}\n{report}", self.pass);
        assert!(status.success(), "{what}");
        // A note may come before the report.
        let begin = report.find('{').unwrap_or_default();
        let report: Value = serde_json::from_str(&report[begin..]).expect("a report of fio");
        let job = &report["jobs"][0];
        assert_eq!(job["error"].as_u64(), Some(0), "{what}");
        for done in ["write", "read"] {
            assert_eq!(
                job[done]["io_bytes"].as_u64(),
                Some(BYTES),
                "{done}: {what}"
            );
        }
    }
}

/// The digest of the file, by a program that is quicker than this one.
fn digest(pod: &Path) -> String {
    let file = pod.join(Load::FILE).display().to_string();
    let said = run(&["sha256sum", &file]);
    said.split(' ').next().unwrap_or_default().to_owned()
}
