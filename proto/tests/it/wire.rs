//! Pins the wire contract: every name, number, type and marker of `csi.proto` against the table
//! `wire.txt`, both ways, and what clients of CSI 1.12 still need against the numbers 1.13 gave up.
//! The descriptor is the checked-in one; that it is what `csi.proto` says is `bootstrap.rs`'s to test.

use std::collections::BTreeSet;

use csi_proto::{ADDONS_DESCRIPTOR_SET, FILE_DESCRIPTOR_SET};
use prost_reflect::DescriptorPool;

use super::bootstrap::ADDONS;

mod facts;

const TABLE: &str = include_str!("../wire.txt");
const ADDONS_TABLE: &str = include_str!("../wire-csi-addons.txt");

/// Everything that `csi.proto` has beyond CSI 1.13, and nothing else.
const COMPATIBILITY_WITH_1_12: [&str; 8] = [
    "message VolumeCondition [alpha]",
    "message VolumeCondition field 1 abnormal bool",
    "message VolumeCondition field 2 message string",
    "message ListVolumesResponse.VolumeStatus field 2 volume_condition VolumeCondition [alpha]",
    "message ControllerGetVolumeResponse.VolumeStatus field 2 volume_condition VolumeCondition [alpha]",
    "message NodeGetVolumeStatsResponse field 2 volume_condition VolumeCondition [alpha]",
    "enum ControllerServiceCapability.RPC.Type value 11 VOLUME_CONDITION [alpha]",
    "enum NodeServiceCapability.RPC.Type value 4 VOLUME_CONDITION [alpha]",
];

type Facts = BTreeSet<String>;

/// The lines of the table, each with the block it stands in.
fn table() -> Vec<String> {
    let mut block = "";
    let mut lines = Vec::new();
    for line in TABLE
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(inner) = line.strip_prefix("  ") {
            lines.push(format!("{} {inner}", block.split(" [").next().unwrap()));
        } else {
            block = line;
            lines.push(line.to_owned());
        }
    }
    lines
}

fn is_reserved(line: &str) -> bool {
    line.contains(" reserved ")
}

fn marked(lines: &[String], marker: &str) -> Facts {
    lines
        .iter()
        .filter_map(|line| line.strip_suffix(marker))
        .map(str::to_owned)
        .collect()
}

#[test]
fn descriptor_and_table_say_the_same() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let actual = facts::of_package(&pool, "csi.v1");
    let lines = table();
    let wanted: Facts = lines
        .iter()
        .filter(|line| !is_reserved(line))
        .map(|line| {
            line.trim_end_matches(" [compat]")
                .trim_end_matches(" [ours]")
                .to_owned()
        })
        .collect();
    let missing: Vec<_> = wanted.difference(&actual).collect();
    let unknown: Vec<_> = actual.difference(&wanted).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "only in wire.txt: {missing:#?}\nonly in csi.proto: {unknown:#?}"
    );
}

#[test]
fn no_line_of_the_table_stands_there_twice() {
    let lines = table();
    let distinct: BTreeSet<_> = lines.iter().collect();
    assert_eq!(distinct.len(), lines.len());
}

#[test]
fn additions_for_version_1_12_are_exactly_the_listed_ones() {
    let wanted: Facts = COMPATIBILITY_WITH_1_12.map(str::to_owned).into();
    assert_eq!(marked(&table(), " [compat]"), wanted);
}

#[test]
fn the_only_option_of_our_own_is_the_sensitive_marker() {
    let wanted = "extension csi.v1.omnibus_sensitive 50001 bool of google.protobuf.FieldOptions";
    assert_eq!(
        marked(&table(), " [ours]"),
        Facts::from([wanted.to_owned()])
    );
}

#[test]
fn every_addition_to_a_type_of_version_1_13_uses_a_number_reserved_there() {
    let lines = table();
    let reserved: Facts = lines
        .iter()
        .filter(|line| is_reserved(line))
        .cloned()
        .collect();
    let used: Facts = marked(&lines, " [compat]")
        .iter()
        .filter(|line| !line.starts_with("message VolumeCondition"))
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            format!("{} {} reserved {}", words[0], words[1], words[3])
        })
        .collect();
    assert_eq!(used, reserved);
}

#[test]
fn the_files_of_csi_addons_and_their_table_say_the_same() {
    let pool = DescriptorPool::decode(ADDONS_DESCRIPTOR_SET).unwrap();
    let of = |package: &str| {
        let facts = facts::of_package(&pool, package);
        let lines = facts
            .into_iter()
            .map(move |line| line.replace(&format!("{package}."), ""));
        lines
            .map(|line| format!("{package}: {line}"))
            .collect::<Vec<_>>()
    };
    let actual: Facts = ADDONS.into_iter().flat_map(of).collect();
    let wanted: Facts = ADDONS_TABLE
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = wanted.difference(&actual).collect();
    let unknown: Vec<_> = actual.difference(&wanted).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "only in wire-csi-addons.txt: {missing:#?}\nonly in the files: {unknown:#?}"
    );
}
