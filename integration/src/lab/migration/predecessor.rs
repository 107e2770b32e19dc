//! The leftovers of democratic-csi on a storage host, made with the commands that it runs there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use csi_proto::v1::{Topology, Volume};
use serde_json::Value;

use crate::lab::command::run;
use crate::lab::life::{FILE, step};
use crate::lab::storage::configfs::{link, make, set};
use crate::lab::storage::zfs::{Dataset, Zvol};
use crate::volume;

/// The captured text of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    pub(super) kind: &'static str,
    /// The output of `zfs get`.
    pub(super) zfs: &'static str,
    /// The requests and answers.
    pub(super) calls: &'static str,
}

/// Which of it is made: the others differ in nothing that is not tested in memory.
const MADE: [&str; 6] = [
    "/v/pvc-old",
    "/v/pvc-old@snapshot-old",
    "/s/pvc-old/snapshot-old-detached",
    "/v/pvc-old-restored",
    "/v/pvc-old@volume-source-for-volume-pvc-old-cloned",
    "/v/pvc-old-cloned",
];
/// The native properties that are compared, in addition to the properties that are set.
const FACTS: [&str; 5] = [
    "type",
    "origin",
    "volsize",
    "volblocksize",
    "casesensitivity",
];

/// A property, its value, and where it is from.
type Row<'a> = [&'a str; 3];

/// Those that tell whether an object is what was captured.
fn telling<'a>(name: &str, rows: impl Iterator<Item = Row<'a>>) -> BTreeSet<String> {
    let rows = rows.filter(|[property, value, source]| {
        // Of snapshots it was not kept, and of no interest is what every dataset has.
        let is_left_out = (*property == "volsize" && name.contains('@'))
            || (*property == "casesensitivity" && (*value != "insensitive" || name.contains('@')));
        let is_set = matches!(*source, "local" | "received");
        !is_left_out && *value != "-" && (is_set || FACTS.contains(property))
    });
    rows.map(|row| row.join(" ")).collect()
}

// === impl Left ===

impl Left {
    /// Makes all of it, with a file of this content in the volume.
    ///
    /// # Panics
    /// If it is not what was captured then.
    pub(super) fn make(&self, content: &[u8]) {
        let objects = self.objects();
        for leaf in MADE {
            let name = self.place(leaf);
            step(&name);
            self.create(&name, &objects[name.as_str()]);
            let Some(id) = leaf.strip_prefix("/v/").filter(|leaf| !leaf.contains('@')) else {
                continue;
            };
            if id == "pvc-old" {
                self.fill(&name, content);
            }
            self.export(&name, id);
        }
        for leaf in MADE {
            let name = self.place(leaf);
            let columns = ["-o", "property,value,source", "all", &name];
            let now = run(&[&["zfs", "get", "-Hp"], &columns[..]].concat());
            let now = now.lines().map(|line| {
                let mut fields = line.split('\t');
                [(); 3].map(|()| fields.next().expect("three columns"))
            });
            let captured = objects[name.as_str()].iter().copied();
            assert_eq!(telling(&name, now), telling(&name, captured), "{name}");
        }
        if self.kind == "dataset" {
            // As soon as a node has staged it.
            run(&["zfs", "set", "mountpoint=legacy", &self.place("/v/pvc-old")]);
        }
    }

    fn place(&self, leaf: &str) -> String {
        format!("tank/k8s/{}{leaf}", self.kind)
    }

    fn is_disk(&self) -> bool {
        matches!(self.kind, "iscsi" | "nvmeof" | "zvol")
    }

    fn objects(&self) -> BTreeMap<&'static str, Vec<Row<'static>>> {
        let mut objects: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for line in self.zfs.lines() {
            let mut fields = line.split('\t');
            let name = fields.next().unwrap_or_default();
            let row = [(); 3].map(|()| fields.next().expect("four columns"));
            objects.entry(name).or_default().push(row);
        }
        objects
    }

