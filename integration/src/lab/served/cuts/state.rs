//! The state of a storage host, so that two moments can be compared: datasets and snapshots with
//! their properties, and the exports with their names and access lists.

use std::fs;
use std::path::Path;

use crate::lab::command::run;
use crate::lab::served::{ROOT, storage};

/// Everything of the storage host that a call may have left, a line each, in order.
///
/// # Panics
/// If the pool does not answer.
pub fn state() -> Vec<String> {
    let mut all: Vec<_> = storage().into_iter().map(without_number).collect();
    all.extend(properties());
    let config = Path::new("/sys/kernel/config");
    for tree in [
        "target/iscsi",
        "nvmet/subsystems",
        "nvmet/hosts",
        "nvmet/ports",
    ] {
        tree_of(&config.join(tree), &mut all);
    }
    let exported = fs::read_to_string("/var/lib/nfs/etab").unwrap_or_default();
    all.extend(exported.lines().map(|line| format!("etab {line}")));
    all.sort();
    all
}

/// The lines that are only in one of two states, or more often.
pub fn difference(expected: &[String], found: &[String]) -> Vec<String> {
    let mut extra = found.to_vec();
    let mut missing = expected.to_vec();
    for is_same in [str::eq, is_the_same_helper] {
        missing.retain(|line| {
            let at = extra.iter().position(|other| is_same(line, other));
            at.map(|at| extra.swap_remove(at)).is_none()
        });
    }
    let missing = missing.iter().map(|line| format!("missing: {line}"));
    let extra = extra.iter().map(|line| format!("too much: {line}"));
    missing.chain(extra).collect()
}

/// The settings of each dataset and snapshot, and its origin, but for the times and numbers that are
/// others each time.
fn properties() -> Vec<String> {
    let columns = "name,property,value";
    let list = "-s local,received -r -t filesystem,volume,snapshot";
    let mut words = vec!["zfs", "get", "-Hp", "-o", columns];
    words.extend(list.split(' '));
    words.extend(["all", ROOT]);
    let set = run(&words);
    let origins = run(&[
        "zfs",
        "get",
        "-Hp",
        "-o",
        columns,
        "-r",
        "origin,volsize,defer_destroy",
        ROOT,
    ]);
    let lines = set.lines().chain(origins.lines());
    lines.map(str::to_owned).collect()
}

/// The number of an adapter of LIO is whichever was free.
fn without_number(line: String) -> String {
    let Some((before, after)) = line.split_once("/iblock_") else {
        return line;
    };
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}/iblock{rest}")
}

/// A helper snapshot that a clone stands on may have been put aside, under a number.
fn is_the_same_helper(one: &str, other: &str) -> bool {
    let parts = |line: &str| {
        let (before, after) = line.split_once("@volume-source-for-")?;
        let end = after.find(char::is_whitespace).unwrap_or(after.len());
        let (name, rest) = after.split_at(end);
        let is_number = name.bytes().all(|b| b.is_ascii_digit());
        Some((format!("{before}@{rest}"), is_number))
    };
    match (parts(one), parts(other)) {
        (Some((one, aside)), Some((other, other_aside))) => one == other && aside != other_aside,
        _ => false,
    }
}

/// The names of all folders and links below, but for those that the kernel chooses.
fn tree_of(folder: &Path, all: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_symlink() {
            // Links to backstores have names of their own each time; what they lead to is what counts.
            let leads = fs::read_link(&path).unwrap_or_default();
            let leads = without_number(leads.display().to_string());
            all.push(format!("{} leads to {leads}", folder.display()));
        } else if kind.is_dir() {
            all.push(path.display().to_string());
            tree_of(&path, all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(all: &[&str]) -> Vec<String> {
        all.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn a_line_too_many_is_seen() {
        let expected = lines(&["a", "b", "c"]);
        assert!(difference(&expected, &lines(&["c", "b", "a"])).is_empty());
        let found = difference(&expected, &lines(&["a", "a", "c"]));
        assert_eq!(found, ["missing: b", "too much: a"]);
    }

    #[test]
    fn only_a_helper_that_was_put_aside_is_the_same_under_another_name() {
        let named = lines(&["t/v@volume-source-for-volume-x\torigin\t-"]);
        for (line, is_same) in [
            ("t/v@volume-source-for-17\torigin\t-", true),
            ("t/v@volume-source-for-17\torigin\tt/w", false),
            ("t/w@volume-source-for-17\torigin\t-", false),
            ("t/v@volume-source-for-volume-y\torigin\t-", false),
            ("t/v@17\torigin\t-", false),
        ] {
            let found = difference(&named, &lines(&[line]));
            assert_eq!(found.is_empty(), is_same, "{found:?}");
        }
    }
}
