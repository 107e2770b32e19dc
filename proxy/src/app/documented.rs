//! The table of capabilities of the documentation, beside what each driver has.

use std::collections::{BTreeMap, BTreeSet};

use csi_types::AccessMode;
use driver_core::Expansion;
use driver_core::config::{Document, NoEnvironment};

use crate::csi::advertise::attaches;
use crate::routing::connection::{Connection, ConnectionContext, LETTING_IN, built, least};
use crate::routing::connections::ConnectionName;

/// The page.
const PAGE: &str = include_str!("../../../docs/capabilities.md");

/// Whether a connection has what a row is about.
type Has = fn(&Connection) -> bool;

/// The rows that can be seen without a storage and a node.
const COMPARED: [(&str, Has); 19] = [
    ("attach and detach", |one| attaches(&one.can())),
    ("lists show the nodes of a volume", |one| {
        one.can().published_nodes
    }),
    ("NetworkFence", |one| one.can().fence),
    ("snapshots, and volumes from them", |one| {
        one.can().snapshots
    }),
    ("clones: volumes from volumes", |one| one.can().clones),
    ("restore to the other volumeMode", |one| one.access().block),
    ("group snapshots", |one| one.can().groups),
    ("allocated blocks", |one| one.can().block_metadata),
    ("changed blocks", |one| one.can().block_metadata),
    ("the same since a base that was deleted", |one| {
        one.can().block_metadata
    }),
    ("modify: VolumeAttributesClass", |one| one.can().modify),
    ("health by the storage, both dialects", |one| {
        one.can().health
    }),
    ("lost exports come back", |one| one.can().exports),
    ("raw block", |one| one.access().block),
    ("raw block, ReadWriteMany", |one| {
        let modes = &one.access().block_modes;
        modes.contains(&AccessMode::MultiNodeMultiWriter)
    }),
    ("mounted, ReadWriteMany", |one| {
        let modes = &one.access().mount_modes;
        modes.contains(&AccessMode::MultiNodeMultiWriter)
    }),
    ("growth, in use", |one| one.can().expand != Expansion::None),
    ("Kata direct volumes", |one| one.access().block),
    ("topology", |one| one.can().topology),
];

/// The rows of all tables whose first column is `first`, their heads among them.
fn rows(first: &str) -> Vec<Vec<&'static str>> {
    let head = format!("| {first} |");
    let mut is_in = false;
    let mut found = Vec::new();
    for line in PAGE.lines() {
        is_in = line.starts_with(&head) || (is_in && line.starts_with('|'));
        if is_in && !line.starts_with("|---") {
            let cells = line.trim_matches('|').split('|');
            found.push(cells.map(str::trim).collect());
        }
    }
    found
}

/// A cell without the targets of its links.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    for (at, part) in cell.split("](").enumerate() {
        let shown = if at == 0 {
            part
        } else {
            part.split_once(')').map_or("", |(_, rest)| rest)
        };
        text.push_str(&shown.replace('[', ""));
    }
    text
}

/// The kinds that a cell names.
fn kinds(cell: &'static str) -> impl Iterator<Item = &'static str> {
    cell.split(", ").map(|kind| kind.trim_matches('`'))
}

/// Whether a cell says that a kind can do it. `None` where it is about one protocol with an option that the configurations
/// here do not have.
fn says(cell: &str, kind: &str) -> Option<bool> {
    let ends = ["-iscsi", "-nvmeof", "-zvol"];
    let is_disk = ends.into_iter().any(|end| kind.ends_with(end));
    match cell.split(' ').next()? {
        "yes" => Some(true),
        "no" => Some(false),
        "disks" => Some(is_disk),
        "shares" => Some(!is_disk),
        _ => None,
    }
}

/// A connection that lets in nodes one by one and changes volumes, where its kind can.
fn opened(kind: &str, context: &ConnectionContext) -> Connection {
    let given = LETTING_IN.into_iter().find(|(one, _)| *one == kind);
    let text = given.map_or_else(|| least(kind).expect(kind), |(_, text)| text.to_owned());
    let with_classes = "{volumeParameters: [sync], datasetParentName";
    let text = text.replace("{datasetParentName", with_classes);
    let document = Document::parse(&text, &NoEnvironment).expect("yaml");
    let name = ConnectionName::parse("one").expect("a name");
    Connection::open(name, &document, context).expect(kind)
}

#[test]
fn the_table_of_capabilities_says_what_each_driver_has() {
    let columns = rows("column").into_iter().skip(1);
    let columns: BTreeMap<&str, Vec<&str>> = columns
        .map(|row| (row[0], kinds(row[1]).collect()))
        .collect();
    let others = rows("driver").into_iter().skip(1);
    let others = others.flat_map(|row| kinds(row[0]));
    let listed: BTreeSet<&str> = columns.values().flatten().copied().chain(others).collect();
    assert_eq!(listed, built().into_iter().collect(), "each has a place");

    let context = ConnectionContext::for_tests();
    let drivers = columns.values().flatten().copied();
    let drivers: BTreeMap<&str, Connection> =
        drivers.map(|kind| (kind, opened(kind, &context))).collect();
    let (mut heads, mut compared, mut wrong) = (Vec::new(), BTreeSet::new(), Vec::new());
    for row in rows("capability") {
        if row[0] == "capability" {
            heads = row;
            continue;
        }
        assert_eq!(row.len(), heads.len(), "{row:?}");
        let label = plain(row[0]);
        let Some((name, has)) = COMPARED.iter().find(|(name, _)| *name == label) else {
            continue;
        };
        compared.insert(*name);
        for (head, cell) in heads.iter().zip(&row) {
            for kind in columns.get(head).into_iter().flatten() {
                if says(cell, kind).is_some_and(|said| said != has(&drivers[kind])) {
                    wrong.push(format!("{label}, {kind}: {cell}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(compared.len(), COMPARED.len(), "only {compared:?}");
    let unknown = heads.iter().filter(|head| !columns.contains_key(*head));
    assert_eq!(unknown.collect::<Vec<_>>(), [&"capability", &"proxy"]);
}