    /// As its `zfs` commands do it: by `create`, `clone` or `snapshot`, with all that is then set.
    fn create(&self, name: &str, rows: &[Row<'_>]) {
        let of = |property: &str| rows.iter().find(|row| row[0] == property).map(|row| row[1]);
        let own: Vec<String> = rows
            .iter()
            .filter(|row| row[2] == "local" && row[0] != "volsize")
            .map(|row| format!("{}={}", row[0], row[1]))
            .collect();
        if name.contains("/s/") {
            return self.detach(name, &own);
        }
        let mut options: Vec<&str> = own.iter().flat_map(|pair| ["-o", pair.as_str()]).collect();
        let words = match (of("type"), of("origin")) {
            (Some("snapshot"), _) => [&["zfs", "snapshot"], &options[..], &[name]].concat(),
            (_, Some(origin)) => [&["zfs", "clone", "-p"], &options[..], &[origin, name]].concat(),
            (Some("volume"), None) => {
                let (size, block) = (of("volsize"), of("volblocksize"));
                let block = format!("volblocksize={}", block.expect("a size of blocks"));
                let zvol = ["-V", size.expect("a size"), "-o", &block];
                let words = [&["zfs", "create", "-p"], &options[..], &zvol, &[name]].concat();
                run(&words);
                return;
            }
            (_, None) => {
                if of("casesensitivity").is_some() {
                    options.extend(["-o", "casesensitivity=insensitive"]);
                }
                [&["zfs", "create", "-p"], &options[..], &[name]].concat()
            }
        };
        run(&words);
    }

    /// A detached snapshot: a copy that is then given its properties.
    fn detach(&self, name: &str, own: &[String]) {
        let (parent, leaf) = name.rsplit_once('/').expect("a parent");
        run(&["zfs", "create", "-p", parent]);
        let helper = format!("volume-source-for-snapshot-{leaf}");
        let source = format!("{}@{helper}", self.place("/v/pvc-old"));
        run(&["zfs", "snapshot", &source]);
        let copied = format!("zfs send {source} | zfs receive {name}");
        run(&["sh", "-c", &copied]);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        run(&[&["zfs", "set"], &own[..], &[name]].concat());
        for snapshot in [format!("{name}@{helper}"), source] {
            run(&["zfs", "destroy", "-d", &snapshot]);
        }
    }

    /// The file that a pod wrote while democratic-csi had it mounted.
    fn fill(&self, name: &str, content: &[u8]) {
        let name = name.to_owned();
        if self.is_disk() {
            Zvol { name }.fill(FILE, content);
        } else {
            Dataset { name }.fill(FILE, content);
        }
    }

    fn export(&self, name: &str, id: &str) {
        match self.kind {
            "iscsi" => target(&format!("csi-{id}-lab"), &device(name)),
            "nvmeof" => subsystem(&format!("nqn.2003-01.org.linux-nvme:{id}"), &device(name)),
            "smb" => {
                run(&["chmod", "0770", &format!("/{name}")]);
                run(&["chown", "-R", "csi:csi", &format!("/{name}")]);
            }
            "nfs" | "dataset" => drop(run(&["chmod", "0777", &format!("/{name}")])),
            _ => {}
        }
    }

    /// The answer of democratic-csi when it was asked for this volume.
    pub(super) fn volume(&self, id: &str) -> Volume {
        let answers = self.calls.lines().map(|line| {
            let mut said: Value = serde_json::from_str(line).expect("a call a line");
            said["response"]["volume"].take()
        });
        let mut volumes = answers.filter(|volume| volume["volume_id"] == id);
        let volume = volumes.next().expect("it was captured");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let map = |value: &Value| -> BTreeMap<String, String> {
            let entries = value.as_object().into_iter().flatten();
            entries
                .map(|(key, value)| (key.clone(), text(value)))
                .collect()
        };
        let source = |kind: &str, key: &str| volume["content_source"][kind][key].as_str();
        let snapshot = source("snapshot", "snapshot_id").and_then(volume::from_snapshot);
        let whole = source("volume", "volume_id").and_then(volume::from_volume);
        let places = volume["accessible_topology"].as_array().into_iter();
        Volume {
            volume_id: id.to_owned(),
            capacity_bytes: text(&volume["capacity_bytes"]).parse().expect("a number"),
            volume_context: map(&volume["volume_context"]),
            content_source: snapshot.or(whole),
            accessible_topology: places
                .flatten()
                .map(|place| Topology {
                    segments: map(&place["segments"]),
                })
                .collect(),
        }
    }
}

/// The device of a zvol, once it is there.
fn device(name: &str) -> String {
    let device = format!("/dev/zvol/{name}");
    run(&["udevadm", "wait", "--timeout=60", &device]);
    device
}

/// Makes a target by targetcli.
fn target(asset: &str, device: &str) {
    let iqn = format!("iqn.2003-01.org.linux-iscsi.lab:{asset}");
    let lines = [
        format!("/iscsi create {iqn}"),
        format!(
            "/iscsi/{iqn}/tpg1 set attribute authentication=0 generate_node_acls=1 \
             cache_dynamic_acls=1 demo_mode_write_protect=0"
        ),
        format!("/backstores/block create {asset} {device}"),
        format!("/backstores/block/{asset} set attribute emulate_tpu=1"),
        format!("/iscsi/{iqn}/tpg1/luns create /backstores/block/{asset}"),
    ];
    let script = format!("echo '{}' | targetcli", lines.join("\n"));
    let said = run(&["sh", "-c", &script]);
    assert!(said.contains("Created LUN 0"), "{said}");
}

/// The subsystem that nvmetcli makes.
fn subsystem(nqn: &str, device: &str) {
    let root = Path::new("/sys/kernel/config/nvmet");
    let port = root.join("ports/1");
    if !port.exists() {
        make(&port);
        for (attribute, value) in [
            ("addr_trtype", "tcp"),
            ("addr_adrfam", "ipv4"),
            ("addr_traddr", "0.0.0.0"),
            ("addr_trsvcid", "4420"),
        ] {
            set(&port, attribute, value);
        }
    }
    let folder = root.join("subsystems").join(nqn);
    make(&folder);
    set(&folder, "attr_allow_any_host", "1");
    let namespace = folder.join("namespaces/1");
    make(&namespace);
    set(&namespace, "device_path", device);
    set(&namespace, "enable", "1");
    link(&folder, &port.join("subsystems").join(nqn));
}
